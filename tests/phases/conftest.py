"""Stores of phases: in a folder of their own, and on every backend that needs no server."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import stepkeep
from stepkeep.testing import FakeClock

SEED = {
    "version": "1.0.0",
    "identity": {"name": "Ada", "größe": 1},
    "learned": {"patterns": []},
    "state": {"lastSessionId": "s-0", "proposals": [], "activeProjects": ["x"]},
    "unknown": {"kept": True},
}


class Home:
    """The folder with the seed file, the event log and the checkpoints."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.seed = path / "seed.json"
        path.mkdir()
        self.seed.write_text(json.dumps(SEED, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")

    @property
    def ref(self) -> str | None:
        found: str | None = json.loads(self.seed.read_text(encoding="utf-8"))["state"].get("checkpointRef")
        return found

    @property
    def files(self) -> list[Path]:
        return sorted((self.path / "checkpoints").glob("*"))

    @property
    def events(self) -> list[dict[str, Any]]:
        lines = [
            line
            for file in sorted((self.path / "events").glob("events-*.jsonl"))
            for line in file.read_text(encoding="utf-8").splitlines()
        ]
        return [json.loads(line) for line in lines]


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path / "home")


@pytest.fixture
def phases(home: Home, clock: FakeClock) -> Iterator[stepkeep.Phases]:
    with stepkeep.open_phases(home.path, clock=clock) as found:
        yield found
