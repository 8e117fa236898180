"""The optimistic append: saves sealed over a cached head, which the server stores only if it is still the head."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from stepkeep.codec import integrity
from stepkeep.errors import BackendUnavailable, Conflict, StepkeepError
from stepkeep.model import Branch, Header, Status
from stepkeep.storage.port import Appended, HeaderQuery
from stepkeep.storage.postgres import PostgresBackend
from stepkeep.storage.sql.backend import SqlBackend
from stepkeep.testing.builders import (
    append,
    append_one,
    delta_on,
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
from tests.postgres.access import PostgresAccess
from tests.postgres.server import Server

pytestmark = pytest.mark.full


@pytest.fixture
def backend(url: str) -> Iterator[PostgresBackend]:
    backend = PostgresBackend(url)
    yield backend
    backend.close()


@pytest.fixture
def other(url: str, backend: PostgresBackend) -> Iterator[PostgresBackend]:
    """Another machine on the same store."""
    other = PostgresBackend(url)
    yield other
    other.close()


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many saves of each batch went the long way."""
    counts: list[int] = []
    inner = SqlBackend.append

    def counted(self: SqlBackend, batch: object, seal: object) -> object:
        counts.append(len(batch))  # type: ignore[arg-type]
        return inner(self, batch, seal)  # type: ignore[arg-type]

    monkeypatch.setattr(SqlBackend, "append", counted)
    return counts


def started(backend: PostgresBackend, asked: list[int], **fields: object) -> tuple[str, Header]:
    """A session with one checkpoint, so that its head is cached."""
    uid = backend.create_session(new_session(**fields)).uid
    first = save(backend, uid)
    asked.clear()
    return uid, first


def test_who_saved_last_asks_nothing(backend: PostgresBackend, asked: list[int]) -> None:
    """Later saves are one call each, and leave all that the others do: header, bodies, tags, branch, session."""
    uid, first = started(backend, asked)
    second = draft(uid, tags=("a", "b", "a"), step=7, external_id="x", idempotency_key="k")
    bodies = [
        delta_on(first.id, second.id),
        keyframe(second.id, "other"),
        redundant_on(first.id, second.id, "other"),
    ]
    stored = append_one(backend, item(second, bodies=bodies, expect_head=first.id, parents=(first.id,)))
    done = save(backend, uid, base=second.id, status=Status.COMPLETED)
    assert asked == []
    assert [header.seq for header in headers(backend, session=uid)] == [3, 2, 1]
    (raw,) = (row.raw for row in backend.headers(HeaderQuery(ids=(first.id,))))
    assert stored.parent_chains == (integrity.chain_of(raw),)
    assert headers(backend, session=uid, tag="b") == [stored]
    assert [backend.body(uid, second.id, body.name) for body in bodies[:2]] == bodies[:2]
    assert backend.redundant_delta(uid, second.id, "other") == bodies[2]
    branch, session = backend.branch(uid, "main"), backend.session(uid)
    assert branch is not None
    assert (branch.head, branch.head_seq) == (done.id, 3)
    assert (session.status, session.last_seq, session.finished_us) == (Status.COMPLETED, 3, done.time_us)
    assert backend.inconsistencies(uid) == []


def test_another_machine_saved_meanwhile(
    backend: PostgresBackend, other: PostgresBackend, asked: list[int]
) -> None:
    """Nothing is lost or doubled, and the order is kept (V3, V9); after that the head is cached again."""
    uid, first = started(backend, asked)
    theirs = save(other, uid)
    asked.clear()
    ours = save(backend, uid)
    assert asked == [1]
    assert ours.parents == (theirs.id,)
    assert save(backend, uid).seq == 4
    assert asked == [1]
    assert [header.seq for header in headers(backend, session=uid)] == [4, 3, 2, 1]
    assert theirs.parents == (first.id,)


def test_a_head_that_was_moved_is_seen(
    backend: PostgresBackend, other: PostgresBackend, asked: list[int]
) -> None:
    """The session's row tells nothing of it, its branch does."""
    uid, first = started(backend, asked)
    second = save(backend, uid)
    other.set_branch(uid, Branch(name="main", created_us=1, head=first.id))
    with pytest.raises(Conflict) as refusal:
        append_one(backend, item(draft(uid), expect_head=second.id))
    assert refusal.value.code == "head_moved"
    assert save(backend, uid).parents == (first.id,)
    assert asked == [1, 1]


