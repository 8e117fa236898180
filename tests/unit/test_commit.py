"""Group commit on both sides of a fork."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

from stepkeep.engine.commit import Committer, Queued
from stepkeep.storage.memory import MemoryBackend


def test_a_child_needs_no_lock_of_a_thread_that_it_does_not_have() -> None:
    """A saver that waits in the parent may hold the lock of its event at a fork, for ever in the child."""
    item: Any = SimpleNamespace()
    committer, queued = Committer(MemoryBackend()), Queued(item)
    queued.event = threading.Event()
    committer.queue.append(queued)

    def fork() -> None:
        committer.before_fork()
        committer.after_fork(is_child=True)

    child = threading.Thread(target=fork, daemon=True)
    with queued.event._cond:  # type: ignore[attr-defined]
        child.start()
        child.join(30)
        assert not child.is_alive()
    assert getattr(queued.outcome, "code", None) == "forked"
    assert not committer.queue
