"""`stepkeep restore`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from stepkeep import api
from stepkeep.cli.app import Command, Settings, settings_of
from stepkeep.cli.naming import Words, on_session, opened
from stepkeep.cli.printing import lines, moment
from stepkeep.cli.project_files import restore_options, show_restored, undo_command
from stepkeep.text import clean

if TYPE_CHECKING:
    from stepkeep.api import RestoredInfo

BEFORE = "latest@before"
EXAMPLE = """\
stepkeep restore cp_20260302T120000000000_0123456789
stepkeep restore research-42 latest~2
stepkeep restore research-42 --undo
stepkeep restore latest~2 --files src/app.py --dry-run"""


@click.command("restore", cls=Command, example=EXAMPLE)
@on_session("ref", "paths")
@click.option("--undo", is_flag=True, help="Return to where the session was before.")
@click.option("--branch", metavar="NAME", help="Name the branch to go on with.  [default: like from-12]")
@click.option("--expect-head", metavar="ID", help="Restore only if this is still the latest checkpoint.")
@restore_options
@settings_of
def restore(
    settings: Settings,
    words: Words,
    undo: bool,
    branch: str | None,
    expect_head: str | None,
    is_files: bool,
    workspace: str | None,
    dry_run: bool,
    force: bool,
) -> int:
    """Go on from an old checkpoint of SESSION. An id needs no SESSION.

    Nothing is deleted: the session moves to a branch that has the checkpoint as head, a new one if need be, and
    what came after stays on the branch it leaves.

    With --files it is the project files that are restored, all or the PATHs. A safety checkpoint is taken first,
    and --undo returns to it: without --files, --undo takes back whichever was the last.
    """
    with opened(settings) as store:
        key, refs = words.chosen_and_refs(store)
        run = store.get(key)
        if undo:
            if refs or branch is not None:
                raise click.UsageError("--undo takes no REF and no --branch.")
            refs = [BEFORE]
            is_files = is_files or run.files.were_restored_last
        if is_files:
            if branch is not None or expect_head is not None:
                raise click.UsageError("--branch and --expect-head do not go with --files.")
            if not refs:
                raise click.UsageError("The files of which checkpoint? Name a REF, or --undo.")
            if undo:
                done = run.files.undo(workspace=workspace, dry_run=dry_run, force=force)
            else:
                done = run.files.restore(refs[0], refs[1:], workspace=workspace, dry_run=dry_run, force=force)
            return show_restored(settings, done)
        if dry_run or force or workspace is not None:
            raise click.UsageError("--dry-run, --force and --workspace go with --files.")
        if len(refs) != 1:
            raise click.UsageError("Which checkpoint? Name one REF, or --undo.")
        expected = api.ANY_HEAD if expect_head is None else expect_head
        restored = run.restore(refs[0], branch=branch, expect_head=expected, compare=True).document()
    settings.show(restored, _print)
    return 0


def _print(restored: RestoredInfo) -> None:
    checkpoint = restored.checkpoint
    name = checkpoint.message or f"#{checkpoint.seq}"
    new = ", new" if restored.is_new_branch else ""
    texts = [
        f"Restored to: {clean(name)} ({moment(checkpoint.time)})",
        *_changes(restored),
        f"Branch: {clean(restored.branch)} (#{checkpoint.seq}{new})",
    ]
    if restored.previous_branch != restored.branch:
        at = "" if restored.previous_seq is None else f" (#{restored.previous_seq})"
        texts.append(f"Left:   {clean(restored.previous_branch)}{at}")
        texts.append(f"Undo:   {undo_command(restored.session)}")
    lines(texts)


def _changes(restored: RestoredInfo) -> list[str]:
    changes = restored.changes
    if changes is None:
        return ["Changes: unknown, the state before cannot be read"]
    if not changes.total:
        return ["Changes: none"]
    numbers = {name: getattr(changes, name) for name in ("added", "removed", "changed", "moved")}
    counts = ", ".join(f"{number:,} {name}" for name, number in numbers.items() if number)
    return [f"Changes: {counts}", *(f"  {clean(phrase)}" for phrase in changes.summary.split("; "))]


COMMANDS = {"restore": restore}
