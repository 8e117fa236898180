"""Many threads at once, and races driven step by step."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from itertools import pairwise

from stepkeep.codec import integrity
from stepkeep.errors import Conflict, StepkeepError
from stepkeep.storage.port import Appended, Backend, HeaderQuery
from stepkeep.testing.builders import (
    append,
    append_one,
    delta_on,
    draft,
    headers,
    item,
    keyframe,
    new_owner,
    new_session,
    save,
)
from stepkeep.testing.contract.contract_fixtures import Fixtures
from stepkeep.testing.contract.session_contract import branch_of

THREADS = 8


def together(work: Callable[[int], None]) -> None:
    """Run it in all threads, started at one moment; the first failure is raised."""
    gate = threading.Barrier(THREADS)

    def run(number: int) -> None:
        gate.wait()
        work(number)

    with ThreadPoolExecutor(THREADS) as pool:
        for done in [pool.submit(run, number) for number in range(THREADS)]:
            done.result()


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
    def test_many_savers_share_one_counter(self, backend: Backend, uid: str) -> None:
        """8 threads with 25 saves each give seq 1 to 200 without a gap, in one unbroken chain (V3, V9)."""

        def save_many(_: int) -> None:
            for _ in range(25):
                save(backend, uid)

        together(save_many)
        line = headers(backend, session=uid, newest_first=False)
        assert [header.seq for header in line] == list(range(1, 201))
        assert [header.parents for header in line[1:]] == [(header.id,) for header in line[:-1]]
        assert [header.parent_chains for header in line[1:]] == [(header.chain,) for header in line[:-1]]
        assert branch_of(backend, uid).head == line[-1].id
        assert backend.session(uid).last_seq == 200

    def test_of_many_with_one_expected_head_one_wins(self, backend: Backend, uid: str) -> None:
        """Compare-and-set lets exactly one through in each round (V9)."""
        for _ in range(10):
            head = branch_of(backend, uid).head
            answers: list[Appended | StepkeepError] = []
            together(
                lambda _, head=head, answers=answers: answers.extend(  # type: ignore[misc]
                    backend.append([item(draft(uid), expect_head=head)], integrity.seal)
                )
            )
            assert sum(isinstance(answer, Appended) for answer in answers) == 1
            assert sum(isinstance(answer, Conflict) for answer in answers) == THREADS - 1
        assert backend.session(uid).last_seq == 10

    def test_of_many_with_one_key_all_get_the_same(self, backend: Backend, uid: str) -> None:
        """An idempotency key stores once, however many try at once."""
        found: list[str] = []
        together(lambda _: found.append(save(backend, uid, idempotency_key="k").id))
        assert len(found) == THREADS
        assert len(set(found)) == 1
        assert len(headers(backend, session=uid)) == 1

    def test_of_many_with_one_version_one_wins(self, backend: Backend, uid: str) -> None:
        """Updates of a session are compared and set in one step."""
        version = backend.session(uid).version
        won: list[int] = []

        def update(number: int) -> None:
            with suppress(Conflict):
                backend.update_session(uid, {"metadata": {"by": number}}, expect_version=version)
                won.append(number)

        together(update)
        assert len(won) == 1
        assert backend.session(uid).metadata == {"by": won[0]}

    def test_of_many_runners_one_gets_the_lease(self, backend: Backend, uid: str) -> None:
        """A free lease is taken once."""
        tokens: list[int] = []

        def acquire(number: int) -> None:
            with suppress(Conflict):
                tokens.append(backend.acquire_lease(uid, new_owner(pid=number), seconds=15).token)

        together(acquire)
        assert len(tokens) == 1

    def test_of_many_creators_one_wins(self, backend: Backend) -> None:
        """A key is given once."""
        created: list[str] = []

        def create(_: int) -> None:
            with suppress(Conflict):
                created.append(backend.create_session(new_session("wanted")).uid)

        together(create)
        assert len(created) == 1
        assert backend.usage().sessions == 1

    def test_readers_see_checkpoints_whole(self, backend: Backend, uid: str) -> None:
        """Whatever header a reader sees, its bodies are there, and heads point at headers (V2, V6)."""

        def read() -> None:
            head = branch_of(backend, uid).head
            rows = list(backend.headers(HeaderQuery(session=uid)))
            assert head is None or head in {row.id for row in rows}
            for row in rows[:5]:
                header = integrity.open_header(row.raw)
                for name in header.contents:
                    chain = backend.body_chain(uid, header.id, name)
                    assert chain[-1].base is None
                    assert all(integrity.digest(body.data) == body.digest for body in chain)

        with meanwhile(read):
            base = save(backend, uid).id
            for number in range(150):
                base = save(backend, uid, base=base if number % 8 else None).id

    def test_readers_see_batches_whole(self, backend: Backend, uid: str) -> None:
        """The checkpoints of one commit appear at once."""

        def read() -> None:
            assert backend.usage(uid).checkpoints % 5 == 0

        with meanwhile(read):
            for _ in range(40):
                append(backend, *(item(draft(uid)) for _ in range(5)))

    def test_listing_goes_on_while_others_save_and_remove(self, backend: Backend, uid: str) -> None:
        """A reader sees each checkpoint that stays once, in order, whatever happens around it."""
        append(backend, *(item(draft(uid)) for _ in range(300)))
        stays = {header.id for header in headers(backend, session=uid) if header.seq % 6}

        def read() -> None:
            rows = list(backend.headers(HeaderQuery(session=uid)))
            seqs = [row.seq for row in rows]
            assert seqs == sorted(set(seqs), reverse=True)
            assert stays <= {row.id for row in rows}

        with meanwhile(read):
            for row in backend.headers(HeaderQuery(session=uid)):
                if row.seq % 6 == 0:
                    backend.remove(uid, [row.id])
                    save(backend, uid)

    def test_a_saver_and_a_sweeper_cannot_race(self, backend: Backend, uid: str) -> None:
        """A base chosen before it was swept is `base_gone`; one that is only hidden still serves (V5)."""
        base = save(backend, uid)
        dependent = save(backend, uid, base=base.id)
        chosen = base.id  # the saver picks its base ...
        backend.remove(uid, [base.id])  # ... the pruner removes it, but another needs its body ...
        backend.sweep()
        first = draft(uid)
        append_one(backend, item(first, base=chosen))  # ... so the save is fine.

        backend.remove(uid, [dependent.id])
        backend.remove(uid, [first.id])  # now nothing needs it any more,
        hidden = draft(uid)
        append_one(backend, item(hidden, base=chosen))  # and until the sweep it still serves.

        backend.remove(uid, [hidden.id])
        backend.sweep()
        late = draft(uid)
        (refusal,) = append(backend, item(late, base=chosen))
        assert isinstance(refusal, Conflict)
        assert refusal.code == "base_gone"
        append_one(backend, item(late))
        assert backend.body_chain(uid, late.id, "state") == [keyframe(late.id)]

    def test_savers_and_sweepers_together_keep_every_chain_whole(self, backend: Backend, uid: str) -> None:
        """While one thread prunes and sweeps, every kept checkpoint can be rebuilt (V5)."""

        def prune() -> None:
            going = [row.id for row in backend.headers(HeaderQuery(session=uid))][5:]
            backend.remove(uid, going)
            backend.sweep()

        with meanwhile(prune):
            base: str | None = None
            for number in range(150):
                new = draft(uid)
                (answer,) = append(backend, item(new, base=base))
                if isinstance(answer, StepkeepError):
                    assert answer.code == "base_gone"
                    append_one(backend, item(new))
                base = new.id if number % 4 else base
        for header in headers(backend, session=uid):
            chain = backend.body_chain(uid, header.id, "state")
            assert chain
            assert chain[-1].base is None

    def test_re_encoding_and_saving_together_keep_every_chain_whole(self, backend: Backend, uid: str) -> None:
        """A base may become a keyframe while others are based on it."""
        line = [save(backend, uid).id]
        for _ in range(40):
            line.append(save(backend, uid, base=line[-1]).id)

        def rebuild(number: int) -> None:
            for base, checkpoint in list(pairwise(line))[number::THREADS]:
                whole = keyframe(checkpoint, data=b"whole")
                backend.replace_body(uid, whole, expect_digest=delta_on(base, checkpoint).digest)
                save(backend, uid, base=checkpoint)

        together(rebuild)
        assert all(len(backend.body_chain(uid, checkpoint, "state")) == 1 for checkpoint in line)
        assert len(headers(backend, session=uid)) == 81
