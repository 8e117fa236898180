"""Names of files: safe for any key, and those of the specifications."""

from __future__ import annotations

import unicodedata
from itertools import islice

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepkeep.codec.readable import Layout
from stepkeep.model import MAX_NAME_BYTES, Content, Header
from stepkeep.processes import new_checkpoint_id
from stepkeep.storage.files.layouts import NAMES, is_document, is_temporary, safe_name, temporary_name

TIME_US = 1_764_426_622_123_456  # 2025-11-29 14:30:22 UTC


def header(
    time_us: int = TIME_US, *, seq: int = 7, id: str = "cp_20251129T143022123456_0123456789", **fields
) -> Header:
    contents = {"state": Content(digest="0" * 64, size=2, encoding="json")}
    return Header(
        v=1, id=id, session="u", seq=seq, branch="main", time_us=time_us, contents=contents, **fields
    )


HOSTILE = [
    "..",
    ".",
    "../../etc/passwd",
    "/absolute",
    "a/b",
    "a\\b",
    "-rf",
    "trailing.",
    "trailing ",
    "con",
    "con.txt",
    "NUL",
    "com1",
    "lpt9.json",
    "A",
    "ä",
    "a\nb",
    "\x1b[31m",
    "x" * 1024,
    "ü" * 512,
    "~",
    ".hidden",
    "a:b",
    "a*b?",
    "\u202etxt.exe",
    "cp_20250120t143000000000_0123456789",
]


@pytest.mark.parametrize("text", HOSTILE)
def test_a_hostile_text_becomes_a_harmless_name(text: str) -> None:
    """No way out of the folder, no device, no leading dash or dot, nothing but small ASCII letters."""
    name = safe_name(text)
    assert name != text
    assert_harmless(name)


def assert_harmless(name: str) -> None:
    assert name.isascii()
    assert name.isprintable()
    assert not set(name) & set('/\\:*?"<>| ')
    assert name[0] not in ".-~"
    assert not name.endswith((".", " "))
    assert len(name) <= 200
    assert name.split(".")[0].lower() not in {"con", "nul", "aux", "prn", "com1", "lpt9"}


@given(st.text(min_size=1, max_size=MAX_NAME_BYTES))
def test_any_text_becomes_a_harmless_name(text: str) -> None:
    """Also one of any letters of any script."""
    assert_harmless(safe_name(text))


@given(st.text("aAbB._-~äÄ", min_size=1, max_size=4), st.text("aAbB._-~äÄ", min_size=1, max_size=4))
def test_two_texts_never_share_a_name(one: str, other: str) -> None:
    """Not even where a file system folds case, or composes letters."""
    folded = [unicodedata.normalize("NFKC", safe_name(text)).casefold() for text in (one, other)]
    assert (folded[0] == folded[1]) == (one == other)


@pytest.mark.parametrize("text", ["session-abc", "run_42", "a.b", "0", "cp_20250120T143000000000_0123456789"])
def test_a_harmless_text_is_its_own_name(text: str) -> None:
    """What people chose well stays as it is."""
    assert safe_name(text) == text


def test_an_id_and_its_folded_twin_differ() -> None:
    """An id has one capital letter; a text that only differs in it has another name."""
    one = new_checkpoint_id(TIME_US)
    assert safe_name(one) == one
    assert safe_name(one.lower()).lower() != one.lower()


def test_the_workflow_layout_has_the_names_of_its_specification() -> None:
    """The time of the checkpoint to the second; the number when another has that name."""
    names = NAMES[Layout.WORKFLOW]
    assert f"{names.folder('session-abc')}/{names.pointer}" == "sessions/session-abc/checkpoint.json"
    assert names.history("session-abc") == "sessions/session-abc/history"
    assert list(islice(names.names(header()), 3)) == [
        "checkpoint-20251129-143022.json",
        "checkpoint-20251129-143022-7.json",
        "checkpoint-20251129-143022-7-2.json",
    ]


def test_the_run_layout_has_the_names_of_its_specification() -> None:
    """The snapshot's id."""
    names = NAMES[Layout.RUN]
    assert f"{names.folder('r')}/{names.pointer}" == "checkpoints/r/latest.json"
    assert names.history("r") == "checkpoints/r/history"
    assert next(names.names(header())) == "cp_20251129T143022123456_0123456789.json"


@pytest.mark.parametrize(
    ("fields", "phase"),
    [
        ({"metadata": {"phase": "plan"}}, "plan"),
        ({"metadata": {"phase": "Plan & Build/../x"}}, "plan-build-x"),
        ({"metadata": {"phase": "計画"}}, "phase"),
        ({"metadata": {"phase": 5}}, "checkpoint"),
        ({"step": 3}, "step-3"),
        ({}, "checkpoint"),
    ],
)
def test_the_phase_layout_has_the_names_of_its_specification(fields: dict, phase: str) -> None:
    """The time and the phase, whose name may be any text; the end of the id when another has that name."""
    names = NAMES[Layout.PHASE]
    assert names.pointer == ""
    assert names.history("any") == "checkpoints"
    assert list(islice(names.names(header(**fields)), 2)) == [
        f"ckpt-20251129T143022123456Z-{phase}.json",
        f"ckpt-20251129T143022123456Z-{phase}-0123456789.json",
    ]


@pytest.mark.parametrize("layout", Layout)
@pytest.mark.parametrize("time_us", [-(2**62), -1, 0, 2**53, 2**62])
def test_every_time_has_a_name(layout: Layout, time_us: int) -> None:
    """Also one that no calendar has; the reader takes the name for one of ours."""
    name = next(NAMES[layout].names(header(time_us)))
    assert_harmless(name)
    assert NAMES[layout].is_history(name)
    assert NAMES[layout].is_history(name + ".gz")
    assert not NAMES[layout].is_history(name + ".gz.sha256")


def test_a_temporary_name_is_no_document() -> None:
    """Readers never take one for a checkpoint."""
    assert is_temporary(temporary_name("0011"))
    assert not is_document(temporary_name("0011") + ".json")
