"""Appending checkpoints: what is stored, what follows, and what is refused."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from msgspec.structs import replace

from stepkeep.codec import integrity
from stepkeep.errors import Conflict, InvalidInput, NotFound
from stepkeep.model import MAIN_BRANCH, Branch, Header, SessionInfo, Status, Trigger, TriggerKind
from stepkeep.storage.port import ANY_HEAD, Appended, Backend
from stepkeep.testing.builders import (
    START_US,
    append,
    append_one,
    content_of,
    delta_on,
    draft,
    headers,
    item,
    item_naming,
    keyframe,
    new_blob,
    new_owner,
    new_session,
    redundant_on,
    save,
)
from stepkeep.testing.contract.contract_fixtures import HOSTILE_NAMES, Fixtures, refused
from stepkeep.testing.contract.session_contract import branch_of


class AppendContract(Fixtures):
    def test_an_appended_checkpoint_comes_back_as_sealed(self, backend: Backend, uid: str) -> None:
        """The bytes that `seal` gave are stored verbatim, with every field of the draft."""
        full = draft(
            uid,
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
        (answer,) = backend.append([item(full)], integrity.seal)
        assert isinstance(answer, Appended)
        assert answer.is_new
        assert answer.row.raw == integrity.seal(full, 1, (), ())
        assert (answer.row.id, answer.row.session, answer.row.seq, answer.row.branch) == (
            full.id,
            uid,
            1,
            MAIN_BRANCH,
        )
        (header,) = headers(backend, session=uid)
        assert header == integrity.open_header(answer.row.raw)

    def test_seal_is_given_the_place(self, backend: Backend, uid: str) -> None:
        """`seal` gets the draft as it was, the seq, the parents, and the chain values of the parents."""
        first = save(backend, uid)
        calls = []

        def seal(new: Header, seq: int, parents: Sequence[str], chains: Sequence[str | None]) -> bytes:
            calls.append((new, seq, tuple(parents), tuple(chains)))
            return integrity.seal(new, seq, parents, chains)

        second = draft(uid)
        backend.append([item(second)], seal)
        assert calls[-1] == (second, 2, (first.id,), (first.chain,))

    def test_seq_counts_from_one_in_each_session(self, backend: Backend, uid: str) -> None:
        """The counter belongs to the session, over all its branches (V3)."""
        other = backend.create_session(new_session())
        assert [save(backend, uid, branch=name).seq for name in ("main", "b", "main")] == [1, 2, 3]
        assert save(backend, other.uid).seq == 1
        assert backend.session(uid).last_seq == 3

    def test_seq_is_never_used_again(self, backend: Backend, uid: str) -> None:
        """Removing the newest checkpoint does not give its number back (V3)."""
        save(backend, uid)
        second = save(backend, uid)
        backend.remove(uid, [second.id])
        assert save(backend, uid).seq == 3

    def test_an_appended_checkpoint_becomes_the_head(self, backend: Backend, uid: str) -> None:
        """The head of its branch moves to it, and no other head moves."""
        first = save(backend, uid)
        second = save(backend, uid, branch="b")
        assert (branch_of(backend, uid).head, branch_of(backend, uid).head_seq) == (first.id, 1)
        assert (branch_of(backend, uid, "b").head, branch_of(backend, uid, "b").head_seq) == (second.id, 2)

    # --- parents ---

    def test_the_parent_is_the_head_unless_told(self, backend: Backend, uid: str) -> None:
        """`parents=None` means the branch's head at that moment, and no parent on an empty branch."""
        first, second = save(backend, uid), save(backend, uid)
        assert (first.parents, first.parent_chains) == ((), ())
        assert (second.parents, second.parent_chains) == ((first.id,), (first.chain,))

    def test_named_parents_are_taken_as_they_are(self, backend: Backend, uid: str) -> None:
        """`()` is no parent; several are a merge; each brings its chain value, in order."""
        first, second = save(backend, uid), save(backend, uid)
        assert save(backend, uid, parents=()).parents == ()
        merged = save(backend, uid, parents=(second.id, first.id))
        assert merged.parents == (second.id, first.id)
        assert merged.parent_chains == (second.chain, first.chain)

    def test_a_parent_that_is_not_stored_has_no_chain(self, backend: Backend, uid: str) -> None:
        """Parents are provenance: one that was removed, or never was here, is named without a chain value."""
        gone = save(backend, uid)
        backend.remove(uid, [gone.id])
        header = save(backend, uid, parents=(gone.id, "cp_elsewhere"))
        assert header.parent_chains == (None, None)

    def test_a_parent_in_another_session_brings_its_chain(self, backend: Backend, uid: str) -> None:
        """Ids are unique in a store, so a parent may be of another session; it is no fork point here."""
        foreign = save(backend, backend.create_session(new_session()).uid)
        header = save(backend, uid, branch="b", parents=(foreign.id,))
        assert header.parent_chains == (foreign.chain,)
        assert branch_of(backend, uid, "b").fork is None

    def test_the_chain_of_a_batch_is_whole(self, backend: Backend, uid: str) -> None:
        """Within a batch each checkpoint sees those before it: head, seq and chain."""
        one, two, three = append(backend, *(item(draft(uid)) for _ in range(3)))
        stored = {header.id: header for header in headers(backend, session=uid)}
        assert [header.seq for header in stored.values()] == [3, 2, 1]
        assert stored[three.id].parent_chains == (stored[two.id].chain,)  # type: ignore[union-attr]
        assert stored[two.id].parent_chains == (stored[one.id].chain,)  # type: ignore[union-attr]

    # --- branches ---

    def test_a_missing_branch_is_created(self, backend: Backend, uid: str) -> None:
        """It is as old as its first checkpoint, and has no fork when it has no parent."""
        header = save(backend, uid, branch="b")
        branch = branch_of(backend, uid, "b")
        assert (branch.created_us, branch.head, branch.head_seq) == (header.time_us, header.id, 1)
        assert (branch.fork, branch.fork_branch, branch.fork_seq) == (None, None, 0)
        assert header.parents == ()

    def test_a_missing_branch_forks_from_its_first_parent(self, backend: Backend, uid: str) -> None:
        """The fork is remembered by id, branch and seq."""
        first, second = save(backend, uid), save(backend, uid)
        save(backend, uid, branch="b", parents=(first.id, second.id))
        branch = branch_of(backend, uid, "b")
        assert (branch.fork, branch.fork_branch, branch.fork_seq) == (first.id, MAIN_BRANCH, 1)

    # --- what follows ---

    def test_status_and_time_of_the_session_follow(self, backend: Backend, session: SessionInfo) -> None:
        """The session takes the checkpoint's status; a finished one also its time. The version stays."""
        done = save(backend, session.uid, status=Status.COMPLETED)
        after = backend.session(session.uid)
        assert (after.status, after.finished_us, after.updated_us) == (
            Status.COMPLETED,
            done.time_us,
            done.time_us,
        )
        assert after.version == session.version

    def test_the_update_time_never_goes_back(self, backend: Backend, session: SessionInfo) -> None:
        """A checkpoint of an earlier time does not make its session older."""
        save(backend, session.uid, time_us=session.updated_us - 5)
        assert backend.session(session.uid).updated_us == session.updated_us

    def test_a_failed_session_keeps_its_error_until_it_goes_on(self, backend: Backend, uid: str) -> None:
        """A finished status keeps the error; any other clears the error and the end."""
        backend.update_session(uid, {"error": "boom"})
        save(backend, uid, status=Status.FAILED)
        assert backend.session(uid).error == "boom"
        save(backend, uid, status=Status.PAUSED)
        after = backend.session(uid)
        assert (after.status, after.error, after.finished_us) == (Status.PAUSED, None, None)

    def test_saving_into_a_finished_session_reopens_it(self, backend: Backend, uid: str) -> None:
        """The reopening is recorded as an event at the checkpoint's time; finishing again is none."""
        save(backend, uid, status=Status.COMPLETED)
        save(backend, uid, status=Status.FAILED)
        assert backend.events(uid) == []
        header = save(backend, uid)
        (event,) = backend.events(uid)
        assert (event.type, event.time_us) == ("session_reopened", header.time_us)
        assert backend.session(uid).status == Status.IN_PROGRESS
        save(backend, uid)
        assert len(backend.events(uid)) == 1

    # --- idempotency ---

    def test_the_same_key_and_content_gives_the_original(self, backend: Backend, uid: str) -> None:
        """A retry under the same key stores nothing, moves nothing, and answers with the first."""
        first = save(backend, uid, idempotency_key="k", step=1)
        newest = save(backend, uid, status=Status.PAUSED)
        (again,) = backend.append([item(draft(uid, idempotency_key="k", step=1))], integrity.seal)
        assert isinstance(again, Appended)
        assert (again.row.id, again.row.seq, again.is_new) == (first.id, 1, False)
        assert integrity.open_header(again.row.raw) == first
        assert branch_of(backend, uid).head == newest.id
        assert (backend.session(uid).last_seq, backend.session(uid).status) == (2, Status.PAUSED)
        assert backend.usage(uid).bodies == 2

    def test_the_own_id_is_a_key(self, backend: Backend, uid: str) -> None:
        """The very same append again, after a lost answer, gives the original."""
        once = item(draft(uid, external_id="e"), expect_head=None)
        first = append_one(backend, once)
        (again,) = backend.append([once], integrity.seal)
        assert isinstance(again, Appended)
        assert not again.is_new
        assert integrity.open_header(again.row.raw) == first

    def test_a_key_is_looked_at_before_the_head(self, backend: Backend, uid: str) -> None:
        """A retry whose expected head has moved on is still a retry."""
        first = save(backend, uid, idempotency_key="k")
        save(backend, uid)
        again = item(draft(uid, idempotency_key="k"), expect_head=None)
        assert append_one(backend, again).id == first.id

    @pytest.mark.parametrize(
        "other",
        [{"content": "other"}, {"step": 2}, {"status": Status.PAUSED}, {"contents": {"x": content_of("{}")}}],
    )
    def test_the_same_key_with_other_content_is_a_conflict(
        self, backend: Backend, uid: str, other: dict[str, Any]
    ) -> None:
        """Bodies, step and status decide what is the same; the key and the id alike."""
        fields: dict[str, Any] = {"content": "{}", "step": 1}
        first = save(backend, uid, idempotency_key="k", **fields)
        with pytest.raises(Conflict):
            save(backend, uid, idempotency_key="k", **(fields | other))
        with pytest.raises(Conflict):
            save(backend, uid, id=first.id, **(fields | other))
        assert headers(backend, session=uid) == [first]

    def test_a_key_belongs_to_its_session(self, backend: Backend, uid: str) -> None:
        """The same key in another session is another key."""
        other = backend.create_session(new_session())
        first = save(backend, uid, idempotency_key="k")
        assert save(backend, other.uid, idempotency_key="k").id != first.id

    def test_an_id_is_unique_in_the_store(self, backend: Backend, uid: str) -> None:
        """An id taken in another session is a conflict, whatever the content."""
        other = backend.create_session(new_session())
        taken = save(backend, other.uid)
        with pytest.raises(Conflict):
            save(backend, uid, id=taken.id)
        assert headers(backend, session=uid) == []

    def test_a_key_repeated_in_one_batch_is_stored_once(self, backend: Backend, uid: str) -> None:
        """The second of the batch gets the first as its original."""
        first, second = backend.append(
            [item(draft(uid, idempotency_key="k")) for _ in range(2)], integrity.seal
        )
        assert isinstance(first, Appended)
        assert isinstance(second, Appended)
        assert (first.is_new, second.is_new) == (True, False)
        assert first.row == second.row

    def test_a_removed_checkpoint_frees_its_key(self, backend: Backend, uid: str) -> None:
        """A key is held by a stored checkpoint only."""
        first = save(backend, uid, idempotency_key="k")
        backend.remove(uid, [first.id])
        assert save(backend, uid, idempotency_key="k", content="other").seq == 2

    @pytest.mark.parametrize("name", HOSTILE_NAMES)
    def test_keys_and_external_ids_are_any_text(self, backend: Backend, uid: str, name: str) -> None:
        """Quotes, wildcards and newlines in keys and external ids are data."""
        save(backend, uid, idempotency_key="plain", external_id="plain", tags=("plain",))
        header = save(backend, uid, idempotency_key=name, external_id=name, tags=(name,), message=name)
        assert save(backend, uid, idempotency_key=name).id == header.id
        assert headers(backend, session=uid, external_id=name) == [header]
        assert headers(backend, session=uid, tag=name) == [header]
        assert headers(backend, external_id=name) == [header]
        assert headers(backend, tag=name) == [header]

    # --- batches ---

    def test_an_empty_batch_is_nothing(self, backend: Backend) -> None:
        """No items, no answers."""
        assert backend.append([], integrity.seal) == []

    def test_one_conflict_takes_nothing_from_the_others(self, backend: Backend, uid: str) -> None:
        """Of a large batch over two sessions with one conflict in the middle, all others are stored."""
        other = backend.create_session(new_session())
        items = [item(draft((uid, other.uid)[number % 2])) for number in range(301)]
        items[150] = replace(items[150], expect_head="cp_stale")
        answers = backend.append(items, integrity.seal)
        assert isinstance(answers[150], Conflict)
        refused = items[150].draft.id
        stored = [a for a in answers if isinstance(a, Appended)]
        assert [a.row.id for a in stored] == [i.draft.id for i in items if i.draft.id != refused]
        assert [h.seq for h in headers(backend, session=uid, newest_first=False)] == list(range(1, 151))
        assert [h.seq for h in headers(backend, session=other.uid, newest_first=False)] == list(range(1, 151))
        assert backend.usage().bodies == 300

    def test_an_unknown_session_takes_nothing_from_the_others(self, backend: Backend, uid: str) -> None:
        """NotFound is an answer like any other."""
        gone, stored = append(backend, item(draft("no such uid")), item(draft(uid)))
        assert isinstance(gone, NotFound)
        assert headers(backend) == [stored]

    def test_a_refused_checkpoint_takes_no_number(self, backend: Backend, uid: str) -> None:
        """The next one gets the seq that the refused one would have had."""
        append(backend, item(draft(uid), expect_head="cp_stale"))
        assert save(backend, uid).seq == 1

    def test_a_seal_that_fails_stores_nothing(self, backend: Backend, uid: str) -> None:
        """An exception leaves nothing of the call behind, not even what was decided before it (V2)."""

        def seal(new: Header, seq: int, parents: Sequence[str], chains: Sequence[str | None]) -> bytes:
            if seq == 2:
                raise RuntimeError("seal failed")
            return integrity.seal(new, seq, parents, chains)

        before = backend.session(uid)
        with pytest.raises(RuntimeError, match="seal failed"):
            backend.append([item(draft(uid)), item(draft(uid, branch="b"))], seal)
        assert headers(backend) == []
        assert backend.session(uid) == before
        assert [branch.head for branch in backend.branches(uid)] == [None]
        assert backend.usage().bodies == 0
        assert save(backend, uid).seq == 1

    def test_a_seal_that_refuses_is_a_refusal(self, backend: Backend, uid: str) -> None:
        """An error of ours out of `seal` is the answer for that one alone."""

        def seal(new: Header, seq: int, parents: Sequence[str], chains: Sequence[str | None]) -> bytes:
            if new.message == "bad":
                raise InvalidInput("refused")
            return integrity.seal(new, seq, parents, chains)

        first, second = backend.append([item(draft(uid, message="bad")), item(draft(uid))], seal)
        assert isinstance(first, InvalidInput)
        assert isinstance(second, Appended)
        assert second.row.seq == 1

    def test_any_head_matches_every_head(self, backend: Backend, uid: str) -> None:
        """Without compare-and-set both writers' work is kept, in order (V9)."""
        for _ in range(2):
            append_one(backend, item(draft(uid), expect_head=ANY_HEAD))
        assert [header.seq for header in headers(backend, session=uid)] == [2, 1]

    def test_times_far_away_are_kept(self, backend: Backend, uid: str) -> None:
        """A time before 1970 or far in the future is a number like any other."""
        early = save(backend, uid, id="cp_early", time_us=-START_US)
        late = save(backend, uid, id="cp_late", time_us=2**53)
        assert headers(backend) == [late, early]


