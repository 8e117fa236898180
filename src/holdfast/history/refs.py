"""Refs: how a person names a checkpoint.

| ref | the checkpoint |
|---|---|
| `latest`, `latest~2` | the head of the current branch, and so many before it on that line |
| `newest` | the highest seq of the session |
| `#12`, `seq:12` | the one with that seq |
| `step-5` | the newest with that step on the current branch |
| `tag:verified` | the newest with that tag on the current branch |
| `branch:name` | the head of that branch |
| an id, or a prefix of one | that one |
| `2025-01-20 14:30:00` | the newest at or before that time on the current branch; UTC unless a zone is given |
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import datetime
from itertools import islice
from typing import Final

import msgspec

from holdfast.engine import Engine, reader
from holdfast.errors import HoldfastError, InvalidInput, NotFound
from holdfast.model import MAX_SEQ, Header, Session, check_text, to_us
from holdfast.storage.port import HeaderQuery, HeaderRow


class Back(msgspec.Struct, frozen=True):
    """So many checkpoints before the head of the current branch."""

    count: int = 0


class Newest(msgspec.Struct, frozen=True):
    """The highest seq."""


class Seq(msgspec.Struct, frozen=True):
    number: int


class Step(msgspec.Struct, frozen=True):
    number: int


class Tag(msgspec.Struct, frozen=True):
    name: str


class OnBranch(msgspec.Struct, frozen=True):
    name: str


class Id(msgspec.Struct, frozen=True):
    """An id or the beginning of one."""

    text: str


class Moment(msgspec.Struct, frozen=True):
    time_us: int


Ref = Back | Newest | Seq | Step | Tag | OnBranch | Id | Moment

_BACK: Final = re.compile(r"latest(?:~(\d{1,9}))?")
_SEQ: Final = re.compile(r"(?:#|seq:)(\d{1,18})")
_STEP: Final = re.compile(r"step-(-?\d{1,18})")
_ID: Final = re.compile(r"cp_[0-9a-zT_]*")


def parse(text: str) -> Ref:
    """What a ref asks for. Pure.

    Raises:
        InvalidInput: it is none of the forms above.
    """
    check_text("a ref", text)
    if text == "newest":
        return Newest()
    if match := _BACK.fullmatch(text):
        return Back(int(match[1] or 0))
    if match := _SEQ.fullmatch(text):
        return Seq(int(match[1]))
    if match := _STEP.fullmatch(text):
        return Step(int(match[1]))
    if text.startswith("tag:") and len(text) > 4:
        return Tag(text.removeprefix("tag:"))
    if text.startswith("branch:") and len(text) > 7:
        return OnBranch(text.removeprefix("branch:"))
    if _ID.fullmatch(text):
        return Id(text)
    try:
        return Moment(to_us(datetime.fromisoformat(text)))
    except ValueError:
        raise InvalidInput(
            f"{text!r} names no checkpoint: use latest, latest~2, newest, #12, step-5, tag:NAME, branch:NAME, "
            "an id or its beginning, or a time such as 2025-01-20 14:30:00",
            code="invalid_ref",
        ) from None


def resolve(engine: Engine, session: Session, ref: Ref) -> Header:
    """The verified header that a ref names in a session.

    Raises:
        NotFound: there is none.
        InvalidInput: a prefix that several ids share.
        Corrupt: the header is damaged.
    """
    rows = list(islice(_matches(engine, session, ref), 2))
    if not rows:
        raise NotFound(
            f"session {session.key!r} has no checkpoint {describe(ref)}",
            code="checkpoint_not_found",
            session=session.key,
        )
    if isinstance(ref, Id) and len(rows) > 1:
        raise InvalidInput(
            f"{ref.text} is the beginning of several ids, such as {rows[0].id} and {rows[1].id}",
            code="ambiguous_ref",
        )
    return reader.verified(rows[0])


def describe(ref: Ref) -> str:
    match ref:
        case Back(count):
            return f"latest~{count}" if count else "latest"
        case Newest():
            return "newest"
        case Seq(number):
            return f"#{number}"
        case Step(number):
            return f"step-{number}"
        case Tag(name):
            return f"tag:{name}"
        case OnBranch(name):
            return f"branch:{name}"
        case Id(text):
            return text
        case Moment(time_us):
            return f"at or before {time_us} µs"


def _matches(engine: Engine, session: Session, ref: Ref) -> Iterator[HeaderRow]:
    line = reader.line_of(engine.backend, session, session.branch)
    query = HeaderQuery(session=session.uid)
    match ref:
        case Back(count):
            return islice(line, count, None)
        case Newest():
            return engine.backend.headers(query)
        case Seq(number) if not 0 < number < MAX_SEQ:
            return iter(())
        case Seq(number):
            return engine.backend.headers(msgspec.structs.replace(query, min_seq=number, max_seq=number))
        case Step(number):
            return (row for row in line if (header := _intact(row)) and header.step == number)
        case Tag(name):
            return (row for row in line if (header := _intact(row)) and name in header.tags)
        case OnBranch(name):
            return reader.line_of(engine.backend, session, name)
        case Id(text):
            return engine.backend.headers(msgspec.structs.replace(query, id_prefix=text))
        case Moment(time_us):
            return (row for row in line if (header := _intact(row)) and header.time_us <= time_us)


def _intact(row: HeaderRow) -> Header | None:
    try:
        return reader.verified(row)
    except HoldfastError:
        return None
