"""A workflow of twenty steps, killed at any moment, comes to the same end as one that is left alone."""

from __future__ import annotations

import random
import time
from collections import Counter

import pytest

from stepkeep.errors import StepkeepError
from tests.workflow.flows import Flows, until

STEPS = 20
FLOW = "name: twenty\nvars: {start: s}\nsteps:\n" + "".join(
    f"""\
  - id: n{number}
    shell: |
      echo n{number} >>log
      printf '%s%s' {"${vars.start}" if number == 1 else f"${{steps.n{number - 1}.stdout}}"} -{number}
"""
    for number in range(1, STEPS + 1)
)
END = "s" + "".join(f"-{number}" for number in range(1, STEPS + 1))


def _completed(flows: Flows) -> set[str]:
    """The steps that are stored as completed; none while there is no checkpoint."""
    try:
        return {step["id"] for step in flows.state("s")["completed_steps"]}
    except StepkeepError:
        return set()


def _kill_and_resume(flows: Flows, seed: int) -> None:
    flows.write(FLOW)
    chance = random.Random(seed)
    process = flows.start("run", "flow.yaml", "--session", "s")
    begun = chance.randrange(STEPS)
    until(lambda: len(flows.log) >= begun)
    time.sleep(chance.uniform(0, 0.02))
    flows.stop(process)
    done = _completed(flows)
    if not done and not flows.here("resume", "--json").json:
        # It was killed before its first checkpoint.
        assert flows.here("run", "flow.yaml", "--session", "s").code == 0
    elif len(done) < STEPS or flows.here("list", "--json").json[0]["status"] != "completed":
        assert flows.here("resume", "s").code == 0
    counts = Counter(flows.log)
    assert counts.keys() == {f"n{number}" for number in range(1, STEPS + 1)}
    repeated = {step for step, count in counts.items() if count > 1}
    assert len(repeated) <= 1, "only the step under way may have run twice"
    assert not repeated & done, "a completed step was run again"
    assert flows.step("s", f"n{STEPS}")["output"]["stdout"] == END


@pytest.mark.full
@pytest.mark.parametrize("seed", range(10))
def test_a_kill_at_a_random_moment(flows: Flows, seed: int) -> None:
    """Completed steps ran once, the interrupted one at least once, and the result is that of an undisturbed run."""
    _kill_and_resume(flows, seed)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(10, 110))
def test_many_kills_at_random_moments(flows: Flows, seed: int) -> None:
    """The same, a hundred times."""
    _kill_and_resume(flows, seed)
