"""The store of readable files through the public face: names, bytes, modes, removal, compression."""

from __future__ import annotations

import gzip
import json
import os
import stat
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import stepkeep
from stepkeep.errors import InvalidInput
from stepkeep.storage.files import FilesBackend, Layout
from stepkeep.storage.port import Compresses
from stepkeep.testing import FakeClock
from tests import interpreter

HOUR_US = 3600 * 1_000_000


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "store"


@contextmanager
def opened(
    root: Path, layout: Layout | None = None, clock: FakeClock | None = None
) -> Iterator[stepkeep.Store]:
    """The store with a clock of its own, which stands still unless moved."""
    clock = clock or FakeClock()
    store = stepkeep.Store(FilesBackend(root, layout=layout, clock=clock), clock=clock)
    try:
        yield store
    finally:
        store.close()


def documents(root: Path) -> list[Path]:
    return sorted(file for file in root.rglob("*") if file.is_file() and ".stepkeep" not in file.parts)


def names(root: Path) -> list[str]:
    return [str(file.relative_to(root)) for file in documents(root)]


def load(file: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(file.read_text())
    return found


# --- URLs ------------------------------------------------------------------------------------------------------


def test_a_url_names_directory_and_layout(root: Path) -> None:
    """`files:DIR?layout=L`; without a layout a new store is `run`, and an old one stays what it is."""
    with stepkeep.open(f"files:{root}") as store:
        assert store.url == f"files:{root}?layout=run"
    with stepkeep.open(f"files:{root}?layout=run"):
        pass
    with pytest.raises(InvalidInput) as refusal:
        stepkeep.open(f"files:{root}?layout=phase")
    assert refusal.value.code == "layout_mismatch"
    for url in (f"files:{root}?layout=other", f"files:{root}?other=run", f"files:{root}?run", "files:"):
        with pytest.raises(InvalidInput) as refusal:
            stepkeep.open(url)
        assert refusal.value.code == "unknown_store_url"


def test_a_file_is_no_directory(root: Path) -> None:
    """What is there is not touched."""
    root.write_text("mine")
    with pytest.raises(InvalidInput) as refusal:
        stepkeep.open(f"files:{root}")
    assert refusal.value.code == "not_a_store"
    assert root.read_text() == "mine"


# --- names and bytes -------------------------------------------------------------------------------------------


def test_workflow_names(root: Path) -> None:
    """The newest is checkpoint.json; the one before it is in the history under its own time, byte for byte."""
    clock = FakeClock(1_764_426_622_000_000)  # 2025-11-29 14:30:22
    with opened(root, Layout.WORKFLOW, clock) as store:
        run = store.session("session-abc", profile="archive")
        run.save({"step": 4}, step=4)
        before = (root / "sessions/session-abc/checkpoint.json").read_bytes()
        clock.advance(300)
        run.save({"step": 5}, step=5)
    assert names(root) == [
        "sessions/session-abc/checkpoint.json",
        "sessions/session-abc/history/checkpoint-20251129-143022.json",
    ]
    newest, old = documents(root)
    assert old.read_bytes() == before
    assert (load(old)["data"], load(newest)["data"]) == ({"step": 4}, {"step": 5})


def test_run_names(root: Path) -> None:
    """Each snapshot under its id, and an independent copy of the newest."""
    with opened(root, Layout.RUN) as store:
        run = store.session("r", profile="archive")
        ids = [run.save({"n": n}).id for n in range(2)]
    assert names(root) == [
        *sorted(f"checkpoints/r/history/{id}.json" for id in ids),
        "checkpoints/r/latest.json",
    ]
    latest, newest = root / "checkpoints/r/latest.json", root / f"checkpoints/r/history/{ids[1]}.json"
    assert latest.read_bytes() == newest.read_bytes()
    assert latest.stat().st_ino != newest.stat().st_ino
    assert latest.stat().st_nlink == newest.stat().st_nlink == 1


def test_phase_names(root: Path) -> None:
    """All in one folder, by time and phase."""
    clock = FakeClock(1_764_426_622_000_000)
    with opened(root, Layout.PHASE, clock) as store:
        for key in ("one", "two"):
            id = store.session(key, profile="archive").save({}, metadata={"phase": "Plan it"}).id
    assert names(root) == sorted(
        [
            "checkpoints/ckpt-20251129T143022000000Z-plan-it.json",
            f"checkpoints/ckpt-20251129T143022000000Z-plan-it-{id[-10:]}.json",
        ]
    )


@pytest.mark.parametrize("layout", Layout)
@pytest.mark.parametrize(
    "key", ["../../x", "..", "/etc/passwd", "a/b", "CON", "x" * 1024, "ä\n", "-rf", "A", "a"]
)
def test_no_key_leads_out_of_the_store(root: Path, layout: Layout, key: str) -> None:
    """Any key works, and everything lies below the root (V10)."""
    with opened(root, layout) as store:
        store.session(key).save({"n": 1})
    with opened(root) as store:
        assert store.get(key).latest().state == {"n": 1}
    assert sorted(file.name for file in root.parent.iterdir()) == ["store"]


@pytest.mark.parametrize("layout", Layout)
def test_keys_that_differ_in_case_are_two_sessions(root: Path, layout: Layout) -> None:
    """Also on a file system that folds case."""
    with opened(root, layout) as store:
        for key in ("run", "Run", "RUN"):
            store.session(key).save({"key": key})
    with opened(root) as store:
        for key in ("run", "Run", "RUN"):
            assert store.get(key).latest().state == {"key": key}
    folded = [name.casefold() for name in names(root)]
    assert len(folded) == len(set(folded))


@pytest.mark.parametrize("layout", Layout)
def test_files_are_for_their_owner_only(root: Path, layout: Layout) -> None:
    """Files 0600, directories 0700, whatever the umask allows."""
    previous = os.umask(0)
    try:
        with opened(root, layout) as store:
            for n in range(2):
                store.session("r").save({"n": n})
            modes = {(path.is_dir(), stat.S_IMODE(path.stat().st_mode)) for path in [root, *root.rglob("*")]}
    finally:
        os.umask(previous)
    assert modes == {(True, 0o700), (False, 0o600)}


@pytest.mark.parametrize("layout", Layout)
def test_a_checkpoint_is_read_and_checked_by_hand(root: Path, layout: Layout) -> None:
    """`jq` reads the state, `head` and `sha256sum` prove the file."""
    with opened(root, layout) as store:
        store.session("r").save({"query": "tides", "results": [1, 2]})
    file = documents(root)[-1]
    member = ".data" if layout is Layout.WORKFLOW else ".state"
    assert json.loads(shell(f"jq -c {member} {file}")) == {"query": "tides", "results": [1, 2]}
    assert (
        shell(f"head -n -1 {file} | sha256sum").split()[0]
        == shell(f"jq -r .integrity.checksum {file}").strip()
    )


def shell(command: str) -> str:
    return subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=True).stdout


