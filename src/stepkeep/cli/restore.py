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
stepkeep restore latest~2 --files src/app.py --dry-run
stepkeep restore research-42 tag:works --all"""


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
@click.option("--all", "is_all", is_flag=True, help="Restore the session and its project files together.")
@workspace_option("With --files or --all: the tree to write to.  [default: where it was captured]")
@click.option("--dry-run", is_flag=True, help="With --files: only list what would change.")
@click.option("--force", is_flag=True, help="With --files or --all: also over changes that no capture has.")
def restore(
    settings: CommonOptions,
    words: Words,
    undo: bool,
    branch: str | None,
    expect_head: str | None,
    is_files: bool,
    is_all: bool,
    workspace: str | None,
    dry_run: bool,
    force: bool,
) -> int:
    """Go on from an old checkpoint of SESSION. An id needs no SESSION.

    Nothing is deleted: the session moves to a branch that has the checkpoint as head, a new one if need be, and
    what came after stays on the branch it leaves.

    With --files it is the project files that are restored, all or the PATHs, and with --all both. A safety checkpoint
    is taken first. --undo takes back whichever was the last, then the one before; with --files only files.
    """
    if is_files and is_all:
        raise click.UsageError("--files is for files alone, --all for everything: choose one.")
    if dry_run and not (is_files or undo):
        raise click.UsageError("--dry-run goes with --files.")
    if not (is_files or is_all or undo) and (force or workspace is not None):
        raise click.UsageError("--force and --workspace go with --files or --all.")
    if (is_files or undo) and (branch is not None or expect_head is not None):
        raise click.UsageError("--branch and --expect-head do not go with --files and --undo.")
    done: api.Restored | api.RestoredFiles
    with opened(settings) as store:
        key, refs = words.chosen_and_refs(store, changes=True)
        run = store.get(key)
        if undo and refs:
            raise click.UsageError("--undo takes no REF and no --branch.")
        if not undo and not refs:
            raise click.UsageError("Which checkpoint? Name one REF, or --undo.")
        if undo and is_files:
            done = run.files.undo(workspace=workspace, dry_run=dry_run, force=force)
        elif undo:
            done = run.undo(workspace=workspace, dry_run=dry_run, force=force, compare=True)
        elif is_files:
            done = run.files.restore(refs[0], refs[1:], workspace=workspace, dry_run=dry_run, force=force)
        else:
            if len(refs) != 1:
                raise click.UsageError("Which checkpoint? Name one REF, or --undo.")
            expected = api.ANY_HEAD if expect_head is None else expect_head
            done = run.restore(
                refs[0],
                branch=branch,
                expect_head=expected,
                compare=True,
                files=is_all,
                workspace=workspace,
                force=force,
            )
    settings.show(done, lambda shown: lines(_text(shown, settings.store)))
    files = done if isinstance(done, api.RestoredFiles) else done.files
    return 0 if files is None or files.is_complete or files.is_dry_run else 1


def _text(done: api.Restored | api.RestoredFiles, store: str | None) -> list[str]:
    """What was restored, and the command that takes it back."""
    if isinstance(done, api.RestoredFiles):
        is_done = done.safety is not None and bool(_done(done))
        undo = [f"Undo:   {_undo(done.session, store)} --files{_place(done)}"] if is_done else []
        return [*restored_lines(done), *undo]
    texts = _session(done)
    files = done.files
    if files is not None:
        texts += restored_lines(files)
    if done.previous_branch != done.branch:
        texts.append(f"Undo:   {_undo(done.session, store)}{'' if files is None else _place(files)}")
    elif files is not None and files.safety is not None and _done(files):
        texts.append(f"Undo:   {_undo(done.session, store)} --files{_place(files)}")
    if done.files_left:
        how = f"{_command(done.session, store)} {done.info.id} --files"
        texts.append(
            f"Files:  {count(done.files_left, 'file')} of it left as they are. Bring them back: {how}"
        )
    return texts


def _session(restored: api.Restored) -> list[str]:
    checkpoint = restored.info
    name = checkpoint.message or f"checkpoint {checkpoint.seq}"
    new = ", new" if restored.is_new_branch else ""
    texts = [
        f"Restored to: {clean(name)} ({moment(checkpoint.time)})",
        *_changes(restored),
        f"Branch: {clean(restored.branch)} (checkpoint {checkpoint.seq}{new})",
    ]
    if restored.previous_branch != restored.branch:
        at = "" if restored.previous_seq is None else f" (checkpoint {restored.previous_seq})"
        texts.append(f"Left:   {clean(restored.previous_branch)}{at}")
    return texts


def _changes(restored: api.Restored) -> list[str]:
    changes = restored.changes
    if changes is None:
        return ["Changes: unknown, the state before cannot be read"]
    if not changes.total:
        return ["Changes: none"]
    parts = counts(changes, "added", "removed", "changed", "moved")
    return [f"Changes: {parts}", *(f"  {clean(phrase)}" for phrase in changes.summary.split("; "))]


def _done(restored: api.RestoredFiles) -> list[api.ChangedFile]:
    """The changes that were made, or would be."""
    failed = {each.path for each in restored.failures}
    return [change for change in restored.changes if change.path not in failed]


def restored_lines(restored: api.RestoredFiles, *, is_rewind: bool = False) -> list[str]:
    """What a restore of files did, or would do; by a rewind it does not lead to one checkpoint."""
    name = numbered(restored.checkpoint)
    if restored.checkpoint.message:
        name += f": {clean(restored.checkpoint.message)}"
    would = "Would restore" if restored.is_dry_run else "Restored"
    done = _done(restored)
    goal = "" if is_rewind else f" to {name}"
    texts = [f"{would} {count(len(done), 'file')} in {clean(restored.root)}{goal}"]
    texts += map(file_line, done)
    if restored.is_dry_run and restored.conflicts:
        how = "by somebody else" if is_rewind else "since the newest capture"
        texts.append(f"Changed {how}, needs --force: {count(len(restored.conflicts), 'file')}")
        texts += [f"  {clean(path)}" for path in restored.conflicts]
    if restored.failures:
        texts.append(f"Left as they were: {count(len(restored.failures), 'file')}")
        texts += [f"  {clean(each.path)}: {clean(each.reason)}" for each in restored.failures]
    if restored.kept:
        texts.append(
            f"Left, since the checkpoint does not tell whether it had them: {count(len(restored.kept), 'file')}"
        )
        texts += [f"  {clean(each.path)}: {clean(each.reason)}" for each in restored.kept]
    if restored.safety is not None:
        texts.append(f"Safety: {restored.safety} has the files as they were")
    return texts


def _place(restored: api.RestoredFiles) -> str:
    """How a command names the tree, where it does not run inside it."""
    here = Path.cwd().resolve()
    is_inside = Path(restored.root) in (here, *here.parents)
    return "" if is_inside else f" --workspace {clean(shlex.quote(restored.root))}"


def _command(session: str, store: str | None) -> str:
    where = "" if store is None else f" --store {clean(shlex.quote(store))}"
    return f"stepkeep restore{where} --session {clean(shlex.quote(session))}"


def _undo(session: str, store: str | None) -> str:
    """The command that takes the last restore back, safe to show."""
    return f"{_command(session, store)} --undo"
