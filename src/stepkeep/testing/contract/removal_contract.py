"""Removing checkpoints, and sweeping what nothing needs any more."""

from __future__ import annotations

import pytest

from stepkeep.model import MAIN_BRANCH, Branch
from stepkeep.storage.port import Backend, Swept
from stepkeep.testing.builders import (
    START_US,
    append,
    append_one,
    delta_on,
    draft,
    headers,
    ids,
    item,
    item_naming,
    keyframe,
    new_blob,
    new_session,
    redundant_on,
    save,
)
from stepkeep.testing.contract.contract_fixtures import Fixtures
from stepkeep.testing.contract.session_contract import branch_of


class RemoveContract(Fixtures):
    @pytest.mark.parametrize("secure", [False, True])
    def test_a_removed_checkpoint_is_gone(self, backend: Backend, uid: str, secure: bool) -> None:
        """Its header and its bodies go; the answer says what and how many bytes."""
        first, second = save(backend, uid), save(backend, uid)
        removed = backend.remove(uid, [first.id], secure=secure)
        assert (removed.removed, removed.refused, removed.missing) == ((first.id,), (), ())
        assert removed.stored_bytes == keyframe(first.id).stored_size
        assert headers(backend, session=uid) == [second]
        assert backend.body_chain(uid, first.id, "state") == []
        assert backend.usage(uid).bodies == 1

    def test_what_is_not_there_is_missing(self, backend: Backend, uid: str) -> None:
        """Unknown ids, and another session's, are told and left alone; a repeated id counts once."""
        foreign = save(backend, backend.create_session(new_session()).uid)
        header = save(backend, uid)
        removed = backend.remove(uid, ["cp_nothing", header.id, foreign.id, header.id])
        assert removed.removed == (header.id,)
        assert set(removed.missing) == {"cp_nothing", foreign.id}
        assert headers(backend) == [foreign]
        again = backend.remove(uid, [header.id])
        assert (again.removed, again.missing, again.stored_bytes) == ((), (header.id,), 0)

    def test_removing_nothing_changes_nothing(self, backend: Backend, uid: str) -> None:
        """An empty list is allowed."""
        header = save(backend, uid)
        before = backend.session(uid)
        assert backend.remove(uid, []).removed == ()
        assert backend.session(uid) == before
        assert headers(backend) == [header]

    def test_many_can_be_removed_at_once(self, backend: Backend, uid: str) -> None:
        """The number of ids has no small limit."""
        append(backend, *(item(draft(uid)) for _ in range(700)))
        going = ids(backend, session=uid, max_seq=650)
        assert set(backend.remove(uid, going).removed) == set(going)
        assert backend.session(uid).gaps == ((1, 650),)
        assert backend.usage(uid).bodies == 50

    # --- gaps ---

    def test_gaps_are_compact_closed_ranges(self, backend: Backend, uid: str) -> None:
        """What was removed on purpose is recorded by seq, and neighbours are united."""
        by_seq = {seq: save(backend, uid).id for seq in range(1, 11)}
        steps = [
            ([3], ((3, 3),)),
            ([5, 8], ((3, 3), (5, 5), (8, 8))),
            ([4], ((3, 5), (8, 8))),
            ([10, 1], ((1, 1), (3, 5), (8, 8), (10, 10))),
            ([2, 6, 7, 9], ((1, 10),)),
        ]
        for seqs, gaps in steps:
            backend.remove(uid, [by_seq[seq] for seq in seqs])
            assert backend.session(uid).gaps == gaps

    def test_removing_leaves_the_rest_of_the_session_alone(self, backend: Backend, uid: str) -> None:
        """Version, times, status and counter stay."""
        header = save(backend, uid)
        before = backend.session(uid)
        backend.remove(uid, [header.id])
        after = backend.session(uid)
        assert (after.version, after.updated_us, after.status, after.last_seq) == (
            before.version,
            before.updated_us,
            before.status,
            1,
        )

    # --- heads ---

    def test_a_head_moves_to_the_newest_that_remains(self, backend: Backend, uid: str) -> None:
        """The newest of its own branch, not of the session."""
        first = save(backend, uid)
        second, third = save(backend, uid, branch="b"), save(backend, uid)
        backend.remove(uid, [third.id])
        assert (branch_of(backend, uid).head, branch_of(backend, uid).head_seq) == (first.id, first.seq)
        assert branch_of(backend, uid, "b").head == second.id
        assert save(backend, uid).parents == (first.id,)

    def test_a_branch_without_checkpoints_falls_back_to_its_fork(self, backend: Backend, uid: str) -> None:
        """Its head is then the fork point."""
        first = save(backend, uid)
        second = save(backend, uid, branch="b", parents=(first.id,))
        backend.remove(uid, [second.id])
        assert (branch_of(backend, uid, "b").head, branch_of(backend, uid, "b").head_seq) == (first.id, 1)

    def test_a_branch_falls_back_behind_its_fork(self, backend: Backend, uid: str) -> None:
        """When the fork point goes too, the head is the newest that is left of the line it came from."""
        first, second = save(backend, uid), save(backend, uid)
        third = save(backend, uid)
        backend.set_branch(uid, Branch(name="b", created_us=1, head=second.id, fork=second.id))
        backend.set_branch(
            uid, Branch(name="c", created_us=2, head=second.id, fork=second.id, fork_branch="b")
        )
        backend.remove(uid, [second.id])
        for name in ("b", "c"):
            branch = branch_of(backend, uid, name)
            assert (branch.head, branch.head_seq) == (first.id, first.seq)
        assert branch_of(backend, uid).head == third.id
        assert save(backend, uid, branch="b").parents == (first.id,)

    def test_a_branch_without_anything_is_empty(self, backend: Backend, uid: str) -> None:
        """With its fork point gone too, a branch stays, without a head."""
        first = save(backend, uid)
        second = save(backend, uid, branch="b", parents=(first.id,))
        backend.remove(uid, [first.id, second.id])
        for name in (MAIN_BRANCH, "b"):
            branch = branch_of(backend, uid, name)
            assert (branch.head, branch.head_seq) == (None, 0)
        assert save(backend, uid).parents == ()

    def test_a_head_on_a_foreign_checkpoint_moves_too(self, backend: Backend, uid: str) -> None:
        """A branch that was only set, and never saved to, loses its head with the checkpoint."""
        first, second = save(backend, uid), save(backend, uid)
        backend.set_branch(uid, Branch(name="b", created_us=1, head=second.id, fork=first.id))
        backend.remove(uid, [second.id])
        assert branch_of(backend, uid, "b").head == first.id
        backend.remove(uid, [first.id])
        assert branch_of(backend, uid, "b").head is None

    # --- bodies ---

    def test_a_body_others_need_is_hidden(self, backend: Backend, uid: str) -> None:
        """What is based on it can still be rebuilt (V5)."""
        first = save(backend, uid)
        second = save(backend, uid, base=first.id)
        removed = backend.remove(uid, [first.id])
        assert removed.stored_bytes == 0
        assert ids(backend, session=uid) == [second.id]
        assert backend.body_chain(uid, second.id, "state") == [
            delta_on(first.id, second.id),
            keyframe(first.id),
        ]
        assert backend.usage(uid).hidden_bodies == 1

    def test_each_body_is_decided_alone(self, backend: Backend, uid: str) -> None:
        """A checkpoint's body that nobody needs goes, though another of its bodies is needed."""
        first = draft(uid)
        append_one(backend, item(first, bodies=[keyframe(first.id), keyframe(first.id, "files")]))
        save(backend, uid, base=first.id)
        removed = backend.remove(uid, [first.id])
        assert removed.stored_bytes == keyframe(first.id, "files").stored_size
        assert backend.body_chain(uid, first.id, "files") == []
        assert backend.body_chain(uid, first.id, "state") == [keyframe(first.id)]

    def test_a_group_removed_at_once_leaves_nothing_hidden(self, backend: Backend, uid: str) -> None:
        """A body needed only by bodies that go in the same call goes with them, in whatever order named."""
        line = [save(backend, uid).id]
        for _ in range(5):
            line.append(save(backend, uid, base=line[-1]).id)
        kept = save(backend, uid)
        backend.remove(uid, [line[2], line[0], line[5], line[1], line[4], line[3]])
        assert [body.checkpoint for body in backend.bodies(uid)] == [kept.id]

    def test_what_was_hidden_before_waits_for_the_sweep(self, backend: Backend, uid: str) -> None:
        """`remove` removes bodies of the named checkpoints only."""
        first = save(backend, uid)
        second = save(backend, uid, base=first.id)
        backend.remove(uid, [first.id])
        backend.remove(uid, [second.id])
        assert [body.checkpoint for body in backend.bodies(uid)] == [first.id]

    # --- redundant deltas ---

    def test_a_redundant_delta_goes_with_its_checkpoint(self, backend: Backend, uid: str) -> None:
        """Nothing of a removed checkpoint stays, and a redundant delta keeps no body from going."""
        first, second = save(backend, uid), draft(uid)
        append_one(backend, item(second, bodies=[keyframe(second.id), redundant_on(first.id, second.id)]))
        removed = backend.remove(uid, [second.id])
        assert removed.stored_bytes == sum(
            body.stored_size for body in (keyframe(second.id), redundant_on(first.id, second.id))
        )
        assert [body.checkpoint for body in backend.bodies(uid)] == [first.id]

    def test_a_redundant_delta_goes_with_its_base(self, backend: Backend, uid: str) -> None:
        """A redundant is never a reference: its base is removed, and the redundant delta with it."""
        first, second = save(backend, uid), draft(uid)
        append_one(backend, item(second, bodies=[keyframe(second.id), redundant_on(first.id, second.id)]))
        backend.remove(uid, [first.id])
        assert backend.redundant_delta(uid, second.id, "state") is None
        assert backend.body_chain(uid, second.id, "state") == [keyframe(second.id)]
        assert backend.usage(uid).bodies == 1

    def test_a_redundant_delta_stays_while_its_base_is_hidden(self, backend: Backend, uid: str) -> None:
        """As long as the base is stored the redundant delta can be used; it goes when the base is swept."""
        first = save(backend, uid)
        second, third = save(backend, uid, base=first.id), draft(uid)
        append_one(backend, item(third, bodies=[keyframe(third.id), redundant_on(first.id, third.id)]))
        backend.remove(uid, [first.id])
        assert backend.redundant_delta(uid, third.id, "state") == redundant_on(first.id, third.id)
        backend.remove(uid, [second.id])
        backend.sweep()
        assert backend.redundant_delta(uid, third.id, "state") is None

    def test_a_hidden_keyframe_keeps_its_redundant_delta(self, backend: Backend, uid: str) -> None:
        """Those based on it may need the redundant delta when the keyframe is damaged."""
        first, second = save(backend, uid), draft(uid)
        append_one(backend, item(second, bodies=[keyframe(second.id), redundant_on(first.id, second.id)]))
        save(backend, uid, base=second.id)
        backend.remove(uid, [second.id])
        assert backend.redundant_delta(uid, second.id, "state") == redundant_on(first.id, second.id)
        assert backend.usage(uid).hidden_bodies == 2

    # --- requires ---

    def test_what_a_kept_checkpoint_requires_is_refused(self, backend: Backend, uid: str) -> None:
        """It stays, with a body to read; removed together with the one that requires it, it goes."""
        first, free = save(backend, uid), save(backend, uid)
        second = save(backend, uid, requires=(first.id,))
        removed = backend.remove(uid, [first.id, free.id])
        assert (removed.removed, removed.refused) == ((free.id,), (first.id,))
        assert ids(backend, session=uid) == [second.id, first.id]
        assert backend.body_chain(uid, first.id, "state") == [keyframe(first.id)]
        assert backend.session(uid).gaps == ((2, 2),)
        assert set(backend.remove(uid, [first.id, second.id]).removed) == {first.id, second.id}

    def test_requirements_are_transitive(self, backend: Backend, uid: str) -> None:
        """What is refused requires in its turn."""
        first = save(backend, uid)
        second = save(backend, uid, requires=(first.id,))
        third = save(backend, uid, requires=(second.id,))
        removed = backend.remove(uid, [first.id, second.id])
        assert removed.removed == ()
        assert set(removed.refused) == {first.id, second.id}
        assert ids(backend, session=uid) == [third.id, second.id, first.id]


