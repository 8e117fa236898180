"""Seed 002, temporal checkpointing: its manager's calls, its measures, and a debugging session from the shell."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import stepkeep
from stepkeep.api.investigating import Investigation
from stepkeep.recording.recovery import ManualInstruction, RestoreEnvironment
from stepkeep.storage.urls import open_backend
from stepkeep.testing import FakeClock
from tests import interpreter

SESSION = "rocm-7"


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def store(tmp_path: Path, clock: FakeClock) -> Iterator[stepkeep.Store]:
    with stepkeep.Store(open_backend(f"sqlite:{tmp_path / 'store.db'}"), clock=clock) as store:
        yield store


@pytest.fixture
def manager(store: stepkeep.Store) -> Investigation:
    return store.investigation(SESSION)


# --- the manager's calls


def test_checkpoint_captures_every_connected_subsystem(manager: Investigation) -> None:
    """`checkpoint(message, tags)`: a manual checkpoint whose state has all of D1."""
    manager.hypotheses.add("Q4_0 dequantisation is wrong")
    header = manager.checkpoint("About to try skipping normalization", ["experiment", "pre_change"])
    assert header.trigger.kind == "manual"
    assert header.tags == ("experiment", "pre_change")
    state = manager.query_at(id=header.id)
    assert state is not None
    assert set(state.__struct_fields__) >= {
        "session_id",
        "started_us",
        "hypotheses",
        "evidence",
        "beliefs",
        "belief_dependencies",
        "gaps",
        "verification_results",
        "current_branch",
        "branches",
        "notes",
        "code_changes",
        "command_history",
        "metrics",
    }
    assert state.started_us == manager.session.info.created_us


def test_auto_checkpoint_is_throttled_by_time_only(manager: Investigation, clock: FakeClock) -> None:
    """`auto_checkpoint(trigger)`: None when held back, and a compaction warning never is."""
    manager.checkpoint("start")
    assert manager.auto_checkpoint("SignificantTimePassed") is None
    warned = manager.auto_checkpoint("ContextCompactionWarning")
    assert warned is not None
    assert warned.message == "Auto: ContextCompactionWarning"
    assert warned.tags == ("auto", "ContextCompactionWarning")
    clock.advance(301)
    assert manager.auto_checkpoint("SignificantTimePassed") is not None


def test_restore_reports_what_it_did(manager: Investigation, clock: FakeClock) -> None:
    """`restore(id)`: every subsystem, and a report with restored_to, timestamp, message, recovery_complete."""
    h = manager.hypotheses.add("Scales are swapped")
    before = manager.checkpoint("before")
    clock.advance(60)
    manager.hypotheses.reject(h.id)
    report = manager.restore(before.id)
    assert (report.restored_to, report.timestamp, report.message, report.recovery_complete) == (
        before.id,
        before.created_at,
        "before",
        True,
    )
    assert manager.hypotheses.get(h.id).status == "active"


def test_query_at_takes_time_before_seq_before_id(manager: Investigation, clock: FakeClock) -> None:
    """`query_at`: the newest before a timestamp, else a sequence number, else an id; else InvalidQuery."""
    first = manager.checkpoint("first")
    clock.advance(2 * 3600)
    manager.beliefs.add("The kernel is right")
    second = manager.checkpoint("second")
    by_time = manager.query_at(time="2 hours ago", seq=second.seq, id=second.id)
    by_seq = manager.query_at(seq=first.seq, id=second.id)
    assert by_time is not None
    assert by_seq is not None
    assert by_time.beliefs == by_seq.beliefs == ()
    with pytest.raises(stepkeep.InvalidInput) as error:
        manager.query_at()
    assert error.value.code == "invalid_query"


def test_compare_prints_the_example(manager: Investigation, clock: FakeClock) -> None:
    """`compare(from, to)`: the changes, the time between, and `Hypotheses: N added, M updated`."""
    h = manager.hypotheses.add("old")
    before = manager.checkpoint("before")
    clock.advance(30)
    manager.hypotheses.add("new")
    manager.hypotheses.update(h.id, description="older")
    after = manager.checkpoint("after")
    found = manager.compare(before.id, after.id)
    assert (found.older, found.newer, found.time_delta) == (before.id, after.id, timedelta(seconds=30))
    assert found.as_text().startswith("Changes:\n Hypotheses: 1 added, 1 updated\n")


def test_list_and_find_by_tag(manager: Investigation) -> None:
    """`list_checkpoints` and `find_by_tag`: headers, newest first, without their states."""
    one, two = manager.checkpoint("one", ["q4_0"]), manager.checkpoint("two")
    assert [header.id for header in manager.list()] == [two.id, one.id]
    assert [header.id for header in manager.find_by_tag("q4_0")] == [one.id]


def test_create_recovery_point_is_built_from_the_latest(manager: Investigation) -> None:
    """Environment by allow-list, and the instruction in the seed's words."""
    manager.code_changed(["dequant.hip"], "4f2a91c", environment={"TZ": "UTC", "AWS_SECRET_KEY": "x"})
    latest = manager.checkpoint("latest")
    point = manager.recovery_point()
    assert point.checkpoint_id == latest.id
    environment = [step for step in point.recovery_instructions if isinstance(step, RestoreEnvironment)]
    assert [step.env_vars for step in environment] == [{"TZ": "UTC"}]
    manual = [step for step in point.recovery_instructions if isinstance(step, ManualInstruction)]
    assert [step.instruction for step in manual] == [
        f"Restore debugging session {SESSION} from checkpoint {latest.id}"
    ]


