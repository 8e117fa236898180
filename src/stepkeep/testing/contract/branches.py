"""Branches: heads, forks, compare-and-set."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from stepkeep.errors import Conflict, NotFound
from stepkeep.model import MAIN_BRANCH, Branch, BranchState
from stepkeep.storage.port import Backend
from stepkeep.testing.contract.fixtures import Fixtures
from stepkeep.testing.contract.names import HOSTILE_NAMES
from stepkeep.testing.records import START_US, headers, new_session, save


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
