"""The digest of an agent's context: how full its window is, what must stay, what was dropped."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, Literal

import msgspec

from stepkeep.codec.readable import ContextDigest
from stepkeep.errors import InvalidInput
from stepkeep.lifecycle.given import listed

Pressure = Literal["low", "medium", "high"]

MEDIUM_FROM: Final = 0.6
HIGH_FROM: Final = 0.85


def pressure_of(used: float, limit: float) -> Pressure:
    """How full a context window is, in one word."""
    if not (limit > 0 and used >= 0):
        raise InvalidInput(
            f"a context window of {limit} cannot hold {used}: give tokens used and tokens in all",
            code="invalid_context",
        )
    share = used / limit
    return "low" if share < MEDIUM_FROM else "medium" if share < HIGH_FROM else "high"


def context_digest(
    *,
    window_pressure: Pressure,
    policy_profile: str,
    protected_artifacts: Iterable[str] = (),
    dropped_items: int = 0,
) -> ContextDigest:
    """A checked digest, or `InvalidInput` naming the field."""
    given = {
        "window_pressure": window_pressure,
        "protected_artifacts": listed(
            "a context digest: protected_artifacts", protected_artifacts, code="invalid_context"
        ),
        "dropped_items": dropped_items,
        "policy_profile": policy_profile,
    }
    try:
        digest = msgspec.convert(given, ContextDigest)
    except msgspec.ValidationError as exc:
        raise InvalidInput(f"a context digest: {exc}", code="invalid_context") from exc
    if digest.dropped_items < 0:
        raise InvalidInput("a context digest: dropped_items is 0 or more", code="invalid_context")
    return digest
