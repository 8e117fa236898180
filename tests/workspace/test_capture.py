"""What a capture holds, what it reports, and what it leaves alone."""

from __future__ import annotations

import os
import shutil
import socket
import sqlite3
import threading
from pathlib import Path

import pytest

import stepkeep
from stepkeep.maintenance.metering import metrics_path
from stepkeep.maintenance.space import beside_store
from stepkeep.workspace import git as git_module
from stepkeep.workspace import scan
from stepkeep.workspace.capture import CaptureLimits, EarlierCapture, capture
from stepkeep.workspace.manifest import Manifest, body_after, body_of
from tests.workspace.repositories import commit, git, init, outside_view
from tests.workspace.trees import tree_of, write


def paths(run: stepkeep.Session, ref: str | int = "latest") -> list[str]:
    return [entry.path for entry in run.files.at(ref)]


def reasons(run: stepkeep.Session) -> dict[str, str]:
    return {each.path: each.reason for each in run.files.at().skipped}


def test_a_checkpoint_holds_the_files_beside_the_state(url: str, root: Path) -> None:
    """After reopening, contents, permissions and links are those of the tree, and the state is untouched."""
    write(root, {"a.py": "print(1)\n", "data/b.bin": bytes(range(256)), "empty": ""})
    (root / "a.py").chmod(0o755)
    (root / "link").symlink_to("data/b.bin")
    with stepkeep.open(url) as store:
        store.session("run").save({"n": 1}, workspace=root)
    with stepkeep.open(url) as store:
        run = store.get("run")
        files = run.files.at()
        assert [entry.path for entry in files] == ["a.py", "data/b.bin", "empty", "link"]
        assert files.read("data/b.bin") == bytes(range(256))
        assert files.entry("a.py").mode & 0o777 == 0o755
        assert files.entry("link").target == "data/b.bin"
        assert files.git is None
        assert not files.skipped
        latest = run.latest()
        assert latest is not None
        assert latest.state == {"n": 1}
        assert store.verify().findings == ()


def test_an_unchanged_tree_costs_next_to_nothing(run: stepkeep.Session, root: Path) -> None:
    """The second capture stores no file and a tiny list."""
    write(root, {f"{number}.txt": f"{number}" * 100 for number in range(200)})
    for path in root.iterdir():
        os.utime(path, (1, 1))
    first = run.save(1)
    stored = run.usage()
    second = run.save(2)
    files = [body for body in run._engine.backend.bodies(run.uid) if body.name == "files"]
    assert run.usage().blobs == stored.blobs == 200
    assert {body.checkpoint: body.base for body in files}[second.id] == first.id
    assert next(body for body in files if body.checkpoint == second.id).stored_size < 8000


def test_only_changed_files_are_read_again(store: stepkeep.Store, root: Path) -> None:
    """A file that looks the same is not opened; one that is too young to trust is."""
    write(root, {"old": "old", "young": "young"})
    later = [10**18 * 4]
    before = capture(store.engine, str(root), now_ns=lambda: later[0])
    assert before.read_files == 2
    assert capture(store.engine, str(root), previous=EarlierCapture(before.manifest)).read_files == 0
    racy = capture(store.engine, str(root), now_ns=lambda: (root / "young").stat().st_ctime_ns)
    assert capture(store.engine, str(root), previous=EarlierCapture(racy.manifest)).read_files == 2


def test_an_edit_that_keeps_size_and_time_is_seen(run: stepkeep.Session, root: Path) -> None:
    """mtime can be set back, ctime cannot."""
    write(root, {"a": "one"})
    os.utime(root / "a", (1, 1))
    run.save(1)
    write(root, {"a": "two"})
    os.utime(root / "a", (1, 1))
    run.save(2)
    assert run.files.at().read("a") == b"two"


