"""Which checkpoint and which tree a restore of files means, and what it leaves as it is."""

from __future__ import annotations

from pathlib import Path

import pytest

import stepkeep
from stepkeep.workspace.scan import StatSignature
from stepkeep.workspace.staging import Staging
from tests.workspace.trees import tree_of, write


@pytest.fixture
def other(tmp_path: Path) -> Path:
    """A tree that is not the session's own."""
    other = tmp_path / "other"
    other.mkdir()
    return other


def content(root: Path) -> dict[str, bytes]:
    return {path: each for path, (_, each) in tree_of(root).items()}


# --- state, parts and files


class Board:
    """A part whose data is one text."""

    def __init__(self, text: str) -> None:
        self.text = text

    def snapshot(self) -> str:
        return self.text

    def restore(self, data: str) -> None:
        self.text = data


def test_state_parts_and_files_come_back_together(url: str, root: Path) -> None:
    """By one restore, which one undo takes back in another process; a plain one says that the files were left."""
    with stepkeep.open(url) as store:
        run, board = store.session("run", workspace=root), Board("one")
        run.parts.connect("board", board)
        write(root, {"a": "1"})
        first = run.parts.checkpoint("first")
        write(root, {"a": "2"})
        board.text = "two"
        run.parts.checkpoint("second")
        plain = run.restore(first.id)
        assert (plain.recovery_complete, board.text) == (False, "one")
        assert plain.files_left == 1
        assert content(root) == {"a": b"2"}
        run.undo()
        whole = run.restore(first.id, files=True, parts=True)
        assert (whole.files_left, whole.recovery_complete, board.text) == (0, True, "one")
        assert (content(root), run.load().state) == ({"a": b"1"}, {"board": "one"})
    with stepkeep.open(url) as store:
        run = store.get("run")
        run.undo(workspace=root)
        assert (content(root), run.load().state) == ({"a": b"2"}, {"board": "two"})


# --- the tree


def test_undo_is_about_the_tree_that_was_restored(
    run: stepkeep.Session, root: Path, other: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not about the session's own one: that is never touched, and the other one is named or stood in."""
    write(root, {"a": "1"})
    write(other, {"b": "2"})
    first = run.save({"n": 1})
    run.files.restore(first.id, workspace=other, force=True)
    restored, own = tree_of(other), tree_of(root)
    with pytest.raises(stepkeep.InvalidInput) as caught:
        run.files.undo()
    assert caught.value.code == "workspace_not_named"
    assert (tree_of(other), tree_of(root)) == (restored, own)
    monkeypatch.chdir(other)
    assert run.files.undo().root == str(other)
    assert (content(other), tree_of(root)) == ({"b": b"2"}, own)
    assert run.files.undo(workspace=other).root == str(other)
    assert (tree_of(other), tree_of(root)) == (restored, own)


def test_undo_of_a_tree_that_is_gone_touches_no_other(run: stepkeep.Session, root: Path, other: Path) -> None:
    """The session's own tree does not take its place."""
    write(root, {"a": "1"})
    first = run.save(1)
    run.files.restore(first.id, workspace=other)
    (other / "a").unlink()
    other.rmdir()
    with pytest.raises(stepkeep.InvalidInput):
        run.files.undo()
    assert content(root) == {"a": b"1"}


def test_files_of_another_tree_are_not_meant_for_the_session_s_own(
    run: stepkeep.Session, root: Path, other: Path
) -> None:
    """Neither restored into it nor compared with it, as long as theirs is there; if it was moved, they are."""
    write(root, {"a": "1"})
    write(other, {"b": "2"})
    run.save(1)
    second = run.save(2, workspace=other)
    for call in (run.files.restore, run.files.diff):
        with pytest.raises(stepkeep.InvalidInput) as caught:
            call(second.id)
        assert caught.value.code == "workspace_not_named"
    assert content(root) == {"a": b"1"}
    other.rename(other.with_name("moved"))
    assert run.files.restore(second.id).is_complete
    assert content(root) == {"b": b"2"}


# --- the checkpoint


def test_a_safety_checkpoint_is_not_the_latest(run: stepkeep.Session, root: Path) -> None:
    """One path after the other is restored to the same checkpoint by the same name."""
    write(root, {"a": "old", "b": "old"})
    run.save(1)
    write(root, {"a": "good", "b": "good"})
    good = run.save(2, step=6)
    for ref in ("latest", "step-6"):
        write(root, {"a": "bad", "b": "bad"})
        for path in ("a", "b"):
            assert run.files.restore(ref, [path], force=True).checkpoint.id == good.id
        assert content(root) == {"a": b"good", "b": b"good"}
    assert run.files.at().checkpoint == good.id
    for path in ("a", "b"):
        assert run.files.restore("latest~1", [path]).is_complete
    assert content(root) == {"a": b"old", "b": b"old"}
    with pytest.raises(stepkeep.NotFound, match="has 2, the oldest is latest~1"):
        run.files.restore("latest~2")
    assert run.header("latest").trigger.event == "files_restore"


def test_an_interrupted_restore_is_finished_by_the_same_words(
    run: stepkeep.Session, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They mean the same checkpoint, and the undo leads back to where everything began."""
    write(root, {"a": "old", "b": "old"})
    run.save(1)
    write(root, {"a": "new", "b": "new"})
    run.save(2)
    place = Staging.place

    def interrupted(area: Staging, path: str, expected: StatSignature | None) -> None:
        if path == "b":
            raise KeyboardInterrupt
        place(area, path, expected)

    with monkeypatch.context() as patch:
        patch.setattr(Staging, "place", interrupted)
        with pytest.raises(KeyboardInterrupt):
            run.files.restore("latest~1")
    assert content(root) == {"a": b"old", "b": b"new"}
    assert run.files.restore("latest~1").is_complete
    assert content(root) == {"a": b"old", "b": b"old"}
    assert run.files.undo().is_complete
    assert content(root) == {"a": b"new", "b": b"new"}


def test_a_safety_checkpoint_can_be_named(run: stepkeep.Session, root: Path) -> None:
    """By its id, its number and its tag."""
    write(root, {"a": "one"})
    first = run.save(1)
    write(root, {"a": "two"})
    safety = run.files.restore(first.id, force=True).safety
    assert safety is not None
    for ref in (safety, "tag:safety", f"#{run.header(safety).seq}"):
        assert run.files.at(ref).checkpoint == safety


def test_a_safety_checkpoint_keeps_step_and_metadata(run: stepkeep.Session, root: Path) -> None:
    """Whoever goes on from the latest finds everything that was there."""
    write(root, {"a": "one"})
    first = run.save({"n": 1}, step=1)
    write(root, {"a": "two"})
    run.save({"n": 2}, step=6, metadata={"k": 2})
    run.files.restore(first.id)
    latest = run.latest()
    assert latest is not None
    assert (latest.state, latest.step, latest.header.metadata) == ({"n": 2}, 6, {"k": 2})


# --- the paths


def test_a_single_text_is_one_path(run: stepkeep.Session, root: Path) -> None:
    """It stands for itself, not for its letters."""
    write(root, {"ab": "1", "a": "1"})
    first = run.save(1)
    write(root, {"ab": "2", "a": "2"})
    run.save(2)
    assert [change.path for change in run.files.diff(first.id, paths="ab").changes] == ["ab"]
    assert run.files.restore(first.id, "ab").is_complete
    assert content(root) == {"a": b"2", "ab": b"1"}
