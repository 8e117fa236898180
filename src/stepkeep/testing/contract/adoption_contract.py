"""Adopting: records of another store, verbatim."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from stepkeep.codec import integrity
from stepkeep.errors import Conflict, Corrupt, InvalidInput
from stepkeep.model import MAIN_BRANCH, Branch, Status
from stepkeep.storage.port import Annotation, Backend, Event
from stepkeep.testing.builders import (
    START_US,
    delta_on,
    draft,
    headers,
    keyframe,
    new_blob,
    new_session,
    redundant_on,
)
from stepkeep.testing.contract.contract_fixtures import Fixtures, SessionDriver, refused


def sealed(uid: str, seq: int, *, parents: tuple[str, ...] = (), **fields: Any) -> tuple[str, bytes]:
    """The id and the header bytes of a checkpoint that another store sealed."""
    new = draft(uid, **fields)
    return new.id, integrity.seal(new, seq, parents, [None] * len(parents))


def adopt(run: SessionDriver, seq: int, **fields: Any) -> str:
    """Adopt such a checkpoint with a keyframe; its id."""
    id_, raw = sealed(run.uid, seq, **fields)
    assert run.backend.adopt(run.uid, raw, bodies=[keyframe(id_)])
    return id_


class AdoptContract(Fixtures):
    # --- sessions ---

    def test_a_session_is_adopted_verbatim(self, backend: Backend) -> None:
        """uid, counter, gaps, version, branches and events are as they were; repeating it changes nothing."""
        session = new_session(
            "adopted",
            branch="b",
            version=9,
            last_seq=12,
            gaps=((2, 5), (7, 7)),
            status=Status.FAILED,
            error="e",
        )
        branches = [
            Branch(name=MAIN_BRANCH, created_us=START_US, metadata={"a": 1}),
            Branch(name="b", created_us=START_US + 1, fork="cp_f", fork_branch=MAIN_BRANCH, fork_seq=3),
        ]
        events = [Event(number=3, time_us=1, type="x", data={"y": 1}), Event(number=8, time_us=2, type="z")]
        for _ in range(2):
            assert backend.adopt_session(session, branches, events) == session
            assert backend.session(session.uid) == session
            assert backend.session_by_key("adopted") == session
            assert backend.branches(session.uid) == branches
            assert backend.events(session.uid) == events
        assert backend.usage().sessions == 1

    def test_adopting_again_brings_what_is_new(self, backend: Backend) -> None:
        """A session that went on at its source is taken over; events are united by number."""
        session = new_session(last_seq=1)
        backend.adopt_session(session, events=[Event(number=1, time_us=1, type="x")])
        later = replace(session, last_seq=5, status=Status.COMPLETED, version=4)
        branch = Branch(name="b", created_us=START_US + 1)
        assert backend.adopt_session(later, [branch], [Event(number=2, time_us=2, type="y")]) == later
        assert [found.name for found in backend.branches(session.uid)] == [MAIN_BRANCH, "b"]
        assert [event.type for event in backend.events(session.uid)] == ["x", "y"]

    def test_adopting_never_turns_the_counter_back(self, run: SessionDriver) -> None:
        """Neither the counter (V3) nor a recorded gap is lost to an older copy, of the session or a checkpoint."""
        first = run.save()
        run.save()
        run.remove(first.id)
        after = run.backend.adopt_session(replace(run.created, last_seq=1))
        assert (after.last_seq, after.gaps) == (2, ((1, 1),))
        assert run.save().seq == 3
        ahead = SessionDriver(run.backend, run.backend.adopt_session(new_session(last_seq=20)))
        adopt(ahead, 3)
        assert ahead.info.last_seq == 20

    def test_an_adopted_session_goes_on(self, backend: Backend) -> None:
        """The next save takes the next number, the next event too. It has the branch it is on, though none was sent."""
        session = new_session(branch="b", last_seq=7)
        run = SessionDriver(
            backend, backend.adopt_session(session, events=[Event(number=4, time_us=1, type="x")])
        )
        assert backend.branches(run.uid) == [Branch(name="b", created_us=session.created_us)]
        assert run.save().seq == 8
        assert backend.record_event(run.uid, "y", {}, time_us=2).number == 5

    # --- checkpoints ---

    def test_a_checkpoint_is_adopted_verbatim(self, backend: Backend, run: SessionDriver) -> None:
        """Header bytes, seq, bodies, redundant delta, blobs and annotations are as they were."""
        blob = new_blob(b"content")
        base, base_raw = sealed(run.uid, 3)
        id_, raw = sealed(run.uid, 7, parents=(base,), external_id="e", tags=("t",), status=Status.FAILED)
        body = keyframe(id_, blobs=(blob.digest,))
        redundant = redundant_on(base, id_)
        note = Annotation(target=("main", "e"), kind="k", name="n", data=b"x", time_us=5, digest="verbatim")
        assert backend.adopt(run.uid, base_raw, bodies=[keyframe(base)])
        assert backend.adopt(run.uid, raw, bodies=[body, redundant], blobs=[blob], annotations=[note])
        assert run.headers() == [integrity.open_header(each) for each in (raw, base_raw)]
        assert run.ids(tag="t", external_id="e", min_seq=7) == [id_]
        assert run.chain(id_) == [body]
        assert run.redundant(id_) == redundant
        assert backend.blob(blob.digest) == blob
        assert backend.annotations(run.uid, [id_]) == [note]

    def test_adopting_raises_counter_and_head(self, run: SessionDriver) -> None:
        """Both by seq only: in whatever order checkpoints come, the highest wins. All else stays."""
        high = adopt(run, 9)
        adopt(run, 3, status=Status.FAILED)
        assert run.head() == (high, 9)
        assert run.info == replace(run.created, last_seq=9)
        assert run.save().seq == 10

    def test_adopting_creates_a_missing_branch(self, run: SessionDriver) -> None:
        """With its fork from the first parent, as saving would."""
        first = run.save()
        id_ = adopt(run, 5, branch="b", parents=(first.id,))
        branch = run.branch("b")
        assert (branch.head, branch.head_seq) == (id_, 5)
        assert (branch.fork, branch.fork_branch, branch.fork_seq) == (first.id, MAIN_BRANCH, 1)

    def test_adopting_the_same_header_again_does_nothing(self, backend: Backend, run: SessionDriver) -> None:
        """A copy can be repeated: False, and what is there stays."""
        id_, raw = sealed(run.uid, 1)
        assert backend.adopt(run.uid, raw, bodies=[keyframe(id_)])
        run.save()
        before = (run.info, backend.branches(run.uid), backend.bodies(run.uid))
        assert not backend.adopt(run.uid, raw, bodies=[keyframe(id_, data=b"other")])
        assert (run.info, backend.branches(run.uid), backend.bodies(run.uid)) == before

    def test_what_is_taken_is_a_conflict(self, run: SessionDriver, other: SessionDriver) -> None:
        """An id by other bytes, in this session or another; a seq, an external id or a key in this one (V3)."""
        mine = run.save(external_id="e", idempotency_key="k")
        foreign, _ = other.save(), other.save()
        taken: list[tuple[int, dict[str, Any]]] = [
            (9, {"id": mine.id}),
            (9, {"id": foreign.id}),
            (1, {}),
            (5, {"external_id": "e"}),
            (5, {"idempotency_key": "k"}),
        ]
        for seq, fields in taken:
            with pytest.raises(Conflict):
                adopt(run, seq, **fields)
        assert run.headers() == [mine]
        assert run.stored() == [mine.id]
        assert run.info.last_seq == 1
        adopt(run, 2)  # a seq of another session is free

    def test_bases_and_blobs_must_be_there(self, backend: Backend, run: SessionDriver) -> None:
        """`base_gone` and `blob_gone` as for a save, and nothing is stored."""
        id_, raw = sealed(run.uid, 1)
        with refused("base_gone"):
            backend.adopt(run.uid, raw, bodies=[delta_on("cp_nothing", id_)])
        with refused("blob_gone"):
            backend.adopt(run.uid, raw, bodies=[keyframe(id_, blobs=(new_blob(b"content").digest,))])
        assert (run.usage.checkpoints, run.info.last_seq) == (0, 0)

    def test_what_a_copy_names_need_not_be_there(self, run: SessionDriver) -> None:
        """Parents and required checkpoints may come later, or not at all."""
        assert run.ids() == []
        id_ = adopt(run, 2, parents=("cp_nothing",), requires=("cp_nothing",))
        assert run.ids() == [id_]

    def test_a_damaged_or_foreign_header_is_refused(self, backend: Backend, run: SessionDriver) -> None:
        """Bytes that do not match their chain are Corrupt; a header of another session is InvalidInput."""
        id_, raw = sealed(run.uid, 1)
        with pytest.raises(Corrupt):
            backend.adopt(run.uid, raw.replace(b'"seq":1', b'"seq":2'), bodies=[keyframe(id_)])
        id_, raw = sealed(new_session().uid, 1)
        with pytest.raises(InvalidInput):
            backend.adopt(run.uid, raw, bodies=[keyframe(id_)])
        assert headers(backend) == []

    def test_a_removed_checkpoint_can_be_adopted_again(self, run: SessionDriver) -> None:
        """Also while its body is hidden: that body shows again, in the encoding that others need."""
        first = run.save()
        second = run.save(base=first.id)
        raw = integrity.seal(run.draft(id=first.id, time_us=first.time_us), 1, (), ())
        run.remove(first.id)
        assert run.backend.adopt(run.uid, raw, bodies=[keyframe(first.id, data=b"another encoding")])
        assert run.headers(newest_first=False) == [first, second]
        assert run.chain(second.id) == [delta_on(first.id, second.id), keyframe(first.id)]
        assert run.usage.hidden_bodies == 0
        assert run.branch().head == second.id

    def test_annotations_that_are_there_stay(self, run: SessionDriver) -> None:
        """A copy does not overwrite what was attached here."""
        id_, raw = sealed(run.uid, 1)
        run.annotate(id_, "n", b"mine")
        theirs = Annotation(target=id_, kind="k", name="n", data=b"theirs", time_us=2, digest="d")
        run.backend.adopt(run.uid, raw, bodies=[keyframe(id_)], annotations=[theirs])
        assert [note.data for note in run.backend.annotations(run.uid)] == [b"mine"]

    def test_a_whole_session_moves(self, backend: Backend) -> None:
        """Session first, then checkpoints in any order of branches, then the branches: nothing is lost."""
        session = new_session("moved", last_seq=5, gaps=((2, 2),))
        run = SessionDriver(backend, backend.adopt_session(session))
        _, one, three = adopt(run, 5), adopt(run, 1), adopt(run, 3, branch="b")
        final = [
            Branch(name=MAIN_BRANCH, created_us=START_US, head=one, head_seq=1),
            Branch(name="b", created_us=START_US + 1, head=three, head_seq=3, is_pinned=False),
        ]
        assert backend.adopt_session(session, final) == session
        assert backend.branches(run.uid) == final
        assert [header.seq for header in run.headers()] == [5, 3, 1]
