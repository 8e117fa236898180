"""A store of files counts what its disk gives, not what states would take elsewhere."""

from __future__ import annotations

from pathlib import Path

import pytest

import stepkeep
from stepkeep import config

BLOCK = 4096


def settings(**flags: object) -> config.Settings:
    given = {name.replace("__", "."): value for name, value in flags.items()}
    return config.load(cwd=None, environ={}, flags=given)


def on_disk(root: Path) -> int:
    """What the documents take, in the blocks of most file systems."""
    files = list(root.rglob("*.json"))
    return sum(-(-file.stat().st_size // BLOCK) * BLOCK for file in files)


def test_a_state_counts_as_it_is_stored(tmp_path: Path) -> None:
    """Five megabytes that are stored in a few kilobytes fit into two, and prune nothing for a budget of one."""
    url = f"files:{tmp_path}/st?layout=workflow"
    with stepkeep.open(url, config=settings(limits__max_bytes="2MB", retention__max_bytes="1MB")) as store:
        for number in range(5):
            store.session("a").save({"n": number, "text": "hello world " * 400_000})
    with stepkeep.open(url, config=settings()) as store:
        assert len(list(store.session("a").history())) == 5


@pytest.mark.parametrize("layout", ["run", "workflow", "phase"])
def test_small_checkpoints_count_with_their_blocks(tmp_path: Path, layout: str) -> None:
    """A budget of five blocks has room for five small documents."""
    url = f"files:{tmp_path}/st?layout={layout}"
    with stepkeep.open(url, config=settings(retention__max_bytes=5 * BLOCK)) as store:
        for number in range(30):
            store.session("a", profile="phase").save({"n": number})
        store.session("a").prune()
    pointer = BLOCK if layout == "run" else 0
    assert on_disk(tmp_path / "st") == 5 * BLOCK + pointer
    with stepkeep.open(url, config=settings()) as store:
        assert store.verify().is_intact