def test_a_capture_after_another_is_what_a_first_one_would_be(store: stepkeep.Store, root: Path) -> None:
    """Whatever came, went, changed its kind or its permissions since: the list is the same to the last byte."""
    write(root, {f"d{n % 3}/f{n}": f"{n}" for n in range(30)})
    write(root, {"d0/é": "1", "d0/back\\slash": "1", os.fsdecode(b"d1/\xff"): "1"})
    (root / "d2/link").symlink_to("f2")
    later = lambda: 10**18 * 4  # noqa: E731

    def change(number: int) -> None:
        match number:
            case 0:
                write(root, {"d0/f3": "new", "d0/é": "2", os.fsdecode(b"d1/\xff"): "2"})
            case 1:
                write(root, {"d0/more": "x", "d3/deep/er": "x"})
            case 2:
                (root / "d0/f6").unlink()
                (root / "d1/f1").chmod(0o755)
            case 3:
                (root / "d1/f4").unlink()
                write(root, {"d1/f4/now": "a directory"})
                (root / "d2/link").unlink()
                write(root, {"d2/link": "a file"})
            case 4:
                shutil.rmtree(root / "d3")
                (root / "d2/f2").rename(root / "d0/f2")
            case _:
                pass

    earlier = EarlierCapture(Manifest(root=str(root))).followed_by(
        capture(store.engine, str(root), now_ns=later)
    )
    content = body_of(earlier.manifest).content
    for number in range(6):
        change(number)
        after = capture(store.engine, str(root), previous=earlier, now_ns=later)
        alone = capture(store.engine, str(root), now_ns=later)
        assert after.manifest == alone.manifest
        body = body_of(alone.manifest)
        if after.replaced is not None:
            assert body_after(after.manifest, content, after.replaced) == body
        assert after.replaced is None or number in (0, 5)
        earlier, content = earlier.followed_by(after), body.content
    assert after.read_files == 0


def test_content_is_stored_once_over_all_sessions(store: stepkeep.Store, tmp_path: Path) -> None:
    """Two sessions with the same files share them; deleting one leaves the other whole."""
    for name in ("one", "two"):
        write(tmp_path / name, {"a": "same" * 100, "b": "same" * 100})
        store.session(name).save(1, workspace=tmp_path / name)
    assert store.usage().blobs == 1
    store.get("one").clear()
    assert store.get("two").files.at().read("a") == b"same" * 100
    store.get("two").clear()
    assert store.usage().blobs == 0


def test_pruning_removes_the_files_that_no_kept_checkpoint_needs(run: stepkeep.Session, root: Path) -> None:
    """Their bytes are swept; what stays can be read."""
    for number in range(12):
        write(root, {"a": f"{number}" * 1000, "same": "stays"})
        run.save(number)
    run.prune(keep_last=1, keep_terminal=False)
    run.save(99)
    run.prune(keep_last=1, keep_terminal=False)
    assert run.files.at().read("a") == b"11" * 1000
    run.complete()  # the head stands alone: nothing hangs on what was pruned
    run.prune(keep_last=1, keep_terminal=False)
    assert run.usage().blobs == 2


def test_a_swept_blob_is_stored_again(store: stepkeep.Store, run: stepkeep.Session, root: Path) -> None:
    """A capture that counts on contents of a deleted checkpoint reads those files again."""
    write(root, {"a": "content"})
    os.utime(root / "a", (1, 1))
    run.save(1)
    header = run.save(2)
    run.delete(*[each.id for each in run.history()])
    assert store.usage().blobs == 0
    assert header.id != run.save(3).id
    assert run.files.at().read("a") == b"content"


def test_a_repeated_save_finds_its_files_also_when_they_were_written_again(url: str, root: Path) -> None:
    """A step that is done again writes the same files: its save is the one that is stored, unless a file differs."""
    ids = []
    for _ in range(2):
        write(root, {"a": "content", "b/c": "more"})
        os.utime(root / "a", (len(ids) + 1, 1))
        with stepkeep.open(url) as store:
            ids.append(store.session("run").save(1, workspace=root, idempotency_key="step").id)
    assert ids[0] == ids[1]
    write(root, {"a": "other"})
    with stepkeep.open(url) as store:
        run = store.get("run")
        with pytest.raises(stepkeep.Conflict) as caught:
            run.save(1, workspace=root, idempotency_key="step")
        assert caught.value.code == "idempotency_mismatch"
        with pytest.raises(stepkeep.Conflict):
            run.save(2, workspace=root, idempotency_key="step")
        assert run.files.at().read("a") == b"content"


