"""Ending a session: `stepkeep complete`, `fail`, `cancel`, `pause` and `delete`."""

from __future__ import annotations

import sys
from typing import Any

import click

from stepkeep import api
from stepkeep.cli.app import CommonOptions, command
from stepkeep.cli.naming import Words, known, on_session, opened
from stepkeep.cli.printing import lines, note, says_yes
from stepkeep.text import clean, count

DELETE_EXAMPLE = """\
stepkeep delete research-42 12 step-5
stepkeep delete research-42 --whole-session --yes"""


def _command(name: str, help: str, *options: Any, example: str = "") -> click.Command:
    """The command for a method of a session that ends it; it takes the options as they are."""

    def finish(settings: CommonOptions, /, words: Words, **given: Any) -> None:
        key = words.named()
        with opened(settings) as store:
            run = store.get(known(store, key))
            finished = run.summary(getattr(run, name)(**given))
        settings.show(finished, _print)

    for option in options:
        finish = option(finish)
    example = f"stepkeep {name} research-42{example}"
    return command(name, example, help=help)(on_session()(finish))


def _print(session: api.SessionSummary) -> None:
    lines([f"Session {clean(session.key)} is {session.status}"])


cancel = _command("cancel", "Mark SESSION as cancelled.")
complete = _command("complete", "Mark SESSION as completed.")
fail = _command(
    "fail",
    "Mark SESSION as failed.",
    click.option("--error", metavar="TEXT", help="What went wrong."),
    example=' --error "quota exceeded"',
)
pause = _command("pause", "Mark SESSION as paused. The next save continues it.")


@command("delete", DELETE_EXAMPLE)
@on_session("refs", help="The session, instead of the argument.")
@click.option("--whole-session", is_flag=True, help="Remove the session with all its checkpoints.")
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
def delete(settings: CommonOptions, words: Words, whole_session: bool, yes: bool) -> int:
    """Remove checkpoints of SESSION, or the whole session, for good.

    The bytes are overwritten. The session must be named here; STEPKEEP_SESSION does not count.
    """
    key, chosen = words.named_and_refs()
    if whole_session == bool(chosen):
        raise click.UsageError("Name the checkpoints to remove, or say --whole-session.")
    with opened(settings) as store:
        key = known(store, key)
        run = store.get(key)
        what = ", ".join(chosen) if chosen else f"all {count(run.info.stored_count, 'checkpoint')}"
        if not yes and not is_confirmed(f"Remove {what} of session {key} for good?"):
            note("Nothing removed.")
            return 1
        deleted = run.delete(*chosen) if chosen else run.clear()
    settings.show(deleted, _print_deleted)
    return 0


def _print_deleted(deleted: api.Deleted) -> None:
    whole = " (the whole session)" if deleted.is_whole_session else ""
    lines([f"Removed {count(deleted.count, 'checkpoint')} of {clean(deleted.session)}{whole}"])


def is_confirmed(question: str) -> bool:
    """Ask before something is removed; where nobody can be asked it is refused."""
    if not sys.stdin.isatty():
        raise click.UsageError("There is no terminal to ask: say --yes to remove for good.")
    return says_yes(question)
