"""Saves whose place is foreseen: sealed from what the last save left, and stored by one call if that is still so.

Who saved last into a session mostly saves next. Then nothing need be asked before the header is sealed: the server
compares what was foreseen with what it has, under the lock of the session, and stores all or nothing. What was not
foreseen rightly is saved the long way, which asks first.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Final

import msgspec

from stepkeep.codec.integrity import chain_of
from stepkeep.errors import StepkeepError
from stepkeep.model import Branch, Session
from stepkeep.storage.port import ANY_HEAD, Append, Appended, Body, HeaderRow, Seal
from stepkeep.storage.sql.checkpoints import advanced_session
from stepkeep.storage.sql.rows import branch_row, session_row

MAX_KNOWN: Final = 1000

_encoder = msgspec.json.Encoder()


class Known(msgspec.Struct, frozen=True):
    """A session and its branch as a save left them, with the digests of their rows, and the chain of the head."""

    session: Session
    session_digest: str
    branch: Branch
    branch_digest: str
    chain: str

    @classmethod
    def after(cls, session: Session, branch: Branch, raw: bytes) -> Known:
        """What a save with those header bytes leaves."""
        session_digest, branch_digest = str(session_row(session)[-1]), str(branch_row(branch)[-1])
        return cls(session, session_digest, branch, branch_digest, chain_of(raw))


class Foreseen(msgspec.Struct, frozen=True):
    """A sealed save, the call that stores it, and what is known once it is stored."""

    row: HeaderRow
    call: str
    data: bytes
    known: Known

    @property
    def outcome(self) -> Appended:
        return Appended(row=self.row, is_new=True)


class Memory:
    """What is known of the sessions that were saved last. It may be outdated at any time."""

    def __init__(self) -> None:
        self._known: dict[str, Known] = {}
        self._lock = threading.Lock()

    def get(self, uid: str) -> Known | None:
        return self._known.get(uid)

    def put(self, known: Known) -> None:
        with self._lock:
            if len(self._known) >= MAX_KNOWN:
                self._known.clear()
            self._known[known.session.uid] = known

    def forget(self, uid: str) -> None:
        with self._lock:
            self._known.pop(uid, None)


def foresee(memory: Memory, batch: Sequence[Append], seal: Seal) -> list[Foreseen | None]:
    """The saves of a batch as they will be stored, each upon the one before it; None for those that must ask.

    After one that must ask, so must all of its session: they come later.
    """
    known = {uid: memory.get(uid) for uid in {item.draft.session for item in batch}}
    found: list[Foreseen | None] = []
    for item in batch:
        foreseen = _foreseen(known[item.draft.session], item, seal)
        known[item.draft.session] = foreseen.known if foreseen else None
        found.append(foreseen)
    return found


def _foreseen(known: Known | None, item: Append, seal: Seal) -> Foreseen | None:
    if known is None or not _is_plain(known, item):
        return None
    draft, head = item.draft, known.branch.head
    seq = known.session.last_seq + 1
    parents = (head,) if head is not None and draft.parents != () else ()
    try:
        raw = seal(draft, seq, parents, [known.chain] * len(parents))
        branch = msgspec.structs.replace(known.branch, head=draft.id, head_seq=seq)
        next_known = Known.after(advanced_session(known.session, draft, seq), branch, raw)
        call = _encoder.encode(_call(known, next_known, item)).decode()
    except (StepkeepError, UnicodeEncodeError):
        return None  # it is refused, with a reason, where all the checks are
    row = HeaderRow(id=draft.id, session=draft.session, seq=seq, branch=draft.branch, raw=raw)
    return Foreseen(row, call, b"".join(body.data for body in item.bodies), next_known)


def _is_plain(known: Known, item: Append) -> bool:
    """Whether all that decides about a save is known here, or compared by the call."""
    draft, head = item.draft, known.branch.head
    return (
        known.branch.name == draft.branch
        and not item.blobs
        and not any(body.blobs for body in item.bodies)
        and not draft.requires
        and draft.parents in (None, (), (head,))
        and item.expect_head in (ANY_HEAD, head)
        and (not item.on_current or known.session.branch == draft.branch)
        and (draft.status.is_finished or not known.session.status.is_finished)  # reopening is an event
    )


def _call(known: Known, then: Known, item: Append) -> dict[str, object]:
    """What `STORE` reads, by the names of its fields."""
    draft, session = item.draft, then.session
    return {
        "uid": session.uid,
        "was": known.session_digest,
        "digest": then.session_digest,
        "updated_us": session.updated_us,
        "finished_us": session.finished_us,
        "error": session.error,
        "branch": draft.branch,
        "branch_was": known.branch_digest,
        "branch_digest": then.branch_digest,
        "seq": session.last_seq,
        "id": draft.id,
        "time_us": draft.time_us,
        "step": draft.step,
        "status": draft.status,
        "external_id": draft.external_id,
        "idempotency_key": draft.idempotency_key,
        "fence": item.fence,
        "tags": sorted(set(draft.tags)),
        "bodies": _places(item.bodies),
    }


def _places(bodies: Sequence[Body]) -> list[dict[str, object]]:
    """The records of bodies whose bytes follow one another."""
    places: list[dict[str, object]] = []
    start = 1
    for body in bodies:
        places.append(
            {
                "name": body.name,
                "is_spare": int(body.is_spare),
                "codec": body.codec,
                "size": body.size,
                "stored_size": body.stored_size,
                "digest": body.digest,
                "base": body.base,
                "member": body.member,
                "group_bytes": body.group_bytes,
                "start": start,
                "length": len(body.data),
            }
        )
        start += len(body.data)
    return places


CALL: Final = "SELECT store_foreseen(?, ?, ?)"
"""For the call, the header and the data of a foreseen save."""

STORE: Final = """CREATE FUNCTION store_foreseen(call JSON, the_header BYTEA, the_data BYTEA) RETURNS BOOLEAN
LANGUAGE plpgsql SET enable_seqscan = off AS $store$
DECLARE
  c RECORD;
  n RECORD;
  place BIGINT;
