"""The order inside a batch of appends, the same for every backend."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from stepkeep.errors import BackendUnavailable, Conflict, StepkeepError
from stepkeep.storage.port import REPEATABLE, Append, Appended


def append_in_order(
    batch: Sequence[Append], append: Callable[[Append], Appended]
) -> list[Appended | StepkeepError]:
    """Append one by one; each refusal is an outcome of its own.

    After one that is to be sent again, the later ones of its session are refused as well: stored now, they would
    come before it.
    """
    outcomes: list[Appended | StepkeepError] = []
    waiting: set[str] = set()
    for item in batch:
        outcome = _outcome(item, append, is_waiting=item.draft.session in waiting)
        if isinstance(outcome, StepkeepError) and outcome.code in REPEATABLE:
            waiting.add(item.draft.session)
        outcomes.append(outcome)
    return outcomes


def _outcome(
    item: Append, append: Callable[[Append], Appended], *, is_waiting: bool
) -> Appended | StepkeepError:
    if is_waiting:
        return Conflict(
            f"{item.draft.id} waits for an earlier save of its session",
            code="predecessor_refused",
            session=item.draft.session,
        )
    try:
        return append(item)
    except BackendUnavailable:
        raise
    except StepkeepError as exc:
        return exc
