"""Every line of the command-line examples for time travel, against golden output."""

from __future__ import annotations

import re
import shlex
from datetime import UTC, datetime
from pathlib import Path

import pytest

from stepkeep.api import Store
from stepkeep.model import to_us, utc_now_us
from stepkeep.storage.sqlite import SqliteBackend
from tests import interpreter
from tests.api.programs import environment

GOLDEN = Path(__file__).parents[1] / "data" / "golden" / "travel.txt"
HOUR_US = 3_600_000_000
LINES = (
    'create "Before the risky change" --tags risky,manual',
    "list",
    "list --tag verified",
    "diff {first} {third}",
    'at "2 hours ago"',
    'at "2025-01-20 14:30:00"',
    "restore {third}",
    "restore --undo",
    "timeline",
    "prune --keep-last 100 --keep-days 7",
    "log --path step",
    "show debugging latest hypotheses[-1]",
)


@pytest.fixture
def ids(tmp_path: Path) -> dict[str, str]:
    """A store with checkpoints of a year ago, three hours ago and one hour ago; the ids of the first and third."""
    now_us = utc_now_us()
    moments = [to_us(datetime(2025, 1, 20, 14, minute, tzinfo=UTC)) for minute in (0, 20, 40)]
    moments += [now_us - 3 * HOUR_US, now_us - HOUR_US]
    current = moments[:1]
    headers = []
    with Store(SqliteBackend(tmp_path / "store.db"), clock=lambda: current[0]) as store:
        run = store.session("debugging", profile="debug")
        for step, moment in enumerate(moments):
            current[0] = moment
            state = {"hypotheses": [f"h{number}" for number in range(step)], "step": step}
            tags = ["auto"] if step % 2 else ["auto", "verified"]
            headers.append(run.save(state, step=step, message=f"step {step} done", tags=tags))
    return {"first": headers[0].id, "third": headers[2].id}


def transcript(folder: Path, ids: dict[str, str]) -> str:
    """What the lines print, with the time of the run and random parts written as words."""
    env = {
        **environment(),
        "STEPKEEP_STORE": f"sqlite:{folder}/store.db",
        "HOME": str(folder),
        "COLUMNS": "110",
    }
    env.pop("STEPKEEP_SESSION", None)
    text = ""
    for line in LINES:
        words = shlex.split(line.format(**ids))
        done = interpreter.stepkeep(*words, cwd=folder, env=env)
        assert done.returncode == 0, done.stderr
        text += f"$ stepkeep {line}\n{done.stderr}{done.stdout}"
    return _without_the_moment(text)


def _without_the_moment(text: str) -> str:
    text = re.sub(r"cp_20250120(T\d{4})\d{8}_\w{10}", r"cp_20250120\1", text)
    text = re.sub(r"cp_20\d{6}T\d{12}_\w{10}", "ID", text)
    return re.sub(r"20(?!25-01-20)\d\d-\d\d-\d\d \d\d:\d\d:\d\d", "A-MOMENT-OF-THIS-RUN", text)


@pytest.mark.full
def test_every_line_prints_what_it_should(tmp_path: Path, ids: dict[str, str]) -> None:
    """The lines one after the other, each a process of its own."""
    assert transcript(tmp_path, ids) == GOLDEN.read_text()
