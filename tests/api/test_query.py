"""Asking for a checkpoint, comparing two, and following one value over time."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import apsw
import pytest

import stepkeep
import stepkeep.aio
from stepkeep import config
from stepkeep.history.changes import StateChange
from stepkeep.model import to_us

NOW = datetime(2025, 7, 3, 12, 0, tzinfo=UTC)
HOUR = timedelta(hours=1)


class Clock:
    """A time that a test moves."""

    def __init__(self) -> None:
        self.now = NOW

    def __call__(self) -> int:
        return to_us(self.now)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def store(url: str, clock: Clock) -> Iterator[stepkeep.Store]:
    settings = config.load(cwd=None, environ={}, flags={"keeper.enabled": False})
    with stepkeep.open(url, config=settings, clock=clock) as store:
        yield store


@pytest.fixture
def session(store: stepkeep.Store, clock: Clock) -> stepkeep.Session:
    """Five checkpoints, an hour apart, the last one now; 1, 3 and 5 are tagged odd."""
    session = store.session("run", profile="archive")
    for n in range(1, 6):
        clock.now = NOW - HOUR * (5 - n)
        session.save({"n": n, "beliefs": ["x"] * n}, step=n, tags=["odd"] if n % 2 else [])
    return session


def seq(found: stepkeep.Checkpoint | None) -> int | None:
    return None if found is None else found.seq


# --- query -------------------------------------------------------------------------------------------------------


def test_by_time_seq_and_id(session: stepkeep.Session) -> None:
    """Each of them leads to its checkpoint, a time to the newest at or before it."""
    assert seq(session.query(time="2 hours ago")) == 3
    assert seq(session.query(time=NOW - HOUR * 1.5)) == 3
    assert seq(session.query(time="2025-07-03 11:00:00")) == 4
    assert seq(session.query(seq=2)) == 2
    assert seq(session.query(id=session.header("#4").id)) == 4
    found = session.query(time="now")
    assert found is not None
    assert found.state == {"n": 5, "beliefs": ["x"] * 5}


def test_time_comes_before_seq_and_seq_before_id(session: stepkeep.Session) -> None:
    """Only the first of time, seq and id that is given counts."""
    id = session.header("#1").id
    assert seq(session.query(time="2 hours ago", seq=5, id=id)) == 3
    assert seq(session.query(seq=5, id=id)) == 5


def test_a_tag_narrows_the_query(session: stepkeep.Session) -> None:
    """By time the newest with the tag; by seq or id only that one, if it has the tag."""
    assert seq(session.query(time="an hour ago", tag="odd")) == 3
    assert seq(session.query(seq=3, tag="odd")) == 3
    assert session.query(seq=4, tag="odd") is None
    assert session.query(id=session.header("#4").id, tag="odd") is None
    assert session.query(time="now", tag="none") is None


def test_what_is_not_there_is_none(session: stepkeep.Session) -> None:
    """A time before the first, a number and an id that are not there are no error."""
    assert session.query(time="1999-01-01") is None
    assert session.query(seq=99) is None
    assert session.query(seq=-(2**70)) is None
    assert session.query(id="cp_1999") is None


@pytest.mark.parametrize(
    ("query", "code"),
    [
        ({}, "invalid_query"),
        ({"tag": "odd"}, "invalid_query"),
        ({"id": "latest"}, "invalid_query"),
        ({"id": "nonsense"}, "invalid_ref"),
        ({"id": "cp_"}, "ambiguous_ref"),
        ({"time": "latest"}, "invalid_time"),
        ({"time": "half past lunch"}, "invalid_time"),
    ],
)
def test_a_query_that_asks_for_nothing_is_refused(
    session: stepkeep.Session, query: dict[str, Any], code: str
) -> None:
    """Without time, seq and id, or with one of another kind, it is `InvalidInput`."""
    with pytest.raises(stepkeep.InvalidInput) as caught:
        session.query(**query)
    assert caught.value.code == code


# --- compare -----------------------------------------------------------------------------------------------------


def test_comparing_gives_changes_counts_a_summary_and_the_time_between(session: stepkeep.Session) -> None:
    """Typed changes with both checkpoints; without the older one it is the one before."""
    found = session.diff("step-2", "step-4")
    assert session.diff(newer="step-4").older == session.describe(session.header("step-3"))
    assert (found.older.step, found.newer.step, found.elapsed) == (2, 4, 2 * HOUR)
    assert StateChange("changed", ("n",), 2, 4) in found.changes
    assert {change.kind for change in found.changes} == {"changed", "added"}
    assert (found.total, found.added, found.changed, found.removed, found.is_equal) == (3, 2, 1, 0, False)
    assert found.summary == "1 changed at the top; 2 beliefs added"


def test_comparing_backwards_and_with_itself(session: stepkeep.Session) -> None:
    """The time between is negative when the newer was saved first; a checkpoint equals itself."""
    assert session.diff("latest", "step-4").elapsed == -HOUR
    same = session.diff("latest")
    assert (same.is_equal, same.summary, same.elapsed) == (True, "no changes", timedelta())
    assert len(session.diff("step-1", limit=1).changes) == 1
    with pytest.raises(stepkeep.InvalidInput):
        session.diff("step-1", limit=-1)
    with pytest.raises(stepkeep.NotFound):
        session.diff("step-1", "step-9")


# --- log ---------------------------------------------------------------------------------------------------------


def logged(session: stepkeep.Session, path: str, **options: Any) -> list[tuple[int, str, Any, Any]]:
    return [(each.checkpoint.seq, each.kind, each.old, each.new) for each in session.log(path, **options)]


def test_the_log_of_a_value_has_only_its_changes(store: stepkeep.Store) -> None:
    """Oldest first: where it came, changed, went and came again; what stays the same is left out."""
    session = store.session("log", profile="archive")
    for state in ({}, {"a": 1}, {"a": 1, "b": 0}, {"a": 1.0}, {"b": 1}, {"b": 2}, {"a": None}):
        session.save(state)
    assert logged(session, "a") == [
        (2, "added", None, 1),
        (4, "changed", 1, 1.0),
        (5, "removed", 1.0, None),
        (7, "added", None, None),
    ]
    assert logged(session, "a", limit=2) == logged(session, "a")[-2:]
    assert logged(session, "a", ref="#4") == logged(session, "a")[:2]
    assert logged(session, "c") == []


def test_the_log_follows_paths_and_branches(session: stepkeep.Session) -> None:
    """An index from the end names another item each time; the line goes back through the fork."""
    assert [each[0] for each in logged(session, "beliefs[-1]")] == [1]
    assert [each[0] for each in logged(session, "beliefs[3]")] == [4]
    session.save({"n": 30}, branch="side", parents=[session.header("#3").id])
    assert [each[3] for each in logged(session, "n", ref="branch:side")] == [1, 2, 3, 30]
    assert [each[3] for each in logged(session, "n")] == [1, 2, 3, 4, 5]


def test_the_log_leaves_out_what_is_damaged(
    session: stepkeep.Session, path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A checkpoint that does not verify is skipped with a warning; its change shows at the next one."""
    id = session.header("#3").id
    connection = apsw.Connection(str(path))
    connection.execute("UPDATE bodies SET data = x'00' WHERE checkpoint = ?", (id,))
    connection.close()
    with caplog.at_level(logging.WARNING, "stepkeep"):
        assert [each[0] for each in logged(session, "n")] == [1, 2, 4, 5]
    assert id in caplog.text


