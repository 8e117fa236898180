"""Reading the rows of a damaged SQLite file without SQLite: page by page, whatever still has the form of a row.

Neither the header nor the trees above the leaves are needed. The write-ahead log is read too, every version of a page
in it, newest first. What comes out is a guess; the digests in the rows tell what is true.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from struct import unpack_from
from typing import Final, TypeAlias

import msgspec

from stepkeep.storage.sql.connection import Value

Record: TypeAlias = tuple[Value, ...]

DEFAULT_PAGE_SIZE: Final = 4096
MAX_PAYLOAD: Final = 1 << 30

_MAGIC: Final = b"SQLite format 3\0"
_WAL_MAGICS: Final = (0x377F0682, 0x377F0683)
_WAL_HEADER: Final = 32
_FRAME_HEADER: Final = 24
_TABLE_LEAF, _INDEX_LEAF, _INDEX_INTERIOR = 0x0D, 0x0A, 0x02
_INTEGER_SIZES: Final = {1: 1, 2: 2, 3: 3, 4: 4, 5: 6, 6: 8}


class Found(msgspec.Struct, frozen=True):
    """One row: its rowid where the table has one, its columns, and whether its page was given up."""

    rowid: int | None
    record: Record
    is_free: bool = False


def rows(path: Path) -> Iterator[Found]:
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
            yield Found(found.rowid, found.record, is_free=True)


def _free_pages(pages: dict[int, bytes]) -> set[int]:
    """The pages that were given up, as far as their list can be followed. They hold rows that were removed, and old
    places of rows that were moved."""
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

    def rows(self) -> Iterator[Found]:
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

    def _cell(self, at: int) -> Found:
        if self._kind == _INDEX_INTERIOR:
            at += 4
        size, at = varint(self._data, at)
        rowid: int | None = None
        if self._kind == _TABLE_LEAF:
            rowid, at = varint(self._data, at)
        return Found(rowid, decode(self._payload(at, size)))

    def _payload(self, at: int, size: int) -> bytes:
        if not 0 < size <= MAX_PAYLOAD:
            raise ValueError("no payload of that size")
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
        ValueError, IndexError: it is none.
    """
    end, at = varint(payload, 0)
    if not at <= end <= len(payload):
        raise ValueError("no record")
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
        raise ValueError("no column of ours: they hold no fractions")
    size = (kind - 12) // 2
    data = payload[at : at + size]
    return (data.decode() if kind % 2 else data), at + size
