"""`stepkeep investigate` as a person uses it: what is begun, recorded and shown."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

import stepkeep
from stepkeep.api.investigating import Investigation, change_investigation
from stepkeep.model import from_us
from stepkeep.testing import FakeClock
from tests.investigation.conftest import KEY, Shell
from tests.workspace.repositories import commit, init
from tests.workspace.trees import write

Reopened = Callable[[], Investigation]


def test_a_failing_command_begins_no_session(shell: Shell, reopened: Reopened) -> None:
    """A typo leaves nothing behind; one in a session that is there changes nothing."""
    shell("investigate", "hypothesis", "confirm", "h_x", "--session", "typo", code=3)
    assert "typo" not in shell("list", "--json").stdout
    shell("investigate", "note", "first")
    shell("investigate", "hypothesis", "confirm", "h_x", code=3)
    assert len(reopened().notes.all()) == 1


def test_a_command_is_run_and_kept_with_its_output(shell: Shell, reopened: Reopened) -> None:
    """It exits as the command did."""
    done = shell("investigate", "run", "--", "sh", "-c", "echo out; echo err >&2; exit 3", code=3)
    assert "out\nerr\n" in done.stdout
    (kept,) = reopened().commands.all()
    assert (kept.exit_code, kept.stdout_preview, kept.stderr_preview) == (3, "out\n", "err\n")


def test_an_interrupted_verification_is_recorded(tmp_path: Path, reopened: Reopened) -> None:
    """Ctrl-C ends it, and the investigation knows that it was tried and what it printed until then."""
    ready = tmp_path / "ready"
    os.mkfifo(ready)
    words = [sys.executable, "-m", "stepkeep", "investigate", "verify", "--session", KEY, "--"]
    process = subprocess.Popen(
        [*words, "sh", "-c", f"echo so far; echo > {ready}; sleep 600"],
        env={**os.environ, "STEPKEEP_STORE": f"sqlite:{tmp_path / 'store.db'}"},
        stderr=subprocess.DEVNULL,
    )
    ready.read_text()
    process.send_signal(signal.SIGINT)
    assert process.wait(60) == 130
    (result,) = reopened().verifications.all()
    assert (result.status, result.exit_code, result.output) == ("interrupted", None, "so far\n")
    assert result.duration_ms > 0
    (command,) = reopened().commands.all()
    assert (command.exit_code, command.stdout_preview) == (None, "so far\n")


def test_times_in_json_are_rfc_3339(shell: Shell) -> None:
    """As the reference promises for every command."""
    changed = json.loads(shell("investigate", "note", "when", "--json").stdout)
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT[\d:.]+Z", changed["entry"]["time"])
    status = shell("investigate", "status", "--json").stdout
    assert '_us"' not in status
    assert json.loads(status)["state"]["started"].endswith("Z")


def test_status_names_the_latest_of_its_branch(shell: Shell, bug: Investigation) -> None:
    """Not a newer checkpoint of another one."""
    first = bug.checkpoint("first")
    bug.begin_experiment("try")
    bug.checkpoint("elsewhere")
    bug.switch("main")
    bug.session.restore(first.id)
    assert json.loads(shell("investigate", "status", "--json").stdout)["latest"]["message"] == "first"


def test_a_conflict_reads_line_by_line(shell: Shell) -> None:
    """No escape stands for the end of a line."""
    done = shell("investigate", "hypothesis", "add", "x", "--json")
    id = json.loads(done.stdout)["entry"]["id"]
    shell("investigate", "experiment", "begin", "try")
    shell("investigate", "hypothesis", "confirm", id)
    shell("investigate", "experiment", "switch", "main")
    shell("investigate", "hypothesis", "reject", id)
    error = shell("investigate", "experiment", "merge", "try", code=5).stderr
    assert "\\n" not in error
    assert len(error.splitlines()) > 2


def test_an_experiment_is_shown_by_its_name_and_stays_merged(shell: Shell) -> None:
    """Closing what was merged would hide that; what is refused notes no results either."""
    begun = shell("investigate", "experiment", "begin", "no-cache", "--description", "Turn it off")
    assert begun.stdout.startswith("no-cache  active  Turn it off\n")
    shell("investigate", "experiment", "switch", "main")
    shell("investigate", "experiment", "merge", "no-cache")
    for line in (["investigate", "experiment", "close"], ["branch", "abandon"], ["branch", "archive"]):
        assert "'no-cache' is merged" in shell(*line, "no-cache", code=5).stderr
    shell("investigate", "experiment", "close", "no-cache", "--results", "none", code=5)
    shown = shell("investigate", "status").stdout
    assert "Experiments:\n  main  active\n  no-cache  merged  Turn it off\n" in shown
    (_, merged) = json.loads(shell("investigate", "status", "--json").stdout)["state"]["branches"]
    assert (merged["status"], merged["results"]) == ("merged", "")


def test_a_merge_has_the_files_and_the_counts_of_now(tmp_path: Path) -> None:
    """`latest` means the tree after the merge; metrics are those of the merged entries."""
    work = tmp_path / "work"
    write(work, {"a": "1"})
    with stepkeep.open(f"sqlite:{tmp_path / 'a.db'}") as store:
        session = store.session("bug", profile="debug", workspace=work)
        bug = store.investigation(session)
        bug.checkpoint("start")
        bug.begin_experiment("try")
        bug.hypotheses.confirm(bug.hypotheses.add("x"))
        bug.switch("main")
        write(work, {"a": "2"})
        bug.merge("try")
        merged = session.load()
        assert session.files.at(merged.id).read("a") == session.files.at().read("a") == b"2"
        state = bug.query_at(id=merged.id)
        assert state is not None
        assert (state.metrics.hypotheses_tested, state.metrics.checkpoints_created) == (1, merged.seq)
        again = session.save_again("by hand")
        found = bug.query_at(id=again.id)
        assert found is not None
        assert found.metrics.checkpoints_created == again.seq


def test_the_time_in_debugging_survives_a_restore(
    bug: Investigation, clock: FakeClock, reopened: Reopened, shell: Shell
) -> None:
    """It was spent, whatever is restored and whoever goes on."""
    first = bug.checkpoint("first")
    clock.advance(600)
    bug.checkpoint("second")
    bug.restore(first.id)
    assert bug.metrics.time_in_debugging_seconds == 600
    assert reopened().metrics.time_in_debugging_seconds == 600


def test_a_time_that_is_none_is_refused(bug: Investigation) -> None:
    """Not a bare error."""
    bug.checkpoint("x")
    with pytest.raises(stepkeep.InvalidInput):
        bug.session.query(time=5)  # type: ignore[arg-type]
    with pytest.raises(stepkeep.InvalidInput):
        bug.query_at(time=b"now")  # type: ignore[arg-type]


KILLED = """
import os, signal, sys, stepkeep
from stepkeep.workspace.staging import Staging
Staging.place = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
with stepkeep.open(sys.argv[1]) as store:
    store.get("run").files.restore("#1", workspace=sys.argv[2])
