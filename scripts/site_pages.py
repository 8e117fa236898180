"""What the site shows beside `docs`: the README as its first page, and the other documents that pages link to.

A hook of mkdocs. Every document keeps the links that work in the repository; here they are turned to where the
same document stands on the site.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import TYPE_CHECKING

from mkdocs.structure.files import File

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

ROOT = Path(__file__).parent.parent
DECISIONS = "docs/design/decisions"

PAGES = {
    "README.md": "index.md",
    "CHANGELOG.md": "CHANGELOG.md",
    "CONTRIBUTING.md": "CONTRIBUTING.md",
    "SECURITY.md": "SECURITY.md",
    "LICENSE": "LICENSE",
    "benchmarks/README.md": "benchmarks/index.md",
    DECISIONS: "design/decisions/index.md",
    **{
        f"examples/{path.name}": f"examples/{'index.md' if path.name == 'README.md' else path.name}"
        for path in (ROOT / "examples").iterdir()
        if path.is_file()
    },
}
"""Paths in the repository outside `docs`, and where they stand on the site."""

_LINK = re.compile(r"(\]\()([^)#\s]+)((?:#[^)\s]*)?\))")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    for path, page in PAGES.items():
        text = _decisions() if path == DECISIONS else (ROOT / path).read_text()
        files.append(File.generated(config, page, content=text))
    return files


def on_page_markdown(markdown: str, page: Page, **_: object) -> str:
    by_page = {page: path for path, page in PAGES.items()}
    here = page.file.src_uri
    path = by_page.get(here, f"docs/{here}")
    folder = path if path == DECISIONS else posixpath.dirname(path)

    def turned(link: re.Match[str]) -> str:
        before, target, after = link.groups()
        if "://" in target:
            return link[0]
        named = posixpath.normpath(posixpath.join(folder, target))
        found = PAGES.get(named, named.removeprefix("docs/"))
        return before + posixpath.relpath(found, posixpath.dirname(here) or ".") + after

    return _LINK.sub(turned, markdown)


def _decisions() -> str:
    """A page with the titles of all decisions."""
    titles = {
        path.name: path.read_text().partition("\n")[0].removeprefix("# ")
        for path in (ROOT / DECISIONS).iterdir()
    }
    return "\n".join(["# Decisions", "", *(f"- [{titles[name]}]({name})" for name in sorted(titles))])
