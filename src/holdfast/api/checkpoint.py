"""A checkpoint as its reader sees it."""

from __future__ import annotations

from datetime import datetime
from functools import cached_property
from typing import Any, Final, TypeVar

from holdfast.codec import exact
from holdfast.engine import Fallback, Loaded
from holdfast.model import STATE, Header

T = TypeVar("T")

DETAILS: Final = "details"


class Checkpoint:
    """A verified checkpoint: its header, and the values that were saved."""

    def __init__(self, loaded: Loaded) -> None:
        self._loaded = loaded

    @property
    def header(self) -> Header:
        return self._loaded.header

    @property
    def id(self) -> str:
        return self._loaded.header.id

    @property
    def seq(self) -> int:
        return self._loaded.header.seq

    @property
    def step(self) -> int | None:
        return self._loaded.header.step

    @property
    def created_at(self) -> datetime:
        return self._loaded.header.created_at

    @property
    def fallback(self) -> Fallback | None:
        """Set when this is not the newest checkpoint, because newer ones are damaged."""
        return self._loaded.fallback

    @cached_property
    def state(self) -> Any:
        """What was saved."""
        return self._loaded.value()

    @cached_property
    def details(self) -> Any:
        """What was saved as details, None if nothing was."""
        return self._loaded.value(DETAILS) if DETAILS in self._loaded.contents else None

    def load(self, type: type[T]) -> T:
        """The state rebuilt as a dataclass, msgspec struct or pydantic model."""
        return exact.convert(self._loaded.value(), type)

    def content(self, name: str = STATE) -> bytes:
        """The exact bytes of a body."""
        return self._loaded.contents[name]

    def __repr__(self) -> str:
        return f"<Checkpoint {self.id} #{self.seq}>"
