"""Where an object that was read back differs from the one that was put."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from pydantic import BaseModel

from stepkeep.codec.refusal import Refusal, name_of, step_of


class Difference:
    """The innermost place that differs; each container around it adds one step of the path."""

    def __init__(self, put: object, loaded: object) -> None:
        self._put = put
        self._loaded = loaded
        self.steps: list[str] = []

    def refusal(self) -> Refusal:
        """Why it cannot be stored. Allowing a class helps only where something else came back in its place."""
        kind = type(self._put)
        advice = "keep plain data there"
        if type(self._loaded) is not kind and kind.__module__ != "builtins":
            advice = f"allow its class with StepkeepSaver(…, allow=[{kind.__name__}]), or {advice}"
        refusal = Refusal(
            f"is a {name_of(self._put)} and would come back as a different {name_of(self._loaded)}: {advice}"
        )
        refusal.steps = self.steps
        return refusal


def difference(put: Any, loaded: Any) -> Difference | None:
    """The first place where they are not equal, None if there is none. NaN is the same as NaN."""
    if _is_equal(put, loaded):
        return None
    if type(put) is not type(loaded):
        return Difference(put, loaded)
    if type(put) is float:
        return None if put != put and loaded != loaded else Difference(put, loaded)
    pairs = _pairs(put, loaded)
    if pairs is None:
        return Difference(put, loaded)
    for key, part, loaded_part in pairs:
        found = difference(part, loaded_part)
        if found is not None:
            found.steps.append(step_of(key))
            return found
    return None


def _is_equal(put: Any, loaded: Any) -> bool:
    try:
        return bool(put == loaded)
    except Exception:  # an array has no single answer, and foreign code may raise anything
        return False


def _pairs(put: Any, loaded: Any) -> Iterable[tuple[Any, Any, Any]] | None:
    """What two values of one type are made of, with the keys; None if they cannot be compared part by part."""
    kind = type(put)
    if kind is list or kind is tuple:
        return zip(range(len(put)), put, loaded, strict=True) if len(put) == len(loaded) else None
    if kind is dict:
        return (
            [(key, part, loaded[key]) for key, part in put.items()] if put.keys() == loaded.keys() else None
        )
    if issubclass(kind, BaseModel) and kind.__eq__ is BaseModel.__eq__:
        return _pairs(_fields(put), _fields(loaded))
    return None


def _fields(model: BaseModel) -> dict[str, Any]:
    """All that a model compares."""
    return {**model.__dict__, **(model.__pydantic_extra__ or {}), **(model.__pydantic_private__ or {})}
