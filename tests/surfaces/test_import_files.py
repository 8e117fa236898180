"""`stepkeep import files`: documents of other systems are adopted, checked as far as they can be, and never twice."""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

import stepkeep
from stepkeep import api
from stepkeep.cli import main
from stepkeep.codec import foreign
from stepkeep.errors import NotFound

SNAPSHOT: dict[str, Any] = {
    "snapshot_id": "cp_1_aa",
    "created_at": "2026-01-02T03:04:05Z",
    "run_id": "their-run",
    "source": "timer",
    "status": "in_progress",
    "step_state": {"plan_path": "p.md", "step_id": "s1", "step_ordinal": 2, "step_status": "done"},
    "context_digest": {
        "window_pressure": "low",
        "protected_artifacts": [],
        "dropped_items": 0,
        "policy_profile": "x",
    },
    "command_outcomes": [],
}
PHASE: dict[str, Any] = {
    "id": "V1StGXR8",
    "sessionId": "their-task",
    "phase": "build",
    "phaseNumber": 4,
    "createdAt": "2026-02-01T10:00:00.000Z",
    "completed": False,
    "taskSummary": "make the parser faster",
    "iscCriteria": [{"id": "c1", "subject": "fast", "status": "pending"}],
    "metadata": {"branch": "topic"},
}


@pytest.fixture
def theirs(tmp_path: Path) -> Path:
    return tmp_path / "theirs"


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:{tmp_path}/ours.db"


def write(file: Path, content: bytes | str | dict[str, Any]) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    if isinstance(content, dict):
        content = json.dumps(content)
    file.write_bytes(content if isinstance(content, bytes) else content.encode())
    return file


def sealed(document: dict[str, Any]) -> dict[str, Any]:
    """A snapshot with a checksum over its other members, sorted and compact."""
    covered = json.dumps(document, sort_keys=True, separators=(",", ":")).encode()
    checksum = hashlib.sha256(covered).hexdigest()
    return {**document, "integrity": {"format_version": 1, "checksum": checksum}}


def adopt(url: str, theirs: Path, layout: str, **options: Any) -> api.FilesImport:
    """As the command does it: a dry run makes no store."""
    try:
        store = api.open(url, create=not options.get("dry_run", False))
    except NotFound:
        store = api.open("memory:")
    with store:
        return store.import_files(theirs, layout, **options)


def fates(report: api.FilesImport) -> dict[str, tuple[str, str | None]]:
    return {each.file: (each.outcome, each.code) for each in report.files}


# --- what is adopted -------------------------------------------------------------------------------------------


def test_snapshots_are_adopted_once(theirs: Path, url: str) -> None:
    """Their id is the external id, their time is in the metadata, the oldest is first; repeating adds nothing."""
    newer = {**SNAPSHOT, "snapshot_id": "cp_2_bb", "created_at": "2026-01-02T03:05:05Z", "status": "failed"}
    write(theirs / "checkpoints/their-run/history/cp_1_aa.json", sealed(SNAPSHOT))
    write(theirs / "checkpoints/their-run/history/cp_2_bb.json.gz", gzip.compress(json.dumps(newer).encode()))
    write(theirs / "checkpoints/their-run/latest.json", newer)
    first = adopt(url, theirs, "run")
    assert (first.imported, first.present, first.skipped, first.result) == (2, 1, 0, "PASS")
    again = adopt(url, theirs, "run")
    assert (again.imported, again.present, again.skipped) == (0, 3, 0)
    with stepkeep.open(url) as store:
        session = store.get("their-run")
        old, new = session.history(newest_first=False)
        assert (old.external_id, new.external_id) == ("cp_1_aa", "cp_2_bb")
        assert (str(old.trigger.kind), old.step, str(new.status)) == ("timer", 2, "failed")
        origin = old.metadata["imported"]
        assert origin["created_at"] == "2026-01-02T03:04:05.000000Z"
        assert origin["verified"] == ["schema", "checksum"]
        assert session.load(old.id).details["step_state"]["step_status"] == "completed"
        assert session.run_document(old.id)["step_state"]["step_status"] == "done"
        assert session.load(old.id).state == sealed(SNAPSHOT)
        assert session.info.profile == "archive"
        assert store.verify().is_intact