BEGIN
  SELECT * INTO c FROM json_to_record(call) AS (
    uid TEXT, was TEXT, digest TEXT, updated_us BIGINT, finished_us BIGINT, error TEXT,
    branch TEXT, branch_was TEXT, branch_digest TEXT,
    seq BIGINT, id TEXT, time_us BIGINT, step BIGINT, status TEXT, external_id TEXT, idempotency_key TEXT,
    fence BIGINT, tags JSON, bodies JSON);
  -- Outdated knowledge is found without holding anything; the rest is compared once nobody else can change it.
  PERFORM 1 FROM sessions s WHERE s.uid = c.uid AND s.digest = c.was;
  IF NOT FOUND THEN
    RETURN false;
  END IF;
  SELECT s.sid INTO place FROM sessions s WHERE s.uid = c.uid AND s.digest = c.was FOR UPDATE;
  IF place IS NULL
    OR NOT EXISTS (SELECT 1 FROM branches b WHERE b.sid = place AND b.name = c.branch AND b.digest = c.branch_was)
    OR (SELECT max(k.seq) FROM checkpoints k WHERE k.sid = place) >= c.seq
    OR EXISTS (SELECT 1 FROM checkpoints k WHERE k.id = c.id)
    OR EXISTS (SELECT 1 FROM bodies b WHERE b.sid = place AND b.checkpoint = c.id)
  THEN
    RETURN false;
  END IF;
  IF c.fence IS NOT NULL AND NOT EXISTS (
    SELECT 1 FROM leases l WHERE l.sid = place AND l.token = c.fence AND l.is_held = 1)
  THEN
    RETURN false;
  END IF;
  IF c.idempotency_key IS NOT NULL AND EXISTS (
    SELECT 1 FROM checkpoints k WHERE k.sid = place AND k.idempotency_key = c.idempotency_key)
  THEN
    RETURN false;
  END IF;
  IF c.external_id IS NOT NULL AND EXISTS (
    SELECT 1 FROM checkpoints k WHERE k.sid = place AND k.branch = c.branch AND k.external_id = c.external_id)
  THEN
    RETURN false;
  END IF;
  FOR n IN SELECT * FROM json_to_recordset(c.bodies) AS (name TEXT, base TEXT, is_spare BIGINT)
    WHERE base IS NOT NULL AND is_spare = 0
  LOOP
    PERFORM 1 FROM bodies b
      WHERE b.sid = place AND b.checkpoint = n.base AND b.name = n.name AND b.is_spare = 0;
    IF NOT FOUND THEN
      RETURN false;
    END IF;
  END LOOP;
  INSERT INTO bodies (sid, checkpoint, name, is_spare, is_hidden, codec, size, stored_size, digest, base, member,
                      group_bytes, data)
    SELECT place, c.id, b.name, b.is_spare, 0, b.codec, b.size, b.stored_size, b.digest, b.base, b.member,
           b.group_bytes, substring(the_data FROM b.start FOR b.length)
    FROM json_to_recordset(c.bodies) AS b (
      name TEXT, is_spare BIGINT, codec TEXT, size BIGINT, stored_size BIGINT, digest TEXT, base TEXT, member BIGINT,
      group_bytes BIGINT, start INTEGER, length INTEGER);
  INSERT INTO checkpoints (sid, seq, id, branch, time_us, step, status, external_id, idempotency_key, header)
    VALUES (place, c.seq, c.id, c.branch, c.time_us, c.step, c.status, c.external_id, c.idempotency_key, the_header);
  IF json_array_length(c.tags) > 0 THEN
    INSERT INTO tags (sid, seq, tag) SELECT place, c.seq, t.value FROM json_array_elements_text(c.tags) AS t;
  END IF;
  UPDATE branches b SET head = c.id, head_seq = c.seq, digest = c.branch_digest
    WHERE b.sid = place AND b.name = c.branch;
  UPDATE sessions s SET updated_us = c.updated_us, status = c.status, finished_us = c.finished_us, error = c.error,
      last_seq = c.seq, digest = c.digest
    WHERE s.sid = place;
  RETURN true;
END
$store$"""
"""Stores a foreseen save and says true, or changes nothing and says false. It asks nothing of who calls it but the
rights on the tables, and keeps its plans from call to call, also behind a pooler: so they must be good for tables that
grow, and each statement finds its rows by an index."""
