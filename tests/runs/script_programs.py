"""Scripts that the tests run, and kill, in processes of their own.

`python script_programs.py NAME [JSON …]` calls the function of that name. Side effects are lines of a log file,
so that they outlive the process and the store.
"""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import stepkeep
import stepkeep.aio

PROGRAM = Path(__file__)
SOURCE = Path(stepkeep.__file__).parent.parent
TIMEOUT_SECONDS = 120


# --- in the test -----------------------------------------------------------------------------------------------


def environment() -> dict[str, str]:
    """The environment in which a child finds the package under test, and no store but the one it is given."""
    kept = {name: value for name, value in os.environ.items() if name != "STEPKEEP_STORE"}
    return {**kept, "PYTHONPATH": str(SOURCE)}


def start(program: Callable[..., object], *arguments: object) -> subprocess.Popen[str]:
    """Start a program of this module in a new process."""
    from tests import interpreter  # not there in the new process

    return interpreter.start(
        [str(PROGRAM), program.__name__, *(json.dumps(value) for value in arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(),
    )


def end(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    """How a started program ended, and what it printed."""
    try:
        output, errors = process.communicate(timeout=TIMEOUT_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        raise
    return process.returncode, output.strip(), errors


def wait_for(log: Path, line: str) -> None:
    """Return when a program has written that line."""
    give_up = time.monotonic() + TIMEOUT_SECONDS
    while line not in lines_of(log):
        assert time.monotonic() < give_up, f"{line!r} never came"
        time.sleep(0.01)


def lines_of(log: Path) -> list[str]:
    return log.read_text(encoding="utf-8").splitlines() if log.exists() else []


# --- in the child ----------------------------------------------------------------------------------------------


def write(log: str, line: str) -> None:
    with Path(log).open("a", encoding="utf-8") as file:
        file.write(line + "\n")


def chain(url: str, log: str, count: int, kill: list[Any]) -> Any:
    """A script of `count` steps, each adding to the one before; `kill` is (place, step) of a SIGKILL, or empty."""
    place, victim = kill or (None, None)

    def die(here: str, number: int) -> None:
        if (place, victim) == (here, number):
            os.kill(os.getpid(), signal.SIGKILL)

    def add(number: int, before: list[int]) -> list[int]:
        write(log, f"begin {number}")
        die("inside", number)
        write(log, f"end {number}")
        return [*before, number]

    with stepkeep.open(url) as store, store.run("chain") as run:
        numbers: list[int] = []
        for number in range(1, count + 1):
            numbers = run.step(f"add {number}", add, number, numbers)
            die("after", number)
    return numbers


def slow_chain(url: str, log: str, count: int) -> Any:
    """Steps that take their time; `stored` is logged once a step has returned to the script."""

    def work(number: int) -> int:
        write(log, f"begin {number}")
        time.sleep(0.005)
        return number

    with stepkeep.open(url) as store, store.run("slow") as run:
        for number in range(1, count + 1):
            run.step(f"step {number}", work, number)
            if f"stored {number}" not in lines_of(Path(log)):
                write(log, f"stored {number}")
    return count


def async_chain(url: str, log: str, count: int, victim: int) -> Any:
    """Steps side by side; the process is killed inside the step `victim`, once all others are stored."""

    async def work(number: int) -> int:
        write(log, f"begin {number}")
        if number == victim:
            while len([line for line in lines_of(Path(log)) if line.startswith("stored")]) < count - 1:
                await asyncio.sleep(0.01)
            os.kill(os.getpid(), signal.SIGKILL)
        return number * number

    async def main() -> list[int]:
        async with stepkeep.aio.open(url) as store, store.run("squares") as run:

            async def one(number: int) -> int:
                square = await run.step(f"square {number}", work, number)
                write(log, f"stored {number}")
                return square

            return list(await asyncio.gather(*(one(number) for number in range(1, count + 1))))

    return asyncio.run(main())


def holding(url: str, log: str) -> str:
    """A script that stays inside its second step until it is stopped."""
    with stepkeep.open(url) as store, store.run("held") as run:
        run.step("first", lambda: write(log, "first"))
        run.step("second", lambda: (write(log, "waiting"), time.sleep(TIMEOUT_SECONDS)))
    return "completed"


def async_holding(url: str, log: str) -> str:
    """The same on an event loop."""

    async def wait() -> None:
        write(log, "waiting")
        await asyncio.sleep(TIMEOUT_SECONDS)

    async def main() -> str:
        async with stepkeep.aio.open(url) as store, store.run("held") as run:
            await run.step("first", write, log, "first")
            await run.step("second", wait)
        return "completed"

    return asyncio.run(main())


def forking(url: str) -> Any:
    """A script that forks in its middle; the child leaves the block by an exit."""
    seen: dict[str, Any] = {}
    with stepkeep.open(url) as store:
        try:
            with store.run("forking") as run:
                run.step("first", lambda: 1)
                pid = os.fork()
                if pid == 0:
                    sys.exit(3)
                seen["child"] = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
                seen["meanwhile"] = store.get("forking").info.status
                run.step("second", lambda: 2)
                seen["state"] = list(store.get("forking").load().state)
        except SystemExit:
            os._exit(3)
    return seen


def forking_and_working(url: str) -> Any:
    """A script whose forked children try a step, a step that is done, and to finish the step they were forked in."""

    def refused(call: Callable[[], object]) -> int:
        pid = os.fork()
        if pid == 0:
            try:
                call()
            except stepkeep.InvalidInput as exc:
                os._exit(7 if exc.code == "run_forked" else 1)
            os._exit(0)
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

    with stepkeep.open(url) as store, store.run("forking") as run:
        run.step("first", lambda: 1)
        codes = [refused(lambda: run.step("child", lambda: 2)), refused(lambda: run.step("first", lambda: 1))]
        pids: list[int] = []
        try:
            run.step("inside", lambda: pids.append(os.fork()))
        except stepkeep.InvalidInput as exc:
            os._exit(7 if exc.code == "run_forked" else 1)
        codes.append(os.waitstatus_to_exitcode(os.waitpid(pids[0], 0)[1]))
        run.step("second", lambda: 2)
        return {"codes": codes, "state": list(store.get("forking").load().state)}


def ended_at_once() -> list[int]:
    """How children end that get SIGTERM as early as possible, many of them."""
    codes = set()
    for _ in range(200):
        pid = os.fork()
        if pid == 0:
            time.sleep(TIMEOUT_SECONDS)
            os._exit(0)
        os.kill(pid, signal.SIGTERM)
        codes.add(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
    return sorted(codes)


def pooled(times: int) -> list[int]:
    """What pools of processes give, which end their workers by SIGTERM, some while they still start."""
    for _ in range(times):
        with multiprocessing.get_context("fork").Pool(3):
            pass
    with multiprocessing.get_context("fork").Pool(2) as pool:
        return pool.map(abs, [-1, -2])


def with_children(url: str, is_async: bool) -> Any:
    """A script whose steps have children of their own that are ended early; what the steps gave."""
    if is_async:
        return asyncio.run(_with_children(url))
    with stepkeep.open(url) as store, store.run("parent") as run:
        return [run.step("at once", ended_at_once), run.step("pool", pooled, 10)]


async def _with_children(url: str) -> Any:
    async with stepkeep.aio.open(url) as store, store.run("parent") as run:
        return [await run.step("at once", ended_at_once), await run.step("pool", pooled, 10)]


def one_step(url: str) -> Any:
    """A script that wants the session `held` for itself; its error's code and message where it fails."""
    try:
        with stepkeep.open(url) as store, store.run("held") as run:
            return run.step("mine", lambda: "done")
    except stepkeep.StepkeepError as exc:
        return [exc.code, exc.message]


if __name__ == "__main__":
    result = globals()[sys.argv[1]](*map(json.loads, sys.argv[2:]))
    print(json.dumps(result))
