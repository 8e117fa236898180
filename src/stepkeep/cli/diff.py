"""`stepkeep diff`."""

from __future__ import annotations

import re
from typing import Final

import click

from stepkeep import api
from stepkeep.api import WIDTH, CheckpointComparison, CheckpointInfo
from stepkeep.cli.app import Command, Settings, settings_of
from stepkeep.cli.files import diff_options, show_diff
from stepkeep.cli.naming import (
    chosen_session_and_refs,
    complete_ref,
    ref_argument,
    session_argument,
    session_option,
)
from stepkeep.cli.printing import is_terminal, lines, moment, styled, width
from stepkeep.text import clean

SHORT_VIEW: Final = 200
EXAMPLE: Final = """\
stepkeep diff research-42
stepkeep diff research-42 --from step-5 --to step-7
stepkeep diff research-42 step-5 latest --json
stepkeep diff research-42 --files --stat"""

_ID: Final = re.compile(r"cp_[0-9].*")
_COLOURS: Final = {"+": "green", "-": "red", "~": "yellow", ">": "cyan"}


@click.command("diff", cls=Command, example=EXAMPLE)
@session_argument()
@ref_argument(many=True)
@session_option()
@click.option(
    "--from",
    "older",
    metavar="REF",
    shell_complete=complete_ref,
    help="The older checkpoint.  [default: the one before --to]",
)
@click.option(
    "--to", "newer", metavar="REF", shell_complete=complete_ref, help="The newer one.  [default: latest]"
)
@click.option(
    "--limit", type=click.IntRange(min=1), metavar="N", help="Show so many.  [default: 200; JSON: all]"
)
@diff_options
@settings_of
def diff(
    settings: Settings,
    session: str | None,
    refs: tuple[str, ...],
    session_option: str | None,
    older: str | None,
    newer: str | None,
    limit: int | None,
    is_files: bool,
    workspace: str | None,
    is_stat: bool,
    is_patch: bool,
) -> None:
    """Show what changed in SESSION from one checkpoint to another.

    REFs may stand for --from and --to. Two ids need no SESSION.

    + is added, - removed, ~ changed, > moved to another place.

    With --files the project files are compared: A is added, D removed, M changed, m changed only in its mode.
    """
    if not is_files and (is_stat or is_patch or workspace is not None):
        raise click.UsageError("--stat, --patch and --workspace go with --files.")
    if is_files and limit is not None:
        raise click.UsageError("--limit goes without --files: all files that changed are listed.")
    limit = SHORT_VIEW if limit is None and not settings.json else limit
    given = [each for each in (session, *refs) if each is not None]
    with api.open(settings.store, create=False) as store:
        if is_files:
            key, positional = chosen_session_and_refs(store, given, session_option)
            sides = _file_sides(positional, older, newer)
            found = store.get(key).files.diff(
                *sides, workspace=workspace, line_counts=is_stat, patch=is_patch
            )
            show_diff(settings, found)
            return
        if _are_ids(given, session_option, older, newer):
            comparison = store.diff(given[0], given[1], limit=limit)
        else:
            key, positional = chosen_session_and_refs(store, given, session_option)
            before, after = _ends(positional, older, newer)
            comparison = store.get(key).diff(before, after, limit=limit)
    settings.show(comparison, _print)


def _are_ids(given: list[str], option: str | None, older: str | None, newer: str | None) -> bool:
    is_open = option is None and older is None and newer is None
    return is_open and len(given) == 2 and all(map(_ID.fullmatch, given))


def _ends(refs: list[str], older: str | None, newer: str | None) -> tuple[str | None, str]:
    if len(refs) > 2:
        raise click.UsageError("Two checkpoints at a time.")
    if refs and (older is not None or newer is not None):
        raise click.UsageError("The checkpoints are given twice: as REF and by --from or --to.")
    if refs:
        older, newer = refs[0], refs[1] if len(refs) == 2 else None
    return older, newer or "latest"


def _file_sides(refs: list[str], older: str | None, newer: str | None) -> tuple[str | None, str | None]:
    """The two sides of a comparison of files; no second one is the tree as it is now."""
    before, _ = _ends(refs, older, newer)
    return before, newer if newer is not None else (refs[1] if len(refs) == 2 else None)


def _print(result: CheckpointComparison) -> None:
    texts = [f"from {_name(result.older, result)}", f"to   {_name(result.newer, result)}"]
    room = max(20, (width() - 20) // 2) if is_terminal() else WIDTH
    texts += [_coloured(clean(text)) for text in result.lines(width=min(room, WIDTH))]
    lines(texts)


def _name(each: CheckpointInfo, result: CheckpointComparison) -> str:
    session = "" if result.older.session == result.newer.session else f"{clean(each.session)} "
    step = "" if each.step is None else f", step {each.step}"
    return f"{session}#{each.seq} ({moment(each.time)}{step})"


def _coloured(text: str) -> str:
    return styled(text, _COLOURS.get(text.lstrip()[:1]))


COMMANDS = {"diff": diff}
