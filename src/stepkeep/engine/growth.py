"""The bodies of one session's successive states: of a large one that grows, only what is new is encoded.

To know what is new, the objects of the last state are held on to until the next one comes. That is only memory: the
same bytes come out without it.
"""

from __future__ import annotations

from typing import Any, Final

from stepkeep.codec import exact
from stepkeep.codec.growing import LARGE_BYTES, Growing, Grown
from stepkeep.codec.refusal import Refusal
from stepkeep.engine.engine import Engine, NewBody
from stepkeep.engine.writer import Shares
from stepkeep.errors import StepkeepError

MAX_REMEMBERED_BYTES: Final = 64 * 1024 * 1024
MAX_PAUSE: Final = 256


class Growth:
    """Encodes the states of one session. Safe for threads: who takes the memory has it alone, others begin anew.

    Programs that build every object of their state anew gain nothing from it, so it pauses for more and more saves
    while less than half of a state was known.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._last: Growing | None = None
        self._pause = 1
        self._resting = 0

    def body(self, state: object) -> NewBody:
        """The body for a state, or `InvalidInput` naming the place that would not come back equal."""
        last, self._last = self._last, None
        if last is not None and type(state) is dict:
            grown = _grown(last, state)
            if grown is not None and len(grown.content) <= self._engine.max_state_bytes:
                self._remember(last, grown)
                return NewBody(
                    grown.content,
                    exact.JSON,
                    digest=grown.digest,
                    shares=Shares(grown.before, grown.shared),
                )
        body = self._engine.encode(state)
        if self._is_worth_while(state, body):
            self._last = Growing(self._piece, max_bytes=self._engine.max_state_bytes, keeps_order=True)
        return body

    def _remember(self, last: Growing, grown: Grown) -> None:
        if grown.before and 2 * grown.known < len(grown.content):
            self._resting = self._pause = min(2 * self._pause, MAX_PAUSE)
            return
        if grown.before:
            self._pause = 1
        if LARGE_BYTES <= len(grown.content) <= MAX_REMEMBERED_BYTES:
            self._last = last

    def _is_worth_while(self, state: object, body: NewBody) -> bool:
        self._resting -= 1
        return (
            self._resting < 0
            and type(state) is dict
            and body.encoding == exact.JSON
            and LARGE_BYTES <= len(body.content) <= MAX_REMEMBERED_BYTES
        )

    def _piece(self, value: Any) -> bytes | None:
        """The plain JSON of one value of the state, None if it has none."""
        encoding, content = exact.encode(
            value, max_depth=exact.MAX_DEPTH - 1, max_bytes=self._engine.max_state_bytes
        )
        return content if encoding == exact.JSON else None


def _grown(last: Growing, state: dict[str, Any]) -> Grown | None:
    """The content of a state; None where it must be encoded as a whole, or where that will tell what is wrong."""
    try:
        return last.content(state)
    except (StepkeepError, Refusal, UnicodeEncodeError, RuntimeError):
        return None
