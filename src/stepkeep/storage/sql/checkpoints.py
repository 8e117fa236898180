"""Headers: finding, removing and adopting checkpoints."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from stepkeep.codec.integrity import open_header
from stepkeep.errors import StepkeepError
from stepkeep.model import MAX_SEQ, Branch, SessionInfo
from stepkeep.storage import conflicts
from stepkeep.storage.port import Blob, Body, HeaderQuery, HeaderRow, Inconsistency, Removed, Usage
from stepkeep.storage.sql import bodies, sessions
from stepkeep.storage.sql.append import check_free, columns_of, insert_header, new_branch
from stepkeep.storage.sql.attachments import remove_annotations
from stepkeep.storage.sql.connection import Conditions, Connection, Query, Row, marks
from stepkeep.storage.sql.row_mapping import HEADER_COLUMNS, header_row

FIRST_PAGE: Final = 16
PAGE: Final = 256

_FROM = "FROM checkpoints c JOIN sessions s ON s.sid = c.sid"


# --- find ------------------------------------------------------------------------------------------------------


def page(
    tx: Connection, sid: int | None, query: HeaderQuery, after: tuple[int, str] | None, limit: int
) -> list[tuple[tuple[int, str], HeaderRow]]:
    """One page of (position in the order, header)."""
    where = Conditions(
        ("c.sid = ?", sid),
        ("s.project = ?", query.project),
        ("c.branch = ?", query.branch),
        ("c.external_id = ?", query.external_id),
        ("c.step = ?", query.step),
        ("c.status = ?", None if query.status is None else str(query.status)),
        ("c.seq >= ?", query.min_seq),
        ("c.seq <= ?", query.max_seq),
        ("c.time_us >= ?", query.since_us),
        ("c.time_us <= ?", query.until_us),
        ("EXISTS (SELECT 1 FROM tags t WHERE t.sid = c.sid AND t.seq = c.seq AND t.tag = ?)", query.tag),
    )
    where.among("c.id", query.ids)
    where.prefix("c.id", query.id_prefix)
    order, beyond = ("DESC", "<") if query.newest_first else ("ASC", ">")
    # An id begins with its time, so its index is the order by (time, id).
    by = "c.id" if sid is None else "c.seq"
    if after is not None:
        where.add(f"{by} {beyond} ?", after[1] if sid is None else after[0])
    found = tx.all(
        f"SELECT {HEADER_COLUMNS}, c.time_us {_FROM}{where} ORDER BY {by} {order} LIMIT ?",
        (*where.values, limit),
    )
    return [((row[5] if sid is None else row[2], row[0]), header_row(row)) for row in found]


def inconsistencies(tx: Connection, sid: int) -> list[Inconsistency]:
    """Columns and side tables that differ from the intact headers they were made from."""
    tags = _by_seq(tx, "SELECT seq, tag FROM tags WHERE sid = ?", sid)
    required = _by_seq(tx, "SELECT seq, required FROM requirements WHERE sid = ?", sid)
    found: list[Inconsistency] = []
    for id, seq, raw, *columns in tx.all(
        "SELECT id, seq, header, branch, time_us, step, status, external_id, idempotency_key FROM checkpoints"
        " WHERE sid = ?",
        (sid,),
    ):
        try:
            header = open_header(raw if isinstance(raw, bytes) else b"")
        except StepkeepError:
            continue  # a damaged header is found by whoever reads it
        if tuple(columns) != columns_of(header):
            found.append(Inconsistency(header.id, f"the columns of {id} differ from its header"))
        if tags.get(seq, set()) != set(header.tags) or required.get(seq, set()) != set(header.requires):
            found.append(Inconsistency(header.id, f"the tags or requirements of {id} differ from its header"))
    return found


def _by_seq(tx: Connection, sql: str, sid: int) -> dict[int, set[str]]:
    values: dict[int, set[str]] = {}
    for seq, value in tx.all(sql, (sid,)):
        values.setdefault(seq, set()).add(value)
    return values


def usage(tx: Connection, uid: str | None) -> Usage:
    """Counts and bytes of one session, or of all."""
    where, values = ("", ()) if uid is None else (" WHERE sid = ?", (sessions.sid_of(tx, uid),))
    (session_count,) = tx.one(f"SELECT count(*) FROM sessions{where}", values) or (0,)
    (checkpoint_count,) = tx.one(f"SELECT count(*) FROM checkpoints{where}", values) or (0,)
    count, stored, hidden, hidden_bytes = tx.one(
        "SELECT count(*), coalesce(sum(stored_size), 0), coalesce(sum(is_hidden), 0),"
        f" coalesce(sum(stored_size * is_hidden), 0) FROM bodies{where}",
        values,
    ) or (0, 0, 0, 0)
    named = "" if uid is None else f" WHERE digest IN (SELECT digest FROM blob_refs{where})"
    blob_count, blob_bytes = tx.one(
        f"SELECT count(*), coalesce(sum(stored_size), 0) FROM blobs{named}", values
    ) or (0, 0)
    return Usage(
        sessions=session_count,
        checkpoints=checkpoint_count,
        bodies=count,
        body_bytes=int(stored),
        hidden_bodies=int(hidden),
        hidden_bytes=int(hidden_bytes),
        blobs=blob_count,
        blob_bytes=int(blob_bytes),
    )


# --- remove ----------------------------------------------------------------------------------------------------


def remove(
    tx: Connection, sid: int, session: SessionInfo, ids: Sequence[str], *, keep_heads: bool
) -> Removed:
    wanted = list(dict.fromkeys(ids))
    held = sessions.held(tx, sid, session) if keep_heads else frozenset()
    found = {
        row[0]: row
        for row in tx.all(
            f"SELECT id, seq, branch, external_id FROM checkpoints WHERE sid = ? AND id IN ({marks(len(wanted))})",
            (sid, *wanted),
        )
    }
    refused = held.intersection(found)
    refused |= _required(tx, sid, found.keys() - refused)
    going = [row for id, row in found.items() if id not in refused]
    newest_first = sorted(going, key=lambda row: row[1], reverse=True)
    freed = bodies.freed_bytes(tx.ask([query for row in newest_first for query in _remove_one(tx, sid, row)]))
    _retreat_heads(tx, sid, {row[0] for row in going})
    gaps = merge_gaps(session.gaps, [row[1] for row in going])
    if gaps != session.gaps:
        sessions.write_counters(tx, sid, msgspec.structs.replace(session, gaps=gaps))
    return Removed(
        removed=tuple(id for id in wanted if id in found and id not in refused),
        refused=tuple(id for id in wanted if id in refused),
        missing=tuple(id for id in wanted if id not in found),
        stored_bytes=freed,
    )


def _required(tx: Connection, sid: int, going: set[str]) -> set[str]:
    """Those of the ids that a remaining checkpoint requires; what these require remains as well."""
    refused: set[str] = set()
    while True:
        candidates = sorted(going - refused)
        required = {
            row[0]
            for row in tx.all(
                "SELECT r.required, c.id FROM requirements r JOIN checkpoints c ON c.sid = r.sid AND c.seq = r.seq"
                f" WHERE r.sid = ? AND r.required IN ({marks(len(candidates))})",
                (sid, *candidates),
            )
            if row[1] not in going or row[1] in refused
        }
        if required <= refused:
            return refused
        refused |= required


def _remove_one(tx: Connection, sid: int, row: Row) -> list[Query]:
    """Remove a checkpoint but for its bodies, and the statements that remove these."""
    checkpoint, seq, branch, external_id = row
    targets = [checkpoint] if external_id is None else [checkpoint, (branch, external_id)]
    remove_annotations(tx, sid, targets)
    for table in ("checkpoints", "tags", "requirements"):
        tx.put(f"DELETE FROM {table} WHERE sid = ? AND seq = ?", (sid, seq))
    return bodies.drop_or_hide(sid, checkpoint)


def _retreat_heads(tx: Connection, sid: int, removed: set[str]) -> None:
    """Move heads that went to the newest checkpoint that remains on their line, through the forks (V6)."""
    branches = {branch.name: branch for branch in sessions.stored_branches(tx, sid)}
    for branch in branches.values():
        if branch.head in removed:
            head, head_seq = _newest_on_line(tx, sid, branch, branches) or (None, 0)
            sessions.put_branch(tx, sid, msgspec.structs.replace(branch, head=head, head_seq=head_seq))


def _newest_on_line(tx: Connection, sid: int, branch: Branch, branches: dict[str, Branch]) -> Row | None:
    at: Branch | None = branch
    max_seq = MAX_SEQ
    seen: set[str] = set()
    while at is not None and at.name not in seen:
        seen.add(at.name)
        row = tx.one(
            "SELECT id, seq FROM checkpoints WHERE sid = ? AND branch = ? AND seq <= ? ORDER BY seq DESC LIMIT 1",
            (sid, at.name, max_seq),
        )
        if row is not None:
            return row
        max_seq = at.fork_seq
        at = branches.get(at.fork_branch) if at.fork_branch is not None else None
    return None


def merge_gaps(gaps: Sequence[tuple[int, int]], removed: Sequence[int]) -> tuple[tuple[int, int], ...]:
    """Closed ranges of removed numbers, as few as possible."""
    merged: list[tuple[int, int]] = []
    for first, last in sorted([*gaps, *((seq, seq) for seq in removed)]):
        if merged and first <= merged[-1][1] + 1:
            merged[-1] = (merged[-1][0], max(last, merged[-1][1]))
        else:
            merged.append((first, last))
    return tuple(merged)


# --- adopt -----------------------------------------------------------------------------------------------------


def adopt_session(tx: Connection, session: SessionInfo) -> tuple[int, SessionInfo]:
    """Store another store's session over what is here of it. The counter and the gaps never go back (V3)."""
    held = sessions.by_key(tx, session.key)
    if held is not None and held.uid != session.uid:
        raise conflicts.key_taken(session)
    if held is None:
        adopted = sessions.create(tx, session)
    else:
        gaps = merge_gaps([*held.gaps, *session.gaps], [])
        adopted = msgspec.structs.replace(session, last_seq=max(held.last_seq, session.last_seq), gaps=gaps)
    sid = sessions.sid_of(tx, session.uid)
    sessions.write(tx, sid, adopted)
    return sid, adopted


