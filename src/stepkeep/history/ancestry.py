"""Where two lines of checkpoints parted: the newest checkpoint that both descend from."""

from __future__ import annotations

import heapq
from collections.abc import Iterator

import msgspec

from stepkeep.engine import Engine, reader
from stepkeep.model import Header
from stepkeep.storage.port import HeaderQuery


class _Reached(msgspec.Struct):
    """A stored checkpoint on the way back, and from which heads it was reached: True if no link is missing."""

    header: Header
    by: dict[str, bool] = {}


def common_ancestor(engine: Engine, ours: Header, theirs: Header) -> Header | None:
    """The newest checkpoint that both descend from; None when there is none, or it was removed.

    Follows parents, so a branch that was merged before is compared with what was merged then. Where pruning
    thinned a line, the walk goes on at the next older checkpoint of that line; when both sides arrive like that,
    the place where they parted is one of those that are gone.
    """
    reached: dict[str, _Reached] = {}
    waiting: list[tuple[int, str]] = []  # the highest seq first: a parent is always older than its child

    def reach(header: Header, head: str, *, is_linked: bool) -> None:
        if header.id not in reached:
            reached[header.id] = _Reached(header)
            heapq.heappush(waiting, (-header.seq, header.id))
        by = reached[header.id].by
        by[head] = by.get(head, False) or is_linked

    for start in (ours, theirs):
        reach(start, start.id, is_linked=True)
    while waiting:
        found = reached[heapq.heappop(waiting)[1]]
        if len(found.by) == 2 or ours.id == theirs.id:
            return found.header if any(found.by.values()) else None
        for older, is_linked in _before(engine, found.header):
            for head in found.by:
                reach(older, head, is_linked=is_linked)
    return None


def _before(engine: Engine, header: Header) -> Iterator[tuple[Header, bool]]:
    """The stored checkpoints that a checkpoint descends from, and whether each is the very next one."""
    parents = [found for parent in header.parents if (found := _find(engine, header, ids=(parent,)))]
    yield from ((parent, True) for parent in parents)
    if len(parents) < len(header.parents):
        yield from _across_the_gap(engine, header)


def _across_the_gap(engine: Engine, header: Header) -> Iterator[tuple[Header, bool]]:
    """The next older checkpoint of the same line. One that a branch was forked at is known to be the very next."""
    name: str | None = header.branch
    max_seq, seen = header.seq - 1, set[str]()
    while name is not None and name not in seen:
        seen.add(name)
        if older := _find(engine, header, branch=name, max_seq=max_seq):
            yield older, False
            return
        record = engine.backend.branch(header.session, name)
        if record is None or record.fork is None:
            return
        if fork := _find(engine, header, ids=(record.fork,)):
            yield fork, True
            return
        name, max_seq = record.fork_branch, record.fork_seq


def _find(
    engine: Engine,
    near: Header,
    *,
    ids: tuple[str, ...] | None = None,
    branch: str | None = None,
    max_seq: int | None = None,
) -> Header | None:
    """The newest of the same session that is stored, or None."""
    query = HeaderQuery(session=near.session, ids=ids, branch=branch, max_seq=max_seq, limit=1)
    row = next(engine.backend.headers(query), None)
    return None if row is None else reader.verified(row)