def test_saving_in_the_background_keeps_the_order(run: stepkeep.Session, root: Path) -> None:
    """The tree is captured off the caller's path; a later save does not overtake it."""
    write(root, {"a": "one"})
    pending = run.save(1, wait=False)
    after = run.save(2)
    assert pending.result().seq < after.seq
    assert pending.is_done
    assert run.files.at(pending.id).read("a") == b"one"


def test_a_failed_capture_in_the_background_is_told(run: stepkeep.Session, root: Path) -> None:
    """Who asks for the result gets the error."""
    run.save(1)
    root.rmdir()
    pending = run.save(2, wait=False)
    with pytest.raises(stepkeep.InvalidInput) as caught:
        pending.result()
    assert caught.value.code == "invalid_workspace"


def test_a_save_may_leave_the_files_out(run: stepkeep.Session, root: Path) -> None:
    """`workspace=False` overrides the session; the checkpoint then says where the nearest files are."""
    write(root, {"a": "one"})
    first = run.save(1)
    second = run.save(2, workspace=False)
    with pytest.raises(stepkeep.NotFound, match=first.id) as caught:
        run.files.at(second.id)
    assert caught.value.code == "files_not_captured"
    assert run.files.at().checkpoint == first.id


# --- rules


def test_rules_leave_files_out(run: stepkeep.Session, repository: Path) -> None:
    """Built-in rules, `.gitignore`, `.git/info/exclude` and `.stepkeepignore`; a line takes a built-in rule back."""
    write(
        repository,
        {
            ".gitignore": "*.log\n",
            ".stepkeepignore": "secret.env\n!.cache/\n",
            ".git/info/exclude": "local.txt\n",
            "a.py": "",
            "x.log": "",
            "secret.env": "",
            "local.txt": "",
            ".cache/kept": "",
            "node_modules/m/index.js": "",
            "sub/__pycache__/a.pyc": "",
            "sub/.gitignore": "!x.log\n",
            "sub/x.log": "",
        },
    )
    run.save(1)
    assert paths(run) == [
        ".cache/kept",
        ".gitignore",
        ".stepkeepignore",
        "a.py",
        "sub/.gitignore",
        "sub/x.log",
    ]


def test_rules_that_change_between_captures_hold(run: stepkeep.Session, root: Path) -> None:
    """A file that is ignored from now on goes, and one that is no more comes, although neither changed."""
    write(root, {"a.log": "", "b.tmp": "", "d/a.log": "", "d/e/a.log": "", ".gitignore": "*.tmp\n"})
    run.save(1)
    assert paths(run) == [".gitignore", "a.log", "d/a.log", "d/e/a.log"]
    write(root, {".gitignore": "*.log\n"})
    run.save(2)
    assert paths(run) == [".gitignore", "b.tmp"]
    write(root, {"d/.gitignore": "!a.log\n"})
    run.save(3)
    assert paths(run) == [".gitignore", "b.tmp", "d/.gitignore", "d/a.log", "d/e/a.log"]
    write(root, {".stepkeepignore": "d/e\n"})
    run.save(4)
    assert paths(run) == [".gitignore", ".stepkeepignore", "b.tmp", "d/.gitignore", "d/a.log"]


def test_what_git_tracks_is_captured_in_spite_of_rules(run: stepkeep.Session, repository: Path) -> None:
    """A file that was added by force belongs to the project; `.stepkeepignore` still leaves it out."""
    write(
        repository,
        {".gitignore": "*.log\nbuild/\n", "t.log": "x", "build/t": "x", "venv/t": "x", "un.log": ""},
    )
    git(repository, "add", "-f", "t.log", "build/t", "venv/t")
    run.save(1)
    assert paths(run) == [".gitignore", "build/t", "t.log", "venv/t"]
    write(repository, {".stepkeepignore": "build/\n"})
    run.save(2)
    assert paths(run) == [".gitignore", ".stepkeepignore", "t.log", "venv/t"]


