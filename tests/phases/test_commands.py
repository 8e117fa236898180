"""`stepkeep phases`: the face of phases in the shell."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

import stepkeep
from tests.phases.test_resuming import Shell


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    return Shell(tmp_path)


def test_a_task_from_its_first_phase_to_its_end(shell: Shell) -> None:
    """Created, listed, offered, completed, cleaned; what Python reads is the same."""
    assert shell("phases", "offer").out == ""
    options = ["--session", "task-7", "--task", "Move the mail server"]
    criteria = '[{"id": "c1", "subject": "mail arrives", "status": "pending"}]'
    made = shell(
        "phases", "create", "build", *options, "--state", '{"a": 1}', "--criteria", criteria, "--json"
    )
    assert made.code == 0, made.err
    checkpoint = made.json["checkpoint_id"]
    assert Path(made.json["file"]).parent == shell.phases / "checkpoints"
    offered = shell("phases", "offer").out
    assert re.fullmatch(r"Checkpoint: Resume from Phase 4\? \(Move the mail server, \d+ s ago\)\n", offered)
    assert "task-7" in shell("phases", "list", "--open").out
    assert json.loads(shell("phases", "list", "--completed", "--json").out) == []
    with stepkeep.open_phases(shell.phases) as phases:
        loaded = phases.load_checkpoint(checkpoint)
        assert loaded is not None
        assert (loaded.state, loaded.criteria[0].subject) == ({"a": 1}, "mail arrives")
    assert shell("phases", "complete", checkpoint[:-3]).code == 0
    assert shell("phases", "offer").out == ""
    assert len(json.loads(shell("phases", "list", "--completed", "--json").out)) == 1
    assert shell("phases", "cleanup", "--older-than", "0").out == "Removed 1 checkpoint\n"


def test_phases_in_any_store(shell: Shell) -> None:
    """With --store they lie there, and not in the user's folder."""
    line = ["phases", "create", "plan", "--session", "t", "--task", "t", "--store", shell.url]
    assert shell(*line).code == 0
    assert "t" in shell("phases", "list", "--store", shell.url).out
    assert not shell.phases.exists()


@pytest.mark.parametrize(
    ("line", "code"),
    [
        (["create", "dance", "--session", "t", "--task", "t"], 2),
        (["create", "plan", "--session", "t", "--task", "t", "--number", "9"], 2),
        (["create", "plan", "--session", "t", "--task", "t", "--criteria", "7"], 2),
        (["complete", "cp_nothing"], 3),
        (["list", "--limit", "0"], 2),
    ],
)
def test_wrong_usage_is_told(shell: Shell, line: list[str], code: int) -> None:
    """One line, and the exit code of its kind."""
    done = shell("phases", *line)
    assert (done.code, done.err.startswith("error: "), done.out) == (code, True, "")
