"""The optimistic append: a save is sealed from the cached head of its branch, and stored by one call of a function.

The process that saved last into a session mostly saves next, so it usually knows what the header is sealed over: the
next number and the chain of the parent. The function `append_checkpoints` compares what was assumed with what is
stored, under the lock of the session, and stores the checkpoint or changes nothing. A save that is not stored so goes
the long way, which asks first and tells why something is refused.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Final

import msgspec
from psycopg import RawCursor

from stepkeep.codec.integrity import chain_of
from stepkeep.errors import StepkeepError
from stepkeep.model import Branch, SessionInfo
from stepkeep.storage.port import ANY_HEAD, Append, HeaderRow, Seal
from stepkeep.storage.postgres.address import Address, quoted
from stepkeep.storage.postgres.connections import Raw
from stepkeep.storage.sql.checkpoints import advanced_session
from stepkeep.storage.sql.connection import Row
from stepkeep.storage.sql.row_mapping import branch_row, session_row

MAX_CACHED_HEADS: Final = 1000

_encoder = msgspec.json.Encoder()


# --- what is known of the heads --------------------------------------------------------------------------------


class CachedHead(msgspec.Struct, frozen=True):
    """A session and its branch as a save left them, with the digests of their rows, and the chain of the head."""

    session: SessionInfo
    session_digest: str
    branch: Branch
    branch_digest: str
    chain: str

    @classmethod
    def after(cls, session: SessionInfo, branch: Branch, raw: bytes) -> CachedHead:
        """What a save with those header bytes leaves."""
        session_digest, branch_digest = str(session_row(session)[-1]), str(branch_row(branch)[-1])
        return cls(session, session_digest, branch, branch_digest, chain_of(raw))


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
            self._heads[head.session.uid] = head

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
    seq = head.session.last_seq + 1
    parents = (head.branch.head,) if head.branch.head is not None and item.parents != () else ()
    try:
        raw = seal(draft, seq, parents, [head.chain] * len(parents))
        branch = msgspec.structs.replace(head.branch, head=draft.id, head_seq=seq)
        after = CachedHead.after(advanced_session(head.session, draft, seq), branch, raw)
    except (StepkeepError, UnicodeEncodeError):
        return None  # the long way refuses it, with a reason
    row = HeaderRow(id=draft.id, session=draft.session, seq=seq, branch=draft.branch, raw=raw)
    return SealedSave(item, row, head, after)


def _is_decided_by(head: CachedHead, item: Append) -> bool:
    """Whether everything that decides about a save is in the cached head, or is compared by the function."""
    draft = item.draft
    return (
        head.branch.name == draft.branch
        and not item.blobs
        and not any(body.blobs for body in item.bodies)
        and not draft.requires
        and item.parents in (None, (), (head.branch.head,))
        and item.expect_head in (ANY_HEAD, head.branch.head)
        and (not item.on_current or head.session.branch == draft.branch)
        and (draft.status.is_finished or not head.session.status.is_finished)  # reopening records an event
    )


# --- storing ---------------------------------------------------------------------------------------------------


class OptimisticAppend:
    """One call that stores sealed saves: a statement of its own, so it is also the transaction.

    `is_unknown` is as in `Transaction`: a connection that breaks meanwhile leaves open whether it was committed.
    """

    def __init__(self, address: Address, saves: Sequence[SealedSave]) -> None:
        payload = _Payload()
        calls = _encoder.encode([_call(save, payload) for save in saves]).decode()
        self._sql = f"SELECT {quoted(address.schema)}.append_checkpoints($1, $2, $3, $4, $5)".encode()
        self._values = (address.search_path, address.timeout_ms, address.project, calls, payload.joined())
        self.is_unknown = False

    def run(self, raw: Raw) -> list[bool]:
        """Whether each of the saves was stored; those that were not changed nothing."""
        self.is_unknown = True
        cursor: RawCursor[Row] = RawCursor(raw)
        cursor.execute(self._sql, self._values, binary=True)
        ((answers,),) = cursor.fetchall()
        return [bool(answer) for answer in answers]


class _Payload:
    """Headers and bodies one behind the other, in one parameter; a call says where each of them lies."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._end = 1  # positions are counted from 1, as SQL does

    def add(self, part: bytes) -> dict[str, int]:
        start = self._end
        self._parts.append(part)
        self._end += len(part)
        return {"start": start, "length": len(part)}

    def joined(self) -> bytes:
        return b"".join(self._parts)


_OF_SESSION: Final = ("uid", "updated_us", "finished_us", "error")
_OF_HEADER: Final = ("branch", "id", "time_us", "step", "status", "external_id", "idempotency_key")
_OF_BODY: Final = ("name", "codec", "size", "stored_size", "digest", "base", "position", "group_bytes")


def _call(save: SealedSave, payload: _Payload) -> dict[str, object]:
    """What `FUNCTION` reads, by the names of its fields."""
    draft, session = save.item.draft, save.after.session
    return {
        **{name: getattr(session, name) for name in _OF_SESSION},
        **{name: getattr(draft, name) for name in _OF_HEADER},
        "was": save.before.session_digest,
        "digest": save.after.session_digest,
        "branch_was": save.before.branch_digest,
        "branch_digest": save.after.branch_digest,
        "seq": session.last_seq,
        "fence": save.item.fence,
        "tags": sorted(set(draft.tags)),
        **payload.add(save.row.raw),
        "bodies": [
            {
                **{name: getattr(body, name) for name in _OF_BODY},
                "is_redundant": int(body.is_redundant),
                **payload.add(body.data),
            }
            for body in save.item.bodies
        ],
        "has_bases": any(body.base is not None for body in save.item.bodies),
    }
