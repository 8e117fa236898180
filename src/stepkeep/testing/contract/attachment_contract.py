"""What a session has beside its checkpoints: annotations, events, a lease."""

from __future__ import annotations

import pytest

from stepkeep.codec import integrity
from stepkeep.errors import Conflict
from stepkeep.model import SessionInfo
from stepkeep.storage.port import MAX_EVENTS, Annotation, Backend, Event, Lease, Target
from stepkeep.testing.builders import START_US, FakeClock, append_one, draft, item, new_owner, save
from stepkeep.testing.contract.contract_fixtures import HOSTILE_NAMES, Fixtures, refused


def names(annotations: list[Annotation]) -> list[str]:
    return [annotation.name for annotation in annotations]


class AnnotationContract(Fixtures):
    def test_an_annotation_comes_back_equal(self, backend: Backend, uid: str) -> None:
        """Every field is kept, with a digest over the bytes."""
        header = save(backend, uid)
        data = bytes(range(256))
        assert backend.annotate(uid, header.id, "writes", "task 1", data, time_us=START_US)
        assert backend.annotations(uid) == [
            Annotation(
                target=header.id,
                kind="writes",
                name="task 1",
                data=data,
                time_us=START_US,
                digest=integrity.digest(data),
            )
        ]

    def test_the_first_one_stays(self, backend: Backend, uid: str) -> None:
        """Without `replace` a second of the same target, kind and name is not stored, and says so."""
        assert backend.annotate(uid, "cp", "k", "n", b"first", time_us=1)
        assert not backend.annotate(uid, "cp", "k", "n", b"second", time_us=2)
        (annotation,) = backend.annotations(uid)
        assert (annotation.data, annotation.time_us) == (b"first", 1)

    def test_replacing_is_asked_for(self, backend: Backend, uid: str) -> None:
        """With `replace` the last one stays, with its time and digest."""
        backend.annotate(uid, "cp", "k", "n", b"first", time_us=1)
        assert backend.annotate(uid, "cp", "k", "n", b"second", time_us=2, replace=True)
        assert backend.annotate(uid, "cp", "k", "fresh", b"", time_us=3, replace=True)
        second, _ = backend.annotations(uid)
        assert (second.data, second.time_us, second.digest) == (b"second", 2, integrity.digest(b"second"))

    def test_target_kind_and_name_tell_them_apart(self, backend: Backend, uid: str, other: str) -> None:
        """Changing any of the three makes another annotation; so does another session."""
        keys: list[tuple[Target, str, str]] = [
            ("cp", "k", "n"),
            ("cq", "k", "n"),
            ("cp", "l", "n"),
            ("cp", "k", "o"),
            (("cp", "k"), "k", "n"),
            (("cp", "l"), "k", "n"),
        ]
        for target, kind, name in keys:
            assert backend.annotate(uid, target, kind, name, b"", time_us=1)
        assert backend.annotate(other, "cp", "k", "n", b"", time_us=1)
        assert {(a.target, a.kind, a.name) for a in backend.annotations(uid)} == set(keys)
        assert len(backend.annotations(other)) == 1

    def test_annotations_come_oldest_first(self, backend: Backend, uid: str) -> None:
        """By time; at equal times in the order they came."""
        for name, time_us in (("c", 3), ("z", 2), ("a", 2), ("b", 1)):
            backend.annotate(uid, "cp", "k", name, b"", time_us=time_us)
        assert names(backend.annotations(uid)) == ["b", "z", "a", "c"]
        assert names(backend.annotations(uid, ["cp"])) == ["b", "z", "a", "c"]

    def test_targets_and_kind_select(self, backend: Backend, uid: str) -> None:
        """Many targets are read in one call; None means all of the session, an empty list none."""
        for number in range(40):
            backend.annotate(uid, f"cp_{number}", "ab"[number % 2], f"{number}", b"", time_us=number)
        targets = [f"cp_{number}" for number in range(10, 1500)]
        assert len(backend.annotations(uid)) == 40
        assert len(backend.annotations(uid, targets)) == 30
        assert len(backend.annotations(uid, targets, "a")) == 15
        assert len(backend.annotations(uid, kind="b")) == 20
        assert backend.annotations(uid, []) == []
        assert names(backend.annotations(uid, ["cp_3", "cp_1", "cp_3", "cp_none"])) == ["1", "3"]

    def test_they_may_come_before_the_checkpoint(self, backend: Backend, uid: str) -> None:
        """Attached to a (branch, external id) that is not there yet, they are found by id once it came."""
        backend.annotate(uid, ("b", "e"), "k", "early", b"", time_us=1)
        header = save(backend, uid, branch="b", external_id="e")
        backend.annotate(uid, header.id, "k", "late", b"", time_us=2)
        assert names(backend.annotations(uid, [header.id])) == ["early", "late"]
        assert names(backend.annotations(uid, [("b", "e")])) == ["early", "late"]
        assert names(backend.annotations(uid, [header.id, ("b", "e")])) == ["early", "late"]

    def test_an_external_id_belongs_to_its_branch(self, backend: Backend, uid: str, other: str) -> None:
        """The same external id on another branch, or in another session, is another checkpoint."""
        one = save(backend, uid, branch="a", external_id="e")
        two = save(backend, uid, branch="b", external_id="e")
        save(backend, other, branch="a", external_id="e")
        backend.annotate(uid, one.id, "k", "one", b"", time_us=1)
        backend.annotate(uid, ("b", "e"), "k", "two", b"", time_us=2)
        backend.annotate(other, ("a", "e"), "k", "other", b"", time_us=3)
        assert names(backend.annotations(uid, [("a", "e")])) == ["one"]
        assert names(backend.annotations(uid, [two.id])) == ["two"]

    def test_they_go_with_their_checkpoint(self, backend: Backend, uid: str) -> None:
        """Those by id and those by (branch, external id); the others stay."""
        first, second = save(backend, uid, external_id="e"), save(backend, uid, external_id="f")
        backend.annotate(uid, first.id, "k", "by id", b"", time_us=1)
        backend.annotate(uid, ("main", "e"), "k", "by external id", b"", time_us=2)
        backend.annotate(uid, second.id, "k", "kept", b"", time_us=3)
        backend.annotate(uid, ("main", "f"), "k", "kept too", b"", time_us=4)
        backend.annotate(uid, ("other", "e"), "k", "of another branch", b"", time_us=5)
        backend.remove(uid, [first.id])
        assert names(backend.annotations(uid)) == ["kept", "kept too", "of another branch"]

    @pytest.mark.parametrize("name", HOSTILE_NAMES)
    def test_targets_kinds_and_names_are_any_text(self, backend: Backend, uid: str, name: str) -> None:
        """Quotes, wildcards and newlines are data."""
        backend.annotate(uid, "plain", "plain", "plain", b"", time_us=1)
        backend.annotate(uid, name, name, name, b"by id", time_us=2)
        backend.annotate(uid, (name, name), name, name, b"by external id", time_us=3)
        assert [a.data for a in backend.annotations(uid, [name])] == [b"by id"]
        assert [a.data for a in backend.annotations(uid, [(name, name)])] == [b"by external id"]
        assert [a.data for a in backend.annotations(uid, kind=name)] == [b"by id", b"by external id"]

    def test_an_empty_annotation_is_one(self, backend: Backend, uid: str) -> None:
        """No bytes are bytes too."""
        backend.annotate(uid, "cp", "k", "n", b"", time_us=1)
        assert [a.data for a in backend.annotations(uid)] == [b""]


