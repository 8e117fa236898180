"""How the next body of a line of checkpoints is stored: patched against which one, or as a keyframe.

A *line* is one body name on one branch of one session. Its writer remembers the contents of the two members it
may patch against. The memory is only a cache: a cold writer rebuilds it from the store, and a base that is gone
by the time of the commit is answered with a keyframe.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final, NamedTuple

import msgspec

from stepkeep.codec import patch
from stepkeep.codec.integrity import digest
from stepkeep.storage.port import Body

CACHE_BYTES: Final = 256 * 1024 * 1024
"""How much content the writers of one engine remember together."""


PATCH_FLOOR: Final = 512
"""Smaller contents are stored whole: a patch would save less than its header takes, and cost more time."""


class LineKey(NamedTuple):
    session: str
    branch: str
    name: str


class Member(NamedTuple):
    """A stored body that later ones may be patched against; `blobs` are those its chain of records keeps alive."""

    checkpoint: str
    content: bytes
    blobs: frozenset[str] = frozenset()


class Shares(NamedTuple):
    """How many bytes at the start of a new content are known to be those of another one."""

    content: bytes
    start: int


class LineState(msgspec.Struct, frozen=True, kw_only=True):
    """Where a keyframe group stands: its newest member, and the newest one whose number divides by the stride."""

    last: Member
    anchor: Member
    number: int
    keyframe_bytes: int
    keyframe_size: int
    group_bytes: int

    def keyframe_bytes_for(self, size: int) -> int:
        """What a keyframe of `size` bytes of content would take, judging by the group's own."""
        return self.keyframe_bytes * size // max(1, self.keyframe_size)


class Line:
    """The state of one line, with the lock that keeps its bodies in the order of their commits."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.state: LineState | None = None
        self.is_cold = True
        self.counted_bytes = 0

    @property
    def size_bytes(self) -> int:
        state = self.state
        return 0 if state is None else len(state.last.content) + len(state.anchor.content)


class Lines:
    """The lines of an engine, least recently used first; the oldest are forgotten when they take too much memory."""

    def __init__(self, cache_bytes: int = CACHE_BYTES) -> None:
        self._lock = threading.Lock()
        self._lines: OrderedDict[LineKey, Line] = OrderedDict()
        self._cache_bytes = cache_bytes
        self._held_bytes = 0

    @contextmanager
    def locked(self, keys: list[LineKey]) -> Iterator[list[Line]]:
        """The lines of these keys, locked in a fixed order so that two savers cannot wait for each other."""
        lines = {key: self._line(key) for key in keys}
        held = [lines[key] for key in sorted(lines)]
        for line in held:
            line.lock.acquire()
        try:
            yield [lines[key] for key in keys]
        finally:
            for line in reversed(held):
                line.lock.release()
            self._recount(lines)

    def _line(self, key: LineKey) -> Line:
        with self._lock:
            line = self._lines.setdefault(key, Line())
            self._lines.move_to_end(key)
            return line

    def _recount(self, lines: dict[LineKey, Line]) -> None:
        with self._lock:
            for key, line in lines.items():
                if self._lines.get(key) is line:
                    self._held_bytes += line.size_bytes - line.counted_bytes
                    line.counted_bytes = line.size_bytes
            while self._held_bytes > self._cache_bytes and len(self._lines) > 1:
                self._drop(next(iter(self._lines)))

    def _drop(self, key: LineKey) -> None:
        self._held_bytes -= self._lines.pop(key).counted_bytes

    def forget(self, session: str) -> None:
        """Start cold on every line of a session, because what they remember may not be stored."""
        with self._lock:
            for key in [key for key in self._lines if key.session == session]:
                self._drop(key)

    def remembered(self, key: LineKey, checkpoint: str) -> bytes | None:
        """The content of a checkpoint's body, if it is the newest of its line."""
        with self._lock:
            line = self._lines.get(key)
        state = None if line is None else line.state
        return state.last.content if state is not None and state.last.checkpoint == checkpoint else None


