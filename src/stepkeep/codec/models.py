"""Objects with declared fields: the data they are saved as, and the proof that it is all they hold.

These are dataclasses, msgspec structs, classes of attrs, and models with `model_dump` such as those of pydantic. One is
saved as its data, rebuilt from that as `load(type)` would, and compared with what it was. What would be lost on the way
is refused: the fields of a subclass where the base is declared, excluded fields, private attributes, what a serializer
leaves out, and what a validator changes.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import cached_property, lru_cache
from numbers import Number
from types import MemberDescriptorType
from typing import Any, Final, TypeVar, cast

import msgspec

from stepkeep import typed
from stepkeep.codec.exact import ValidationError, name_of, step_of
from stepkeep.errors import InvalidInput
from stepkeep.text import shortened

T = TypeVar("T")


def is_model(kind: type) -> bool:
    """Whether objects of a class are saved as the data of their fields."""
    return (
        issubclass(kind, msgspec.Struct)
        or hasattr(kind, "__dataclass_fields__")
        or hasattr(kind, "__attrs_attrs__")
        or callable(getattr(kind, "model_dump", None))
    )


def data_of(value: Any) -> Any:
    """The data of a model, from which its class rebuilds it; models below it may be left as they are."""
    kind = type(value)
    if issubclass(kind, msgspec.Struct):
        return _struct_data(value)
    if hasattr(kind, "__dataclass_fields__"):
        from dataclasses import fields  # whoever has one has imported it

        return {field.name: getattr(value, field.name) for field in fields(value)}
    if hasattr(kind, "__attrs_attrs__"):
        return {field.name: getattr(value, field.name) for field in kind.__attrs_attrs__}
    if hasattr(kind, "__pydantic_serializer__"):
        # What is computed is left out: it would be refused as unknown. What is lost is found by comparing.
        return value.model_dump(round_trip=True, warnings=False)
    return value.model_dump()


def _struct_data(value: msgspec.Struct) -> dict[str, Any] | list[Any]:
    """The data from which `msgspec.convert` rebuilds the struct: encoded names, and its tag if it has one."""
    config = value.__struct_config__
    fields = [
        (name, getattr(value, field))
        for name, field in zip(value.__struct_encode_fields__, value.__struct_fields__, strict=True)
    ]
    if config.tag is not None:
        fields.insert(0, (str(config.tag_field), config.tag))
    if config.array_like:
        return [item for _, item in fields]
    return {name: item for name, item in fields if item is not msgspec.UNSET}


def convert(value: object, kind: type[T]) -> T:
    """Rebuild a typed object (dataclass, msgspec struct, model with `model_validate`) from a decoded state.

    Raises:
        InvalidInput: the state does not fit the type (`state_type_mismatch`).
    """
    try:
        if hasattr(kind, "model_validate"):
            return cast(T, _validated(kind, value))
        return typed.convert(value, kind, dec_hook=_validated)
    except Exception as exc:  # validators are foreign code and raise anything
        raise InvalidInput(
            f"the state does not fit {getattr(kind, '__qualname__', kind)}: {exc}",
            code="state_type_mismatch",
            path=_place_of(exc),
        ) from exc


def _place_of(error: Exception) -> str:
    """Where a value does not fit its type, as msgspec and pydantic tell it."""
    if found := re.search(r"`\$\.?([^`]+)`$", str(error)):
        return found[1]
    with suppress(Exception):  # foreign code again
        way = cast(Any, error).errors()[0]["loc"]
        steps = [f"[{step}]" if type(step) is int else f".{step}" for step in way]
        return "".join(steps).removeprefix(".") or "$"
    return "$"


def _validated(kind: Any, value: object) -> Any:
    """A model from data with the names of its fields, or their aliases: it was saved by name."""
    return kind.model_validate(value, **_naming(kind))


@lru_cache(maxsize=256)
def _naming(kind: Any) -> dict[str, bool]:
    """How a model is told to take names: not every release of pydantic knows of it."""
    from inspect import signature

    told = {"by_alias": True, "by_name": True}
    return told if told.keys() <= signature(kind.model_validate).parameters.keys() else {}


def check_comes_back(value: Any, data: Any) -> None:
    """Refuse a model that its class does not rebuild from its stored data as it was.

    Raises:
        ValidationError: with the path to what differs.
    """
    try:
        rebuilt = convert(data, type(value))
    except InvalidInput as exc:
        reason = shortened(" ".join(str(exc.__cause__).split()), 200)
        refusal = ValidationError(
            f"keeps {name_of(value)} from loading from its own data ({reason}): {_ADVICE}"
        )
        if exc.path and exc.path != "$":
            refusal.steps.append(exc.path if exc.path.startswith("[") else f".{exc.path}")
        raise refusal from exc
    _compare(value, rebuilt)


_ADVICE: Final = "save plain data instead, such as a dict of what is needed"


def _compare(saved: Any, loaded: Any) -> None:
    """Refuse what differs. NaN is the same as NaN, and a whole number the same as the float that equals it."""
    if is_model(type(saved)):
        if type(loaded) is not type(saved):
            raise ValidationError(
                f"is of type {name_of(saved)} and would come back as {name_of(loaded)}: "
                f"declare the field so that its type can be told, or {_ADVICE}"
            )
        _compare_items(_attributes(saved), _attributes(loaded))
    elif isinstance(saved, dict) and isinstance(loaded, dict):
        _compare_items(saved, loaded)
    elif any(isinstance(saved, base) and isinstance(loaded, base) for base in (list, tuple)):
        _compare_items(dict(enumerate(saved)), dict(enumerate(loaded)))
    elif not _is_same(saved, loaded):
        raise ValidationError(f"would not come back equal: {_ADVICE}")


def _compare_items(saved: dict[Any, Any], loaded: dict[Any, Any]) -> None:
    for key, item in saved.items():
        try:
            if key not in loaded:
                raise ValidationError(f"would be lost: {_ADVICE}")
            _compare(item, loaded[key])
        except ValidationError as refusal:
            refusal.steps.append(step_of(key))
            raise
    if list(saved) != list(loaded):
        raise ValidationError(f"would come back with other keys, or in another order: {_ADVICE}")


def _is_same(saved: Any, loaded: Any) -> bool:
    kinds = {type(saved), type(loaded)}
    if kinds != {int, float} and (len(kinds) == 2 and (bool in kinds or not _is_subclass(*kinds))):
        return False
    try:
        if isinstance(saved, Number) and saved != saved:
            return bool(loaded != loaded)
        return bool(saved == loaded)
    except Exception:  # an array has no single answer, and foreign code raises anything
        return False


def _is_subclass(one: type, other: type) -> bool:
    """Whether one of two is the other's subclass: those of built-ins are saved as the built-in, on purpose."""
    return issubclass(one, other) or issubclass(other, one)


