"""What is stopped, failed and replayed: one operation each, on a store that was made for it.

An operation prepares a store, then acts in a child process and says what it was acknowledged. Acting again after a
stop must lead to the same end as acting once; saves carry an idempotency key for that.
"""

from __future__ import annotations

import shutil
import time
from contextlib import suppress
from pathlib import Path

import stepkeep
from stepkeep import PlanStep, Store
from stepkeep.engine import Engine
from stepkeep.engine.engine import SETTLING
from stepkeep.errors import BackendUnavailable, Conflict
from stepkeep.maintenance.backup import backup, restore_backup
from stepkeep.maintenance.copying import copy, copy_into
from stepkeep.maintenance.space import reclaim, sweep
from stepkeep.storage.files import FilesBackend
from stepkeep.storage.key_slots import unlocked
from stepkeep.storage.port import SessionQuery
from stepkeep.storage.sqlite import SqliteBackend
from tests.crash import agent, trees
from tests.crash.stores import BUSY_SECONDS, FILES, SQLITE, Operation, Say


def text_of(n: int) -> dict[str, object]:
    """A state large enough to be patched, mostly the same from one to the next."""
    lines = {f"line {i}": f"the text of line {i} of this state" for i in range(30)}
    return {"n": n, **lines, f"line {n % 30}": f"changed by {n}"}


# --- saving ----------------------------------------------------------------------------------------------------


def three(store: Store, root: Path) -> None:
    """A session with three checkpoints, and another one that nobody touches."""
    run = store.session("r", profile="archive")
    for n in range(1, 4):
        run.save({"n": n})
    store.session("other", profile="archive").save({"other": True})


def nothing(store: Store, root: Path) -> None:
    raise AssertionError("there is no store before")


def save(store: Store, root: Path, say: Say) -> None:
    header = store.session("r", profile="archive").save({"n": "new"}, idempotency_key="new")
    say(f"ACK r {header.seq}")


def row(store: Store, root: Path, say: Say) -> None:
    """So many saves that the write-ahead log gets room for the next ones."""
    run = store.session("r", profile="archive")
    for n in range(7):
        say(f"ACK r {run.save({'n': n, 'in': 'a row'}, idempotency_key=str(n)).seq}")


def large(store: Store, root: Path) -> None:
    run = store.session("r", profile="archive")
    for n in range(1, 4):
        run.save(text_of(n))


def patch(store: Store, root: Path, say: Say) -> None:
    header = store.session("r").save(text_of(4), idempotency_key="patch")
    say(f"ACK r {header.seq}")


def group(store: Store, root: Path, say: Say) -> None:
    """Savers of three sessions queue; one commit stores them all. The main thread leads, so that calls repeat."""
    committer = store.engine._committer
    store.engine._worker(SETTLING).submit = lambda job: None  # type: ignore[method-assign]
    with committer._leader:
        pending = [
            store.session(key, profile="archive").save({"of": key}, wait=False, idempotency_key=key)
            for key in ("r", "other", "third")
        ]
        committer._commit_batch()
    for saved in pending:
        header = saved.result()
        say(f"ACK {saved_key(store, header.session)} {header.seq}")


def saved_key(store: Store, uid: str) -> str:
    return next(info.key for info in store.sessions() if info.uid == uid)


# --- removing --------------------------------------------------------------------------------------------------


def six(store: Store, root: Path) -> None:
    run = store.session("r", profile="archive")
    for n in range(1, 7):
        run.save(text_of(n))
    store.session("other", profile="archive").save({"other": True})


def prune(store: Store, root: Path, say: Say) -> None:
    store.get("r").prune(keep_last=2)
    reclaim(store.engine)


def hidden(store: Store, root: Path) -> None:
    """Bodies that nothing needs any more: a keyframe was hidden for its patches, and then these went."""
    run = store.session("r", profile="archive")
    ids = [run.save(text_of(n)).id for n in range(1, 6)]
    store.engine.backend.remove(run.uid, ids[:1])
    store.engine.backend.remove(run.uid, ids[1:4])


def sweeping(store: Store, root: Path, say: Say) -> None:
    sweep(store.engine)
    reclaim(store.engine)


def ended(store: Store, root: Path) -> None:
    """Sessions whose time has come, which go in one transaction, and one that stays."""
    for key in ("old", "older"):
        old = store.session(key, profile="workflow", cleanup={"enabled": True, "retention_days": 0})
        for n in range(1, 4):
            old.save({"n": n})
        old.complete()
    store.session("r", profile="archive").save({"n": 1})


def clean(store: Store, root: Path, say: Say) -> None:
    report = store.clean()
    if report.errors:
        raise BackendUnavailable(report.errors[0].message)


def delete(store: Store, root: Path, say: Say) -> None:
    run = store.get("r")
    with suppress(stepkeep.NotFound):
        run.delete(run.header("#2").id)


