"""Refs: how a person names a checkpoint.

| ref | the checkpoint |
|---|---|
| `latest`, `latest~2` | the head of the current branch, and so many before it on that line |
| `latest@before` | what `latest` was before the last restore or switch of branches |
| `newest` | the highest seq of the session |
| `#12`, `seq:12` | the one with that seq |
| `step-5` | the newest with that step on the current branch |
| `tag:verified` | the newest with that tag on the current branch |
| `branch:name` | the head of that branch |
| an id, or a prefix of one | that one |
| `2 hours ago`, `2025-01-20 14:30:00` | the newest at or before that time on the current branch; see `times` |
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterator
from datetime import UTC, tzinfo
from itertools import islice
from typing import Final, TypeAlias

import msgspec

from stepkeep.engine import Engine, reader
from stepkeep.errors import InvalidInput, NotFound, StepkeepError
from stepkeep.history import hints, times
from stepkeep.model import MAX_SEQ, Header, Session, check_text
from stepkeep.storage.port import Event, HeaderQuery, HeaderRow

log = logging.getLogger("stepkeep")

SWITCHED: Final = "branch_switched"
"""The event that remembers, as `from_head`, what was latest before a restore, a fork or a switch."""


class Back(msgspec.Struct, frozen=True):
    """So many checkpoints before the head of the current branch."""

    count: int = 0


class Before(msgspec.Struct, frozen=True):
    """The head before the last restore or switch."""


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
    """The newest at or before that time; with `tag` the newest of those that have it."""

    time_us: int
    tag: str | None = None


Predicate: TypeAlias = Callable[[Header], bool]
Ref = Back | Before | Newest | Seq | Step | Tag | OnBranch | Id | Moment

_BACK: Final = re.compile(r"latest(?:~(\d{1,9}))?", re.ASCII)
_SEQ: Final = re.compile(r"(?:#|seq:)(\d{1,18})", re.ASCII)
_STEP: Final = re.compile(r"step-(-?\d{1,18})", re.ASCII)
_ID: Final = re.compile(r"cp_[0-9a-zT_]*")


def parse(text: str, *, now_us: int, zone: tzinfo = UTC) -> Ref:
    """What a ref asks for, at that time and in that zone. Pure.

    Raises:
        InvalidInput: it is none of the forms above (`invalid_ref`), or a time that there is not.
    """
    check_text("a ref", text)
    if text == "newest":
        return Newest()
    if text == "latest@before":
        return Before()
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
    moment_us = times.parse(text, now_us=now_us, zone=zone)
    if moment_us is not None:
        return Moment(moment_us)
    shown = text if len(text) <= times.MAX_CHARACTERS else f"{text[: times.MAX_CHARACTERS]}…"
    raise InvalidInput(
        f"{shown!r} names no checkpoint: use latest, latest~2, newest, #12, step-5, tag:NAME, branch:NAME, "
        "an id or its beginning, or a time such as '2 hours ago' or '2025-01-20 14:30:00'",
        code="invalid_ref",
    )


def resolve(
    engine: Engine, session: Session, ref: Ref, *, zone: tzinfo = UTC, passing_over: Predicate | None = None
) -> Header:
    """The verified header that a ref names in a session.

    By step, tag and time the newest that verifies is found, by anything else exactly one. A time beyond now is
    noted in the log. Messages name times in `zone`. What `passing_over` says is no checkpoint of the current line to
    `latest`, `latest~2` and `step-5`.

    Raises:
        NotFound: there is none; the message says what is near.
        InvalidInput: a prefix that several ids share.
        Corrupt: the header is damaged.
    """
    if isinstance(ref, Moment) and ref.time_us > engine.clock():
        log.warning(
            "%s is in the future: the newest checkpoint so far is taken", times.written(ref.time_us, zone)
        )
    header = find(engine, session, ref, zone=zone, passing_over=passing_over)
    if header is None:
        raise _not_found(engine, session, ref, zone, passing_over)
    return header


def find(
    engine: Engine, session: Session, ref: Ref, *, zone: tzinfo = UTC, passing_over: Predicate | None = None
) -> Header | None:
    """As `resolve`, but None when there is none, and nothing is noted."""
    match ref:
        case Step() | Tag() | Moment():
            found = map(_intact, _matches(engine, session, ref, passing_over))
            return next((header for header in found if header is not None and _is_match(header, ref)), None)
        case Id(text):
            rows = list(islice(_matches(engine, session, ref, passing_over), hints.MOST_IDS + 1))
            if len(rows) > 1:
                raise hints.ambiguous(text, rows, zone)
        case _:
            rows = list(islice(_matches(engine, session, ref, passing_over), 1))
    return reader.verified(rows[0]) if rows else None


def describe(ref: Ref, zone: tzinfo = UTC) -> str:
    match ref:
        case Back(count):
            return f"latest~{count}" if count else "latest"
        case Before():
            return "latest@before"
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
            return f"at or before {times.written(time_us, zone)}"


# --- finding


def _matches(
    engine: Engine, session: Session, ref: Ref, passing_over: Predicate | None
) -> Iterator[HeaderRow]:
    """Rows that may be meant, those to take first. Their columns match; their headers may be damaged."""
    backend, query = engine.backend, HeaderQuery(session=session.uid)
    match ref:
        case Back(count):
            return islice(_line(engine, session, passing_over), count, None)
        case Before():
            head = _head_before(engine, session)
            return backend.headers(msgspec.structs.replace(query, ids=(head,))) if head else iter(())
        case Newest():
            return backend.headers(query)
        case Seq(number) if not 0 < number < MAX_SEQ:
            return iter(())
        case Seq(number):
            return backend.headers(msgspec.structs.replace(query, min_seq=number, max_seq=number))
        case Step(number):
            return _line(engine, session, passing_over, HeaderQuery(step=number))
        case Tag(name):
            return reader.line_of(backend, session, session.branch, matching=HeaderQuery(tag=name))
        case OnBranch(name):
            return reader.line_of(backend, session, name)
        case Id(text):
            return backend.headers(msgspec.structs.replace(query, id_prefix=text))
        case Moment(time_us, tag):
            matching = HeaderQuery(until_us=time_us, tag=tag)
            return reader.line_of(backend, session, session.branch, matching=matching)


def _line(
    engine: Engine, session: Session, passing_over: Predicate | None, matching: HeaderQuery | None = None
) -> Iterator[HeaderRow]:
    rows = reader.line_of(engine.backend, session, session.branch, matching=matching)
    if passing_over is None:
        return rows
    # A damaged one counts: nothing is known of it.
    return (row for row in rows if (header := _intact(row)) is None or not passing_over(header))


def _is_match(header: Header, ref: Step | Tag | Moment) -> bool:
    """Whether the sealed header says what the columns it was found by say."""
    match ref:
        case Step(number):
            return header.step == number
        case Tag(name):
            return name in header.tags
        case Moment(time_us, tag):
            return header.time_us <= time_us and (tag is None or tag in header.tags)


def _intact(row: HeaderRow) -> Header | None:
    try:
        return reader.verified(row)
    except StepkeepError:
        return None


def _last_switch(engine: Engine, session: Session) -> Event | None:
    events = reversed(engine.backend.events(session.uid))
    return next((event for event in events if event.type == SWITCHED), None)


def _head_before(engine: Engine, session: Session) -> str | None:
    switch = _last_switch(engine, session)
    head = None if switch is None else switch.data.get("from_head")
    return head if isinstance(head, str) else None


# --- not finding


def _not_found(
    engine: Engine, session: Session, ref: Ref, zone: tzinfo, passing_over: Predicate | None
) -> NotFound:
    what = f"session {session.key!r} has no checkpoint"
    code = "checkpoint_not_found"
    if next(engine.backend.headers(HeaderQuery(session=session.uid, limit=1)), None) is None:
        text = f"{what} yet" if session.last_seq == 0 else f"{what} any more"
    else:
        near = _near(engine, session, ref, zone, passing_over)
        text = f"{what} {describe(ref, zone)}{near and f': {near}'}"
    if isinstance(ref, OnBranch) and engine.backend.branch(session.uid, ref.name) is None:
        code = "branch_not_found"
    return NotFound(text, code=code, session=session.key)


def _near(engine: Engine, session: Session, ref: Ref, zone: tzinfo, passing_over: Predicate | None) -> str:
    match ref:
        case Back():
            return hints.length(session, sum(1 for _ in _line(engine, session, passing_over)))
        case Before() if _last_switch(engine, session) is None:
            return "it was never restored or switched to another branch"
        case Before():
            head = _head_before(engine, session)
            return f"{head} was removed" if head else "the branch it was on before had none"
        case Seq(number):
            return hints.numbers(engine, session, number)
        case Step(number):
            return hints.steps(engine, session, number)
        case Tag(name):
            return hints.tags(engine, session, name)
        case OnBranch(name):
            return hints.branches(engine, session, name)
        case Id(text):
            return hints.elsewhere(engine, text)
        case Moment():
            return hints.first(engine, session, zone)
        case Newest():
            return ""
