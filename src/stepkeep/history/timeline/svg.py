"""A timeline as a picture: one SVG file that needs nothing else, readable on light and dark pages. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from stepkeep.history.timeline import CheckpointNode, Node, Timeline, branch_labels, node_text
from stepkeep.history.timeline.lanes import LaneChange, Strip, strips_of
from stepkeep.model import Status
from stepkeep.text import clean, columns, cut, size

WIDTH: Final = 920
ROW: Final = 28
LANE: Final = 20
MAX_LANES: Final = 12
MARGIN: Final = 24
COLOURS: Final = 6
COLUMN_GAP: Final = 16
CHARACTER: Final = 6.9
"""The width of a character of the 11.5 px monospace font, and about that of a 13 px proportional one."""

STYLE: Final = """\
text { font: 13px system-ui, -apple-system, 'Segoe UI', 'DejaVu Sans', sans-serif; fill: #1f2328; }
.page { fill: #ffffff; stroke: #d1d9e0; }
.title { font-size: 16px; font-weight: 600; } .small { font-size: 11px; }
.mono { font: 11.5px ui-monospace, Menlo, Consolas, 'DejaVu Sans Mono', monospace; }
.faint { fill: #59636e; } .bad { fill: #cf222e; } .good { fill: #1a7f37; } .end { text-anchor: end; }
.line { fill: none; stroke-width: 2; } .broken { stroke-dasharray: 3 4; }
.mark { stroke-width: 2; } .hollow { fill: #ffffff; } .cut { fill: none; stroke: #ffffff; stroke-width: 1.6; }
.s0 { stroke: #0969da; } .s1 { stroke: #bc4c00; } .s2 { stroke: #8250df; }
.s3 { stroke: #1b7c83; } .s4 { stroke: #bf3989; } .s5 { stroke: #7d6b00; }
.f0 { fill: #0969da; } .f1 { fill: #bc4c00; } .f2 { fill: #8250df; }
.f3 { fill: #1b7c83; } .f4 { fill: #bf3989; } .f5 { fill: #7d6b00; }
.red { fill: #cf222e; stroke: #cf222e; } .green { fill: #1a7f37; stroke: #1a7f37; }
.pill { fill: none; stroke-width: 1.2; } .on { fill: #ffffff; }
.tag { fill: #eaeef2; }
@media (prefers-color-scheme: dark) {
text { fill: #e6edf3; } .page { fill: #0d1117; stroke: #3d444d; } .faint { fill: #9198a1; }
.bad { fill: #ff7b72; } .good { fill: #3fb950; } .hollow { fill: #0d1117; } .cut { stroke: #0d1117; }
.s0 { stroke: #58a6ff; } .s1 { stroke: #f0883e; } .s2 { stroke: #bc8cff; }
.s3 { stroke: #39c5cf; } .s4 { stroke: #f778ba; } .s5 { stroke: #d4b106; }
.f0 { fill: #58a6ff; } .f1 { fill: #f0883e; } .f2 { fill: #bc8cff; }
.f3 { fill: #39c5cf; } .f4 { fill: #f778ba; } .f5 { fill: #d4b106; }
.red { fill: #ff7b72; stroke: #ff7b72; } .green { fill: #3fb950; stroke: #3fb950; }
.on { fill: #0d1117; } .tag { fill: #2d333b; }
}
"""


def picture(timelines: Sequence[Timeline]) -> str:
    """The timelines below each other as one SVG document. It has no scripts and refers to nothing outside."""
    parts: list[str] = []
    top = float(MARGIN)
    for timeline in timelines:
        drawing = _SvgDrawing(timeline, top)
        parts += drawing.parts()
        top = drawing.bottom + MARGIN
    height = round(top) + 14
    label = _escape(", ".join(clean(timeline.session) for timeline in timelines[:3]) or "nothing")
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" '
            f'viewBox="0 0 {WIDTH} {height}" role="img">',
            f"<title>Timeline of {label}</title>",
            f"<style>\n{STYLE}</style>",
            f'<rect class="page" x="0.5" y="0.5" width="{WIDTH - 1}" height="{height - 1}" rx="8"/>',
            *parts,
            *_legend(height - 18),
            "</svg>\n",
        ]
    )


class _SvgDrawing:
    """One session: its title, the names of the columns, the rows."""

    def __init__(self, timeline: Timeline, top: float) -> None:
        self._timeline = timeline
        self._branches = {branch.name: branch for branch in timeline.branches}
        self._top = top
        self._lanes, self._strips = strips_of(timeline, most=MAX_LANES)
        self._first_row = top + 56
        self._start = MARGIN + self._lanes * LANE + 10
        self._ends = _column_ends(timeline.entries, self._start)

    @property
    def bottom(self) -> float:
        return self._first_row + (len(self._timeline.rows) + bool(self._timeline.left_out)) * ROW

    def parts(self) -> Iterator[str]:
        timeline = self._timeline
        yield _text(MARGIN, self._top + 8, cut(clean(timeline.session), 60), "title")
        facts = cut(timeline.title, int((WIDTH - 2 * MARGIN) / CHARACTER))
        yield _text(MARGIN, self._top + 28, facts, "faint")
        yield from self._column_titles()
        for at, strip in enumerate(self._strips):
            yield from _lines(strip, self._y(at))
        for at, (row, strip) in enumerate(zip(timeline.rows, self._strips, strict=True)):
            yield from _mark(row.mark, _x(strip.column), self._y(at), strip.column % COLOURS)
            yield from self._words(row, self._y(at) + 4, strip.column % COLOURS)
        if timeline.left_out:
            yield _text(self._start, self._y(len(self._strips)) + 4, timeline.left_out_text, "mono faint")

    def _column_titles(self) -> Iterator[str]:
        if not self._timeline.entries:
            return
        titles = ("time (UTC)", "step", "size", "stored")
        for title, end, before in zip(titles, self._ends[1:], self._ends, strict=False):
            if end > before:
                yield _text(end, self._first_row - 4, title, "small faint end")

    def _y(self, at: int) -> float:
        return self._first_row + at * ROW + ROW / 2

    def _words(self, row: Node, y: float, colour: int) -> Iterator[str]:
        if isinstance(row, CheckpointNode):
            yield from self._facts(row, y)
            yield from self._labels(row, y, colour)
        else:
            text = node_text(row, names_branch=len(self._branches) > 1)
            yield _text(self._start, y, text, "mono bad" if row.is_bad else "mono faint")

    def _facts(self, entry: CheckpointNode, y: float) -> Iterator[str]:
        checkpoint = entry.checkpoint
        yield _text(self._start, y, str(checkpoint.seq), "mono")
        facts = (
            f"{checkpoint.time:%Y-%m-%d %H:%M}",
            None if checkpoint.step is None else str(checkpoint.step),
            size(checkpoint.size_bytes),
            size(checkpoint.stored_bytes),
        )
        for fact, end in zip(facts, self._ends[1:], strict=True):
            if fact is not None:
                yield _text(end, y, fact, "mono faint end")

    def _labels(self, entry: CheckpointNode, y: float, colour: int) -> Iterator[str]:
        """Branches, status and tags in frames, then as much of the message as there is room for."""
        checkpoint, x = entry.checkpoint, self._ends[-1] + 20
        labels = [
            (label, f"f{colour}", "mono on")
            if entry.is_current
            else (label, f"pill s{colour}", f"mono f{colour}")
            for label in branch_labels(entry, self._branches)
        ]
        if checkpoint.status is not Status.IN_PROGRESS:
            is_good = checkpoint.status in (Status.COMPLETED, Status.PAUSED)
            labels.append((checkpoint.status.value, "green" if is_good else "red", "mono on"))
        labels += [(label, "tag", "mono") for label in entry.tag_labels()]
        for label, frame, kind in labels:
            yield from _pill(x, y, label, frame, kind)
            x += _pill_width(label) + 8
        room = int((WIDTH - MARGIN - x) / CHARACTER)
        if checkpoint.message and room > 3:
            yield _text(x, y, cut(clean(checkpoint.message[:WIDTH]), room), "message")


def _column_ends(entries: Sequence[CheckpointNode], start: float) -> tuple[float, ...]:
    """Where the columns of facts end: number, time, step, size, stored size. One without facts takes no room."""
    shown = [entry.checkpoint for entry in entries]
    steps = [len(str(each.step)) for each in shown if each.step is not None]
    widths = (
        max([3, *(len(str(each.seq)) for each in shown)]),
        16,
        max([4, *steps]) if steps else 0,
        max([4, *(len(size(each.size_bytes)) for each in shown)]),
        max([6, *(len(size(each.stored_bytes)) for each in shown)]),
    )
    ends: list[float] = []
    for width in widths:
        space = COLUMN_GAP if ends and width else 0
        start += width * CHARACTER + space
        ends.append(round(start, 1))
    return tuple(ends)


def _lines(strip: Strip, y: float) -> Iterator[str]:
    """What runs from a row to the next one."""
    for column, is_broken in strip.below.items():
        if column in strip.lines:
            yield _path(f"M{_x(column)} {y:g}v{ROW}", column, is_broken)
    for move in strip.moves:
        yield _path(_curve(move, y), max(move.source, move.target), move.is_broken)


def _x(column: int) -> int:
    return MARGIN + 8 + column * LANE


def _curve(move: LaneChange, y: float) -> str:
    source, target = _x(move.source), _x(move.target)
    return f"M{source} {y}C{source} {y + ROW * 0.6:.1f} {target} {y + ROW * 0.4:.1f} {target} {y + ROW}"


def _path(shape: str, column: int, is_broken: bool) -> str:
    return f'<path class="line s{column % COLOURS}{" broken" if is_broken else ""}" d="{shape}"/>'


def _escape(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def _text(x: float, y: float, text: str, kind: str) -> str:
    return f'<text class="{kind}" x="{x:g}" y="{y:g}">{_escape(text)}</text>'


def _pill_width(label: str) -> float:
    return columns(label) * CHARACTER + 12


def _pill(x: float, y: float, label: str, kind: str, text_kind: str) -> Iterator[str]:
    width = _pill_width(label)
    yield f'<rect class="{kind}" x="{x:g}" y="{y - 13:g}" width="{width:g}" height="18" rx="9"/>'
    # The length is given, so that the text fills its frame in whichever font is there.
    yield (
        f'<text class="{text_kind}" x="{x + 6:g}" y="{y:g}" textLength="{width - 12:g}" '
        f'lengthAdjust="spacingAndGlyphs">{_escape(label)}</text>'
    )


def _mark(mark: str, x: float, y: float, colour: int) -> Iterator[str]:
    match mark:
        case "fold":
            yield f'<rect class="hollow" x="{x - 5:g}" y="{y - 9:g}" width="10" height="18"/>'
            for offset in (-5, 0, 5):
                yield f'<circle class="f{colour}" cx="{x:g}" cy="{y + offset:g}" r="1.7"/>'
        case "gap":
            yield f'<rect class="hollow" x="{x - 4:g}" y="{y - 3:g}" width="8" height="6"/>'
        case "damaged":
            yield f'<path class="red" d="M{x:g} {y - 6:g}l6 11h-12z"/>'
        case "failed":
            yield _circle(x, y, 6, "red")
            yield f'<path class="cut" d="M{x - 2.5:g} {y - 2.5:g}l5 5m0 -5l-5 5"/>'
        case "completed":
            yield _circle(x, y, 6, "green")
            yield f'<path class="cut" d="M{x - 3:g} {y:g}l2.2 2.4l3.8 -4.6"/>'
        case "paused":
            yield _circle(x, y, 6, f"hollow s{colour}")
            yield f'<path class="line s{colour}" d="M{x - 2:g} {y - 2.5:g}v5m4 -5v5"/>'
        case "merge":
            yield f'<path class="mark f{colour} s{colour}" d="M{x:g} {y - 6:g}l6 6l-6 6l-6 -6z"/>'
        case _:
            yield _circle(x, y, 5, f"{f'f{colour}' if mark == 'manual' else 'hollow'} s{colour}")


def _circle(x: float, y: float, radius: int, kind: str) -> str:
    return f'<circle class="mark {kind}" cx="{x:g}" cy="{y:g}" r="{radius}"/>'


def _legend(y: float) -> Iterator[str]:
    x = float(MARGIN + 8)
    for text in ("automatic", "by hand", "merge", "failed", "completed", "something pruned"):
        if text == "something pruned":
            yield f'<path class="line broken s0" d="M{x:g} {y - 6:g}v12"/>'
        else:
            yield next(_mark("manual" if text == "by hand" else text, x, y, 0))
        yield _text(x + 12, y + 4, text, "mono faint")
        x += 12 + len(text) * CHARACTER + 24
