"""`restore --files` on the command line: what it says, and what it leaves in order."""

from __future__ import annotations

import errno
import os
import shlex
from pathlib import Path

import pytest

from stepkeep.workspace.scan import StatSignature
from stepkeep.workspace.staging import Staging
from tests.surfaces.test_cli import Cli
from tests.workspace.trees import tree_of, write

FLOW = "name: broken\nsteps:\n  - {id: one, shell: 'true'}\n  - {id: two, shell: 'false'}\n"


@pytest.fixture
def cli(tmp_path: Path) -> Cli:
    return Cli(tmp_path)


@pytest.fixture
def work(tmp_path: Path) -> Path:
    work = tmp_path / "the work"
    work.mkdir()
    return work


def save(cli: Cli, work: Path, **files: str) -> None:
    write(work, dict(files))
    assert cli.here("save", "k", "--state", "1", "--workspace", str(work)).code == 0


def test_the_printed_undo_works_where_it_is_printed(cli: Cli, work: Path) -> None:
    """Outside of the tree it names it, inside it need not; and the undo says which restore it takes back."""
    save(cli, work, a="one")
    save(cli, work, a="two")
    done = cli("restore", "k", "#1", "--files", "--workspace", str(work))
    undo = done.out.splitlines()[-1].removeprefix("Undo:   stepkeep ")
    assert undo.endswith(f" --workspace {shlex.quote(str(work))}")
    undone = cli(*shlex.split(undo))
    assert (undone.code, (work / "a").read_text()) == (0, "two")
    assert undone.out.splitlines()[0].endswith(": before the files of checkpoint 1 were restored")


def test_the_printed_undo_is_short_inside_the_tree(cli: Cli, work: Path) -> None:
    """The tree is where one stands."""
    save(cli, work, a="one")
    save(cli, work, a="two")
    cli.folder = work
    assert cli.here("restore", "k", "#1", "--files").out.endswith("--undo --files\n")


def test_a_refusal_names_the_option(cli: Cli, work: Path) -> None:
    """As it is written here."""
    save(cli, work, a="one")
    write(work, {"a": "two"})
    assert "--force" in cli.here("restore", "k", "#1", "--files", "--workspace", str(work)).err


def test_latest_is_the_same_checkpoint_again(cli: Cli, work: Path) -> None:
    """Restoring another path of it right after one finds it good as well."""
    save(cli, work, a="good", b="good")
    write(work, {"a": "bad", "b": "bad"})
    for path in ("a", "b"):
        done = cli.here("restore", "k", "latest", path, "--files", "--force", "--workspace", str(work))
        assert (done.code, (work / path).read_text()) == (0, "good")


def test_what_had_to_stay_is_told(cli: Cli, work: Path) -> None:
    """A new file over the cap cannot be captured, so it is not removed: exit code 1."""
    (cli.folder / "stepkeep.yaml").write_text("workspace:\n  max_file_bytes: 1000\n")
    save(cli, work, a="one")
    write(work, {"big": "x" * 5000})
    done = cli.here("restore", "k", "#1", "--files", "--workspace", str(work))
    assert done.code == 1
    assert "big: what is there cannot be captured first: larger than 1,000 bytes" in done.out
    assert sorted(tree_of(work)) == ["a", "big"]


