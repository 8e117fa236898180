"""The modules of others are what their authors published, with their licences."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

import stepkeep

ROOT = Path(__file__).parents[2]
VENDORED = Path(stepkeep.__file__).parent / "web" / "static" / "vendor"
DECISION = ROOT / "docs" / "design" / "decisions" / "0020-the-pages-have-no-build-step.md"


def test_vendored_modules_are_unmodified() -> None:
    """Each has the digest that the decision record names, and there are no others."""
    named = dict(re.findall(r"^\| `(\S+)` \|.*`([0-9a-f]{64})` \|$", DECISION.read_text(), re.MULTILINE))
    found = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in VENDORED.glob("*.mjs")}
    assert found == named
    assert {path.name for path in VENDORED.glob("LICENSE-*")} == {"LICENSE-preact", "LICENSE-htm"}
