"""A real browser for the tests of the pages, one for all tests of a process."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from playwright.sync_api import Browser, sync_playwright

from tests.needed import missing
from tests.postgres.server import Server
from tests.web.driving import Pages, Ui

NAMES = ("chromium", "chromium-browser", "google-chrome")


class Started(NamedTuple):
    browser: Browser
    loop: asyncio.AbstractEventLoop


@pytest.fixture(scope="session")
def started() -> Iterator[Started]:
    """Skip, with the reason, where there is no browser; fail in CI, where there must be one."""
    path = next(filter(None, map(shutil.which, NAMES)), None)
    if path is None:
        missing("the pages are tested in Chromium, and none of these is here: " + ", ".join(NAMES))
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        found = Started(browser, asyncio.get_running_loop())
        asyncio._set_running_loop(None)
        yield found
        asyncio._set_running_loop(found.loop)
        browser.close()


@pytest.fixture
def browser(started: Started) -> Iterator[Browser]:
    """The browser. Its driver leaves an event loop running in this thread, which other tests must not find there."""
    asyncio._set_running_loop(started.loop)
    yield started.browser
    asyncio._set_running_loop(None)


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Callable[..., Ui]]:
    """Start servers of stores; they end with the test."""
    started: list[Ui] = []

    def start(url: str, *options: str, cwd: Path | None = None) -> Ui:
        started.append(Ui(url, *options, cwd=cwd or tmp_path))
        return started[-1]

    yield start
    for each in started:
        each.stop()


@pytest.fixture
def visit(browser: Browser, serve: Callable[..., Ui]) -> Iterator[Callable[..., Pages]]:
    """Open the pages of a store. At the end nothing may have been complained about in the console."""
    opened: list[Pages] = []

    def visit(url: str, *options: str, cwd: Path | None = None, **context: object) -> Pages:
        opened.append(Pages(browser, serve(url, *options, cwd=cwd), **context))
        return opened[-1]

    yield visit
    for each in opened:
        each.close()


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A store of each kind that nobody used yet."""
    if request.param == "sqlite":
        return f"sqlite:{tmp_path / 'store.db'}"
    server: Server = request.getfixturevalue("postgres")
    return server.fresh_url()


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "store.db"


@pytest.fixture
def shell(tmp_path: Path) -> Callable[[str], str]:
    """Run a line as a person does who copied it from a page: in a shell, in another folder."""
    (tmp_path / "bin").mkdir()
    program = tmp_path / "bin" / "stepkeep"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m stepkeep "$@"\n')
    program.chmod(0o755)
    kept = {name: value for name, value in os.environ.items() if not name.startswith("STEPKEEP_")}
    paths = {"PATH": f"{program.parent}:{os.environ['PATH']}", "PYTHONPATH": os.pathsep.join(sys.path)}

    def run(line: str) -> str:
        done = subprocess.run(
            ["bash", "-c", line], env=kept | paths, cwd=program.parent, capture_output=True, text=True
        )
        assert (line, done.returncode, done.stderr) == (line, 0, done.stderr)
        return done.stdout

    return run
