"""Restoring files: exactly what was captured, after a safety checkpoint, and nothing else."""

from __future__ import annotations

import os
import random
import shutil
import signal
import sqlite3
import subprocess
import tempfile
import time
from pathlib import Path

import pytest

import stepkeep
from stepkeep.workspace import staging
from stepkeep.workspace.manifest import STAGING_PREFIX
from tests.workspace import programs
from tests.workspace.trees import tree_of, write


def test_a_restore_gives_the_tree_of_the_checkpoint(run: stepkeep.Session, root: Path) -> None:
    """Contents, permissions and links come back, and what was added since goes."""
    write(root, {"a": "one", "gone/deep/b": "two", "mode": "x", "kind": "file"})
    (root / "link").symlink_to("a")
    first = run.save(1)
    before = tree_of(root)
    write(root, {"a": "changed", "new/c": "three"})
    (root / "gone/deep/b").unlink()
    (root / "gone/deep").rmdir()
    (root / "mode").chmod(0o755)
    (root / "link").unlink()
    (root / "link").symlink_to("mode")
    (root / "kind").unlink()
    (root / "kind").symlink_to("a")
    second = run.save(2)
    changed = tree_of(root)
    done = run.files.restore(first.id)
    assert done.is_complete
    assert tree_of(root) == before
    assert not (root / "new").exists()
    assert done.safety is not None
    assert "safety" in run.header(done.safety).tags
    assert run.files.restore(second.id).is_complete
    assert tree_of(root) == changed


def test_a_dry_run_changes_nothing(run: stepkeep.Session, root: Path) -> None:
    """Neither the tree nor the store."""
    write(root, {"a": "one"})
    first = run.save(1)
    write(root, {"a": "two", "b": ""})
    before, seq = tree_of(root), run.info.last_seq
    plan = run.files.restore(first.id, dry_run=True)
    assert [(change.kind, change.path) for change in plan.changes] == [
        ("changed", "a"),
        ("removed", "b"),
    ]
    assert plan.conflicts == ("a", "b")
    assert (tree_of(root), run.info.last_seq) == (before, seq)
    assert not plan.is_complete


def test_work_that_no_capture_has_is_not_overwritten(run: stepkeep.Session, root: Path) -> None:
    """Without force nothing is written; with it, the safety checkpoint has what was there."""
    write(root, {"a": "one", "b": "one"})
    first = run.save(1)
    write(root, {"a": "two", "b": "two"})
    run.save(2)
    write(root, {"a": "precious"})
    before, seq = tree_of(root), run.info.last_seq
    with pytest.raises(stepkeep.Conflict) as caught:
        run.files.restore(first.id)
    assert caught.value.code == "files_changed"
    assert (tree_of(root), run.info.last_seq) == (before, seq)
    assert run.files.restore(first.id, ["b"]).is_complete
    done = run.files.restore(first.id, force=True)
    assert done.safety is not None
    assert run.files.at(done.safety).read("a") == b"precious"
    assert (root / "a").read_text() == "one"


def test_undo_returns_to_the_safety_checkpoint(run: stepkeep.Session, root: Path) -> None:
    """Undoing twice is doing it again."""
    write(root, {"a": "one"})
    first = run.save(1)
    write(root, {"a": "two", "b": "new"})
    run.save(2)
    before = tree_of(root)
    run.files.restore(first.id)
    restored = tree_of(root)
    assert run.files.undo().is_complete
    assert tree_of(root) == before
    assert run.files.undo().is_complete
    assert tree_of(root) == restored


def test_there_may_be_nothing_to_undo(run: stepkeep.Session) -> None:
    """That is told."""
    run.save(1)
    with pytest.raises(stepkeep.NotFound) as caught:
        run.files.undo()
    assert caught.value.code == "nothing_to_undo"


def test_the_state_stays_as_it_is(run: stepkeep.Session, root: Path) -> None:
    """A safety checkpoint carries the latest state, its details and step included in nothing new."""
    write(root, {"a": "one"})
    first = run.save({"n": 1}, details={"d": 1})
    write(root, {"a": "two"})
    run.save({"n": 2}, details={"d": 2})
    run.files.restore(first.id)
    latest = run.latest()
    assert latest is not None
    assert (latest.state, latest.details) == ({"n": 2}, {"d": 2})


def test_single_paths_are_restored(run: stepkeep.Session, root: Path) -> None:
    """A file, or everything below a directory; the rest stays, and a path that nobody has is named."""
    write(root, {"a": "1", "d/x": "1", "d/y": "1", "dd": "1"})
    first = run.save(1)
    write(root, {"a": "2", "d/x": "2", "d/y": "2", "dd": "2", "d/z": "2"})
    run.save(2)
    assert run.files.restore(first.id, ["d"]).is_complete
    assert {path: content for path, (_, content) in tree_of(root).items()} == {
        "a": b"2",
        "d/x": b"1",
        "d/y": b"1",
        "dd": b"2",
    }
    with pytest.raises(stepkeep.NotFound) as caught:
        run.files.restore(first.id, ["nothing"])
    assert caught.value.code == "file_not_found"


