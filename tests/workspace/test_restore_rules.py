"""What a restore of files removes and what it leaves, where rules and caps have a say."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest

import stepkeep
from stepkeep.workspace.file_restore import RestoredFiles, captured_in, plan_restore
from stepkeep.workspace.manifest import FileEntry, Manifest, PathFilter, Skipped
from tests.workspace import programs
from tests.workspace.repositories import git, init
from tests.workspace.trees import tree_of, write

# --- what a rule leaves out, and what does not


def test_a_file_of_a_nested_repository_is_removed(run: stepkeep.Session, repository: Path) -> None:
    """The rules of the outer one do not hold there, so it was captured, and the checkpoint does not have it."""
    write(repository, {".gitignore": "*.log\n", "n/a": "1", "x.log": "ignored"})
    init(repository / "n")
    first = run.save(1)
    before = tree_of(repository)
    write(repository, {"n/new.log": "l"})
    second = run.save(2)
    assert [change.path for change in run.files.diff(first.id, second.id).changes] == ["n/new.log"]
    assert run.files.restore(first.id).is_complete
    assert tree_of(repository) == before


def test_a_file_that_a_rule_from_outside_takes_back_is_removed(
    run: stepkeep.Session, repository: Path
) -> None:
    """Here one in `.git/info/exclude` against a built-in one."""
    write(repository, {".git/info/exclude": "!venv/\n", "venv/a": "1"})
    first = run.save(1)
    before = tree_of(repository)
    write(repository, {"venv/b": "2"})
    run.save(2)
    assert run.files.restore(first.id).is_complete
    assert tree_of(repository) == before


def test_an_ignored_file_that_git_tracks_by_now_is_removed(run: stepkeep.Session, repository: Path) -> None:
    """It is captured because of that, the checkpoint knows that it was not there, and undo brings it back."""
    write(repository, {".gitignore": "*.log\n", "a": "1", "ignored.log": "stays"})
    first = run.save(1)
    before = tree_of(repository)
    write(repository, {"x.log": "2"})
    git(repository, "add", "-f", "x.log")
    run.save(2)
    assert run.files.restore(first.id).is_complete
    assert tree_of(repository) == before
    assert run.files.undo().is_complete
    assert (repository / "x.log").read_text() == "2"


def kept(done: RestoredFiles) -> dict[str, str]:
    return {each.path: each.reason for each in done.kept}


def test_an_ignored_file_that_was_there_stays_though_git_tracks_it_now(
    run: stepkeep.Session, repository: Path
) -> None:
    """Beside others, or in a folder that was not looked into; both are told with the rule."""
    write(repository, {".gitignore": "*.log\nbuild/\n", "a": "1", "keep.log": "kept", "build/x": "kept"})
    first = run.save(1)
    git(repository, "add", "-f", "keep.log", "build/x")
    run.save(2)
    done = run.files.restore(first.id)
    assert done.is_complete
    assert (repository / "keep.log").read_text() == (repository / "build/x").read_text() == "kept"
    assert list(kept(done)) == ["build/x", "keep.log"]
    assert ".gitignore: *.log" in kept(done)["keep.log"]
    assert ".gitignore: build/" in kept(done)["build/x"]


@pytest.mark.parametrize("rules", [".gitignore", ".git/info/exclude", ".stepkeepignore"])
def test_what_a_rule_left_out_stays_when_the_rule_is_gone(
    run: stepkeep.Session, repository: Path, rules: str
) -> None:
    """Whichever file had it: the manifest lists what was there and left out."""
    write(repository, {rules: "*.env\n", "a": "1", "secret.env": "kept"})
    first = run.save(1)
    write(repository, {rules: "", "a": "2", "new.txt": "goes"})
    run.save(2)
    done = run.files.restore(first.id)
    assert (repository / "secret.env").read_text() == "kept"
    assert not (repository / "new.txt").exists()
    assert list(kept(done)) == ["secret.env"]
    assert f"{rules.removeprefix('.git/')}: *.env" in kept(done)["secret.env"]


@pytest.mark.parametrize("rules", [".gitignore", "config/git/ignore"], ids=["above", "the user's"])
def test_what_a_rule_from_outside_left_out_stays_when_it_is_gone(
    run: stepkeep.Session, root: Path, tmp_path: Path, rules: str
) -> None:
    """The checkpoint does not have that file, so only the manifest can tell what it left out."""
    init(tmp_path)
    write(tmp_path, {rules: "*.env\n"})
    write(root, {"a": "1", "secret.env": "kept"})
    first = run.save(1)
    write(tmp_path, {rules: ""})
    write(root, {"a": "2", "new.txt": "goes"})
    run.save(2)
    done = run.files.restore(first.id)
    assert (root / "secret.env").read_text() == "kept"
    assert not (root / "new.txt").exists()
    assert list(kept(done)) == ["secret.env"]
    assert "*.env" in kept(done)["secret.env"]


def test_what_was_not_checked_out_stays(run: stepkeep.Session, repository: Path) -> None:
    """A sparse checkout that becomes a whole one: its files are not taken for new."""
    write(repository, {"in/a": "1", "out/b": "2"})
    git(repository, "add", ".")
    git(repository, "commit", "-qm", "first")
    git(repository, "sparse-checkout", "set", "in")
    first = run.save(1)
    git(repository, "sparse-checkout", "disable")
    run.save(2)
    done = run.files.restore(first.id)
    assert (repository / "out/b").read_text() == "2"
    assert list(kept(done)) == ["out/b"]


def test_a_folder_with_very_many_ignored_files_keeps_all_of_them(
    run: stepkeep.Session, repository: Path
) -> None:
    """They are not listed one by one, so none of that folder is known to be absent."""
    write(repository, {".gitignore": "*.o\n", **{f"obj/{number}.o": "" for number in range(1001)}})
    first = run.save(1)
    assert len(run.files.at(first.id).manifest.ignored or ()) == 1
    write(repository, {".gitignore": "", "top.txt": "goes"})
    run.save(2)
    done = run.files.restore(first.id)
    assert len(done.kept) == len(list((repository / "obj").iterdir())) == 1001
    assert not (repository / "top.txt").exists()


@pytest.mark.parametrize("broken", ["index", "ownership", "none"])
def test_git_that_cannot_be_asked_is_told(
    run: stepkeep.Session,
    repository: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    broken: str,
) -> None:
    """A tracked file that is ignored is then left out: a warning says so, and restoring that capture keeps it."""
    write(repository, {".gitignore": "*.log\n", "keep.log": "kept"})
    git(repository, "add", "-f", "keep.log")
    index = (repository / ".git/index").read_bytes()
    if broken == "ownership" and os.geteuid() != 0:
        pytest.skip("only root can give a folder away")
    if broken == "index":
        (repository / ".git/index").write_bytes(b"broken")
    elif broken == "ownership":
        os.chown(repository / ".git", 12345, 12345)
        os.chown(repository, 12345, 12345)
    else:
        monkeypatch.setenv("PATH", str(tmp_path))
    first = run.save(1)
    assert "git cannot be asked" in caplog.text
    assert run.files.at(first.id).manifest.git_problem
    monkeypatch.undo()
    monkeypatch.setenv("HOME", str(tmp_path))
    for path in (repository, repository / ".git"):
        os.chown(path, os.geteuid(), os.getegid())
    (repository / ".git/index").write_bytes(index)
    run.save(2)
    done = run.files.restore(first.id)
    assert list(kept(done)) == ["keep.log"]
    assert (repository / "keep.log").read_text() == "kept"


@pytest.mark.parametrize("has_git", [True, False])
def test_a_tree_without_a_repository_is_no_problem_of_git(
    run: stepkeep.Session,
    root: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    has_git: bool,
) -> None:
    """Nothing is tracked there, so nothing that is ignored is missing: no warning, whether or not git is installed."""
    write(root, {".gitignore": "*.log\n", "a.log": "x", "b": "y"})
    if not has_git:
        monkeypatch.setenv("PATH", str(tmp_path))
    first = run.save(1)
    assert caplog.text == ""
    assert run.files.at(first.id).manifest.git_problem == ""


def test_a_safety_checkpoint_does_not_make_an_ignored_file_known(
    run: stepkeep.Session, repository: Path
) -> None:
    """It captured one that is ignored. A checkpoint that left it out still says nothing about it: it stays."""
    write(repository, {"x.log": "one"})
    first = run.save(1)
    write(repository, {".gitignore": "*.log\n", "x.log": "two"})
    second = run.save(2)
    run.files.restore(first.id, force=True)
    assert run.files.restore(second.id).is_complete
    assert (repository / "x.log").read_text() == "one"


# --- what cannot be captured


def test_what_cannot_be_captured_and_should_go_is_told(limited: stepkeep.Session, root: Path) -> None:
    """A file over the cap that the checkpoint does not have stays, and is named; one it left out itself is not."""
    write(root, {"a": "1", "was/big": "x" * 2000})
    first = limited.save(1)
    write(root, {"big": "x" * 5000, "n": "2"})
    limited.save(2)
    for paths, changed in (([], ["n"]), (["big"], [])):
        done = limited.files.restore(first.id, paths)
        assert [change.path for change in done.changes] == changed
        assert [each.path for each in done.failures] == ["big"]
        assert "larger than 1,000 bytes" in done.failures[0].reason
    assert sorted(tree_of(root)) == ["a", "big", "was/big"]
    assert limited.files.undo().is_complete


def test_a_refusal_says_what_helps_where_a_save_does_not(limited: stepkeep.Session, root: Path) -> None:
    """A file that outgrew the cap is in no capture but the safety checkpoint of a forced restore."""
    write(root, {"a": "1", "grown": "1"})
    first = limited.save(1)
    write(root, {"a": "2", "grown": "x" * 5000})
    with pytest.raises(stepkeep.Conflict, match=r"A save leaves out 1 of them.*'grown'. Use force"):
        limited.files.restore(first.id)
    with pytest.raises(stepkeep.Conflict, match="Capture them first"):
        limited.files.restore(first.id, ["a"])
    done = limited.files.restore(first.id, force=True)
    assert done.safety is not None
    assert limited.files.at(done.safety).read("grown") == b"x" * 5000


def test_a_plan_removes_nothing_that_could_not_be_read(root: Path) -> None:
    """A path that was not there is removed; not one in a directory that was unreadable, though none was seen."""
    entry = FileEntry("locked/q", 0o100644, 1, "d")
    live = Manifest(root=str(root), entries=(entry,))
    for skipped, removed in (((), ["locked/q"]), ((Skipped("locked/", "unreadable"),), [])):
        target = Manifest(root=str(root), absent=("locked/q",), skipped=skipped, ignored=())
        is_known = captured_in([live])
        plan = plan_restore(target, live, is_known=is_known, wanted=PathFilter(), is_left_out=lambda _: False)
        assert [change.path for change in plan.changes] == removed


@pytest.mark.skipif(os.getuid() != 0, reason="another user is needed, to whom things are unreadable")
def test_undo_keeps_what_was_unreadable_before_the_restore() -> None:
    """It was there all the time: the restore reports it, and undo leaves it alone."""
    with tempfile.TemporaryDirectory() as folder:
        base = Path(folder)
        write(base / "tree", {"f": "f", "locked/q": "q"})
        for path in (base, *base.rglob("*")):
            os.chown(path, 65534, 65534)
        printed = programs.run(programs.LOCKED, f"sqlite:{base}/s.db", str(base / "tree"))
        assert printed.splitlines() == ["['locked/', 'locked/q'] ['f']", "True ['f'] q"]