def hide(backend: Backend, uid: str, count: int) -> list[str]:
    """A line of deltas removed one by one, oldest first, so that all but the last are left hidden."""
    line = [save(backend, uid).id]
    for _ in range(count):
        line.append(save(backend, uid, base=line[-1]).id)
    for checkpoint in line:
        backend.remove(uid, [checkpoint])
    return line[:-1]


class SweepContract(Fixtures):
    def test_there_may_be_nothing_to_sweep(self, backend: Backend, uid: str) -> None:
        """What is kept is left alone."""
        first = save(backend, uid)
        save(backend, uid, base=first.id)
        assert backend.sweep(annotations_before_us=START_US) == Swept()
        assert len(headers(backend)) == 2
        assert backend.usage().bodies == 2

    @pytest.mark.parametrize("secure", [False, True])
    def test_hidden_bodies_go_layer_by_layer(self, backend: Backend, uid: str, secure: bool) -> None:
        """One sweep takes a whole line of hidden bodies, from the end that nothing is based on."""
        hidden = hide(backend, uid, 5)
        assert backend.usage(uid).hidden_bodies == 5
        freed = sum(body.stored_size for body in backend.bodies(uid))
        assert backend.sweep(secure=secure) == Swept(bodies=len(hidden), stored_bytes=freed)
        assert backend.bodies(uid) == []

    def test_a_hidden_body_that_is_needed_stays(self, backend: Backend, uid: str) -> None:
        """A line of hidden bodies below a kept one stays whole (V5)."""
        line = [save(backend, uid).id]
        for _ in range(4):
            line.append(save(backend, uid, base=line[-1]).id)
        backend.remove(uid, line[:-1])
        assert backend.sweep() == Swept()
        chain = backend.body_chain(uid, line[-1], "state")
        assert [body.checkpoint for body in chain] == line[::-1]

    def test_the_limit_bounds_one_sweep(self, backend: Backend, uid: str) -> None:
        """`has_more` says that there is more to do; repeating comes to an end."""
        hide(backend, uid, 5)
        first = backend.sweep(limit=2)
        assert (first.bodies, first.has_more) == (2, True)
        assert backend.sweep(limit=2).bodies == 2
        last = backend.sweep(limit=2)
        assert (last.bodies, last.has_more) == (1, False)
        assert backend.bodies(uid) == []

    def test_a_sweep_of_one_session_leaves_others(self, backend: Backend, uid: str) -> None:
        """Bodies and annotations of other sessions wait for their own sweep."""
        other = backend.create_session(new_session()).uid
        for each in (uid, other):
            hide(backend, each, 2)
            backend.annotate(each, "cp_never", "k", "n", b"", time_us=START_US)
        swept = backend.sweep(session=uid, annotations_before_us=START_US + 1)
        assert (swept.bodies, swept.annotations) == (2, 1)
        assert backend.bodies(uid) == []
        assert len(backend.bodies(other)) == 2
        assert len(backend.annotations(other)) == 1

    def test_redundant_deltas_keep_nothing(self, backend: Backend, uid: str) -> None:
        """A hidden body that only a redundant delta is based on goes, and the redundant delta with it."""
        first = save(backend, uid)
        second, third = save(backend, uid, base=first.id), draft(uid)
        append_one(backend, item(third, bodies=[keyframe(third.id), redundant_on(first.id, third.id)]))
        backend.remove(uid, [first.id])
        backend.remove(uid, [second.id])
        freed = keyframe(first.id).stored_size + redundant_on(first.id, third.id).stored_size
        assert backend.sweep() == Swept(bodies=1, stored_bytes=freed)
        assert [body.checkpoint for body in backend.bodies(uid)] == [third.id]

    # --- blobs ---

    def test_a_blob_goes_when_no_body_names_it(self, backend: Backend, uid: str, other: str) -> None:
        """As long as any record of any session names it, it stays (V5)."""
        blob = new_blob(b"x" * 50)
        first, second = draft(uid), draft(other)
        for new in (first, second):
            append_one(backend, item_naming(new, blob))
        backend.remove(uid, [first.id])
        assert backend.sweep() == Swept()
        backend.remove(other, [second.id])
        assert backend.blob(blob.digest) == blob
        assert backend.sweep() == Swept(blobs=1, stored_bytes=50)
        assert backend.blob(blob.digest) is None

    def test_a_hidden_body_keeps_its_blobs(self, backend: Backend, uid: str) -> None:
        """A delta leans on the blobs of its base; they go in the sweep that takes the base."""
        blob, first = new_blob(b"content"), draft(uid)
        append_one(backend, item_naming(first, blob))
        second = save(backend, uid, base=first.id)
        backend.remove(uid, [first.id])
        assert backend.sweep() == Swept()
        backend.remove(uid, [second.id])
        swept = backend.sweep()
        assert (swept.bodies, swept.blobs) == (1, 1)

    def test_a_blob_named_by_none_goes(self, backend: Backend, uid: str) -> None:
        """Also one that was sent with a checkpoint that does not name it; at most `limit` at a time."""
        append_one(backend, item(draft(uid), blobs=[new_blob(bytes([n])) for n in range(5)]))
        swept = backend.sweep(limit=3)
        assert (swept.blobs, swept.has_more) == (3, True)
        swept = backend.sweep(limit=3)
        assert (swept.blobs, swept.has_more) == (2, False)

    def test_a_swept_blob_is_gone_for_a_saver(self, backend: Backend, uid: str) -> None:
        """The saver is told, sends the blob, and is stored."""
        blob, first, second = new_blob(b"content"), draft(uid), draft(uid)
        append_one(backend, item_naming(first, blob))
        assert backend.has_blobs([blob.digest]) == {blob.digest}
        backend.remove(uid, [first.id])
        backend.sweep()
        body = keyframe(second.id, blobs=(blob.digest,))
        (refusal,) = backend.append([item(second, bodies=[body])], _no_seal)
        assert getattr(refusal, "code", None) == "blob_gone"
        append_one(backend, item(second, bodies=[body], blobs=[blob]))
        assert backend.blob(blob.digest) == blob

    def test_sweeping_after_a_delta_became_a_keyframe(self, backend: Backend, uid: str) -> None:
        """A base that is needed no more after a re-encoding goes with the next sweep."""
        first = save(backend, uid)
        second = save(backend, uid, base=first.id)
        backend.remove(uid, [first.id])
        new = keyframe(second.id, data=b"whole")
        backend.replace_body(uid, new, expect_digest=delta_on(first.id, second.id).digest)
        assert backend.sweep().bodies == 1
        assert backend.body_chain(uid, second.id, "state") == [new]

    # --- annotations ---

    def test_annotations_wait_for_their_checkpoint_so_long(self, backend: Backend, uid: str) -> None:
        """Older ones whose checkpoint never came go; without a time none go; others stay."""
        header = save(backend, uid, external_id="e")
        for target in (header.id, (header.branch, "e"), "cp_never", ("main", "never")):
            backend.annotate(uid, target, "k", "old", b"", time_us=START_US)
            backend.annotate(uid, target, "k", "new", b"", time_us=START_US + 1)
        assert backend.sweep() == Swept()
        swept = backend.sweep(annotations_before_us=START_US + 1)
        assert swept.annotations == 2
        left = [(note.target, note.name) for note in backend.annotations(uid)]
        assert ("cp_never", "old") not in left
        assert (("main", "never"), "old") not in left
        assert len(left) == 6

    def test_the_limit_bounds_annotations(self, backend: Backend, uid: str) -> None:
        """At most `limit` of each kind go at once."""
        for number in range(5):
            backend.annotate(uid, f"cp_{number}", "k", "n", b"", time_us=START_US)
        swept = backend.sweep(limit=3, annotations_before_us=START_US + 1)
        assert (swept.annotations, swept.has_more) == (3, True)
        swept = backend.sweep(limit=3, annotations_before_us=START_US + 1)
        assert (swept.annotations, swept.has_more) == (2, False)


def _no_seal(*_: object) -> bytes:
    raise AssertionError("a refused checkpoint is not sealed")
