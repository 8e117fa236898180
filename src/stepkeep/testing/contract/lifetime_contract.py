"""A store over time: opened again, closed, forked, damaged under the backend's feet, and used by many threads."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from itertools import pairwise

import pytest

from stepkeep.codec import integrity
from stepkeep.errors import BackendUnavailable, Conflict, Corrupt, StepkeepError
from stepkeep.model import Header, Status
from stepkeep.storage.port import Appended, Backend, HeaderQuery, SessionQuery
from stepkeep.testing.builders import (
    append,
    delta_on,
    header_in,
    headers,
    item,
    keyframe,
    new_blob,
    new_owner,
    new_session,
    redundant_on,
    save,
)
from stepkeep.testing.contract.contract_fixtures import Fixtures, RawAccess, SessionDriver, calls_on, refused


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
        self, backend: Backend, run: SessionDriver, other: SessionDriver, reopen: Callable[[], Backend]
    ) -> None:
        """What was acknowledged is durable: records, order, counters, leases (V1)."""
        blob, second = new_blob(b"content"), run.draft(external_id="e", tags=("t",))
        first = run.save()
        bodies = [keyframe(second.id, blobs=(blob.digest,)), redundant_on(first.id, second.id)]
        run.append(second, bodies=bodies, blobs=[blob])
        third = run.save(base=second.id, status=Status.COMPLETED)
        run.save(branch="b", parents=(third.id,))
        run.remove(second.id)
        run.annotate(third.id, "n", b"note")
        backend.update_session(run.uid, {"metadata": {"a": 1}})
        run.put_branch("c")
        lease = backend.acquire_lease(run.uid, new_owner(), seconds=15)
        before = everything(backend)

        run.backend = again = reopen()

        assert again.session(other.uid) == other.created
        assert everything(again) == before
        assert run.save().seq == 5
        run.append(run.draft(), fence=lease.token)
        again.release_lease(run.uid, lease.token)
        assert again.acquire_lease(run.uid, new_owner(), seconds=15).token > lease.token

    def test_what_was_deleted_stays_deleted(
        self, backend: Backend, run: SessionDriver, other: SessionDriver, reopen: Callable[[], Backend]
    ) -> None:
        """Removal, sweep and deletion are durable as well."""
        first, second = run.save(), run.save()
        other.save()
        run.remove(second.id)
        backend.delete_session(other.uid)
        backend.sweep()
        again = reopen()
        assert headers(again) == [first]
        assert again.session_by_key(other.created.key) is None
        assert save(again, run.uid).seq == 3

    def test_the_store_can_be_opened_again_by_its_url(self, backend: Backend) -> None:
        """A backend says how to open it, and what it takes."""
        assert backend.url
        assert isinstance(backend.capabilities.takes_deltas, bool)

    def test_a_closed_backend_is_unavailable(self, backend: Backend, run: SessionDriver) -> None:
        """Closing may be repeated; any other call afterwards is refused."""
        run.save()
        backend.close()
        backend.close()
        calls: list[Callable[[], object]] = [
            *calls_on(backend, run.uid),
            lambda: backend.session_by_key("k"),
            lambda: list(backend.sessions(SessionQuery())),
            lambda: backend.create_session(new_session()),
            lambda: backend.delete_sessions([run.created]),
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

    def test_a_forked_child_can_go_on(self, run: SessionDriver) -> None:
        """Both sides of a fork read and save; neither disturbs the other's numbers."""
        first = run.save()
        child = os.fork()
        if child == 0:
            os._exit(_child(run, run.draft()))
        _, status = os.waitpid(child, 0)
        assert os.waitstatus_to_exitcode(status) == 0
        newest = run.save()
        found = run.headers()
        assert (found[0], found[-1]) == (newest, first)
        assert [header.seq for header in found] == list(range(len(found), 0, -1))

    # --- damage ---

    def test_a_damaged_header_comes_back_as_found(self, run: SessionDriver, raw: RawAccess) -> None:
        """The row is still found by what it is indexed by; the engine sees the damage."""
        first, second = run.save(tags=("t",)), run.save()
        raw.damage_header(first.id)
        (row,) = run.backend.headers(HeaderQuery(session=run.uid, tag="t"))
        assert (row.id, row.seq, row.branch) == (first.id, 1, "main")
        with pytest.raises(Corrupt):
            header_in(row)
        assert run.headers(min_seq=2) == [second]
        assert run.save().seq == 3

    def test_a_damaged_header_can_be_removed(self, run: SessionDriver, raw: RawAccess) -> None:
        """Removing does not read it: gap and head are right."""
        first, second = run.save(), run.save()
        raw.damage_header(second.id)
        assert run.remove(second.id).removed == (second.id,)
        assert run.info.gaps == ((2, 2),)
        assert run.headers() == [first]

    def test_a_damaged_body_comes_back_as_found(self, run: SessionDriver, raw: RawAccess) -> None:
        """The record keeps the digest of what was stored, so that the engine sees the damage."""
        first, second = run.save_chain(1)
        raw.damage_body(first, "state")
        delta, base = run.chain(second)
        assert integrity.digest(delta.data) == delta.digest
        assert base.digest == keyframe(first).digest
        assert integrity.digest(base.data) != base.digest

    def test_a_damaged_session_is_never_given_back(
        self, run: SessionDriver, other: SessionDriver, raw: RawAccess
    ) -> None:
        """It is Corrupt, or rebuilt from its headers; those, and other sessions, come as ever."""
        header, created = run.save(), run.created
        raw.damage_session(run.uid)
        with suppress(Corrupt):
            rebuilt = run.info
            assert (rebuilt.uid, rebuilt.key, rebuilt.profile) == (run.uid, created.key, created.profile)
            assert (rebuilt.last_seq, rebuilt.updated_us) == (1, header.time_us)
            assert rebuilt.status == header.status
        assert run.headers() == [header]
        assert other.info == other.created

    def test_a_damaged_session_among_many_stops_no_deletion(
        self, backend: Backend, run: SessionDriver, other: SessionDriver, raw: RawAccess
    ) -> None:
        """It is rebuilt and compared, or refused alone; the others go."""
        run.save()
        seen = [run.info, other.info]
        raw.damage_session(run.uid)
        outcome, freed = backend.delete_sessions(seen)
        assert isinstance(outcome, int | Corrupt | Conflict)
        assert freed == 0
        assert backend.session_by_key(other.created.key) is None

    def test_a_damaged_session_is_repaired_by_adopting(self, run: SessionDriver, raw: RawAccess) -> None:
        """What was rebuilt from headers takes its place; the counter is not below the highest seq (V3)."""
        run.save()
        raw.damage_session(run.uid)
        repaired = run.backend.adopt_session(run.created)
        assert repaired.last_seq == 1
        assert run.info == repaired
        assert run.save().seq == 2


