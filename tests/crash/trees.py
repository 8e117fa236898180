"""Project files beside a store: captured with a checkpoint, and brought back.

At every moment each file is the old or the new one, whole. As soon as one of them is new, the tree as it was can be
had again.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from stepkeep import Store, Trigger, TriggerKind
from stepkeep.errors import BackendUnavailable
from stepkeep.maintenance.copying import copy
from stepkeep.maintenance.space import sweep
from stepkeep.model import utc_now_us
from stepkeep.storage.files import FilesBackend
from stepkeep.workspace.file_restore import BEGUN
from stepkeep.workspace.manifest import STAGING_PREFIX
from tests.crash.stores import BUSY_SECONDS, SQLITE, Operation, Say, later

TREE = "tree"

Files = dict[str, str]

FIRST: Files = {
    "same.txt": "never changed",
    "changed.txt": "as it was",
    "docs/guide/intro.md": "removed later",
    "swapped": "first a file",
}
SECOND: Files = {
    "same.txt": "never changed",
    "changed.txt": "as it became",
    "new/deep/added.txt": "added later",
    "swapped/inside.txt": "then a directory",
}
UNSAVED: Files = {**SECOND, "changed.txt": "work that nobody saved"}


def write(root: Path, files: Files) -> None:
    """Make the tree what these files are."""
    tree = root / TREE
    for path in sorted(tree.rglob("*"), reverse=True):
        if path.is_dir():
            path.rmdir()
        else:
            path.unlink()
    for name, text in files.items():
        path = tree / name
        for above in reversed(
            path.relative_to(root).parents[:-1]
        ):  # those between get other modes from `parents=True`
            (root / above).mkdir(mode=0o700, exist_ok=True)
        path.write_text(text)
        path.chmod(0o600)


def read(root: Path) -> Files:
    tree = root / TREE
    names = {path: path.relative_to(tree).as_posix() for path in tree.rglob("*") if path.is_file()}
    return {name: path.read_text() for path, name in names.items() if not name.startswith(STAGING_PREFIX)}


def captured(store: Store, root: Path) -> None:
    """Two captures, and a tree that changed after them."""
    run = store.session("r", profile="archive")
    for n, files in enumerate((FIRST, SECOND), 1):
        write(root, files)
        run.save({"n": n}, workspace=root / TREE)
    store.session("other", profile="archive").save({"other": True})
    write(root, UNSAVED)


# --- capturing ---------------------------------------------------------------------------------------------------


def capture(store: Store, root: Path, say: Say) -> None:
    header = store.get("r").save({"n": "new"}, workspace=root / TREE, idempotency_key="new")
    say(f"ACK r {header.seq}")


def has_its_files(store: Store, root: Path) -> list[str]:
    """A capture that is there has all of its files."""
    run = store.get("r")
    problems = []
    for header in run.history(branch=None):
        found = {
            path: run.files.at(header.id).read(path).decode()
            for path in (FIRST, SECOND, UNSAVED)[header.seq - 1]
        }
        if found != (FIRST, SECOND, UNSAVED)[header.seq - 1]:
            problems.append(f"#{header.seq} has the files {found}")
    return problems


CAPTURE = Operation("capture of files", captured, capture, at_any_time=has_its_files)


# --- copying -----------------------------------------------------------------------------------------------------

COPIED = "copied"


def copied_to(root: Path, clock: Callable[[], int] = utc_now_us) -> Store:
    return Store(FilesBackend(root / COPIED, layout="run", busy_seconds=BUSY_SECONDS, clock=clock))


def copy_to_files(store: Store, root: Path, say: Say) -> None:
    with copied_to(root) as target:
        report = copy(store.engine, target.engine)
    if not report.is_whole:
        raise BackendUnavailable(str(report))


def copy_has_its_files(store: Store, root: Path) -> list[str]:
    with copied_to(root) as target:
        is_there = any(info.key == "r" for info in target.sessions())
        return has_its_files(target, root) if is_there else []


def copy_is_whole(store: Store, root: Path) -> list[str]:
    with copied_to(root) as target:
        found = [str(finding) for finding in target.verify().findings]
        return found + ([] if target.get("r").load().state == {"n": 2} else ["the newest is not there"])


def swept(store: Store, root: Path) -> list[str]:
    with copied_to(root, later) as target:
        sweep(target.engine)
    return []


COPY = Operation(
    "copy to files",
    captured,
    copy_to_files,
    kinds=(SQLITE,),
    at_any_time=copy_has_its_files,
    when_done=copy_is_whole,
    in_the_end=swept,
)


# --- bringing back -----------------------------------------------------------------------------------------------


def restore(store: Store, root: Path, say: Say) -> None:
    done = store.get("r").files.restore("#1", workspace=root / TREE, force=True)
    if not done.is_complete:
        raise BackendUnavailable(str(done.failures))


def is_old_or_new(store: Store, root: Path) -> list[str]:
    found = read(root)
    problems = [
        f"{path} is {found.get(path)!r}"
        for path in sorted({*found, *UNSAVED, *FIRST})
        if found.get(path) not in (UNSAVED.get(path), FIRST.get(path))
    ]
    has_begun = any(event.type == BEGUN for event in store.engine.backend.events(store.get("r").uid))
    if found != UNSAVED and not has_begun:
        problems.append("files were replaced before the restore was noted: it cannot be undone")
    return problems


def is_back(store: Store, root: Path) -> list[str]:
    found = read(root)
    return [] if found == FIRST else [f"it returned, and the tree is {found}"]


def can_be_undone(store: Store, root: Path) -> list[str]:
    done = store.get("r").files.undo(workspace=root / TREE)
    found = read(root)
    is_sound = found == UNSAVED and done.is_complete
    return [] if is_sound else [f"undone, the tree is {found}, with {done.failures}"]


RESTORE = Operation(
    "restore of files",
    captured,
    restore,
    adds_to="r",
    at_any_time=is_old_or_new,
    when_done=is_back,
    in_the_end=can_be_undone,
    doubts=("files_not_durable",),
)


# --- a coding agent rewound --------------------------------------------------------------------------------------

PERSONS: Files = {"person.txt": "work of somebody else"}
WORKED: Files = {**SECOND, **PERSONS}
REWOUND: Files = {**FIRST, **PERSONS}


def worked(store: Store, root: Path) -> None:
    """A turn of an agent, captured at its prompt and at its end; then a person made a file."""
    run = store.session("r", profile="archive")
    about = {"turn": 1, "prompt": "begin anew", "tree": str((root / TREE).resolve())}
    for event, files in (("prompt", FIRST), ("turn_end", SECOND)):
        write(root, files)
        trigger = Trigger(TriggerKind.AUTO, event)
        run.save({"turn_number": 1}, workspace=root / TREE, trigger=trigger, metadata=about)
    store.session("other", profile="archive").save({"other": True})
    write(root, WORKED)


def rewind(store: Store, root: Path, say: Say) -> None:
    done = store.get("r").rewind.to(1, conversation=False)
    if not done.is_complete:
        raise BackendUnavailable(str(done.files))


def rewind_and_undo(store: Store, root: Path, say: Say) -> None:
    """The next command after one that was stopped is an undo, whichever of the two was stopped."""
    if not has_begun(store):
        rewind(store, root, say)
    elif read(root) in (WORKED, REWOUND):
        return
    done = store.get("r").rewind.undo()
    if not all(each.is_complete for each in done):
        raise BackendUnavailable(str(done))


def is_worked_or_rewound(store: Store, root: Path) -> list[str]:
    found = read(root)
    problems = [
        f"{path} is {found.get(path)!r}"
        for path in sorted({*found, *WORKED, *REWOUND})
        if found.get(path) not in (WORKED.get(path), REWOUND.get(path))
    ]
    if found != WORKED and not has_begun(store):
        problems.append("files were replaced before the rewind was noted: it cannot be undone")
    return problems


def has_begun(store: Store) -> bool:
    return any(event.type == BEGUN for event in store.engine.backend.events(store.get("r").uid))


def is_tree(*wanted: Files) -> Callable[[Store, Path], list[str]]:
    def check(store: Store, root: Path) -> list[str]:
        found = read(root)
        return [] if found in wanted else [f"the tree is {found}"]

    return check


def rewind_can_be_undone(store: Store, root: Path) -> list[str]:
    done = store.get("r").rewind.undo()
    is_sound = read(root) == WORKED and all(each.is_complete for each in done)
    return [] if is_sound else [f"undone, the tree is {read(root)}"]


REWIND = Operation(
    "rewind",
    worked,
    rewind,
    adds_to="r",
    at_any_time=is_worked_or_rewound,
    when_done=is_tree(REWOUND),
    in_the_end=rewind_can_be_undone,
    doubts=("files_not_durable",),
)
UNDONE = Operation(
    "rewind undone",
    worked,
    rewind_and_undo,
    adds_to="r",
    at_any_time=is_worked_or_rewound,
    when_done=is_tree(WORKED, REWOUND),
    in_the_end=is_tree(WORKED, REWOUND),
    doubts=("files_not_durable",),
)
