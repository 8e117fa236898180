"""How large the state of a workflow may get: a warning that names what takes most, then a refusal."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from heapq import nlargest
from typing import Any, Final

import msgspec

from stepkeep.codec import patch
from stepkeep.errors import InvalidInput

log = logging.getLogger("stepkeep")

NAMED: Final = 5


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """In bytes: as stored, compressed, and as they are. The keys of the configuration have the same names."""

    warn_stored_bytes: int = 10_000_000
    max_stored_bytes: int = 100_000_000
    max_raw_bytes: int = 500_000_000


class Guard:
    """Looks at every state before it is saved. Warns once in a run."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._has_warned = False

    def check(self, state: Mapping[str, Any]) -> None:
        """Refuse a state that is too large; say when it becomes large.

        Raises:
            InvalidInput: (`workflow_too_large`) the message names the key that allows more.
        """
        limits, content = self._limits, _encoded(state)
        if len(content) > limits.max_raw_bytes:
            raise _refusal("", len(content), "max_raw_bytes", limits.max_raw_bytes, state)
        if len(content) <= limits.warn_stored_bytes:
            return
        stored = len(patch.encode_keyframe(content).data)
        if stored > limits.max_stored_bytes:
            raise _refusal("stored, ", stored, "max_stored_bytes", limits.max_stored_bytes, state)
        if stored > limits.warn_stored_bytes and not self._has_warned:
            self._has_warned = True
            log.warning(
                "the state of this workflow takes %s stored; largest: %s", _size(stored), _largest(state)
            )


def _refusal(how: str, size: int, key: str, most: int, state: Mapping[str, Any]) -> InvalidInput:
    return InvalidInput(
        f"the state of this workflow would take {_size(size)} ({how}workflow.{key} allows {_size(most)});"
        f" largest: {_largest(state)}. Keep large data in files, or raise workflow.{key}",
        code="workflow_too_large",
    )


def _largest(state: Mapping[str, Any]) -> str:
    """The variables and outputs that take most, with their sizes."""
    found = nlargest(NAMED, _parts(state))
    return ", ".join(f"{name} {_size(size)}" for size, name in found)


def _parts(state: Mapping[str, Any]) -> Iterator[tuple[int, str]]:
    for name, value in state.get("variables", {}).items():
        yield len(_encoded(value)), f"vars.{name}"
    for step in state.get("completed_steps", ()):
        yield len(_encoded(step.get("output"))), f"steps.{step['id']}.output"


def _encoded(value: object) -> bytes:
    """About as the state is stored; exactness is checked when it is saved."""
    return msgspec.json.encode(value, enc_hook=repr)


def _size(count: int) -> str:
    return f"{count / 1e6:,.1f} MB"
