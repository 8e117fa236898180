"""Names that try to be more than names."""

from __future__ import annotations

from typing import Final

HOSTILE_NAMES: Final = (
    "'; DROP TABLE headers; --",
    'say "hello"',
    "two\nlines\ttab",
    "100%",
    "under_score",
    "%",
    "_",
    "back\\slash",
    "../../etc/passwd",
    "?1 :name $x {y}",
    "emoji 🪢 한국어",
    "e\u0301 is not \u00e9",
    "é" * 512,  # 1,024 bytes
    " ",
)
