"""`holdfast investigate`: a debugging session kept from the shell."""

from __future__ import annotations

import click

from holdfast.cli.investigate_entries import belief, evidence, gap, hypothesis, note
from holdfast.cli.investigate_looking import compare, recovery, report, status
from holdfast.cli.investigate_shared import Group
from holdfast.cli.investigate_work import code, command, compaction, experiment, verify
from holdfast.cli.naming import session_option

EXAMPLE = """\
holdfast investigate hypothesis add "The cache is stale" --session bug-7
holdfast investigate verify --session bug-7 -- pytest -q
holdfast investigate status --session bug-7"""


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
