"""Adopting: records of another store, verbatim."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from stepkeep.codec import integrity
from stepkeep.errors import Conflict, Corrupt, InvalidInput, NotFound
from stepkeep.model import MAIN_BRANCH, Branch, SessionInfo, Status
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
    save,
)
from stepkeep.testing.contract.contract_fixtures import Fixtures, refused
from stepkeep.testing.contract.session_contract import branch_of


def sealed(uid: str, seq: int, *, parents: tuple[str, ...] = (), **fields: Any) -> tuple[str, bytes]:
    """The id and the header bytes of a checkpoint that another store sealed."""
    new = draft(uid, **fields)
    return new.id, integrity.seal(new, seq, parents, [None] * len(parents))


class AdoptContract(Fixtures):
    # --- sessions ---

    def test_a_session_is_adopted_verbatim(self, backend: Backend) -> None:
        """uid, counter, gaps, version, branches and events are as they were."""
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
        assert backend.adopt_session(session, branches, events) == session
        assert backend.session(session.uid) == session
        assert backend.session_by_key("adopted") == session
        assert backend.branches(session.uid) == branches
        assert backend.events(session.uid) == events

    def test_adopting_an_equal_session_again_changes_nothing(self, backend: Backend) -> None:
        """A copy can be repeated."""
        session = new_session(last_seq=3, gaps=((1, 1),))
        branches = [Branch(name=MAIN_BRANCH, created_us=START_US)]
        events = [Event(number=1, time_us=1, type="x")]
        for _ in range(2):
            assert backend.adopt_session(session, branches, events) == session
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

    def test_adopting_never_turns_the_counter_back(self, backend: Backend, session: SessionInfo) -> None:
        """Neither the counter (V3) nor a recorded gap is lost to an older copy of the session."""
        first = save(backend, session.uid)
        save(backend, session.uid)
        backend.remove(session.uid, [first.id])
        after = backend.adopt_session(replace(session, last_seq=1))
        assert (after.last_seq, after.gaps) == (2, ((1, 1),))
        assert save(backend, session.uid).seq == 3

    def test_a_key_held_by_another_uid_is_a_conflict(self, backend: Backend, session: SessionInfo) -> None:
        """Two sessions never share a key, and the one that is there stays."""
        other = new_session(session.key)
        with pytest.raises(Conflict):
            backend.adopt_session(other)
        with pytest.raises(NotFound):
            backend.session(other.uid)
        assert backend.session_by_key(session.key) == session

    def test_an_adopted_session_has_the_branch_it_is_on(self, backend: Backend) -> None:
        """Also when no branch was sent along."""
        session = backend.adopt_session(new_session(branch="b"))
        assert backend.branches(session.uid) == [Branch(name="b", created_us=session.created_us)]

    def test_an_adopted_session_goes_on(self, backend: Backend) -> None:
        """The next save takes the next number, the next event too."""
        session = backend.adopt_session(
            new_session(last_seq=7), events=[Event(number=4, time_us=1, type="x")]
        )
        assert save(backend, session.uid).seq == 8
        assert backend.record_event(session.uid, "y", {}, time_us=2).number == 5

    # --- checkpoints ---

    def test_a_checkpoint_is_adopted_verbatim(self, backend: Backend, uid: str) -> None:
        """Header bytes, seq, bodies, redundant delta, blobs and annotations are as they were."""
        blob = new_blob(b"content")
        base, base_raw = sealed(uid, 3)
        id_, raw = sealed(uid, 7, parents=(base,), external_id="e", tags=("t",), status=Status.FAILED)
        body = keyframe(id_, blobs=(blob.digest,))
        redundant = redundant_on(base, id_)
        note = Annotation(target=("main", "e"), kind="k", name="n", data=b"x", time_us=5, digest="verbatim")
        assert backend.adopt(uid, base_raw, bodies=[keyframe(base)])
        assert backend.adopt(uid, raw, bodies=[body, redundant], blobs=[blob], annotations=[note])
        assert headers(backend, session=uid) == [integrity.open_header(r) for r in (raw, base_raw)]
        assert headers(backend, session=uid, tag="t", external_id="e", min_seq=7)[0].id == id_
        assert backend.body_chain(uid, id_, "state") == [body]
        assert backend.redundant_delta(uid, id_, "state") == redundant
        assert backend.blob(blob.digest) == blob
        assert backend.annotations(uid, [id_]) == [note]

    def test_adopting_raises_counter_and_head(self, backend: Backend, session: SessionInfo) -> None:
        """Both by seq only: in whatever order checkpoints come, the highest wins. All else stays."""
        uid = session.uid
        low, high = sealed(uid, 3, status=Status.FAILED), sealed(uid, 9)
        backend.adopt(uid, high[1], bodies=[keyframe(high[0])])
        backend.adopt(uid, low[1], bodies=[keyframe(low[0])])
        branch = branch_of(backend, uid)
        assert (branch.head, branch.head_seq) == (high[0], 9)
        assert backend.session(uid) == replace(session, last_seq=9)
        assert save(backend, uid).seq == 10

    def test_adopting_does_not_lower_the_counter(self, backend: Backend) -> None:
        """A counter beyond the highest checkpoint stays."""
        session = backend.adopt_session(new_session(last_seq=20))
        id_, raw = sealed(session.uid, 3)
        backend.adopt(session.uid, raw, bodies=[keyframe(id_)])
        assert backend.session(session.uid).last_seq == 20

    def test_adopting_creates_a_missing_branch(self, backend: Backend, uid: str) -> None:
        """With its fork from the first parent, as saving would."""
        first = save(backend, uid)
        id_, raw = sealed(uid, 5, branch="b", parents=(first.id,))
        backend.adopt(uid, raw, bodies=[keyframe(id_)])
        branch = branch_of(backend, uid, "b")
        assert (branch.head, branch.head_seq) == (id_, 5)
        assert (branch.fork, branch.fork_branch, branch.fork_seq) == (first.id, MAIN_BRANCH, 1)

    def test_adopting_the_same_header_again_does_nothing(self, backend: Backend, uid: str) -> None:
        """A copy can be repeated: False, and what is there stays."""
        id_, raw = sealed(uid, 1)
        assert backend.adopt(uid, raw, bodies=[keyframe(id_)])
        save(backend, uid)
        before = (backend.session(uid), backend.branches(uid), backend.bodies(uid))
        assert not backend.adopt(uid, raw, bodies=[keyframe(id_, data=b"other")])
        assert (backend.session(uid), backend.branches(uid), backend.bodies(uid)) == before

    def test_an_id_taken_by_other_bytes_is_a_conflict(self, backend: Backend, uid: str) -> None:
        """In this session or another."""
        other = backend.create_session(new_session()).uid
        mine, foreign = save(backend, uid), save(backend, other)
        for taken in (mine.id, foreign.id):
            _, raw = sealed(uid, 9, id=taken)
            with pytest.raises(Conflict):
                backend.adopt(uid, raw, bodies=[keyframe(taken)])
        assert headers(backend, session=uid) == [mine]
        assert backend.session(uid).last_seq == 1

    def test_a_seq_taken_is_a_conflict(self, backend: Backend, uid: str, other: str) -> None:
        """`seq` is unique in a session, and only there (V3)."""
        mine = save(backend, uid)
        save(backend, other)
        id_, raw = sealed(uid, 1)
        with pytest.raises(Conflict):
            backend.adopt(uid, raw, bodies=[keyframe(id_)])
        assert headers(backend, session=uid) == [mine]
        assert backend.body_chain(uid, id_, "state") == []

    def test_a_key_or_external_id_taken_is_a_conflict(self, backend: Backend, uid: str) -> None:
        """What is unique for savers is unique for copies."""
        save(backend, uid, external_id="e", idempotency_key="k")
        taken: list[dict[str, Any]] = [{"external_id": "e"}, {"idempotency_key": "k"}]
        for fields in taken:
            id_, raw = sealed(uid, 5, **fields)
            with pytest.raises(Conflict):
                backend.adopt(uid, raw, bodies=[keyframe(id_)])
        assert backend.usage(uid).checkpoints == 1

    def test_bases_and_blobs_must_be_there(self, backend: Backend, uid: str) -> None:
        """`base_gone` and `blob_gone` as for a save, and nothing is stored."""
        id_, raw = sealed(uid, 1)
        with refused("base_gone"):
            backend.adopt(uid, raw, bodies=[delta_on("cp_nothing", id_)])
        blob = new_blob(b"content")
        with refused("blob_gone"):
            backend.adopt(uid, raw, bodies=[keyframe(id_, blobs=(blob.digest,))])
        assert backend.usage(uid).checkpoints == 0
        assert backend.session(uid).last_seq == 0

    def test_what_a_copy_names_need_not_be_there(self, backend: Backend, uid: str) -> None:
        """Parents and required checkpoints may come later, or not at all."""
        id_, raw = sealed(uid, 2, parents=("cp_nothing",), requires=("cp_nothing",))
        assert backend.adopt(uid, raw, bodies=[keyframe(id_)])

    def test_a_damaged_or_foreign_header_is_refused(self, backend: Backend, uid: str) -> None:
        """Bytes that do not match their chain are Corrupt; a header of another session is InvalidInput."""
        id_, raw = sealed(uid, 1)
        with pytest.raises(Corrupt):
            backend.adopt(uid, raw.replace(b'"seq":1', b'"seq":2'), bodies=[keyframe(id_)])
        id_, raw = sealed(new_session().uid, 1)
        with pytest.raises(InvalidInput):
            backend.adopt(uid, raw, bodies=[keyframe(id_)])
        assert headers(backend) == []

    def test_a_removed_checkpoint_can_be_adopted_again(self, backend: Backend, uid: str) -> None:
        """Also while its body is hidden: that body shows again, in the encoding that others need."""
        first = save(backend, uid)
        second = save(backend, uid, base=first.id)
        (raw,) = [integrity.seal(draft(uid, id=first.id, time_us=first.time_us), 1, (), ())]
        backend.remove(uid, [first.id])
        assert backend.adopt(uid, raw, bodies=[keyframe(first.id, data=b"another encoding")])
        assert headers(backend, session=uid, newest_first=False) == [first, second]
        assert backend.body_chain(uid, second.id, "state") == [
            delta_on(first.id, second.id),
            keyframe(first.id),
        ]
        assert backend.usage(uid).hidden_bodies == 0
        assert branch_of(backend, uid).head == second.id

    def test_annotations_that_are_there_stay(self, backend: Backend, uid: str) -> None:
        """A copy does not overwrite what was attached here."""
        id_, raw = sealed(uid, 1)
        backend.annotate(uid, id_, "k", "n", b"mine", time_us=1)
        theirs = Annotation(target=id_, kind="k", name="n", data=b"theirs", time_us=2, digest="d")
        backend.adopt(uid, raw, bodies=[keyframe(id_)], annotations=[theirs])
        assert [note.data for note in backend.annotations(uid)] == [b"mine"]

    def test_a_whole_session_moves(self, backend: Backend) -> None:
        """Session first, then checkpoints in any order of branches, then the branches: nothing is lost."""
        session = new_session("moved", last_seq=5, gaps=((2, 2),))
        uid = session.uid
        one, three, five = sealed(uid, 1), sealed(uid, 3, branch="b"), sealed(uid, 5)
        backend.adopt_session(session)
        for id_, raw in (five, one, three):
            backend.adopt(uid, raw, bodies=[keyframe(id_)])
        final = [
            Branch(name=MAIN_BRANCH, created_us=START_US, head=one[0], head_seq=1),
            Branch(name="b", created_us=START_US + 1, head=three[0], head_seq=3, is_pinned=False),
        ]
        assert backend.adopt_session(session, final) == session
        assert backend.branches(uid) == final
        assert [header.seq for header in headers(backend, session=uid)] == [5, 3, 1]
