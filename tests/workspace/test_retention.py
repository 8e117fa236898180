"""Contents of captured files count in what a session may take."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

import stepkeep


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    folder.mkdir()
    return folder


def captured(store: stepkeep.Store, key: str, root: Path, contents: list[bytes]) -> stepkeep.Session:
    """A session with a checkpoint for each content of one file."""
    run = store.session(key, profile="archive")
    for number, content in enumerate(contents):
        (root / "data").write_bytes(content)
        run.save({"n": number}, workspace=root)
    return run


def noise(count: int) -> list[bytes]:
    chooser = random.Random(5)
    return [chooser.randbytes(20_000) for _ in range(count)]


def test_a_cap_of_bytes_counts_captured_files(tmp_path: Path, root: Path) -> None:
    """The oldest go until the rest takes no more, and a dry run promises what then happens."""
    with stepkeep.open(tmp_path / "h.db") as store:
        run = captured(store, "run", root, noise(6))
        planned = run.prune(max_bytes=70_000, dry_run=True)
        done = run.prune(max_bytes=70_000)
        assert [header.seq for header in run.history()] == [6, 5, 4]
        assert planned.stored_bytes == done.stored_bytes > 60_000
        assert store.usage().blobs == 3


def test_blobs_of_other_sessions_are_not_promised(tmp_path: Path, root: Path) -> None:
    """What another session still needs stays, so it is not counted as won."""
    contents = noise(3)
    with stepkeep.open(tmp_path / "h.db") as store:
        captured(store, "other", root, contents)
        run = captured(store, "run", root, contents)
        planned = run.prune(keep_last=1, dry_run=True)
        assert planned.stored_bytes < 20_000
        assert run.prune(keep_last=1).stored_bytes == planned.stored_bytes
        assert store.usage().blobs == 3
