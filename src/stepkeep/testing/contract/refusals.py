"""What `append` refuses, with which code, and that a refusal stores nothing."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from msgspec.structs import replace

from stepkeep.errors import Conflict, NotFound
from stepkeep.model import MAIN_BRANCH, Branch
from stepkeep.storage.port import Backend
from stepkeep.testing.contract.fixtures import Fixtures
from stepkeep.testing.records import (
    append,
    append_one,
    content_of,
    draft,
    headers,
    item,
    keyframe,
    new_blob,
    new_owner,
    new_session,
    patch_on,
    save,
    spare_on,
)


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
        """A patch against nothing is `base_gone`, and stores nothing."""
        new = draft(uid)
        with pytest.raises(Conflict) as refusal:
            append_one(backend, item(new, base="cp_nothing"))
        assert refusal.value.code == "base_gone"
        assert backend.usage().bodies == 0
        assert append_one(backend, item(new)).seq == 1

    def test_a_base_is_a_body_of_the_same_name_and_session(self, backend: Backend, uid: str) -> None:
        """A body of another name, or in another session, is no base; nor is a body its own."""
        first = save(backend, uid)
        foreign = save(backend, backend.create_session(new_session()).uid)
        new = draft(uid, contents={"details": content_of("{}")})
        for base, name in ((first.id, "details"), (foreign.id, "state"), (new.id, "state")):
            with pytest.raises(Conflict) as refusal:
                append_one(backend, item(new, bodies=[patch_on(base, new.id, name)]))
            assert refusal.value.code == "base_gone"

    def test_a_base_earlier_in_the_batch_will_do(self, backend: Backend, uid: str) -> None:
        """Each checkpoint of a batch sees those before it, also as bases."""
        one, two = draft(uid), draft(uid)
        append(backend, item(one), item(two, base=one.id))
        assert [body.checkpoint for body in backend.body_chain(uid, two.id, "state")] == [two.id, one.id]

    def test_after_a_lost_base_the_rest_of_the_session_waits(self, backend: Backend, uid: str) -> None:
        """What follows in the batch would come before the one that is sent again; other sessions go on."""
        other = backend.create_session(new_session()).uid
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
        with pytest.raises(Conflict) as refusal:
            append_one(backend, replace(item(draft(uid, branch="b")), on_current=True))
        assert refusal.value.code == "branch_switched"
        backend.update_session(uid, {"branch": "b"})
        append_one(backend, replace(item(draft(uid, branch="b")), on_current=True))
        assert len(headers(backend, session=uid)) == 2

    def test_a_hidden_body_still_serves_as_a_base(self, backend: Backend, uid: str) -> None:
        """A removed checkpoint whose body another one needs can be patched against until it is swept."""
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
        with pytest.raises(Conflict) as refusal:
            append_one(backend, item(new, base=first.id))
        assert refusal.value.code == "base_gone"
        assert append_one(backend, item(new)).id == new.id

    def test_the_base_of_a_spare_need_not_be_there(self, backend: Backend, uid: str) -> None:
        """`base_gone` is about what a checkpoint needs; a spare is only a second chance."""
        new = draft(uid)
        append_one(backend, item(new, bodies=[keyframe(new.id), spare_on("cp_nothing", new.id)]))
        assert backend.body_chain(uid, new.id, "state") == [keyframe(new.id)]

    def test_a_spare_is_no_base(self, backend: Backend, uid: str) -> None:
        """A checkpoint that has only a spare under a name has no body to patch against."""
        first = draft(uid)
        append_one(backend, item(first, bodies=[spare_on("cp_nothing", first.id)]))
        with pytest.raises(Conflict) as refusal:
            save(backend, uid, base=first.id)
        assert refusal.value.code == "base_gone"

    def test_a_blob_must_be_stored_or_sent(self, backend: Backend, uid: str) -> None:
        """A body that names a blob nobody has is `blob_gone`; sent along, or there already, it is fine."""
        blob = new_blob(b"content")
        first, second = draft(uid), draft(uid)
        with pytest.raises(Conflict) as refusal:
            append_one(backend, item(first, bodies=[keyframe(first.id, blobs=(blob.digest,))]))
        assert refusal.value.code == "blob_gone"
        append_one(backend, item(first, bodies=[keyframe(first.id, blobs=(blob.digest,))], blobs=[blob]))
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
            with pytest.raises(Conflict) as refusal:
                call(stale)
            assert refusal.value.code == "lease_lost"
        assert (backend.session(uid), backend.branches(uid), backend.usage(uid).checkpoints) == before
        assert backend.annotations(uid) == []
        for call in calls:
            call(lease.token)

    def test_a_fence_is_looked_at_before_the_key(self, backend: Backend, uid: str) -> None:
        """Who lost the lease is told so, also on a retry."""
        save(backend, uid, idempotency_key="k")
        with pytest.raises(Conflict) as refusal:
            append_one(backend, item(draft(uid, idempotency_key="k"), fence=1))
        assert refusal.value.code == "lease_lost"

    def test_without_a_fence_nothing_is_checked(self, backend: Backend, uid: str) -> None:
        """A lease held by another does not block a save."""
        backend.acquire_lease(uid, new_owner(), seconds=15)
        assert save(backend, uid).seq == 1
