"""`stepkeep list`."""

from __future__ import annotations

import click

from stepkeep import operations
from stepkeep.cli.app import Command, Settings, settings_of
from stepkeep.cli.naming import optional_session, session_argument, session_option
from stepkeep.cli.printing import is_narrow, lines, moment, ratio, size, table
from stepkeep.model import Status
from stepkeep.operations import CheckpointView, SessionView

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
    with operations.open_store(settings.store) as store:
        if key is None and tag is None:
            sessions = operations.list_sessions(store, project=project, status=status, limit=limit)
            settings.show(sessions, _print_sessions)
            return
        found = operations.list_checkpoints(
            store, session=key, tag=tag, status=status, project=project, limit=limit
        )
    settings.show(found, lambda found: _print_checkpoints(found, across=key is None))


def _print_sessions(sessions: tuple[SessionView, ...]) -> None:
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


def _print_checkpoints(found: tuple[CheckpointView, ...], *, across: bool) -> None:
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


COMMANDS = {"list": list_}
