"""Which checkpoints a list has, the last put first, from headers alone; and the history of delta channels."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import accumulate, islice
from typing import Any, Final, TypeAlias

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import CheckpointTuple, DeltaChannelHistory, PendingWrite

from stepkeep.adapters.langgraph.channel_values import Values
from stepkeep.adapters.langgraph.records import (
    channels_of_header,
    check_is_ours,
    is_ours,
    metadata_of,
    namespace_of_header,
    note_of,
    tuple_of,
)
from stepkeep.adapters.langgraph.threads import (
    Location,
    Threads,
    checkpoint_of,
    is_namespace,
    location_of,
    thread_of_session,
)
from stepkeep.adapters.langgraph.writes import Write, pending_of
from stepkeep.api.extension import Engine, HeaderQuery, Loaded, verified
from stepkeep.errors import Corrupt, NotFound
from stepkeep.model import Header, SessionInfo

_PAGE: Final = 100
_MAX_AT_ONCE: Final = 20
_MAX_BYTES_AT_ONCE: Final = 64 * 1024 * 1024
"""How many checkpoints of a list are loaded together, and how much they may take."""

Found: TypeAlias = tuple[SessionInfo, Header]


class Listing:
    """The checkpoints of one thread, or of all. Nothing is locked between two steps of an iteration."""

    def __init__(self, threads: Threads, values: Values) -> None:
        self._threads = threads
        self._values = values
        self._backend = values.engine.backend

    def tuples(
        self,
        config: RunnableConfig | None,
        wanted: Mapping[str, Any] | None,
        before: RunnableConfig | None,
        limit: int | None,
    ) -> Iterator[CheckpointTuple]:
        found = self._candidates(config, before)
        if wanted:
            found = (each for each in found if self._fits(each[1], wanted))
        within = islice(found, None if limit is None else max(0, limit))
        while page := list(islice(within, _PAGE)):
            yield from self._page(page)

    # --- which

    def _fits(self, header: Header, wanted: Mapping[str, Any]) -> bool:
        metadata = metadata_of(self._values, header)
        return all(metadata.get(key) == value for key, value in wanted.items())

    def _candidates(self, config: RunnableConfig | None, before: RunnableConfig | None) -> Iterator[Found]:
        limit = None if before is None else checkpoint_of(before)
        if config is None:
            return self._rows(HeaderQuery(), {each.uid: each for each in self._threads.all()}, limit)
        session = self._threads.find(location_of(config).thread)
        if session is None:
            return iter(())
        return self._rows(self._query(session, config, limit), {session.uid: session}, limit)

    def _query(self, session: SessionInfo, config: RunnableConfig, limit: str | None) -> HeaderQuery:
        location = location_of(config)
        is_one_namespace = (config.get("configurable") or {}).get("checkpoint_ns") is not None
        branch = location.branch if is_one_namespace else None
        end = None
        if limit is not None:
            query = HeaderQuery(session=session.uid, branch=branch, external_id=limit, limit=1)
            end = next(self._backend.headers(query), None)
        return HeaderQuery(
            session=session.uid,
            branch=branch,
            external_id=location.checkpoint,
            max_seq=None if end is None else end.seq - 1,
        )

    def _rows(
        self, query: HeaderQuery, threads: Mapping[str, SessionInfo], limit: str | None
    ) -> Iterator[Found]:
        for row in self._backend.headers(query):
            if row.session not in threads:
                continue
            header = verified(row)
            if not is_namespace(header.branch) or (query.session is None and not is_ours(header)):
                continue  # somebody else's, who may not hide all other threads
            check_is_ours(header)
            # A limit that is not stored still has its place among ids, which begin with their time.
            if limit is None or query.max_seq is not None or str(header.external_id) < limit:
                yield threads[row.session], header

    # --- their tuples

    def _page(self, page: Sequence[Found]) -> Iterator[CheckpointTuple]:
        by_session: dict[str, list[Header]] = {}
        for _, header in page:
            by_session.setdefault(header.session, []).append(header)
        pending: dict[str, list[Write]] = {}
        for headers in by_session.values():
            with suppress(NotFound):  # the thread was deleted meanwhile
                pending |= pending_of(self._values, headers)
        loading = {uid: _Loading(self._values.engine, headers) for uid, headers in by_session.items()}
        for session, header in page:
            if header.id not in pending:
                continue
            location = Location(thread=thread_of_session(session), namespace=namespace_of_header(header))
            load = loading[header.session].load
            found = tuple_of(self._values, location, header, pending[header.id], load)
            # Where rules may prune the thread at any moment, its values are read at once.
            with suppress(NotFound):
                yield CheckpointTuple(*found) if session.policy else found


class _Loading:
    """Loads the checkpoints of one thread as they are looked at: a few neighbours at a time, for they share much."""

    def __init__(self, engine: Engine, headers: Sequence[Header]) -> None:
        self._engine = engine
        self._headers = headers
        self._loaded: dict[str, Loaded] = {}

    def load(self, header: Header) -> Loaded:
        if header.id not in self._loaded:
            self._loaded = self._engine.load_many(self._neighbours(header))
        return self._loaded.pop(header.id, None) or self._engine.load(header)

    def _neighbours(self, header: Header) -> Sequence[Header]:
        """A checkpoint and those listed behind it, as long as they are few and small."""
        start = self._headers.index(header)
        sizes = accumulate(each.size_bytes for each in self._headers[start : start + _MAX_AT_ONCE])
        count = sum(size <= _MAX_BYTES_AT_ONCE for size in sizes)
        return self._headers[start : start + max(1, count)]


# --- delta channels: rebuilt from the writes of ancestors, back to the nearest stored value ------------------------


def history(
    threads: Threads, values: Values, location: Location, header: Header, channels: Sequence[str]
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
        ancestor = threads.header(header.session, location.branch, parent)
        if ancestor is None:
            lost = ", ".join(sorted(collected.keys() - seeds.keys()))
            raise Corrupt(
                f"checkpoint {parent} of thread {location.thread[:200]!r} is gone, and {lost} cannot be rebuilt "
                "without it: go on from an older checkpoint, or set the channel anew",
                code="delta_history_missing",
                session=location.key,
            )
        pending = pending_of(values, [ancestor])[ancestor.id]
        stored = channels_of_header(values, ancestor)
        open_channels = collected.keys() - seeds.keys()
        for write in reversed(pending):
            if write.channel in open_channels:
                collected[write.channel].append(write.pending)
        seeds |= {channel: stored[channel] for channel in open_channels if channel in stored}
        parent = note_of(ancestor).parent
    found: dict[str, DeltaChannelHistory] = {name: {"writes": collected[name][::-1]} for name in channels}
    for channel, seed in seeds.items():
        found[channel]["seed"] = seed
    return found
