"""What a session has beside its checkpoints: annotations, events, a lease."""

from __future__ import annotations

import pytest

from stepkeep.codec import integrity
from stepkeep.errors import NotFound
from stepkeep.storage.port import MAX_EVENTS, Annotation, Event, Lease, Target
from stepkeep.testing.builders import START_US, FakeClock, new_owner
from stepkeep.testing.contract.contract_fixtures import Fixtures, SessionDriver, refused


class AnnotationContract(Fixtures):
    def test_an_annotation_comes_back_equal(self, run: SessionDriver) -> None:
        """Every field is kept, with a digest over the bytes. No bytes are bytes too."""
        target = run.save().id
        for number, data in enumerate((bytes(range(256)), b"")):
            fields = {"kind": "writes", "name": f"task {number}", "data": data, "time_us": START_US}
            assert run.backend.annotate(run.uid, target, **fields)  # type: ignore[arg-type]
            stored = Annotation(target=target, digest=integrity.digest(data), **fields)  # type: ignore[arg-type]
            assert run.backend.annotations(run.uid)[number:] == [stored]

    def test_the_first_one_stays_unless_replacing_is_asked_for(self, run: SessionDriver) -> None:
        """A second of the same target, kind and name is not stored, and says so; a replaced one is wholly new."""
        backend, uid = run.backend, run.uid
        assert run.annotate("cp", "n", b"first")
        assert not run.annotate("cp", "n", b"second", time_us=2)
        (annotation,) = backend.annotations(uid)
        assert (annotation.data, annotation.time_us) == (b"first", 1)
        assert backend.annotate(uid, "cp", "k", "n", b"second", time_us=2, replace=True)
        assert backend.annotate(uid, "cp", "k", "fresh", b"", time_us=3, replace=True)
        second, _ = backend.annotations(uid)
        assert (second.data, second.time_us, second.digest) == (b"second", 2, integrity.digest(b"second"))

    def test_target_kind_and_name_tell_them_apart(self, run: SessionDriver, other: SessionDriver) -> None:
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
            assert run.backend.annotate(run.uid, target, kind, name, b"", time_us=1)
        assert other.annotate("cp", "n")
        assert {(a.target, a.kind, a.name) for a in run.backend.annotations(run.uid)} == set(keys)
        assert other.notes() == ["n"]

    def test_annotations_come_oldest_first(self, run: SessionDriver) -> None:
        """By time; at equal times in the order they came."""
        for name, time_us in (("c", 3), ("z", 2), ("a", 2), ("b", 1)):
            run.annotate("cp", name, time_us=time_us)
        assert run.notes() == run.notes("cp") == ["b", "z", "a", "c"]

    def test_after_a_save_they_are_stored_and_read_alike(self, run: SessionDriver) -> None:
        """What is still known of a save's session is used for nothing that went: a deleted session has none."""
        header = run.save(external_id="e")
        run.annotate(header.id, "n")
        run.annotate(("main", "e"), "m", time_us=2)
        assert run.notes(header.id) == ["n", "m"]
        run.backend.delete_session(run.uid)
        with pytest.raises(NotFound):
            run.annotate(header.id, "late")
        with pytest.raises(NotFound):
            run.notes(header.id)

    def test_targets_and_kind_select(self, run: SessionDriver) -> None:
        """Many targets are read in one call; None means all of the session, an empty list none."""
        backend, uid = run.backend, run.uid
        for number in range(40):
            backend.annotate(uid, f"cp_{number}", "ab"[number % 2], f"{number}", b"", time_us=number)
        targets = [f"cp_{number}" for number in range(10, 1500)]
        assert len(backend.annotations(uid)) == 40
        assert len(backend.annotations(uid, targets)) == 30
        assert len(backend.annotations(uid, targets, "a")) == 15
        assert len(backend.annotations(uid, kind="b")) == 20
        assert backend.annotations(uid, []) == []
        assert run.notes("cp_3", "cp_1", "cp_3", "cp_none") == ["1", "3"]

    def test_they_may_come_before_the_checkpoint(self, run: SessionDriver) -> None:
        """Attached to a (branch, external id) that is not there yet, they are found by id once it came."""
        run.annotate(("b", "e"), "early")
        header = run.save(branch="b", external_id="e")
        run.annotate(header.id, "late", time_us=2)
        assert run.notes(header.id) == ["early", "late"]
        assert run.notes(("b", "e")) == ["early", "late"]
        assert run.notes(header.id, ("b", "e")) == ["early", "late"]

    def test_an_external_id_belongs_to_its_branch(self, run: SessionDriver, other: SessionDriver) -> None:
        """The same external id on another branch, or in another session, is another checkpoint."""
        one, two = run.save(branch="a", external_id="e"), run.save(branch="b", external_id="e")
        other.save(branch="a", external_id="e")
        run.annotate(one.id, "one")
        run.annotate(("b", "e"), "two", time_us=2)
        other.annotate(("a", "e"), "other", time_us=3)
        assert run.notes(("a", "e")) == ["one"]
        assert run.notes(two.id) == ["two"]

    def test_they_go_with_their_checkpoint(self, run: SessionDriver) -> None:
        """Those by id and those by (branch, external id); the others stay."""
        first, second = run.save(external_id="e"), run.save(external_id="f")
        run.annotate(first.id, "by id")
        run.annotate(("main", "e"), "by external id", time_us=2)
        run.annotate(second.id, "kept", time_us=3)
        run.annotate(("main", "f"), "kept too", time_us=4)
        run.annotate(("other", "e"), "of another branch", time_us=5)
        run.remove(first.id)
        assert run.notes() == ["kept", "kept too", "of another branch"]


