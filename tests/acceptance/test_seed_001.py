"""The rules of seed 001, the snapshot lifecycle, one by one, on its own layout of files.

Snapshots are taken through the public API with a clock that stands still unless it is moved; what is stored is looked
at by commands in processes of their own, and by the tools of the shell.
"""

from __future__ import annotations

import errno
import gzip
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import stepkeep
from stepkeep.codec.document import integrity_line
from stepkeep.codec.integrity import digest
from stepkeep.codec.readable import CommandOutcome, ContextDigest, Layout
from stepkeep.model import utc_now_us
from stepkeep.testing import FakeClock
from tests import interpreter

HOUR = 3600
DAY = 24 * HOUR
RUN = "run-7"


class Place:
    """A store of files with the layout of the seed, and the ways to look into it."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.url = f"files:{root}?layout=run"
        self.folder = root / "checkpoints" / RUN
        self.latest = self.folder / "latest.json"
        self.clock = FakeClock()

    @contextmanager
    def store(self) -> Iterator[stepkeep.Store]:
        with stepkeep.open(self.url, clock=self.clock) as store:
            yield store

    @contextmanager
    def session(self, profile: str = "run") -> Iterator[stepkeep.Session]:
        with self.store() as store:
            yield store.session(RUN, profile=profile)

    def history(self) -> list[str]:
        return sorted(file.name for file in (self.folder / "history").iterdir())

    def file(self, id: str) -> Path:
        return self.folder / "history" / f"{id}.json"

    def document(self, id: str | None = None) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.latest if id is None else self.file(id)).read_bytes())
        return found

    def documents(self) -> list[dict[str, Any]]:
        """The snapshots in the history, oldest first."""
        found = [json.loads(file.read_bytes()) for file in (self.folder / "history").glob("*.json")]
        return sorted(found, key=lambda each: each["stepkeep"]["header"]["seq"])


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    for name in [name for name in os.environ if name.startswith("STEPKEEP_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, sys.path)))
    monkeypatch.chdir(tmp_path)
    found = Place(tmp_path / "store")
    monkeypatch.setenv("STEPKEEP_STORE", found.url)
    return found


def run(*words: str, exit_code: int = 0) -> subprocess.CompletedProcess[str]:
    """Run `stepkeep` in a new process."""
    done = interpreter.stepkeep(*words)
    assert done.returncode == exit_code, done.stderr
    return done


def result(*words: str, exit_code: int = 0) -> Any:
    return json.loads(run(*words, "--json", exit_code=exit_code).stdout)


def shell(command: str, folder: Path) -> str:
    done = subprocess.run(["bash", "-c", command], cwd=folder, capture_output=True, text=True, check=True)
    return done.stdout


# --- the snapshot ------------------------------------------------------------------------------------------------


def test_a_snapshot_has_every_field_of_the_schema(place: Place) -> None:
    """One JSON document with the fields of the seed, each filled from what happened, in a fixed order."""
    with place.session() as session:
        recorder = session.recorder(state=lambda: {"n": 1}, plan_path="plan.md")
        recorder.context(
            ContextDigest(
                window_pressure="medium",
                protected_artifacts=["a.md"],
                dropped_items=2,
                policy_profile="strict",
            )
        )
        recorder.todo_compliance("PASS")
        recorder.command(CommandOutcome("shell", "make", "FAIL", 12, "exit 2", "tool_failure"))
        recorder.step_started("build", 3)
        saved = session.latest()
    assert saved is not None
    document = place.document()
    assert list(document)[:9] == [
        *("snapshot_id", "created_at", "run_id", "source", "source_details", "status"),
        *("step_state", "context_digest", "command_outcomes"),
    ]
    assert (document["snapshot_id"], document["run_id"], document["source"]) == (
        saved.id,
        RUN,
        "step_boundary",
    )
    assert document["created_at"] == saved.created_at.isoformat(timespec="microseconds").replace(
        "+00:00", "Z"
    )
    step = document["step_state"]
    assert {name: step[name] for name in ("plan_path", "step_id", "step_ordinal", "step_status")} == {
        "plan_path": "plan.md",
        "step_id": "build",
        "step_ordinal": 3,
        "step_status": "in_progress",
    }
    assert set(step["todo_compliance"]) == {"result", "violations", "checked_at"}
    assert set(step["resume_hints"]) == {"eligible", "reason_code", "next_actions"}
    assert document["context_digest"]["window_pressure"] == "medium"
    (outcome,) = document["command_outcomes"]
    assert outcome == {
        "kind": "shell",
        "name": "make",
        "result": "FAIL",
        "duration_ms": 12,
        "summary": "exit 2",
        "reason_code": "tool_failure",
    }
    assert set(document["integrity"]) == {"format_version", "algorithm", "checksum"}


# --- triggers ----------------------------------------------------------------------------------------------------


def test_snapshots_are_written_at_every_boundary(place: Place) -> None:
    """Steps that begin and end, errors, the heartbeat, a request: each is a snapshot with its source."""
    state = {"n": 0}
    with place.session() as session:
        recorder = session.recorder(state=lambda: dict(state))
        for id, end in (("a", "completed"), ("b", "failed"), ("c", "skipped")):
            recorder.step_started(id)
            state["n"] += 1
            recorder.step_finished(id, end)
        place.clock.advance(10)
        recorder.recoverable_error("no answer", "timeout")
        place.clock.advance(120)
        assert recorder.heartbeat() is not None
        place.clock.advance(10)
        recorder.manual("by hand")
        recorder.before_forced_stop("no way out", "tool_failure")
    found = place.documents()
    assert [each["source"] for each in found] == [
        *["step_boundary"] * 6,
        *("error_boundary", "timer", "manual", "error_boundary"),
    ]
    assert [each["step_state"]["step_status"] for each in found[:6]] == [
        *("in_progress", "done", "in_progress", "failed", "in_progress", "skipped")
    ]
    assert [each["status"] for each in found] == [*["in_progress"] * 9, "failed"]


def test_the_heart_beats_at_120_seconds_and_not_while_paused(place: Place) -> None:
    """Nothing at 119.9 s, a snapshot at 120, none while the run rests."""
    with place.session() as session:
        recorder = session.recorder(state=lambda: {"n": 1})
        recorder.step_started("a")
        place.clock.advance(119.9)
        assert recorder.heartbeat() is None
        place.clock.advance(0.1)
        assert recorder.heartbeat() is not None
        recorder.pause()
        place.clock.advance(1000)
        assert recorder.heartbeat() is None
    assert [each["source"] for each in place.documents()] == ["step_boundary", "timer", "step_boundary"]


@pytest.mark.full
@pytest.mark.parametrize(("seconds", "count"), [(2.9, 1), (3.1, 2)])
def test_triggers_within_three_seconds_are_one_snapshot(place: Place, seconds: float, count: int) -> None:
    """Without material change the second is named in `source_details`; `show` and `export` tell of it."""
    with place.session() as session:
        recorder = session.recorder(state=lambda: {"n": 1})
        recorder.manual("first")
        place.clock.advance(seconds)
        recorder.recoverable_error("no answer", "timeout")
    assert len(place.history()) == count
    shown = result("show", RUN)
    merged = [each["event"] for each in shown["merged_triggers"]]
    assert merged == (["recoverable_error"] if count == 1 else [])
    assert ("merged:" in run("show", RUN).stdout) == (count == 1)
    exported = json.loads(run("export", RUN, "--format", "run", "-o", "-").stdout)
    assert exported["source_details"] == ["recoverable_error"]
    for stored in (place.document(), place.documents()[-1]):
        assert stored["source_details"] == ["recoverable_error"]
    assert result("verify")["is_intact"]


def test_a_change_of_state_status_or_step_is_never_merged(place: Place) -> None:
    """All at the same moment, and each is kept."""
    state = {"n": 0}
    with place.session() as session:
        recorder = session.recorder(state=lambda: dict(state))
        recorder.step_started("a")
        state["n"] = 1
        recorder.manual()
        recorder.step_started("b")
        recorder.pause()
    assert len(place.history()) == 4


# --- retention ---------------------------------------------------------------------------------------------------


def test_the_latest_50_are_kept(place: Place) -> None:
    """Of 60 snapshots the newest 50 stay, their files too."""
    with place.session() as session:
        ids = [session.save({"n": n}).id for n in range(60)]
    assert place.history() == sorted(f"{id}.json" for id in ids[10:])
    assert place.document()["snapshot_id"] == ids[-1]


def test_the_latest_failed_and_completed_snapshot_are_always_kept(place: Place) -> None:
    """They outlive the fifty and the fourteen days."""
    with place.session() as session:
        old_failed = session.save({"n": 0}, status="failed").id
        failed = session.save({"n": 1}, status="failed").id
        completed = session.save({"n": 2}, status="completed").id
        place.clock.advance(15 * DAY)
        newest = [session.save({"n": n}).id for n in range(60)]
        session.prune()
        kept = {header.id for header in session.history()}
    assert kept == {failed, completed, *newest[10:]}
    assert old_failed not in kept


def test_snapshots_go_at_14_days(place: Place) -> None:
    """One that is not yet as old stays; at fourteen days it goes."""
    with place.session() as session:
        old = session.save({"n": 0}).id
        place.clock.advance(DAY)
        session.save({"n": 1})
        place.clock.advance(13 * DAY - 1)
        session.prune()
        assert old in {header.id for header in session.history()}
        place.clock.advance(2)
        session.prune()
        assert old not in {header.id for header in session.history()}
    assert f"{old}.json" not in {name.removesuffix(".gz") for name in place.history()}


@pytest.mark.full
def test_prune_takes_the_flags_of_the_lifecycle(place: Place, tmp_path: Path) -> None:
    """`--max-per-run`, `--max-age-days` and `--compress-after-hours`, alone and together, and in a dry run."""
    (tmp_path / "stepkeep.yaml").write_text("checkpoint: { compress_after_hours: off }\n")
    place.clock = FakeClock(utc_now_us() - 20 * DAY * 1_000_000)
    with place.session("archive") as session:
        for n in range(4):
            session.save({"n": n})
            place.clock.advance(5 * DAY)
    plan = result("prune", RUN, "--max-age-days", "9", "--compress-after-hours", "1", "--dry-run")
    assert (plan["kept"], plan["deleted"], plan["compressed"]) == (1, 3, 4)
    assert len(result("history", RUN)["checkpoints"]) == 4
    done = result("prune", RUN, "--compress-after-hours", "240")
    assert (done["kept"], done["deleted"], done["compressed"], done["result"]) == (4, 0, 3, "PASS")
    done = result("prune", RUN, "--max-per-run", "2")
    assert (done["kept"], done["deleted"]) == (2, 2)
    assert run("prune", RUN, "--max-per-run", "2", "--keep-last", "2", exit_code=2).stdout == ""
    assert result("prune", RUN, "--max-age-days", "9")["kept"] == 1
    assert result("verify")["findings"] == []


# --- rotation: names and the order of writing --------------------------------------------------------------------


def test_history_is_written_before_latest(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """Temporary file, fsync, its name in the history, then `latest.json`: an independent copy, never a link."""
    calls: list[str] = []
    real = {name: getattr(os, name) for name in ("fsync", "link", "rename")}

    def told(name: str) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            done = real[name](*args, **kwargs)
            calls.append(" ".join([name, *(str(arg) for arg in args[1:2])]))
            return done

        return call

    with place.session() as session:
        session.save({"n": 0})
        for name in real:
            monkeypatch.setattr(os, name, told(name))
        id = session.save({"n": 1}).id
        monkeypatch.undo()
    order = [calls.index("fsync"), calls.index(f"link {id}.json"), calls.index("rename latest.json")]
    assert order == sorted(order)
    assert "fsync" in calls[order[1] + 1 : order[2]]
    assert place.latest.read_bytes() == place.file(id).read_bytes()
    assert place.latest.stat().st_ino != place.file(id).stat().st_ino
    assert (place.file(id).stat().st_nlink, place.latest.stat().st_mode & 0o777) == (1, 0o600)


# --- compression -------------------------------------------------------------------------------------------------


@pytest.mark.full
def test_history_is_gzipped_at_24_hours(place: Place) -> None:
    """Not before; at 24 h when the store is closed; `latest.json` never; both forms have a checksum."""
    with place.session() as session:
        old = session.save({"n": 0, "text": "words " * 200}, step=1).id
        plain = place.file(old).read_bytes()
    place.clock.advance(DAY - 1)
    with place.session() as session:
        session.save({"n": 1}, step=2)
    assert f"{old}.json" in place.history()
    place.clock.advance(1)
    with place.session() as session:
        new = session.save({"n": 2}, step=3).id
    assert {f"{old}.json.gz", f"{old}.json.gz.sha256", f"{new}.json"} < set(place.history())
    assert f"{old}.json" not in place.history()
    packed = place.folder / "history" / f"{old}.json.gz"
    assert gzip.decompress(packed.read_bytes()) == plain
    assert place.document()["snapshot_id"] == new
    assert shell("sha256sum --check --quiet *.sha256", packed.parent) == ""
    content = f"zcat {packed.name} | head -n -1 | sha256sum | cut -d' ' -f1"
    assert shell(content, packed.parent).strip() == json.loads(plain)["integrity"]["checksum"]


@pytest.mark.full
def test_a_session_that_ends_compresses_its_history(place: Place) -> None:
    """When it is completed, what is old enough is compressed, also of other runs."""
    with place.store() as store:
        store.session("other", profile="archive").save({"n": 0})
    place.clock.advance(2 * DAY)
    with place.store() as store:
        session = store.session(RUN)
        session.save({"n": 1})
        session.complete()
    (file,) = (place.root / "checkpoints" / "other" / "history").glob("*.json.gz")
    assert json.loads(gzip.decompress(file.read_bytes()))["state"] == {"n": 0}
    assert (place.root / "checkpoints" / "other" / "latest.json").exists()


@pytest.mark.full
def test_compressed_history_is_seen_by_every_command(place: Place) -> None:
    """List, show, prune and verify treat it like the rest, in new processes; damage to it is found."""
    place.clock = FakeClock(utc_now_us() - 3 * DAY * 1_000_000)
    with place.session("archive") as session:
        ids = [session.save({"n": n}, step=n).id for n in range(3)]
    done = result("prune", RUN)
    assert (done["compressed"], done["deleted"]) == (3, 0)
    assert [each["id"] for each in result("list", RUN)] == ids[::-1]
    assert json.loads(run("show", RUN, "step-1", "--raw").stdout) == {"n": 1}
    assert result("verify")["checkpoints"] == 3
    assert place.latest.exists()
    packed = place.folder / "history" / f"{ids[1]}.json.gz"
    intact = packed.read_bytes()
    packed.write_bytes(intact[:-9] + bytes([intact[-9] ^ 1]) + intact[-8:])
    found = result("verify", exit_code=4)
    assert (found["result"], {each["checkpoint"] for each in found["findings"]}) == ("FAIL", {ids[1]})
    packed.write_bytes(intact)
    assert result("prune", RUN, "--keep-last", "1")["deleted"] == 2
    assert place.history() == [f"{ids[2]}.json.gz", f"{ids[2]}.json.gz.sha256"]


def test_compression_can_be_switched_off(place: Place, tmp_path: Path) -> None:
    """`checkpoint.compress_after_hours: off` leaves history as it is."""
    (tmp_path / "stepkeep.yaml").write_text("checkpoint: { compress_after_hours: off }\n")
    with place.session("archive") as session:
        session.save({"n": 0})
        place.clock.advance(30 * DAY)
        session.save({"n": 1})
        session.complete()
    assert all(name.endswith(".json") for name in place.history())


# --- failures ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("damage", "code"),
    [
        (lambda content: content[:200], "checkpoint_schema_invalid"),
        (lambda content: content.replace(b'"n":1', b'"n":7'), "checkpoint_integrity_mismatch"),
        (lambda content: b"".join(content.splitlines(True)[:-1]) + b"}\n", "checkpoint_integrity_mismatch"),
    ],
    ids=["cut off", "changed", "without checksum"],
)
@pytest.mark.full
def test_damage_has_its_reason_code(place: Place, damage: Any, code: str) -> None:
    """Loading it directly fails with the code and quick fixes; the latest falls back; `latest.json` is not hurt."""
    with place.session() as session:
        ids = [session.save({"n": n}, step=n).id for n in range(3)]
    latest = place.latest.read_bytes()
    place.file(ids[1]).write_bytes(damage(place.file(ids[1]).read_bytes()))
    done = run("show", RUN, ids[1], "--json", exit_code=4)
    error = json.loads(done.stderr.splitlines()[-1])["error"]
    assert (error["code"], error["result"]) == (code, "FAIL")
    assert error["fixes"]
    assert place.latest.read_bytes() == latest
    assert result("show", RUN)["checkpoint"]["id"] == ids[2]


@pytest.mark.full
def test_verify_applies_the_schema(place: Place) -> None:
    """A document whose checksum is right and whose fields are not those of the schema is found."""
    with place.session() as session:
        ids = [session.save({"n": n}).id for n in range(2)]
    covered = b"".join(place.file(ids[0]).read_bytes().splitlines(True)[:-1])
    wrong = covered.replace(b'"source":"step_boundary"', b'"source":"a whim"')
    place.file(ids[0]).write_bytes(wrong + integrity_line(digest(wrong)))
    found = result("verify", exit_code=4)
    assert {each["code"] for each in found["findings"]} >= {"checkpoint_schema_invalid"}
    assert {each["checkpoint"] for each in found["findings"]} == {ids[0]}


def test_a_failed_write_has_its_reason_code(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """A full disk is `checkpoint_atomic_write_failed`; history and `latest.json` are as before."""
    with place.session() as session:
        session.save({"n": 0})
        before = {file: file.read_bytes() for file in place.folder.rglob("*.json")}

        def full(*_: Any, **__: Any) -> int:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        monkeypatch.setattr(os, "write", full)
        with pytest.raises(stepkeep.BackendUnavailable) as failure:
            session.save({"n": 1})
        monkeypatch.undo()
        assert (failure.value.code, failure.value.retryable) == ("checkpoint_atomic_write_failed", False)
        assert {file: file.read_bytes() for file in place.folder.rglob("*.json")} == before
        assert session.save({"n": 1}).seq == 2


def test_a_failed_prune_has_its_reason_code(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is an event of the run, never an exception of a save, and nothing is lost."""

    def refuse(*_: Any, **__: Any) -> None:
        raise stepkeep.BackendUnavailable("the disk is gone", retryable=False)

    with place.store() as store:
        session = store.session(RUN, profile="run")
        monkeypatch.setattr(store.engine.backend, "remove", refuse)
        for n in range(60):
            session.save({"n": n})
        with pytest.raises(stepkeep.BackendUnavailable) as failure:
            session.prune()
        assert failure.value.code == "checkpoint_retention_prune_failed"
        assert "checkpoint_retention_prune_failed" in {event.data.get("code") for event in session.events()}
        assert len(list(session.history())) == 60
        monkeypatch.undo()  # from here on the keeper may prune, too


