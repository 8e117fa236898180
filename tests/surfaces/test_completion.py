"""Completing commands, sessions and refs in the shells themselves: what is typed, and the line that then runs."""

from __future__ import annotations

import os
import pty
import re
import shutil
import sys
from pathlib import Path

import pytest

from tests.surfaces.test_cli import Cli

READY = "READY"
SHELLS = {
    "bash": (["bash", "--norc", "--noprofile", "-i"], "PS1=; bind 'set enable-bracketed-paste off'"),
    "zsh": (["zsh", "-f", "-i"], "PS1=; unset zle_bracketed_paste; autoload -U compinit; compinit -D"),
    "fish": (["fish", "--no-config", "-i"], "function fish_prompt; end"),
}
"""How each shell is started without what its user set, and made to print no more than it is asked for."""


@pytest.fixture
def cli(tmp_path: Path) -> Cli:
    return Cli(tmp_path)


class Shell:
    """A shell on a terminal. Its `stepkeep` completes as ours does, and else only tells the words it was given."""

    def __init__(self, cli: Cli, name: str) -> None:
        self._words, setup = SHELLS[name]
        command = cli.folder / "bin" / "stepkeep"
        command.parent.mkdir()
        command.write_text(
            '#!/bin/sh\nif [ -n "$_STEPKEEP_COMPLETE" ]; then\n'
            f'  exec "{sys.executable}" -m stepkeep "$@"\nfi\nprintf "GOT<%s>" "$@"; echo END\n',
            encoding="utf-8",
        )
        command.chmod(0o755)
        script = cli.folder / "completion"
        script.write_text(f"{setup}\n{cli('completion', name).out}\necho {READY[:2]}{READY[2:]}\n")
        home = {"HOME": str(cli.folder), "PATH": f"{command.parent}{os.pathsep}{os.environ['PATH']}"}
        self._environment = {**cli.environment, **home, "TERM": "xterm", "COLUMNS": "200"}
        self._folder, self._shown = cli.folder, b""
        self._process, self._terminal = self._start()
        self._type(f"source {script}\n")
        self._read_to(READY + "\r\n")

    def _start(self) -> tuple[int, int]:
        process, terminal = pty.fork()
        if process == 0:
            os.chdir(self._folder)
            os.execvpe(self._words[0], self._words, self._environment)
        return process, terminal

    def runs(self, typed: str) -> list[str]:
        """The words of the command that runs when this is typed and Enter is pressed; a tab completes."""
        self._type(typed + "\n")
        shown = self._read_to("END\r\n")
        return re.findall("GOT<(.*?)>", shown)

    def _type(self, text: str) -> None:
        os.write(self._terminal, text.encode())

    def _read_to(self, mark: str) -> str:
        while mark.encode() not in self._shown:
            self._shown += os.read(self._terminal, 4096)
        shown, _, self._shown = self._shown.partition(mark.encode())
        return shown.decode(errors="replace")

    def close(self) -> None:
        os.close(self._terminal)
        os.waitpid(self._process, 0)


@pytest.mark.full
@pytest.mark.parametrize("name", SHELLS)
def test_a_shell_completes_sessions_and_refs(cli: Cli, name: str) -> None:
    """Keys with a colon, which ends a word in bash, complete like others; so do refs behind them and commands."""
    if shutil.which(name) is None:
        pytest.skip(f"there is no {name}")
    for key in ("claude:abc", "claude:xyz:1", "plain"):
        cli.fill(key)
    cli.fill("good", tags=["fine"])
    shell = Shell(cli, name)
    try:
        assert shell.runs("stepkeep show pl\t") == ["show", "plain"]
        assert shell.runs("stepkeep show claude:a\t") == ["show", "claude:abc"]
        assert shell.runs("stepkeep show claude:x\t") == ["show", "claude:xyz:1"]
        assert shell.runs("stepkeep show claude:xyz:\t") == ["show", "claude:xyz:1"]
        assert shell.runs("stepkeep show --session claude:a\t") == ["show", "--session", "claude:abc"]
        assert shell.runs("stepkeep show good tag:\t") == ["show", "good", "tag:fine"]
        assert shell.runs("stepkeep show claude:abc lat\t") == ["show", "claude:abc", "latest"]
        assert shell.runs("stepkeep timel\t plain") == ["timeline", "plain"]
        assert shell.runs("stepkeep timeline pl\t --sin\t x") == ["timeline", "plain", "--since", "x"]
    finally:
        shell.close()


@pytest.mark.parametrize("shell", SHELLS)
def test_completion_scripts_are_printed(cli: Cli, shell: str) -> None:
    """Each shell gets its script."""
    done = cli("completion", shell)
    assert done.code == 0
    assert "_STEPKEEP_COMPLETE" in done.out


def test_sessions_and_refs_complete(cli: Cli) -> None:
    """What the shell asks for is answered from the store, and without a store with silence."""

    def completions(line: str) -> list[str]:
        words = line.split(" ")
        done = cli(_STEPKEEP_COMPLETE="bash_complete", COMP_WORDS=line, COMP_CWORD=str(len(words) - 1))
        assert done.err == ""
        return [entry.partition(",")[2] for entry in done.out.splitlines() if entry]

    assert completions("stepkeep show r") == []
    assert not cli.file.exists()
    cli.fill("run-1")
    cli.fill("run-2", tags=["good"])
    cli.fill("bad\nkey")
    assert set(completions("stepkeep show r")) == {"run-1", "run-2"}
    assert set(completions("stepkeep list --session r")) == {"run-1", "run-2"}
    assert set(completions("stepkeep show run-1 step-")) == {"step-1", "step-2", "step-3"}
    assert completions("stepkeep show run-2 tag") == ["tag:good"]
    cli("branch", "fork", "run-1", "step-2", "--name", "try-batching", "--no-switch")
    assert completions("stepkeep branch log run-1 try") == ["try-batching"]
    assert completions("stepkeep timeline --branch m") == ["main"]
    assert completions("stepkeep show --session run-2 tag") in ([], ["tag:good"])
    assert "history" in completions("stepkeep hi")
