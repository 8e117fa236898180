"""A damaged SQLite database read without SQLite, and what proves itself in it written into a new store.

The file is read page by page, whatever still has the form of a row: neither its header nor the trees above the leaves
are needed. The write-ahead log is read too, every version of a page in it, newest first. What comes out is a guess; the
digests in the rows tell what is true, and only rows that prove themselves are taken. A session whose row is lost gets a
new one, from what its headers say, so that its checkpoints are not lost with it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from struct import unpack_from
from typing import Any, Final, TypeAlias

import msgspec

from stepkeep.codec.integrity import digest
from stepkeep.errors import StepkeepError
from stepkeep.model import Header, SessionInfo
from stepkeep.storage.key_slots import read_record
from stepkeep.storage.sql.checkpoints import columns_of
from stepkeep.storage.sql.connection import Connection, Value, marks
from stepkeep.storage.sql.row_mapping import (
    SESSION_COLUMNS,
    branch_from,
    intact_header,
    open_description,
    session_from,
    session_row,
)
from stepkeep.storage.sqlite import SqliteBackend

_KEEPS_ALL: Final = "archive"
# The columns in the order of the tables; the first of sessions and annotations is the rowid.
_SESSION_WIDTH, _BODY_WIDTH, _BLOB_WIDTH, _ANNOTATION_WIDTH = 22, 13, 6, 8
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
    """Rows by table, each key once; of several versions the first that proves itself."""

    def __init__(self, found: Iterable[SalvagedRow]) -> None:
        self._sessions: dict[int, SessionInfo] = {}
        self._descriptions: dict[str, dict[str, Any]] = {}
        self._headers: dict[str, tuple[int, Header, bytes]] = {}
        self._bodies: dict[Record, Record] = {}
        self._tables: dict[str, dict[Record, Record]] = {
            name: {} for name in ("meta", "blobs", "branches", "annotations", "events", "blob_refs")
        }
        for each in found:
            # A row in a page that was given up counts for what is left: a removed session must not come back.
            is_left = (
                len(each.record) != _SESSION_WIDTH and each.record[:1] and each.record[0] in self._sessions
            )
            if not each.is_free or is_left:
                self._sort(each.rowid, each.record)

    # --- sorting

    def _sort(self, rowid: int | None, record: Record) -> None:
        match rowid, len(record):
            case None, _ if tuple(map(type, record)) == _EVENT:
                self._tables["events"].setdefault(record[:2], record)
            case None, 2 if record[0] == "encryption" and _is_key_record(record[1]):
                self._tables["meta"].setdefault(record[:1], record)
            case None, _ if tuple(map(type, record)) == _BLOB_REF:
                self._tables["blob_refs"].setdefault(record, record)
            case None, width if width == _CHECKPOINT_WIDTH:
                header = intact_header(raw := record[9])
                if header is not None and isinstance(raw, bytes) and isinstance(record[0], int):
                    self._headers.setdefault(header.id, (record[0], header, raw))
            case None, width if width == _BRANCH_WIDTH and _is_branch(record):
                self._tables["branches"].setdefault(record[:2], record)
            case int(sid), width if width == _SESSION_WIDTH:
                self._take_session(sid, record)
            case int(), width if width == _BODY_WIDTH and _proves(record[12], record[8]):
                self._bodies.setdefault(record[:4], record)
            case int(), width if width == _BLOB_WIDTH and _proves(record[5], record[3]):
                self._tables["blobs"].setdefault(record[:1], record)
            case int(), width if width == _ANNOTATION_WIDTH and _proves(record[7], record[6]):
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
        if held is None or _progress(held) < _progress(session):
            self._sessions[sid] = session

    # --- writing

    def write(self, tx: Connection) -> None:
        """Fill the empty tables of a new store."""
        sids = self._write_sessions(tx)
        for sid, header, raw in self._kept(sids):
            _insert(tx, "checkpoints", (sid, header.seq, header.id, *columns_of(header), raw))
        for record in self._bodies.values():  # those of pruned checkpoints too: others may be based on them
            owner = self._headers.get(str(record[1]))
            number = record[0] if owner is None else sids[owner[1].session]
            _insert(tx, "bodies", (number, *record[1:]))
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
        for sid, session in [
            *sorted(self._sessions.items(), key=lambda item: (-item[1].updated_us, item[0])),
            *self._rebuilt(),
        ]:
            if session.uid in sids:
                continue
            # A row from an older page may be behind its checkpoints.
            last_seq = max(session.last_seq, newest.get(session.uid, 0))
            key = _recovered_key(session.uid) if session.key in keys else session.key
            free = msgspec.structs.replace(session, key=key, last_seq=last_seq)
            keys.add(key)
            number = sid if sid not in sids.values() else max([*sids.values(), *self._sessions]) + 1
            sids[session.uid] = number
            row = (number, *session_row(free))
            tx.run(f"INSERT INTO sessions (sid, {SESSION_COLUMNS}) VALUES ({marks(len(row))})", row)
        return sids

    def _rebuilt(self) -> Iterator[tuple[int, SessionInfo]]:
        """Sessions without a row that proves itself, from their description or only their headers."""
        known = {session.uid for session in self._sessions.values()}
        by_uid: dict[str, list[tuple[int, Header]]] = {}
        for sid, header, _ in self._headers.values():
            if header.session not in known:
                by_uid.setdefault(header.session, []).append((sid, header))
        for uid, found in by_uid.items():
            newest = max((header for _, header in found), key=lambda header: header.seq)
            described: dict[str, Any] = {
                "uid": uid,
                "key": _recovered_key(uid),
                "created_us": min(header.time_us for _, header in found),
                "profile": _KEEPS_ALL,
                **self._descriptions.get(uid, {}),
            }
            yield (
                found[0][0],
                SessionInfo(
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
        gaps = {session.uid: session.gaps for session in self._sessions.values()}
        for _, header, raw in self._headers.values():
            if not any(first <= header.seq <= last for first, last in gaps.get(header.session, ())):
                yield sids[header.session], header, raw


def _progress(session: SessionInfo) -> tuple[int, int, int, int]:
    """What only ever grows in a session: of two versions of its row, the later one has more."""
    return session.last_seq, session.removed_count, session.version, session.updated_us


def _insert(tx: Connection, table: str, record: tuple[Value, ...]) -> None:
    tx.run(f"INSERT OR IGNORE INTO {table} VALUES ({marks(len(record))})", record)


def _proves(data: Value, stored_digest: Value) -> bool:
    return isinstance(data, bytes) and digest(data) == stored_digest


def _is_key_record(text: Value) -> bool:
    """Without it nothing of an encrypted store can be read."""
    try:
        read_record(str(text))
    except StepkeepError:
        return False
    return True


def _is_branch(record: Record) -> bool:
    try:
        branch_from(record[1:])
    except StepkeepError:
        return False
    return True


def _recovered_key(uid: str) -> str:
    return f"recovered-{uid}"


# --- the rows of a file, page by page --------------------------------------------------------------------------

Record: TypeAlias = tuple[Value, ...]

DEFAULT_PAGE_SIZE: Final = 4096
MAX_PAYLOAD: Final = 1 << 30

_MAGIC: Final = b"SQLite format 3\0"
_WAL_MAGICS: Final = (0x377F0682, 0x377F0683)
_WAL_HEADER: Final = 32
_FRAME_HEADER: Final = 24
_TABLE_LEAF, _INDEX_LEAF, _INDEX_INTERIOR = 0x0D, 0x0A, 0x02
_INTEGER_SIZES: Final = {1: 1, 2: 2, 3: 3, 4: 4, 5: 6, 6: 8}


class SalvagedRow(msgspec.Struct, frozen=True):
    """One row: its rowid where the table has one, its columns, and whether its page was given up."""

    rowid: int | None
    record: Record
    is_free: bool = False


def rows(path: Path) -> Iterator[SalvagedRow]:
    """Every row in the file and its log, the newest version of a page first. Only reads."""
    database = path.read_bytes()
    log = Path(f"{path}-wal")
    frames = _Frames(log.read_bytes() if log.is_file() else b"")
    size = _page_size(database) or frames.page_size or DEFAULT_PAGE_SIZE
    # The file may end within a page.
    stored = {
        at // size + 1: database[at : at + size].ljust(size, b"\0") for at in range(0, len(database), size)
    }
    newest = dict(stored)
    newest.update(frames.pages(size))
    free = _free_pages(newest)
    for number, page in newest.items():
        if number not in free:
            yield from _Page(page, number, newest).rows()
    for number, page in [*reversed(list(frames.pages(size))), *stored.items()]:
        if newest[number] != page:
            yield from _Page(page, number, newest).rows()
    for number in sorted(free & newest.keys()):
        for found in _Page(newest[number], number, newest).rows():
            yield SalvagedRow(found.rowid, found.record, is_free=True)


def _free_pages(pages: dict[int, bytes]) -> set[int]:
    """The pages that were given up, as far as their list can be followed. They hold rows that were removed, and rows
    that were moved."""
    free: set[int] = set()
    trunk = int.from_bytes(pages.get(1, b"")[32:36], "big")
    while trunk in pages and trunk not in free:
        page = pages[trunk]
        free.add(trunk)
        count = min(int.from_bytes(page[4:8], "big"), len(page) // 4 - 2)
        free.update(int.from_bytes(page[at : at + 4], "big") for at in range(8, 8 + 4 * count, 4))
        trunk = int.from_bytes(page[:4], "big")
    return free


def _page_size(database: bytes) -> int | None:
    """What the file's header says, if it still is one."""
    if not database.startswith(_MAGIC) or len(database) < 18:
        return None
    (size,) = unpack_from(">H", database, 16)
    size = 65536 if size == 1 else size
    return size if 512 <= size <= 65536 and size & (size - 1) == 0 else None


