"""`stepkeep files`: the project files that checkpoints hold."""

from __future__ import annotations

import os
from collections.abc import Callable

import click

from stepkeep import api
from stepkeep.cli.app import CommandGroup, CommonOptions, command
from stepkeep.cli.naming import chosen_session, complete_ref, limit_option, opened, session_option
from stepkeep.cli.printing import lines, numbered, write
from stepkeep.text import clean, count, size

EXAMPLE = """\
stepkeep files ls --session research-42
stepkeep files cat src/app.py --ref latest~2 --session research-42
stepkeep files log src/app.py --session research-42"""


@click.group("files", cls=CommandGroup, example=EXAMPLE)
@session_option()
def files(session_option: str | None) -> None:
    """Look at the project files that checkpoints hold: list them, read one, trace one.

    Paths are relative to where you stand, if that is in the captured tree, else to its root.
    """


_ref = click.option(
    "--ref", default="latest", show_default=True, shell_complete=complete_ref, help="The checkpoint."
)


def folder_below(root: str) -> str:
    """Where you stand in the captured tree; empty for its root and for everywhere else."""
    here = os.path.realpath(os.curdir)
    return "" if here == root or os.path.commonpath([root, here]) != root else os.path.relpath(here, root)


def _from_here(root: str) -> Callable[[str], str]:
    """How a path of the captured tree is written where you stand: so that it can be given back."""
    here = os.path.realpath(os.curdir)
    if here == root or os.path.commonpath([root, here]) != root:
        return str
    return lambda path: os.path.relpath(os.path.join(root, path), here)  # noqa: PTH118


def _below(root: str, path: str) -> str:
    """A path as the captured tree has it."""
    here = os.path.realpath(os.curdir)
    if not path or os.path.commonpath([root, here]) != root:
        return path
    return os.path.relpath(os.path.join(here, path), root)  # noqa: PTH118


@command("ls", "stepkeep files ls src", group=files)
@click.argument("paths", nargs=-1, metavar="[PATH]...")
@_ref
@session_option()
def ls(settings: CommonOptions, paths: tuple[str, ...], ref: str, session_option: str | None) -> None:
    """List the files of a checkpoint, and what it left out and why."""
    with opened(settings) as store:
        run = store.get(chosen_session(store, None, session_option))
        root = run.files.at(ref).root
        found = run.files.list(ref, [_below(root, path) for path in paths])
    settings.show(found, lambda found: _print_list(found, _from_here(root)))


def _print_list(found: api.FileList, here: Callable[[str], str]) -> None:
    shown = [f"{each.mode[-3:]} {size(each.size_bytes):>8} {clean(here(each.path))}" for each in found.files]
    shown += [f"not captured: {clean(here(path))} ({clean(why)})" for path, why in found.skipped.items()]
    shown += [f"ignored: {clean(here(path))} ({clean(rule)})" for path, rule in found.ignored.items()]
    total = f"{count(found.total, 'file')}, {size(found.size_bytes)}"
    lines([*shown, f"{total} at {numbered(found.checkpoint)} in {clean(found.root)}"])


@command("cat", "stepkeep files cat src/app.py --ref latest~2", group=files)
@click.argument("path")
@_ref
@session_option()
def cat(settings: CommonOptions, path: str, ref: str, session_option: str | None) -> None:
    """Print the content of one file of a checkpoint, byte for byte."""
    with opened(settings) as store:
        run = store.get(chosen_session(store, None, session_option))
        content = run.files.read(_below(run.files.at(ref).root, path), ref)
    if settings.json:
        text = content.decode("utf-8", "backslashreplace")
        settings.show({"path": path, "size_bytes": len(content), "text": text}, lambda _: None)
    else:
        write(content)


@command("log", "stepkeep files log src/app.py", group=files)
@click.argument("path")
@_ref
@limit_option("How many changes to show, the newest first.")
@session_option()
def log(settings: CommonOptions, path: str, ref: str, limit: int | None, session_option: str | None) -> None:
    """Show where one file changed, newest first, followed through its renames."""
    with opened(settings) as store:
        run = store.get(chosen_session(store, None, session_option))
        root = run.files.at(ref).root
        found = run.files.log(_below(root, path), ref=ref, limit=limit)
    settings.show(found, lambda versions: lines([_version(each, _from_here(root)) for each in versions]))


def _version(each: api.FileVersion, here: Callable[[str], str]) -> str:
    old = "" if each.old_path is None else f" from {clean(here(each.old_path))}"
    taken = "" if each.size_bytes is None else f" ({size(each.size_bytes)})"
    message = f"  {clean(each.checkpoint.message)}" if each.checkpoint.message else ""
    return f"{numbered(each.checkpoint)} {each.kind} {clean(here(each.path))}{old}{taken}{message}"


@command("diff", "stepkeep files diff latest~2 latest", group=files)
@click.argument("older", required=False, shell_complete=complete_ref)
@click.argument("newer", required=False, shell_complete=complete_ref)
@session_option()
def diff(settings: CommonOptions, older: str | None, newer: str | None, session_option: str | None) -> None:
    """Show which files differ between two checkpoints, or between one and the files as they are now."""
    from stepkeep.cli.diff import print_files_diff

    with opened(settings) as store:
        run = store.get(chosen_session(store, None, session_option))
        found = run.files.diff(older, newer, line_counts=True)
        root = run.files.at(found.older.id).root
    settings.show(found, lambda found: print_files_diff(found, _from_here(root)))
