"""A timeline as lines of text for a terminal. Pure: the caller says how wide it is, and what it can show."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Final, NamedTuple

from stepkeep.history.timeline import CheckpointNode, Node, Timeline, branch_labels, node_text
from stepkeep.history.timeline.lanes import Strip, strips_of
from stepkeep.model import Status
from stepkeep.text import clean, columns, cut, size

WIDE: Final = 120
SECONDS: Final = 100
"""From so many columns on a time has its seconds."""
"""From so many columns on there is room for whole times and wide gaps."""

Paint = Callable[[str, str], str]
"""(text, role) -> the text in the colour of that role. Roles: `lane0` and so on, `title`, `faint`, `manual`, `branch`,
`current`, `tag`, `bad`, `good`, `text`."""


class Glyphs(NamedTuple):
    """What lines and marks look like. `joints` are by what meets there: up, down, left, right."""

    joints: dict[str, str]
    marks: dict[str, str]
    broken: str
    broken_across: str
    here: str
    more: str


def _glyphs(joints: str, marks: str, *lines: str) -> Glyphs:
    meetings = ["u", "d", "l", "r", "ud", "lr", "dr", "dl", "ur", "ul", "udr", "udl", "dlr", "ulr", "udlr"]
    names = ["automatic", "manual", "merge", "failed", "completed", "paused", "fold", "gap", "damaged"]
    return Glyphs(
        {"": " ", **dict(zip(meetings, joints, strict=True))}, dict(zip(names, marks, strict=True)), *lines
    )


UNICODE: Final = _glyphs("╵╷──│─╭╮╰╯├┤┬┴┼", "○●◆✗✓‖⋮◌!", "┆", "╌", "◀ current", "…")
ASCII: Final = _glyphs("||--|-/\\\\/+++++", "o*Mxv=:~!", ".", ".", "<- current", "...")


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
        self._table = _Table(timeline, width)
        # A lane takes two columns; three quarters of the line are for words.
        self._lanes, self._strips = strips_of(timeline, most=max(width // 8, 1))

    def lines(self) -> Iterator[list[Piece]]:
        timeline = self._timeline
        key, title = clean(timeline.session), timeline.title
        if columns(f"{key}: {title}") <= self._width:
            yield [Piece(key, "title"), Piece(f": {title}", "faint")]
        else:  # the key is never cut for what stands behind it
            yield [Piece(key, "title")]
            yield [Piece(title, "faint")]
        if timeline.task:
            yield [Piece(clean(timeline.task), "text")]
        indent = Piece(" " * (2 * self._lanes))
        if timeline.entries:
            yield [indent, Piece(self._table.titles, "faint")]
        if timeline.left_out:
            yield [indent, Piece(timeline.left_out_text, "faint")]
        for row, strip in zip(timeline.rows, self._strips, strict=True):
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
        if self._glyphs is UNICODE:
            return text
        return text.replace("–", "-").encode("ascii", "backslashreplace").decode()

    # --- the graph

    def _graph(self, row: Node, strip: Strip) -> Iterator[Piece]:
        for column in range(self._lanes):
            role = f"lane{column}"
            if column == strip.column:
                is_bad = row.mark in ("failed", "damaged")
                yield Piece(self._glyphs.marks[row.mark], "bad" if is_bad else role)
            elif column in strip.lines:
                yield Piece(self._vertical(strip.lines[column]), role)
            else:
                yield Piece(" ")
            yield Piece(" ")

    def _vertical(self, is_broken: bool) -> str:
        return self._glyphs.broken if is_broken else self._glyphs.joints["ud"]

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

    def _words(self, row: Node) -> Iterator[Piece]:
        if isinstance(row, CheckpointNode):
            yield from self._entry(row)
        else:
            yield Piece(
                node_text(row, names_branch=len(self._branches) > 1), "bad" if row.is_bad else "faint"
            )

    def _entry(self, entry: CheckpointNode) -> Iterator[Piece]:
        yield Piece(self._table.cells(entry), "text" if entry.is_match else "faint")
        gap = Piece(" " * self._table.gap)
        if (status := entry.checkpoint.status) is not Status.IN_PROGRESS:
            yield gap
            yield Piece(status.value, "good" if status is Status.COMPLETED else "bad")
        for label in branch_labels(entry, self._branches):
            yield gap
            yield Piece(f"[{label}]", "branch")
        if entry.is_current:
            yield Piece(f" {self._glyphs.here}", "current")
        if tags := entry.tag_labels():
            yield gap
            yield Piece(f"tag:{','.join(tags)}", "tag")
        if entry.checkpoint.message:
            yield gap
            yield Piece(clean(entry.checkpoint.message[: self._width]), "text")


class _Table:
    """The facts of checkpoints in columns: number, time, step, sizes, why."""

    def __init__(self, timeline: Timeline, width: int) -> None:
        entries = timeline.entries
        years = {entry.checkpoint.time.year for entry in entries}
        self._is_wide = width >= WIDE
        self._time = "%Y-%m-%d %H:%M:%S"
        if not self._is_wide and len(years) <= 1:
            self._time = "%m-%d %H:%M:%S" if width >= SECONDS else "%m-%d %H:%M"
        self.gap = 2 if self._is_wide else 1
        rows = [self._facts(entry) for entry in entries]
        names = ["SEQ", "TIME (UTC)", "STEP", "SIZE", "STORED", "FILES", "WHY"]
        self._hidden = {
            at
            for at, is_used in (
                (2, any(entry.checkpoint.step is not None for entry in entries)),
                (5, any(entry.checkpoint.files is not None for entry in entries)),
            )
            if not is_used
        }
        self._widths = [max(columns(row[at]) for row in [names, *rows]) for at in range(len(names))]
        self.titles = self._line(names)

    def cells(self, entry: CheckpointNode) -> str:
        return self._line(self._facts(entry))

    def _facts(self, entry: CheckpointNode) -> list[str]:
        checkpoint = entry.checkpoint
        why = checkpoint.trigger.kind.value
        if self._is_wide and checkpoint.trigger.event:
            why += f" {cut(clean(checkpoint.trigger.event), 20)}"
        return [
            str(checkpoint.seq),
            checkpoint.time.strftime(self._time),
            "" if checkpoint.step is None else str(checkpoint.step),
            size(checkpoint.size_bytes),
            size(checkpoint.stored_bytes),
            "" if checkpoint.files is None else f"{checkpoint.files:,} ({size(checkpoint.files_bytes)})",
            why,
        ]

    def _line(self, cells: Iterable[str]) -> str:
        padded = []
        for at, (cell, width) in enumerate(zip(cells, self._widths, strict=True)):
            if at in self._hidden:
                continue
            space = " " * (width - columns(cell))
            padded.append(cell + space if at in (1, 6) else space + cell)
        return (" " * self.gap).join(padded)
