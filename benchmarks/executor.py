"""Running work in steps: what each step costs beyond itself, as a plan, as a script, and as steps of DBOS on SQLite."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Final

import stepkeep
from benchmarks.parts import Part, Row, Table
from benchmarks.timing import interleaved, say
from stepkeep import config

LENGTHS: Final = (20, 200)
"""How many steps the work has: a plan of an agent, and a long one."""

BARE: Final = "bare loop"
PLAN: Final = "plan (`Store.execute`)"
SCRIPT: Final = "script (`Store.run`)"
DBOS: Final = "DBOS steps"


def work(number: int) -> dict[str, Any]:
    """What a step does: next to nothing, with a result of some hundred bytes."""
    return {"number": number, "text": f"what came of step {number}, in a sentence or two " * 4}


def run(directory: Path, *, quick: bool, with_peers: bool) -> Part:
    """Milliseconds of overhead per step, for work of several lengths."""
    say("executor")
    lengths, repeats = ((5,), 1) if quick else (LENGTHS, 15)
    settings = config.load(cwd=None, environ={}, flags={"metrics.enabled": False})
    with stepkeep.open(directory / "steps.db", config=settings) as store:
        ways: dict[str, Callable[[int], None]] = {
            BARE: _loop,
            PLAN: lambda length: _plan(store, length),
            SCRIPT: lambda length: _script(store, length),
        }
        dbos = _launch_dbos(directory) if with_peers else None
        if dbos is not None:
            ways[DBOS] = dbos.run
        try:
            found = _overheads(ways, lengths, repeats)
        finally:
            if dbos is not None:
                dbos.close()
    rows = [row for length, overheads in found.items() for row in _rows(overheads, length)]
    return Part(tables=[_table(found)], rows=[_growth(found), *rows])


def _overheads(
    ways: dict[str, Callable[[int], None]], lengths: tuple[int, ...], repeats: int
) -> dict[int, dict[str, float]]:
    """Seconds per step by length and way, those of the bare loop taken off the others. All take turns."""
    works = {f"{length} {name}": partial(way, length) for length in lengths for name, way in ways.items()}
    for once in works.values():
        once()  # whatever is done once only
    taken = interleaved(works, repeats=repeats)
    bare = {length: taken[f"{length} {BARE}"] for length in lengths}
    return {
        length: {
            name: (taken[f"{length} {name}"] - (0 if name == BARE else bare[length])) / length
            for name in ways
        }
        for length in lengths
    }


def _table(found: dict[int, dict[str, float]]) -> Table:
    names = list(next(iter(found.values())))
    lines = [(name, *(f"{found[length][name] * 1e3:.3f}" for length in found)) for name in names]
    titles = ("what", *(f"{length} steps" for length in found))
    return Table("Running steps (milliseconds per step beyond the bare loop)", titles, lines)


def _growth(found: dict[int, dict[str, float]]) -> Row:
    short, long = min(found), max(found)
    grown = None if short == long else found[long][PLAN] / found[short][PLAN]
    return Row(f"overhead per step, plan of {long} ÷ of {short}", grown, 1.3)


def _rows(overheads: dict[str, float], length: int) -> list[Row]:
    theirs = overheads.get(DBOS)
    return [
        Row(
            f"overhead per step, {name} of {length} ÷ DBOS",
            None if theirs is None else overheads[way] / theirs,
            0.4,
        )
        for name, way in (("plan", PLAN), ("script", SCRIPT))
    ]


# --- the ways to run steps


def _loop(length: int) -> None:
    for number in range(length):
        work(number)


def _plan(store: stepkeep.Store, length: int) -> None:
    plan = [stepkeep.PlanStep(str(number), parameters={"number": number}) for number in range(length)]
    result = store.execute("plan", plan, lambda context: work(context.parameters["number"]))
    assert result.success


def _script(store: stepkeep.Store, length: int) -> None:
    with store.run("script", resume=False) as steps:
        for number in range(length):
            steps.step(f"step {number}", work, number)


class _Dbos:
    """A workflow of DBOS, set up as its documentation shows, with its system database in a file."""

    def __init__(self, dbos: Any, path: Path) -> None:
        self._dbos = dbos
        dbos(
            config={
                "name": "steps",
                "system_database_url": f"sqlite:///{path}",
                "log_level": "ERROR",
                "run_admin_server": False,
            }
        )
        step = dbos.step()(work)

        @dbos.workflow()  # type: ignore[untyped-decorator]
        def steps(length: int) -> None:
            for number in range(length):
                step(number)

        self.run: Callable[[int], None] = steps
        dbos.launch()

    def close(self) -> None:
        self._dbos.destroy()


def _launch_dbos(directory: Path) -> _Dbos | None:
    try:
        module = importlib.import_module("dbos")
    except ImportError as exc:
        say(f"benchmarks: {exc}: install the peers with `pip install -r requirements/bench.txt`")
        return None
    return _Dbos(module.DBOS, directory / "dbos.sqlite")
