"""Captures of project files, beside `git stash create` and a copy of the tree by rsync.

For trees of growing size: the first capture, a capture after one edit, and the bytes after many captures with one
edit each. After each edit all of them capture it, and who is first changes from edit to edit. git has its index as it
left it itself; its first capture is `git add` and `git commit` of everything. A program that is not installed is named
in the table.
"""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Final

import stepkeep
from benchmarks.parts import Part, Row, Table

SIZES: Final = (1_000, 10_000, 100_000)
QUICK_SIZES: Final = (200,)
CAPTURES: Final = 100
QUICK_CAPTURES: Final = 10
JUDGED: Final = 10_000
EDITS: Final = 21
EDITS_OF_LARGE: Final = 7
"""How many edits of a tree the others capture too."""
FILE_BYTES: Final = 2_000
_AUTHOR: Final = ("-c", "user.name=A", "-c", "user.email=a@example.org")
_QUIET: Final = ("-c", "gc.auto=0")

OURS, GIT, RSYNC = "stepkeep", "git", "rsync"
_COLUMNS: Final = (
    "first capture",
    "git add, commit",
    "rsync first copy",
    "after one edit",
    "git stash create",
    "rsync after one edit",
    "first bytes",
    "changed bytes",
    "bytes at the end",
)
_FIRST: Final = {OURS: "first capture", GIT: "git add, commit", RSYNC: "rsync first copy"}
_EDITED: Final = {OURS: "after one edit", GIT: "git stash create", RSYNC: "rsync after one edit"}


def run(directory: Path, *, quick: bool, with_peers: bool) -> Part:
    part = Part()
    sizes = QUICK_SIZES if quick else SIZES
    judged = sizes[0] if quick else JUDGED
    lines = []
    for count in sizes:
        captures = QUICK_CAPTURES if quick else CAPTURES
        figures = _Trial(directory / f"files-{count}", count, with_peers).figures(captures)
        lines.append([f"{count:,}", *(_shown(name, figures.get(name), with_peers) for name in _COLUMNS)])
        if count == judged:
            part.rows = _rows(figures, count)
    part.tables.append(Table("Project files (seconds; bytes)", ["files", *_COLUMNS], lines))
    return part


def _rows(figures: dict[str, float], count: int) -> list[Row]:
    peer = figures.get(_EDITED[GIT])
    edit = None if peer is None else figures[_EDITED[OURS]] / peer
    grown = figures["bytes at the end"] - figures["first bytes"]
    return [
        Row(f"capture after one edit of {count:,} files ÷ git stash create", edit, 1.0),
        Row(
            f"bytes added by captures of {count:,} files ÷ changed bytes",
            grown / figures["changed bytes"],
            1.5,
        ),
    ]


def _shown(name: str, value: float | None, with_peers: bool) -> str:
    if value is None:
        return f"no {name.split()[0]} here" if with_peers else "not run"
    return f"{value:.3f}" if value < 1_000 else f"{value:,.0f}"


class _Trial:
    """One tree, and everything that captures it."""

    def __init__(self, folder: Path, count: int, with_peers: bool) -> None:
        self._folder = folder
        self._tree = folder / "tree"
        self._count = count
        self._peers = {name: shutil.which(name) for name in (GIT, RSYNC)} if with_peers else {}
        self._seconds: dict[str, list[float]] = {}

    def figures(self, captures: int) -> dict[str, float]:
        url = f"sqlite:{self._folder / 'store.db'}"
        _make_tree(self._tree, self._count)
        self._begin_peers()
        with stepkeep.open(url) as store:
            session = store.session("capture", profile="archive", workspace=self._tree)
            self._time(_FIRST[OURS], lambda: session.save(0))
        first_bytes = _stored_bytes(url)
        with stepkeep.open(url) as store:
            session = store.session("capture", workspace=self._tree)
            session.save(0)  # the files are older now: from here on their times are trusted
            self._edit_and_capture(session, captures)
        figures = {name: median(found) for name, found in self._seconds.items()}
        figures["first bytes"], figures["bytes at the end"] = first_bytes, _stored_bytes(url)
        figures["changed bytes"] = captures * FILE_BYTES
        shutil.rmtree(self._folder)
        return figures

    def _begin_peers(self) -> None:
        _git(self._tree, "init", "-q")
        began = time.perf_counter()
        _git(self._tree, "add", "-A")
        _git(self._tree, "commit", "-q", "-m", "begun")
        if self._peers.get(GIT):
            self._seconds[_FIRST[GIT]] = [time.perf_counter() - began]
        if self._peers.get(RSYNC):
            self._time(_FIRST[RSYNC], self._copy)
        time.sleep(0.3)  # files so young that a capture would not trust their times

    def _edit_and_capture(self, session: stepkeep.Session, captures: int) -> None:
        work: dict[str, Callable[[], object]] = {
            OURS: lambda: session.save(0),
            GIT: lambda: _git(self._tree, "stash", "create"),
            RSYNC: self._copy,
        }
        names = [OURS, *(name for name, program in self._peers.items() if program)]
        timed = EDITS if self._count <= JUDGED else EDITS_OF_LARGE
        for number in range(captures):
            _edit(self._tree, number)
            turn = number % len(names)
            for name in [*names[turn:], *names[:turn]] if number < timed else [OURS]:
                self._time(_EDITED[name] if number < timed else "later", work[name])

    def _time(self, what: str, work: Callable[[], object]) -> None:
        began = time.perf_counter()
        work()
        self._seconds.setdefault(what, []).append(time.perf_counter() - began)

    def _copy(self) -> None:
        command = [str(self._peers[RSYNC]), "-a", "--delete", f"{self._tree}/", str(self._folder / "copy")]
        subprocess.run(command, check=True)


def _stored_bytes(url: str) -> int:
    """What the store takes after it was closed, when its log is empty."""
    with stepkeep.open(url) as store:
        return store.usage().store_bytes


def _make_tree(tree: Path, count: int) -> None:
    for number in range(count):
        file = tree / f"package{number % 100:03}" / f"module{number:06}.py"
        if number < 100:
            file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(_content(number, 0))


def _edit(tree: Path, number: int) -> None:
    (tree / "package001" / "module000001.py").write_bytes(_content(1, number + 1))


def _content(number: int, version: int) -> bytes:
    line = f"value_{number} = {number * 7919 % 104729}, {version * 6007 % 99991}\n".encode()
    return (line * (FILE_BYTES // len(line) + 1))[:FILE_BYTES]


def _git(tree: Path, *words: str) -> None:
    command = ["git", *_AUTHOR, *_QUIET, *words]
    subprocess.run(command, cwd=tree, check=True, stdout=subprocess.DEVNULL)
