"""`stepkeep investigate verify`, `command`, `code`, `experiment` and `compaction`."""

from __future__ import annotations

import os
import shlex
from pathlib import Path
from typing import Final, get_args

import click

from stepkeep.cli.app import Command, Settings, settings_of
from stepkeep.cli.investigate_shared import Group, after_lines, change, show_change
from stepkeep.cli.naming import session_option
from stepkeep.cli.printing import clean, lines
from stepkeep.errors import InvalidInput
from stepkeep.history.merge import Side
from stepkeep.history.merging import Strategy
from stepkeep.investigation.verifications import TIMEOUT_SECONDS
from stepkeep.operations import investigating
from stepkeep.operations.investigating import InvestigationChange

WORDS: Final = {"ignore_unknown_options": True, "allow_interspersed_args": False}
"""What follows the options is another program's."""

FAILED: Final = 1


@click.command(
    "verify",
    cls=Command,
    context_settings=WORDS,
    example='stepkeep investigate verify --plan "the cache is off" -- pytest -q',
)
@click.argument("words", nargs=-1, required=True, metavar="COMMAND...", type=click.UNPROCESSED)
@click.option("--plan", default="", help="What the command is to show.  [default: the command]")
@click.option("--hypothesis", metavar="ID", help="The hypothesis it tests.")
@click.option(
    "--timeout", type=float, default=TIMEOUT_SECONDS, show_default=True, help="Seconds until it is ended."
)
@session_option()
@settings_of
def verify(
    settings: Settings,
    words: tuple[str, ...],
    plan: str,
    hypothesis: str | None,
    timeout: float,
    session_option: str | None,
) -> int:
    """Run a COMMAND that shows whether something is so, and save what it showed.

    Exits with 0 if the command did, and with 1 if it failed, hung or could not be started. Of its output the
    beginning and the end are kept.
    """
    changed = change(
        settings,
        session_option,
        lambda store, key: investigating.run_verification(
            store, key, words, plan=plan, hypothesis=hypothesis, timeout_seconds=timeout
        ),
        _show_result,
    )
    return 0 if changed.entry.status == "passed" else FAILED


def _show_result(changed: InvestigationChange) -> None:
    result = changed.entry
    lines([clean(line) for line in result.output.splitlines()])
    lines([f"{clean(result.id)}  {result.status}  {result.duration_ms} ms", *after_lines(changed)])


@click.command(
    "command",
    cls=Command,
    context_settings=WORDS,
    example="stepkeep investigate command --replay -- docker compose up -d",
)
@click.argument("words", nargs=-1, required=True, metavar="COMMAND...", type=click.UNPROCESSED)
@click.option("--exit-code", type=int, help="How it ended.")
@click.option("--replay", is_flag=True, help="It has to be run again to be where this is.")
@session_option()
@settings_of
def command(
    settings: Settings,
    words: tuple[str, ...],
    exit_code: int | None,
    replay: bool,
    session_option: str | None,
) -> None:
    """Note a COMMAND that was run by hand; it is not run."""
    change(
        settings,
        session_option,
        lambda store, key: investigating.record_command(
            store,
            key,
            shlex.join(words),
            working_dir=str(Path.cwd()),
            exit_code=exit_code,
            replay=replay,
        ),
    )


@click.command("code", cls=Command, example="stepkeep investigate code src/cache.py --commit 4f2a91c")
@click.argument("paths", nargs=-1, required=True, metavar="PATH...")
@click.option("--commit", metavar="ID", help="The commit it is based on.")
@click.option("--patch", "patches", multiple=True, metavar="FILE", help="What differs from the commit.")
@session_option()
@settings_of
def code(
    settings: Settings,
    paths: tuple[str, ...],
    commit: str | None,
    patches: tuple[str, ...],
    session_option: str | None,
) -> None:
    """Say that the code at PATH was modified.

    Of the environment a few harmless variables are kept, and none that looks like a secret.
    """
    texts = [_read(name) for name in patches]

    def show(changed: InvestigationChange) -> None:
        lines([clean(f"code  {', '.join(changed.entry.paths)}"), *after_lines(changed)])

    change(
        settings,
        session_option,
        lambda store, key: investigating.code_changed(
            store, key, paths, commit=commit, patches=texts, environment=os.environ
        ),
        show,
    )


