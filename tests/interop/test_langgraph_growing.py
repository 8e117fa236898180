"""Long threads: a put encodes what is new, and stores what the values are now, whatever happened to them between."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, ToolMessage

from stepkeep.adapters.langgraph import StepkeepSaver
from stepkeep.errors import InvalidInput
from tests.interop.threads import checkpoint, config, id_of, put, values_of


def spoken(count: int) -> list[BaseMessage]:
    """A conversation of more than the size from which values are remembered."""
    return [
        AIMessage(
            "word " * 300,
            id=f"a{number}",
            tool_calls=[{"name": "look", "args": {"at": [number]}, "id": f"c{number}"}],
        )
        if number % 2
        else HumanMessage("word " * 300, id=f"h{number}")
        for number in range(count)
    ]


def test_a_thread_that_grows_comes_back_at_every_checkpoint(saver: StepkeepSaver) -> None:
    """Lists that grow, values that change and values that stay, put one by one and read from another saver."""
    said: list[BaseMessage] = spoken(24)
    at, put_at = None, {}
    for step in range(20):
        said = [*said, ToolMessage(f"result {step}", tool_call_id=f"c{step}", id=f"t{step}")]
        values = {"step": step, "messages": said, "plan": {"left": [step]}, "agent": "x"}
        at = put(saver, values, at)
        put_at[id_of(at)] = values
    with StepkeepSaver(saver.store) as other:
        for id, values in put_at.items():
            assert values_of(other, config(checkpoint=id)) == values
            assert list(values_of(other, config(checkpoint=id))) == list(values)


@pytest.mark.parametrize(
    "change",
    [
        lambda said: setattr(said[0], "content", "other"),
        lambda said: said[1].tool_calls[0]["args"]["at"].append(1.5),
        lambda said: said[1].tool_calls[0]["args"].update(at=[True]),
        lambda said: said[2].additional_kwargs.update(seen=True),
        lambda said: said[3].response_metadata.update({"a": {"b": []}}),
        lambda said: setattr(said[0], "unknown", "kept too"),
        lambda said: said.pop(0),
        lambda said: said.__setitem__(0, HumanMessage("another", id="h0")),
        lambda said: said.reverse(),
    ],
)
def test_a_message_that_was_changed_in_place_is_stored_as_it_is_now(
    tmp_path: Path, change: Callable[[Any], object]
) -> None:
    """The checkpoint before has the old values, the one after the new ones."""
    with StepkeepSaver(f"sqlite:{tmp_path}/threads.db") as saver:
        said = spoken(30)
        first = put(saver, {"messages": said})
        before = repr(said)  # tells True from 1
        change(said)
        put(saver, {"messages": said}, first)
        assert repr(values_of(saver)["messages"]) == repr(said) != before
        assert repr(values_of(saver, first)["messages"]) == before


def test_the_same_checkpoint_again_from_a_saver_that_remembers_nothing_changes_nothing(
    saver: StepkeepSaver,
) -> None:
    """What is stored depends on the values alone: a repeat is recognized."""
    said = spoken(30)
    at = put(saver, {"step": 1, "messages": said[:20]})
    again = checkpoint({"step": 2, "messages": said})
    metadata: Any = {"source": "loop", "step": 2, "parents": {}}
    saver.put(at, again, metadata, {})
    with StepkeepSaver(saver.store) as other:
        other.put(at, again, metadata, {})
    assert len(list(saver.list(config()))) == 2


def test_forks_with_equal_versions_keep_their_own_values(saver: StepkeepSaver) -> None:
    """Two children of one checkpoint whose channels have the same version numbers differ by their values."""
    said = spoken(30)
    root = put(saver, {"messages": said})
    left = put(saver, {"messages": [*said, HumanMessage("left", id="x")]}, root)
    right = put(saver, {"messages": [*said, HumanMessage("right", id="x")]}, root)
    assert values_of(saver, left)["messages"][-1].content == "left"
    assert values_of(saver, right)["messages"][-1].content == "right"


def test_a_refused_value_names_its_place_in_a_long_list(saver: StepkeepSaver) -> None:
    """Also when only the end of the list was looked at; the next put goes on."""
    said: list[Any] = [{"text": "word " * 300} for _ in range(30)]
    at = put(saver, {"messages": said})
    with pytest.raises(InvalidInput) as refused:
        put(saver, {"messages": [*said, {"when": object()}]}, at)
    assert refused.value.path == "messages[30].when"
    put(saver, {"messages": [*said, {"when": "now"}]}, at)
    assert values_of(saver)["messages"][-1] == {"when": "now"}


def test_a_deleted_thread_is_not_remembered(saver: StepkeepSaver) -> None:
    """Nothing of its values stays in memory, and the thread begins anew."""
    put(saver, {"messages": spoken(30)})
    remembered = saver.store.engine.encoder._remembered
    assert remembered or not saver.store.engine.backend.capabilities.takes_deltas
    saver.delete_thread("t")
    assert not remembered
    put(saver, {"messages": spoken(2)})
    assert values_of(saver)["messages"] == spoken(2)
