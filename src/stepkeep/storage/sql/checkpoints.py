"""Checkpoints as rows: appending, finding, removing and adopting them.

Appending takes as few statements as there can be. One brings everything that decides about a save: session, branch, the
newest number, what it builds upon; where the last append left all of it, and nobody else wrote since, none is needed.
Then come header, bodies, and once for the whole batch the rows of branch and session. All checks come before the first
write, so a refusal leaves nothing behind.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from operator import itemgetter
from typing import Any, Final

import msgspec

from stepkeep.codec.integrity import chain_of, digest, open_header, row_digest
from stepkeep.errors import Corrupt
from stepkeep.model import MAX_SEQ, Branch, Header, SessionInfo, Status
from stepkeep.storage import conflicts, port
from stepkeep.storage.sql import bodies, leases, sessions
from stepkeep.storage.sql.attachments import record_event, remove_annotations
from stepkeep.storage.sql.connection import Conditions, Connection, Row, Value, among, marks
from stepkeep.storage.sql.row_mapping import (
    BRANCH_FIELDS,
    HEADER_COLUMNS,
    SESSION_FIELDS,
    SESSION_NAMES,
    branch_row,
    check_branch,
    check_session,
    header_row,
    intact_header,
)

FIRST_PAGE: Final = 16
PAGE: Final = 256

_FROM = "FROM checkpoints c JOIN sessions s ON s.sid = c.sid"


# --- append ----------------------------------------------------------------------------------------------------


_SESSION: Final = len(SESSION_NAMES)
_BRANCH: Final = len(BRANCH_FIELDS) + 1
_ROWS: Final = ", ".join(
    (
        "s.sid",
        *(f"s.{name}" for name in SESSION_NAMES),
        *(f"b.{name} AS branch_{name}" for name in (*BRANCH_FIELDS, "digest")),
        "(SELECT max(seq) FROM checkpoints WHERE sid = s.sid) AS highest",
        "(SELECT header FROM checkpoints WHERE id = b.head) AS head_header",
    )
)
_OWN: Final = (
    "(SELECT id FROM checkpoints WHERE id = ?) AS own",
    "(SELECT 1 FROM bodies WHERE sid = s.sid AND checkpoint = ? LIMIT 1) AS remains",
)
_JOINED: Final = "FROM sessions s LEFT JOIN branches b ON b.sid = s.sid AND b.name ="
_OPENED: Final = f"SELECT {_ROWS} {_JOINED} s.branch WHERE s.key_digest = ? OR s.key = ?"
_BY_KEY: Final = "(SELECT id FROM checkpoints WHERE sid = s.sid AND idempotency_key = ?) AS by_key"
_BY_EXTERNAL_ID: Final = (
    "(SELECT id FROM checkpoints WHERE sid = s.sid AND branch = ? AND external_id = ?) AS external"
)
_TOKEN: Final = "(SELECT token FROM leases WHERE sid = s.sid AND is_held = 1) AS token"
_BASE: Final = "(SELECT 1 FROM bodies WHERE sid = s.sid AND checkpoint = ? AND name = ? AND is_redundant = 0)"
_PARENT_HEADER: Final = "SELECT header FROM checkpoints WHERE id = ?"
_PARENT: Final = f"({_PARENT_HEADER})"
_ORIGINAL: Final = f"SELECT {HEADER_COLUMNS} {_FROM} WHERE c.id = ?"

INSERT_CHECKPOINT: Final = (
    "INSERT INTO checkpoints (sid, seq, id, branch, time_us, step, status, external_id, idempotency_key, header)"
    " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
)
_CHANGED: Final = ("updated_us", "status", "finished_us", "error", "last_seq")
_UPDATED, _STATUS, _FINISHED, _ERROR, _LAST_SEQ = map(SESSION_FIELDS.index, _CHANGED)
_changed: Final = itemgetter(_UPDATED, _STATUS, _FINISHED, _ERROR, _LAST_SEQ)
_ENDED: Final = frozenset(str(status) for status in Status if status.is_finished)
_CURRENT: Final = SESSION_FIELDS.index("branch")
_KEY: Final = SESSION_FIELDS.index("key")
_HEAD, _HEAD_SEQ = BRANCH_FIELDS.index("head"), BRANCH_FIELDS.index("head_seq")
_UPDATE_SESSION: Final = (
    f"UPDATE sessions SET {', '.join(f'{name} = ?' for name in (*_CHANGED, 'digest'))} WHERE sid = ?"
)
_READ_BACK: Final = (
    "SELECT c.sid, c.seq, c.header, b.name, b.is_redundant, b.data FROM checkpoints c"
    " LEFT JOIN bodies b ON b.sid = c.sid AND b.checkpoint = c.id WHERE c.id IN ({})"
)
_READ_ONE_BACK: Final = _READ_BACK.format("?")


MAX_BASES: Final = 1000
"""How many bodies of a session are remembered to be stored."""


_READ_AT_ONCE: Final = 16
"""How many checkpoints of a batch are read back by one statement."""


class DamagedPage(Exception):
    """The database itself is damaged where a save would go."""


def advance(session: list[Any], branch: list[Any], header: Header, seq: int) -> None:
    """Make the columns of a session and of its branch what a save leaves."""
    is_finished = header.status.is_finished
    session[_UPDATED] = max(session[_UPDATED], header.time_us)
    session[_STATUS] = str(header.status)
    session[_FINISHED] = header.time_us if is_finished else None
    session[_ERROR] = session[_ERROR] if is_finished else None
    session[_LAST_SEQ] = seq
    branch[_HEAD], branch[_HEAD_SEQ] = header.id, seq


class SessionRows:
    """A session, and those of its branches that were saved to, as columns that follow the saves.

    `chains` has the chain value of each of these branches' heads, `bases` the bodies known to be stored.
    """

    def __init__(self, sid: int, row: Row, highest: object) -> None:
        """`highest` is the highest number that is stored."""
        self.sid = sid
        self.columns: list[Any] = list(row[:-1])
        # No number is given twice (V3), even if damage raised one of those that are stored.
        self.columns[_LAST_SEQ] = max(self.columns[_LAST_SEQ], highest if isinstance(highest, int) else 0)
        self.branches: dict[str, list[Any]] = {}
        self.chains: dict[str, str] = {}
        self.bases: set[tuple[str, str]] = set()
        self._changed: set[str] = set()

    def head(self, branch: str | None) -> str | None:
        """The head of a branch that was saved to, of the current one unless named."""
        columns = self.branches.get(self.columns[_CURRENT] if branch is None else branch)
        return None if columns is None else columns[_HEAD]

    def advance(
        self, header: Header, seq: int, branch: list[Any], chain: str, stored: Sequence[port.Body] = ()
    ) -> None:
        """What a save makes of its session and branch."""
        advance(self.columns, branch, header, seq)
        self.branches[header.branch] = branch
        self.chains[header.branch] = chain
        self._changed.add(header.branch)
        if len(self.bases) > MAX_BASES:
            self.bases.clear()
        for body in stored:
            if not body.is_redundant:
                self.bases.add((body.checkpoint, body.name))

    def write(self, tx: Connection) -> None:
        """Write what the saves changed since the last time."""
        for name in self._changed:
            columns = self.branches[name]
            tx.put(sessions.PUT_BRANCH, (self.sid, *columns, row_digest(*columns)))
        self._changed.clear()
        tx.put(_UPDATE_SESSION, (*_changed(self.columns), row_digest(*self.columns), self.sid))

    def left(self) -> Iterator[tuple[int, Row, Row, str]]:
        """The session's number and row as the batch leaves it; with the row and chain of each branch it saved to."""
        session = (*self.columns, row_digest(*self.columns))
        for name, columns in self.branches.items():
            yield self.sid, session, (*columns, row_digest(*columns)), self.chains[name]


