"""`restore --files` on the command line: what it says, and what it leaves in order."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

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
    assert undone.out.splitlines()[0].endswith(": before the files of #1 were restored")


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
