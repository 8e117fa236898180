"""`stepkeep list`, `stepkeep history` and `stepkeep log`."""

from __future__ import annotations

import click

from stepkeep import api
from stepkeep.api import CheckpointInfo, History, SessionSummary, ValueChange
from stepkeep.cli.app import Command, Settings, settings_of
from stepkeep.cli.naming import chosen_session, optional_session, session_argument, session_option
from stepkeep.cli.printing import is_narrow, lines, moment, note, ratio, styled, table
from stepkeep.model import Status
from stepkeep.text import clean, count, size

EXAMPLE = """\
stepkeep list --status in_progress
stepkeep list research-42
stepkeep list --tag verified"""


@click.command("list", cls=Command, example=EXAMPLE)
@session_argument()
@session_option()
@click.option("--tag", help="List checkpoints with this tag.")
@click.option(
    "--status", type=click.Choice([status.value for status in Status]), help="Only those with this status."
)
@click.option("--project", help="Only those of this project.")
@click.option("--limit", type=click.IntRange(min=1), metavar="N", help="At most so many.")
@settings_of
def list_(
    settings: Settings,
    session: str | None,
    session_option: str | None,
    tag: str | None,
    status: str | None,
    project: str | None,
    limit: int | None,
) -> None:
    """List sessions, most recently used first.

    With SESSION, list its checkpoints; with --tag, the checkpoints with that tag, of SESSION, else of the one in
    STEPKEEP_SESSION, else of all sessions.
    """
    key = optional_session(session, session_option, use_environment=tag is not None)
    with api.open(settings.store, create=False) as store:
        if key is None and tag is None:
            sessions = store.summaries(project=project, status=status, limit=limit)
            settings.show(sessions, _print_sessions)
            return
        found = store.describe(
            store.checkpoints(session=key, tag=tag, status=status, project=project, limit=limit)
        )
    settings.show(found, lambda found: _print_checkpoints(found, across=key is None))


def _print_sessions(sessions: tuple[SessionSummary, ...]) -> None:
    if not sessions:
        lines(["No sessions."])
        return
    table(
        ["status", "checkpoints", "updated", "project", "session"],
        [
            [each.status, str(each.checkpoints), moment(each.updated), each.project or "-", each.key]
            for each in sessions
        ],
        right=["checkpoints"],
    )


def _print_checkpoints(found: tuple[CheckpointInfo, ...], *, across: bool) -> None:
    if not found:
        lines(["No checkpoints."])
        return
    columns = {
        "session": [each.session for each in found],
        "seq": [str(each.seq) for each in found],
        "checkpoint": [each.id for each in found],
        "time": [moment(each.time) for each in found],
        "branch": [each.branch for each in found],
        "step": ["-" if each.step is None else str(each.step) for each in found],
        "size": [size(each.size_bytes) for each in found],
        "stored": [size(each.stored_bytes) for each in found],
        "ratio": [ratio(each.ratio) for each in found],
        "tags": [",".join(each.tags) or "-" for each in found],
        "message": [each.message or "-" for each in found],
    }
    if not across:
        del columns["session"]
    if len(set(columns["branch"])) == 1:
        del columns["branch"]
    if is_narrow():
        # Session and seq name a checkpoint as well as its id, which would leave no room for the rest.
        del columns["checkpoint"], columns["stored"], columns["ratio"]
    rows = [list(row) for row in zip(*columns.values(), strict=True)]
    table(list(columns), rows, right=["seq", "step", "size", "stored", "ratio"])


# --- history -----------------------------------------------------------------------------------------------------

SHORT_VIEW = 4
HISTORY_EXAMPLE = "stepkeep history research-42 --limit 20"


@click.command("history", cls=Command, example=HISTORY_EXAMPLE)
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
    with api.open(settings.store, create=False) as store:
        key = chosen_session(store, session, session_option)
        found = store.get(key).branches.log(limit=limit)
    settings.show(found, _print_history)


def _print_history(found: History) -> None:
    if found.damaged:
        note(f"warning: {count(len(found.damaged), 'damaged header')} left out: run stepkeep verify")
    if not found.checkpoints:
        lines([f"Session {clean(found.session)} has no checkpoint."])
        return
    latest, *older = found.checkpoints
    more = found.total - len(found.checkpoints) - len(found.damaged)
    texts = [f"Latest: {_history_entry(latest)}"]
    if older or more:
        texts.append("History:")
    texts += [f"  - {_history_entry(each)}" for each in older]
    if more:
        texts.append(f"  ... ({more} more)")
    lines(texts)


def _history_entry(each: CheckpointInfo) -> str:
    facts = [moment(each.time), size(each.size_bytes)]
    if each.step is not None:
        facts.append(f"step {each.step}")
    if is_narrow():
        # The part of the id before its random end is enough to name the checkpoint.
        return f"{each.id.rpartition('_')[0]} ({', '.join([*facts, ratio(each.ratio)])})"
    return f"{each.id} ({', '.join([*facts, f'stored {size(each.stored_bytes)}', ratio(each.ratio)])})"


# --- log ---------------------------------------------------------------------------------------------------------

LOG_EXAMPLE = """\
stepkeep log research-42 --limit 20
stepkeep log research-42 --path context.messages[-1]"""

_SIGNS = {"added": ("+", "green"), "changed": ("~", "yellow"), "removed": ("-", "red")}


@click.command("log", cls=Command, example=LOG_EXAMPLE)
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
    with api.open(settings.store, create=False) as store:
        key = chosen_session(store, session, session_option)
        run = store.get(key)
        if path is None:
            settings.show(run.branches.log(limit=limit), _print_log)
            return
        changes = run.log(path, limit=limit)
        if not changes:
            run.show_value("latest", path)  # says what is near a path that never had a value
    settings.show(changes, lambda changes: lines(map(_change, changes)))


def _print_log(found: History) -> None:
    if found.damaged:
        note(f"warning: {count(len(found.damaged), 'damaged header')} left out: run stepkeep verify")
    wide = max((len(str(each.seq)) for each in found.checkpoints), default=0) + 1
    lines(_log_entry(each, wide) for each in found.checkpoints)


def _log_entry(each: CheckpointInfo, wide: int) -> str:
    facts = [] if each.step is None else [f"step {each.step}"]
    facts += [] if each.status == "in_progress" else [each.status]
    facts += each.tags
    message = each.message or f"({each.trigger.kind})"
    about = f" [{', '.join(facts)}]" if facts else ""
    return f"{f'#{each.seq}':<{wide}}  {moment(each.time)}  {clean(message + about)}"


def _change(change: ValueChange) -> str:
    sign, colour = _SIGNS[change.kind]
    place = f"#{change.checkpoint.seq}  {moment(change.checkpoint.time)}"
    return styled(f"{sign} {place}  {clean(change.text())}", colour)


COMMANDS = {"history": history, "list": list_, "log": log}
