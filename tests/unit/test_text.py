"""How things read: sizes, ages, counts, shortened texts, and texts that cannot harm a terminal."""

from __future__ import annotations

import json

import pytest

from stepkeep import text


def test_a_long_text_ends_with_an_ellipsis_within_its_limit() -> None:
    """A text that fits stays as it is; a longer one has exactly as many characters as allowed."""
    assert text.shortened("abcd", 4) == "abcd"
    assert text.shortened("abcde", 4) == "abc…"


def test_an_error_of_any_length_and_content_can_be_kept() -> None:
    """Lone surrogates and NUL become `?`; a cut never leaves half a character."""
    assert text.error_text("a\ud800\0") == "a??"
    assert text.error_text(ValueError("no")) == "no"
    kept = text.error_text("ä" * text.MAX_ERROR_BYTES)
    assert set(kept) == {"ä"}
    assert len(kept.encode()) == text.MAX_ERROR_BYTES


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        ("plain ä 日本 👩\u200d🚀 a\u00a0b", "plain ä 日本 👩\u200d🚀 a\u00a0b"),
        ("\x00\t\n\r\x1b\x7f\x85", r"\x00\t\n\r\x1b\x7f\x85"),
        ("\u202e\u2066\ufeff\ud800\U000e0041\uffff", r"\u202e\u2066\ufeff\ud800\U000e0041\uffff"),
    ],
)
def test_clean_escapes_what_a_terminal_would_obey(given: str, shown: str) -> None:
    """Letters of all scripts and joined emoji stay, controls become visible."""
    assert text.clean(given) == shown


def test_clean_json_means_the_same() -> None:
    """Escaping inside JSON does not change its value."""
    value = {"a\x7f\u202e": "\U000e0041\x85 ok"}
    document = text.clean_json(json.dumps(value, ensure_ascii=False, indent=2).encode())
    assert json.loads(document) == value
    assert document.isascii()


@pytest.mark.parametrize(
    ("size_bytes", "shown"),
    [
        (0, "0B"),
        (999, "999B"),
        (1500, "1.5KB"),
        (9949, "9.9KB"),
        (9950, "10KB"),
        (950_000, "950KB"),
        (999_499, "999KB"),
        (999_500, "1.0MB"),
        (1_200_000, "1.2MB"),
        (999_949_999, "999.9MB"),
        (10**9, "1.0GB"),
        (5 * 10**15, "5000.0TB"),
    ],
)
def test_sizes_read_well(size_bytes: int, shown: str) -> None:
    """Sizes as in the specification: 950KB, 1.2MB."""
    assert text.size(size_bytes) == shown


def test_a_size_that_was_set_reads_as_it_was_set() -> None:
    """A budget of 10 GiB is not told as 10.7GB, which nobody has set."""
    assert text.size(10 << 30) == "10GiB"
    assert text.size((10 << 30) + 1) == "10.7GB"


def test_texts_are_broken_between_words_by_the_room_they_take() -> None:
    assert text.wrapped("one two three", 7) == ["one two", "three"]
    assert text.wrapped("漢字 漢字", 8) == ["漢字", "漢字"]
    assert text.wrapped("unbreakable x", 4) == ["unbreakable", "x"]
    assert text.wrapped("", 4) == [""]


@pytest.mark.parametrize(("number", "shown"), [(0, "0 branches"), (1, "1 branch"), (2000, "2,000 branches")])
def test_counts_agree_with_their_noun(number: int, shown: str) -> None:
    """One thing, several things."""
    assert text.count(number, "branch", "branches") == shown


@pytest.mark.parametrize(
    ("seconds", "shown"), [(-1, "0 s"), (59, "59 s"), (60, "1 min"), (7300, "2 h"), (200_000, "2 d")]
)
def test_ages_have_one_unit(seconds: float, shown: str) -> None:
    """The largest unit that fits."""
    assert text.age(seconds) == shown


@pytest.mark.parametrize(
    ("seconds", "shown"), [(0.42, "0.4 s"), (12, "12 s"), (200, "3 min 20 s"), (7500, "2 h 5 min")]
)
def test_durations_read_well(seconds: float, shown: str) -> None:
    """Short ones with a decimal, long ones in two units."""
    assert text.duration(seconds) == shown


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [(0, ""), (45, "45 s"), (20 * 60, "20 min"), (12_000, "3 h 20 min"), (7200, "2 h"), (200_000, "2 d 7 h")],
)
def test_spans_are_short(seconds: int, shown: str) -> None:
    """Two units at most."""
    assert text.span(seconds * 1_000_000) == shown
