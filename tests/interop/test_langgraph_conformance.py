"""LangGraph's own conformance suite for checkpointers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
from langgraph.checkpoint.conformance import checkpointer_test, validate

from stepkeep.adapters.langgraph import StepkeepSaver

TESTS = 81

pytestmark = pytest.mark.full


@pytest.fixture(params=["sqlite", "postgres", "memory", "files"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A store of each kind."""
    if request.param == "postgres":
        return str(request.getfixturevalue("postgres").fresh_url())
    return {"sqlite": f"sqlite:{tmp_path}/threads.db", "memory": "memory:"}.get(
        request.param, f"files:{tmp_path}/threads"
    )


def test_the_whole_suite_passes(url: str, tell: Callable[[str], None]) -> None:
    """Every test of version 0.0.2 passes; the counts are printed, because the level word also stands for fewer."""

    @checkpointer_test(name=f"StepkeepSaver {url.partition(':')[0]}")
    async def saver() -> AsyncIterator[StepkeepSaver]:
        async with StepkeepSaver(url) as made:
            yield made

    report = asyncio.run(validate(saver))

    passed = {name: result.tests_passed for name, result in report.results.items()}
    failures = [failure for result in report.results.values() for failure in result.failures]
    counts = ", ".join(f"{name} {count}" for name, count in passed.items())
    tell(f"{report.checkpointer_name}: {sum(passed.values())} of {TESTS} passed ({counts})")
    assert failures == []
    assert sum(passed.values()) == TESTS
