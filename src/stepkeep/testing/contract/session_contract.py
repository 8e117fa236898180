"""Sessions and branches: created, found, changed, deleted."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace

from stepkeep.errors import Conflict, InvalidInput, NotFound
from stepkeep.model import MAIN_BRANCH, Branch, BranchState, SessionInfo, Status, new_uid
from stepkeep.storage.port import Backend, SessionQuery
from stepkeep.testing.builders import (
    START_US,
    FakeClock,
    draft,
    headers,
    ids,
    item,
    item_naming,
    keyframe,
    new_blob,
    new_owner,
    new_session,
    save,
)
from stepkeep.testing.builders import append_one as append
from stepkeep.testing.contract.contract_fixtures import HOSTILE_NAMES, Fixtures, calls_on, refused


def branch_of(backend: Backend, uid: str, name: str = MAIN_BRANCH) -> Branch:
    """The branch with that name, which must exist."""
    (branch,) = [branch for branch in backend.branches(uid) if branch.name == name]
    return branch


class BranchContract(Fixtures):
    def test_a_branch_comes_back_equal(self, backend: Backend, uid: str) -> None:
        """Every field of a branch is kept."""
        header = save(backend, uid)
        branch = Branch(
            name="b",
            created_us=START_US + 5,
            head=header.id,
            head_seq=header.seq,
            fork=header.id,
            fork_branch=MAIN_BRANCH,
            fork_seq=header.seq,
            state=BranchState.ARCHIVED,
            is_pinned=False,
            metadata={"why": ["because"]},
        )
        assert backend.set_branch(uid, branch) == branch
        assert branch_of(backend, uid, "b") == branch

    def test_branches_come_oldest_first(self, backend: Backend, uid: str) -> None:
        """The order is by creation time, then by name."""
        for name, created_us in (("z", 3), ("y", 2), ("x", 3)):
            backend.set_branch(uid, Branch(name=name, created_us=START_US + created_us))
        assert [branch.name for branch in backend.branches(uid)] == [MAIN_BRANCH, "y", "x", "z"]

    def test_the_places_of_head_and_fork_are_filled_in(self, backend: Backend, uid: str) -> None:
        """`head_seq` is always the head's; the fork's place is taken from the fork where it is not given."""
        first, second = save(backend, uid), save(backend, uid)
        branch = Branch(name="b", created_us=1, head=second.id, head_seq=77, fork=first.id)
        stored = backend.set_branch(uid, branch)
        assert stored == replace(branch, head_seq=2, fork_branch=MAIN_BRANCH, fork_seq=1)
        assert branch_of(backend, uid, "b") == stored
        assert backend.set_branch(uid, Branch(name="c", created_us=1, head_seq=77)).head_seq == 0

    def test_a_place_of_the_fork_that_is_given_stays(self, backend: Backend, uid: str) -> None:
        """The caller may know better where a line came from."""
        header = save(backend, uid)
        branch = Branch(name="b", created_us=1, fork=header.id, fork_branch="elsewhere", fork_seq=9)
        assert backend.set_branch(uid, branch) == branch

    def test_setting_a_branch_again_replaces_it(self, backend: Backend, uid: str) -> None:
        """There is one record for each name."""
        backend.set_branch(uid, Branch(name="b", created_us=1, metadata={"a": 1}))
        backend.set_branch(uid, Branch(name="b", created_us=1, state=BranchState.MERGED))
        assert branch_of(backend, uid, "b") == Branch(name="b", created_us=1, state=BranchState.MERGED)

    def test_a_stale_expected_head_is_a_conflict(self, backend: Backend, uid: str) -> None:
        """The head is compared and set in one step (V9)."""
        first, second = save(backend, uid), save(backend, uid)
        main = branch_of(backend, uid)
        with pytest.raises(Conflict):
            backend.set_branch(uid, replace(main, head=first.id), expect_head=first.id)
        with pytest.raises(Conflict):
            backend.set_branch(uid, replace(main, head=first.id), expect_head=None)
        assert branch_of(backend, uid) == main
        moved = backend.set_branch(uid, replace(main, head=first.id), expect_head=second.id)
        assert (moved.head, moved.head_seq) == (first.id, 1)

    def test_no_expected_head_means_new_or_empty(self, backend: Backend, uid: str) -> None:
        """`expect_head=None` matches a branch that does not exist, and one without head."""
        branch = Branch(name="b", created_us=1)
        backend.set_branch(uid, branch, expect_head=None)
        backend.set_branch(uid, branch, expect_head=None)
        with pytest.raises(Conflict):
            backend.set_branch(uid, Branch(name="c", created_us=1), expect_head="cp_nothing")
        assert [found.name for found in backend.branches(uid)] == ["b", MAIN_BRANCH]

    def test_head_and_fork_must_be_checkpoints_of_the_session(self, backend: Backend, uid: str) -> None:
        """A branch never points at what is not there, nor into another session (V6)."""
        other = backend.create_session(new_session())
        foreign = save(backend, other.uid)
        for checkpoint in ("cp_nothing", foreign.id):
            with pytest.raises(NotFound):
                backend.set_branch(uid, Branch(name="b", created_us=1, head=checkpoint))
            with pytest.raises(NotFound):
                backend.set_branch(uid, Branch(name="b", created_us=1, fork=checkpoint))
        assert [branch.name for branch in backend.branches(uid)] == [MAIN_BRANCH]

    def test_a_branch_outlives_its_fork_point(self, backend: Backend, uid: str) -> None:
        """The fork is remembered by id and place after it was removed, and the record can still be changed."""
        fork = save(backend, uid)
        save(backend, uid)
        head = save(backend, uid, branch="b", parents=(fork.id,))
        backend.remove(uid, [fork.id])
        branch = branch_of(backend, uid, "b")
        assert (branch.head, branch.fork, branch.fork_seq) == (head.id, fork.id, fork.seq)
        archived = replace(branch, state=BranchState.ARCHIVED)
        assert backend.set_branch(uid, archived) == archived

    def test_saving_continues_where_a_branch_was_set(self, backend: Backend, uid: str) -> None:
        """A new branch set to an old checkpoint has that checkpoint as the parent of its first save."""
        first, second = save(backend, uid), save(backend, uid)
        backend.set_branch(uid, Branch(name="b", created_us=1, head=first.id, fork=first.id))
        third = save(backend, uid, branch="b")
        assert (third.parents, third.parent_chains) == ((first.id,), (first.chain,))
        assert branch_of(backend, uid).head == second.id
        assert branch_of(backend, uid, "b").head == third.id

    @pytest.mark.parametrize("name", HOSTILE_NAMES)
    def test_a_branch_name_is_any_text(self, backend: Backend, uid: str, name: str) -> None:
        """A branch name with quotes, wildcards or newlines is data."""
        save(backend, uid)
        header = save(backend, uid, branch=name)
        assert branch_of(backend, uid, name).head == header.id
        assert headers(backend, session=uid, branch=name) == [header]
        assert headers(backend, branch=name) == [header]


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

    def test_a_key_is_held_once(self, backend: Backend, session: SessionInfo) -> None:
        """A second session with the same key is a conflict, and nothing of it is stored."""
        other = new_session(session.key)
        with pytest.raises(Conflict):
            backend.create_session(other)
        with pytest.raises(NotFound):
            backend.session(other.uid)

    def test_a_uid_is_held_once(self, backend: Backend, session: SessionInfo) -> None:
        """A second session with the same uid is a conflict."""
        with pytest.raises(Conflict):
            backend.create_session(new_session("another key", uid=session.uid))
        assert backend.session_by_key("another key") is None

    def test_an_unknown_uid_is_not_found(self, backend: Backend) -> None:
        """Every method that takes a uid says NotFound when it names no session."""
        for call in calls_on(backend, new_uid()):
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
        walked: list[SessionInfo] = []
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
        self, backend: Backend, session: SessionInfo
    ) -> None:
        """Fields that are not named stay; the version grows by one."""
        changes = {"status": Status.FAILED, "error": "boom", "metadata": {"a": 1}, "updated_us": START_US + 9}
        updated = backend.update_session(session.uid, changes)
        assert updated == backend.session(session.uid)
        assert (updated.status, updated.error, updated.metadata) == (Status.FAILED, "boom", {"a": 1})
        assert (updated.updated_us, updated.version) == (START_US + 9, session.version + 1)
        assert (updated.key, updated.profile) == (session.key, session.profile)

    def test_an_update_without_changes_raises_the_version(
        self, backend: Backend, session: SessionInfo
    ) -> None:
        """Every update counts, so that it can serve as a touch."""
        assert backend.update_session(session.uid, {}).version == session.version + 1

    def test_an_update_compares_the_version(self, backend: Backend, session: SessionInfo) -> None:
        """Of two who read the same version, the second is refused and changes nothing (V9)."""
        backend.update_session(session.uid, {"error": "first"}, expect_version=session.version)
        with pytest.raises(Conflict):
            backend.update_session(session.uid, {"error": "second"}, expect_version=session.version)
        assert backend.session(session.uid).error == "first"

    @pytest.mark.parametrize("field", ["uid", "key", "created_us", "version", "last_seq", "gaps", "nonsense"])
    def test_what_belongs_to_the_backend_cannot_be_updated(
        self, backend: Backend, session: SessionInfo, field: str
    ) -> None:
        """Identity, version, counter and gaps are refused, and so is a field that does not exist."""
        with pytest.raises(InvalidInput):
            backend.update_session(session.uid, {"error": "x", field: 7})
        assert backend.session(session.uid) == session

    def test_the_current_branch_must_exist(self, backend: Backend, session: SessionInfo) -> None:
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
        append(backend, item_naming(new, blob))
        backend.delete_session(uid)
        assert backend.has_blobs([blob.digest]) == {blob.digest}
        assert backend.sweep().blobs == 1
        assert backend.has_blobs([blob.digest]) == set()

    def test_a_key_can_be_used_again_after_deletion(self, backend: Backend, session: SessionInfo) -> None:
        """A new incarnation starts afresh; the old uid stays gone, also for saving."""
        save(backend, session.uid)
        backend.delete_session(session.uid)
        again = backend.create_session(new_session(session.key))
        assert backend.session_by_key(session.key) == again
        assert save(backend, again.uid).seq == 1
        with pytest.raises(NotFound):
            save(backend, session.uid)

    def test_a_session_that_is_as_expected_is_deleted(self, backend: Backend, session: SessionInfo) -> None:
        """Nothing about it changed since it was read, so it goes."""
        save(backend, session.uid)
        backend.delete_session(session.uid, expect=backend.session(session.uid))
        with pytest.raises(NotFound):
            backend.session(session.uid)

    def test_a_session_that_changed_is_not_deleted(self, backend: Backend, session: SessionInfo) -> None:
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
            with refused("session_changed"):
                backend.delete_session(session.uid, expect=seen)
            assert backend.session(session.uid) == now

    def test_a_leased_session_is_not_deleted_as_expected(
        self, backend: Backend, session: SessionInfo, clock: FakeClock
    ) -> None:
        """While somebody runs it that is a conflict; once the lease has expired or ended it goes."""
        backend.acquire_lease(session.uid, new_owner(), seconds=15)
        with refused("lease_held"):
            backend.delete_session(session.uid, expect=session)
        assert backend.session(session.uid) == session
        clock.advance(15)
        backend.delete_session(session.uid, expect=session)
        with pytest.raises(NotFound):
            backend.session(session.uid)

    def test_who_runs_a_session_may_delete_it_as_expected(
        self, backend: Backend, session: SessionInfo
    ) -> None:
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