@pytest.mark.parametrize("form", ["object", "text", "gzip in base64", "list of bytes"])
def test_envelopes_are_adopted_in_every_form(theirs: Path, url: str, form: str) -> None:
    """The payload as JSON, as text, compressed, or as the list of bytes that some encoders write."""
    state = {"session_id": "build-7", "current_step": 3, "status": "Running", "variables": {"x": 1}}
    content = json.dumps(state).encode()
    data: Any = {
        "object": state,
        "text": content.decode(),
        "gzip in base64": base64.b64encode(gzip.compress(content)).decode(),
        "list of bytes": list(content),
    }[form]
    envelope = {
        "version": 1,
        "compressed": form == "gzip in base64",
        "original_size": len(content),
        "data": data,
        "integrity_hash": hashlib.sha256(content).hexdigest(),
    }
    write(theirs / "sessions/build-7/history/checkpoint-20251129-143022.json", envelope)
    write(theirs / "sessions/build-7/checkpoint.json", envelope)
    report = adopt(url, theirs, "workflow")
    assert [each.outcome for each in report.files] == ["present", "imported"]
    assert "checksum" in report.files[1].verified
    with stepkeep.open(url) as store:
        checkpoint = store.get("build-7").load()
        assert (checkpoint.state, checkpoint.step) == (state, 3)
        assert checkpoint.header.metadata["imported"]["created_at"] == "2025-11-29T14:30:22.000000Z"


def test_phases_are_adopted_as_phases(theirs: Path, url: str) -> None:
    """Their fields are where ours are, so that the `phase` document says the same."""
    write(theirs / "checkpoints/ckpt-20260201T100000-build.json", PHASE)
    assert adopt(url, theirs, "phase").imported == 1
    with stepkeep.open(url) as store:
        session = store.get("their-task")
        assert session.load().state == {"branch": "topic"}
        assert (session.info.profile, session.latest().header.metadata["phase_number"]) == ("phase", 4)
        _, content = store.get("their-task").export(format="phase")
    document = json.loads(content)
    for name in ("phase", "phaseNumber", "completed", "taskSummary", "iscCriteria"):
        assert document[name] == PHASE[name]


@pytest.mark.parametrize("below", ["", "checkpoints", "checkpoints/their-run"])
def test_any_folder_of_the_layout_may_be_named(theirs: Path, url: str, below: str) -> None:
    """The root, the folder of all sessions, or that of one."""
    write(theirs / "checkpoints/their-run/history/cp_1_aa.json", SNAPSHOT)
    assert adopt(url, theirs / below, "run").imported == 1


def test_a_dry_run_changes_nothing(theirs: Path, url: str, tmp_path: Path) -> None:
    """It tells the same, and makes no store."""
    write(theirs / "checkpoints/their-run/history/cp_1_aa.json", SNAPSHOT)
    report = adopt(url, theirs, "run", dry_run=True)
    assert (report.imported, report.is_dry_run) == (1, True)
    assert [path.name for path in tmp_path.iterdir()] == ["theirs"]


REFUSED = {
    "work of others": {},
    "no id": {"snapshot_id": ""},
    "a long id": {"snapshot_id": "x" * 2000},
    "no text as id": {"snapshot_id": "\ud800"},
    "a long session": {"run_id": "r" * 2000},
    "no text as session": {"run_id": "\ud800"},
}


@pytest.mark.parametrize("changed", REFUSED.values(), ids=REFUSED)
def test_a_dry_run_refuses_what_the_import_refuses(theirs: Path, url: str, changed: dict[str, Any]) -> None:
    """File by file with the same reason; and nothing is left of a session that got no checkpoint."""
    with stepkeep.open(url) as store:
        store.session("their-run").save({"mine": True})
    run = {} if not changed else {"run_id": "other"}
    write(theirs / "checkpoints/their-run/history/a.json", {**SNAPSHOT, **run, **changed})
    promised = adopt(url, theirs, "run", dry_run=True)
    done = adopt(url, theirs, "run")
    assert fates(promised) == fates(done)
    assert (promised.skipped, done.skipped, done.imported) == (1, 1, 0)
    with stepkeep.open(url) as store:
        assert [info.key for info in store.sessions()] == ["their-run"]


