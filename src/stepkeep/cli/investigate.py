"""`stepkeep investigate`: a debugging session kept from the shell."""

from __future__ import annotations

import os
import shlex
from pathlib import Path
from typing import Final, get_args

import click

from stepkeep import api
from stepkeep.api import (
    Investigation,
    InvestigationChange,
    InvestigationReport,
    InvestigationStatus,
    RecoveryView,
)
from stepkeep.cli.app import Command, Settings, settings_of
from stepkeep.cli.investigate_entries import (
    Group,
    after_lines,
    belief,
    change,
    entry_line,
    evidence,
    gap,
    hypothesis,
    note,
    show_change,
)
from stepkeep.cli.naming import chosen_session, complete_ref, session_option
from stepkeep.cli.printing import is_terminal, lines, write
from stepkeep.errors import InvalidInput
from stepkeep.history.merge import Side, Strategy
from stepkeep.investigation.state import InvestigationComparison
from stepkeep.investigation.worklog import TIMEOUT_SECONDS
from stepkeep.text import clean, count

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
        "Verification run",
        lambda found: found.verifications.run(
            words,
            plan=plan,
            hypothesis=None if hypothesis is None else found.hypotheses.get(hypothesis).id,
            timeout_seconds=timeout,
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
        "Command noted",
        lambda found: found.commands.record(
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
        "Code changed",
        lambda found: found.code_changed(paths, commit, patches=texts, environment=os.environ),
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

    change(settings, session_option, "Compaction", lambda found: found.compaction_warning().id, show)


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
        "Experiment begun",
        lambda found: found.begin_experiment(
            name, description=description, hypothesis=hypothesis, criteria=criteria
        ),
    )


@experiment.command("switch", cls=Command, example="stepkeep investigate experiment switch main")
@click.argument("name")
@session_option()
@settings_of
def switch(settings: Settings, name: str, session_option: str | None) -> None:
    """Go on with branch NAME, with what was known there."""
    change(settings, session_option, "Branch switched", lambda found: found.switch(name))


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

    def work(found: Investigation) -> object:
        found.merge(name, strategy=strategy, on_conflict=on_conflict)
        return found.experiments.note_results(name, results) if results else found.experiments.get(name)

    change(settings, session_option, "Experiment merged", work)


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
        "Experiment closed",
        lambda found: found.close_experiment(name, results=results, archive=archive),
        show,
    )


@click.command("status", cls=Command, example="stepkeep investigate status")
@session_option()
@settings_of
def status(settings: Settings, session_option: str | None) -> None:
    """Show where the investigation stands, and what to find out next."""
    with api.open(settings.store, create=False) as store:
        found = api.investigation_status(store, chosen_session(store, None, session_option))
    settings.show(found, _print_status)


def _print_status(found: InvestigationStatus) -> None:
    state, metrics = found.state, found.state.metrics
    gaps = {gap.id: gap for gap in state.gaps}
    open_contradictions = [
        each for each in state.contradictions if each.status in ("active", "investigating")
    ]
    shown = [f"Investigation {clean(found.session)}, on branch {clean(state.current_branch)}"]
    for title, entries in (
        ("Hypotheses", list(state.hypotheses)),
        ("Beliefs", list(state.beliefs)),
        ("Contradictions", open_contradictions),
        ("To find out", [gaps[id] for id in found.next_gaps]),
    ):
        if entries:
            shown += [f"{title}:", *(f"  {entry_line(entry)}" for entry in entries)]
    counts = (
        count(metrics.checkpoints_created, "checkpoint"),
        count(metrics.verifications_run, "verification"),
        count(len(state.evidence), "piece") + " of evidence",
        count(len(state.notes), "note"),
    )
    latest = "" if found.latest is None else f" Latest: {found.latest.id} ({clean(found.latest.message)})."
    lines([*shown, f"{', '.join(counts)}.{latest}"])


@click.command("report", cls=Command, example="stepkeep investigate report --output report.md")
@click.option("-o", "--output", metavar="FILE", help="Write it to a file.  [default: stdout]")
@click.option("--force", is_flag=True, help="Replace the file if it exists.")
@session_option()
@settings_of
def report(settings: Settings, output: str | None, force: bool, session_option: str | None) -> None:
    """Write the investigation as Markdown."""
    path = None if output is None else Path(output)
    with api.open(settings.store, create=False) as store:
        key = chosen_session(store, None, session_option)
        found = api.investigation_report(store, key, output=path, force=force)
    settings.show(found, _print_report)


def _print_report(found: InvestigationReport) -> None:
    if found.output is None:
        lines([clean(line.expandtabs()) for line in found.markdown.splitlines()])
    else:
        lines([f"Wrote {clean(found.output)}"])


@click.command("compare", cls=Command, example="stepkeep investigate compare latest~3")
@click.argument("older", shell_complete=complete_ref)
@click.argument("newer", default="latest", shell_complete=complete_ref)
@session_option()
@settings_of
def compare(settings: Settings, older: str, newer: str, session_option: str | None) -> None:
    """Show what changed from checkpoint OLDER to NEWER (latest)."""
    with api.open(settings.store, create=False) as store:
        key = chosen_session(store, None, session_option)
        found = api.compare_investigation(store, key, older, newer)
    settings.show(found, _print_comparison)


def _print_comparison(found: InvestigationComparison) -> None:
    lines([clean(line) for line in found.as_text().splitlines()])


@click.command("recovery", cls=Command, example="stepkeep investigate recovery --script")
@click.argument("ref", default="latest", shell_complete=complete_ref)
@click.option("--script", is_flag=True, help="Show it as a shell script.")
@session_option()
@settings_of
def recovery(settings: Settings, ref: str, script: bool, session_option: str | None) -> None:
    """Show how to get back to where checkpoint REF was. Nothing is run."""
    with api.open(settings.store, create=False) as store:
        key = chosen_session(store, None, session_option)
        found = api.investigation_recovery(store, key, ref)
    settings.show(found, lambda found: _print_recovery(found, script))


def _print_recovery(found: RecoveryView, script: bool) -> None:
    if script and not is_terminal():
        write(found.script.encode("utf-8", "backslashreplace"))  # to the letter: a file may run it
        return
    lines([clean(line) for line in (found.script if script else found.text).split("\n")[:-1]])


EXAMPLE = """\
stepkeep investigate hypothesis add "The cache is stale" --session bug-7
stepkeep investigate verify --session bug-7 -- pytest -q
stepkeep investigate status --session bug-7"""


@click.group("investigate", cls=Group, example=EXAMPLE)
@session_option()
def investigate(session_option: str | None) -> None:
    """Keep a debugging session: hypotheses, evidence, beliefs, gaps, verifications.

    Every command takes the session up from its checkpoints and saves what it changes. What matters becomes an
    automatic checkpoint, tagged auto; everything else is saved as a plain one.
    """


for _command in (
    hypothesis,
    evidence,
    belief,
    gap,
    verify,
    note,
    command,
    code,
    experiment,
    compaction,
    status,
    compare,
    recovery,
    report,
):
    investigate.add_command(_command)

COMMANDS = {"investigate": investigate}