def test_prune_keeps_what_is_recent_manual_or_significant(manager: Investigation, clock: FakeClock) -> None:
    """`prune`: younger than an hour, by hand, significant tags, and one per hour; it reports the counts."""
    h = manager.hypotheses.add("x")
    kept = {manager.checkpoint("by hand").id}
    manager.hypotheses.confirm(h.id)
    kept |= {header.id for header in manager.find_by_tag("hypothesis_confirmed")}
    for number in range(130):
        clock.advance(120)
        manager.notes.add(f"n{number}")
        manager.auto_checkpoint("code_modified")
    report = manager.prune()
    left = list(manager.list())
    assert report.total == report.kept + report.deleted
    assert report.deleted > 0
    assert kept <= {header.id for header in left}
    hour_ago = clock() - 3_600_000_000
    assert sum(header.time_us > hour_ago for header in left) == 30
    older = [header for header in left[100:] if header.id not in kept]
    hours = [f"{header.created_at:%Y-%m-%d-%H}" for header in older]
    assert len(hours) == len(set(hours))


# --- the measures that are no timings


def test_an_hour_of_debugging_has_ten_checkpoints(manager: Investigation, clock: FakeClock) -> None:
    """E13: a person who thinks for minutes between the steps has ten without ever asking for one."""
    began = clock()
    first = manager.hypotheses.add("The scales are swapped")
    second = manager.hypotheses.add("The kernel reads too far")
    script = [
        lambda: manager.hypotheses.test(first.id),
        lambda: manager.notes.add("Only with Q4_0"),
        lambda: manager.verifications.run("true", plan="Q8_0 is fine"),
        lambda: manager.hypotheses.add_evidence(first.id, "Scales look right", strength=-0.8),
        lambda: manager.hypotheses.reject(first.id),
        lambda: manager.gaps.add("How long is a block?"),
        lambda: manager.beliefs.add("A block has 32 values"),
        lambda: manager.gaps.fill(manager.gaps.all()[0].id, "32"),
        lambda: manager.hypotheses.test(second.id),
        lambda: manager.begin_experiment("clamp", hypothesis=second.id),
        lambda: manager.code_changed(["dequant.hip"], "4f2a91c"),
        lambda: manager.verifications.run("true"),
        lambda: manager.hypotheses.confirm(second.id),
        lambda: manager.notes.add("Fixed by clamping"),
    ]
    for step in script:
        clock.advance(4 * 60)
        step()
    assert clock() - began <= 3_600_000_000
    assert manager.session.usage().checkpoints >= 10