def delete_newest(store: Store, root: Path, say: Say) -> None:
    run = store.get("r")
    with suppress(stepkeep.NotFound):
        run.delete(run.header("#6").id)


def clear(store: Store, root: Path, say: Say) -> None:
    with suppress(stepkeep.NotFound):
        store.get("other").clear()


# --- other forms of the same ------------------------------------------------------------------------------------


def gzip(store: Store, root: Path, say: Say) -> None:
    backend = store.engine.backend
    assert isinstance(backend, FilesBackend)
    backend.compress(2**60)


BACKUP = "backup.db"


def back_up(store: Store, root: Path, say: Say) -> None:
    backup(store.engine, root / BACKUP, force=True)


COPY = "copy.db"


def copied(store: Store, root: Path, say: Say) -> None:
    target = Engine(SqliteBackend(root / COPY, busy_seconds=BUSY_SECONDS))
    try:
        report = copy(store.engine, target)
        if not report.is_whole:
            raise BackendUnavailable(str(report))
    finally:
        target.close()


SEALED = "sealed.db"
SECRET = b"k" * 32


def copy_encrypted(store: Store, root: Path, say: Say) -> None:
    report = copy_into(store.engine, f"sqlite:{root}/{SEALED}", find_key=lambda: SECRET, encrypt=True)
    if not report.is_whole:
        raise BackendUnavailable(str(report))


def copy_is_sealed(store: Store, root: Path) -> list[str]:
    """Whatever is there of the copy is encrypted, and intact."""
    if not (root / SEALED).exists():
        return []
    backend = SqliteBackend(root / SEALED, busy_seconds=BUSY_SECONDS)
    if backend.key_record() is None:
        found = [each.key for each in backend.sessions(SessionQuery())]
        backend.close()
        return [f"{found} are not encrypted"] if found else []
    with Store(unlocked(backend, lambda: SECRET)) as copy:
        return [f"the copy: {each.message}" for each in copy.verify().findings if each.code != MISSING]


MISSING = "checkpoint_missing"
"""A copy that was stopped does not have everything yet."""


def copy_has_all(store: Store, root: Path) -> list[str]:
    with Store(unlocked(SqliteBackend(root / SEALED), lambda: SECRET)) as copy:
        mine = {info.key: store.get(info.key).load().state for info in store.sessions()}
        theirs = {info.key: copy.get(info.key).load().state for info in copy.sessions()}
        wrong = [f"the copy has {theirs} of {mine}"] if mine != theirs else []
        return [*wrong, *(each.message for each in copy.verify().findings)]


def sealed_six(store: Store, root: Path) -> None:
    """An encrypted store with a session in it that has everything."""
    store.session("r", profile="archive").save({"n": 1})
    with sealed(root, encrypt=True) as other:
        run = other.session("r", profile="archive", metadata={"of": "r"})
        for n in range(1, 7):
            run.save(text_of(n), message=str(n), details={"n": n})
        other.engine.annotate(run.uid, run.latest().header.id, "note", "n", b"noted")
        other.session("other", profile="archive").save({"other": True})


def sealed(root: Path, *, encrypt: bool = False) -> Store:
    backend = SqliteBackend(root / SEALED, busy_seconds=BUSY_SECONDS)
    return Store(unlocked(backend, lambda: SECRET, encrypt=encrypt))


def rekey(store: Store, root: Path, say: Say) -> None:
    """Done again, it goes on where it was stopped; once it is done, it is not begun anew."""
    with sealed(root) as other:
        if other.keys.rekey(dry_run=True).key == 1 or not other.keys.rekey(dry_run=True).is_done:
            report = other.keys.rekey()
            if not report.is_done:
                raise BackendUnavailable(str(report))


def sealed_is_whole(store: Store, root: Path) -> list[str]:
    """Everything can be read, whatever it is encrypted with."""
    with sealed(root) as other:
        run = other.get("r")
        wrong = [str(n) for n in range(1, 7) if run.at(f"#{n}").state != text_of(n)]
        notes = [note.data for note in other.engine.backend.annotations(run.uid)]
        if wrong or run.info.metadata != {"of": "r"} or notes != [b"noted"]:
            wrong.append(f"{run.info} {notes}")
        return [*wrong, *(each.message for each in other.verify().findings)]


def old_key_is_gone(store: Store, root: Path) -> list[str]:
    with sealed(root) as other:
        keys = list(other.engine.backend.keyring.keys.keys)
    return [] if keys == [2] else [f"the store has the data keys {keys}"]


KEPT = "kept.db"


def backed_up(store: Store, root: Path) -> None:
    """A backup, and a checkpoint that came after it."""
    three(store, root)
    backup(store.engine, root / KEPT)
    store.get("r").save({"n": 4})