class _Frames:
    """The pages in a write-ahead log, oldest first. Those of an earlier use of the log have other salts."""

    def __init__(self, log: bytes) -> None:
        self._log = log
        self.page_size: int | None = None
        if len(log) >= _WAL_HEADER and unpack_from(">I", log)[0] in _WAL_MAGICS:
            (self.page_size,) = unpack_from(">I", log, 8)

    def pages(self, size: int) -> Iterator[tuple[int, bytes]]:
        step = _FRAME_HEADER + size
        salts = self._log[16:24]
        for at in range(_WAL_HEADER, len(self._log) - step + 1, step):
            number = int.from_bytes(self._log[at : at + 4], "big")
            if number and (self.page_size is None or self._log[at + 8 : at + 16] == salts):
                yield number, self._log[at + _FRAME_HEADER : at + step]


class _Page:
    """A page that may be a leaf with rows. Anything that does not fit its form is left out."""

    def __init__(self, data: bytes, number: int, pages: dict[int, bytes]) -> None:
        self._data = data
        self._pages = pages
        self._start = 100 if number == 1 else 0
        self._kind = data[self._start] if len(data) > self._start else 0

    def rows(self) -> Iterator[SalvagedRow]:
        if self._kind not in (_TABLE_LEAF, _INDEX_LEAF, _INDEX_INTERIOR):
            return
        header = self._start + (12 if self._kind == _INDEX_INTERIOR else 8)
        count = int.from_bytes(self._data[self._start + 3 : self._start + 5], "big")
        for index in range(min(count, len(self._data) // 4)):
            pointer = int.from_bytes(self._data[header + 2 * index : header + 2 * index + 2], "big")
            try:
                yield self._cell(pointer)
            except (IndexError, ValueError, UnicodeDecodeError):
                continue

    def _cell(self, at: int) -> SalvagedRow:
        if self._kind == _INDEX_INTERIOR:
            at += 4
        size, at = varint(self._data, at)
        rowid: int | None = None
        if self._kind == _TABLE_LEAF:
            rowid, at = varint(self._data, at)
        return SalvagedRow(rowid, decode(self._payload(at, size)))

    def _payload(self, at: int, size: int) -> bytes:
        if not 0 < size <= MAX_PAYLOAD:
            raise ValueError("a payload cannot have that size")
        local = self._local(size)
        payload = bytearray(self._data[at : at + local])
        if len(payload) < local:
            raise ValueError("the cell ends behind its page")
        follow = int.from_bytes(self._data[at + local : at + local + 4], "big") if local < size else 0
        seen: set[int] = set()
        while len(payload) < size:
            page = self._pages.get(follow)
            if page is None or follow in seen:
                raise ValueError("the cell's next page is missing")
            seen.add(follow)
            follow = int.from_bytes(page[:4], "big")
            payload += page[4 : 4 + size - len(payload)]
        return bytes(payload)

    def _local(self, size: int) -> int:
        """How much of a payload lies in this page, by the rule of the file format."""
        usable = len(self._data)
        most = usable - 35 if self._kind == _TABLE_LEAF else (usable - 12) * 64 // 255 - 23
        if size <= most:
            return size
        least = (usable - 12) * 32 // 255 - 23
        local = least + (size - least) % (usable - 4)
        return local if local <= most else least


def varint(data: bytes, at: int) -> tuple[int, int]:
    """A number of one to nine bytes, and where it ends."""
    value = 0
    for count in range(8):
        byte = data[at + count]
        value = value << 7 | byte & 0x7F
        if byte < 0x80:
            return value, at + count + 1
    value = value << 8 | data[at + 8]
    return (value - (1 << 64) if value >> 63 else value), at + 9


def decode(payload: bytes) -> Record:
    """The columns of a record.

    Raises:
        ValueError, IndexError: it is not a record.
    """
    end, at = varint(payload, 0)
    if not at <= end <= len(payload):
        raise ValueError("not a record")
    kinds = []
    while at < end:
        kind, at = varint(payload, at)
        kinds.append(kind)
    columns = []
    for kind in kinds:
        value, end = _column(payload, kind, end)
        columns.append(value)
    if end != len(payload):
        raise ValueError("the columns are not as long as the record")
    return tuple(columns)


def _column(payload: bytes, kind: int, at: int) -> tuple[Value, int]:
    if kind == 0:
        return None, at
    if kind in (8, 9):
        return kind - 8, at
    if kind in _INTEGER_SIZES:
        size = _INTEGER_SIZES[kind]
        return int.from_bytes(payload[at : at + size], "big", signed=True), at + size
    if kind < 12:
        raise ValueError("not one of our columns: they hold no fractions")
    size = (kind - 12) // 2
    data = payload[at : at + size]
    return (data.decode() if kind % 2 else data), at + size
