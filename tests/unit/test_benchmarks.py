"""The benchmarks measure what they say: the same states in every run, and a run that ends with its tables."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

from benchmarks.report import Row
from benchmarks.timing import interleaved, percentile
from benchmarks.workloads import WORKLOADS, W, Workload, near, size_of

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("workload", WORKLOADS, ids=lambda workload: workload.name)
def test_a_workload_gives_the_same_states_in_every_run(workload: Workload) -> None:
    """Two runs save the same bytes, and no step repeats the one before."""
    first, second = ([json.dumps(state) for state in workload.take(6)] for _ in range(2))
    assert first == second
    assert len(set(first)) == 6


def test_workload_w_grows_by_two_kilobytes_a_step() -> None:
    """After 200 steps the conversation has about 400 KB."""
    *_, last = W.take(200)
    assert 360_000 < size_of(last) < 440_000


def test_states_near_a_size_have_about_that_size() -> None:
    """Each is within a third of the size asked for, and as many are timed as were asked for."""
    scenes = [(size_of(scene.state), scene.is_first) for scene in near(20_000, samples=12)]
    assert all(13_000 < size < 27_000 for size, _ in scenes)
    assert sum(not is_first for _, is_first in scenes) == 12


def test_a_percentile_is_one_of_the_samples() -> None:
    """No value is made up between two samples."""
    samples = [float(number) for number in range(1, 21)]
    assert percentile(samples, 50) == 10.0
    assert percentile(samples, 95) == 19.0
    assert percentile([7.0], 95) == 7.0


def test_works_take_turns() -> None:
    """A slow moment of the machine meets all subjects."""
    calls: list[str] = []
    interleaved({name: lambda name=name: calls.append(name) for name in "ab"}, repeats=3)
    assert calls == ["a", "b"] * 3


def test_a_verdict_follows_the_direction_of_its_target() -> None:
    """Ceilings are reached from below, floors from above, and what did not run is neither."""
    assert Row("size", 2.9, 3.0).verdict == "ok"
    assert Row("size", 3.1, 3.0).verdict == "short"
    assert Row("rate", 2.9, 2.5, is_ceiling=False).verdict == "ok"
    assert Row("rate", None, 2.5, is_ceiling=False).verdict == "not run"


@pytest.mark.slow
def test_a_quick_run_ends_with_tables_json_and_a_drawing(tmp_path: Path) -> None:
    """`python -m benchmarks --quick` needs no peers and leaves no store behind."""
    outputs = {kind: tmp_path / f"out.{kind}" for kind in ("json", "svg")}
    stores = tmp_path / "stores"
    files = [argument for kind, path in outputs.items() for argument in (f"--{kind}", str(path))]
    run = subprocess.run(
        [sys.executable, "-m", "benchmarks", "--quick", "--dir", str(stores), *files],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert run.returncode == 0, run.stderr
    assert "Figures to reach" in run.stdout
    found = json.loads(outputs["json"].read_text(encoding="utf-8"))
    assert {result["subject"] for result in found["growth"]} == {"stepkeep", "bare insert", "json file"}
    assert [profile["missing"] for profile in found["profiles"]] == [[]]
    assert ElementTree.parse(outputs["svg"]).getroot().tag.endswith("svg")
    assert list(stores.iterdir()) == []


def test_missing_peers_are_named(tmp_path: Path) -> None:
    """`--peers` without the packages says what to install, before anything is measured."""
    blocker = tmp_path / "langgraph.py"
    blocker.write_text("raise ImportError('no langgraph here')\n", encoding="utf-8")
    path = os.pathsep.join([str(tmp_path), *(entry for entry in sys.path if entry)])
    run = subprocess.run(
        [sys.executable, "-m", "benchmarks", "--peers"],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert run.returncode == 2
    assert "requirements/bench.txt" in run.stderr