class EventContract(Fixtures):
    def test_an_event_comes_back_equal(self, run: SessionDriver) -> None:
        """Every field is kept, and the answer is what is stored. Recording is not an update of the session."""
        data = {"who": "me", "nested": [1, None, {"x": 2.5}]}
        event = run.backend.record_event(run.uid, 'it\'s "happening"', data, time_us=START_US * 2)
        assert event == Event(number=1, time_us=START_US * 2, type='it\'s "happening"', data=data)
        assert run.backend.events(run.uid) == [event]
        assert run.info == run.created

    def test_events_are_numbered_in_each_session(self, run: SessionDriver, other: SessionDriver) -> None:
        """Numbers grow in the order of recording, whatever the times."""
        numbers = [run.backend.record_event(run.uid, "t", {}, time_us=-at).number for at in range(3)]
        assert numbers == [1, 2, 3]
        assert run.backend.record_event(other.uid, "t", {}, time_us=1).number == 1
        assert [event.number for event in run.backend.events(run.uid)] == numbers

    def test_events_are_read_on(self, run: SessionDriver) -> None:
        """`after` and `limit` page through the log, oldest first."""
        for number in range(5):
            run.backend.record_event(run.uid, f"{number}", {}, time_us=number)
        assert [event.type for event in run.backend.events(run.uid, after=2)] == ["2", "3", "4"]
        assert [event.type for event in run.backend.events(run.uid, after=1, limit=2)] == ["1", "2"]
        assert run.backend.events(run.uid, after=5) == []
        assert run.backend.events(run.uid, limit=0) == []

    def test_the_log_keeps_the_newest(self, run: SessionDriver) -> None:
        """Older ones go first, and numbers go on."""
        events = [Event(number=n, time_us=n, type="t") for n in range(1, MAX_EVENTS + 1)]
        run.backend.adopt_session(run.created, events=events)
        for number in range(7):
            run.backend.record_event(run.uid, "t", {}, time_us=number)
        found = [event.number for event in run.backend.events(run.uid)]
        assert found == list(range(8, MAX_EVENTS + 8))

    def test_what_a_caller_holds_is_not_the_log(self, run: SessionDriver) -> None:
        """Changing data that was given or received changes nothing that is stored."""
        data: dict[str, list[int]] = {"a": []}
        run.backend.record_event(run.uid, "t", data, time_us=1).data["a"].append(1)
        data["a"].append(2)
        run.backend.events(run.uid)[0].data["a"].append(3)
        assert run.backend.events(run.uid)[0].data == {"a": []}


