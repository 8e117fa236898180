"""How things read: sizes, ages, durations and counts, shortened texts, and texts that cannot harm a terminal. Pure."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import re
    from collections.abc import Iterable, Iterator

MAX_ERROR_BYTES: Final = 16 * 1024
"""How much of an error message a session keeps."""

_HARMFUL: Final = (
    "[\x00-\x1f\x7f-\x9f\xad\u061c\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb\ufffe\uffff"
    "\ud800-\udfff\U000e0000-\U000e007f]"
)
"""Controls, bidirectional controls, line separators, invisible characters and tags, and lone surrogates."""

_NAMED: Final = {"\n": r"\n", "\r": r"\r", "\t": r"\t"}


# --- shortening ------------------------------------------------------------------------------------------------


def shortened(text: str, most: int = 60) -> str:
    """The text in at most that many characters; the last one is `…` when something was cut off."""
    return text if len(text) <= most else text[: most - 1] + "…"


def error_text(error: object) -> str:
    """An error message as a session keeps it: valid UTF-8 without NUL, cut off where it is very long.

    A long traceback must not keep a session from being marked as failed, nor an error that cannot say what it is.
    """
    try:
        said = str(error)
    except Exception as exc:
        said = f"{type(error).__name__}, whose text cannot be read ({type(exc).__name__})"
    encoded = said.encode("utf-8", "replace").replace(b"\0", b"?")
    return encoded[:MAX_ERROR_BYTES].decode("utf-8", "ignore")


def nearest(text: str, words: Iterable[str], *, cutoff: float = 0.6) -> str | None:
    """The word that was probably meant by a text; None when none is like it."""
    import difflib  # takes long, and most texts are right

    return next(iter(difflib.get_close_matches(text, list(words), n=1, cutoff=cutoff)), None)


def did_you_mean(name: str, known: Iterable[str], otherwise: str = "") -> str:
    """`: did you mean 'steps'?` where a known name is close to the given one, else the other hint."""
    near = nearest(name[:80], known, cutoff=0.5)
    hint = otherwise if near is None else f"did you mean {near!r}?"
    return hint and f": {hint}"


# --- how much room a text takes --------------------------------------------------------------------------------

_JOINERS: Final = "\u200c\u200d"
_WIDE_EMOJI: Final = "\ufe0f"


def columns(text: str) -> int:
    """How many columns of a terminal a clean text takes, at most."""
    return len(text) if text.isascii() else sum(map(_columns, text))


@cache
def _columns(char: str) -> int:
    import unicodedata  # most texts are ASCII

    if char == _WIDE_EMOJI:
        return 1  # it can make the character before it wide
    if char in _JOINERS or unicodedata.category(char) in ("Mn", "Me"):
        return 0
    return 2 if unicodedata.east_asian_width(char) in "WF" else 1


def cut(text: str, room: int, *, more: str = "…") -> str:
    """As much of a clean text as fits into so many columns; `more` ends what was cut off."""
    if len(text) <= room and columns(text) <= room:
        return text
    room -= columns(more)
    if room < 0:
        return ""
    taken = 0
    for at, char in enumerate(text):
        taken += _columns(char)
        if taken > room:
            return text[:at] + more
    return text


def wrapped(text: str, room: int) -> list[str]:
    """A clean text in lines of so many columns, broken between words; one that fits into no line has its own."""
    found = [""]
    for word in text.split(" "):
        longer = f"{found[-1]} {word}" if found[-1] else word
        if columns(longer) <= room or not found[-1]:
            found[-1] = longer
        else:
            found.append(word)
    return found


# --- control characters ----------------------------------------------------------------------------------------


def clean_lines(text: str) -> str:
    """Text of several lines, cleaned; all but the first are indented, so that none passes for one of its own."""
    first, *rest = text.split("\n")
    return "\n".join([clean(first), *(f"  {clean(line.strip())}" for line in rest)])


def clean(text: str) -> str:
    """One line of text, with everything a terminal would act upon or hide written as an escape."""
    return text if text.isprintable() else _harmful().sub(lambda match: _escaped(match[0]), text)


def clean_json(document: bytes) -> str:
    """JSON text that means the same, with harmful characters in its strings written as escapes."""
    text = document.decode()
    return text if text.replace("\n", "").isprintable() else _harmful().sub(_json_escaped, text)


@cache
def _harmful() -> re.Pattern[str]:
    import re  # most processes print nothing, and a hook must start fast

    return re.compile(_HARMFUL)


def _escaped(char: str) -> str:
    code = ord(char)
    if code < 0x100:
        return _NAMED.get(char) or f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def _json_escaped(match: re.Match[str]) -> str:
    char = match[0]
    if char in "\n\t":
        return char  # between values: inside a string JSON has them escaped already
    units = char.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[at : at + 2].hex()}" for at in range(0, len(units), 2))


_MAX_INDENTED_BYTES: Final = 1 << 20
_MAX_INDENTATION: Final = 8


def indented(document: bytes) -> bytes:
    """JSON with a line for each value; a large one in a single line, where indentation would be many times its size."""
    import msgspec

    is_deep = len(document) > _MAX_INDENTED_BYTES and _indentation(document) > _MAX_INDENTATION * len(
        document
    )
    return msgspec.json.format(document, indent=0 if is_deep else 2)


def _indentation(document: bytes) -> int:
    """About how many spaces stand at the beginning of the lines."""
    from itertools import accumulate

    steps = [0] * 256
    for opening, closing in (b"[]", b"{}"):
        steps[opening], steps[closing] = 1, -1
    signs = b"".join(part.translate(None, _NO_SIGNS) for part in without_texts(document))
    return 2 * sum(accumulate(map(steps.__getitem__, signs)))


_NO_SIGNS: Final = bytes(set(range(256)) - set(b"[]{},"))
_PART_BYTES: Final = 1 << 18


def without_texts(document: bytes) -> Iterator[bytes]:
    """JSON in parts, with an apostrophe for each text in it: what then looks like a value is one."""
    import re

    # NUL is in no JSON, and stands for the end of a part: a text that goes on in the next one swallows it.
    text = re.compile(rb'"[^"\\\0]*+(?:\\[^\0][^"\\\0]*+)*+[\0"]?+')
    start, lead = 0, b""
    while start < len(document):
        part = document[start : start + _PART_BYTES]
        escapes = len(part) - len(part.rstrip(b"\\"))
        if escapes % 2:
            part += document[start + _PART_BYTES : start + _PART_BYTES + 1]
        start += len(part)
        found = text.sub(b"'", lead + part + b"\0")
        lead = b"" if found.endswith(b"\0") else b'"'
        yield found


def without_lone_surrogates(document: bytes) -> bytes:
    """JSON with U+FFFD for every half of a character, which others write for a text they cut; of the same length."""
    import re  # nearly every document is whole

    return re.sub(_ESCAPES, lambda match: rb"\ufffd" if match[1] else match[0], document)


_ESCAPES: Final = (
    rb"\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|(\\u[dD][89a-fA-F][0-9a-fA-F]{2})|\\."
)
"""An escape in JSON: a character of two halves, half a character, or any other."""


def repeated_key(document: str | bytes) -> str | None:
    """The first key that occurs twice in one object of a JSON document, of which readers keep one or the other.

    None where there is none, and for what is not JSON or is nested too deeply.
    """
    import json  # few programs read documents of others

    objects: list[list[tuple[str, object]]] = []
    try:
        json.loads(document, object_pairs_hook=objects.append)
    except (ValueError, RecursionError):
        return None
    if list(map(len, objects)) == list(map(len, map(dict, objects))):
        return None
    keys = next([key for key, _ in pairs] for pairs in objects if len(dict(pairs)) < len(pairs))
    return next(key for key in keys if keys.count(key) > 1)


def occurs_twice(key: str) -> str:
    """What to say of a key that a JSON document repeats."""
    return f"the key {shortened(key, 40)!r} occurs twice in one object"


# --- numbers ---------------------------------------------------------------------------------------------------


_GIB: Final = 1 << 30


def size(size_bytes: int) -> str:
    """`950B`, `1.5KB`, `950KB`, `1.2MB`, `3.0GB`: decimal units, but a whole number of GiB is told as it was set."""
    if size_bytes and size_bytes % _GIB == 0:
        return f"{size_bytes // _GIB:,}GiB"
    if size_bytes < 1000:
        return f"{size_bytes}B"
    if size_bytes < 9950:
        return f"{size_bytes / 1e3:.1f}KB"
    if size_bytes < 999_500:
        return f"{size_bytes / 1e3:.0f}KB"
    if size_bytes < 999_950_000:
        return f"{size_bytes / 1e6:.1f}MB"
    return f"{size_bytes / 1e9:.1f}GB" if size_bytes < 999_950_000_000 else f"{size_bytes / 1e12:.1f}TB"


def count(number: int, noun: str, plural: str | None = None) -> str:
    """`1 step`, `2,000 steps`, `2 branches`."""
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"


def age(seconds: float) -> str:
    """How long ago, in one whole unit: `45 s`, `20 min`, `3 h`, `2 d`."""
    for unit, length in (("d", 86_400), ("h", 3600), ("min", 60)):
        if seconds >= length:
            return f"{int(seconds // length)} {unit}"
    return f"{max(0, int(seconds))} s"


def duration(seconds: float) -> str:
    """How long it took: `0.4 s`, `12 s`, `3 min 20 s`, `2 h 5 min`."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    minutes, rest = divmod(whole, 60)
    return f"{minutes} min {rest} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


def span(length_us: int) -> str:
    """How much time lies between: `45 s`, `20 min`, `3 h 20 min`, `2 d 3 h`; empty below a second."""
    seconds = length_us // 1_000_000
    if seconds < 120:
        return f"{seconds} s" if seconds else ""
    minutes, hours, days = seconds // 60, seconds // 3600, seconds // 86_400
    if minutes < 120:
        return f"{minutes} min"
    if hours < 48:
        return f"{hours} h {minutes % 60} min" if minutes % 60 else f"{hours} h"
    return f"{days:,} d {hours % 24} h" if hours % 24 else f"{days:,} d"
