"""`stepkeep phases`: checkpoints at the phases of a task, in the user's folder of them or in a store."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import click

from stepkeep import api
from stepkeep.cli.app import CommandGroup, CommonOptions, command
from stepkeep.cli.naming import opened
from stepkeep.cli.printing import json_document, lines, moment, note, table
from stepkeep.cli.save import read_document
from stepkeep.errors import InvalidInput, NotFound
from stepkeep.text import age, clean, count

EXAMPLE: Final = """\
stepkeep phases create build --session task-7 --task "Move the mail server"
stepkeep phases list --open
stepkeep phases offer"""


@click.group("phases", cls=CommandGroup, example=EXAMPLE)
def phases() -> None:
    """Keep checkpoints at the phases of a task, and offer what is not finished.

    They lie in the folder of STEPKEEP_PHASES, else in ~/.pai; with --store in that store.
    """


@contextmanager
def _opened(settings: CommonOptions) -> Iterator[api.Phases]:
    if settings.store is None:
        with api.open_phases() as found:
            yield found
    else:
        with opened(settings, create=True) as store:
            yield store.phases


def _done(result: api.PhaseResult) -> api.PhaseResult:
    """The result; what went wrong becomes the error of the command, the rest is told."""
    if not result.ok:
        kind = NotFound if result.code == "checkpoint_not_found" else InvalidInput
        raise kind(result.error or "it failed", code=result.code)
    for each in result.warnings:
        note(f"warning: {clean(each)}")
    return result


@command("create", 'stepkeep phases create plan --session task-7 --task "Move the mail server"', group=phases)
@click.argument("phase")
@click.option("--session", "session_id", required=True, metavar="KEY", help="The task, which is a session.")
@click.option("--task", "task_summary", required=True, metavar="TEXT", help="What is done, in eight words.")
@click.option(
    "--number", "phase_number", type=int, help="The phase's number, 1 to 7; known phases have theirs."
)
@click.option("--state", "document", metavar="@FILE|-|JSON", help="The state, as JSON.")
@click.option("--criteria", metavar="@FILE|-|JSON", help="A list of objects with id, subject and status.")
@click.option("--metadata", metavar="@FILE|-|JSON", help="A JSON object, up to 64 KiB.")
@click.option("--project", help="The project the task belongs to.")
def create(
    settings: CommonOptions,
    /,
    phase: str,
    document: str | None,
    criteria: str | None,
    metadata: str | None,
    **given: Any,
) -> None:
    """Save a checkpoint at the transition to PHASE, and point seed.json at it."""
    read = {"criteria": criteria, "metadata": metadata}
    given |= {name: read_document(f"the {name}", text) for name, text in read.items() if text is not None}
    state = None if document is None else read_document("the state", document)
    with _opened(settings) as found:
        made = _done(found.create_checkpoint(phase, state, **given))
    settings.show(made, lambda made: lines([f"Created {made.checkpoint_id}" + _in_file(made)]))


def _in_file(made: api.PhaseResult) -> str:
    return "" if made.file is None else f" ({clean(made.file)})"


@command("list", "stepkeep phases list --open", group=phases)
@click.option(
    "--open/--completed", "is_open", default=None, help="Only those of unfinished, or finished, tasks."
)
@click.option("--session", "session_id", metavar="KEY", help="Only those of this task.")
@click.option(
    "-n", "--limit", type=click.IntRange(1), default=50, metavar="N", help="How many.  [default: 50]"
)
def list_(settings: CommonOptions, is_open: bool | None, session_id: str | None, limit: int) -> None:
    """List the checkpoints of phases, newest first."""
    completed = None if is_open is None else not is_open
    with _opened(settings) as found:
        listed = found.list_checkpoints(completed=completed, session_id=session_id, limit=limit)
    settings.show(listed, _print_list)


def _print_list(listed: list[api.PhaseCheckpoint]) -> None:
    rows = [
        {
            "session": each.session_id,
            "checkpoint": each.id,
            "time": moment(each.created_at),
            "no": str(each.phase_number),
            "phase": each.phase,
            "state": "completed" if each.completed else "open",
            "task": each.task_summary,
        }
        for each in listed
    ]
    if not rows:
        lines(["No checkpoints."])
        return
    table(rows, right=["no"], first_out=("state", "time"))


@command("complete", "stepkeep phases complete cp_20260118T090000000000_k3v9x2aq", group=phases)
@click.argument("checkpoint")
def complete(settings: CommonOptions, checkpoint: str) -> None:
    """Finish the task that CHECKPOINT belongs to: none of its phases is offered any more."""
    with _opened(settings) as found:
        done = _done(found.complete_checkpoint(checkpoint))
    settings.show(done, lambda done: lines([f"The task of {done.checkpoint_id} is completed"]))


@command("cleanup", "stepkeep phases cleanup --older-than 30", group=phases)
@click.option(
    "--older-than", "days", type=click.IntRange(0), default=30, metavar="DAYS", help="How old.  [default: 30]"
)
def cleanup(settings: CommonOptions, days: int) -> None:
    """Remove checkpoints of phases that are old, those of finished tasks first."""
    with _opened(settings) as found:
        done = _done(found.cleanup_checkpoints(days))
    settings.show(done, lambda done: lines([f"Removed {count(done.deleted, 'checkpoint')}"]))


@command("offer", "stepkeep phases offer", group=phases)
@click.option("--project", help="Only tasks of this project, and those of none.")
def offer(settings: CommonOptions, project: str | None) -> None:
    """Print the question about unfinished work, as a session shows it when it starts; nothing when there is none."""
    with _opened(settings) as found:
        unfinished = found.detect_incomplete_checkpoint(project=project)
    if settings.json:
        json_document(unfinished)
    elif unfinished is not None:
        ago = age(time.time() - unfinished.created_at.timestamp())
        lines([f"{unfinished.offer.removesuffix(')')}, {ago} ago)"])