class EventContract(Fixtures):
    def test_an_event_comes_back_equal(self, backend: Backend, uid: str) -> None:
        """Every field is kept, and the answer is what is stored."""
        data = {"who": "me", "nested": [1, None, {"x": 2.5}]}
        event = backend.record_event(uid, 'it\'s "happening"', data, time_us=START_US)
        assert event == Event(number=1, time_us=START_US, type='it\'s "happening"', data=data)
        assert backend.events(uid) == [event]

    def test_events_are_numbered_in_each_session(self, backend: Backend, uid: str, other: str) -> None:
        """Numbers grow in the order of recording, whatever the times."""
        numbers = [backend.record_event(uid, "t", {}, time_us=-number).number for number in range(3)]
        assert numbers == [1, 2, 3]
        assert backend.record_event(other, "t", {}, time_us=1).number == 1
        assert [event.number for event in backend.events(uid)] == numbers

    def test_events_are_read_on(self, backend: Backend, uid: str) -> None:
        """`after` and `limit` page through the log, oldest first."""
        for number in range(5):
            backend.record_event(uid, f"{number}", {}, time_us=number)
        assert [event.type for event in backend.events(uid, after=2)] == ["2", "3", "4"]
        assert [event.type for event in backend.events(uid, after=1, limit=2)] == ["1", "2"]
        assert backend.events(uid, after=5) == []
        assert backend.events(uid, limit=0) == []

    def test_the_log_keeps_the_newest(self, backend: Backend, session: SessionInfo) -> None:
        """Older ones go first, and numbers go on."""
        backend.adopt_session(
            session, events=[Event(number=n, time_us=n, type="t") for n in range(1, MAX_EVENTS + 1)]
        )
        for number in range(7):
            backend.record_event(session.uid, "t", {}, time_us=number)
        events = backend.events(session.uid)
        assert [event.number for event in events] == list(range(8, MAX_EVENTS + 8))

    def test_what_a_caller_holds_is_not_the_log(self, backend: Backend, uid: str) -> None:
        """Changing data that was given or received changes nothing that is stored."""
        data: dict[str, list[int]] = {"a": []}
        backend.record_event(uid, "t", data, time_us=1).data["a"].append(1)
        data["a"].append(2)
        backend.events(uid)[0].data["a"].append(3)
        assert backend.events(uid)[0].data == {"a": []}

    def test_events_do_not_touch_the_session(self, backend: Backend, uid: str) -> None:
        """Recording is not an update."""
        before = backend.session(uid)
        backend.record_event(uid, "t", {}, time_us=START_US * 2)
        assert backend.session(uid) == before


