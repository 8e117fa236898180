"""What is told of checkpoints, sessions, branches and values of a state: frozen structs that JSON can hold.

Their fields are what `--json` prints: a field is never renamed or removed, new ones may come. Times are UTC in RFC
3339, sizes are bytes. A value of a state is written exactly, with its encoding beside it: with `json` the value is the
document itself, with `json+tags` an object with one `$` key stands for a value that JSON lacks.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from datetime import datetime
from enum import Enum
from functools import cache
from operator import attrgetter
from typing import Any, Final, TypeVar

import msgspec
from msgspec import Raw

from stepkeep.codec import exact
from stepkeep.engine import Engine, reader
from stepkeep.errors import Corrupt, InvalidInput, NotFound, StepkeepError
from stepkeep.model import (
    FILES,
    Branch,
    BranchState,
    Content,
    Header,
    SessionInfo,
    Status,
    TriggerKind,
    from_us,
)
from stepkeep.storage.port import HeaderQuery, KeepsFiles

T = TypeVar("T", bound=msgspec.Struct)


class TriggerInfo(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Why a checkpoint was saved."""

    kind: TriggerKind
    event: str | None


class CheckpointInfo(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A checkpoint without its contents. `ratio` is `size_bytes` ÷ `stored_bytes`, None when nothing is stored. `files`
    counts the captured project files, None when there are none, and `files_bytes` is what they take, uncompressed.
    `file` is where a store of files has the checkpoint, relative to the store."""

    id: str
    session: str
    seq: int
    branch: str
    time: datetime
    step: int | None
    status: Status
    trigger: TriggerInfo
    message: str
    tags: tuple[str, ...]
    metadata: dict[str, Any]
    parents: tuple[str, ...]
    requires: tuple[str, ...]
    external_id: str | None
    idempotency_key: str | None
    size_bytes: int
    stored_bytes: int
    ratio: float | None
    contents: dict[str, Content]
    chain: str
    files: int | None
    files_bytes: int
    file: str | None = None

    @property
    def task(self) -> str:
        """What a coding agent worked on, which the key of its session does not say; empty of most checkpoints."""
        return str(self.metadata.get("task_summary", ""))


class SessionSummary(msgspec.Struct, frozen=True, kw_only=True):
    """A session. `checkpoints` counts those that are stored now. `crash` says where its process ended in the middle of
    its work, and what to do."""

    key: str
    uid: str
    status: Status
    project: str | None
    workflow: str | None
    profile: str
    is_test: bool
    branch: str
    checkpoints: int
    created: datetime
    updated: datetime
    finished: datetime | None
    error: str | None
    metadata: dict[str, Any]
    crash: str | None


class History(msgspec.Struct, frozen=True, kw_only=True):
    """The line of a branch, newest first. `total` counts all of it, `checkpoints` may be its beginning.
    `damaged` are the ids whose header does not verify; they are in no other field but `total`."""

    session: str
    branch: str
    total: int
    checkpoints: tuple[CheckpointInfo, ...]
    damaged: tuple[str, ...]


class BranchInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A branch. `state` is open, merged, abandoned or archived; pruning protects pinned open ones and the current
    one. `checkpoints` counts its own, not those before its fork. `time` is that of its head, None when that cannot
    be read."""

    name: str
    is_current: bool
    state: BranchState
    is_pinned: bool
    checkpoints: int
    head: str | None
    head_seq: int
    time: datetime | None
    message: str
    fork: str | None
    fork_branch: str | None
    fork_seq: int
    created: datetime
    metadata: dict[str, Any]


class BranchChanged(msgspec.Struct, frozen=True, kw_only=True):
    """A branch after it was forked, entered, closed or reopened."""

    session: str
    branch: BranchInfo


class BranchList(msgspec.Struct, frozen=True, kw_only=True):
    """The branches of a session, oldest first, and which one it is on."""

    session: str
    current: str
    branches: tuple[BranchInfo, ...]


class Absent(Enum):
    """Stands for a value that a state does not have."""

    ABSENT = "absent"

    def __repr__(self) -> str:
        return "ABSENT"


ABSENT: Final = Absent.ABSENT


def encoded(value: object) -> tuple[str, Raw]:
    """A value of a state as a document, and how that is encoded: as plain JSON wherever JSON has such a value.

    What is stored has tags for integers beyond 64 bits as well, because some readers of JSON make floats of them.
    """
    encoding, content = exact.encode(value)
    plain = None if encoding == exact.JSON else _plain_json(value)
    return (encoding, Raw(content)) if plain is None else (exact.JSON, Raw(plain))


def _plain_json(value: object) -> bytes | None:
    """The value as JSON without tags; None where reading that gives another one, or more digits than can be read."""
    try:
        content = msgspec.json.encode(value)
        return content if msgspec.json.decode(content) == value else None
    except (TypeError, ValueError, OverflowError, msgspec.MsgspecError):
        return None


def decoded(encoding: str, document: object) -> Any:
    """The value that a document of this encoding stands for; the other way round than `encoded`.

    Raises:
        InvalidInput: the tags make no sense (`invalid_tags`).
    """
    if encoding == exact.JSON:
        return document
    try:
        return exact.decode(encoding, exact.encode(document)[1])
    except Corrupt as exc:
        raise InvalidInput(
            f"the state does not follow the encoding {encoding}: {exc}", code="invalid_tags"
        ) from exc


def exact_fields(**values: object) -> dict[str, Any]:
    """Values of a state as fields of a document, each after its encoding; those that are `ABSENT` are left out."""
    fields: dict[str, Any] = {}
    for name, value in values.items():
        if value is not ABSENT:
            fields[f"{name}_encoding"], fields[name] = encoded(value)
    return fields


# --- checkpoints and sessions ------------------------------------------------------------------------------------


def describe(engine: Engine, key: str, headers: Sequence[Header]) -> tuple[CheckpointInfo, ...]:
    """Checkpoints of one session, with what they take in the store."""
    if not headers:
        return ()
    backend, uid = engine.backend, headers[0].session
    stored: Counter[str] = Counter()
    for body in backend.bodies(uid, [header.id for header in headers]):
        stored[body.checkpoint] += body.stored_size
    may_be_files = not backend.capabilities.takes_deltas
    files = backend.files(uid) if may_be_files and isinstance(backend, KeepsFiles) else {}
    return tuple(checkpoint_info(key, header, stored[header.id], files.get(header.id)) for header in headers)


def describe_one(engine: Engine, header: Header) -> CheckpointInfo:
    """One checkpoint of whichever session; `NotFound` if that was deleted meanwhile."""
    return describe(engine, engine.seen(header.session).key, [header])[0]


def describe_across(engine: Engine, headers: Sequence[Header]) -> tuple[CheckpointInfo, ...]:
    """Checkpoints of any sessions, in the given order, without those of sessions that were deleted meanwhile."""
    by_session: dict[str, list[Header]] = {}
    for header in headers:
        by_session.setdefault(header.session, []).append(header)
    found: dict[str, CheckpointInfo] = {}
    for uid, own in by_session.items():
        with suppress(NotFound):
            key = engine.seen(uid).key
            found.update((info.id, info) for info in describe(engine, key, own))
    return tuple(found[header.id] for header in headers if header.id in found)


def checkpoint_info(key: str, header: Header, stored_bytes: int, file: str | None = None) -> CheckpointInfo:
    """One checkpoint whose stored size is known."""
    files = header.contents.get(FILES)
    return copied(
        CheckpointInfo,
        header,
        session=key,
        time=header.created_at,
        trigger=TriggerInfo(kind=header.trigger.kind, event=header.trigger.event),
        stored_bytes=stored_bytes,
        file=file,
        ratio=round(header.size_bytes / stored_bytes, 2) if stored_bytes else None,
        files=None if files is None else files.count,
        files_bytes=0 if files is None else files.total_bytes,
    )


def summary_of(info: SessionInfo, *, crash: str | None = None) -> SessionSummary:
    return copied(
        SessionSummary,
        info,
        crash=crash,
        checkpoints=info.stored_count,
        created=from_us(info.created_us),
        updated=from_us(info.updated_us),
        finished=None if info.finished_us is None else from_us(info.finished_us),
    )


def copied(kind: type[T], source: object, **more: Any) -> T:
    """A struct of that kind: these fields, and those that `source` has under the same name."""
    names, values_of = _taken(kind, *more)
    return kind(**dict(zip(names, values_of(source), strict=True)), **more)


@cache
def _taken(kind: type[msgspec.Struct], *given: str) -> tuple[tuple[str, ...], Callable[[object], Any]]:
    """The fields of a struct that are not given, and what reads them: a long list copies thousands."""
    names = tuple(name for name in kind.__struct_fields__ if name not in given)
    if len(names) == 1:
        return names, lambda source: (getattr(source, names[0]),)
    return names, attrgetter(*names) if names else lambda _source: ()


# --- branches ----------------------------------------------------------------------------------------------------


def branch_infos(engine: Engine, session: SessionInfo, branches: Iterable[Branch]) -> tuple[BranchInfo, ...]:
    """Branches of a session, with their heads and how many checkpoints each has of its own."""
    wanted = tuple(branches)
    only = wanted[0].name if len(wanted) == 1 else None
    rows = engine.backend.headers(HeaderQuery(session=session.uid, branch=only))
    own = Counter(row.branch for row in rows)
    return tuple(_branch_info(engine, session, each, own[each.name]) for each in wanted)


def _branch_info(engine: Engine, session: SessionInfo, branch: Branch, checkpoints: int) -> BranchInfo:
    head = readable_header(engine, session.uid, branch.head)
    return copied(
        BranchInfo,
        branch,
        is_current=branch.name == session.branch,
        checkpoints=checkpoints,
        time=None if head is None else head.created_at,
        message="" if head is None else head.message,
        created=from_us(branch.created_us),
    )


def readable_header(engine: Engine, uid: str, checkpoint: str | None) -> Header | None:
    """A header for showing it; None where it is damaged or gone."""
    try:
        return None if checkpoint is None else engine.header(checkpoint, session=uid)
    except StepkeepError:
        return None


def line_history(engine: Engine, session: SessionInfo, branch: str, *, limit: int | None = None) -> History:
    """The checkpoints that led to the head of a branch, through the branches that it was forked from."""
    headers: list[Header] = []
    damaged: list[str] = []
    total = 0
    for row in reader.line_of(engine.backend, session, branch):
        total += 1
        if limit is not None and len(headers) >= limit:
            continue
        try:
            headers.append(reader.verified(row))
        except StepkeepError:
            damaged.append(row.id)
    return History(
        session=session.key,
        branch=branch,
        total=total,
        checkpoints=describe(engine, session.key, headers),
        damaged=tuple(damaged),
    )
