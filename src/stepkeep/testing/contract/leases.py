"""Leases: one runner per session, with a token that only grows."""

from __future__ import annotations

import pytest

from stepkeep.errors import Conflict
from stepkeep.storage.port import Backend, Lease
from stepkeep.testing.clock import FakeClock
from stepkeep.testing.contract.fixtures import Fixtures
from stepkeep.testing.records import append_one, draft, item, new_owner, new_session


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
        with pytest.raises(Conflict) as refusal:
            backend.acquire_lease(uid, new_owner("other", pid=2), seconds=15)
        assert refusal.value.code == "lease_held"
        assert backend.lease(uid) == held

    def test_a_held_lease_is_refused_to_its_owner_too(self, backend: Backend, uid: str) -> None:
        """Two runners in one process are two; the holder renews instead."""
        backend.acquire_lease(uid, new_owner(), seconds=15)
        with pytest.raises(Conflict) as refusal:
            backend.acquire_lease(uid, new_owner(), seconds=15)
        assert refusal.value.code == "lease_held"

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
        with pytest.raises(Conflict) as refusal:
            backend.acquire_lease(uid, other, seconds=15, replacing=held.token + 1)
        assert refusal.value.code == "lease_held"
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
        with pytest.raises(Conflict) as refusal:
            backend.renew_lease(uid, held.token, seconds=15)
        assert refusal.value.code == "lease_lost"
        with pytest.raises(Conflict) as refusal:
            append_one(backend, item(draft(uid), fence=held.token))
        assert refusal.value.code == "lease_lost"
        append_one(backend, item(draft(uid), fence=taken.token))

    def test_a_released_lease_is_free(self, backend: Backend, uid: str) -> None:
        """It can be taken at once, and its token neither renewed nor used as a fence."""
        held = backend.acquire_lease(uid, new_owner(), seconds=15)
        backend.release_lease(uid, held.token)
        assert backend.lease(uid) is None
        with pytest.raises(Conflict) as refusal:
            backend.renew_lease(uid, held.token, seconds=15)
        assert refusal.value.code == "lease_lost"
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

    def test_each_session_has_its_own_lease(self, backend: Backend, uid: str) -> None:
        """Holding one says nothing about another, and its token is no fence there."""
        other = backend.create_session(new_session()).uid
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
