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

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import UTC, tzinfo
from itertools import islice
from typing import Any, Final, TypeAlias

import msgspec

from stepkeep.engine import Engine, reader
from stepkeep.errors import InvalidInput, NotFound, StepkeepError
from stepkeep.history import times
from stepkeep.logs import Log
from stepkeep.model import MAX_SEQ, Header, SessionInfo, check_text
from stepkeep.storage.port import HeaderQuery, HeaderRow
from stepkeep.text import shortened

log = Log("stepkeep")

_MAX_NAMED: Final = 5
"""How many names a message lists."""

_MAX_SEARCHED: Final = 2000
"""How many checkpoints of the current line the search for similar names looks at."""

BEFORE: Final = "latest@before"
"""The ref that undoes a restore."""

SWITCHED: Final = "branch_switched"
"""The event that remembers, as `from_head`, what was latest before a restore, a fork or a switch."""


class Back(msgspec.Struct, frozen=True):
    """So many checkpoints before the head of the current branch."""

    count: int = 0


class Before(msgspec.Struct, frozen=True):
    """The head before the last restore or switch."""


class Newest(msgspec.Struct, frozen=True):
    """The highest seq."""


class AtSeq(msgspec.Struct, frozen=True):
    number: int


class AtStep(msgspec.Struct, frozen=True):
    number: int


class WithTag(msgspec.Struct, frozen=True):
    name: str


class OnBranch(msgspec.Struct, frozen=True):
    name: str


class WithId(msgspec.Struct, frozen=True):
    """An id or the beginning of one."""

    text: str


class AtTime(msgspec.Struct, frozen=True):
    """The newest at or before that time; with `tag` the newest of those that have it."""

    time_us: int
    tag: str | None = None


Predicate: TypeAlias = Callable[[Header], bool]
Ref = Back | Before | Newest | AtSeq | AtStep | WithTag | OnBranch | WithId | AtTime

_BACK: Final = re.compile(r"latest(?:~(\d{1,9}))?", re.ASCII)
_SEQ: Final = re.compile(r"(?:#|seq:)(\d{1,18})", re.ASCII)
_STEP: Final = re.compile(r"step-(-?\d{1,18})", re.ASCII)
_ID: Final = re.compile(r"cp_[0-9a-zT_]*")


def parse(text: str, *, now_us: int, zone: tzinfo = UTC) -> Ref:
    """What a ref asks for, at that time and in that zone. Pure.

    Raises:
        InvalidInput: the text has none of the forms above (`invalid_ref`), or is a time that does not exist.
    """
    check_text("a ref", text)
    if text == "newest":
        return Newest()
    if text == BEFORE:
        return Before()
    if match := _BACK.fullmatch(text):
        return Back(int(match[1] or 0))
    if match := _SEQ.fullmatch(text):
        return AtSeq(int(match[1]))
    if match := _STEP.fullmatch(text):
        return AtStep(int(match[1]))
    if text.startswith("tag:") and len(text) > 4:
        return WithTag(text.removeprefix("tag:"))
    if text.startswith("branch:") and len(text) > 7:
        return OnBranch(text.removeprefix("branch:"))
    if _ID.fullmatch(text):
        return WithId(text)
    moment_us = times.parse(text, now_us=now_us, zone=zone)
    if moment_us is not None:
        return AtTime(moment_us)
    shown = shortened(text, times.MAX_CHARACTERS)
    raise InvalidInput(
        f"{shown!r} names no checkpoint: use latest, latest~2, newest, #12, step-5, tag:NAME, branch:NAME, "
        "an id or its beginning, or a time such as '2 hours ago' or '2025-01-20 14:30:00'",
        code="invalid_ref",
    )


def resolve(
    engine: Engine,
    session: SessionInfo,
    ref: Ref,
    *,
    zone: tzinfo = UTC,
    passing_over: Predicate | None = None,
) -> Header:
    """The verified header that a ref names in a session.

    By step, tag and time the newest that verifies is found, by anything else exactly one. A time beyond now is
    noted in the log. Messages name times in `zone`. `latest`, `latest~2` and `step-5` do not count
    checkpoints for which `passing_over` is true.

    Raises:
        NotFound: the session has no such checkpoint; the message names similar ones.
        InvalidInput: a prefix that several ids share.
        Corrupt: the header is damaged.
    """
    if isinstance(ref, AtTime) and ref.time_us > engine.clock():
        log.warning(
            "%s is in the future: the newest checkpoint so far is taken", times.written(ref.time_us, zone)
        )
    header = find(engine, session, ref, zone=zone, passing_over=passing_over)
    if header is None:
        raise _not_found(engine, session, ref, zone, passing_over)
    return header


