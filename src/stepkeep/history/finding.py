"""Finding a text in a session: in the messages, tags and metadata of its checkpoints, and in the values of its states.

States are searched as they are encoded, and only where the bytes contain the text are they taken apart. What stood at
the same place with the same bytes in the checkpoint before is not told again: each hit is the first of its kind.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any, Final, Literal

import msgspec
from msgspec import Raw

from stepkeep.codec import exact
from stepkeep.engine import Engine, reader
from stepkeep.errors import Corrupt, InvalidInput, NotFound, Unsupported
from stepkeep.history.changes import value_text
from stepkeep.history.documents import CheckpointInfo, describe
from stepkeep.history.outline import MAX_PATH, level_of
from stepkeep.history.paths import Path, format_path
from stepkeep.model import STATE, Header, SessionInfo, check_text
from stepkeep.storage.port import HeaderQuery
from stepkeep.text import shortened

AROUND: Final = 60
"""How many characters are told on each side of a hit."""


class Match(msgspec.Struct, frozen=True, kw_only=True):
    """A place where the text was found. `path` is that of a value of the state; `before`, `text` and `after` are what
    stands there, shortened on both sides."""

    checkpoint: CheckpointInfo
    where: Literal["message", "tag", "metadata", "state"]
    path: str | None
    before: str
    text: str
    after: str


class FoundText(msgspec.Struct, frozen=True, kw_only=True):
    """What a search found, oldest first. `has_more` says that it stopped at its limit."""

    session: str
    text: str
    matches: tuple[Match, ...]
    has_more: bool


def find_text(
    engine: Engine, session: SessionInfo, text: str, *, should_stop: Callable[[], bool] = lambda: False
) -> Iterator[Match]:
    """The places of a session that contain a text, oldest first; the case of ASCII letters does not matter.

    Reads one checkpoint at a time, and no further than its caller does. `should_stop` is asked before each.
    Checkpoints that do not verify are left out.

    Raises:
        InvalidInput: the text is empty.
    """
    if not check_text("a text to find", text):
        raise InvalidInput("there is nothing to find: the text is empty", code="invalid_query")
    search = _Search(engine, session, text)
    for header in engine.headers(HeaderQuery(session=session.uid, newest_first=False)):
        if should_stop():
            return
        yield from search.matches_in(header)


def found_text(session: str, text: str, matches: Iterator[Match], limit: int) -> FoundText:
    """The first matches as one value."""
    found = tuple(islice(matches, limit + 1))
    return FoundText(session=session, text=text, matches=found[:limit], has_more=len(found) > limit)


class _Search:
    def __init__(self, engine: Engine, session: SessionInfo, text: str) -> None:
        self._engine = engine
        self._session = session
        self._in_text = re.compile(re.escape(text), re.IGNORECASE)
        written = msgspec.json.encode(text)[1:-1]
        self._in_bytes = re.compile(re.escape(written), re.IGNORECASE)
        self._digest = ""
        self._known: set[tuple[Path, int]] = set()
        self._seen: set[tuple[Path, int]] = set()

    def matches_in(self, header: Header) -> Iterator[Match]:
        hits: list[tuple[Any, str | None, str]] = [("message", None, header.message)]
        hits += [("tag", None, tag) for tag in header.tags]
        if header.metadata:
            hits.append(("metadata", None, msgspec.json.encode(header.metadata).decode()))
        hits = [hit for hit in hits if self._in_text.search(hit[2])]
        hits += [("state", path, text) for path, text in self._in_state(header)]
        if not hits:
            return
        try:
            (info,) = describe(self._engine, self._session.key, [header])
        except NotFound:
            return  # the session was deleted meanwhile
        for where, path, text in hits:
            found = self._in_text.search(text)
            at, end = (0, 0) if found is None else found.span()
            yield Match(
                checkpoint=info,
                where=where,
                path=path,
                before=("…" if at > AROUND else "") + text[max(0, at - AROUND) : at],
                text=text[at:end],
                after=text[end : end + AROUND] + ("…" if len(text) > end + AROUND else ""),
            )

    def _in_state(self, header: Header) -> Iterator[tuple[str, str]]:
        content = header.contents.get(STATE)
        if (
            content is None
            or content.digest == self._digest
            or content.encoding not in (exact.JSON, exact.TAGGED)
        ):
            return
        try:
            document = reader.load_body(self._engine.backend, header, STATE)
        except (Corrupt, NotFound, Unsupported):
            return
        self._digest = content.digest
        self._known, self._seen = self._seen, set()
        yield from self._below((), Raw(document), content.encoding == exact.TAGGED)

    def _below(self, path: Path, raw: Raw, is_tagged: bool) -> Iterator[tuple[str, str]]:
        """The values that contain the text, by path; only those that are new or changed."""
        if self._in_bytes.search(memoryview(raw)) is None:
            return
        level = level_of(raw, is_tagged=is_tagged)
        if level.below is not None:
            for step, each in level.below:
                yield from self._below((*path, step), each, is_tagged)
            return
        key = (path, hash(bytes(raw)))
        self._seen.add(key)
        if key in self._known:
            return
        value = exact.decode(exact.TAGGED if is_tagged else exact.JSON, bytes(raw))
        text = value if isinstance(value, str) else value_text(value)
        if self._in_text.search(text):
            yield shortened(format_path(path), MAX_PATH), text
