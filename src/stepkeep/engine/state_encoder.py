"""Encoding the successive states of sessions: of a large one that grows, only what is new is encoded.

To know what is new, the objects of the last state are held on to until the next one comes. That is only memory: the
same bytes come out without it.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import Any, Final

import msgspec

from stepkeep.codec import exact
from stepkeep.codec.exact import ValidationError
from stepkeep.codec.incremental import LARGE_BYTES, Growing, Grown
from stepkeep.codec.integrity import digest
from stepkeep.engine.chains import Shared
from stepkeep.errors import StepkeepError
from stepkeep.model import Content

MAX_REMEMBERED_BYTES: Final = 64 * 1024 * 1024
"""How large a state may be to be remembered, and what all that are remembered may take together."""

MAX_SESSIONS: Final = 1000
MAX_PAUSE: Final = 256


class NewBody(msgspec.Struct, frozen=True):
    """The content of one body to save, and all blobs it names.

    Who knows the digest of the content, or what it shares with an earlier one, says so: it is not looked for again.
    """

    content: bytes
    encoding: str
    blobs: frozenset[str] = frozenset()
    digest: str | None = None
    shares: Shared | None = None

    def described(self) -> Content:
        """How the header names it."""
        known = digest(self.content) if self.digest is None else self.digest
        return Content(digest=known, size=len(self.content), encoding=self.encoding)


class _Memory:
    """What is remembered of one session's last state, and how long not to remember again.

    Programs that build every object of their state anew gain nothing from it, so it pauses for more and more saves
    while less than half of a state was known.
    """

    def __init__(self, growing: Growing) -> None:
        self.growing = growing
        self.size_bytes = 0
        self.pause = 1
        self.resting = 0


MIN_VALUE_BYTES: Final = 512
"""Where the values of a state are smaller on average, comparing them takes longer than encoding all of it."""


class IncrementalEncoder:
    """Encodes the states of many sessions. Safe for threads: who takes a session's memory has it alone, others begin
    anew."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._lock = threading.Lock()
        self._memories: OrderedDict[str, _Memory] = OrderedDict()
        self._held_bytes = 0

    def encode(self, session: str, state: object) -> NewBody:
        """The body for a state, or `InvalidInput` naming the place that would not come back equal."""
        memory = self._take(session) if self._memories else None
        if memory is not None and memory.resting == 0 and type(state) is dict:
            grown = _grown(memory.growing, state)
            if grown is not None and len(grown.content) <= self._max_bytes:
                self._remember(session, memory, grown)
                return NewBody(
                    grown.content,
                    exact.JSON,
                    digest=grown.digest,
                    shares=Shared(grown.before, grown.shared),
                )
        encoding, content = exact.encode(state, max_bytes=self._max_bytes)
        if (
            encoding == exact.JSON
            and LARGE_BYTES <= len(content) <= MAX_REMEMBERED_BYTES
            and type(state) is dict
            and len(content) >= MIN_VALUE_BYTES * len(state)
        ):
            self._begin(session, memory)
        return NewBody(content, encoding)

    def forget(self, session: str) -> None:
        """Let go of the objects of a session's last state."""
        self._take(session)

    def clear(self) -> None:
        with self._lock:
            self._memories.clear()
            self._held_bytes = 0

    def _take(self, session: str) -> _Memory | None:
        with self._lock:
            memory = self._memories.pop(session, None)
            if memory is not None:
                self._held_bytes -= memory.size_bytes
            return memory

    def _put(self, session: str, memory: _Memory) -> None:
        with self._lock:
            before = self._memories.pop(session, None)
            self._held_bytes += memory.size_bytes - (before.size_bytes if before else 0)
            self._memories[session] = memory
            while self._held_bytes > MAX_REMEMBERED_BYTES or len(self._memories) > MAX_SESSIONS:
                _, oldest = self._memories.popitem(last=False)
                self._held_bytes -= oldest.size_bytes

    def _begin(self, session: str, memory: _Memory | None) -> None:
        """Remember the next state of a session, unless that gained nothing lately."""
        if memory is None:
            memory = _Memory(self._growing())
        elif memory.resting:
            memory.resting -= 1
        else:
            memory.growing = self._growing()
        memory.size_bytes = 0
        self._put(session, memory)

    def _growing(self) -> Growing:
        return Growing(self._piece, max_bytes=self._max_bytes, keeps_order=True)

    def _remember(self, session: str, memory: _Memory, grown: Grown) -> None:
        if grown.before and 2 * grown.known < len(grown.content):
            memory.pause = min(2 * memory.pause, MAX_PAUSE)
            memory.resting, memory.size_bytes, memory.growing = memory.pause, 0, self._growing()
        else:
            if grown.before:
                memory.pause = 1
            if not LARGE_BYTES <= len(grown.content) <= MAX_REMEMBERED_BYTES:
                return
            memory.size_bytes = len(grown.content)
        self._put(session, memory)

    def _piece(self, value: Any) -> bytes | None:
        """The plain JSON of one value of the state, None if it has none."""
        encoding, content = exact.encode(value, max_depth=exact.MAX_DEPTH - 1, max_bytes=self._max_bytes)
        return content if encoding == exact.JSON else None


def _grown(last: Growing, state: dict[str, Any]) -> Grown | None:
    """The content of a state; None where it must be encoded as a whole, or where that will tell what is wrong."""
    try:
        return last.content(state)
    except (StepkeepError, ValidationError, UnicodeEncodeError, RuntimeError):
        return None