"""


def test_what_a_killed_restore_left_is_removed_by_the_next_save(tmp_path: Path) -> None:
    """Its folder does not stay in the tree until the next restore."""
    work, url = tmp_path / "work", f"sqlite:{tmp_path / 'a.db'}"
    with stepkeep.open(url) as store:
        for state in (1, 2):
            write(work, {"a": str(state)})
            store.session("run", workspace=work).save(state)
    done = subprocess.run([sys.executable, "-c", KILLED, url, str(work)], check=False)
    assert done.returncode == -signal.SIGKILL
    assert len(list(work.iterdir())) == 2
    with stepkeep.open(url) as store:
        store.session("run", workspace=work).save(3)
    assert [path.name for path in work.iterdir()] == ["a"]
    assert (work / "a").read_text() == "2"


def test_pruning_by_counts_keeps_what_matters(bug: Investigation, clock: FakeClock, shell: Shell) -> None:
    """The specification's own line leaves what was saved by hand, decided or contradicted; a cap does not."""
    bug.checkpoint("by hand")
    bug.hypotheses.confirm(bug.hypotheses.add("x"))
    bug.beliefs.add("The cache expires")
    bug.beliefs.add("The cache never expires")
    for _ in range(5):
        clock.advance(30 * 86400)
        bug.notes.add("later")
        bug.save()
    before = [header.seq for header in bug.list()]
    shell("prune", KEY, "--keep-last", "2", "--keep-days", "7")
    kept = {header.seq: header.trigger.event or "manual" for header in bug.list()}
    assert set(kept.values()) >= {"manual", "hypothesis_status_change", "new_contradiction_detected"}
    assert len(kept) < len(before)
    assert "by hand" in {header.message for header in bug.list()}
    shell("prune", KEY, "--max-count", "2")
    assert len(list(bug.list())) == 2


