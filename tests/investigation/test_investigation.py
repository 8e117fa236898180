"""A whole investigation: saved by itself when something happens, rebuilt from its checkpoints alone."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

import stepkeep
from stepkeep import aio
from stepkeep.api.investigating import Investigation
from stepkeep.investigation.state import ConfidenceChanged, EntryAdded, EntryUpdated, StatusChanged
from stepkeep.model import from_us
from stepkeep.testing import FakeClock
from tests.investigation.conftest import Shell

Reopened = Callable[[], Investigation]


def saved(bug: Investigation) -> list[str]:
    """The names of the automatic checkpoints, oldest first."""
    return [header.tags[1] for header in bug.session.history(tag="auto", newest_first=False)]


def everything(bug: Investigation) -> dict[str, Any]:
    return bug.parts.capture()


def fill(bug: Investigation) -> None:
    """Something in every part."""
    h = bug.hypotheses.add("The cache is stale")
    bug.hypotheses.add_evidence(h.id, "old value", strength=0.5)
    first, second = bug.beliefs.add("The cache expires"), bug.beliefs.add("TTL is set")
    bug.beliefs.depend(second.id, first.id)
    bug.gaps.add("Which TTL?")
    bug.notes.add("Only on Mondays", hypotheses=[h.id])
    bug.commands.record("make up", replay=True, exit_code=0)
    bug.code_changed(["cache.py"], "4f2a91c", environment={"TZ": "UTC"})


# --- the eight triggers


def test_each_of_the_eight_triggers_fires(bug: Investigation, clock: FakeClock) -> None:
    """What the seed names happens, and each makes exactly its checkpoint."""
    h = bug.hypotheses.add("The cache is stale")
    assert saved(bug) == []
    bug.hypotheses.confirm(h.id)
    assert saved(bug) == ["HypothesisStatusChange"]
    bug.beliefs.add("The cache expires")
    bug.beliefs.add("The cache does not expire")
    assert saved(bug)[1:] == ["NewContradictionDetected"]
    bug.verifications.run("true")
    assert saved(bug)[2:] == ["VerificationComplete"]
    bug.begin_experiment("no-cache")
    assert saved(bug)[3:] == ["BranchSwitch"]
    bug.gaps.fill(bug.gaps.add("Which TTL?").id)
    assert saved(bug)[4:] == ["GapFilled"]
    bug.code_changed(["cache.py"], "4f2a91c")
    assert saved(bug)[5:] == ["CodeModified"]
    bug.notes.add("soon")
    assert bug.tick() is None
    clock.advance(300)
    bug.notes.add("later")
    assert saved(bug)[6:] == ["SignificantTimePassed"]
    bug.compaction_warning()
    assert saved(bug)[7:] == ["ContextCompactionWarning"]


def test_significant_checkpoints_have_the_tags_that_the_profile_keeps(bug: Investigation) -> None:
    """Confirmed, rejected, contradiction and merge are found by the tags of the rules for pruning."""
    one, other = bug.hypotheses.add("one"), bug.hypotheses.add("other")
    bug.hypotheses.confirm(one.id)
    bug.hypotheses.reject(other.id)
    bug.beliefs.contradict(bug.beliefs.add("3 ms").id, bug.beliefs.add("9 ms").id)
    bug.begin_experiment("try")
    bug.switch("main")
    bug.merge("try")
    for tag in ("hypothesis_confirmed", "hypothesis_rejected", "contradiction_detected", "branch_merged"):
        assert len(list(bug.find_by_tag(tag))) == 1, tag
    assert bug.session.info.profile == "debug"


# --- from checkpoints alone


def test_a_new_process_takes_up_the_whole_session(bug: Investigation, reopened: Reopened) -> None:
    """Every part, the time it started and what was counted come from the checkpoints."""
    fill(bug)
    bug.save()
    again = reopened()
    assert everything(again) == everything(bug)
    before, after = bug.state(), again.state()
    assert after == before
    assert after.session_id == "bug-7"
    assert after.started_us == bug.session.info.created_us
    assert not again.has_changes


def test_the_block_saves_what_is_left(reopened: Reopened) -> None:
    """Also when it ends with an exception."""

    def work() -> None:
        with reopened() as bug:
            bug.notes.add("almost lost")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        work()
    again = reopened()
    assert [note.content for note in again.notes.all()] == ["almost lost"]
    (header,) = again.list()
    assert (header.trigger.event, header.tags) == ("investigation_changed", ())
    assert again.save() is None


def test_a_session_of_something_else_is_refused(tmp_path: Path) -> None:
    """Its state stays as it is."""
    with stepkeep.open(f"sqlite:{tmp_path / 'a.db'}") as store:
        store.session("run").save({"n": 1})
        with pytest.raises(stepkeep.InvalidInput) as error:
            store.investigation("run")
        assert error.value.code == "not_an_investigation"
        assert store.get("run").load().state == {"n": 1}


def test_a_part_of_ones_own_travels_along(bug: Investigation) -> None:
    """It is saved and restored with the others."""

    class Counter:
        n = 0

        def snapshot(self) -> int:
            return self.n

        def restore(self, data: int) -> None:
            self.n = data

    counter = Counter()
    bug.connect("counter", counter)
    first = bug.checkpoint("zero")
    counter.n = 5
    bug.checkpoint("five")
    bug.restore(first.id)
    assert counter.n == 0


def test_metrics_are_counted(bug: Investigation, clock: FakeClock, reopened: Reopened) -> None:
    """Tested, run, filled, checkpoints that were made, and the time without the pauses."""
    h = bug.hypotheses.add("x")
    bug.hypotheses.test(h.id)
    clock.advance(60)
    bug.verifications.run("false")
    bug.verifications.skip("later")
    clock.advance(8 * 3600)
    bug.gaps.fill(bug.gaps.add("why?").id)
    metrics = reopened().metrics
    assert (metrics.hypotheses_tested, metrics.verifications_run, metrics.gaps_filled) == (1, 1, 1)
    assert metrics.checkpoints_created == bug.session.info.last_seq
    assert metrics.time_in_debugging_seconds == 60 + 900
    found = bug.query_at(time="now")
    assert found is not None
    assert found.metrics == metrics


# --- travelling


def test_a_restore_saves_first_what_nobody_saved(bug: Investigation) -> None:
    """A note without a checkpoint is on the branch that is left."""
    first = bug.checkpoint("before")
    bug.notes.add("in between")
    report = bug.restore(first.id)
    assert (report.message, report.recovery_complete, bug.notes.all()) == ("before", True, ())
    bug.restore("latest@before")
    assert [note.content for note in bug.notes.all()] == ["in between"]
    bug.notes.add("and on")
    assert bug.checkpoint("go on").branch == "main"


def test_a_failed_restore_leaves_the_investigation_usable(bug: Investigation) -> None:
    """A state that does not fit is refused as a whole, and saving goes on."""
    fill(bug)
    good = bug.checkpoint("good")
    state = bug.session.load(good.id).state
    state["gaps"] = {"g_1": "no gap"}
    bad = bug.session.save(state)
    before = everything(bug)
    with pytest.raises(stepkeep.PartFailed, match="gaps") as error:
        bug.restore(bad.id)
    assert error.value.code == "part_refused"
    assert everything(bug) == before


def test_experiments_keep_what_is_known_apart(bug: Investigation, reopened: Reopened) -> None:
    """Each branch has its own entries; a merge has both; what is known of the experiment stays with it."""
    h = bug.hypotheses.add("The cache is stale")
    begun = bug.begin_experiment("no-cache", description="off", hypothesis=h.id[:6], criteria="it works")
    assert (begun.status, begun.hypothesis, begun.parent) == ("active", h.id, "main")
    bug.notes.add("on the branch")
    bug.switch("main")
    assert bug.notes.all() == ()
    bug.notes.add("on main")
    again = reopened()  # what is unsaved there is not here
    assert again.notes.all() == ()
    bug.merge("no-cache")
    assert [note.content for note in bug.notes.all()] == ["on main", "on the branch"]
    bug.experiments.note_results("no-cache", "it does")
    found = reopened().experiments.get("no-cache")
    assert (found.status, found.results, found.criteria) == ("merged", "it does", "it works")
    bug.begin_experiment("second")
    bug.switch("main")
    assert bug.close_experiment("second", results="nothing", archive=True).status == "archived"
    assert bug.state().current_branch == "main"
    with pytest.raises(stepkeep.NotFound):
        bug.switch("none")
    with pytest.raises(stepkeep.Conflict):
        bug.begin_experiment("second")


def test_a_merge_finds_contradictions(bug: Investigation) -> None:
    """What was fine on each branch may not be so together."""
    bug.begin_experiment("one")
    bug.beliefs.add("The cache expires")
    bug.switch("main")
    bug.beliefs.add("The cache doesn't expire")
    bug.merge("one")
    assert len(bug.beliefs.contradictions()) == 1
    assert saved(bug)[-1] == "NewContradictionDetected"


def test_a_circle_between_two_branches_is_refused_before_the_merge(bug: Investigation) -> None:
    """Nothing is written, and both branches stay."""
    a, b = bug.beliefs.add("a is so").id, bug.beliefs.add("b is so").id
    bug.begin_experiment("one")
    bug.beliefs.depend(a, b)
    bug.switch("main")
    bug.beliefs.depend(b, a)
    bug.save()
    before = bug.session.info.last_seq
    with pytest.raises(stepkeep.InvalidInput) as error:
        bug.merge("one")
    assert error.value.code == "belief_cycle"
    assert bug.session.info.last_seq == before
    assert bug.experiments.get("one").status == "active"


# --- comparing


def test_a_comparison_has_the_changes_entry_by_entry(bug: Investigation, clock: FakeClock) -> None:
    """Typed changes, what was added and filled, the time between, and the counts in words."""
    h = bug.hypotheses.add("one")
    b = bug.beliefs.add("it is so")
    g = bug.gaps.add("why?")
    older = bug.checkpoint("older")
    clock.advance(90)
    bug.hypotheses.add_evidence(h.id, "seen")
    bug.hypotheses.set_status(h.id, "confirmed", confidence=0.9)
    new = bug.hypotheses.add("two")
    bug.hypotheses.update(h.id, description="one, better")
    bug.beliefs.update(b.id, confidence=0.1)
    bug.gaps.fill(g.id, "because")
    bug.notes.add("n")
    bug.verifications.run("true")
    found = bug.compare(older.id)
    assert found.hypothesis_diff == (
        EntryUpdated(id=h.id, field="description", old="one", new="one, better"),
        StatusChanged(id=h.id, old="active", new="confirmed"),
        ConfidenceChanged(id=h.id, old=0.5, new=0.9),
        EntryAdded(id=new.id, entry=new),
    )
    assert found.belief_diff == (ConfidenceChanged(id=b.id, old=0.8, new=0.1),)
    assert [each.description for each in found.evidence_added] == ["seen"]
    assert found.gaps_filled == (g.id,)
    assert (len(found.verifications_added), len(found.notes_added)) == (1, 1)
    assert found.time_delta.total_seconds() == 90
    assert found.as_text() == (
        "Changes:\n Hypotheses: 1 added, 1 updated\n Beliefs: 0 added, 1 updated\n Evidence: 1 added\n"
        " Verifications: 1 added\n Gaps: 1 filled\n Notes: 1 added\nNew theory: two\n"
        "Verdict: one, better (active -> confirmed)\nReworded: one -> one, better\n"
        "Confidence: one, better (50% -> 90%)\nConfidence: it is so (80% -> 10%)\n"
        "Verification passed: true\nAnswered: why?"
    )
    assert "1 removed" in bug.compare("latest", older.id).summary


def test_a_comparison_reads_as_a_story(bug: Investigation) -> None:
    """What came up, what contradicts, what no longer holds and what is now asked, each in words."""
    bug.verifications.run("true", plan="the cache answers")
    bug.beliefs.add("The cache expires")
    older = bug.checkpoint("older")
    bug.verifications.run("false", plan="the cache answers")
    bug.verifications.run("true", plan="the disk answers")
    bug.beliefs.add("The cache never expires")
    bug.gaps.add("Which TTL is set?")
    bug.save()
    told = bug.compare(older.id).reading
    assert told == (
        "New belief: The cache never expires",
        "Contradiction: The cache expires / The cache never expires",
        "Verification flipped: the cache answers (passed -> failed)",
        "Verification passed: the disk answers",
        "New question: Which TTL is set?",
    )


def test_the_past_can_be_asked(bug: Investigation, clock: FakeClock) -> None:
    """By time, seq or id; with a tag; and a query needs one of them."""
    bug.beliefs.add("The cache expires")
    first = bug.checkpoint("first", ["mine"])
    clock.advance(7200)
    bug.beliefs.add("TTL is 0")
    bug.checkpoint("second")
    for query in ({"time": "2 hours ago"}, {"seq": 1}, {"id": first.id}, {"time": "now", "tag": "mine"}):
        found = bug.query_at(**query)  # type: ignore[arg-type]
        assert found is not None
        assert [belief.statement for belief in found.beliefs] == ["The cache expires"]
    assert bug.query_at(seq=99) is None
    with pytest.raises(stepkeep.InvalidInput) as error:
        bug.query_at(tag="mine")
    assert error.value.code == "invalid_query"


def test_what_was_believed_then_is_what_was_current_then(
    bug: Investigation, clock: FakeClock, reopened: Reopened, shell: Shell
) -> None:
    """Also after a restore and on another branch: the events tell which one counted at a time."""
    moments = {}

    def at(name: str) -> None:
        clock.advance(60)
        moments[name] = clock()
        clock.advance(60)

    first = bug.checkpoint("first")
    at("first")
    bug.beliefs.add("wrong")
    bug.save()
    at("wrong")
    bug.restore(first.id)
    at("restored")
    bug.beliefs.add("right")
    bug.save()
    at("right")
    bug.begin_experiment("try")
    bug.beliefs.add("tried")
    bug.save()
    at("tried")
    bug.switch("from-1")
    at("back")
    found = reopened()

    def believed(name: str) -> list[str]:
        state = found.query_at(time=from_us(moments[name]))
        assert state is not None
        return [belief.statement for belief in state.beliefs]

    assert {name: believed(name) for name in moments} == {
        "first": [],
        "wrong": ["wrong"],
        "restored": [],
        "right": ["right"],
        "tried": ["right", "tried"],
        "back": ["right"],
    }
    when = f"{from_us(moments['wrong']):%Y-%m-%d %H:%M:%S}"
    assert "wrong" in shell("at", when, "beliefs").stdout


# --- several at once


def test_two_who_work_on_one_session_keep_each_others_entries(bug: Investigation, reopened: Reopened) -> None:
    """Whoever saves second takes the other's entries in."""
    other = reopened()
    bug.notes.add("mine")
    other.notes.add("theirs")
    bug.checkpoint("first")
    other.checkpoint("second")
    assert {note.content for note in other.notes.all()} == {"mine", "theirs"}
    assert {note.content for note in reopened().notes.all()} == {"mine", "theirs"}


