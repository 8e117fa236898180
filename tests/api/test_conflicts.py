"""Two writers, old clocks, deleted sessions and repeated saves."""

from __future__ import annotations

from typing import Any

import pytest

import stepkeep
from tests.api import programs

HOUR_US = 3_600_000_000


def test_a_stale_expect_head_is_a_conflict(url: str) -> None:
    """Two writers start from the same head: the second one is told, and nothing of its save is stored."""
    with stepkeep.open(url) as one, stepkeep.open(url) as two:
        first = one.session("run").save({"n": 1}, expect_head=None)
        one.get("run").save({"n": 2}, expect_head=first.id)
        with pytest.raises(stepkeep.Conflict) as caught:
            two.get("run").save({"n": 3}, expect_head=first.id)
        assert (caught.value.code, caught.value.retryable) == ("head_moved", True)
        with pytest.raises(stepkeep.Conflict):
            two.get("run").save({"n": 3}, expect_head=None)
    found = programs.run(programs.survey, url, "run")
    assert [state["n"] for state in found["states"]] == [1, 2]
    assert found["seqs"] == [1, 2]


def test_without_expect_head_both_are_kept_in_order(url: str) -> None:
    """Two writers that know only the same head both save: the second one's parent is the first one's save."""
    with stepkeep.open(url) as one, stepkeep.open(url) as two:
        first = one.session("run").save({"n": 1})
        two.get("run").load()
        second = one.get("run").save({"n": 2})
        third = two.get("run").save({"n": 3})
        assert (second.parents, third.parents) == ((first.id,), (second.id,))
    found = programs.run(programs.survey, url, "run")
    assert [state["n"] for state in found["states"]] == [1, 2, 3]


def test_a_writer_whose_clock_is_behind_becomes_latest(url: str) -> None:
    """Order is by seq, not by time: an hour behind, the later save is still latest."""
    with (
        stepkeep.open(url, clock=lambda: 2_000_000_000_000_000) as one,
        stepkeep.open(url, clock=lambda: 2_000_000_000_000_000 - HOUR_US) as two,
    ):
        one.session("run").save({"n": 1})
        behind = two.get("run").save({"n": 2})
        assert behind.time_us == 2_000_000_000_000_000 - HOUR_US
        assert one.get("run").load().state == {"n": 2}
        assert [header.seq for header in one.get("run").history()] == [2, 1]
        assert one.get("run").info.updated_us == 2_000_000_000_000_000
    assert programs.run(programs.survey, url, "run")["latest"] == 2


def test_many_saves_within_one_microsecond_have_distinct_ids(url: str) -> None:
    """A clock that stands still gives no two equal ids."""
    with stepkeep.open(url, clock=lambda: 1_700_000_000_000_000) as store:
        session = store.session("run")
        assert len({session.save({"n": n}).id for n in range(50)}) == 50


def test_a_deleted_session_refuses_saves_and_its_key_starts_afresh(url: str) -> None:
    """A handle of the old incarnation gets `NotFound`; the key begins again with seq 1 and another uid."""
    with stepkeep.open(url) as store, stepkeep.open(url) as other:
        old = store.session("run")
        old.save({"n": 1})
        old.save({"n": 2})
        stale = other.get("run")
        stale.load()
        old.clear()
        with pytest.raises(stepkeep.NotFound):
            store.get("run")
        new = store.session("run")
        assert new.uid != old.uid
        for handle in (old, stale):
            with pytest.raises(stepkeep.NotFound) as caught:
                handle.save({"n": 3})
            assert caught.value.code == "session_not_found"
            with pytest.raises(stepkeep.NotFound):
                handle.latest()
        assert new.latest() is None
        assert new.save({"n": 1}).seq == 1
    assert programs.run(programs.survey, url, "run")["uid"] == new.uid