@pytest.mark.parametrize("dry_run", [True, False])
def test_a_wrong_layout_is_told(theirs: Path, url: str, dry_run: bool) -> None:
    """Nothing was found, and which layouts have files there."""
    write(theirs / "sessions/build-7/checkpoint.json", {"session_id": "build-7", "step": 1})
    report = adopt(url, theirs, "run", dry_run=dry_run)
    assert (report.files, report.result) == ((), "WARN")
    assert report.note == f"{theirs} has no files of layout run, but of layout workflow"
    assert report.fixes == ("use --layout workflow",)
    shutil.rmtree(theirs / "sessions")
    report = adopt(url, theirs, "run", dry_run=dry_run)
    assert report.note == f"{theirs} has no files of layout run, nor of any other"
    assert report.fixes == ("name the folder of the other store, or one in it",)


# --- what is not -----------------------------------------------------------------------------------------------


def test_bad_files_are_reported_and_skipped(theirs: Path, url: str, tmp_path: Path) -> None:
    """Each with its reason; the good one among them is adopted, and no file is touched."""
    history = theirs / "checkpoints/their-run/history"
    write(history / "good.json", SNAPSHOT)
    write(history / "cut.json", json.dumps(SNAPSHOT)[:80])
    write(history / "empty.json", b"")
    write(history / "text.json", b"not JSON")
    write(history / "list.json", b"[1]")
    write(history / "fields.json", {**SNAPSHOT, "snapshot_id": "x", "source": "a whim"})
    write(history / "time.json", {**SNAPSHOT, "snapshot_id": "y", "created_at": "yesterday"})
    write(history / "changed.json", {**sealed(SNAPSHOT), "snapshot_id": "z"})
    write(history / "broken.json.gz", gzip.compress(b"{}")[:-3])
    write(history / "beside.json.gz", gzip.compress(json.dumps({**SNAPSHOT, "snapshot_id": "w"}).encode()))
    write(history / "beside.json.gz.sha256", f"{'0' * 64}  beside.json.gz\n")
    (history / "folder.json").mkdir()
    outside = write(tmp_path / "outside/secret.json", {**SNAPSHOT, "snapshot_id": "secret"})
    (history / "link.json").symlink_to(outside)
    (theirs / "checkpoints/linked").symlink_to(outside.parent)
    with (history / "large.json").open("wb") as file:
        file.truncate(300 * 1024 * 1024)
    before = sorted(str(path) for path in theirs.rglob("*"))
    report = adopt(url, theirs, "run")
    found = {Path(file).name: fate for file, fate in fates(report).items()}
    schema, integrity = ("skipped", "checkpoint_schema_invalid"), ("skipped", "checkpoint_integrity_mismatch")
    assert found.pop("good.json") == ("imported", None)
    assert {name for name, fate in found.items() if fate == integrity} == {
        *("changed.json", "broken.json.gz", "beside.json.gz")
    }
    assert {name for name, fate in found.items() if fate == schema} == {
        *("cut.json", "empty.json", "text.json", "list.json", "fields.json", "time.json"),
        *("folder.json", "link.json", "large.json", "latest.json"),
    }
    assert report.result == "WARN"
    assert report.fixes
    assert sorted(str(path) for path in theirs.rglob("*")) == before
    with stepkeep.open(url) as store:
        assert [header.external_id for header in store.checkpoints()] == ["cp_1_aa"]


