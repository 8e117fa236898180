"""The rules of ignore files mean what they mean to git."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from stepkeep.workspace.ignore import Rules
from stepkeep.workspace.scan import Scan, opened_root
from tests.workspace.repositories import git, init

PIECES = [
    "a",
    "b",
    "ab",
    "*",
    "**",
    "?",
    "/",
    "!",
    "\\",
    "[ab]",
    "[!a]",
    "[a-",
    "]",
    " ",
    "#",
    ".",
    "[[:alpha:]]",
    "é",
]
LINES = st.lists(st.sampled_from(PIECES), min_size=1, max_size=6).map("".join)
IGNORE_FILES = st.lists(LINES, max_size=5).map("\n".join)
NAMES = st.sampled_from(["a", "b", "ab", "a.b", "#a", "!a", "a ", "é", "x", "ba", "[", "\\"])
PATHS = st.lists(NAMES, min_size=1, max_size=4).map("/".join)


@pytest.fixture(scope="module")
def tree() -> Iterator[Path]:
    """One repository for all examples: starting git once less for each of them halves the time."""
    with tempfile.TemporaryDirectory() as folder:
        yield init(Path(folder))


def _empty(root: Path) -> None:
    for each in root.iterdir():
        if each.name != ".git":
            shutil.rmtree(each) if each.is_dir() else each.unlink()


def _fill(root: Path, paths: list[str]) -> list[str]:
    """Make files, as far as they do not stand in each other's way."""
    made = []
    for path in paths:
        try:
            (root / path).parent.mkdir(parents=True, exist_ok=True)
            (root / path).touch()
        except OSError:
            continue
        if not (root / path).is_dir():
            made.append(path)
    return sorted(set(made))


def _left_by_git(root: Path, paths: list[str]) -> set[str]:
    """The paths that git does not ignore."""
    given = b"\0".join(os.fsencode(path) for path in paths)
    done = subprocess.run(
        ["git", "check-ignore", "-z", "--stdin"], cwd=root, input=given, capture_output=True, check=False
    )
    assert done.returncode in (0, 1), done.stderr
    return set(paths) - {os.fsdecode(path) for path in done.stdout.split(b"\0")}


def _left_by_us(root: Path) -> set[str]:
    scan = Scan()
    with opened_root(str(root)) as descriptor:
        scan.tree(descriptor, Rules())
    return set(scan.found)


def _check(root: Path, top: str, nested: str, paths: list[str]) -> None:
    _empty(root)
    (root / "a").mkdir()
    files = [*_fill(root, paths), ".gitignore", "a/.gitignore"]
    (root / ".gitignore").write_text(top, encoding="utf-8")
    (root / "a" / ".gitignore").write_text(nested, encoding="utf-8")
    assert _left_by_us(root) == _left_by_git(root, files)


@settings(max_examples=80)
@given(top=IGNORE_FILES, nested=IGNORE_FILES, paths=st.lists(PATHS, min_size=1, max_size=12))
@example(top="a**/b", nested="", paths=["a/b", "ab/b", "axb", "ab/x/b"])
@example(top="a/b/", nested="", paths=["a/b/x", "a/ba/x", "x/a/b"])
@example(top="*\n!a/\n!b", nested="", paths=["a/b", "b", "a/x"])
@example(top="a\\ \nb \\\n", nested="!x", paths=["a ", "a", "b ", "b"])
def test_what_git_ignores_is_ignored(tree: Path, top: str, nested: str, paths: list[str]) -> None:
    """Nested files, negation, anchors, stars, brackets, escapes and trailing spaces: as `git check-ignore` says."""
    _check(tree, top, nested, paths)


@pytest.mark.slow
@settings(max_examples=500)
@given(top=IGNORE_FILES, nested=IGNORE_FILES, paths=st.lists(PATHS, min_size=1, max_size=12))
def test_what_git_ignores_is_ignored_in_more_examples(
    tree: Path, top: str, nested: str, paths: list[str]
) -> None:
    """The same for many more rules and paths."""
    _check(tree, top, nested, paths)


def test_git_is_there() -> None:
    """These tests compare with the real one."""
    assert git(Path(), "version").startswith("git version")
