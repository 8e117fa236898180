"""`stepkeep log`."""

from __future__ import annotations

import click

from stepkeep import operations
from stepkeep.cli.app import Command, Settings, settings_of
from stepkeep.cli.naming import chosen_session, session_argument, session_option
from stepkeep.cli.printing import clean, count, lines, moment, note, styled
from stepkeep.history.rendering import change_text, value_text
from stepkeep.history.tracing import ValueChange
from stepkeep.operations import CheckpointView, History

EXAMPLE = """\
stepkeep log research-42 --limit 20
stepkeep log research-42 --path context.messages[-1]"""

_SIGNS = {"added": ("+", "green"), "changed": ("~", "yellow"), "removed": ("-", "red")}


@click.command("log", cls=Command, example=EXAMPLE)
@session_argument()
@session_option()
@click.option("--path", metavar="PATH", help="Show how this value of the state changed, oldest first.")
@click.option("--limit", type=click.IntRange(min=1), metavar="N", help="Show the last N.")
@settings_of
def log(
    settings: Settings,
    session: str | None,
    session_option: str | None,
    path: str | None,
    limit: int | None,
) -> None:
    """Show what was done in SESSION, one checkpoint a line, newest first.

    With --path only the checkpoints at which that value changed: + added, ~ changed, - removed.
    """
    with operations.open_store(settings.store) as store:
        key = chosen_session(store, session, session_option)
        if path is None:
            settings.show(operations.history(store, key, limit=limit), _print)
            return
        result, changes = operations.log_value(store, key, path, limit=limit)
    settings.show(result, lambda _: lines(_change(change) for change in changes))


def _print(found: History) -> None:
    if found.damaged:
        note(f"warning: {count(len(found.damaged), 'damaged header')} left out: run stepkeep verify")
    wide = max((len(str(each.seq)) for each in found.checkpoints), default=0) + 1
    lines(_entry(each, wide) for each in found.checkpoints)


def _entry(each: CheckpointView, wide: int) -> str:
    facts = [] if each.step is None else [f"step {each.step}"]
    facts += [] if each.status == "in_progress" else [each.status]
    facts += each.tags
    message = each.message or f"({each.trigger.kind})"
    about = f" [{', '.join(facts)}]" if facts else ""
    return f"{f'#{each.seq}':<{wide}}  {moment(each.time)}  {clean(message + about)}"


def _change(change: ValueChange) -> str:
    sign, colour = _SIGNS[change.kind]
    place = f"#{change.header.seq}  {moment(change.header.created_at)}"
    return styled(f"{sign} {place}  {clean(_value(change))}", colour)


def _value(change: ValueChange) -> str:
    if change.kind == "changed":
        return change_text(change.old, change.new)
    return value_text(change.new if change.kind == "added" else change.old)


COMMANDS = {"log": log}
