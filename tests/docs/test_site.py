"""The documentation as a site: built from the same Markdown, every link followed, nothing fetched from elsewhere."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

LOADED = re.compile(r"<(?:script|img|link|iframe)[^>]*?\s(?:src|href)=\"?(https?:)?//[^\s\">]+")
"""What a page loads by itself from another server; a link that a reader may follow is none."""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--strict", "--site-dir", str(target)]
    # Its theme writes about its successor on every run.
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return target


@pytest.mark.full
def test_the_site_has_every_page(site: Path) -> None:
    """Each Markdown file of the documentation is a page; the README is the first one."""
    docs = ROOT / "docs"
    missing = [
        page
        for page in (path.relative_to(docs).with_suffix(".html") for path in docs.rglob("*.md"))
        if not (site / page).is_file()
    ]
    assert missing == []
    assert "Stepkeep saves the state" in (site / "index.html").read_text()
    assert (site / "design/decisions/index.html").is_file()


@pytest.mark.full
def test_the_site_can_be_searched(site: Path) -> None:
    found = json.loads((site / "search/search_index.json").read_text())["docs"]
    assert any("retention" in entry["text"] for entry in found)


@pytest.mark.full
def test_the_site_loads_nothing_from_elsewhere(site: Path) -> None:
    loaded = {page.name: LOADED.findall(page.read_text()) for page in site.rglob("*.html")}
    assert {page: found for page, found in loaded.items() if found} == {}
