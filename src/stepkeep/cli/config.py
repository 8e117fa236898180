"""`stepkeep config`."""

from __future__ import annotations

import click

from stepkeep import api
from stepkeep.api import Config, SettingView
from stepkeep.cli.app import Command, Settings, settings_of
from stepkeep.cli.printing import is_terminal, lines, note, styled, table
from stepkeep.text import clean, count

EXAMPLE = """\
stepkeep config show
stepkeep config check
stepkeep config path"""

WRONG = 2
WIDEST_KEY = 46


@click.command("config", cls=Command, example=EXAMPLE)
@click.argument("action", type=click.Choice(["show", "path", "check"]), metavar="show|path|check")
@settings_of
def config(settings: Settings, action: str) -> int:
    """Show the configuration.

    show: every key, its value and where the value came from.
    path: the files that are looked for, those that win first.
    check: what is wrong, one problem per line; exits with 2 if something is.
    """
    found = api.inspect_config(settings.store)
    if action == "path":
        settings.show(found.files, lambda _: _print_files(found))
        return 0
    if action == "check":
        settings.show(found.problems, lambda _: _print_problems(found))
    else:
        settings.show(found, _print_settings)
    return WRONG if found.problems else 0


def _print_settings(found: Config) -> None:
    if is_terminal():
        # Cutting off keys or paths would help nobody: long lines go on below.
        wide = min(WIDEST_KEY, max(len(each.key) for each in found.settings))
        lines(_line(each, wide) for each in found.settings)
    else:
        table(["key", "value", "from"], [[each.key, each.text, _origin(each)] for each in found.settings])
    for problem in found.problems:
        note(f"error: {problem.text}")


def _line(setting: SettingView, wide: int) -> str:
    text = f"{clean(setting.key):<{wide}}  {clean(setting.text)}"
    return text if setting.origin == "default" else styled(f"{text}  [{clean(_origin(setting))}]", "green")


def _origin(setting: SettingView) -> str:
    source = setting.source or setting.origin
    return source if setting.line is None else f"{source}:{setting.line}"


def _print_files(found: Config) -> None:
    rows = [
        ["used" if file.is_used else "ignored" if file.exists else "missing", file.scope, file.path]
        for file in found.files
    ]
    table(["", "scope", "file"], rows, wrap=True)
    for file in found.files:
        if file.note:
            note(f"note: {file.path} is {file.note}")


def _print_problems(found: Config) -> None:
    used = sum(file.is_used for file in found.files)
    fine = f"No problems in {count(used, 'file')} and the environment."
    lines([clean(problem.text) for problem in found.problems] or [fine])


COMMANDS = {"config": config}
