"""Appending: order, parents, idempotency, batches; and what is refused before anything is stored."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from msgspec.structs import replace

from stepkeep.codec import integrity
from stepkeep.errors import Conflict, InvalidInput, NotFound
from stepkeep.model import MAIN_BRANCH, Branch, Header, Status, Trigger, TriggerKind
from stepkeep.storage.port import ANY_HEAD, Appended, Backend
from stepkeep.testing.builders import (
    START_US,
    append,
    append_one,
    content_of,
    delta_on,
    draft,
    header_in,
    headers,
    item,
    keyframe,
    new_blob,
    new_owner,
    redundant_on,
)
from stepkeep.testing.contract.contract_fixtures import Fixtures, SessionDriver, refused


class AppendContract(Fixtures):
    def test_an_appended_checkpoint_comes_back_as_sealed(self, run: SessionDriver) -> None:
        """The bytes that `seal` gave are stored verbatim, with every field of the draft."""
        full = run.draft(
            content="state",
            external_id="theirs",
            idempotency_key="once",
            step=5,
            status=Status.PAUSED,
            trigger=Trigger(TriggerKind.MANUAL, "button"),
            message="héllo\n",
            tags=("a", "b"),
            metadata={"k": [1, {"x": None}]},
        )
        (answer,) = run.backend.append([item(full)], integrity.seal)
        assert isinstance(answer, Appended)
        assert answer.is_new
        row = answer.row
        assert row.raw == integrity.seal(full, 1, (), ())
        assert (row.id, row.session, row.seq, row.branch) == (full.id, run.uid, 1, MAIN_BRANCH)
        assert run.headers() == [integrity.open_header(row.raw)]

    def test_seal_is_given_the_place(self, run: SessionDriver) -> None:
        """`seal` gets the draft as it was, the seq, the parents, and the chain values of the parents."""
        first = run.save()
        calls = []

        def seal(new: Header, seq: int, parents: Sequence[str], chains: Sequence[str | None]) -> bytes:
            calls.append((new, seq, tuple(parents), tuple(chains)))
            return integrity.seal(new, seq, parents, chains)

        second = run.draft()
        run.backend.append([item(second)], seal)
        assert calls[-1] == (second, 2, (first.id,), (first.chain,))

    def test_seq_counts_from_one_in_each_session(self, run: SessionDriver, other: SessionDriver) -> None:
        """The counter belongs to the session, over all its branches (V3)."""
        assert [run.save(branch=name).seq for name in ("main", "b", "main")] == [1, 2, 3]
        assert other.save().seq == 1
        assert run.info.last_seq == 3

    def test_seq_is_never_used_again(self, run: SessionDriver) -> None:
        """Removing the newest checkpoint does not give its number back (V3)."""
        run.save()
        run.remove(run.save().id)
        assert run.save().seq == 3

    def test_an_appended_checkpoint_becomes_the_head(self, run: SessionDriver) -> None:
        """The head of its branch moves to it, and no other head moves."""
        first, second = run.save(), run.save(branch="b")
        assert run.head() == (first.id, 1)
        assert run.head("b") == (second.id, 2)

    # --- parents ---

    def test_the_parent_is_the_head_unless_told(self, run: SessionDriver) -> None:
        """`parents=None` means the branch's head at that moment, and no parent on an empty branch.

        `()` means without a parent; several are a merge; each brings its chain value, in order.
        """
        first, second = run.save(), run.save()
        assert (first.parents, first.parent_chains) == ((), ())
        assert (second.parents, second.parent_chains) == ((first.id,), (first.chain,))
        assert run.save(parents=()).parents == ()
        merged = run.save(parents=(second.id, first.id))
        assert merged.parents == (second.id, first.id)
        assert merged.parent_chains == (second.chain, first.chain)

    def test_a_parent_that_is_not_stored_has_no_chain(self, run: SessionDriver) -> None:
        """Parents are provenance: one that was removed, or never was here, is named without a chain value."""
        gone = run.save()
        run.remove(gone.id)
        assert run.save(parents=(gone.id, "cp_elsewhere")).parent_chains == (None, None)

    def test_a_parent_in_another_session_brings_its_chain(
        self, run: SessionDriver, other: SessionDriver
    ) -> None:
        """Ids are unique in a store, so a parent may be of another session; the branch does not fork from it."""
        foreign = other.save()
        assert run.save(branch="b", parents=(foreign.id,)).parent_chains == (foreign.chain,)
        assert run.branch("b").fork is None

    def test_the_chain_of_a_batch_is_whole(self, run: SessionDriver) -> None:
        """Within a batch each checkpoint sees those before it: head, seq and chain."""
        run.save_many(3)
        three, two, one = run.headers()
        assert (three.seq, two.seq, one.seq) == (3, 2, 1)
        assert (three.parent_chains, two.parent_chains) == ((two.chain,), (one.chain,))

    # --- branches ---

    def test_a_missing_branch_is_created(self, run: SessionDriver) -> None:
        """It is as old as its first checkpoint; its fork is the first parent, by id, branch and seq, if any."""
        first = run.save(branch="b")
        assert first.parents == ()
        assert run.branch("b") == Branch(name="b", created_us=first.time_us, head=first.id, head_seq=1)
        second = run.save(branch="b")
        third = run.save(branch="c", parents=(first.id, second.id))
        branch = run.branch("c")
        assert (branch.created_us, branch.head, branch.head_seq) == (third.time_us, third.id, 3)
        assert (branch.fork, branch.fork_branch, branch.fork_seq) == (first.id, "b", 1)

    # --- what follows ---

    def test_status_and_time_of_the_session_follow(self, run: SessionDriver) -> None:
        """The session takes the checkpoint's status; a finished one also its time. The version stays.

        A checkpoint of an earlier time does not make its session older.
        """
        run.save(time_us=run.created.updated_us - 5)
        assert run.info.updated_us == run.created.updated_us
        done = run.save(status=Status.COMPLETED)
        after = run.info
        assert (after.status, after.finished_us) == (Status.COMPLETED, done.time_us)
        assert (after.updated_us, after.version) == (done.time_us, run.created.version)

    def test_a_failed_session_keeps_its_error_until_it_goes_on(self, run: SessionDriver) -> None:
        """A finished status keeps the error; any other clears the error and the end."""
        run.backend.update_session(run.uid, {"error": "boom"})
        run.save(status=Status.FAILED)
        assert run.info.error == "boom"
        run.save(status=Status.PAUSED)
        after = run.info
        assert (after.status, after.error, after.finished_us) == (Status.PAUSED, None, None)

    def test_saving_into_a_finished_session_reopens_it(self, run: SessionDriver) -> None:
        """The reopening is recorded as an event at the checkpoint's time; finishing again is not recorded."""
        run.save(status=Status.COMPLETED)
        run.save(status=Status.FAILED)
        assert run.backend.events(run.uid) == []
        header = run.save()
        (event,) = run.backend.events(run.uid)
        assert (event.type, event.time_us) == ("session_reopened", header.time_us)
        assert run.info.status == Status.IN_PROGRESS
        run.save()
        assert len(run.backend.events(run.uid)) == 1

    # --- idempotency ---

    def test_the_same_key_and_content_gives_the_original(self, run: SessionDriver) -> None:
        """A retry under the same key stores nothing, moves nothing, and answers with the first."""
        first = run.save(idempotency_key="k", step=1)
        newest = run.save(status=Status.PAUSED)
        (again,) = run.backend.append([item(run.draft(idempotency_key="k", step=1))], integrity.seal)
        assert isinstance(again, Appended)
        assert (again.row.id, again.row.seq, again.is_new) == (first.id, 1, False)
        assert header_in(again.row) == first
        assert run.branch().head == newest.id
        assert (run.info.last_seq, run.info.status) == (2, Status.PAUSED)
        assert run.usage.bodies == 2

    def test_the_own_id_is_a_key(self, run: SessionDriver) -> None:
        """The very same append again, after a lost answer, gives the original."""
        once = item(run.draft(external_id="e"), expect_head=None)
        first = append_one(run.backend, once)
        (again,) = run.backend.append([once], integrity.seal)
        assert isinstance(again, Appended)
        assert not again.is_new
        assert header_in(again.row) == first

    def test_a_key_is_looked_at_before_the_head(self, run: SessionDriver) -> None:
        """A retry whose expected head has moved on is still a retry."""
        first = run.save(idempotency_key="k")
        run.save()
        assert run.append(run.draft(idempotency_key="k"), expect_head=None).id == first.id

    @pytest.mark.parametrize(
        "changed",
        [{"content": "other"}, {"step": 2}, {"status": Status.PAUSED}, {"contents": {"x": content_of("{}")}}],
    )
    def test_the_same_key_with_other_content_is_a_conflict(
        self, run: SessionDriver, changed: dict[str, Any]
    ) -> None:
        """Bodies, step and status decide what is the same; the key and the id alike."""
        fields: dict[str, Any] = {"content": "{}", "step": 1}
        first = run.save(idempotency_key="k", **fields)
        for key in ({"idempotency_key": "k"}, {"id": first.id}):
            with pytest.raises(Conflict):
                run.save(**key, **(fields | changed))
        assert run.headers() == [first]

    def test_a_key_belongs_to_its_session_and_an_id_to_the_store(
        self, run: SessionDriver, other: SessionDriver
    ) -> None:
        """The same key in another session is another key; an id taken there is a conflict, whatever the content."""
        first = run.save(idempotency_key="k")
        assert other.save(idempotency_key="k").id != first.id
        with pytest.raises(Conflict):
            other.save(id=first.id)
        assert len(other.headers()) == 1

    def test_a_key_repeated_in_one_batch_is_stored_once(self, run: SessionDriver) -> None:
        """The second of the batch gets the first as its original."""
        items = [item(run.draft(idempotency_key="k")) for _ in range(2)]
        first, second = run.backend.append(items, integrity.seal)
        assert isinstance(first, Appended)
        assert isinstance(second, Appended)
        assert (first.is_new, second.is_new) == (True, False)
        assert first.row == second.row

    def test_a_removed_checkpoint_frees_its_key(self, run: SessionDriver) -> None:
        """A key is held by a stored checkpoint only."""
        run.remove(run.save(idempotency_key="k").id)
        assert run.save(idempotency_key="k", content="other").seq == 2

    # --- batches ---

    def test_one_conflict_takes_nothing_from_the_others(
        self, backend: Backend, run: SessionDriver, other: SessionDriver
    ) -> None:
        """Of a large batch over two sessions with one conflict in the middle, all others are stored."""
        items = [item(draft((run.uid, other.uid)[number % 2])) for number in range(301)]
        items[150] = replace(items[150], expect_head="cp_stale")
        answers = backend.append(items, integrity.seal)
        assert isinstance(answers.pop(150), Conflict)
        del items[150]
        assert [a.row.id for a in answers if isinstance(a, Appended)] == [one.draft.id for one in items]
        for each in (run, other):
            assert [header.seq for header in each.headers(newest_first=False)] == list(range(1, 151))
        assert backend.usage().bodies == 300
        assert backend.append([], integrity.seal) == []

    def test_an_unknown_session_takes_nothing_from_the_others(self, run: SessionDriver) -> None:
        """NotFound is an answer like any other."""
        gone, stored = append(run.backend, item(draft("no such uid")), item(run.draft()))
        assert isinstance(gone, NotFound)
        assert headers(run.backend) == [stored]

    def test_a_seal_that_fails_stores_nothing(self, run: SessionDriver) -> None:
        """An exception leaves nothing of the call behind, not even what was decided before it (V2)."""

        def seal(new: Header, seq: int, parents: Sequence[str], chains: Sequence[str | None]) -> bytes:
            if seq == 2:
                raise RuntimeError("seal failed")
            return integrity.seal(new, seq, parents, chains)

        with pytest.raises(RuntimeError, match="seal failed"):
            run.backend.append([item(run.draft()), item(run.draft(branch="b"))], seal)
        assert headers(run.backend) == []
        assert run.info == run.created
        assert run.branch_names() == [MAIN_BRANCH]
        assert run.head() == (None, 0)
        assert run.backend.usage().bodies == 0
        assert run.save().seq == 1

    def test_a_seal_that_refuses_is_a_refusal(self, run: SessionDriver) -> None:
        """An error of ours out of `seal` is the answer for that one alone."""

        def seal(new: Header, seq: int, parents: Sequence[str], chains: Sequence[str | None]) -> bytes:
            if new.message == "bad":
                raise InvalidInput("refused")
            return integrity.seal(new, seq, parents, chains)

        items = [item(run.draft(message="bad")), item(run.draft())]
        first, second = run.backend.append(items, seal)
        assert isinstance(first, InvalidInput)
        assert isinstance(second, Appended)
        assert second.row.seq == 1

    def test_times_far_away_are_kept(self, run: SessionDriver) -> None:
        """A time before 1970 or far in the future is a number like any other."""
        early = run.save(id="cp_early", time_us=-START_US)
        late = run.save(id="cp_late", time_us=2**53)
        assert headers(run.backend) == [late, early]