def test_two_who_change_the_same_entry_keep_both(
    bug: Investigation, reopened: Reopened, caplog: pytest.LogCaptureFixture
) -> None:
    """What the second holds goes to a rescue branch, which it tells of; merging it decides."""
    h = bug.hypotheses.add("x")
    bug.save()
    other = reopened()
    bug.hypotheses.confirm(h.id)
    other.hypotheses.reject(h.id)
    assert other.rescue is not None
    assert f"saved on branch {other.rescue!r}" in caplog.text
    other.notes.add("more")
    saved = other.save()
    assert saved is not None
    assert (saved.branch, other.has_changes) == (other.rescue, False)
    found = reopened()
    assert (found.rescue, found.hypotheses.get(h.id).status) == (None, "confirmed")
    found.merge(saved.branch, on_conflict="theirs")
    assert found.hypotheses.get(h.id).status == "rejected"
    assert [note.content for note in reopened().notes.all()] == ["more"]


def test_a_session_that_went_elsewhere_takes_no_stale_save(bug: Investigation, reopened: Reopened) -> None:
    """Nothing is saved onto a branch that this one does not know: it goes to a rescue branch until it reloads."""
    bug.checkpoint("start")
    other = reopened()
    bug.begin_experiment("try")
    stale = other.checkpoint("stale")
    assert stale.branch == other.rescue
    assert reopened().session.info.branch == "try"
    other.reload()
    assert other.checkpoint("fresh").branch == "try"


