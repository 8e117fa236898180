"""Sweeping what nothing needs: hidden bodies, blobs, annotations whose checkpoint never came."""

from __future__ import annotations

import pytest

from stepkeep.storage.port import Backend, Swept
from stepkeep.testing.contract.fixtures import Fixtures
from stepkeep.testing.records import (
    START_US,
    append_one,
    draft,
    headers,
    item,
    keyframe,
    new_blob,
    new_session,
    patch_on,
    save,
    spare_on,
)


def hide(backend: Backend, uid: str, count: int) -> list[str]:
    """A line of patches removed one by one, oldest first, so that all but the last are left hidden."""
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
        """One sweep takes a whole line of hidden bodies, from the end that nothing is patched against."""
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

    def test_spares_keep_nothing(self, backend: Backend, uid: str) -> None:
        """A hidden body that only a spare is patched against goes, and the spare with it."""
        first = save(backend, uid)
        second, third = save(backend, uid, base=first.id), draft(uid)
        append_one(backend, item(third, bodies=[keyframe(third.id), spare_on(first.id, third.id)]))
        backend.remove(uid, [first.id])
        backend.remove(uid, [second.id])
        freed = keyframe(first.id).stored_size + spare_on(first.id, third.id).stored_size
        assert backend.sweep() == Swept(bodies=1, stored_bytes=freed)
        assert [body.checkpoint for body in backend.bodies(uid)] == [third.id]

    # --- blobs ---

    def test_a_blob_goes_when_no_body_names_it(self, backend: Backend, uid: str) -> None:
        """As long as any record of any session names it, it stays (V5)."""
        other = backend.create_session(new_session()).uid
        blob = new_blob(b"x" * 50)
        first, second = draft(uid), draft(other)
        for new in (first, second):
            append_one(backend, item(new, bodies=[keyframe(new.id, blobs=(blob.digest,))], blobs=[blob]))
        backend.remove(uid, [first.id])
        assert backend.sweep() == Swept()
        backend.remove(other, [second.id])
        assert backend.blob(blob.digest) == blob
        assert backend.sweep() == Swept(blobs=1, stored_bytes=50)
        assert backend.blob(blob.digest) is None

    def test_a_hidden_body_keeps_its_blobs(self, backend: Backend, uid: str) -> None:
        """A patch leans on the blobs of its base; they go in the sweep that takes the base."""
        blob, first = new_blob(b"content"), draft(uid)
        append_one(backend, item(first, bodies=[keyframe(first.id, blobs=(blob.digest,))], blobs=[blob]))
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
        append_one(backend, item(first, bodies=[keyframe(first.id, blobs=(blob.digest,))], blobs=[blob]))
        assert backend.has_blobs([blob.digest]) == {blob.digest}
        backend.remove(uid, [first.id])
        backend.sweep()
        body = keyframe(second.id, blobs=(blob.digest,))
        (refusal,) = backend.append([item(second, bodies=[body])], _no_seal)
        assert getattr(refusal, "code", None) == "blob_gone"
        append_one(backend, item(second, bodies=[body], blobs=[blob]))
        assert backend.blob(blob.digest) == blob

    def test_sweeping_after_a_patch_became_a_keyframe(self, backend: Backend, uid: str) -> None:
        """A base that is needed no more after a re-encoding goes with the next sweep."""
        first = save(backend, uid)
        second = save(backend, uid, base=first.id)
        backend.remove(uid, [first.id])
        new = keyframe(second.id, data=b"whole")
        backend.replace_body(uid, new, expect_digest=patch_on(first.id, second.id).digest)
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