# --- saved by itself


def test_an_hour_of_notes_is_kept_in_ten_checkpoints_or_more(bug: Investigation, clock: FakeClock) -> None:
    """One every four minutes, and nothing else."""
    for _ in range(15):
        clock.advance(240)
        bug.notes.add("seen")
    assert len(list(bug.list())) >= 10


def test_what_is_not_saved_is_saved_when_the_store_is_closed(tmp_path: Path) -> None:
    """Entries that were added outside of a `with` block of the investigation."""
    url = f"sqlite:{tmp_path / 'a.db'}"
    with stepkeep.open(url) as store:
        bug = store.investigation("bug")
        bug.notes.add("outside")
        assert bug.has_changes
    with stepkeep.open(url) as store:
        assert [note.content for note in store.investigation("bug").notes.all()] == ["outside"]


ENDS = """
import sys, stepkeep
store = stepkeep.open(sys.argv[1])

def work():
    bug = store.investigation("bug")
    bug.notes.add("held by nobody")

work()
other = store.investigation("other")
other.notes.add("never closed")
{end}
"""


@pytest.mark.parametrize(
    "end",
    [
        "",
        "sys.exit(3)",
        "raise RuntimeError",
        "import os; pid = os.fork(); pid or sys.exit(); os.waitpid(pid, 0)",
    ],
)
def test_what_is_not_saved_is_saved_when_the_program_ends(tmp_path: Path, end: str) -> None:
    """However it ends, and whether or not anybody still holds the investigation or closes the store; once, though it
    forked."""
    url = f"sqlite:{tmp_path / 'a.db'}"
    words = [
        sys.executable,
        "-c",
        ENDS.format(end=end),
        url,
    ]  # a real interpreter, because its end is what counts
    done = subprocess.run(words, capture_output=True, check=False)
    assert b"not saved" not in done.stderr
    assert b"ignored" not in done.stderr
    with stepkeep.open(url) as store:
        for key, text in (("bug", "held by nobody"), ("other", "never closed")):
            assert [note.content for note in store.investigation(key).notes.all()] == [text]
            assert len(list(store.get(key).history())) == 1


def test_what_a_failing_change_began_is_not_saved(tmp_path: Path) -> None:
    """A change that fails half way leaves the investigation as it was, also when the store is closed."""

    def fail(bug: Investigation) -> object:
        bug.notes.add("half")
        raise RuntimeError

    url = f"sqlite:{tmp_path / 'a.db'}"
    with stepkeep.open(url) as store:
        store.investigation("bug").checkpoint("before")
        with pytest.raises(RuntimeError):
            change_investigation(store, "bug", "m", fail)
    with stepkeep.open(url) as store:
        assert store.investigation("bug").notes.all() == ()


def test_a_schedule_saves_what_changed(bug: Investigation, reopened: Reopened) -> None:
    """The trigger is a timer's; a turn that finds nothing changed saves nothing."""
    turns, done = [False, False, True], threading.Event()

    def wait(_: float) -> bool:
        if len(turns) == 1:
            done.set()
        return turns.pop(0) if turns else True

    bug.notes.add("pending")
    with bug.scheduled(600, wait=wait):
        done.wait(60)
    (header,) = reopened().list()
    assert (header.trigger.kind, header.trigger.event, header.message) == ("timer", "scheduled", "Scheduled")