class RefusalContract(Fixtures):
    def test_a_save_upon_a_stale_head_is_a_conflict(self, run: SessionDriver) -> None:
        """Of two who saw the same head, the second is refused; without compare-and-set both are kept (V9)."""
        first = run.save()
        run.append(run.draft(), expect_head=first.id)
        for stale in (first.id, None, "cp_nothing"):
            with pytest.raises(Conflict):
                run.append(run.draft(), expect_head=stale)
        run.append(run.draft(), expect_head=ANY_HEAD)
        assert [header.seq for header in run.headers()] == [3, 2, 1]

    def test_a_save_upon_no_head_needs_a_branch_without_head(self, run: SessionDriver) -> None:
        """`expect_head=None` matches an empty branch, and one that does not exist yet."""
        run.append(run.draft(), expect_head=None)
        run.append(run.draft(branch="b"), expect_head=None)
        with pytest.raises(Conflict):
            run.append(run.draft(branch="c"), expect_head="cp_nothing")
        assert set(run.branch_names()) == {MAIN_BRANCH, "b"}

    def test_an_external_id_is_unique_on_its_branch(self, run: SessionDriver, other: SessionDriver) -> None:
        """The same external id is refused on the branch, and allowed on another branch or session.

        No external id is not an external id.
        """
        first = run.save(external_id="e")
        with pytest.raises(Conflict):
            run.save(external_id="e")
        run.save(branch="b", external_id="e")
        other.save(external_id="e")
        assert len(headers(run.backend, external_id="e")) == 3
        run.remove(first.id)
        assert run.save(external_id="e").external_id == "e"
        assert [run.save().external_id for _ in range(2)] == [None, None]

    def test_a_required_id_must_be_there(self, run: SessionDriver, other: SessionDriver) -> None:
        """It must be a stored checkpoint of the same session; one earlier in the batch will do."""
        foreign, gone = other.save(), run.save()
        run.remove(gone.id)
        for missing in ("cp_nothing", foreign.id, gone.id):
            with pytest.raises(NotFound):
                run.save(requires=(missing,))
        first = run.draft()
        answers = append(run.backend, item(first), item(run.draft(requires=(first.id,))))
        assert run.headers(newest_first=False) == answers

    def test_a_base_must_be_stored(self, run: SessionDriver, other: SessionDriver) -> None:
        """A delta against nothing is `base_gone`, and stores nothing; a base earlier in the batch will do.

        A body of another name, or in another session, cannot be a base; nor can a body be its own.
        """
        first, foreign = run.save(), other.save()
        new = run.draft(contents={"details": content_of("{}")})
        wrong = (("cp_nothing", "state"), (first.id, "details"), (foreign.id, "state"), (new.id, "state"))
        for base, name in wrong:
            with refused("base_gone"):
                run.append(new, bodies=[delta_on(base, new.id, name)])
        assert run.stored() == [first.id]
        assert run.append(new).seq == 2
        one, two = run.draft(), run.draft()
        append(run.backend, item(one), item(two, base=one.id))
        assert run.chain_ids(two.id) == [two.id, one.id]

    def test_after_a_lost_base_the_rest_of_the_session_waits(
        self, run: SessionDriver, other: SessionDriver
    ) -> None:
        """What follows in the batch would come before the one that is sent again; other sessions go on."""
        lost = item(run.draft(), base="cp_nothing")
        answers = append(run.backend, item(run.draft()), lost, item(run.draft()), item(other.draft()))
        codes = [getattr(answer, "code", None) for answer in answers]
        assert codes == [None, "base_gone", "predecessor_refused", None]
        assert len(run.headers()) == 1

    def test_a_save_on_the_current_branch_notices_a_switch(self, run: SessionDriver) -> None:
        """Only with `on_current`; a save that names its branch goes there."""
        run.save(branch="b")
        with refused("branch_switched"):
            append_one(run.backend, replace(item(run.draft(branch="b")), on_current=True))
        run.backend.update_session(run.uid, {"branch": "b"})
        append_one(run.backend, replace(item(run.draft(branch="b")), on_current=True))
        assert len(run.headers()) == 2

    def test_a_redundant_delta_is_only_a_second_chance(self, run: SessionDriver) -> None:
        """Its base need not be there, and it cannot be a base itself."""
        new = run.save_redundantly("cp_nothing")
        assert run.chain(new.id) == [keyframe(new.id)]
        alone = run.draft()
        run.append(alone, bodies=[redundant_on("cp_nothing", alone.id)])
        with refused("base_gone"):
            run.save(base=alone.id)

    def test_a_blob_must_be_stored_or_sent(self, run: SessionDriver) -> None:
        """A body that names a blob nobody has is `blob_gone`; sent along, or there already, it is fine."""
        blob, new = new_blob(b"content"), run.draft()
        naming = [keyframe(new.id, blobs=(blob.digest,))]
        with refused("blob_gone"):
            run.append(new, bodies=naming)
        run.save_naming(blob)
        run.append(new, bodies=naming)
        assert len(run.headers()) == 2

    def test_a_refused_checkpoint_takes_nothing(self, run: SessionDriver) -> None:
        """Its blobs are not stored, and the next one gets the seq that it would have had."""
        blob = new_blob(b"content")
        append(run.backend, item(run.draft(), blobs=[blob], expect_head="cp_stale"))
        assert run.backend.blob(blob.digest) is None
        assert run.save().seq == 1

    def test_an_id_whose_body_others_still_need_cannot_return(self, run: SessionDriver) -> None:
        """A hidden body is never overwritten by a new checkpoint of the same id (V4)."""
        first, second = run.save_chain(1)
        run.remove(first)
        with pytest.raises(Conflict):
            run.append(run.draft(id=first), bodies=[keyframe(first, data=b"other")])
        assert run.chain(second)[-1] == keyframe(first)

    def test_a_fence_must_be_current(self, backend: Backend, run: SessionDriver) -> None:
        """Every method that takes a fence refuses one that was never issued, and changes nothing.

        It is looked at before the key: who lost the lease is told so, also on a retry. Without one a lease held by
        another does not block a save.
        """
        uid = run.uid
        lease = backend.acquire_lease(uid, new_owner(), seconds=15)
        header = run.save(idempotency_key="k")
        body, branch = keyframe(header.id), Branch(name="b", created_us=1)
        calls: list[Callable[[int | None], object]] = [
            lambda fence: run.append(run.draft(), fence=fence),
            lambda fence: run.append(run.draft(idempotency_key="k"), fence=fence),
            lambda fence: backend.update_session(uid, {"error": "x"}, fence=fence),
            lambda fence: backend.set_branch(uid, branch, fence=fence),
            lambda fence: backend.replace_body(uid, body, expect_digest=body.digest, fence=fence),
            lambda fence: backend.annotate(uid, header.id, "k", "n", b"", time_us=1, fence=fence),
            lambda fence: backend.remove(uid, [header.id], fence=fence),
            lambda fence: backend.delete_session(uid, fence=fence),
        ]
        before = (run.info, backend.branches(uid), run.usage.checkpoints)
        for call in calls:
            with refused("lease_lost"):
                call(lease.token + 1)
        assert (run.info, backend.branches(uid), run.usage.checkpoints) == before
        assert run.notes() == []
        for call in calls:
            call(lease.token)
