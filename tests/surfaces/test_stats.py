"""`stepkeep stats`: as table, JSON and Prometheus text, and served."""

from __future__ import annotations

import http.client
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import stepkeep
from stepkeep.cli.inspecting import sparkline
from stepkeep.maintenance.metering import HOUR_US
from tests import interpreter

SEED = (
    "checkpoint_save_count",
    "checkpoint_resume_count",
    "checkpoint_save_size_bytes",
    "checkpoint_save_latency_ms",
    "steps_recovered",
)
TOKEN = "secret"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "store.db"


@pytest.fixture
def saved(file: Path) -> Path:
    """A store with twelve saves in profile agent, of which ten stay, and a conflict."""
    with stepkeep.open(f"sqlite:{file}") as store:
        session = store.session("s", profile="agent")
        for n in range(12):
            session.save({"n": n, "x": "y" * 600})
        with pytest.raises(stepkeep.Conflict):
            session.save({}, expect_head=None)
        session.prune()
    return file


def run(file: Path, *args: str) -> subprocess.CompletedProcess[str]:
    done = interpreter.stepkeep("stats", *args, env=_env(file))
    assert "Traceback" not in done.stderr
    return done


def _env(file: Path) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("STEPKEEP_")}
    return {
        **kept,
        "STEPKEEP_STORE": f"sqlite:{file}",
        "STEPKEEP_METRICS_TOKEN": TOKEN,
        "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
    }


@pytest.mark.full
def test_the_table_names_the_metrics(saved: Path) -> None:
    """The table has the five metrics of the specification, their relatives, and bars for the last hours."""
    done = run(saved)
    assert done.returncode == 0
    for name in (*SEED, "checkpoint_conflict_count", "checkpoint_removed_count", "spared_bytes"):
        assert name in done.stdout
    row = next(line for line in done.stdout.splitlines() if line.startswith("checkpoint_save_count"))
    assert row.split()[:2] == ["checkpoint_save_count", "12"]
    assert "█" in row


@pytest.mark.full
def test_json_has_totals_and_hours(saved: Path) -> None:
    """The JSON has all totals of all processes, and one entry per hour, the last one now."""
    found: dict[str, Any] = json.loads(run(saved, "--json", "--hours", "3").stdout)
    metrics = found["metrics"]
    assert set(SEED) <= metrics.keys()
    assert (metrics["checkpoint_save_count"], metrics["checkpoint_conflict_count"]) == (12, 1)
    assert found["checkpoint_removed_count"] == 2
    assert found["usage"]["checkpoints"] == 10
    assert len(found["hours"]) == 3
    assert sum(hour["saves"] for hour in found["hours"]) == 12
    assert sum(each["saves"] for each in found["latencies"]) == 12