class RefusalContract(Fixtures):
    def test_a_save_upon_a_stale_head_is_a_conflict(self, backend: Backend, uid: str) -> None:
        """Of two who saw the same head, the second is refused (V9)."""
        first = save(backend, uid)
        append_one(backend, item(draft(uid), expect_head=first.id))
        for stale in (first.id, None, "cp_nothing"):
            with pytest.raises(Conflict):
                append_one(backend, item(draft(uid), expect_head=stale))
        assert len(headers(backend, session=uid)) == 2

    def test_a_save_upon_no_head_needs_a_branch_without_head(self, backend: Backend, uid: str) -> None:
        """`expect_head=None` matches an empty branch, and one that does not exist yet."""
        append_one(backend, item(draft(uid), expect_head=None))
        append_one(backend, item(draft(uid, branch="b"), expect_head=None))
        with pytest.raises(Conflict):
            append_one(backend, item(draft(uid, branch="c"), expect_head="cp_nothing"))
        assert {branch.name for branch in backend.branches(uid)} == {MAIN_BRANCH, "b"}

    def test_an_external_id_is_unique_on_its_branch(self, backend: Backend, uid: str) -> None:
        """The same external id is refused on the branch, and allowed on another branch or session."""
        other = backend.create_session(new_session())
        first = save(backend, uid, external_id="e")
        with pytest.raises(Conflict):
            save(backend, uid, external_id="e")
        save(backend, uid, branch="b", external_id="e")
        save(backend, other.uid, external_id="e")
        assert len(headers(backend, external_id="e")) == 3
        backend.remove(uid, [first.id])
        assert save(backend, uid, external_id="e").external_id == "e"

    def test_checkpoints_without_external_id_do_not_collide(self, backend: Backend, uid: str) -> None:
        """No external id is not an external id."""
        save(backend, uid)
        save(backend, uid)
        assert len(headers(backend, session=uid)) == 2

    def test_a_required_id_must_be_there(self, backend: Backend, uid: str) -> None:
        """It must be a stored checkpoint of the same session; one earlier in the batch will do."""
        foreign = save(backend, backend.create_session(new_session()).uid)
        gone = save(backend, uid)
        backend.remove(uid, [gone.id])
        for missing in ("cp_nothing", foreign.id, gone.id):
            with pytest.raises(NotFound):
                save(backend, uid, requires=(missing,))
        first = draft(uid)
        answers = append(backend, item(first), item(draft(uid, requires=(first.id,))))
        assert headers(backend, session=uid, newest_first=False) == answers

    def test_a_base_must_be_stored(self, backend: Backend, uid: str) -> None:
        """A delta against nothing is `base_gone`, and stores nothing."""
        new = draft(uid)
        with refused("base_gone"):
            append_one(backend, item(new, base="cp_nothing"))
        assert backend.usage().bodies == 0
        assert append_one(backend, item(new)).seq == 1

    def test_a_base_is_a_body_of_the_same_name_and_session(self, backend: Backend, uid: str) -> None:
        """A body of another name, or in another session, is no base; nor is a body its own."""
        first = save(backend, uid)
        foreign = save(backend, backend.create_session(new_session()).uid)
        new = draft(uid, contents={"details": content_of("{}")})
        for base, name in ((first.id, "details"), (foreign.id, "state"), (new.id, "state")):
            with refused("base_gone"):
                append_one(backend, item(new, bodies=[delta_on(base, new.id, name)]))

    def test_a_base_earlier_in_the_batch_will_do(self, backend: Backend, uid: str) -> None:
        """Each checkpoint of a batch sees those before it, also as bases."""
        one, two = draft(uid), draft(uid)
        append(backend, item(one), item(two, base=one.id))
        assert [body.checkpoint for body in backend.body_chain(uid, two.id, "state")] == [two.id, one.id]

    def test_after_a_lost_base_the_rest_of_the_session_waits(
        self, backend: Backend, uid: str, other: str
    ) -> None:
        """What follows in the batch would come before the one that is sent again; other sessions go on."""
        answers = append(
            backend,
            item(draft(uid)),
            item(draft(uid), base="cp_nothing"),
            item(draft(uid)),
            item(draft(other)),
        )
        codes = [getattr(answer, "code", None) for answer in answers]
        assert codes == [None, "base_gone", "predecessor_refused", None]
        assert len(headers(backend, session=uid)) == 1

    def test_a_save_on_the_current_branch_notices_a_switch(self, backend: Backend, uid: str) -> None:
        """Only with `on_current`; a save that names its branch goes there."""
        append_one(backend, item(draft(uid, branch="b")))
        with refused("branch_switched"):
            append_one(backend, replace(item(draft(uid, branch="b")), on_current=True))
        backend.update_session(uid, {"branch": "b"})
        append_one(backend, replace(item(draft(uid, branch="b")), on_current=True))
        assert len(headers(backend, session=uid)) == 2

    def test_a_hidden_body_still_serves_as_a_base(self, backend: Backend, uid: str) -> None:
        """A removed checkpoint whose body another one needs can be based on until it is swept."""
        first = save(backend, uid)
        second = save(backend, uid, base=first.id)
        backend.remove(uid, [first.id])
        third = save(backend, uid, base=first.id)
        backend.remove(uid, [second.id])
        backend.sweep()
        assert [body.checkpoint for body in backend.body_chain(uid, third.id, "state")] == [
            third.id,
            first.id,
        ]

    def test_a_swept_base_is_gone(self, backend: Backend, uid: str) -> None:
        """A saver that chose its base before a sweep is told, and sends a keyframe (V5)."""
        first = save(backend, uid)
        second = save(backend, uid, base=first.id)
        new = draft(uid)
        backend.remove(uid, [first.id])
        backend.remove(uid, [second.id])
        backend.sweep()
        with refused("base_gone"):
            append_one(backend, item(new, base=first.id))
        assert append_one(backend, item(new)).id == new.id

    def test_the_base_of_a_redundant_delta_need_not_be_there(self, backend: Backend, uid: str) -> None:
        """`base_gone` is about what a checkpoint needs; a redundant delta is only a second chance."""
        new = draft(uid)
        append_one(backend, item(new, bodies=[keyframe(new.id), redundant_on("cp_nothing", new.id)]))
        assert backend.body_chain(uid, new.id, "state") == [keyframe(new.id)]

    def test_a_redundant_delta_is_no_base(self, backend: Backend, uid: str) -> None:
        """A checkpoint that has only a redundant delta under a name has no body to delta against."""
        first = draft(uid)
        append_one(backend, item(first, bodies=[redundant_on("cp_nothing", first.id)]))
        with refused("base_gone"):
            save(backend, uid, base=first.id)

    def test_a_blob_must_be_stored_or_sent(self, backend: Backend, uid: str) -> None:
        """A body that names a blob nobody has is `blob_gone`; sent along, or there already, it is fine."""
        blob = new_blob(b"content")
        first, second = draft(uid), draft(uid)
        with refused("blob_gone"):
            append_one(backend, item(first, bodies=[keyframe(first.id, blobs=(blob.digest,))]))
        append_one(backend, item_naming(first, blob))
        append_one(backend, item(second, bodies=[keyframe(second.id, blobs=(blob.digest,))]))
        assert len(headers(backend, session=uid)) == 2

    def test_the_blobs_of_a_refused_one_are_not_stored(self, backend: Backend, uid: str) -> None:
        """A refusal takes back all that came with it."""
        blob = new_blob(b"content")
        append(backend, item(draft(uid), blobs=[blob], expect_head="cp_stale"))
        assert backend.blob(blob.digest) is None

    def test_an_id_whose_body_others_still_need_cannot_return(self, backend: Backend, uid: str) -> None:
        """A hidden body is never overwritten by a new checkpoint of the same id (V4)."""
        first = save(backend, uid)
        second = save(backend, uid, base=first.id)
        backend.remove(uid, [first.id])
        again = draft(uid, id=first.id)
        with pytest.raises(Conflict):
            append_one(backend, item(again, bodies=[keyframe(first.id, data=b"other")]))
        assert backend.body_chain(uid, second.id, "state")[-1] == keyframe(first.id)

    def test_a_fence_must_be_current(self, backend: Backend, uid: str) -> None:
        """Every method that takes a fence refuses one that was never issued, and changes nothing."""
        header = save(backend, uid)
        lease = backend.acquire_lease(uid, new_owner(), seconds=15)
        stale = lease.token + 1
        body = keyframe(header.id)
        branch = Branch(name="b", created_us=1)
        calls: list[Callable[[int | None], object]] = [
            lambda fence: append_one(backend, item(draft(uid), fence=fence)),
            lambda fence: backend.update_session(uid, {"error": "x"}, fence=fence),
            lambda fence: backend.set_branch(uid, branch, fence=fence),
            lambda fence: backend.replace_body(uid, body, expect_digest=body.digest, fence=fence),
            lambda fence: backend.annotate(uid, header.id, "k", "n", b"", time_us=1, fence=fence),
            lambda fence: backend.remove(uid, [header.id], fence=fence),
            lambda fence: backend.delete_session(uid, fence=fence),
        ]
        before = (backend.session(uid), backend.branches(uid), backend.usage(uid).checkpoints)
        for call in calls:
            with refused("lease_lost"):
                call(stale)
        assert (backend.session(uid), backend.branches(uid), backend.usage(uid).checkpoints) == before
        assert backend.annotations(uid) == []
        for call in calls:
            call(lease.token)

    def test_a_fence_is_looked_at_before_the_key(self, backend: Backend, uid: str) -> None:
        """Who lost the lease is told so, also on a retry."""
        save(backend, uid, idempotency_key="k")
        with refused("lease_lost"):
            append_one(backend, item(draft(uid, idempotency_key="k"), fence=1))

    def test_without_a_fence_nothing_is_checked(self, backend: Backend, uid: str) -> None:
        """A lease held by another does not block a save."""
        backend.acquire_lease(uid, new_owner(), seconds=15)
        assert save(backend, uid).seq == 1
