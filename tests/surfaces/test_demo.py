"""The demonstration does what it tells."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import stepkeep
from stepkeep.cli import demo
from stepkeep.errors import StepkeepError

pytestmark = pytest.mark.full


def run_demo(folder: Path, *args: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "TMPDIR": str(folder), "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    return subprocess.run(
        [sys.executable, "-m", "stepkeep", "demo", *args],
        capture_output=True,
        text=True,
        encoding="utf-8",
        env=environment,
        check=False,
    )


def test_the_demo_tells_its_story_and_cleans_up(tmp_path: Path) -> None:
    """Kill, resume, damage, compare, travel back, prune: it shows all of it, and leaves nothing behind."""
    done = run_demo(tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("SIGKILL") == 2
    for part in (
        "[1/5] fetch: done before",
        "warning: Latest checkpoint corrupted, using history checkpoint from",
        "completed: 3 steps",
        "fetch 1x, check 1x, analyse 3x, report 2x, publish 1x",
        'Variables changed:\n       + highest: "12.1"',
        "Restored to: ",
        "[main]",
        "beyond the last 4",
        ": intact",
        "Everything was as promised.",
    ):
        assert part in done.stdout
    assert done.stderr == ""
    assert list(tmp_path.iterdir()) == []


def test_what_the_demo_did_can_be_looked_at(tmp_path: Path) -> None:
    """The kept store holds the finished work on two branches, without the damaged checkpoint that was pruned."""
    done = run_demo(tmp_path, "--keep", "--json")
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["begun"] == {"fetch": 1, "check": 1, "analyse": 3, "report": 2, "publish": 1}
    assert result["damaged"] != result["recovered"]
    with stepkeep.open(result["store"]) as store:
        session = store.get("tides")
        ids = {header.id for header in session.history(branch=None)}
        assert (session.info.branch, session.info.status) == (result["branch"], "completed")
        assert session.load().state["variables"]["report"] == "highest of 4: 12.1 m"
        assert len(ids) == result["kept"]
        assert result["damaged"] not in ids
        assert store.verify().is_intact


@pytest.mark.parametrize(
    "promise",
    ["damage", pytest.param("once", marks=pytest.mark.slow), pytest.param("result", marks=pytest.mark.slow)],
)
def test_the_demo_fails_when_a_promise_is_broken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, promise: str
) -> None:
    """A step that runs again, damage that nobody notices, a wrong result: each ends it with an error."""
    if promise == "once":
        monkeypatch.setattr(demo, "WORKFLOW", demo.WORKFLOW.replace("echo fetch", "echo fetch fetch"))
    elif promise == "damage":
        monkeypatch.setattr(demo._Story, "_damage_newest", lambda _: ("cp_none", "cp_none"))
    else:
        monkeypatch.setattr(demo, "WORKFLOW", demo.WORKFLOW.replace("12.1", "12.3"))
    with pytest.raises(StepkeepError, match="not as promised"):
        demo._Story(tmp_path, is_told=False).run(is_kept=True)
