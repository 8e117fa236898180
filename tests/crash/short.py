"""A file that may not grow beyond a length: the write that reaches it is short, and the next one is refused."""

from __future__ import annotations

import os
from collections.abc import Iterable

from stepkeep import Store
from tests.crash import tracing
from tests.crash.operations import three
from tests.crash.points import Outcome, Scene
from tests.crash.stores import KINDS, SQLITE, Operation, Say

METHOD = "short write"


def four_kib(store: Store, root: object, say: Say) -> None:
    header = store.session("r").save({"text": "0123456789abcdef" * 230}, idempotency_key="4k")
    say(f"ACK r {header.seq}")


FOUR_KIB = Operation("save of 4 KiB", three, four_kib, kinds=KINDS)


def large(store: Store, root: object, say: Say) -> None:
    """Larger than all of the database beside it, so that only the document meets the limit."""
    header = store.session("r").save({"text": os.urandom(300_000).hex()}, idempotency_key="large")
    say(f"ACK r {header.seq}")


LARGE = Operation("save of 600 KB", three, large, kinds=("files-phase",))


def longest(scene: Scene) -> int:
    """The bytes that the operation writes to the file that carries the checkpoint."""
    if scene.kind == SQLITE:
        return 2 * 4120 + 32  # the first two frames of the log; the rest repeats them
    return max(len(content) for name, content in scene.recorded.items() if name.endswith(".json"))


def shorten(scene: Scene, lengths: Iterable[int]) -> Outcome:
    outcome = Outcome()
    for length in lengths:
        scene.fresh()
        run = tracing.run(scene.operation, scene.kind, scene.root, limit=length, bug=scene.bug, trace=False)
        outcome.note(f"length {length}", scene.judge(run.said))
    return outcome
