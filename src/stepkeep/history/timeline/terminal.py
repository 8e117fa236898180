"""A timeline as lines of text for a terminal. Pure: the caller says how wide it is, and what it can show."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Final, NamedTuple

from stepkeep.history.timeline import rows
from stepkeep.history.timeline.layout import Strip, lay, strips
from stepkeep.history.timeline.rows import (
    CheckpointNode,
    DamagedNode,
    FoldNode,
    GapNode,
    RestNode,
    Row,
    Timeline,
    columns,
    cut,
)
from stepkeep.model import Status, TriggerKind
from stepkeep.text import clean, size

WIDE: Final = 120
"""From so many columns on there is room for whole times and wide gaps."""

Paint = Callable[[str, str], str]
"""(text, role) -> the text in the colour of that role. Roles: `lane0` and so on, `title`, `faint`, `manual`, `branch`,
`current`, `tag`, `bad`, `good`, `text`."""


class Glyphs(NamedTuple):
    """What lines and marks look like. `joints` are by what meets there: up, down, left, right."""

    joints: dict[str, str]
    broken: str
    broken_across: str
    automatic: str
    manual: str
    merge: str
    failed: str
    completed: str
    paused: str
    fold: str
    gap: str
    damaged: str
    here: str
    more: str


UNICODE: Final = Glyphs(
    joints={
        "": " ", "u": "╵", "d": "╷", "l": "─", "r": "─", "ud": "│", "lr": "─",
        "dr": "╭", "dl": "╮", "ur": "╰", "ul": "╯",
        "udr": "├", "udl": "┤", "dlr": "┬", "ulr": "┴", "udlr": "┼",
    },
    broken="┆", broken_across="╌",
    automatic="○", manual="●", merge="◆", failed="✗", completed="✓", paused="‖",
    fold="⋮", gap="◌", damaged="!", here="◀ current", more="…",
)  # fmt: skip
ASCII: Final = Glyphs(
    joints={
        "": " ", "u": "|", "d": "|", "l": "-", "r": "-", "ud": "|", "lr": "-",
        "dr": "/", "dl": "\\", "ur": "\\", "ul": "/",
        "udr": "+", "udl": "+", "dlr": "+", "ulr": "+", "udlr": "+",
    },
    broken=".", broken_across=".",
    automatic="o", manual="*", merge="M", failed="x", completed="v", paused="=",
    fold=":", gap="~", damaged="!", here="<- current", more="...",
)  # fmt: skip


class Piece(NamedTuple):
    text: str
    role: str = "text"


def draw(
    timeline: Timeline, *, width: int, glyphs: Glyphs = UNICODE, paint: Paint | None = None
) -> list[str]:
    """The timeline in lines of at most `width` columns. Whatever texts hold, a line is one line and harmless."""
    drawing = _TerminalDrawing(timeline, width, glyphs)
    return [drawing.finish(pieces, paint) for pieces in drawing.lines()]


class _TerminalDrawing:
    def __init__(self, timeline: Timeline, width: int, glyphs: Glyphs) -> None:
        self._timeline = timeline
        self._width = width
        self._glyphs = glyphs
        self._branches = {branch.name: branch for branch in timeline.branches}
        self._table = _Table(timeline, is_wide=width >= WIDE)
        # A lane takes two columns; three quarters of the line are for words.
        self._lanes = min(max(timeline.lanes, 1), max(width // 8, 1))

    def lines(self) -> Iterator[list[Piece]]:
        timeline = self._timeline
        key = cut(clean(timeline.session.key), self._width // 2)
        yield [Piece(key, "title"), Piece(f": {rows.title(timeline)}", "faint")]
        indent = Piece(" " * (2 * self._lanes))
        if timeline.entries:
            yield [indent, Piece(self._table.titles, "faint")]
        if timeline.left_out:
            yield [indent, Piece(rows.left_out_text(timeline), "faint")]
        places = lay([row.links for row in timeline.rows], first=timeline.first_row)
        for row, strip in zip(timeline.rows, strips(places, columns=self._lanes), strict=True):
            yield [*self._graph(row, strip), *self._words(row)]
            if strip.moves:
                yield self._joints(strip)

    def finish(self, pieces: Iterable[Piece], paint: Paint | None) -> str:
        """One line: cut to the width, without blanks at its end, painted last."""
        room = self._width
        done: list[Piece] = []
        for text, role in pieces:
            text = cut(self._encodable(text), room, more=self._glyphs.more)
            room -= columns(text)
            done.append(Piece(text, role))
        while done and not done[-1].text.strip():
            done.pop()
        if done:
            done[-1] = Piece(done[-1].text.rstrip(), done[-1].role)
        return "".join(
            text if paint is None or not text.strip() else paint(text, role) for text, role in done
        )

    def _encodable(self, text: str) -> str:
        return text if self._glyphs is UNICODE else rows.plain(text.replace("–", "-"))

    # --- the graph

    def _graph(self, row: Row, strip: Strip) -> Iterator[Piece]:
        for column in range(self._lanes):
            role = f"lane{column}"
            if column == strip.column:
                yield Piece(self._mark(row), _mark_role(row) or role)
            elif column in strip.lines:
                yield Piece(self._vertical(strip.lines[column]), role)
            else:
                yield Piece(" ")
            yield Piece(" ")

    def _vertical(self, is_broken: bool) -> str:
        return self._glyphs.broken if is_broken else self._glyphs.joints["ud"]

    def _mark(self, row: Row) -> str:
        glyphs = self._glyphs
        match row:
            case CheckpointNode():
                return _entry_mark(row, glyphs)
            case FoldNode() | RestNode():
                return glyphs.fold
            case GapNode():
                return glyphs.gap
            case DamagedNode():
                return glyphs.damaged

    def _joints(self, strip: Strip) -> list[Piece]:
        """The line below a row on which lines change their lanes."""
        ends = {move.source for move in strip.moves} | {move.target for move in strip.moves}
        across: dict[int, bool] = {}  # the gap right of a column -> whether the line over it is broken
        for move in strip.moves:
            low, high = sorted((move.source, move.target))
            for column in range(low, high):
                across[column] = across.get(column, True) and move.is_broken
        pieces: list[Piece] = []
        for column in range(self._lanes):
            pieces.append(self._joint(column, strip, across, is_end=column in ends))
            pieces.append(self._crossing(column, across))
        return pieces

    def _joint(self, column: int, strip: Strip, across: dict[int, bool], *, is_end: bool) -> Piece:
        role = f"lane{column}"
        is_above, is_below = column in strip.lines, column in strip.below
        if not is_end:
            if is_above or is_below:  # it passes over what moves
                return Piece(self._vertical(strip.below.get(column, strip.lines.get(column, False))), role)
            return self._crossing(column, across) if column - 1 in across else Piece(" ")
        meeting = "u" * is_above + "d" * is_below + "l" * (column - 1 in across) + "r" * (column in across)
        return Piece(self._glyphs.joints[meeting], role)

    def _crossing(self, column: int, across: dict[int, bool]) -> Piece:
        if column not in across:
            return Piece(" ")
        return Piece(
            self._glyphs.broken_across if across[column] else self._glyphs.joints["lr"], f"lane{column}"
        )

    # --- the words

    def _words(self, row: Row) -> Iterator[Piece]:
        match row:
            case CheckpointNode():
                yield from self._entry(row)
            case FoldNode():
                text = rows.fold_text(row, names_branch=len(self._branches) > 1)
                yield Piece(text, "bad" if row.damaged else "faint")
            case GapNode():
                yield Piece(rows.gap_text(row), "faint")
            case RestNode():
                yield Piece(rows.rest_text(row), "faint")
            case DamagedNode():
                yield Piece(f"#{row.seq} damaged header: run stepkeep verify", "bad")

    def _entry(self, entry: CheckpointNode) -> Iterator[Piece]:
        yield Piece(self._table.cells(entry), "text" if entry.is_match else "faint")
        gap = Piece(" " * self._table.gap)
        if (status := entry.header.status) is not Status.IN_PROGRESS:
            yield gap
            yield Piece(status.value, "good" if status is Status.COMPLETED else "bad")
        for label in rows.branch_labels(entry, self._branches, self._timeline.session):
            yield gap
            yield Piece(f"[{label}]", "branch")
        if entry.is_current:
            yield Piece(f" {self._glyphs.here}", "current")
        if tags := rows.tag_labels(entry):
            yield gap
            yield Piece(f"tag:{','.join(tags)}", "tag")
        if entry.header.message:
            yield gap
            yield Piece(clean(entry.header.message[: self._width]), "text")


class _Table:
    """The facts of checkpoints in columns: number, time, step, sizes, why."""

    def __init__(self, timeline: Timeline, *, is_wide: bool) -> None:
        entries = timeline.entries
        years = {entry.header.created_at.year for entry in entries}
        self._is_short = not is_wide and len(years) <= 1
        self._is_wide = is_wide
        self.gap = 2 if is_wide else 1
        rows = [self._facts(entry) for entry in entries]
        names = ["SEQ", "TIME (UTC)", "STEP", "SIZE", "STORED", "WHY"]
        self._has_steps = any(entry.header.step is not None for entry in entries)
        self._widths = [max(columns(row[at]) for row in [names, *rows]) for at in range(len(names))]
        self.titles = self._line(names)

    def cells(self, entry: CheckpointNode) -> str:
        return self._line(self._facts(entry))

    def _facts(self, entry: CheckpointNode) -> list[str]:
        header = entry.header
        why = header.trigger.kind.value
        if self._is_wide and header.trigger.event:
            why += f" {cut(clean(header.trigger.event), 20)}"
        return [
            f"#{header.seq}",
            rows.day_and_time(header.time_us, is_short=self._is_short),
            "" if header.step is None else str(header.step),
            size(header.size_bytes),
            size(entry.stored_bytes),
            why,
        ]

    def _line(self, cells: Iterable[str]) -> str:
        padded = []
        for at, (cell, width) in enumerate(zip(cells, self._widths, strict=True)):
            if at == 2 and not self._has_steps:
                continue
            space = " " * (width - columns(cell))
            padded.append(cell + space if at in (1, 5) else space + cell)
        return (" " * self.gap).join(padded)


def _entry_mark(entry: CheckpointNode, glyphs: Glyphs) -> str:
    header = entry.header
    if header.status is not Status.IN_PROGRESS:
        return _status_mark(header.status, glyphs)
    if header.trigger.kind is TriggerKind.ERROR:
        return glyphs.failed
    if entry.is_merge:
        return glyphs.merge
    return glyphs.manual if header.trigger.kind is TriggerKind.MANUAL else glyphs.automatic


def _status_mark(status: Status, glyphs: Glyphs) -> str:
    match status:
        case Status.COMPLETED:
            return glyphs.completed
        case Status.PAUSED:
            return glyphs.paused
        case _:
            return glyphs.failed


def _mark_role(row: Row) -> str | None:
    match row:
        case DamagedNode():
            return "bad"
        case CheckpointNode() if row.header.status in (Status.FAILED, Status.CANCELLED):
            return "bad"
        case CheckpointNode() if row.header.trigger.kind is TriggerKind.ERROR:
            return "bad"
        case _:
            return None
