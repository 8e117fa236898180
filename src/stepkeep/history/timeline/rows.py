"""A timeline: the checkpoints of a session as rows of a graph, newest first, and what each row says. Pure."""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import TYPE_CHECKING, Final, TypeAlias

import msgspec

from stepkeep.model import Branch, BranchState, Header, SessionInfo, Status, TriggerKind, from_us
from stepkeep.text import clean, count, size, span

if TYPE_CHECKING:
    from stepkeep.history.timeline.documents import TimelineDocument

_AUTOMATIC: Final = frozenset({TriggerKind.AUTO, TriggerKind.TIMER})


class NodeLink(msgspec.Struct, frozen=True):
    """A line down to an older row, by its index. It is broken where what lay between is no longer stored."""

    row: int
    is_broken: bool = False


class CheckpointNode(msgspec.Struct, frozen=True, kw_only=True):
    """One checkpoint. `heads` are the branches that stand here, `forks` those that began here. `is_current` marks
    the head of the current branch. Without `is_match` it is shown only because lines meet in it."""

    header: Header
    stored_bytes: int = 0
    heads: tuple[str, ...] = ()
    forks: tuple[str, ...] = ()
    is_current: bool = False
    is_match: bool = True
    lane: int = 0
    links: tuple[NodeLink, ...] = ()

    @property
    def is_merge(self) -> bool:
        return len(self.header.parents) > 1


class FoldNode(msgspec.Struct, frozen=True, kw_only=True):
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
    links: tuple[NodeLink, ...] = ()


class GapNode(msgspec.Struct, frozen=True, kw_only=True):
    """So many checkpoints that were removed on purpose, somewhere in this range of seq."""

    count: int
    first_seq: int
    last_seq: int
    lane: int = 0
    links: tuple[NodeLink, ...] = ()


class DamagedNode(msgspec.Struct, frozen=True, kw_only=True):
    """A checkpoint whose header does not verify: only its place is known."""

    id: str
    seq: int
    branch: str
    lane: int = 0
    links: tuple[NodeLink, ...] = ()


class RestNode(msgspec.Struct, frozen=True, kw_only=True):
    """The last row: so many older checkpoints that are not shown. The lines that reach it go on there."""

    count: int
    lane: int = 0
    links: tuple[NodeLink, ...] = ()


Row: TypeAlias = CheckpointNode | FoldNode | GapNode | DamagedNode | RestNode


class Timeline(msgspec.Struct, frozen=True, kw_only=True):
    """A session drawn as a graph: rows newest first, in lanes, the line of the current branch in lane 0.

    Every link leads to a later row. `total` counts the intact checkpoints of the session: each is in exactly one
    row, or among the `left_out`, of which no shown checkpoint is a descendant. `damaged` are ids, `pruned`
    counts what was removed on purpose.
    """

    session: SessionInfo
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
    def entries(self) -> tuple[CheckpointNode, ...]:
        """The checkpoints that have a row of their own."""
        return tuple(row for row in self.rows if isinstance(row, CheckpointNode))

    def document(self) -> TimelineDocument:
        """The same as JSON can hold it."""
        from stepkeep.history.timeline.documents import document_of

        return document_of(self)

    def draw(
        self, *, width: int, is_ascii: bool = False, paint: Callable[[str, str], str] | None = None
    ) -> list[str]:
        """The graph in lines of at most `width` columns, safe for a terminal; `paint` colours a text by its role."""
        from stepkeep.history.timeline.terminal import ASCII, UNICODE, draw

        return draw(self, width=width, glyphs=ASCII if is_ascii else UNICODE, paint=paint)

    @property
    def first_row(self) -> int | None:
        """The row of the current head, where it is shown: its line has lane 0."""
        rows = enumerate(self.rows)
        return next((at for at, row in rows if isinstance(row, CheckpointNode) and row.is_current), None)


def is_plain(header: Header) -> bool:
    """Whether a checkpoint is one of many: saved automatically, under way, not tagged."""
    return header.trigger.kind in _AUTOMATIC and header.status is Status.IN_PROGRESS and not header.tags


_JOINERS: Final = "\u200c\u200d"
_WIDE_EMOJI: Final = "\ufe0f"


def plain(text: str) -> str:
    """The same in ASCII."""
    return text.encode("ascii", "backslashreplace").decode()


