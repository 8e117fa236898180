"""Random work on real trees and real repositories: every restore is exact, and the repository is only read."""

from __future__ import annotations

import random
import subprocess
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import stepkeep
from tests.sampling import examples
from tests.workspace.repositories import commit, init, outside_view
from tests.workspace.trees import Tree, tree_of

NAMES = ["a", "b.txt", "sub/c", "sub/d.bin", "sub/deep/e", "x y", 'q"', "é", "n\nl"]
IGNORED = ["t.log", "sub/t.log", "__pycache__/m.pyc"]


class Work:
    """A tree under random work: by the shell, by Python, and by commits."""

    def __init__(self, root: Path, rng: random.Random) -> None:
        self.root = root
        self.rng = rng

    def edit(self) -> None:
        act = self.rng.choice(
            [
                self._write,
                self._write,
                self._shell,
                self._remove,
                self._rename,
                self._chmod,
                self._link,
                self._ignored,
            ]
        )
        act(self.root / self.rng.choice(NAMES))

    def _clear(self, path: Path) -> None:
        """Make room for a file: whatever stands there or above goes."""
        for part in [*reversed(path.relative_to(self.root).parents), path.relative_to(self.root)][1:]:
            place = self.root / part
            if place.is_symlink() or place.is_file():
                place.unlink()
        if path.is_dir():
            subprocess.run(["rm", "-rf", str(path)], check=True)
        path.parent.mkdir(parents=True, exist_ok=True)

    def _write(self, path: Path) -> None:
        self._clear(path)
        kind = self.rng.randrange(4)
        content = [b"", self.rng.randbytes(300), b"line\n" * self.rng.randrange(50), b"one"][kind]
        path.write_bytes(content)

    def _shell(self, path: Path) -> None:
        self._clear(path)
        subprocess.run(["sh", "-c", 'echo "$2" >> "$1"', "sh", str(path), str(self.rng.random())], check=True)

    def _remove(self, path: Path) -> None:
        subprocess.run(["rm", "-rf", str(path)], check=True)

    def _rename(self, path: Path) -> None:
        other = self.root / self.rng.choice(NAMES)
        if path.is_file() and not path.is_symlink() and path != other and path not in other.parents:
            self._clear(other)
            if path.exists():
                path.rename(other)

    def _chmod(self, path: Path) -> None:
        if path.is_file() and not path.is_symlink():
            path.chmod(self.rng.choice([0o600, 0o644, 0o755, 0o400]))

    def _link(self, path: Path) -> None:
        self._clear(path)
        path.symlink_to(self.rng.choice(["a", "../outside", "nowhere", "sub"]))

    def _ignored(self, _: Path) -> None:
        path = self.root / self.rng.choice(IGNORED)
        self._clear(path)
        path.write_text(str(self.rng.random()))


def captured_part(tree: Tree) -> Tree:
    return {path: each for path, each in tree.items() if path not in IGNORED}


def ignored_part(tree: Tree) -> Tree:
    return {path: each for path, each in tree.items() if path in IGNORED}


def work_at_random(seed: int, *, steps: int) -> None:
    rng = random.Random(seed)
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder) / "tree"
        root.mkdir()
        is_repository = rng.random() < 0.7
        if is_repository:
            init(root)
        (root / ".gitignore").write_text("*.log\n__pycache__/\n")
        work, taken = Work(root, rng), dict[str, Tree]()
        with stepkeep.open(f"sqlite:{folder}/s.db") as store:
            run = store.session("run", profile="archive")
            for _ in range(steps):
                for _ in range(rng.randrange(4)):
                    work.edit()
                if is_repository and rng.random() < 0.2:
                    commit(root)
                act = rng.random()
                if act < 0.55 or not taken:
                    _capture(run, root, taken, is_repository=is_repository)
                elif act < 0.9:
                    _restore(run, root, rng.choice(list(taken)), taken)
                else:
                    run.prune(keep_last=rng.randrange(2, 6), keep_terminal=False)
                    kept = {header.id for header in run.history()}
                    taken = {name: tree for name, tree in taken.items() if name in kept}
            assert run.verify().findings == ()