def _child(run: SessionDriver, new: Header) -> int:
    """What the child does; 0 when all went well. Exceptions must not reach the parent's test runner."""
    try:
        saved = run.append(new)
        return 0 if run.headers()[0] == saved and saved.seq == 2 else 1
    except BaseException:
        return 2


# --- many threads at once, and races driven step by step

THREADS = 8


def together(work: Callable[[int], object]) -> None:
    """Run it in all threads, started at one moment; the first failure is raised."""
    gate = threading.Barrier(THREADS)

    def run(number: int) -> None:
        gate.wait()
        work(number)

    with ThreadPoolExecutor(THREADS) as pool:
        list(pool.map(run, range(THREADS)))


@contextmanager
def meanwhile(work: Callable[[], None]) -> Iterator[None]:
    """Repeat it in another thread, at least once, until the block ends; its failure is raised."""
    is_over = threading.Event()

    def run() -> None:
        work()
        while not is_over.is_set():
            work()

    with ThreadPoolExecutor(1) as pool:
        done = pool.submit(run)
        try:
            yield
        finally:
            is_over.set()
        done.result()


class ConcurrencyContract(Fixtures):
    def test_many_savers_share_one_counter(self, run: SessionDriver) -> None:
        """8 threads with 25 saves each give seq 1 to 200 without a gap, in one unbroken chain (V3, V9)."""
        together(lambda _: [run.save() for _ in range(25)])
        line = run.headers(newest_first=False)
        assert [header.seq for header in line] == list(range(1, 201))
        for before, header in pairwise(line):
            assert (header.parents, header.parent_chains) == ((before.id,), (before.chain,))
        assert run.head() == (line[-1].id, 200)
        assert run.info.last_seq == 200

    def test_of_many_with_one_expected_head_one_wins(self, run: SessionDriver) -> None:
        """Compare-and-set lets exactly one through in each round (V9)."""
        for _ in range(10):
            head = run.branch().head
            answers: list[Appended | StepkeepError] = []
            together(
                lambda _, head=head, answers=answers: answers.extend(  # type: ignore[misc]
                    run.backend.append([item(run.draft(), expect_head=head)], integrity.seal)
                )
            )
            assert sum(isinstance(answer, Appended) for answer in answers) == 1
            assert sum(isinstance(answer, Conflict) for answer in answers) == THREADS - 1
        assert run.info.last_seq == 10

    def test_of_many_with_one_key_all_get_the_same(self, run: SessionDriver) -> None:
        """An idempotency key stores once, however many try at once."""
        found: list[str] = []
        together(lambda _: found.append(run.save(idempotency_key="k").id))
        assert len(found) == THREADS
        assert run.ids() == list(set(found))

    def test_what_is_given_once_is_won_by_one(self, backend: Backend, run: SessionDriver) -> None:
        """A version to update, a free lease and a session key, however many try at once."""
        version = run.created.version

        def update(number: int) -> None:
            backend.update_session(run.uid, {"metadata": {"by": number}}, expect_version=version)

        def acquire(number: int) -> None:
            backend.acquire_lease(run.uid, new_owner(pid=number), seconds=15)

        def create(_: int) -> None:
            backend.create_session(new_session("wanted"))

        winners: list[int] = []
        for attempt in (update, acquire, create):

            def attempted(number: int, attempt: Callable[[int], None] = attempt) -> None:
                with suppress(Conflict):
                    attempt(number)
                    winners.append(number)

            together(attempted)
        assert len(winners) == 3
        assert run.info.metadata == {"by": winners[0]}
        assert backend.usage().sessions == 2

    def test_readers_see_checkpoints_whole(self, run: SessionDriver) -> None:
        """Whatever header a reader sees, its bodies are there, and heads point at headers (V2, V6)."""

        def read() -> None:
            head = run.branch().head
            rows = list(run.backend.headers(HeaderQuery(session=run.uid)))
            assert head is None or head in {row.id for row in rows}
            for row in rows[:5]:
                header = header_in(row)
                for name in header.contents:
                    chain = run.chain(header.id, name)
                    assert chain[-1].base is None
                    assert all(integrity.digest(body.data) == body.digest for body in chain)

        with meanwhile(read):
            base = run.save().id
            for number in range(150):
                base = run.save(base=base if number % 8 else None).id

    def test_readers_see_batches_whole(self, run: SessionDriver) -> None:
        """The checkpoints of one commit appear at once."""

        def read() -> None:
            assert run.usage.checkpoints % 5 == 0

        with meanwhile(read):
            for _ in range(40):
                run.save_many(5)

    def test_listing_goes_on_while_others_save_and_remove(self, run: SessionDriver) -> None:
        """A reader sees each checkpoint that stays once, in order, whatever happens around it."""
        run.save_many(300)
        stays = {header.id for header in run.headers() if header.seq % 6}

        def read() -> None:
            rows = list(run.backend.headers(HeaderQuery(session=run.uid)))
            seqs = [row.seq for row in rows]
            assert seqs == sorted(set(seqs), reverse=True)
            assert stays <= {row.id for row in rows}

        with meanwhile(read):
            for row in run.backend.headers(HeaderQuery(session=run.uid)):
                if row.seq % 6 == 0:
                    run.remove(row.id)
                    run.save()

    def test_a_saver_and_a_sweeper_cannot_race(self, run: SessionDriver) -> None:
        """A base chosen before it was swept is `base_gone`; one that is only hidden still serves (V5)."""
        chosen, dependent = run.save_chain(1)  # the saver picks its base ...
        run.remove(chosen)  # ... the pruner removes it, but another needs its body ...
        run.backend.sweep()
        first = run.save(base=chosen)  # ... so the save is fine.

        run.remove(dependent)
        run.backend.sweep()
        assert run.chain_ids(first.id) == [first.id, chosen]
        run.remove(first.id)  # now nothing needs it any more,
        hidden = run.save(base=chosen)  # and until the sweep it still serves.

        run.remove(hidden.id)
        run.backend.sweep()
        late = run.draft()
        with refused("base_gone"):
            run.append(late, base=chosen)
        run.append(late)
        assert run.chain(late.id) == [keyframe(late.id)]

    def test_savers_and_sweepers_together_keep_every_chain_whole(self, run: SessionDriver) -> None:
        """While one thread prunes and sweeps, every kept checkpoint can be rebuilt (V5)."""

        def prune() -> None:
            run.remove(*run.ids()[5:])
            run.backend.sweep()

        with meanwhile(prune):
            base: str | None = None
            for number in range(150):
                new = run.draft()
                (answer,) = append(run.backend, item(new, base=base))
                if isinstance(answer, StepkeepError):
                    assert answer.code == "base_gone"
                    run.append(new)
                base = new.id if number % 4 else base
        for checkpoint in run.ids():
            assert run.chain(checkpoint)[-1].base is None

    def test_re_encoding_and_saving_together_keep_every_chain_whole(self, run: SessionDriver) -> None:
        """A base may become a keyframe while others are based on it."""
        chain = run.save_chain(40)

        def rebuild(number: int) -> None:
            for base, checkpoint in list(pairwise(chain))[number::THREADS]:
                whole = keyframe(checkpoint, data=b"whole")
                run.backend.replace_body(run.uid, whole, expect_digest=delta_on(base, checkpoint).digest)
                run.save(base=checkpoint)

        together(rebuild)
        assert all(len(run.chain(checkpoint)) == 1 for checkpoint in chain)
        assert len(run.headers()) == 81
