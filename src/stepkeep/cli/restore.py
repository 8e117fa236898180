"""`stepkeep restore`."""

from __future__ import annotations

import shlex
from pathlib import Path

import click

from stepkeep import api
from stepkeep.cli.app import CommonOptions, command
from stepkeep.cli.naming import Words, on_session, opened, workspace_option
from stepkeep.cli.printing import counts, file_line, lines, moment, numbered
from stepkeep.text import clean, count

EXAMPLE = """\
stepkeep restore cp_20260302T120000000000_0123456789
stepkeep restore research-42 latest~2
stepkeep restore research-42 --undo
stepkeep restore latest~2 --files src/app.py --dry-run"""


@command("restore", EXAMPLE)
@on_session("ref", "paths")
@click.option("--undo", is_flag=True, help="Return to where the session was before.")
@click.option("--branch", metavar="NAME", help="Name the branch to go on with.  [default: like from-12]")
@click.option("--expect-head", metavar="ID", help="Restore only if this is still the latest checkpoint.")
@click.option(
    "--files",
    "is_files",
    is_flag=True,
    help="Restore project files, all or the PATHs; the state stays as it is.",
)
@workspace_option("With --files: the tree to write to.  [default: where it was captured]")
@click.option("--dry-run", is_flag=True, help="With --files: only list what would change.")
@click.option("--force", is_flag=True, help="With --files: also over changes that no capture has.")
def restore(
    settings: CommonOptions,
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
            refs = [api.BEFORE]
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
            settings.show(done, _print_files)
            return 0 if done.is_complete or done.is_dry_run else 1
        if dry_run or force or workspace is not None:
            raise click.UsageError("--dry-run, --force and --workspace go with --files.")
        if len(refs) != 1:
            raise click.UsageError("Which checkpoint? Name one REF, or --undo.")
        expected = api.ANY_HEAD if expect_head is None else expect_head
        restored = run.restore(refs[0], branch=branch, expect_head=expected, compare=True)
    settings.show(restored, _print)
    return 0


def _print(restored: api.Restored) -> None:
    checkpoint = restored.info
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
        texts.append(f"Undo:   {_undo(restored.session)}")
    lines(texts)


def _changes(restored: api.Restored) -> list[str]:
    changes = restored.changes
    if changes is None:
        return ["Changes: unknown, the state before cannot be read"]
    if not changes.total:
        return ["Changes: none"]
    parts = counts(changes, "added", "removed", "changed", "moved")
    return [f"Changes: {parts}", *(f"  {clean(phrase)}" for phrase in changes.summary.split("; "))]


def _print_files(restored: api.RestoredFiles) -> None:
    name = numbered(restored.checkpoint)
    if restored.checkpoint.message:
        name += f": {clean(restored.checkpoint.message)}"
    would = "Would restore" if restored.is_dry_run else "Restored"
    texts = [f"{would} {count(restored.total, 'file')} in {clean(restored.root)} to {name}"]
    texts += map(file_line, restored.changes)
    if restored.is_dry_run and restored.conflicts:
        texts.append(
            f"Changed since the newest capture, needs --force: {count(len(restored.conflicts), 'file')}"
        )
        texts += [f"  {clean(path)}" for path in restored.conflicts]
    if restored.failures:
        texts.append(f"Left as they were: {count(len(restored.failures), 'file')}")
        texts += [f"  {clean(each.path)}: {clean(each.reason)}" for each in restored.failures]
    if restored.safety is not None:
        texts.append(f"Safety: {restored.safety} has the files as they were")
        here = Path.cwd().resolve()
        is_inside = Path(restored.root) in (here, *here.parents)
        place = "" if is_inside else f" --workspace {clean(shlex.quote(restored.root))}"
        texts.append(f"Undo:   {_undo(restored.session)} --files{place}")
    lines(texts)


def _undo(session: str) -> str:
    """The command that takes the last restore back, safe to show."""
    return f"stepkeep restore --session {clean(shlex.quote(session))} --undo"
