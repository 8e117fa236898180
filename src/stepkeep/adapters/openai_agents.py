"""Sessions and runs of OpenAI Agents: `StepkeepSession`. It needs `pip install stepkeep[openai-agents]`.

```python
session = StepkeepSession("chat-7", "sqlite:agents.db")
await Runner.run(agent, "Hello", session=session, hooks=session.run_hooks())
```

A conversation is a session whose state has all its items. A run that waits for approvals is in the same state as `run`,
and what tools gave before the runner saved its turn as `tools`: each checkpoint has all three as they belong together.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from itertools import dropwhile
from typing import Any, Final

from agents import Agent, ItemHelpers, RunHooks, RunState
from agents.memory import SessionSettings
from agents.memory.session_settings import coerce_session_settings, resolve_session_limit

from stepkeep import api
from stepkeep.adapters.session_head import Change, Head, HeadsOwner, detached, key_of, message_of, settled
from stepkeep.api import RetentionRules, SaveOptions, Status
from stepkeep.errors import Conflict, NotFound

FRAMEWORK: Final = "openai"
ITEMS: Final = "items"
RUN: Final = "run"
TOOLS: Final = "tools"


class StepkeepSession(HeadsOwner):
    """The memory of one conversation in a Stepkeep store.

    `store` is an open store, or the URL of one, which is then opened here and closed by `close`. `session_settings` has
    the limit of items that a run is given. Every checkpoint has the whole conversation; `retention` says how many stay.
    """

    def __init__(
        self,
        session_id: str,
        store: api.Store | str | os.PathLike[str],
        *,
        session_settings: SessionSettings | dict[str, Any] | None = None,
        retention: RetentionRules | None = None,
    ) -> None:
        super().__init__(store, retention=retention)
        self.session_id = session_id
        self.session_settings = coerce_session_settings(session_settings or {})
        self._retention = retention

    @property
    def key(self) -> str:
        """The key of the conversation's session in the store."""
        return key_of(FRAMEWORK, self.session_id)

    # --- what the runner calls

    async def get_items(self, limit: int | None = None) -> list[Any]:
        """The latest items, oldest first; all of them unless a limit is given here or in the settings.

        Raises:
            Corrupt: the conversation is damaged. Neither an older one nor a part of it is taken instead.
        """
        items = _items(await settled(self._heads.state, self.key))
        most = resolve_session_limit(limit, self.session_settings)
        return items if most is None or most < 0 else items[max(0, len(items) - most) :]

    async def add_items(self, items: list[Any]) -> None:
        """Save items durably, all or none."""
        if items:
            new = detached(list(items))
            await self._change(lambda state: _added(state, new), new)

    async def pop_item(self) -> Any | None:
        """Remove the newest item and return it, None when there is none."""
        popped: list[Any] = []

        def pop(state: Any) -> dict[str, Any] | None:
            items = _items(state)
            popped[:] = items[-1:]
            return {**_without(state, TOOLS), ITEMS: items[:-1]} if items else None

        await self._change(pop)
        return popped[0] if popped else None

    async def clear_session(self) -> None:
        """Empty the conversation. Its history stays in the store until it is pruned; `delete` removes that too."""
        await self._change(lambda state: None if state is None else {ITEMS: []})

    async def _get_compaction_snapshot(
        self, limit: int, *, prune_prefix: Callable[[Any], bool] = lambda _: False
    ) -> _Snapshot:
        """The latest items and what replaces an end of them, for the SDK's sessions that compact and encrypt."""
        items = _items(await settled(self._heads.state, self.key))
        latest = items[-limit:]

        async def replace_suffix(start: int, output: list[Any]) -> bool:
            expected, new, is_replaced = latest[start:], detached(list(output)), False

            def replace(state: Any) -> dict[str, Any] | None:
                nonlocal is_replaced
                now = _items(state)
                is_replaced = bool(expected) and now[-len(expected) :] == expected
                if not is_replaced:
                    return None
                kept = dropwhile(prune_prefix, now[: -len(expected)])
                return {**_without(state, TOOLS), ITEMS: [*kept, *new]}

            await self._change(replace)
            return is_replaced

        return _Snapshot(latest, len(latest) == len(items), replace_suffix)

    # --- runs

    async def save_run(self, run: Any, **options: Any) -> None:
        """Save a run that waits for approvals, with its conversation; one that is finished is forgotten.

        `run` is a result of the runner or a `RunState`, `options` are those of `RunState.to_json`.
        """
        state = run if isinstance(run, RunState) else run.to_state()
        document = detached(state.to_json(**options)) if state.get_interruptions() else None

        def put(before: Any) -> dict[str, Any] | None:
            rest = {ITEMS: [], **_without(before, RUN)}
            return rest if document is None else {**rest, RUN: document}

        await self._change(put, status=Status.IN_PROGRESS if document is None else Status.PAUSED)

    async def load_run(self, agent: Agent[Any], **options: Any) -> RunState[Any] | None:
        """The run that waits for approvals, None if there is none. `options` are those of `RunState.from_json`."""
        state = await settled(self._heads.state, self.key)
        document = None if state is None else state.get(RUN)
        return None if document is None else await RunState.from_json(agent, document, **options)

    def run_hooks(self) -> RunHooks[Any]:
        """Hooks that save the result of each tool at once. The runner saves a turn when all its tools are done.

        When the program is killed before that, the next run of the conversation knows what was done.
        """
        return _SavesTools(self)

    async def fork(self, session_id: str, ref: str = "latest") -> StepkeepSession:
        """A new conversation that begins as this one was at a checkpoint; this one stays as it is.

        Raises:
            NotFound: there is no such checkpoint.
            Conflict: a conversation has that id (`session_exists`).
        """
        forked = StepkeepSession(
            session_id, self.store, session_settings=self.session_settings, retention=self._retention
        )

        def begin() -> None:
            source = self.store.get(self.key).load(ref)

            def work(head: Head) -> Change:
                if head.id is not None:
                    raise Conflict(
                        f"there is a session {forked.key!r}", code="session_exists", session=forked.key
                    )
                options = SaveOptions(message=f"forked from {self.key}", metadata={"forked_from": source.id})
                return Change(source.state, options)

            forked._heads.change(forked.key, work)

        await settled(begin)
        return forked

    async def delete(self) -> None:
        """Remove the conversation with all its bytes."""
        if not await settled(self._heads.remove, self.key):
            raise NotFound(f"no session {self.key!r}", code="session_not_found", session=self.key)

    # --- saving

    async def _change(
        self,
        made: Callable[[Any], dict[str, Any] | None],
        new: list[Any] | None = None,
        status: Status | None = None,
    ) -> None:
        """Save what a function makes of the state; nothing where it returns None."""
        said = [text for text in map(_said, new or ()) if text]

        def work(head: Head) -> Change | None:
            state = made(head.state)
            if state is None:
                return None
            kept = Status.PAUSED if RUN in state else Status.IN_PROGRESS
            message = message_of(said[-1]) if said else ""
            return Change(state, SaveOptions(message=message, status=status or kept))

        await settled(self._heads.change, self.key, work)

    async def _save_tool(self, call: Any, output: Any) -> None:
        pair = detached({"call": call, "output": output})

        def put(state: Any) -> dict[str, Any]:
            before = {ITEMS: []} if state is None else state
            return {**before, TOOLS: [*before.get(TOOLS, ()), pair]}

        await self._change(put)


