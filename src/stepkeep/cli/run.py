"""Work in steps: `stepkeep run`, `resume`, `approve` and `worker`."""

from __future__ import annotations

import math
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import click
import msgspec

from stepkeep import api
from stepkeep.cli.app import CommonOptions, command
from stepkeep.cli.naming import Words, known, on_session, opened
from stepkeep.cli.printing import asked, is_terminal, json_document, lines, moment, note, says_yes, table
from stepkeep.cli.run_view import ending, exit_code, progress_for, telling_how_to_go_on
from stepkeep.errors import InvalidInput, NotFound
from stepkeep.text import age, clean, clean_json, count

MAX_SHOWN: Final = 100

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
        with opened(settings, create=True) as store:
            queued = store.workflows.queue(planned, queue=queue or "default", **options)
        settings.show(queued, lambda queued: lines([clean(queued.session)]))
        return 0
    with (
        api.open(settings.store) as store,
        progress_for(as_json=settings.json) as shown,
        telling_how_to_go_on(shown, settings.store),
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
stepkeep resume deploy-7 --from step-3
stepkeep resume research-42 --handler agent:do_step"""


@command("resume", RESUME_EXAMPLE)
@on_session(help="The session, instead of the argument.")
@click.option("--from", "ref", metavar="REF", help="Go on from this checkpoint instead of the latest.")
@click.option("--force", is_flag=True, help="Go on although the workflow's file changed.")
@click.option("--from-store", is_flag=True, help="Run the stored text of a workflow whose file is gone.")
@click.option("--handler", metavar="MODULE:FUNCTION", help="Of a plan: the function that does its steps.")
@_var_option()
@_parallel_option()
def resume(
    settings: CommonOptions,
    /,
    words: Words,
    pairs: tuple[str, ...],
    handler: str | None,
    from_store: bool,
    **options: Any,
) -> int:
    """Go on with the work of SESSION where it stopped.

    Of a workflow or plan completed steps are not run again; the one that failed or was interrupted is. The function of
    a plan is imported as Python does it in this folder. Of work with phases it prints what was saved, for whoever goes
    on. Of a loop with a recorder it says whether its program may go on now, why not, and when. Without SESSION, lists
    all unfinished work, that in the user's folder of phases too, and on a terminal asks which one.
    """
    key = words.named_if_any()
    given = _variables(pairs)
    with (
        _own_or_phases(settings) as store,
        progress_for(as_json=settings.json) as shown,
        telling_how_to_go_on(shown, settings.store),
    ):
        work = _asked(store, settings) if key is None else _found(store, key)
        if work is None:
            return 0
        key, elsewhere = work
        if elsewhere is not None:
            with api.open(elsewhere, create=False) as other:
                return _take_up(settings, other, key, given, **options)
        assert store is not None
        if api.is_phase_session(store, key):
            return _take_up(settings, store, key, given, **options)
        if (recorded := api.recorded_run(store, key)) is not None:
            settings.show(recorded, _print_recorded)
            return 0 if recorded.hints is not None and recorded.hints.eligible else 1
        if handler is not None:
            return _resumed_plan(store, settings, key, handler, **options)
        result = store.workflows.resume(key, variables=given, from_store=from_store, watcher=shown, **options)
    settings.show(result, lambda result: lines(ending(result)))
    return exit_code(result)


def _resumed_plan(
    store: api.Store, settings: CommonOptions, key: str, handler: str, *, ref: str | None, **options: Any
) -> int:
    sys.path.insert(0, str(Path.cwd()))
    signal = 0
    try:
        result = store.execute(key, None, handler, resume=True, from_ref=ref, **options)
    except api.Interrupted as exc:
        result, signal = exc.result, exc.signal
    settings.show(api.plan_run(store.engine, key, result), _print_plan)
    return 128 + signal if signal else 0 if result.success else 1


def _print_plan(ended: api.PlanRun) -> None:
    done = f"{count(ended.steps_run, 'step')} run, {ended.steps_recovered} done before"
    error = f": {ended.error}" if ended.error else ""
    lines([clean(f"{ended.session} is {ended.status}{error} ({done})")])
    for question in ended.waiting:
        lines([clean(f"Waits for a person, step {question.step_id}: {question.text}")])
    if ended.next:
        note(f"Go on with: {clean(ended.next)}")


def _print_recorded(run: api.Resumable) -> None:
    assert run.hints is not None
    may = "may be resumed" if run.hints.eligible else f"may not be resumed now ({run.hints.reason_code})"
    lines([clean(f"{run.session} is {run.status}, step {run.step}: {run.why}"), clean(f"It {may}.")])
    if run.wait_seconds is not None:
        lines([f"It has to cool down for {math.ceil(run.wait_seconds)} more seconds."])
    if run.how:
        lines([clean(f"What to do: {run.how}")])


# --- approve -----------------------------------------------------------------------------------------------------

APPROVE_EXAMPLE = """\
stepkeep approve
stepkeep approve research-42
stepkeep approve research-42 --with '{"recipients": 3}'
stepkeep approve research-42 --refuse --with '"not today"'"""


@command("approve", APPROVE_EXAMPLE)
@on_session(help="The session, instead of the argument.")
@click.option(
    "--with", "document", metavar="JSON", help="The answer that the step gets, or why it is refused."
)
@click.option("--refuse", is_flag=True, help="Say no.")
@click.option("--step", metavar="ID", help="The step, where several ask.")
def approve(
    settings: CommonOptions, /, words: Words, document: str | None, refuse: bool, step: str | None
) -> None:
    """Say yes to what a step of SESSION asks a person, or no.

    The answer is saved. `stepkeep resume`, or the program that ran it, goes on with it. Without SESSION, lists what is
    asked in all of them.
    """
    from stepkeep.cli.save import read_json

    given = None if document is None else read_json("--with", document)
    is_answer = refuse or document is not None or step is not None
    key = words.named() if is_answer else words.named_if_any(use_environment=True)
    with opened(settings) as store:
        if key is None:
            waiting = store.overview(condition="waiting", limit=MAX_SHOWN).sessions
            settings.show(waiting, _print_waiting)
            return
        answer = store.refuse if refuse else store.approve
        answered = answer(known(store, key), given, step=step)
    settings.show(answered, _print_answered)


def _print_waiting(sessions: tuple[api.SessionOverview, ...]) -> None:
    if not sessions:
        raise NotFound("no session waits for an answer", code="nothing_to_approve")
    rows = [
        {"session": each.key, "step": question.step_id, "question": question.text}
        for each in sessions
        for question in each.waiting
    ]
    table(rows, first_out=("step",), wrap=True)
    note("Name one to answer it: stepkeep approve SESSION, or with --refuse")


def _print_answered(answered: api.Answered) -> None:
    said = "Approved" if answered.is_approved else "Refused"
    lines([clean(f"{said}, step {answered.step}: {answered.question}")])
    note(clean(f"Next: {answered.next}"))


# --- what can be resumed -----------------------------------------------------------------------------------------


@contextmanager
def _own_or_phases(settings: CommonOptions) -> Iterator[api.Store | None]:
    """The store, or None where it is not there yet but the user has phases elsewhere."""
    try:
        store = opened(settings)
    except NotFound:
        if api.phases_url() is None:
            raise
        yield None
        return
    with store:
        yield store


def _found(store: api.Store | None, key: str) -> tuple[str, str | None]:
    """A session that was named, and the other store it is in, if it is only there."""
    elsewhere = api.phases_url()
    if store is not None and store.engine.session_with(key) is not None:
        return key, None
    if elsewhere is not None:
        with api.open(elsewhere, create=False) as other:
            if store is None or other.engine.session_with(key) is not None:
                return key, elsewhere
    return key if store is None else known(store, key), None


def _take_up(
    settings: CommonOptions, store: api.Store, key: str, given: dict[str, str], *, ref: str | None, **_: Any
) -> int:
    if given:
        raise click.UsageError("--var goes with a workflow, and this is work with phases.")
    settings.show(api.resume_phase(store, key, ref=ref), lambda taken: _print_taken_up(taken, store.url))
    return 0


def _asked(store: api.Store | None, settings: CommonOptions) -> tuple[str, str | None] | None:
    """The session that a person chooses, and its store; None when nobody is there, or says no."""
    found = api.list_unfinished(store)
    if settings.json:
        json_document(found)
        return None
    if not found:
        raise NotFound("there is no unfinished work to resume", code="nothing_to_resume")
    ready = [each for each in found if each.can_resume]
    _print_unfinished(found)
    if not is_terminal() or not sys.stdin.isatty() or not ready:
        note("Name one to resume it: stepkeep resume SESSION")
        return None
    if len(ready) == 1:
        chosen = ready[0] if says_yes(f"Resume {ready[0].session}?") else None
    else:
        numbers = {str(number): each for number, each in enumerate(ready, start=1)}
        chosen = numbers.get(asked("Which one? A number, or q for none", [*numbers, "0", "q"], default="q"))
    return None if chosen is None else (chosen.session, chosen.store)


def _print_taken_up(taken: api.TakenUp, url: str) -> None:
    lines(map(clean, taken.context.splitlines()))
    option = f" --store '{url}'" if url == api.phases_url() else ""
    note(f"When it is done: stepkeep complete {clean(taken.session)}{clean(option)}")


def _print_unfinished(found: tuple[api.Resumable, ...]) -> None:
    now = time.time()
    numbers = iter(range(1, len(found) + 1))
    rows = [
        {
            "no": str(next(numbers)) if each.can_resume else "",
            "session": each.session,
            "workflow": each.workflow or each.runner,
            "step": str(each.step),
            "status": "crashed" if each.is_crashed else each.status,
            "age": age(now - each.updated.timestamp()) or moment(each.updated),
            "why": each.why,
        }
        for each in found[:MAX_SHOWN]
    ]
    table(rows, right=["no", "step"], first_out=("workflow", "step", "status"), wrap=True)
    for each in found[:MAX_SHOWN]:
        if each.how and not each.can_resume:
            note(clean(f"{each.session}: {each.how}"))
    if len(found) > MAX_SHOWN:
        note(f"and {len(found) - MAX_SHOWN} more: --json lists all")


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
