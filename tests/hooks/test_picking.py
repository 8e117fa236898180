"""`stepkeep rewind` on a terminal: one prompt is picked with the arrow keys or by its number."""

from __future__ import annotations

import os
import pty
import select
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.hooks.conftest import WAIT_SECONDS, Agent
from tests.hooks.test_rewind import three_turns, tree_of

pytestmark = pytest.mark.full

DOWN = "\x1b[B"


class Terminal:
    """A command on a terminal of its own."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self.seen = ""

    def until(self, text: str) -> str:
        """Read until a text is there; what was read since the last time."""
        end, found = time.monotonic() + WAIT_SECONDS, ""
        while text not in found:
            assert time.monotonic() < end, f"{text!r} is not in {found!r}"
            if select.select([self._descriptor], [], [], 0.1)[0]:
                try:
                    found += os.read(self._descriptor, 65536).decode()
                except OSError:  # the command has ended
                    assert text in found, found
        self.seen += found
        return found

    def type(self, text: str) -> None:
        os.write(self._descriptor, text.encode())


@contextmanager
def rewinding(agent: Agent, *words: str, columns: int = 80) -> Iterator[Terminal]:
    process, descriptor = pty.fork()
    if process == 0:
        os.chdir(agent.folder)
        environment = {**agent.environment, "TERM": "xterm", "COLUMNS": str(columns), "LINES": "24"}
        command = [sys.executable, "-m", "stepkeep", "rewind", *words]
        os.execve(sys.executable, command, environment)
    terminal = Terminal(descriptor)
    try:
        yield terminal
    finally:
        os.close(descriptor)
        os.waitpid(process, 0)


def test_arrows_pick_a_prompt_and_a_yes_rewinds(agent: Agent) -> None:
    """What would change is shown before anything does; without a yes nothing does."""
    three_turns(agent)
    before = tree_of(agent.folder)
    with rewinding(agent) as terminal:
        assert "> " in terminal.until("q to leave")
        terminal.type(DOWN)
        assert "new2.txt" in terminal.until("q to leave"), "the files of the one that is chosen"
        terminal.type("\r")
        shown = terminal.until("Restore 3 files? [y/N]")
        assert "Would rewind to before turn 2" in shown
        assert "--resume-session-at=answer-1" in shown
        terminal.type("\n")
        terminal.until("\n")
    assert tree_of(agent.folder) == before
    with rewinding(agent) as terminal:
        terminal.until("q to leave")
        terminal.type("2")
        terminal.until("q to leave")
        terminal.type("\r")
        terminal.until("[y/N]")
        terminal.type("y\n")
        terminal.until("--undo")
    assert sorted(tree_of(agent.folder)) == ["a.txt", "new1.txt"]


@pytest.mark.parametrize("key", ["q", "\x1b"])
def test_leaving_changes_nothing(agent: Agent, key: str) -> None:
    three_turns(agent)
    before = tree_of(agent.folder)
    with rewinding(agent) as terminal:
        terminal.until("q to leave")
        terminal.type(key)
    assert tree_of(agent.folder) == before


@pytest.mark.parametrize("columns", [60, 80, 200])
def test_no_line_of_the_list_is_wider_than_the_terminal(agent: Agent, columns: int) -> None:
    """A long prompt is cut."""
    three_turns(agent)
    agent.hook("UserPromptSubmit", prompt="A long prompt that goes on " * 15)
    agent.settled()
    with rewinding(agent, columns=columns) as terminal:
        shown = terminal.until("q to leave")
        terminal.type("q")
    lines = [
        line.replace("\x1b[36m", "").replace("\x1b[0m", "") for line in shown.splitlines() if "> " in line
    ]
    assert len(lines[-1]) <= columns
    assert "A long prompt" in lines[-1]