# --- by hand, from any store -------------------------------------------------------------------------------------


@pytest.mark.full
def test_the_tools_of_the_shell_suffice(place: Place) -> None:
    """`cat`, `jq`, `head` and `sha256sum` read and check a snapshot."""
    with place.session() as session:
        session.save({"plan": ["a"], "done": True}, step=1)
    assert shell("cat latest.json", place.folder).encode() == place.latest.read_bytes()
    assert json.loads(shell("jq .state latest.json", place.folder)) == {"plan": ["a"], "done": True}
    covered = shell("head -n -1 latest.json | sha256sum | cut -d' ' -f1", place.folder).strip()
    assert shell("tail -n 1 latest.json", place.folder).strip().endswith(f'"checksum":"{covered}"}}}}')


@pytest.mark.full
@pytest.mark.parametrize("layout", Layout)
@pytest.mark.parametrize("source", ["sqlite:other.db", "files:other?layout=phase"])
def test_a_document_is_exported_from_any_store(
    place: Place, tmp_path: Path, layout: Layout, source: str
) -> None:
    """The exported document checks out by hand, and a store with that layout takes it up as it is."""
    with stepkeep.open(source) as store:
        session = store.session(RUN)
        session.save({"n": 1, "odd": b"bytes"}, step=1)
        session.save({"n": 2, "odd": b"bytes"}, step=2, details={"command_outcomes": []})
    words = ["export", RUN, "--store", source, "--format", str(layout), "-o", "document.json"]
    assert result(*words)["format"] == layout
    file = tmp_path / "document.json"
    covered = shell("head -n -1 document.json | sha256sum | cut -d' ' -f1", tmp_path).strip()
    assert json.loads(file.read_bytes())["integrity"]["checksum"] == covered
    names = {
        Layout.RUN: f"checkpoints/{RUN}/history/x.json",
        Layout.WORKFLOW: f"sessions/{RUN}/checkpoint.json",
        Layout.PHASE: "checkpoints/ckpt-x.json",
    }
    target = tmp_path / "taken-up" / names[layout]
    target.parent.mkdir(parents=True)
    file.rename(target)
    with stepkeep.open(f"files:{tmp_path}/taken-up?layout={layout}") as store:
        assert store.get(RUN).load("step-2").state == {"n": 2, "odd": b"bytes"}


def test_reading_makes_no_store(place: Place) -> None:
    """A command that only reads leaves nothing where there was no store."""
    done = run("list", "--json", exit_code=3)
    assert json.loads(done.stderr.splitlines()[-1])["error"]["code"] == "store_not_found"
    assert not place.root.exists()
    place.root.mkdir()
    run("verify", exit_code=3)
    assert list(place.root.iterdir()) == []
