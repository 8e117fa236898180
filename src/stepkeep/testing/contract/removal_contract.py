"""Removing checkpoints, and sweeping what nothing needs any more."""

from __future__ import annotations

import pytest

from stepkeep.model import MAIN_BRANCH
from stepkeep.storage.port import Backend, Swept
from stepkeep.testing.builders import START_US, delta_on, headers, item, keyframe, new_blob, redundant_on
from stepkeep.testing.contract.contract_fixtures import Fixtures, SessionDriver


class RemoveContract(Fixtures):
    @pytest.mark.parametrize("secure", [False, True])
    def test_a_removed_checkpoint_is_gone(self, run: SessionDriver, secure: bool) -> None:
        """Its header and its bodies go; the answer says what and how many bytes."""
        first, second = run.save(), run.save()
        removed = run.remove(first.id, secure=secure)
        assert (removed.removed, removed.refused, removed.missing) == ((first.id,), (), ())
        assert removed.stored_bytes == keyframe(first.id).stored_size
        assert run.headers() == [second]
        assert run.chain(first.id) == []
        assert run.usage.bodies == 1

    def test_what_is_not_there_is_missing(self, run: SessionDriver, other: SessionDriver) -> None:
        """Unknown ids, and another session's, are told and left alone; a repeated id counts once."""
        foreign, header = other.save(), run.save()
        removed = run.remove("cp_nothing", header.id, foreign.id, header.id)
        assert removed.removed == (header.id,)
        assert set(removed.missing) == {"cp_nothing", foreign.id}
        assert headers(run.backend) == [foreign]
        again = run.remove(header.id)
        assert (again.removed, again.missing, again.stored_bytes) == ((), (header.id,), 0)

    def test_removing_leaves_the_rest_of_the_session_alone(self, run: SessionDriver) -> None:
        """Version, times, status and counter stay. An empty list is allowed, and changes nothing."""
        header = run.save()
        before = run.info
        assert run.remove().removed == ()
        assert run.info == before
        assert run.headers() == [header]
        run.remove(header.id)
        after = run.info
        assert (after.version, after.updated_us) == (before.version, before.updated_us)
        assert (after.status, after.last_seq) == (before.status, 1)

    def test_many_can_be_removed_at_once(self, run: SessionDriver) -> None:
        """The number of ids has no small limit."""
        run.save_many(700)
        going = run.ids(max_seq=650)
        assert set(run.remove(*going).removed) == set(going)
        assert run.info.gaps == ((1, 650),)
        assert run.usage.bodies == 50

    def test_gaps_are_compact_closed_ranges(self, run: SessionDriver) -> None:
        """What was removed on purpose is recorded by seq, and neighbours are united."""
        by_seq = {seq: run.save().id for seq in range(1, 11)}
        steps = [
            ([3], ((3, 3),)),
            ([5, 8], ((3, 3), (5, 5), (8, 8))),
            ([4], ((3, 5), (8, 8))),
            ([10, 1], ((1, 1), (3, 5), (8, 8), (10, 10))),
            ([2, 6, 7, 9], ((1, 10),)),
        ]
        for seqs, gaps in steps:
            run.remove(*(by_seq[seq] for seq in seqs))
            assert run.info.gaps == gaps

    # --- heads ---

    def test_a_head_moves_to_the_newest_that_remains(self, run: SessionDriver) -> None:
        """The newest of its own branch, not of the session."""
        first, second, third = run.save(), run.save(branch="b"), run.save()
        run.remove(third.id)
        assert run.head() == (first.id, first.seq)
        assert run.branch("b").head == second.id
        assert run.save().parents == (first.id,)

    def test_a_branch_without_checkpoints_falls_back_to_its_fork(self, run: SessionDriver) -> None:
        """Its head is then the fork point. With that gone too, a branch stays, without a head."""
        first = run.save()
        second = run.save(branch="b", parents=(first.id,))
        run.remove(second.id)
        assert run.head("b") == (first.id, 1)
        third = run.save(branch="b")
        run.remove(first.id, third.id)
        assert run.head() == run.head("b") == (None, 0)
        assert run.save().parents == ()

    def test_a_branch_falls_back_behind_its_fork(self, run: SessionDriver) -> None:
        """When the fork point goes too, the head is the newest that is left of the line it came from."""
        first, second, third = (run.save() for _ in range(3))
        run.put_branch("b", head=second.id, fork=second.id)
        run.put_branch("c", created_us=2, head=second.id, fork=second.id, fork_branch="b")
        run.remove(second.id)
        assert run.head("b") == run.head("c") == (first.id, first.seq)
        assert run.branch().head == third.id
        assert run.save(branch="b").parents == (first.id,)

    def test_a_head_on_a_foreign_checkpoint_moves_too(self, run: SessionDriver) -> None:
        """A branch that was only set, and never saved to, loses its head with the checkpoint."""
        first, second = run.save(), run.save()
        run.put_branch("b", head=second.id, fork=first.id)
        run.remove(second.id)
        assert run.branch("b").head == first.id
        run.remove(first.id)
        assert run.branch("b").head is None

    # --- bodies ---

    def test_a_body_others_need_is_hidden(self, run: SessionDriver) -> None:
        """What is based on it can still be rebuilt (V5)."""
        first, second = run.save_chain(1)
        assert run.remove(first).stored_bytes == 0
        assert run.ids() == [second]
        assert run.chain(second) == [delta_on(first, second), keyframe(first)]
        assert run.usage.hidden_bodies == 1
        run.remove(
            second
        )  # `remove` removes bodies of the named checkpoints only; this one waits for the sweep
        assert run.stored() == [first]

    def test_each_body_is_decided_alone(self, run: SessionDriver) -> None:
        """A checkpoint's body that nobody needs goes, though another of its bodies is needed."""
        first = run.draft()
        run.append(first, bodies=[keyframe(first.id), keyframe(first.id, "files")])
        run.save(base=first.id)
        assert run.remove(first.id).stored_bytes == keyframe(first.id, "files").stored_size
        assert run.chain(first.id, "files") == []
        assert run.chain(first.id) == [keyframe(first.id)]

    def test_a_group_removed_at_once_leaves_nothing_hidden(self, run: SessionDriver) -> None:
        """A body needed only by bodies that go in the same call goes with them, in whatever order named."""
        chain = run.save_chain(5)
        kept = run.save()
        run.remove(*(chain[at] for at in (2, 0, 5, 1, 4, 3)))
        assert run.stored() == [kept.id]

    # --- redundant deltas ---

    def test_a_redundant_delta_goes_with_its_checkpoint(self, run: SessionDriver) -> None:
        """Nothing of a removed checkpoint stays, and a redundant delta keeps no body from going."""
        first = run.save()
        second = run.save_redundantly(first.id).id
        sizes = [body.stored_size for body in (keyframe(second), redundant_on(first.id, second))]
        assert run.remove(second).stored_bytes == sum(sizes)
        assert run.stored() == [first.id]

    def test_a_redundant_delta_goes_with_its_base(self, run: SessionDriver) -> None:
        """It is never a reference: its base is removed, and the redundant delta with it."""
        first = run.save()
        second = run.save_redundantly(first.id).id
        run.remove(first.id)
        assert run.redundant(second) is None
        assert run.chain(second) == [keyframe(second)]
        assert run.usage.bodies == 1

    def test_a_redundant_delta_stays_while_its_base_is_hidden(self, run: SessionDriver) -> None:
        """As long as the base is stored the redundant delta can be used; it goes when the base is swept."""
        first, second = run.save_chain(1)
        third = run.save_redundantly(first).id
        run.remove(first)
        assert run.redundant(third) == redundant_on(first, third)
        run.remove(second)
        freed = keyframe(first).stored_size + redundant_on(first, third).stored_size
        assert run.backend.sweep() == Swept(bodies=1, stored_bytes=freed)
        assert run.redundant(third) is None
        assert run.stored() == [third]

    def test_a_hidden_keyframe_keeps_its_redundant_delta(self, run: SessionDriver) -> None:
        """Those based on it may need the redundant delta when the keyframe is damaged."""
        first = run.save()
        second = run.save_redundantly(first.id).id
        run.save(base=second)
        run.remove(second)
        assert run.redundant(second) == redundant_on(first.id, second)
        assert run.usage.hidden_bodies == 2

    # --- requires ---

    def test_what_a_kept_checkpoint_requires_is_refused(self, run: SessionDriver) -> None:
        """It stays, with a body to read; removed together with the one that requires it, it goes."""
        first, free = run.save(), run.save()
        second = run.save(requires=(first.id,))
        removed = run.remove(first.id, free.id)
        assert (removed.removed, removed.refused) == ((free.id,), (first.id,))
        assert run.ids() == [second.id, first.id]
        assert run.chain(first.id) == [keyframe(first.id)]
        assert run.info.gaps == ((2, 2),)
        assert set(run.remove(first.id, second.id).removed) == {first.id, second.id}

    def test_requirements_are_transitive(self, run: SessionDriver) -> None:
        """What is refused requires in its turn."""
        first = run.save()
        second = run.save(requires=(first.id,))
        third = run.save(requires=(second.id,))
        removed = run.remove(first.id, second.id)
        assert removed.removed == ()
        assert set(removed.refused) == {first.id, second.id}
        assert run.ids() == [third.id, second.id, first.id]