def test_a_subfolder_of_a_repository_obeys_the_rules_above(store: stepkeep.Store, repository: Path) -> None:
    """In a monorepo the `.gitignore` files up to the top hold; one that ignores the workspace itself does not."""
    write(repository, {".gitignore": "*.log\n/apps/web/out\nscratch/\n", "apps/.gitignore": "*.tmp\n"})
    write(repository, {"apps/web/a": "", "apps/web/a.log": "", "apps/web/a.tmp": "", "apps/web/out/x": ""})
    write(repository, {"scratch/a": "", "scratch/a.log": ""})
    run = store.session("run")
    run.save(1, workspace=repository / "apps" / "web")
    assert paths(run) == ["a"]
    state = run.files.at().git
    assert state is not None
    assert state.prefix == "apps/web/"
    run.save(2, workspace=repository / "scratch")
    assert paths(run) == ["a", "a.log"]


def test_nested_repositories_submodules_and_worktrees(store: stepkeep.Store, tmp_path: Path) -> None:
    """Their files are captured, their `.git` never, and rules of the outer repository end where they begin."""
    inner = init(write_and(tmp_path / "inner", {"i.txt": "", "i.log": "", ".gitignore": "own\n", "own": ""}))
    commit(inner)
    outer = init(write_and(tmp_path / "outer", {".gitignore": "*.log\n", "o.txt": "", "o.log": ""}))
    git(outer, "-c", "protocol.file.allow=always", "submodule", "-q", "add", str(inner), "module")
    commit(outer)
    init(write_and(outer / "nested", {"n.txt": "", "n.log": ""}))
    git(outer, "worktree", "add", "-q", str(tmp_path / "tree"), "-b", "other")
    run = store.session("run")
    run.save(1, workspace=outer)
    found = paths(run)
    assert {"o.txt", "module/i.txt", "nested/n.txt", "nested/n.log"} <= set(found)
    assert not {"o.log", "module/own"} & set(found)
    assert not any(".git/" in path or path.endswith("/.git") for path in found)
    run.save(2, workspace=tmp_path / "tree")
    state = run.files.at().git
    assert state is not None
    assert state.branch == "other"
    run.save(3, workspace=outer / "module")
    assert paths(run) == [".gitignore", "i.log", "i.txt"]


def test_what_a_submodule_tracks_is_captured_in_spite_of_rules(store: stepkeep.Store, tmp_path: Path) -> None:
    """Its own index tells, as that of the outer repository does for the rest, also where that of a submodule fails."""
    inner = init(write_and(tmp_path / "inner", {".gitignore": "build/\n", "build/tracked": "x"}))
    git(inner, "add", "-f", "build/tracked")
    commit(inner)
    outer = init(write_and(tmp_path / "outer", {"o.txt": ""}))
    git(outer, "-c", "protocol.file.allow=always", "submodule", "-q", "add", str(inner), "module")
    commit(outer)
    write(outer, {"module/build/untracked": ""})
    run = store.session("run")
    run.save(1, workspace=outer)
    assert paths(run) == [".gitmodules", "module/.gitignore", "module/build/tracked", "o.txt"]
    write(outer, {"o.log": "", ".gitignore": "*.log\n", ".git/modules/module/index": "damaged"})
    git(outer, "add", "-f", "o.log")
    run.save(2, workspace=outer)
    assert {"o.log", "o.txt", "module/.gitignore"} <= set(paths(run))


@pytest.mark.parametrize("name", [b"sub\xff", b"new\nline", b"new\n\nline\n"])
def test_a_workspace_below_a_folder_of_any_name(store: stepkeep.Store, repository: Path, name: bytes) -> None:
    """Its place in the repository is recorded, the rules hold, and patches name its files."""
    folder = os.fsdecode(name)
    write(repository, {f"{folder}/a": "1\n", f"{folder}/local.txt": "", ".git/info/exclude": "local.txt\n"})
    commit(repository)
    write(repository, {f"{folder}/a": "2\n", f"{folder}/b/c": "1\n"})
    run = store.session("run")
    run.save(1, workspace=repository / folder)
    state = run.files.at().git
    assert state is not None
    assert (state.prefix, state.is_dirty) == (f"{folder}/", True)
    assert paths(run) == ["a", "b/c"]
    for patch in run.files.patches(workspace=repository / folder).patches:
        if "/b/c" in patch:
            (repository / folder / "b/c").unlink()
            git(repository, "apply", "-", given=patch.encode("utf-8", "surrogateescape"))
    assert (repository / folder / "b/c").read_text() == "1\n"


