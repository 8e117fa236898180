"""Project files on the command line: the options that other commands take for them, and what they print."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from stepkeep.cli.printing import is_terminal, lines, numbered, styled, write
from stepkeep.text import clean, count, size

if TYPE_CHECKING:
    from stepkeep.api import ChangedFile, FilesDiff, FilesExported, RestoredFiles, Session
    from stepkeep.cli.app import Settings

_KINDS: Final = {
    "added": ("A", "green"),
    "removed": ("D", "red"),
    "changed": ("M", "yellow"),
    "mode": ("m", "yellow"),
}
_LINE_COLOURS: Final = {"+": "green", "-": "red", "@": "cyan"}


def files_option(help: str) -> Callable[[Any], Any]:
    return click.option("--files", "is_files", is_flag=True, help=help)


def workspace_option(help: str) -> Callable[[Any], Any]:
    return click.option(
        "--workspace", metavar="DIR", type=click.Path(exists=True, file_okay=False), help=help
    )


# --- comparing ---------------------------------------------------------------------------------------------------


def diff_options(command: Any) -> Any:
    """Add what `diff --files` takes."""
    return _with_options(
        command,
        files_option("Compare project files; with fewer than two REFs, with the tree as it is now."),
        workspace_option("With --files: the tree as it is now.  [default: where it was captured]"),
        click.option("--stat", "is_stat", is_flag=True, help="With --files: count the lines."),
        click.option(
            "--patch", "-p", "is_patch", is_flag=True, help="With --files: the whole difference as text."
        ),
    )


def _with_options(command: Any, *options: Callable[[Any], Any]) -> Any:
    for option in reversed(options):
        command = option(command)
    return command


def show_diff(settings: Settings, found: FilesDiff) -> None:
    settings.show(found, _print_diff)


def _print_diff(found: FilesDiff) -> None:
    if found.patch is not None:
        _print_patch(found.patch)
        return
    live = f"the files in {clean(found.live_root or '')}"
    texts = [
        f"from {numbered(found.older)}",
        f"to   {live if found.newer is None else numbered(found.newer)}",
    ]
    texts += map(_row, found.changes)
    texts += [f"? {clean(path)} (one of the two did not capture it)" for path in found.unknown]
    lines([*texts, _total(found)])


def _print_patch(patch: str) -> None:
    """Coloured and clean for a person; for a file or a pipe exactly as `git apply` needs it."""
    if is_terminal():
        lines(styled(clean(line), _LINE_COLOURS.get(line[:1])) for line in patch.split("\n")[:-1])
    else:
        write(patch.encode("utf-8", "surrogateescape"))


def _row(change: ChangedFile) -> str:
    letter, colour = _KINDS[change.kind]
    return styled(f"{letter} {clean(change.path)}{_detail(change)}", colour)


def _detail(change: ChangedFile) -> str:
    if change.kind == "mode":
        return f" ({change.old_mode} -> {change.new_mode})"
    if change.added_lines is not None:
        return f" (+{change.added_lines:,} -{change.removed_lines:,})"
    sizes = [size(each) for each in (change.old_size_bytes, change.new_size_bytes) if each is not None]
    return f" ({' -> '.join(sizes)})"


def _total(found: FilesDiff) -> str:
    numbers = {kind: getattr(found, kind) for kind in _KINDS}
    parts = ", ".join(f"{number:,} {kind}" for kind, number in numbers.items() if number)
    return f"{count(found.total, 'file')}: {parts}" if parts else "No files changed"


# --- restoring ---------------------------------------------------------------------------------------------------


def restore_options(command: Any) -> Any:
    """Add what `restore --files` takes."""
    return _with_options(
        command,
        files_option("Restore project files, all or the PATHs; the state stays as it is."),
        workspace_option("With --files: the tree to write to.  [default: where it was captured]"),
        click.option("--dry-run", is_flag=True, help="With --files: only list what would change."),
        click.option("--force", is_flag=True, help="With --files: also over changes that no capture has."),
    )


def show_restored(settings: Settings, restored: RestoredFiles) -> int:
    """Print what a restore of files did; the exit code tells whether all of it happened."""
    settings.show(restored, _print_restored)
    return 0 if restored.is_complete or restored.is_dry_run else 1


def _print_restored(restored: RestoredFiles) -> None:
    name = numbered(restored.checkpoint)
    if restored.checkpoint.message:
        name += f": {clean(restored.checkpoint.message)}"
    would = "Would restore" if restored.is_dry_run else "Restored"
    texts = [f"{would} {count(restored.total, 'file')} in {clean(restored.root)} to {name}"]
    texts += map(_row, restored.changes)
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
        texts.append(f"Undo:   {_undo(restored)}")
    lines(texts)


def _undo(restored: RestoredFiles) -> str:
    """The command that takes a restore of files back; from elsewhere it has to name the tree."""
    here = Path.cwd().resolve()
    is_inside = Path(restored.root) in (here, *here.parents)
    place = "" if is_inside else f" --workspace {clean(shlex.quote(restored.root))}"
    return f"{undo_command(restored.session)} --files{place}"


def undo_command(session: str) -> str:
    """The command that takes the last restore back, safe to show."""
    return f"stepkeep restore --session {clean(shlex.quote(session))} --undo"


# --- exporting ---------------------------------------------------------------------------------------------------


def export_tar(settings: Settings, run: Session, ref: str, *, output: Path | None, force: bool) -> None:
    """Write the files of a checkpoint as an archive, and say so."""
    exported = run.files.export(ref, output=sys.stdout.buffer if output is None else output, force=force)
    if output is not None:
        settings.show(exported, _print_exported)


def _print_exported(exported: FilesExported) -> None:
    place = f"{count(exported.files, 'file')}, {size(exported.size_bytes)}"
    lines([f"Wrote the files of {exported.checkpoint} to {clean(exported.output or 'stdout')} ({place})"])
