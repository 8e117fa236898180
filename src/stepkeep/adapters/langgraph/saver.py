"""The checkpointer for LangGraph."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from types import TracebackType
from typing import Any, Final

import msgspec
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import (
    ChannelVersions,
    Checkpoint,
    CheckpointMetadata,
    CheckpointTuple,
    DeltaChannelHistory,
)
from langgraph.checkpoint.serde.base import SerializerProtocol
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer

from stepkeep import api
from stepkeep.adapters.langgraph import listing, writes
from stepkeep.adapters.langgraph.async_wrappers import AsyncWrappers
from stepkeep.adapters.langgraph.copying import copy_thread, store_once
from stepkeep.adapters.langgraph.listing import Listing
from stepkeep.adapters.langgraph.records import (
    checkpoint_of_header,
    is_ours,
    metadata_of,
    parent_config,
    save_of,
    stored_metadata,
)
from stepkeep.adapters.langgraph.retention import RELEASE_EVERY, hold, keep_latest, release, rules_of
from stepkeep.adapters.langgraph.threads import Place, Threads, place_of, run_tag, session_key
from stepkeep.adapters.langgraph.values import Values
from stepkeep.adapters.langgraph.writes import put as put_writes
from stepkeep.api import PruneReport
from stepkeep.api.extension import HeaderQuery
from stepkeep.errors import InvalidInput, NotFound, StepkeepError
from stepkeep.model import Header, check_name

log = logging.getLogger("stepkeep")

_ATTEMPTS: Final = 3
_SESSION_GONE: Final = "session_not_found"


class StepkeepSaver(AsyncWrappers):
    """LangGraph's threads in a Stepkeep store, for graphs that are invoked and graphs that are awaited.

    `store` is an open store, or the URL of one, which is then opened here and closed by `close`. A thread keeps all
    its checkpoints unless `keep_last`, `max_age` (a `timedelta`, or text such as `30d`) or `max_bytes` say otherwise;
    they become the rules of every thread this saver puts into, and the store's keeper applies them.

    Values come back equal, or are refused when they are put. Only LangGraph's own safe classes, and those named by
    `allow` (classes, or pairs of module and name), are made when stored bytes name them. `serde` replaces the
    serializer: then every value goes through it.

    Safe for threads, forks and several processes.
    """

    def __init__(
        self,
        store: api.Store | str | os.PathLike[str],
        *,
        keep_last: int | None = None,
        max_age: timedelta | str | None = None,
        max_bytes: int | str | None = None,
        allow: Collection[type | tuple[str, str]] = (),
        serde: SerializerProtocol | None = None,
    ) -> None:
        rules = rules_of(keep_last=keep_last, max_age=max_age, max_bytes=max_bytes)
        if serde is not None and allow:
            raise InvalidInput(
                "a serializer has its own list of classes: pass allow or serde", code="invalid_option"
            )
        super().__init__(serde=serde or JsonPlusSerializer(allowed_msgpack_modules=tuple(allow) or None))
        self._owns_store = not isinstance(store, api.Store)
        self._store = store if isinstance(store, api.Store) else api.open(store)
        self._engine = self._store.engine
        self._threads = Threads(self._store, rules)
        self._has_rules = bool(rules)
        self._puts = 0
        self._packing = Values(self.serde)

    @property
    def store(self) -> api.Store:
        """The store this saver puts into."""
        return self._store

    @property
    def _values(self) -> Values:
        if self._packing.serde is not self.serde:  # a clone by `with_allowlist`
            self._packing = Values(self.serde)
        return self._packing

    # --- reading

    def get_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        """The checkpoint that a config names, or the newest of its namespace: the one that was put last.

        None when there is none.

        Raises:
            Corrupt: it is there and damaged. No older one is taken instead, and no part of it is left out.
        """
        place = place_of(config)
        session = self._threads.find(place.key)
        if session is None:
            return None
        for _ in range(_ATTEMPTS):
            try:
                header = self._threads.header(session.uid, place.branch, place.checkpoint)
                return None if header is None else self._whole_tuple(place, header)
            except NotFound:
                continue  # removed meanwhile: the newest may be another now
        return None

    def _whole_tuple(self, place: Place, header: Header) -> CheckpointTuple:
        checkpoint = checkpoint_of_header(self._engine, self._values, header)
        pending = writes.pending_of(self._engine, self._values, [header])[header.id]
        return CheckpointTuple(
            place.config(header.external_id),
            checkpoint,
            metadata_of(self._engine, self._values, header),
            parent_config(place, header),
            [write.pending for write in pending],
        )

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
        return Listing(self._engine, self._threads, self._values).tuples(config, filter, before, limit)

    def get_delta_channel_history(
        self, *, config: RunnableConfig, channels: Sequence[str]
    ) -> Mapping[str, DeltaChannelHistory]:
        """What each channel's value is rebuilt from: the writes of the ancestors, and the value they start from.

        Raises:
            Corrupt: an ancestor that is needed is missing; an empty value would hide that.
        """
        place = place_of(config)
        session = self._threads.find(place.key) if channels else None
        header = None
        if session is not None:
            header = self._threads.header(session.uid, place.branch, place.checkpoint)
        if header is None:
            return {channel: {"writes": []} for channel in channels}
        return listing.history(self._engine, self._threads, self._values, place, header, channels)

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
            NotFound: the thread does not exist, and the config names a checkpoint of it (`thread_not_found`).
            Conflict: another checkpoint with that id is stored.
        """
        place = place_of(config)
        stored = stored_metadata(config, metadata)
        try:
            header = self._put(place, checkpoint, stored)
        except NotFound as exc:
            if exc.code != _SESSION_GONE:
                raise
            if not self._threads.may_begin_anew(place, config):
                raise self._threads.gone(place) from exc
            header = self._put(place, checkpoint, stored)
        self._threads.stored(header)
        if place.namespace:
            hold(self._engine, header)
        self._after_put(header)
        return place.config(checkpoint["id"])

    def _put(self, place: Place, checkpoint: Checkpoint, metadata: Mapping[str, Any]) -> Header:
        uid = self._threads.uid_to_put(place)
        parent = self._threads.parent_id(uid, place)
        parents = () if parent is None else (parent,)
        save = save_of(self._engine, self._values, uid, place, checkpoint, metadata, parents=parents)
        try:
            return store_once(self._engine, save)
        except NotFound as exc:
            if exc.code == _SESSION_GONE:
                raise
        # The parent it requires was removed in the moment between.
        parent = self._threads.parent_id(uid, place, fresh=True)
        parents = () if parent is None else (parent,)
        return store_once(self._engine, msgspec.structs.replace(save, parents=parents, requires=parents))

    def _after_put(self, header: Header) -> None:
        """Now and then, let namespaces of finished subgraph calls go; a failure there is not the put's."""
        self._puts += 1
        if not self._has_rules or self._puts % RELEASE_EVERY:
            return
        try:
            release(self._engine, self._engine.backend.session(header.session))
        except StepkeepError as exc:
            log.warning("namespaces of session %s were not looked through: %s", header.session, exc)

    def put_writes(
        self,
        config: RunnableConfig,
        writes: Sequence[tuple[str, Any]],
        task_id: str,
        task_path: str = "",
    ) -> None:
        """Store the writes of a task durably, all or none. Their checkpoint may come later.

        Raises:
            InvalidInput: a value cannot be stored, or the config names no checkpoint.
            NotFound: the thread does not exist.
        """
        place = place_of(config)
        if place.checkpoint is None:
            raise InvalidInput(
                "pending writes belong to a checkpoint: the config names none", code="checkpoint_id_missing"
            )
        target = (place.branch, check_name("a checkpoint id", place.checkpoint))
        try:
            uid = self._threads.uid_to_write(place)
            put_writes(self._engine, self._values, uid, target, writes, task=task_id, path=task_path)
        except NotFound as exc:
            raise self._threads.gone(place) from exc

    def get_next_version(self, current: str | int | None, channel: None) -> str:  # noqa: ARG002
        """The version after `current`, in the form that LangGraph's own savers use, so that threads can move."""
        number = int(str(current or 0).partition(".")[0])
        return f"{number + 1:032}.{0:016}"

    # --- removing and copying

    def delete_thread(self, thread_id: str) -> None:
        """Remove a thread with all its bytes. What a run that is still going puts later is refused."""
        session = self._threads.find(session_key(str(thread_id)))
        if session is not None:
            self._values.forget(session.uid)
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
        source = self._threads.find(session_key(str(source_thread_id)))
        if source is not None:
            target = self._threads.opened(str(target_thread_id))
            copy_thread(self._engine, source, target)

    def prune(self, thread_ids: Sequence[str], *, strategy: str = "keep_latest") -> None:
        """Keep only the newest checkpoint of each namespace and what it needs, or with `delete` nothing."""
        if strategy not in ("keep_latest", "delete"):
            raise InvalidInput(
                f"no strategy {strategy!r}: choose keep_latest or delete", code="invalid_option"
            )
        for thread_id in thread_ids:
            if strategy == "delete":
                self.delete_thread(thread_id)
            elif session := self._threads.find(session_key(str(thread_id))):
                with suppress(NotFound):
                    keep_latest(self._engine, session)

    def trim(self, thread_id: str) -> PruneReport | None:
        """Apply the thread's rules now, instead of when the store's keeper comes by; None if there is no thread."""
        session = self._threads.find(session_key(str(thread_id)))
        if session is None:
            return None
        release(self._engine, session)
        return self._store.get(session.key).prune()

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

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    async def __aenter__(self) -> StepkeepSaver:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await asyncio.to_thread(self.close)
