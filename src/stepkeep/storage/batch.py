"""The order inside a batch of appends, the same for every backend."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from stepkeep.errors import BackendUnavailable, Conflict, StepkeepError
from stepkeep.storage.port import REPEATABLE, Append, Appended, Seal


def append_in_order(
    batch: Sequence[Append], append: Callable[[Append, Seal], Appended], seal: Seal
) -> list[Appended | StepkeepError]:
    """Append one by one; each refusal is an outcome of its own.

    After one that is to be sent again, the later ones of its session are refused as well: stored now, they would
    come before it.
    """
    outcomes: list[Appended | StepkeepError] = []
    waiting: set[str] = set()
    for item in batch:
        try:
            if item.draft.session in waiting:
                raise Conflict(
                    f"{item.draft.id} waits for an earlier save of its session",
                    code="predecessor_refused",
                    session=item.draft.session,
                )
            outcomes.append(append(item, seal))
        except BackendUnavailable:
            raise
        except StepkeepError as exc:
            if exc.code in REPEATABLE:
                waiting.add(item.draft.session)
            outcomes.append(exc)
    return outcomes
