"""`stepkeep show --output`: all that is stored of what a step gave."""

from __future__ import annotations

import pytest

import stepkeep
from stepkeep import Outcome, PlanStep, StepContext
from tests.workflow.flows import Flows

LONG = """\
name: long
steps:
  - {id: many, shell: 'seq 5000; seq 3000 >&2'}
  - {id: short, shell: 'printf "a\\033[31mb\\n"; echo oops >&2; exit 1'}
"""


@pytest.fixture
def done(flows: Flows) -> Flows:
    flows.write(LONG)
    assert flows.here("run", "flow.yaml", "--session", "s").code == 1
    return flows


def test_the_whole_output_of_a_step(done: Flows) -> None:
    """The state has two ends of a long output; the command prints all of it, of either stream."""
    whole = "".join(f"{number}\n" for number in range(1, 5001))
    assert done.here("show", "s", "--output", "many").out == whole
    assert done.here("show", "s", "--output", "many", "--raw").out == whole
    assert done.here("show", "s", "step-1", "--output", "many", "--stderr").out.splitlines()[-1] == "3000"
    found = done.here("show", "s", "--output", "many", "--json").json
    assert (found["step"], found["stream"], found["is_cut"]) == ("many", "stdout", False)
    assert (found["text"], found["size_bytes"]) == (whole, len(whole))


def test_a_failed_step_and_a_terminal(done: Flows) -> None:
    """What a failed step printed is there as well; what a terminal would act upon is escaped, except with --raw."""
    assert done.here("show", "s", "--output", "short").out == "a\\x1b[31mb\n"
    assert done.here("show", "s", "--output", "short", "--raw").out == "a\033[31mb\n"
    assert done.here("show", "s", "--output", "short", "--stderr").out == "oops\n"


def test_a_step_that_has_no_output(done: Flows) -> None:
    """The message names the steps that have one."""
    found = done.here("show", "s", "step-1", "--output", "other")
    assert found.code == 3
    assert "has no output of a step 'other'; there is: many" in found.err


@pytest.mark.parametrize(
    "args",
    [["--stderr"], ["latest", "variables", "--output", "many"], ["--output", "many", "--raw", "--json"]],
)
def test_options_that_do_not_go_together(done: Flows, args: list[str]) -> None:
    """They are refused."""
    assert done.here("show", "s", *args).code == 2


def test_a_flood_says_that_it_was_cut(flows: Flows) -> None:
    """What a step printed beyond the limit is not stored, and that is told."""
    flows.write("name: flood\nsteps:\n  - {id: f, shell: head -c 20000000 /dev/zero | tr '\\0' x}\n")
    assert flows.here("run", "flow.yaml", "--session", "s").code == 0
    found = flows.here("show", "s", "--output", "f", "--raw")
    assert len(found.out) == 16 * 1024 * 1024
    assert "gave more" in found.err


def test_plans_and_scripts(flows: Flows) -> None:
    """A plan's step gives its blobs, or else its output; a script's step its output."""

    def handle(context: StepContext) -> object:
        if context.step.id == "short":
            return {"n": 1}
        blob = context.blob(b"long " * 1000)
        return Outcome(output=blob.digest, blobs=(blob,))

    with stepkeep.open(flows.url) as store:
        store.execute("plan", [PlanStep("long"), PlanStep("short")], handle)
        with store.run("script") as run:
            run.step("fetch", lambda: "text")
        store.session("other").save([1])
    assert flows.here("show", "plan", "--output", "long").out == "long " * 1000 + "\n"
    assert flows.here("show", "plan", "--output", "short").out == '{\n  "n": 1\n}\n'
    assert flows.here("show", "script", "--output", "fetch").out == "text\n"
    assert flows.here("show", "other", "--output", "fetch").code == 3