def test_a_key_that_occurs_twice_is_refused(theirs: Path, url: str) -> None:
    """In a document, and in the payload of one, however that is packed: each reader would take another one."""
    payload = '{"session_id": "s", "current_step": 3, "status": "Running", "variables": {"x": 1, "x": 2}}'
    packed = base64.b64encode(gzip.compress(payload.encode())).decode()
    forms: dict[str, Any] = {"text": payload, "bytes": list(payload.encode()), "gzip": packed}
    for number, (form, data) in enumerate(forms.items()):
        envelope = {
            "version": 1,
            "compressed": form == "gzip",
            "original_size": len(payload),
            "data": data,
            "integrity_hash": hashlib.sha256(payload.encode()).hexdigest(),
        }
        write(theirs / f"sessions/s/history/checkpoint-20251129-14302{number}.json", envelope)
    report = adopt(url, theirs, "workflow")
    assert (report.imported, report.skipped) == (0, 3)
    assert {each.message for each in report.files} == {"the key 'x' occurs twice in one object"}
    write(
        theirs / "checkpoints/r/latest.json",
        json.dumps(SNAPSHOT).replace('"source"', '"source": "plan", "source"'),
    )
    report = adopt(url, theirs, "run")
    assert [each.message for each in report.files] == ["the key 'source' occurs twice in one object"]


def test_an_unconfirmed_checksum_needs_a_word(theirs: Path, url: str) -> None:
    """With it the file is adopted, and the metadata says that its checksum was not confirmed."""
    write(theirs / "checkpoints/their-run/history/a.json", {**sealed(SNAPSHOT), "status": "paused"})
    assert adopt(url, theirs, "run").skipped == 1
    assert adopt(url, theirs, "run", accept_unverified=True).imported == 1
    with stepkeep.open(url) as store:
        origin = store.get("their-run").latest().header.metadata["imported"]
        assert origin["unverified"] == ["checksum"]


def test_documents_of_ours_are_told_apart(theirs: Path, url: str) -> None:
    """They belong to a store, and are not made anew."""
    with stepkeep.open(f"files:{theirs}?layout=run") as store:
        store.session("mine").save({"n": 1})
    report = adopt(url, theirs, "run")
    assert (report.ours, report.imported, report.skipped) == (2, 0, 0)


def test_other_content_under_an_id_is_refused(theirs: Path, url: str) -> None:
    """The one that is there stays."""
    file = write(theirs / "checkpoints/their-run/history/a.json", SNAPSHOT)
    adopt(url, theirs, "run")
    write(file, {**SNAPSHOT, "status": "paused"})
    report = adopt(url, theirs, "run")
    assert list(fates(report).values()) == [("skipped", "external_id_exists")]


def test_a_session_with_work_of_its_own_is_left_alone(theirs: Path, url: str) -> None:
    """Unless it is named: then what was asked for is done."""
    with stepkeep.open(url) as store:
        store.session("their-run").save({"mine": True})
    write(theirs / "checkpoints/their-run/history/a.json", SNAPSHOT)
    report = adopt(url, theirs, "run")
    assert list(fates(report).values()) == [("skipped", "session_exists")]
    with stepkeep.open(url) as store:
        assert store.get("their-run").load().state == {"mine": True}
    assert adopt(url, theirs, "run", session="adopted").imported == 1


def test_wrong_directories_are_refused(theirs: Path, url: str) -> None:
    """One that is none, and the store itself."""
    with pytest.raises(stepkeep.InvalidInput) as refusal:
        adopt(url, theirs, "run")
    assert refusal.value.code == "not_a_directory"
    theirs.mkdir()
    with pytest.raises(stepkeep.InvalidInput) as refusal:
        adopt(f"files:{theirs}?layout=run", theirs, "run")
    assert refusal.value.code == "same_store"


# --- order and time --------------------------------------------------------------------------------------------


def snapshot(number: int, **changed: Any) -> dict[str, Any]:
    """The snapshot of a minute."""
    moment = f"2025-11-29T14:{30 + number}:22Z"
    return {**SNAPSHOT, "snapshot_id": f"cp_{number}", "created_at": moment, **changed}


