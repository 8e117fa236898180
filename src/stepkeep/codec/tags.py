"""Tags for what JSON lacks: an object with exactly one key that starts with `$`.

| tag | body |
|---|---|
| `$int` | hexadecimal text, for integers beyond 64 bits (no limit on digits applies to it) |
| `$float` | `nan`, `inf` or `-inf` |
| `$bytes`, `$bytearray` | base64 |
| `$datetime`, `$time` | ISO 8601 text, or `[local text, fold, zone key or [microseconds, name]]` |
| `$date`, `$uuid`, `$decimal` | their text |
| `$timedelta` | `[days, seconds, microseconds]` |
| `$tuple` | the items |
| `$set`, `$frozenset` | the items, sorted by their encoded bytes |
| `$dict` | `[key, value]` pairs: keys that are not text, and one-key objects that look like a tag |

The table is closed: reading never imports or calls what stored bytes name.
"""

from __future__ import annotations

import binascii
import math
import operator
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable
from datetime import date, datetime, time, timedelta, timezone, tzinfo
from decimal import Context, Decimal
from enum import Enum
from typing import Any, Final, cast
from uuid import UUID
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from stepkeep.codec.exact import (
    ATOMS,
    INT_MAX,
    INT_MIN,
    TOO_DEEP,
    Suspicion,
    ValidationError,
    contains_itself,
    from_json,
    name_of,
    step_of,
    text_of,
    to_json,
    too_many_values,
)
from stepkeep.codec.models import check_comes_back, data_of, is_model
from stepkeep.errors import StepkeepError, Unsupported


def known(value: object) -> Any:
    """Return the plain value or data that stands for an object of any other type, or refuse it."""
    for _ in range(8):  # a model may dump into another one, but not for ever
        if type(value) in KINDS:
            return value
        try:
            value = _as_data(value)
        except (ValidationError, RecursionError):
            raise
        except Exception as exc:  # the object's own code
            raise ValidationError(f"({name_of(value)}) cannot be read as data: {exc!r}") from exc
    raise ValidationError(f"({name_of(value)}) turns into other objects without end: save plain data")


def _as_data(value: Any) -> Any:
    kind = type(value)
    for base, plain in _BASES:
        if base in kind.__mro__:
            if is_model(kind):
                raise ValidationError(
                    f"is of type {name_of(value)}, a {base.__name__} with fields beside it: save both as plain data"
                )
            return plain(value)
    if issubclass(kind, Enum):
        raise ValidationError(
            f"is the enum member {name_of(value)}.{value.name}: save its value, or use IntEnum or StrEnum"
        )
    if is_model(kind):
        return data_of(value)
    raise ValidationError(
        f"is of type {name_of(value)}, which cannot be saved: save plain data such as {_advice(kind)}"
    )


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
        raise ValidationError(f"is a {name_of(value)} whose items() differ from what it holds: save dict(it)")
    return dict(own)


