"""`stepkeep doctor`."""

from __future__ import annotations

import click

from stepkeep import api
from stepkeep.api import Diagnosis, Symptom
from stepkeep.cli.app import Command, Settings, settings_of
from stepkeep.cli.printing import ProgressLine, lines, styled
from stepkeep.text import clean, count

EXAMPLE = """\
stepkeep doctor
stepkeep doctor --full --json"""
_MARKS = {
    "ok": ("ok", "green"),
    "note": ("note", None),
    "warning": ("WARN", "yellow"),
    "problem": ("BAD", "red"),
}


@click.command("doctor", cls=Command, example=EXAMPLE)
@click.option("--full", is_flag=True, help="Verify every byte, not only a sample.")
@settings_of
def doctor(settings: Settings, full: bool) -> int:
    """Look over the store and what it runs on, and say what to do about each thing that is not in order.

    Nothing is created or changed. Exits with 1 when there is a problem.
    """
    progress = ProgressLine("verifying")
    try:
        diagnosis = api.diagnose(settings.store, full=full, progress=progress.advance)
    finally:
        progress.close()
    settings.show(diagnosis, _print)
    return 0 if diagnosis.is_healthy else 1


def _print(diagnosis: Diagnosis) -> None:
    lines([f"store {clean(diagnosis.store)}"])
    for symptom in diagnosis.symptoms:
        lines(_symptom_lines(symptom))
    lines([_verdict(diagnosis)])


def _symptom_lines(symptom: Symptom) -> list[str]:
    mark, colour = _MARKS[symptom.verdict]
    first = f"{styled(f'{mark:<4}', colour)}  {symptom.name:<13}  {clean(symptom.message)}"
    return [first] if symptom.advice is None else [first, f"{'':21}→ {clean(symptom.advice)}"]


def _verdict(diagnosis: Diagnosis) -> str:
    problems = sum(each.verdict == "problem" for each in diagnosis.symptoms)
    warnings = sum(each.verdict == "warning" for each in diagnosis.symptoms)
    if problems:
        return f"Not healthy: {count(problems, 'problem')}, {count(warnings, 'warning')}."
    return f"Healthy, {count(warnings, 'warning')}." if warnings else "Healthy."


COMMANDS = {"doctor": doctor}
