"""What a state may hold: the limits of JSON, of size and of sharing, and the error that collects the path to a value.

Saving follows every reference, so a container that is referred to twice is written twice, and twenty levels of such
pairs are a million values. What a state unfolds into is counted without unfolding it: each container once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final

import msgspec

from stepkeep.errors import InvalidInput
from stepkeep.text import shortened

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


def is_repeated(containers: list[Any]) -> bool:
    """Whether most of many containers are the same ones again."""
    return len(containers) > SUSPICIOUS // 2 and 2 * len(set(map(id, containers))) < len(containers)


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


# --- what a container holds


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
    """The fields of a dataclass or a struct; what other objects hold is known only when they are read."""
    if isinstance(value, msgspec.Struct):
        return value.__struct_fields__
    return tuple(getattr(type(value), "__dataclass_fields__", ()))
