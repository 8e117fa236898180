"""A disk that is full to the brim: saves fail cleanly, what was saved loads, and pruning makes room again."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

import stepkeep
from tests import interpreter
from tests.crash.stores import KINDS, SQLITE, opened


@pytest.fixture
def tiny_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 1 MiB."""
    folder = tmp_path / "tiny"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder)]
    if os.geteuid() != 0 or subprocess.run(command, capture_output=True, check=False).returncode != 0:
        pytest.skip("mounting a small disk is not allowed here")
    try:
        yield folder
    finally:
        subprocess.run(["umount", str(folder)], check=True)


def fill_up(ballast: Path) -> None:
    """Take all space that is left, to the last byte."""
    with ballast.open("wb", buffering=0) as file:
        for size in (4096, 1):
            with contextlib.suppress(OSError):
                while True:
                    file.write(b"\0" * size)


@pytest.mark.parametrize("kind", KINDS)
def test_a_disk_full_to_the_brim(tiny_disk: Path, kind: str) -> None:
    """A hundred saves fail with their code, nothing saved is lost, and with room again saving goes on."""
    ballast = tiny_disk / "ballast"
    with opened(kind, tiny_disk) as store:
        run = store.session("r", profile="archive")
        for n in range(10):
            run.save({"n": n})
        fill_up(ballast)
        codes = []
        for n in range(100):
            try:
                run.save({"noise": os.urandom(20_000).hex(), "n": n})
            except stepkeep.BackendUnavailable as exc:
                codes.append(exc.code)
        assert len(codes) == 100
        assert set(codes) == {"checkpoint_atomic_write_failed"}
        assert [run.load(header.id).state["n"] for header in run.history()] == list(range(10))[::-1]
        assert run.prune(keep_last=3).deleted == 7  # with the space that was held as ballast
        assert run.save({"n": "pruned"}).seq == 11
        ballast.unlink()
        assert run.save({"n": "after"}).seq == 12
    with opened(kind, tiny_disk) as store:
        assert store.verify().is_intact
        assert store.get("r").load().state == {"n": "after"}


@pytest.mark.parametrize("kind", KINDS)
def test_deleting_on_a_full_disk(tiny_disk: Path, kind: str) -> None:
    """A checkpoint, and then the session, can be deleted without a free byte."""
    with opened(kind, tiny_disk) as store:
        run = store.session("r", profile="archive")
        first = run.save({"n": 0})
        run.save({"n": 1})
        fill_up(tiny_disk / "ballast")
        run.delete(first.id)
        assert [header.seq for header in run.history()] == [2]
        run.clear()
        assert list(store.sessions()) == []


def test_space_is_held_only_where_there_is_little(tiny_disk: Path, tmp_path: Path) -> None:
    """On a roomy disk there is no such file; on a small one it is there, and private, while the disk is small."""
    with opened("sqlite", tmp_path / "roomy") as store:
        store.session("r").save({})
    assert list((tmp_path / "roomy").rglob("*ballast*")) == []
    with opened("sqlite", tiny_disk) as store:
        store.session("r").save({})
        (held,) = tiny_disk.rglob("*-ballast")
        assert 64 * 1024 <= held.stat().st_size <= 256 * 1024
        assert held.stat().st_mode & 0o777 == 0o600
    subprocess.run(["mount", "-o", "remount,size=200m", str(tiny_disk)], check=True)
    with opened("sqlite", tiny_disk) as store:
        assert store.get("r").load().state == {}
    assert not held.exists()


def test_closing_on_a_full_disk_does_not_call_a_save_lost(tiny_disk: Path) -> None:
    """What was acknowledged is there after closing, which says nothing else."""
    refused = False
    for n in range(40):
        saved = False
        try:
            with opened(SQLITE, tiny_disk) as store:
                store.session("r", profile="archive").save({"n": n, "noise": os.urandom(30_000).hex()})
                saved = True
        except stepkeep.BackendUnavailable:
            assert not saved, "closing raised although the checkpoint was stored"
            refused = True
            break
        with opened(SQLITE, tiny_disk) as store:
            assert store.get("r").load().state["n"] == n
    assert refused


def test_a_command_on_a_full_disk_tells_what_is_stored(tiny_disk: Path, tmp_path: Path) -> None:
    """Its exit code is 0 if and only if the checkpoint is the latest."""
    url, stored, code = f"sqlite:{tiny_disk}/a.db", 0, 0
    while code == 0:
        state = {"n": stored + 1, "noise": os.urandom(40_000).hex()}
        code = interpreter.python(
            *("-m", "stepkeep", "--store", url, "save", "r", "--profile", "archive", "--state", "-"),
            input=json.dumps(state).encode(),
            cwd=tmp_path,
            env={"HOME": str(tmp_path), "PATH": os.environ["PATH"]},
        ).returncode
        stored += code == 0
        with stepkeep.open(url) as store:
            assert store.get("r").load().state["n"] == stored
    assert stored > 3
