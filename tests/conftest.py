"""Which tests run, and how a run with random input is repeated."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings

ROOT = Path(__file__).parent

if TYPE_CHECKING:
    from tests.postgres.server import Server

# A deadline would be a timed assertion; the blob repeats one failing example without its seed.
settings.register_profile("holdfast", deadline=None, print_blob=True)
settings.load_profile("holdfast")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add `--slow`, which lets the tests marked `slow` run too."""
    parser.addoption("--slow", action="store_true", help="also run the tests marked slow")


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Draw the Hypothesis seed here, so that it can be printed and every worker gets the same one."""
    if config.option.hypothesis_seed is None:
        config.option.hypothesis_seed = str(secrets.randbits(32))


FULL_FOLDERS = frozenset(
    {
        "crash",
        "examples",
        "fuzz",
        "hooks",
        "interop",
        "investigation",
        "phases",
        "postgres",
        "storage_files",
        "threats",
        "workers",
        "workspace",
    }
)
"""Folders whose tests take seconds together: `./dev test` runs them, `./dev check` does not."""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark what is not in the fast set, and leave out the slow tests unless they were asked for."""
    for item in items:
        if FULL_FOLDERS & set(item.path.relative_to(ROOT).parts[:1]):
            item.add_marker(pytest.mark.full)
    if config.getoption("--slow"):
        return
    slow = [item for item in items if item.get_closest_marker("slow")]
    if slow:
        config.hook.pytest_deselected(items=slow)
        items[:] = [item for item in items if not item.get_closest_marker("slow")]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Print what repeats the random input of this run, also when the header is hidden by `-q`."""
    profile = settings.get_current_profile_name()
    seed = config.option.hypothesis_seed
    terminalreporter.write_line(f"hypothesis: profile {profile}, repeat with --hypothesis-seed={seed}")


@pytest.fixture(scope="session")
def postgres() -> Iterator[Server]:
    """A PostgreSQL server for the tests of this process. One that cannot start is a failure."""
    from tests.postgres.server import Server

    server = Server()
    try:
        yield server
    finally:
        server.stop()
