"""Patches that `git apply` takes, archives, and differences as text."""

from __future__ import annotations

import os
import subprocess
import tarfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import holdfast
from holdfast.workspace.patches import Side, patch_of
from tests.workspace.repositories import commit, git, init
from tests.workspace.trees import Tree, tree_of, write

SIDES = st.none() | st.builds(
    Side,
    st.sampled_from([0o100644, 0o100755, 0o120000]),
    st.binary(max_size=60) | st.text("ab\n\r é", max_size=60).map(str.encode),
)


def test_commit_and_patches_rebuild_the_tree_elsewhere(
    run: holdfast.Session, repository: Path, tmp_path: Path
) -> None:
    """A clone at the commit, with every patch applied in order, has the captured files."""
    write(
        repository,
        {"a": "one\ntwo\n", "gone": "x\n", "bin": bytes(range(256)), "sp ace": "1\n", "dir/f": "1\n"},
    )
    write(repository, {"becomes": "file\n", "end": "no newline"})
    head = commit(repository)
    write(
        repository,
        {"a": "one\nTWO\nthree\n", "bin": bytes(range(255, -1, -1)), "sp ace": "2\n", "end": "now\n"},
    )
    write(repository, {'new\n"é': "x", "empty": "", ".gitignore": "*.log\n", "x.log": "ignored"})
    (repository / "gone").unlink()
    (repository / "dir/f").chmod(0o755)
    (repository / "becomes").unlink()
    (repository / "becomes").symlink_to("a")
    run.save(1)
    state = run.code_patches()
    assert (state.commit, state.branch) == (head, "main")
    clone = tmp_path / "clone"
    git(tmp_path, "clone", "-q", str(repository), str(clone))
    git(clone, "checkout", "-q", head)
    for patch in state.patches:
        git(clone, "apply", "--index", "-", given=patch.encode("utf-8", "surrogateescape"))
    wanted = tree_of(repository)
    del wanted["x.log"]
    assert _as_git_has(tree_of(clone)) == _as_git_has(wanted)


def _as_git_has(tree: Tree) -> Tree:
    """git only knows whether a file is a program."""
    return {
        path: (mode if mode > 0o777 else 0o755 if mode & 0o100 else 0o644, content)
        for path, (mode, content) in tree.items()
    }


def test_a_subfolder_gives_patches_for_the_top(store: holdfast.Store, repository: Path) -> None:
    """They name files from the top of the repository, where they are applied."""
    write(repository, {"app/a": "1\n", "other": "1\n"})
    commit(repository)
    write(repository, {"app/a": "2\n", "other": "2\n"})
    run = store.session("run")
    run.save(1, workspace=repository / "app")
    (patch,) = run.code_patches(workspace=repository / "app").patches
    assert patch.startswith("diff --git a/app/a b/app/a\n")


def test_a_commit_that_is_not_there_is_told(run: holdfast.Session, repository: Path, tmp_path: Path) -> None:
    """A repository that never had it cannot be the base."""
    write(repository, {"a": "1"})
    commit(repository)
    run.save(1)
    other = tmp_path / "other"
    other.mkdir()
    init(other)
    with pytest.raises(holdfast.NotFound) as caught:
        run.code_patches(workspace=other)
    assert caught.value.code == "commit_not_found"


@settings(max_examples=40)
@given(old=SIDES, new=SIDES, name=st.sampled_from(["a", "b c", 'q"', "d/é", "t\tb", "n\nl"]))
def test_git_applies_what_patch_of_gives(
    tmp_path_factory: pytest.TempPathFactory, old: Side | None, new: Side | None, name: str
) -> None:
    """Any two sides, also of different kinds: one becomes exactly the other."""
    if any(
        side is not None and side.mode == 0o120000 and not _is_target(side.content) for side in (old, new)
    ):
        return
    root = tmp_path_factory.mktemp("repository")
    _place(root, name, old)
    patch = patch_of(name, old, new)
    if not patch:
        assert old == new
        return
    done = subprocess.run(
        ["git", "apply", "-"], cwd=root, input=patch.encode(), capture_output=True, check=False
    )
    assert done.returncode == 0, (patch, done.stderr)
    expected = root.with_name(root.name + "-expected")
    expected.mkdir()
    _place(expected, name, new)
    assert _as_git_has(tree_of(root)) == _as_git_has(tree_of(expected))


def _is_target(content: bytes) -> bool:
    return bool(content) and b"\0" not in content


def _place(root: Path, name: str, side: Side | None) -> None:
    if side is None:
        return
    path = root / name
    path.parent.mkdir(exist_ok=True)
    if side.mode == 0o120000:
        path.symlink_to(os.fsdecode(side.content))
    else:
        path.write_bytes(side.content)
        path.chmod(side.mode & 0o777)


def test_the_archive_has_the_files(run: holdfast.Session, root: Path, tmp_path: Path) -> None:
    """With permissions, links and any name; the same checkpoint gives the same bytes."""
    from holdfast.operations import export_files

    write(root, {"a": "1", "d/b": "2", os.fsdecode(b"\xff"): "3"})
    (root / "a").chmod(0o755)
    (root / "l").symlink_to("a")
    run.save(1)
    with holdfast.open(run._engine.backend.url) as store:
        for name in ("one.tar", "two.tar"):
            export_files(store, "run", output=tmp_path / name)
        with pytest.raises(holdfast.InvalidInput):
            export_files(store, "run", output=tmp_path / "one.tar")
    assert (tmp_path / "one.tar").read_bytes() == (tmp_path / "two.tar").read_bytes()
    out = tmp_path / "out"
    with tarfile.open(tmp_path / "one.tar") as archive:
        archive.extractall(out, filter="fully_trusted")
    assert tree_of(out) == tree_of(root)
