"""What pages ask for: by name, a function that calls the api and returns its value. Nothing here changes a store."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeAlias

import msgspec

from stepkeep import api
from stepkeep.errors import InvalidInput
from stepkeep.model import STATE

PAGE: Final = 50
MAX_PAGE: Final = 1000
ROWS: Final = 400
"""How many rows of a timeline are in one answer."""

MAX_LANES: Final = 12
MAX_CHANGES: Final = 500
MAX_LOGGED: Final = 100
MAX_FILES: Final = 5000
MAX_DECISIONS: Final = 1000
HOURS: Final = 7 * 24

KEPT_BYTES: Final = 256 * 1024 * 1024
KEPT_CHECKPOINTS: Final = 8


class Params:
    """The parameters of a question. `is_gone` tells whether nobody waits for the answer any more."""

    def __init__(self, given: Mapping[str, str], *, is_gone: Callable[[], bool] = lambda: False) -> None:
        self._given = given
        self.is_gone = is_gone

    def text(self, name: str, default: str | None = None) -> str:
        found = self._given.get(name, default)
        if found is None:
            raise InvalidInput(f"the parameter {name} is missing", code="invalid_query")
        return found

    def maybe(self, name: str) -> str | None:
        return self._given.get(name) or None

    def number(self, name: str, default: int, *, most: int = 2**53) -> int:
        text = self._given.get(name, str(default))
        if not (text.isascii() and text.isdigit() and len(text) < 17):
            raise InvalidInput(f"{name} is a number: 0 or more", code="invalid_query")
        return min(int(text), most)

    def flag(self, name: str) -> bool:
        return self._given.get(name) == "1"


class Opened:
    """A store, and what was read of it last: opening a branch of a tree must not load the state again.

    Contents of a checkpoint never change; that it is still there is looked up each time. Timelines are kept for as long
    as nothing was saved. Safe for threads.
    """

    def __init__(self, store: api.Store) -> None:
        self.store = store
        self._lock = threading.Lock()
        self._checkpoints: OrderedDict[str, api.Checkpoint] = OrderedDict()
        self._timeline: tuple[object, Sequence[api.TimelinePage]] | None = None

    def session(self, params: Params) -> api.Session:
        return self.store.get(params.text("key"))

    def checkpoint(self, params: Params) -> api.Checkpoint:
        """The checkpoint that is asked for, verified."""
        session, ref = self.session(params), params.text("ref", "latest")
        header = session.header(ref)
        with self._lock:
            found = self._checkpoints.pop(header.id, None)
        if found is None:
            found = session.load(header.id)
        with self._lock:
            self._checkpoints[found.id] = found
            self._forget_some()
        return found

    def _forget_some(self) -> None:
        """Keep the newest, and as many before it as there is room for."""
        while len(self._checkpoints) > 1 and (
            len(self._checkpoints) > KEPT_CHECKPOINTS
            or sum(each.header.size_bytes for each in self._checkpoints.values()) > KEPT_BYTES
        ):
            self._checkpoints.popitem(last=False)

    def timeline(self, session: api.Session, **options: Any) -> Sequence[api.TimelinePage]:
        """The timeline of a session in pages."""
        info = session.info
        place = (info.uid, info.version, info.last_seq, info.gaps, info.branch, sorted(options.items()))
        with self._lock:
            if self._timeline is not None and self._timeline[0] == place:
                return self._timeline[1]
        pages = session.timeline_pages(**options, size=ROWS, lanes=MAX_LANES)
        with self._lock:
            self._timeline = (place, pages)
        return pages


Answer: TypeAlias = Callable[[Opened, Params], object]


def _sessions(opened: Opened, params: Params) -> api.SessionPage:
    return opened.store.overview(
        text=params.text("text", ""),
        project=params.maybe("project"),
        status=params.maybe("status"),
        condition=params.maybe("condition"),
        runs_only=params.flag("runs"),
        limit=params.number("limit", PAGE, most=MAX_PAGE),
        after=params.maybe("after"),
    )


def _timeline(opened: Opened, params: Params) -> api.TimelinePage:
    pages = opened.timeline(
        opened.session(params),
        fold=params.flag("fold"),
        branch=params.maybe("branch"),
        tag=params.maybe("tag"),
        since=params.maybe("since"),
    )
    at = params.number("page", 0)
    if at >= len(pages):
        raise InvalidInput("the timeline has no such page", code="invalid_query")
    return pages[at]


def _checkpoint(opened: Opened, params: Params) -> api.CheckpointInfo:
    session = opened.session(params)
    return session.describe(session.header(params.text("ref", "latest")))


def _outline(opened: Opened, params: Params) -> api.Outline:
    return opened.checkpoint(params).outline(
        params.text("path", "$"),
        name=params.text("body", STATE),
        start=params.number("start", 0),
        limit=params.number("limit", 100, most=MAX_PAGE),
    )


def _conversation(opened: Opened, params: Params) -> api.Conversation:
    start = params.number("start", 0) if params.maybe("start") else None
    return opened.checkpoint(params).conversation(
        start=start, limit=params.number("limit", PAGE, most=MAX_PAGE)
    )


def _diff(opened: Opened, params: Params) -> api.ComparisonView:
    session = opened.session(params)
    older, newer = params.maybe("older"), params.text("newer", "latest")
    return session.diff(older, newer, limit=params.number("limit", MAX_CHANGES, most=MAX_CHANGES)).view()


def _files_diff(opened: Opened, params: Params) -> api.FilesDiff:
    path = params.maybe("path")
    return opened.session(params).files.diff(
        params.text("older"),
        params.text("newer"),
        paths=() if path is None else (path,),
        line_counts=path is None,
        patch=path is not None,
    )


def _log(opened: Opened, params: Params) -> object:
    session, ref = opened.session(params), params.text("ref", "latest")
    return session.log(params.text("path"), ref=ref, limit=MAX_LOGGED).view()


def _output(opened: Opened, params: Params) -> api.StepOutput:
    stream: Any = "stderr" if params.text("stream", "") == "stderr" else "stdout"
    return opened.session(params).output(params.text("step"), stream=stream)


def _plan(opened: Opened, params: Params) -> object:
    """What pruning would do to a session; of the decisions those that it is about come first."""
    report = opened.session(params).prune(dry_run=True)
    decisions = sorted(report.decisions, key=lambda each: (each.stays, -each.seq))[:MAX_DECISIONS]
    return msgspec.structs.replace(report, decisions=tuple(decisions))


ANSWERS: Final[dict[str, Answer]] = {
    "sessions": _sessions,
    "session": lambda opened, params: opened.session(params).overview(),
    "status": lambda opened, params: opened.session(params).status(),
    "branches": lambda opened, params: opened.session(params).branches.list(),
    "events": lambda opened, params: opened.session(params).events(params.maybe("ref"))[-MAX_PAGE:],
    "timeline": _timeline,
    "checkpoint": _checkpoint,
    "outline": _outline,
    "conversation": _conversation,
    "files": lambda opened, params: opened.session(params).files.list(params.text("ref"), limit=MAX_FILES),
    "file": lambda opened, params: (
        opened.session(params).files.at(params.text("ref")).text(params.text("path"))
    ),
    "log": _log,
    "diff": _diff,
    "files_diff": _files_diff,
    "find": lambda opened, params: opened.session(params).find(
        params.text("text"), limit=MAX_PAGE, should_stop=params.is_gone
    ),
    "run": lambda opened, params: opened.session(params).run_view(),
    "output": _output,
    "plan": _plan,
    "store": lambda opened, _: opened.store.status(limit=20),
    "stats": lambda opened, _: opened.store.stats(hours=HOURS),
    "doctor": lambda opened, _: opened.store.doctor(trial=False),
    "verify": lambda opened, params: opened.session(params).verify(),
    "prune": lambda opened, _: _without_decisions(opened.store.prune(dry_run=True)),
    "clean": lambda opened, _: _going(opened.store.clean(dry_run=True)),
}
"""Everything that pages show, by name."""


def _going(report: api.CleanReport) -> api.CleanReport:
    """What the next clean would remove; `cleaned` counts all of them, and the first ones are named with reasons."""
    going = [each for each in report.sessions if each.goes]
    return msgspec.structs.replace(report, cleaned=len(going), sessions=tuple(going[:PAGE]))


def _without_decisions(pruned: api.Pruned) -> api.Pruned:
    """What would go from which session; the decisions one by one are on the page of each."""
    going = [msgspec.structs.replace(each, decisions=()) for each in pruned.sessions if each.deleted]
    return msgspec.structs.replace(pruned, sessions=tuple(going[:MAX_PAGE]))
