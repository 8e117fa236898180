"""The acceptance criteria AC1 to AC15 of seed 000, checkpoint history and pruning.

They run through real commands and the public API. What is stored is looked at from a new process. A kind of store
is a `Place`: add its class to `PLACES`, and every criterion is tested on it too.

The names of the commands are ours: `stepkeep …` for `prodigy checkpoint …`, and `clean` for the cleanup job.
"""

from __future__ import annotations

import json
import os
import random
import re
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import apsw
import pytest

import stepkeep
from stepkeep import config
from stepkeep.testing import FakeClock
from tests import interpreter

pytestmark = pytest.mark.full

DAY = 86_400
HOUR = 3_600
SESSION = "session-abc123"


class SqlitePlace:
    """A store in one database file, and how to look at and damage its bytes past the code under test."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / "store.db"
        self.url = f"sqlite:{self._file}"

    def size(self) -> int:
        """What the store takes on the disk."""
        return sum(path.stat().st_size for path in self._file.parent.glob("store.db*"))

    def stored(self, id: str) -> list[tuple[Any, ...]]:
        """Everything that is stored of a checkpoint: its header, and codec, sizes and bytes of its bodies."""
        with self._raw() as database:
            header: list[Any] = database.execute(
                "SELECT header FROM checkpoints WHERE id = ?", (id,)
            ).fetchall()
            sql = "SELECT name, codec, size, stored_size, digest, base, data FROM bodies WHERE checkpoint = ?"
            return header + database.execute(f"{sql} AND is_redundant = 0", (id,)).fetchall()

    def damage(self, id: str) -> None:
        """Flip a bit in each body of a checkpoint."""
        with self._raw() as database:
            sql = "SELECT rowid, data FROM bodies WHERE checkpoint = ?"
            rows: list[tuple[Any, ...]] = database.execute(sql, (id,)).fetchall()
            for row, data in rows:
                middle = len(data) // 2
                spoilt = data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :]
                database.execute("UPDATE bodies SET data = ? WHERE rowid = ?", (spoilt, row))

    @contextmanager
    def _raw(self) -> Iterator[apsw.Connection]:
        database = apsw.Connection(str(self._file))
        try:
            yield database
        finally:
            database.close()


Place = SqlitePlace
PLACES = [SqlitePlace]


@pytest.fixture(params=PLACES, ids=lambda kind: kind.__name__.removesuffix("Place").lower())
def place(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    """A store that does not exist yet, and an empty folder to work in, without any configuration."""
    for name in [name for name in os.environ if name.startswith("STEPKEEP_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, sys.path)))
    monkeypatch.chdir(tmp_path)
    found: Place = request.param(tmp_path)
    monkeypatch.setenv("STEPKEEP_STORE", found.url)
    return found


def run(*words: str, exit_code: int = 0) -> subprocess.CompletedProcess[str]:
    """Run `stepkeep` in a new process."""
    done = interpreter.stepkeep(*words)
    assert done.returncode == exit_code, done.stderr
    return done


def result(*words: str) -> Any:
    """What `stepkeep … --json` prints."""
    return json.loads(run(*words, "--json").stdout)


def noise(number: int, count: int = 300) -> str:
    """Text that no compression makes much smaller, another one for each number."""
    return random.Random(number).randbytes(count).hex()


def save_steps(
    place: Place, last: int, *, first: int = 1, profile: str = "workflow"
) -> list[stepkeep.Header]:
    """Save one checkpoint for each step, in a process that ends after that."""
    with stepkeep.open(place.url) as store:
        session = store.session(SESSION, profile=profile)
        return [
            session.save({"step": step, "noise": noise(step)}, step=step) for step in range(first, last + 1)
        ]


def ended(key: str, status: str, seconds_ago: float, *, size: int = 300, **fields: Any) -> None:
    """Leave a session with two checkpoints that came to that status so long ago."""
    clock = FakeClock(round((time.time() - seconds_ago) * 1_000_000))
    with stepkeep.open(clock=clock) as store:
        session = store.session(key, **({"profile": "workflow"} | fields))
        session.save({"noise": noise(1, size)}, step=1)
        session.save({"noise": noise(2, size)}, step=2, status=status)


def sessions() -> set[str]:
    """The keys of all sessions, as a new process sees them."""
    return {session["key"] for session in result("list")}


# --- history -------------------------------------------------------------------------------------------------


def test_ac1_history_created_on_checkpoint_save(place: Place) -> None:
    """AC1: when step 5 is saved, the checkpoint of step 4 is in the history, unchanged.

    The seed copies a file into the history. Here a checkpoint is a record that is never overwritten, so what is
    compared is the record: header, bodies and the state that is read from it are the same bytes as before.
    """
    run("save", SESSION, "--state", '{"done": ["a", "b"]}', "--step", "4")
    (step_4,) = result("history", SESSION)["checkpoints"]
    stored = place.stored(step_4["id"])
    state = run("show", SESSION, "step-4", "--raw").stdout
    run("save", SESSION, "--state", '{"done": ["a", "b", "c"]}', "--step", "5")
    history = result("history", SESSION)["checkpoints"]
    assert [each["step"] for each in history] == [5, 4]
    assert history[1] == step_4
    assert stored
    assert place.stored(step_4["id"]) == stored
    assert run("show", SESSION, "step-4", "--raw").stdout == state == '{"done":["a","b"]}\n'


def test_ac2_history_bounded_to_limit(place: Place) -> None:
    """AC2: with a limit of 10, the 11th checkpoint removes the oldest, and its space is given back.

    The limit counts the newest too. Pruning is off the save path: it has happened when the store is closed.
    """
    with stepkeep.open(place.url) as store:
        session = store.session(SESSION, profile="workflow")
        for step in range(1, 12):
            session.save({"noise": noise(step, 50_000)}, step=step)
    assert [each["step"] for each in result("history", SESSION)["checkpoints"]] == list(range(11, 1, -1))
    size = place.size()
    assert result("prune", SESSION)["reclaimed_bytes"] > 0  # nothing is left to prune, only to give back
    assert size - place.size() > 50_000
    assert result("verify")["findings"] == []


def test_ac3_history_preserves_compression(place: Place) -> None:
    """AC3: a compressed checkpoint stays in the history as it was stored: same codec, sizes and bytes."""
    text = "\n".join(f"line {number} of the log says {noise(number, 4)}" for number in range(120_000))
    with stepkeep.open(place.url) as store:
        session = store.session(SESSION, profile="workflow")
        saved = session.save({"log": text}, step=1)
        (body,) = session._engine.backend.bodies(session.uid)
    assert body.codec == "zstd"
    assert body.size > 4_000_000 > 2 * body.stored_size
    before = place.stored(saved.id)
    with stepkeep.open(place.url) as store:
        session = store.get(SESSION)
        session.save({"log": text, "more": "x"}, step=2)
        assert body in session._engine.backend.bodies(session.uid)
    assert place.stored(saved.id) == before
    older = result("history", SESSION)["checkpoints"][1]
    assert (older["size_bytes"], older["stored_bytes"]) == (body.size, body.stored_size)
    assert json.loads(run("show", SESSION, "step-1", "--raw").stdout) == {"log": text}


# --- recovery from corruption --------------------------------------------------------------------------------


def test_ac4_automatic_fallback_on_corruption(place: Place) -> None:
    """AC4: when the latest checkpoint is damaged, the one before is used, with a warning, and work goes on."""
    *_, step_5, step_6 = save_steps(place, 6)
    place.damage(step_6.id)
    done = run("show", SESSION, "--json")
    shown = json.loads(done.stdout)
    assert (shown["checkpoint"]["step"], shown["state"]["step"]) == (5, 5)
    (failure,) = shown["fallback"]["failures"]
    assert (failure["checkpoint"], failure["code"]) == (step_6.id, "checkpoint_integrity_mismatch")
    moment = f"{step_5.created_at:%Y-%m-%d %H:%M:%S}"
    assert f"Latest checkpoint corrupted, using history checkpoint from {moment}" in done.stderr
    run("save", SESSION, "--state", '{"step": 6}', "--step", "6")
    assert result("show", SESSION)["state"] == {"step": 6}


def test_ac5_multiple_fallback_attempts(place: Place) -> None:
    """AC5: when the latest two are damaged, three are tried, the third is used, and both failures are logged."""
    *_, step_4, step_5, step_6 = save_steps(place, 6)
    place.damage(step_6.id)
    place.damage(step_5.id)
    done = run("show", SESSION, "--json", "--verbose")
    shown = json.loads(done.stdout)
    assert (shown["checkpoint"]["id"], shown["state"]["step"]) == (step_4.id, 4)
    assert shown["fallback"]["tried"] == 3
    assert [each["checkpoint"] for each in shown["fallback"]["failures"]] == [step_6.id, step_5.id]
    assert re.search(rf"Latest checkpoint failed to load: .*{step_6.id}", done.stderr)
    assert re.search(rf"History checkpoint 1 failed: .*{step_5.id}", done.stderr)
    assert f"({step_4.id})" in done.stderr


def test_ac6_fallback_exhaustion(place: Place) -> None:
    """AC6: when all are damaged, each is tried once; the error has their number and says how to go on."""
    for header in save_steps(place, 10):
        place.damage(header.id)
    done = run("show", SESSION, "--verbose", exit_code=4)
    assert done.stdout == ""
    assert "No valid checkpoint found (tried 10 checkpoints)" in done.stderr
    assert f"Start session '{SESSION}' afresh" in done.stderr
    assert done.stderr.count("History checkpoint 9 failed") == 1
    assert "History checkpoint 10 failed" not in done.stderr


# --- cleanup -------------------------------------------------------------------------------------------------


def test_ac7_completed_workflow_cleanup(place: Place) -> None:
    """AC7: a session that completed 7 days ago goes with its history; the space returns; active ones are as before."""
    ended("active", "in_progress", 8 * DAY)
    ended("done", "completed", 7 * DAY, size=200_000)
    ended("recent", "completed", 7 * DAY - HOUR)
    before, size = result("history", "active"), place.size()
    assert result("clean", "--dry-run")["cleaned"] == 1
    cleaned = result("clean")
    assert (cleaned["cleaned"], cleaned["retained"], cleaned["error"]) == (1, 2, 0)
    assert sessions() == {"active", "recent"}
    run("history", "done", exit_code=3)
    assert size - place.size() > 400_000
    assert result("history", "active") == before
    assert result("verify")["findings"] == []


def test_ac8_failed_workflow_retention(place: Place) -> None:
    """AC8: a session that failed 35 days ago goes; after 10 days it stays, where a completed one would go."""
    ended("failed long ago", "failed", 35 * DAY)
    ended("failed", "failed", 10 * DAY)
    ended("completed", "completed", 10 * DAY)
    assert result("clean")["cleaned"] == 2
    assert sessions() == {"failed"}
    assert len(result("history", "failed")["checkpoints"]) == 2


def test_ac9_active_workflow_preservation(place: Place) -> None:
    """AC9: running and paused sessions stay with their history, however old; only ended ones are cleaned."""
    for status in ("in_progress", "paused", "completed", "failed", "cancelled"):
        ended(status, status, 1_000 * DAY)
    assert result("clean")["cleaned"] == 3
    assert sessions() == {"in_progress", "paused"}
    for key in ("in_progress", "paused"):
        assert [each["step"] for each in result("history", key)["checkpoints"]] == [2, 1]
    assert result("verify")["findings"] == []


# --- policies ------------------------------------------------------------------------------------------------

POLICIES = """\
checkpoint:
  cleanup:
    completed_retention_days: 7
    workflows:
      a: { retention_days: 1 }
      b: { retention_days: 30 }
      c: { enabled: false }