def test_a_lease_that_was_taken_is_seen(
    backend: PostgresBackend, other: PostgresBackend, asked: list[int]
) -> None:
    """The holder's saves are stored; whoever lost the lease is refused (V9)."""
    uid, _ = started(backend, asked)
    lease = backend.acquire_lease(uid, new_owner(), seconds=60)
    append_one(backend, item(draft(uid), fence=lease.token))
    assert asked == []
    other.acquire_lease(uid, new_owner("other", pid=2), seconds=60, replacing=lease.token)
    with pytest.raises(Conflict) as refusal:
        append_one(backend, item(draft(uid), fence=lease.token))
    assert refusal.value.code == "lease_lost"
    assert backend.session(uid).last_seq == 2


def test_a_base_that_is_gone_is_seen(backend: PostgresBackend, asked: list[int]) -> None:
    """A patch against it is refused, to be sent again standing alone (V5)."""
    uid, first = started(backend, asked)
    save(backend, uid)
    backend._write(lambda tx: tx.run("DELETE FROM bodies WHERE checkpoint = ?", (first.id,)))
    (refusal,) = append(backend, item(draft(uid), base=first.id))
    assert isinstance(refusal, Conflict)
    assert refusal.code == "base_gone"


def test_a_repeated_save_is_there_once(backend: PostgresBackend, asked: list[int]) -> None:
    """By its id or by its key the original is found, though the cached head is right."""
    uid, _ = started(backend, asked)
    second = item(draft(uid, idempotency_key="k"))
    original = append_one(backend, second)
    assert append_one(backend, second) == original
    again = append_one(backend, item(draft(uid, idempotency_key="k")))
    assert again == original
    with pytest.raises(Conflict) as refusal:
        append_one(backend, item(draft(uid, idempotency_key="k", step=5)))
    assert refusal.value.code == "idempotency_mismatch"
    assert len(headers(backend, session=uid)) == 2


def test_a_batch_of_many_sessions_is_one_call(backend: PostgresBackend, asked: list[int]) -> None:
    """Saves of one session build upon each other; those of others do not mind."""
    uids = [started(backend, asked)[0] for _ in range(3)]
    answers = append(backend, *[item(draft(uid)) for _ in range(3) for uid in uids])
    assert asked == []
    assert [answer.seq for answer in answers if isinstance(answer, Header)] == [2, 2, 2, 3, 3, 3, 4, 4, 4]


def test_saves_that_go_the_long_way_keep_their_order(
    backend: PostgresBackend, other: PostgresBackend, asked: list[int]
) -> None:
    """In a batch the head of one session is right, that of another outdated, and one save brings a blob."""
    mine, shared = started(backend, asked)[0], started(backend, asked)[0]
    save(other, shared)
    asked.clear()
    blob = new_blob(b"content")
    late = draft(mine)
    batch = [
        item(draft(mine)),
        item(draft(shared)),
        item(late, bodies=[keyframe(late.id, blobs=(blob.digest,))], blobs=[blob]),
        item(draft(shared)),
        item(draft(mine)),
    ]
    answers = append(backend, *batch)
    assert asked == [4]
    assert [answer.seq for answer in answers if isinstance(answer, Header)] == [2, 3, 3, 4, 4]
    assert [header.id for header in headers(backend, session=mine)][:3] == [
        batch[4].draft.id,
        late.id,
        batch[0].draft.id,
    ]


