"""Saves of one session keep the order in which they were asked for, whoever asks and whatever is captured with them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import stepkeep
from stepkeep.workspace import capture


@pytest.fixture
def store(tmp_path: Path) -> Iterator[stepkeep.Store]:
    with stepkeep.open(f"sqlite:{tmp_path}/store.db") as opened:
        yield opened


@pytest.fixture
def release(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Captures begin and then wait for this event."""
    may_go_on = threading.Event()
    original = capture.capture

    def slow(*args: object, **options: object) -> object:
        assert may_go_on.wait(30)
        return original(*args, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(capture, "capture", slow)
    return may_go_on


DOORS: dict[str, Callable[[stepkeep.Store], object]] = {
    "agents": lambda store: store.agents.save("run", None, {"n": 2}),
    "another handle": lambda store: store.session("run").save({"n": 2}),
    "in the background": lambda store: store.session("run").save({"n": 2}, wait=False).result(),
    "paused": lambda store: store.get("run").save({"n": 2}, status="paused"),
}


@pytest.mark.parametrize("door", DOORS)
def test_a_save_comes_after_a_capture_that_was_asked_for_before(
    store: stepkeep.Store, tmp_path: Path, release: threading.Event, door: str
) -> None:
    """`save(wait=False, workspace=…)` keeps its place in the order: what is saved next is the latest."""
    tree = tmp_path / "tree"
    tree.mkdir()
    (tree / "a.txt").write_text("a")
    first = store.session("run").save({"n": 1}, wait=False, workspace=tree)
    timer = threading.Timer(0.2, release.set)
    timer.start()
    DOORS[door](store)
    latest = store.get("run").latest()
    assert latest is not None
    assert latest.state == {"n": 2}
    assert first.result().seq == 1
    timer.join()


def test_other_sessions_do_not_wait_for_a_capture(
    store: stepkeep.Store, tmp_path: Path, release: threading.Event
) -> None:
    """A capture holds back the saves of its own session only."""
    tree = tmp_path / "tree"
    tree.mkdir()
    first = store.session("run").save({"n": 1}, wait=False, workspace=tree)
    assert store.session("other").save({"n": 5}).seq == 1
    assert not first.is_done
    release.set()
    assert first.result().seq == 1


def test_a_state_may_change_as_soon_as_a_save_in_the_background_was_asked_for(
    store: stepkeep.Store, tmp_path: Path, release: threading.Event
) -> None:
    """The state is encoded before `save` returns, although its files are captured later."""
    tree = tmp_path / "tree"
    tree.mkdir()
    state = {"n": 1}
    pending = store.session("run").save(state, wait=False, workspace=tree)
    state["n"] = 7
    release.set()
    assert store.checkpoint(pending.id).state == {"n": 1}
