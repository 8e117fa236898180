"""Values as they were when they were given, whatever their giver does with them later.

Handlers run at the same time and keep what they return. So every value is copied on its way in and out, by the
encoding it is saved with: what the next step sees is what a resumed run would see.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from stepkeep.codec import exact
from stepkeep.engine import Engine
from stepkeep.engine.engine import NewBody
from stepkeep.errors import InvalidInput


def copy_of(engine: Engine, value: object, *, what: str) -> Any:
    """An independent copy, equal to what loading it gives.

    Raises:
        InvalidInput: it cannot be saved; `.path` names the place, starting with `what`.
    """
    return _value(_kept(engine, value, what))


class Outputs(Mapping[str, Any]):
    """Outputs by step id; each is copied when it is asked for."""

    def __init__(self, outputs: Mapping[str, Any], copy: Callable[[Any], Any]) -> None:
        self._outputs = outputs
        self._copy = copy

    def __getitem__(self, step: str) -> Any:
        return self._copy(self._outputs[step])

    def __iter__(self) -> Iterator[str]:
        return iter(self._outputs)

    def __len__(self) -> int:
        return len(self._outputs)


class Memory:
    """The working memory of a run. A step gets a copy; what it changed is taken over when it is completed.

    Where two steps change the same key at the same time, the one that is completed later wins.
    """

    def __init__(self, engine: Engine, values: Mapping[str, Any]) -> None:
        self._engine = engine
        self._kept = {key: _kept(engine, value, _place(key)) for key, value in values.items()}
        self.values = {key: _value(kept) for key, kept in self._kept.items()}

    def lend(self) -> tuple[dict[str, Any], dict[str, NewBody]]:
        """A copy for a step, and what it is compared with afterwards."""
        return {key: _value(kept) for key, kept in self._kept.items()}, self._kept

    def changes(self, before: Mapping[str, NewBody], after: object) -> dict[str, NewBody | None]:
        """What a step did to its copy: new values, None for a key it removed.

        Raises:
            InvalidInput: a value cannot be saved.
        """
        if not isinstance(after, Mapping):
            raise InvalidInput(
                f"the context is a dict, not {type(after).__name__}", code="state_not_exact", path="context"
            )
        now = {key: _kept(self._engine, value, _place(key)) for key, value in after.items()}
        changed: dict[str, NewBody | None] = {
            key: kept for key, kept in now.items() if before.get(key) != kept
        }
        return changed | {key: None for key in before if key not in now}

    def with_changes(self, changes: Mapping[str, NewBody | None]) -> Memory:
        """The memory after a step's changes; this one stays as it is."""
        if not changes:
            return self
        new = Memory(self._engine, {})
        kept = {**self._kept, **changes}
        new._kept = {key: body for key, body in kept.items() if body is not None}
        new.values = {
            key: self.values[key] if key not in changes else _value(body) for key, body in new._kept.items()
        }
        return new


def _place(key: object) -> str:
    return f"context[{key!r}]"


def _kept(engine: Engine, value: object, what: str) -> NewBody:
    try:
        return engine.encode(value)
    except InvalidInput as exc:
        inner = exc.path or "$"
        place = what + (inner[1:] if inner.startswith("$") else f".{inner}")
        raise InvalidInput(f"{place} cannot be saved: {exc}", code=exc.code, path=place) from exc


def _value(kept: NewBody) -> Any:
    return exact.decode(kept.encoding, kept.content)
