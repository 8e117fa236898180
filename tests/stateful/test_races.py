"""Someone prunes a checkpoint just before any call of an operation: the operation does not trip over it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext, suppress

import pytest

from stepkeep import Header, NotFound, Session, Store
from stepkeep.storage.memory import MemoryBackend
from stepkeep.testing import Fault, Faults

TEXT = " ".join(str(number * number) for number in range(300))


def complete(session: Session, headers: list[Header]) -> None:
    session.complete()


def delete_first(session: Session, headers: list[Header]) -> None:
    session.delete(headers[0].id)


def verify(session: Session, headers: list[Header]) -> None:
    assert session.verify().findings == ()


def latest(session: Session, headers: list[Header]) -> None:
    found = session.latest()
    assert found is not None
    assert found.fallback is None


def save(session: Session, headers: list[Header]) -> None:
    session.save({"text": TEXT, "step": 9})


def pruned_before_call(operation: Callable[[Session, list[Header]], None], victim: int, call: int) -> bool:
    """Run an operation on three checkpoints, one of which is pruned before its n-th call; False past its end."""
    inner = MemoryBackend()
    own = Store(inner).session("run", profile="archive")
    headers = [own.save({"text": TEXT, "step": step}) for step in range(3)]
    faults = Faults()
    session = Store(faults.wrap(inner)).get("run")
    before = len(faults.calls)

    def prune() -> None:
        inner.remove(own.uid, [headers[victim].id])
        inner.sweep()

    faults.add(Fault(prune, call=call))
    # What is asked for by its id may be gone before it is found.
    with suppress(NotFound) if operation is delete_first and victim == 0 else nullcontext():
        operation(session, headers)
    assert own.verify().findings == ()
    return len(faults.calls) - before >= call


@pytest.mark.parametrize("victim", [0, 1, 2])
@pytest.mark.parametrize("operation", [complete, delete_first, verify, latest, save])
def test_a_prune_at_any_moment_disturbs_nobody(
    operation: Callable[[Session, list[Header]], None], victim: int
) -> None:
    """At call 1, 2, 3 … until the operation is through."""
    call = 1
    while pruned_before_call(operation, victim, call):
        call += 1
    assert call > 1
