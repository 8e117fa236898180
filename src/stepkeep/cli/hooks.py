"""`stepkeep hooks`, and `stepkeep hook` where it is not the first word of the line."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import click

from stepkeep import api
from stepkeep.cli.app import CommandGroup, CommonOptions, command
from stepkeep.cli.printing import lines, note, table
from stepkeep.text import clean

CLIENTS: Final = ("claude-code", "gemini", "codex")
EXAMPLE: Final = """\
stepkeep hooks install --client claude-code --dry-run
stepkeep hooks install --client claude-code --project
stepkeep hooks status"""


@click.group("hooks", cls=CommandGroup, example=EXAMPLE)
def hooks() -> None:
    """Let a coding agent save its work at its own events, and offer to resume it."""


def _client_option(*, required: bool) -> Callable[[Any], Any]:
    return click.option(
        "--client", type=click.Choice(CLIENTS), required=required, help="The coding agent to work with."
    )


def _change_options(command: Any) -> Any:
    """Add what commands take that change a settings file."""
    scope = click.option(
        "--project/--user",
        "is_project",
        default=True,
        show_default=True,
        help="Use the settings of the project in this folder, or those of the user.",
    )
    dry_run = click.option("--dry-run", is_flag=True, help="Show the change and make none.")
    return _client_option(required=True)(scope(dry_run(command)))


@command("install", "stepkeep hooks install --client gemini --user", group=hooks)
@_change_options
@click.option(
    "--command", "with_command", is_flag=True, help="Also write the /checkpoint command file of Claude Code."
)
@click.option("--force", is_flag=True, help="With --command: replace another file of that name.")
def install(
    settings: CommonOptions, client: str, is_project: bool, dry_run: bool, with_command: bool, force: bool
) -> None:
    """Put the hooks into the settings file of a coding agent. What else is in it stays.

    With --store the hooks and the command save into that store, else into the one that every command uses.
    """
    if force and not with_command:
        raise click.UsageError("--force goes with --command.")
    done = api.install_hooks(
        client,
        "project" if is_project else "user",
        store=settings.store,
        dry_run=dry_run,
        with_command=with_command,
        overwrite_command=force,
    )
    settings.show(done, _print_change)


@command("uninstall", "stepkeep hooks uninstall --client gemini --user", group=hooks)
@_change_options
def uninstall(settings: CommonOptions, client: str, is_project: bool, dry_run: bool) -> None:
    """Take the hooks out of the settings file of a coding agent. What else is in it stays."""
    done = api.uninstall_hooks(client, "project" if is_project else "user", dry_run=dry_run)
    settings.show(done, _print_change)


def _print_change(change: api.HooksChange) -> None:
    if not change.is_changed:
        lines([f"{clean(change.path)} needs no change"])
    elif change.is_dry_run:
        lines([f"{clean(change.path)} would change:", *map(clean, change.diff.splitlines())])
    else:
        kept = "" if change.backup is None else f"; the old file is {clean(change.backup)}"
        lines([f"{clean(change.path)} is changed{kept}"])
    if change.command is not None:
        has = "would have" if change.is_dry_run else "has"
        lines([f"{clean(change.command)} {has} the command /checkpoint"])
    if change.note is not None:
        note(change.note)


@command("status", "stepkeep hooks status --client codex", group=hooks)
@_client_option(required=False)
def status(settings: CommonOptions, client: str | None) -> None:
    """Show where hooks are installed, and what they could not do lately."""
    settings.show(api.hooks_status(client), _print_status)


def _print_status(found: api.HooksStatus) -> None:
    table(
        [
            {"client": each.client, "scope": each.scope, "hooks": _state(each), "file": each.path}
            for each in found.files
        ]
    )
    if found.problems:
        lines(["", f"Problems, newest first ({clean(found.log)}):"])
        lines(
            f"  {each.time} {clean(each.client)} {clean(each.event)}: {clean(each.message)}"
            for each in found.problems
        )


def _state(file: api.HooksInstalled) -> str:
    if file.problem is not None:
        return file.problem
    if not file.exists or not file.events:
        return "none"
    return f"{len(file.events)} events" + (f", missing {', '.join(file.missing)}" if file.missing else "")


@command(
    "hook",
    "stepkeep hook SessionStart --client claude-code",
    context_settings={"ignore_unknown_options": True, "allow_extra_args": True},
)
@click.option("--client", type=str, default=CLIENTS[0], show_default=True, help="The agent that calls.")
@click.argument("event", required=False, default="")
@click.argument("payload", required=False)
def hook(settings: CommonOptions, client: str, event: str, payload: str | None) -> int:
    """Answer EVENT of a coding agent: read its JSON on stdin, save what it tells, print the answer.

    Agents run this. It never stops one: the exit code is 0, and what goes wrong is told in the answer.
    """
    from stepkeep.hooks import answering  # few call it this way

    words = [event, *([] if payload is None else [payload]), "--client", client]
    store = [] if settings.store is None else ["--store", settings.store]
    return answering.main([*words, *store])
