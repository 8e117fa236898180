"""`stepkeep completion`."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from stepkeep.cli.app import Command, Settings, settings_of, stepkeep
from stepkeep.cli.printing import lines

EXAMPLE = """\
eval "$(stepkeep completion bash)"       # in ~/.bashrc
eval "$(stepkeep completion zsh)"        # in ~/.zshrc
stepkeep completion fish > ~/.config/fish/completions/stepkeep.fish"""


@click.command("completion", cls=Command, example=EXAMPLE)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@settings_of
def completion(settings: Settings, shell: str) -> None:
    """Print the script that completes commands, options, sessions and refs in a shell."""
    kind = get_completion_class(shell)
    if kind is None:
        raise click.ClickException(f"This click cannot complete in {shell}.")
    script = kind(stepkeep, {}, "stepkeep", "_STEPKEEP_COMPLETE").source()
    settings.show({"shell": shell, "script": script}, lambda _: lines([script]))


COMMANDS = {"completion": completion}
