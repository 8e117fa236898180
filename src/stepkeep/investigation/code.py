"""The state of the code that is being debugged: which commit, what differs, and the environment it runs in."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from stepkeep.errors import InvalidInput
from stepkeep.investigation.events import Announcer, EventKind
from stepkeep.investigation.records import Clock, plain
from stepkeep.model import check_text
from stepkeep.parts.environment import ALLOWED, captured
from stepkeep.parts.recovery import CodeState, checked_commit


class CodeTracker(Announcer):
    """The code as it was last told; None until then."""

    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self._clock = clock
        self._state: CodeState | None = None

    @property
    def state(self) -> CodeState | None:
        return self._state

    def changed(
        self,
        paths: Iterable[str],
        commit: str | None = None,
        *,
        patches: Iterable[str] = (),
        environment: Mapping[str, str] | None = None,
        allowed: Iterable[str] = ALLOWED,
    ) -> CodeState:
        """Source code was modified. Of the environment only allowed variables are kept, secrets hidden.

        Raises:
            InvalidInput: the commit is none (`invalid_commit`), or `paths` is one text.
        """
        if isinstance(paths, str) or isinstance(patches, str):
            raise InvalidInput("paths and patches take lists of texts", code="invalid_option")
        self._state = CodeState(
            commit=checked_commit(commit),
            patches=tuple(check_text("a patch", patch, limit=2**20) for patch in patches),
            paths=tuple(check_text("a path", path) for path in paths),
            env_vars=captured(environment or {}, allowed),
            changed_us=self._clock(),
        )
        self.announce(EventKind.CODE_CHANGED, ", ".join(self._state.paths)[:200])
        return self._state

    def snapshot(self) -> dict[str, Any] | None:
        state: dict[str, Any] | None = plain(self._state)
        return state

    def validate(self, data: Any) -> None:
        _read(data)

    def restore(self, data: Any) -> None:
        self._state = _read(data)


def _read(data: Any) -> CodeState | None:
    try:
        return msgspec.convert(data, CodeState | None)
    except msgspec.ValidationError as exc:
        raise InvalidInput(f"no state of code: {exc}", code="invalid_entries") from exc
