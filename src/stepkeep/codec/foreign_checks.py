"""Checksums that other systems wrote into their documents, confirmed where the covered bytes can be found; pure.

A specification that says "a checksum" leaves open what it covers. The usual answers are tried: the text before the
last line, the document without its integrity member, with an empty checksum in it, the payload, each in the usual
ways of writing JSON. A SHA-256 that one of them has is confirmed: it cannot be met by chance.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from hashlib import sha256
from typing import Any, Final

_DIGEST: Final = re.compile(r"(?:sha-?256[:=])?([0-9a-f]{64})", re.IGNORECASE)
_MEMBERS: Final = ("integrity", "integrity_hash", "checksum")
_INSIDE: Final = ("checksum", "sha256", "hash", "integrity_hash")
_COMPACT: Final = (",", ":")
_STYLES: Final[tuple[dict[str, Any], ...]] = tuple(
    {"sort_keys": is_sorted, "ensure_ascii": is_ascii, **shape}
    for is_sorted in (True, False)
    for is_ascii in (True, False)
    for shape in ({"separators": _COMPACT}, {}, {"indent": 2})
)


def claimed(document: Mapping[str, Any]) -> str | None:
    """The SHA-256 that a document says it has, in small letters; None when it names none that we know."""
    for name in _MEMBERS:
        given = document.get(name)
        words = [given] if isinstance(given, str) else []
        if isinstance(given, Mapping):
            words = [given[inside] for inside in _INSIDE if isinstance(given.get(inside), str)]
        for word in words:
            if (found := _DIGEST.fullmatch(word.strip())) is not None:
                return found[1].lower()
    return None


def names_a_checksum(document: Mapping[str, Any]) -> bool:
    """Whether a document has a checksum at all, of whichever kind."""
    return any(document.get(name) for name in _MEMBERS)


def is_confirmed(checksum: str, document: Mapping[str, Any], data: bytes, payload: bytes | None) -> bool:
    """Whether some part of the document that a checksum may cover has it."""
    try:
        return any(sha256(covered).hexdigest() == checksum for covered in _covered(document, data, payload))
    except RecursionError:  # nested too deep to be written again: no part of it can be found
        return False


def _covered(document: Mapping[str, Any], data: bytes, payload: bytes | None) -> Iterator[bytes]:
    yield data[: data.rfind(b"\n", 0, max(0, len(data) - 1)) + 1]
    values: list[Any] = [{name: value for name, value in document.items() if name not in _MEMBERS}]
    values += [_emptied(document, remove=remove) for remove in (False, True)]
    if payload is None:
        values += [document["data"]] if "data" in document else []
    else:
        yield payload
        with suppress(ValueError):
            values.append(json.loads(payload))
    for value in values:
        for style in _STYLES:
            text = json.dumps(value, **style).encode("utf-8", "surrogatepass")
            yield text
            yield text + b"\n"


def _emptied(document: Mapping[str, Any], *, remove: bool) -> dict[str, Any]:
    """The document as it was before its checksum was put in: an empty text, or nothing in its place."""
    found: dict[str, Any] = {}
    for name, value in document.items():
        if name in _MEMBERS and isinstance(value, Mapping):
            inside = {key: each for key, each in value.items() if not (remove and key in _INSIDE)}
            found[name] = {key: "" if key in _INSIDE else each for key, each in inside.items()}
        elif name in _MEMBERS and not remove:
            found[name] = ""
        elif name not in _MEMBERS:
            found[name] = value
    return found