@pytest.mark.parametrize("path", ["../out", "/etc/passwd", "a/../../b", ".git/config", "d/.GIT/x"])
def test_paths_outside_are_refused(run: stepkeep.Session, root: Path, path: str) -> None:
    """Nothing outside the root, and nothing of a repository, can be named."""
    write(root, {"a": ""})
    header = run.save(1)
    with pytest.raises(stepkeep.InvalidInput) as caught:
        run.files.restore(header.id, [path])
    assert caught.value.code == "invalid_file_path"


def test_ignored_files_are_never_touched(run: stepkeep.Session, repository: Path) -> None:
    """Ignored by the rules that hold now, or by those of the checkpoint: both stay."""
    write(repository, {".gitignore": "*.then\n", "a": "1", "x.then": "keep", "x.now": "captured"})
    first = run.save(1)
    write(repository, {".gitignore": "*.now\n", "a": "2", "y.then": "untracked", "y.now": "keep"})
    run.save(2)
    assert run.files.restore(first.id).is_complete
    left = {path: content for path, (_, content) in tree_of(repository).items()}
    assert left["x.then"] == b"keep"
    assert left["y.then"] == b"untracked"
    assert left["y.now"] == b"keep"
    assert left["x.now"] == b"captured"
    assert left["a"] == b"1"


def test_a_captured_file_that_is_ignored_now_is_saved_before_it_is_overwritten(
    run: stepkeep.Session, repository: Path
) -> None:
    """No rule hides it from the safety checkpoint, and undo brings it back."""
    write(repository, {"x.log": "one"})
    first = run.save(1)
    write(repository, {".gitignore": "*.log\n", "x.log": "two"})
    run.save(2)
    with pytest.raises(stepkeep.Conflict):
        run.files.restore(first.id)
    run.files.restore(first.id, force=True)
    assert (repository / "x.log").read_text() == "one"
    run.files.undo()
    assert (repository / "x.log").read_text() == "two"


def test_undo_removes_an_ignored_file_that_the_restore_made(run: stepkeep.Session, repository: Path) -> None:
    """The safety checkpoint knows that it was not there."""
    write(repository, {"x.log": "one"})
    first = run.save(1)
    (repository / "x.log").unlink()
    write(repository, {".gitignore": "*.log\n"})
    run.save(2)
    before = tree_of(repository)
    run.files.restore(first.id)
    assert (repository / "x.log").exists()
    run.files.undo()
    assert tree_of(repository) == before


def test_what_was_not_captured_is_not_removed(store: stepkeep.Store, root: Path) -> None:
    """A file that was too large then, or is a pipe now, stays, and is told where it is in the way."""
    settings = stepkeep.open("memory:").settings
    assert settings["workspace.max_file_bytes"] == 50_000_000
    run = store.session("run", profile="archive", workspace=root)
    write(root, {"a": "1", "big": b"x", "pipe": "file"})
    with (root / "big").open("r+b") as file:
        file.truncate(60_000_000)
    first = run.save(1)
    assert [each.path for each in run.files.at().skipped] == ["big"]
    write(root, {"a": "2", "big": "small now"})
    (root / "pipe").unlink()
    os.mkfifo(root / "pipe")
    run.save(2)
    done = run.files.restore(first.id)
    assert not done.is_complete
    assert [each.path for each in done.failures] == ["pipe"]
    assert (root / "big").read_text() == "small now"
    assert (root / "a").read_text() == "1"


# --- kinds that changed


def test_files_directories_and_links_replace_each_other(run: stepkeep.Session, root: Path) -> None:
    """Whatever became what, the tree of the checkpoint comes back, and nothing behind a link is touched."""
    write(root.parent / "outside", {"b": "safe"})
    write(root, {"a": "file", "d/b": "below", "l/b": "below", "e/f/g": "deep"})
    first = run.save(1)
    before = tree_of(root)
    (root / "a").unlink()
    write(root, {"a/x/y": "now a directory"})
    (root / "d/b").unlink()
    (root / "d").rmdir()
    write(root, {"d": "now a file"})
    (root / "l/b").unlink()
    (root / "l").rmdir()
    (root / "l").symlink_to(root.parent / "outside")
    (root / "e/f/g").unlink()
    write(root, {"e/f/g/h": "deeper"})
    second = run.save(2)
    changed = tree_of(root)
    assert run.files.restore(first.id).is_complete
    assert tree_of(root) == before
    assert run.files.restore(second.id).is_complete
    assert tree_of(root) == changed
    assert tree_of(root.parent / "outside") == {"b": (0o644, b"safe")}