def find(
    engine: Engine,
    session: SessionInfo,
    ref: Ref,
    *,
    zone: tzinfo = UTC,
    passing_over: Predicate | None = None,
) -> Header | None:
    """As `resolve`, but None instead of `NotFound`, and nothing is logged."""
    match ref:
        case AtStep() | WithTag() | AtTime():
            found = map(_intact, _matches(engine, session, ref, passing_over))
            return next((header for header in found if header is not None and _is_match(header, ref)), None)
        case WithId(text):
            rows = list(islice(_matches(engine, session, ref, passing_over), _MAX_NAMED + 1))
            if len(rows) > 1:
                raise _ambiguous(text, rows, zone)
        case _:
            rows = list(islice(_matches(engine, session, ref, passing_over), 1))
    return reader.verified(rows[0]) if rows else None


def describe(ref: Ref, zone: tzinfo = UTC) -> str:
    match ref:
        case Back(count):
            return f"latest~{count}" if count else "latest"
        case Before():
            return BEFORE
        case Newest():
            return "newest"
        case AtSeq(number):
            return f"#{number}"
        case AtStep(number):
            return f"step-{number}"
        case WithTag(name):
            return f"tag:{name}"
        case OnBranch(name):
            return f"branch:{name}"
        case WithId(text):
            return text
        case AtTime(time_us):
            return f"at or before {times.written(time_us, zone)}"


# --- finding


