"""AC1 to AC6 of seed 000 on the `workflow` layout, with the file names that the seed gives.

Real commands run in processes of their own; files are looked at and damaged past the code under test.
"""

from __future__ import annotations

import base64
import gzip
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import stepkeep
from stepkeep.testing import FakeClock
from tests import interpreter

pytestmark = pytest.mark.full

SESSION = "session-abc"
START_US = 1_764_426_622_000_000
"""2025-11-29 14:30:22 UTC, the moment of the seed's examples."""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the session, in a store that does not exist yet."""
    for name in [name for name in os.environ if name.startswith("STEPKEEP_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, sys.path)))
    monkeypatch.setenv("STEPKEEP_STORE", f"files:{tmp_path}/store?layout=workflow")
    monkeypatch.chdir(tmp_path)
    return tmp_path / "store" / "sessions" / SESSION


def run(*words: str, exit_code: int = 0) -> subprocess.CompletedProcess[str]:
    """Run `stepkeep` in a new process."""
    done = interpreter.stepkeep(*words)
    assert done.returncode == exit_code, done.stderr
    return done


def save_steps(count: int, *, first: int = 1) -> list[stepkeep.Header]:
    """One checkpoint for each step, a minute apart, saved and closed."""
    clock = FakeClock(START_US + (first - 1) * 60_000_000)
    headers = []
    with stepkeep.open(clock=clock) as store:
        session = store.session(SESSION, profile="workflow")
        for step in range(first, first + count):
            headers.append(session.save({"step": step}, step=step))
            clock.advance(60)
    return headers


def history(folder: Path) -> list[str]:
    return sorted(file.name for file in (folder / "history").iterdir())


def step_in(file: Path) -> Any:
    return json.loads(file.read_text())["data"]["step"]


def damage(file: Path) -> None:
    """Flip a bit in the middle."""
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)


def test_ac1_history_created_on_checkpoint_save(folder: Path) -> None:
    """AC1: saving step 5 moves checkpoint.json of step 4 into the history, byte for byte, under its own time."""
    save_steps(1, first=4)
    of_step_4 = (folder / "checkpoint.json").read_bytes()
    save_steps(1, first=5)
    archived = folder / "history" / "checkpoint-20251129-143322.json"
    assert history(folder) == [archived.name]
    assert archived.read_bytes() == of_step_4
    assert (step_in(archived), step_in(folder / "checkpoint.json")) == (4, 5)
    assert json.loads(run("show", SESSION, "step-4", "--raw").stdout) == {"step": 4}


def test_ac1_two_saves_within_a_second_are_two_files(folder: Path) -> None:
    """The seed names files by the second; a second file of that second gets a suffix."""
    with stepkeep.open(clock=FakeClock(START_US)) as store:
        session = store.session(SESSION)
        for step in range(3):
            session.save({"step": step}, step=step)
    assert history(folder) == ["checkpoint-20251129-143022-2.json", "checkpoint-20251129-143022.json"]


def test_ac2_history_bounded_to_limit(folder: Path) -> None:
    """AC2: of eleven checkpoints ten stay, checkpoint.json included; the file of the oldest is gone."""
    save_steps(11)
    assert step_in(folder / "checkpoint.json") == 11
    assert history(folder) == [f"checkpoint-20251129-14{minute}22.json" for minute in range(31, 40)]
    verified = json.loads(run("verify", "--json").stdout)
    assert (verified["checkpoints"], verified["findings"], verified["result"]) == (10, [], "PASS")


def test_ac13_list_checkpoint_history(folder: Path) -> None:
    """AC13: `history` shows the files, as the specification does, beside the ids; as JSON with their folders."""
    save_steps(8)
    found = json.loads(run("history", SESSION, "--json").stdout)["checkpoints"]
    ids = [each["id"] for each in found]
    shown = run("checkpoint", "history", SESSION).stdout.splitlines()
    assert [re.sub(r" \(.*(, step \d+).*", r"\1", line) for line in shown] == [
        f"Latest: checkpoint.json {ids[0]}, step 8",
        "History:",
        f"  - checkpoint-20251129-143622.json {ids[1]}, step 7",
        f"  - checkpoint-20251129-143522.json {ids[2]}, step 6",
        f"  - checkpoint-20251129-143422.json {ids[3]}, step 5",
        "  ... (4 more)",
    ]
    root = folder.parents[1]
    assert [step_in(root / each["file"]) for each in found] == list(range(8, 0, -1))


def test_ac3_history_preserves_compression(folder: Path) -> None:
    """AC3: a state above 1 MiB is compressed in its envelope, and the history keeps those very bytes."""
    state = {"log": [f"line {number} of the log" for number in range(200_000)]}
    clock = FakeClock(START_US)
    with stepkeep.open(clock=clock) as store:
        session = store.session(SESSION)
        session.save(state, step=1)
        stored = (folder / "checkpoint.json").read_bytes()
        clock.advance(60)
        session.save({"step": 2}, step=2)
    archived = folder / "history" / "checkpoint-20251129-143022.json"
    assert archived.read_bytes() == stored
    envelope = json.loads(stored)
    assert envelope["compressed"] is True
    assert envelope["original_size"] > 4_000_000 > 3 * envelope["stored_size"]
    content = gzip.decompress(base64.b64decode(envelope["data"]))
    assert (len(content), json.loads(content)) == (envelope["original_size"], state)
    assert json.loads(run("show", SESSION, "step-1", "--raw").stdout) == state


@pytest.mark.parametrize("how", ["invalid JSON", "a flipped bit"])
def test_ac4_automatic_fallback_on_corruption(folder: Path, how: str) -> None:
    """AC4: with a damaged checkpoint.json the newest of the history is used, with the seed's warning."""
    save_steps(6)
    latest = folder / "checkpoint.json"
    if how == "invalid JSON":
        latest.write_bytes(latest.read_bytes()[:100])
    else:
        damage(latest)
    done = run("show", SESSION, "--json")
    shown = json.loads(done.stdout)
    assert (shown["checkpoint"]["step"], shown["state"]) == (5, {"step": 5})
    assert "Latest checkpoint corrupted, using history checkpoint from 2025-11-29 14:34:22" in done.stderr
    run("save", SESSION, "--state", '{"step": 6}', "--step", "6")
    assert json.loads(run("show", SESSION, "--raw").stdout) == {"step": 6}


