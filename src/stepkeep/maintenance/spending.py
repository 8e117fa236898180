"""What the models of a session took: tokens and cost, as callers tell them, added up with the session."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from stepkeep import typed
from stepkeep.engine import Engine
from stepkeep.errors import Conflict, InvalidInput
from stepkeep.model import SessionInfo

USAGE: Final = "usage"
"""The key of a session's metadata that has its sums."""


class TokenUsage(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Tokens, and what they cost in the caller's own currency."""

    tokens: int = 0
    cost: int | float = 0

    def __add__(self, other: TokenUsage) -> TokenUsage:
        return TokenUsage(tokens=self.tokens + other.tokens, cost=self.cost + other.cost)


def usage_of(given: object) -> TokenUsage:
    """What a caller told, or `InvalidInput`."""
    try:
        found = given if isinstance(given, TokenUsage) else typed.convert(given, TokenUsage)
    except msgspec.ValidationError as exc:
        raise InvalidInput(f"usage is a dict with tokens and cost: {exc}", code="invalid_option") from exc
    if not (found.tokens >= 0 and 0 <= found.cost < float("inf")):
        raise InvalidInput("tokens and cost are 0 or more", code="invalid_option")
    return found


def usage_in(metadata: Mapping[str, Any]) -> TokenUsage:
    """The sums of a session; zeros where it has none."""
    try:
        return usage_of(metadata.get(USAGE, {}))
    except InvalidInput:
        return TokenUsage()  # the caller's own key of that name


def add_usage(engine: Engine, uid: str, usage: TokenUsage) -> SessionInfo:
    """Add to the sums of a session. Others may do so at the same time."""
    while True:
        session = engine.backend.session(uid)
        sums = msgspec.to_builtins(usage_in(session.metadata) + usage)
        changes = {"metadata": {**session.metadata, USAGE: sums}}
        try:
            return engine.backend.update_session(uid, changes, expect_version=session.version)
        except Conflict as exc:
            if exc.code != "version_changed":
                raise
