"""`stepkeep resume`."""

from __future__ import annotations

import sys

import click

from stepkeep import api
from stepkeep.api import Resumable, Store, TakenUp
from stepkeep.cli.app import Command, Settings, settings_of
from stepkeep.cli.naming import optional_session, session_argument, session_option
from stepkeep.cli.printing import is_terminal, json_document, lines, moment, note, table
from stepkeep.cli.run import parallel_option, var_option, variables
from stepkeep.cli.run_view import ending, exit_code, progress_for, telling_how_to_go_on
from stepkeep.errors import NotFound
from stepkeep.text import age, clean

EXAMPLE = """\
stepkeep resume
stepkeep resume deploy-7
stepkeep resume deploy-7 --from step-3"""


@click.command("resume", cls=Command, example=EXAMPLE)
@session_argument()
@session_option("The session, instead of the argument.")
@click.option("--from", "ref", metavar="REF", help="Go on from this checkpoint instead of the latest.")
@click.option("--force", is_flag=True, help="Go on although the workflow's file changed.")
@var_option()
@parallel_option()
@settings_of
def resume(
    settings: Settings,
    /,
    session: str | None,
    session_option: str | None,
    ref: str | None,
    force: bool,
    pairs: tuple[str, ...],
    parallel: int,
) -> int:
    """Go on with the workflow of SESSION where it stopped.

    Completed steps are not run again; the one that failed or was interrupted is. Without SESSION, lists what can be
    resumed, and on a terminal asks which one.
    """
    key = optional_session(session, session_option)
    given = variables(pairs)
    with (
        api.open(settings.store, create=False) as store,
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
        result = store.workflows.resume(
            key, variables=given, ref=ref, force=force, parallel=parallel, watcher=shown
        )
    settings.show(result, lambda result: lines(ending(result)))
    return exit_code(result)


def _asked(store: Store, settings: Settings) -> str | None:
    """The session that a person chooses from those that can be resumed; None when nobody is there, or says no."""
    found = store.workflows.resumable() + api.list_unfinished_phases(store)
    if settings.json:
        json_document(found)
        return None
    if not found:
        raise NotFound("there is no workflow to resume", code="nothing_to_resume")
    _print(store, found)
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


def _print_taken_up(taken: TakenUp) -> None:
    lines(map(clean, taken.context.splitlines()))
    note(f"When it is done: stepkeep complete {clean(taken.session)}")


def _print(store: Store, found: tuple[Resumable, ...]) -> None:
    now_us = store.engine.clock()
    numbers = iter(range(1, len(found) + 1))
    rows = [
        [
            str(next(numbers)) if each.can_resume else "",
            each.session,
            each.workflow,
            str(each.step),
            each.status,
            age(now_us / 1e6 - each.updated.timestamp()) or moment(each.updated),
            each.why,
        ]
        for each in found
    ]
    table(["no", "session", "workflow", "step", "status", "age", "why"], rows, right=["no", "step"])


COMMANDS = {"resume": resume}