@dataclass(frozen=True)
class _Snapshot:
    """What the SDK's compaction asks of a store."""

    items: list[Any]
    complete: bool
    replace_suffix: Callable[[int, list[Any]], Awaitable[bool]]


class _SavesTools(RunHooks[Any]):  # type: ignore[misc]
    def __init__(self, session: StepkeepSession) -> None:
        self._session = session

    async def on_tool_end(self, context: Any, agent: Any, tool: Any, result: Any) -> None:  # noqa: ARG002
        call: Any = getattr(context, "tool_call", None)
        if getattr(call, "type", None) == "function_call":
            output = ItemHelpers.tool_call_output_item(call, result)
            await self._session._save_tool(call.model_dump(exclude_unset=True), output)


def _items(state: Any) -> list[Any]:
    """The items of a conversation, with what its tools gave in a turn that was never saved."""
    if state is None:
        return []
    return _with_tools(state, state[ITEMS], saved=set())


def _added(state: Any, new: list[Any]) -> dict[str, Any]:
    """The state with new items. What they have of tools is not kept apart any more; what they lack stays."""
    if state is None:
        return {ITEMS: new}
    saved = {item.get("call_id") for item in new if item.get("type") == "function_call_output"}
    calls = {item.get("call_id") for item in new if item.get("type") == "function_call"}
    waiting = [pair for pair in state.get(TOOLS, ()) if pair["call"]["call_id"] in calls - saved]
    items = [*_with_tools(state, state[ITEMS], saved=saved | calls), *new]
    rest = {**_without(state, TOOLS), ITEMS: items}
    return {**rest, TOOLS: waiting} if waiting else rest


def _with_tools(state: Any, items: list[Any], *, saved: set[Any]) -> list[Any]:
    """Items, then each call of a tool with its output that nobody saved yet."""
    pairs = [pair for pair in state.get(TOOLS, ()) if pair["call"]["call_id"] not in saved]
    if not pairs:
        return items
    known = {(item.get("type"), item.get("call_id")) for item in items}
    more = (item for pair in pairs for item in (pair["call"], pair["output"]))
    return [*items, *(item for item in more if (item.get("type"), item.get("call_id")) not in known)]


def _without(state: Any, name: str) -> dict[str, Any]:
    return {key: value for key, value in (state or {}).items() if key != name}


def _said(item: Any) -> str:
    """The text of an item that the user said; empty for all others."""
    if not isinstance(item, dict) or item.get("role") != "user":
        return ""
    content = item.get("content")
    if isinstance(content, str):
        return content
    return " ".join(str(part.get("text", "")) for part in content or () if isinstance(part, dict))