def _read(name: str) -> str:
    try:
        return Path(name).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as exc:
        raise InvalidInput(f"{name} cannot be read: {exc}", code="unreadable_file") from exc


@click.command("compaction", cls=Command, example="stepkeep investigate compaction")
@session_option()
@settings_of
def compaction(settings: Settings, session_option: str | None) -> None:
    """Save everything, because the context is about to be compacted."""

    def show(changed: InvestigationChange) -> None:
        lines([f"Created checkpoint {changed.entry} before compaction"])

    change(settings, session_option, investigating.warn_of_compaction, show)


# --- experiments


@click.group("experiment", cls=Group, example="stepkeep investigate experiment begin no-cache")
def experiment() -> None:
    """Try ideas on branches of their own.

    Beginning one and switching are saved as automatic checkpoints.
    """


@experiment.command("begin", cls=Command, example="stepkeep investigate experiment begin no-cache")
@click.argument("name")
@click.option("--description", default="", help="What is tried.")
@click.option("--hypothesis", metavar="ID", help="The hypothesis it tests.")
@click.option("--criteria", default="", help="What would be a success.")
@session_option()
@settings_of
def begin(
    settings: Settings,
    name: str,
    description: str,
    hypothesis: str | None,
    criteria: str,
    session_option: str | None,
) -> None:
    """Fork branch NAME where the investigation stands, and go on there."""
    change(
        settings,
        session_option,
        lambda store, key: investigating.begin_experiment(
            store, key, name, description=description, hypothesis=hypothesis, criteria=criteria
        ),
    )


@experiment.command("switch", cls=Command, example="stepkeep investigate experiment switch main")
@click.argument("name")
@session_option()
@settings_of
def switch(settings: Settings, name: str, session_option: str | None) -> None:
    """Go on with branch NAME, with what was known there."""
    change(settings, session_option, lambda store, key: investigating.switch_experiment(store, key, name))


@experiment.command("merge", cls=Command, example="stepkeep investigate experiment merge no-cache")
@click.argument("name")
@click.option(
    "--strategy",
    type=click.Choice(get_args(Strategy)),
    default="union",
    show_default=True,
    help="What to take.",
)
@click.option("--on-conflict", type=click.Choice(get_args(Side)), help="Whose value counts.")
@click.option("--results", default="", help="What came out of it.")
@session_option()
@settings_of
def merge(
    settings: Settings,
    name: str,
    strategy: Strategy,
    on_conflict: Side | None,
    results: str,
    session_option: str | None,
) -> None:
    """Merge branch NAME into the current one."""
    change(
        settings,
        session_option,
        lambda store, key: investigating.merge_experiment(
            store, key, name, strategy=strategy, on_conflict=on_conflict, results=results
        ),
    )


@experiment.command("close", cls=Command, example="stepkeep investigate experiment close no-cache")
@click.argument("name")
@click.option("--results", default="", help="What came out of it.")
@click.option("--archive", is_flag=True, help="It is done, not given up.")
@session_option()
@settings_of
def close(settings: Settings, name: str, results: str, archive: bool, session_option: str | None) -> None:
    """Give up branch NAME, or with --archive put it aside."""

    def show(changed: InvestigationChange) -> None:
        if changed.checkpoints:
            show_change(changed)
        else:
            lines([clean(f"{changed.entry.status}  {changed.entry.name}")])

    change(
        settings,
        session_option,
        lambda store, key: investigating.close_experiment(store, key, name, results=results, archive=archive),
        show,
    )
