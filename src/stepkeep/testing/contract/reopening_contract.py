"""Opening again, closing, forking, and damage under the backend's feet."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress

import pytest

from stepkeep.codec import integrity
from stepkeep.errors import BackendUnavailable, Corrupt
from stepkeep.model import Branch, SessionInfo, Status
from stepkeep.storage.port import Append, Backend, HeaderQuery, SessionQuery
from stepkeep.testing.builders import (
    append_one,
    draft,
    headers,
    item,
    keyframe,
    new_blob,
    new_owner,
    new_session,
    redundant_on,
    save,
)
from stepkeep.testing.contract.contract_fixtures import Fixtures, RawAccess, calls_on


def everything(backend: Backend) -> list[object]:
    """All that a store gives back."""
    found: list[object] = [backend.usage().checkpoints]
    for session in backend.sessions(SessionQuery()):
        uid = session.uid
        rows = list(backend.headers(HeaderQuery(session=uid)))
        bodies = sorted(backend.bodies(uid), key=lambda body: (body.checkpoint, body.name, body.is_redundant))
        found += [session, backend.branches(uid), rows, bodies, backend.events(uid), backend.annotations(uid)]
        found += [backend.body_chain(uid, body.checkpoint, body.name) for body in bodies]
        found += [backend.redundant_delta(uid, body.checkpoint, body.name) for body in bodies]
        found += [backend.blob(digest) for body in bodies for digest in body.blobs]
        found += [backend.lease(uid)]
    return found


class ReopenContract(Fixtures):
    def test_everything_is_there_after_opening_again(
        self, backend: Backend, uid: str, reopen: Callable[[], Backend]
    ) -> None:
        """What was acknowledged is durable: records, order, counters, leases (V1)."""
        blob, second = new_blob(b"content"), draft(uid, external_id="e", tags=("t",))
        first = save(backend, uid)
        bodies = [keyframe(second.id, blobs=(blob.digest,)), redundant_on(first.id, second.id)]
        append_one(backend, item(second, bodies=bodies, blobs=[blob]))
        third = save(backend, uid, base=second.id, status=Status.COMPLETED)
        save(backend, uid, branch="b", parents=(third.id,))
        backend.remove(uid, [second.id])
        backend.annotate(uid, third.id, "k", "n", b"note", time_us=1)
        backend.update_session(uid, {"metadata": {"a": 1}})
        backend.set_branch(uid, Branch(name="c", created_us=1))
        lease = backend.acquire_lease(uid, new_owner(), seconds=15)
        backend.create_session(new_session())
        before = everything(backend)

        again = reopen()

        assert everything(again) == before
        assert save(again, uid).seq == 5
        append_one(again, item(draft(uid), fence=lease.token))
        again.release_lease(uid, lease.token)
        assert again.acquire_lease(uid, new_owner(), seconds=15).token > lease.token

    def test_what_was_deleted_stays_deleted(
        self, backend: Backend, uid: str, reopen: Callable[[], Backend]
    ) -> None:
        """Removal, sweep and deletion are durable as well."""
        other = backend.create_session(new_session())
        first, second = save(backend, uid), save(backend, uid)
        save(backend, other.uid)
        backend.remove(uid, [second.id])
        backend.delete_session(other.uid)
        backend.sweep()
        again = reopen()
        assert headers(again) == [first]
        assert again.session_by_key(other.key) is None
        assert save(again, uid).seq == 3

    def test_the_store_can_be_opened_again_by_its_url(self, backend: Backend) -> None:
        """A backend says how to open it, and what it takes."""
        assert backend.url
        assert isinstance(backend.capabilities.takes_deltas, bool)

    def test_a_closed_backend_is_unavailable(self, backend: Backend, uid: str) -> None:
        """Closing may be repeated; any other call afterwards is refused."""
        save(backend, uid)
        backend.close()
        backend.close()
        calls: list[Callable[[], object]] = [
            *calls_on(backend, uid),
            lambda: backend.session_by_key("k"),
            lambda: list(backend.sessions(SessionQuery())),
            lambda: backend.create_session(new_session()),
            lambda: list(backend.headers(HeaderQuery())),
            lambda: backend.blob("d"),
            lambda: backend.has_blobs(["d"]),
            lambda: backend.sweep(),
            lambda: backend.adopt_session(new_session()),
            lambda: backend.usage(),
            lambda: backend.reclaim(1),
        ]
        for call in calls:
            with pytest.raises(BackendUnavailable):
                call()

    def test_a_forked_child_can_go_on(self, backend: Backend, uid: str) -> None:
        """Both sides of a fork read and save; neither disturbs the other's numbers."""
        first = save(backend, uid)
        child = os.fork()
        if child == 0:
            os._exit(_child(backend, uid, item(draft(uid))))
        _, status = os.waitpid(child, 0)
        assert os.waitstatus_to_exitcode(status) == 0
        newest = save(backend, uid)
        found = headers(backend, session=uid)
        assert (found[0], found[-1]) == (newest, first)
        assert [header.seq for header in found] == list(range(len(found), 0, -1))

    # --- damage ---

    def test_a_damaged_header_comes_back_as_found(self, backend: Backend, uid: str, raw: RawAccess) -> None:
        """The row is still found by what it is indexed by; the engine sees the damage."""
        first, second = save(backend, uid, tags=("t",)), save(backend, uid)
        raw.damage_header(first.id)
        (row,) = backend.headers(HeaderQuery(session=uid, tag="t"))
        assert (row.id, row.seq, row.branch) == (first.id, 1, "main")
        with pytest.raises(Corrupt):
            integrity.open_header(row.raw, expect_id=row.id)
        assert headers(backend, session=uid, min_seq=2) == [second]
        assert save(backend, uid).seq == 3

    def test_a_damaged_header_can_be_removed(self, backend: Backend, uid: str, raw: RawAccess) -> None:
        """Removing does not read it: gap and head are right."""
        first, second = save(backend, uid), save(backend, uid)
        raw.damage_header(second.id)
        assert backend.remove(uid, [second.id]).removed == (second.id,)
        assert backend.session(uid).gaps == ((2, 2),)
        assert headers(backend, session=uid) == [first]

    def test_a_damaged_body_comes_back_as_found(self, backend: Backend, uid: str, raw: RawAccess) -> None:
        """The record keeps the digest of what was stored, so that the engine sees the damage."""
        first = save(backend, uid)
        second = save(backend, uid, base=first.id)
        raw.damage_body(first.id, "state")
        delta, base = backend.body_chain(uid, second.id, "state")
        assert integrity.digest(delta.data) == delta.digest
        assert base.digest == keyframe(first.id).digest
        assert integrity.digest(base.data) != base.digest

    def test_a_damaged_session_is_never_given_back(
        self, backend: Backend, session: SessionInfo, raw: RawAccess
    ) -> None:
        """It is Corrupt, or rebuilt from its headers; those, and other sessions, come as ever."""
        other = backend.create_session(new_session())
        header = save(backend, session.uid)
        raw.damage_session(session.uid)
        with suppress(Corrupt):
            rebuilt = backend.session(session.uid)
            assert (rebuilt.uid, rebuilt.key, rebuilt.profile) == (session.uid, session.key, session.profile)
            assert (rebuilt.last_seq, rebuilt.updated_us, rebuilt.status) == (
                1,
                header.time_us,
                header.status,
            )
        assert headers(backend, session=session.uid) == [header]
        assert backend.session(other.uid) == other

    def test_a_damaged_session_is_repaired_by_adopting(
        self, backend: Backend, session: SessionInfo, raw: RawAccess
    ) -> None:
        """What was rebuilt from headers takes its place; the counter is not below the highest seq (V3)."""
        save(backend, session.uid)
        raw.damage_session(session.uid)
        repaired = backend.adopt_session(session)
        assert repaired.last_seq == 1
        assert backend.session(session.uid) == repaired
        assert save(backend, session.uid).seq == 2


def _child(backend: Backend, uid: str, new: Append) -> int:
    """What the child does; 0 when all went well. Exceptions must not reach the parent's test runner."""
    try:
        saved = append_one(backend, new)
        return 0 if headers(backend, session=uid)[0] == saved and saved.seq == 2 else 1
    except BaseException:
        return 2