"""


@pytest.mark.parametrize("where", ["workflow", "config"])
def test_ac10_per_workflow_cleanup_policy(place: Place, tmp_path: Path, where: str) -> None:
    """AC10: workflow A goes after 1 day, B after 30, and others after the global 7.

    The policy stands in the workflow, which passes it on to its session, or in the configuration.
    """
    own: dict[str, dict[str, Any]] = {"a": {}, "b": {}, "other": {}}
    if where == "workflow":
        own["a"] = {"cleanup": {"retention_days": 1}}
        own["b"] = {"cleanup": {"retention_days": 30}}
    else:
        (tmp_path / "stepkeep.yaml").write_text(POLICIES, encoding="utf-8")
    for workflow, days in (("a", 1), ("b", 30), ("other", 7)):
        fields = {"workflow": workflow, **own[workflow]}
        ended(f"{workflow} too young", "completed", days * DAY - HOUR, **fields)
        ended(f"{workflow} old enough", "completed", days * DAY, **fields)
    assert result("clean")["cleaned"] == 3
    assert sessions() == {"a too young", "b too young", "other too young"}


@pytest.mark.parametrize("where", ["workflow", "config"])
def test_ac11_cleanup_disabled_for_debugging(place: Place, tmp_path: Path, where: str) -> None:
    """AC11: with `enabled: false` a completed session stays for good, with its history."""
    if where == "workflow":
        ended("precious", "completed", 3_000 * DAY, cleanup={"enabled": False})
    else:
        (tmp_path / "stepkeep.yaml").write_text(POLICIES, encoding="utf-8")
        ended("precious", "completed", 3_000 * DAY, workflow="c")
    ended("other", "completed", 3_000 * DAY)
    assert result("clean")["cleaned"] == 1
    assert sessions() == {"precious"}
    assert len(result("history", "precious")["checkpoints"]) == 2


@pytest.mark.parametrize("how", ["command", "library", "last save", "open store"])
def test_ac12_test_workflow_immediate_cleanup(place: Place, how: str) -> None:
    """AC12: a session marked as a test goes as soon as it completes; a session that is no test stays."""
    with stepkeep.open() as store:
        for key in ("test", "other"):
            store.session(key, test=key == "test").save({"n": 1})
    assert sessions() == {"test", "other"}  # a test that runs is kept
    for key in ("test", "other"):
        complete(key, how)
    assert sessions() == {"other"}
    run("history", "test", exit_code=3)


def complete(key: str, how: str) -> None:
    if how == "command":
        run("complete", key)
        return
    with stepkeep.open() as store:
        session = store.get(key)
        if how == "last save":
            session.save({"n": 2}, status="completed")
        else:
            session.complete()
        if how == "open store" and key == "test":
            wait_until_gone(store, key)


def wait_until_gone(store: stepkeep.Store, key: str) -> None:
    """Wait for the keeper of an open store; a minute is far more than it needs."""
    give_up_at = time.monotonic() + 60
    while any(session.key == key for session in store.sessions()):
        assert time.monotonic() < give_up_at
        time.sleep(0.01)


# --- audit and inspection ------------------------------------------------------------------------------------


def test_ac13_list_checkpoint_history(place: Place) -> None:
    """AC13: `history` shows the latest, then older ones, newest first, each with time, size and step.

    An id stands in place of the seed's file name, and the stored size is shown too.
    """
    clock = FakeClock(round(datetime(2025, 11, 29, 13, 55, 22, tzinfo=UTC).timestamp() * 1_000_000))
    with stepkeep.open(clock=clock) as store:
        session = store.session(SESSION)
        headers = []
        for step in range(1, 12):
            headers.append(session.save({"noise": noise(step, step * 50_000)}, step=step))
            clock.advance(5 * 60)
    ids = [header.id for header in headers]
    text = run("history", SESSION).stdout
    plain = re.sub(r", stored [^,]+, [\d.]+x\)", ")", text)
    assert plain.splitlines() == [
        f"Latest: {ids[10]} (2025-11-29 14:45:22, 1.1MB, step 11)",
        "History:",
        f"  - {ids[9]} (2025-11-29 14:40:22, 1.0MB, step 10)",
        f"  - {ids[8]} (2025-11-29 14:35:22, 900KB, step 9)",
        f"  - {ids[7]} (2025-11-29 14:30:22, 800KB, step 8)",
        "  ... (7 more)",
    ]
    assert plain != text
    assert [each["id"] for each in result("history", SESSION)["checkpoints"]] == ids[::-1]


def test_ac14_checkpoint_diff(place: Place) -> None:
    """AC14: `diff --from step-5 --to step-7` shows changed variables and added steps, in the seed's words."""
    commands = [("shell", f"make part-{number}") for number in range(1, 6)]
    commands += [("shell", "make test"), ("claude", "/review")]
    done: list[dict[str, Any]] = []
    with stepkeep.open() as store:
        session = store.session(SESSION, profile="workflow")
        for step, (kind, command) in enumerate(commands, start=1):
            done.append({"kind": kind, "command": command})
            variables = ({"analysis_result": "success"} if step == 7 else {}) | {"iteration": step}
            session.save({"variables": variables, "completed_steps": done}, step=step)
    shown = run("diff", SESSION, "--from", "step-5", "--to", "step-7").stdout.splitlines()
    assert shown[0].startswith("from checkpoint 5 (")
    assert shown[1].startswith("to   checkpoint 7 (")
    assert shown[2:] == [
        "Variables changed:",
        '  + analysis_result: "success"',
        "  ~ iteration: 5 → 7",
        "Steps added:",
        '  + Step 6: shell: "make test"',
        '  + Step 7: claude: "/review"',
    ]


