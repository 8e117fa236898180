"""Questions that steps put to a person, and their answers.

A question is part of the state of the run that waits for it, and so is its answer: both are checkpoints like any other,
and survive what those survive. An answer is saved while nobody runs the session; resuming goes on with it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from stepkeep.codec import exact
from stepkeep.engine import Engine
from stepkeep.errors import InvalidInput, NotFound
from stepkeep.model import SessionInfo, Status, Trigger, TriggerKind, from_us
from stepkeep.runs.lease import Held, RunSaver
from stepkeep.runs.plan import Question, from_state, question_state
from stepkeep.runs.run_options import refusal
from stepkeep.text import error_text

ASKED_FOR = "questions"
"""The key of a state that has the questions of its steps."""


class Answered(msgspec.Struct, frozen=True, kw_only=True):
    """An answer that was saved. The run goes on with it when it is resumed."""

    session: str
    step: str
    question: str
    is_approved: bool
    checkpoint: str


def open_questions(engine: Engine, session: SessionInfo) -> tuple[Question, ...]:
    """What the steps of a session wait for a person to decide."""
    loaded = engine.latest(session)
    return () if loaded is None else tuple(_open(_questions(loaded.value())))


def answer(
    engine: Engine,
    session: SessionInfo,
    *,
    is_approved: bool,
    value: object = None,
    step: str | None = None,
) -> Answered:
    """Answer the question that a session waits for, or that of one step. A refusal may be taken back.

    Raises:
        NotFound: (`nothing_to_approve`) there is no such question.
        InvalidInput: several steps wait, and none is named (`ambiguous_question`), or the answer cannot be saved.
        Conflict: the time for an answer is over (`question_expired`), or someone runs the session (`lease_held`).
    """
    encoding, content = exact.encode(value)
    with Held(engine, session.uid, label="an answer") as held:
        session = engine.backend.session(session.uid)
        loaded = engine.latest(session)
        state = None if loaded is None else loaded.value()
        questions = _questions(state)
        chosen = _chosen(session, questions, step)
        now_us = engine.clock()
        if chosen.expires_at is not None and chosen.expires_at <= from_us(now_us):
            raise refusal(chosen)
        answered = msgspec.structs.replace(
            chosen,
            is_approved=is_approved,
            answer=exact.decode(encoding, content),
            answered_at=from_us(now_us),
        )
        assert loaded is not None  # it has a question
        assert isinstance(state, Mapping)
        header = RunSaver(held, branch=session.branch).save(
            {
                **state,
                ASKED_FOR: [question_state(answered if each is chosen else each) for each in questions],
            },
            state_blobs=_blobs(state),
            step=loaded.header.step,
            status=Status.PAUSED,
            trigger=Trigger(TriggerKind.MANUAL, "answer"),
            message=error_text(f"{'Approved' if is_approved else 'Refused'}: {chosen.text}"),
            metadata=loaded.header.metadata,
        )
    return Answered(
        session=session.key,
        step=chosen.step_id,
        question=chosen.text,
        is_approved=is_approved,
        checkpoint=header.id,
    )


def _questions(state: object) -> tuple[Question, ...]:
    if not isinstance(state, Mapping) or not isinstance(state.get(ASKED_FOR), list):
        return ()
    try:
        return from_state({ASKED_FOR: state[ASKED_FOR]}).questions
    except InvalidInput:
        return ()  # the state of something else


def _open(questions: Sequence[Question]) -> list[Question]:
    return [question for question in questions if question.is_approved is None]


def _chosen(session: SessionInfo, questions: Sequence[Question], step: str | None) -> Question:
    of_step = [question for question in questions if step in (None, question.step_id)]
    found = _open(of_step) or [question for question in of_step if question.is_approved is False][-1:]
    if not found:
        of = "" if step is None else f" of step {step!r}"
        raise NotFound(
            f"session {session.key!r} waits for no answer{of}", code="nothing_to_approve", session=session.key
        )
    if len(found) > 1:
        listed = "; ".join(f"{question.step_id!r}: {question.text}" for question in found)
        raise InvalidInput(
            f"several steps of session {session.key!r} wait, name one of them: {listed}",
            code="ambiguous_question",
            session=session.key,
        )
    return found[0]


def _blobs(state: Any) -> frozenset[str]:
    """The blobs that the results of a plan name."""
    return frozenset(blob for result in from_state(state).results for blob in result.blobs)
