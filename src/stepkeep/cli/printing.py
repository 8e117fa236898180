"""How things look on a terminal: times, checkpoints, problems, tables, JSON, progress."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import datetime
from itertools import zip_longest
from typing import Any, Final, Literal

import click

from stepkeep import api
from stepkeep.text import clean, clean_json, clean_lines, count, indented, size

MAX_CELL: Final = 35
"""The width of an id. Longer texts in a table on a terminal are cut off, except in the last column."""
MAX_NARROW_CELL: Final = 20
LEAST_CELL: Final = 8
NARROW: Final = 100
"""Terminals with fewer columns get no room for whole ids in tables."""

SIGN_COLOURS: Final = {"+": "green", "-": "red", "~": "yellow", ">": "cyan"}
"""By the sign of a change in a state."""

_FILES: Final = {
    "added": ("A", "green"),
    "removed": ("D", "red"),
    "changed": ("M", "yellow"),
    "mode": ("m", "yellow"),
}


def moment(when: datetime) -> str:
    """The time in UTC, as a ref understands it."""
    return when.isoformat(" ", "seconds")[:19]  # several times faster than strftime


def ratio(value: float | None) -> str:
    """How many times smaller it is stored."""
    return "-" if value is None else f"{value:.1f}x"


def numbered(each: api.CheckpointInfo) -> str:
    """A checkpoint by its number and time."""
    return f"checkpoint {each.seq} ({moment(each.time)})"


def checkpoint_row(each: api.CheckpointInfo) -> dict[str, str]:
    """A checkpoint in a table, which leaves out what it does not show."""
    return {
        "session": each.session,
        "seq": str(each.seq),
        "checkpoint": each.id,
        "time": moment(each.time),
        "branch": each.branch,
        "step": or_dash(each.step),
        "size": size(each.size_bytes),
        "stored": size(each.stored_bytes),
        "ratio": ratio(each.ratio),
        "files": "-" if each.files is None else f"{each.files:,} ({size(each.files_bytes)})",
        "tags": or_dash(",".join(each.tags)),
        "message": or_dash(each.message),
    }


def file_line(
    change: api.ChangedFile, old_path: str | None = None, *, shown: Callable[[str], str] = str
) -> str:
    """A project file that differs, such as `M src/app.py (120B -> 140B)`, or that had another name before."""
    if old_path is not None:
        return styled(f"R {clean(shown(old_path))} -> {clean(shown(change.path))}", _FILES["changed"][1])
    letter, colour = _FILES[change.kind]
    if change.kind == "mode":
        detail = f"{change.old_mode} -> {change.new_mode}"
    elif change.added_lines is not None:
        detail = f"+{change.added_lines:,} -{change.removed_lines:,}"
    else:
        sizes = (change.old_size_bytes, change.new_size_bytes)
        detail = " -> ".join(size(each) for each in sizes if each is not None)
    return styled(f"{letter} {clean(shown(change.path))} ({detail})", colour)


def counts(report: object, *names: str) -> str:
    """`2 added, 1 removed`, from the fields of a report that are not 0."""
    return ", ".join(f"{number:,} {name}" for name in names if (number := getattr(report, name)))


def or_dash(value: object) -> str:
    """A value in a table, where an absent one is a dash."""
    return "-" if value is None or value == "" else str(value)


def cleanup_text(cleanup: api.SessionCleanup | None) -> str:
    """What cleaning would do to a session."""
    if cleanup is None:
        return "leaves it alone: its profile or policy makes no sense"
    return f"{'would remove it' if cleanup.goes else 'leaves it'}: {cleanup.reason}"


def total_of(checkpoints: int, sessions: int) -> str:
    return f"{count(checkpoints, 'checkpoint')} in {count(sessions, 'session')}"


def problem_line(word: str, about: str, message: str, code: str) -> str:
    """`DAMAGED research-42 #3: the state is not what was written (digest_mismatch)`."""
    return f"{word} {clean(about)}: {clean(message)} ({code})"


def facts(texts: Mapping[str, str], wide: int) -> list[str]:
    """`name: text` line by line, the texts in one column; what is empty is left out."""
    return [f"{name + ':':<{wide - 1}} {clean(text)}" for name, text in texts.items() if text]


# --- writing ---------------------------------------------------------------------------------------------------


def is_terminal() -> bool:
    return sys.stdout.isatty()


def width(unknown: int = 80) -> int:
    """How many columns there are, as `shutil` finds them; `unknown` where neither environment nor terminal say."""
    columns = os.environ.get("COLUMNS", "")
    if columns.isdecimal() and int(columns):
        return int(columns)
    try:
        return os.get_terminal_size(1).columns or unknown
    except OSError:
        return unknown


def is_narrow() -> bool:
    return is_terminal() and width() < NARROW


def styled(text: str, colour: str | None) -> str:
    """The text in a colour on a terminal that shows colours, and plain elsewhere."""
    is_dumb = os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb"
    return text if colour is None or is_dumb or not is_terminal() else click.style(text, fg=colour)


def lines(texts: Iterable[str]) -> None:
    """Print lines that are already clean."""
    write("\n".join([*texts, ""]).encode("utf-8", "backslashreplace"))


def write(data: bytes) -> None:
    """Send bytes to stdout."""
    sys.stdout.buffer.write(data)
    sys.stdout.buffer.flush()


def json_document(value: Any) -> None:
    """Print a result as indented JSON."""
    lines([clean_json(indented(api.to_json(value)))])


def note(text: str) -> None:
    """Say something on stderr, above a live view where there is one."""
    print(clean_lines(text), file=sys.stderr, flush=True)  # click would write past the live view


def note_errors(errors: Iterable[api.SessionError]) -> None:
    for error in errors:
        note(f"error: {error.session}: {error.message} ({error.code})")


def note_damaged(headers: Collection[str]) -> None:
    """Say that a list of checkpoints leaves some out."""
    if headers:
        note(f"warning: {count(len(headers), 'damaged header')} left out: run stepkeep verify")


def table(
    rows: Sequence[Mapping[str, str]],
    *,
    right: Collection[str] = (),
    colours: Sequence[str | None] = (),
    leave_out: Collection[str] = (),
    wrap: bool = False,
) -> None:
    """Print rows, each a text by column: with rich on a terminal, as aligned text elsewhere. There is at least one.

    On a terminal long texts are cut off, with `wrap` those of the last column continue below; `colours` are those of
    the rows. Texts are cleaned here.
    """
    columns = [title for title in rows[0] if title not in leave_out]
    cells = [[clean(row[title]) for title in columns] for row in rows]
    if is_terminal():
        _rich_table(columns, cells, right, colours, wrap)
        return
    widths = [max(len(row[at]) for row in [columns, *cells]) for at in range(len(columns))]
    pads = [str.rjust if title in right else str.ljust for title in columns]
    lines(
        "  ".join(pad(cell, width) for pad, cell, width in zip(pads, row, widths, strict=True)).rstrip()
        for row in [[title.upper() for title in columns], *cells]
    )


def _rich_table(
    columns: list[str],
    cells: list[list[str]],
    right: Collection[str],
    colours: Sequence[str | None],
    wrap: bool,
) -> None:
    from rich.cells import cell_len
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console(highlight=False)
    needed = [max(cell_len(row[at]) for row in [columns, *cells]) for at in range(len(columns))]
    widths = _widths(columns, needed, console.width)
    console.width = max(console.width, sum(each + 2 for each in widths.values()))
    drawn = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for at, each in widths.items():
        title = columns[at]
        justify: Literal["left", "right"] = "right" if title in right else "left"
        is_cut = not wrap or title != columns[-1]
        drawn.add_column(
            title, justify=justify, no_wrap=is_cut, overflow="ellipsis" if is_cut else "fold", width=each
        )
    for row, colour in zip_longest(cells, colours[: len(cells)]):
        drawn.add_row(*(Text(row[at]) for at in widths), style=colour)
    with console.capture() as capture:
        console.print(drawn)
    write(capture.get().encode("utf-8", "backslashreplace"))


def _widths(columns: list[str], needed: list[int], room: int) -> dict[int, int]:
    """How wide the columns are that are shown. Only the last gives way, so that numbers and times stay readable.

    The key of a session is never cut: where it leaves no room, others are left out, the last one at last.
    """
    most = MAX_CELL if room >= NARROW else MAX_NARROW_CELL
    widths = {
        at: each if columns[at] == "session" else min(each, most) for at, each in enumerate(needed[:-1])
    }
    last = len(columns) - 1
    least = min(needed[last], max(len(columns[last]), LEAST_CELL))
    while (left := room - sum(each + 2 for each in widths.values())) < least and "session" in columns[:-1]:
        if columns[max(widths)] == "session":
            return widths
        del widths[max(widths)]
    return {**widths, last: max(least, min(needed[last], left))}


class ProgressLine:
    """`verifying 120/1000`, renewed in place on stderr until the block ends; silent when that is not a terminal.

    Without a total it only counts.
    """

    def __init__(self, what: str, total: int | None = None) -> None:
        self._what, self._total, self._done, self._shown = what, total, 0, 0.0
        self._is_shown = sys.stderr.isatty() and total != 0

    def __enter__(self) -> ProgressLine:
        return self

    def __exit__(self, *_: object) -> None:
        if self._shown:
            click.echo("\r\x1b[K", nl=False, err=True)

    def advance(self, by: int) -> None:
        self._done += by
        now = time.monotonic()
        if self._is_shown and now - self._shown > 0.1:
            self._shown = now
            of = "" if self._total is None else f"/{self._total:,}"
            click.echo(f"\r{self._what} {self._done:,}{of}", nl=False, err=True)

    def reached(self, fraction: float) -> None:
        """For work that is told as a fraction; the total is then 100."""
        self.advance(int(fraction * 100) - self._done)
