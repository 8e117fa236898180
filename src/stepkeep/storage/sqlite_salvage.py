"""Rows found in a damaged database, written into the tables of a new one.

Only rows that prove themselves are taken. A session whose row is lost gets a new one, from what its headers say, so
that its checkpoints are not lost with it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final

import msgspec

from stepkeep.codec.integrity import digest, open_header
from stepkeep.errors import StepkeepError
from stepkeep.model import Header, Session
from stepkeep.storage.sql.connection import Connection, Value, marks
from stepkeep.storage.sql.rows import (
    SESSION_COLUMNS,
    branch_from,
    open_description,
    session_from,
    session_row,
)
from stepkeep.storage.sqlite import SqliteBackend
from stepkeep.storage.sqlite_pages import Found, Record, rows

_KEEPS_ALL: Final = "archive"
# The columns in the order of the tables; the first of sessions and annotations is the rowid.
_SESSION_WIDTH, _BODY_WIDTH, _BLOB_WIDTH, _NOTE_WIDTH = 22, 13, 6, 8
_BRANCH_WIDTH, _CHECKPOINT_WIDTH = 12, 10
_EVENT: Final = (int, int, int, str, str)
_BLOB_REF: Final = (int, str, str, int, str)
_KEY_DIGEST, _DESCRIPTION, _DIGEST = 3, 20, 21


def salvage(damaged: Path, new: Path) -> SqliteBackend:
    """A new store with every row of a damaged database file, or of its log, that proves itself. Only reads that."""
    found = Salvage(rows(damaged))
    backend = SqliteBackend(new)
    backend.fill(found.write)
    return backend


class Salvage:
    """Rows by table, each place once; of several versions the first that proves itself."""

    def __init__(self, found: Iterable[Found]) -> None:
        self._sessions: dict[int, tuple[int, Session]] = {}
        self._descriptions: dict[str, dict[str, Any]] = {}
        self._headers: dict[str, tuple[int, Header, bytes]] = {}
        self._bodies: dict[Record, Record] = {}
        self._tables: dict[str, dict[Record, Record]] = {
            name: {} for name in ("blobs", "branches", "annotations", "events", "blob_refs")
        }
        for each in found:
            if not each.is_free or self._is_of_known_session(each.record):
                self._sort(each.rowid, each.record)

    # --- sorting

    def _is_of_known_session(self, record: Record) -> bool:
        """Whether a row in a page that was given up may count: a session that was removed must not come back."""
        return len(record) != _SESSION_WIDTH and record[:1] != () and record[0] in self._sessions

    def _sort(self, rowid: int | None, record: Record) -> None:
        if rowid is not None:
            self._sort_table_row(rowid, record)
        elif len(record) == _CHECKPOINT_WIDTH:
            self._take_checkpoint(record)
        elif len(record) == _BRANCH_WIDTH and _is_branch(record):
            self._tables["branches"].setdefault(record[:2], record)
        elif tuple(map(type, record)) == _EVENT:
            self._tables["events"].setdefault(record[:2], record)
        elif tuple(map(type, record)) == _BLOB_REF:
            self._tables["blob_refs"].setdefault(record, record)

    def _sort_table_row(self, rowid: int, record: Record) -> None:
        if len(record) == _SESSION_WIDTH:
            self._take_session(rowid, record)
        elif len(record) == _BODY_WIDTH and _proves(record[12], record[8]):
            self._bodies.setdefault(record[:4], record)
        elif len(record) == _BLOB_WIDTH and _proves(record[5], record[3]):
            self._tables["blobs"].setdefault(record[:1], record)
        elif len(record) == _NOTE_WIDTH and _proves(record[7], record[6]):
            self._tables["annotations"].setdefault(record[1:5], (rowid, *record[1:]))

    def _take_session(self, sid: int, record: Record) -> None:
        described = open_description(record[_DESCRIPTION])
        if described:
            self._descriptions.setdefault(described["uid"], described)
        fields = (*record[1:_KEY_DIGEST], *record[_KEY_DIGEST + 1 : _DESCRIPTION])
        try:
            session = session_from((*fields, record[_KEY_DIGEST], record[_DESCRIPTION], record[_DIGEST]))
        except StepkeepError:
            return
        held = self._sessions.get(sid)
        if held is None or _progress(held[1]) < _progress(session):
            self._sessions[sid] = (sid, session)

    def _take_checkpoint(self, record: Record) -> None:
        raw = record[9]
        try:
            header = open_header(raw) if isinstance(raw, bytes) else None
        except StepkeepError:
            return
        if header is not None and isinstance(raw, bytes) and isinstance(record[0], int):
            self._headers.setdefault(header.id, (record[0], header, raw))

    # --- writing

    def write(self, tx: Connection) -> None:
        """Fill the empty tables of a new store."""
        sids = self._write_sessions(tx)
        for sid, header, raw in self._kept(sids):
            tx.run(
                f"INSERT OR IGNORE INTO checkpoints VALUES ({marks(_CHECKPOINT_WIDTH)})",
                (
                    sid,
                    header.seq,
                    header.id,
                    header.branch,
                    header.time_us,
                    header.step,
                    str(header.status),
                    header.external_id,
                    header.idempotency_key,
                    raw,
                ),
            )
        for (
            record
        ) in self._bodies.values():  # those of pruned checkpoints too: others may be patched against them
            owner = self._headers.get(str(record[1]))
            place = record[0] if owner is None else sids[owner[1].session]
            _insert(tx, "bodies", (place, *record[1:]))
        for table, records in self._tables.items():
            for record in records.values():
                _insert(tx, table, record)

    def _write_sessions(self, tx: Connection) -> dict[str, int]:
        """Store every session, and give its number by uid."""
        sids: dict[str, int] = {}
        keys: set[str] = set()
        newest: dict[str, int] = {}
        for _, header, _ in self._headers.values():
            newest[header.session] = max(header.seq, newest.get(header.session, 0))
        for sid, session in [*sorted(self._sessions.values(), key=_newest_first), *self._rebuilt()]:
            if session.uid in sids:
                continue
            # A row from an older page may be behind its checkpoints.
            last_seq = max(session.last_seq, newest.get(session.uid, 0))
            key = _recovered_key(session.uid) if session.key in keys else session.key
            free = msgspec.structs.replace(session, key=key, last_seq=last_seq)
            keys.add(key)
            number = sid if sid not in sids.values() else max([*sids.values(), *self._sessions]) + 1
            sids[session.uid] = number
            columns = f"sid, {SESSION_COLUMNS}"
            row = (number, *session_row(free))
            tx.run(f"INSERT INTO sessions ({columns}) VALUES ({marks(len(row))})", row)
        return sids

    def _rebuilt(self) -> Iterator[tuple[int, Session]]:
        """Sessions without a row that proves itself, from their description or only their headers."""
        known = {session.uid for _, session in self._sessions.values()}
        by_uid: dict[str, list[tuple[int, Header]]] = {}
        for sid, header, _ in self._headers.values():
            if header.session not in known:
                by_uid.setdefault(header.session, []).append((sid, header))
        for uid, places in by_uid.items():
            newest = max((header for _, header in places), key=lambda header: header.seq)
            described: dict[str, Any] = {
                "uid": uid,
                "key": _recovered_key(uid),
                "created_us": min(header.time_us for _, header in places),
                "profile": _KEEPS_ALL,
                **self._descriptions.get(uid, {}),
            }
            yield (
                places[0][0],
                Session(
                    **described,
                    updated_us=newest.time_us,
                    status=newest.status,
                    finished_us=newest.time_us if newest.status.is_finished else None,
                    branch=newest.branch,
                    last_seq=newest.seq,
                ),
            )

    def _kept(self, sids: dict[str, int]) -> Iterator[tuple[int, Header, bytes]]:
        """The checkpoints that were not removed on purpose."""
        gaps = {session.uid: session.gaps for _, session in self._sessions.values()}
        for _, header, raw in self._headers.values():
            if not any(first <= header.seq <= last for first, last in gaps.get(header.session, ())):
                yield sids[header.session], header, raw


def _progress(session: Session) -> tuple[int, int, int, int]:
    """What only ever grows in a session: of two versions of its row, the later one has more."""
    removed = sum(last - first + 1 for first, last in session.gaps)
    return session.last_seq, removed, session.version, session.updated_us


def _insert(tx: Connection, table: str, record: tuple[Value, ...]) -> None:
    tx.run(f"INSERT OR IGNORE INTO {table} VALUES ({marks(len(record))})", record)


def _newest_first(entry: tuple[int, Session]) -> tuple[int, int]:
    return -entry[1].updated_us, entry[0]


def _proves(data: Value, stored_digest: Value) -> bool:
    return isinstance(data, bytes) and digest(data) == stored_digest


def _is_branch(record: Record) -> bool:
    try:
        branch_from(record[1:])
    except StepkeepError:
        return False
    return True


def _recovered_key(uid: str) -> str:
    return f"recovered-{uid}"