class LeaseContract(Fixtures):
    def test_a_lease_is_taken_and_renewed(self, run: SessionDriver, clock: FakeClock) -> None:
        """It names the owner and ends after that time; renewed, it ends later, counted from now.

        Taking, renewing and releasing leave the session's row as it is.
        """
        backend, uid = run.backend, run.uid
        assert backend.lease(uid) is None
        owner = new_owner("it's me")
        lease = backend.acquire_lease(uid, owner, seconds=1.5)
        assert lease == Lease(token=lease.token, owner=owner, expires_us=clock.now_us + 1_500_000)
        assert backend.lease(uid) == lease
        clock.advance(1)
        renewed = backend.renew_lease(uid, lease.token, seconds=15)
        assert renewed == Lease(token=lease.token, owner=owner, expires_us=clock.now_us + 15_000_000)
        assert backend.lease(uid) == renewed
        backend.release_lease(uid, lease.token)
        assert run.info == run.created

    def test_a_held_lease_is_refused(self, run: SessionDriver, clock: FakeClock) -> None:
        """Until it expires there is one holder. Its owner, who may be another runner, is refused too.

        Who names the held token, because its owner is dead, replaces it at once; another token does not.
        """
        backend, uid = run.backend, run.uid
        held = backend.acquire_lease(uid, new_owner(), seconds=15)
        clock.advance(14.9)
        other = new_owner("other", pid=2)
        for owner, replacing in ((other, None), (new_owner(), None), (other, held.token + 1)):
            with refused("lease_held"):
                backend.acquire_lease(uid, owner, seconds=15, replacing=replacing)
        assert backend.lease(uid) == held
        taken = backend.acquire_lease(uid, other, seconds=15, replacing=held.token)
        assert taken.token > held.token
        with refused("lease_held"):
            backend.acquire_lease(uid, new_owner(), seconds=15, replacing=held.token)
        assert backend.lease(uid) == taken

    def test_an_expired_lease_nobody_took_can_be_renewed(self, run: SessionDriver, clock: FakeClock) -> None:
        """A token is stale by a higher one or by release, not by expiry alone; so is it as a fence."""
        held = run.backend.acquire_lease(run.uid, new_owner(), seconds=15)
        clock.advance(100)
        run.append(run.draft(), fence=held.token)
        assert run.backend.lease(run.uid) == held
        assert run.backend.renew_lease(run.uid, held.token, seconds=15).token == held.token

    def test_an_expired_lease_can_be_taken(self, run: SessionDriver, clock: FakeClock) -> None:
        """At its end another may take over, with a higher token: the old one is `lease_lost`, also as a fence."""
        held = run.backend.acquire_lease(run.uid, new_owner(), seconds=15)
        clock.advance(15)
        taken = run.backend.acquire_lease(run.uid, new_owner("other", pid=2), seconds=15)
        assert taken.token > held.token
        assert run.backend.lease(run.uid) == taken
        with refused("lease_lost"):
            run.backend.renew_lease(run.uid, held.token, seconds=15)
        with refused("lease_lost"):
            run.append(run.draft(), fence=held.token)
        run.append(run.draft(), fence=taken.token)

    def test_a_released_lease_is_free(self, run: SessionDriver) -> None:
        """It can be taken at once, and its token neither renewed nor used as a fence."""
        held = run.backend.acquire_lease(run.uid, new_owner(), seconds=15)
        run.backend.release_lease(run.uid, held.token)
        assert run.backend.lease(run.uid) is None
        with refused("lease_lost"):
            run.backend.renew_lease(run.uid, held.token, seconds=15)
        with refused("lease_lost"):
            run.append(run.draft(), fence=held.token)
        taken = run.backend.acquire_lease(run.uid, new_owner("other", pid=2), seconds=15)
        assert taken.token > held.token

    def test_releasing_what_is_not_held_is_ignored(self, run: SessionDriver) -> None:
        """A token that is no longer current, or never was, frees nothing."""
        backend, uid = run.backend, run.uid
        backend.release_lease(uid, 1)
        first = backend.acquire_lease(uid, new_owner(), seconds=15)
        second = backend.acquire_lease(uid, new_owner("other", pid=2), seconds=15, replacing=first.token)
        backend.release_lease(uid, first.token)
        assert backend.lease(uid) == second
        backend.release_lease(uid, second.token)
        backend.release_lease(uid, second.token)

    def test_tokens_never_go_back(self, run: SessionDriver, clock: FakeClock) -> None:
        """However leases end, each token is higher than any before."""
        tokens = []
        for _ in range(3):
            tokens.append(run.backend.acquire_lease(run.uid, new_owner(), seconds=1).token)
            run.backend.release_lease(run.uid, tokens[-1])
            tokens.append(run.backend.acquire_lease(run.uid, new_owner(), seconds=1).token)
            clock.advance(1)
        assert tokens == sorted(set(tokens))

    def test_each_session_has_its_own_lease(self, run: SessionDriver, other: SessionDriver) -> None:
        """Holding one says nothing about another, and its token is not a fence there."""
        lease = run.backend.acquire_lease(run.uid, new_owner(), seconds=15)
        assert run.backend.lease(other.uid) is None
        with refused("lease_lost"):
            other.append(other.draft(), fence=lease.token)
        run.backend.acquire_lease(other.uid, new_owner(), seconds=15)