def test_a_directory_with_other_files_is_not_replaced(run: stepkeep.Session, root: Path) -> None:
    """Ignored files in it would be lost: it stays, with all that is in it."""
    write(root, {".gitignore": "*.log\n", "a": "file", "b": "1"})
    first = run.save(1)
    (root / "a").unlink()
    write(root, {"a/captured": "x", "a/kept.log": "x", "b": "2"})
    run.save(2)
    done = run.files.restore(first.id)
    assert [each.path for each in done.failures] == ["a"]
    assert sorted(path for path in tree_of(root) if path.startswith("a/")) == ["a/captured", "a/kept.log"]
    assert (root / "b").read_text() == "1"


def test_empty_directories_give_way_to_a_file(run: stepkeep.Session, root: Path) -> None:
    """They are in no capture, so nothing is lost; a link among them is something."""
    write(root, {"x": "file"})
    first = run.save(1)
    (root / "x").unlink()
    write(root, {"x/full/z": "z"})
    (root / "x/empty/deep").mkdir(parents=True)
    second = run.save(2)
    assert run.files.restore(first.id).is_complete
    assert (root / "x").read_text() == "file"
    assert run.files.restore(second.id).is_complete
    assert sorted(tree_of(root)) == ["x/full/z"]


def test_a_link_in_place_of_a_directory_is_not_followed(run: stepkeep.Session, root: Path) -> None:
    """An ignored link stays, what should go behind it is reported, and outside nothing appears."""
    write(root, {"d/f": "1", "b": "1"})
    first = run.save(1)
    (root / "d/f").unlink()
    (root / "d").rmdir()
    outside = root.parent / "outside"
    outside.mkdir()
    (root / "d").symlink_to(outside)
    write(root, {".gitignore": "/d\n", "b": "2"})
    run.save(2)
    done = run.files.restore(first.id)
    assert [each.path for each in done.failures] == ["d/f"]
    assert not list(outside.iterdir())
    assert (root / "b").read_text() == "1"


def test_a_private_directory_comes_back_private(run: stepkeep.Session, root: Path) -> None:
    """Whatever a new directory would get, also inside another; those that were open get that."""
    write(root, {"keys/deep/id": "secret", "open/a": "1", "keysheet/b": "2", "group/c": "3"})
    for name, mode in (
        ("keys", 0o700),
        ("keys/deep", 0o500),
        ("open", 0o755),
        ("keysheet", 0o755),
        ("group", 0o750),
    ):
        (root / name).chmod(mode)
    first = run.save(1)
    (root / "keys/deep").chmod(0o700)
    for name in ("keys", "open", "keysheet", "group"):
        shutil.rmtree(root / name)
    run.save(2)
    run.files.restore(first.id)
    modes = {path.name: path.stat().st_mode & 0o777 for path in root.rglob("*") if path.is_dir()}
    assert modes == {"keys": 0o700, "deep": 0o700, "open": 0o755, "keysheet": 0o755, "group": 0o750}
    assert (root / "keys/deep/id").read_text() == "secret"


def test_no_setuid_bit_is_restored(run: stepkeep.Session, root: Path) -> None:
    """Only read, write and execute are captured."""
    write(root, {"tool": "x"})
    (root / "tool").chmod(0o4755)
    first = run.save(1)
    write(root, {"tool": "y"})
    run.save(2)
    run.files.restore(first.id)
    assert (root / "tool").stat().st_mode & 0o7777 == 0o755