def test_code_and_environment_are_known_without_being_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a session with a workspace: the commit, what changed since the capture before, harmless variables."""
    (tmp_path / "work").mkdir()
    work = init(tmp_path / "work")
    write(work, {"a": "1"})
    commit(work)
    monkeypatch.setenv("TZ", "UTC")
    monkeypatch.setenv("API_TOKEN", "s3cret")
    with stepkeep.open(f"sqlite:{tmp_path / 'a.db'}") as store:
        bug = store.investigation(store.session("bug", profile="debug", workspace=work))
        bug.checkpoint("start")
        write(work, {"a": "2"})
        changed = bug.checkpoint("changed")
        state = bug.query_at(id=changed.id)
        assert state is not None
        assert state.code_changes is not None
        assert (len(state.code_changes.commit or ""), state.code_changes.paths) == (40, ("a",))
        assert state.code_changes.env_vars["TZ"] == "UTC"
        assert "API_TOKEN" not in state.code_changes.env_vars


def test_an_experiment_brings_its_files_along(tmp_path: Path) -> None:
    """Switching with `files` lets the tree be as it was there."""
    work = tmp_path / "work"
    write(work, {"a": "main"})
    with stepkeep.open(f"sqlite:{tmp_path / 'a.db'}") as store:
        bug = store.investigation(store.session("bug", profile="debug", workspace=work))
        bug.checkpoint("start")
        bug.begin_experiment("try")
        write(work, {"a": "tried"})
        bug.checkpoint("tried")
        bug.switch("main", files=True)
        assert (work / "a").read_text() == "main"
        bug.switch("try", files=True)
        assert (work / "a").read_text() == "tried"


def test_switching_brings_the_files_of_the_newest_checkpoint_that_has_any(
    shell: Shell, tmp_path: Path
) -> None:
    """What the command line notes has none: those before it are meant. Where there are none at all, nothing changes."""
    work = tmp_path / "work"
    write(work, {"a": "main"})
    shell("investigate", "note", "first", "--session", "bug")
    shell("create", "start", "--session", "bug", "--workspace", str(work))
    shell("investigate", "note", "elsewhere", "--session", "none")
    shell("investigate", "experiment", "begin", "try", "--session", "none")
    shell("investigate", "experiment", "switch", "main", "--files", "--session", "none", code=3)
    shell("investigate", "note", "here", "--session", "bug")
    shell("investigate", "experiment", "begin", "try", "--session", "bug")
    write(work, {"a": "tried"})
    shell("create", "tried", "--session", "bug", "--workspace", str(work))
    shell("investigate", "note", "there", "--session", "bug")
    shell("investigate", "experiment", "switch", "main", "--files", "--session", "bug", cwd=work)
    assert (work / "a").read_text() == "main"
    shell("investigate", "experiment", "switch", "try", "--files", "--session", "bug", cwd=work)
    assert (work / "a").read_text() == "tried"


def test_what_was_known_at_a_time_and_a_comparison_that_reads(
    bug: Investigation, clock: FakeClock, shell: Shell
) -> None:
    """`at` shows the investigation as it was; `compare` tells beliefs, theories and verdicts in words."""
    theory = bug.hypotheses.add("The cache is stale")
    bug.checkpoint("first")
    when = f"{from_us(clock() + 1):%Y-%m-%d %H:%M:%S}"
    clock.advance(600)
    bug.beliefs.add("TTL is 60")
    bug.hypotheses.reject(theory, confidence=0.1)
    then = shell("investigate", "at", when).stdout
    assert "The cache is stale" in then
    assert "TTL is 60" not in then
    shown = shell("investigate", "compare", "seq:1").stdout
    assert "New belief: TTL is 60" in shown
    assert "Verdict: The cache is stale (active -> rejected)" in shown
    assert "Confidence: The cache is stale (50% -> 10%)" in shown
    shell("investigate", "at", "2001-01-01 00:00:00", code=3)


def test_create_begins_a_session_where_nothing_was_saved_yet(shell: Shell, tmp_path: Path) -> None:
    """The specification's own line works on a fresh machine."""
    work = tmp_path / "rocm"
    work.mkdir()
    done = shell(
        "create", "After verifying Q4_0 dequant", "--tags", "q4_0,verified", cwd=work, STEPKEEP_SESSION=""
    )
    assert "Created checkpoint" in done.stdout or "Created cp_" in done.stdout
    assert "q4_0" in shell("list", "--tag", "q4_0", cwd=work, STEPKEEP_SESSION="").stdout
    shell("investigate", "note", "goes on", "--session", "rocm", cwd=work)
