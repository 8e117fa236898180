"""How long a store waits for others that write to its file, on a clock of its own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import apsw
import pytest

import stepkeep
from stepkeep import BackendUnavailable
from stepkeep.storage import lock_wait


class Clock:
    """Time that passes only while somebody sleeps."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        assert seconds > 0
        self.now += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(lock_wait, "time", clock)
    return clock


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "store.db"


@pytest.fixture
def locked(file: Path) -> Iterator[stepkeep.Store]:
    """A store that saved once, while another connection holds its file."""
    store = stepkeep.open(file)
    store.session("s").save({"a": 1})
    other = apsw.Connection(str(file))
    other.execute("BEGIN IMMEDIATE")
    yield store
    other.close()
    store.close()


def test_a_save_waits_a_minute_and_tells(
    locked: stepkeep.Store, clock: Clock, file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Once for each wait; then it is refused, and a repeat can help."""
    for number in (1, 2):
        with pytest.raises(BackendUnavailable) as busy:
            locked.get("s").save({"a": 2})
        assert (busy.value.code, busy.value.retryable) == ("store_busy", True)
        assert clock.now == pytest.approx(60 * number)
        told = [record.message for record in caplog.records if "waiting" in record.message]
        assert told == [f"waiting for another process that writes to {file}, for up to 60 s"] * number


def test_a_short_wait_is_not_told(
    file: Path, locked: stepkeep.Store, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    """It is as long as was asked for."""
    with stepkeep.open(file, busy_seconds=1.5) as store, pytest.raises(BackendUnavailable):
        store.get("s").save({"a": 2})
    assert clock.now <= 1.5 + 1  # and a moment for closing
    assert "waiting" not in caplog.text


def test_closing_waits_for_a_moment_only(locked: stepkeep.Store, clock: Clock) -> None:
    """What it would do, whoever writes does as well."""
    locked.close()
    assert clock.now == pytest.approx(1)