@pytest.mark.parametrize("kind", ["sqlite:{}/ours.db", "files:{}/ours?layout=run"])
def test_what_comes_late_takes_its_place(theirs: Path, tmp_path: Path, kind: str) -> None:
    """A file that is adopted by a second import is found at its time; the session stands where it stood."""
    url, history = kind.format(tmp_path), theirs / "checkpoints/their-run/history"
    write(history / "1.json", sealed(snapshot(1)))
    write(history / "2.json", {**sealed(snapshot(2)), "status": "failed"})
    write(history / "3.json", sealed(snapshot(3, status="completed")))
    words = ["--store", url]
    assert main([*words, "import", "files", os.fspath(theirs), "--layout", "run"]) == 4
    assert main([*words, "import", "files", os.fspath(theirs), "--layout", "run", "--accept-unverified"]) == 0
    write(history / "0.json", sealed(snapshot(0)))
    assert adopt(url, theirs, "run", accept_unverified=True).imported == 1
    with stepkeep.open(url) as store:
        session = store.get("their-run")
        assert session.load().header.external_id == "cp_3"
        assert (session.info.status, session.info.branch) == ("completed", "main")
        for number in range(4):
            found = session.at(f"2025-11-29 14:{30 + number}:40Z").header
            assert (found.external_id, found.time_us) == (
                f"cp_{number}",
                session.load(found.id).header.time_us,
            )
            assert found.created_at.isoformat() == f"2025-11-29T14:{30 + number}:22+00:00"
        first = session.load("branch:imported").header
        assert (first.external_id, first.parents) == ("cp_0", ())
        assert store.verify().is_intact
        assert store.clean().cleaned == 0
    assert adopt(url, theirs, "run", accept_unverified=True).present == 4


def test_what_was_adopted_today_is_not_old_today(theirs: Path, url: str) -> None:
    """Neither in a session with rules of its own, nor a task that ended long ago."""
    with stepkeep.open(url) as store:
        store.session("mine", profile="run").save({"mine": True})
    write(theirs / "checkpoints/their-run/history/a.json", {**SNAPSHOT, "status": "failed"})
    assert adopt(url, theirs, "run", session="mine").imported == 1
    old = {**PHASE, "createdAt": "2020-02-01T10:00:00.000Z", "completed": True}
    write(theirs / "phases/checkpoints/ckpt-20200201T100000-build.json", old)
    assert adopt(url, theirs / "phases", "phase").imported == 1
    with stepkeep.open(url) as store:
        assert store.prune().deleted == 0
        assert store.clean().cleaned == 0
        assert store.get("mine").load().state == {"mine": True}
        assert store.get("mine").info.status == "in_progress"


# --- checksums and the command ---------------------------------------------------------------------------------


@pytest.mark.parametrize("style", foreign._STYLES, ids=str)
def test_usual_ways_to_write_json_are_recognised(style: dict[str, Any]) -> None:
    """Whichever the other system uses; a changed member is never confirmed."""
    document = {"b": 1, "a": "ä", "integrity": {"checksum": ""}}
    checksum = hashlib.sha256(json.dumps(document, **style).encode()).hexdigest()
    written = {**document, "integrity": {"checksum": checksum}}
    assert foreign.claimed(written) == checksum
    assert foreign.is_confirmed(checksum, written, b"", None)
    assert not foreign.is_confirmed(checksum, {**written, "b": 2}, b"", None)


def test_the_command_reports_every_file(theirs: Path, url: str, capfd: pytest.CaptureFixture[str]) -> None:
    """As text and as JSON; exit code 4 when something was skipped, 2 without a layout."""
    write(theirs / "checkpoints/their-run/history/a.json", SNAPSHOT)
    words = ["--store", url, "import", "files", os.fspath(theirs)]
    assert main([*words, "--layout", "run"]) == 0
    assert "1 imported, 0 already there, 0 of Stepkeep, 0 skipped" in capfd.readouterr().out
    write(theirs / "checkpoints/their-run/history/b.json", b"")
    assert main([*words, "--layout", "run", "--json"]) == 4
    report = json.loads(capfd.readouterr().out)
    assert (report["present"], report["skipped"], report["result"]) == (1, 1, "WARN")
    assert main([*words, "--layout", "workflow"]) == 0
    assert "has no files of layout workflow, but of layout run" in capfd.readouterr().out
    assert main(words) == 2
