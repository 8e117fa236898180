"""Captures of project files, beside `git stash create` and a copy of the tree by rsync.

For trees of growing size: the first capture, a capture after one edit, and the bytes after many captures with one
edit each. rsync is left out where it is not installed.
"""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Final

import holdfast
from benchmarks.parts import Part, Row, Table

SIZES: Final = (1_000, 10_000, 100_000)
QUICK_SIZES: Final = (200,)
CAPTURES: Final = 100
QUICK_CAPTURES: Final = 10
EDITS: Final = 7
FILE_BYTES: Final = 2_000
JUDGED: Final = 10_000
_AUTHOR: Final = ("-c", "user.name=A", "-c", "user.email=a@example.org")


def run(directory: Path, *, quick: bool, with_peers: bool) -> Part:
    part = Part()
    sizes = QUICK_SIZES if quick else SIZES
    judged = sizes[0] if quick else JUDGED
    lines = []
    for count in sizes:
        figures = _figures(
            directory / f"files-{count}", count, QUICK_CAPTURES if quick else CAPTURES, with_peers
        )
        lines.append([f"{count:,}", *(_shown(figures.get(name)) for name in _COLUMNS)])
        if count == judged:
            part.rows = _rows(figures, count)
    part.tables.append(Table("Project files (seconds; bytes)", ["files", *_COLUMNS], lines))
    return part


_COLUMNS: Final = (
    "first capture",
    "after one edit",
    "git stash create",
    "rsync copy",
    "first bytes",
    "changed bytes",
    "bytes at the end",
)


def _rows(figures: dict[str, float], count: int) -> list[Row]:
    peer = figures.get("git stash create")
    edit = None if peer is None else figures["after one edit"] / peer
    grown = figures["bytes at the end"] - figures["first bytes"]
    return [
        Row(f"capture after one edit of {count:,} files ÷ git stash create", edit, 1.0),
        Row(
            f"bytes added by captures of {count:,} files ÷ changed bytes",
            grown / figures["changed bytes"],
            1.5,
        ),
    ]


def _shown(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:.3f}" if value < 1_000 else f"{value:,.0f}"


def _figures(folder: Path, count: int, captures: int, with_peers: bool) -> dict[str, float]:
    tree = folder / "tree"
    _make_tree(tree, count)
    figures: dict[str, float] = {}
    url = f"sqlite:{folder / 'store.db'}"
    with holdfast.open(url) as store:
        session = store.session("capture", profile="archive", workspace=tree)
        figures["first capture"] = _seconds(lambda: session.save(0))
    figures["first bytes"] = _stored_bytes(url)
    with holdfast.open(url) as store:
        session = store.session("capture", workspace=tree)
        session.save(0)  # the files are older now: from here on their times are trusted
        times: list[float] = []
        stashes: list[float] = []
        for number in range(captures):
            _edit(tree, number)
            if with_peers and number < EDITS:
                stashes.append(_seconds(lambda: _git(tree, "stash", "create")))
            times.append(_seconds(lambda number=number: session.save(number)))
        figures["after one edit"] = median(times[:EDITS])
        if stashes:
            figures["git stash create"] = median(stashes)
    figures["bytes at the end"] = _stored_bytes(url)
    figures["changed bytes"] = captures * FILE_BYTES
    if with_peers and (rsync := shutil.which("rsync")) is not None:
        copy = [rsync, "-a", "--delete", f"{tree}/", str(folder / "copy")]
        subprocess.run(copy, check=True)
        _edit(tree, -1)
        figures["rsync copy"] = _seconds(lambda: subprocess.run(copy, check=True))
    shutil.rmtree(folder)
    return figures


def _stored_bytes(url: str) -> int:
    """What the store takes after it was closed, when its log is empty."""
    with holdfast.open(url) as store:
        return store.usage().store_bytes


def _make_tree(tree: Path, count: int) -> None:
    for number in range(count):
        file = tree / f"package{number % 100:03}" / f"module{number:06}.py"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(_content(number, 0))
    _git(tree, "init", "-q")
    _git(tree, "add", "-A")
    _git(tree, *_AUTHOR, "commit", "-q", "-m", "begun")
    time.sleep(0.3)  # files so young that a capture would not trust their times


def _edit(tree: Path, number: int) -> None:
    (tree / "package001" / "module000001.py").write_bytes(_content(1, number + 1))


def _content(number: int, version: int) -> bytes:
    line = f"value_{number} = {number * 7919 % 104729}, {version * 6007 % 99991}\n".encode()
    return (line * (FILE_BYTES // len(line) + 1))[:FILE_BYTES]


def _git(tree: Path, *words: str) -> None:
    author = () if words[0] == "-c" else _AUTHOR
    subprocess.run(["git", *author, *words], cwd=tree, check=True, stdout=subprocess.DEVNULL)


def _seconds(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began