@pytest.mark.parametrize("text", ["a..b", "a["])
def test_the_log_refuses_what_is_no_path(session: stepkeep.Session, text: str) -> None:
    """A path that cannot be read is refused before anything is loaded."""
    with pytest.raises(stepkeep.InvalidInput) as caught:
        session.log(text)
    assert caught.value.code == "invalid_path"
    with pytest.raises(stepkeep.InvalidInput):
        session.log("n", limit=-1)


# --- asyncio -----------------------------------------------------------------------------------------------------


def test_the_same_with_asyncio(url: str, session: stepkeep.Session, clock: Clock) -> None:
    """The facade has the same calls."""

    async def ask() -> tuple[Any, ...]:
        async with stepkeep.aio.open(url, clock=clock) as store:
            run = await store.get("run")
            found = await run.query(time="2 hours ago")
            log = [change.new for change in await run.log("n")]
            return seq(found), (await run.diff("#1", "#2")).changed, (await run.diff("#1")).elapsed, log

    assert asyncio.run(ask()) == (3, 1, 4 * HOUR, [1, 2, 3, 4, 5])


# --- zones and refs ----------------------------------------------------------------------------------------------


def test_times_without_a_zone_are_read_in_the_configured_one(url: str, session: stepkeep.Session) -> None:
    """Texts and datetimes alike; messages name the zone; a time with its own zone is not touched."""
    settings = config.load(cwd=None, environ={"STEPKEEP_TIME_ZONE": "Europe/Berlin"})
    with stepkeep.open(url, config=settings, clock=lambda: to_us(NOW)) as store:
        run = store.get("run")
        assert run.at("2025-07-03 12:00").seq == 3
        assert run.at("2025-07-03 12:00Z").seq == 5
        assert run.at(datetime(2025, 7, 3, 12, 0)).seq == 3
        assert run.at(datetime(2025, 7, 3, 12, 0, tzinfo=UTC)).seq == 5
        assert seq(run.query(time=datetime(2025, 7, 3, 12, 0))) == 3
        with pytest.raises(stepkeep.NotFound, match=r"before 2025-07-03 09:00:00 \+02:00 \(Europe/Berlin\)"):
            run.at("2025-07-03 09:00")
        with pytest.raises(stepkeep.InvalidInput) as caught:
            run.at(datetime(2025, 3, 30, 2, 30))
        assert caught.value.code == "skipped_time"


