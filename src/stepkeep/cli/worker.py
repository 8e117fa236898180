"""`stepkeep worker`."""

from __future__ import annotations

import os

import click
import msgspec

from stepkeep import api
from stepkeep.api import WorkerEvent, WorkerEventKind
from stepkeep.cli.app import Command, Settings, settings_of
from stepkeep.cli.printing import lines, note
from stepkeep.text import clean, clean_json, count

EXAMPLE = """\
stepkeep worker --queue nightly
stepkeep worker --parallel 4 --idle-exit 600"""


@click.command("worker", cls=Command, example=EXAMPLE)
@click.option(
    "--queue", default="default", metavar="NAME", help="Take sessions from here.  [default: default]"
)
@click.option(
    "--parallel",
    type=click.IntRange(1, 64),
    default=1,
    metavar="N",
    help="How many sessions may run at a time.  [default: 1]",
)
@click.option("--once", is_flag=True, help="End when nothing is left to do now.")
@click.option(
    "--idle-exit",
    type=click.FloatRange(0),
    metavar="SECONDS",
    help="End when there was nothing to do for so long.",
)
@settings_of
def worker(settings: Settings, /, queue: str, parallel: int, once: bool, idle_exit: float | None) -> None:
    """Run the workflows that `stepkeep run --detach` put into a queue.

    Any number of workers, on any machines, share a queue. When one dies, another goes on with what it ran: on the
    same machine at once, else when its lease ran out. SIGTERM and Ctrl-C pause what runs, for another worker to
    go on with. With --json each event is one line.
    """
    with api.open(settings.store) as store:
        store.workflows.work(
            queue=queue,
            parallel=parallel,
            once=once,
            idle_exit_seconds=idle_exit,
            tell=_as_json if settings.json else _as_text,
        )


def _as_json(event: WorkerEvent) -> None:
    lines([clean_json(msgspec.json.encode(event))])


def _as_text(event: WorkerEvent) -> None:
    if event.event is WorkerEventKind.READY:
        note(f"Worker of queue {event.queue} (pid {os.getpid()}): SIGTERM or Ctrl-C ends it.")
    elif event.event is WorkerEventKind.STOPPED:
        counts = [f"{number} {kind.replace('_', ' ')}" for kind, number in (event.counts or {}).items()]
        note(f"Worker of queue {event.queue} ended: {', '.join(counts) or 'nothing was to be done'}.")
    else:
        lines([clean(f"{event.session}: {_told(event)}")])


def _told(event: WorkerEvent) -> str:
    error = f": {event.error}" if event.error else ""
    match event.event:
        case WorkerEventKind.STARTED:
            text = f"started, {event.workflow}, {count(event.steps or 0, 'step')}"
            text += f", {event.done} done before" if event.done else ""
            return text + (f", attempt {event.attempt}" if (event.attempt or 1) > 1 else "")
        case WorkerEventKind.STEP:
            return f"{event.step} {event.status}{error}"
        case WorkerEventKind.ENDED:
            return f"{event.status}{error}"
        case WorkerEventKind.REFUSED:
            return f"cannot be run here{error}"
        case WorkerEventKind.GAVE_UP:
            return f"given up{error}"
    return f"stopped{error}"


COMMANDS = {"worker": worker}