def test_a_compaction_warning_is_saved_whatever_stands_in_its_way(
    bug: Investigation, reopened: Reopened, caplog: pytest.LogCaptureFixture
) -> None:
    """Others moved the session, changed the same entry, pruned the base, and a part of one's own fails."""
    h = bug.hypotheses.add("x")
    broken = Counter()
    bug.connect("counter", broken)
    bug.checkpoint("start")
    other = reopened()
    other.hypotheses.confirm(h.id)
    other.begin_experiment("try")
    other.session.delete("#1")
    bug.hypotheses._put(msgspec.structs.replace(h, description="unsaved"))
    broken.fails = True
    warned = bug.compaction_warning()
    assert "part 'counter' cannot be saved" in caplog.text
    state = reopened().session.load(warned.id).state
    assert state["hypotheses"]["hypotheses"][h.id]["description"] == "unsaved"
    assert state["counter"] == 0


# --- parts of one's own


class Counter:
    """A part that can be told to fail."""

    def __init__(self) -> None:
        self.number, self.fails = 0, False

    def snapshot(self) -> int:
        if self.fails:
            raise RuntimeError("broken")
        return self.number

    def restore(self, data: int) -> None:
        self.number, self.fails = data, False


def test_a_part_that_is_not_connected_is_carried_over(
    bug: Investigation, reopened: Reopened, shell: Shell
) -> None:
    """A note from the command line keeps it, and whoever connects it later gets what is stored."""
    mine = Counter()
    assert not bug.connect("counter", mine)
    mine.number = 7
    bug.checkpoint("with a part")
    shell("investigate", "note", "from the shell")
    again = reopened()
    assert again.session.load().state["counter"] == 7
    again.begin_experiment("try")
    again.notes.add("on a branch")
    again.switch("main")
    again.merge("try")
    later = Counter()
    found = reopened()
    assert found.connect("counter", later)
    assert later.number == 7
    later.number = 8
    found.checkpoint("two")
    found.session.parts.disconnect("counter")
    found.checkpoint("without")
    assert reopened().session.load().state["counter"] == 8


