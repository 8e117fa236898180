"""`stepkeep investigate`: a debugging session kept from the shell."""

from __future__ import annotations

import click

from stepkeep.cli.investigate_entries import belief, evidence, gap, hypothesis, note
from stepkeep.cli.investigate_looking import compare, recovery, report, status
from stepkeep.cli.investigate_shared import Group
from stepkeep.cli.investigate_work import code, command, compaction, experiment, verify
from stepkeep.cli.naming import session_option

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