def _capture(run: stepkeep.Session, root: Path, taken: dict[str, Tree], *, is_repository: bool) -> None:
    before = outside_view(root) if is_repository else ()
    header = run.save({"n": len(taken)}, workspace=root)
    assert (outside_view(root) if is_repository else ()) == before
    taken[header.id] = tree_of(root)
    assert {entry.path for entry in run.files.at(header.id)} == set(captured_part(taken[header.id]))


def _restore(run: stepkeep.Session, root: Path, ref: str, taken: dict[str, Tree]) -> None:
    before = tree_of(root)
    done = run.files.restore(ref, workspace=root, force=True)
    after = tree_of(root)
    assert ignored_part(after) == ignored_part(before)
    if done.is_complete:
        assert captured_part(after) == captured_part(taken[ref])
    else:  # only what stands where ignored files are may stay
        assert all(any(path.startswith(each.path) for path in IGNORED) for each in done.failures)
    if done.safety is not None:
        taken[done.safety] = before
        assert {entry.path for entry in run.files.at(done.safety)} >= set(captured_part(before))


@settings(max_examples=8)
@given(seed=st.integers(0, 2**32))
def test_every_restore_is_exact(seed: int) -> None:
    """Bytes, modes and links are those of the checkpoint, ignored files stay, and the repository is as it was."""
    work_at_random(seed, steps=12)


@pytest.mark.slow
@settings(max_examples=examples(25))
@given(seed=st.integers(0, 2**32))
def test_every_restore_is_exact_for_longer(seed: int) -> None:
    """The same with more of everything."""
    work_at_random(seed, steps=20)


# --- rules that change between capture and restore

RULES = ["", "*.log\n", "sub/\n", "*.log\n!t.log\n", "deep/\n*.bin\n", "/a\n", "*\n!a\n", "**/e\n", "x*\n"]
RULE_FILES = [".gitignore", "sub/.gitignore", ".git/info/exclude", ".stepkeepignore"]


def rules_at_random(seed: int, *, steps: int) -> None:
    rng = random.Random(seed)
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder) / "tree"
        root.mkdir()
        init(root)
        work, taken = Work(root, rng), dict[str, Tree]()
        with stepkeep.open(f"sqlite:{folder}/s.db") as store:
            run = store.session("run", profile="archive")
            for _ in range(steps):
                for _ in range(rng.randrange(5)):
                    work.edit()
                _change_rules(work)
                if rng.random() < 0.5 or not taken:
                    taken[run.save({"n": len(taken)}, workspace=root).id] = tree_of(root)
                else:
                    _restore_carefully(run, root, rng.choice(list(taken)), taken)


def _change_rules(work: Work) -> None:
    """Write or remove an ignore file, or let git track something in spite of one."""
    path = work.root / work.rng.choice(RULE_FILES)
    if work.rng.random() < 0.3:
        subprocess.run(["git", "add", "-f", "."], cwd=work.root, check=True, capture_output=True)
    elif path.parent.is_dir() and not path.parent.is_symlink():
        work._clear(path)
        path.write_text(work.rng.choice(RULES))


def _restore_carefully(run: stepkeep.Session, root: Path, ref: str, taken: dict[str, Tree]) -> None:
    before, then = tree_of(root), taken[ref]
    captured = {entry.path for entry in run.files.at(ref)}
    done = run.files.restore(ref, workspace=root, force=True)
    after, stuck = tree_of(root), {each.path for each in done.failures}
    blocked = {path for path in then if any(path == each or path.startswith(f"{each}/") for each in stuck)}
    assert {path for path in before if path in then and path not in after} <= blocked
    if done.is_complete:
        assert {path: after.get(path) for path in captured} == {path: then[path] for path in captured}
    assert all(after[path] == before.get(path) for path in after.keys() - captured)
    assert {each.path for each in done.kept} <= after.keys()
    if done.safety is not None:
        taken[done.safety] = before


@settings(max_examples=8)
@given(seed=st.integers(0, 2**32))
def test_nothing_that_was_there_is_removed_whatever_the_rules(seed: int) -> None:
    """Ignore files change, git tracks what is ignored: captured files come back, and only what was absent goes."""
    rules_at_random(seed, steps=12)


@pytest.mark.slow
@settings(max_examples=examples(100))
@given(seed=st.integers(0, 2**32))
def test_nothing_that_was_there_is_removed_for_longer(seed: int) -> None:
    """The same with more of everything."""
    rules_at_random(seed, steps=25)