def test_ac15_checkpoint_export(place: Place, tmp_path: Path) -> None:
    """AC15: `export --output` writes the latest checkpoint to a file, decompressed, as indented JSON."""
    state = {"log": "the same line\n" * 10_000, "step": 2}
    with stepkeep.open() as store:
        session = store.session(SESSION)
        session.save({"step": 1}, step=1)
        saved = session.save(state, step=2)
    assert result("history", SESSION)["checkpoints"][0]["ratio"] > 10
    run("export", SESSION, "--output", "debug.json")
    text = (tmp_path / "debug.json").read_text(encoding="utf-8")
    document = json.loads(text)
    assert document["state"] == state
    assert (document["checkpoint"]["id"], document["checkpoint"]["step"]) == (saved.id, 2)
    assert text == json.dumps(document, indent=2, ensure_ascii=False) + "\n"


# --- documentation -------------------------------------------------------------------------------------------

GUIDES = Path(__file__).parents[2] / "docs" / "how-to"
GUIDE_NAMES = ("keep-history-small", "clean-up-sessions", "schedule-maintenance", "debug-with-history")
YAML = re.compile(r"^( *)```yaml\n(.*?)^\1```$", re.MULTILINE | re.DOTALL)


def test_the_configurations_in_the_guides_are_valid(place: Place, tmp_path: Path) -> None:
    """Every YAML example of the guides that the seed asks for is accepted."""
    texts = [(GUIDES / f"{name}.md").read_text(encoding="utf-8") for name in GUIDE_NAMES]
    examples = [textwrap.dedent(match[2]) for text in texts for match in YAML.finditer(text)]
    assert any("never-delete-workflow" in example for example in examples)
    for example in examples:
        (tmp_path / "stepkeep.yaml").write_text(example, encoding="utf-8")
        found, problems = config.inspect(cwd=tmp_path, environ={})
        assert not problems, example
        assert any(setting.is_given for setting in found), example
