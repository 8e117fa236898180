"""Runners of plans that the tests start, stop and kill in processes of their own.

`python programs.py NAME [JSON …]` calls the function of that name; what it returns is printed as JSON. Side
effects are lines of a log file, so that they outlive the process and the store.
"""

from __future__ import annotations

import contextlib
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
from stepkeep import Hooks, PlanStep, StepContext
from stepkeep.runs.plan import Interrupted
from stepkeep.runs.run_options import RunOptions
from stepkeep.runs.runner import Runner

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
        with contextlib.suppress(subprocess.TimeoutExpired):  # a child of its own may still hold the pipes
            process.communicate(timeout=1)
        raise
    return process.returncode, output.strip(), errors


def lines(log: Path) -> list[str]:
    """The whole lines of a log; a kill may have cut the last one."""
    text = log.read_text() if log.exists() else ""
    return text[: text.rfind("\n") + 1].splitlines()


def wait_for(log: Path, line: str) -> None:
    """Return when a program has written that line."""
    deadline = time.monotonic() + TIMEOUT_SECONDS
    while line not in lines(log):
        assert time.monotonic() < deadline, f"{line!r} never came"
        time.sleep(0.005)


# --- in the child ----------------------------------------------------------------------------------------------


def note(log: str, line: str) -> None:
    """Write a line to the log with one system call."""
    with Path(log).open("ab", buffering=0) as file:
        file.write(f"{line}\n".encode())


def long_plan(count: int = 20) -> list[PlanStep]:
    """A chain whose last step depends on all others."""
    steps = [
        PlanStep(f"s{number}", action="add", parameters={"by": number}, dependencies=(f"s{number - 1}",))
        if number
        else PlanStep("s0", action="add", parameters={"by": 0})
        for number in range(count - 1)
    ]
    return [*steps, PlanStep("sum", dependencies=tuple(step.id for step in steps))]


def noting_handler(log: str, seconds: float) -> Callable[[StepContext], Any]:
    def handle(context: StepContext) -> Any:
        note(log, f"begin {context.step.id}")
        time.sleep(seconds)
        note(log, f"ran {context.step.id}")
        context.context["total"] = context.context.get("total", 0) + context.parameters.get("by", 0)
        if context.step.id == "sum":
            return sum(context.outputs[name] for name in context.step.dependencies)
        return context.parameters["by"]

    return handle


def work_through(url: str, log: str, seconds: float, resume: bool) -> dict[str, Any]:
    """Run the long plan, telling the log what was begun, ran, and was acknowledged."""
    hooks = Hooks(on_step_complete=lambda step, _: note(log, f"done {step.id}"))
    with stepkeep.open(url) as store:
        result = store.execute(
            "long",
            long_plan(),
            noting_handler(log, seconds),
            resume=resume,
            hooks=hooks,
            profile="archive",
        )
    outputs = {found.step_id: found.output for found in result.results}
    return {"status": result.status, "outputs": outputs, "context": result.state.context}


def run_slowly(
    url: str, log: str, seconds: float, resume: bool = False, lease_seconds: float = 15.0, label: str = "slow"
) -> dict[str, Any]:
    """Run two steps of that many seconds each; the answer says how it ended."""
    plan = [PlanStep("first", "the first"), PlanStep("second", "the second")]

    def handle(context: StepContext) -> str:
        note(log, f"begin {context.step.id} by {label}")
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline and not context.cancelled.is_set():
            time.sleep(0.01)
        note(log, f"ran {context.step.id} by {label}")
        if context.cancelled.is_set():
            raise RuntimeError("told to stop")
        return label

    with stepkeep.open(url) as store:
        session = store.session("shared", profile="archive")
        options = RunOptions(resume=resume, lease_seconds=lease_seconds, label=label)
        runner = Runner(store.engine, session.info, plan, handle, options=options)
        try:
            result = runner.run()
        except stepkeep.StepkeepError as exc:
            return {"code": exc.code, "message": exc.message}
        except Interrupted as exc:
            return {"signal": exc.signal, "status": exc.result.status}
    return {"status": result.status, "outputs": [found.output for found in result.results]}


def run_with_children(url: str) -> dict[str, Any]:
    """Steps that signal a child of theirs, many at once, and one that uses a pool; how the children ended."""

    def ended_at_once() -> list[int]:
        codes = set()
        for _ in range(200):
            pid = os.fork()
            if pid == 0:
                time.sleep(TIMEOUT_SECONDS)
                os._exit(0)
            os.kill(pid, signal.SIGTERM)
            codes.add(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
        return sorted(codes)

    def ended(number: int) -> int:
        ready, telling = os.pipe()
        pid = os.fork()
        if pid == 0:
            try:
                os.write(telling, b".")
                time.sleep(TIMEOUT_SECONDS)
            except KeyboardInterrupt:
                os._exit(5)
            os._exit(0)
        os.read(ready, 1)  # Python forgets what its own handlers should have got in the middle of a fork
        os.kill(pid, number)
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

    def handle(context: StepContext) -> object:
        if context.step.id == "at once":
            return ended_at_once()
        if context.step.action:
            return ended(signal.Signals[context.step.action])
        with multiprocessing.get_context("fork").Pool(2) as pool:  # which ends its workers by SIGTERM
            return pool.map(squared, [1, 2, 3])

    plan = [
        PlanStep("term", action="SIGTERM"),
        PlanStep("int", action="SIGINT"),
        PlanStep("at once"),
        PlanStep("pool"),
    ]
    with stepkeep.open(url) as store:
        result = store.execute("parent", plan, handle)
    return {"status": result.status, "outputs": [found.output for found in result.results]}


def squared(number: int) -> int:
    return number * number


def die_in_second(url: str, log: str, resume: bool) -> dict[str, Any]:
    """The second step ends the whole process, the first time."""

    def handle(context: StepContext) -> str:
        note(log, f"begin {context.step.id}")
        if context.step.id == "second" and lines(Path(log)).count("begin second") == 1:
            os._exit(7)
        return context.step.id

    plan = [PlanStep("first"), PlanStep("second"), PlanStep("third")]
    with stepkeep.open(url) as store:
        result = store.execute("mortal", plan, handle, resume=resume)
    return {"status": result.status, "run": result.steps_run, "recovered": result.steps_recovered}


if __name__ == "__main__":
    print(json.dumps(globals()[sys.argv[1]](*map(json.loads, sys.argv[2:]))))
