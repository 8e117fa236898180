"""What cannot be saved: a refusal that collects the path to the place on its way out."""

from __future__ import annotations

from typing import Final

from stepkeep.errors import InvalidInput

NOT_EXACT: Final = "state_not_exact"
TOO_DEEP: Final = "state_too_deep"
TOO_LARGE: Final = "state_too_large"

# Types whose values are short enough for a path.
ATOMS: Final = frozenset({type(None), bool, int, float, str})


SUSPICIOUS: Final = 1 << 17
"""Values that are followed before anyone looks whether shared references multiply."""


class Suspicion(Exception):
    """So many values that the state has to be looked at as a whole."""


class Refusal(Exception):
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


def too_many_values(max_bytes: int) -> Refusal:
    return Refusal(f"holds more values than fit the limit of {max_bytes} bytes: save less", TOO_LARGE)


def contains_itself() -> Refusal:
    return Refusal("contains itself: break the cycle, for example by saving an id")


def step_of(key: object) -> str:
    """One step of a path: `.name`, `["any text"]`, `[1]`, or the type of a key that has no short text."""
    if type(key) is str:
        return "." + key if key.isidentifier() and len(key) <= 80 else f"[{_quoted(_shorten(key))}]"
    if type(key) in ATOMS and not (type(key) is int and key.bit_length() > 64):
        return f"[{key!r}]"
    return f"[<{type(key).__name__}>]"


def _quoted(text: str) -> str:
    import json  # only a refusal needs it

    return json.dumps(text)


def _shorten(text: str) -> str:
    return text if len(text) <= 80 else text[:79] + "…"


def text_of(value: str) -> str:
    try:
        value.encode()
    except UnicodeEncodeError:
        raise Refusal("is text with a lone surrogate, which is not Unicode: repair it") from None
    return value


def name_of(value: object) -> str:
    kind = type(value)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
