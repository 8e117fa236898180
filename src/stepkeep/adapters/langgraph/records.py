"""A checkpoint of LangGraph as a checkpoint of Stepkeep, and back.

| LangGraph | Stepkeep |
|---|---|
| thread, namespace, checkpoint id | session, branch, external id |
| channel values | the body `state` |
| everything else in a checkpoint | the body `langgraph` |
| metadata | the header's metadata, where it is plain and small; else in the body `langgraph` |
| parent | a parent of the header, and its id in the metadata under `$langgraph`; that id as well if it is not stored |
| run id | a tag `run:ID` |
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, TypeAlias, cast

import msgspec
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import (
    Checkpoint,
    CheckpointMetadata,
    CheckpointTuple,
    PendingWrite,
    get_checkpoint_metadata,
)

from stepkeep import typed
from stepkeep.adapters.langgraph import writes
from stepkeep.adapters.langgraph.channel_values import Values
from stepkeep.adapters.langgraph.threads import Location, hidden_namespace, namespace_of, run_tag
from stepkeep.api.extension import (
    Engine,
    HeaderQuery,
    Loaded,
    PlainMetadata,
    Save,
    check_stored,
    load_body,
    plain,
    verified,
)
from stepkeep.errors import Conflict
from stepkeep.model import MAX_METADATA_BYTES, STATE, Header, SessionInfo
from stepkeep.text import shortened

# --- checkpoint tuples whose values are read when they are asked for -----------------------------------------------


class StoredTuple(CheckpointTuple):
    """A checkpoint tuple whose checkpoint is read from the store when it is first looked at, and then kept.

    In every other way it is a tuple of five like any. Looking may raise what loading raises: `NotFound` when the
    checkpoint was removed since it was listed, `Corrupt` when it is damaged.
    """

    _load: Callable[[], Checkpoint] | None

    def __new__(
        cls,
        config: RunnableConfig,
        load: Callable[[], Checkpoint],
        metadata: CheckpointMetadata,
        parent_config: RunnableConfig | None,
        pending_writes: list[PendingWrite],
    ) -> StoredTuple:
        self = super().__new__(cls, config, cast(Checkpoint, None), metadata, parent_config, pending_writes)
        self._load = load
        return self

    @property
    def checkpoint(self) -> Checkpoint:
        """The checkpoint with its channel values."""
        if self._load is not None:
            self._checkpoint = self._load()
            self._load = None
        return self._checkpoint

    # A tuple would answer these from its own slots, where the checkpoint is not.

    def __iter__(self) -> Iterator[Any]:
        return iter((self.config, self.checkpoint, self.metadata, self.parent_config, self.pending_writes))

    def __getitem__(self, index: Any) -> Any:
        return tuple(self)[index]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, tuple) and tuple(self) == tuple(other)

    def __ne__(self, other: object) -> bool:
        return not self == other

    def _replace(self, **changes: Any) -> CheckpointTuple:  # type: ignore[override]
        return CheckpointTuple(*self)._replace(**changes)

    __hash__ = None  # type: ignore[assignment]  # its parts are dicts

    def __repr__(self) -> str:
        return repr(CheckpointTuple(*self))

    def __reduce__(self) -> tuple[Any, ...]:
        return CheckpointTuple, tuple(self)


# --- checkpoints as records ----------------------------------------------------------------------------------------

REST: Final = "langgraph"
"""The body with what is neither a channel value nor the id: versions, times, and unusual metadata."""

OWN: Final = "$langgraph"
_METADATA: Final = "metadata"
_COUNTERS: Final = "counters_since_delta_snapshot"
_ROOM: Final = 2 * 1024
"""What is left of the room for metadata for this adapter's own keys."""

MAX_MESSAGE: Final = 120

Load: TypeAlias = Callable[[Header], Loaded]
"""Loads a checkpoint, verified: `Corrupt` when a byte of it changed, `NotFound` when it was removed meanwhile."""


