"""Flows of CrewAI keep their states in a store."""

from __future__ import annotations

import multiprocessing
import uuid
from collections.abc import Iterator
from datetime import UTC, datetime
from decimal import Decimal
from enum import Enum
from typing import Any

import pytest
from crewai.flow import Flow, listen, start
from crewai.flow.async_feedback.types import HumanFeedbackPending, PendingFeedbackContext
from crewai.flow.human_feedback import human_feedback
from pydantic import BaseModel

import stepkeep
from stepkeep.adapters.crewai import StepkeepFlowPersistence
from stepkeep.errors import InvalidInput
from tests.interop.adapter_contract import AdapterContract


class TestContract(AdapterContract):
    NAME = "crewai"
    IS_AWAITED = False


@pytest.fixture
def persistence(url: str) -> Iterator[StepkeepFlowPersistence]:
    with StepkeepFlowPersistence(url) as persistence:
        yield persistence


class Colour(Enum):
    RED = "red"


class Item(BaseModel):
    name: str


def test_values_come_back_as_they_were(persistence: StepkeepFlowPersistence, url: str) -> None:
    """Dates, sets and numbers are themselves, also inside; of an object there are its fields."""
    plain = {
        "when": datetime(2026, 1, 2, tzinfo=UTC),
        "id": uuid.uuid4(),
        "tags": {"a", "b"},
        "price": Decimal("19.90"),
        "nested": {"pair": (1, b"2")},
    }
    persistence.save_state("f", "first", plain | {"colour": Colour.RED, "item": Item(name="x")})
    with StepkeepFlowPersistence(url) as again:
        assert again.load_state("f") == plain | {"colour": "red", "item": {"name": "x"}}
        assert again.load_state("other") is None


def test_what_cannot_be_stored_is_refused_and_leaves_nothing(persistence: StepkeepFlowPersistence) -> None:
    with pytest.raises(InvalidInput):
        persistence.save_state("f", "first", {"x": object()})
    with pytest.raises(InvalidInput):
        persistence.save_state("f", "first", 5)  # type: ignore[arg-type]
    assert list(persistence.store.sessions()) == []


class Later:
    """A person who answers another day."""

    def request_feedback(self, context: PendingFeedbackContext, flow: Any) -> str:
        raise HumanFeedbackPending(context=context)


class Review(Flow[dict[str, Any]]):  # type: ignore[misc]
    suppress_flow_events = True

    @start()
    @human_feedback(message="Is it good?", provider=Later())
    def write(self) -> str:
        self.state["text"] = "snow"
        return "snow"

    @listen(write)
    def publish(self, result: Any) -> str:
        return f"{self.state['text']}: {result.feedback}"


def test_a_flow_that_waits_for_a_person_goes_on_later(url: str) -> None:
    """The question is in the same checkpoint as the state; it stays until it is answered."""
    with StepkeepFlowPersistence(url) as persistence:
        waiting = Review(persistence=persistence).kickoff(inputs={"id": "f"})
        assert isinstance(waiting, HumanFeedbackPending)
        assert persistence.store.get("crewai:f").header("latest").status is stepkeep.Status.PAUSED
        persistence.save_state("f", "meanwhile", {"id": "f", "text": "other"})
    with StepkeepFlowPersistence(url) as persistence:
        loaded = persistence.load_pending_feedback("f")
        assert loaded is not None
        state, context = loaded
        assert (state["text"], context.message) == ("snow", "Is it good?")
        assert Review.from_pending("f", persistence).resume("yes") == "snow: yes"
        assert persistence.load_pending_feedback("f") is None
        assert persistence.store.get("crewai:f").header("latest").status is stepkeep.Status.IN_PROGRESS
        persistence.clear_pending_feedback("f")


def test_a_flow_that_is_described_finds_its_store(persistence: StepkeepFlowPersistence) -> None:
    """CrewAI writes down what a flow is made of, and makes it again from that."""
    persistence.save_state("f", "first", {"x": 1})
    if not persistence.url.startswith("sqlite:"):
        return  # a URL that is shown has no password
    with StepkeepFlowPersistence.model_validate(persistence.model_dump()) as again:
        assert again.load_state("f") == {"x": 1}


def _save(url: str, name: str) -> None:
    with StepkeepFlowPersistence(url) as persistence:
        for number in range(10):
            persistence.save_state("f", name, {name: number})


def test_processes_that_save_lose_nothing(url: str) -> None:
    """Every state that a process saved is in the history, in its order."""
    names = ["a", "b", "c"]
    context = multiprocessing.get_context("spawn")
    writers = [context.Process(target=_save, args=(url, name)) for name in names]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert [writer.exitcode for writer in writers] == [0, 0, 0]
    with stepkeep.open(url) as store:
        session = store.get("crewai:f")
        states = [session.load(header.id).state for header in session.history()][::-1]
        for name in names:
            assert [state[name] for state in states if name in state] == list(range(10))
