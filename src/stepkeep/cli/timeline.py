"""`stepkeep timeline`."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import Any, Final

import click

from stepkeep import api
from stepkeep.api import Timelines
from stepkeep.cli.app import Settings, command
from stepkeep.cli.naming import Words, complete_branch, limit_option, on_session, opened
from stepkeep.cli.printing import is_terminal, lines, note, note_errors, styled, width, write
from stepkeep.text import clean, count, size

EXAMPLE = """\
stepkeep timeline research-42
stepkeep timeline research-42 --since '2 hours ago' --full
stepkeep timeline --all --tag verified
stepkeep timeline research-42 --svg timeline.svg"""

PIPED_WIDTH: Final = 200
"""How wide lines are where nobody says how wide they may be."""

_LANES: Final = ("cyan", "yellow", "magenta", "blue", "green", "bright_red")
_COLOURS: Final = {
    "faint": "bright_black",
    "branch": "green",
    "current": "bright_green",
    "tag": "yellow",
    "bad": "red",
    "good": "green",
}


@command("timeline", EXAMPLE)
@on_session()
@click.option("--all", "every", is_flag=True, help="Draw every session.")
@click.option("--since", metavar="TIME", help="Only what was saved since, such as '2 hours ago' or a date.")
@click.option(
    "--branch", metavar="NAME", shell_complete=complete_branch, help="Only what was saved on this branch."
)
@click.option("--tag", help="Only what has this tag.")
@click.option("--full", "is_full", is_flag=True, help="Fold nothing.  [default in JSON]")
@limit_option("At most so many rows of each session.")
@click.option("--svg", metavar="FILE|-", help="Write a picture instead; - is stdout.")
@click.option("--force", is_flag=True, help="Replace the file of --svg if it exists.")
def timeline(
    settings: Settings,
    /,
    words: Words,
    every: bool,
    is_full: bool,
    svg: str | None,
    force: bool,
    **wanted: Any,
) -> int:
    """Draw the branches of SESSION as a graph, newest first.

    Each checkpoint with number, time, step, size, stored size, why it was saved, the branches that stand there, tags
    and message. Long runs of plain automatic ones are folded into one line, and so is what a filter leaves out.
    """
    if every and (words.given or words.option is not None):
        raise click.UsageError("--all and a session exclude each other.")
    if force and svg is None:
        raise click.UsageError("--force is about the file of --svg.")
    if svg == "":
        raise click.UsageError("--svg needs the name of a file.")
    if svg == "-" and settings.json:
        raise click.UsageError("--json describes the file that was written; with --svg - there is none.")
    wanted["fold"] = not is_full and (svg is not None or not settings.json)
    with opened(settings) as store:
        if every:
            found = store.timelines(**wanted)
        else:
            found = Timelines(timelines=(store.get(words.chosen(store)).timeline(**wanted),))
    if svg == "-":
        write(found.picture())
    elif svg is not None:
        settings.show(found.write_picture(Path(svg), force=force), _print_pictured)
    else:
        settings.show(found, _print)
    note_errors(found.errors)
    return 1 if found.errors else 0


def _print_pictured(pictured: api.Pictured) -> None:
    what = f"{count(len(pictured.sessions), 'session')}, {count(pictured.rows, 'row')}"
    lines([f"Wrote {clean(pictured.output or 'stdout')} ({what}, {size(pictured.size_bytes)})"])


def _print(found: Timelines) -> None:
    if not found.timelines:
        lines(["No sessions."])
    for at, each in enumerate(found.timelines):
        if each.damaged:
            note(
                f"warning: {count(len(each.damaged), 'damaged header')} in {each.session}: run stepkeep verify"
            )
        texts = each.draw(width=_width(), is_ascii=_is_ascii(), paint=_painted if is_terminal() else None)
        lines(["", *texts] if at else texts)


def _width() -> int:
    return width() if is_terminal() else shutil.get_terminal_size((PIPED_WIDTH, 24)).columns


def _is_ascii() -> bool:
    try:
        "│├╯⋮●◀–…".encode(sys.stdout.encoding)
    except (UnicodeEncodeError, LookupError):
        return True
    return False


def _painted(text: str, role: str) -> str:
    if role.startswith("lane"):
        return styled(text, _LANES[int(role[4:]) % len(_LANES)])
    return styled(text, _COLOURS.get(role))
