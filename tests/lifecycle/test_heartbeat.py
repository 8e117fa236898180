"""The thread of a recorder's heartbeat."""

from __future__ import annotations

import threading

import stepkeep

SECONDS = 30


def test_a_recorder_beats_in_every_block() -> None:
    """It may be entered again."""
    with stepkeep.open("memory:") as store:
        came = threading.Event()
        session = store.session("run", profile="archive")
        recorder = session.recorder(state=lambda: came.set() or {"v": 1}, heartbeat_seconds=0.001)
        for _ in range(2):
            came.clear()
            with recorder:
                assert came.wait(SECONDS)
            assert "stepkeep-heartbeat" not in [thread.name for thread in threading.enumerate()]