def test_names_of_version_control_are_their_folders_only(run: stepkeep.Session, root: Path) -> None:
    """`.git` is left out in any case and as a file; the others exactly as they are spelled, and as folders."""
    write(root, {"cvs/a": "", "Cvs/a": "", "x/CVS": "", "x/_darcs": "", "_Darcs/a": "", "y/.hg": ""})
    write(root, {"CVS/a": "", ".hg/a": "", "_darcs/a": "", ".GIT/a": "", "z/.git": "gitdir: nowhere"})
    before = tree_of(root)
    header = run.save(1)
    assert paths(run) == ["Cvs/a", "_Darcs/a", "cvs/a", "x/CVS", "x/_darcs", "y/.hg"]
    for path in paths(run):
        (root / path).unlink()
    assert run.files.restore(header.id, force=True).is_complete
    assert tree_of(root) == before


def write_and(root: Path, files: dict[str, str | bytes]) -> Path:
    root.mkdir(parents=True, exist_ok=True)
    write(root, files)
    return root


# --- the repository is only read


def test_commit_branch_and_dirty_state_are_recorded(run: stepkeep.Session, repository: Path) -> None:
    """As git has them, and nothing of the repository is changed by any number of captures."""
    write(repository, {"a": "one"})
    head = commit(repository)
    write(repository, {"untracked": "x", "b": "y"})
    git(repository, "add", "b")
    before = outside_view(repository)
    for number in range(5):
        run.save(number)
    write(repository, {"a": "two"})
    os.utime(repository / "a", (2, 2))
    changed = outside_view(repository)
    run.save(6)
    state = run.files.at().git
    assert state is not None
    assert (state.commit, state.branch, state.is_dirty) == (head, "main", True)
    assert outside_view(repository) == changed
    assert before[1:] == changed[1:]
    git(repository, "checkout", "-q", "--detach", "-f")
    run.save(7)
    state = run.files.at().git
    assert state is not None
    assert (state.branch, state.is_dirty) == (None, False)


def test_the_dirty_state_is_that_of_now(run: stepkeep.Session, repository: Path) -> None:
    """Whatever differed before: each time git is asked about what is there."""
    write(repository, {"a": "one", "b": "one", "sub/c d": "one"})
    commit(repository)
    for files, is_dirty in (
        ({"a": "two"}, True),
        ({"a": "one", "sub/c d": "two"}, True),
        ({"b": "two"}, True),
        ({"sub/c d": "one"}, True),
        ({"b": "one"}, False),
        ({"untracked": "x"}, False),
        ({"a": "three"}, True),
    ):
        write(repository, files)
        run.save(1)
        state = run.files.at().git
        assert state is not None
        assert state.is_dirty is is_dirty, files
    head = commit(repository)
    run.save(2)
    state = run.files.at().git
    assert state is not None
    assert (state.commit, state.is_dirty) == (head, False)