def test_a_part_that_does_not_take_what_is_stored_says_so(bug: Investigation, reopened: Reopened) -> None:
    """It is not connected, and what is stored stays; one that begins anew replaces it."""
    bug.connect("counter", Counter())
    bug.checkpoint("stored")

    class Picky(Counter):
        def restore(self, data: int) -> None:
            raise ValueError("no")

    found = reopened()
    with pytest.raises(stepkeep.PartFailed, match="restore=False") as error:
        found.connect("counter", Picky())
    assert error.value.code == "part_restore_failed"
    found.checkpoint("still there")
    assert found.session.load().state["counter"] == 0
    picky = Picky()
    picky.number = 3
    assert not found.connect("counter", picky, restore=False)
    found.checkpoint("anew")
    assert reopened().session.load().state["counter"] == 3


def test_a_broken_part_does_not_block_its_own_rescue(bug: Investigation) -> None:
    """The message is about the restore; by force the part gets its data, and what it held is not needed."""
    counter = Counter()
    bug.connect("counter", counter)
    good = bug.checkpoint("good")
    counter.fails = True
    with pytest.raises(stepkeep.PartFailed, match=r"nothing was restored.*force=True") as error:
        bug.restore(good.id)
    assert error.value.code == "part_snapshot_failed"
    bug.notes.add("unsaved")
    assert bug.restore(good.id, force=True).recovery_complete
    assert not counter.fails
    assert [header.message for header in bug.list(limit=1)] == ["Changes"]


