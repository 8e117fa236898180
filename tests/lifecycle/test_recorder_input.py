"""What a recorder is given: odd texts and values are taken whole or refused at the call, never by a later snapshot."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import stepkeep
from stepkeep import config
from stepkeep.codec.readable import CommandOutcome, ContextDigest
from stepkeep.recording.details import MAX_NAME

LONE = b"caf\xe9".decode("utf-8", "surrogateescape")


def outcome(**fields: Any) -> CommandOutcome:
    given = {"kind": "shell", "name": "x", "result": "PASS", "duration_ms": 1, "summary": "", **fields}
    return CommandOutcome(**given)


def test_output_that_is_no_unicode_does_not_stop_the_recorder(session: stepkeep.Session) -> None:
    """What was decoded with `surrogateescape` is replaced, and every later snapshot is taken."""
    recorder = session.recorder(state=lambda: {"v": 1})
    recorder.step_started("a", 1)
    recorder.command(outcome(name=LONE, summary=LONE, reason_code=LONE))
    recorder.step_finished("a")
    (stored,) = session.load().details["command_outcomes"]
    assert (stored["name"], stored["summary"], stored["reason_code"]) == ("caf?", "caf?", "caf?")
    recorder.compaction_warning()
    recorder.before_forced_stop("enough")
    assert session.info.status == "failed"


def test_every_text_of_an_outcome_is_bounded(session: stepkeep.Session) -> None:
    """The code of a reason too."""
    recorder = session.recorder()
    recorder.command(outcome(name="n" * 5000, reason_code="r" * 5000))
    recorder.manual()
    (stored,) = session.load().details["command_outcomes"]
    assert len(stored["name"]) == len(stored["reason_code"]) == MAX_NAME


@pytest.mark.parametrize(
    ("digest", "code", "path"),
    [
        (ContextDigest("low", [LONE], 0, ""), "state_not_exact", "protected_artifacts"),
        (ContextDigest("low", [], 0, LONE), "state_not_exact", "policy_profile"),
        (ContextDigest("low", "plan.md", 0, ""), "invalid_context", None),  # type: ignore[arg-type]
        (ContextDigest("low", 7, 0, ""), "invalid_context", None),  # type: ignore[arg-type]
    ],
)
def test_a_digest_that_cannot_be_saved_is_refused(
    session: stepkeep.Session, digest: ContextDigest, code: str, path: str | None
) -> None:
    """By the call that brings it, with the place; names are not changed silently."""
    recorder = session.recorder()
    with pytest.raises(stepkeep.InvalidInput) as refused:
        recorder.context(digest)
    assert refused.value.code == code
    assert path is None or path in str(refused.value.path)
    recorder.manual()
    assert "context_digest" not in session.load().details


def test_a_message_is_refused_also_when_it_would_be_merged(session: stepkeep.Session) -> None:
    """The rule does not depend on what came before."""
    recorder = session.recorder()
    recorder.manual()
    for wrong in (LONE, 5):
        with pytest.raises(stepkeep.InvalidInput):
            recorder.manual(wrong)  # type: ignore[arg-type]
    assert recorder.manual("fine").is_merged


def test_what_makes_no_sense_is_refused_at_the_call(session: stepkeep.Session) -> None:
    """One text for a list, words for a flag, a number for a path, times that are none."""
    recorder = session.recorder()
    wrong: list[tuple[Callable[[], object], str]] = [
        (lambda: recorder.step_started("a", artifacts="plan.md"), "invalid_name"),
        (lambda: recorder.step_started("a", artifacts=5), "invalid_name"),  # type: ignore[arg-type]
        (lambda: recorder.step_started("a", artifacts=[5]), "invalid_name"),  # type: ignore[list-item]
        (lambda: recorder.step_started("a", is_idempotent="no"), "invalid_step"),  # type: ignore[arg-type]
        (lambda: recorder.step_started("a", is_idempotent=None), "invalid_step"),  # type: ignore[arg-type]
        (lambda: recorder.step_started("a", 2**63), "invalid_step"),
        (lambda: recorder.command(outcome(duration_ms=math.inf)), "invalid_outcome"),
        (lambda: recorder.todo_compliance("FAIL", "two items"), "invalid_outcome"),
        (lambda: session.recorder(plan_path=3), "invalid_text"),  # type: ignore[arg-type]
        (lambda: session.recorder(plan_path=Path("plan.md")), "invalid_text"),  # type: ignore[arg-type]
        (lambda: session.recorder(plan_path=LONE), "invalid_name"),
        (lambda: session.recorder(state={"v": 1}), "invalid_option"),  # type: ignore[arg-type]
        *[
            (lambda seconds=seconds: session.recorder(heartbeat_seconds=seconds), "invalid_option")  # type: ignore[misc]
            for seconds in (math.nan, math.inf, 1e12, -1, 0, True, "2")
        ],
        *[
            (lambda seconds=seconds: session.recorder(coalesce_seconds=seconds), "invalid_option")  # type: ignore[misc]
            for seconds in (math.nan, math.inf, 1e12, -1, "2")
        ],
    ]
    for call, code in wrong:
        with pytest.raises(stepkeep.InvalidInput) as refused:
            call()
        assert refused.value.code == code
    assert list(session.history()) == []
    recorder.manual()


@pytest.mark.parametrize(
    ("key", "text", "seconds"),
    [
        ("heartbeat_seconds", "2.5", 2.5),
        ("heartbeat_seconds", "0.25", 0.25),
        ("coalesce_seconds", "0.5", 0.5),
        ("coalesce_seconds", "0", 0),
        ("coalesce_seconds", "0.0", 0),
        ("coalesce_seconds", "1m", 60),
        ("significant_seconds", "2.5", 2.5),
    ],
)
def test_the_timers_take_what_the_recorder_takes(tmp_path: Path, key: str, text: str, seconds: float) -> None:
    """Parts of a second, and 0 where nothing shall be merged."""
    (tmp_path / "stepkeep.yaml").write_text(f"recorder:\n  {key}: {text}\n", encoding="utf-8")
    settings = config.load(cwd=tmp_path, environ={}, user_path=tmp_path / "none.yaml")
    assert settings[f"recorder.{key}"] == seconds
    with stepkeep.open(tmp_path / "store.db", config=settings) as store:
        recorder = store.session("run").recorder(state=lambda: {"v": 1})
        recorder.manual()
        recorder.manual()


@pytest.mark.parametrize(
    ("key", "text"),
    [
        ("heartbeat_seconds", "0"),
        ("heartbeat_seconds", "0.0"),
        ("heartbeat_seconds", "-2.5"),
        ("heartbeat_seconds", "nan"),
        ("heartbeat_seconds", "1e3"),
        ("heartbeat_seconds", "'2.5 s'"),
        ("heartbeat_seconds", "99999999999.5"),
        ("coalesce_seconds", "-0.5"),
        ("significant_seconds", "0"),
    ],
)
def test_a_timer_that_makes_no_sense_is_refused(tmp_path: Path, key: str, text: str) -> None:
    """With its key."""
    (tmp_path / "stepkeep.yaml").write_text(f"recorder:\n  {key}: {text}\n", encoding="utf-8")
    with pytest.raises(stepkeep.InvalidInput, match=f"recorder.{key}"):
        config.load(cwd=tmp_path, environ={}, user_path=tmp_path / "none.yaml")
