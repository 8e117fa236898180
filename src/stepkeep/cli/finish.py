"""Ending a session: `stepkeep complete`, `fail`, `cancel`, `pause` and `delete`."""

from __future__ import annotations

import sys
from collections.abc import Callable

import click

from stepkeep import api
from stepkeep.api import Deleted, Session, SessionSummary
from stepkeep.cli.app import Command, Settings, settings_of
from stepkeep.cli.naming import (
    ref_argument,
    session_and_refs,
    session_argument,
    session_named,
    session_option,
)
from stepkeep.cli.printing import lines, note
from stepkeep.text import clean, count


def _finish(
    settings: Settings, session: str | None, option: str | None, finish: Callable[[Session], object]
) -> None:
    key = session_named(session, option)
    with api.open(settings.store, create=False) as store:
        run = store.get(key)
        finish(run)
        finished = run.summary()
    settings.show(finished, _print)


def _print(session: SessionSummary) -> None:
    lines([f"Session {clean(session.key)} is {session.status}"])


@click.command("complete", cls=Command, example="stepkeep complete research-42")
@session_argument()
@session_option()
@settings_of
def complete(settings: Settings, session: str | None, session_option: str | None) -> None:
    """Mark SESSION as completed."""
    _finish(settings, session, session_option, Session.complete)


@click.command("fail", cls=Command, example='stepkeep fail research-42 --error "quota exceeded"')
@session_argument()
@session_option()
@click.option("--error", metavar="TEXT", help="What went wrong.")
@settings_of
def fail(settings: Settings, session: str | None, session_option: str | None, error: str | None) -> None:
    """Mark SESSION as failed."""
    _finish(settings, session, session_option, lambda run: run.fail(error))


@click.command("cancel", cls=Command, example="stepkeep cancel research-42")
@session_argument()
@session_option()
@settings_of
def cancel(settings: Settings, session: str | None, session_option: str | None) -> None:
    """Mark SESSION as cancelled."""
    _finish(settings, session, session_option, Session.cancel)


@click.command("pause", cls=Command, example="stepkeep pause research-42")
@session_argument()
@session_option()
@settings_of
def pause(settings: Settings, session: str | None, session_option: str | None) -> None:
    """Mark SESSION as paused. The next save continues it."""
    _finish(settings, session, session_option, Session.pause)


# --- delete ------------------------------------------------------------------------------------------------------

DELETE_EXAMPLE = """\
stepkeep delete research-42 step-5
stepkeep delete research-42 --yes"""


@click.command("delete", cls=Command, example=DELETE_EXAMPLE)
@session_argument()
@ref_argument(many=True)
@session_option("The session, instead of the argument.")
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@settings_of
def delete(
    settings: Settings,
    session: str | None,
    refs: tuple[str, ...],
    session_option: str | None,
    yes: bool,
) -> int:
    """Remove checkpoints of SESSION, or without REF the whole session, for good.

    The bytes are overwritten. The session must be named here; STEPKEEP_SESSION does not count.
    """
    key, chosen = session_and_refs([session, *refs], session_option, use_environment=False)
    with api.open(settings.store, create=False) as store:
        run = store.get(key)
        stored = run.info.stored_count
        what = ", ".join(chosen) if chosen else f"all {count(stored, 'checkpoint')}"
        if not yes and not _is_confirmed(f"Remove {what} of session {key} for good?"):
            note("Nothing removed.")
            return 1
        deleted = run.delete(*chosen) if chosen else run.clear()
    settings.show(deleted, _print_deleted)
    return 0


def _print_deleted(deleted: Deleted) -> None:
    whole = " (the whole session)" if deleted.is_whole_session else ""
    lines([f"Removed {count(deleted.count, 'checkpoint')} of {clean(deleted.session)}{whole}"])


def _is_confirmed(question: str) -> bool:
    if not sys.stdin.isatty():
        raise click.UsageError("There is no terminal to ask: say --yes to remove for good.")
    return click.confirm(clean(question), err=True)


COMMANDS = {"cancel": cancel, "complete": complete, "delete": delete, "fail": fail, "pause": pause}
