"""Workers as processes, and what their steps left behind."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import msgspec

import stepkeep
from stepkeep.model import SessionInfo
from tests.workflow.flows import Flows


class Crew(Flows):
    """Runs workflow files by workers."""

    def queue(self, *args: str) -> str:
        """Put the workflow into a queue; its session."""
        done = self.here("run", "flow.yaml", "--detach", *args)
        assert done.code == 0, done.err
        return done.out.strip()

    def work(self, *args: str) -> list[dict[str, Any]]:
        """What a worker tells that ends when nothing is left."""
        done = self.here("worker", "--once", "--json", *args)
        assert done.code == 0, done.err
        return events(done.out)

    @contextmanager
    def worker(self, *args: str) -> Iterator[subprocess.Popen[bytes]]:
        """A worker at work, ended at the latest with the test."""
        process = self.start("worker", "--json", *args)
        try:
            yield process
        finally:
            if process.poll() is None:
                self.stop(process)

    def stopped(self, process: subprocess.Popen[bytes], number: int = signal.SIGTERM) -> list[dict[str, Any]]:
        """What a worker told until a signal ended it."""
        code, out, err = self.stop(process, number)
        assert code == (0 if number != signal.SIGKILL else -number), err
        return events(out)

    def sessions(self) -> dict[str, SessionInfo]:
        with stepkeep.open(self.url) as store:
            return {info.key: info for info in store.sessions()}

    def events(self, key: str) -> list[str]:
        """The types of what is recorded of a session."""
        with stepkeep.open(self.url) as store:
            return [event.type for event in store.engine.backend.events(store.get(key).uid)]


def events(out: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = [msgspec.json.decode(line) for line in out.splitlines()]
    return found


def told(found: list[dict[str, Any]], event: str) -> list[dict[str, Any]]:
    return [each for each in found if each["event"] == event]
