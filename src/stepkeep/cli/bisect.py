"""`stepkeep bisect`."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import click

from stepkeep import api
from stepkeep.cli.app import Command, CommonOptions, command
from stepkeep.cli.files import folder_below
from stepkeep.cli.naming import Words, complete_ref, on_session, opened, told_to_end
from stepkeep.cli.printing import file_line, lines, numbered
from stepkeep.text import clean, count

EXAMPLE = """\
stepkeep bisect research-42 -- pytest -q tests/test_tides.py
stepkeep bisect research-42 --good tag:works --timeout 60 -- make check"""

NOTHING_FAILS = 1
MAX_LINES = 20
_WORDS = "stepkeep.bisect"


class BisectCommand(Command):
    """Everything after `--` is the command to run."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        at = args.index("--") if "--" in args else len(args)
        ctx.meta[_WORDS] = tuple(args[at + 1 :])
        return super().parse_args(ctx, args[:at])

    def collect_usage_pieces(self, ctx: click.Context) -> list[str]:
        return [*super().collect_usage_pieces(ctx), "-- COMMAND..."]


def _ref(name: str, help: str) -> Callable[[Any], Any]:
    return click.option(f"--{name}", metavar="REF", shell_complete=complete_ref, help=help)


@command("bisect", EXAMPLE, kind=BisectCommand)
@on_session()
@_ref("good", "Where it still passed.  [default: the oldest with files]")
@_ref("bad", "Where it fails.  [default: the latest with files]")
@click.option(
    "--timeout",
    type=click.FloatRange(min=0, min_open=True),
    metavar="SECONDS",
    help="A run that takes longer fails.",
)
def bisect(
    settings: CommonOptions, words: Words, good: str | None, bad: str | None, timeout: float | None
) -> int:
    """Find the first checkpoint of SESSION at whose project files a COMMAND fails.

    The files of a checkpoint are written to a scratch folder, and the command is run there: your files are not touched,
    and nothing is saved. Exit code 0 passes, 125 skips a checkpoint, any other fails. What is not captured, such as
    installed packages, is not there either: it is in $STEPKEEP_WORKSPACE, your own folder.

    The exit code is 0 when one was found, 1 when the command passes at the latest files.
    """
    tried = click.get_current_context().meta[_WORDS]
    if not tried:
        raise click.UsageError("Which command? Write it after --, at the end of the line.")
    if len(tried) == 1 and " " in tried[0]:
        tried = ("/bin/sh", "-c", tried[0])
    with told_to_end(), opened(settings) as store:
        run = store.get(words.chosen(store))
        bad = bad or "latest"
        found = run.files.bisect(
            tried,
            good=good,
            bad=bad,
            folder=folder_below(run.files.at(bad).root),
            environment=os.environ,
            timeout_seconds=timeout,
            on_step=None if settings.json else _print_step,
        )
    settings.show(found, _print_found)
    return NOTHING_FAILS if found.first_failed is None else 0


def _print_step(step: api.BisectStep) -> None:
    told = {"passed": "passes", "failed": f"fails with {step.exit_code}", "timed_out": "takes too long"}
    outcome = told.get(step.outcome) or f"skipped: {clean(step.reason)}"
    message = f"  {clean(step.checkpoint.message)}" if step.checkpoint.message else ""
    lines([f"checkpoint {step.checkpoint.seq} {outcome}, {step.duration_ms / 1000:.1f} s{message}"])


def _print_found(found: api.Bisection) -> None:
    first, last = found.first_failed, found.last_passed
    if first is None:
        seen = count(found.total, "checkpoint")
        why = "It passes at the newest files" if last is not None else "Nothing could be tried"
        lines([f"{why}, of {seen} with files."])
        return
    shown = [f"First to fail: {numbered(first)}{_message(first)}"]
    shown += [f"Last to pass:  {numbered(last)}{_message(last)}"] if last is not None else []
    shown += [] if last is not None else ["It fails from the first files on."]
    if found.unsure:
        names = ", ".join(str(each.seq) for each in found.unsure)
        shown.append(f"Skipped, and may have been the first: {names}")
    shown += [file_line(change) for change in found.changes]
    output = found.output.splitlines()[-MAX_LINES:]
    lines(
        [
            *shown,
            *(["Output at the first to fail:"] if output else []),
            *(f"  {clean(line)}" for line in output),
        ]
    )


def _message(each: api.CheckpointInfo) -> str:
    return f"  {clean(each.message)}" if each.message else ""
