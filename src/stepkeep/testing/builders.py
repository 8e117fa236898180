"""Builders of records with sensible defaults: a test names only what it is about.

The bytes of bodies mean nothing here: a backend never looks into them.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

from msgspec.structs import asdict

from stepkeep.codec import integrity
from stepkeep.errors import StepkeepError
from stepkeep.model import MAIN_BRANCH, STATE, Content, Header, SessionInfo, new_uid
from stepkeep.processes import Owner, new_checkpoint_id
from stepkeep.storage.port import ANY_HEAD, Append, Backend, Blob, Body, BodyInfo, HeaderQuery, HeaderRow

START_US = 1_750_000_000_000_000
SECOND = 1_000_000

_ticks = itertools.count(1)


def next_time_us() -> int:
    """A time later than any given before by this function, in steps of a second."""
    return START_US + next(_ticks) * SECOND


def new_session(key: str | None = None, **fields: Any) -> SessionInfo:
    uid = fields.pop("uid", None) or new_uid()
    created_us = fields.pop("created_us", START_US)
    defaults = {"updated_us": created_us, "key": f"session {uid}" if key is None else key}
    return SessionInfo(uid=uid, created_us=created_us, **(defaults | fields))


def content_of(text: str) -> Content:
    return integrity.describe(text.encode(), "json")


def draft(session: str, *, content: str = "{}", **fields: Any) -> Header:
    """A draft on the main branch whose state is `content`, with an id and a time of its own."""
    time_us = fields.pop("time_us", None) or next_time_us()
    defaults = {
        "id": new_checkpoint_id(time_us),
        "branch": MAIN_BRANCH,
        "contents": {STATE: content_of(content)},
    }
    return Header(v=integrity.FORMAT_VERSION, seq=0, session=session, time_us=time_us, **(defaults | fields))


def keyframe(checkpoint: str, name: str = STATE, *, data: bytes | None = None, **fields: Any) -> Body:
    """A self-contained body."""
    stored = f"{checkpoint} {name}".encode() if data is None else data
    defaults: dict[str, Any] = {"codec": "raw", "size": len(stored), "stored_size": len(stored)}
    return Body(
        checkpoint=checkpoint, name=name, data=stored, digest=integrity.digest(stored), **(defaults | fields)
    )


def delta_on(
    base: str, checkpoint: str, name: str = STATE, *, data: bytes | None = None, **fields: Any
) -> Body:
    """A body based on the body of the same name of `base`."""
    stored = f"{checkpoint} on {base}".encode() if data is None else data
    return keyframe(checkpoint, name, data=stored, codec="delta", base=base, **fields)


def redundant_on(base: str, checkpoint: str, name: str = STATE, **fields: Any) -> Body:
    """A second encoding of a keyframe, based on `base`."""
    return delta_on(base, checkpoint, name, is_redundant=True, **fields)


def new_blob(data: bytes) -> Blob:
    digest = integrity.digest(data)
    return Blob(digest=digest, size=len(data), codec="raw", stored_digest=digest, data=data)


def info(body: Body) -> BodyInfo:
    """The record without its bytes."""
    return BodyInfo(**{name: value for name, value in asdict(body).items() if name != "data"})


def item(
    draft: Header,
    *,
    base: str | None = None,
    bodies: Sequence[Body] | None = None,
    blobs: Sequence[Blob] = (),
    expect_head: str | None = ANY_HEAD,
    fence: int | None = None,
    parents: tuple[str, ...] | None = None,
) -> Append:
    """The draft with a state: a delta where a base is given, else a keyframe, else the bodies given."""
    if bodies is None:
        bodies = [keyframe(draft.id) if base is None else delta_on(base, draft.id)]
    return Append(
        draft=draft,
        bodies=tuple(bodies),
        blobs=tuple(blobs),
        parents=parents,
        expect_head=expect_head,
        fence=fence,
    )


def append(backend: Backend, *items: Append) -> list[Header | StepkeepError]:
    """Append in one batch; headers come back opened and checked."""
    answers = backend.append(items, integrity.seal)
    return [a if isinstance(a, StepkeepError) else header_in(a.row) for a in answers]


def append_one(backend: Backend, one: Append) -> Header:
    """Append one checkpoint; a refusal is raised."""
    (answer,) = append(backend, one)
    if isinstance(answer, StepkeepError):
        raise answer
    return answer


def save(
    backend: Backend,
    session: str,
    *,
    base: str | None = None,
    parents: tuple[str, ...] | None = None,
    **fields: Any,
) -> Header:
    """Append one checkpoint with a state and nothing else."""
    return append_one(backend, item(draft(session, **fields), base=base, parents=parents))


def header_in(row: HeaderRow) -> Header:
    """The header in a row, opened and checked."""
    if row.problem is not None:
        raise row.problem
    return (
        integrity.read_header(row.opened) if row.opened else integrity.open_header(row.raw, expect_id=row.id)
    )


def headers(backend: Backend, **conditions: Any) -> list[Header]:
    """The headers a query finds, opened and checked."""
    rows = backend.headers(HeaderQuery(**conditions))
    return [header_in(row) for row in rows]


def ids(backend: Backend, **conditions: Any) -> list[str]:
    return [row.id for row in backend.headers(HeaderQuery(**conditions))]


def new_owner(label: str = "runner", pid: int = 1) -> Owner:
    return Owner(host="host", boot_id="boot", pid_namespace="ns", pid=pid, started=1, label=label)


class FakeClock:
    """Give the object itself wherever a clock is wanted: calling it gives microseconds since 1970."""

    def __init__(self, now_us: int = START_US) -> None:
        self.now_us = now_us

    def __call__(self) -> int:
        return self.now_us

    def advance(self, seconds: float) -> None:
        self.now_us += round(seconds * 1_000_000)
