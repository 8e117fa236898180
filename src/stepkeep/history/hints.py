"""What is near a ref that leads nowhere, in one phrase each."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, tzinfo
from itertools import islice
from typing import Final

from stepkeep.engine import Engine, reader
from stepkeep.errors import InvalidInput, StepkeepError
from stepkeep.history import times
from stepkeep.model import MAX_SEQ, Header, Session
from stepkeep.storage.port import HeaderQuery, HeaderRow

MOST_IDS: Final = 5
MOST_NAMES: Final = 5
MOST_HEADERS: Final = 2000
"""How far back the search for what is near goes."""


def ambiguous(text: str, rows: Sequence[HeaderRow], zone: tzinfo) -> InvalidInput:
    """The refusal of a prefix that several ids share; it names the first of them with their times."""
    names = [f"{row.id}{_time(row, zone)}" for row in rows[:MOST_IDS]]
    more = " and more" if len(rows) > MOST_IDS else ""
    return InvalidInput(
        f"{text} is the beginning of several ids: {', '.join(names)}{more}", code="ambiguous_ref"
    )


def _time(row: HeaderRow, zone: tzinfo) -> str:
    try:
        return f" ({times.written(reader.verified(row).time_us, zone, fraction=False)})"
    except StepkeepError:
        return " (damaged)"


def length(session: Session, number: int) -> str:
    """How long the current line is."""
    if not number:
        return f"branch {session.branch!r} is empty"
    oldest = f"latest~{number - 1}" if number > 1 else "latest"
    return f"the line of branch {session.branch!r} has {number:,}, the oldest is {oldest}"


def numbers(engine: Engine, session: Session, number: int) -> str:
    """Whether that number was removed, and the next ones below and above it."""
    bounded = max(0, min(number, MAX_SEQ))
    below = HeaderQuery(session=session.uid, max_seq=bounded - 1, limit=1)
    above = HeaderQuery(session=session.uid, min_seq=bounded + 1, newest_first=False, limit=1)
    near = [row.seq for query in (below, above) for row in islice(engine.backend.headers(query), 1)]
    nearest = f"the nearest {_are(f'#{seq}' for seq in near)}" if near else "none is left"
    if any(first <= number <= last for first, last in session.gaps):
        return f"it was pruned or deleted, {nearest}"
    return nearest


def steps(engine: Engine, session: Session, number: int) -> str:
    """The nearest steps of the current line, and where else the wanted one is."""
    known = {header.step for header in _line(engine, session) if header.step is not None}
    nearest = sorted(sorted(known, key=lambda step: (abs(step - number), step))[:MOST_NAMES])
    near = f"the nearest {_are(f'step-{step}' for step in nearest)}" if nearest else "none has a step"
    return _joined(near, _branch_with(engine, session, HeaderQuery(step=number)))


def tags(engine: Engine, session: Session, name: str) -> str:
    """Tags of the current line, those that look alike first, and where else the wanted one is."""
    known = dict.fromkeys(tag for header in _line(engine, session) for tag in header.tags)
    near = _alike(name, known)
    text = f"there {_are(f'tag:{tag}' for tag in near)}" if near else "none has a tag"
    return _joined(text, _branch_with(engine, session, HeaderQuery(tag=name)))


def branches(engine: Engine, session: Session, name: str) -> str:
    """The branches there are."""
    known = [branch.name for branch in engine.backend.branches(session.uid)]
    if name in known:
        return "that branch is empty"
    return f"there {_are(f'branch:{each}' for each in _alike(name, known))}"


def elsewhere(engine: Engine, text: str) -> str:
    """The session that a checkpoint belongs to instead."""
    row = next(engine.backend.headers(HeaderQuery(id_prefix=text, limit=1)), None)
    return "" if row is None else f"it belongs to session {engine.backend.session(row.session).key!r}"


def first(engine: Engine, session: Session, zone: tzinfo = UTC) -> str:
    """When the current line begins."""
    oldest: Header | None = None
    for row in reader.line_of(engine.backend, session, session.branch):
        try:
            header = reader.verified(row)
        except StepkeepError:
            continue
        if oldest is None or header.time_us < oldest.time_us:
            oldest = header
    if oldest is None:
        return f"branch {session.branch!r} is empty"
    return f"the first is #{oldest.seq} at {times.written(oldest.time_us, zone)}"


def _line(engine: Engine, session: Session) -> Iterator[Header]:
    rows = reader.line_of(engine.backend, session, session.branch)
    for row in islice(rows, MOST_HEADERS):
        try:
            yield reader.verified(row)
        except StepkeepError:
            continue


def _branch_with(engine: Engine, session: Session, query: HeaderQuery) -> str:
    """The branch, off the current line, that has what a query asks for."""
    wanted = HeaderQuery(session=session.uid, step=query.step, tag=query.tag, limit=1)
    row = next(engine.backend.headers(wanted), None)
    return "" if row is None else f"branch {row.branch!r} has it as #{row.seq}"


def _alike(name: str, known: Iterable[str]) -> list[str]:
    names = list(known)
    alike = difflib.get_close_matches(name[:80], names[:1000], MOST_NAMES)
    return list(dict.fromkeys([*alike, *names]))[:MOST_NAMES]


def _joined(*phrases: str) -> str:
    return "; ".join(filter(None, phrases))


def _are(names: Iterable[str]) -> str:
    *rest, last = names
    return f"are {', '.join(rest)} and {last}" if rest else f"is {last}"
