"""The thread of the heartbeat: one at a time, and as often as it is started."""

from __future__ import annotations

import threading

import stepkeep
from stepkeep.lifecycle.heartbeat import Heartbeat

SECONDS = 30


class Beats:
    """A heart that beats at once, and says when."""

    def __init__(self) -> None:
        self.came = threading.Event()
        self.heart = Heartbeat(self.came.set, lambda: 0.001)

    def beats(self) -> bool:
        self.came.clear()
        return self.came.wait(SECONDS)


def hearts() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "stepkeep-heartbeat"]


def test_a_heart_that_was_stopped_beats_again() -> None:
    """Every start is as good as the first."""
    beats = Beats()
    for _ in range(3):
        beats.heart.start()
        assert beats.beats()
        beats.heart.stop()
        assert hearts() == []


def test_starting_twice_is_starting_once() -> None:
    """One thread, which one stop ends."""
    beats = Beats()
    beats.heart.start()
    beats.heart.start()
    assert len(hearts()) == 1
    beats.heart.stop()
    assert hearts() == []
    beats.heart.stop()


def test_a_beat_may_stop_and_start_its_own_heart() -> None:
    """The thread that stops itself ends, and only the new one goes on."""
    done = threading.Event()

    def beat() -> None:
        if not done.is_set():
            heart.stop()
            heart.start()
            done.set()

    heart = Heartbeat(beat, lambda: 0.001)
    heart.start()
    assert done.wait(SECONDS)
    heart.stop()
    for thread in hearts():
        thread.join(SECONDS)
    assert hearts() == []


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
            assert hearts() == []


def test_many_threads_start_one_heart() -> None:
    """Whoever comes first."""
    beats = Beats()
    starters = [threading.Thread(target=beats.heart.start) for _ in range(8)]
    for starter in starters:
        starter.start()
    for starter in starters:
        starter.join()
    assert len(hearts()) == 1
    beats.heart.stop()
    assert hearts() == []
