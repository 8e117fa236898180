"""The pointer in `seed.json`: one member changes, every other byte stays, and a bad file is never written."""

from __future__ import annotations

import fcntl
import json
import multiprocessing
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepkeep.storage.files import phase_files
from stepkeep.storage.files.phase_files import SeedProblem, clear_ref, ref_in, set_ref, with_ref, without_ref

TEXTS = {
    "two spaces": '{\n  "version": 1,\n  "state": {\n    "a": 1\n  },\n  "z": [1, 2]\n}\n',
    "tabs, no newline": '{\n\t"state": {\n\t\t"a": [ 1,2 ],\n\t\t"b" :{}\n\t}\n}',
    "one line": '{"state": {"a": 1, "b": 2}, "x": null}',
    "no spaces": '{"x":1,"state":{"a":1}}\n',
    "empty state": '{\n    "state": {}\n}\n',
    "empty state in one line": '{"state":{}}',
    "odd": '  {"state" :  { "a":1 ,\r\n "b":"}{" }, "s": "state"}  \n\n',
    "unicode": '{"state": {"ä": "\\ud83d\\ude42 \\"checkpointRef\\": 1"}}',
}


@pytest.mark.parametrize("name", TEXTS)
def test_setting_and_clearing_gives_the_text_back(name: str) -> None:
    """Whatever the formatting, only the one member comes and goes."""
    text = TEXTS[name]
    pointed = with_ref(text, "cp_1")
    assert ref_in(pointed) == "cp_1"
    assert ref_in(with_ref(pointed, "cp_2")) == "cp_2"
    assert without_ref(with_ref(pointed, "cp_2")) == text


def test_the_member_is_found_wherever_it_stands() -> None:
    """First, in the middle or alone."""
    assert without_ref('{"state": {"checkpointRef": "a", "b": 1}}') == '{"state": {"b": 1}}'
    assert without_ref('{"state": {"a": 1, "checkpointRef": "a", "b": 1}}') == '{"state": {"a": 1, "b": 1}}'
    assert without_ref('{"state": {"checkpointRef": "a"}}') == '{"state": {}}'
    assert (
        with_ref('{"state": {"checkpointRef": null, "b": 1}}', "x")
        == '{"state": {"checkpointRef": "x", "b": 1}}'
    )


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(
    st.dictionaries(st.text(), JSON, max_size=3),
    st.dictionaries(st.text().filter(lambda key: key != "checkpointRef"), JSON, max_size=3),
    st.sampled_from([None, 0, 2, "\t"]),
    st.booleans(),
)
def test_any_document_comes_back(
    rest: dict[str, object], state: dict[str, object], indent: object, ascii: bool
) -> None:
    """For every document and way of writing it, setting changes one value and clearing restores the text."""
    document = {**rest, "state": state}
    text = json.dumps(document, indent=indent, ensure_ascii=ascii)  # type: ignore[arg-type]
    pointed = with_ref(text, "cp_x")
    assert json.loads(pointed) == {**document, "state": {**state, "checkpointRef": "cp_x"}}
    assert without_ref(pointed) == text


BAD = {
    "empty": b"",
    "no JSON": b"{",
    "a list": b"[]",
    "no state": b'{"a": 1}',
    "state is no object": b'{"state": 7}',
    "two states": b'{"state": {}, "state": {}}',
    "two refs": b'{"state": {"checkpointRef": "a", "checkpointRef": "b"}}',
    "not UTF-8": b'{"state": {"a": "\xff"}}',
    "deep": b'{"state": {"a": ' + b"[" * 100_000 + b"]" * 100_000 + b"}}",
}


@pytest.mark.parametrize("name", BAD)
def test_a_file_that_makes_no_sense_is_told_and_stays(tmp_path: Path, name: str) -> None:
    """Nothing is repaired, and nothing is overwritten."""
    path = tmp_path / "seed.json"
    path.write_bytes(BAD[name])
    problem = set_ref(path, "cp_1")
    assert problem is not None
    assert str(path) in problem
    assert path.read_bytes() == BAD[name]
    assert list(tmp_path.iterdir()) == [path]


def test_a_missing_file_is_told_and_not_made(tmp_path: Path) -> None:
    """The file is somebody else's to make."""
    path = tmp_path / "seed.json"
    assert set_ref(path, "cp_1") == f"{path} is missing"
    assert list(tmp_path.iterdir()) == []


def test_clearing_looks_at_what_is_pointed_at(tmp_path: Path) -> None:
    """A pointer to somebody else's checkpoint stays."""
    path = tmp_path / "seed.json"
    path.write_text(with_ref(TEXTS["two spaces"], "theirs"), encoding="utf-8")
    assert clear_ref(path, {"ours"}) is None
    assert phase_files.read_ref(path) == "theirs"
    assert clear_ref(path, {"theirs"}) is None
    assert path.read_text(encoding="utf-8") == TEXTS["two spaces"]


def test_mode_and_link_stay(tmp_path: Path) -> None:
    """The file keeps who may read it, and a link stays one."""
    real, link = tmp_path / "real.json", tmp_path / "seed.json"
    real.write_text(TEXTS["one line"], encoding="utf-8")
    real.chmod(0o640)
    link.symlink_to(real)
    assert set_ref(link, "cp_1") is None
    assert link.is_symlink()
    assert real.stat().st_mode & 0o777 == 0o640
    assert phase_files.read_ref(real) == "cp_1"


def test_a_locked_file_is_waited_for_and_then_told(tmp_path: Path) -> None:
    """Another writer that holds the lock is not overrun."""
    path = tmp_path / "seed.json"
    path.write_text(TEXTS["one line"], encoding="utf-8")
    with path.open() as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        problem = set_ref(path, "cp_1", wait_seconds=0.05)
    assert problem is not None
    assert "locked by another process" in problem
    assert set_ref(path, "cp_1") is None


def _point(path: str, number: int) -> None:
    for turn in range(20):
        assert set_ref(Path(path), f"cp_{number}_{turn}", wait_seconds=30) is None


@pytest.mark.full
def test_many_writers_leave_a_whole_file(tmp_path: Path) -> None:
    """Processes at once: every write is whole, and one of the last ones stays."""
    path = tmp_path / "seed.json"
    path.write_text(TEXTS["two spaces"], encoding="utf-8")
    context = multiprocessing.get_context("spawn")
    writers = [context.Process(target=_point, args=(str(path), number)) for number in range(3)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join(60)
    assert [writer.exitcode for writer in writers] == [0, 0, 0]
    text = path.read_text(encoding="utf-8")
    assert (ref_in(text) or "").endswith("_19")
    assert without_ref(text) == TEXTS["two spaces"]
    assert os.listdir(tmp_path) == ["seed.json"]  # noqa: PTH208


def test_problems_are_exceptions_of_their_own() -> None:
    """Whoever edits the text alone is told by an exception."""
    with pytest.raises(SeedProblem, match="not valid JSON"):
        with_ref("{", "x")
