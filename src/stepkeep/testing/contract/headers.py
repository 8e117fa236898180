"""Listing headers: filters, orders, pages."""

from __future__ import annotations

from typing import Any

import pytest

from stepkeep.model import Header, Status
from stepkeep.storage.port import Backend, HeaderQuery
from stepkeep.testing.contract.fixtures import Fixtures
from stepkeep.testing.contract.names import HOSTILE_NAMES
from stepkeep.testing.records import START_US, append, draft, headers, ids, item, new_session, save


def walk(backend: Backend, *, size: int, **conditions: Any) -> list[Header]:
    """All headers of a query, read in pages of that size."""
    walked: list[Header] = []
    after = None
    while page := headers(backend, limit=size, after=after, **conditions):
        assert len(page) <= size
        assert page[0] not in walked, "a page begins again"
        walked += page
        last = page[-1]
        after = (last.seq if conditions.get("session") else last.time_us, last.id)
    return walked


class HeaderContract(Fixtures):
    def test_within_a_session_the_order_is_by_seq(self, backend: Backend, uid: str) -> None:
        """Times that go back do not matter there."""
        first = save(backend, uid, time_us=START_US + 2)
        second = save(backend, uid, time_us=START_US + 1)
        assert headers(backend, session=uid) == [second, first]
        assert headers(backend, session=uid, newest_first=False) == [first, second]

    def test_across_sessions_the_order_is_that_of_ids(self, backend: Backend, uid: str) -> None:
        """An id begins with the time; equal times are told apart by the rest, so that paging is exact."""
        other = backend.create_session(new_session()).uid
        times = (START_US + 2, START_US + 1, START_US + 1, START_US + 3)
        saved = [save(backend, each, time_us=time_us).id for each in (uid, other) for time_us in times]
        assert ids(backend) == sorted(saved, reverse=True)
        assert ids(backend, newest_first=False) == sorted(saved)

    def test_each_condition_selects(self, backend: Backend, uid: str) -> None:
        """Every field of a query is a condition of its own."""
        save(backend, uid, id="cp_x1", time_us=START_US + 1, step=1, tags=("t", "u"))
        save(backend, uid, id="cp_x2", time_us=START_US + 2, branch="b", external_id="e", step=2)
        save(backend, uid, id="cp_y3", time_us=START_US + 3, status=Status.FAILED, tags=("tt",))
        expected: list[tuple[dict[str, Any], list[str]]] = [
            ({"branch": "b"}, ["cp_x2"]),
            ({"ids": ("cp_x1", "cp_y3", "cp_z")}, ["cp_y3", "cp_x1"]),
            ({"ids": ()}, []),
            ({"id_prefix": "cp_x"}, ["cp_x2", "cp_x1"]),
            ({"external_id": "e"}, ["cp_x2"]),
            ({"step": 1}, ["cp_x1"]),
            ({"status": Status.FAILED}, ["cp_y3"]),
            ({"tag": "t"}, ["cp_x1"]),
            ({"tag": "u"}, ["cp_x1"]),
            ({"min_seq": 2}, ["cp_y3", "cp_x2"]),
            ({"max_seq": 2}, ["cp_x2", "cp_x1"]),
            ({"since_us": START_US + 2}, ["cp_y3", "cp_x2"]),
            ({"until_us": START_US + 2}, ["cp_x2", "cp_x1"]),
            ({"limit": 2}, ["cp_y3", "cp_x2"]),
            ({"limit": 0}, []),
            ({"step": 0}, []),
            ({}, ["cp_y3", "cp_x2", "cp_x1"]),
        ]
        for conditions, found in expected:
            assert ids(backend, session=uid, **conditions) == found, conditions
            assert ids(backend, **conditions) == found, conditions

    def test_conditions_unite_with_and(self, backend: Backend, uid: str) -> None:
        """Only what meets all of them is found."""
        for number in range(8):
            save(backend, uid, branch="ab"[number & 1], step=number >> 1 & 1, tags=("xy"[number >> 2],))
        (found,) = headers(backend, session=uid, branch="b", step=1, tag="y", min_seq=2, since_us=START_US)
        assert found.seq == 8

    def test_a_session_hides_others(self, backend: Backend, uid: str) -> None:
        """A query within a session never shows another one's checkpoints, not even by id."""
        other = backend.create_session(new_session()).uid
        mine, theirs = save(backend, uid), save(backend, other)
        assert ids(backend, session=uid, ids=(mine.id, theirs.id)) == [mine.id]
        assert ids(backend, session=other, id_prefix="cp_") == [theirs.id]

    @pytest.mark.parametrize("name", HOSTILE_NAMES)
    def test_a_project_selects_its_sessions(self, backend: Backend, uid: str, name: str) -> None:
        """The project is the session's, and any text."""
        one = backend.create_session(new_session(project=name)).uid
        two = backend.create_session(new_session(project=name)).uid
        save(backend, uid)
        first, second = save(backend, one), save(backend, two)
        assert headers(backend, project=name) == [second, first]
        assert headers(backend, project=name, session=one) == [first]
        assert headers(backend, project=name, session=uid) == []

    def test_an_id_prefix_is_literal(self, backend: Backend, uid: str) -> None:
        """Case counts, and `%` and `_` in a prefix match themselves only."""
        for id_ in ("cp_a", "cpXa", "CP_A", "cp%a", "cp\\a"):
            save(backend, uid, id=id_)
        for prefix, found in (
            ("cp_", ["cp_a"]),
            ("cp%", ["cp%a"]),
            ("cp\\", ["cp\\a"]),
            ("%", []),
            ("_", []),
        ):
            assert ids(backend, session=uid, id_prefix=prefix) == found
            assert ids(backend, id_prefix=prefix) == found
        assert len(ids(backend, session=uid, id_prefix="cp")) == 4

    @pytest.mark.parametrize("name", HOSTILE_NAMES)
    def test_an_id_prefix_is_any_text(self, backend: Backend, uid: str, name: str) -> None:
        """A prefix with any character finds what starts with it, and nothing else."""
        save(backend, uid)
        assert ids(backend, id_prefix=name) == []
        save(backend, uid, id=name + "tail")
        assert ids(backend, id_prefix=name) == [name + "tail"]
        assert ids(backend, ids=(name + "tail", name)) == [name + "tail"]

    def test_many_ids_can_be_asked_for(self, backend: Backend, uid: str) -> None:
        """The number of ids in a query has no small limit."""
        first = save(backend, uid)
        wanted = tuple(f"cp_{number}" for number in range(5000))
        assert ids(backend, session=uid, ids=(*wanted, first.id)) == [first.id]

    @pytest.mark.parametrize("newest_first", [True, False])
    @pytest.mark.parametrize("size", [1, 7, 1000])
    def test_pages_within_a_session(self, backend: Backend, uid: str, newest_first: bool, size: int) -> None:
        """`limit` and `after` walk over all headers exactly once, in either order."""
        append(backend, *(item(draft(uid, branch=("a", "b")[n % 2])) for n in range(60)))
        for conditions in ({}, {"branch": "a"}, {"min_seq": 10, "max_seq": 40}):
            query = {"session": uid, "newest_first": newest_first, **conditions}
            assert walk(backend, size=size, **query) == headers(backend, **query)

    @pytest.mark.parametrize("newest_first", [True, False])
    @pytest.mark.parametrize("size", [1, 7, 1000])
    def test_pages_across_sessions(self, backend: Backend, uid: str, newest_first: bool, size: int) -> None:
        """Also where many times are equal."""
        uids = [uid, *(backend.create_session(new_session(project="p")).uid for _ in range(3))]
        append(backend, *(item(draft(uids[n % 4], time_us=START_US + n // 9)) for n in range(60)))
        for conditions in ({}, {"project": "p"}, {"since_us": START_US + 2, "until_us": START_US + 4}):
            query = {"newest_first": newest_first, **conditions}
            assert walk(backend, size=size, **query) == headers(backend, **query)
        assert len(headers(backend)) == 60

    def test_many_headers_are_listed(self, backend: Backend, uid: str) -> None:
        """A list longer than any page is complete and in order, within a session and across."""
        append(backend, *(item(draft(uid)) for _ in range(2500)))
        assert [row.seq for row in backend.headers(HeaderQuery(session=uid))] == list(range(2500, 0, -1))
        assert len(set(ids(backend))) == 2500
        assert len(ids(backend, limit=1700)) == 1700

    @pytest.mark.parametrize("newest_first", [True, False])
    def test_headers_can_be_written_while_they_are_listed(
        self, backend: Backend, uid: str, newest_first: bool
    ) -> None:
        """Nothing is held between pages: what stays is seen once, whatever else is saved and removed."""
        append(backend, *(item(draft(uid)) for _ in range(600)))
        stays = {header.id for header in headers(backend, session=uid) if header.seq % 2}
        seen = []
        for row in backend.headers(HeaderQuery(session=uid, newest_first=newest_first)):
            seen.append(row.id)
            if row.seq <= 600 and row.seq % 2 == 0:
                backend.remove(uid, [row.id])
            elif row.seq <= 10:
                save(backend, uid)
        assert len(seen) == len(set(seen))
        assert stays <= set(seen)

    def test_two_lists_can_be_read_at_once(self, backend: Backend, uid: str) -> None:
        """An iterator left half read disturbs nobody."""
        append(backend, *(item(draft(uid)) for _ in range(300)))
        one, two = (backend.headers(HeaderQuery(session=uid)) for _ in range(2))
        assert [next(one).seq, next(two).seq, next(one).seq] == [300, 300, 299]
        save(backend, uid)
        assert next(two).seq == 299