def test_a_large_state_stays_compressed_in_the_history(root: Path) -> None:
    """The history keeps the very bytes that were saved; the state comes back."""
    states = [{"n": n, "text": "many words " * 200_000} for n in range(2)]
    with opened(root, Layout.WORKFLOW) as store:
        run = store.session("r", profile="archive")
        for state in states:
            run.save(state)
    sizes = [file.stat().st_size for file in documents(root)]
    assert max(sizes) < 100_000
    history = documents(root)[1]
    assert load(history)["compressed"] is True
    by_hand = shell(f"jq -r .data {history} | base64 -d | zcat")
    assert json.loads(by_hand) == states[0]
    with opened(root) as store:
        run = store.get("r")
        assert [run.load(seq).state for seq in (1, 2)] == states


@pytest.mark.full
@pytest.mark.parametrize("layout", Layout)
@pytest.mark.parametrize("saves", [200, pytest.param(1000, marks=pytest.mark.slow)])
def test_a_clock_that_stands_still_loses_nothing(root: Path, layout: Layout, saves: int) -> None:
    """So many saves in one microsecond are as many files, all readable."""
    with opened(root, layout) as store:
        run = store.session("r", profile="archive")
        for n in range(saves):
            run.save({"n": n})
    pointer = {Layout.WORKFLOW: "checkpoint.json", Layout.RUN: "latest.json"}.get(layout)
    history = [file for file in documents(root) if file.name != pointer]
    assert len(history) == saves - (layout is Layout.WORKFLOW)
    with opened(root) as store:
        run = store.get("r")
        assert [header.seq for header in run.history()] == list(range(saves, 0, -1))
        assert run.verify().is_intact
        assert all(run.load(seq).state == {"n": seq - 1} for seq in (1, saves // 2, saves))


WRITER = """
import sys, stepkeep
with stepkeep.open(sys.argv[1]) as store:
    run = store.get("shared")
    for n in range(int(sys.argv[3])):
        run.save({"who": sys.argv[2], "n": n})
"""


@pytest.mark.full
@pytest.mark.parametrize("layout", Layout)
@pytest.mark.parametrize("saves", [20, pytest.param(100, marks=pytest.mark.slow)])
def test_eight_processes_lose_nothing(root: Path, layout: Layout, saves: int) -> None:
    """What 8 processes save into one session is numbered without a gap, each as it was saved (V9)."""
    url = f"files:{root}?layout={layout}"
    with stepkeep.open(url) as store:
        store.session("shared", profile="archive")
        writers = [interpreter.start(["-c", WRITER, url, str(n), str(saves)]) for n in range(8)]
        assert [writer.wait() for writer in writers] == [0] * 8
    count = 8 * saves
    with stepkeep.open(url) as store:
        run = store.get("shared")
        assert [header.seq for header in run.history()] == list(range(count, 0, -1))
        states = [run.load(seq).state for seq in range(1, count + 1)]
        report = run.verify()
    assert sorted((state["who"], state["n"]) for state in states) == sorted(
        (str(who), n) for who in range(8) for n in range(saves)
    )
    assert report.is_intact
    assert len(documents(root)) == count + (layout is Layout.RUN)


# --- removing --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("layout", Layout)
def test_a_deleted_checkpoint_takes_its_file_along(root: Path, layout: Layout) -> None:
    """Its bytes are nowhere in the store, it does not come back on opening, and the rest is intact."""
    with opened(root, layout) as store:
        run = store.session("r", profile="archive")
        ids = [run.save({"n": n, "text": f"secret-{n}"}).id for n in range(4)]
        run.delete(ids[1])
        run.delete(ids[3])
    everything = b"".join(file.read_bytes() for file in root.rglob("*") if file.is_file())
    assert b"secret-1" not in everything
    assert b"secret-3" not in everything
    with opened(root) as store:
        run = store.get("r")
        assert [header.id for header in run.history()] == [ids[2], ids[0]]
        assert run.latest().state["n"] == 2
        assert run.verify().is_intact
        assert run.save({"n": 9}).seq == 5


def test_the_newest_that_remains_becomes_checkpoint_json(root: Path) -> None:
    """In `workflow` checkpoint.json is always the newest record itself."""
    pointer = root / "sessions/r/checkpoint.json"
    with opened(root, Layout.WORKFLOW) as store:
        run = store.session("r", profile="archive")
        ids = [run.save({"n": n}).id for n in range(3)]
        run.delete(ids[2])
        assert load(pointer)["checkpoint_id"] == ids[1]
        assert len(documents(root)) == 2
        run.delete(ids[0])
        assert names(root) == ["sessions/r/checkpoint.json"]
        run.delete(ids[1])
        assert names(root) == []
        assert run.latest() is None
        run.save({"n": 9})
        assert load(pointer)["data"] == {"n": 9}


def test_latest_json_follows_a_removal(root: Path) -> None:
    """In `run` it shows the newest that remains, and goes with the last."""
    latest = root / "checkpoints/r/latest.json"
    with opened(root, Layout.RUN) as store:
        run = store.session("r", profile="archive")
        ids = [run.save({"n": n}).id for n in range(3)]
        run.delete(ids[0])
        assert load(latest)["snapshot_id"] == ids[2]
        run.delete(ids[2])
        assert load(latest)["snapshot_id"] == ids[1]
        run.delete(ids[1])
        assert names(root) == []


@pytest.mark.parametrize("layout", Layout)
def test_a_deleted_session_leaves_no_files(root: Path, layout: Layout) -> None:
    """Its folder goes; other sessions stay; the key starts afresh."""
    with opened(root, layout) as store:
        for key in ("one", "two"):
            for n in range(2):
                store.session(key, profile="archive").save({"n": n, "key": key})
        store.get("one").clear()
    assert not any("one" in name for name in names(root))
    with opened(root) as store:
        assert [session.key for session in store.sessions()] == ["two"]
        assert store.get("two").latest().state["n"] == 1
        assert store.session("one").save({"n": 0}).seq == 1


# --- compressing -----------------------------------------------------------------------------------------------


def test_old_history_is_compressed(root: Path) -> None:
    """After its time, never latest.json; the checksum is over the stored bytes, and the bytes come back exactly."""
    clock = FakeClock()
    backend = FilesBackend(root, layout=Layout.RUN, clock=clock)
    assert isinstance(backend, Compresses)
    with stepkeep.Store(backend, clock=clock) as store:
        run = store.session("r", profile="archive")
        old = [run.save({"n": n, "text": "words " * 500}).id for n in range(3)]
        plain = {id: (root / f"checkpoints/r/history/{id}.json").read_bytes() for id in old}
        clock.advance(24 * 3600)
        new = run.save({"n": 3}).id
        assert backend.compress(clock() - 24 * HOUR_US) == 0
        assert backend.compress(clock() - 24 * HOUR_US + 1, limit=2) == 2
        assert backend.compress(clock() - 24 * HOUR_US + 1) == 1
        assert backend.compress(clock() - 24 * HOUR_US + 1) == 0
        assert run.load(1).state["n"] == 0
    history = root / "checkpoints/r/history"
    assert sorted(file.name for file in history.iterdir()) == sorted(
        [f"{new}.json", *(f"{id}.json.gz{more}" for id in old for more in ("", ".sha256"))]
    )
    assert (root / "checkpoints/r/latest.json").exists()
    for id in old:
        assert gzip.decompress((history / f"{id}.json.gz").read_bytes()) == plain[id]
    assert shell(f"cd {history} && sha256sum --check --quiet *.sha256") == ""
    with opened(root) as store:
        run = store.get("r")
        assert [run.load(seq).state["n"] for seq in range(1, 5)] == [0, 1, 2, 3]
        assert run.verify().is_intact
        run.delete(old[1])
        assert not list(history.glob(f"{old[1]}*"))
        assert [header.seq for header in run.history()] == [4, 3, 1]


@pytest.mark.parametrize("layout", [Layout.WORKFLOW, Layout.PHASE])
def test_other_layouts_are_not_compressed(root: Path, layout: Layout) -> None:
    """Only the specification of `run` asks for it."""
    backend = FilesBackend(root, layout=layout)
    with stepkeep.Store(backend) as store:
        store.session("r").save({"n": 1})
        assert backend.compress(2**60) == 0


def test_a_keeper_of_other_sizes_counts_the_files(root: Path) -> None:
    """What the store takes is the documents and the sidecar."""
    backend = FilesBackend(root, layout=Layout.RUN)
    with stepkeep.Store(backend) as store:
        empty = backend.usage().store_bytes
        store.session("r").save({"text": "x" * 100_000})
        assert backend.usage().store_bytes > empty + 100_000


def test_a_pruned_history_is_bounded(root: Path) -> None:
    """Profile `workflow` keeps ten with the newest: the files of the others are gone."""
    clock = FakeClock()
    with opened(root, Layout.WORKFLOW, clock) as store:
        run = store.session("r", profile="workflow")
        for n in range(15):
            run.save({"n": n})
            clock.advance(60)
        run.prune()
        assert [header.seq for header in run.history()] == list(range(15, 5, -1))
    assert len(documents(root)) == 10
    with opened(root) as store:
        assert store.get("r").load(6).state == {"n": 5}
        assert store.verify().is_intact