class Note(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a header remembers beyond what it has fields for."""

    parent: str | None = None
    namespace: str | None = None
    is_elsewhere: bool = False


# --- to records


def save_of(
    values: Values,
    uid: str,
    location: Location,
    checkpoint: Mapping[str, Any],
    metadata: Mapping[str, Any],
    parents: tuple[str, ...],
) -> Save:
    """The save of a checkpoint whose parent in LangGraph's words is the one that `location` names.

    Raises:
        InvalidInput: a value cannot be stored, or would not come back equal; `.path` names the place.
    """
    rest = {key: value for key, value in checkpoint.items() if key not in ("id", "channel_values")}
    channels = dict(checkpoint.get("channel_values") or {})
    known = _plain_metadata(metadata)
    if known is None:
        rest[_METADATA] = dict(metadata)
    state = values.channels(f"{uid}/{location.branch}", channels)
    note = Note(
        parent=location.checkpoint, namespace=hidden_namespace(location.namespace), is_elsewhere=known is None
    )
    own = msgspec.to_builtins(note)
    run = metadata.get("run_id")
    step = metadata.get("step")
    return Save(
        session=uid,
        state=state,
        bodies={REST: values.body(rest)},
        branch=location.branch,
        parents=parents,
        external_id=checkpoint["id"],
        step=step if type(step) is int and -(2**63) <= step < 2**63 else None,
        message=_message(checkpoint, metadata),
        tags=(run_tag(run),) if isinstance(run, str) and run else (),
        metadata=PlainMetadata({**(known or {}), OWN: own} if own else known or {}),
        requires=tuple(parent for parent in parents if parent != location.checkpoint)
        if _has_open_deltas(checkpoint, metadata)
        else (),
    )


def store_once(engine: Engine, save: Save) -> Header:
    """Store a checkpoint; if one with its LangGraph id and the same contents is there, that one.

    Raises:
        Conflict: one with its id holds other contents (`external_id_exists`).
    """
    try:
        return engine.save(save)
    except Conflict as exc:
        if exc.code != "external_id_exists" or exc.checkpoint is None:
            raise
        stored = engine.header(exc.checkpoint, session=save.session)
        bodies = {STATE: save.state, **save.bodies}
        if stored.contents != {name: body.described() for name, body in bodies.items()}:
            raise
        return stored


def stored_metadata(config: RunnableConfig, metadata: CheckpointMetadata) -> dict[str, Any]:
    """The metadata to store, with what LangGraph adds from the config."""
    found = dict(get_checkpoint_metadata(config, metadata))
    counters = found.get(_COUNTERS)
    if counters is not None and isinstance(counters, Mapping):
        found[_COUNTERS] = {channel: list(pair) for channel, pair in counters.items()}
    return found


def _has_open_deltas(checkpoint: Mapping[str, Any], metadata: Mapping[str, Any]) -> bool:
    """Whether a delta channel has no snapshot here, so that its value is rebuilt from the ancestors."""
    counters = metadata.get(_COUNTERS)
    if not counters:
        return False
    values, versions = checkpoint.get("channel_values") or {}, checkpoint.get("channel_versions") or {}
    return any(channel in versions and channel not in values for channel in counters)


def _plain_metadata(metadata: Mapping[str, Any]) -> dict[str, Any] | None:
    """The metadata as the header holds them; None when they are too large or unusual for it."""
    found = None if OWN in metadata else plain(dict(metadata))
    if found is None or len(found[0]) > MAX_METADATA_BYTES - _ROOM:
        return None
    copy: dict[str, Any] = found[1]
    return copy


def _message(checkpoint: Mapping[str, Any], metadata: Mapping[str, Any]) -> str:
    """`loop: messages, plan`: where it came from, and which channels changed."""
    source = metadata.get("source")
    changed = checkpoint.get("updated_channels") or ()
    names = ", ".join(
        [name for name in changed if isinstance(name, str) and not name.startswith(("__", "branch:"))]
    )
    text = ": ".join([part for part in (source, names) if part and isinstance(part, str)])
    return shortened(text.encode("utf-8", "replace").decode().replace("\0", "?"), MAX_MESSAGE)


# --- from records


def note_of(header: Header) -> Note:
    return typed.convert(header.metadata.get(OWN, {}), Note)


def namespace_of_header(header: Header) -> str:
    return namespace_of(header.branch, note_of(header).namespace)


def tuple_of(
    values: Values, location: Location, header: Header, pending: Sequence[writes.Write], load: Load
) -> StoredTuple:
    """A stored checkpoint as LangGraph takes it; it is loaded when its values are looked at."""
    return StoredTuple(
        location.config(header.external_id),
        lambda: checkpoint_of(values, load(header)),
        *_beside(values, location, header, pending),
    )


def loaded_tuple(
    values: Values, location: Location, loaded: Loaded, pending: Sequence[writes.Write]
) -> CheckpointTuple:
    """The same with its values."""
    header = loaded.header
    return CheckpointTuple(
        location.config(header.external_id),
        checkpoint_of(values, loaded),
        *_beside(values, location, header, pending),
    )


def _beside(
    values: Values, location: Location, header: Header, pending: Sequence[writes.Write]
) -> tuple[CheckpointMetadata, RunnableConfig | None, list[PendingWrite]]:
    """What stands beside a checkpoint in its tuple: metadata, the config of its parent, and pending writes."""
    note = note_of(header)
    parent = None if note.parent is None else location.config(note.parent)
    return _metadata(values, header, note), parent, [write.pending for write in pending]


def metadata_of(values: Values, header: Header) -> CheckpointMetadata:
    """The metadata of a stored checkpoint; its body is read only if the header could not hold them."""
    return _metadata(values, header, note_of(header))


def _metadata(values: Values, header: Header, note: Note) -> CheckpointMetadata:
    if note.is_elsewhere:
        found = _read(values, header, REST)[_METADATA]
    else:
        found = {key: value for key, value in header.metadata.items() if key != OWN}
    return cast(CheckpointMetadata, found)


def checkpoint_of(values: Values, loaded: Loaded) -> Checkpoint:
    """A loaded checkpoint with all its values."""
    header = loaded.header
    check_is_ours(header)
    rest, channels = (values.revived(loaded.value(name), loaded.contents[name]) for name in (REST, STATE))
    rest.pop(_METADATA, None)
    return cast(Checkpoint, {**rest, "id": header.external_id, "channel_values": channels})


def channels_of_header(values: Values, header: Header) -> dict[str, Any]:
    """Only the channel values of a stored checkpoint."""
    check_is_ours(header)
    return cast(dict[str, Any], _read(values, header, STATE))


def _read(values: Values, header: Header, name: str) -> Any:
    content = load_body(values.engine.backend, header, name)
    return values.decode(header.contents[name], content)


def is_ours(header: Header) -> bool:
    return REST in header.contents and header.external_id is not None


def check_is_ours(header: Header) -> None:
    if not is_ours(header):
        raise Conflict(
            f"{header.id} was not saved by LangGraph: use another thread id, or another store",
            code="not_a_thread",
            retryable=False,
            session=header.session,
            checkpoint=header.id,
        )


# --- copying a thread: every checkpoint is sealed anew under a new id, and keeps its LangGraph id


def copy_all(engine: Engine, source: SessionInfo, target: SessionInfo) -> None:
    """Copy all checkpoints with their parents and pending writes. Repeatable: what is there stays."""
    ids: dict[str, str] = {}
    for row in engine.backend.headers(HeaderQuery(session=source.uid, newest_first=False)):
        header = verified(row)
        ids[header.id] = store_once(engine, _again(engine, header, target, ids)).id
    for note in engine.backend.annotations(source.uid, None, writes.KIND):
        goal = ids.get(note.target) if isinstance(note.target, str) else note.target
        if goal is not None:
            check_stored(note.data, note.digest, checkpoint=str(note.target), body="pending writes")
            engine.annotate(
                target.uid, goal, note.kind, note.name, note.data, time_us=note.time_us, replace=True
            )


def _again(engine: Engine, header: Header, target: SessionInfo, ids: Mapping[str, str]) -> Save:
    loaded = engine.load(header)
    others = header.contents.keys() - {STATE}
    unknown = note_of(header).parent
    return Save(
        session=target.uid,
        state=loaded.body(),
        bodies={name: body for name in others if (body := loaded.body(name)) is not None},
        branch=header.branch,
        parents=tuple(
            ids.get(parent, parent) for parent in header.parents if parent in ids or parent == unknown
        ),
        external_id=header.external_id,
        step=header.step,
        status=header.status,
        trigger=header.trigger,
        message=header.message,
        tags=header.tags,
        metadata=header.metadata,
        requires=tuple(ids[required] for required in header.requires if required in ids),
    )
