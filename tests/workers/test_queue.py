"""Places in a queue: pure decisions."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from stepkeep.errors import InvalidInput
from stepkeep.model import SessionInfo, Status
from stepkeep.runs.queue import (
    MAX_DEATHS,
    QueueEntry,
    check_queue,
    entry_of,
    mark_of,
    may_claim,
    next_attempt,
    with_entry,
    without_entry,
)
from stepkeep.testing.builders import new_session


def queued(queue: str = "default", **fields: Any) -> SessionInfo:
    session = new_session()
    return msgspec.structs.replace(session, metadata=with_entry(session, QueueEntry(queue=queue)), **fields)


def claims(session: SessionInfo, *, queue: str = "default", now_us: int = 10**15) -> bool:
    return may_claim(session, queue, now_us=now_us, retry_seconds=30)


@pytest.mark.parametrize("status", Status)
def test_what_is_not_over_may_be_claimed(status: Status) -> None:
    """One that is completed or cancelled may not."""
    is_over = status in (Status.COMPLETED, Status.CANCELLED)
    assert claims(queued(status=status)) is not is_over


def test_a_failed_session_rests_first() -> None:
    """So that a passing trouble has time to pass."""
    session = queued(status=Status.FAILED, finished_us=1_000_000)
    assert not claims(session, now_us=30_999_999)
    assert claims(session, now_us=31_000_000)


def test_queues_are_apart() -> None:
    """A worker takes from its queue only, and never what is in none."""
    assert not claims(queued("other"))
    assert not claims(new_session())
    assert not claims(msgspec.structs.replace(new_session(), metadata={"queue": "default"}))
    assert not claims(msgspec.structs.replace(new_session(), metadata={"queue": "default", "queued": 7}))


def test_a_place_is_kept_beside_other_metadata() -> None:
    """And is found again by the stored text."""
    session = msgspec.structs.replace(new_session(), metadata={"mine": 1})
    entry = QueueEntry(queue="q", parallel=2, attempts=1, steps=4)
    session = msgspec.structs.replace(session, metadata=with_entry(session, entry))
    assert entry_of(session) == entry
    assert mark_of("q").encode() in msgspec.json.encode(session.metadata)
    left = msgspec.structs.replace(session, metadata=without_entry(session, entry))
    assert entry_of(left) is None
    assert left.metadata == {"mine": 1, "given_up": msgspec.to_builtins(entry)}
    assert with_entry(left, entry).keys() == {"mine", "queue", "queued"}


def test_three_failures_at_the_same_place_are_enough() -> None:
    """A step more, and the next failure is the first one there."""
    entry = next_attempt(QueueEntry(queue="q"), Status.IN_PROGRESS, steps=0)
    assert entry == QueueEntry(queue="q", attempts=1)
    for failures in (1, 2):
        entry = next_attempt(entry, Status.FAILED, steps=2)
        assert (entry.failures, entry.is_enough(3)) == (failures, False)
    assert next_attempt(entry, Status.FAILED, steps=2).is_enough(3)
    assert next_attempt(entry, Status.FAILED, steps=3).failures == 1


def test_deaths_are_accidents_for_long_and_interruptions_for_ever() -> None:
    """A step that takes down every process that runs it is given up too, but much later."""
    entry = QueueEntry(queue="q")
    for deaths in range(MAX_DEATHS):
        entry = next_attempt(entry, Status.IN_PROGRESS, steps=0)
        assert (entry.deaths, entry.is_enough(3)) == (deaths, False)
    paused = next_attempt(entry, Status.PAUSED, steps=0)
    assert (paused.deaths, paused.attempts) == (entry.deaths, entry.attempts + 1)
    assert next_attempt(entry, Status.IN_PROGRESS, steps=0).is_enough(3)


@pytest.mark.parametrize("name", ["", " ", "a b", 'a"b', "a%", "-a", "ü", "a" * 65])
def test_a_bad_name(name: str) -> None:
    """Names of queues are plain words."""
    with pytest.raises(InvalidInput) as refusal:
        check_queue(name)
    assert refusal.value.code == "invalid_name"