def adopt(
    tx: Connection,
    sid: int,
    session: SessionInfo,
    raw: bytes,
    incoming: Sequence[Body],
    blobs: Sequence[Blob],
) -> bool:
    """Store a sealed checkpoint of another store under its own number."""
    header = open_header(raw)
    if header.session != session.uid:
        raise conflicts.foreign_checkpoint(header, session.uid)
    for (held,) in tx.all(
        "SELECT header FROM checkpoints WHERE id = ? OR (sid = ? AND seq = ?) OR (sid = ? AND idempotency_key = ?)",
        (header.id, sid, header.seq, sid, header.idempotency_key),
    ):
        if held == raw:
            return False
        raise conflicts.place_taken(header)
    if header.external_id is not None:
        holder = tx.one(
            "SELECT id FROM checkpoints WHERE sid = ? AND branch = ? AND external_id = ?",
            (sid, header.branch, header.external_id),
        )
        check_free(holder[0] if holder else None, header)
    bodies.check_references(tx, sid, incoming, blobs)
    branch = sessions.branch(tx, sid, header.branch)
    insert_header(tx, sid, header.seq, header, raw)
    bodies.insert_blobs(tx, blobs)
    # A hidden body stays in the encoding that others are based on, and shows again.
    hidden = bodies.hidden(tx, sid, header.id)
    bodies.insert(tx, sid, [body for body in incoming if body.name not in hidden])
    bodies.show(tx, sid, header.id)
    if branch is None or header.seq > branch.head_seq:
        branch = branch or new_branch(tx, sid, header, header.parents)
        advanced = msgspec.structs.replace(branch, head=header.id, head_seq=header.seq)
        sessions.put_branch(tx, sid, advanced)
    if header.seq > session.last_seq:
        sessions.write_counters(tx, sid, msgspec.structs.replace(session, last_seq=header.seq))
    return True
