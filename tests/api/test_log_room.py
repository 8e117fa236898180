"""Room that is made in SQLite's write-ahead log before it is needed: nothing depends on it, nothing is lost by it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import stepkeep
from stepkeep.storage.log_room import FRAME_BYTES, FRAME_HEADER, FRAMES_AT_ONCE, LOG_HEADER

SAVING = """
import os, resource, signal, sys, stepkeep
path, count, more_bytes = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
run = stepkeep.open(path).session("r")
for n in range(count):
    if n == 2 and more_bytes:
        most = os.stat(path + "-wal").st_size + more_bytes
        resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))
    print(run.save({"n": n}).seq, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def saved_and_killed(path: Path, count: int, *, more_bytes: int = 0) -> int:
    """How many saves a process was acknowledged before it was killed; its files may become so many bytes longer."""
    command = [sys.executable, "-c", SAVING, str(path), str(count), str(more_bytes)]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=False, timeout=60)
    return len(done.stdout.split())


def room(path: Path) -> int:
    """How many frames at the end of the log were never written."""
    log = Path(f"{path}-wal").read_bytes()
    frames = [log[at : at + FRAME_HEADER] for at in range(LOG_HEADER, len(log), FRAME_BYTES)]
    written = [number for number, header in enumerate(frames, 1) if any(header)]
    return len(frames) - max(written, default=0)


def test_a_killed_process_leaves_room_and_everything_it_saved(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    assert saved_and_killed(path, 12) == 12
    assert 0 < room(path) <= FRAMES_AT_ONCE
    with stepkeep.open(path) as store:
        assert [header.seq for header in store.get("r").history()] == list(range(12, 0, -1))
        assert store.get("r").load().state == {"n": 11}
        assert store.verify().is_intact
        assert store.get("r").save({"n": 12}).seq == 13
    assert Path(f"{path}-wal").stat().st_size == 0


def test_a_log_with_room_is_recovered(tmp_path: Path) -> None:
    """Salvage reads the log itself: it ends where the room begins."""
    path = tmp_path / "store.db"
    saved_and_killed(path, 12)
    assert room(path)
    path.write_bytes(b"\0" * path.stat().st_size)
    command = ["recover", str(path), str(tmp_path / "recovered.db")]
    subprocess.run([sys.executable, "-m", "stepkeep", *command], check=True, capture_output=True)
    with stepkeep.open(tmp_path / "recovered.db") as store:
        assert store.get("r").load().state == {"n": 11}


def test_who_saves_twice_makes_no_room(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    assert saved_and_killed(path, 2) == 2
    assert room(path) == 0


def test_where_there_is_none_saves_go_on(tmp_path: Path) -> None:
    """Room for a few more saves, not for room: what was made of it is given back, and the saves are acknowledged."""
    path = tmp_path / "store.db"
    assert saved_and_killed(path, 6, more_bytes=300_000) == 6
    assert room(path) == 0
    with stepkeep.open(path) as store:
        assert store.get("r").load().state == {"n": 5}


def test_two_writers_use_the_same_room(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    with stepkeep.open(path) as one, stepkeep.open(path) as other:
        for n in range(20):
            one.session("one").save({"n": n})
            other.session("other").save({"n": n})
            assert room(path) <= FRAMES_AT_ONCE
        assert room(path)


def test_a_log_that_is_used_again_gets_no_longer(tmp_path: Path) -> None:
    """Room is made up to where SQLite begins anew, and never behind that."""
    path = tmp_path / "store.db"
    with stepkeep.open(path) as store:
        run = store.session("r", profile="archive")
        longest = 0
        for n in range(300):
            run.save({"n": n, "text": "x" * 600})
            longest = max(longest, Path(f"{path}-wal").stat().st_size)
        assert longest <= LOG_HEADER + 1100 * FRAME_BYTES
