"""Pending writes as annotations of a checkpoint, which may come before it.

Each call of `put_writes` becomes one annotation, visible whole or not at all. Reading folds them by LangGraph's rule:
of a task's writes with the same index the first one stays, but a special one (an error, an interrupt, a resume
value) is replaced by the next.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain, count
from typing import Any, Final

import msgspec
from langgraph.checkpoint.base import WRITES_IDX_MAP, PendingWrite, writes_sort_key

from stepkeep.adapters.langgraph.values import Packs, Values
from stepkeep.api.extension import (
    Annotation,
    Engine,
    Target,
    check_stored,
    decode_stored,
    digest,
    encode_keyframe,
)
from stepkeep.errors import SCHEMA_INVALID, Corrupt
from stepkeep.model import Header

KIND: Final = "langgraph_writes"


class Write(msgspec.Struct, frozen=True):
    """One stored write, in the order in which LangGraph applies them."""

    task: str
    path: str
    index: int
    channel: str
    value: Any

    @property
    def pending(self) -> PendingWrite:
        return self.task, self.channel, self.value


def put(
    engine: Engine,
    values: Values,
    uid: str,
    target: Target,
    writes: Sequence[tuple[str, Any]],
    *,
    task: str,
    path: str,
) -> None:
    """Store the writes of one call durably.

    Raises:
        InvalidInput: a value cannot be stored; `.path` begins with its channel.
        NotFound: the thread was deleted.
    """
    if not writes:
        return
    indexed = [
        (WRITES_IDX_MAP.get(channel, at), channel, value) for at, (channel, value) in enumerate(writes)
    ]
    store(engine, uid, target, document(engine, values, indexed, task=task, path=path))


class Head(msgspec.Struct, frozen=True, array_like=True):
    """The first line of an annotation; `places` has index and channel of each value in its content."""

    encoding: str
    codec: str
    size: int
    task: str
    path: str
    places: list[tuple[int, str]]


class Document(msgspec.Struct, frozen=True):
    """What one annotation holds, under which name, and whether it replaces one of that name."""

    name: str
    data: bytes
    replaces: bool


def document(
    engine: Engine, values: Packs, indexed: Sequence[tuple[int, str, Any]], *, task: str, path: str
) -> Document:
    """The annotation for writes whose indexes are known."""
    body = values.body(engine, _named(indexed))
    packed = encode_keyframe(body.content)
    places = [(index, channel) for index, channel, _ in indexed]
    head = Head(body.encoding, packed.codec, len(body.content), _text(task), _text(path), places)
    data = msgspec.json.encode(head) + b"\n" + packed.data
    is_special = all(index < 0 for index, _, _ in indexed)
    name = f"{_text(task)}\n{sorted(index for index, _, _ in indexed)}" if is_special else None
    return Document(digest(data if name is None else name.encode()), data, is_special)


def _named(indexed: Sequence[tuple[int, str, Any]]) -> dict[str, Any]:
    """The values under their channels, in order; the names only serve to say where a value cannot be stored."""
    named: dict[str, Any] = {}
    for _, channel, value in indexed:
        free = chain([channel], (f"{channel} ({number})" for number in count(len(named))))
        named[next(name for name in free if name not in named)] = value
    return named


def _text(text: str) -> str:
    return str(text).encode("utf-8", "backslashreplace").decode()


def store(engine: Engine, uid: str, target: Target, written: Document) -> bool:
    """Attach a document; False when it was there already."""
    return engine.backend.annotate(
        uid, target, KIND, written.name, written.data, time_us=engine.clock(), replace=written.replaces
    )


# --- reading


def pending_of(engine: Engine, values: Values, headers: Sequence[Header]) -> dict[str, list[Write]]:
    """The pending writes of checkpoints of one session, by the id of the checkpoint."""
    found: dict[str, list[Annotation]] = {header.id: [] for header in headers}
    if not headers:
        return {}
    ids = {(header.branch, header.external_id): header.id for header in headers}
    for note in engine.backend.annotations(headers[0].session, list(found), KIND):
        checkpoint = note.target if isinstance(note.target, str) else ids.get(note.target)
        if checkpoint in found:
            found[checkpoint].append(note)
    return {checkpoint: folded(values, notes) for checkpoint, notes in found.items()}


def folded(values: Values, notes: Iterable[Annotation]) -> list[Write]:
    """What stands after all calls, in the order in which LangGraph applies it."""
    standing: dict[tuple[str, int], Write] = {}
    for note in notes:
        for write in _read(values, note):
            key = (write.task, write.index)
            if write.index < 0 or key not in standing:
                standing[key] = write
    return sorted(standing.values(), key=lambda write: writes_sort_key(write.path, write.task, write.index))


def _read(values: Values, note: Annotation) -> list[Write]:
    check_stored(note.data, note.digest, checkpoint=str(note.target), body="pending writes")
    line, _, packed = note.data.partition(b"\n")
    try:
        head = msgspec.json.decode(line, type=Head)
    except msgspec.MsgspecError as exc:
        raise Corrupt(f"the writes of {note.target} are not readable: {exc}", code=SCHEMA_INVALID) from exc
    found = values.decode(head.encoding, decode_stored(head.codec, packed, size=head.size))
    return [
        Write(head.task, head.path, index, channel, value)
        for (index, channel), value in zip(head.places, found.values(), strict=True)
    ]
