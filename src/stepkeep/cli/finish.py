"""`stepkeep complete`, `fail`, `cancel` and `pause`."""

from __future__ import annotations

import click

from stepkeep import operations
from stepkeep.cli.app import Command, Settings, settings_of
from stepkeep.cli.naming import session_argument, session_named, session_option
from stepkeep.cli.printing import clean, lines
from stepkeep.model import Status
from stepkeep.operations import SessionView


def _finish(
    settings: Settings, status: Status, session: str | None, option: str | None, error: str | None = None
) -> None:
    key = session_named(session, option)
    with operations.open_store(settings.store) as store:
        finished = operations.finish(store, key, status, error=error)
    settings.show(finished, _print)


def _print(session: SessionView) -> None:
    lines([f"Session {clean(session.key)} is {session.status}"])


@click.command("complete", cls=Command, example="stepkeep complete research-42")
@session_argument()
@session_option()
@settings_of
def complete(settings: Settings, session: str | None, session_option: str | None) -> None:
    """Mark SESSION as completed."""
    _finish(settings, Status.COMPLETED, session, session_option)


@click.command("fail", cls=Command, example='stepkeep fail research-42 --error "quota exceeded"')
@session_argument()
@session_option()
@click.option("--error", metavar="TEXT", help="What went wrong.")
@settings_of
def fail(settings: Settings, session: str | None, session_option: str | None, error: str | None) -> None:
    """Mark SESSION as failed."""
    _finish(settings, Status.FAILED, session, session_option, error)


@click.command("cancel", cls=Command, example="stepkeep cancel research-42")
@session_argument()
@session_option()
@settings_of
def cancel(settings: Settings, session: str | None, session_option: str | None) -> None:
    """Mark SESSION as cancelled."""
    _finish(settings, Status.CANCELLED, session, session_option)


@click.command("pause", cls=Command, example="stepkeep pause research-42")
@session_argument()
@session_option()
@settings_of
def pause(settings: Settings, session: str | None, session_option: str | None) -> None:
    """Mark SESSION as paused. The next save continues it."""
    _finish(settings, Status.PAUSED, session, session_option)


COMMANDS = {"cancel": cancel, "complete": complete, "fail": fail, "pause": pause}