@pytest.mark.full
def test_prometheus_text_is_well_formed(saved: Path) -> None:
    """Every sample has a help and a type, counters end in _total, and the histogram ends in all saves."""
    lines = run(saved, "--prometheus").stdout.splitlines()
    samples = dict(line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
    types = dict(line.split()[2:] for line in lines if line.startswith("# TYPE"))
    helps = {line.split()[2] for line in lines if line.startswith("# HELP")}
    assert types.keys() == helps
    assert samples["stepkeep_checkpoint_saves_total"] == "12"
    assert samples["stepkeep_checkpoint_conflicts_total"] == "1"
    assert samples['stepkeep_checkpoint_save_duration_seconds_bucket{le="+Inf"}'] == "12"
    assert samples["stepkeep_checkpoint_save_duration_seconds_count"] == "12"
    assert all(name.endswith("_total") for name, kind in types.items() if kind == "counter")
    assert samples['stepkeep_checkpoint_save_duration_seconds_bucket{le="5.0"}'] == "12"
    assert samples['stepkeep_sessions{status="in_progress"}'] == "1"
    assert float(samples["stepkeep_last_save_timestamp_seconds"]) > 1.7e9
    assert float(samples["stepkeep_free_bytes"]) > 0
    assert "stepkeep_budget_bytes" not in samples
    assert not any("_ms" in name for name in types)
    assert all(float(value) >= 0 for value in samples.values())


@pytest.mark.full
def test_it_is_served_to_whoever_has_the_token(saved: Path) -> None:
    """The page is on loopback, needs the token, and refuses a foreign Host or Origin and other paths."""
    process = subprocess.Popen(
        [sys.executable, "-m", "stepkeep", "stats", "--serve", "0"],
        env=_env(saved),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    port = int(process.stderr.readline().split(":")[-1].removesuffix("/metrics\n"))

    def get(path: str = "/metrics", **headers: str) -> tuple[int, str]:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
        sent = {"Authorization": f"Bearer {TOKEN}", **headers}
        connection.request("GET", path, headers={name: value for name, value in sent.items() if value})
        answer = connection.getresponse()
        text = answer.read().decode()
        connection.close()
        return answer.status, text

    try:
        status, text = get()
        assert status == 200
        assert "stepkeep_checkpoint_saves_total 12" in text
        with stepkeep.open(f"sqlite:{saved}") as store:
            store.session("s").save({"n": 12})
        assert "stepkeep_checkpoint_saves_total 13" in get()[1]
        assert get(Authorization="")[0] == 401
        assert get(Authorization="Bearer wrong")[0] == 401
        assert get(Host="evil.example")[0] == 421
        assert get(Origin="https://evil.example")[0] == 403
        assert get("/")[0] == 404
        assert get("/healthz", Authorization="") == (200, "ok\n")
        assert get("/healthz", Authorization="", Host="evil.example")[0] == 421
    finally:
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=30)


@pytest.mark.full
@pytest.mark.parametrize(
    "args", [["--hours", "0"], ["--json", "--prometheus"], ["--serve", "0.0.0.0:1"], ["--serve", "x y"]]
)
def test_wrong_usage_is_told(saved: Path, args: list[str]) -> None:
    """Options that make no sense end with code 2."""
    assert run(saved, *args).returncode == 2


@pytest.mark.full
def test_hooks_phases_and_resumes_are_counted(tmp_path: Path) -> None:
    """What hooks save and what is saved at a phase counts like every save; taking work up is a resume."""
    file = tmp_path / "store.db"
    event = json.dumps({"session_id": "a", "cwd": str(tmp_path), "prompt": "Repair the login form"})
    environment = {**_env(file), "HOME": str(tmp_path)}
    interpreter.stepkeep("hook", "UserPromptSubmit", env=environment, input=event)
    with stepkeep.open(f"sqlite:{file}") as store:
        store.phases.create_checkpoint("plan", session_id="t", task_summary="t")
    assert interpreter.stepkeep("resume", "t", env=environment).returncode == 0
    found = json.loads(run(file, "--json").stdout)
    assert found["metrics"]["checkpoint_save_count"] == 2
    assert found["metrics"]["checkpoint_resume_count"] == 1


def test_that_nothing_is_counted_is_told(saved: Path) -> None:
    """Where the configuration switches it off, "nothing yet" would be wrong."""
    (saved.parent / "stepkeep.yaml").write_text("metrics:\n  enabled: false\n", encoding="utf-8")
    done = interpreter.stepkeep("stats", env=_env(saved), cwd=saved.parent)
    assert "nothing is counted: metrics.enabled is false" in done.stdout
    done = interpreter.stepkeep("stats", "--json", env=_env(saved), cwd=saved.parent)
    assert json.loads(done.stdout)["is_counted"] is False


def test_without_a_store_there_is_nothing_to_tell(file: Path) -> None:
    """No store is made by asking."""
    assert run(file).returncode == 3
    assert list(file.parent.iterdir()) == []


def test_hours_without_saves_are_empty(file: Path) -> None:
    """Hours are counted by the store's clock; an hour without saves has no latency."""
    now = [500_000 * HOUR_US]
    with stepkeep.open(f"sqlite:{file}", clock=lambda: now[0]) as store:
        store.session("s").save({"n": 1})
        now[0] += 2 * HOUR_US
        store.session("s").save({"n": 2})
        found = store.stats(hours=3)
    assert [hour.saves for hour in found.hours] == [1, 0, 1]
    assert found.hours[1].latency_ms is None
    assert found.since == found.hours[0].time


def test_a_sparkline_shows_all_that_is_not_zero() -> None:
    """The largest number is a full bar, zero is blank, and anything else is seen."""
    assert sparkline([0, 1, 100, 50]) == " ▁█▄"
    assert sparkline([0, 0]) == ""
    assert sparkline([]) == ""
