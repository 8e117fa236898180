"""The stores that are looked at, and what an operation on one of them is."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from stepkeep import Store
from stepkeep.model import utc_now_us
from stepkeep.storage.files import FilesBackend, Layout
from stepkeep.storage.port import Backend
from stepkeep.storage.sqlite import SqliteBackend

SQLITE = "sqlite"
FILES = tuple(f"files-{layout}" for layout in Layout)
KINDS = (SQLITE, *FILES)
BUSY_SECONDS = 2.0

Say = Callable[[str], None]
"""Tell the world outside: `ACK session seq` when a checkpoint was acknowledged, `OK` when the call returned."""


def backend_of(
    kind: str, root: Path, *, clock: Callable[[], int] = utc_now_us, busy_seconds: float = BUSY_SECONDS
) -> Backend:
    """The store of a kind below `root`, made on demand."""
    if kind == SQLITE:
        return SqliteBackend(root / "store/h.db", busy_seconds=busy_seconds, clock=clock)
    layout = kind.removeprefix("files-")
    return FilesBackend(root / "store", layout=layout, busy_seconds=busy_seconds, clock=clock)


def later() -> int:
    """A clock that is two hours ahead: what was left lying about is old enough to go."""
    return round(time.time() * 1_000_000) + 2 * 3600 * 1_000_000


def url_at(root: Path) -> str:
    """How a program of its own is told of the store that is there."""
    file = root / "store/h.db"
    return f"sqlite:{file}" if file.exists() else f"files:{root / 'store'}"


def opened(kind: str, root: Path) -> Store:
    return Store(backend_of(kind, root))


Check = Callable[[Store, Path], list[str]]
"""What is wrong with the store, or with what lies beside it."""


def nothing_else(store: Store, root: Path) -> list[str]:
    return []


@dataclass(frozen=True)
class Operation:
    name: str
    prepare: Callable[[Store, Path], None]
    act: Callable[[Store, Path, Say], None]
    kinds: tuple[str, ...] = KINDS
    is_new: bool = False
    """Nothing is there before."""
    during: dict[str, dict[int, object]] = field(default_factory=dict)
    """Checkpoints that come and go while it acts, by session and number."""
    adds_to: str = ""
    """A session to which a repeat may add more, or whose new states have times in them: only what was there before is
    compared, and the checks say the rest."""
    at_any_time: Check = nothing_else
    when_done: Check = nothing_else
    in_the_end: Check = nothing_else
    """After it was done again; this may change the store."""
    doubts: tuple[str, ...] = ()
    """Codes of errors after which a repeat finds all in place, but cannot tell whether that is durable."""