def test_settings_of_git_are_those_of_now(
    run: stepkeep.Session, repository: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """They are remembered only while their files look the same: a new filter is not run, a new ignore file holds."""
    monkeypatch.setattr(git_module, "YOUNG_NS", 0)
    trap, mark = tmp_path / "trap.sh", tmp_path / "sprung"
    trap.write_text(f"#!/bin/sh\ntouch {mark}\ncat\n")
    trap.chmod(0o755)
    write(repository, {"a.txt": "one", "b.log": "x", ".gitattributes": "*.txt filter=evil\n"})
    commit(repository)
    run.save(1)
    run.save(2)
    assert "b.log" in paths(run)
    git(repository, "config", "filter.evil.clean", str(trap))
    write(repository, {"a.txt": "two"})
    run.save(3)
    assert not mark.exists()
    write(tmp_path, {"mine": "*.log\n", ".gitconfig": f"[core]\n\texcludesFile = {tmp_path}/mine\n"})
    git(repository, "rm", "-q", "--cached", "b.log")
    run.save(4)
    assert "b.log" not in paths(run)


@pytest.mark.parametrize("name", ["evil", "e.v=il", "EVIL"])
def test_git_runs_nothing_a_repository_names(
    run: stepkeep.Session, repository: Path, tmp_path: Path, name: str
) -> None:
    """Filters, file watchers, hooks and pagers of a foreign repository are not started by a capture."""
    trap, mark = tmp_path / "trap.sh", tmp_path / "sprung"
    trap.write_text(f"#!/bin/sh\ntouch {mark}\ncat\n")
    trap.chmod(0o755)
    write(repository, {"a.txt": "one", ".gitattributes": f"*.txt filter={name} diff=evil\n"})
    commit(repository)
    for key in ("clean", "smudge", "process"):
        git(repository, "config", f"filter.{name}.{key}", str(trap))
    git(repository, "config", "core.fsmonitor", str(trap))
    for key in ("diff.external", "core.pager", "pager.status", "diff.evil.textconv", "core.sshCommand"):
        git(repository, "config", key, str(trap))
    (repository / ".git" / "hooks" / "post-index-change").write_text(trap.read_text())
    (repository / ".git" / "hooks" / "post-index-change").chmod(0o755)
    write(repository, {"a.txt": "two"})
    mark.unlink(missing_ok=True)
    run.save(1)
    run.files.patches()
    assert not mark.exists()


def test_without_git_everything_else_works(
    run: stepkeep.Session, repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only commit and branch are missing; ignore files hold all the same."""
    write(repository, {".gitignore": "*.log\n", "a": "", "a.log": ""})
    monkeypatch.setenv("PATH", "/nowhere")
    run.save(1)
    assert paths(run) == [".gitignore", "a"]
    assert run.files.at().git is None


# --- bad input


def test_special_files_are_reported(
    run: stepkeep.Session, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pipes and sockets are named, never opened."""
    write(root, {"a": ""})
    os.mkfifo(root / "pipe")
    monkeypatch.chdir(root)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind("door")
        run.save(1)
    assert reasons(run) == {"pipe": "a pipe", "door": "a socket"}
    assert paths(run) == ["a"]


def test_caps_are_reported(store: stepkeep.Store, root: Path) -> None:
    """A file over its cap, sparse or not, is named with its size; over the total the largest go first."""
    write(root, {"small": "x" * 10, "middle": "x" * 300, "large": "x" * 600})
    with (root / "sparse").open("wb") as file:
        file.truncate(10**12)
    captured = capture(
        store.engine, str(root), limits=CaptureLimits(max_file_bytes=1000, max_total_bytes=500)
    ).manifest
    assert [entry.path for entry in captured.entries] == ["middle", "small"]
    assert [(each.path, each.size) for each in captured.skipped] == [("large", 600), ("sparse", 10**12)]


def test_caps_hold_for_files_that_did_not_change(store: stepkeep.Store, root: Path) -> None:
    """When others grow beyond the total, an old file that is the largest now is left out, and comes back later."""
    write(root, {"d/old": "x" * 300, "d/link": "", "e/grows": "x" * 100})
    limits, later = CaptureLimits(max_total_bytes=500), 10**18 * 4
    before = capture(store.engine, str(root), limits=limits, now_ns=lambda: later)
    earlier = EarlierCapture(Manifest(root=str(root))).followed_by(before)
    assert len(before.manifest.entries) == 3
    write(root, {"e/grows": "x" * 250})
    over = capture(store.engine, str(root), previous=earlier, limits=limits, now_ns=lambda: later)
    assert [entry.path for entry in over.manifest.entries] == ["d/link", "e/grows"]
    assert [(each.path, each.size) for each in over.manifest.skipped] == [("d/old", 300)]
    write(root, {"e/grows": "x" * 50})
    earlier = earlier.followed_by(over)
    again = capture(store.engine, str(root), previous=earlier, limits=limits, now_ns=lambda: later)
    assert [entry.path for entry in again.manifest.entries] == ["d/link", "d/old", "e/grows"]


@pytest.mark.parametrize(
    "name",
    [
        b"new\nline",
        b'quo"te',
        b"back\\slash",
        b"\xff\xfe not utf-8",
        "ünï".encode(),
        b" lead",
        b"-x",
        b"\\x41",
    ],
)
def test_any_name_comes_back(run: stepkeep.Session, root: Path, name: bytes) -> None:
    """Names are bytes: each is stored readable, and restored exactly."""
    path = root / os.fsdecode(name)
    path.write_bytes(b"content")
    (root / "link").symlink_to(os.fsdecode(name))
    header = run.save(1)
    before = tree_of(root)
    path.unlink()
    (root / "link").unlink()
    assert run.files.restore(header.id).is_complete
    assert tree_of(root) == before


def test_names_that_differ_only_in_case_are_two_files(run: stepkeep.Session, root: Path) -> None:
    """On a file system that tells them apart both are captured."""
    write(root, {"readme": "a", "README": "b"})
    run.save(1)
    assert (run.files.at().read("readme"), run.files.at().read("README")) == (b"a", b"b")


def test_a_file_that_changes_while_it_is_read_is_reported(
    run: stepkeep.Session, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half old and half new is never stored."""
    write(root, {"busy": "x" * 1000, "calm": "y"})
    original = scan._at_most

    def growing(descriptor: int, limit: int) -> bytes:
        content = original(descriptor, limit)
        if content.startswith(b"x"):
            with (root / "busy").open("ab") as file:
                file.write(b"x")
        return content

    monkeypatch.setattr(scan, "_at_most", growing)
    run.save(1)
    assert reasons(run) == {"busy": "changes while it is read"}
    assert paths(run) == ["calm"]


def test_files_come_and_go_during_a_capture(run: stepkeep.Session, root: Path) -> None:
    """Whatever vanishes or turns into something else meanwhile, the capture ends, and verifies."""
    stop = threading.Event()

    def churn() -> None:
        number = 0
        while not stop.is_set():
            number += 1
            path = root / f"d{number % 7}" / "f"
            path.parent.mkdir(exist_ok=True)
            path.write_text(str(number))
            path.unlink()
            path.parent.rmdir()
            (root / f"d{(number + 3) % 7}").symlink_to("elsewhere")
            (root / f"d{(number + 3) % 7}").unlink()

    write(root, {f"stay{number}": f"{number}" for number in range(50)})
    thread = threading.Thread(target=churn)
    thread.start()
    try:
        for number in range(20):
            run.save(number)
            assert {path for path in paths(run) if path.startswith("stay")} == {f"stay{n}" for n in range(50)}
    finally:
        stop.set()
        thread.join()
    assert run.verify().findings == ()


def test_the_store_in_the_tree_is_not_captured(root: Path) -> None:
    """Nor is any database that this process has open: reading it would take its locks away."""
    with stepkeep.open(f"sqlite:{root / 'runs.db'}") as store:
        other = sqlite3.connect(root / "app.db")
        other.execute("CREATE TABLE t (x)")
        other.commit()
        write(root, {"a": "", "runs.dbx": ""})
        (root / "alias").hardlink_to(root / "runs.db")
        run = store.session("run", workspace=root)
        run.save(1)
        run.save(2)
        assert paths(run) == ["a", "runs.dbx"]
        assert set(reasons(run)) == {"app.db", "alias"}
        other.close()


@pytest.mark.parametrize("layout", ["run", "workflow", "phase"])
def test_a_store_of_files_that_is_the_workspace_is_left_alone(root: Path, layout: str) -> None:
    """Its documents and its sidecar are no files of the project: a restore keeps the whole history."""
    write(root, {"a": "one", "sub/checkpoints/mine": "", "sub/sessions/mine": ""})
    with stepkeep.open(f"files:{root}?layout={layout}") as store:
        run = store.session("run", workspace=root, profile="archive")
        first = run.save(1)
        write(root, {"a": "two"})
        run.save(2)
        assert paths(run) == ["a", "sub/checkpoints/mine", "sub/sessions/mine"]
        assert run.files.restore(first.id).is_complete
        assert (root / "a").read_text() == "one"
        assert [header.seq for header in run.history()] == [3, 2, 1]
        assert store.verify().findings == ()


def test_files_that_share_the_name_of_the_store_are_captured(root: Path) -> None:
    """Only what the store makes is left out: the database, its log, its counts and its ballast."""
    with stepkeep.open(f"sqlite:{root / 'app'}") as store:
        write(root, {"app.py": "", "app-notes.md": "", "app.d/f": "", "app-wal.txt": "", "sub/app": ""})
        made = [metrics_path(store.url, data_folder=str), beside_store(store.url, "-ballast", "ballast")]
        for path in [*made, f"{made[0]}-journal", f"{root / 'app'}-journal"]:
            Path(path).touch()
        run = store.session("run", workspace=root)
        run.save(1)
        assert paths(run) == ["app-notes.md", "app-wal.txt", "app.d/f", "app.py", "sub/app"]
        assert not run.files.at().skipped


def test_a_store_behind_a_link_is_not_captured(root: Path, tmp_path: Path) -> None:
    """Neither the database where it is, nor what lies beside the link to it."""
    write(root, {"real/a": ""})
    (root / "runs.db").symlink_to("real/store.db")
    with stepkeep.open(f"sqlite:{root / 'real' / 'store.db'}"):
        pass
    with stepkeep.open(f"sqlite:{root / 'runs.db'}") as store:
        run = store.session("run", workspace=root)
        run.save(1)
        (root / "runs.db.metrics").touch()
        run.save(2)
        assert paths(run) == ["real/a"]


def test_a_link_that_leads_out_is_captured_as_a_link(
    run: stepkeep.Session, root: Path, tmp_path: Path
) -> None:
    """Nothing behind it is read."""
    write(tmp_path / "elsewhere", {"secret": "x"})
    (root / "out").symlink_to(tmp_path / "elsewhere")
    (root / "loop").symlink_to("loop")
    run.save(1)
    assert paths(run) == ["loop", "out"]


def test_a_workspace_that_is_no_directory_is_refused(store: stepkeep.Store, root: Path) -> None:
    """Before anything is stored."""
    write(root, {"file": ""})
    run = store.session("run")
    for place in (root / "nowhere", root / "file"):
        with pytest.raises(stepkeep.InvalidInput) as caught:
            run.save(1, workspace=place)
        assert caught.value.code == "invalid_workspace"
    assert run.latest() is None


def test_a_very_deep_tree_is_reported(run: stepkeep.Session, root: Path) -> None:
    """What lies deeper than the limit is named, the rest is captured."""
    descriptor = os.open(root, os.O_RDONLY)
    for _ in range(230):
        os.mkdir("d", dir_fd=descriptor)
        below = os.open("d", os.O_RDONLY, dir_fd=descriptor)
        os.close(descriptor)
        descriptor = below
    os.close(descriptor)
    write(root, {"a": ""})
    run.save(1)
    assert paths(run) == ["a"]
    assert [each.reason for each in run.files.at().skipped] == ["more than 200 directories deep"]


# --- whether something changed


def test_code_changed_tells_paths_and_commit(run: stepkeep.Session, repository: Path) -> None:
    """Nothing is stored; who is to be notified gets exactly these two."""
    told: list[tuple[tuple[str, ...], str | None]] = []
    write(repository, {"a": "one", "b": "one"})
    commit(repository)
    run.save(1)
    assert run.files.changed(lambda paths, commit: told.append((paths, commit))) is None
    write(repository, {"a": "two"})
    head = commit(repository)
    changes = run.files.changed(lambda paths, commit: told.append((paths, commit)))
    assert changes is not None
    assert changes.is_commit_new
    assert told == [(("a",), head)]
    assert run.info.last_seq == 1


@pytest.mark.full
def test_a_tree_of_5_000_files(run: stepkeep.Session, root: Path) -> None:
    """It is captured whole, and one edit costs one file."""
    _many(root, 5_000)
    run.save(1)
    write(root, {"d7/f7": "edited"})
    run.save(2)
    assert len(run.files.at()) == 5_000
    assert run.files.diff(1, 2).changed == 1
    assert run.files.changed() is None


@pytest.mark.slow
def test_a_tree_of_200_000_files(run: stepkeep.Session, root: Path) -> None:
    """The same for a very large one, and it is restored."""
    _many(root, 200_000)
    first = run.save(1)
    write(root, {"d7/f7": "edited", "d8/new": "x"})
    run.save(2)
    assert run.files.restore(first.id).is_complete
    assert run.files.diff(first.id).total == 0


def _many(root: Path, count: int) -> None:
    for number in range(count):
        folder = root / f"d{number % 100}"
        if number < 100:
            folder.mkdir()
        (folder / f"f{number}").write_bytes(b"%d" % number)
