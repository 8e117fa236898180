"""Hypotheses, beliefs, gaps, notes and commands: what they take, what they refuse, what they tell."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import stepkeep
from stepkeep.investigation.beliefs import BeliefGraph, contradict
from stepkeep.investigation.entries import OnChange
from stepkeep.investigation.hypotheses import HypothesisBoard, KnowledgeGapAnalyzer
from stepkeep.investigation.worklog import MAX_COMMANDS, MAX_PREVIEW, CommandHistory, Notebook
from stepkeep.testing import FakeClock

Heard = list[tuple[str, ...]]
"""What a part told its owner: the trigger of each change, and its tags."""


def telling(heard: Heard) -> OnChange:
    return lambda trigger, tags: heard.append((trigger, *tags))


@pytest.fixture
def board() -> HypothesisBoard:
    return HypothesisBoard(FakeClock())


@pytest.fixture
def graph() -> BeliefGraph:
    return BeliefGraph(FakeClock())


# --- hypotheses


def test_a_hypothesis_goes_through_its_life() -> None:
    """It begins active at 0.5; each new status is told once; tested stays tested."""
    heard: Heard = []
    board = HypothesisBoard(FakeClock(), on_change=telling(heard))
    added = board.add("The cache is stale", tags=["cache"])
    assert (added.status, added.confidence, added.was_tested) == ("active", 0.5, False)
    board.test(added.id)
    board.test(added.id)
    board.update(added.id, confidence=0.9)
    board.confirm(added.id, confidence=1)
    archived = board.archive(added.id)
    assert (archived.status, archived.confidence, archived.was_tested) == ("archived", 1.0, True)
    assert heard == [
        ("significant_time_passed",),
        ("hypothesis_status_change",),
        ("significant_time_passed",),
        ("hypothesis_status_change", "hypothesis_confirmed"),
        ("hypothesis_status_change",),
    ]


def test_hypotheses_have_children_and_evidence(board: HypothesisBoard) -> None:
    """A refinement names its parent, and evidence its hypothesis; ids may be shortened."""
    parent = board.add("The cache is stale")
    child = board.add("The TTL is wrong", parent=parent.id)
    assert board.children(parent.id[:-1]) == (child,)
    evidence = board.add_evidence(child.id, "TTL is 0", kind="deduction", strength=-1, source="config")
    assert board.evidence(child.id) == (evidence,)
    assert board.evidence(parent.id) == ()


def test_what_a_board_refuses_changes_nothing(board: HypothesisBoard) -> None:
    """Unknown ids, numbers out of range, unknown words, empty texts."""
    known = board.add("x").id
    before = board.snapshot()
    calls: list[tuple[Callable[[], Any], str]] = [
        (lambda: board.add("y", confidence=1.01), "invalid_option"),
        (lambda: board.add("y", confidence=-0.1), "invalid_option"),
        (lambda: board.add("y", confidence=float("nan")), "invalid_option"),
        (lambda: board.add("y", confidence=True), "invalid_option"),
        (lambda: board.add("y", confidence="0.5"), "invalid_option"),  # type: ignore[arg-type]
        (lambda: board.add(" "), "invalid_text"),
        (lambda: board.add("y", tags="ab"), "invalid_name"),
        (lambda: board.add("y", parent="h_none"), "entry_not_found"),
        (lambda: board.confirm(""), "entry_not_found"),
        (lambda: board.set_status(known, "sure"), "invalid_option"),
        (lambda: board.add_evidence("h_none", "z"), "entry_not_found"),
        (lambda: board.add_evidence(known, "z", strength=-1.1), "invalid_option"),
        (lambda: board.add_evidence(known, "z", kind="rumour"), "invalid_option"),
    ]
    for call, code in calls:
        with pytest.raises(stepkeep.StepkeepError) as error:
            call()
        assert error.value.code == code
    assert board.snapshot() == before


def test_an_ambiguous_beginning_names_the_ids() -> None:
    """`h_` means several: the error lists them."""
    board = HypothesisBoard(FakeClock(), make_id=_ids("h_a1", "h_a2"))
    board.add("one")
    board.add("two")
    with pytest.raises(stepkeep.NotFound, match=r"several.*h_a1, h_a2"):
        board.get("h_a")


def _ids(*names: str) -> Callable[[str], str]:
    left = iter(names)
    return lambda _: next(left)


# --- beliefs


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("The cache is stale", "The cache is not stale"),
        ("The cache expires", "the cache doesn't expire."),
        ("We can reproduce it", "We cannot reproduce it"),
        ("It never fails", "It fails"),
        ("Tensors are equal", "Tensors aren’t equal"),
    ],
)
def test_a_negation_contradicts(first: str, second: str) -> None:
    """One has the same words, and only one is negated."""
    assert contradict(first, second)
    assert contradict(second, first)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("The cache is stale", "The cache is stale"),
        ("The cache is stale", "The queue is not stale"),
        ("It is not not true", "It is true"),
        ("", "not"),
        ("a is slower than b", "b is not slower than a"),
    ],
)
def test_other_pairs_do_not(first: str, second: str) -> None:
    """Other words, the same polarity, or no words at all."""
    assert not contradict(first, second)


@given(st.text(), st.text())
def test_contradiction_is_symmetric_and_never_with_itself(first: str, second: str) -> None:
    """Whatever the texts are."""
    assert contradict(first, second) == contradict(second, first)
    assert not contradict(first, first)


def test_a_contradiction_is_told_once() -> None:
    """Also when confidence comes later; a belief that is not held contradicts nothing."""
    heard: Heard = []
    graph = BeliefGraph(FakeClock(), on_change=telling(heard))
    one = graph.add("The cache expires", confidence=0.95)
    other = graph.add("The cache does not expire", confidence=0.2)
    assert graph.contradictions() == ()
    graph.update(other.id, confidence=0.9)
    (found,) = graph.contradictions()
    assert (found.severity, found.status) == ("high", "active")
    assert {found.first, found.second} == {one.id, other.id}
    graph.update(other.id, confidence=0.7)
    assert graph.look_again() == ()
    assert graph.contradict(one.id, other.id, reason="said twice") == found
    assert graph.set_contradiction(found.id, "resolved").status == "resolved"
    assert heard.count(("new_contradiction_detected", "contradiction_detected")) == 1


def test_contradictions_can_be_declared(graph: BeliefGraph) -> None:
    """Where only a person sees it."""
    one, other = graph.add("Latency is 3 ms"), graph.add("Latency is 9 ms")
    found = graph.contradict(one.id, other.id, reason="two clocks", severity="low")
    assert (found.reason, found.severity) == ("two clocks", "low")
    with pytest.raises(stepkeep.InvalidInput, match="itself"):
        graph.contradict(one.id, one.id)


def test_beliefs_never_support_each_other_in_a_circle(graph: BeliefGraph) -> None:
    """The edge that would close one is refused, and names the circle; the graph stays as it was."""
    a, b, c = (graph.add(text).id for text in ("a", "b", "c"))
    graph.depend(a, b, relationship="causal", strength=0.5)
    graph.depend(b, c)
    graph.depend(a, c)
    before = graph.snapshot()
    for start, end in ((c, a), (b, a), (a, a)):
        with pytest.raises(stepkeep.InvalidInput) as error:
            graph.depend(start, end)
        assert error.value.code == "belief_cycle"
    assert graph.snapshot() == before
    circle = {**before, "dependencies": {**before["dependencies"]}}
    edge = dict(before["dependencies"][f"{a}>{b}"], id=f"{c}>{a}", from_id=c, to_id=a)
    circle["dependencies"][edge["id"]] = edge
    with pytest.raises(stepkeep.InvalidInput, match="circle"):
        graph.validate(circle)


def test_a_long_line_of_beliefs_is_no_problem(graph: BeliefGraph) -> None:
    """The search for circles does not recurse."""
    ids = [graph.add(f"statement {number}").id for number in range(300)]
    edges = {}
    for start, end in pairwise(ids):
        edges[f"{start}>{end}"] = {
            "id": f"{start}>{end}",
            "from_id": start,
            "to_id": end,
            "relationship": "derivation",
            "strength": 1.0,
            "reason": "",
        }
    data = {**graph.snapshot(), "dependencies": edges}
    graph.validate(data)
    graph.restore(data)
    with pytest.raises(stepkeep.InvalidInput):
        graph.depend(ids[-1], ids[0])


# --- the others


def test_gaps_are_filled_in_the_order_of_what_hangs_on_them() -> None:
    """Blocking ones first; filling is told once, with its time."""
    clock = FakeClock()
    heard: Heard = []
    gaps = KnowledgeGapAnalyzer(clock, on_change=telling(heard))
    small = gaps.add("colour?", criticality="trivial")
    large = gaps.add("which TTL?", criticality="blocking", blocks=["h_1"], how="read the config")
    assert gaps.to_fill() == (large, small)
    clock.advance(5)
    filled = gaps.fill(large.id, "60 s")
    gaps.fill(large.id, "61 s")
    gaps.set_status(small.id, "obsolete")
    assert filled.filled_us == clock()
    assert gaps.get(large.id).answer == "61 s"
    assert gaps.to_fill() == ()
    assert heard.count(("gap_filled",)) == 1
    for call, code in (
        (lambda: gaps.fill("g_none"), "entry_not_found"),
        (lambda: gaps.set_status(small.id, "done"), "invalid_option"),
        (lambda: gaps.add("", type="factual"), "invalid_text"),
    ):
        with pytest.raises(stepkeep.StepkeepError) as error:
            call()
        assert error.value.code == code


def test_commands_are_bounded() -> None:
    """The newest ones stay, with previews that can be saved whatever was printed."""
    history = CommandHistory(FakeClock())
    for number in range(MAX_COMMANDS + 5):
        history.record(f"run {number}", stdout="x" * 10_000, stderr="\0\ud800")
    kept = history.all()
    assert (len(kept), kept[0].command, kept[-1].command) == (
        MAX_COMMANDS,
        "run 5",
        f"run {MAX_COMMANDS + 4}",
    )
    assert len(kept[0].stdout_preview) <= MAX_PREVIEW
    assert "\0" not in kept[0].stderr_preview


@pytest.mark.parametrize(
    "part", [HypothesisBoard, BeliefGraph, KnowledgeGapAnalyzer, Notebook, CommandHistory]
)
@pytest.mark.parametrize("data", [None, 3, {"h_1": {"id": "h_2"}}, {"hypotheses": []}, {"beliefs": {}}])
def test_foreign_data_is_refused(part: Callable[..., Any], data: Any) -> None:
    """A snapshot of something else raises, and the part holds what it held."""
    found = part(FakeClock())
    before = found.snapshot()
    with pytest.raises((stepkeep.InvalidInput, TypeError, KeyError)):
        found.validate(data)
    assert found.snapshot() == before