def _items_of(base: Any) -> Callable[[Any], Any]:
    def plain(value: Any) -> Any:
        own, held = list(value), list(base.__iter__(value))
        if len(own) != len(held) or not all(map(operator.is_, own, held)):
            raise ValidationError(
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
        raise ValidationError(f"is a {name_of(value)} that equals no plain {base.__name__}: convert it first")

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


# Containers that came before, until it is counted how often they come in all.
_OFTEN: Final = 4096


class Tagger:
    """Turns a state into JSON data with tags, refusing with a path what the tags cannot hold.

    Two frames lie between one level and the next, so that a fresh stack bears the deepest state. With
    `is_suspicious`, containers that come again and again raise `Suspicion`: how often they will is not seen from here.
    """

    def __init__(self, max_depth: int, max_bytes: int, *, is_suspicious: bool = False) -> None:
        self.tagged = False
        self._max_depth = max_depth
        self._max_bytes = max_bytes
        self._room = max_bytes // 2
        self._met: set[int] | None = set() if is_suspicious else None
        self._met_again = 0
        self._open: set[int] = set()
        self._in_model = False

    def tag(self, value: Any, depth: int) -> Any:
        """Return the JSON data for `value`; a container here is at nesting level `depth`."""
        kind = type(value)
        if kind is str and value.isascii():
            return value
        if kind in ATOMS:
            return self._atom(value, kind)
        origin = value
        if kind not in KINDS:
            if not self._in_model and is_model(kind):
                return self._model(value, depth)
            value = known(value)
            kind = type(value)
            if kind in ATOMS:
                return self._atom(value, kind)
        if kind in _WRITERS:
            tag, write = _WRITERS[kind]
            return self._mark(tag, write(value))
        self._enter(origin, len(value), depth)
        try:
            if kind is dict:
                return (self._dict if _has_text_keys(value) else self._pairs)(value, depth + 1)
            if kind is list:
                return self._list(value, depth + 1)
            if kind is tuple:
                return self._mark("$tuple", self._list(value, depth + 1))
            return self._mark("$set" if kind is set else "$frozenset", self._set(value, depth + 1))
        finally:
            self._open.discard(id(origin))

    def _model(self, value: Any, depth: int) -> Any:
        """Tag an object that is saved as data and proven to come back, with all objects within it."""
        self._in_model = True
        try:
            tree = self.tag(value, depth)
        finally:
            self._in_model = False
        check_comes_back(value, _again(tree))
        return tree

    def _enter(self, origin: object, size: int, depth: int) -> None:
        if id(origin) in self._open:
            raise contains_itself()
        if depth > self._max_depth:
            raise ValidationError(f"is nested more than {self._max_depth} levels deep: flatten it", TOO_DEEP)
        self._room -= size
        if self._room < 0:
            raise too_many_values(self._max_bytes)
        if self._met is not None:
            self._met_again += id(origin) in self._met
            self._met.add(id(origin))
            if self._met_again > _OFTEN:
                raise Suspicion
        self._open.add(id(origin))

    def _mark(self, tag: str, body: Any) -> dict[str, Any]:
        self.tagged = True
        return {tag: body}

    def _atom(self, value: Any, kind: type) -> Any:
        if kind is str:
            return text_of(value)
        if kind is int and not INT_MIN <= value <= INT_MAX:
            return self._mark("$int", hex(value))
        if kind is float and not math.isfinite(value):
            return self._mark("$float", repr(value))
        return value

    def _list(self, values: Iterable[Any], depth: int) -> list[Any]:
        items: list[Any] = []
        try:
            for value in values:
                items.append(self.tag(value, depth))
        except ValidationError as refusal:
            refusal.steps.append(f"[{len(items)}]")
            raise
        return items

    def _set(self, values: Collection[Any], depth: int) -> list[Any]:
        items: list[Any] = []
        try:
            for value in values:
                items.append(self._key(value, depth))
        except ValidationError as refusal:
            refusal.steps.append("{}")
            raise
        _check_distinct(values, items)
        return sorted(items, key=to_json)

    def _dict(self, values: dict[Any, Any], depth: int) -> Any:
        tree: dict[str, Any] = {}
        key: Any = None
        try:
            for key, value in values.items():
                tree[key if key.isascii() else text_of(key)] = self.tag(value, depth)
        except ValidationError as refusal:
            refusal.steps.append(step_of(key))
            raise
        return self._mark("$dict", [[key, tree[key]]]) if _is_tag(tree) else tree

    def _pairs(self, values: dict[Any, Any], depth: int) -> Any:
        """Tag a dict with keys of any type; where all become text, it is an object like any other."""
        pairs: list[list[Any]] = []
        key: Any = None
        try:
            for key, value in values.items():
                pairs.append([self._key(key, depth), self.tag(value, depth)])
        except ValidationError as refusal:
            refusal.steps.append(step_of(key))
            raise
        _check_distinct(values, [key for key, _ in pairs])
        if all(type(key) is str for key, _ in pairs) and not _is_tag(tree := dict(pairs)):
            return tree
        return self._mark("$dict", pairs)

    def _key(self, value: Any, depth: int) -> Any:
        """Tag what a dict or set finds by its hash; a frozen dataclass, for one, loses its hash as data."""
        if type(value) in ATOMS:
            return self._atom(value, type(value))
        tree = self.tag(value, depth)
        try:
            hash(_again(tree))
        except TypeError:
            raise ValidationError(
                "is a key or set element that comes back unhashable: use a tuple or text"
            ) from None
        return tree


_MAX_SAME_HASH: Final = 64
"""So many keys of one dict may have the same hash: each is compared with all others, and hashes can be chosen."""


def _has_many_collisions(keys: Collection[Any]) -> bool:
    return len(keys) > _MAX_SAME_HASH and max(Counter(map(hash, keys)).values()) > _MAX_SAME_HASH


def _check_distinct(values: Collection[Any], trees: list[Any]) -> None:
    """Refuse keys or elements that differ only by their subclass, since they come back as one."""
    if _has_many_collisions(values):
        raise ValidationError("holds too many keys or elements with the same hash: use other ones")
    if all(type(value) in ATOMS for value in values):
        return
    if len(set(map(_again, trees))) != len(trees):
        raise ValidationError(
            "holds keys or elements that come back as the same plain value: make them differ"
        )


def _again(tree: Any) -> Any:
    """Return the value that `tree` stands for, leaving `tree` as it is."""
    return untag(from_json(to_json(tree)))


def _has_text_keys(values: dict[Any, Any]) -> bool:
    return not [key for key in values if type(key) is not str]


def _is_tag(tree: dict[str, Any]) -> bool:
    """Whether an object reads as a tag: exactly one key, which starts with `$`."""
    if len(tree) != 1:
        return False
    (key,) = tree
    return key.startswith("$")


# --- bodies of tags

_MICROSECOND: Final = timedelta(microseconds=1)


def _write_bytes(value: bytes | bytearray) -> str:
    return binascii.b2a_base64(value, newline=False).decode()


def _read_bytes(body: str) -> bytes:
    return binascii.a2b_base64(body, strict_mode=True)


def _write_clock(value: datetime | time) -> str | list[Any]:
    tz = value.tzinfo
    if value.fold == 0 and (tz is None or _is_common(tz)):
        return value.isoformat()
    zone: str | list[Any] | None = None
    if type(tz) is ZoneInfo:
        zone = _zone_key(tz, value)
    elif type(tz) is timezone:
        zone = [tz.utcoffset(None) // _MICROSECOND, text_of(tz.tzname(None)) if _is_named(tz) else None]
    elif tz is not None:
        raise ValidationError(
            f"has a time zone of type {name_of(tz)}: use datetime.timezone or zoneinfo.ZoneInfo"
        )
    return [value.replace(tzinfo=None).isoformat(), value.fold, zone]


def _is_common(tz: tzinfo) -> bool:
    """Whether ISO text holds all of a zone. Python reads an offset of less than a second as UTC."""
    return type(tz) is timezone and not tz.utcoffset(None) % timedelta(minutes=1) and not _is_named(tz)


def _is_named(tz: timezone) -> bool:
    return tz.tzname(None) != timezone(tz.utcoffset(None)).tzname(None)


def _zone_key(tz: ZoneInfo, value: datetime | time) -> str:
    """The key by which a zone is found again, if it gives the same zone."""
    try:
        found = _zone(tz.key)
    except (StepkeepError, TypeError, ValueError, OSError):
        found = None
    if found is None or value.replace(tzinfo=found).utcoffset() != value.utcoffset():
        raise ValidationError(
            f"has the time zone {tz!s}, which has no key to find it again: use ZoneInfo(key)"
        )
    return tz.key


def _zone(key: str) -> ZoneInfo:
    # Zone data may lie in a package whose modules are named by the key: only plain names get there.
    if not re.fullmatch(r"[A-Za-z0-9_+-]+(/[A-Za-z0-9_+-]+)*", key):
        raise ValueError(f"{key!r} is not the key of a time zone")
    try:
        return ZoneInfo(key)
    except ZoneInfoNotFoundError as exc:
        raise Unsupported(f"this machine has no time zone {key}: install the package tzdata") from exc


def _read_clock(base: Any) -> Callable[[Any], Any]:
    def read(body: Any) -> Any:
        if type(body) is str:
            return base.fromisoformat(body)
        text, fold, zone = _list_of(body)
        return base.fromisoformat(text).replace(tzinfo=_read_zone(zone), fold=fold)

    return read


def _read_zone(zone: Any) -> tzinfo | None:
    if zone is None:
        return None
    if type(zone) is str:
        return _zone(zone)
    offset, name = _list_of(zone)
    return timezone(offset * _MICROSECOND) if name is None else timezone(offset * _MICROSECOND, name)


def _read_decimal(body: str) -> Decimal:
    value = Decimal(body)
    # A context that does not trap turns any text into NaN.
    if _decimal_text(value) != body:
        raise ValueError(f"{body!r} is not a valid decimal number")
    return value


def _read_int(body: str) -> int:
    value = int(body, 16)
    if hex(value) != body:
        raise ValueError("a large integer is not written in hexadecimal")
    return value


def _read_unique(base: Callable[[Iterable[Any]], Any]) -> Callable[[Any], Any]:
    def read(body: Any) -> Any:
        values = base(_hashable([untag(item) for item in _list_of(body)]))
        if len(values) != len(body):
            raise ValueError("a set holds the same element twice")
        return values

    return read


def _read_dict(body: Any) -> dict[Any, Any]:
    pairs = [(untag(key), untag(value)) for key, value in map(_list_of, _list_of(body))]
    _hashable([key for key, _ in pairs])
    values = dict(pairs)
    if len(values) != len(body):
        raise ValueError("a dict holds the same key twice")
    return values


def _hashable(keys: list[Any]) -> list[Any]:
    if _has_many_collisions(keys):
        raise ValueError("a dict or a set holds too many keys with the same hash")
    return keys


def _list_of(body: Any) -> list[Any]:
    if type(body) is not list:
        raise ValueError("a tag lacks its list")
    return body


# `str` of a Decimal depends on the caller's context; this does not, and never rounds.
_decimal_text: Final = Context(capitals=1).to_sci_string
_FLOATS: Final = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}

_WRITERS: Final[dict[type, tuple[str, Callable[[Any], Any]]]] = {
    bytes: ("$bytes", _write_bytes),
    bytearray: ("$bytearray", _write_bytes),
    datetime: ("$datetime", _write_clock),
    date: ("$date", date.isoformat),
    time: ("$time", _write_clock),
    timedelta: ("$timedelta", lambda value: [value.days, value.seconds, value.microseconds]),
    UUID: ("$uuid", UUID.__str__),
    Decimal: ("$decimal", _decimal_text),
}

READERS: Final[dict[str, Callable[[Any], Any]]] = {
    "$int": _read_int,
    "$float": lambda body: _FLOATS[body] + 0.0,
    "$bytes": _read_bytes,
    "$bytearray": lambda body: bytearray(_read_bytes(body)),
    "$datetime": _read_clock(datetime),
    "$date": date.fromisoformat,
    "$time": _read_clock(time),
    "$timedelta": lambda body: timedelta(*_list_of(body)),
    "$uuid": UUID,
    "$decimal": _read_decimal,
    "$tuple": lambda body: tuple(untag(_list_of(body))),
    "$set": _read_unique(set),
    "$frozenset": _read_unique(frozenset),
    "$dict": _read_dict,
}


# --- reading


def untag(tree: Any) -> Any:
    """Return the value that JSON data with tags stands for; lists and objects of `tree` are reused."""
    if type(tree) is list:
        for index, item in enumerate(tree):
            if type(item) is dict or type(item) is list:
                tree[index] = untag(item)
    elif type(tree) is dict:
        if len(tree) == 1 and _is_tag(tree):
            ((tag, body),) = tree.items()
            if tag not in READERS:
                raise ValueError(f"unknown tag {tag!r}")
            return READERS[tag](body)
        for key, item in tree.items():
            if type(item) is dict or type(item) is list:
                tree[key] = untag(item)
    return tree
