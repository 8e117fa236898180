"""Giving space back, in steps so small that savers never wait long.

A sweep frees what nothing needs any more inside the store; `reclaim` gives the freed space back to the file system.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final, TypeVar

from stepkeep.engine import Engine
from stepkeep.errors import InvalidInput
from stepkeep.maintenance.reserve import Reserve

T = TypeVar("T")

MIB: Final = 1024 * 1024

SWEEP_STEP: Final = 200
"""How many bodies, blobs and annotations one transaction of a sweep removes at most."""

MAX_PAUSE_SECONDS: Final = 0.1


def reclaim(engine: Engine, *, max_bytes: int = 64 * MIB, step_bytes: int = 4 * MIB) -> int:
    """Give freed space back to the file system, at most about `max_bytes`; the bytes that were given back.

    Each step is a transaction of its own. Repeatable, and safe while others save.
    """
    for name, value in (("max_bytes", max_bytes), ("step_bytes", step_bytes)):
        if value < 1:
            raise InvalidInput(f"{name} must be at least 1, not {value}", code="invalid_setting")
    given_back = 0
    while given_back < max_bytes:
        step = min(step_bytes, max_bytes - given_back)
        freed = in_turn(engine, lambda step=step: engine.backend.reclaim(step))  # type: ignore[misc]
        if freed <= 0:
            break
        given_back += freed
    return given_back


def sweep(engine: Engine, session: str | None = None, *, annotations_before_us: int | None = None) -> int:
    """Remove all bodies and blobs that nothing needs, of one session or of the store; the stored bytes that went.

    Annotations older than the given time whose checkpoint never came go too.
    """
    freed = 0
    has_more = True
    while has_more:
        swept = in_turn(
            engine,
            lambda: engine.backend.sweep(
                session=session, limit=SWEEP_STEP, annotations_before_us=annotations_before_us
            ),
        )
        freed += swept.stored_bytes
        has_more = swept.has_more
    return freed


def in_turn(engine: Engine, write: Callable[[], T]) -> T:
    """Do one write that frees space, then leave the store to others for as long as it took.

    Who waits for a lock looks again only now and then, so a loop of writes without a pause would keep it out.
    """
    started = time.monotonic()
    result = Reserve(engine.backend.url).spend(write)
    time.sleep(min(time.monotonic() - started, MAX_PAUSE_SECONDS))
    return result
