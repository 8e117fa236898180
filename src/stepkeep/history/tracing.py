"""How one value of the state changed over time, along the line of a branch."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterator
from typing import Any, Final, Literal

import msgspec

from stepkeep.codec import exact
from stepkeep.engine import Engine, reader
from stepkeep.errors import Corrupt, InvalidInput, NotFound, Unsupported
from stepkeep.history.paths import Path, find
from stepkeep.history.sameness import Sameness, with_room
from stepkeep.model import STATE, Header, Session
from stepkeep.storage.port import HeaderQuery

log = logging.getLogger("stepkeep")

_ABSENT: Final = object()


class ValueChange(msgspec.Struct, frozen=True, kw_only=True):
    """A checkpoint at which a value changed. `old` is None where it was added, `new` where it was removed."""

    header: Header
    kind: Literal["added", "changed", "removed"]
    old: Any = None
    new: Any = None


def trace(
    engine: Engine, session: Session, path: Path, *, until: Header | None = None, limit: int | None = None
) -> Iterator[ValueChange]:
    """Where the value at a path changed on the way to a checkpoint, oldest first; `limit` keeps the last ones.

    The way is the line of the current branch, or of the checkpoint `until`. Checkpoints that do not verify are
    left out and logged; a change there shows at the next one.

    Raises:
        InvalidInput: `limit` is negative.
    """
    if limit is not None and limit < 0:
        raise InvalidInput(f"limit is {limit}; it counts changes: 0 or more", code="invalid_option")
    changes = _changes(engine, session, path, until)
    return changes if limit is None else iter(deque(changes, maxlen=limit))


def _changes(engine: Engine, session: Session, path: Path, until: Header | None) -> Iterator[ValueChange]:
    before: Any = _ABSENT
    digest = ""
    for header in _headers(engine, session, until):
        if header.contents[STATE].digest == digest:
            continue  # the same state, so the same value
        try:
            value = _value(engine, header, path)
        except NotFound:
            continue  # removed meanwhile
        except (Corrupt, Unsupported) as exc:
            if engine.is_stored(header):
                log.warning("checkpoint %s is left out: %s (%s)", header.id, exc, exc.code)
            continue
        digest = header.contents[STATE].digest
        if not _is_same(before, value):
            yield _change(header, before, value)
            before = value


def _headers(engine: Engine, session: Session, until: Header | None) -> Iterator[Header]:
    """The line, oldest first."""
    branch = session.branch if until is None else until.branch
    matching = HeaderQuery() if until is None else HeaderQuery(max_seq=until.seq)
    for row in reversed(list(reader.line_of(engine.backend, session, branch, matching=matching))):
        try:
            header = reader.verified(row)
        except (Corrupt, Unsupported) as exc:
            log.warning("checkpoint %s is left out: %s (%s)", row.id, exc, exc.code)
            continue
        if STATE in header.contents:
            yield header


def _value(engine: Engine, header: Header, path: Path) -> Any:
    content = reader.load_body(engine.backend, header, STATE)
    state = exact.decode(header.contents[STATE].encoding, content)
    try:
        return find(state, path)
    except NotFound:
        return _ABSENT


def _is_same(old: Any, new: Any) -> bool:
    if old is _ABSENT or new is _ABSENT:
        return old is new
    return with_room(lambda: Sameness().of(old, new))


def _change(header: Header, old: Any, new: Any) -> ValueChange:
    if old is _ABSENT:
        return ValueChange(header=header, kind="added", new=new)
    if new is _ABSENT:
        return ValueChange(header=header, kind="removed", old=old)
    return ValueChange(header=header, kind="changed", old=old, new=new)
