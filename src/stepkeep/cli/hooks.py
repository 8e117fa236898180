"""`stepkeep hooks`, and `stepkeep hook` where it is not the first word of the line."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, Literal

import click

from stepkeep import api
from stepkeep.cli.app import CommandGroup, CommonOptions, command
from stepkeep.cli.printing import lines, note, table
from stepkeep.text import clean, count, shortened

CLIENTS: Final = ("claude-code", "gemini", "codex", "copilot", "cursor", "opencode")
EXAMPLE: Final = """\
stepkeep hooks install --client claude-code --dry-run
stepkeep hooks install --client claude-code --project
stepkeep hooks status
stepkeep hooks test --client claude-code"""


@click.group("hooks", cls=CommandGroup, example=EXAMPLE)
def hooks() -> None:
    """Let a coding agent save its work at its own events, and offer to resume it."""


def _client_option(*, required: bool) -> Callable[[Any], Any]:
    return click.option(
        "--client", type=click.Choice(CLIENTS), required=required, help="The coding agent to work with."
    )


def _change_options(command: Any) -> Any:
    """Add what commands take that change a settings file."""
    project = click.option(
        "--project",
        "in_project",
        is_flag=True,
        help="Use the settings of the project in this folder (default).",
    )
    user = click.option("--user", "in_user", is_flag=True, help="Use the settings of the user.")
    dry_run = click.option("--dry-run", is_flag=True, help="Show the change and make none.")
    return _client_option(required=True)(project(user(dry_run(command))))


def _scope(*, in_project: bool, in_user: bool) -> Literal["project", "user"]:
    if in_project and in_user:
        raise click.UsageError("--project and --user are two files: give one of them.")
    return "user" if in_user else "project"


@command("install", "stepkeep hooks install --client gemini --user", group=hooks)
@_change_options
@click.option(
    "--command", "with_command", is_flag=True, help="Also write the /checkpoint command file of Claude Code."
)
@click.option("--force", is_flag=True, help="With --command: replace another file of that name.")
def install(
    settings: CommonOptions,
    client: str,
    in_project: bool,
    in_user: bool,
    dry_run: bool,
    with_command: bool,
    force: bool,
) -> None:
    """Put the hooks into the settings file of a coding agent. What else is in it stays.

    With --store the hooks and the command save into that store, else into the one that every command uses.
    """
    if force and not with_command:
        raise click.UsageError("--force goes with --command.")
    done = api.install_hooks(
        client,
        _scope(in_project=in_project, in_user=in_user),
        store=settings.store,
        dry_run=dry_run,
        with_command=with_command,
        overwrite_command=force,
    )
    settings.show(done, _print_change)


@command("uninstall", "stepkeep hooks uninstall --client gemini --user", group=hooks)
@_change_options
def uninstall(settings: CommonOptions, client: str, in_project: bool, in_user: bool, dry_run: bool) -> None:
    """Take the hooks out of the settings file of a coding agent. What else is in it stays.

    The /checkpoint command file goes too, if it is ours.
    """
    scope = _scope(in_project=in_project, in_user=in_user)
    done = api.uninstall_hooks(client, scope, dry_run=dry_run)
    settings.show(done, lambda done: _print_change(done, has="has lost", would_have="would lose"))


def _print_change(change: api.HooksChange, *, has: str = "has", would_have: str = "would have") -> None:
    if not change.is_changed:
        lines([f"{clean(change.path)} needs no change"])
    elif change.is_dry_run:
        lines([f"{clean(change.path)} would change:", *map(clean, change.diff.splitlines())])
    else:
        kept = "" if change.backup is None else f"; as it was before: {clean(change.backup)}"
        lines([f"{clean(change.path)} is changed{kept}"])
    if change.command is not None:
        lines([f"{clean(change.command)} {would_have if change.is_dry_run else has} the command /checkpoint"])
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
        ],
        wrap=True,
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
    return count(len(file.events), "event") + (f", missing {', '.join(file.missing)}" if file.missing else "")


@command("test", "stepkeep hooks test --client claude-code", group=hooks)
@_client_option(required=True)
def test(settings: CommonOptions, client: str) -> int:
    """Replay sample events of a coding agent, and show what is saved, what is answered, and how long it takes.

    It runs what is installed, else this program. The samples go into a store of their own, which is removed.
    """
    found = api.try_hooks(client, store=settings.store)
    settings.show(found, _print_trial)
    return 0 if found.is_working else 1


def _print_trial(found: api.HooksTrial) -> None:
    is_installed = "installed" if found.is_installed else "not installed yet"
    lines([f"program: {clean(found.program)} ({is_installed})", f"store:   {clean(found.store)}", ""])
    saved = 0
    rows = []
    for each in found.events:
        rows.append(
            {
                "event": each.event,
                "saved": "a checkpoint" if each.checkpoints > saved else "-",
                "ms": f"{each.milliseconds:.0f}",
                "answer": each.problem or shortened(each.answer, 60) or "-",
            }
        )
        saved = each.checkpoints
    table(rows, right=["ms"], wrap=True)


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
