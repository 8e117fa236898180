"""A folder of phases that another program wrote is adopted in its place."""

from __future__ import annotations

import json
from typing import Any

import stepkeep
from tests import interpreter
from tests.phases.conftest import Home


def write(home: Home, number: int, **fields: Any) -> bytes:
    """A checkpoint as the other program writes it."""
    folder = home.path / "checkpoints"
    folder.mkdir(exist_ok=True)
    document = {
        "id": f"nano-{number}",
        "sessionId": "old-task",
        "phase": "build",
        "phaseNumber": 4,
        "createdAt": f"2026-11-1{number}T10:00:00.000Z",
        "completed": False,
        "taskSummary": "Move the mail server",
        "iscCriteria": [],
        "metadata": {"hosts": [number]},
        **fields,
    }
    content = json.dumps(document, indent=2).encode()
    (folder / f"ckpt-2026-11-1{number}T10-00-00-000Z-build.json").write_bytes(content)
    return content


def test_criteria_are_adopted_whole(home: Home) -> None:
    """What else the other program noted of a criterion is in our documents too."""
    criterion = {"id": "c1", "subject": "mail arrives", "status": "pending", "weight": 3}
    write(home, 1, iscCriteria=[criterion])
    url = f"files:{home.path}?layout=phase"
    done = interpreter.stepkeep(
        "import", "files", str(home.path), "--layout", "phase", "--store", url, cwd=home.path
    )
    assert done.returncode == 0, done.stderr
    (file,) = home.files
    assert json.loads(file.read_text(encoding="utf-8"))["iscCriteria"] == [criterion]
    with stepkeep.open_phases(home.path) as phases:
        found = phases.detect_incomplete_checkpoint()
        assert found is not None
        assert found.criteria[0].extra == {"weight": 3}


def test_old_files_are_adopted_where_they_lie(home: Home) -> None:
    """They are offered and completed like ours, by their old ids too; each reader sees one document of each."""
    originals = [write(home, number) for number in (1, 2)]
    seed = json.loads(home.seed.read_text(encoding="utf-8"))
    seed["state"]["checkpointRef"] = "nano-2"
    home.seed.write_text(json.dumps(seed), encoding="utf-8")
    url = f"files:{home.path}?layout=phase"
    line = ["import", "files", str(home.path), "--layout", "phase", "--store", url, "--json"]
    dry = interpreter.stepkeep(*line, "--dry-run", cwd=home.path)
    assert (json.loads(dry.stdout)["imported"], len(home.files)) == (2, 2)
    done = interpreter.stepkeep(*line, cwd=home.path)
    assert (done.returncode, json.loads(done.stdout)["imported"]) == (0, 2), done.stderr
    kept = sorted((home.path / ".stepkeep" / "adopted").iterdir())
    assert [file.read_bytes() for file in kept] == originals
    assert home.ref == "nano-2"
    with stepkeep.open_phases(home.path) as phases:
        found = phases.detect_incomplete_checkpoint()
        assert found is not None
        assert (found.session_id, found.phase_number, found.metadata["hosts"]) == ("old-task", 4, [2])
        assert home.ref == "nano-2", "a pointer by the old id leads there"
        assert phases.complete_checkpoint("nano-1").ok
    assert home.ref is None
    documents = [json.loads(file.read_text(encoding="utf-8")) for file in home.files]
    assert [(each["sessionId"], each["completed"]) for each in documents] == [("old-task", True)] * 2
    again = interpreter.stepkeep(*line, cwd=home.path)
    assert json.loads(again.stdout)["imported"] == 0
