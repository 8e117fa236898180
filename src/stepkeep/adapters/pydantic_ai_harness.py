"""Steps of Pydantic AI's harness: `StepkeepStepStore`. It needs `pip install stepkeep[pydantic-ai-harness]`.

```python
store = StepkeepStepStore("sqlite:agents.db", workspace=".")
agent = Agent(model, capabilities=[StepPersistence(store=store)])
```

A run is a session. Its state has the messages of the newest snapshot, the events and what became of each tool, and its
details have the record of the run; each of these that the harness hands over is a checkpoint.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, Final

from pydantic import TypeAdapter
from pydantic_ai_harness.step_persistence import ContinuableSnapshot, RunRecord, StepEvent, ToolEffectRecord

from stepkeep import api
from stepkeep.adapters.session_head import Change, Head, HeadsOwner, detached, key_of, settled
from stepkeep.api import RetentionRules, SaveOptions

FRAMEWORK: Final = "pydantic-ai-run"
COMPLETE: Final = "snapshot"
INTERRUPTED: Final = "interrupted"
EVENTS: Final = "events"
EFFECTS: Final = "tools"
SAVED: Final = "saved"
"""The keys of snapshots, so that one that is handed over again is not saved again."""

_snapshot: Final = TypeAdapter(ContinuableSnapshot)
_event: Final = TypeAdapter(StepEvent)
_effect: Final = TypeAdapter(ToolEffectRecord)
_record: Final = TypeAdapter(RunRecord)


class StepkeepStepStore(HeadsOwner):
    """The runs of agents in a Stepkeep store, for any number of processes.

    `store` is an open store, or the URL of one, which is then opened here and closed by `close`. With `workspace`, a
    directory, every snapshot captures the files there, so that what was said and what was done are one checkpoint.
    `retention` says how many checkpoints of a run stay; the newest has everything.
    """

    def __init__(
        self,
        store: api.Store | str | os.PathLike[str],
        *,
        workspace: str | os.PathLike[str] | None = None,
        retention: RetentionRules | None = None,
    ) -> None:
        super().__init__(store, retention=retention)
        self._workspace = None if workspace is None else os.fspath(workspace)

    # --- runs

    async def register_run(self, record: RunRecord) -> None:
        """Store the record of a run; it replaces an earlier one."""
        details = _dumped(_record, record)
        await self._change(record.run_id, lambda state: state, SaveOptions(message="registered"), details)

    async def get_run(self, *, run_id: str) -> RunRecord | None:
        """The record of a run, None if there is none; its messages are not read."""
        details = await settled(self._heads.details, _key(run_id))
        return None if details is None else _record.validate_python(details)

    async def list_runs(
        self, *, parent_run_id: str | None = None, conversation_id: str | None = None
    ) -> list[RunRecord]:
        """The records of runs, the one that began first at the beginning."""
        wanted = {"parent_run_id": parent_run_id, "conversation_id": conversation_id}
        found = [
            _record.validate_python(details)
            for details in await settled(self._details)
            if all(value is None or details[name] == value for name, value in wanted.items())
        ]
        return sorted(found, key=lambda record: record.started_at)

    def _details(self) -> list[Any]:
        details = [self._heads.details(info.key) for info in self._heads.sessions(f"{FRAMEWORK}:")]
        return [each for each in details if each is not None]

    # --- events

    async def append_event(self, event: StepEvent) -> None:
        """Save an event durably. One whose key is there already is not stored again."""
        new = _dumped(_event, event)

        def append(state: dict[str, Any]) -> dict[str, Any] | None:
            keys = (each["idempotency_key"] for each in state[EVENTS])
            is_known = event.idempotency_key is not None and event.idempotency_key in keys
            return None if is_known else state | {EVENTS: [*state[EVENTS], new]}

        await self._change(event.run_id, append, SaveOptions(step=event.step_index, message=event.kind))

    async def list_events(self, *, run_id: str) -> list[StepEvent]:
        """The events of a run in the order in which they were stored."""
        return [_event.validate_python(event) for event in (await self._state(run_id))[EVENTS]]

    # --- snapshots

    async def save_snapshot(self, snapshot: ContinuableSnapshot) -> None:
        """Save a snapshot durably, with the files of the workspace. One whose key is there already is left out."""
        new, key = _dumped(_snapshot, snapshot), snapshot.idempotency_key
        name = COMPLETE if snapshot.state == "complete" else INTERRUPTED

        def save(state: dict[str, Any]) -> dict[str, Any] | None:
            if key is not None and key in state[SAVED]:
                return None
            saved = [*state[SAVED], *([] if key is None else [key])]
            return state | {INTERRUPTED: None, name: new, SAVED: saved}

        options = SaveOptions(step=snapshot.step_index, message="snapshot", workspace=self._workspace)
        await self._change(snapshot.run_id, save, options)

    async def latest_snapshot(
        self, *, run_id: str, include_interrupted: bool = False
    ) -> ContinuableSnapshot | None:
        """The newest snapshot whose tools are settled, or the newest of all; None if there is none.

        Raises:
            Corrupt: the run is damaged. No older snapshot is taken instead.
        """
        state = await self._state(run_id)
        found = (state[INTERRUPTED] if include_interrupted else None) or state[COMPLETE]
        return None if found is None else _snapshot.validate_python(found)

    # --- what became of tools

    async def record_tool_effect(self, record: ToolEffectRecord) -> None:
        """Store what is known of a call of a tool; it replaces what was known before."""
        new = {record.tool_call_id: _dumped(_effect, record)}
        options = SaveOptions(message=f"{record.tool_name} {record.status}")
        await self._change(record.run_id, lambda state: state | {EFFECTS: state[EFFECTS] | new}, options)

    async def get_tool_effect(self, *, run_id: str, tool_call_id: str) -> ToolEffectRecord | None:
        """What is known of a call, None if nothing is."""
        found = (await self._state(run_id))[EFFECTS].get(tool_call_id)
        return None if found is None else _effect.validate_python(found)

    async def list_unresolved_tool_effects(self, *, run_id: str) -> list[ToolEffectRecord]:
        """The calls that began and of which no end is known: what they did may have happened or not."""
        effects = (await self._state(run_id))[EFFECTS].values()
        return [_effect.validate_python(each) for each in effects if each["status"] == "started"]

    # --- reading and saving

    async def _state(self, run_id: str) -> dict[str, Any]:
        return _filled(await settled(self._heads.state, _key(run_id)))

    async def _change(
        self,
        run_id: str,
        made: Callable[[dict[str, Any]], dict[str, Any] | None],
        options: SaveOptions,
        record: Any = None,
    ) -> None:
        """Save what a function makes of the state of a run; nothing where it returns None."""

        def work(head: Head) -> Change | None:
            state = made(_filled(head.state))
            if state is None:
                return None
            return Change(state, options | SaveOptions(details=head.details if record is None else record))

        await settled(self._heads.change, _key(run_id), work)


def _key(run_id: str) -> str:
    return key_of(FRAMEWORK, run_id)


def _filled(state: dict[str, Any] | None) -> dict[str, Any]:
    """The state of a run; that of one which nobody saved yet is empty."""
    return state or {COMPLETE: None, EVENTS: [], EFFECTS: {}, INTERRUPTED: None, SAVED: []}


def _dumped(adapter: TypeAdapter[Any], value: Any) -> Any:
    """A record as it is stored, of which the caller has nothing to change any more."""
    return detached(adapter.dump_python(value, mode="json"))
