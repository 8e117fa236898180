"""The checkpointer for LangGraph."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import AsyncIterator, Callable, Collection, Coroutine, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from functools import wraps
from itertools import islice
from typing import Any, Concatenate, Final, ParamSpec, TypeVar

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import (
    BaseCheckpointSaver,
    ChannelVersions,
    Checkpoint,
    CheckpointMetadata,
    CheckpointTuple,
    DeltaChannelHistory,
)
from langgraph.checkpoint.serde.base import SerializerProtocol
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer

from stepkeep import api
from stepkeep.adapters.langgraph import listing, thread_retention
from stepkeep.adapters.langgraph import writes as pending_writes
from stepkeep.adapters.langgraph.channel_values import Values
from stepkeep.adapters.langgraph.records import (
    copy_all,
    is_ours,
    loaded_tuple,
    save_of,
    store_once,
    stored_metadata,
)
from stepkeep.adapters.langgraph.threads import Location, Threads, location_of, run_tag
from stepkeep.api import PruneReport
from stepkeep.api.extension import HeaderQuery
from stepkeep.errors import InvalidInput, NotFound, StepkeepError
from stepkeep.model import Header, check_name

log = logging.getLogger("stepkeep")

PAGE: Final = 50
"""How many checkpoints of a list that is awaited are fetched at a time."""

_ATTEMPTS: Final = 3
_SESSION_GONE: Final = "session_not_found"

P = ParamSpec("P")
R = TypeVar("R")


def _awaited(
    method: Callable[Concatenate[Any, P], R],
) -> Callable[Concatenate[Any, P], Coroutine[Any, Any, R]]:
    """The same method run on a thread, so that the event loop is never blocked."""

    @wraps(method)
    async def call(self: Any, /, *args: P.args, **kwargs: P.kwargs) -> R:
        bound: Callable[P, R] = getattr(self, method.__name__)  # a subclass may have its own
        return await asyncio.to_thread(bound, *args, **kwargs)

    return call


class StepkeepSaver(BaseCheckpointSaver[str]):
    """LangGraph's threads in a Stepkeep store, for graphs that are invoked and graphs that are awaited.

    `store` is an open store, or the URL of one, which is then opened here and closed by `close`. A thread keeps all
    its checkpoints unless `keep_last`, `max_age` (a `timedelta`, or text such as `30d`) or `max_bytes` say otherwise;
    they become the rules of every thread this saver puts into, and the store's keeper applies them.

    Values come back equal, or are refused when they are put. Which classes are made when stored bytes name them is
    LangGraph's own setting: all, or with `LANGGRAPH_STRICT_MSGPACK=true` its safe ones and those of the graph's state.
    With `allow` (classes, or pairs of module and name; none are enough) it is the safe ones and these. `serde` replaces
    the serializer: then every value goes through it.

    Safe for threads, forks and several processes.
    """

    def __init__(
        self,
        store: api.Store | str | os.PathLike[str],
        *,
        keep_last: int | None = None,
        max_age: timedelta | str | None = None,
        max_bytes: int | str | None = None,
        allow: Collection[type | tuple[str, str]] | None = None,
        serde: SerializerProtocol | None = None,
    ) -> None:
        rules = thread_retention.rules_of(keep_last=keep_last, max_age=max_age, max_bytes=max_bytes)
        if serde is not None and allow is not None:
            raise InvalidInput(
                "a serializer has its own list of classes: pass allow or serde", code="invalid_option"
            )
        if allow is not None:
            serde = JsonPlusSerializer(allowed_msgpack_modules=tuple(allow) or None)
        super().__init__(serde=serde or JsonPlusSerializer())
        self._owns_store = not isinstance(store, api.Store)
        self._store = store if isinstance(store, api.Store) else api.open(store)
        self._engine = self._store.engine
        self._threads = Threads(self._store, rules)
        self._has_rules = bool(rules)
        self._puts = 0
        self._packing = Values(self._engine, self.serde)

    @property
    def store(self) -> api.Store:
        """The store this saver puts into."""
        return self._store

    @property
    def _values(self) -> Values:
        if self._packing.serde is not self.serde:  # a clone by `with_allowlist`
            self._packing = Values(self._engine, self.serde)
        return self._packing

    # --- reading

    def get_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        """The checkpoint that a config names, or the newest of its namespace: the one that was put last.

        None when there is none.

        Raises:
            Corrupt: it is there and damaged. No older one is taken instead, and no part of it is left out.
        """
        location = location_of(config)
        if (newest := self._newest(location)) is not None:
            return newest
        session = self._threads.find(location.thread)
        if session is None:
            return None
        for _ in range(_ATTEMPTS):
            with suppress(NotFound):  # removed meanwhile: the newest may be another now
                loaded = None
                if location.checkpoint is None:
                    loaded = self._engine.head(session.uid, location.branch)
                if loaded is None:  # another one is asked for, or what is wrong with it is to be told
                    header = self._threads.header(session.uid, location.branch, location.checkpoint)
                    if header is None:
                        return None
                    loaded = self._engine.load(header)
                pending = pending_writes.pending_of(self._values, [loaded.header])[loaded.header.id]
                return loaded_tuple(self._values, location, loaded, pending)
        return None

    def _newest(self, location: Location) -> CheckpointTuple | None:
        """The newest of a namespace that is known, if it is asked for; None where more must be looked up."""
        uid = self._threads.known_uid(location)
        if uid is None or not self._threads.may_be_newest(uid, location):
            return None
        with suppress(NotFound):  # the thread was deleted meanwhile
            found = self._engine.annotated_head(uid, location.branch, pending_writes.KIND)
            if found is not None and location.checkpoint in (None, found[0].header.external_id):
                return loaded_tuple(
                    self._values, location, found[0], pending_writes.folded(self._values, found[1])
                )
        return None

    def list(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> Iterator[CheckpointTuple]:
        """Checkpoints that match, the last put first; of all threads if there is no config.

        `filter` compares metadata for equality. Nothing is locked between two steps of the iteration. The channel
        values of each are read when its `checkpoint` is first looked at, or at once where rules may prune the thread.
        """
        return listing.Listing(self._threads, self._values).tuples(config, filter, before, limit)

    def get_delta_channel_history(
        self, *, config: RunnableConfig, channels: Sequence[str]
    ) -> Mapping[str, DeltaChannelHistory]:
        """What each channel's value is rebuilt from: the writes of the ancestors, and the value they start from.

        Raises:
            Corrupt: an ancestor that is needed is missing; an empty value would hide that.
        """
        location = location_of(config)
        session = self._threads.find(location.thread) if channels else None
        header = None
        if session is not None:
            header = self._threads.header(session.uid, location.branch, location.checkpoint)
        if header is None:
            return {channel: {"writes": []} for channel in channels}
        return listing.history(self._threads, self._values, location, header, channels)

    # --- writing

    def put(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,  # noqa: ARG002
    ) -> RunnableConfig:
        """Store a checkpoint durably as the newest of its namespace; the config's own one is its parent.

        Two puts with the same parent are both kept. A repeat of the same checkpoint changes nothing.

        Raises:
            InvalidInput: a value cannot be stored, or would not come back equal; `.path` names the place.
            NotFound: the thread was deleted while this saver used it (`thread_not_found`).
            Conflict: another checkpoint with that id is stored.
        """
        location = location_of(config)
        stored = stored_metadata(config, metadata)
        try:
            header = self._put(location, checkpoint, stored)
        except NotFound as exc:
            if exc.code != _SESSION_GONE:
                raise
            if not self._threads.may_begin_anew(location, config):
                raise self._threads.gone(location) from exc
            header = self._put(location, checkpoint, stored)
        self._threads.stored(header)
        if location.namespace:
            thread_retention.hold(self._engine, header)
        self._after_put(header)
        return location.config(checkpoint["id"])

    def _put(self, location: Location, checkpoint: Checkpoint, metadata: Mapping[str, Any]) -> Header:
        uid = self._threads.uid(location)

        def store(*, fresh: bool) -> Header:
            parents = self._threads.parents(uid, location, fresh=fresh)
            return store_once(
                self._engine, save_of(self._values, uid, location, checkpoint, metadata, parents)
            )

        try:
            return store(fresh=False)
        except NotFound as exc:
            if exc.code == _SESSION_GONE:
                raise
        return store(fresh=True)  # the parent it requires was removed in the moment between

    def _after_put(self, header: Header) -> None:
        """Now and then, let namespaces of finished subgraph calls go; a failure there is not the put's."""
        self._puts += 1
        if not self._has_rules or self._puts % thread_retention.RELEASE_EVERY:
            return
        try:
            thread_retention.release(self._engine, self._engine.backend.session(header.session))
        except StepkeepError as exc:
            log.warning("namespaces of session %s were not looked through: %s", header.session, exc)

    def put_writes(
        self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = ""
    ) -> None:
        """Store the writes of a task durably, all or none. Their checkpoint may come later.

        Raises:
            InvalidInput: a value cannot be stored, or the config names no checkpoint.
            NotFound: the thread was deleted while this saver used it (`thread_not_found`).
        """
        location = location_of(config)
        if location.checkpoint is None:
            raise InvalidInput(
                "pending writes belong to a checkpoint: the config names none", code="checkpoint_id_missing"
            )
        target = (location.branch, check_name("a checkpoint id", location.checkpoint))
        try:
            uid = self._threads.uid(location, is_write=True)
            if given := pending_writes.writes_of(writes, task_id, task_path):
                pending_writes.store(self._values, uid, target, given)
        except NotFound as exc:
            raise self._threads.gone(location) from exc

    def get_next_version(self, current: str | int | None, channel: None) -> str:  # noqa: ARG002
        """The version after `current`, in the form that LangGraph's own savers use, so that threads can move."""
        number = int(str(current or 0).partition(".")[0])
        return f"{number + 1:032}.{0:016}"

    # --- removing and copying

    def delete_thread(self, thread_id: str) -> None:
        """Remove a thread with all its bytes. What a run that is still going puts later is refused."""
        session = self._threads.find(str(thread_id))
        if session is not None:
            with suppress(NotFound):
                self._engine.delete_session(session.uid)

    def delete_for_runs(self, run_ids: Sequence[str]) -> None:
        """Remove the checkpoints of these runs with their writes, in all threads.

        Raises:
            Conflict: delta channels of other checkpoints are rebuilt from one of them (`still_required`); the
                others of its thread are removed.
        """
        going: dict[str, list[str]] = {}
        for run in run_ids:
            for header in self._engine.headers(HeaderQuery(tag=run_tag(str(run)))):
                if is_ours(header):
                    going.setdefault(header.session, []).append(header.id)
        for uid, ids in going.items():
            with suppress(NotFound):
                self._engine.delete(uid, [*dict.fromkeys(ids)])

    def copy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        """Copy a thread with all its namespaces, checkpoints and writes. A thread that does not exist copies nothing.

        Raises:
            Conflict: the target has another checkpoint with the id of one of them.
        """
        source = self._threads.find(str(source_thread_id))
        if source is not None:
            copy_all(self._engine, source, self._threads.opened(str(target_thread_id)))

    def prune(self, thread_ids: Sequence[str], *, strategy: str = "keep_latest") -> None:
        """Keep only the newest checkpoint of each namespace and what it needs, or with `delete` nothing."""
        if strategy not in ("keep_latest", "delete"):
            raise InvalidInput(
                f"there is no strategy {strategy!r}: choose keep_latest or delete", code="invalid_option"
            )
        for thread_id in thread_ids:
            if strategy == "delete":
                self.delete_thread(thread_id)
            elif session := self._threads.find(str(thread_id)):
                with suppress(NotFound):
                    thread_retention.keep_latest(self._engine, session)

    def trim(self, thread_id: str) -> PruneReport | None:
        """Apply the thread's rules now, instead of when the store's keeper comes by; None if there is no thread."""
        session = self._threads.find(str(thread_id))
        if session is None:
            return None
        thread_retention.release(self._engine, session)
        return self._store.get(session.key).prune()

    # --- the same, awaited

    aget_tuple = _awaited(get_tuple)
    aput = _awaited(put)
    aput_writes = _awaited(put_writes)
    adelete_thread = _awaited(delete_thread)
    adelete_for_runs = _awaited(delete_for_runs)
    acopy_thread = _awaited(copy_thread)
    aprune = _awaited(prune)
    aget_delta_channel_history = _awaited(get_delta_channel_history)

    async def alist(self, *args: Any, **kwargs: Any) -> AsyncIterator[CheckpointTuple]:
        """What `list` gives, with the values already read."""
        entries = self.list(*args, **kwargs)

        def page() -> Sequence[CheckpointTuple]:
            return [CheckpointTuple(*entry) for entry in islice(entries, PAGE)]

        while found := await asyncio.to_thread(page):
            for entry in found:
                yield entry

    # --- lifetime

    def setup(self) -> None:
        """Nothing to do: opening a store makes what it needs. It is here for programs that call it."""

    async def asetup(self) -> None:
        """The same, awaited."""

    def close(self) -> None:
        """Close the store if this saver opened it."""
        if self._owns_store:
            self._store.close()

    def __enter__(self) -> StepkeepSaver:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    async def __aenter__(self) -> StepkeepSaver:
        return self

    async def __aexit__(self, *_: object) -> None:
        await asyncio.to_thread(self.close)
