"""Patches that `git apply` takes, archives, and differences as text."""

from __future__ import annotations

import os
import subprocess
import tarfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import stepkeep
from stepkeep.api import files
from stepkeep.recording.recovery import RestoreCodeState
from stepkeep.workspace.file_diff import PatchSide, patch_of
from tests.sampling import examples
from tests.workspace.repositories import ENVIRON, commit, git, init
from tests.workspace.trees import Tree, tree_of, write

SIDES = st.none() | st.builds(
    PatchSide,
    st.sampled_from([0o100644, 0o100755, 0o120000]),
    st.binary(max_size=60) | st.text("ab\n\r é", max_size=60).map(str.encode),
)


def test_commit_and_patches_rebuild_the_tree_elsewhere(
    run: stepkeep.Session, repository: Path, tmp_path: Path
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
    state = run.files.patches()
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


def test_a_recovery_point_rebuilds_the_tree_elsewhere(
    url: str, run: stepkeep.Session, repository: Path, tmp_path: Path
) -> None:
    """It has commit and patches by itself: a clone gets every byte, by hand or by the script."""
    write(
        repository, {"a": "one\ntwo\n", "gone": "x\n", "bin": bytes(range(256)), "d/kept": "k\n", "q'": "1\n"}
    )
    head = commit(repository)
    write(repository, {"a": "one\n'$(two)`\\\n", "bin": bytes(range(255, -1, -1)), "new é": "x", "q'": "2\n"})
    (repository / "gone").unlink()
    (repository / "link").symlink_to("a")
    (repository / "d/kept").chmod(0o755)
    header = run.save(1)
    wanted = _as_git_has(tree_of(repository))
    write(repository, {"a": "later"})
    with stepkeep.open(url) as store:
        point = store.get("run").recovery_point(header.id, workspace=repository)
    code = point.recovery_instructions[0]
    assert isinstance(code, RestoreCodeState)
    assert code.commit_hash == head
    by_hand = _clone(repository, tmp_path / "by hand")
    git(by_hand, "checkout", "-q", "--detach", head)
    for patch in code.patches:
        git(by_hand, "apply", "-", given=patch.encode())
    assert _as_git_has(tree_of(by_hand)) == wanted
    by_script = _clone(repository, tmp_path / "by script")
    script = "stepkeep() { :; }\n" + point.as_script()
    subprocess.run(["/bin/sh", "-c", script], cwd=by_script, env=ENVIRON, check=True, capture_output=True)
    assert _as_git_has(tree_of(by_script)) == wanted


def test_patches_bring_the_files_of_submodules(store: stepkeep.Store, tmp_path: Path) -> None:
    """They apply to a clone without submodules, and the text says so."""
    inner, outer = tmp_path / "inner", tmp_path / "outer"
    write(inner, {"i": "1\n"})
    write(outer, {"o": "1\n"})
    commit(init(inner))
    init(outer)
    git(outer, "-c", "protocol.file.allow=always", "submodule", "-q", "add", str(inner), "module")
    commit(outer)
    write(outer, {"module/i": "2\n", "o": "2\n"})
    run = store.session("run")
    run.save(1, workspace=outer)
    point = run.recovery_point(workspace=outer)
    assert "apply 2 patches at the top of a clone without submodules" in point.as_text()
    clone = _clone(outer, tmp_path / "clone")
    script = "stepkeep() { :; }\n" + point.as_script()
    subprocess.run(["/bin/sh", "-c", script], cwd=clone, env=ENVIRON, check=True, capture_output=True)
    assert (clone / "module/i").read_text() == (clone / "o").read_text() == "2\n"


def _clone(repository: Path, place: Path) -> Path:
    git(repository, "clone", "-q", str(repository), str(place))
    return place


def test_a_recovery_point_without_patches_says_where_the_files_are(
    store: stepkeep.Store, repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the repository is not named, or the patches are too large, the commit is there and a note for the rest."""
    write(repository, {"a": "one\n"})
    head = commit(repository)
    write(repository, {"a": "two\n"})
    run = store.session("run")
    header = run.save(1, workspace=repository)
    unnamed = run.recovery_point()
    assert unnamed.recovery_instructions[0] == RestoreCodeState(commit_hash=head)
    assert f"captured files of {header.id} over it, as `stepkeep export --store sqlite:" in unnamed.as_text()
    assert f" {header.id} --files` writes them" in unnamed.as_text()
    assert "+two" in run.recovery_point(workspace=repository).as_script()
    monkeypatch.setattr(files, "MAX_PATCH_BYTES", 10)
    large = run.recovery_point(workspace=repository)
    assert large.recovery_instructions[0] == RestoreCodeState(commit_hash=head)
    assert "the patches are larger than 10 bytes" in large.as_text()
    own = run.recovery_point(commit="4f2a91c").recovery_instructions[0]
    assert own == RestoreCodeState(commit_hash="4f2a91c")


def test_a_recovery_point_of_files_in_no_repository_says_how_to_get_them(
    run: stepkeep.Session, root: Path
) -> None:
    """There is no commit to begin with; the files are mentioned, and the command names the store."""
    write(root, {"a": "one\n"})
    header = run.save(1)
    note, *_, command = run.recovery_point().recovery_instructions
    assert f"1 captured file of {root}" in note.as_text()[0]
    assert "`stepkeep restore --store sqlite:" in note.as_text()[0]
    assert f" {header.id} --files` does" in note.as_text()[0]
    assert "--store sqlite:" in command.as_text()[0]


def test_an_investigation_is_recovered_with_the_code_of_the_checkpoint(
    store: stepkeep.Store, repository: Path
) -> None:
    """What its files were counts, also after code was noted as changed, and on a later commit."""
    write(repository, {"a": "1\n"})
    commit(repository)
    session = store.session("bug", profile="debug", workspace=repository)
    bug = store.investigation(session)
    bug.checkpoint("start")
    write(repository, {"a": "2\n"})
    session.files.changed(notify=bug.code_changed)
    code = bug.recovery_point().recovery_instructions[0]
    assert isinstance(code, RestoreCodeState)
    assert "+2" in code.patches[0]
    commit(repository)
    later = git(repository, "rev-parse", "HEAD").strip()
    bug.checkpoint("later")
    assert bug.recovery_point().recovery_instructions[0] == RestoreCodeState(commit_hash=later)


def test_a_subfolder_gives_patches_for_the_top(store: stepkeep.Store, repository: Path) -> None:
    """They name files from the top of the repository, where they are applied."""
    write(repository, {"app/a": "1\n", "other": "1\n"})
    commit(repository)
    write(repository, {"app/a": "2\n", "other": "2\n"})
    run = store.session("run")
    run.save(1, workspace=repository / "app")
    (patch,) = run.files.patches(workspace=repository / "app").patches
    assert patch.startswith("diff --git a/app/a b/app/a\n")


def test_no_patch_removes_what_a_rule_leaves_out(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a tracked file that was left out nothing is known; one that is gone is removed all the same."""
    write(
        repository, {"big.bin": "keep", "a": "1", "data/x/f": "keep", "gone": "", "gone.bin": "", "log": ""}
    )
    write(repository, {"stepkeep.yaml": "workspace:\n  ignore: [log]\n"})
    monkeypatch.chdir(repository)
    with stepkeep.open("files:runs") as store:
        store.session("other").save(1)
        commit(repository)
        write(repository, {".stepkeepignore": "*.bin\ndata/\n"})
        (repository / "gone").unlink()
        (repository / "gone.bin").unlink()
        run = store.session("run", workspace=repository)
        run.save(1)
        removed = [patch for patch in run.files.patches().patches if "deleted file" in patch]
    assert [patch.split()[2] for patch in removed] == ["a/gone", "a/gone.bin"]


def test_no_patch_removes_what_is_not_checked_out(run: stepkeep.Session, repository: Path) -> None:
    """In a sparse checkout a file that is not there was not removed by anybody."""
    write(repository, {"app/a": "1\n", "app/gone": "", "app/gone too": "", "far/b": "", "far/deep/c": ""})
    write(repository, {"top": "1\n", "app/inner/d": ""})
    commit(repository)
    git(repository, "sparse-checkout", "set", "--no-cone", "/app/", "!/app/inner/")
    assert not (repository / "far").exists()
    (repository / "app/gone").unlink()
    git(repository, "rm", "-q", "app/gone too")
    write(repository, {"app/a": "2\n"})
    run.save(1)
    names = [patch.split(" ", 2)[2].partition(" b/")[0] for patch in run.files.patches().patches]
    assert names == ["a/app/gone", "a/app/gone too", "a/app/a"]
    manifest = run.files.at().manifest
    assert manifest.left_out == ("app/inner/", "far/", "top")
    git(repository, "sparse-checkout", "disable")
    run.save(2)
    assert run.files.at().manifest.left_out == ()


def test_a_commit_that_is_not_there_is_told(run: stepkeep.Session, repository: Path, tmp_path: Path) -> None:
    """A repository that never had it cannot be the base."""
    write(repository, {"a": "1"})
    commit(repository)
    run.save(1)
    other = tmp_path / "other"
    other.mkdir()
    init(other)
    with pytest.raises(stepkeep.NotFound) as caught:
        run.files.patches(workspace=other)
    assert caught.value.code == "commit_not_found"


@settings(max_examples=examples(40))
@given(old=SIDES, new=SIDES, name=st.sampled_from(["a", "b c", 'q"', "d/é", "t\tb", "n\nl"]))
def test_git_applies_what_patch_of_gives(
    tmp_path_factory: pytest.TempPathFactory, old: PatchSide | None, new: PatchSide | None, name: str
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


def _place(root: Path, name: str, side: PatchSide | None) -> None:
    if side is None:
        return
    path = root / name
    path.parent.mkdir(exist_ok=True)
    if side.mode == 0o120000:
        path.symlink_to(os.fsdecode(side.content))
    else:
        path.write_bytes(side.content)
        path.chmod(side.mode & 0o777)


def test_the_archive_has_the_files(run: stepkeep.Session, root: Path, tmp_path: Path) -> None:
    """With permissions, links and any name; the same checkpoint gives the same bytes."""
    write(root, {"a": "1", "d/b": "2", os.fsdecode(b"\xff"): "3"})
    (root / "a").chmod(0o755)
    (root / "l").symlink_to("a")
    run.save(1)
    for name in ("one.tar", "two.tar"):
        run.files.export(output=tmp_path / name)
    with pytest.raises(stepkeep.InvalidInput):
        run.files.export(output=tmp_path / "one.tar")
    assert (tmp_path / "one.tar").read_bytes() == (tmp_path / "two.tar").read_bytes()
    out = tmp_path / "out"
    with tarfile.open(tmp_path / "one.tar") as archive:
        archive.extractall(out, filter="fully_trusted")
    assert tree_of(out) == tree_of(root)