def hide(run: SessionDriver, count: int) -> None:
    """A chain of deltas removed one by one, oldest first, so that all but the last are left hidden."""
    for checkpoint in run.save_chain(count):
        run.remove(checkpoint)


class SweepContract(Fixtures):
    @pytest.mark.parametrize("secure", [False, True])
    def test_hidden_bodies_go_layer_by_layer(self, run: SessionDriver, secure: bool) -> None:
        """One sweep takes a whole chain of hidden bodies, from the end that nothing is based on."""
        hide(run, 5)
        assert run.usage.hidden_bodies == 5
        freed = sum(body.stored_size for body in run.backend.bodies(run.uid))
        assert run.backend.sweep(secure=secure) == Swept(bodies=5, stored_bytes=freed)
        assert run.stored() == []

    def test_a_hidden_body_that_is_needed_stays(self, run: SessionDriver) -> None:
        """What is kept is left alone, and a chain of hidden bodies below a kept one stays whole (V5)."""
        chain = run.save_chain(4)
        assert run.backend.sweep(annotations_before_us=START_US) == Swept()
        assert (len(run.headers()), run.usage.bodies) == (5, 5)
        run.remove(*chain[:-1])
        assert run.backend.sweep() == Swept()
        assert run.chain_ids(chain[-1]) == chain[::-1]

    def test_the_limit_bounds_one_sweep(self, backend: Backend, run: SessionDriver) -> None:
        """At most so many bodies, blobs and annotations; `has_more` says so, and repeating comes to an end."""
        hide(run, 5)
        found = [backend.sweep(limit=2) for _ in range(3)]
        assert [(swept.bodies, swept.has_more) for swept in found] == [(2, True), (2, True), (1, False)]
        assert run.stored() == []
        run.append(run.draft(), blobs=[new_blob(bytes([n])) for n in range(5)])
        found = [backend.sweep(limit=3) for _ in range(2)]
        assert [(swept.blobs, swept.has_more) for swept in found] == [(3, True), (2, False)]
        for number in range(5):
            run.annotate(f"cp_{number}", "n", time_us=START_US)
        found = [backend.sweep(limit=3, annotations_before_us=START_US + 1) for _ in range(2)]
        assert [(swept.annotations, swept.has_more) for swept in found] == [(3, True), (2, False)]

    def test_a_sweep_of_one_session_leaves_others(
        self, backend: Backend, run: SessionDriver, other: SessionDriver
    ) -> None:
        """Bodies and annotations of other sessions wait for their own sweep."""
        for each in (run, other):
            hide(each, 2)
            each.annotate("cp_never", "n", time_us=START_US)
        swept = backend.sweep(session=run.uid, annotations_before_us=START_US + 1)
        assert (swept.bodies, swept.annotations) == (2, 1)
        assert run.stored() == []
        assert (len(other.stored()), len(other.notes())) == (2, 1)

    def test_a_session_with_needed_ones_does_not_keep_others_from_a_sweep(
        self, backend: Backend, run: SessionDriver, other: SessionDriver
    ) -> None:
        """Whatever the limit, and whichever session comes first: a sweep finds what may go."""
        for kept, swept in ((run, other), (other, run)):
            chain = kept.save_chain(1)
            kept.remove(chain[0])
            hide(swept, 1)
            assert backend.sweep(limit=1).bodies == 1
            assert kept.chain_ids(chain[1]) == chain[::-1]

    # --- blobs ---

    def test_a_blob_goes_when_no_body_names_it(
        self, backend: Backend, run: SessionDriver, other: SessionDriver
    ) -> None:
        """As long as any record of any session names it, it stays (V5)."""
        blob = new_blob(b"x" * 50)
        first, second = run.save_naming(blob), other.save_naming(blob)
        run.remove(first.id)
        assert backend.sweep() == Swept()
        other.remove(second.id)
        assert backend.blob(blob.digest) == blob
        assert backend.sweep() == Swept(blobs=1, stored_bytes=50)
        assert backend.blob(blob.digest) is None

    def test_a_hidden_body_keeps_its_blobs(self, run: SessionDriver) -> None:
        """A delta leans on the blobs of its base; they go in the sweep that takes the base."""
        first = run.save_naming(new_blob(b"content"))
        second = run.save(base=first.id)
        run.remove(first.id)
        assert run.backend.sweep() == Swept()
        run.remove(second.id)
        swept = run.backend.sweep()
        assert (swept.bodies, swept.blobs) == (1, 1)

    def test_a_swept_blob_is_gone_for_a_saver(self, backend: Backend, run: SessionDriver) -> None:
        """The saver is told, sends the blob, and is stored."""
        blob, new = new_blob(b"content"), run.draft()
        first = run.save_naming(blob)
        assert backend.has_blobs([blob.digest]) == {blob.digest}
        run.remove(first.id)
        backend.sweep()
        body = keyframe(new.id, blobs=(blob.digest,))
        (refusal,) = backend.append([item(new, bodies=[body])], _no_seal)
        assert getattr(refusal, "code", None) == "blob_gone"
        run.append(new, bodies=[body], blobs=[blob])
        assert backend.blob(blob.digest) == blob

    def test_sweeping_after_a_delta_became_a_keyframe(self, run: SessionDriver) -> None:
        """A base that is needed no more after a re-encoding goes with the next sweep."""
        first, second = run.save_chain(1)
        run.remove(first)
        new = keyframe(second, data=b"whole")
        run.backend.replace_body(run.uid, new, expect_digest=delta_on(first, second).digest)
        assert run.backend.sweep().bodies == 1
        assert run.chain(second) == [new]

    # --- annotations ---

    def test_annotations_wait_for_their_checkpoint_so_long(self, run: SessionDriver) -> None:
        """Older ones whose checkpoint never came go; without a time none go; others stay."""
        header = run.save(external_id="e")
        for target in (header.id, (header.branch, "e"), "cp_never", (MAIN_BRANCH, "never")):
            run.annotate(target, "old", time_us=START_US)
            run.annotate(target, "new", time_us=START_US + 1)
        assert run.backend.sweep() == Swept()
        assert run.backend.sweep(annotations_before_us=START_US + 1).annotations == 2
        left = [(note.target, note.name) for note in run.backend.annotations(run.uid)]
        assert ("cp_never", "old") not in left
        assert ((MAIN_BRANCH, "never"), "old") not in left
        assert len(left) == 6


def _no_seal(*_: object) -> bytes:
    raise AssertionError("a refused checkpoint is not sealed")