def test_nothing_is_lost_across_a_compaction(tmp_path: Path, clock: FakeClock) -> None:
    """A6, O5: after the warning another process has all of it, saved or not before."""
    url = f"sqlite:{tmp_path / 'a.db'}"
    with stepkeep.open(url, clock=clock) as store:
        bug = store.investigation(SESSION)
        bug.hypotheses.add("only in my head")
        bug.notes.add("and this")
        header = bug.compaction_warning()
        known = bug.state()
    with stepkeep.open(url, clock=clock) as store:
        assert store.investigation(SESSION).state() == known
        assert store.get(SESSION).latest().id == header.id  # type: ignore[union-attr]


# --- from the shell


class Shell:
    """Runs `stepkeep`, each command as a process of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        kept = {name: value for name, value in os.environ.items() if not name.startswith("STEPKEEP_")}
        self.environment = {
            **kept,
            "STEPKEEP_STORE": f"sqlite:{folder / 'store.db'}",
            "STEPKEEP_SESSION": "bug-7",
            "XDG_CONFIG_HOME": str(folder / "config"),
            "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
        }

    def run(self, *words: str, code: int = 0) -> str:
        done = interpreter.stepkeep(*words, cwd=self.folder, env=self.environment)
        assert done.returncode == code, done.stderr + done.stdout
        return done.stdout

    def do(self, *words: str, code: int = 0) -> Any:
        """A command of the investigation, and what `--json` prints."""
        return json.loads(self.run("investigate", words[0], "--json", *words[1:], code=code))


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    return Shell(tmp_path)


@pytest.mark.full
def test_a_debugging_session_from_the_shell_has_exactly_the_automatic_checkpoints(shell: Shell) -> None:
    """Each verb is a process; what the seed names is saved by itself, the rest without the tag `auto`."""
    first = shell.do("hypothesis", "add", "The cache is stale")["entry"]["id"]
    second = shell.do("hypothesis", "add", "The TTL is zero", "--confidence", "0.3")["entry"]["id"]
    shell.do("hypothesis", "test", first)  # HypothesisStatusChange
    shell.do("evidence", first, "The value is new", "--strength", "-0.9")
    shell.do("hypothesis", "reject", first)  # HypothesisStatusChange
    shell.do("belief", "add", "The cache expires")
    found = shell.do("belief", "add", "The cache never expires")  # NewContradictionDetected
    assert len(found["contradictions"]) == 1
    gap = shell.do("gap", "add", "Which TTL is set?", "--criticality", "blocking")["entry"]["id"]
    shell.do("gap", "fill", gap, "zero")  # GapFilled
    shell.do("verify", "--plan", "it fails", "--", sys.executable, "-c", "raise SystemExit(3)", code=1)
    shell.do("code", "cache.py", "--commit", "4f2a91c")  # CodeModified
    shell.do("experiment", "begin", "ttl-60", "--hypothesis", second)  # BranchSwitch
    shell.do("hypothesis", "confirm", second, "--confidence", "0.95")  # HypothesisStatusChange
    shell.do("experiment", "switch", "main")  # BranchSwitch
    restored = shell.run("restore", "tag:GapFilled")
    assert restored.startswith("Restored to: Auto: GapFilled (")
    shell.do("note", "From here again")
    warned = shell.run("investigate", "compaction")  # ContextCompactionWarning
    assert warned.startswith("Created checkpoint cp_")
    assert warned.endswith(" before compaction\n")

    listed = json.loads(shell.run("list", "bug-7", "--json"))
    names = [each["tags"][1] for each in reversed(listed) if "auto" in each["tags"]]
    assert names == [
        "HypothesisStatusChange",
        "HypothesisStatusChange",
        "NewContradictionDetected",
        "GapFilled",
        "VerificationComplete",
        "CodeModified",
        "BranchSwitch",
        "HypothesisStatusChange",
        "BranchSwitch",
        "ContextCompactionWarning",
    ]
    plain = [each["message"] for each in reversed(listed) if "auto" not in each["tags"]]
    assert plain == [
        "Hypothesis added",
        "Hypothesis added",
        "Evidence added",
        "Belief added",
        "Gap added",
        "Note added",
    ]

    state = shell.do("status")["state"]
    assert {each["id"]: each["status"] for each in state["hypotheses"]} == {
        first: "rejected",
        second: "active",
    }
    assert state["verification_results"] == []  # it was run after the checkpoint that is restored
    assert shell.run("investigate", "compare", "tag:GapFilled").splitlines()[-1] == " Notes: 1 added"
    shell.run("investigate", "report", "--output", "report.md")
    report = (shell.folder / "report.md").read_text(encoding="utf-8")
    assert "**rejected** (50%) The cache is stale" in report
    assert "From here again" in report
    shell.run("investigate", "report", "--output", "report.md", code=2)
    assert "stepkeep restore --session bug-7 cp_" in shell.run("investigate", "recovery", "--script")
    assert shell.run("verify", "bug-7")


@pytest.mark.full
def test_the_session_may_be_named_before_the_command(shell: Shell) -> None:
    """`investigate --session KEY COMMAND` means the same as `investigate COMMAND --session KEY`."""
    shell.run("investigate", "--session", "other", "hypothesis", "add", "Named first")
    shell.run("investigate", "hypothesis", "add", "--session", "other", "Named last")
    shell.run("investigate", "--session", "bug-7", "note", "The nearer one counts", "--session", "other")
    assert len(json.loads(shell.run("list", "other", "--json"))) == 3


@pytest.mark.full
def test_bad_input_from_the_shell_has_its_exit_code(shell: Shell) -> None:
    """Unknown ids are 3, nonsense is 2, a circle is 2; nothing is saved, and the next verb works."""
    h = shell.do("hypothesis", "add", "x")["entry"]["id"]
    one, other = (shell.do("belief", "add", text)["entry"]["id"] for text in ("a is so", "b is so"))
    shell.do("belief", "depend", one, other)
    before = len(json.loads(shell.run("list", "bug-7", "--json")))
    shell.run("investigate", "hypothesis", "confirm", "h_none", code=3)
    shell.run("investigate", "hypothesis", "confirm", h, "--confidence", "1.5", code=2)
    shell.run("investigate", "belief", "depend", other, one, code=2)
    shell.run("investigate", "verify", "--timeout", "0", "--", "true", code=2)
    shell.run("investigate", "gap", "add", " ", code=2)
    shell.run("investigate", "experiment", "switch", "nowhere", code=3)
    shell.run("investigate", "code", "a.py", "--commit", "--help;", code=2)
    shell.run("investigate", "status", "--session", "none", code=3)
    assert len(json.loads(shell.run("list", "bug-7", "--json"))) == before
    hung = shell.do("verify", "--timeout", "0.3", "--", "sleep", "30", code=1)
    assert hung["entry"]["status"] == "timed_out"


def test_the_verbs_print_for_people(shell: Shell, tmp_path: Path) -> None:
    """Harmful characters are escaped, and a stored text cannot act on the terminal."""
    with stepkeep.open(shell.environment["STEPKEEP_STORE"]) as store, store.investigation("bug-7") as bug:
        bug.hypotheses.add("red \x1b[31m text")
        bug.gaps.add("why?", criticality="blocking")
        bug.beliefs.contradict(bug.beliefs.add("3 ms").id, bug.beliefs.add("9 ms").id)
    shown = shell.run("investigate", "status")
    assert "\x1b" not in shown
    for text in ("Hypotheses:", r"red \x1b[31m text", "To find out:", "Contradictions:", "checkpoint"):
        assert text in shown
