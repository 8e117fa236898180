"""Plans and agent states: their rules, their stored form, and what makes two plans the same work."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from stepkeep import AgentState, InvalidInput, LastError, PlanStep, RetryPolicy, StepResult, StepStatus
from stepkeep.runs.plan import (
    AgentSerializer,
    check_plan,
    differences,
    fingerprint,
    from_state,
    iso,
    steps_of,
    to_state,
)
from stepkeep.runs.run_options import RunOptions

NOON = datetime(2026, 1, 20, 12, 0, 0, 5, tzinfo=UTC)


def refusal(plan: Any) -> InvalidInput:
    with pytest.raises(InvalidInput) as caught:
        steps_of(plan)
    assert caught.value.code == "invalid_plan"
    return caught.value


# --- the rules


def test_a_plan_that_can_be_run_passes() -> None:
    """Dependencies may name earlier and later steps, as long as they are no circle."""
    check_plan([PlanStep("b", dependencies=("a", "c")), PlanStep("a"), PlanStep("c", dependencies=("a",))])


def test_an_empty_plan_is_refused() -> None:
    """There is nothing to do, and that is never a success."""
    assert "no steps" in refusal([]).message


def test_all_problems_are_named_at_once() -> None:
    """Whoever repairs a plan sees everything that is wrong with it."""
    message = refusal(
        [
            PlanStep("a", dependencies=("b",)),
            PlanStep("b", dependencies=("c", "nowhere")),
            PlanStep("c", dependencies=("a",)),
            PlanStep("d", dependencies=("d",)),
            PlanStep("d"),
            PlanStep(""),
        ]
    ).message
    assert "'d' is used more than once" in message
    assert "step 5 has no id" in message
    assert "'b' depends on 'nowhere', which is not in the plan" in message
    assert "a -> b -> c -> a" in message


def test_a_step_that_waits_for_itself_is_a_circle() -> None:
    """The smallest circle has one step."""
    assert "d -> d" in refusal([PlanStep("d", dependencies=("d",))]).message


def test_a_long_chain_is_checked_without_deep_recursion() -> None:
    """The depth of a plan is not limited by the interpreter's stack."""
    steps = [PlanStep("0")] + [PlanStep(str(n), dependencies=(str(n - 1),)) for n in range(1, 5000)]
    check_plan(steps[::-1])


def test_a_plan_may_be_plain_data() -> None:
    """Steps as another program writes them, with either spelling and nulls, are steps."""
    given = [{"id": "1", "description": "d", "action": "go", "parameters": {"n": 1}, "dependencies": None}]
    assert steps_of(given) == (PlanStep("1", "d", "go", {"n": 1}),)


@pytest.mark.parametrize("plan", ["text", {"id": "a"}, 3, None, [1], [{"description": "no id"}], [{"id": 1}]])
def test_what_is_no_plan_is_refused(plan: Any) -> None:
    """Anything else is an error of the caller, found before anything runs."""
    refusal(plan)


# --- the stored form

FULL = AgentState(
    query="q",
    plan=(
        PlanStep("1", "one", "fetch", {"url": "u"}, StepStatus.COMPLETED),
        PlanStep("2", dependencies=("1",)),
    ),
    current_step_index=1,
    results=(StepResult("1", {"rows": (1, b"x")}, NOON, 100, 7, ("ab" * 32,)),),
    context={"seen": {1, 2}},
    last_error=LastError(1, "API timeout", NOON),
)


def test_a_stored_state_has_the_names_of_the_specification() -> None:
    """Other programs read and write `currentStepIndex`, `stepId`, `completedAt` as ISO text, and so on."""
    state = to_state(FULL)
    assert list(state) == ["query", "plan", "currentStepIndex", "results", "context", "lastError"]
    assert state["plan"][1] == {
        "id": "2",
        "description": "",
        "action": "",
        "parameters": {},
        "status": "pending",
        "dependencies": ["1"],
    }
    result = state["results"][0]
    assert result["completedAt"] == "2026-01-20T12:00:00.000005Z"
    assert {key: result[key] for key in ("stepId", "durationMs", "tokenUsage")} == {
        "stepId": "1",
        "durationMs": 100,
        "tokenUsage": 7,
    }
    assert state["lastError"] == {"stepIndex": 1, "message": "API timeout", "timestamp": iso(NOON)}


def test_the_stored_form_is_read_back_equal() -> None:
    """Outputs and context come back as they were, with values that JSON lacks."""
    assert from_state(to_state(FULL)) == FULL
    assert from_state(FULL) is FULL


