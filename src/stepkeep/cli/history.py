"""`stepkeep history`."""

from __future__ import annotations

import click

from stepkeep import operations
from stepkeep.cli.app import Command, Settings, settings_of
from stepkeep.cli.naming import chosen_session, session_argument, session_option
from stepkeep.cli.printing import clean, count, is_narrow, lines, moment, note, ratio, size
from stepkeep.operations import CheckpointView, History

SHORT_VIEW = 4
EXAMPLE = "stepkeep history research-42 --limit 20"


@click.command("history", cls=Command, example=EXAMPLE)
@session_argument()
@session_option()
@click.option(
    "--limit", type=click.IntRange(min=1), metavar="N", help="Show so many.  [default: 4; JSON: all]"
)
@click.option("--all", "show_all", is_flag=True, help="Show all of them.")
@settings_of
def history(
    settings: Settings, session: str | None, session_option: str | None, limit: int | None, show_all: bool
) -> None:
    """Show the checkpoints that led to where SESSION stands, newest first.

    Each with its time, size, step, stored size, and how many times smaller it is stored.
    """
    if limit is not None and show_all:
        raise click.UsageError("--limit and --all exclude each other.")
    if limit is None and not show_all and not settings.json:
        limit = SHORT_VIEW
    with operations.open_store(settings.store) as store:
        key = chosen_session(store, session, session_option)
        found = operations.history(store, key, limit=limit)
    settings.show(found, _print)


def _print(found: History) -> None:
    if found.damaged:
        note(f"warning: {count(len(found.damaged), 'damaged header')} left out: run stepkeep verify")
    if not found.checkpoints:
        lines([f"Session {clean(found.session)} has no checkpoint."])
        return
    latest, *older = found.checkpoints
    more = found.total - len(found.checkpoints) - len(found.damaged)
    texts = [f"Latest: {_entry(latest)}"]
    if older or more:
        texts.append("History:")
    texts += [f"  - {_entry(each)}" for each in older]
    if more:
        texts.append(f"  ... ({more} more)")
    lines(texts)


def _entry(each: CheckpointView) -> str:
    facts = [moment(each.time), size(each.size_bytes)]
    if each.step is not None:
        facts.append(f"step {each.step}")
    if is_narrow():
        # The part of the id before its random end is enough to name the checkpoint.
        return f"{each.id.rpartition('_')[0]} ({', '.join([*facts, ratio(each.ratio)])})"
    return f"{each.id} ({', '.join([*facts, f'stored {size(each.stored_bytes)}', ratio(each.ratio)])})"


COMMANDS = {"history": history}
