"""A server as a person starts it, and its pages as a browser shows them."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.resources import files
from pathlib import Path
from typing import Any
from urllib.parse import quote

from playwright.sync_api import Browser, Page, expect

from tests import interpreter

expect.set_options(timeout=60_000)  # a machine may be busy

AXE = (files("axe_playwright_python") / "axe.min.js").read_text()


class Ui:
    """A process of `stepkeep ui`. `address` opens its pages once."""

    def __init__(self, url: str, *options: str, cwd: Path) -> None:
        kept = {name: value for name, value in os.environ.items() if not name.startswith("STEPKEEP_")}
        path = os.pathsep.join(filter(None, sys.path))
        self.process = interpreter.start(
            ["-m", "stepkeep", "ui", "--no-open", "--store", url, *options],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            cwd=cwd,
            env={**kept, "PYTHONPATH": path},
        )
        assert self.process.stdout is not None
        self.address = self.process.stdout.readline().strip()
        self.base = self.address.partition("/?")[0]

    def stop(self) -> None:
        self.process.terminate()
        self.process.communicate(timeout=30)


class Pages:
    """The pages of a server in a browser window of their own."""

    def __init__(self, browser: Browser, ui: Ui, *, width: int = 1440, scheme: str = "light") -> None:
        self.ui = ui
        self.complaints: list[str] = []
        self.loads = 0
        self.context = browser.new_context(
            viewport={"width": width, "height": 900},
            color_scheme=scheme,  # type: ignore[arg-type]
        )
        self.page = self._new_page()
        self.page.goto(ui.address)
        expect(self.page.locator("h1")).to_be_visible()

    def _new_page(self) -> Page:
        page = self.context.new_page()
        page.on("console", lambda message: self.complaints.append(message.text))
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        page.on("dialog", lambda dialog: self.complaints.append(f"dialog {dialog.message}"))
        return page

    def open_file(self, path: Path) -> list[str]:
        """Show a file instead. The list gets the addresses of everything it asks for."""
        asked: list[str] = []
        self.page.close()
        self.page = self._new_page()
        self.page.on("request", lambda request: asked.append(request.url))
        self.page.goto(path.as_uri())
        return asked

    def go(self, *segments: str, query: str = "") -> Page:
        """A page by its address, loaded anew and finished."""
        path = "/".join(quote(segment, safe="") for segment in segments)
        self.loads += 1  # with the same address before the `#` nothing would be loaded
        self.page.goto(f"{self.ui.base}/?{self.loads}#/{path}{f'?{query}' if query else ''}")
        return self.ready()

    def ready(self) -> Page:
        """The page when it shows what it was asked for."""
        expect(self.page.locator("h1").first).to_be_visible()
        expect(self.page.locator(".loading")).to_have_count(0)
        return self.page

    def serious_findings(self) -> list[str]:
        """What axe-core calls serious or worse on the page as it is now."""
        self.page.evaluate(f"() => {{ {AXE} }}")
        found: dict[str, Any] = self.page.evaluate("() => axe.run()")
        return [
            f"{each['id']}: {node['html'][:200]}"
            for each in found["violations"]
            if each["impact"] in ("serious", "critical")
            for node in each["nodes"]
        ]

    @property
    def is_too_wide(self) -> bool:
        return bool(
            self.page.evaluate(
                "() => document.documentElement.scrollWidth > document.documentElement.clientWidth"
            )
        )

    def close(self) -> None:
        self.context.close()