class Facts(msgspec.Struct, frozen=True):
    """What decides about a save: who holds its names already, and the chain values of its parents where it has any."""

    original: str | None = None
    holder: str | None = None
    chains: Sequence[str | None] = ()


class Batch:
    """Appends of one transaction. What they make of sessions and branches is written once, by `flush`.

    `opened` are rows as the last append left them, where nobody else wrote since. What they tell is not looked up
    again, unless `is_careful`; that the names of a save are free is then left to the indexes (`NotUnique`).
    """

    def __init__(
        self,
        tx: Connection,
        items: Sequence[port.Append],
        opened: dict[str, SessionRows] | None = None,
        *,
        is_careful: bool = True,
    ) -> None:
        self._tx = tx
        self._is_careful = is_careful
        self.opened: dict[str, SessionRows] = {} if opened is None else opened
        self._saved_to: dict[str, SessionRows] = {}
        self._ids: list[str] = []
        self._written: set[Row] = set()
        if tx.locks.change:
            # Held from the start and in one order for all, before anything of them is read.
            uids = sorted({item.draft.session for item in items})
            tx.all(
                f"SELECT sid FROM sessions WHERE uid IN ({marks(len(uids))}) ORDER BY sid{tx.locks.change}",
                uids,
            )

    def append(self, item: port.Append, seal: port.Seal) -> port.Appended:
        """Store one checkpoint, or raise why it is refused."""
        tx, draft = self._tx, item.draft
        opened = self.opened.get(draft.session)
        branch = None if opened is None else opened.branches.get(draft.branch)
        facts = None if opened is None or branch is None else self._assume(item, opened, branch)
        if opened is None or facts is None:
            opened, branch, facts = self._look_up(item)
        if facts.original is not None:
            return port.Appended(row=_same_content(tx, facts.original, draft), is_new=False)
        columns = opened.columns
        if item.on_current and columns[_CURRENT] != draft.branch:
            raise conflicts.branch_switched(columns[_KEY], columns[_CURRENT], draft)
        head = branch[_HEAD] if branch is not None else None
        if item.expect_head != port.ANY_HEAD:
            sessions.check_head(head, draft.branch, draft.session, item.expect_head)
        if draft.external_id is not None:
            check_free(facts.holder, draft)
        for required in draft.requires:
            sessions.location(tx, opened.sid, draft.session, required)
        # A sweep may have been faster than this save (V5).
        named: set[str] = set()
        for body in item.bodies:
            named.update(body.blobs)
            if body.base is not None and not body.is_redundant and (body.base, body.name) not in opened.bases:
                raise conflicts.base_gone(body)
        if named:
            bodies.check_blobs(tx, named, item.blobs)
        parents, chains = item.parents, facts.chains
        if parents is None:
            parents = (head,) if head else ()
            chains = [opened.chains.get(draft.branch)] if head else []
        seq = columns[_LAST_SEQ] + 1
        raw = seal(draft, seq, parents, chains)
        if item.blobs:
            bodies.insert_blobs(tx, item.blobs)
        bodies.insert(tx, opened.sid, item.bodies)
        insert_header(tx, opened.sid, seq, draft, raw)
        if branch is None:
            branch = list(branch_row(new_branch(tx, opened.sid, draft, parents))[:-1])
        if not draft.status.is_finished and columns[_STATUS] in _ENDED:
            data = {"was": columns[_STATUS], "checkpoint": draft.id}
            record_event(tx, opened.sid, "session_reopened", data, time_us=draft.time_us)
        opened.advance(draft, seq, branch, chain_of(raw), item.bodies)
        self._saved_to[draft.session] = opened
        self._ids.append(draft.id)
        for body in item.bodies:
            self._written.add((opened.sid, seq, raw, body.name, int(body.is_redundant), body.data))
        if not item.bodies:
            self._written.add((opened.sid, seq, raw, None, None, None))
        return port.Appended(
            row=port.HeaderRow(id=draft.id, session=draft.session, seq=seq, branch=draft.branch, raw=raw),
            is_new=True,
        )

    def flush(self) -> None:
        """Read back what was written, and write the rows of the sessions and branches that were saved to."""
        if not self._tx.trusts_storage:
            self._check_written()
        for opened in self._saved_to.values():
            opened.write(self._tx)

    def _check_written(self) -> None:
        """In a damaged page an insert can go astray without any error.

        Looked for by its id, as it will be later: that leads through the index into the table.

        Raises:
            DamagedPage: something did; the whole transaction must be undone.
        """
        found = 0
        for start in range(0, len(self._ids), _READ_AT_ONCE):
            ids = self._ids[start : start + _READ_AT_ONCE]
            sql = _READ_ONE_BACK if len(ids) == 1 else _READ_BACK.format(marks(len(ids)))
            rows = set(self._tx.all(sql, ids))
            found += len(rows) if rows <= self._written else MAX_SEQ
        if found != len(self._written):
            raise DamagedPage("what was just written does not read back")

    def _assume(self, item: port.Append, opened: SessionRows, branch: list[Any]) -> Facts | None:
        """What decides about a save into a session whose rows are at hand.

        None where it does not fit where the session stands: it must be known whether it repeats another one.
        """
        tx, draft = self._tx, item.draft
        is_on_branch = not item.on_current or opened.columns[_CURRENT] == draft.branch
        is_expected = is_on_branch and item.expect_head in (port.ANY_HEAD, branch[_HEAD])
        if self._is_careful or not is_expected:
            return None
        if item.fence is not None and tx.one(leases.TOKEN, (opened.sid,)) != (item.fence, 1):
            raise conflicts.lease_lost(draft.session)
        for body in item.bodies:
            base = (body.base, body.name) if body.base is not None else None
            if base is not None and base not in opened.bases and tx.one(bodies.BASE, (opened.sid, *base)):
                opened.bases.add(base)
        chains: list[str | None] = []
        for parent in item.parents or ():
            if parent == branch[_HEAD]:
                chains.append(opened.chains.get(draft.branch))
            else:
                row = tx.one(_PARENT_HEADER, (parent,))
                chains.append(None if row is None else _chain(row[0]))
        return Facts(chains=chains)

    def _look_up(self, item: port.Append) -> tuple[SessionRows, list[Any] | None, Facts]:
        """What decides about a save, by one statement: its session, its branch, None if that is new, and the rest."""
        draft = item.draft
        columns = [_ROWS, *_OWN]
        values: list[Value] = [draft.id, draft.id]
        if item.fence is not None:
            columns.append(_TOKEN)
        if draft.idempotency_key is not None:
            columns.append(_BY_KEY)
            values.append(draft.idempotency_key)
        if draft.external_id is not None:
            columns.append(_BY_EXTERNAL_ID)
            values += (draft.branch, draft.external_id)
        based = [body for body in item.bodies if body.base is not None and not body.is_redundant]
        for body in based:
            columns.append(f"{_BASE} AS base_{len(columns)}")
            values += (body.base, body.name)
        for parent in item.parents or ():
            columns.append(f"{_PARENT} AS parent_{len(columns)}")
            values.append(parent)
        row = self._tx.one(
            f"SELECT {', '.join(columns)} {_JOINED} ? WHERE s.uid = ?", (*values, draft.branch, draft.session)
        )
        if row is None:
            raise sessions.missing(self._tx, draft.session)
        highest, head_header, own, remains, *more = row[1 + _SESSION + _BRANCH :]
        rest = iter(more)
        opened = self._open(draft.session, row, highest)
        if item.fence is not None and next(rest) != item.fence:
            raise conflicts.lease_lost(draft.session)
        original = own or (next(rest) if draft.idempotency_key is not None else None)
        if original is None and remains:
            raise conflicts.id_taken(draft)
        holder = next(rest) if draft.external_id is not None else None
        for body in based:
            if next(rest):
                opened.bases.add((str(body.base), body.name))
            else:
                opened.bases.discard((str(body.base), body.name))
        branch = opened.branches.get(draft.branch) or self._branch(opened.sid, draft.branch, row)
        if draft.branch not in opened.chains and (chain := _chain(head_header)) is not None:
            opened.chains[draft.branch] = chain
        return opened, branch, Facts(original, holder, [_chain(raw) for raw in rest])

    def _open(self, uid: str, row: Row, highest: object) -> SessionRows:
        opened = self.opened.get(uid)
        if opened is None:
            sessions.checked(check_session, row[1 : 1 + _SESSION])
            opened = self.opened[uid] = SessionRows(int(row[0]), row[1 : 1 + _SESSION], highest)
        return opened

    def _branch(self, sid: int, name: str, row: Row) -> list[Any] | None:
        """The columns of the branch in a row; None when it begins with this save."""
        found = row[1 + _SESSION : 1 + _SESSION + _BRANCH]
        if found[0] is None:
            sessions.check_not_lost(self._tx, sid, name)
            return None
        sessions.checked(check_branch, found)
        return list(found[:-1])


