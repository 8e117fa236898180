"""Commands whose standard output cannot be written: the work goes on, and the exit code tells the truth."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import stepkeep
from stepkeep.cli.app import COMMANDS, ONLY_SHOW
from stepkeep.cli.app import stepkeep as group
from tests.surfaces.test_cli import Cli

FLOW = """\
name: flow
steps:
  - {id: one, shell: "true"}
  - {id: two, shell: "true"}
  - {id: three, shell: "true"}
"""


@pytest.fixture
def cli(tmp_path: Path) -> Cli:
    return Cli(tmp_path)


def run(cli: Cli, args: str, sink: str) -> tuple[int, str]:
    """Run a command of a shell's line, with its output sent somewhere; exit code and stderr."""
    line = f'{sys.executable} -m stepkeep {args} {sink}; exit "${{PIPESTATUS[0]}}"'
    done = subprocess.run(
        ["bash", "-c", line],
        cwd=cli.folder,
        env={**cli.environment, "HOME": str(cli.folder), "STEPKEEP_HOOK_LOG": str(cli.folder / "hooks.log")},
        stdin=subprocess.DEVNULL,
        capture_output=True,
    )
    err = done.stderr.decode()
    assert "Traceback" not in err
    assert "Exception ignored" not in err
    return done.returncode, err


@pytest.mark.parametrize("sink", [">/dev/full", ">&-", "| true"])
def test_a_save_whose_output_is_lost_is_a_save(cli: Cli, sink: str) -> None:
    """What was stored is not called failed; where nobody chose to look away, stderr tells of the output."""
    code, err = run(cli, "save s --state '{\"n\": 1}'", sink)
    assert code == 0
    assert err.startswith("warning: standard output cannot be written: ") or (sink, err) == ("| true", "")
    with stepkeep.open(cli.url) as store:
        assert [header.seq for header in store.get("s").history()] == [1]


@pytest.mark.parametrize("sink", [">/dev/full", ">&-", "| head -1"])
def test_a_run_goes_on_without_its_output(cli: Cli, sink: str) -> None:
    """All steps run, the session is completed, and the exit code is that of the run."""
    (cli.folder / "flow.yaml").write_text(FLOW)
    code, err = run(cli, "run flow.yaml --session s", sink)
    assert code == 0
    assert "hook of the run failed" not in err
    with stepkeep.open(cli.url) as store:
        session = store.get("s")
        assert session.info.status == "completed"
        assert session.latest().step == 3


@pytest.mark.parametrize(
    "args", ["list", "list --json", "show s", "status", "timeline s", "--help", "--version"]
)
def test_a_command_that_only_shows_fails_with_its_output(cli: Cli, args: str) -> None:
    """Its output is all it does: an exit code of 0 would call a file whole that is not."""
    cli.fill("s", 1)
    for sink in (">/dev/full", ">&-"):
        code, err = run(cli, args, sink)
        assert code == 1
        assert "standard output cannot be written" in err
    assert run(cli, args, "| true") == (141, "")


def test_a_closed_standard_input_is_empty(cli: Cli) -> None:
    """A state that is to be read from there is refused, as an empty one is."""
    code, err = run(cli, "save s --state -", "<&-")
    assert code == 2
    assert err.startswith("error: the state: not JSON")


def test_a_hook_with_closed_streams_saves(cli: Cli) -> None:
    """Its answer goes nowhere, and not into a file that it opened."""
    assert run(cli, "hook Stop", "<&- >&- 2>&-") == (0, "")
    event = '{"session_id": "s", "cwd": "/", "hook_event_name": "Stop", "last_assistant_message": "done"}'
    assert run(cli, "hook Stop", f">&- 2>&- <<<'{event}'") == (0, "")
    with stepkeep.open(cli.url) as store:
        assert len(list(store.sessions())) == 1
        assert store.verify().is_intact


def test_a_file_does_not_take_the_place_of_a_closed_stream(cli: Cli) -> None:
    """With all three streams closed, a save is a save, and nothing is written into what was opened."""
    assert run(cli, "save s --state 1", "<&- >&- 2>&-") == (0, "")
    with stepkeep.open(cli.url) as store:
        assert store.get("s").latest().state == 1
        assert store.verify().is_intact


def test_the_commands_that_only_show_are_commands() -> None:
    """A misspelt one would be taken for one that works."""
    for path in ONLY_SHOW:
        first, *rest = path.split()
        assert first in COMMANDS
        command = group.get_command(None, first)
        for name in rest:
            command = command.commands[name]
        assert command.name == path.split()[-1]
