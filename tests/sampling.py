"""How many examples of random input a test gets: all of them with `--slow`, a quarter without."""

from __future__ import annotations

from hypothesis import settings

QUICK, THOROUGH = "quick", "thorough"
EXAMPLES = 100
"""Where a test says nothing else."""


def examples(count: int) -> int:
    """So many with `--slow`; otherwise a quarter."""
    return count if settings.get_current_profile_name() == THOROUGH else max(5, count // 4)