def open_rows(tx: Connection, key: str) -> SessionInfo | None:
    """The session with that key; the rows that decide about a save to its current branch are then at hand.

    Where that branch is damaged or new they are left out: the save will look it up.
    """
    at_hand = tx.rows_at_hand()
    assert at_hand is not None
    row = tx.one(_OPENED, (digest(key.encode()), key))
    if row is None:
        return None
    session = sessions.intact(row[: 1 + _SESSION])
    branch = row[1 + _SESSION : 1 + _SESSION + _BRANCH]
    with suppress(Corrupt):
        check_branch(branch)
        rows = at_hand[session.uid] = SessionRows(row[0], row[1 : 1 + _SESSION], row[-2])
        rows.branches[session.branch] = list(branch[:-1])
        if (chain := _chain(row[-1])) is not None:
            rows.chains[session.branch] = chain
    return session


def _chain(raw: object) -> str | None:
    """The chain value of a parent, None where that is not stored."""
    return chain_of(raw) if isinstance(raw, bytes) else None


def _same_content(tx: Connection, original: str, draft: Header) -> port.HeaderRow:
    row = header_row(tx.one(_ORIGINAL, (original,)) or ())
    header = open_header(row.raw, expect_id=row.id)
    held = (header.session, header.contents, header.step, header.status)
    if held != (draft.session, draft.contents, draft.step, draft.status):
        raise conflicts.idempotency_mismatch(draft, row.id)
    return row