def test_an_unknown_zone_is_a_wrong_configuration() -> None:
    """The name is checked when the configuration is read."""
    with pytest.raises(stepkeep.InvalidInput, match=r"time.zone must be UTC, local or a zone such as"):
        config.load(cwd=None, environ={"STEPKEEP_TIME_ZONE": "Mars/Olympus"})


def test_a_time_in_the_future_is_the_newest_and_noted(
    session: stepkeep.Session, caplog: pytest.LogCaptureFixture
) -> None:
    """It is no error, but the log says that this time has not come."""
    with caplog.at_level(logging.WARNING, "stepkeep"):
        assert session.at("2025-07-03 12:00:00").seq == 5
        assert not caplog.text
        assert session.at("2030-01-01").seq == 5
    assert "2030-01-01 00:00:00 UTC is in the future" in caplog.text


HINTS = [
    ("step-9", r"no checkpoint step-9: the nearest are step-1, step-2, step-3, step-4 and step-5"),
    ("tag:od", r"no checkpoint tag:od: there is tag:odd"),
    ("#9", r"no checkpoint 9: the nearest is 5"),
    ("latest~9", r"no checkpoint latest~9: the line of branch 'main' has 5, the oldest is latest~4"),
    ("latest@before", r"latest@before: it was never restored or switched to another branch"),
    ("branch:mian", r"no checkpoint branch:mian: there is branch:main"),
    ("1999-01-01", r"before 1999-01-01 00:00:00 UTC: the first is checkpoint 1 at 2025-07-03 08:00:00 UTC"),
    ("cp_1999", r"no checkpoint cp_1999$"),
]


@pytest.mark.parametrize(("ref", "message"), HINTS)
def test_a_ref_that_leads_nowhere_says_what_is_near(
    session: stepkeep.Session, ref: str, message: str
) -> None:
    """The message names what there is instead."""
    with pytest.raises(stepkeep.NotFound, match=message):
        session.load(ref)


def test_hints_know_what_was_removed_and_what_is_elsewhere(
    store: stepkeep.Store, session: stepkeep.Session
) -> None:
    """Pruned numbers, other branches, other sessions, and a session without any checkpoint."""
    session.delete(session.header("#3").id)
    with pytest.raises(stepkeep.NotFound, match=r"3: it was pruned or deleted, the nearest are 2 and 4"):
        session.load("#3")
    session.save({"n": 6}, branch="side", step=77, tags=["far"], parents=[session.header("#1").id])
    with pytest.raises(stepkeep.NotFound, match=r"branch 'side' has it as checkpoint 6"):
        session.load("step-77")
    with pytest.raises(
        stepkeep.NotFound, match=r"tag:far: there is tag:odd; branch 'side' has it as checkpoint 6"
    ):
        session.load("tag:far")
    other = store.session("other", profile="archive")
    with pytest.raises(stepkeep.NotFound, match=r"session 'other' has no checkpoint yet"):
        other.load("step-1")
    other.save({})
    with pytest.raises(stepkeep.NotFound, match=r"it belongs to session 'run'"):
        other.load(session.header("latest").id)


