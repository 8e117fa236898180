"""The function that a step of `flow.yaml` calls."""

from __future__ import annotations

from typing import Any


def above(levels: list[float], limit: float) -> dict[str, Any]:
    """Which levels are above the limit."""
    high = [level for level in levels if level > limit]
    return {"count": len(high), "highest": max(high, default=None)}
