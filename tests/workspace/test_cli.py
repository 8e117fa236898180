"""Project files on the command line."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import tarfile
from io import BytesIO
from pathlib import Path

import pytest

from tests.surfaces.test_cli import Cli
from tests.workspace.repositories import commit, git, init
from tests.workspace.trees import tree_of, write


@pytest.fixture
def cli(tmp_path: Path) -> Cli:
    """A project with two captures: in the second a file changed, one was added and one removed."""
    work = tmp_path / "work"
    work.mkdir()
    cli = Cli(tmp_path)
    write(work, {"a.py": "one\n", "old.txt": "x\n", "pic": bytes(range(256))})
    assert cli.here("save", "k", "--state", "1", "--profile", "archive", "--workspace", str(work)).code == 0
    write(work, {"a.py": "one\ntwo\n", "new.txt": "y\n", "pic": bytes(range(255, -1, -1))})
    (work / "old.txt").unlink()
    assert cli.here("create", "second", "--session", "k", "--workspace", str(work)).code == 0
    return cli


@pytest.fixture
def work(cli: Cli) -> Path:
    return cli.folder / "work"


def test_diff_shows_names_lines_and_texts(cli: Cli) -> None:
    """Names by default, counts with --stat, the whole difference with --patch; a picture is noted as binary."""
    names = cli.here("diff", "k", "#1", "#2", "--files").out
    assert [line[:9] for line in names.splitlines()[2:]] == [
        "M a.py (4",
        "A new.txt",
        "D old.txt",
        "M pic (25",
        "4 files: ",
    ]
    assert "M a.py (+1 -0)" in cli.here("diff", "k", "#1", "#2", "--files", "--stat").out
    patch = cli.here("diff", "k", "#1", "#2", "--files", "--patch").out
    assert "+++ b/a.py\n@@ -1 +1,2 @@\n one\n+two\n" in patch
    assert "GIT binary patch" in patch


def test_a_printed_patch_is_applied_by_git(cli: Cli, work: Path, tmp_path: Path) -> None:
    """What goes into a pipe is exactly what git needs."""
    other = tmp_path / "other"
    other.mkdir()
    init(other)
    write(other, {"a.py": "one\n", "old.txt": "x\n", "pic": bytes(range(256))})
    commit(other)
    git(other, "apply", "-", given=cli("diff", "k", "#1", "#2", "--files", "-p").out.encode())
    assert tree_of(other) == tree_of(work)


def test_diff_against_the_live_tree(cli: Cli, work: Path) -> None:
    """Without a second checkpoint the tree as it is now is meant; where that is must be clear."""
    write(work, {"a.py": "three\n"})
    done = cli.here("diff", "k", "--files", "--workspace", str(work), "--json")
    assert [change["path"] for change in done.json["changes"]] == ["a.py"]
    assert done.json["newer"] is None
    assert cli("diff", "k", "--files").code == 2


def test_diff_of_files_up_to_a_checkpoint(cli: Cli, work: Path) -> None:
    """Without --from it begins at the checkpoint with files before --to; the first has none before it."""
    write(work, {"a.py": "three\n"})
    assert cli.here("save", "k", "--state", "2").code == 0
    assert cli.here("save", "k", "--state", "3", "--workspace", str(work)).code == 0
    last = cli.here("diff", "k", "--files", "--to", "#4", "--json").json
    assert (last["older"]["seq"], last["newer"]["seq"]) == (2, 4)
    assert "to   checkpoint 2" in cli.here("diff", "k", "--files", "--to", "#2").out
    first = cli.here("diff", "k", "--files", "--to", "#1", "--json")
    assert (first.code, first.error["code"]) == (3, "files_not_captured")


def test_diff_of_files_takes_no_limit(cli: Cli) -> None:
    """Every file is listed, so a limit that would not hold is refused."""
    assert cli.here("diff", "k", "#1", "#2", "--files", "--limit", "1").code == 2


def test_diff_tells_what_one_side_did_not_capture(cli: Cli, work: Path) -> None:
    """Also where the other side has nothing at that path; what neither captured is no difference."""
    os.mkfifo(work / "pipe")
    (work / "deep").mkdir()
    os.mkfifo(work / "deep/pipe")
    assert cli.here("save", "k", "--state", "2", "--workspace", str(work)).code == 0
    assert cli.here("diff", "k", "#2", "#3", "--files", "--json").json["unknown"] == ["deep/pipe", "pipe"]
    shown = cli.here("diff", "k", "#2", "#3", "--files").out
    assert "? pipe (one of the two did not capture it)" in shown
    (work / "deep/pipe").unlink()
    (work / "deep/pipe").write_text("now a file")
    assert cli.here("save", "k", "--state", "3", "--workspace", str(work)).code == 0
    assert cli.here("diff", "k", "#3", "#4", "--files", "--json").json["unknown"] == ["deep/pipe"]
    assert cli.here("diff", "k", "#2", "#4", "--files", "--json").json["unknown"] == ["pipe"]


def test_restore_previews_restores_and_undoes(cli: Cli, work: Path) -> None:
    """The safety checkpoint is named, and plain --undo knows that files came last."""
    before = tree_of(work)
    place = ["--workspace", str(work)]
    preview = cli.here("restore", "k", "#1", "--files", "--dry-run", *place)
    assert (preview.code, tree_of(work)) == (0, before)
    done = cli.here("restore", "k", "#1", "--files", *place, "--json")
    assert (done.code, done.json["is_complete"], done.json["total"]) == (0, True, 4)
    assert sorted(tree_of(work)) == ["a.py", "old.txt", "pic"]
    assert done.json["safety"] in cli.here("list", "k", "--json").out
    assert cli.here("restore", "k", "--undo", "--files", *place).code == 0
    assert tree_of(work) == before


def test_restore_of_single_paths_and_conflicts(cli: Cli, work: Path) -> None:
    """PATHs follow the REF; unsaved work stops the command with exit code 5."""
    place = ["--workspace", str(work)]
    assert cli.here("restore", "--session", "k", "#1", "a.py", "--files", *place).code == 0
    assert (work / "a.py").read_text() == "one\n"
    assert not (work / "old.txt").exists()
    write(work, {"a.py": "precious\n"})
    refused = cli.here("restore", "k", "#2", "--files", *place)
    assert refused.code == 5
    assert (work / "a.py").read_text() == "precious\n"
    assert cli.here("restore", "k", "#2", "--files", "--force", *place).code == 0


def test_undo_takes_back_whichever_came_last(cli: Cli, work: Path) -> None:
    """After a restore of the session, --undo is about the session again."""
    place = ["--workspace", str(work)]
    cli.here("restore", "k", "#1", "--files", *place)
    assert cli.here("restore", "k", "#1").code == 0
    files = tree_of(work)
    undone = cli.here("restore", "k", "--undo", "--json")
    assert undone.json["branch"] == "main"
    assert tree_of(work) == files


def test_export_writes_an_archive(cli: Cli, work: Path) -> None:
    """To a file or to stdout."""
    written = subprocess.run(
        [sys.executable, "-m", "stepkeep", "export", "k", "--files", "--output", "-"],
        capture_output=True,
        env=cli.environment,
        check=True,
    ).stdout
    with tarfile.open(fileobj=BytesIO(written)) as archive:
        assert sorted(archive.getnames()) == sorted(tree_of(work))
    done = cli.here("export", "k", "#1", "--files", "--output", str(cli.folder / "f.tar"), "--json")
    assert done.json["files"] == 3


def test_what_was_not_captured_is_told(cli: Cli, work: Path) -> None:
    """On stderr, with its name and the reason."""
    (work / "link").symlink_to("a.py")
    os.mkfifo(work / "pipe")
    done = cli.here("save", "k", "--state", "3", "--workspace", str(work))
    assert "has not captured 'pipe': a pipe" in done.err


@pytest.mark.parametrize(
    "words",
    [
        ("diff", "k", "--stat"),
        ("restore", "k", "#1", "--dry-run"),
        ("restore", "k", "--files"),
        ("restore", "k", "#1", "--files", "--branch", "x"),
        ("save", "k", "--state", "1", "--workspace", "nowhere"),
        ("restore", "k", "#1", "--files", "../x"),
    ],
)
def test_options_that_make_no_sense_are_usage_errors(cli: Cli, words: tuple[str, ...]) -> None:
    """Exit code 2, and nothing happens."""
    assert cli.here(*words).code == 2


def test_a_recovery_script_has_commit_and_patches(tmp_path: Path) -> None:
    """Of an investigation whose checkpoint captured a repository, without anyone naming them."""
    cli = Cli(tmp_path)
    init(cli.folder)
    write(cli.folder, {".gitignore": "*.db*\n", "a.py": "one\n"})
    head = commit(cli.folder)
    write(cli.folder, {"a.py": "two\n"})
    assert cli.here("investigate", "note", "it fails", "--session", "bug").code == 0
    assert cli.here("create", "with files", "--session", "bug", "--workspace", ".").code == 0
    script = cli.here("investigate", "recovery", "--session", "bug", "--script").out
    assert f"git checkout --detach {head}\n" in script
    assert "-one\n+two\n" in script


def test_a_recovery_script_names_the_store_that_was_named(tmp_path: Path) -> None:
    """Its last command is run where another store is configured, and restores all the same."""
    cli = Cli(tmp_path)
    assert cli.here("investigate", "note", "it fails", "--session", "bug").code == 0
    there = {"STEPKEEP_STORE": "sqlite:other.db"}
    named = ["investigate", "recovery", "--session", "bug", "--store", cli.url]
    for words in (named, [*named, "--script"]):
        line = cli(*words, **there).out.splitlines()[-1]
        restored = cli(*shlex.split(line[line.index("stepkeep ") :])[1:], **there)
        assert (restored.code, "Note added" in restored.out) == (0, True)


def test_files_are_listed_read_and_traced(cli: Cli, tmp_path: Path) -> None:
    """Paths are relative to where one stands; a rename is followed; what was left out is told with its rule."""
    work = tmp_path / "fresh"
    write(work, {"src/old.py": "one\n", ".gitignore": "*.log\n", "x.log": "ignored"})
    init(work)
    cli.folder = work
    for state, change in enumerate(({}, {"src/old.py": "two\n"}), 1):
        write(work, change)
        assert cli.here("save", "fresh", "--state", str(state), "--workspace", ".").code == 0
    (work / "src/old.py").rename(work / "src/new.py")
    assert cli.here("save", "fresh", "--state", "3", "--workspace", ".").code == 0
    cli.folder = work / "src"
    listed = cli.here("files", "ls", "--session", "fresh", "--json").json
    assert [each["path"] for each in listed["files"]] == [".gitignore", "src/new.py"]
    assert listed["ignored"] == {"x.log": ".gitignore: *.log"}
    assert "new.py" in cli.here("files", "ls", "new.py", "--session", "fresh").out
    assert cli("files", "cat", "old.py", "--ref", "seq:1", "--session", "fresh").bytes == b"one\n"
    log = cli.here("files", "log", "new.py", "--session", "fresh", "--json").json
    kinds = [(each["checkpoint"]["seq"], each["kind"], each["path"]) for each in log]
    assert kinds == [(3, "renamed", "src/new.py"), (2, "changed", "src/old.py"), (1, "added", "src/old.py")]
    assert cli.here("files", "log", "none.py", "--session", "fresh").code == 3
    assert "R old.py -> new.py" in cli.here("files", "diff", "seq:2", "seq:3", "--session", "fresh").out


def test_a_path_that_a_checkpoint_does_not_have_is_no_empty_list(cli: Cli, tmp_path: Path) -> None:
    """Such as a checkpoint that was meant as one. What was left out is there, and so is a folder."""
    work = tmp_path / "fresh"
    write(work, {"src/a.py": "one\n", ".gitignore": "*.log\n", "x.log": "ignored"})
    init(work)
    cli.folder = work
    assert cli.here("save", "fresh", "--state", "1", "--workspace", ".").code == 0
    for path in ("latest", "src/a", "src/a.py/b"):
        missing = cli.here("files", "ls", "src", path, "--session", "fresh")
        assert (missing.code, missing.out) == (3, "")
        assert f"has no file '{path}'" in missing.err
    for path, shown in (("src", "src/a.py"), ("x.log", "ignored: x.log"), (".", "2 files")):
        assert shown in cli.here("files", "ls", path, "--session", "fresh").out


def test_a_file_that_was_renamed_and_edited_is_one_file(cli: Cli, tmp_path: Path) -> None:
    """Its history goes on under the old name, and a difference tells the rename instead of a loss and a find."""
    work, text = tmp_path / "fresh", "".join(f"line {number}\n" for number in range(40))
    write(work, {"src/old.py": text, "src/other.py": "quite another\n", "gone.py": "z\n"})
    cli.folder = work
    assert cli.here("save", "fresh", "--state", "1", "--workspace", ".").code == 0
    (work / "src/old.py").unlink()
    (work / "gone.py").unlink()
    write(work, {"src/new.py": text + "one more\n", "src/fresh.py": "nothing like it\n"})
    assert cli.here("save", "fresh", "--state", "2", "--workspace", ".").code == 0
    log = cli.here("files", "log", "src/new.py", "--session", "fresh", "--json").json
    assert [(each["kind"], each["path"]) for each in log] == [
        ("renamed", "src/new.py"),
        ("added", "src/old.py"),
    ]
    for command in (
        ("files", "diff", "#1", "#2", "--session", "fresh"),
        ("diff", "fresh", "#1", "#2", "--files"),
    ):
        shown = cli.here(*command).out.splitlines()
        assert "R src/old.py -> src/new.py" in shown
        assert not [line for line in shown if "old.py (" in line or "new.py (" in line]
        assert shown[-1] == "3 files: 1 added, 1 removed, 1 renamed"
        found = cli.here(*command, "--json").json
        assert found["renames"] == [{"old_path": "src/old.py", "path": "src/new.py"}]
        assert (found["added"], found["removed"], found["total"]) == (2, 2, 4)


def test_what_files_prints_can_be_given_back(cli: Cli, tmp_path: Path) -> None:
    """In a folder of the tree paths are printed as they are read there."""
    work = tmp_path / "fresh"
    write(work, {"top.txt": "1\n", "src/a.py": "one\n"})
    cli.folder = work
    assert cli.here("save", "fresh", "--state", "1", "--workspace", ".").code == 0
    write(work, {"src/a.py": "two\n"})
    assert cli.here("save", "fresh", "--state", "2", "--workspace", ".").code == 0
    cli.folder = work / "src"
    listed = [
        line.split()[-1] for line in cli.here("files", "ls", "--session", "fresh").out.splitlines()[:-1]
    ]
    assert listed == ["a.py", "../top.txt"]
    assert [cli("files", "cat", path, "--session", "fresh").out for path in listed] == ["two\n", "1\n"]
    assert " changed a.py (" in cli.here("files", "log", "a.py", "--session", "fresh").out
    assert "M a.py (" in cli.here("files", "diff", "#1", "#2", "--session", "fresh").out


def test_what_was_captured_is_counted_wherever_checkpoints_are_shown(cli: Cli, work: Path) -> None:
    """`save`, `create`, `show`, `list` and `timeline` tell how many files a checkpoint has, and what they take."""
    saved = cli.here("save", "k", "--state", "2", "--workspace", str(work)).out
    assert "3 files of 266B" in saved
    created = cli.here("create", "third", "--session", "k", "--workspace", str(work)).out
    assert "3 files of 266B" in created
    plain = cli.here("save", "k", "--state", "3").out
    assert "file" not in plain
    assert "files:      3 files, 266B" in cli("show", "k", "#3").out
    assert "files:" not in cli("show", "k", "#5").out
    for command in ("list", "timeline"):
        header, *rows = [line for line in cli(command, "k").out.splitlines() if "k:" not in line]
        assert "FILES" in header
        assert ["3 (266B)" in row for row in rows] == [False, True, True, True, False]
        assert "3 (262B)" in rows[-1]
    counts = [(each["files"], each["files_bytes"]) for each in cli("list", "k", "--json").json]
    assert counts == [(None, 0), (3, 266), (3, 266), (3, 266), (3, 262)]
    cli.here("save", "other", "--state", "1")
    assert "FILES" not in cli("list", "other").out + cli("timeline", "other").out
