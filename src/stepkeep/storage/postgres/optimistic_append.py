"""The optimistic append: a save is sealed from the cached head of its branch, and stored by one call of a function.

The process that saved last into a session mostly saves next, so it usually knows what the header is sealed over: the
next number and the chain of the parent. The function `append_checkpoint` compares what was assumed with what is
stored, under the lock of the session, and stores the checkpoint or changes nothing. A save that is not stored so goes
the long way, which asks first and tells why something is refused.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any, Final

import msgspec

from stepkeep.codec.integrity import chain_of, row_digest
from stepkeep.errors import StepkeepError
from stepkeep.model import Status
from stepkeep.storage.port import ANY_HEAD, Append, Body, HeaderRow, Seal
from stepkeep.storage.postgres.migrations import GIVEN
from stepkeep.storage.sql.checkpoints import advance
from stepkeep.storage.sql.connection import Query, Row, marks
from stepkeep.storage.sql.row_mapping import BRANCH_FIELDS, SESSION_FIELDS

MAX_CACHED_HEADS: Final = 1000

_encoder = msgspec.json.Encoder()

_UID, _CURRENT, _LAST_SEQ, _UPDATED, _STATUS, _FINISHED, _ERROR = (
    SESSION_FIELDS.index(name)
    for name in ("uid", "branch", "last_seq", "updated_us", "status", "finished_us", "error")
)
_NAME, _HEAD = (BRANCH_FIELDS.index(name) for name in ("name", "head"))


# --- what is known of the heads --------------------------------------------------------------------------------


class CachedHead(msgspec.Struct, frozen=True):
    """The rows of a session and of its branch as a save left them, and the chain of the head."""

    sid: int
    session: Row
    branch: Row
    chain: str


class HeadCache:
    """The heads of the sessions that this process saved into last. Any of them may be outdated at any time."""

    def __init__(self) -> None:
        self._heads: dict[str, CachedHead] = {}
        self._lock = threading.Lock()

    def get(self, uid: str) -> CachedHead | None:
        return self._heads.get(uid)

    def put(self, head: CachedHead) -> None:
        with self._lock:
            if len(self._heads) >= MAX_CACHED_HEADS:
                self._heads.clear()
            self._heads[head.session[_UID]] = head

    def forget(self, uid: str) -> None:
        with self._lock:
            self._heads.pop(uid, None)


# --- sealing ---------------------------------------------------------------------------------------------------


class SealedSave(msgspec.Struct, frozen=True):
    """A save sealed over the head `before` it; `after` is the head once it is stored."""

    item: Append
    row: HeaderRow
    before: CachedHead
    after: CachedHead


def seal_batch(heads: HeadCache, batch: Sequence[Append], seal: Seal) -> list[SealedSave | None]:
    """The saves of a batch, each sealed upon the one before it; None for those that must go the long way.

    After one that must, so must the later ones of its session, to keep their order.
    """
    known = {uid: heads.get(uid) for uid in {item.draft.session for item in batch}}
    found: list[SealedSave | None] = []
    for item in batch:
        sealed = _sealed(known[item.draft.session], item, seal)
        known[item.draft.session] = sealed.after if sealed else None
        found.append(sealed)
    return found


def _sealed(head: CachedHead | None, item: Append, seal: Seal) -> SealedSave | None:
    if head is None or not _is_decided_by(head, item):
        return None
    draft = item.draft
    seq = head.session[_LAST_SEQ] + 1
    parents = (head.branch[_HEAD],) if head.branch[_HEAD] is not None and item.parents != () else ()
    try:
        raw = seal(draft, seq, parents, [head.chain] * len(parents))
    except (StepkeepError, UnicodeEncodeError):
        return None  # the long way refuses it, with a reason
    session, branch = list(head.session[:-1]), list(head.branch[:-1])
    advance(session, branch, draft, seq)
    after = CachedHead(
        head.sid, (*session, row_digest(*session)), (*branch, row_digest(*branch)), chain_of(raw)
    )
    row = HeaderRow(id=draft.id, session=draft.session, seq=seq, branch=draft.branch, raw=raw)
    return SealedSave(item, row, head, after)


def _is_decided_by(head: CachedHead, item: Append) -> bool:
    """Whether everything that decides about a save is in the cached head, or is compared by the function."""
    draft, branch_head = item.draft, head.branch[_HEAD]
    return (
        head.branch[_NAME] == draft.branch
        and not item.blobs
        and not any(body.blobs for body in item.bodies)
        and not draft.requires
        and item.parents in (None, (), (branch_head,))
        and item.expect_head in (ANY_HEAD, branch_head)
        and (not item.on_current or head.session[_CURRENT] == draft.branch)
        # Reopening records an event.
        and (draft.status.is_finished or not Status(head.session[_STATUS]).is_finished)
    )


# --- storing ---------------------------------------------------------------------------------------------------

_GIVEN: Final = ", ".join(f"{name} {type}" for name, type in GIVEN.items())
_ONE: Final = f"SELECT append_checkpoint({marks(len(GIVEN))}, ?)"
_MANY: Final = f"SELECT append_checkpoint({', '.join(GIVEN)}, ?) FROM json_to_recordset(?) AS c ({_GIVEN})"


def append_call(saves: Sequence[SealedSave]) -> Query:
    """The statement that stores sealed saves, and answers of each whether it was stored or changed nothing.

    Headers and bodies lie one behind the other in one value; a call says where each of them begins.
    """
    parts: list[bytes] = []
    start = 1  # positions are counted from 1, as SQL does
    calls: list[dict[str, Any]] = []
    bodies: list[dict[str, Any]] = []
    for save in saves:
        bodies = []
        calls.append(_call(save, start, bodies))
        parts.append(save.row.raw)
        start += len(save.row.raw)
        for body in save.item.bodies:
            bodies.append(_body(body, start))
            parts.append(body.data)
            start += len(body.data)
    payload = b"".join(parts)
    if len(calls) > 1:
        return _MANY, (payload, _encoder.encode(calls).decode())
    call = calls[0]
    tags = call["new_tags"]
    call["new_tags"] = None if tags is None else _encoder.encode(tags).decode()
    call["new_bodies"] = _encoder.encode(bodies).decode()
    return _ONE, (*call.values(), payload)


def _body(body: Body, start: int) -> dict[str, Any]:
    return {
        "name": body.name,
        "is_redundant": int(body.is_redundant),
        "codec": body.codec,
        "size": body.size,
        "stored_size": body.stored_size,
        "digest": body.digest,
        "base": body.base,
        "position": body.position,
        "group_bytes": body.group_bytes,
        "start": start,
        "length": len(body.data),
    }


def _call(save: SealedSave, start: int, bodies: list[dict[str, Any]]) -> dict[str, Any]:
    """What the function is given of a save, in the order of `GIVEN`."""
    item, draft, row = save.item, save.item.draft, save.row
    session = save.after.session
    return {
        "its_sid": save.before.sid,
        "old_digest": save.before.session[-1],
        "new_digest": session[-1],
        "new_updated_us": session[_UPDATED],
        "new_finished_us": session[_FINISHED],
        "new_error": session[_ERROR],
        "its_branch": draft.branch,
        "old_branch_digest": save.before.branch[-1],
        "new_branch_digest": save.after.branch[-1],
        "new_seq": row.seq,
        "new_id": draft.id,
        "new_time_us": draft.time_us,
        "new_step": draft.step,
        "new_status": session[_STATUS],
        "new_external_id": draft.external_id,
        "new_idempotency_key": draft.idempotency_key,
        "its_fence": item.fence,
        "new_tags": sorted(set(draft.tags)) or None,
        "header_start": start,
        "header_length": len(row.raw),
        "has_names": draft.external_id is not None or draft.idempotency_key is not None,
        "has_bases": any(body.base is not None for body in item.bodies),
        "new_bodies": bodies,
    }