def test_states_of_other_surfaces_are_read() -> None:
    """Missing fields, nulls, unknown fields and Python's spelling are no obstacle."""
    assert from_state({"currentStepIndex": 3}) == AgentState(current_step_index=3)
    assert from_state({"current_step_index": 2, "lastError": None, "mood": "good"}).current_step_index == 2
    found = from_state(
        {"results": [{"stepId": "1", "output": ["A"]}], "plan": [{"id": "1", "status": "failed"}]}
    )
    assert found.results[0].output == ["A"]
    assert found.plan[0].status is StepStatus.FAILED


@pytest.mark.parametrize(
    "state",
    [None, 1, "text", [], {"plan": 1}, {"plan": [{"id": 1}]}, {"plan": [{"id": "a", "status": "odd"}]}],
)
def test_what_is_no_agent_state_says_so(state: Any) -> None:
    """The typed view refuses it and names the place; the raw state stays readable."""
    with pytest.raises(InvalidInput) as caught:
        from_state(state)
    assert caught.value.code == "state_type_mismatch"
    assert caught.value.path


def test_progress_survives_the_agent_shape() -> None:
    """What a runner saves as agent state it finds again."""
    serializer = AgentSerializer()
    progress = serializer.load(to_state(FULL))
    assert serializer.load(serializer.dump(progress)) == progress
    assert progress.current_step_index == 1
    assert progress.token_usage == 7
    assert progress.blobs == {"ab" * 32}


# --- the same work?

PLAN = (
    PlanStep("a", "first", "go", {"x": 1, "y": [1, {"p": 1, "q": 2}]}),
    PlanStep("b", dependencies=("a",)),
)


def test_statuses_descriptions_and_key_order_do_not_matter() -> None:
    """They say nothing about what is to be done."""
    other = (
        PlanStep("a", "renamed", "go", {"y": [1, {"q": 2, "p": 1}], "x": 1}, StepStatus.FAILED),
        PlanStep("b", dependencies=("a",)),
    )
    assert fingerprint(other) == fingerprint(PLAN)
    assert differences(PLAN, other) == []


def test_every_difference_is_named() -> None:
    """What was added, removed, moved, and which field changed."""
    new = (
        PlanStep("c"),
        PlanStep("b", action="stop"),
        PlanStep("a", "first", "go", {"x": True, "y": [1, {"p": 1, "q": 2}]}),
    )
    found = differences((*PLAN, PlanStep("gone")), new)
    assert found == [
        "step 'gone' was removed",
        "step 'c' was added",
        "step 'b' has other action and dependencies",
        "step 'a' has other parameters",
        "the steps are in another order",
    ]
    assert fingerprint(new) != fingerprint(PLAN)


# --- waiting


def test_delays_grow_up_to_their_limit() -> None:
    """Each wait is a factor longer; the last attempt is followed by none."""
    policy = RetryPolicy(attempts=5, delay_seconds=1, factor=3, max_delay_seconds=10, jitter=0)
    assert [policy.delay_after(number) for number in range(1, 6)] == [1, 3, 9, 10, None]


def test_jitter_takes_a_share_of_the_wait() -> None:
    """Chance is injected, and only ever shortens."""
    policy = RetryPolicy(attempts=2, delay_seconds=8, jitter=0.25)
    assert policy.delay_after(1, lambda: 0.0) == 8
    assert policy.delay_after(1, lambda: 0.5) == 7


def test_a_huge_number_of_attempts_does_not_overflow() -> None:
    """The arithmetic ends at the limit."""
    policy = RetryPolicy(attempts=10**9, delay_seconds=1, factor=10, jitter=0)
    assert policy.delay_after(10**8) == policy.max_delay_seconds


@pytest.mark.parametrize(
    "options",
    [
        {"attempts": 0},
        {"delay_seconds": -1},
        {"factor": 0.5},
        {"jitter": 2},
        {"max_delay_seconds": float("inf")},
        {"delay_seconds": float("nan")},
    ],
)
def test_a_retry_policy_that_makes_no_sense_is_refused(options: dict[str, Any]) -> None:
    """Before anything runs."""
    with pytest.raises(InvalidInput) as caught:
        RetryPolicy(**options)
    assert caught.value.code == "invalid_option"


@pytest.mark.parametrize(
    "options",
    [
        {"parallel": 0},
        {"parallel": True},
        {"parallel": 1.5},
        {"on_failure": "maybe"},
        {"timeout": 0},
        {"timeout": float("nan")},
        {"lease_seconds": 0},
        {"from_ref": "latest"},
    ],
)
def test_options_that_make_no_sense_are_refused(options: dict[str, Any]) -> None:
    """Before anything runs."""
    with pytest.raises(InvalidInput) as caught:
        RunOptions(**options)
    assert caught.value.code == "invalid_option"
