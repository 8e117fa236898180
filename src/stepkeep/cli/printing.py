"""How things look on a terminal: times, checkpoints, problems, tables, JSON, progress."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import datetime
from itertools import zip_longest
from typing import Any, Final

import click

from stepkeep import api
from stepkeep.text import clean, clean_json, clean_lines, columns, count, cut, indented, size, wrapped

MAX_CELL: Final = 35
"""The width of an id. Longer texts in a table on a terminal are cut off, except in the last column."""
MAX_NARROW_CELL: Final = 24
LEAST_LAST: Final = 16
"""What the last column of a table has at least, if it needs it, before others are left out."""
NARROW: Final = 100
"""Terminals with fewer columns get no room for whole ids in tables."""
_KEY: Final = "session"
"""The column of a table that is never cut."""

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
    return [hanging(f"{name + ':':<{wide - 1}} ", clean(text)) for name, text in texts.items() if text]


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


def styled(text: str, colour: str | None = None, *, bold: bool = False) -> str:
    """The text in a colour on a terminal that shows colours, and plain elsewhere."""
    is_dumb = os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb"
    if is_dumb or not is_terminal() or not (colour or bold):
        return text
    return click.style(text, fg=colour, bold=bold or None)


def hanging(beginning: str, text: str) -> str:
    """A text behind its beginning; on a terminal what does not fit goes on below the text. Both are clean."""
    room = width() - columns(beginning)
    if not is_terminal() or room < LEAST_LAST:
        return beginning + text
    return beginning + f"\n{' ' * columns(beginning)}".join(wrapped(text, room))


def lines(texts: Iterable[str]) -> None:
    """Print lines for people, already clean; where only ASCII can be shown, our own signs are ASCII too."""
    text = "\n".join([*texts, ""])
    write((text.translate(_IN_ASCII) if is_ascii() else text).encode("utf-8", "backslashreplace"))


_BARS: Final = dict(zip("▁▂▃▄▅▆▇█", "..::||##", strict=True))
_IN_ASCII: Final = str.maketrans({"…": "...", "→": "->", "–": "-", "·": "-"} | _BARS)


def is_ascii() -> bool:
    """Whether stdout can show no more than ASCII, as in the locale `C`."""
    try:
        "│├╯⋮●◀–…█".encode(sys.stdout.encoding)
    except (UnicodeEncodeError, LookupError):
        return True
    return False


def write(data: bytes) -> None:
    """Send bytes to stdout."""
    sys.stdout.buffer.write(data)
    sys.stdout.buffer.flush()


def json_document(value: Any) -> None:
    """Print a result as indented JSON."""
    data(clean_json(indented(api.to_json(value))))


def data(text: str) -> None:
    """Print what programs may read, as it is."""
    write(f"{text}\n".encode("utf-8", "backslashreplace"))


def note(text: str) -> None:
    """Say something on stderr, above a live view where there is one."""
    print(clean_lines(text), file=sys.stderr, flush=True)  # click would write past the live view


def asked(question: str, answers: Collection[str], *, default: str) -> str:
    """What a person answers, asked until it is one of these; nothing said is the default."""
    while True:
        said = click.prompt(clean(question), default=default, show_default=False, err=True)
        if (answer := said.strip().lower()) in answers:
            return answer
        note(f"{said!r} is none of {', '.join(answers)}")


def says_yes(question: str) -> bool:
    """Whether a person agrees; q quits, which is a no."""
    return asked(f"{question} [y/N]", ("y", "yes", "n", "no", "q"), default="n") in ("y", "yes")


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
    first_out: Sequence[str] = (),
    wrap: bool = False,
) -> None:
    """Print rows, each a text by column; `colours` are those of the rows. Texts are cleaned here. At least one row.

    On a terminal a row is one line. Where there is no room for all of them, columns are left out, those of `first_out`
    first. Long texts are cut off, but with `wrap` those of the last column go on below. The key of a session is never
    cut: the row of one that is too long goes on below it.
    """
    titles = [title for title in rows[0] if title not in leave_out]
    cells = [[clean(row[title]) for title in titles] for row in rows]
    needed = {
        title: max(map(columns, [title, *(row[at] for row in cells)])) for at, title in enumerate(titles)
    }
    widths = _widths(needed, width(), first_out) if is_terminal() else needed
    drawn = _Row(widths, right, wraps=wrap and is_terminal())
    texts = [styled(drawn.text([title.upper() for title in widths]), bold=True)]
    for row, colour in zip_longest(cells, colours[: len(cells)]):
        shown = [cell for title, cell in zip(titles, row, strict=True) if title in widths]
        texts.append(styled(drawn.text(shown), colour))
    lines(texts)


def _widths(needed: Mapping[str, int], room: int, first_out: Sequence[str]) -> dict[str, int]:
    """How wide the columns are that are shown. Only the last gives way, so that numbers and times stay readable."""
    most = MAX_CELL if room >= NARROW else MAX_NARROW_CELL
    first, *others = needed
    shown = {title: min(needed[title], most) for title in others}
    shown = {first: needed[first]} | shown
    if _KEY in shown:
        shown[_KEY] = min(needed[_KEY], max(room // 3, len(_KEY)))
    going = [*first_out, *(title for title in reversed(others[:-1]) if title not in (*first_out, _KEY))]
    while True:
        last = next(reversed(shown))
        left = room - sum(shown.values()) + shown[last] - 2 * (len(shown) - 1)
        least = min(needed[last], LEAST_LAST)
        if left >= least or not going:
            return shown | {last: max(least, min(needed[last], left))}
        shown.pop(going.pop(0), None)


class _Row:
    """Draws rows with columns of these widths."""

    def __init__(self, widths: Mapping[str, int], right: Collection[str], *, wraps: bool) -> None:
        self._titles, self._widths = list(widths), list(widths.values())
        self._right, self._wraps = right, wraps

    def text(self, cells: Sequence[str]) -> str:
        at = self._titles.index(_KEY) if _KEY in self._titles else -1
        if at >= 0 and columns(cells[at]) > self._widths[at]:
            blank = ["" for _ in cells[: at + 1]]
            above = self._line(cells[:at]) + "  " * bool(at) + cells[at]
            return f"{above}\n{self._line([*blank, *cells[at + 1 :]])}" if cells[at + 1 :] else above
        return self._line(cells)

    def _line(self, cells: Sequence[str]) -> str:
        padded = [self._padded(cell, at) for at, cell in enumerate(cells)]
        if self._wraps and len(cells) == len(self._widths):
            indent = "\n" + " " * (sum(self._widths[:-1]) + 2 * (len(cells) - 1))
            padded[-1] = indent.join(wrapped(cells[-1], self._widths[-1]))
        return "  ".join(padded).rstrip() if len(cells) == len(self._widths) else "  ".join(padded)

    def _padded(self, cell: str, at: int) -> str:
        text = cut(cell, self._widths[at])
        space = " " * (self._widths[at] - columns(text))
        return space + text if self._titles[at] in self._right else text + space


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
