"""Refs: how a person names a checkpoint.

| ref | the checkpoint |
|---|---|
| `latest`, `latest~2` | the head of the current branch, and so many before it on that line |
| `latest@before` | what `latest` was before the last restore or switch of branches |
| `newest` | the highest seq of the session |
| `12`, `seq:12`, `#12` | the one with that seq |
| `step-5` | the newest with that step on the current branch |
| `tag:verified` | the newest with that tag on the current branch |
| `branch:name` | the head of that branch |
| an id, or a prefix of one | that one |
| `2 hours ago`, `2025-01-20 14:30:00` | the newest at or before that time on the branch current then; see `times` |
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, tzinfo
from itertools import islice
from typing import Any, Final, Literal, TypeAlias

import msgspec

from stepkeep.engine import Engine, reader
from stepkeep.errors import InvalidInput, NotFound, StepkeepError
from stepkeep.history import times
from stepkeep.logs import Log
from stepkeep.model import MAX_SEQ, Header, SessionInfo, check_text
from stepkeep.policy.retention import PRUNED
from stepkeep.storage.port import HeaderQuery, HeaderRow
from stepkeep.text import shortened

log = Log("stepkeep")

_MAX_NAMED: Final = 5
"""How many names a message lists."""

_MAX_SEARCHED: Final = 2000
"""How many checkpoints of the current line the search for similar names looks at."""

LATE: Final = "imported"
"""The branch of checkpoints that an import brought when newer ones were there already."""

BEFORE: Final = "latest@before"
"""The ref that undoes a restore."""

SWITCHED: Final = "branch_switched"
"""The event that remembers, as `from_head`, what was latest before a restore, a fork or a switch."""


Predicate: TypeAlias = Callable[[Header], bool]
RefKind: TypeAlias = Literal["back", "before", "newest", "seq", "step", "tag", "branch", "id", "time"]


class CheckpointRef(msgspec.Struct, frozen=True):
    """What a ref asks for. `number` is how many checkpoints back from the head, the seq, the step, or the time in
    microseconds; `name` the tag, the branch, or the beginning of the id. A time takes a tag as well."""

    kind: RefKind
    number: int = 0
    name: str = ""


_NUMBERED: Final[tuple[tuple[RefKind, re.Pattern[str]], ...]] = (
    ("back", re.compile(r"latest(?:~(\d{1,9}))?", re.ASCII)),
    # A bare number of eight digits is a date.
    ("seq", re.compile(r"(?:#|seq:|(?=\d{1,7}\Z))(\d{1,18})", re.ASCII)),
    ("step", re.compile(r"step-(-?\d{1,18})", re.ASCII)),
)
_NAMED: Final = re.compile(r"(tag|branch):(.+)", re.DOTALL)
_ID: Final = re.compile(r"cp_[0-9a-zT_]*")


def parse(text: str, *, now_us: int, zone: tzinfo = UTC) -> CheckpointRef:
    """What a ref asks for, at that time and in that zone. Pure.

    Raises:
        InvalidInput: the text has none of the forms above (`invalid_ref`), or is a time that does not exist.
    """
    check_text("a ref", text)
    if text == "newest":
        return CheckpointRef("newest")
    if text == BEFORE:
        return CheckpointRef("before")
    for kind, form in _NUMBERED:
        if match := form.fullmatch(text):
            return CheckpointRef(kind, int(match[1] or 0))
    if match := _NAMED.fullmatch(text):
        return CheckpointRef("tag" if match[1] == "tag" else "branch", name=match[2])
    if _ID.fullmatch(text):
        return CheckpointRef("id", name=text)
    moment_us = times.parse(text, now_us=now_us, zone=zone)
    if moment_us is not None:
        return CheckpointRef("time", moment_us)
    shown = shortened(text, times.MAX_CHARACTERS)
    raise InvalidInput(
        f"{shown!r} does not name a checkpoint: use latest, latest~2, newest, 12, step-5, tag:NAME, branch:NAME, "
        "an id or its beginning, or a time such as '2 hours ago' or '2025-01-20 14:30:00'",
        code="invalid_ref",
    )


def resolve(
    engine: Engine,
    session: SessionInfo,
    ref: CheckpointRef,
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
    if ref.kind == "time" and ref.number > engine.clock():
        log.warning(
            "%s is in the future: the newest checkpoint so far is taken", times.written(ref.number, zone)
        )
    search = _Search(engine, session, ref, zone, passing_over)
    header = search.find()
    if header is None:
        raise search.not_found()
    return header


def find(engine: Engine, session: SessionInfo, ref: CheckpointRef, *, zone: tzinfo = UTC) -> Header | None:
    """As `resolve`, but None instead of `NotFound`, and nothing is logged."""
    return _Search(engine, session, ref, zone, None).find()


def header_of_id(engine: Engine, text: str) -> Header:
    """The checkpoint with that id, or the only one whose id begins so, of whichever session.

    Raises:
        NotFound: there is none. InvalidInput: several ids begin so (`ambiguous_ref`).
    """
    rows = list(islice(engine.backend.headers(HeaderQuery(id_prefix=text)), 2)) if _ID.match(text) else []
    if len(rows) > 1:
        raise InvalidInput(
            f"{text} is the beginning of several ids, such as {rows[0].id} and {rows[1].id}",
            code="ambiguous_ref",
        )
    return reader.verified(rows[0]) if rows else engine.header(text)


def last_switch(engine: Engine, session: SessionInfo) -> dict[str, Any] | None:
    """What is noted of the last restore, fork or switch; None if there was none."""
    events = reversed(engine.backend.events(session.uid))
    return next((event.data for event in events if event.type == SWITCHED), None)


class _Search:
    """One search for what a ref names in a session."""

    def __init__(
        self,
        engine: Engine,
        session: SessionInfo,
        ref: CheckpointRef,
        zone: tzinfo,
        passing_over: Predicate | None,
    ) -> None:
        self._engine = engine
        self._backend = engine.backend
        self._session = session
        self._ref = ref
        self._zone = zone
        self._passing_over = passing_over

    def find(self) -> Header | None:
        kind = self._ref.kind
        if kind in ("step", "tag", "time"):
            found = next(self._matches(self._rows()), None)
            return self._or_late(found) if kind == "time" else found
        rows = list(islice(self._rows(), _MAX_NAMED + 1 if kind == "id" else 1))
        if len(rows) > 1:
            raise self._ambiguous(rows)
        return reader.verified(rows[0]) if rows else None

    def _matches(self, rows: Iterable[HeaderRow]) -> Iterator[Header]:
        return (header for row in rows if (header := _intact(row)) is not None and self._is_match(header))

    def _or_late(self, found: Header | None) -> Header | None:
        """What an import brought later than newer ones counts at its own time."""
        rows = self._headers(branch=LATE, until_us=self._ref.number)
        late = max(self._matches(rows), key=lambda header: header.time_us, default=None)
        is_nearer = late is not None and (found is None or late.time_us > found.time_us)
        return late if is_nearer else found

    def _rows(self) -> Iterator[HeaderRow]:
        """Rows that may be meant, those to take first. Their columns match; their headers may be damaged."""
        number, name = self._ref.number, self._ref.name
        match self._ref.kind:
            case "back":
                return islice(self._line(), number, None)
            case "before":
                head = self._head_before()
                return self._headers(ids=(head,)) if head else iter(())
            case "newest":
                return self._headers()
            case "seq":
                is_possible = 0 < number < MAX_SEQ
                return self._headers(min_seq=number, max_seq=number) if is_possible else iter(())
            case "step":
                return self._line(HeaderQuery(step=number))
            case "tag":
                return self._branch(HeaderQuery(tag=name))
            case "branch":
                return reader.line_of(self._backend, self._session, name)
            case "id":
                return self._headers(id_prefix=name)
            case "time":
                matching = HeaderQuery(until_us=number, tag=name or None)
                return reader.line_of(
                    self._backend, self._session, self._branch_at(number), matching=matching
                )

    def _branch_at(self, time_us: int) -> str:
        """The branch that was current at a time, by the events of switching, forking and restoring."""
        switches = [each for each in self._backend.events(self._session.uid) if each.type == SWITCHED]
        current = self._session.branch
        for switch in reversed(switches):
            if switch.time_us <= time_us or not isinstance(switch.data.get("from"), str):
                break
            current = switch.data["from"]
        is_stored = self._backend.branch(self._session.uid, current) is not None
        return current if is_stored else self._session.branch

    def _headers(self, **query: Any) -> Iterator[HeaderRow]:
        return self._backend.headers(HeaderQuery(session=self._session.uid, **query))

    def _branch(self, matching: HeaderQuery | None = None) -> Iterator[HeaderRow]:
        """The line of the current branch, newest first."""
        return reader.line_of(self._backend, self._session, self._session.branch, matching=matching)

    def _line(self, matching: HeaderQuery | None = None) -> Iterator[HeaderRow]:
        """The same without what is passed over."""
        rows, passing_over = self._branch(matching), self._passing_over
        if passing_over is None:
            return rows
        # A damaged header counts, because `passing_over` cannot be asked about it.
        return (row for row in rows if (header := _intact(row)) is None or not passing_over(header))

    def _is_match(self, header: Header) -> bool:
        """Whether the sealed header says what the columns it was found by say."""
        kind, number, name = self._ref.kind, self._ref.number, self._ref.name
        if kind == "step":
            return header.step == number
        return (kind == "tag" or header.time_us <= number) and (not name or name in header.tags)

    def _head_before(self) -> str | None:
        head = (last_switch(self._engine, self._session) or {}).get("from_head")
        return head if isinstance(head, str) else None

    # --- what is told when nothing is found

    def not_found(self) -> NotFound:
        session, ref = self._session, self._ref
        text = f"session {session.key!r} has no checkpoint"
        if next(self._headers(limit=1), None) is None:
            text += " yet" if session.last_seq == 0 else " any more"
        else:
            near = self._near()
            text += f" {self._named()}{near and f': {near}'}"
        is_branch = ref.kind != "branch" or self._backend.branch(session.uid, ref.name) is not None
        code = "checkpoint_not_found" if is_branch else "branch_not_found"
        return NotFound(text, code=code, session=session.key)

    def _named(self) -> str:
        """The ref in words."""
        kind, number, name = self._ref.kind, self._ref.number, self._ref.name
        match kind:
            case "back":
                return f"latest~{number}" if number else "latest"
            case "before":
                return BEFORE
            case "seq":
                return str(number)
            case "step":
                return f"step-{number}"
            case "time":
                return f"at or before {times.written(number, self._zone)}"
            case "tag" | "branch":
                return f"{kind}:{name}"
            case _:
                return name or kind

    def _near(self) -> str:
        """What the session has instead."""
        number, name = self._ref.number, self._ref.name
        match self._ref.kind:
            case "back":
                return self._length()
            case "before" if last_switch(self._engine, self._session) is None:
                return "it was never restored or switched to another branch"
            case "before":
                head = self._head_before()
                return f"{head} was removed" if head else "the branch it was on before had none"
            case "seq":
                return self._nearest_seq(number)
            case "step":
                known = {header.step for header in self._searched() if header.step is not None}
                nearest = sorted(sorted(known, key=lambda step: (abs(step - number), step))[:_MAX_NAMED])
                near = f"the nearest {_are('step-', nearest)}" if nearest else "none has a step"
                return near + self._elsewhere(step=number)
            case "tag":
                tags = _alike(name, (tag for header in self._searched() for tag in header.tags))
                return (f"there {_are('tag:', tags)}" if tags else "none has a tag") + self._elsewhere(
                    tag=name
                )
            case "branch":
                known_names = [branch.name for branch in self._backend.branches(self._session.uid)]
                is_empty = name in known_names
                return (
                    "that branch is empty"
                    if is_empty
                    else f"there {_are('branch:', _alike(name, known_names))}"
                )
            case "id":
                row = next(self._backend.headers(HeaderQuery(id_prefix=name, limit=1)), None)
                if row is not None:
                    return f"it belongs to session {self._backend.session(row.session).key!r}"
                pruned = self._pruned(lambda gone: gone["first_id"] <= name <= gone["last_id"])
                return f"what was saved then was {pruned}" if pruned else ""
            case "time":
                then = self._branch_at(number)
                rows = reader.line_of(self._backend, self._session, then)
                headers = (header for row in rows if (header := _intact(row)) is not None)
                oldest = min(headers, key=lambda header: header.time_us, default=None)
                if oldest is None:
                    return f"branch {then!r} is empty"
                return f"the first is checkpoint {oldest.seq} at {times.written(oldest.time_us, self._zone)}"
            case _:
                return ""

    def _length(self) -> str:
        """How long the current line is."""
        branch, length = self._session.branch, sum(1 for _ in self._line())
        if not length:
            return f"branch {branch!r} is empty"
        oldest = f"latest~{length - 1}" if length > 1 else "latest"
        return f"the line of branch {branch!r} has {length:,}, the oldest is {oldest}"

    def _nearest_seq(self, number: int) -> str:
        """Whether that number was removed, and the next ones below and above it."""
        bounded = max(0, min(number, MAX_SEQ))
        below = self._headers(max_seq=bounded - 1, limit=1)
        above = self._headers(min_seq=bounded + 1, newest_first=False, limit=1)
        near = [row.seq for rows in (below, above) for row in islice(rows, 1)]
        nearest = f"the nearest {_are('', near)}" if near else "none is left"
        if not any(first <= number <= last for first, last in self._session.gaps):
            return nearest
        pruned = self._pruned(lambda gone: gone["first"] <= number <= gone["last"])
        return f"it was {pruned or 'pruned or deleted'}, {nearest}"

    def _pruned(self, is_match: Callable[[dict[str, Any]], bool]) -> str:
        """When a checkpoint was pruned, and by which rule; empty where the log of the session does not tell."""
        for event in reversed(self._backend.events(self._session.uid)):
            for gone in event.data.get("removed", ()) if event.type == PRUNED else ():
                if is_match(gone):
                    return f"pruned at {times.written(event.time_us, self._zone)} ({gone['rule']})"
        return ""

    def _searched(self) -> Iterator[Header]:
        """The intact headers of the current line, newest first, as far back as a search for similar names goes."""
        return (
            header for header in map(_intact, islice(self._branch(), _MAX_SEARCHED)) if header is not None
        )

    def _elsewhere(self, **query: Any) -> str:
        """The branch, off the current line, that has what a query asks for."""
        row = next(self._headers(**query, limit=1), None)
        return "" if row is None else f"; branch {row.branch!r} has it as checkpoint {row.seq}"

    def _ambiguous(self, rows: list[HeaderRow]) -> InvalidInput:
        """The error for a prefix that several ids share; it names the first of them with their times."""
        names = []
        for row in rows[:_MAX_NAMED]:
            header = _intact(row)
            time = header and times.written(header.time_us, self._zone, fraction=False)
            names.append(f"{row.id} ({time or 'damaged'})")
        more = " and more" if len(rows) > _MAX_NAMED else ""
        return InvalidInput(
            f"{self._ref.name} is the beginning of several ids: {', '.join(names)}{more}",
            code="ambiguous_ref",
        )


def _intact(row: HeaderRow) -> Header | None:
    try:
        return reader.verified(row)
    except StepkeepError:
        return None


def _alike(name: str, known: Iterable[str]) -> list[str]:
    """Some of the known names, those that look alike first."""
    import difflib  # only a ref that leads nowhere needs it

    names = list(dict.fromkeys(known))
    alike = difflib.get_close_matches(name[:80], names[:1000], _MAX_NAMED)
    return list(dict.fromkeys([*alike, *names]))[:_MAX_NAMED]


def _are(lead: str, names: Iterable[object]) -> str:
    *rest, last = (f"{lead}{name}" for name in names)
    return f"are {', '.join(rest)} and {last}" if rest else f"is {last}"