def test_an_ambiguous_beginning_lists_ids_with_their_times(session: stepkeep.Session) -> None:
    """At most five, and whether there are more."""
    with pytest.raises(stepkeep.InvalidInput) as caught:
        session.load("cp_2025")
    assert caught.value.code == "ambiguous_ref"
    assert caught.value.message.count("cp_2025") == 6
    assert f"{session.header('#1').id} (2025-07-03 08:00:00 UTC)" in caught.value.message
    session.save({})
    with pytest.raises(stepkeep.InvalidInput, match=r" and more$"):
        session.load("cp_")


def test_a_damaged_header_is_skipped_by_step_tag_and_time_only(session: stepkeep.Session, path: Path) -> None:
    """It is never taken silently; named exactly, it is `Corrupt`."""
    session.save({"n": 6}, step=5, tags=["odd"])
    connection = apsw.Connection(str(path))
    connection.execute("UPDATE checkpoints SET header = substr(header, 1, 9) WHERE seq = 6")
    connection.close()
    assert [session.header(ref).seq for ref in ("step-5", "tag:odd", "now")] == [5, 5, 5]
    for ref in ("#6", "newest", "latest~0", "branch:main"):
        with pytest.raises(stepkeep.Corrupt):
            session.header(ref)


def test_latest_before_is_what_was_latest(session: stepkeep.Session) -> None:
    """After a restore it names the head that was left, also when more was saved since."""
    session.restore("#2")
    assert session.header("latest@before").seq == 5
    session.save({"n": 6})
    assert (session.header("latest").seq, session.header("latest@before").seq) == (6, 5)
    session.restore("latest@before")
    assert (session.header("latest").seq, session.header("latest@before").seq) == (5, 6)
    session.delete(session.header("#6").id)
    with pytest.raises(stepkeep.NotFound, match=r"cp_\w+ was removed"):
        session.header("latest@before")


@pytest.mark.parametrize(
    "name", ["latest", "now", "#1", "step-5", "yesterday", "2 hours ago", "cp_x", "tag:a"]
)
def test_saving_refuses_branches_called_like_refs(session: stepkeep.Session, name: str) -> None:
    """Nothing is saved under a name that would mean something else as a ref."""
    with pytest.raises(stepkeep.InvalidInput) as caught:
        session.save({}, branch=name)
    assert caught.value.code == "reserved_name"
    assert [branch.name for branch in session.branches] == ["main"]


def test_a_hint_where_nothing_is_near(store: stepkeep.Store) -> None:
    """A number whose neighbours are all gone is told too."""
    empty = store.session("gone", profile="archive")
    ids = [empty.save({"n": n}).id for n in range(2)]
    for id in ids:
        empty.delete(id)
    for ref in ("#1", "#2", "#3"):
        with pytest.raises(stepkeep.NotFound):
            empty.load(ref)


# --- by the beginning of a key -----------------------------------------------------------------------------------


def test_a_session_is_found_by_the_beginning_of_its_key_only_where_that_is_asked_for(
    store: stepkeep.Store,
) -> None:
    """A program that names a whole key never gets another session; a whole key wins over longer ones."""
    for key in ("job-1", "job-10", "nightly"):
        store.session(key)
    assert store.get("night", prefix=True).key == "nightly"
    assert store.get("job-1", prefix=True).key == "job-1"
    with pytest.raises(stepkeep.NotFound, match="no session 'night'"):
        store.get("night")
    with pytest.raises(stepkeep.NotFound, match="no session 'x'"):
        store.get("x", prefix=True)
    with pytest.raises(stepkeep.InvalidInput, match="'job-1'") as refused:
        store.get("job", prefix=True)
    assert refused.value.code == "ambiguous_session"
    assert store.session("night").key == "night"