def test_a_file_that_changes_during_the_restore_stays(
    run: stepkeep.Session, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the safety checkpoint does not have is not overwritten, even then."""
    write(root, {"a": "1", "b": "1"})
    first = run.save(1)
    write(root, {"a": "2", "b": "2"})
    run.save(2)
    prepare = staging.Staging.prepared

    def disturbed(area: object) -> None:
        prepare(area)  # type: ignore[arg-type]
        write(root, {"a": "someone types"})

    monkeypatch.setattr(staging.Staging, "prepared", disturbed)
    done = run.files.restore(first.id)
    assert [each.path for each in done.failures] == ["a"]
    assert (root / "a").read_text() == "someone types"
    assert (root / "b").read_text() == "1"


# --- which tree


def test_stored_bytes_alone_never_name_a_tree(
    store: stepkeep.Store, root: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The workspace is named by the caller, or it is where the caller stands."""
    write(root, {"sub/a": "1"})
    run = store.session("run", profile="archive")
    first = run.save(1, workspace=root)
    write(root, {"sub/a": "2"})
    run.save(2, workspace=root)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(stepkeep.InvalidInput) as caught:
        run.files.restore(first.id)
    assert caught.value.code == "workspace_not_named"
    monkeypatch.chdir(root / "sub")
    assert run.files.restore(first.id).is_complete


def test_files_are_restored_into_another_directory(run: stepkeep.Session, root: Path, tmp_path: Path) -> None:
    """An empty one gets the whole tree; what is there and differs needs force."""
    write(root, {"a": "1", "d/b": "2"})
    first = run.save(1)
    other = tmp_path / "other"
    other.mkdir()
    assert run.files.restore(first.id, workspace=other).is_complete
    assert tree_of(other) == tree_of(root)
    write(other, {"a": "mine"})
    with pytest.raises(stepkeep.Conflict):
        run.files.restore(first.id, workspace=other)


# --- trouble


def test_a_damaged_file_stops_the_restore_before_it_begins(
    store: stepkeep.Store, run: stepkeep.Session, root: Path, url: str
) -> None:
    """Nothing is written if one of the files does not verify."""
    write(root, {"a": "1" * 100, "b": "1"})
    first = run.save(1)
    write(root, {"a": "2", "b": "2"})
    run.save(2)
    before = tree_of(root)
    digest = run.files.at(first.id).entry("a").digest
    with sqlite3.connect(url.removeprefix("sqlite:")) as raw:
        raw.execute("UPDATE blobs SET data = ? WHERE digest = ?", (b"junk", digest))
    raw.close()
    with pytest.raises(stepkeep.Corrupt):
        run.files.restore(first.id)
    assert tree_of(root) == before
    assert not list(root.glob(f"{STAGING_PREFIX}*"))
    assert any(store.verify().findings)


def test_a_full_disk_in_the_middle_changes_nothing(url: str, root: Path) -> None:
    """All files are prepared before the first is replaced: when one does not fit, the tree is as it was."""
    with stepkeep.open(url) as store:
        run = store.session("run", profile="archive")
        write(root, {"a": "1", "large": os.urandom(3_000_000)})
        first = run.save(1, workspace=root)
        write(root, {"a": "2", "large": "2"})
        run.save(2, workspace=root)
    before = tree_of(root)
    assert programs.run(programs.LIMITED, url, str(root), first.id, "2000000") == "files_not_restored\n"
    assert tree_of(root) == before
    assert not list(root.glob(f"{STAGING_PREFIX}*"))


@pytest.mark.skipif(os.getuid() != 0, reason="another user is needed, to whom things are unreadable")
def test_unreadable_files_and_a_read_only_tree() -> None:
    """What cannot be read is reported, and a tree that cannot be written is left alone."""
    with tempfile.TemporaryDirectory() as folder:
        base = Path(folder)
        root = base / "tree"
        write(root, {"a": "first", "hidden": "x", "locked/b": "x"})
        for path in (base, *base.rglob("*")):
            os.chown(path, 65534, 65534)
        (root / "hidden").chmod(0)
        (root / "locked").chmod(0)
        printed = programs.run(programs.UNPRIVILEGED, f"sqlite:{base}/s.db", str(root))
        skipped, code, content = printed.splitlines()
        assert skipped == (
            "[('hidden', 'unreadable: Permission denied'), ('locked/', 'unreadable: Permission denied')] ['a']"
        )
        assert (code, content) == ("files_not_restored", "changed")


@pytest.mark.full
def test_a_killed_restore_leaves_each_file_old_or_new_and_is_finished_by_repeating(
    url: str, root: Path
) -> None:
    """At whatever moment it is killed; the undo then leads back to where everything began."""
    rng = random.Random(1)
    for attempt in range(2):
        with stepkeep.open(url) as store:
            run = store.session("run", profile="archive")
            new = {f"d{number % 9}/f{number}": bytes([number % 256]) * 5000 for number in range(400)}
            write(root, new)  # type: ignore[arg-type]
            target = run.save(attempt, workspace=root)
            wanted = tree_of(root)
            write(root, {name: content[:-1] + b"old" for name, content in new.items()})
            write(root, {"extra/x": "old"})
            run.save(attempt, workspace=root)
            old = tree_of(root)
        process = subprocess.Popen(
            programs.command(programs.RESTORE, url, str(root), target.id),
            stdout=subprocess.PIPE,
            env=programs.environment(),
        )
        assert process.stdout is not None
        process.stdout.readline()
        time.sleep(rng.uniform(0.0, 0.5))
        process.send_signal(signal.SIGKILL)
        process.communicate()
        for path, found in tree_of(root).items():
            if not path.startswith(STAGING_PREFIX):
                assert found in (old.get(path), wanted.get(path)), path
        with stepkeep.open(url) as store:
            run = store.get("run")
            done = run.files.restore(target.id, workspace=root)
            assert done.is_complete
            assert tree_of(root) == wanted
            if done.changes:
                run.files.undo(workspace=root)
                assert tree_of(root) == old
            assert store.verify().findings == ()
