"""Values of other types as plain data: subclasses, dataclasses, structs and models."""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Callable
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from typing import Any, Final, cast
from uuid import UUID

import msgspec

from stepkeep.codec.refusal import Refusal, name_of


def known(value: object) -> Any:
    """Return the plain value or data that stands for an object of any other type, or refuse it."""
    for _ in range(8):  # a model may dump into another one, but not for ever
        if type(value) in KINDS:
            return value
        try:
            value = _as_data(value)
        except (Refusal, RecursionError):
            raise
        except Exception as exc:  # the object's own code
            raise Refusal(f"({name_of(value)}) cannot be read as data: {exc!r}") from exc
    raise Refusal(f"({name_of(value)}) turns into other objects without end: save plain data")


def _as_data(value: Any) -> Any:
    kind = type(value)
    for base, plain in _BASES:
        if base in kind.__mro__:
            return plain(value)
    if issubclass(kind, Enum):
        raise Refusal(
            f"is the enum member {name_of(value)}.{value.name}: save its value, or use IntEnum or StrEnum"
        )
    if issubclass(kind, msgspec.Struct):
        return _struct_data(value)
    if dataclasses.is_dataclass(kind):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(kind)}
    if callable(getattr(kind, "model_dump", None)):
        return value.model_dump()
    raise Refusal(
        f"is of type {name_of(value)}, which cannot be saved: save plain data such as {_advice(kind)}"
    )


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


def _advice(kind: type) -> str:
    if hasattr(kind, "tolist"):
        return "its .tolist()"
    if hasattr(kind, "keys"):
        return "dict(it)"
    if hasattr(kind, "__iter__"):
        return "list(it)"
    return "a dict of what is needed to rebuild it"


def _dict_data(value: dict[Any, Any]) -> dict[Any, Any]:
    """A dict subclass as a dict, in its own order (an OrderedDict may differ from its base in that)."""
    own = list(value.items())
    if len(own) != dict.__len__(value) or not all(dict.get(value, key, own) is item for key, item in own):
        raise Refusal(f"is a {name_of(value)} whose items() differ from what it holds: save dict(it)")
    return dict(own)


def _items_of(base: Any) -> Callable[[Any], Any]:
    def plain(value: Any) -> Any:
        own, held = list(value), list(base.__iter__(value))
        if len(own) != len(held) or not all(map(operator.is_, own, held)):
            raise Refusal(
                f"is a {name_of(value)} whose items differ from what it holds: save {base.__name__}(it)"
            )
        return base(held)

    return plain


def _fields_of(base: Any, *names: str) -> Callable[[Any], Any]:
    def plain(value: Any) -> Any:
        result = base(**{name: getattr(base, name).__get__(value) for name in names})
        if value == result:
            return result
        # It holds more than its base, nanoseconds for one.
        raise Refusal(f"is a {name_of(value)} that equals no plain {base.__name__}: convert it first")

    return plain


_DAY: Final = ("year", "month", "day")
_CLOCK: Final = ("hour", "minute", "second", "microsecond", "tzinfo", "fold")

# How a subclass becomes the plain value, by the methods of its base: what a subclass overrides is not asked.
_BASES: Final[tuple[tuple[type, Callable[[Any], Any]], ...]] = (
    (str, str.__str__),
    (int, int.__int__),
    (float, float.__float__),
    (bytes, lambda value: bytes(memoryview(value))),
    (bytearray, lambda value: bytearray(memoryview(value))),
    (dict, _dict_data),
    (list, _items_of(list)),
    (tuple, _items_of(tuple)),
    (set, _items_of(set)),
    (frozenset, _items_of(frozenset)),
    (datetime, _fields_of(datetime, *_DAY, *_CLOCK)),
    (date, _fields_of(date, *_DAY)),
    (time, _fields_of(time, *_CLOCK)),
    (timedelta, _fields_of(timedelta, "days", "seconds", "microseconds")),
    (UUID, lambda value: UUID(int=cast(Any, UUID).int.__get__(value))),
    (Decimal, Decimal),
)
KINDS: Final = frozenset({type(None), bool, *(base for base, _ in _BASES)})
