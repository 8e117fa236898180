"""A clock that stands still until it is told otherwise."""

from __future__ import annotations

from stepkeep.testing.records import START_US


class FakeClock:
    """Give the object itself wherever a clock is wanted: calling it gives microseconds since 1970."""

    def __init__(self, now_us: int = START_US) -> None:
        self.now_us = now_us

    def __call__(self) -> int:
        return self.now_us

    def advance(self, seconds: float) -> None:
        self.now_us += round(seconds * 1_000_000)
