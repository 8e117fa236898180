"""Workflows: `stepkeep run`, `resume` and `worker`."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable
from typing import Any

import click
import msgspec

from stepkeep import api
from stepkeep.cli.app import CommonOptions, command
from stepkeep.cli.naming import Words, on_session, opened
from stepkeep.cli.printing import is_terminal, json_document, lines, moment, note, table
from stepkeep.cli.run_view import ending, exit_code, progress_for, telling_how_to_go_on
from stepkeep.errors import InvalidInput, NotFound
from stepkeep.text import age, clean, clean_json, count

RUN_EXAMPLE = """\
stepkeep run flow.yaml
stepkeep run flow.yaml --var target=staging --session deploy-7"""


def _var_option() -> Callable[[Any], Any]:
    return click.option(
        "--var",
        "pairs",
        multiple=True,
        metavar="NAME=VALUE",
        help="A variable of the workflow; may be repeated.",
    )


def _parallel_option(what: str = "steps") -> Callable[[Any], Any]:
    return click.option(
        "--parallel",
        type=click.IntRange(1, 64),
        default=1,
        metavar="N",
        help=f"How many {what} may run at a time.  [default: 1]",
    )


def _variables(pairs: Iterable[str]) -> dict[str, str]:
    """`NAME=VALUE` as a mapping; the value may itself contain `=`."""
    given: dict[str, str] = {}
    for pair in pairs:
        name, separator, value = pair.partition("=")
        if not separator or not name:
            raise click.UsageError("--var takes NAME=VALUE.")  # what was given may be a secret
        if name in given:
            raise click.UsageError(f"--var gives {name!r} twice.")
        given[name] = value
    return given


@command("run", RUN_EXAMPLE)
@click.argument("flow", type=click.Path(path_type=str))
@_var_option()
@click.option("--session", "key", metavar="KEY", help="Run in this session.  [default: a new one]")
@click.option("--test", is_flag=True, help="A test run: cleaned as soon as it ends.")
@_parallel_option()
@click.option("--force", is_flag=True, help="Start over although the session has unfinished work.")
@click.option("--detach", is_flag=True, help="Do not run it here: a worker does.")
@click.option("--queue", metavar="NAME", help="With --detach: whose workers run it.  [default: default]")
def run(
    settings: CommonOptions,
    /,
    flow: str,
    pairs: tuple[str, ...],
    detach: bool,
    queue: str | None,
    **options: Any,
) -> int:
    """Run the workflow in the file FLOW, saving after every step.

    The file is checked before anything runs. When a step fails, or the run is interrupted or killed, `stepkeep
    resume` goes on from there. Exits with 1 when a step failed. With --detach it is only stored, for `stepkeep
    worker`, and its session is printed.
    """
    if queue is not None and not detach:
        raise click.UsageError("--queue goes with --detach.")
    planned = _planned(flow, _variables(pairs), as_json=settings.json)
    if detach:
        with api.open(settings.store) as store:
            queued = store.workflows.queue(planned, queue=queue or "default", **options)
        settings.show(queued, lambda queued: lines([clean(queued.session)]))
        return 0
    with (
        api.open(settings.store) as store,
        progress_for(as_json=settings.json) as shown,
        telling_how_to_go_on(shown),
    ):
        result = store.workflows.run(planned, watcher=shown, **options)
    settings.show(result, lambda result: lines(ending(result)))
    return exit_code(result)


def _planned(flow: str, given: dict[str, str], *, as_json: bool) -> api.PlannedWorkflow:
    """The workflow in a file; what is wrong with it is told line by line."""
    try:
        return api.Workflows.plan(flow, given)
    except api.InvalidWorkflow as exc:
        if as_json:
            raise
        for problem in exc.problems:
            note(str(problem))
        number = "a problem" if len(exc.problems) == 1 else f"{len(exc.problems)} problems"
        raise InvalidInput(f"{flow} has {number}; nothing was run", code=exc.code) from exc


# --- resume ------------------------------------------------------------------------------------------------------

RESUME_EXAMPLE = """\
stepkeep resume
stepkeep resume deploy-7
stepkeep resume deploy-7 --from step-3"""


@command("resume", RESUME_EXAMPLE)
@on_session(help="The session, instead of the argument.")
@click.option("--from", "ref", metavar="REF", help="Go on from this checkpoint instead of the latest.")
@click.option("--force", is_flag=True, help="Go on although the workflow's file changed.")
@_var_option()
@_parallel_option()
def resume(settings: CommonOptions, /, words: Words, pairs: tuple[str, ...], **options: Any) -> int:
    """Go on with the workflow of SESSION where it stopped.

    Completed steps are not run again; the one that failed or was interrupted is. Without SESSION, lists what can be
    resumed, and on a terminal asks which one.
    """
    key = words.named_if_any()
    given = _variables(pairs)
    with (
        opened(settings) as store,
        progress_for(as_json=settings.json) as shown,
        telling_how_to_go_on(shown),
    ):
        if key is None:
            key = _asked(store, settings)
        if key is None:
            return 0
        if api.is_phase_session(store, key):
            settings.show(api.resume_phase(store, key), _print_taken_up)
            return 0
        result = store.workflows.resume(key, variables=given, watcher=shown, **options)
    settings.show(result, lambda result: lines(ending(result)))
    return exit_code(result)


def _asked(store: api.Store, settings: CommonOptions) -> str | None:
    """The session that a person chooses from those that can be resumed; None when nobody is there, or says no."""
    found = store.workflows.resumable() + api.list_unfinished_phases(store)
    if settings.json:
        json_document(found)
        return None
    if not found:
        raise NotFound("there is no workflow to resume", code="nothing_to_resume")
    _print_resumable(store, found)
    ready = [each for each in found if each.can_resume]
    if not is_terminal() or not sys.stdin.isatty() or not ready:
        note("Name one to resume it: stepkeep resume SESSION")
        return None
    if len(ready) == 1:
        is_wanted = click.confirm(f"Resume {clean(ready[0].session)}?", default=False)
        return ready[0].session if is_wanted else None
    choice = click.prompt(
        "Which one? A number, or 0 for none",
        type=click.IntRange(0, len(ready)),
        default=0,
        show_default=False,
    )
    return ready[choice - 1].session if choice else None


def _print_taken_up(taken: api.TakenUp) -> None:
    lines(map(clean, taken.context.splitlines()))
    note(f"When it is done: stepkeep complete {clean(taken.session)}")


def _print_resumable(store: api.Store, found: tuple[api.Resumable, ...]) -> None:
    now = store.engine.clock() / 1e6
    numbers = iter(range(1, len(found) + 1))
    rows = [
        {
            "no": str(next(numbers)) if each.can_resume else "",
            "session": each.session,
            "workflow": each.workflow,
            "step": str(each.step),
            "status": each.status,
            "age": age(now - each.updated.timestamp()) or moment(each.updated),
            "why": each.why,
        }
        for each in found
    ]
    table(rows, right=["no", "step"])


# --- worker ------------------------------------------------------------------------------------------------------

WORKER_EXAMPLE = """\
stepkeep worker --queue nightly
stepkeep worker --parallel 4 --idle-exit 600"""


@command("worker", WORKER_EXAMPLE)
@click.option(
    "--queue", default="default", metavar="NAME", help="Take sessions from here.  [default: default]"
)
@_parallel_option("sessions")
@click.option("--once", is_flag=True, help="End when nothing is left to do now.")
@click.option(
    "--idle-exit",
    "idle_exit_seconds",
    type=click.FloatRange(0),
    metavar="SECONDS",
    help="End when there was nothing to do for so long.",
)
def worker(settings: CommonOptions, /, **options: Any) -> None:
    """Run the workflows that `stepkeep run --detach` put into a queue.

    Any number of workers, on any machines, share a queue. When one dies, another goes on with what it ran: on the
    same machine at once, else when its lease ran out. SIGTERM and Ctrl-C pause what runs, for another worker to
    go on with. With --json each event is one line.
    """
    with api.open(settings.store) as store:
        store.workflows.work(tell=_as_json if settings.json else _as_text, **options)


def _as_json(event: api.WorkerEvent) -> None:
    lines([clean_json(msgspec.json.encode(event))])


def _as_text(event: api.WorkerEvent) -> None:
    if event.event is api.WorkerEventKind.READY:
        note(f"Worker of queue {event.queue} (pid {os.getpid()}): SIGTERM or Ctrl-C ends it.")
    elif event.event is api.WorkerEventKind.STOPPED:
        counts = [f"{number} {kind.replace('_', ' ')}" for kind, number in (event.counts or {}).items()]
        note(f"Worker of queue {event.queue} ended: {', '.join(counts) or 'nothing was to be done'}.")
    else:
        lines([clean(f"{event.session}: {_told(event)}")])


def _told(event: api.WorkerEvent) -> str:
    error = f": {event.error}" if event.error else ""
    match event.event:
        case api.WorkerEventKind.STARTED:
            text = f"started, {event.workflow}, {count(event.steps or 0, 'step')}"
            text += f", {event.done} done before" if event.done else ""
            return text + (f", attempt {event.attempt}" if (event.attempt or 1) > 1 else "")
        case api.WorkerEventKind.STEP:
            return f"{event.step} {event.status}{error}"
        case api.WorkerEventKind.ENDED:
            return f"{event.status}{error}"
        case api.WorkerEventKind.REFUSED:
            return f"cannot be run here{error}"
        case api.WorkerEventKind.GAVE_UP:
            return f"given up{error}"
    return f"stopped{error}"