def put_back(store: Store, root: Path, say: Say) -> None:
    store.close()
    restore_backup(root / KEPT, f"sqlite:{root}/store/h.db", force=True)


def replaced_is_kept(store: Store, root: Path) -> list[str]:
    """As long as the backup is not the store, the store is what it was; afterwards that is kept beside it."""
    newest = [store.get("r").load().state]
    for path in (root / "store").glob("h.db.replaced-*[0-9]"):
        if not path.samefile(root / "store/h.db"):
            with Store(SqliteBackend(path)) as replaced:
                newest.append(replaced.get("r").load().state)
    return [] if {"n": 4} in newest else [f"the store that was replaced is gone; there are {newest}"]


def restore(store: Store, root: Path, say: Say) -> None:
    run = store.get("r")
    run.restore("#2")
    header = run.save({"n": "after"}, idempotency_key="after")
    say(f"ACK r {header.seq}")


def fork(store: Store, root: Path, say: Say) -> None:
    run = store.get("r")
    if all(branch.name != "side" for branch in run.branches):
        run.branches.fork("#2", "side")
    header = run.save({"n": "side"}, idempotency_key="side")
    say(f"ACK r {header.seq}")


def without_sidecar(store: Store, root: Path) -> None:
    six(store, root)
    store.close()
    shutil.rmtree(root / "store/.stepkeep")


def look(store: Store, root: Path, say: Say) -> None:
    """Opening the store has made its sidecar anew."""
    if store.get("r").header("latest").seq != 6:
        raise AssertionError("the newest document was not taken up")


# --- ends and steps ---------------------------------------------------------------------------------------------


def testing(store: Store, root: Path) -> None:
    store.session("t", profile="workflow", test=True, cleanup={"retention_days": 0}).save({"n": 1})
    store.session("r", profile="archive").save({"n": 1})


def complete(store: Store, root: Path, say: Say) -> None:
    """A test session ends with a last checkpoint, and the cleanup takes it away."""
    if any(info.key == "t" for info in store.sessions()):
        session = store.get("t")
        header = session.save({"n": "last"}, status="completed", idempotency_key="last")
        say(f"ACK t {header.seq}")
    clean(store, root, say)


def execute(store: Store, root: Path, say: Say) -> None:
    """Two steps. The one whose result was acknowledged is never done again."""
    done: list[str] = []

    def handler(context: stepkeep.StepContext) -> str:
        done.append(context.step.id)
        return context.step.id

    is_there = any(info.key == "plan" for info in store.sessions())
    resume = is_there and store.get("plan").newest() is not None
    for _ in range(100):
        try:
            store.execute(
                "plan", [PlanStep("one"), PlanStep("two")], handler, resume=resume, profile="archive"
            )
            return
        except Conflict as exc:  # the lease of who was stopped runs out, or its process is seen to be gone
            if exc.code != "lease_held":
                raise
            time.sleep(0.05)


def finished(store: Store, root: Path) -> list[str]:
    status = store.get("plan").info.status
    return [] if status == "completed" else [f"the plan is {status}"]


OPERATIONS = {
    operation.name: operation
    for operation in (
        Operation("first save", nothing, save, is_new=True),
        Operation("save", three, save),
        Operation("saves in a row", three, row, kinds=(SQLITE,)),
        Operation("patch", large, patch, kinds=(SQLITE,)),
        Operation("group commit", three, group),
        Operation("prune", six, prune),
        Operation("sweep", hidden, sweeping),
        Operation("clean", ended, clean),
        Operation("delete", six, delete),
        Operation("delete newest", six, delete_newest),
        Operation("delete session", three, clear),
        Operation("gzip", six, gzip, kinds=("files-run",)),
        Operation("backup", three, back_up),
        Operation("copy", three, copied),
        Operation(
            "copy encrypted",
            three,
            copy_encrypted,
            kinds=(SQLITE,),
            at_any_time=copy_is_sealed,
            when_done=copy_has_all,
        ),
        Operation(
            "rekey",
            sealed_six,
            rekey,
            kinds=(SQLITE,),
            at_any_time=sealed_is_whole,
            when_done=old_key_is_gone,
        ),
        Operation("backup put back", backed_up, put_back, kinds=(SQLITE,), at_any_time=replaced_is_kept),
        Operation("restore", three, restore),
        Operation("fork", three, fork),
        Operation("rebuild", without_sidecar, look, kinds=FILES),
        Operation("completion", testing, complete, during={"t": {2: {"n": "last"}}}),
        Operation("executor", three, execute, adds_to="plan", when_done=finished),
        trees.CAPTURE,
        trees.RESTORE,
        trees.COPY,
        trees.REWIND,
        trees.UNDONE,
        agent.HOOK,
        agent.INSTALL,
    )
}
