"""What the adapters are made of, without a framework."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import stepkeep
from stepkeep.adapters.session_head import Change, Head, SessionHeads
from stepkeep.api import SaveOptions
from stepkeep.errors import InvalidInput


@pytest.fixture
def heads(url: str) -> Iterator[SessionHeads]:
    with stepkeep.open(url) as store:
        yield SessionHeads(store)


@pytest.fixture
def others(url: str) -> Iterator[SessionHeads]:
    """Those of another process."""
    with stepkeep.open(url) as store:
        yield SessionHeads(store)


def add(heads: SessionHeads, said: Any) -> None:
    def work(head: Head) -> Change:
        return Change([*(head.state or ()), said])

    heads.change("c", work)


def test_changes_in_turns_lose_nothing(heads: SessionHeads, others: SessionHeads) -> None:
    """What is remembered of a session is taken only while it is the newest."""
    for number in range(10):
        add(heads if number % 2 else others, number)
        assert heads.state("c") == others.state("c") == list(range(number + 1))


def test_a_session_that_others_made_anew_is_found(heads: SessionHeads, others: SessionHeads) -> None:
    """By those who read, change and save: each had used the one that was removed."""
    for use in (
        lambda: heads.state("c"),
        lambda: add(heads, "more"),
        lambda: heads.save("c", ["more"], SaveOptions()),
    ):
        heads.save("c", ["old"], SaveOptions())
        add(heads, "older")
        assert heads.state("c") == ["old", "older"]
        assert others.remove("c")
        assert heads.state("c") is None
        others.save("c", ["new"], SaveOptions())
        use()
        assert heads.state("c") in (["new"], ["new", "more"], ["more"])
        assert others.state("c") == heads.state("c")
        assert len(list(heads.store.sessions())) == 1
        heads.remove("c")


def test_rules_apply_to_a_session_that_was_there_and_read_before(url: str, heads: SessionHeads) -> None:
    """They become the rules of every session that is saved into."""
    heads.save("c", [0], SaveOptions())
    with stepkeep.open(url) as store:
        ruled = SessionHeads(store, retention={"keep_last": 2})
        assert ruled.state("c") == [0]
        for number in range(1, 5):
            ruled.save("c", [number], SaveOptions())
        store.get("c").prune()
        assert [header.seq for header in ruled.history("c")] == [4, 5]


def test_what_cannot_be_saved_leaves_no_session(heads: SessionHeads) -> None:
    """Neither a change nor a save begins one with it."""
    with pytest.raises(InvalidInput):
        add(heads, object())
    with pytest.raises(InvalidInput):
        heads.save("c", object(), SaveOptions())
    assert list(heads.store.sessions()) == []
