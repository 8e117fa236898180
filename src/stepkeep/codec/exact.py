"""The exact encoding of a state: what `decode` returns equals what `encode` was given, or `encode` refuses.

The bytes are UTF-8 JSON in insertion order. Two encodings exist, and the id is stored beside the bytes:

- `json`: the state is plain JSON data and the document is that data.
- `json+tags`: objects with one key that starts with `$` stand for values JSON lacks; see `codec.tags`.

Exactness is checked on every save. A state of plain data is encoded, decoded and compared with its types.
Any other state is written with tags, read back and written again: the tags are one-to-one, so equal bytes
mean equal values.

Saved as plain data, on purpose: subclasses of built-ins (also enums that are one, named tuples and ordered
dicts), and objects with declared fields that their class rebuilds equal from that data (see `codec.models`). All NaN
floats are one value.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from typing import Any, Final, TypeVar

import msgspec

from stepkeep.errors import SCHEMA_INVALID, Corrupt, InvalidInput, StepkeepError, Unsupported
from stepkeep.text import shortened, without_texts

JSON: Final = "json"
TAGGED: Final = "json+tags"

MAX_DEPTH: Final = 200
MAX_BYTES: Final = 256 * 1024 * 1024

# JSON readers agree on integers of 64 bits; beyond, some return floats and Python limits the digits.
INT_MIN: Final = -(2**63)
INT_MAX: Final = 2**64 - 1

to_json = msgspec.json.Encoder().encode
from_json = msgspec.json.Decoder().decode

NOT_EXACT: Final = "state_not_exact"
TOO_DEEP: Final = "state_too_deep"
TOO_LARGE: Final = "state_too_large"

# Types whose values are short enough for a path.
ATOMS: Final = frozenset({type(None), bool, int, float, str})

SUSPICIOUS: Final = 1 << 17
"""Values that are followed before anyone looks whether shared references multiply."""

MAX_DECODED_BYTES: Final = 1 << 30
"""What a state may take in memory, by the estimate of `is_dense`: a few compressed bytes must not unfold into more."""

# One level of a state is at most three of JSON, and so is a leaf: {"$dict": [[key, value]]}.
_JSON_LEVELS: Final = 3

# A level of nesting that large states rarely reach, unless they contain themselves.
_DEEP: Final = 8

# Containers of one level that are worth remembering.
_FEW: Final = 1000

# So few values are looked at one by one. They cannot be nested deeper than their number.
_HANDFUL: Final = 100

_PLAIN: Final = ATOMS | {dict, list}
_TEXT: Final = {str}

T = TypeVar("T")


def encode(state: object, *, max_depth: int = MAX_DEPTH, max_bytes: int = MAX_BYTES) -> tuple[str, bytes]:
    """Return the encoding id and the bytes from which `decode` rebuilds exactly this state; see `encode_copy`."""
    return encode_copy(state, max_depth=max_depth, max_bytes=max_bytes)[:2]


def encode_copy(
    state: object, *, max_depth: int = MAX_DEPTH, max_bytes: int = MAX_BYTES
) -> tuple[str, bytes, Any]:
    """Return the encoding id, the bytes from which `decode` rebuilds exactly this state, and that of plain data.

    Deterministic: equal states in equal order give equal bytes. The state is not changed, and must not be
    changed by others meanwhile. `max_depth` counts nested containers and is never more than `MAX_DEPTH`, so
    that every process can load what one could save.

    Raises:
        InvalidInput: the state would not come back equal (`state_not_exact`), is nested too deeply
            (`state_too_deep`) or is too large (`state_too_large`); `.path` names the place.
    """
    if not 0 <= max_depth <= MAX_DEPTH:
        raise InvalidInput(f"max_depth is {max_depth}; it must be between 0 and {MAX_DEPTH}")
    try:
        try:
            return _encode(state, max_depth, max_bytes)
        except RecursionError:
            return on_fresh_stack(lambda: _encode(state, max_depth, max_bytes))
    except ValidationError as refusal:
        raise refusal.as_error() from refusal.__cause__
    except TooDeep:
        raise ValidationError(
            "is nested deeper than this interpreter can follow: flatten it", TOO_DEEP
        ).as_error() from None
    except RecursionError:
        raise Unsupported(_STACK_FULL) from None
    except RuntimeError as exc:
        # A dict or set that grows while it is read says so with RuntimeError.
        raise ValidationError(f"changed while it was being saved ({exc}): save a copy").as_error() from exc


def decode(encoding: str, data: bytes, first_at: int = 0) -> Any:
    """Return the state that `encode` was given.

    `first_at` is the position in the state of the key that the bytes have first; see `codec.incremental`.

    Raises:
        Unsupported: the encoding id is unknown, or a time zone is missing on this machine.
        Corrupt: the bytes are not a document of this encoding (`SCHEMA_INVALID`).
    """
    if encoding not in (JSON, TAGGED):
        raise Unsupported(f"unknown state encoding {encoding!r}: a newer release may read it")
    if is_dense(data):
        raise Corrupt("the state unfolds into more than any that is saved", code=SCHEMA_INVALID)
    try:
        try:
            tree = _decode(encoding, data)
        except RecursionError:
            tree = on_fresh_stack(lambda: _decode(encoding, data))
        return tree if first_at == 0 else _in_order(tree, first_at)
    except TooDeep:
        raise _too_deep_to_read() from None
    except RecursionError:
        raise Unsupported(_STACK_FULL) from None
    except msgspec.MsgspecError as exc:
        raise Corrupt(f"the state is not valid JSON: {exc}", code=SCHEMA_INVALID) from exc
    except (AttributeError, TypeError, ValueError, LookupError, ArithmeticError, OSError) as exc:
        raise Corrupt(
            f"the state does not follow its encoding {encoding}: {exc}", code=SCHEMA_INVALID
        ) from exc


# --- what a state takes in memory ---------------------------------------------------------------------------

# About what Python takes for each beside the text. The densest JSON is `{},`, with less than 80 bytes for each byte.
# An apostrophe stands for a whole text.
_WEIGHTS: Final = ((b",", 40), (b"[", 96), (b"{", 192), (b'"', 16), (b"'", 32))
NEVER_DENSE_BYTES: Final = MAX_DECODED_BYTES // 80


def is_dense(content: bytes) -> bool:
    """Whether JSON decodes to more than `MAX_DECODED_BYTES`. Only a large content is looked at.

    No state that is saved is dense, so one that is read and is dense was made by someone else.
    """
    if len(content) <= NEVER_DENSE_BYTES or _weight(content) <= MAX_DECODED_BYTES:
        return False
    return sum(map(_weight, without_texts(content))) > MAX_DECODED_BYTES


def _weight(content: bytes) -> int:
    return len(content) + sum(weight * content.count(char) for char, weight in _WEIGHTS)


# --- what cannot be saved -----------------------------------------------------------------------------------


class Suspicion(Exception):
    """So many values that the state has to be looked at as a whole."""


class ValidationError(Exception):
    """What cannot be saved. Each container it passes adds one step of the path."""

    def __init__(self, problem: str, code: str = NOT_EXACT) -> None:
        super().__init__(problem)
        self.problem = problem
        self.code = code
        self.steps: list[str] = []

    def as_error(self) -> InvalidInput:
        path = "".join(reversed(self.steps))
        path = path[1:] if path.startswith(".") else "$" + path
        return InvalidInput(f"cannot save the state: {path} {self.problem}", code=self.code, path=path)


def too_many_bytes(size: int, max_bytes: int) -> ValidationError:
    return ValidationError(f"takes {size} bytes, more than the limit of {max_bytes}: save less", TOO_LARGE)


def too_many_values(max_bytes: int) -> ValidationError:
    return ValidationError(f"holds more values than fit the limit of {max_bytes} bytes: save less", TOO_LARGE)


def contains_itself() -> ValidationError:
    return ValidationError("contains itself: break the cycle, for example by saving an id")


def step_of(key: object) -> str:
    """One step of a path: `.name`, `["any text"]`, `[1]`, or the type of a key that has no short text."""
    if type(key) is str:
        if key.isidentifier() and len(key) <= 80:
            return "." + key
        import json  # only a refusal needs it

        return f"[{json.dumps(shortened(key, 80))}]"
    if type(key) in ATOMS and not (type(key) is int and key.bit_length() > 64):
        return f"[{key!r}]"
    return f"[<{type(key).__name__}>]"


def text_of(value: str) -> str:
    try:
        value.encode()
    except UnicodeEncodeError:
        raise ValidationError("is text with a lone surrogate, which is not Unicode: repair it") from None
    return value


def name_of(value: object) -> str:
    kind = type(value)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


# --- room on the stack --------------------------------------------------------------------------------------

_STACK_FULL: Final = "the call stack is full, which says nothing of the state: call from less deep"


class TooDeep(Exception):
    """Even a fresh stack was too short: the state is to blame, or the recursion limit, but not the caller."""


def on_fresh_stack(work: Callable[[], T]) -> T:
    """Run `work` on the stack of a new thread, because the caller's left it too little room.

    Raises:
        TooDeep: even a fresh stack was too short.
        RecursionError: the caller's stack had no room even for that.
    """
    results: list[T] = []
    failures: list[BaseException] = []

    def run() -> None:
        try:
            results.append(work())
        except BaseException as exc:  # handed to the waiting caller
            failures.append(exc)

    try:
        thread = threading.Thread(target=run, name="stepkeep-codec", daemon=True)
        thread.start()
        thread.join()
    except RuntimeError as exc:
        raise RecursionError("no thread could be started") from exc
    if failures:
        raise TooDeep if isinstance(failures[0], RecursionError) else failures[0]
    return results[0]


def _too_deep_to_read() -> StepkeepError:
    if sys.getrecursionlimit() < 1000:
        return Unsupported("the recursion limit is too low to read this state: see sys.setrecursionlimit")
    return Corrupt("the state is nested deeper than any that is saved", code=SCHEMA_INVALID)


# --- writing ------------------------------------------------------------------------------------------------


def _encode(state: object, max_depth: int, max_bytes: int) -> tuple[str, bytes, Any]:
    found = plain(state, max_depth, max_bytes)
    if found is not None:
        return JSON, *found
    from stepkeep.codec.tags import Tagger, untag  # they import much, and most states are plain data

    tagger = Tagger(max_depth, max_bytes, is_suspicious=True)
    try:
        tree = tagger.tag(state, 1)
    except Suspicion:
        check_sharing(state, max_bytes)
        tagger = Tagger(max_depth, max_bytes)
        tree = tagger.tag(state, 1)
    found = plain(tree, _JSON_LEVELS * (max_depth + 1), max_bytes)
    if found is None:
        raise ValidationError("does not survive JSON")
    data, copy = found
    if not tagger.tagged:
        return JSON, data, copy
    again = Tagger(max_depth, max_bytes).tag(untag(from_json(data)), 1)
    if to_json(again) != data:
        raise ValidationError("would not come back equal")
    return TAGGED, data, None


def plain(state: object, max_depth: int = MAX_DEPTH, max_bytes: int = MAX_BYTES) -> tuple[bytes, Any] | None:
    """The JSON of plain data and what it decodes to, or None where the bytes would not give back exactly this value.

    Only exact built-in types get as far as `==`, so no foreign `__eq__` is asked. What `==` overlooks (1 and
    1.0 and True, 0.0 and -0.0) has different texts in JSON, and order is kept: a test pins that of msgspec.

    Raises:
        ValidationError: it is too large.
    """
    if not _is_plain(state, max_depth, max_bytes):
        return None
    try:
        data = to_json(state)
    except UnicodeEncodeError:  # a lone surrogate: the tagger finds its path
        return None
    if len(data) > max_bytes:
        raise too_many_bytes(len(data), max_bytes)
    decoded = from_json(data)
    return (data, decoded) if decoded == state else None


def _is_plain(root: object, max_depth: int, max_bytes: int) -> bool:
    """Whether a value consists of exact JSON types only, with integers of 64 bits, within the depth limit.

    The walk goes level by level, so that the depth of the stack plays no part, and counts before it collects,
    so that shared references cannot multiply beyond the limit (a value takes two bytes, its comma included).
    Where there are many values on deep levels, or mostly the same ones, it is counted what they unfold into.
    """
    if max_depth >= _HANDFUL and _left_of(_HANDFUL, (root,)) >= 0:
        return True
    count = 0
    is_checked = False
    seen: set[int] = set()
    level: list[Any] = [root]
    for depth in range(max_depth + 1):
        if not set(map(type, level)) <= _PLAIN:
            return False
        lists: list[Any] = []
        dicts: list[Any] = []
        for value in level:
            kind = type(value)
            if kind is dict:
                dicts.append(value)
            elif kind is list:
                lists.append(value)
            elif kind is int and not INT_MIN <= value <= INT_MAX:
                return False
        if not lists and not dicts:
            return True
        count += sum(map(len, lists)) + sum(map(len, dicts))
        if count > max_bytes // 2:
            check_sharing(root, max_bytes)
            raise too_many_values(max_bytes)
        if count > SUSPICIOUS and not is_checked and (depth >= _DEEP or _is_repeated(lists, dicts, seen)):
            check_sharing(root, max_bytes)
            is_checked = True
        if len(lists) + len(dicts) <= _FEW:
            seen.update(map(id, lists), map(id, dicts))
        if not set(map(type, chain.from_iterable(dicts))) <= _TEXT:
            return False
        level = [*chain.from_iterable(lists), *chain.from_iterable(map(dict.values, dicts))]
    return False


def _left_of(most: int, values: Iterable[Any]) -> int:
    """How many of `most` values are left after these and all in them; below 0 if one is not plain, or there are more.

    Most of what is saved is small, or new in something large: this is several times quicker for a few.
    """
    for value in values:
        if most <= 0:
            return -1
        most -= 1
        kind = type(value)
        if kind is int:
            most = most if INT_MIN <= value <= INT_MAX else -1
        elif kind is list:
            most = _left_of(most, value)
        elif kind is dict:
            most = _left_of(most, value.values()) if set(map(type, value)) <= _TEXT else -1
        elif kind not in ATOMS:
            return -1
    return most


def _is_repeated(lists: list[Any], dicts: list[Any], seen: set[int]) -> bool:
    """Whether many containers are mostly the same ones, or a few were met further up already."""
    if len(lists) + len(dicts) <= _FEW:
        return not seen.isdisjoint(map(id, chain(lists, dicts)))
    return any(
        len(each) > SUSPICIOUS // 2 and 2 * len(set(map(id, each))) < len(each) for each in (lists, dicts)
    )


def _decode(encoding: str, data: bytes) -> Any:
    tree = from_json(data)
    if encoding != TAGGED:
        return tree
    from stepkeep.codec.tags import untag

    return untag(tree)


def _in_order(tree: dict[str, Any], first_at: int) -> dict[str, Any]:
    """A dict with its first key at another position."""
    items = list(tree.items())
    items.insert(first_at, items.pop(0))
    return dict(items)


# --- shared references --------------------------------------------------------------------------------------
#
# Saving follows every reference, so a container that is referred to twice is written twice, and twenty levels of such
# pairs are a million values. What a state unfolds into is counted without unfolding it: each container once.

_MANY: Final = 1 << 22
_TIMES: Final = 1000


class _Container:
    """A container on the way: the step that leads to it, what is to be looked at below, and the count so far."""

    __slots__ = ("below", "step", "unfolded", "value")

    def __init__(self, value: Any, step: str) -> None:
        self.value = value
        self.step = step
        self.below: Iterator[tuple[str, Any]] = iter(_steps(value))
        self.unfolded = 1 + _size(value)


def check_sharing(root: object, max_bytes: int) -> None:
    """Refuse a state that contains itself, or unfolds beyond the limit or far beyond what it holds.

    Few shared references never come near: below the limit of bytes, only more than four million values that are a
    thousand times what is really there are refused.
    """
    counted: dict[int, _Container] = {}  # places keep their containers, so that no other gets the same id
    held = _count_all(root, counted)
    unfolded = counted[id(root)].unfolded
    if unfolded > max_bytes // 2:
        limit = max_bytes // 2
    elif unfolded > max(_MANY, _TIMES * held):
        limit = max(_MANY, _TIMES * held)
    else:
        return
    place = _guilty(counted[id(root)], counted, limit)
    if held > max_bytes // 2:
        raise _at(place, too_many_values(max_bytes))
    amount = f"{place[-1].unfolded:,}" if place[-1].unfolded < 10**15 else "countless"
    raise _at(
        place,
        ValidationError(
            f"refers to the same values over and over, {amount} values when written out: "
            "save each once, and refer to it by an id",
            TOO_LARGE,
        ),
    )


def _count_all(root: object, counted: dict[int, _Container]) -> int:
    """Count what each container unfolds into; returns how many values the containers hold, each taken once."""
    held = 0
    way = [_Container(root, "")]
    on_way = {id(root)}
    while way:
        place = way[-1]
        for step, child in place.below:
            if id(child) in on_way:
                raise _at([*way, _Container(None, step)], contains_itself())
            if (known := counted.get(id(child))) is None:
                way.append(_Container(child, step))
                on_way.add(id(child))
                break
            place.unfolded += known.unfolded - 1
        else:
            way.pop()
            on_way.discard(id(place.value))
            counted[id(place.value)] = place
            held += _size(place.value)
            if way:
                way[-1].unfolded += place.unfolded - 1
    return held


def _guilty(place: _Container, counted: dict[int, _Container], limit: int) -> list[_Container]:
    """The way to the innermost container that alone is to blame."""
    way = [place]
    while True:
        children = [
            (step, counted[id(child)]) for step, child in _steps(way[-1].value) if id(child) in counted
        ]
        guilty = [(step, child) for step, child in children if child.unfolded > limit]
        if len(guilty) != 1:
            return way
        step, child = guilty[0]
        way.append(_Container(child.value, step))
        way[-1].unfolded = child.unfolded


def _at(way: list[_Container], refusal: ValidationError) -> ValidationError:
    refusal.steps += [place.step for place in reversed(way)]
    return refusal


def _size(value: Any) -> int:
    return len(value) if isinstance(value, dict | list | tuple | set | frozenset) else len(_fields(value))


def _steps(value: Any) -> Iterable[tuple[str, Any]]:
    """The values below that may hold others, keys of a dict included, each with its step of the path."""
    if isinstance(value, dict):
        for key, item in dict.items(value):
            if type(key) not in ATOMS:
                yield step_of(key), key
            if type(item) not in ATOMS:
                yield step_of(key), item
    elif isinstance(value, list | tuple):
        yield from ((f"[{at}]", item) for at, item in enumerate(value) if type(item) not in ATOMS)
    elif isinstance(value, set | frozenset):
        yield from (("{}", item) for item in value if type(item) not in ATOMS)
    else:
        for name in _fields(value):
            item = getattr(value, name, None)
            if type(item) not in ATOMS:
                yield step_of(name), item


def _fields(value: Any) -> tuple[str, ...]:
    """The declared fields of an object; what a pydantic model and other objects hold is known only when read."""
    if isinstance(value, msgspec.Struct):
        return value.__struct_fields__
    kind = type(value)
    of_attrs = [field.name for field in getattr(kind, "__attrs_attrs__", ())]
    return (*getattr(kind, "__dataclass_fields__", ()), *of_attrs)
