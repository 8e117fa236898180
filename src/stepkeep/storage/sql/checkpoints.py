"""Headers: appending, finding, removing and adopting checkpoints."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from stepkeep.codec.integrity import chain_of, open_header
from stepkeep.errors import Conflict, InvalidInput, StepkeepError
from stepkeep.model import MAX_SEQ, Branch, Draft, Header, Session
from stepkeep.storage.port import (
    Append,
    Appended,
    Blob,
    Body,
    HeaderQuery,
    HeaderRow,
    Inconsistency,
    Removed,
    Seal,
)
from stepkeep.storage.sql import bodies, events, leases, notes, sessions
from stepkeep.storage.sql.connection import Connection, Lookups, Query, Row, Value, marks
from stepkeep.storage.sql.rows import HEADER_COLUMNS, header_row

FIRST_PAGE: Final = 16
PAGE: Final = 256

_INSERT = (
    "INSERT INTO checkpoints (sid, seq, id, branch, time_us, step, status, external_id, idempotency_key, header)"
    " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
)
_BY_EXTERNAL_ID = "SELECT id FROM checkpoints WHERE sid = ? AND branch = ? AND external_id = ?"
# No number is given twice (V3), even if damage raised one of those that are stored.
_HIGHEST = "(SELECT max(seq) FROM checkpoints WHERE sid = ?)"
_HEADER_OF = "(SELECT header FROM checkpoints WHERE id = ?)"
_HEADER_OF_HEAD = (
    "(SELECT c.header FROM branches b JOIN checkpoints c ON c.id = b.head WHERE b.sid = ? AND b.name = ?)"
)
_FROM = "FROM checkpoints c JOIN sessions s ON s.sid = c.sid"


# --- append ----------------------------------------------------------------------------------------------------


def append(tx: Connection, opened: sessions.Opened, item: Append, seal: Seal) -> Appended:
    """Store one checkpoint; its session and branch are written when the batch is complete.

    All checks come before the first write, so a refusal leaves nothing behind.
    """
    draft = item.draft
    sid, session = opened.get(draft.session)
    branch = opened.branch(sid, draft.branch)
    found = _look_up(tx, sid, item, branch)
    if item.fence is not None:
        leases.check_held(_first(found, "lease"), session.uid, item.fence)
    original = _first(found, "original")
    if original is not None:
        return Appended(row=_same_content(header_row(original), draft), is_new=False)
    if item.on_current and session.branch != draft.branch:
        raise Conflict(
            f"session {session.key!r} is on branch {session.branch!r} now, not {draft.branch!r}",
            code="branch_switched",
            session=session.uid,
            branch=session.branch,
        )
    if branch is None:
        branch = sessions.branch_found(tx, sid, draft.branch, _first(found, "branch"))
    sessions.check_head(branch, draft.branch, session.uid, item.expect_head)
    _check_free(_first(found, "external"), draft.branch, draft.external_id)
    for required in draft.requires:
        sessions.place(tx, sid, session.uid, required)
    bodies.check_found(found, item.bodies, item.blobs)
    if _first(found, "remains"):
        raise Conflict(
            f"{draft.id} was removed, and others still need its body",
            code="id_taken",
            retryable=False,
            checkpoint=draft.id,
        )

    parents = _parents(draft, branch)
    highest, *headers = _first(found, "chains") or (0,)
    seq = max(session.last_seq, highest if isinstance(highest, int) else 0) + 1
    raw = seal(draft, seq, parents, _chains(headers, parents))
    bodies.insert_blobs(tx, item.blobs)
    bodies.insert(tx, sid, item.bodies)
    _insert(tx, sid, seq, draft, raw)
    advanced = _advanced(branch or _new_branch(tx, sid, draft, parents), draft.id, seq)
    if session.status.is_finished and not draft.status.is_finished:
        data = {"was": str(session.status), "checkpoint": draft.id}
        events.record(tx, sid, "session_reopened", data, time_us=draft.time_us)
    opened.put(sid, advanced_session(session, draft, seq), advanced)
    if not tx.trusts_storage:
        _check_stored(tx, draft.id, (sid, seq, raw), item.bodies)
    return Appended(
        row=HeaderRow(id=draft.id, session=session.uid, seq=seq, branch=draft.branch, raw=raw), is_new=True
    )


def _look_up(tx: Connection, sid: int, item: Append, branch: Branch | None) -> dict[str, list[Row]]:
    """Everything that decides about a save, asked for at once; the branch where it is not known yet."""
    draft = item.draft
    lookups = Lookups()
    if item.fence is not None:
        lookups.add("lease", leases.HELD, (sid,))
    lookups.add("original", f"SELECT {HEADER_COLUMNS} {_FROM} WHERE c.id = ?", (draft.id,))
    if draft.idempotency_key is not None:
        by_key = f"SELECT {HEADER_COLUMNS} {_FROM} WHERE c.sid = ? AND c.idempotency_key = ?"
        lookups.add("original", by_key, (sid, draft.idempotency_key))
    if branch is None:
        lookups.add("branch", sessions.BY_NAME, (sid, draft.branch))
    if draft.external_id is not None:
        lookups.add("external", _BY_EXTERNAL_ID, (sid, draft.branch, draft.external_id))
    bodies.look_for_references(tx, lookups, sid, item.bodies, item.blobs)
    lookups.add("remains", bodies.ANY_OF, (sid, draft.id))
    if draft.parents is None and branch is None:
        lookups.add("chains", f"SELECT {_HIGHEST}, {_HEADER_OF_HEAD}", (sid, sid, draft.branch))
    else:
        parents = _parents(draft, branch)
        columns = ", ".join([_HIGHEST, *[_HEADER_OF] * len(parents)])
        lookups.add("chains", f"SELECT {columns}", (sid, *parents))
    return lookups.ask(tx)


def _first(found: dict[str, list[Row]], name: str) -> Row | None:
    return next(iter(found.get(name, ())), None)


def _parents(draft: Draft, branch: Branch | None) -> tuple[str, ...]:
    if draft.parents is not None:
        return draft.parents
    return (branch.head,) if branch and branch.head else ()


def _check_stored(tx: Connection, checkpoint: str, expected: Row, stored: Sequence[Body]) -> None:
    """Read back what was written: in a damaged page an insert can go astray without any error.

    By its id, as it will be looked for: that leads through the index into the table.

    Raises:
        DamagedPage: it did; the whole transaction must be undone.
    """
    row = tx.one("SELECT sid, seq, header FROM checkpoints WHERE id = ?", (checkpoint,))
    sid = expected[0]
    if row != expected or not all(bodies.is_in_place(tx, sid, body) for body in stored):
        raise DamagedPage("what was just written does not read back")


class DamagedPage(Exception):
    """The database itself is damaged where a save would go."""


def _chains(headers: Sequence[object], parents: Sequence[str]) -> list[str | None]:
    """The chain value of each parent, None where it is not stored."""
    return [
        chain_of(raw) if isinstance(raw, bytes) else None for raw, _ in zip(headers, parents, strict=False)
    ]


def _same_content(original: HeaderRow, draft: Draft) -> HeaderRow:
    header = open_header(original.raw, expect_id=original.id)
    is_same = (
        header.session == draft.session
        and header.contents == draft.contents
        and header.step == draft.step
        and header.status == draft.status
    )
    if not is_same:
        raise Conflict(
            f"{original.id} already holds the key of this save, with other content",
            code="idempotency_mismatch",
            retryable=False,
            session=draft.session,
            checkpoint=original.id,
        )
    return original


def _check_external_id(tx: Connection, sid: int, branch: str, external_id: str | None) -> None:
    if external_id is None:
        return
    _check_free(tx.one(_BY_EXTERNAL_ID, (sid, branch, external_id)), branch, external_id)


def _check_free(row: Row | None, branch: str, external_id: str | None) -> None:
    """The same for the row that `_BY_EXTERNAL_ID` found."""
    if row is not None:
        raise Conflict(
            f"branch {branch!r} already has a checkpoint with external id {external_id!r}",
            code="external_id_exists",
            retryable=False,
            branch=branch,
            checkpoint=row[0],
        )


def _insert(tx: Connection, sid: int, seq: int, record: Draft | Header, raw: bytes) -> None:
    tx.put(
        _INSERT,
        (
            sid,
            seq,
            record.id,
            record.branch,
            record.time_us,
            record.step,
            str(record.status),
            record.external_id,
            record.idempotency_key,
            raw,
        ),
    )
    if record.tags:
        tx.run_many(
            "INSERT INTO tags (sid, seq, tag) VALUES (?, ?, ?)", [(sid, seq, tag) for tag in set(record.tags)]
        )
    if record.requires:
        tx.run_many(
            "INSERT INTO requirements (sid, seq, required) VALUES (?, ?, ?)",
            [(sid, seq, required) for required in set(record.requires)],
        )


def _advanced(branch: Branch, head: str, seq: int) -> Branch:
    return msgspec.structs.replace(branch, head=head, head_seq=seq)


def _new_branch(tx: Connection, sid: int, record: Draft | Header, parents: Sequence[str]) -> Branch:
    """A branch begun by a checkpoint: it forks where the first parent is."""
    branch = Branch(name=record.branch, created_us=record.time_us)
    row = (
        tx.one("SELECT seq, branch FROM checkpoints WHERE id = ? AND sid = ?", (parents[0], sid))
        if parents
        else None
    )
    if row is None:
        return branch
    return msgspec.structs.replace(branch, fork=parents[0], fork_seq=row[0], fork_branch=row[1])


def advanced_session(session: Session, draft: Draft, seq: int) -> Session:
    """What a save makes of its session."""
    is_finished = draft.status.is_finished
    return msgspec.structs.replace(
        session,
        updated_us=max(session.updated_us, draft.time_us),
        status=draft.status,
        finished_us=draft.time_us if is_finished else None,
        error=session.error if is_finished else None,
        last_seq=seq,
    )


# --- find ------------------------------------------------------------------------------------------------------


def page(
    tx: Connection, sid: int | None, query: HeaderQuery, after: tuple[int, str] | None, limit: int
) -> list[tuple[tuple[int, str], HeaderRow]]:
    """One page of (place in the order, header)."""
    where, values = _conditions(sid, query, after)
    order = "DESC" if query.newest_first else "ASC"
    # An id begins with its time, so its index is the order by (time, id).
    by = f"c.seq {order}" if sid is not None else f"c.id {order}"
    found = tx.all(
        f"SELECT {HEADER_COLUMNS}, c.time_us {_FROM} WHERE {where} ORDER BY {by} LIMIT ?", (*values, limit)
    )
    return [((row[2] if sid is not None else row[5], row[0]), header_row(row)) for row in found]


def _conditions(
    sid: int | None, query: HeaderQuery, after: tuple[int, str] | None
) -> tuple[str, list[Value]]:
    conditions: list[str] = ["1 = 1"]
    values: list[Value] = []

    def add(condition: str, *bound: Value) -> None:
        conditions.append(condition)
        values.extend(bound)

    if sid is not None:
        add("c.sid = ?", sid)
    for column, wanted in (
        ("s.project", query.project),
        ("c.branch", query.branch),
        ("c.external_id", query.external_id),
        ("c.step", query.step),
        ("c.status", None if query.status is None else str(query.status)),
    ):
        if wanted is not None:
            add(f"{column} = ?", wanted)
    if query.ids is not None:
        add(f"c.id IN ({marks(len(query.ids))})", *query.ids)
    if query.id_prefix is not None:
        add("c.id >= ? AND substr(c.id, 1, ?) = ?", query.id_prefix, len(query.id_prefix), query.id_prefix)
    if query.tag is not None:
        add("EXISTS (SELECT 1 FROM tags t WHERE t.sid = c.sid AND t.seq = c.seq AND t.tag = ?)", query.tag)
    for condition, bound in (
        ("c.seq >= ?", query.min_seq),
        ("c.seq <= ?", query.max_seq),
        ("c.time_us >= ?", query.since_us),
        ("c.time_us <= ?", query.until_us),
    ):
        if bound is not None:
            add(condition, bound)
    if after is not None:
        beyond = "<" if query.newest_first else ">"
        if sid is not None:
            add(f"c.seq {beyond} ?", after[0])
        else:
            add(f"c.id {beyond} ?", after[1])
    return " AND ".join(conditions), values


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
        expected = [header.branch, header.time_us, header.step, str(header.status), header.external_id]
        if columns != [*expected, header.idempotency_key]:
            found.append(Inconsistency(header.id, f"the columns of {id} differ from its header"))
        if tags.get(seq, set()) != set(header.tags) or required.get(seq, set()) != set(header.requires):
            found.append(Inconsistency(header.id, f"the tags or requirements of {id} differ from its header"))
    return found


def _by_seq(tx: Connection, sql: str, sid: int) -> dict[int, set[str]]:
    values: dict[int, set[str]] = {}
    for seq, value in tx.all(sql, (sid,)):
        values.setdefault(seq, set()).add(value)
    return values


# --- remove ----------------------------------------------------------------------------------------------------


def remove(tx: Connection, sid: int, session: Session, ids: Sequence[str]) -> Removed:
    wanted = list(dict.fromkeys(ids))
    found = {
        row[0]: row
        for row in tx.all(
            f"SELECT id, seq, branch, external_id FROM checkpoints WHERE sid = ? AND id IN ({marks(len(wanted))})",
            (sid, *wanted),
        )
    }
    refused = _required(tx, sid, set(found))
    going = [row for id, row in found.items() if id not in refused]
    newest_first = sorted(going, key=lambda row: row[1], reverse=True)
    freed = bodies.freed_bytes(tx.ask([query for row in newest_first for query in _remove_one(tx, sid, row)]))
    _retreat_heads(tx, sid, {row[0] for row in going})
    gaps = merge_gaps(session.gaps, [row[1] for row in going])
    if gaps != session.gaps:
        sessions.write_after_append(tx, sid, msgspec.structs.replace(session, gaps=gaps))
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
    notes.remove(tx, sid, targets)
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


def adopt(
    tx: Connection, sid: int, session: Session, raw: bytes, incoming: Sequence[Body], blobs: Sequence[Blob]
) -> bool:
    """Store a sealed checkpoint of another store under its own number."""
    header = open_header(raw)
    if header.session != session.uid:
        raise InvalidInput(
            f"{header.id} belongs to session {header.session}, not {session.uid}", code="foreign_checkpoint"
        )
    for held in tx.all(
        "SELECT header FROM checkpoints WHERE id = ? OR (sid = ? AND seq = ?) OR (sid = ? AND idempotency_key = ?)",
        (header.id, sid, header.seq, sid, header.idempotency_key),
    ):
        if held[0] == raw:
            return False
        raise Conflict(
            f"{header.id} (seq {header.seq}) cannot be adopted: its id, number or key is taken",
            code="place_taken",
            retryable=False,
            checkpoint=header.id,
        )
    _check_external_id(tx, sid, header.branch, header.external_id)
    bodies.check_references(tx, sid, incoming, blobs)
    branch = sessions.branch(tx, sid, header.branch)
    _insert(tx, sid, header.seq, header, raw)
    bodies.insert_blobs(tx, blobs)
    # A hidden body stays in the encoding that others are patched against, and shows again.
    hidden = bodies.hidden(tx, sid, header.id)
    bodies.insert(tx, sid, [body for body in incoming if body.name not in hidden])
    bodies.show(tx, sid, header.id)
    if branch is None or header.seq > branch.head_seq:
        branch = branch or _new_branch(tx, sid, header, header.parents)
        sessions.put_branch(tx, sid, _advanced(branch, header.id, header.seq))
    if header.seq > session.last_seq:
        sessions.write_after_append(tx, sid, msgspec.structs.replace(session, last_seq=header.seq))
    return True
