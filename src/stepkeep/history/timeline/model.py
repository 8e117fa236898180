"""A timeline: the checkpoints of a session as rows of a graph, newest first."""

from __future__ import annotations

from typing import Final, TypeAlias

import msgspec

from stepkeep.model import Branch, Header, Session, Status, TriggerKind

_AUTOMATIC: Final = frozenset({TriggerKind.AUTO, TriggerKind.TIMER})


class Link(msgspec.Struct, frozen=True):
    """A line down to an older row, by its index. It is broken where what lay between is no longer stored."""

    row: int
    is_broken: bool = False


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """One checkpoint. `heads` are the branches that stand here, `forks` those that began here. `is_current` marks
    the head of the current branch. Without `is_match` it is shown only because lines meet in it."""

    header: Header
    stored_bytes: int = 0
    heads: tuple[str, ...] = ()
    forks: tuple[str, ...] = ()
    is_current: bool = False
    is_match: bool = True
    lane: int = 0
    links: tuple[Link, ...] = ()

    @property
    def is_merge(self) -> bool:
        return len(self.header.parents) > 1


class Fold(msgspec.Struct, frozen=True, kw_only=True):
    """So many checkpoints of one branch in a row, with what is pruned and damaged between them. With `is_match`
    they are plain automatic ones; without, the filter left them out."""

    count: int
    branch: str
    first_seq: int
    last_seq: int
    first_step: int | None = None
    last_step: int | None = None
    first_us: int = 0
    last_us: int = 0
    size_bytes: int = 0
    stored_bytes: int = 0
    pruned: int = 0
    damaged: int = 0
    is_match: bool = True
    lane: int = 0
    links: tuple[Link, ...] = ()


class Gap(msgspec.Struct, frozen=True, kw_only=True):
    """So many checkpoints that were removed on purpose, somewhere in this range of seq."""

    count: int
    first_seq: int
    last_seq: int
    lane: int = 0
    links: tuple[Link, ...] = ()


class Damaged(msgspec.Struct, frozen=True, kw_only=True):
    """A checkpoint whose header does not verify: only its place is known."""

    id: str
    seq: int
    branch: str
    lane: int = 0
    links: tuple[Link, ...] = ()


class Rest(msgspec.Struct, frozen=True, kw_only=True):
    """The last row: so many older checkpoints that are not shown. The lines that reach it go on there."""

    count: int
    lane: int = 0
    links: tuple[Link, ...] = ()


Row: TypeAlias = Entry | Fold | Gap | Damaged | Rest


class Timeline(msgspec.Struct, frozen=True, kw_only=True):
    """A session drawn as a graph: rows newest first, in lanes, the line of the current branch in lane 0.

    Every link leads to a later row. `total` counts the intact checkpoints of the session: each is in exactly one
    row, or among the `left_out`, from which nothing shown descends. `damaged` are ids, `pruned` counts what was
    removed on purpose.
    """

    session: Session
    branches: tuple[Branch, ...] = ()
    rows: tuple[Row, ...] = ()
    lanes: int = 0
    total: int = 0
    left_out: int = 0
    pruned: int = 0
    damaged: tuple[str, ...] = ()
    size_bytes: int = 0
    stored_bytes: int = 0

    @property
    def entries(self) -> tuple[Entry, ...]:
        """The checkpoints that have a row of their own."""
        return tuple(row for row in self.rows if isinstance(row, Entry))

    @property
    def first_row(self) -> int | None:
        """The row of the current head, where it is shown: its line has lane 0."""
        rows = enumerate(self.rows)
        return next((at for at, row in rows if isinstance(row, Entry) and row.is_current), None)


def is_plain(header: Header) -> bool:
    """Whether a checkpoint is one of many: saved automatically, under way, not tagged."""
    return header.trigger.kind in _AUTOMATIC and header.status is Status.IN_PROGRESS and not header.tags