@pytest.mark.full
def test_many_at_once_lose_nothing(reopened: Reopened) -> None:
    """Four investigators with a store of their own each add five notes."""
    found = [reopened() for _ in range(4)]

    def work(bug: Investigation, name: int) -> None:
        for number in range(5):
            bug.notes.add(f"{name}-{number}")
            bug.save()

    threads = [threading.Thread(target=work, args=(bug, name)) for name, bug in enumerate(found)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(reopened().notes.all()) == 20


# --- the rest


def test_a_recovery_point_has_what_the_checkpoint_knew(bug: Investigation) -> None:
    """The code, its environment, the commands marked for replay, and the session."""
    fill(bug)
    bug.commands.record("ls")
    header = bug.checkpoint("all")
    text = bug.recovery_point().as_text()
    assert "Check out commit 4f2a91c" in text
    assert "TZ=UTC" in text
    assert "Run: make up" in text
    assert "Run: ls" not in text
    assert f"Restore debugging session bug-7 from checkpoint {header.id}" in text
    assert "git checkout --detach 4f2a91c" in bug.recovery_point().as_script()


def test_the_report_is_markdown_that_texts_cannot_break(bug: Investigation) -> None:
    """What was noted is escaped, and stays on its line."""
    bug.hypotheses.add("# not a title\n- nor [a](link) <script>")
    bug.verifications.run("echo '```'; exit 1")
    report = bug.report()
    assert report.startswith("# Investigation bug-7\n")
    assert r"\# not a title - nor \[a\](link) \<script\>" in report
    assert report.count("```") == 2
    assert "**failed**" in report


def test_asyncio_programs_investigate_on_a_thread(tmp_path: Path) -> None:
    """What is done runs off the event loop, and the block saves."""

    async def work() -> int:
        async with aio.open(f"sqlite:{tmp_path / 'a.db'}") as store:
            async with await store.investigation("bug") as bug:
                await bug.do(lambda found: found.notes.add("from a thread"))
            session = await store.get("bug")
            again = await store.investigation(session)
            return await again.do(lambda found: len(found.notes.all()))

    assert asyncio.run(work()) == 1


def test_a_base_that_was_pruned_loses_nothing(bug: Investigation, reopened: Reopened) -> None:
    """Entries of both sides are joined even when the checkpoint that both began from is gone."""
    bug.notes.add("begin")
    bug.save()
    other = reopened()
    for number in range(5):
        bug.notes.add(f"n{number}")
        bug.save()
    bug.prune(keep_last=1)
    other.notes.add("late")
    other.checkpoint("joined")
    assert len(reopened().notes.all()) == 7


def test_changed_project_files_are_announced(tmp_path: Path) -> None:
    """What the session finds changed in its workspace becomes a checkpoint for modified code."""
    work = tmp_path / "work"
    work.mkdir()
    (work / "cache.py").write_text("ttl = 0", encoding="utf-8")
    with stepkeep.open(f"sqlite:{tmp_path / 'a.db'}") as store:
        session = store.session("bug", profile="debug", workspace=work)
        bug = store.investigation(session)
        bug.checkpoint("start")
        (work / "cache.py").write_text("ttl = 60", encoding="utf-8")
        session.files.changed(notify=bug.code_changed)
        assert saved(bug) == ["CodeModified"]
        assert bug.code.state is not None
        assert bug.code.state.paths == ("cache.py",)
