"""What a step asks a person: a question that is put, its answer, a refusal, and the time that is over. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from stepkeep.errors import Conflict, InvalidInput
from stepkeep.model import check_text, from_us
from stepkeep.runs.plan import Question, is_number


class Waiting(BaseException):
    """A step waits for a person. No `Exception`, so that a handler that catches those does not stop it."""

    def __init__(self, text: str, timeout: float | None = None) -> None:
        super().__init__(text)
        self.text = text
        self.timeout = timeout


def answer_to(questions: Iterable[Question], text: str, timeout: float | None) -> Any:
    """What was answered to the question with these words among those of a step.

    Raises:
        InvalidInput: text or timeout make no question.
        Waiting: it is not answered yet.
        Conflict: (`refused`, `question_expired`) it will not be.
    """
    check_text("a question", text)
    if timeout is not None and not (is_number(timeout) and timeout > 0):
        raise InvalidInput("timeout is a number of seconds above 0", code="invalid_option")
    known = next((each for each in questions if each.text == text), None)
    if known is None or known.is_approved is None:
        raise Waiting(text, timeout)
    if not known.is_approved:
        raise refusal(known)
    return known.answer


def new_question(step: str, text: str, timeout: float | None = None, *, now_us: int) -> Question:
    expires_us = None if timeout is None else now_us + round(timeout * 1_000_000)
    return Question(
        step_id=step,
        text=text,
        asked_at=from_us(now_us),
        expires_at=None if expires_us is None else from_us(expires_us),
    )


def as_of(questions: Iterable[Question], now_us: int) -> tuple[Question, ...]:
    """The questions as they stand now: one that nobody answered in time is refused."""
    return tuple(
        msgspec.structs.replace(each, is_approved=False) if _is_over(each, now_us) else each
        for each in questions
    )


def _is_over(question: Question, now_us: int) -> bool:
    expires = question.expires_at
    return question.is_approved is None and expires is not None and expires <= from_us(now_us)


def refusal(question: Question) -> Conflict:
    """The error of a step whose question was not approved."""
    if question.answered_at is None:
        return Conflict(f"nobody answered in time: {question.text}", code="question_expired", retryable=False)
    reason = f" ({question.answer})" if question.answer is not None else ""
    return Conflict(f"refused{reason}: {question.text}", code="refused", retryable=False)
