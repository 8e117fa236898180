"""`stepkeep diff`."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

import click

from stepkeep.api import WIDTH
from stepkeep.cli.app import Command, Settings, settings_of
from stepkeep.cli.naming import Words, complete_ref, limit_option, on_session, opened
from stepkeep.cli.printing import is_terminal, lines, moment, styled, width
from stepkeep.cli.project_files import diff_options, show_diff
from stepkeep.text import clean

if TYPE_CHECKING:
    from stepkeep.api import CheckpointComparison, CheckpointInfo

SHORT_VIEW: Final = 200
EXAMPLE: Final = """\
stepkeep diff research-42
stepkeep diff research-42 --from step-5 --to step-7
stepkeep diff research-42 step-5 latest --json
stepkeep diff research-42 --files --stat"""

_ID: Final = re.compile(r"cp_[0-9].*")
_COLOURS: Final = {"+": "green", "-": "red", "~": "yellow", ">": "cyan"}


@click.command("diff", cls=Command, example=EXAMPLE)
@on_session("refs")
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
@limit_option("Show so many.  [default: 200; JSON: all]")
@diff_options
@settings_of
def diff(
    settings: Settings,
    words: Words,
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
    with opened(settings) as store:
        is_between_ids = older is None and newer is None and _are_two_ids(words)
        if is_between_ids and not is_files:
            comparison = store.diff(*words.given, limit=limit)
        else:
            key, refs = words.chosen_and_refs(store)
            before, after = _ends(refs, older, newer)
            run = store.get(key)
            if is_files:  # without a second side it is the tree as it is now
                found = run.files.diff(
                    before, after, workspace=workspace, line_counts=is_stat, patch=is_patch
                )
                show_diff(settings, found)
                return
            comparison = run.diff(before, after or "latest", limit=limit)
    settings.show(comparison, _print)


def _are_two_ids(words: Words) -> bool:
    return words.option is None and len(words.given) == 2 and all(map(_ID.fullmatch, words.given))


def _ends(refs: list[str], older: str | None, newer: str | None) -> tuple[str | None, str | None]:
    if len(refs) > 2:
        raise click.UsageError("Two checkpoints at a time.")
    if refs and (older is not None or newer is not None):
        raise click.UsageError("The checkpoints are given twice: as REF and by --from or --to.")
    if refs:
        older, newer = refs[0], refs[1] if len(refs) == 2 else None
    return older, newer


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
