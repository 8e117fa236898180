"""`stepkeep run`."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import click

from stepkeep import api
from stepkeep.api import InvalidWorkflow, PlannedWorkflow, Workflows
from stepkeep.cli.app import Command, Settings, settings_of
from stepkeep.cli.printing import lines, note
from stepkeep.cli.run_view import ending, exit_code, progress_for, telling_how_to_go_on
from stepkeep.errors import InvalidInput
from stepkeep.text import clean

EXAMPLE = """\
stepkeep run flow.yaml
stepkeep run flow.yaml --var target=staging --session deploy-7"""


def var_option() -> Callable[[Any], Any]:
    return click.option(
        "--var",
        "pairs",
        multiple=True,
        metavar="NAME=VALUE",
        help="A variable of the workflow; may be repeated.",
    )


def parallel_option() -> Callable[[Any], Any]:
    return click.option(
        "--parallel",
        type=click.IntRange(1, 64),
        default=1,
        metavar="N",
        help="How many steps may run at a time.  [default: 1]",
    )


def variables(pairs: Iterable[str]) -> dict[str, str]:
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


@click.command("run", cls=Command, example=EXAMPLE)
@click.argument("flow", type=click.Path(path_type=str))
@var_option()
@click.option("--session", "key", metavar="KEY", help="Run in this session.  [default: a new one]")
@click.option("--test", is_flag=True, help="A test run: cleaned as soon as it ends.")
@parallel_option()
@click.option("--force", is_flag=True, help="Start over although the session has unfinished work.")
@click.option("--detach", is_flag=True, help="Do not run it here: a worker does.")
@click.option("--queue", metavar="NAME", help="With --detach: whose workers run it.  [default: default]")
@settings_of
def run(
    settings: Settings,
    /,
    flow: str,
    pairs: tuple[str, ...],
    key: str | None,
    test: bool,
    parallel: int,
    force: bool,
    detach: bool,
    queue: str | None,
) -> int:
    """Run the workflow in the file FLOW, saving after every step.

    The file is checked before anything runs. When a step fails, or the run is interrupted or killed, `stepkeep
    resume` goes on from there. Exits with 1 when a step failed. With --detach it is only stored, for `stepkeep
    worker`, and its session is printed.
    """
    if queue is not None and not detach:
        raise click.UsageError("--queue goes with --detach.")
    planned = _planned(flow, variables(pairs), as_json=settings.json)
    if detach:
        with api.open(settings.store) as store:
            queued = store.workflows.queue(
                planned,
                queue=queue or "default",
                key=key,
                test=test,
                force=force,
                parallel=parallel,
            )
        settings.show(queued, lambda queued: lines([clean(queued.session)]))
        return 0
    with (
        api.open(settings.store) as store,
        progress_for(as_json=settings.json) as shown,
        telling_how_to_go_on(shown),
    ):
        result = store.workflows.run(
            planned, key=key, test=test, force=force, parallel=parallel, watcher=shown
        )
    settings.show(result, lambda result: lines(ending(result)))
    return exit_code(result)


def _planned(flow: str, given: dict[str, str], *, as_json: bool) -> PlannedWorkflow:
    """The workflow in a file; what is wrong with it is told line by line."""
    try:
        return Workflows.plan(flow, given)
    except InvalidWorkflow as exc:
        if as_json:
            raise
        for problem in exc.problems:
            note(str(problem))
        number = "a problem" if len(exc.problems) == 1 else f"{len(exc.problems)} problems"
        raise InvalidInput(f"{flow} has {number}; nothing was run", code=exc.code) from exc


COMMANDS = {"run": run}