def check_free(holder: str | None, header: Header) -> None:
    """Refuse an external id that a checkpoint of the branch has already."""
    if holder is not None:
        raise conflicts.external_id_exists(header, holder)


def columns_of(header: Header) -> tuple[Value, ...]:
    """The columns of a checkpoint that repeat what its header says, so that it is found by them."""
    status = str(header.status)
    return header.branch, header.time_us, header.step, status, header.external_id, header.idempotency_key


def insert_header(tx: Connection, sid: int, seq: int, header: Header, raw: bytes) -> None:
    tx.put(INSERT_CHECKPOINT, (sid, seq, header.id, *columns_of(header), raw))
    if header.tags:
        tx.run_many(
            "INSERT INTO tags (sid, seq, tag) VALUES (?, ?, ?)", [(sid, seq, tag) for tag in set(header.tags)]
        )
    if header.requires:
        tx.run_many(
            "INSERT INTO requirements (sid, seq, required) VALUES (?, ?, ?)",
            [(sid, seq, required) for required in set(header.requires)],
        )


def new_branch(tx: Connection, sid: int, header: Header, parents: Sequence[str]) -> Branch:
    """A branch begun by a checkpoint: it forks where the first parent is."""
    branch = Branch(name=header.branch, created_us=header.time_us)
    fork = sessions.find_location(tx, sid, parents[0]) if parents else None
    if fork is None:
        return branch
    return msgspec.structs.replace(branch, fork=parents[0], fork_seq=fork[0], fork_branch=fork[1])