def _matches(
    engine: Engine, session: SessionInfo, ref: Ref, passing_over: Predicate | None
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
        case AtSeq(number) if not 0 < number < MAX_SEQ:
            return iter(())
        case AtSeq(number):
            return backend.headers(msgspec.structs.replace(query, min_seq=number, max_seq=number))
        case AtStep(number):
            return _line(engine, session, passing_over, HeaderQuery(step=number))
        case WithTag(name):
            return reader.line_of(backend, session, session.branch, matching=HeaderQuery(tag=name))
        case OnBranch(name):
            return reader.line_of(backend, session, name)
        case WithId(text):
            return backend.headers(msgspec.structs.replace(query, id_prefix=text))
        case AtTime(time_us, tag):
            matching = HeaderQuery(until_us=time_us, tag=tag)
            return reader.line_of(backend, session, session.branch, matching=matching)


def _line(
    engine: Engine, session: SessionInfo, passing_over: Predicate | None, matching: HeaderQuery | None = None
) -> Iterator[HeaderRow]:
    rows = reader.line_of(engine.backend, session, session.branch, matching=matching)
    if passing_over is None:
        return rows
    # A damaged header counts, because `passing_over` cannot be asked about it.
    return (row for row in rows if (header := _intact(row)) is None or not passing_over(header))


def _is_match(header: Header, ref: AtStep | WithTag | AtTime) -> bool:
    """Whether the sealed header says what the columns it was found by say."""
    match ref:
        case AtStep(number):
            return header.step == number
        case WithTag(name):
            return name in header.tags
        case AtTime(time_us, tag):
            return header.time_us <= time_us and (tag is None or tag in header.tags)


def _intact(row: HeaderRow) -> Header | None:
    try:
        return reader.verified(row)
    except StepkeepError:
        return None


def last_switch(engine: Engine, session: SessionInfo) -> dict[str, Any] | None:
    """What is noted of the last restore, fork or switch; None if there was none."""
    events = reversed(engine.backend.events(session.uid))
    return next((event.data for event in events if event.type == SWITCHED), None)


def _head_before(engine: Engine, session: SessionInfo) -> str | None:
    head = (last_switch(engine, session) or {}).get("from_head")
    return head if isinstance(head, str) else None


# --- not finding


def _not_found(
    engine: Engine, session: SessionInfo, ref: Ref, zone: tzinfo, passing_over: Predicate | None
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


def _near(
    engine: Engine, session: SessionInfo, ref: Ref, zone: tzinfo, passing_over: Predicate | None
) -> str:
    match ref:
        case Back():
            return _near_back(session, sum(1 for _ in _line(engine, session, passing_over)))
        case Before() if last_switch(engine, session) is None:
            return "it was never restored or switched to another branch"
        case Before():
            head = _head_before(engine, session)
            return f"{head} was removed" if head else "the branch it was on before had none"
        case AtSeq(number):
            return _near_seq(engine, session, number)
        case AtStep(number):
            return _near_step(engine, session, number)
        case WithTag(name):
            return _near_tag(engine, session, name)
        case OnBranch(name):
            return _near_branch(engine, session, name)
        case WithId(text):
            return _near_id(engine, text)
        case AtTime():
            return _near_time(engine, session, zone)
        case Newest():
            return ""


def _ambiguous(text: str, rows: Sequence[HeaderRow], zone: tzinfo) -> InvalidInput:
    """The error for a prefix that several ids share; it names the first of them with their times."""
    names = [f"{row.id}{_time(row, zone)}" for row in rows[:_MAX_NAMED]]
    more = " and more" if len(rows) > _MAX_NAMED else ""
    return InvalidInput(
        f"{text} is the beginning of several ids: {', '.join(names)}{more}", code="ambiguous_ref"
    )


def _time(row: HeaderRow, zone: tzinfo) -> str:
    header = _intact(row)
    return " (damaged)" if header is None else f" ({times.written(header.time_us, zone, fraction=False)})"


def _near_back(session: SessionInfo, number: int) -> str:
    """How long the current line is."""
    if not number:
        return f"branch {session.branch!r} is empty"
    oldest = f"latest~{number - 1}" if number > 1 else "latest"
    return f"the line of branch {session.branch!r} has {number:,}, the oldest is {oldest}"


def _near_seq(engine: Engine, session: SessionInfo, number: int) -> str:
    """Whether that number was removed, and the next ones below and above it."""
    bounded = max(0, min(number, MAX_SEQ))
    below = HeaderQuery(session=session.uid, max_seq=bounded - 1, limit=1)
    above = HeaderQuery(session=session.uid, min_seq=bounded + 1, newest_first=False, limit=1)
    near = [row.seq for query in (below, above) for row in islice(engine.backend.headers(query), 1)]
    nearest = f"the nearest {_are(f'#{seq}' for seq in near)}" if near else "none is left"
    if any(first <= number <= last for first, last in session.gaps):
        return f"it was pruned or deleted, {nearest}"
    return nearest


def _near_step(engine: Engine, session: SessionInfo, number: int) -> str:
    """The nearest steps of the current line, and where else the wanted one is."""
    known = {header.step for header in _searched(engine, session) if header.step is not None}
    nearest = sorted(sorted(known, key=lambda step: (abs(step - number), step))[:_MAX_NAMED])
    near = f"the nearest {_are(f'step-{step}' for step in nearest)}" if nearest else "none has a step"
    return _joined(near, _branch_with(engine, session, HeaderQuery(step=number)))


def _near_tag(engine: Engine, session: SessionInfo, name: str) -> str:
    """Tags of the current line, those that look alike first, and where else the wanted one is."""
    known = dict.fromkeys(tag for header in _searched(engine, session) for tag in header.tags)
    near = _alike(name, known)
    text = f"there {_are(f'tag:{tag}' for tag in near)}" if near else "none has a tag"
    return _joined(text, _branch_with(engine, session, HeaderQuery(tag=name)))


def _near_branch(engine: Engine, session: SessionInfo, name: str) -> str:
    """The branches there are."""
    known = [branch.name for branch in engine.backend.branches(session.uid)]
    if name in known:
        return "that branch is empty"
    return f"there {_are(f'branch:{each}' for each in _alike(name, known))}"


def _near_id(engine: Engine, text: str) -> str:
    """The session that a checkpoint belongs to instead."""
    row = next(engine.backend.headers(HeaderQuery(id_prefix=text, limit=1)), None)
    return "" if row is None else f"it belongs to session {engine.backend.session(row.session).key!r}"


def _near_time(engine: Engine, session: SessionInfo, zone: tzinfo = UTC) -> str:
    """When the current line begins."""
    rows = reader.line_of(engine.backend, session, session.branch)
    headers = (header for row in rows if (header := _intact(row)) is not None)
    oldest = min(headers, key=lambda header: header.time_us, default=None)
    if oldest is None:
        return f"branch {session.branch!r} is empty"
    return f"the first is #{oldest.seq} at {times.written(oldest.time_us, zone)}"


def _searched(engine: Engine, session: SessionInfo) -> Iterator[Header]:
    """The intact headers of the current line, newest first, as far back as a search for similar names goes."""
    rows = islice(reader.line_of(engine.backend, session, session.branch), _MAX_SEARCHED)
    return (header for row in rows if (header := _intact(row)) is not None)


def _branch_with(engine: Engine, session: SessionInfo, query: HeaderQuery) -> str:
    """The branch, off the current line, that has what a query asks for."""
    wanted = HeaderQuery(session=session.uid, step=query.step, tag=query.tag, limit=1)
    row = next(engine.backend.headers(wanted), None)
    return "" if row is None else f"branch {row.branch!r} has it as #{row.seq}"


def _alike(name: str, known: Iterable[str]) -> list[str]:
    import difflib  # only a ref that leads nowhere needs it

    names = list(known)
    alike = difflib.get_close_matches(name[:80], names[:1000], _MAX_NAMED)
    return list(dict.fromkeys([*alike, *names]))[:_MAX_NAMED]


def _joined(*phrases: str) -> str:
    return "; ".join(filter(None, phrases))


def _are(names: Iterable[str]) -> str:
    *rest, last = names
    return f"are {', '.join(rest)} and {last}" if rest else f"is {last}"
