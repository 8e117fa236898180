"""Bringing in what other systems saved. The adapter that knows such a system is imported only when it is asked for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Final, Protocol, cast

import msgspec

from stepkeep.api import Store
from stepkeep.errors import Unsupported

Progress = Callable[[int], None]

_LANGGRAPH: Final = "stepkeep.adapters.langgraph.migration"


class RefusedCheckpoint(msgspec.Struct, frozen=True, kw_only=True):
    """What could not be brought over, and why."""

    thread: str
    namespace: str = ""
    checkpoint: str | None = None
    code: str
    message: str


class LangGraphImport(msgspec.Struct, frozen=True, kw_only=True):
    """What an import did. Every checkpoint that is `imported` or `present` was read back and verified.

    `classes` are those whose objects are stored and that LangGraph does not count as safe: a saver needs them in
    `allow` to bring them back.
    """

    source: str
    threads: int = 0
    imported: int = 0
    present: int = 0
    writes: int = 0
    verified: int = 0
    classes: tuple[str, ...] = ()
    refused: tuple[RefusedCheckpoint, ...] = ()


class _Migration(Protocol):
    def count(self, source: str, threads: Sequence[str]) -> int: ...

    def migrate(
        self, store: Store, source: str, threads: Sequence[str], progress: Progress | None
    ) -> LangGraphImport: ...


def count_langgraph(source: str, threads: Sequence[str] = ()) -> int:
    """How many checkpoints an import will look at."""
    return _migration().count(source, threads)


def import_langgraph(
    store: Store, source: str, *, threads: Sequence[str] = (), progress: Progress | None = None
) -> LangGraphImport:
    """Copy threads of LangGraph's own savers, all of them unless named, and verify each. Repeatable.

    Raises:
        InvalidInput: the source is neither `sqlite:PATH` nor `postgresql://…`.
        NotFound: it is not there, or has no such thread.
        Unsupported: LangGraph, or the driver of the source, is not installed.
    """
    return _migration().migrate(store, source, threads, progress)


def _migration() -> _Migration:
    try:
        return cast(_Migration, import_module(_LANGGRAPH))
    except ImportError as exc:
        raise Unsupported(
            f"LangGraph is not installed ({exc}): pip install stepkeep[langgraph]", code="driver_missing"
        ) from exc