def test_only_what_was_restored_is_counted(cli: Cli, work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of two files one cannot be put back: it is named as left, and not among those that were restored."""
    save(cli, work, a="one", b="one")
    write(work, {"a": "two", "b": "two"})
    place = Staging.place

    def placed(staging: Staging, path: str, expected: StatSignature | None) -> None:
        if path == "b":
            raise OSError(errno.EPERM, "is immutable")
        place(staging, path, expected)

    monkeypatch.setattr(Staging, "place", placed)
    done = cli.here("restore", "k", "#1", "--files", "--force", "--workspace", str(work))
    assert done.code == 1
    assert "Restored 1 file in" in done.out
    assert "M b" not in done.out
    assert "Left as they were: 1 file\n  b: " in done.out
    assert ((work / "a").read_text(), (work / "b").read_text()) == ("one", "two")


def test_a_failed_workflow_can_still_be_resumed(cli: Cli, work: Path) -> None:
    """After a checkpoint by hand, and after its files were restored."""
    (cli.folder / "flow.yaml").write_text(FLOW)
    assert cli("run", "flow.yaml", "--session", "wf").code == 1
    write(work, {"a": "one"})
    for words in (
        ("create", "here", "--session", "wf", "--workspace", str(work)),
        ("restore", "wf", "latest", "--files", "--force", "--workspace", str(work)),
    ):
        assert cli.here(*words).code == 0
        assert [each["session"] for each in cli.here("resume", "--json").json] == ["wf"]
        write(work, {"a": "two"})


# --- the session and its files together


def texts(work: Path) -> list[str]:
    return [path.read_text() for path in sorted(work.iterdir())]


def test_all_brings_state_and_files_back_and_one_undo_takes_both(cli: Cli, work: Path) -> None:
    """A plain restore says that the files were left, and how to bring them."""
    save(cli, work, a="one")
    write(work, {"a": "two"})
    assert cli.here("save", "k", "--state", "2", "--workspace", str(work)).code == 0
    cli.folder = work
    plain = cli.here("restore", "k", "#1")
    assert "1 file of it left as they are. Bring them back: stepkeep restore --session k cp_" in plain.out
    assert cli.here("restore", "k", "--undo").code == 0
    done = cli.here("restore", "k", "#1", "--all", "--json").json
    assert (done["files"]["total"], done["files_left"], done["recovery_complete"]) == (1, 0, True)
    assert (cli.here("show", "k", "--raw").out.strip(), texts(work)) == ("1", ["one"])
    assert cli("restore", "k", "--undo").code == 0
    assert (cli.here("show", "k", "--raw").out.strip(), texts(work)) == ("2", ["two"])
    assert cli("restore", "k", "--undo").code == 0
    assert (cli.here("show", "k", "--raw").out.strip(), texts(work)) == ("1", ["one"])


def test_all_is_refused_as_a_whole(cli: Cli, work: Path) -> None:
    """Files that no capture has stop it before the session moves."""
    save(cli, work, a="one")
    save(cli, work, a="two")
    write(work, {"a": "unsaved"})
    cli.folder = work
    assert cli.here("restore", "k", "#1", "--all").code == 5
    assert cli.here("branch", "list", "k", "--json").json["current"] == "main"
    assert cli.here("restore", "k", "#1", "--all", "--force").code == 0
    assert cli.here("restore", "k", "--undo").code == 0
    assert texts(work) == ["unsaved"]


def test_undo_goes_on_to_what_came_before(cli: Cli, work: Path) -> None:
    """First the files, then the session; then the last is done again."""
    save(cli, work, a="one")
    save(cli, work, a="two")
    cli.folder = work
    assert cli.here("restore", "k", "#1").code == 0
    assert cli.here("restore", "k", "#1", "--files").code == 0

    def now() -> tuple[str, str]:
        return texts(work)[0], cli.here("branch", "list", "k", "--json").json["current"]

    seen = [now()]
    for _ in range(3):
        assert cli.here("restore", "k", "--undo").code == 0
        seen.append(now())
    assert seen == [("one", "from-1"), ("two", "from-1"), ("two", "main"), ("two", "from-1")]


def test_a_restore_that_changed_nothing_is_not_undone(
    cli: Cli, work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It prints no undo, counts what it did, and does not hide the restore before."""
    save(cli, work, a="one", b="one")
    save(cli, work, a="two", b="two")
    cli.folder = work
    assert cli.here("restore", "k", "#1", "--files", "a").code == 0

    def fail(*_: object, **__: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    with monkeypatch.context() as patch:
        patch.setattr("stepkeep.workspace.staging.Staging.place", fail)
        failed = cli.here("restore", "k", "#1", "--files", "b")
    assert failed.code == 1
    assert "Restored 0 files" in failed.out
    assert "Undo:" not in failed.out
    assert cli.here("restore", "k", "--undo").code == 0
    assert texts(work) == ["two", "two"]


@pytest.mark.parametrize(
    "command", [["restore", "k", "#1", "--files", ""], ["diff", "k", "--files", "--path", ""]]
)
def test_an_empty_path_is_an_error(cli: Cli, work: Path, command: list[str]) -> None:
    """A variable that is not set does not mean the whole tree."""
    save(cli, work, a="one")
    save(cli, work, a="two")
    cli.folder = work
    assert cli.here(*command).code == 2
    assert texts(work) == ["two"]


@pytest.mark.parametrize("spelling", [b"bad\xff.bin", rb"bad\xff.bin"])
def test_a_name_that_is_no_text_is_restored_by_either_spelling(cli: Cli, work: Path, spelling: bytes) -> None:
    """As it is, or as the output shows it; the undo knows it too."""
    file = Path(os.fsdecode(os.fsencode(work) + b"/bad\xff.bin"))
    file.write_text("one")
    save(cli, work, a="one")
    file.write_text("two")
    save(cli, work, a="two")
    cli.folder = work
    done = cli("restore", "k", "#1", "--files", spelling)
    assert (done.code, file.read_text(), (work / "a").read_text()) == (0, "one", "two")
    assert cli("restore", "k", "--undo").code == 0
    assert file.read_text() == "two"


@pytest.mark.parametrize("words", [["restore", "k", "#1", "--files"], ["files", "log", "--session", "k"]])
def test_a_refusal_spells_a_name_as_it_can_be_given(cli: Cli, work: Path, words: list[str]) -> None:
    """As all output does, and no safety checkpoint is taken."""
    save(cli, work, a="one")
    cli.folder = work
    refused = cli.here(*words, r"gone\xff.bin")
    assert (refused.code, r"'gone\xff.bin'" in refused.err) == (3, True)
    assert len(cli.here("log", "k", "--json").json["checkpoints"]) == 1


def test_the_printed_undo_names_the_store_that_was_named(cli: Cli, work: Path) -> None:
    """Without it the command would look into another one."""
    save(cli, work, a="one")
    save(cli, work, a="two")
    done = cli("restore", "k", "#1", "--store", cli.url, STEPKEEP_STORE="sqlite:other.db")
    undo = next(line for line in done.out.splitlines() if line.startswith("Undo:"))
    assert cli(*shlex.split(undo)[2:], STEPKEEP_STORE="sqlite:other.db").code == 0
