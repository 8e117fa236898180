"""Take the pictures of the pages that README and documents show: `python scripts/take_pictures.py FOLDER`.

The store is one of a made-up research; the pages are those of `stepkeep ui`, in Chromium.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from playwright.sync_api import Page, sync_playwright

import stepkeep

KEY = "research-42"
SIZE = {"width": 1160, "height": 800}
MINUTE_US = 60 * 1_000_000
QUESTION = "Which vector store fits a laptop with 8 GB?"
DRAFT = "Chroma is the simplest. LanceDB was not tried."
REPORT = "Chroma is the simplest. LanceDB is the fastest, and needs the least memory."


class Research:
    """A session that was saved into over an afternoon."""

    def __init__(self, store: stepkeep.Store, clock: list[int]) -> None:
        self._session = store.session(
            KEY, project="atlas", profile="archive", metadata={"task": "Compare vector stores"}
        )
        self._clock = clock
        self.state: dict[str, Any] = {
            "question": QUESTION,
            "messages": [_message("user", QUESTION)],
            "found": [],
        }

    def save(self, message: str = "", *, minutes: float = 3, **options: Any) -> stepkeep.Header:
        self._clock[0] += int(minutes * MINUTE_US)
        return self._session.save(self.state, message=message, **options)

    def search(self, steps: range) -> None:
        """Automatic checkpoints, one for each result."""
        for step in steps:
            result = {
                "title": f"Result {step}",
                "score": round(1 / step, 3),
                "text": "It stores vectors. " * 20,
            }
            self.state = {**self.state, "found": [*self.state["found"], result]}
            self.save(step=step)

    def tell(self) -> tuple[stepkeep.Header, stepkeep.Header, stepkeep.Header]:
        """The whole story; the checkpoints that the pictures are about."""
        session = self._session
        self.save("plan made", step=1, tags=["plan"], trigger="manual")
        self.search(range(2, 18))
        first = self.save("first results", step=18, tags=["verified"], trigger="manual")
        self.search(range(19, 24))
        self.save("the search service timed out", step=24, status="failed")
        session.branches.fork(first.id, "try-lancedb")
        self.save("only embedded stores", step=19)
        self.save("LanceDB benchmark", step=20)
        self.state = {**self.state, "fastest": "LanceDB"}
        self.save("LanceDB is fast enough", step=21, tags=["lancedb"], trigger="manual")
        session.branches.switch("main")
        self.search(range(25, 38))
        self.state = {**self.state, "report": DRAFT, "words": 8}
        drafted = self.save("table drafted", step=38, tags=["verified"], trigger="manual")
        session.branches.fork(drafted.id, "second-opinion")
        self.save("asked another model", step=39)
        self.save("it agrees, with one remark", step=40)
        session.branches.switch("main")
        asked = _message(
            "assistant", "I compared twelve stores.", tool_calls=[_call("benchmark", '{"runs": 5}')]
        )
        said = [*self.state["messages"], asked, _message("tool", "LanceDB: 2.1 ms", name="benchmark")]
        self.state = {**self.state, "messages": said, "report": REPORT, "words": 14, "fastest": "LanceDB"}
        written = self.save("report written", step=40, tags=["report"], trigger="manual")
        self.save("sent to the team", step=41, status="completed")
        return first, drafted, written


def _message(role: str, content: str, **more: Any) -> dict[str, Any]:
    return {"role": role, "content": content, **more}


def _call(name: str, arguments: str) -> dict[str, Any]:
    return {"function": {"name": name, "arguments": arguments}}


def _addresses(url: str) -> Iterator[tuple[str, str, str]]:
    """The name of each picture, its page, and a button to press before."""
    clock = [time.time_ns() // 1000 - 200 * MINUTE_US]
    with stepkeep.open(url, clock=lambda: clock[0]) as store:
        _, drafted, written = Research(store, clock).tell()
    yield "ui-timeline", f"s/{KEY}", ""
    yield "ui-checkpoint", f"s/{KEY}/c/{written.id}", "messages"
    yield "ui-compare", f"s/{KEY}/compare/{drafted.id}/{written.id}", ""


def take(folder: Path) -> None:
    """Write the pictures into a folder."""
    with tempfile.TemporaryDirectory() as place, sync_playwright() as playwright:
        url = f"sqlite:{place}/store.db"
        pages = list(_addresses(url))
        command = [sys.executable, "-m", "stepkeep", "ui", "--no-open", "--store", url]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
            assert server.stdout is not None
            address = server.stdout.readline().strip()
            browser = playwright.chromium.launch(
                executable_path=shutil.which("chromium"), args=["--no-sandbox"]
            )
            page = browser.new_page(viewport=SIZE)  # type: ignore[arg-type]
            page.goto(address)
            for name, where, button in pages:
                page.goto(f"{address.partition('?')[0]}?{name}#/{where}")
                _show(page, button)
                page.screenshot(path=folder / f"{name}.png", clip=_shown_part(page))  # type: ignore[arg-type]
            browser.close()
            server.terminate()


def _shown_part(page: Page) -> dict[str, float]:
    """The window down to the end of what the page shows."""
    below = page.evaluate(
        "() => document.querySelector('main').lastElementChild.getBoundingClientRect().bottom"
    )
    return {"x": 0, "y": 0, "width": SIZE["width"], "height": min(SIZE["height"], below + 24)}


def _show(page: Page, button: str) -> None:
    page.locator(".timeline, .tree, .changes").first.wait_for()
    if button:
        page.get_by_role("button", name=button).click()
        page.locator(".tree .tree").wait_for()


if __name__ == "__main__":
    take(Path(sys.argv[1]))
