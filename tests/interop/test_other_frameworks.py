"""The recipes for frameworks without an adapter: what the page shows survives a kill, on every store."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import stepkeep
from tests.interop import fake_models

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "how-to" / "use-other-frameworks.md"
KILL = "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"

RECIPES = {
    "A loop around the OpenAI client": ("It is snow in Oslo.", "chat-openai", 2),
    "A loop around the Anthropic client": ("It is snow in Oslo.", "chat-anthropic", 2),
    "LlamaIndex workflows": ("a text about snow: yes", "review", 0),
    "Haystack pipelines": ("WHAT IS AT EXAMPLE.ORG 1", "digest", 0),
}


def _blocks(heading: str) -> list[str]:
    """The Python of a part of the page: what both programs share, the one that is killed, the one that goes on."""
    part = PAGE.read_text().split(f"## {heading}\n")[1].split("\n## ")[0]
    return [block.split("\n```")[0] for block in part.split("```python\n")[1:]]


@pytest.mark.parametrize("heading", RECIPES)
def test_a_recipe_goes_on_in_another_process(heading: str, url: str, tmp_path: Path) -> None:
    """After a kill the second program goes on: no model is asked twice, no component runs again."""
    shared, killed, going_on = _blocks(heading)
    said, key, requests = RECIPES[heading]

    def run(*parts: str) -> subprocess.CompletedProcess[str]:
        text = "\n".join(parts).replace("sqlite:agents.db", url)
        return subprocess.run(
            [sys.executable, "-c", text],
            cwd=tmp_path,
            env=os.environ | models.environment | {"PYTHONPATH": str(ROOT / "src")},
            capture_output=True,
            text=True,
            check=False,
        )

    with fake_models.running() as models:
        first = run(shared, killed, KILL)
        assert first.returncode == -9, first.stderr
        second = run(shared, going_on)
        assert second.stdout.strip() == said, second.stderr
        assert len(models.requests) == requests
    with stepkeep.open(url) as store:
        assert list(store.get(key).history())
        assert store.verify().is_intact