def advanced_session(session: SessionInfo, header: Header, seq: int) -> SessionInfo:
    """What a save makes of its session."""
    is_finished = header.status.is_finished
    return msgspec.structs.replace(
        session,
        updated_us=max(session.updated_us, header.time_us),
        status=header.status,
        finished_us=header.time_us if is_finished else None,
        error=session.error if is_finished else None,
        last_seq=seq,
    )


# --- find ------------------------------------------------------------------------------------------------------


def page(
    tx: Connection, sid: int | None, query: port.HeaderQuery, after: tuple[int, str] | None, limit: int
) -> list[tuple[tuple[int, str], port.HeaderRow]]:
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


def inconsistencies(tx: Connection, sid: int) -> list[port.Inconsistency]:
    """Columns and side tables that differ from the intact headers they were made from."""
    tags = _by_seq(tx, "SELECT seq, tag FROM tags WHERE sid = ?", sid)
    required = _by_seq(tx, "SELECT seq, required FROM requirements WHERE sid = ?", sid)
    found: list[port.Inconsistency] = []
    for id, seq, raw, *columns in tx.all(
        "SELECT id, seq, header, branch, time_us, step, status, external_id, idempotency_key FROM checkpoints"
        " WHERE sid = ?",
        (sid,),
    ):
        header = intact_header(raw)
        if header is None:
            continue  # a damaged header is found by whoever reads it
        if tuple(columns) != columns_of(header):
            found.append(port.Inconsistency(header.id, f"the columns of {id} differ from its header"))
        if tags.get(seq, set()) != set(header.tags) or required.get(seq, set()) != set(header.requires):
            found.append(
                port.Inconsistency(header.id, f"the tags or requirements of {id} differ from its header")
            )
    return found


