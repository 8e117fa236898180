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

from stepkeep import typed
from stepkeep.adapters.langgraph.channel_values import Values
from stepkeep.api.extension import Annotation, Target, check_stored, decode_stored, digest, encode_keyframe
from stepkeep.errors import SCHEMA_INVALID, Corrupt
from stepkeep.model import Content, Header

KIND: Final = "langgraph_writes"


class Write(msgspec.Struct, frozen=True):
    """One write, in the order in which LangGraph applies them."""

    task: str
    path: str
    index: int
    channel: str
    value: Any

    @property
    def pending(self) -> PendingWrite:
        return self.task, self.channel, self.value


def writes_of(given: Sequence[tuple[str, Any]], task: str, path: str) -> list[Write]:
    """What `put_writes` was given, with the index of each: its place, or the fixed one of a special channel."""
    return [
        Write(task, path, WRITES_IDX_MAP.get(channel, at), channel, value)
        for at, (channel, value) in enumerate(given)
    ]


class Head(msgspec.Struct, frozen=True, array_like=True):
    """The first line of an annotation; `places` has index and channel of each value in its content."""

    encoding: str
    codec: str
    size: int
    task: str
    path: str
    places: list[tuple[int, str]]
    first_at: int = 0


def store(values: Values, uid: str, target: Target, writes: Sequence[Write]) -> bool:
    """Store writes of one task durably, all or none; False when they were there already.

    Raises:
        InvalidInput: a value cannot be stored; `.path` begins with its channel.
        NotFound: the thread was deleted.
    """
    body = values.body(_named(writes))
    packed = encode_keyframe(body.content)
    task, path = _text(writes[0].task), _text(writes[0].path)
    places = [(write.index, write.channel) for write in writes]
    head = Head(body.encoding, packed.codec, len(body.content), task, path, places, body.first_at)
    data = msgspec.json.encode(head) + b"\n" + packed.data
    indexes = sorted([write.index for write in writes])
    is_special = indexes[-1] < 0
    name = digest(f"{task}\n{indexes}".encode() if is_special else data)
    return values.engine.annotate(uid, target, KIND, name, data, replace=is_special)


def _named(writes: Sequence[Write]) -> dict[str, Any]:
    """The values under their channels, in order; the names only serve to say where a value cannot be stored."""
    named: dict[str, Any] = {write.channel: write.value for write in writes}
    if len(named) == len(writes):
        return named
    named = {}
    for write in writes:
        free = chain([write.channel], (f"{write.channel} ({number})" for number in count(len(named))))
        named[next(name for name in free if name not in named)] = write.value
    return named


def _text(text: str) -> str:
    return str(text).encode("utf-8", "backslashreplace").decode()


# --- reading


def pending_of(values: Values, headers: Sequence[Header]) -> dict[str, list[Write]]:
    """The pending writes of checkpoints of one session, by the id of the checkpoint."""
    if not headers:
        return {}
    found: dict[str, list[Annotation]] = {header.id: [] for header in headers}
    ids = {(header.branch, header.external_id): header.id for header in headers}
    for note in values.engine.backend.annotations(headers[0].session, list(found), KIND):
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
        head = typed.from_json(line, Head)
    except msgspec.MsgspecError as exc:
        raise Corrupt(f"the writes of {note.target} are not readable: {exc}", code=SCHEMA_INVALID) from exc
    content = Content(digest="", size=head.size, encoding=head.encoding, first_at=head.first_at)
    found = values.decode(content, decode_stored(head.codec, packed, size=head.size))
    return [
        Write(head.task, head.path, index, channel, value)
        for (index, channel), value in zip(head.places, found.values(), strict=True)
    ]
