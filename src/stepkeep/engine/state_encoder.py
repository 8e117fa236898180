"""Encoding the successive states of sessions: of one that changes a little, only what is new is encoded.

To know what is new, a copy of the last state is remembered. That is only memory: the same bytes come out without it.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, Final

import msgspec

from stepkeep.codec import exact
from stepkeep.codec.incremental import (
    MAX_KEYS,
    MAX_ORDERED_BYTES,
    MIN_ORDERED_BYTES,
    Derived,
    Following,
    Growing,
    Grown,
)
from stepkeep.codec.integrity import digest
from stepkeep.errors import InvalidInput
from stepkeep.model import Content

MIN_REMEMBERED_BYTES: Final = 4 * 1024
"""Smaller states are encoded whole: that takes less time than comparing them."""

MAX_REMEMBERED_BYTES: Final = 32 * 1024 * 1024
"""How large a state may be to be remembered, and what all that are remembered may take together; in memory each takes
several times as much."""

MAX_REMEMBERED: Final = 1000


class NewBody(msgspec.Struct, frozen=True):
    """The content of one body to save, and all blobs it names.

    Who knows the digest of the content, or how it came from an earlier one, says so: it is not looked for again.
    `count` and `total_bytes` are told of a list of files.
    """

    content: bytes
    encoding: str
    blobs: frozenset[str] = frozenset()
    digest: str | None = None
    first_at: int = 0
    derived: Derived | None = None
    count: int | None = None
    total_bytes: int = 0

    def value(self) -> Any:
        """What it was made of, decoded anew at each call."""
        return exact.decode(self.encoding, self.content, self.first_at)

    def described(self) -> Content:
        """How the header names it.

        Raises:
            InvalidInput: nobody could load it (`state_too_large`).
        """
        is_large = len(self.content) > exact.NEVER_DENSE_BYTES
        if is_large and self.encoding in (exact.JSON, exact.TAGGED) and exact.is_dense(self.content):
            raise InvalidInput(
                f"cannot save the state: it holds so many values that it would take more than "
                f"{exact.MAX_DECODED_BYTES >> 20} MiB of memory: save less",
                code=exact.TOO_LARGE,
                path="$",
            )
        known = digest(self.content) if self.digest is None else self.digest
        size, encoding = len(self.content), self.encoding
        return Content(known, size, encoding, self.first_at, self.count, self.total_bytes)


class Frozen(msgspec.Struct, frozen=True):
    """A state of which its saver promises that nobody changes it, nor anything in it, from now on.

    So no copy of it is made to compare the next one with: what is the same object then is the same value.
    """

    value: Any


class Verbatim(msgspec.Struct, frozen=True):
    """A state as JSON that someone else wrote, and that its saver found to be JSON: it is kept byte for byte."""

    content: bytes


class IncrementalEncoder:
    """Encodes the states of many sessions. Safe for threads: who takes what is remembered under a key has it alone,
    others begin anew."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._lock = threading.Lock()
        self._remembered: OrderedDict[str, Growing | Following] = OrderedDict()
        self._held_bytes = 0

    def encode(self, key: str, state: Any) -> NewBody:
        """The body for a state, or `InvalidInput` naming the place that would not come back equal.

        Under an empty key nothing is remembered.
        """
        if type(state) is Verbatim:
            return self._followed(key, self._bounded(state.content))
        is_frozen = type(state) is Frozen
        if is_frozen:
            state = state.value
        growing = self._take(key) if key and type(state) is dict else None
        if isinstance(growing, Growing) and growing.is_frozen == is_frozen:
            grown = growing.content(state)
            if grown is not None and len(grown.content) <= self._max_bytes:
                return self._kept(key, growing, grown)
        encoding, content, copy = exact.encode_copy(state, max_bytes=self._max_bytes)
        if is_frozen and type(copy) is dict:
            copy = state
        return self._begun(key, encoding, content, copy, is_frozen=is_frozen)

    def plain(self, value: Any) -> NewBody | None:
        """The same for plain JSON data, of which nothing is remembered; None for all else."""
        found = exact.plain(value, max_bytes=self._max_bytes)
        return None if found is None else self._begun("", exact.JSON, *found)

    def _begun(
        self, key: str, encoding: str, content: bytes, copy: Any, *, is_frozen: bool = False
    ) -> NewBody:
        """The body for a state that was encoded as a whole."""
        least = MIN_REMEMBERED_BYTES if key else MIN_ORDERED_BYTES
        if type(copy) is dict and 0 < len(copy) <= MAX_KEYS and least <= len(content) <= MAX_ORDERED_BYTES:
            growing = Growing(max_bytes=self._max_bytes, is_frozen=is_frozen)
            return self._kept(key, growing, growing.begin(content, copy))
        return NewBody(content, encoding)

    def whole(self, state: Any) -> NewBody:
        """The same with the keys in their own order, and nothing is remembered."""
        if type(state) is Verbatim:
            return NewBody(self._bounded(state.content), exact.JSON)
        value = state.value if type(state) is Frozen else state
        encoding, content = exact.encode(value, max_bytes=self._max_bytes)
        return NewBody(content, encoding)

    def _bounded(self, content: bytes) -> bytes:
        if len(content) > self._max_bytes:
            raise exact.too_many_bytes(len(content), self._max_bytes).as_error()
        return content

    def _followed(self, key: str, content: bytes) -> NewBody:
        """The body for JSON that is kept as it is."""
        known = self._take(key)
        following = known if isinstance(known, Following) else Following()
        return self._kept(key, following, following.content(content))

    def grow(self, key: str, state: dict[str, Any], begin: Callable[[], Growing]) -> NewBody | None:
        """The body for a state whose values are encoded in a way of their own; None if it has no plain JSON."""
        known = self._take(key)
        growing = known if isinstance(known, Growing) else begin()
        grown = growing.content(state)
        if grown is None or len(grown.content) > self._max_bytes:
            return None
        return self._kept(key, growing, grown)

    def forget(self, session: str) -> None:
        """Let go of the copies of a session's states."""
        for key in [key for key in list(self._remembered) if key.startswith(session)]:
            self._take(key)

    def clear(self) -> None:
        with self._lock:
            self._remembered.clear()
            self._held_bytes = 0

    def _take(self, key: str) -> Growing | Following | None:
        with self._lock:
            growing = self._remembered.pop(key, None)
            if growing is not None:
                self._held_bytes -= growing.size_bytes
            return growing

    def _kept(self, key: str, growing: Growing | Following, grown: Grown) -> NewBody:
        """The body for what was encoded; what it came from is remembered."""
        size = growing.size_bytes
        if key and MIN_REMEMBERED_BYTES <= size <= MAX_REMEMBERED_BYTES:
            with self._lock:
                before = self._remembered.pop(key, None)
                self._held_bytes += size - (before.size_bytes if before else 0)
                self._remembered[key] = growing
                while self._held_bytes > MAX_REMEMBERED_BYTES or len(self._remembered) > MAX_REMEMBERED:
                    _, oldest = self._remembered.popitem(last=False)
                    self._held_bytes -= oldest.size_bytes
        return NewBody(
            grown.content, exact.JSON, digest=grown.digest, first_at=grown.first_at, derived=grown.derived
        )
