"""Values of a type from plain data, in whichever thread.

msgspec learns the fields of a type when it meets it for the first time. A thread that meets the type in that moment
reads what is half written, and the process ends (seen with msgspec 0.22). So types are met here, one at a time.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Any, Final, TypeVar

import msgspec

T = TypeVar("T")

_met: Final[set[Any]] = set()
_meeting: Final = threading.RLock()
os.register_at_fork(
    before=_meeting.acquire, after_in_parent=_meeting.release, after_in_child=_meeting.release
)


def convert(
    value: Any, type_: type[T], *, strict: bool = True, dec_hook: Callable[[type, Any], Any] | None = None
) -> T:
    """As `msgspec.convert`."""
    if type_ not in _met:
        json_decoder(type_)
    return msgspec.convert(value, type_, strict=strict, dec_hook=dec_hook)  # noqa: TID251


def from_json(content: bytes | str | msgspec.Raw, type_: type[T]) -> T:
    """As `msgspec.json.decode`."""
    if type_ not in _met:
        json_decoder(type_)
    return msgspec.json.decode(content, type=type_)


def from_msgpack(content: bytes, type_: type[T]) -> T:
    """As `msgspec.msgpack.decode`."""
    if type_ not in _met:
        json_decoder(type_)
    return msgspec.msgpack.decode(content, type=type_)


def json_decoder(type_: type[T]) -> msgspec.json.Decoder[T]:
    """As `msgspec.json.Decoder`."""
    with _meeting:
        decoder = msgspec.json.Decoder(type_)
        _met.add(type_)
    return decoder
