"""Sessions and branches: created, found, changed, deleted."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace

from stepkeep.errors import Conflict, InvalidInput, NotFound, StepkeepError
from stepkeep.model import MAIN_BRANCH, Branch, BranchState, SessionInfo, Status, new_uid
from stepkeep.storage.port import ANY_HEAD, Backend, SessionQuery
from stepkeep.testing.builders import START_US, FakeClock, headers, keyframe, new_blob, new_owner, new_session
from stepkeep.testing.contract.contract_fixtures import Fixtures, SessionDriver, calls_on, refused


class BranchContract(Fixtures):
    def test_a_branch_comes_back_equal(self, run: SessionDriver) -> None:
        """Every field of a branch is kept."""
        header = run.save()
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
        assert run.backend.set_branch(run.uid, branch) == branch
        assert run.branch("b") == branch

    def test_branches_come_oldest_first(self, run: SessionDriver) -> None:
        """The order is by creation time, then by name."""
        for name, created_us in (("z", 3), ("y", 2), ("x", 3)):
            run.put_branch(name, created_us=START_US + created_us)
        assert run.branch_names() == [MAIN_BRANCH, "y", "x", "z"]

    def test_the_places_of_head_and_fork_are_filled_in(self, run: SessionDriver) -> None:
        """`head_seq` is always the head's; the fork's place is taken from the fork unless the caller gives it."""
        first, second = run.save(), run.save()
        branch = Branch(name="b", created_us=1, head=second.id, head_seq=77, fork=first.id)
        stored = run.backend.set_branch(run.uid, branch)
        assert stored == replace(branch, head_seq=2, fork_branch=MAIN_BRANCH, fork_seq=1)
        assert run.branch("b") == stored
        assert run.put_branch("c", head_seq=77).head_seq == 0
        given = run.put_branch("d", fork=first.id, fork_branch="elsewhere", fork_seq=9)
        assert (given.fork, given.fork_branch, given.fork_seq) == (first.id, "elsewhere", 9)

    def test_setting_a_branch_again_replaces_it(self, run: SessionDriver) -> None:
        """There is one record for each name."""
        run.put_branch("b", metadata={"a": 1})
        run.put_branch("b", state=BranchState.MERGED)
        assert run.branch("b") == Branch(name="b", created_us=1, state=BranchState.MERGED)

    def test_a_stale_expected_head_is_a_conflict(self, run: SessionDriver) -> None:
        """The head is compared and set in one step (V9)."""
        first, second = run.save(), run.save()
        main = run.branch()
        for stale in (first.id, None):
            with pytest.raises(Conflict):
                run.backend.set_branch(run.uid, replace(main, head=first.id), expect_head=stale)
        assert run.branch() == main
        moved = run.backend.set_branch(run.uid, replace(main, head=first.id), expect_head=second.id)
        assert (moved.head, moved.head_seq) == (first.id, 1)

    def test_any_head_keeps_the_head_of_the_moment(self, run: SessionDriver) -> None:
        """Other fields of a branch are set whatever was saved to it since it was looked at (V6, V9)."""
        run.save()
        seen = run.branch()
        second = run.save()
        kept = run.backend.set_branch(run.uid, replace(seen, head=ANY_HEAD, metadata={"a": 1}))
        assert (kept.head, kept.head_seq, kept.metadata) == (second.id, second.seq, {"a": 1})
        assert run.branch() == kept
        assert run.save().parents == (second.id,)
        empty = run.backend.set_branch(run.uid, Branch(name="new", created_us=1, head=ANY_HEAD))
        assert (empty.head, empty.head_seq) == (None, 0)

    def test_no_expected_head_means_new_or_empty(self, run: SessionDriver) -> None:
        """`expect_head=None` matches a branch that does not exist, and one without head."""
        run.put_branch("b", expect_head=None)
        run.put_branch("b", expect_head=None)
        with pytest.raises(Conflict):
            run.put_branch("c", expect_head="cp_nothing")
        assert run.branch_names() == ["b", MAIN_BRANCH]

    def test_head_and_fork_must_be_checkpoints_of_the_session(
        self, run: SessionDriver, other: SessionDriver
    ) -> None:
        """A branch never points at what is not there, nor into another session (V6)."""
        for checkpoint in ("cp_nothing", other.save().id):
            for field in ("head", "fork"):
                with pytest.raises(NotFound):
                    run.put_branch("b", **{field: checkpoint})
        assert run.branch_names() == [MAIN_BRANCH]

    def test_a_branch_outlives_its_fork_point(self, run: SessionDriver) -> None:
        """The fork is remembered by id and place after it was removed, and the record can still be changed."""
        fork = run.save()
        run.save()
        head = run.save(branch="b", parents=(fork.id,))
        run.remove(fork.id)
        branch = run.branch("b")
        assert (branch.head, branch.fork, branch.fork_seq) == (head.id, fork.id, fork.seq)
        archived = replace(branch, state=BranchState.ARCHIVED)
        assert run.backend.set_branch(run.uid, archived) == archived

    def test_saving_continues_where_a_branch_was_set(self, run: SessionDriver) -> None:
        """A new branch set to an old checkpoint has that checkpoint as the parent of its first save."""
        first, second = run.save(), run.save()
        run.put_branch("b", head=first.id, fork=first.id)
        third = run.save(branch="b")
        assert (third.parents, third.parent_chains) == ((first.id,), (first.chain,))
        assert (run.branch().head, run.branch("b").head) == (second.id, third.id)


def keys(backend: Backend, **conditions: Any) -> list[str]:
    return [session.key for session in backend.sessions(SessionQuery(**conditions))]


class SessionContract(Fixtures):
    def test_a_created_session_comes_back_equal(self, backend: Backend) -> None:
        """Every field of a session is kept, and the branch it is on exists from the start, without a head."""
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
        assert backend.branches(session.uid) == [Branch(name="draft", created_us=session.created_us)]

    def test_a_key_and_a_uid_are_held_once(self, backend: Backend, run: SessionDriver) -> None:
        """A second session with the same one, created or adopted, is a conflict, and nothing of it is stored."""
        second = new_session(run.created.key)
        for store in (backend.create_session, backend.adopt_session):
            with pytest.raises(Conflict):
                store(second)
            with pytest.raises(NotFound):
                backend.session(second.uid)
        assert backend.session_by_key(second.key) == run.created
        with pytest.raises(Conflict):
            backend.create_session(new_session("another key", uid=run.uid))
        assert backend.session_by_key("another key") is None

    def test_an_unknown_uid_is_not_found(self, backend: Backend) -> None:
        """Every method that takes a uid says NotFound when it names no session. An unknown key is None."""
        for call in calls_on(backend, new_uid()):
            with pytest.raises(NotFound):
                call()
        assert backend.session_by_key("nobody") is None

    def test_what_a_caller_holds_is_not_the_store(self, backend: Backend) -> None:
        """Changing a dict that was given or received changes nothing that is stored."""
        given = new_session(metadata={"a": [1]})
        backend.create_session(given)
        given.metadata["a"].append(2)
        backend.session(given.uid).metadata["a"].append(3)
        assert backend.session(given.uid).metadata == {"a": [1]}

    # --- listing ---

    def test_sessions_come_most_recently_updated_first(self, backend: Backend) -> None:
        """The order is by update time, not by creation or key."""
        for key, updated_us in (("b", 2), ("c", 3), ("a", 1)):
            backend.create_session(new_session(key, updated_us=START_US + updated_us))
        assert keys(backend) == ["c", "b", "a"]
        assert keys(backend, updated_before_us=START_US + 3) == ["b", "a"], "strictly before"

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

    def test_many_sessions_are_listed_and_changed_meanwhile(self, backend: Backend) -> None:
        """A list longer than any page is complete. Nothing is held between pages: the loop may write."""
        for number in range(300):
            backend.create_session(new_session(f"{number:03}", updated_us=START_US + number))
        seen = []
        for session in backend.sessions(SessionQuery()):
            seen.append(session.key)
            backend.delete_session(session.uid)
        assert seen == [f"{number:03}" for number in reversed(range(300))]
        assert keys(backend) == []

    # --- changing ---

    def test_an_update_changes_what_it_names_and_raises_the_version(self, run: SessionDriver) -> None:
        """Fields that are not named stay; the version grows by one, also without changes: a touch."""
        before = run.created
        changes = {"status": Status.FAILED, "error": "boom", "metadata": {"a": 1}, "updated_us": START_US + 9}
        updated = run.backend.update_session(run.uid, changes)
        assert updated == run.info
        assert (updated.status, updated.error, updated.metadata) == (Status.FAILED, "boom", {"a": 1})
        assert (updated.updated_us, updated.version) == (START_US + 9, before.version + 1)
        assert (updated.key, updated.profile) == (before.key, before.profile)
        assert run.backend.update_session(run.uid, {}).version == before.version + 2

    def test_an_update_compares_the_version(self, run: SessionDriver) -> None:
        """Of two who read the same version, the second is refused and changes nothing (V9)."""
        version = run.created.version
        run.backend.update_session(run.uid, {"error": "first"}, expect_version=version)
        with pytest.raises(Conflict):
            run.backend.update_session(run.uid, {"error": "second"}, expect_version=version)
        assert run.info.error == "first"

    @pytest.mark.parametrize("field", ["uid", "key", "created_us", "version", "last_seq", "gaps", "nonsense"])
    def test_what_belongs_to_the_backend_cannot_be_updated(self, run: SessionDriver, field: str) -> None:
        """Identity, version, counter and gaps are refused, and so is a field that does not exist."""
        with pytest.raises(InvalidInput):
            run.backend.update_session(run.uid, {"error": "x", field: 7})
        assert run.info == run.created

    def test_the_current_branch_must_exist(self, run: SessionDriver) -> None:
        """A session can move to a branch it has, and to no other."""
        with pytest.raises(NotFound):
            run.backend.update_session(run.uid, {"branch": "nowhere"})
        assert run.info.branch == MAIN_BRANCH
        run.put_branch("there")
        assert run.backend.update_session(run.uid, {"branch": "there"}).branch == "there"

    # --- deleting ---

    @pytest.mark.parametrize("secure", [False, True])
    def test_a_deleted_session_is_gone_with_all_it_had(
        self, backend: Backend, run: SessionDriver, other: SessionDriver, secure: bool
    ) -> None:
        """Checkpoints, bodies, annotations and events go; other sessions stay."""
        kept = other.save()
        run.annotate(run.save().id, "name")
        backend.record_event(run.uid, "type", {}, time_us=1)
        backend.delete_session(run.uid, secure=secure)
        with pytest.raises(NotFound):
            backend.session(run.uid)
        assert headers(backend) == [kept]
        usage = backend.usage()
        assert (usage.sessions, usage.checkpoints, usage.bodies) == (1, 1, 1)

    def test_a_deleted_session_leaves_its_blobs_to_the_sweep(
        self, backend: Backend, run: SessionDriver
    ) -> None:
        """Another session may share a blob, so only `sweep` decides."""
        blob = new_blob(b"shared")
        run.save_naming(blob)
        backend.delete_session(run.uid)
        assert backend.has_blobs([blob.digest]) == {blob.digest}
        assert backend.sweep().blobs == 1
        assert backend.has_blobs([blob.digest]) == set()

    def test_a_key_can_be_used_again_after_deletion(self, backend: Backend, run: SessionDriver) -> None:
        """A new incarnation starts afresh; the old uid stays gone, also for saving."""
        run.save()
        backend.delete_session(run.uid)
        again = backend.create_session(new_session(run.created.key))
        assert backend.session_by_key(again.key) == again
        assert SessionDriver(backend, again).save().seq == 1
        with pytest.raises(NotFound):
            run.save()

    def test_a_session_that_is_as_expected_is_deleted(self, backend: Backend, run: SessionDriver) -> None:
        """A save, an update or a removal since it was read is a conflict, and nothing of it goes."""
        changes: list[Callable[[], object]] = [
            run.save,
            lambda: backend.update_session(run.uid, {}),
            lambda: run.remove(run.ids()[0]),
        ]
        for change in changes:
            seen = run.info
            change()
            now = run.info
            with refused("session_changed"):
                backend.delete_session(run.uid, expect=seen)
            assert run.info == now
        backend.delete_session(run.uid, expect=run.info)
        with pytest.raises(NotFound):
            backend.session(run.uid)

    def test_a_leased_session_is_not_deleted_as_expected(
        self, backend: Backend, run: SessionDriver, other: SessionDriver, clock: FakeClock
    ) -> None:
        """While somebody else runs it that is a conflict; once the lease has expired or ended it goes."""
        lease = backend.acquire_lease(run.uid, new_owner(), seconds=15)
        backend.acquire_lease(other.uid, new_owner(), seconds=15)
        for each in (run, other):
            with refused("lease_held"):
                backend.delete_session(each.uid, expect=each.created)
            assert each.info == each.created
        backend.delete_session(run.uid, fence=lease.token, expect=run.created)
        clock.advance(15)
        backend.delete_session(other.uid, expect=other.created)
        for each in (run, other):
            with pytest.raises(NotFound):
                backend.session(each.uid)

    @pytest.mark.parametrize("secure", [False, True])
    def test_many_sessions_are_deleted_at_once(
        self, backend: Backend, run: SessionDriver, other: SessionDriver, secure: bool
    ) -> None:
        """Each goes with all it had and tells the stored bytes of its bodies; the others stay."""
        for _ in range(3):
            run.annotate(run.save().id, "name")
        backend.record_event(run.uid, "type", {}, time_us=1)
        empty = backend.create_session(new_session("empty"))
        kept, stored = other.save(), backend.usage(run.uid).body_bytes
        assert backend.delete_sessions([run.info, empty], secure=secure) == [stored, 0]
        assert headers(backend) == [kept]
        usage = backend.usage()
        assert (usage.sessions, usage.checkpoints, usage.bodies) == (1, 1, 1)
        assert backend.delete_sessions([]) == []

    def test_of_many_sessions_each_is_decided_about_alone(
        self, backend: Backend, run: SessionDriver, other: SessionDriver, clock: FakeClock
    ) -> None:
        """One that changed, that somebody runs, or that is gone is refused, and takes nothing from the others."""
        names = ("changed", "gone", "last")
        changed, gone, last = (backend.create_session(new_session(name)) for name in names)
        backend.acquire_lease(run.uid, new_owner(), seconds=15)
        seen = [run.info, changed, other.info, gone, last, last]
        backend.update_session(changed.uid, {})
        backend.delete_session(gone.uid)
        outcomes = backend.delete_sessions(seen)
        codes = [each.code if isinstance(each, StepkeepError) else each for each in outcomes]
        assert codes == ["lease_held", "session_changed", 0, "session_not_found", 0, "session_not_found"]
        assert {each.uid for each in backend.sessions(SessionQuery())} == {run.uid, changed.uid}
        clock.advance(15)
        assert backend.delete_sessions([run.info]) == [0]

    # --- what stays when heads are to be kept ---

    def test_heads_and_forks_are_refused_when_they_are_to_be_kept(self, run: SessionDriver) -> None:
        """Of the current branch and of pinned open ones; what they require stays with them."""
        first, fork, required, head = (run.save() for _ in range(4))
        side = run.save(branch="side", parents=(fork.id,), requires=(required.id,))
        newest = run.save(branch="left")
        every = [one.id for one in (first, fork, required, head, side, newest)]
        for change in ({"is_pinned": False}, {"state": BranchState.MERGED}):
            run.backend.set_branch(run.uid, replace(run.branch("left"), **change))
            removed = run.remove("cp_none", *every, keep_heads=True)
            assert removed.refused == tuple(every[1:])
            assert "cp_none" in removed.missing
        assert run.ids(newest_first=False) == every[1:]
        later = run.save()
        assert run.remove(*every, keep_heads=True).removed == (head.id, newest.id)
        assert set(run.ids()) == {fork.id, required.id, side.id, later.id}
        assert run.remove(later.id).removed == (later.id,), "a head goes when it is not to be kept"

    # --- usage ---

    def test_usage_counts_a_session_and_the_store(
        self, backend: Backend, run: SessionDriver, other: SessionDriver
    ) -> None:
        """Checkpoints, bodies, hidden bodies and blobs are counted with their stored bytes."""
        blob, first = new_blob(b"x" * 100), run.draft()
        run.append(first, bodies=[keyframe(first.id, data=b"k" * 10, blobs=(blob.digest,))], blobs=[blob])
        run.save(base=first.id)
        other.save()
        run.remove(first.id)
        mine, whole, others = run.usage, backend.usage(), other.usage
        assert (mine.sessions, mine.checkpoints, mine.bodies) == (1, 1, 2)
        assert (mine.hidden_bodies, mine.hidden_bytes) == (1, 10)
        assert (mine.blobs, mine.blob_bytes) == (1, 100)
        assert (others.checkpoints, others.bodies, others.hidden_bodies, others.blobs) == (1, 1, 0, 0)
        assert (whole.sessions, whole.checkpoints, whole.bodies, whole.blobs) == (2, 2, 3, 1)
        assert whole.body_bytes == mine.body_bytes + others.body_bytes

    def test_reclaim_returns_bytes(self, backend: Backend, run: SessionDriver) -> None:
        """Giving space back is always allowed, loses nothing and says how much it was."""
        header = run.save()
        assert backend.reclaim(1 << 20) >= 0
        assert headers(backend) == [header]
