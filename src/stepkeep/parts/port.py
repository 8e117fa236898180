"""What a part is, and how it says that it failed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

import msgspec

from stepkeep.errors import StepkeepError


@runtime_checkable
class Part(Protocol):
    """Anything that can say what it holds, as data that can be saved, and take that back."""

    def snapshot(self) -> Any: ...

    def restore(self, data: Any) -> object: ...


@runtime_checkable
class Validating(Protocol):
    """A part that can tell beforehand whether `restore` would take some data: `validate` raises if not."""

    def validate(self, data: Any) -> object: ...


class PartFailure(msgspec.Struct, frozen=True):
    """A part that failed, and what it raised."""

    part: str
    error: Exception

    def __str__(self) -> str:
        return f"part {self.part!r}: {type(self.error).__name__}: {self.error}"


class PartFailed(StepkeepError):
    """A connected part raised.

    `failure` is what came first. Where parts had been changed already they were set back to what they were, and
    `not_rolled_back` names those that refused that too: only they may be in another state than before.
    """

    code = "part_failed"

    def __init__(
        self,
        what: str,
        failure: PartFailure,
        *,
        code: str,
        not_rolled_back: Sequence[PartFailure] = (),
        session: str | None = None,
        checkpoint: str | None = None,
    ) -> None:
        rest = "".join(f"; going back failed too for {each}" for each in not_rolled_back)
        super().__init__(f"{what}: {failure}{rest}", code=code, session=session, checkpoint=checkpoint)
        self.failure = failure
        self.not_rolled_back = tuple(not_rolled_back)

    @property
    def part(self) -> str:
        return self.failure.part
