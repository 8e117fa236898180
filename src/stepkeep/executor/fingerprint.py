"""Whether two plans are the same work, and what is different if not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from stepkeep.codec import exact
from stepkeep.codec.integrity import digest
from stepkeep.executor.plan import PlanStep

FIELDS: Final = ("action", "parameters", "dependencies")
"""What makes a step another one, beside its id. Descriptions and statuses may change."""


def fingerprint(steps: Sequence[PlanStep]) -> str:
    """A digest of ids, actions, parameters and dependencies, in the plan's order.

    Raises:
        InvalidInput: a parameter cannot be saved.
    """
    return digest(_content([[step.id, *_identity(step)] for step in steps]))


def differences(old: Sequence[PlanStep], new: Sequence[PlanStep]) -> list[str]:
    """What changed from one plan to another, a line for each; empty when they are the same work."""
    before, after = {step.id: step for step in old}, {step.id: step for step in new}
    lines = [f"step {name!r} was removed" for name in before if name not in after]
    lines += [f"step {name!r} was added" for name in after if name not in before]
    for name, step in after.items():
        if name in before and (changed := _changed_fields(before[name], step)):
            lines.append(f"step {name!r} has other {' and '.join(changed)}")
    common = [name for name in before if name in after]
    if common != [name for name in after if name in before]:
        lines.append("the steps are in another order")
    return lines


def _changed_fields(old: PlanStep, new: PlanStep) -> list[str]:
    return [
        name
        for name, was, now in zip(FIELDS, _identity(old), _identity(new), strict=True)
        if _content(was) != _content(now)
    ]


def _identity(step: PlanStep) -> list[Any]:
    return [step.action, _sorted(step.parameters), sorted(step.dependencies)]


def _sorted(value: Any) -> Any:
    """The value with the keys of every dict in one order: it plays no part in what a plan means."""
    if isinstance(value, Mapping):
        return {key: _sorted(value[key]) for key in sorted(value, key=lambda key: (str(key), repr(key)))}
    if type(value) in (list, tuple):
        return type(value)(_sorted(item) for item in value)
    return value


def _content(value: object) -> bytes:
    return exact.encode(value)[1]
