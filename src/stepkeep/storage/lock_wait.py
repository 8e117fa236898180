"""Waiting for others who write to a database file: as long as was asked for, told when it takes a while."""

from __future__ import annotations

import time
from typing import Final

import msgspec

from stepkeep.logs import Log

log = Log("stepkeep")

TELL_SECONDS: Final = 2.0
"""After so long it is told that somebody else is waited for."""

_DELAYS: Final = (0.001, 0.002, 0.005, 0.01, 0.015, 0.02, 0.025, 0.025, 0.025, 0.05, 0.05, 0.1)
"""Between two tries, as SQLite itself waits; the last one from then on."""


class LockWait(msgspec.Struct):
    """The busy handler of one connection: says, try by try, whether to go on waiting.

    SQLite's own waits just as long, but tells nobody, and a signal such as Ctrl-C goes unheard until it ends.
    """

    path: str
    seconds: float
    began: float = 0.0
    has_told: bool = False

    def __call__(self, tries: int) -> bool:
        now = time.monotonic()
        if tries == 0:
            self.began, self.has_told = now, False
        waited = now - self.began
        if waited >= self.seconds:
            return False
        if waited >= TELL_SECONDS and not self.has_told:
            self.has_told = True
            log.warning(
                "waiting for another process that writes to %s, for up to %g s", self.path, self.seconds
            )
        time.sleep(min(_DELAYS[min(tries, len(_DELAYS) - 1)], self.seconds - waited))
        return True
