"""A real browser for the tests of the pages, one for all tests of a process."""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from playwright.sync_api import Browser, sync_playwright

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
        reason = "the pages are tested in Chromium, and none of these is here: " + ", ".join(NAMES)
        if os.environ.get("CI"):
            pytest.fail(reason)
        pytest.skip(reason)
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