def test_what_is_stored_stays_acknowledged_when_the_rest_fails(
    backend: PostgresBackend, asked: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Saves that are stored are acknowledged, and the others are told why they are not (V1)."""
    mine = started(backend, asked)[0]
    fresh = backend.create_session(new_session()).uid
    lost = BackendUnavailable("away", code="server_unreachable")

    def fail(*_: object) -> object:
        raise lost

    monkeypatch.setattr(SqlBackend, "append", fail)
    stored, refused = backend.append([item(draft(mine)), item(draft(fresh))], integrity.seal)
    assert isinstance(stored, Appended)
    assert refused is lost
    with pytest.raises(StepkeepError):
        backend.append([item(draft(fresh))], integrity.seal)


def test_a_large_body_is_sent_whole(backend: PostgresBackend, asked: list[int]) -> None:
    """More than the buffers between client and server hold at once."""
    uid, _ = started(backend, asked)
    large = draft(uid)
    body = keyframe(large.id, data=bytes(range(256)) * 40_000)
    append_one(backend, item(large, bodies=[body]))
    assert asked == []
    assert backend.body(uid, large.id, body.name) == body


def test_another_isolation_level_of_the_database_does_not_matter(
    postgres: Server, url: str, asked: list[int]
) -> None:
    """What is compared under the lock is what is committed by then, whatever transactions do by default."""
    with other_default(postgres, "default_transaction_isolation", "repeatable read"):
        backend, other = PostgresBackend(url), PostgresBackend(url)
        uid, _ = started(backend, asked)
        assert save(backend, uid).seq == 2
        assert asked == []
        with postgres.connect() as holder:
            holder.execute("BEGIN")
            holder.execute(f"SELECT * FROM {PostgresAccess(postgres, url).schema}.sessions FOR UPDATE")
            waiting = [threading.Thread(target=save, args=(each, uid)) for each in (backend, other)]
            for thread in waiting:
                thread.start()
            while len(postgres.execute("SELECT 1 FROM pg_locks WHERE NOT granted")) < len(waiting):
                pass
            holder.execute("ROLLBACK")
        for thread in waiting:
            thread.join()
        assert [header.seq for header in headers(backend, session=uid)] == [4, 3, 2, 1]
        backend.close()
        other.close()


def test_a_save_that_waits_too_long_is_given_up(postgres: Server, url: str, asked: list[int]) -> None:
    """It waits for the lock of its session for as long as the URL says, and may be tried again."""
    access = PostgresAccess(postgres, url)
    backend = PostgresBackend(url + "&statement_timeout=0.2")
    uid, _ = started(backend, asked)
    with postgres.connect() as holder:
        holder.execute("BEGIN")
        holder.execute(f"SELECT * FROM {access.schema}.sessions FOR UPDATE")
        with pytest.raises(BackendUnavailable) as refusal:
            backend.append([item(draft(uid))], integrity.seal)
        holder.execute("ROLLBACK")
    assert (refusal.value.code, refusal.value.retryable) == ("statement_timeout", True)
    assert asked == []
    assert save(backend, uid).seq == 2
    backend.close()


def test_an_asynchronous_server_still_syncs_saves(
    postgres: Server, backend: PostgresBackend, asked: list[int]
) -> None:
    """The commit of the call is durable, whatever connections are set to by default (V1)."""
    uid, _ = started(backend, asked)
    with other_default(postgres, "synchronous_commit", "off"):
        backend._pool.drop_idle()
        access = PostgresAccess(postgres, backend.url)
        access.run("CREATE TABLE {}.seen (level TEXT)")
        access.run(
            "CREATE FUNCTION {}.note() RETURNS trigger LANGUAGE plpgsql AS"
            " $$ BEGIN INSERT INTO {}.seen VALUES (current_setting('synchronous_commit')); RETURN NULL; END $$"
        )
        access.run(
            "CREATE CONSTRAINT TRIGGER at_commit AFTER INSERT ON {}.checkpoints DEFERRABLE INITIALLY DEFERRED"
            " FOR EACH ROW EXECUTE FUNCTION {}.note()"
        )
        save(backend, uid)
        during = [level for (level,) in access.run("SELECT level FROM {}.seen")]
    assert asked == []
    assert during == ["on"]


@contextmanager
def other_default(postgres: Server, name: str, value: str) -> Iterator[None]:
    """Another default for the connections that are made meanwhile."""
    postgres.execute(f"ALTER ROLE postgres SET {name} = '{value}'")
    try:
        yield
    finally:
        postgres.execute(f"ALTER ROLE postgres RESET {name}")


def test_a_refusal_before_leaves_the_short_way_open(backend: PostgresBackend, asked: list[int]) -> None:
    """psycopg lets go of what is prepared on a connection when something was undone there: it is prepared again."""
    uid, _ = started(backend, asked)
    save(backend, uid)
    with pytest.raises(Conflict):
        backend.update_session(uid, {"project": "other"}, expect_version=100)
    assert save(backend, uid).seq == 3
    assert asked == []
