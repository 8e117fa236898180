"""Questions that steps put to a person, and their answers.

A question is part of what the run that waits for it saves, and so is its answer: both are in checkpoints like any
other, and survive what those survive. Plans and workflows have them in their state, scripts in their record. An answer
is saved while nobody runs the session; resuming goes on with it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from stepkeep.codec import exact
from stepkeep.config.store_names import store_option
from stepkeep.engine import Engine, Loaded
from stepkeep.errors import InvalidInput, NotFound
from stepkeep.model import DETAILS, Header, SessionInfo, Status, Trigger, TriggerKind, from_us
from stepkeep.runs.kinds import RUNNER, how_to_go_on
from stepkeep.runs.lease import Held, RunSaver
from stepkeep.runs.plan import ASKED_FOR, SCRIPT, Question, question_state, questions_in
from stepkeep.runs.questions import refusal
from stepkeep.runs.queue import entry_of, leave_to_person
from stepkeep.text import error_text


class Answered(msgspec.Struct, frozen=True, kw_only=True):
    """An answer that was saved. `next` is what goes on with it."""

    session: str
    step: str
    question: str
    is_approved: bool
    checkpoint: str
    next: str


def open_questions(engine: Engine, session: SessionInfo) -> tuple[Question, ...]:
    """What the steps of a session wait for a person to decide."""
    loaded = engine.latest(session)
    return () if loaded is None else tuple(_open(_Saved(loaded).questions))


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
        if loaded is None:
            raise _nothing(session, step)
        saved = _Saved(loaded)
        chosen = _chosen(session, saved.questions, step)
        now_us = engine.clock()
        if chosen.expires_at is not None and chosen.expires_at <= from_us(now_us):
            raise refusal(chosen)
        answered = msgspec.structs.replace(
            chosen,
            is_approved=is_approved,
            answer=exact.decode(encoding, content),
            answered_at=from_us(now_us),
        )
        header = RunSaver(held, branch=session.branch).save(
            **saved.with_questions([answered if each is chosen else each for each in saved.questions]),
            step=loaded.header.step,
            status=Status.PAUSED,
            trigger=Trigger(TriggerKind.MANUAL, "answer"),
            message=error_text(f"{'Approved' if is_approved else 'Refused'}: {chosen.text}"),
            metadata=loaded.header.metadata,
        )
        leave_to_person(engine, session.uid, (), fence=held.token)
    return Answered(
        session=session.key,
        step=chosen.step_id,
        question=chosen.text,
        is_approved=is_approved,
        checkpoint=header.id,
        next=_next(session, header, store_option(engine.backend.url)),
    )


def _next(session: SessionInfo, answer: Header, store: str) -> str:
    entry = entry_of(session)
    if entry is not None:
        return f"a worker of queue {entry.queue!r} goes on"
    return how_to_go_on(session.key, answer.metadata.get(RUNNER), store)


class _Saved:
    """What a run saved last, and the questions in it."""

    def __init__(self, loaded: Loaded) -> None:
        self._state: Any = loaded.value()
        self._details: Any = loaded.value(DETAILS) if DETAILS in loaded.contents else None
        self.questions = questions_in(self._holder)

    @property
    def _is_script(self) -> bool:
        return isinstance(self._details, Mapping) and isinstance(self._details.get(SCRIPT), Mapping)

    @property
    def _holder(self) -> Any:
        return self._details[SCRIPT] if self._is_script else self._state

    def with_questions(self, questions: Sequence[Question]) -> dict[str, Any]:
        """State, details and blobs of a save that differs in nothing but the questions."""
        changed = {**self._holder, ASKED_FOR: [question_state(question) for question in questions]}
        if self._is_script:
            return {"state": self._state, "details": {**self._details, SCRIPT: changed}}
        return {"state": changed, "details": self._details, "state_blobs": _blobs(self._state)}


def _open(questions: Sequence[Question]) -> list[Question]:
    return [question for question in questions if question.is_approved is None]


def _chosen(session: SessionInfo, questions: Sequence[Question], step: str | None) -> Question:
    of_step = [question for question in questions if step in (None, question.step_id)]
    found = _open(of_step) or [question for question in of_step if question.is_approved is False][-1:]
    if not found:
        raise _nothing(session, step)
    if len(found) > 1:
        listed = "; ".join(f"{question.step_id!r}: {question.text}" for question in found)
        raise InvalidInput(
            f"several steps of session {session.key!r} wait, name one of them: {listed}",
            code="ambiguous_question",
            session=session.key,
        )
    return found[0]


def _nothing(session: SessionInfo, step: str | None) -> NotFound:
    of = "" if step is None else f" of step {step!r}"
    return NotFound(
        f"session {session.key!r} waits for no answer{of}", code="nothing_to_approve", session=session.key
    )


def _blobs(state: Mapping[str, Any]) -> frozenset[str]:
    """The blobs that the results of a plan, or the completed steps of a workflow, name."""
    results = state.get("results") or state.get("completed_steps") or ()
    return frozenset(blob for result in results for blob in result.get("blobs", ()))
