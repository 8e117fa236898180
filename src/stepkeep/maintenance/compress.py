"""Storing old history smaller, where a backend can: the content and its digests stay as they are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from stepkeep.engine import Engine
from stepkeep.storage.port import Compresses

HOUR_US: Final = 3_600_000_000
STEP: Final = 20
"""How many checkpoints are compressed between two questions whether to stop."""


def count_compressible(engine: Engine, *, after_hours: int, now_us: int, session: str | None = None) -> int:
    """How many checkpoints of a session, or of all, are old enough to be compressed. Reads only."""
    backend = engine.backend
    if not isinstance(backend, Compresses):
        return 0
    return backend.compressible(_before_us(after_hours, now_us), session=session)


def compress_history(
    engine: Engine,
    *,
    after_hours: int,
    now_us: int,
    session: str | None = None,
    should_stop: Callable[[], bool] = lambda: False,
) -> int:
    """Compress what was saved at least so long ago, in a session or in all; how many checkpoints were.

    It may be stopped anywhere, also by a crash: what is left is done the next time.
    """
    backend = engine.backend
    done = 0
    while isinstance(backend, Compresses) and not should_stop():
        count = backend.compress(_before_us(after_hours, now_us), session=session, limit=STEP)
        done += count
        if count < STEP:
            break
    return done


def _before_us(after_hours: int, now_us: int) -> int:
    """A checkpoint that is exactly as old as that counts as old enough."""
    return now_us - after_hours * HOUR_US + 1