def _by_seq(tx: Connection, sql: str, sid: int) -> dict[int, set[str]]:
    values: dict[int, set[str]] = {}
    for seq, value in tx.all(sql, (sid,)):
        values.setdefault(seq, set()).add(value)
    return values


def usage(tx: Connection, uid: str | None) -> port.Usage:
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
    return port.Usage(
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


_PLACES: Final = "SELECT id, seq, branch, external_id FROM checkpoints WHERE sid = ? AND id IN ({})"
_REQUIRED: Final = (
    "SELECT r.required, c.id FROM requirements r JOIN checkpoints c ON c.sid = r.sid AND c.seq = r.seq"
    " WHERE r.sid = ? AND r.required IN ({})"
)


def remove(
    tx: Connection, sid: int, session: SessionInfo, ids: Sequence[str], *, keep_heads: bool
) -> port.Removed:
    wanted = list(dict.fromkeys(ids))
    held = sessions.held(tx, sid, session) if keep_heads else frozenset()
    found = {row[0]: row for row in among(tx, _PLACES, sid, wanted)}
    refused = held.intersection(found)
    refused |= _required(tx, sid, found.keys() - refused)
    going = sorted((row for id, row in found.items() if id not in refused), key=lambda row: -row[1])
    seqs = [row[1] for row in going]
    for table in ("checkpoints", "tags", "requirements"):
        among(tx, f"DELETE FROM {table} WHERE sid = ? AND seq IN ({{}})", sid, seqs)
    targets: list[port.Target] = [row[0] for row in going]
    targets += [(branch, external_id) for _, _, branch, external_id in going if external_id is not None]
    remove_annotations(tx, sid, targets)
    freed = bodies.drop_or_hide(tx, sid, [row[0] for row in going])
    _retreat_heads(tx, sid, {row[0] for row in going})
    gaps = merge_gaps(session.gaps, seqs)
    if gaps != session.gaps:
        sessions.write_counters(tx, sid, msgspec.structs.replace(session, gaps=gaps))
    return port.Removed(
        removed=tuple(id for id in wanted if id in found and id not in refused),
        refused=tuple(id for id in wanted if id in refused),
        missing=tuple(id for id in wanted if id not in found),
        stored_bytes=freed,
    )


def _required(tx: Connection, sid: int, going: set[str]) -> set[str]:
    """Those of the ids that a remaining checkpoint requires; what these require remains as well."""
    refused: set[str] = set()
    required = among(tx, _REQUIRED, sid, sorted(going))
    while True:
        more = {id for id, by in required if id not in refused and (by not in going or by in refused)}
        if not more:
            return refused
        refused |= more


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
    incoming: Sequence[port.Body],
    blobs: Sequence[port.Blob],
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
    of_checkpoint = "sid = ? AND checkpoint = ?"
    kept = tx.all(f"SELECT name FROM bodies WHERE {of_checkpoint} AND is_hidden = 1", (sid, header.id))
    bodies.insert(tx, sid, [body for body in incoming if (body.name,) not in kept])
    tx.put(f"UPDATE bodies SET is_hidden = 0 WHERE {of_checkpoint}", (sid, header.id))
    if branch is None or header.seq > branch.head_seq:
        branch = branch or new_branch(tx, sid, header, header.parents)
        advanced = msgspec.structs.replace(branch, head=header.id, head_seq=header.seq)
        sessions.put_branch(tx, sid, advanced)
    if header.seq > session.last_seq:
        sessions.write_counters(tx, sid, msgspec.structs.replace(session, last_seq=header.seq))
    return True