def _attributes(value: Any) -> dict[str, Any]:
    """All that an object holds by name, also beside its fields, but for what it computed and keeps."""
    found: dict[str, Any] = {}
    kind: Any = type(value)
    slots, computed = _layout(kind)
    for name, read in slots:
        try:
            held = read(value, kind)
        except AttributeError:
            continue
        # Pydantic keeps private attributes and extra fields in a dict each, or has none.
        found.update(held or {}) if name in _PYDANTIC else found.update({name: held})
    own = getattr(value, "__dict__", {})
    return found | {name: held for name, held in own.items() if name not in computed}


_PYDANTIC: Final = ("__pydantic_extra__", "__pydantic_private__")
_NO_DATA: Final = ("__pydantic_fields_set__",)  # no part of what pydantic compares
_Slots = Iterable[tuple[str, Callable[[Any, type], Any]]]


@lru_cache(maxsize=256)
def _layout(kind: Any) -> tuple[_Slots, frozenset[str]]:
    """The slots of a class, and the names of what it computes when that is first asked for."""
    members = [(name, member) for base in kind.__mro__ for name, member in vars(base).items()]
    slots = [
        (name, member.__get__)
        for name, member in members
        if isinstance(member, MemberDescriptorType) and name not in _NO_DATA
    ]
    return slots, frozenset(name for name, member in members if isinstance(member, cached_property))
