"""`stepkeep diff`."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

import click

from stepkeep import api
from stepkeep.api import FULL, WIDTH
from stepkeep.cli.app import CommonOptions, command
from stepkeep.cli.naming import Words, complete_ref, limit_option, on_session, opened, workspace_option
from stepkeep.cli.printing import (
    SIGN_COLOURS,
    file_line,
    hanging,
    is_terminal,
    lines,
    moment,
    numbered,
    styled,
    width,
    write,
)
from stepkeep.text import clean, count

SHORT_VIEW: Final = 200
EXAMPLE: Final = """\
stepkeep diff research-42
stepkeep diff research-42 --from step-5 --to step-7
stepkeep diff research-42 step-5 latest --json
stepkeep diff research-42 --files --stat"""

_ID: Final = re.compile(r"cp_[0-9].*")
_PATCH_COLOURS: Final = {"+": "green", "-": "red", "@": "cyan"}


@command("diff", EXAMPLE)
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
@click.option("--full", is_flag=True, help="Show values whole.")
@click.option(
    "--files",
    "is_files",
    is_flag=True,
    help="Compare project files; with fewer than two REFs, with the tree as it is now.",
)
@workspace_option("With --files: the tree as it is now.  [default: where it was captured]")
@click.option("--stat", "is_stat", is_flag=True, help="With --files: count the lines.")
@click.option("--patch", "-p", "is_patch", is_flag=True, help="With --files: the whole difference as text.")
def diff(
    settings: CommonOptions,
    words: Words,
    older: str | None,
    newer: str | None,
    limit: int | None,
    full: bool,
    is_files: bool,
    workspace: str | None,
    is_stat: bool,
    is_patch: bool,
) -> None:
    """Show what changed in SESSION from one checkpoint to another.

    REFs may stand for --from and --to. Two ids need no SESSION.

    + is added, - removed, ~ changed, > moved to another place. In texts [-this-] went and {+this+} came.

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
                settings.show(found, print_files_diff)
                return
            comparison = run.diff(before, after or "latest", limit=limit)
    settings.show(comparison, lambda found: _print(found, full=full))


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


def _print(result: api.CheckpointComparison, *, full: bool) -> None:
    texts = [f"from {_name(result.older, result)}", f"to   {_name(result.newer, result)}"]
    room = max(20, (width() - 20) // 2) if is_terminal() else WIDTH
    for text in map(clean, result.lines(width=FULL if full else min(room, WIDTH))):
        sign = len(text) - len(text.lstrip()) + 2
        said = text if full else hanging(text[:sign], text[sign:])
        texts.append(styled(said, SIGN_COLOURS.get(text.lstrip()[:1])))
    lines(texts)


def print_files_diff(found: api.FilesDiff, shown: Callable[[str], str] = str) -> None:
    """The difference as lines, paths as `shown` spells them; a patch as it is."""
    if found.patch is not None:
        _print_patch(found.patch)
        return
    live = f"the files in {clean(found.live_root or '')}"
    newer = live if found.newer is None else numbered(found.newer)
    was = {each.path: each.old_path for each in found.renames}
    gone = set(was.values())
    texts = [f"from {numbered(found.older)}", f"to   {newer}"]
    texts += [
        file_line(change, was.get(change.path), shown=shown)
        for change in found.changes
        if change.path not in gone
    ]
    texts += [f"? {clean(shown(path))} (one of the two did not capture it)" for path in found.unknown]
    changed = count(found.total - len(was), "file")
    lines([*texts, f"{changed}: {found.summary}" if found.total else "No files changed"])


def _print_patch(patch: str) -> None:
    """Coloured and clean for a person; for a file or a pipe exactly as `git apply` needs it."""
    if is_terminal():
        lines(styled(clean(line), _PATCH_COLOURS.get(line[:1])) for line in patch.split("\n")[:-1])
    else:
        write(patch.encode("utf-8", "surrogateescape"))


def _name(each: api.CheckpointInfo, result: api.CheckpointComparison) -> str:
    session = "" if result.older.session == result.newer.session else f" of {clean(each.session)}"
    step = "" if each.step is None else f", step {each.step}"
    return f"checkpoint {each.seq}{session} ({moment(each.time)}{step})"
