"""When to try again."""

from __future__ import annotations

import logging
import random
from collections.abc import Callable
from typing import Final, TypeVar

import msgspec

from stepkeep.errors import BackendUnavailable, InvalidInput

log = logging.getLogger("stepkeep")

T = TypeVar("T")

SAVE_DELAYS: Final = (0.1, 0.5, 2.0)
"""Seconds to wait before a save that failed for a passing reason is repeated."""


class RetryPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """How often a step is tried, and how long to wait in between.

    The first wait lasts `delay_seconds`, each further one `factor` times as long, at most `max_delay_seconds`.
    `jitter` is the share of a wait that is left to chance, so that many do not come back at once.
    """

    attempts: int = 1
    delay_seconds: float = 1.0
    factor: float = 2.0
    max_delay_seconds: float = 60.0
    jitter: float = 0.1

    def __post_init__(self) -> None:
        problems = []
        if self.attempts < 1:
            problems.append("attempts counts the tries: 1 or more")
        if not 0 <= self.delay_seconds < float("inf") or not 0 <= self.max_delay_seconds < float("inf"):
            problems.append("delays are seconds, 0 or more")
        if not 1 <= self.factor < float("inf"):
            problems.append("factor is 1 or more")
        if not 0 <= self.jitter <= 1:
            problems.append("jitter is a share between 0 and 1")
        if problems:
            raise InvalidInput(
                f"this retry policy makes no sense: {'; '.join(problems)}", code="invalid_option"
            )

    def delay_after(self, attempt: int, chance: Callable[[], float] = random.random) -> float | None:
        """Seconds to wait after that attempt failed (the first is 1); None when it was the last one.

        `chance` gives a number from 0 to below 1.
        """
        if attempt >= self.attempts:
            return None
        try:
            delay = min(self.delay_seconds * float(self.factor) ** (attempt - 1), self.max_delay_seconds)
        except OverflowError:
            delay = self.max_delay_seconds
        return delay * (1 - self.jitter * chance())


def persistently(write: Callable[[], T], wait: Callable[[float], object]) -> T:
    """Do a write, and repeat it after `SAVE_DELAYS` as long as it fails for a passing reason.

    The write must be one that may be repeated. A full disk or a missing permission is final at once.
    """
    for delay in SAVE_DELAYS:
        try:
            return write()
        except BackendUnavailable as exc:
            if not exc.retryable:
                raise
            log.warning("a write failed and is repeated in %g s: %s", delay, exc)
            wait(delay)
    return write()
