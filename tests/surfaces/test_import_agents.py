"""Agent checkpoints in a database of another system: adopted once, and written in the same columns."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

import stepkeep
from tests import interpreter

SCHEMA = """CREATE TABLE {} (id TEXT PRIMARY KEY, session_id TEXT NOT NULL, project_id TEXT NOT NULL,
    step_number INTEGER NOT NULL, created_at TEXT NOT NULL, state_json TEXT NOT NULL, description TEXT,
    trigger_type TEXT NOT NULL, duration_ms INTEGER, token_usage INTEGER)"""


def database(file: Path, table: str, rows: list[tuple[object, ...]]) -> None:
    with closing(sqlite3.connect(file)) as connection:
        connection.execute(SCHEMA.format(table))
        connection.executemany(f"INSERT INTO {table} VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", rows)
        connection.commit()


def row(number: int, state: str, *, trigger: str = "auto", text: str | None = None) -> tuple[object, ...]:
    created = f"2026-01-0{number}T10:00:00.000Z"
    return (f"ckpt_{number}", "s-1", "site", number, created, state, text, trigger, 40 * number, None)


def run(tmp_path: Path, *words: str) -> tuple[int, str, str]:
    environment = {"HOME": str(tmp_path), "STEPKEEP_STORE": f"sqlite:{tmp_path / 'store.db'}"}
    done = interpreter.stepkeep(*words, cwd=tmp_path, env=environment)
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize("table", ["checkpoints", "agent_checkpoints"])
def test_a_database_of_agents_is_adopted_once(tmp_path: Path, table: str) -> None:
    """States, steps, triggers and texts come over, oldest first; bad rows are told; repeating adds nothing."""
    states = [json.dumps({"currentStepIndex": number, "query": "tides"}) for number in range(1, 4)]
    rows = [
        row(2, states[1], trigger="error", text="Failed at step 2: write"),
        row(1, states[0]),
        row(3, states[2], text="Execution complete"),
        row(4, "{broken"),
        row(5, '{"query": "tides", "query": "ebb"}'),
    ]
    database(tmp_path / "agents.db", table, rows)
    code, out, _ = run(tmp_path, "import", "agents", "agents.db", "--dry-run")
    assert (code, "3 would be imported" in out, (tmp_path / "store.db").exists()) == (4, True, False)
    code, out, _ = run(tmp_path, "import", "agents", "agents.db", "--json")
    report = json.loads(out)
    assert (code, report["imported"], report["skipped"], report["layout"]) == (4, 3, 2, "agents")
    with stepkeep.open(f"sqlite:{tmp_path / 'store.db'}") as store:
        session = store.get("s-1")
        assert (session.info.project, session.info.status) == ("site", stepkeep.Status.COMPLETED)
        history = list(session.history())
        assert [each.external_id for each in history] == ["ckpt_3", "ckpt_2", "ckpt_1"]
        assert [each.step for each in history] == [3, 2, 1]
        latest = store.agents.load_latest("s-1")
        assert latest is not None
        assert (latest.state["query"], latest.duration_ms, latest.description) == (
            "tides",
            120,
            "Execution complete",
        )
        assert history[0].metadata["imported"]["created_at"] == "2026-01-03T10:00:00.000000Z"
    assert json.loads(run(tmp_path, "import", "agents", "agents.db", "--json")[1])["present"] == 3


def test_what_is_no_such_database_is_refused(tmp_path: Path) -> None:
    """A missing file, another file, another table."""
    (tmp_path / "text.db").write_text("no database", encoding="utf-8")
    with closing(sqlite3.connect(tmp_path / "other.db")) as connection:
        connection.execute("CREATE TABLE checkpoints (thread_id TEXT)")
    for name in ("missing.db", "text.db", "other.db"):
        code, _, err = run(tmp_path, "import", "agents", name)
        assert (code, name in err) == (2, True)


def test_a_session_is_exported_in_the_same_columns(tmp_path: Path) -> None:
    """What was written can be read by SQL, and adopted again with the same states."""
    with stepkeep.open(f"sqlite:{tmp_path / 'store.db'}") as store:
        for number in range(3):
            state = stepkeep.AgentState(query="tides", current_step_index=number)
            store.agents.save(
                "s-1", "site", state, description=f"step {number}", duration_ms=7, token_usage=9
            )
    code, out, err = run(tmp_path, "export", "s-1", "--format", "agents", "--output", "out.db")
    assert (code, "Wrote 3 checkpoints of s-1" in out) == (0, True), err
    with closing(sqlite3.connect(tmp_path / "out.db")) as connection:
        columns = "session_id, project_id, step_number, trigger_type, duration_ms, token_usage, state_json"
        found = connection.execute(f"SELECT {columns} FROM checkpoints ORDER BY step_number DESC").fetchall()
    assert found[0][:6] == ("s-1", "site", 2, "auto", 7, 9)
    assert json.loads(found[0][6])["currentStepIndex"] == 2
    with stepkeep.open(f"sqlite:{tmp_path / 'second.db'}") as second:
        assert second.import_agents(tmp_path / "out.db").imported == 3
        latest = second.agents.load_latest("s-1")
        assert latest is not None
        assert latest.state["query"] == "tides"
    assert run(tmp_path, "export", "s-1", "--format", "agents", "--output", "-")[0] == 2
    assert run(tmp_path, "export", "s-1", "--format", "agents", "--output", "out.db")[0] == 2, "it exists"