def test_ac5_multiple_fallback_attempts(folder: Path) -> None:
    """AC5: with the latest two damaged, three are tried, and both failures are logged."""
    *_, step_5, step_6 = save_steps(6)
    damage(folder / "checkpoint.json")
    damage(folder / "history" / "checkpoint-20251129-143422.json")
    done = run("show", SESSION, "--json", "--verbose")
    shown = json.loads(done.stdout)
    assert (shown["state"], shown["fallback"]["tried"]) == ({"step": 4}, 3)
    assert [each["checkpoint"] for each in shown["fallback"]["failures"]] == [step_6.id, step_5.id]
    assert re.search(
        rf"{step_6.id}: \S*/checkpoint.json: .*\n.*Latest checkpoint failed to load: ", done.stderr
    )
    assert "History checkpoint 1 failed: " in done.stderr
    assert f"{step_5.id}: sessions/{SESSION}/history/checkpoint-20251129-143422.json: " in done.stderr


def test_ac6_fallback_exhaustion(folder: Path) -> None:
    """AC6: with all ten damaged the error has their number, and says to start afresh."""
    save_steps(10)
    for file in [folder / "checkpoint.json", *(folder / "history").iterdir()]:
        damage(file)
    done = run("show", SESSION, "--json", exit_code=4)
    assert done.stdout == ""
    error = json.loads(done.stderr.splitlines()[-1])["error"]
    assert "No valid checkpoint found (tried 10 checkpoints)" in error["message"]
    assert f"Start session '{SESSION}' afresh" in error["message"]
    assert (error["code"], error["result"]) == ("no_valid_checkpoint", "FAIL")
    assert error["fixes"]
