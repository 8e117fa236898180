"""What must be quiet while the process forks.

An open SQLite connection must not cross a fork: the child's copy of SQLite believes it holds the parent's file
locks, and a new connection there would take none. So holders of such things put them down before every fork and
take them up again, on demand, on both sides.
"""

from __future__ import annotations

import os
from typing import Protocol
from weakref import ref


class ForkAware(Protocol):
    def before_fork(self) -> None:
        """Finish what is under way, close what must not cross, and hold new work back."""

    def after_fork(self, *, is_child: bool) -> None:
        """Let work go on; called in the parent and in the child."""


_holders: list[ref[ForkAware]] = []
_quiet: list[ForkAware] = []


def register(holder: ForkAware) -> None:
    """Tell `holder` about forks for as long as it lives. Users are told before what they use."""
    _holders[:] = [known for known in _holders if known() is not None]
    _holders.append(ref(holder))


def _before() -> None:
    for known in reversed(_holders):
        if (holder := known()) is not None:
            holder.before_fork()
            _quiet.append(holder)


def _after(*, is_child: bool) -> None:
    while _quiet:
        _quiet.pop().after_fork(is_child=is_child)


def _after_in_parent() -> None:
    _after(is_child=False)


def _after_in_child() -> None:
    _after(is_child=True)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before, after_in_parent=_after_in_parent, after_in_child=_after_in_child)