def encode(
    name: str,
    line: LineState | None,
    new: Member,
    *,
    limit: int,
    as_keyframe: bool,
    compress: bool = True,
    shares: Shares | None = None,
) -> tuple[list[Body], LineState]:
    """The records for the next body of a line, and the state after it. Pure.

    `new` carries the blobs its content names; a record lists those that its base does not keep alive already.
    """
    if line is None:
        return _group_start(name, None, new, compress)
    if len(new.content) < PATCH_FLOOR:
        return _group_start(name, None, new, compress)
    number = line.number + 1
    base = line.anchor if number % patch.GROUP_STRIDE == 0 else line.last
    shared = 0 if shares is None or shares.content is not base.content else shares.start
    encoded = (
        None if as_keyframe or limit <= 1 else patch.encode_patch(new.content, base.content, shared=shared)
    )
    if as_keyframe or patch.starts_group(
        members=number,
        limit=limit,
        keyframe_bytes=line.keyframe_bytes_for(len(new.content)),
        patches_bytes=line.group_bytes,
        patch_bytes=None if encoded is None else len(encoded.data),
    ):
        return _group_start(name, line if limit > 1 else None, new, compress)
    assert encoded is not None
    group_bytes = line.group_bytes + len(encoded.data)
    member = new._replace(blobs=new.blobs | base.blobs)
    added = new._replace(blobs=new.blobs - base.blobs)
    body = _record(name, added, encoded, base=base.checkpoint, number=number, group_bytes=group_bytes)
    after = LineState(
        last=member,
        anchor=member if number % patch.GROUP_STRIDE == 0 else line.anchor,
        number=number,
        keyframe_bytes=line.keyframe_bytes,
        keyframe_size=line.keyframe_size,
        group_bytes=group_bytes,
    )
    return [body], after


def _group_start(
    name: str, line: LineState | None, new: Member, compress: bool
) -> tuple[list[Body], LineState]:
    """A keyframe, with a spare against the body before it where that one is small."""
    encoded = patch.encode_keyframe(new.content, compress_it=compress)
    bodies = [_record(name, new, encoded)]
    spare = patch.encode_patch(new.content, line.last.content) if line is not None else None
    if line is not None and spare is not None and len(spare.data) <= len(encoded.data) // 2:
        without_blobs = new._replace(blobs=frozenset())  # a spare is never a reference
        bodies.append(_record(name, without_blobs, spare, base=line.last.checkpoint, is_spare=True))
    return bodies, LineState(
        last=new,
        anchor=new,
        number=0,
        keyframe_bytes=len(encoded.data),
        keyframe_size=len(new.content),
        group_bytes=0,
    )


def _record(
    name: str,
    member: Member,
    encoded: patch.Encoded,
    *,
    base: str | None = None,
    number: int = 0,
    group_bytes: int = 0,
    is_spare: bool = False,
) -> Body:
    return Body(
        checkpoint=member.checkpoint,
        name=name,
        codec=encoded.codec,
        size=len(member.content),
        stored_size=len(encoded.data),
        digest=digest(encoded.data),
        base=base,
        member=number,
        group_bytes=group_bytes,
        is_spare=is_spare,
        blobs=tuple(sorted(member.blobs)),
        data=encoded.data,
    )


def plain(name: str, member: Member) -> Body:
    """A body as it is: for a backend that takes no patches and does its own compression."""
    return _record(name, member, patch.Encoded(patch.RAW, member.content))


def keyframe(name: str, member: Member) -> Body:
    """A body that stands alone."""
    return _record(name, member, patch.encode_keyframe(member.content))


def warm(chain: list[Body], rebuild: Callable[[list[Body]], bytes]) -> LineState:
    """The state of a line whose newest body was read from the store, target first."""
    strides = (at for at, body in enumerate(chain) if body.member % patch.GROUP_STRIDE == 0)
    anchor_at = next(strides, len(chain) - 1)
    last = member_of(chain, rebuild(chain))
    anchor = last if anchor_at == 0 else member_of(chain[anchor_at:], rebuild(chain[anchor_at:]))
    return LineState(
        last=last,
        anchor=anchor,
        number=chain[0].member,
        keyframe_bytes=chain[-1].stored_size,
        keyframe_size=chain[-1].size,
        group_bytes=chain[0].group_bytes,
    )


def member_of(chain: list[Body], content: bytes) -> Member:
    """The member at the top of a chain, with every blob that its records name."""
    return Member(chain[0].checkpoint, content, frozenset(digest for body in chain for digest in body.blobs))
