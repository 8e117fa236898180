"""`stepkeep at`."""

from __future__ import annotations

import click

from stepkeep import operations
from stepkeep.cli.app import Command, Settings, settings_of
from stepkeep.cli.naming import (
    chosen_session,
    chosen_session_and_refs,
    complete_ref,
    session_argument,
    session_option,
)
from stepkeep.cli.printing import lines, note
from stepkeep.cli.show import shown_texts, value_text
from stepkeep.operations import ShownAt, ValueAt

EXAMPLE = """\
stepkeep at "2 hours ago"
stepkeep at "2025-01-20 14:30:00"
stepkeep at research-42 "yesterday 14:30" context.messages[-1]"""


@click.command("at", cls=Command, example=EXAMPLE)
@session_argument()
@click.argument("time", required=False, metavar="TIME", shell_complete=complete_ref)
@click.argument("path", required=False, metavar="[PATH]")
@session_option()
@settings_of
def at(
    settings: Settings,
    session: str | None,
    time: str | None,
    path: str | None,
    session_option: str | None,
) -> None:
    """Show the state of SESSION as it was at TIME, or only the value at PATH.

    It is that of the newest checkpoint at or before TIME: now, '2 hours ago', 14:30, 'yesterday 14:30', 2025-01-20,
    '2025-01-20 14:30:00'. A time that names no zone is read in the configured one, UTC unless set.
    """
    if session is None:
        raise click.UsageError("At what time? Say it like '2 hours ago' or '2025-01-20 14:30:00'.")
    with operations.open_store(settings.store) as store:
        if time is None:  # one argument can only be the time
            key, given = chosen_session(store, None, session_option), [session]
        else:
            key, given = chosen_session_and_refs(store, [session, time, path], session_option)
        if not 1 <= len(given) <= 2:
            raise click.UsageError("Say a time, and if need be the path of one value.")
        found = operations.at(store, key, given[0], given[1] if len(given) > 1 else None)
    settings.show(found, _print)


def _print(found: ShownAt | ValueAt) -> None:
    asked = f"at or before {found.asked_text}"
    if isinstance(found, ValueAt):
        note(f"#{found.checkpoint.seq}, the newest {asked}")
        lines([value_text(found)])
    else:
        lines([f"{'asked:':<12}{asked}", *shown_texts(found)])


COMMANDS = {"at": at}
