"""`stepkeep import`: one command for each system that something can come from."""

from __future__ import annotations

from typing import Final

import click

from stepkeep.cli.app import Command
from stepkeep.cli.import_files import files
from stepkeep.cli.import_langgraph import langgraph

EXAMPLE: Final = "stepkeep import langgraph --from sqlite:checkpoints.sqlite"


class ImportGroup(Command, click.Group):
    """A group that also takes the common options."""


@click.group("import", cls=ImportGroup, example=EXAMPLE)
def import_() -> None:
    """Bring in what another system saved, verifying what can be verified and reporting the rest."""


import_.add_command(files)
import_.add_command(langgraph)

COMMANDS = {"import": import_}
