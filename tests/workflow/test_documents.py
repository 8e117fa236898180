"""The workflow files in documents and examples are good, and the example runs."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from stepkeep.runs.workflow.expressions import STEP_FIELDS
from stepkeep.runs.workflow.parse import PASSED_ON, parse_workflow, read_workflow
from tests.workflow.flows import Flows

ROOT = Path(__file__).parents[2]
GUIDE = (ROOT / "docs/how-to/write-a-workflow-file.md").read_text(encoding="utf-8")
REFERENCE = (ROOT / "docs/reference/workflow.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```yaml\n(.*?)^```$", GUIDE, re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("text", BLOCKS, ids=[block.splitlines()[0] for block in BLOCKS])
def test_the_files_of_the_guide_are_good(text: str) -> None:
    """Every workflow in the guide passes the check."""
    assert parse_workflow(text, source="guide").steps


@pytest.mark.parametrize("name", ["greet", "release", "parallel"])
def test_the_files_of_the_guide_run(flows: Flows, name: str) -> None:
    """Those that need nothing from outside run to their end."""
    flows.write(next(block for block in BLOCKS if block.startswith(f"name: {name}\n")))
    done = flows.here("run", "flow.yaml", "--session", "s", "--parallel", "2")
    assert done.code == 0, done.out
    if name == "greet":
        assert flows.step("s", "shout")["output"]["stdout"] == "HELLO WORLD\n"


@pytest.mark.full
def test_the_example_runs(flows: Flows) -> None:
    """The example runs from its own folder, with a shell, a python and an agent step."""
    for name in ("flow.yaml", "flow_tools.py"):
        shutil.copy(ROOT / "examples" / name, flows.folder)
    done = flows("run", "flow.yaml", "--session", "s", "--var", "place=L'Île")
    assert done.code == 0, done.out
    posted = flows.step("s", "post")["output"]["stdout"]
    assert posted == (
        "posted:\nWrite a note for the harbour of L'Île: 2 high waters,\nthe highest of 12.1 m.\n"
    )


def test_the_reference_names_everything() -> None:
    """Every key of a step, every field and every variable that is passed on stands in the reference."""
    words = set(re.findall(r"`(\w+)`|steps\.ID\.(\w+)", REFERENCE))
    named = {word for pair in words for word in pair if word}
    step = read_workflow(ROOT / "examples/flow.yaml").steps[0]
    fields = {
        "line",
        "kind",
        "command",
        "arguments",
        "timeout_seconds",
    }
    assert set(step.__struct_fields__) - fields <= named
    assert {*STEP_FIELDS, *PASSED_ON} <= named
