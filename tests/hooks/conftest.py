"""Hooks as agents run them: real processes, one per event."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import stepkeep
from tests import interpreter

FIXTURES = Path(__file__).parent / "fixtures"
WAIT_SECONDS = 30
SOURCE = Path(stepkeep.__file__).parent.parent

_AGENT = "import subprocess, sys; sys.exit(subprocess.call(sys.argv[1:]))"
"""An agent that lives for one hook: what it leaves is unfinished work of a process that is gone."""


class Answer:
    """What a hook answered."""

    def __init__(self, done: subprocess.CompletedProcess[bytes]) -> None:
        self.code = done.returncode
        self.out = done.stdout.decode()
        self.err = done.stderr.decode()

    @property
    def json(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.out) if self.out else {}
        return found

    @property
    def context(self) -> str:
        return str(self.json.get("hookSpecificOutput", {}).get("additionalContext", ""))

    @property
    def message(self) -> str:
        return str(self.json.get("systemMessage", ""))


class Agent:
    """A coding agent in a folder of its own, with a store, a log and a home that are all empty."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "project"
        self.home = folder / "home"
        self.file = folder / "store.db"
        self.log = folder / "state" / "hooks.log"
        self.transcript = folder / "transcript.jsonl"
        self.url = f"sqlite:{self.file}"
        self.folder.mkdir()
        self.home.mkdir()

    @property
    def environment(self) -> dict[str, str]:
        kept = {
            name: value for name, value in os.environ.items() if not name.startswith(("STEPKEEP_", "XDG_"))
        }
        return {
            **kept,
            "HOME": str(self.home),
            "STEPKEEP_STORE": self.url,
            "STEPKEEP_HOOK_LOG": str(self.log),
            "PYTHONPATH": str(SOURCE),
        }

    def command(self, event: str, client: str = "claude-code") -> list[str]:
        return [sys.executable, "-m", "stepkeep", "hook", event, "--client", client]

    def input(self, event: str, client: str = "claude-code", **fields: Any) -> bytes:
        """A fixture with fields changed."""
        text = (FIXTURES / client / f"{event}.json").read_text(encoding="utf-8")
        text = text.replace("{CWD}", str(self.folder)).replace("{TRANSCRIPT}", str(self.transcript))
        return json.dumps({**json.loads(text), **fields}).encode()

    def hook(self, event: str, client: str = "claude-code", **fields: Any) -> Answer:
        """Let the agent run the hook of an event, with the input of its fixture."""
        return self.raw(self.command(event, client), self.input(event, client, **fields))

    def raw(self, command: list[str], content: bytes, **environment: str) -> Answer:
        done = subprocess.run(
            [sys.executable, "-S", "-E", "-c", _AGENT, *command],
            input=content,
            capture_output=True,
            env={**self.environment, **environment},
            cwd=self.folder,
            timeout=60,
            check=False,
        )
        return Answer(done)

    def stepkeep(self, *args: str) -> Answer:
        return Answer(interpreter.python("-m", "stepkeep", *args, cwd=self.folder, env=self.environment))

    @property
    def spooled(self) -> list[Path]:
        """The events that are not saved yet."""
        return sorted((self.home / ".local" / "state" / "stepkeep" / "spool").glob("*/*.json"))

    def settled(self) -> None:
        """Wait until another process has saved what the last hook left to it."""
        end = time.monotonic() + WAIT_SECONDS
        while self.spooled and time.monotonic() < end:
            time.sleep(0.02)
        assert self.spooled == []

    def problems(self) -> list[dict[str, Any]]:
        if not self.log.exists():
            return []
        return [json.loads(line) for line in self.log.read_text(encoding="utf-8").splitlines()]

    def store(self) -> stepkeep.Store:
        return stepkeep.open(self.url)


@pytest.fixture
def agent(tmp_path: Path) -> Agent:
    return Agent(tmp_path)