def columns(text: str) -> int:
    """How many columns of a terminal a clean text takes, at most."""
    return len(text) if text.isascii() else sum(map(_columns, text))


@lru_cache(maxsize=4096)
def _columns(char: str) -> int:
    if char == _WIDE_EMOJI:
        return 1  # it can make the character before it wide
    if char in _JOINERS or unicodedata.category(char) in ("Mn", "Me"):
        return 0
    return 2 if unicodedata.east_asian_width(char) in "WF" else 1


def cut(text: str, room: int, *, more: str = "…") -> str:
    """As much of a clean text as fits into so many columns; `more` ends what was cut off."""
    if len(text) <= room and columns(text) <= room:
        return text
    room -= columns(more)
    if room < 0:
        return ""
    taken = 0
    for at, char in enumerate(text):
        taken += _columns(char)
        if taken > room:
            return text[:at] + more
    return text


# --- times -----------------------------------------------------------------------------------------------------


def day_and_time(time_us: int, *, is_short: bool) -> str:
    """A time in UTC: to the second as a ref understands it, or short, without the year."""
    when = from_us(time_us)
    return f"{when:%m-%d %H:%M}" if is_short else f"{when:%Y-%m-%d %H:%M:%S}"


# --- sentences -------------------------------------------------------------------------------------------------


def title(timeline: Timeline) -> str:
    """What the session is and holds, in one line."""
    session = timeline.session
    total = count(timeline.total, "checkpoint") if timeline.total or timeline.damaged else "no checkpoint yet"
    facts = [session.status.value, total]
    if len(timeline.branches) > 1:
        facts.append(count(len(timeline.branches), "branch", "branches"))
    if timeline.pruned:
        facts.append(f"{timeline.pruned:,} pruned")
    if timeline.damaged:
        facts.append(f"{len(timeline.damaged):,} damaged")
    if timeline.total:
        facts.append(f"{size(timeline.stored_bytes)} stored")
    return ", ".join(facts)


def fold_text(fold: FoldNode, *, names_branch: bool) -> str:
    """`214 automatic, steps 18–231, 3 h 20 min, 1.2MB stored`."""
    what = "automatic" if fold.is_match else "left out"
    return ", ".join([f"{fold.count:,} {what}{_on(fold, names_branch)}", *_fold_facts(fold)])


def _on(fold: FoldNode, names_branch: bool) -> str:
    return f" on {cut(clean(fold.branch), 24)}" if names_branch and not fold.is_match else ""


def _fold_facts(fold: FoldNode) -> Iterator[str]:
    if fold.pruned:
        yield f"{fold.pruned:,} pruned"
    if fold.damaged:
        yield f"{fold.damaged:,} damaged"
    if fold.first_step is not None:
        is_one = fold.first_step == fold.last_step
        yield f"step {fold.first_step}" if is_one else f"steps {fold.first_step}–{fold.last_step}"
    if length := span(fold.last_us - fold.first_us):
        yield length
    yield f"{size(fold.stored_bytes)} stored"


def gap_text(gap: GapNode) -> str:
    if gap.first_seq == gap.last_seq:
        return f"#{gap.first_seq} pruned"
    return f"{gap.count:,} pruned, #{gap.first_seq}–#{gap.last_seq}"


def rest_text(rest: RestNode) -> str:
    return f"{rest.count:,} older"


def left_out_text(timeline: Timeline) -> str:
    left_out = f"{count(timeline.left_out, 'checkpoint')} left out"
    return f"{left_out} that nothing here descends from" if timeline.rows else f"nothing matches: {left_out}"


def branch_labels(
    entry: CheckpointNode, branches: dict[str, Branch], session: SessionInfo, most: int = 3
) -> list[str]:
    """The branches that stand at a checkpoint, the current one first; those that are closed with their state."""
    names = sorted(entry.heads, key=lambda name: name != session.branch)
    labels = []
    for name in names[:most]:
        record = branches.get(name)
        state = "" if record is None or record.state is BranchState.OPEN else f" {record.state.value}"
        labels.append(f"{cut(clean(name), 24)}{state}")
    return labels + ([f"+{len(names) - most:,}"] if len(names) > most else [])


def tag_labels(entry: CheckpointNode, most: int = 3) -> list[str]:
    tags = entry.header.tags
    labels = [cut(clean(tag), 20) for tag in tags[:most]]
    return labels + ([f"+{len(tags) - most:,}"] if len(tags) > most else [])
