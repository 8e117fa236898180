"""Typed changes between two states, and what they add up to."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from stepkeep.history.paths import Path


class Added(msgspec.Struct, frozen=True):
    """A value that is only in the new state."""

    path: Path
    value: Any


class Removed(msgspec.Struct, frozen=True):
    """A value that is only in the old state; an index in the last step is that of the old list."""

    path: Path
    value: Any


class Changed(msgspec.Struct, frozen=True):
    """Another value, or a value of another type, in the same place; indexes are those of the new lists."""

    path: Path
    old: Any
    new: Any


class Moved(msgspec.Struct, frozen=True):
    """An item with an id that changed places with others of its list."""

    path: Path
    old_index: int
    new_index: int


Change = Added | Removed | Changed | Moved


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """The changes that lead from one state to another.

    The numbers count all of them; `changes` may be only the first ones. Values are those of the states, not
    copies. `is_workflow` says that the states are those of a workflow, with variables and steps.
    """

    changes: tuple[Change, ...]
    added: int
    removed: int
    changed: int
    moved: int
    summary: str
    is_workflow: bool

    @property
    def total(self) -> int:
        return self.added + self.removed + self.changed + self.moved

    @property
    def is_equal(self) -> bool:
        return self.total == 0


SIGNS: Final[dict[type[Change], str]] = {Added: "+", Removed: "-", Changed: "~", Moved: ">"}
