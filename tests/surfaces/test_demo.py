"""The demonstration does what it tells."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.cli import demo
from holdfast.errors import HoldfastError

pytestmark = pytest.mark.full


def run_demo(folder: Path, *args: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "TMPDIR": str(folder), "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    return subprocess.run(
        [sys.executable, "-m", "holdfast", "demo", *args],
        capture_output=True,
        text=True,
        encoding="utf-8",
        env=environment,
        check=False,
    )


def test_the_demo_tells_its_story_and_cleans_up(tmp_path: Path) -> None:
    """It shows the kill, the history, the fallback and the finding, and leaves nothing behind."""
    done = run_demo(tmp_path)
    assert done.returncode == 0, done.stderr
    for part in (
        "SIGKILL",
        "are there and equal",
        "Latest: cp_",
        "warning: Latest checkpoint corrupted, using history checkpoint from",
        "DAMAGED research",
        "Everything was as promised.",
        "now removed",
    ):
        assert part in done.stdout
    assert done.stderr == ""
    assert list(tmp_path.iterdir()) == []


def test_the_demo_really_damages_its_store(tmp_path: Path) -> None:
    """The kept store has the damaged checkpoint, and it is the only finding."""
    done = run_demo(tmp_path, "--keep", "--json")
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert set(result) == {
        *("acknowledged", "unconfirmed", "found", "damaged", "recovered", "store", "is_kept")
    }
    assert result["acknowledged"] >= demo.SAVES_BEFORE_KILL
    assert result["found"] in (result["acknowledged"], result["unconfirmed"])
    command = [sys.executable, "-m", "holdfast", "verify", "--store", result["store"], "--json"]
    verified = subprocess.run(command, capture_output=True, text=True, check=False)
    assert verified.returncode == 4
    findings = json.loads(verified.stdout)["findings"]
    assert [finding["checkpoint"] for finding in findings] == [result["damaged"]]


def test_the_demo_fails_when_a_promise_is_broken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A state that does not come back as it was saved ends the story with an error."""
    story = demo._Story(tmp_path / "demo.db", is_told=False)
    acknowledged, unconfirmed = story._kill_a_writer()
    monkeypatch.setattr(demo, "state_at", lambda step: {"other": step})
    with pytest.raises(HoldfastError, match="not as promised"):
        story._check_all(acknowledged, unconfirmed)
