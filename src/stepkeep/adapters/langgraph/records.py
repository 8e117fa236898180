"""A checkpoint of LangGraph as a checkpoint of Stepkeep, and back.

| LangGraph | Stepkeep |
|---|---|
| thread, namespace, checkpoint id | session, branch, external id |
| channel values | the body `state` |
| everything else in a checkpoint | the body `langgraph` |
| metadata | the header's metadata, where it is plain and small; else in the body `langgraph` |
| parent | a parent of the header, and its id in the metadata under `$langgraph` |
| run id | a tag `run:ID` |
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, cast

import msgspec
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import (
    Checkpoint,
    CheckpointMetadata,
    CheckpointTuple,
    PendingWrite,
    get_checkpoint_metadata,
)

from stepkeep.adapters.langgraph.threads import Place, hidden_namespace, namespace_of, run_tag
from stepkeep.adapters.langgraph.values import Packs, Values, has_no_objects
from stepkeep.api.extension import JSON, Engine, Save, encode, load_body
from stepkeep.errors import Conflict
from stepkeep.model import MAX_METADATA_BYTES, STATE, Header
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
_ORDER: Final = "$channels"
"""The channels in their own order, where the body has them in another."""

_COUNTERS: Final = "counters_since_delta_snapshot"
_ROOM: Final = 2 * 1024
"""What is left of the room for metadata for this adapter's own keys."""

MAX_MESSAGE: Final = 120


class Note(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a header remembers beyond what it has fields for."""

    parent: str | None = None
    namespace: str | None = None
    is_elsewhere: bool = False


# --- to records


def save_of(
    engine: Engine,
    values: Packs,
    uid: str,
    place: Place,
    checkpoint: Mapping[str, Any],
    metadata: Mapping[str, Any],
    *,
    parents: tuple[str, ...],
) -> Save:
    """The save of a checkpoint whose parent in LangGraph's words is the one that `place` names.

    Raises:
        InvalidInput: a value cannot be stored, or would not come back equal; `.path` names the place.
    """
    rest = {key: value for key, value in checkpoint.items() if key not in ("id", "channel_values")}
    channels = dict(checkpoint.get("channel_values") or {})
    plain, is_elsewhere = _plain_metadata(metadata)
    if is_elsewhere:
        rest[_METADATA] = dict(metadata)
    state, order = values.channels(engine, (uid, place.branch), channels)
    if order != list(channels):
        rest[_ORDER] = list(channels)
    note = Note(
        parent=place.checkpoint, namespace=hidden_namespace(place.namespace), is_elsewhere=is_elsewhere
    )
    own = msgspec.to_builtins(note)
    return Save(
        session=uid,
        state=state,
        bodies={REST: values.body(engine, rest)},
        branch=place.branch,
        parents=parents,
        external_id=checkpoint["id"],
        step=_step(metadata),
        message=_message(checkpoint, metadata),
        tags=_tags(metadata),
        metadata={**plain, OWN: own} if own else plain,
        requires=parents if has_open_deltas(checkpoint, metadata) else (),
    )


def stored_metadata(config: RunnableConfig, metadata: CheckpointMetadata) -> dict[str, Any]:
    """The metadata to store, with what LangGraph adds from the config."""
    found = dict(get_checkpoint_metadata(config, metadata))
    if isinstance(counters := found.get(_COUNTERS), Mapping):
        found[_COUNTERS] = {channel: list(pair) for channel, pair in counters.items()}
    return found


def has_open_deltas(checkpoint: Mapping[str, Any], metadata: Mapping[str, Any]) -> bool:
    """Whether a delta channel has no snapshot here, so that its value is rebuilt from the ancestors."""
    values, versions = checkpoint.get("channel_values") or {}, checkpoint.get("channel_versions") or {}
    counters = metadata.get(_COUNTERS) or {}
    return any(channel in versions and channel not in values for channel in counters)


def _plain_metadata(metadata: Mapping[str, Any]) -> tuple[dict[str, Any], bool]:
    """What the header can hold of the metadata, and whether the whole of it must be stored elsewhere."""
    plain = dict(metadata)
    if OWN in plain or not has_no_objects(plain):
        return {}, True
    encoding, content = encode(plain)
    fits = encoding == JSON and len(content) <= MAX_METADATA_BYTES - _ROOM
    return (plain, False) if fits else ({}, True)


def _step(metadata: Mapping[str, Any]) -> int | None:
    step = metadata.get("step")
    return step if type(step) is int and -(2**63) <= step < 2**63 else None


def _message(checkpoint: Mapping[str, Any], metadata: Mapping[str, Any]) -> str:
    """`loop: messages, plan`: where it came from, and which channels changed."""
    source = metadata.get("source")
    changed = checkpoint.get("updated_channels") or ()
    names = ", ".join(
        name for name in changed if isinstance(name, str) and not name.startswith(("__", "branch:"))
    )
    text = ": ".join(part for part in (source if isinstance(source, str) else "", names) if part)
    return shortened(text.encode("utf-8", "replace").decode().replace("\0", "?"), MAX_MESSAGE)


def _tags(metadata: Mapping[str, Any]) -> tuple[str, ...]:
    run = metadata.get("run_id")
    return (run_tag(run),) if isinstance(run, str) and run else ()


# --- from records


def note_of(header: Header) -> Note:
    return msgspec.convert(header.metadata.get(OWN, {}), Note)


def place_of_header(thread: str, header: Header) -> Place:
    """Where a stored checkpoint belongs, in LangGraph's words."""
    namespace = namespace_of(header.branch, note_of(header).namespace)
    return Place(thread=thread, namespace=namespace, checkpoint=header.external_id)


def parent_config(place: Place, header: Header) -> RunnableConfig | None:
    parent = note_of(header).parent
    return None if parent is None else place.config(parent)


def metadata_of(engine: Engine, values: Values, header: Header) -> CheckpointMetadata:
    """The metadata of a stored checkpoint; its body is read only if the header could not hold them."""
    if note_of(header).is_elsewhere:
        found = _read(engine, values, header, REST)[_METADATA]
    else:
        found = {key: value for key, value in header.metadata.items() if key != OWN}
    return cast(CheckpointMetadata, found)


def checkpoint_of_header(engine: Engine, values: Values, header: Header) -> Checkpoint:
    """A stored checkpoint with all its values, verified.

    Raises:
        Corrupt: a byte of it changed, or a body is missing.
        NotFound: it was removed meanwhile.
    """
    check_is_ours(header)
    loaded = engine.load(header)
    rest, channels = (
        values.decode(header.contents[name].encoding, loaded.contents[name]) for name in (REST, STATE)
    )
    rest.pop(_METADATA, None)
    if order := rest.pop(_ORDER, None):
        channels = {name: channels[name] for name in order}
    return cast(Checkpoint, {**rest, "id": header.external_id, "channel_values": channels})


def channels_of_header(engine: Engine, values: Values, header: Header) -> dict[str, Any]:
    """Only the channel values of a stored checkpoint."""
    check_is_ours(header)
    return cast(dict[str, Any], _read(engine, values, header, STATE))


def _read(engine: Engine, values: Values, header: Header, name: str) -> Any:
    content = load_body(engine.backend, header, name)
    return values.decode(header.contents[name].encoding, content)


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


def same_contents(header: Header, save: Save) -> bool:
    """Whether a stored checkpoint is what a save would store."""
    return header.contents == {
        name: body.described() for name, body in {STATE: save.state, **save.bodies}.items()
    }
