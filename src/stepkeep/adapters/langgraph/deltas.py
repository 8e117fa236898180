"""Delta channels: their values are rebuilt from the writes of ancestors, back to the nearest stored value."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from langgraph.checkpoint.base import DeltaChannelHistory, PendingWrite

from stepkeep.adapters.langgraph import writes
from stepkeep.adapters.langgraph.naming import Place
from stepkeep.adapters.langgraph.records import channels_of_header, note_of
from stepkeep.adapters.langgraph.threads import Threads
from stepkeep.adapters.langgraph.values import Values
from stepkeep.engine import Engine
from stepkeep.errors import Corrupt
from stepkeep.model import Header


def history(
    engine: Engine, threads: Threads, values: Values, place: Place, header: Header, channels: Sequence[str]
) -> Mapping[str, DeltaChannelHistory]:
    """For each channel the writes of the ancestors, oldest first, and the value they start from.

    Raises:
        Corrupt: an ancestor that is still needed is missing (`delta_history_missing`): its writes are lost, and an
            empty value would hide that.
    """
    collected: dict[str, list[PendingWrite]] = {channel: [] for channel in channels}
    seeds: dict[str, Any] = {}
    parent = note_of(header).parent
    while parent is not None and len(seeds) < len(collected):
        ancestor = threads.header(header.session, place.branch, parent)
        if ancestor is None:
            raise _missing(place, parent, sorted(collected.keys() - seeds.keys()))
        pending = writes.pending_of(engine, values, [ancestor])[ancestor.id]
        stored = channels_of_header(engine, values, ancestor)
        open_channels = collected.keys() - seeds.keys()
        for write in reversed(pending):
            if write.channel in open_channels:
                collected[write.channel].append(write.pending)
        seeds |= {channel: stored[channel] for channel in open_channels if channel in stored}
        parent = note_of(ancestor).parent
    return {channel: _entry(collected[channel], seeds, channel) for channel in channels}


def _entry(found: list[PendingWrite], seeds: Mapping[str, Any], channel: str) -> DeltaChannelHistory:
    entry: DeltaChannelHistory = {"writes": found[::-1]}
    if channel in seeds:
        entry["seed"] = seeds[channel]
    return entry


def _missing(place: Place, parent: str, channels: Sequence[str]) -> Corrupt:
    return Corrupt(
        f"checkpoint {parent} of thread {place.thread[:200]!r} is gone, and {', '.join(channels)} cannot be rebuilt "
        "without it: go on from an older checkpoint, or set the channel anew",
        code="delta_history_missing",
        session=place.key,
    )
