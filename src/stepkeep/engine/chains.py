"""How the next body is stored: as a delta against which earlier one, or as a keyframe.

The bodies of one name on one branch form a delta chain: a keyframe, then deltas, each against one of two earlier
bodies. The writer of a branch remembers the contents of those two. Its memory is only a cache: a cold writer rebuilds
it from the store, and a base that is gone by the time of the commit is answered with a keyframe.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from stepkeep.codec import delta
from stepkeep.codec.compression import ZSTD_COMPRESSION, Compression
from stepkeep.codec.incremental import Derived
from stepkeep.codec.integrity import digest
from stepkeep.storage.port import Body

if TYPE_CHECKING:
    from stepkeep.engine.reader import Remembered

CACHE_BYTES: Final = 256 * 1024 * 1024
"""How much content the writers of one engine remember together."""

DELTA_FLOOR: Final = 1024
"""Smaller contents are stored whole: a delta would save less than its base and its place in an index take, and cost
more time."""


class Base(NamedTuple):
    """A stored body that later ones may be deltas against; `blobs` are those its chain of records keeps alive."""

    checkpoint: str
    content: bytes
    blobs: frozenset[str] = frozenset()


class Chain(msgspec.Struct, frozen=True, kw_only=True):
    """Where a delta chain stands: its newest body, and the newest one whose number divides by the stride.

    `stride_shared` bytes at the start of both are known to be the same. `is_bridged` tells that its keyframe has a
    redundant delta.
    """

    last: Base
    stride_base: Base
    stride_shared: int = 0
    number: int
    keyframe_bytes: int
    keyframe_size: int
    delta_bytes: int
    is_bridged: bool


class BranchWriter:
    """The delta chains of one branch by body name, and the lock that keeps bodies in the order of their commits.

    A chain is None where the next body must be a keyframe; a name that is missing was not looked up yet.
    """

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.chains: dict[str, Chain | None] = {}
        self.is_new = False  # of a session that was created here: nothing has to be looked up
        self.head: Remembered | None = None  # the newest checkpoint that was saved here
        self.counted_bytes = 0

    def newest(self, name: str) -> Base | None:
        """The newest body of that name that was saved or read here."""
        chain = self.chains.get(name)
        return None if chain is None else chain.last


class Writers:
    """The writers of an engine, least recently used first; the oldest are forgotten when they take too much memory."""

    def __init__(self, cache_bytes: int = CACHE_BYTES) -> None:
        self._lock = threading.Lock()
        self._writers: OrderedDict[tuple[str, str], BranchWriter] = OrderedDict()
        self._branches: dict[str, set[str]] = {}  # those that have a writer, by session
        self._cache_bytes = cache_bytes
        self._held_bytes = 0

    def get(self, session: str, branch: str) -> BranchWriter:
        with self._lock:
            writer = self._writers.get((session, branch))
            if writer is None:
                writer = self._writers[session, branch] = BranchWriter()
                self._branches.setdefault(session, set()).add(branch)
            self._writers.move_to_end((session, branch))
            return writer

    def recount(self, session: str, branch: str) -> None:
        """Count what a writer remembers by now, and let go of others where all take too much."""
        with self._lock:
            writer = self._writers.get((session, branch))
            if writer is None:
                return
            size = 0
            for chain in writer.chains.values():
                if chain is not None:
                    size += len(chain.last.content) + len(chain.stride_base.content)
            self._held_bytes += size - writer.counted_bytes
            writer.counted_bytes = size
            while self._held_bytes > self._cache_bytes and len(self._writers) > 1:
                self._drop(*next(iter(self._writers)))

    def _drop(self, session: str, branch: str) -> None:
        self._held_bytes -= self._writers.pop((session, branch)).counted_bytes
        self._branches[session].remove(branch)
        if not self._branches[session]:
            del self._branches[session]

    def forget(self, session: str) -> None:
        """Start cold on every branch of a session, because what is remembered may not be stored."""
        with self._lock:
            for branch in tuple(self._branches.get(session, ())):
                self._drop(session, branch)

    def find(self, session: str, branch: str) -> BranchWriter | None:
        """The writer of a branch, if there is one."""
        return self._writers.get((session, branch))

    def newest(self, session: str, branch: str, name: str) -> Base | None:
        """The newest body of that name that was saved or read here."""
        writer = self.find(session, branch)
        return None if writer is None else writer.newest(name)


def encode(
    name: str,
    chain: Chain | None,
    new: Base,
    *,
    limit: int,
    as_keyframe: bool,
    compression: Compression = ZSTD_COMPRESSION,
    derived: Derived | None = None,
) -> tuple[list[Body], Chain]:
    """The records for the next body of a chain, and the chain after it. Pure.

    `new` carries the blobs its content names; a record lists those that its base does not keep alive already.
    """
    if chain is None or len(new.content) < DELTA_FLOOR:
        return _start(name, None, new, compression)
    number = chain.number + 1
    is_stride = number % delta.GROUP_STRIDE == 0
    base = chain.stride_base if is_stride else chain.last
    shared, edits = 0, None
    if derived is not None and derived.before is chain.last.content:
        shared, edits = derived.shared, derived.edits
    stride_shared = shared if chain.last is chain.stride_base else min(shared, chain.stride_shared)
    encoded = beside = None
    if not as_keyframe and limit > 1:
        encoded = beside = _against(chain.last, new, shared, edits, compression)
        if is_stride:
            encoded = _against(base, new, stride_shared, None, compression)
    if encoded is None or delta.starts_group(
        length=number,
        limit=limit,
        # What a keyframe would take now, judging by the chain's own.
        keyframe_bytes=chain.keyframe_bytes * len(new.content) // max(1, chain.keyframe_size),
        deltas_bytes=chain.delta_bytes,
        delta=encoded,
        is_bridged=chain.is_bridged,
        size=len(new.content),
        keyframe_size=chain.keyframe_size,
    ):
        return _start(name, chain if limit > 1 else None, new, compression, beside)
    delta_bytes = chain.delta_bytes + len(encoded.data)
    added = new._replace(blobs=new.blobs - base.blobs) if new.blobs else new
    bodies = [record(name, added, encoded, base=base.checkpoint, number=number, group_bytes=delta_bytes)]
    if is_stride and beside is not None:
        bodies.append(_redundant(name, chain, new, beside))
    last = new._replace(blobs=new.blobs | base.blobs) if base.blobs else new
    after = Chain(
        last=last,
        stride_base=last if is_stride else chain.stride_base,
        stride_shared=stride_shared,
        number=number,
        keyframe_bytes=chain.keyframe_bytes,
        keyframe_size=chain.keyframe_size,
        delta_bytes=delta_bytes,
        is_bridged=chain.is_bridged,
    )
    return bodies, after


def _against(
    base: Base, new: Base, shared: int, edits: list[delta.Edit] | None, compression: Compression
) -> delta.Encoded | None:
    """A delta against one base; of the two contents it is known with how many bytes they begin, or how they differ."""
    if edits is not None:
        return delta.encode_edits(edits, base.content, compression)
    return delta.encode_delta(new.content, base.content, shared=shared, compression=compression)


def _start(
    name: str, chain: Chain | None, new: Base, compression: Compression, beside: delta.Encoded | None = None
) -> tuple[list[Body], Chain]:
    """A keyframe, with a redundant delta against the body before it where that one is small."""
    encoded = delta.encode_keyframe(new.content, compression)
    bodies = [record(name, new, encoded)]
    if chain is not None:
        beside = beside or _against(chain.last, new, 0, None, compression)
        if beside is not None and len(beside.data) <= len(encoded.data) // 2:
            bodies.append(_redundant(name, chain, new, beside))
    return bodies, Chain(
        last=new,
        stride_base=new,
        number=0,
        keyframe_bytes=len(encoded.data),
        keyframe_size=len(new.content),
        delta_bytes=0,
        is_bridged=len(bodies) > 1,
    )


def _redundant(name: str, chain: Chain, new: Base, beside: delta.Encoded) -> Body:
    """A second record of a body that many are based on: its delta against its neighbour."""
    without_blobs = new._replace(blobs=frozenset())  # a redundant delta is never a reference
    return record(name, without_blobs, beside, base=chain.last.checkpoint, is_redundant=True)


def record(
    name: str,
    new: Base,
    encoded: delta.Encoded,
    *,
    base: str | None = None,
    number: int = 0,
    group_bytes: int = 0,
    is_redundant: bool = False,
) -> Body:
    """How encoded content is stored."""
    return Body(
        checkpoint=new.checkpoint,
        name=name,
        codec=encoded.codec,
        size=len(new.content),
        stored_size=len(encoded.data),
        digest=digest(encoded.data),
        base=base,
        position=number,
        group_bytes=group_bytes,
        is_redundant=is_redundant,
        blobs=tuple(sorted(new.blobs)) if new.blobs else (),
        data=encoded.data,
    )


def keyframe(name: str, new: Base, compression: Compression) -> Body:
    """A body that stands alone."""
    return record(name, new, delta.encode_keyframe(new.content, compression))


def plain(name: str, new: Base) -> Body:
    """A body as it is: for a backend that takes no deltas and does its own compression."""
    return record(name, new, delta.Encoded(delta.RAW, new.content))


def from_records(links: list[Body], *, is_bridged: bool) -> Chain:
    """The chain whose newest body was read from the store, target first."""
    strides = (at for at, body in enumerate(links) if body.position % delta.GROUP_STRIDE == 0)
    stride_at = next(strides, len(links) - 1)
    last = base_of(links, delta.rebuild(links))
    stride_base = last if stride_at == 0 else base_of(links[stride_at:], delta.rebuild(links[stride_at:]))
    return Chain(
        last=last,
        stride_base=stride_base,
        number=links[0].position,
        keyframe_bytes=links[-1].stored_size,
        keyframe_size=links[-1].size,
        delta_bytes=links[0].group_bytes,
        is_bridged=is_bridged,
    )


def base_of(links: list[Body], content: bytes) -> Base:
    """The body at the top of a chain, with every blob that its records name."""
    return Base(links[0].checkpoint, content, frozenset(digest for body in links for digest in body.blobs))