class LeaseContract(Fixtures):
    def test_a_lease_is_taken(self, backend: Backend, uid: str, clock: FakeClock) -> None:
        """It names the owner and ends after that time."""
        assert backend.lease(uid) is None
        owner = new_owner("it's me")
        lease = backend.acquire_lease(uid, owner, seconds=1.5)
        assert lease == Lease(token=lease.token, owner=owner, expires_us=clock.now_us + 1_500_000)
        assert backend.lease(uid) == lease

    def test_a_held_lease_is_refused_to_others(self, backend: Backend, uid: str, clock: FakeClock) -> None:
        """Until it expires there is one holder; the code is `lease_held`."""
        held = backend.acquire_lease(uid, new_owner(), seconds=15)
        clock.advance(14.9)
        with refused("lease_held"):
            backend.acquire_lease(uid, new_owner("other", pid=2), seconds=15)
        assert backend.lease(uid) == held

    def test_a_held_lease_is_refused_to_its_owner_too(self, backend: Backend, uid: str) -> None:
        """Two runners in one process are two; the holder renews instead."""
        backend.acquire_lease(uid, new_owner(), seconds=15)
        with refused("lease_held"):
            backend.acquire_lease(uid, new_owner(), seconds=15)

    def test_an_expired_lease_can_be_taken(self, backend: Backend, uid: str, clock: FakeClock) -> None:
        """At its end another may take over, with a higher token."""
        held = backend.acquire_lease(uid, new_owner(), seconds=15)
        clock.advance(15)
        taken = backend.acquire_lease(uid, new_owner("other", pid=2), seconds=15)
        assert taken.token > held.token
        assert backend.lease(uid) == taken

    def test_a_dead_owner_is_replaced_at_once(self, backend: Backend, uid: str) -> None:
        """Who names the held token replaces it; another token does not."""
        held = backend.acquire_lease(uid, new_owner(), seconds=15)
        other = new_owner("other", pid=2)
        with refused("lease_held"):
            backend.acquire_lease(uid, other, seconds=15, replacing=held.token + 1)
        taken = backend.acquire_lease(uid, other, seconds=15, replacing=held.token)
        assert taken.token > held.token
        with pytest.raises(Conflict):
            backend.acquire_lease(uid, new_owner(), seconds=15, replacing=held.token)

    def test_a_lease_is_renewed(self, backend: Backend, uid: str, clock: FakeClock) -> None:
        """Same token and owner, a later end, counted from now."""
        held = backend.acquire_lease(uid, new_owner(), seconds=15)
        clock.advance(5)
        renewed = backend.renew_lease(uid, held.token, seconds=15)
        assert renewed == Lease(token=held.token, owner=held.owner, expires_us=clock.now_us + 15_000_000)
        assert backend.lease(uid) == renewed

    def test_an_expired_lease_nobody_took_can_be_renewed(
        self, backend: Backend, uid: str, clock: FakeClock
    ) -> None:
        """A token is stale by a higher one or by release, not by expiry alone; so is it as a fence."""
        held = backend.acquire_lease(uid, new_owner(), seconds=15)
        clock.advance(100)
        append_one(backend, item(draft(uid), fence=held.token))
        assert backend.lease(uid) == held
        assert backend.renew_lease(uid, held.token, seconds=15).token == held.token

    def test_a_lost_lease_cannot_be_renewed(self, backend: Backend, uid: str, clock: FakeClock) -> None:
        """A higher token was issued: `lease_lost`, for renewing and as a fence."""
        held = backend.acquire_lease(uid, new_owner(), seconds=15)
        clock.advance(15)
        taken = backend.acquire_lease(uid, new_owner("other", pid=2), seconds=15)
        with refused("lease_lost"):
            backend.renew_lease(uid, held.token, seconds=15)
        with refused("lease_lost"):
            append_one(backend, item(draft(uid), fence=held.token))
        append_one(backend, item(draft(uid), fence=taken.token))

    def test_a_released_lease_is_free(self, backend: Backend, uid: str) -> None:
        """It can be taken at once, and its token neither renewed nor used as a fence."""
        held = backend.acquire_lease(uid, new_owner(), seconds=15)
        backend.release_lease(uid, held.token)
        assert backend.lease(uid) is None
        with refused("lease_lost"):
            backend.renew_lease(uid, held.token, seconds=15)
        with pytest.raises(Conflict):
            append_one(backend, item(draft(uid), fence=held.token))
        assert backend.acquire_lease(uid, new_owner("other", pid=2), seconds=15).token > held.token

    def test_releasing_what_is_not_held_is_ignored(self, backend: Backend, uid: str) -> None:
        """A token that is no longer current, or never was, frees nothing."""
        backend.release_lease(uid, 1)
        first = backend.acquire_lease(uid, new_owner(), seconds=15)
        second = backend.acquire_lease(uid, new_owner("other", pid=2), seconds=15, replacing=first.token)
        backend.release_lease(uid, first.token)
        assert backend.lease(uid) == second
        backend.release_lease(uid, second.token)
        backend.release_lease(uid, second.token)

    def test_tokens_never_go_back(self, backend: Backend, uid: str, clock: FakeClock) -> None:
        """However leases end, each token is higher than any before."""
        tokens = []
        for _ in range(3):
            tokens.append(backend.acquire_lease(uid, new_owner(), seconds=1).token)
            backend.release_lease(uid, tokens[-1])
            tokens.append(backend.acquire_lease(uid, new_owner(), seconds=1).token)
            clock.advance(1)
        assert tokens == sorted(set(tokens))

    def test_each_session_has_its_own_lease(self, backend: Backend, uid: str, other: str) -> None:
        """Holding one says nothing about another, and its token is no fence there."""
        lease = backend.acquire_lease(uid, new_owner(), seconds=15)
        assert backend.lease(other) is None
        with pytest.raises(Conflict):
            append_one(backend, item(draft(other), fence=lease.token))
        backend.acquire_lease(other, new_owner(), seconds=15)

    def test_leases_do_not_touch_the_session(self, backend: Backend, uid: str) -> None:
        """Taking, renewing and releasing leave the session's row as it is."""
        before = backend.session(uid)
        lease = backend.acquire_lease(uid, new_owner(), seconds=15)
        backend.renew_lease(uid, lease.token, seconds=15)
        backend.release_lease(uid, lease.token)
        assert backend.session(uid) == before
