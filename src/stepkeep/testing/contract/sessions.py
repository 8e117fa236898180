"""Sessions: created, found, changed, deleted."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace

from stepkeep.errors import Conflict, InvalidInput, NotFound
from stepkeep.model import MAIN_BRANCH, Branch, BranchState, Session, Status, new_uid
from stepkeep.storage.port import Backend, HeaderQuery, SessionQuery
from stepkeep.testing.clock import FakeClock
from stepkeep.testing.contract.fixtures import Fixtures
from stepkeep.testing.contract.names import HOSTILE_NAMES
from stepkeep.testing.records import (
    START_US,
    draft,
    headers,
    ids,
    item,
    keyframe,
    new_blob,
    new_owner,
    new_session,
    save,
)
from stepkeep.testing.records import append_one as append


def keys(backend: Backend, **conditions: Any) -> list[str]:
    return [session.key for session in backend.sessions(SessionQuery(**conditions))]


class SessionContract(Fixtures):
    def test_a_created_session_comes_back_equal(self, backend: Backend) -> None:
        """Every field of a session is kept."""
        session = new_session(
            project="p",
            workflow="w",
            profile="agent",
            is_test=True,
            status=Status.PAUSED,
            branch="draft",
            error="none yet",
            policy={"keep_last": 3},
            fingerprint="f",
            metadata={"nested": {"list": [1, 2.5, None, "x", True]}},
        )
        assert backend.create_session(session) == session
        assert backend.session(session.uid) == session
        assert backend.session_by_key(session.key) == session

    def test_a_created_session_has_its_branch_empty(self, backend: Backend) -> None:
        """The branch a session is on exists from the start, without a head."""
        session = backend.create_session(new_session(branch="draft"))
        assert backend.branches(session.uid) == [Branch(name="draft", created_us=session.created_us)]

    def test_a_key_is_held_once(self, backend: Backend, session: Session) -> None:
        """A second session with the same key is a conflict, and nothing of it is stored."""
        other = new_session(session.key)
        with pytest.raises(Conflict):
            backend.create_session(other)
        with pytest.raises(NotFound):
            backend.session(other.uid)

    def test_a_uid_is_held_once(self, backend: Backend, session: Session) -> None:
        """A second session with the same uid is a conflict."""
        with pytest.raises(Conflict):
            backend.create_session(new_session("another key", uid=session.uid))
        assert backend.session_by_key("another key") is None

    def test_an_unknown_uid_is_not_found(self, backend: Backend) -> None:
        """Every method that takes a uid says NotFound when it names no session."""
        uid = new_uid()
        calls: list[Callable[[], object]] = [
            lambda: backend.session(uid),
            lambda: backend.update_session(uid, {}),
            lambda: backend.delete_session(uid),
            lambda: backend.branches(uid),
            lambda: backend.set_branch(uid, Branch(name="b", created_us=1)),
            lambda: list(backend.headers(HeaderQuery(session=uid))),
            lambda: backend.body_chain(uid, "cp", "state"),
            lambda: backend.spare(uid, "cp", "state"),
            lambda: backend.bodies(uid),
            lambda: backend.replace_body(uid, keyframe("cp"), expect_digest=""),
            lambda: backend.remove(uid, []),
            lambda: backend.sweep(session=uid),
            lambda: backend.adopt(uid, b"", bodies=[]),
            lambda: backend.annotate(uid, "cp", "k", "n", b"", time_us=1),
            lambda: backend.annotations(uid),
            lambda: backend.record_event(uid, "t", {}, time_us=1),
            lambda: backend.events(uid),
            lambda: backend.acquire_lease(uid, new_owner(), seconds=1),
            lambda: backend.renew_lease(uid, 1, seconds=1),
            lambda: backend.release_lease(uid, 1),
            lambda: backend.lease(uid),
            lambda: backend.usage(uid),
        ]
        for call in calls:
            with pytest.raises(NotFound):
                call()

    def test_an_unknown_key_is_none(self, backend: Backend) -> None:
        """No session has that key: None, not an error."""
        assert backend.session_by_key("nobody") is None

    def test_what_a_caller_holds_is_not_the_store(self, backend: Backend) -> None:
        """Changing a dict that was given or received changes nothing that is stored."""
        given = new_session(metadata={"a": [1]})
        backend.create_session(given)
        given.metadata["a"].append(2)
        backend.session(given.uid).metadata["a"].append(3)
        assert backend.session(given.uid).metadata == {"a": [1]}

    @pytest.mark.parametrize("name", HOSTILE_NAMES)
    def test_a_key_is_any_text(self, backend: Backend, name: str) -> None:
        """A key with quotes, wildcards or newlines is data: it finds its session, and no other."""
        backend.create_session(new_session("plain"))
        session = backend.create_session(new_session(name, project=name, workflow=name))
        assert backend.session_by_key(name) == session
        assert keys(backend, key_prefix=name) == [name]
        assert keys(backend, project=name) == [name]
        assert keys(backend, workflow=name) == [name]

    # --- listing ---

    def test_sessions_come_most_recently_updated_first(self, backend: Backend) -> None:
        """The order is by update time, not by creation or key."""
        for key, updated_us in (("b", 2), ("c", 3), ("a", 1)):
            backend.create_session(new_session(key, updated_us=START_US + updated_us))
        assert keys(backend) == ["c", "b", "a"]

    def test_conditions_on_sessions_unite_with_and(self, backend: Backend) -> None:
        """Each condition narrows the answer."""
        backend.create_session(new_session("p-w", project="p", workflow="w"))
        backend.create_session(new_session("p-x", project="p", workflow="x", status=Status.FAILED))
        backend.create_session(new_session("q-w", project="q", workflow="w"))
        assert set(keys(backend, project="p")) == {"p-w", "p-x"}
        assert set(keys(backend, workflow="w")) == {"p-w", "q-w"}
        assert keys(backend, project="p", workflow="w") == ["p-w"]
        assert keys(backend, project="p", statuses=(Status.FAILED, Status.PAUSED)) == ["p-x"]
        assert keys(backend, statuses=()) == []

    def test_a_key_prefix_is_literal(self, backend: Backend) -> None:
        """Case counts, and `%` and `_` in a prefix match themselves only."""
        for key in ("a_b", "aXb", "A_B", "a%b"):
            backend.create_session(new_session(key))
        assert keys(backend, key_prefix="a_") == ["a_b"]
        assert keys(backend, key_prefix="a%") == ["a%b"]
        assert set(keys(backend, key_prefix="a")) == {"a_b", "aXb", "a%b"}

    def test_updated_before_is_strict(self, backend: Backend) -> None:
        """A session updated at that very moment is not before it."""
        backend.create_session(new_session("old", updated_us=START_US))
        backend.create_session(new_session("new", updated_us=START_US + 1))
        assert keys(backend, updated_before_us=START_US + 1) == ["old"]

    def test_sessions_are_read_in_pages(self, backend: Backend) -> None:
        """`limit` and `after` walk over all sessions once, also where update times are equal."""
        for number in range(25):
            backend.create_session(new_session(f"{number}", updated_us=START_US + number // 10))
        everything = list(backend.sessions(SessionQuery()))
        walked: list[Session] = []
        after = None
        while page := list(backend.sessions(SessionQuery(limit=4, after=after))):
            assert len(page) <= 4
            assert page[0] not in walked, "a page begins again"
            walked += page
            after = (page[-1].updated_us, page[-1].uid)
        assert walked == everything
        assert len({session.uid for session in walked}) == 25
        assert list(backend.sessions(SessionQuery(limit=0))) == []

    def test_many_sessions_are_listed(self, backend: Backend) -> None:
        """A list longer than any page is complete."""
        for number in range(300):
            backend.create_session(new_session(f"{number:03}"))
        assert sorted(keys(backend)) == [f"{number:03}" for number in range(300)]

    def test_sessions_can_be_changed_while_they_are_listed(self, backend: Backend) -> None:
        """Nothing is held between pages: the body of the loop may write."""
        for number in range(20):
            backend.create_session(new_session(f"{number}", updated_us=START_US + number))
        seen = []
        for session in backend.sessions(SessionQuery()):
            seen.append(session.key)
            backend.delete_session(session.uid)
        assert seen == [f"{number}" for number in reversed(range(20))]
        assert keys(backend) == []

    # --- changing ---

    def test_an_update_changes_what_it_names_and_raises_the_version(
        self, backend: Backend, session: Session
    ) -> None:
        """Fields that are not named stay; the version grows by one."""
        changes = {"status": Status.FAILED, "error": "boom", "metadata": {"a": 1}, "updated_us": START_US + 9}
        updated = backend.update_session(session.uid, changes)
        assert updated == backend.session(session.uid)
        assert (updated.status, updated.error, updated.metadata) == (Status.FAILED, "boom", {"a": 1})
        assert (updated.updated_us, updated.version) == (START_US + 9, session.version + 1)
        assert (updated.key, updated.profile) == (session.key, session.profile)

    def test_an_update_without_changes_raises_the_version(self, backend: Backend, session: Session) -> None:
        """Every update counts, so that it can serve as a touch."""
        assert backend.update_session(session.uid, {}).version == session.version + 1

    def test_an_update_compares_the_version(self, backend: Backend, session: Session) -> None:
        """Of two who read the same version, the second is refused and changes nothing (V9)."""
        backend.update_session(session.uid, {"error": "first"}, expect_version=session.version)
        with pytest.raises(Conflict):
            backend.update_session(session.uid, {"error": "second"}, expect_version=session.version)
        assert backend.session(session.uid).error == "first"

    @pytest.mark.parametrize("field", ["uid", "key", "created_us", "version", "last_seq", "gaps", "nonsense"])
    def test_what_belongs_to_the_backend_cannot_be_updated(
        self, backend: Backend, session: Session, field: str
    ) -> None:
        """Identity, version, counter and gaps are refused, and so is a field that does not exist."""
        with pytest.raises(InvalidInput):
            backend.update_session(session.uid, {"error": "x", field: 7})
        assert backend.session(session.uid) == session

    def test_the_current_branch_must_exist(self, backend: Backend, session: Session) -> None:
        """A session can move to a branch it has, and to no other."""
        with pytest.raises(NotFound):
            backend.update_session(session.uid, {"branch": "nowhere"})
        assert backend.session(session.uid).branch == MAIN_BRANCH
        backend.set_branch(session.uid, Branch(name="there", created_us=1))
        assert backend.update_session(session.uid, {"branch": "there"}).branch == "there"

    # --- deleting ---

    @pytest.mark.parametrize("secure", [False, True])
    def test_a_deleted_session_is_gone_with_all_it_had(
        self, backend: Backend, uid: str, secure: bool
    ) -> None:
        """Checkpoints, bodies, annotations and events go; other sessions stay."""
        other = backend.create_session(new_session())
        kept = save(backend, other.uid)
        header = save(backend, uid)
        backend.annotate(uid, header.id, "kind", "name", b"", time_us=1)
        backend.record_event(uid, "type", {}, time_us=1)
        backend.delete_session(uid, secure=secure)
        with pytest.raises(NotFound):
            backend.session(uid)
        assert [found.id for found in headers(backend)] == [kept.id]
        usage = backend.usage()
        assert (usage.sessions, usage.checkpoints, usage.bodies) == (1, 1, 1)

    def test_a_deleted_session_leaves_its_blobs_to_the_sweep(self, backend: Backend, uid: str) -> None:
        """Another session may share a blob, so only `sweep` decides."""
        blob = new_blob(b"shared")
        new = draft(uid)
        append(backend, item(new, bodies=[keyframe(new.id, blobs=(blob.digest,))], blobs=[blob]))
        backend.delete_session(uid)
        assert backend.has_blobs([blob.digest]) == {blob.digest}
        assert backend.sweep().blobs == 1
        assert backend.has_blobs([blob.digest]) == set()

    def test_a_key_can_be_used_again_after_deletion(self, backend: Backend, session: Session) -> None:
        """A new incarnation starts afresh; the old uid stays gone, also for saving."""
        save(backend, session.uid)
        backend.delete_session(session.uid)
        again = backend.create_session(new_session(session.key))
        assert backend.session_by_key(session.key) == again
        assert save(backend, again.uid).seq == 1
        with pytest.raises(NotFound):
            save(backend, session.uid)

    def test_a_session_that_is_as_expected_is_deleted(self, backend: Backend, session: Session) -> None:
        """Nothing about it changed since it was read, so it goes."""
        save(backend, session.uid)
        backend.delete_session(session.uid, expect=backend.session(session.uid))
        with pytest.raises(NotFound):
            backend.session(session.uid)

    def test_a_session_that_changed_is_not_deleted(self, backend: Backend, session: Session) -> None:
        """A save, an update or a removal since it was read is a conflict, and nothing of it goes."""
        changes: list[Callable[[], object]] = [
            lambda: save(backend, session.uid),
            lambda: backend.update_session(session.uid, {}),
            lambda: backend.remove(session.uid, [headers(backend, session=session.uid)[0].id]),
        ]
        for change in changes:
            seen = backend.session(session.uid)
            change()
            now = backend.session(session.uid)
            with pytest.raises(Conflict) as refusal:
                backend.delete_session(session.uid, expect=seen)
            assert refusal.value.code == "session_changed"
            assert backend.session(session.uid) == now

    def test_a_leased_session_is_not_deleted_as_expected(
        self, backend: Backend, session: Session, clock: FakeClock
    ) -> None:
        """While somebody runs it that is a conflict; once the lease has expired or ended it goes."""
        backend.acquire_lease(session.uid, new_owner(), seconds=15)
        with pytest.raises(Conflict) as refusal:
            backend.delete_session(session.uid, expect=session)
        assert refusal.value.code == "lease_held"
        assert backend.session(session.uid) == session
        clock.advance(15)
        backend.delete_session(session.uid, expect=session)
        with pytest.raises(NotFound):
            backend.session(session.uid)

    def test_who_runs_a_session_may_delete_it_as_expected(self, backend: Backend, session: Session) -> None:
        """The lease of the one who deletes is no obstacle."""
        lease = backend.acquire_lease(session.uid, new_owner(), seconds=15)
        backend.delete_session(session.uid, fence=lease.token, expect=session)
        with pytest.raises(NotFound):
            backend.session(session.uid)

    # --- what stays when heads are to be kept ---

    def test_heads_and_forks_are_refused_when_they_are_to_be_kept(self, backend: Backend, uid: str) -> None:
        """Of the current branch and of pinned open ones; what they require stays with them."""
        first, fork, required, head = (save(backend, uid) for _ in range(4))
        side = save(backend, uid, branch="side", parents=(fork.id,), requires=(required.id,))
        newest = save(backend, uid, branch="left")
        every = [one.id for one in (first, fork, required, head, side, newest)]
        for change in ({"is_pinned": False}, {"state": BranchState.MERGED}):
            left = backend.branch(uid, "left")
            assert left is not None
            backend.set_branch(uid, replace(left, **change))
            removed = backend.remove(uid, ["cp_none", *every], keep_heads=True)
            assert removed.refused == tuple(every[1:])
            assert "cp_none" in removed.missing
        assert ids(backend, session=uid, newest_first=False) == every[1:]
        later = save(backend, uid)
        removed = backend.remove(uid, every, keep_heads=True)
        assert removed.removed == (head.id, newest.id)
        assert set(ids(backend, session=uid)) == {fork.id, required.id, side.id, later.id}

    def test_heads_go_when_they_are_not_to_be_kept(self, backend: Backend, uid: str) -> None:
        """Whoever deletes on purpose is not held up by a head."""
        header = save(backend, uid)
        assert backend.remove(uid, [header.id]).removed == (header.id,)

    # --- usage ---

    def test_usage_counts_a_session_and_the_store(self, backend: Backend, uid: str) -> None:
        """Checkpoints, bodies, hidden bodies and blobs are counted with their stored bytes."""
        blob = new_blob(b"x" * 100)
        first = draft(uid)
        body = keyframe(first.id, data=b"k" * 10, blobs=(blob.digest,))
        append(backend, item(first, bodies=[body], blobs=[blob]))
        save(backend, uid, base=first.id)
        other = backend.create_session(new_session())
        save(backend, other.uid)
        backend.remove(uid, [first.id])
        mine, whole, others = backend.usage(uid), backend.usage(), backend.usage(other.uid)
        assert (mine.sessions, mine.checkpoints, mine.bodies) == (1, 1, 2)
        assert (mine.hidden_bodies, mine.hidden_bytes) == (1, 10)
        assert (mine.blobs, mine.blob_bytes) == (1, 100)
        assert (others.checkpoints, others.bodies, others.hidden_bodies, others.blobs) == (1, 1, 0, 0)
        assert (whole.sessions, whole.checkpoints, whole.bodies, whole.blobs) == (2, 2, 3, 1)
        assert whole.body_bytes == mine.body_bytes + others.body_bytes

    def test_reclaim_returns_bytes(self, backend: Backend, uid: str) -> None:
        """Giving space back is always allowed, loses nothing and says how much it was."""
        header = save(backend, uid)
        assert backend.reclaim(1 << 20) >= 0
        assert [found.id for found in headers(backend)] == [header.id]
