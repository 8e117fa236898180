"""`stepkeep investigate status`, `report`, `compare` and `recovery`."""

from __future__ import annotations

from pathlib import Path

import click

from stepkeep import operations
from stepkeep.cli.app import Command, Settings, settings_of
from stepkeep.cli.investigate_shared import entry_line
from stepkeep.cli.naming import chosen_session, complete_ref, session_option
from stepkeep.cli.printing import clean, count, is_terminal, lines, write
from stepkeep.investigation.comparison import InvestigationComparison
from stepkeep.operations import investigating
from stepkeep.operations.investigating import InvestigationReport, InvestigationStatus, RecoveryView


@click.command("status", cls=Command, example="stepkeep investigate status")
@session_option()
@settings_of
def status(settings: Settings, session_option: str | None) -> None:
    """Show where the investigation stands, and what to find out next."""
    with operations.open_store(settings.store) as store:
        found = investigating.investigation_status(store, chosen_session(store, None, session_option))
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
    with operations.open_store(settings.store) as store:
        key = chosen_session(store, None, session_option)
        found = investigating.investigation_report(store, key, output=path, force=force)
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
    with operations.open_store(settings.store) as store:
        key = chosen_session(store, None, session_option)
        found = investigating.compare_investigation(store, key, older, newer)
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
    with operations.open_store(settings.store) as store:
        key = chosen_session(store, None, session_option)
        found = investigating.investigation_recovery(store, key, ref)
    settings.show(found, lambda found: _print_recovery(found, script))


def _print_recovery(found: RecoveryView, script: bool) -> None:
    if script and not is_terminal():
        write(found.script.encode("utf-8", "backslashreplace"))  # to the letter: a file may run it
        return
    lines([clean(line) for line in (found.script if script else found.text).split("\n")[:-1]])
