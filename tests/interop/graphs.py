"""Real graphs, and what is seen of a run: the same program must leave the same with every saver."""

from __future__ import annotations

import operator
from typing import Annotated, Any, TypedDict

from langchain_core.messages import AIMessage, AnyMessage, HumanMessage
from langgraph.channels.delta import DeltaChannel
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.graph import END, START, StateGraph, add_messages
from langgraph.graph.state import CompiledStateGraph
from langgraph.types import Command, Send, StateSnapshot, interrupt

Graph = CompiledStateGraph[Any, Any, Any, Any]


class State(TypedDict, total=False):
    messages: Annotated[list[AnyMessage], add_messages]
    log: Annotated[list[str], operator.add]
    pairs: Annotated[list[Any], operator.add]
    answer: str
    count: int


def _ask(state: State) -> dict[str, Any]:
    answer = interrupt({"question": "go on?", "count": state.get("count", 0)})
    return {"answer": answer, "log": [f"asked: {answer}"]}


def _fan_out(state: State) -> list[Send]:
    return [Send("work", {"count": number}) for number in range(3)]


def _work(state: State) -> dict[str, Any]:
    number = state.get("count", 0)
    return {"log": [f"work {number}"], "pairs": [[number, number * number]]}


def _join(state: State) -> dict[str, Any]:
    return {"messages": [AIMessage(f"joined {len(state['log'])}", id="joined")], "count": len(state["log"])}


def _inner() -> Graph:
    builder = StateGraph(State)
    builder.add_node("think", lambda state: {"log": ["think"]})
    builder.add_node("ask", _ask)
    builder.add_edge(START, "think")
    builder.add_edge("think", "ask")
    builder.add_edge("ask", END)
    return builder.compile()


def workflow(saver: BaseCheckpointSaver[Any]) -> Graph:
    """Parallel branches, a fan-out, and a subgraph that interrupts."""
    builder = StateGraph(State)
    builder.add_node("first", lambda state: {"messages": [HumanMessage("hi", id="hi")], "log": ["first"]})
    builder.add_node("left", lambda state: {"log": ["left"]})
    builder.add_node("right", lambda state: {"log": ["right"]})
    builder.add_node("work", _work)
    builder.add_node("join", _join)
    builder.add_node("inner", _inner())
    builder.add_edge(START, "first")
    builder.add_edge("first", "left")
    builder.add_edge("first", "right")
    builder.add_conditional_edges("left", _fan_out, ["work"])
    builder.add_edge("work", "join")
    builder.add_edge("join", "inner")
    builder.add_edge("inner", END)
    return builder.compile(checkpointer=saver)


def _extend(state: list[str], writes: Any) -> list[str]:
    return [*state, *(each for write in writes for each in write)]


class DeltaState(TypedDict, total=False):
    items: Annotated[list[str], DeltaChannel(_extend, snapshot_frequency=4)]
    turn: int


def deltas(saver: BaseCheckpointSaver[Any]) -> Graph:
    """A channel that is stored as its changes, with a snapshot now and then."""
    builder = StateGraph(DeltaState)
    builder.add_node(
        "a", lambda state: {"items": [f"a{state.get('turn', 0)}"], "turn": state.get("turn", 0) + 1}
    )
    builder.add_node("b", lambda state: {"items": [f"b{len(state['items'])}"]})
    builder.add_edge(START, "a")
    builder.add_edge("a", "b")
    builder.add_edge("b", END)
    return builder.compile(checkpointer=saver)


def counter(saver: BaseCheckpointSaver[Any], steps: int = 3) -> Graph:
    """A loop of so many steps each turn."""
    builder = StateGraph(State)
    builder.add_node("step", lambda state: {"count": state.get("count", 0) + 1, "log": ["step"]})
    builder.add_edge(START, "step")
    builder.add_conditional_edges(
        "step", lambda state: END if state["count"] % steps == 0 else "step", ["step", END]
    )
    return builder.compile(checkpointer=saver)


def carrier(saver: BaseCheckpointSaver[Any], carried: Any) -> Graph:
    """A node that is sent a value, and asks with it."""
    builder = StateGraph(State)
    builder.add_node("ask", lambda given: {"log": [f"{given!r}: {interrupt(given)}"]})
    builder.add_conditional_edges(START, lambda state: [Send("ask", carried)], ["ask"])
    builder.add_edge("ask", END)
    return builder.compile(checkpointer=saver)


def _fail(state: State) -> dict[str, Any]:
    raise ValueError("no luck")


def failing(saver: BaseCheckpointSaver[Any]) -> Graph:
    """A node that raises."""
    builder = StateGraph(State)
    builder.add_node("fail", _fail)
    builder.add_edge(START, "fail")
    return builder.compile(checkpointer=saver)


# --- what is seen


def seen(snapshot: StateSnapshot, names: dict[str, str]) -> dict[str, Any]:
    """A snapshot without what differs from run to run: ids become their number, times go."""
    return {
        "values": snapshot.values,
        "next": sorted(snapshot.next),
        "source": (snapshot.metadata or {}).get("source"),
        "step": (snapshot.metadata or {}).get("step"),
        "id": _number(names, snapshot.config),
        "parent": _number(names, snapshot.parent_config),
        "tasks": sorted(
            (task.name, repr([each.value for each in task.interrupts]), repr(task.error))
            for task in snapshot.tasks
        ),
    }


def _number(names: dict[str, str], config: Any) -> str | None:
    if config is None:
        return None
    id = config["configurable"].get("checkpoint_id")
    return names.setdefault(id, f"#{len(names)}")


__all__ = ["Command", "carrier", "counter", "deltas", "failing", "seen", "workflow"]
