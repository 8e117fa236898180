"""Which tests run, what they tell at the end, and how a run with random input is repeated."""

from __future__ import annotations

import os
import secrets
import signal
import tempfile
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings

from stepkeep import processes
from tests import sampling
from tests.memory import memory_folder
from tests.needed import missing

ROOT = Path(__file__).parent

if TYPE_CHECKING:
    from tests.postgres.pgbouncer import PgBouncer
    from tests.postgres.server import Server

# A deadline and the check for slow input would be timed assertions, and how much of the random input is filtered or
# too large is chance; the blob repeats one failing example without its seed.
_CHANCE = (HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large)
for _name, _count in ((sampling.QUICK, sampling.EXAMPLES // 4), (sampling.THOROUGH, sampling.EXAMPLES)):
    settings.register_profile(
        _name, deadline=None, print_blob=True, max_examples=_count, suppress_health_check=_CHANCE
    )
settings.load_profile(sampling.QUICK)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add `--slow`, which lets the tests marked `slow` run too."""
    parser.addoption("--slow", action="store_true", help="also run the tests marked slow")


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Draw the Hypothesis seed here, so that it can be printed and every worker gets the same one."""
    if config.getoption("--slow"):
        settings.load_profile(sampling.THOROUGH)
    else:
        _use_memory()
    if config.option.hypothesis_seed is None:
        config.option.hypothesis_seed = str(secrets.randbits(32))
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        # A run in the background of a shell ignores it, and so would every program that the tests interrupt.
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _use_memory() -> None:
    """Make temporary folders in memory: half of a run on a disk is waiting for it. With `--slow` the disk is used."""
    folder = memory_folder()
    if folder is not None and "TMPDIR" not in os.environ:
        os.environ["TMPDIR"] = tempfile.tempdir = str(folder)


FULL_PLACES = (
    "acceptance/",
    "api/test_concurrency.py",
    "api/test_damage.py",
    "crash/",
    "docs/test_seeds.py",
    "examples/",
    "runs/test_resume.py",
    "runs/test_runner.py",
    "runs/test_scripts.py",
    "fuzz/",
    "hooks/",
    "interop/",
    "investigation/",
    "lifecycle/",
    "maintenance/test_backup.py",
    "maintenance/test_budget.py",
    "maintenance/test_clean.py",
    "maintenance/test_copy.py",
    "maintenance/test_keeper.py",
    "maintenance/test_prune",
    "maintenance/test_recover.py",
    "phases/",
    "postgres/",
    "stateful/test_races.py",
    "stateful/test_sqlite.py",
    "storage_files/",
    "surfaces/test_cli_branches.py",
    "surfaces/test_cli_history.py",
    "surfaces/test_cli_moving.py",
    "surfaces/test_cli_naming.py",
    "surfaces/test_cli_timeline.py",
    "surfaces/test_import_files.py",
    "surfaces/test_mcp",
    "surfaces/test_stats.py",
    "threats/",
    "unit/test_compare.py",
    "web/",
    "workers/",
    "workflow/",
    "workspace/",
)
"""Where all tests together take many seconds: `./dev test` runs them, the fast set of `./dev check` does not."""


def _is_full_place(path: Path) -> bool:
    return path.is_relative_to(ROOT) and path.relative_to(ROOT).as_posix().startswith(FULL_PLACES)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Do not even import what the fast set leaves out: it needs frameworks that take seconds to load."""
    is_fast = "not full" in config.option.markexpr
    return True if is_fast and collection_path.is_file() and _is_full_place(collection_path) else None


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark what is not in the fast set, and leave out the slow tests unless they were asked for."""
    for item in items:
        if _is_full_place(item.path):
            item.add_marker(pytest.mark.full)
    if config.getoption("--slow"):
        return
    slow = [item for item in items if item.get_closest_marker("slow")]
    if slow:
        config.hook.pytest_deselected(items=slow)
        items[:] = [item for item in items if not item.get_closest_marker("slow")]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Print the figures of the tests, and what repeats the random input of this run, also with `-q`."""
    for report in [*terminalreporter.getreports("passed"), *terminalreporter.getreports("failed")]:
        for name, text in report.user_properties:
            if name == FIGURE:
                terminalreporter.write_line(str(text))
    profile = settings.get_current_profile_name()
    seed = config.option.hypothesis_seed
    terminalreporter.write_line(f"hypothesis: profile {profile}, repeat with --hypothesis-seed={seed}")


FIGURE = "figure"


@pytest.fixture
def tell(record_property: Callable[[str, object], None]) -> Callable[[str], None]:
    """Have a figure printed after all tests. What a test prints itself is lost where several processes run them."""
    return lambda text: record_property(FIGURE, text)


@pytest.fixture(scope="session")
def postgres() -> Iterator[Server]:
    """A PostgreSQL server for the tests of this process. One that cannot start is a failure."""
    from tests.postgres.server import Server

    server = Server()
    try:
        yield server
    finally:
        server.stop()


@pytest.fixture(scope="session")
def postgres15() -> Iterator[Server]:
    """The server that Debian 12 has, where it is installed."""
    from tests.postgres.server import DEBIAN, Server

    programs = DEBIAN / "15/bin"
    if not programs.is_dir():
        missing("PostgreSQL 15 of Debian is not installed")
    server = Server(programs)
    try:
        yield server
    finally:
        server.stop()


@pytest.fixture(scope="session")
def pgbouncer(postgres: Server) -> Iterator[PgBouncer]:
    """A pooler in front of the server of this process, where it is installed."""
    from tests.postgres.pgbouncer import PROGRAM, PgBouncer

    if PROGRAM is None:
        missing("pgbouncer is not installed")
    pooler = PgBouncer(postgres)
    try:
        yield pooler
    finally:
        pooler.stop()


@pytest.fixture
def of_an_ended_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """What this process saves has ids that stand for none which runs."""
    monkeypatch.setattr(processes, "_makes_ids", ("zzzzzz", count()))
