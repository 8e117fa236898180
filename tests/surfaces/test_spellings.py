"""One command for an idea and one spelling for an option, in the help; the others work as well."""

from __future__ import annotations

import re
from pathlib import Path

import click
import pytest

from stepkeep.cli.app import ALIAS, COMMANDS, HEADINGS, stepkeep
from tests.surfaces.test_cli import Cli

HIDDEN = {"at", "cleanup", "create", "history", "hook"}
SHORT = {"--limit": "-n", "--message": "-m", "--yes": "-y", "--verbose": "-v"}


@pytest.fixture
def cli(tmp_path: Path) -> Cli:
    return Cli(tmp_path)


def every_command() -> dict[str, click.Command]:
    context, found = click.Context(stepkeep), {}

    def walk(name: str, command: click.Command | None) -> None:
        assert command is not None
        found[name] = command
        for below in command.list_commands(context) if isinstance(command, click.Group) else ():
            walk(f"{name} {below}", command.get_command(context, below))

    for name in COMMANDS:
        walk(name, stepkeep.get_command(context, name))
    return found


def options_of(command: click.Command, *, hidden: bool) -> set[str]:
    options = [each for each in command.params if isinstance(each, click.Option) and each.hidden is hidden]
    return {name for each in options for name in each.opts}


def test_the_help_has_a_dozen_everyday_commands_first_and_no_second_spelling() -> None:
    shown = [name for names in HEADINGS.values() for name in names.split()]
    assert len(shown) == len(set(shown))
    assert set(COMMANDS) - set(shown) == HIDDEN
    assert next(iter(HEADINGS)) == "Everyday"
    assert len(HEADINGS["Everyday"].split()) <= 12


def test_an_option_is_spelt_the_same_everywhere() -> None:
    """Limits are -n, messages -m, tags --tag; where one command has the short form, all have it."""
    for name, command in every_command().items():
        options = options_of(command, hidden=False)
        for long, short in SHORT.items():
            assert (long in options) == (short in options), f"{name} {long}"
        assert not options & {"--tags", "--keep-days", "--max-per-run", "--max-age-days", "--max"}, name


@pytest.mark.parametrize(
    "line",
    [
        "history run",
        "diff run --from step-1 --to step-2",
        "export run --output out.json",
        "cleanup",
        "create message --tags a,b --session run",
        "list --tag x",
        "restore run step-1",
        "timeline run",
        "at run now",
        "prune run --keep-last 100 --keep-days 7",
        "prune run --max-per-run 100 --max-age-days 7",
    ],
)
def test_the_other_spellings_work(cli: Cli, line: str) -> None:
    """Also behind the word that may stand in front of every command."""
    cli.fill()
    cli.here("save", "run", "--state", "{}", "--tag", "x")
    for words in (line.split(), [ALIAS, *line.split()]):
        done = cli.here(*words, *(["--force"] if "export" in words else []))
        assert done.code == 0, done.err


def test_tags_and_messages_in_either_spelling_are_the_same(cli: Cli) -> None:
    """A tag that is given alone may hold a comma, which separates those that are given together."""
    cli.here("save", "run", "--state", "1", "--tag", "a,b", "--tag", "c", "-m", "short")
    cli.here("save", "run", "--state", "2", "--tags", "d, e", "--message", "long")
    newest, oldest = cli.here("log", "run", "--json").json["checkpoints"]
    assert (oldest["tags"], oldest["message"]) == (["a,b", "c"], "short")
    assert (newest["tags"], newest["message"]) == (["d", "e"], "long")


def test_log_is_for_checkpoints(cli: Cli) -> None:
    """As lines, as a graph, and those with a tag, on whichever branch."""
    cli.fill()
    cli.here("save", "run", "--state", "{}", "--tag", "good", "-m", "left behind")
    cli.here("restore", "run", "step-2")
    assert cli.here("log", "run", "-n", "1").out.startswith("2  ")
    assert re.fullmatch(r"4  \S+ \S+  left behind \[good\]\n", cli.here("log", "run", "--tag", "good").out)
    assert [each["seq"] for each in cli.here("log", "run", "--tag", "good", "--json").json] == [4]
    assert cli.here("log", "run", "--tag", "none").out == "No checkpoints.\n"
    graph = cli.here("log", "run", "--graph")
    assert graph.out == cli.here("timeline", "run").out
    assert cli.here("log", "run", "--graph", "--json").json == cli.here("timeline", "run", "--json").json
    assert cli.here("log", "run", "--graph", "--path", "n").code == 2


@pytest.mark.parametrize("answer", ["q", "n", "", "no", "x\nq"])
def test_a_q_quits_at_a_question(cli: Cli, answer: str) -> None:
    """Nothing is removed; what is no answer is asked again."""
    cli.fill()
    code, shown = cli.terminal("delete", "run", "2", answer=f"{answer}\n".encode())
    assert (code, "Nothing removed." in shown) == (1, True)
    assert ("is none of y" in shown) == ("x" in answer)
    assert len(cli.here("list", "run", "--json").json) == 3
    assert cli.terminal("delete", "run", "2", answer=b"Yes\n")[0] == 0
    assert len(cli.here("list", "run", "--json").json) == 2


def test_verbose_tells_what_a_save_did(cli: Cli) -> None:
    """Where it lies, behind what, and what it takes; without it one line is enough."""
    assert cli.here("save", "run", "--state", "{}").err == ""
    first = cli.here("save", "run", "--state", '{"n": 1}', "--json").json["id"]
    told = cli.here("-v", "save", "run", "--state", '{"n": 2}').err
    assert told.startswith(f"info: branch main, after {first}; ")
    assert re.search(r"; \d+B stored for 7B \(\d\.\dx\); profile standard; sqlite:.*store\.db\n$", told)


@pytest.mark.full
def test_our_signs_are_ascii_where_only_that_can_be_shown(cli: Cli) -> None:
    """In the locale C, in a pipe and on a terminal alike; what was stored is printed as it is."""
    cli.fill(count=30)
    cli.here("save", "run", "--state", '{"text": "a … b"}')
    locale = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    for line in (
        "timeline run",
        "diff run",
        "stats",
        "find word --session run -n 1",
        "list",
        "doctor",
        "log run",
    ):
        done = cli(*line.split(), **locale)
        assert done.code == 0, done.err
        assert done.out.isascii(), line
    assert cli("show", "run", "latest", "text", **locale).out == '"a … b"\n'
    assert (
        "…" in cli("timeline", "run", PYTHONUTF8="1").out or "⋮" in cli("timeline", "run", PYTHONUTF8="1").out
    )