def test_a_session_deleted_between_look_and_commit_is_not_found(url: str) -> None:
    """The incarnation is checked inside the transaction, not only before it."""
    with stepkeep.open(url) as store, stepkeep.open(url) as other:
        session = store.session("run")
        session.save({"n": 1})
        with store.engine._committer._leader:
            pending = session.save({"n": 2}, wait=False)
            other.get("run").clear()
            other.session("run")
        with pytest.raises(stepkeep.NotFound):
            pending.result()
        assert other.get("run").latest() is None


# --- idempotency keys ------------------------------------------------------------------------------------------


def test_a_repeated_save_returns_the_first_checkpoint(session: stepkeep.Session) -> None:
    """Same key and content: the original, whatever came between; other content, step or status: `Conflict`."""
    first = session.save({"n": 1}, idempotency_key="a", step=1, message="first")
    session.save({"n": 2})
    again = session.save({"n": 1}, idempotency_key="a", step=1, message="again")
    assert again == first
    assert [header.seq for header in session.history()] == [2, 1]
    others: list[tuple[Any, dict[str, Any]]] = [
        ({"n": 9}, {"step": 1}),
        ({"n": 1}, {"step": 2}),
        ({"n": 1}, {"step": 1, "status": "failed"}),
        ({"n": 1}, {"step": 1, "details": {}}),
    ]
    for state, options in others:
        with pytest.raises(stepkeep.Conflict) as caught:
            session.save(state, idempotency_key="a", **options)
        assert (caught.value.code, caught.value.retryable) == ("idempotency_mismatch", False)
    assert session.save({"n": 3}).seq == 3
    assert session.verify().is_intact


def test_the_key_is_looked_at_before_the_head(session: stepkeep.Session) -> None:
    """A retry whose expected head has moved because the first try succeeded is no conflict."""
    first = session.save({"n": 1}, idempotency_key="a", expect_head=None)
    assert session.save({"n": 1}, idempotency_key="a", expect_head=None) == first


def test_a_key_holds_after_reopening_in_another_process(url: str) -> None:
    """The retry may come from a new process; another session may use the same key."""
    first = programs.run(programs.save_with_key, url, "run", "k", {"n": 1})
    assert programs.run(programs.save_with_key, url, "run", "k", {"n": 1}) == first
    assert programs.run(programs.save_with_key, url, "run", "k", {"n": 2}) == [
        "conflict",
        "idempotency_mismatch",
    ]
    assert programs.run(programs.save_with_key, url, "other", "k", {"n": 2})[1] == 1
    assert programs.run(programs.survey, url, "run")["seqs"] == [1]


def test_an_external_id_is_unique_on_its_branch(session: stepkeep.Session) -> None:
    """A second checkpoint with that external id is refused on the same branch, and taken on another."""
    session.save({"n": 1}, external_id="x")
    with pytest.raises(stepkeep.Conflict) as caught:
        session.save({"n": 2}, external_id="x")
    assert caught.value.code == "external_id_exists"
    assert session.save({"n": 2}, external_id="x", branch="side").seq == 2


def test_a_required_checkpoint_must_exist(session: stepkeep.Session) -> None:
    """A save that requires an unknown id is `NotFound` and stores nothing."""
    with pytest.raises(stepkeep.NotFound):
        session.save({}, requires=["cp_unknown"])
    assert session.save({}).seq == 1


def test_a_repeat_among_background_saves_keeps_the_order(session: stepkeep.Session) -> None:
    """A repeated save stores nothing; what was saved after it still comes in order, and the last one is latest."""
    text = "same words " * 120
    session.save({"n": 1, "text": text}, idempotency_key="a")
    with session._engine._committer._leader:
        pending = [
            session.save({"n": 1, "text": text}, idempotency_key="a", wait=False),
            session.save({"n": 2, "text": text}, wait=False),
            session.save({"n": 3, "text": text}, status="completed", wait=False),
        ]
    assert [each.result().seq for each in pending] == [1, 2, 3]
    assert session.load().state["n"] == 3
    assert session.info.status is stepkeep.Status.COMPLETED
