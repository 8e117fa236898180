"""The examples do what they say: each is run as a person would, in processes of its own."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import stepkeep
from tests.workflow.flows import Flows
from tests.workflow.test_run import golden

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
FILES = sorted(path for path in EXAMPLES.iterdir() if path.suffix in (".py", ".yaml"))


def run(name: str, folder: Path, *args: str) -> subprocess.CompletedProcess[str]:
    paths = os.pathsep.join([str(ROOT / "src"), *filter(None, sys.path)])
    return subprocess.run(
        [sys.executable, str(EXAMPLES / name), *args],
        capture_output=True,
        text=True,
        cwd=folder,
        env={**os.environ, "PYTHONPATH": paths, "XDG_CONFIG_HOME": str(folder)},
        check=False,
    )


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_an_example_is_short_and_introduced(path: Path) -> None:
    """Under 100 lines, named in the list; those that are run say how, at their top."""
    text = path.read_text(encoding="utf-8")
    assert len(text.splitlines()) < 100
    assert f"]({path.name})" in (EXAMPLES / "README.md").read_text(encoding="utf-8")
    is_run = path.name != "flow_tools.py"  # that one is called by flow.yaml
    assert not is_run or f"examples/{path.name}" in "\n".join(text.splitlines()[:8])


@pytest.mark.full
def test_the_research_agent(tmp_path: Path) -> None:
    """Seed 004, example 1: fail in step 2, resume, skip 1, try 2 again, finish 3."""
    failed = run("research_agent.py", tmp_path, "--down")
    assert failed.returncode == 1, failed.stderr
    assert [line[:7] for line in failed.stdout.splitlines()] == ["step 1:", "step 2:", "failed:", "error: "]
    with stepkeep.open(tmp_path / "research.db") as store:
        checkpoint = store.agents.load_latest("research")
        assert checkpoint is not None
        state = checkpoint.agent_state()
        assert checkpoint.description == "Failed at step 1: Fetch the Q4 revenue of each competitor"
        assert (state.current_step_index, len(state.results)) == (1, 1)
        assert state.last_error is not None
        assert "API timeout" in state.last_error.message
    resumed = run("research_agent.py", tmp_path, "--resume")
    assert resumed.returncode == 0, resumed.stderr
    assert resumed.stdout.splitlines() == [
        "step 2: Fetch the Q4 revenue of each competitor",
        "step 3: Compile a comparison report",
        "completed: 2 done now, 1 done before",
        "CompanyC: 143 million",
        "CompanyA: 120 million",
        "CompanyB: 95 million",
    ]


@pytest.mark.full
def test_the_model_loop(tmp_path: Path) -> None:
    """Killed after the first tool and the second call, it goes on with the second tool; then there is nothing left."""
    killed = run("model_loop.py", tmp_path, "--crash")
    assert (killed.returncode, killed.stdout) == (-9, "tool: tide at Brest\n")
    answer = "The highest water is at Saint-Malo: 12.1 m."
    resumed = run("model_loop.py", tmp_path)
    assert resumed.stdout.splitlines() == ["going on after 4 messages", "tool: tide at Saint-Malo", answer]
    assert run("model_loop.py", tmp_path).stdout.splitlines() == ["going on after 6 messages", answer]
    with stepkeep.open(tmp_path / "loop.db") as store:
        assert store.get("tides").info.status == "completed"


@pytest.mark.full
def test_the_long_loop(tmp_path: Path) -> None:
    """Killed somewhere, it goes on behind the last call that returned, and no answer is missing."""
    paths = os.pathsep.join([str(ROOT / "src"), *filter(None, sys.path)])
    command = [sys.executable, str(EXAMPLES / "long_loop.py")]
    with subprocess.Popen(
        command, cwd=tmp_path, env={**os.environ, "PYTHONPATH": paths}, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        first = [next(process.stdout).strip() for _ in range(5)]
        process.kill()
        first += process.stdout.read().split("\n")
    again = run("long_loop.py", tmp_path).stdout.splitlines()
    assert again[-1] == "done: 60 answers"
    done = [line for line in first if line]
    assert again[0] in (
        done[-1],
        f"step {len(done) + 1}",
    )  # the last one may have been killed before it was saved


@pytest.mark.full
def test_the_script(tmp_path: Path) -> None:
    """Killed in its second kind of step, it only counts when it runs again, and then does nothing more."""
    assert run("script.py", tmp_path, "--crash").stdout.endswith("counting\n")
    assert run("script.py", tmp_path).stdout.splitlines() == ["counting", "words: 13"]
    assert run("script.py", tmp_path).stdout.splitlines() == ["words: 13"]


@pytest.fixture
def flows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Flows:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    shutil.copytree(EXAMPLES, tmp_path / "examples", ignore=shutil.ignore_patterns("__pycache__"))
    return Flows(tmp_path)


@pytest.mark.full
def test_the_workflow_piped(flows: Flows) -> None:
    """It runs from the folder above, as its header says, and its steps in its own."""
    done = flows("run", "examples/flow.yaml", "--var", "place=Brest", "--session", "s")
    assert (done.code, done.err) == (0, "")
    golden("example_lines.txt", done.out)
    posted = flows.step("s", "post")["output"]["stdout"]
    assert posted.startswith("posted:\nWrite a note for the harbour of Brest: 2 high waters")


@pytest.mark.full
def test_the_workflow_as_json(flows: Flows) -> None:
    """One document at the end, on stdout; the session on stderr, so that a killed run can be resumed."""
    done = flows("run", "examples/flow.yaml", "--json", "--session", "s")
    assert (done.code, done.err) == (0, "Session s: tides, 4 steps\n")
    golden("example_document.txt", re.sub(r'(duration_ms": )\d+|(checkpoint": )".*"', r"\1\2N", done.out))
