"""The default backend: one SQLite database file, safe for threads, processes and forks.

Durability (V1): WAL with `synchronous=FULL`, every pragma's answer checked, and the directory synced by hand when
files appear in it. SQLite comes with apsw, so its version is known: releases before 3.51.3 can lose a WAL reset.
"""

from __future__ import annotations

import fcntl
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cache, partial
from typing import TYPE_CHECKING, Final, TypeAlias, TypeVar

import apsw

from stepkeep.codec.integrity import digest
from stepkeep.errors import (
    WRITE_FAILED,
    BackendUnavailable,
    Corrupt,
    InvalidInput,
    StepkeepError,
    Unsupported,
)
from stepkeep.logs import Log
from stepkeep.model import SessionInfo, new_uid, utc_now_us
from stepkeep.processes import tell_of_forks
from stepkeep.storage.disk import (
    NETWORK_TYPES,
    file_system_type,
    make_private_directory,
    sync_directory,
    sync_way_to,
)
from stepkeep.storage.lock_wait import LockWait
from stepkeep.storage.log_room import FRAME_BYTES, LOG_HEADER, MAX_FRAMES, PAGE_BYTES, make_room
from stepkeep.storage.port import UNCHANGED, Annotation, Facts, StoredHead, Target, Unchanged
from stepkeep.storage.sql.attachments import read_annotations
from stepkeep.storage.sql.backend import SqlBackend
from stepkeep.storage.sql.checkpoints import SessionRows, open_rows
from stepkeep.storage.sql.connection import NO_LOCKS, Connection, NotUnique, Query, Row, Value
from stepkeep.storage.sql.tables import MIGRATIONS, SCHEMA_VERSION, Dialect, statements

if TYPE_CHECKING:
    from pathlib import Path

log = Log("stepkeep.storage")

T = TypeVar("T")

Identity: TypeAlias = tuple[int, int]
_File: TypeAlias = tuple[int, int, int]
"""Which file it is, and how much it holds."""

APPLICATION_ID: Final = 0x53544B50  # "STKP"
DIALECT: Final = Dialect(
    integer="INTEGER",
    blob="BLOB",
    serial="INTEGER PRIMARY KEY AUTOINCREMENT",
    clustered="WITHOUT ROWID",
    kind="TEXT GENERATED ALWAYS AS ({parts}) VIRTUAL",
)
OLDEST_SQLITE: Final = (3, 51, 3)
BUSY_SECONDS: Final = 60.0
CLOSING_SECONDS: Final = 1.0
"""How long to wait for others with what they can do as well."""
_MAX_IDLE_READERS: Final = 8
_MAX_ROWS: Final = 1000
_SAVES_BEFORE_ROOM: Final = 4
"""After how many commits that made the log longer room is made in it: who saves once or twice has no use of it."""
_PAGES_A_STEP: Final = 1024
_FEW_TARGETS: Final = 16
"""Whose annotations are read in no time: a save may wait for it."""
_KEY_COPY: Final = "WHERE sid = 0 AND target = '' AND kind = 'encryption' AND name = ''"
"""Where the second copy of the key record lies: in another table, hence on another page, and with a digest."""
_KEY_RECORDS: Final = (
    "SELECT value, NULL FROM meta WHERE name = 'encryption'"
    f" UNION ALL SELECT data, digest FROM annotations {_KEY_COPY}"
)
_NEVER_US: Final = (1 << 63) - 1
"""A time before which nothing is swept."""
_MAGIC: Final = b"SQLite format 3\0"
_JOURNAL_MAGIC: Final = bytes.fromhex("d9d505f920a163d7")
_LOG: Final = ("-wal", "-shm")
_ALL: Final = (*_LOG, "")


class SqliteBackend(SqlBackend):
    """A store in one database file; the file and its directory are made on demand, readable only by their owner."""

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        clock: Callable[[], int] = utc_now_us,
        busy_seconds: float = BUSY_SECONDS,
        tables: Sequence[str] = (),
    ) -> None:
        """`tables` are statements for tables that a backend built on this one keeps beside the common ones."""
        super().__init__(clock=clock)
        self._path = _absolute(path)
        self.url = f"sqlite:{self._path}"
        self._log_path = f"{self._path}-wal"
        self._busy_seconds = busy_seconds
        self._log_pages = MAX_FRAMES
        self._failed: _SqliteConnection | None = None  # its commit failed and may still be in the log
        self._pool = threading.Condition(threading.Lock())  # guards the three below
        self._idle: list[_SqliteConnection] = []
        self._borrowed = 0
        self._is_closed = False
        self._writing_lock = threading.Lock()  # guards the writer
        self._writer: _SqliteConnection | None = None
        try:
            _check_library()
            self._identity, first = _prepare(self._path, busy_seconds, tables)
            self._size_bytes = os.stat(self._path).st_size  # when it was last looked at
        except (apsw.Error, OSError) as exc:
            raise _error_of(exc, self._path) from exc
        self._idle.append(first)
        tell_of_forks(self)

    @property
    def path(self) -> Path:
        from pathlib import Path

        return Path(self._path)

    # --- transactions

    def _read(self, work: Callable[[Connection], T]) -> T:
        try:
            connection = self._take_reader()
            try:
                return work(connection)
            except apsw.CorruptError:
                # A damaged page is refused when it is read first, and what is left of it shown afterwards.
                # What is in it is checked by its digests, so the second answer is as good as any.
                return work(connection)
            finally:
                self._give_back(connection)
        except (apsw.Error, OSError) as exc:
            raise _error_of(exc, self._path) from exc

    def _write(self, work: Callable[[Connection], T], *, secure: bool = False) -> T:
        return self._write_keyed(work, secure=secure, keeps_rows=False)

    def _write_keyed(
        self, work: Callable[[Connection], T], *, secure: bool = False, keeps_rows: bool = True
    ) -> T:
        try:
            with self._writing_lock:
                try:
                    connection = self._take_writer()
                    self._check_in_place(connection)
                    if secure != connection.is_secure:
                        connection.set_secure_delete(secure)
                    if not keeps_rows:
                        connection.rows = {}
                    if connection.log_growths >= _SAVES_BEFORE_ROOM and connection.makes_room and not secure:
                        work = partial(self._with_room, work)
                    result = _transaction(connection, work)
                    if secure and not connection.truncate_wal():
                        log.warning(
                            "another process reads %s: removed bytes stay in its log until it stops",
                            self._path,
                        )
                    return result
                except BaseException as exc:
                    self._recover(exc)
                    raise
        except (apsw.Error, OSError) as exc:
            raise _error_of(exc, self._path) from exc

    _write_beside = _write_keyed

    def session_by_key(self, key: str) -> SessionInfo | None:
        if self._writer is not None:
            return super().session_by_key(key)
        # The connection that reads it becomes the writer: a process that saves once looks nothing up again.
        return self._reading(partial(open_rows, key=key), key=key)

    def load_head(
        self, uid: str, branch: str | None = None, *, known: tuple[str, str] | None = None
    ) -> StoredHead | Unchanged | None:
        if known is not None and self._by_writer(uid, lambda _, rows: rows.head(branch) == known[0]):
            return UNCHANGED
        return super().load_head(uid, branch, known=known)

    def annotations(
        self, uid: str, targets: Sequence[Target] | None = None, kind: str | None = None
    ) -> list[Annotation]:
        found = None
        if targets is not None and len(targets) <= _FEW_TARGETS:
            found = self._by_writer(uid, lambda tx, rows: read_annotations(tx, rows.sid, targets, kind))
        return super().annotations(uid, targets, kind) if found is None else found

    def _by_writer(self, uid: str, read: Callable[[Connection, SessionRows], T]) -> T | None:
        """What a short read finds with the rows that an append left, by the connection that wrote them: it has in its
        memory what others read from the log. None where it is at work, or anyone wrote since."""
        writer = self._writer
        if writer is None or uid not in writer.rows or not self._writing_lock.acquire(blocking=False):
            return None
        try:
            rows = None if self._writer is None else self._writer.rows_at_hand().get(uid)
            return None if rows is None or self._writer is None else read(self._writer, rows)
        except apsw.Error:
            return None
        finally:
            self._writing_lock.release()

    def _take_reader(self) -> _SqliteConnection:
        with self._pool:
            if self._is_closed:
                raise self._closed()
            self._borrowed += 1
            if self._idle:
                return self._idle.pop()
        try:
            return self._connect()
        except BaseException:
            self._give_back(None)
            raise

    def _connect(self) -> _SqliteConnection:
        """Another connection. A file that was cut to nothing would be made anew, once all the others are closed."""
        if _size_of(self._path) == 0:
            raise self._replaced()
        return _connect(self._path, self._busy_seconds)

    def _give_back(self, connection: _SqliteConnection | None) -> None:
        if connection is not None and len(self._idle) >= _MAX_IDLE_READERS:
            connection.raw.close()
            connection = None
        with self._pool:
            self._borrowed -= 1
            if connection is not None:
                self._idle.append(connection)
            self._pool.notify_all()

    def _take_writer(self) -> _SqliteConnection:
        """The connection that writes. Whoever asks holds `_writing_lock`, and tells `_recover` when something fails."""
        if self._is_closed:
            raise self._closed()
        if self._writer is None:
            # A process that reads a little and saves once needs no second connection.
            with self._pool:
                reader = self._idle.pop() if self._idle else None
            self._writer = reader or self._connect()
            if self._log_pages < MAX_FRAMES:
                self._writer.bound_log(self._log_pages)
        if self._failed is not None:
            self._bury_failed()
        return self._writer

    def _recover(self, exc: BaseException) -> None:
        """What a failed write leaves behind is not believed."""
        if self._writer is not None:
            self._writer.rows = {}
        if isinstance(exc, apsw.IOError):
            self._set_writer_aside()
        elif isinstance(exc, apsw.ReadOnlyError):
            # One refused open of the -shm file makes it read-only for as long as any connection here shares it.
            with self._pool:
                self._drop_connections()

    def _set_writer_aside(self) -> None:
        """After a failed write or sync nothing in this connection's memory is to be believed.

        Its commit may be whole in the log all the same, without being durable. It stays open until another commit
        is written in its place: else the next opening would read it there and build on what the disk never got.
        """
        self._failed, dropped = self._failed or self._writer, self._writer
        if dropped is not self._failed and dropped is not None:
            dropped.raw.close()
        self._writer = None
        with suppress(apsw.Error, BackendUnavailable):
            self._writer = self._connect()
            self._bury_failed()

    def _bury_failed(self) -> None:
        if self._failed is not None and self._writer is not None:
            _transaction(self._writer, _write_over)
            self._failed.raw.close()
            self._failed = None

    def _drop_connections(self) -> None:
        dropped = (*self._idle, self._failed, self._writer)
        self._idle.clear()
        self._failed = self._writer = None
        for connection in dropped:
            if connection is not None:
                connection.raw.close()

    def _check_in_place(self, writer: _SqliteConnection) -> None:
        """V1: a database that was deleted, replaced or cut still takes writes, which nobody finds again.

        So does its log, which nobody removes while a connection is open.
        """
        file, log = _file_at(self._path), _file_at(self._log_path)
        is_ours = file is not None and file[:2] == self._identity
        is_ours = is_ours and (writer.log is None or (log is not None and log[:2] == writer.log[:2]))
        if is_ours and file is not None and file[2] < self._size_bytes:
            is_ours = not writer.is_cut(self._path)
        if is_ours and log is not None and writer.log is not None:
            if log[2] < writer.log[2]:
                is_ours = not writer.is_log_cut(self._path)
                writer.log_growths = 0
            elif log[2] > writer.log[2]:
                writer.log_growths += 1
        self._size_bytes, writer.log = file[2] if file else 0, log
        if not is_ours:
            raise self._replaced()

    def _replaced(self) -> BackendUnavailable:
        return BackendUnavailable(
            f"{self._path} or its log was deleted, replaced or cut while it was open: nothing more can be saved "
            "there; open the store again",
            code="store_replaced",
            retryable=False,
        )

    def _with_room(self, work: Callable[[Connection], T], tx: Connection) -> T:
        """A transaction that begins with room in the log; without where there is none to be had."""
        assert isinstance(tx, _SqliteConnection)
        tx.make_log_room(self._log_path)
        return work(tx)

    def _closed(self) -> BackendUnavailable:
        return BackendUnavailable(f"the store {self._path} is closed", code="store_closed", retryable=False)

    # --- the keys of an encrypted store: the key record lies there twice, for without it the store is lost

    def _stored_keys(self, tx: Connection) -> str | None:
        found = {stored_digest: content for content, stored_digest in tx.all(_KEY_RECORDS)}
        record = found.pop(None, None)
        for stored_digest, copy in found.items():
            if isinstance(copy, bytes) and digest(copy) == stored_digest:
                return copy.decode()
        return None if record is None else str(record)

    def _check_key_at_hand(self, tx: Connection) -> None:
        assert isinstance(tx, _SqliteConnection)
        if tx.checked_key != self._encrypting.key:
            self._check_key(tx)
            tx.checked_key = self._encrypting.key

    def _store_keys(self, tx: Connection, record: str) -> None:
        assert isinstance(tx, _SqliteConnection)
        super()._store_keys(tx, record)
        tx.checked_key = None
        copy = record.encode()
        tx.run(f"DELETE FROM annotations {_KEY_COPY}")
        tx.run(
            "INSERT INTO annotations (sid, target, kind, name, time_us, digest, data)"
            " VALUES (0, '', 'encryption', '', ?, ?, ?)",
            (_NEVER_US, digest(copy), copy),
        )

    # --- space

    def _store_bytes(self) -> int:
        return _size_of(self._path) + _size_of(self._log_path)

    def bound_log(self, max_bytes: int) -> None:
        self._log_pages = max(1, min(self._log_pages, max_bytes // PAGE_BYTES))

    def reclaim(self, max_bytes: int) -> int:
        with _translated(self._path), self._writing_lock:
            try:
                connection = self._take_writer()
                (page_size,) = connection.one("PRAGMA page_size") or (4096,)
                (before,) = connection.one("PRAGMA freelist_count") or (0,)
                connection.all(f"PRAGMA incremental_vacuum({max(1, max_bytes // page_size)})")
                (after,) = connection.one("PRAGMA freelist_count") or (0,)
                connection.truncate_wal()
                return int((before - after) * page_size)
            except BaseException as exc:
                self._recover(exc)
                raise

    def facts(self) -> Facts:
        def ask(connection: Connection) -> tuple[str, int]:
            (mode,) = connection.one("PRAGMA journal_mode") or ("",)
            (level,) = connection.one("PRAGMA synchronous") or (0,)
            return str(mode), int(level)

        mode, level = self._read(ask)
        is_full = (mode, level) == ("wal", 2)
        return Facts(
            durability="full: write-ahead log, every commit is synced",
            weakness=None if is_full else f"journal mode {mode}, synchronous {level}: a crash may lose saves",
            log_bytes=_size_of(self._log_path),
        )

    def fill(self, write: Callable[[Connection], None]) -> None:
        """Write rows of another database into a new store, in one transaction."""
        self._write(write)

    def snapshot(self, path: Path, *, progress: Callable[[float], None] | None = None) -> None:
        with _translated(str(path)):
            connection = self._take_reader()
            try:
                _create_file(str(path))
                connection.copy_to(path, progress)
            finally:
                self._give_back(connection)

    # --- closing and forking

    def close(self) -> None:
        with self._writing_lock:
            with self._pool:
                if self._is_closed:
                    return
                self._is_closed = True
                while self._borrowed:
                    self._pool.wait()
            try:
                self._close_connections(truncate=True)
            except (apsw.Error, OSError) as exc:
                raise _error_of(exc, self._path) from exc
            finally:
                _in_use.remove(self._identity)

    def _close_connections(self, *, truncate: bool) -> None:
        try:
            if self._failed is not None:
                self._bury_failed()
            if self._writer is not None and truncate:
                # Where others write or read, they do it when they close: nothing is worth a long wait.
                wait = self._writer.lock_wait
                wait.seconds = min(wait.seconds, CLOSING_SECONDS)
                self._writer.truncate_wal()
        except apsw.FullError as exc:  # without room in the database the log holds what was saved for later
            log.warning("%s stays for now, what was saved is in it: %s", self._log_path, exc)
        except apsw.ReadOnlyError:
            pass  # who may not write has saved nothing
        finally:
            self._drop_connections()

    def before_fork(self) -> None:
        self._writing_lock.acquire()
        self._pool.acquire()
        self._pool.wait_for(lambda: self._borrowed == 0)
        self._close_connections(truncate=False)

    def after_fork(self, *, is_child: bool) -> None:  # noqa: ARG002  (both sides only go on)
        self._pool.release()
        self._writing_lock.release()


class _SqliteConnection:
    """`Connection` over apsw; one statement per call."""

    locks = NO_LOCKS  # a write transaction keeps all other writers out
    trusts_storage = False  # SQLite's pages have no checksums

    def __init__(self, connection: apsw.Connection, lock_wait: LockWait) -> None:
        self.raw = connection
        self.lock_wait = lock_wait
        self.is_secure = False
        self.log: _File | None = None  # which file the write-ahead log was, once that was looked at
        self.log_growths = 0  # how many commits made it longer
        self.makes_room = True  # in the log: unless that failed, or it is bounded
        self.rows: dict[str, SessionRows] = {}  # as the last append left them, or they were read
        self.checked_key: int | None = None  # the newest data key, unless another connection committed since
        self._version: int | None = None

    def all(self, sql: str, values: Sequence[Value] = ()) -> list[Row]:
        try:
            return self.raw.execute(sql, values).fetchall()
        except UnicodeDecodeError:
            return self._all_with_damaged_text(sql, values)
        except _UNSTORABLE as exc:
            raise _unstorable(exc) from exc

    def _all_with_damaged_text(self, sql: str, values: Sequence[Value]) -> list[Row]:
        """The rows again, with replacement characters where text is not valid UTF-8: their digests tell the damage."""
        names = self._column_names(sql, values)
        cast = ", ".join(
            f"""CASE typeof("{name}") WHEN 'text' THEN CAST("{name}" AS BLOB) ELSE "{name}" END, typeof("{name}")"""
            for name in names
        )
        rows = self.raw.execute(f"SELECT {cast} FROM ({sql})", tuple(values)).fetchall()
        return [
            tuple(
                value.decode("utf-8", "replace") if kind == "text" and isinstance(value, bytes) else value
                for value, kind in zip(row[::2], row[1::2], strict=True)
            )
            for row in rows
        ]

    def _column_names(self, sql: str, values: Sequence[Value]) -> list[str]:
        names: list[str] = []

        def collect(cursor: apsw.Cursor, sql: str, bindings: object) -> bool:  # noqa: ARG001
            names.extend(column[0] for column in cursor.get_description())
            return True

        cursor = self.raw.cursor()
        cursor.exec_trace = collect
        cursor.execute(f"SELECT * FROM ({sql}) LIMIT 0", tuple(values))
        return names

    def one(self, sql: str, values: Sequence[Value] = ()) -> Row | None:
        try:
            for row in self.raw.execute(sql, values):
                return tuple(row)
        except UnicodeDecodeError:
            return next(iter(self._all_with_damaged_text(sql, values)), None)
        except _UNSTORABLE as exc:
            raise _unstorable(exc) from exc
        return None

    def run(self, sql: str, values: Sequence[Value] = ()) -> int:
        self.put(sql, values)
        return self.raw.changes()

    def put(self, sql: str, values: Sequence[Value] = ()) -> None:
        try:
            self.raw.execute(sql, values)
        except _UNSTORABLE as exc:
            raise _unstorable(exc) from exc
        except apsw.ConstraintError as exc:
            raise NotUnique(f"SQLite refused: {exc}", code="sqlite_error", retryable=False) from exc

    def run_many(self, sql: str, rows: Iterable[Sequence[Value]]) -> None:
        self.raw.executemany(sql, rows)

    def ask(self, queries: Sequence[Query]) -> list[list[Row]]:
        return [self.all(sql, values) for sql, values in queries]

    def rows_at_hand(self) -> dict[str, SessionRows]:
        """The rows of sessions as they were seen here last; none of them if any other connection, of whichever process,
        committed since this was asked."""
        before, self._version = self._version, self.raw.execute("PRAGMA data_version").get
        if before != self._version:
            self.checked_key = None
        if before != self._version or len(self.rows) > _MAX_ROWS:
            self.rows = {}
        return self.rows

    @property
    def in_transaction(self) -> bool:
        return self.raw.in_transaction

    def set_secure_delete(self, secure: bool) -> None:
        """Overwrite freed pages too; what is freed inside a page is overwritten always, which costs nothing."""
        self.set_pragmas([("secure_delete", "ON", 1) if secure else ("secure_delete", "FAST", 2)])
        self.is_secure = secure

    def truncate_wal(self) -> bool:
        """Move the write-ahead log into the database; False when another process is reading in it all the time."""
        busy, _, _ = self.one("PRAGMA wal_checkpoint(TRUNCATE)") or (1, 0, 0)
        return not busy

    def make_log_room(self, path: str) -> None:
        assert self.log is not None
        identity = self.log[:2]
        try:
            self.log = (*identity, make_room(path, identity))
        except OSError as exc:
            log.debug("no room is made in %s: %s", path, exc)
            self.makes_room = False
        else:
            self.log_growths = _SAVES_BEFORE_ROOM - 1

    def bound_log(self, pages: int) -> None:
        """Move the log into the database when it has that many pages, and cut it when it begins anew."""
        self.makes_room = False
        self.set_pragmas(
            [("wal_autocheckpoint", pages, pages), ("journal_size_limit", *(pages * PAGE_BYTES,) * 2)]
        )

    def set_pragmas(self, settings: Sequence[tuple[str, str | int, str | int]]) -> None:
        """Set pragmas, and believe each only when it answers with the expected value."""
        execute = self.raw.execute
        for name, value, expected in settings:
            execute(f"PRAGMA {name} = {value}").fetchall()
            answer = execute(f"PRAGMA {name}").fetchall()
            if answer != [(expected,)]:
                raise BackendUnavailable(
                    f"SQLite did not accept {name}={value} (it says {answer})",
                    code="pragma_refused",
                    retryable=False,
                )

    # Both read by SQLite's own means: closing a file of the database takes all locks of the process from it.

    def is_cut(self, path: str) -> bool:
        """Whether a database that became shorter lacks pages. SQLite writes its first page, which counts them, before
        it gives space back; only while another process grows it again, the count is ahead for a moment."""
        for _ in range(_TRIES):
            is_whole, header = self.raw.read("main", 0, 0, 32)
            page_bytes, pages = int.from_bytes(header[16:18], "big"), int.from_bytes(header[28:32], "big")
            if is_whole and header.startswith(_MAGIC) and _size_of(path) >= page_bytes * pages:
                return False
            time.sleep(_TRY_SECONDS)
        return True

    def is_log_cut(self, path: str) -> bool:
        """Whether a log that became shorter lacks frames. Its index counts them: it forgets them before the log is cut,
        and hears of new ones once they are written."""
        frames = -1
        for _ in range(_TRIES):
            before, (frames, _) = frames, self.raw.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_NOOP)
            if frames <= 0 or _size_of(f"{path}-wal") >= LOG_HEADER + frames * FRAME_BYTES:
                return False
            if frames == before:
                return True
        return False

    def copy_to(self, path: Path, progress: Callable[[float], None] | None) -> None:
        """Copy the database page by page into an empty file.

        One read transaction spans all steps: what others commit meanwhile neither shows nor makes it start anew.
        """
        target = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READWRITE)
        self.run("BEGIN")
        try:
            self.one("SELECT count(*) FROM sqlite_master")  # the transaction begins with its first read
            with target.backup("main", self.raw, "main") as backup:
                while not backup.done:
                    backup.step(_PAGES_A_STEP)
                    if progress is not None:
                        progress(1 - backup.remaining / max(1, backup.page_count))
        finally:
            self.run("ROLLBACK")
            target.close()


_UNSTORABLE: Final = (UnicodeEncodeError, OverflowError, TypeError)


def _unstorable(exc: Exception) -> InvalidInput:
    return InvalidInput(f"a value cannot be stored or looked for: {exc}", code="invalid_value")


def _transaction(connection: _SqliteConnection, work: Callable[[Connection], T]) -> T:
    connection.put("BEGIN IMMEDIATE")
    try:
        result = work(connection)
        connection.put("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.run("ROLLBACK")
        raise
    return result


def _write_over(tx: Connection) -> None:
    """Commit something new: what the log held of a failed commit is no longer read."""
    tx.run(
        "INSERT INTO meta (name, value) VALUES ('written_over', ?)"
        " ON CONFLICT (name) DO UPDATE SET value = excluded.value",
        (new_uid(),),
    )


# --- opening ---------------------------------------------------------------------------------------------------


def _check_library() -> None:
    version = tuple(map(int, apsw.sqlite_lib_version().split(".")))
    if version < OLDEST_SQLITE:
        raise Unsupported(
            f"SQLite {apsw.sqlite_lib_version()} can corrupt a store: apsw with SQLite 3.51.3 or newer is needed",
            code="sqlite_too_old",
        )


def _prepare(
    path: str, busy_seconds: float, tables: Sequence[str] = ()
) -> tuple[Identity | None, _SqliteConnection]:
    """Make the file if need be, check that it is a store of ours, and bring its schema up to date.

    Returns which file it is, told before it was opened: a file put in its place meanwhile is another one.
    """
    if os.path.isdir(path):
        raise InvalidInput(f"{path} is a directory: name a database file in it", code="not_a_store")
    parent = os.path.dirname(path)
    make_private_directory(parent)
    if (kind := file_system_type(parent)) in NETWORK_TYPES:
        raise Unsupported(
            f"{path} is on a network file system ({kind}), where SQLite's write-ahead log is not safe: "
            "use a local disk, or PostgreSQL",
            code="network_file_system",
        )
    with _creation.locked(parent) as directory:
        is_begun = _check_foreign(path)
        has_wal = os.path.exists(f"{path}-wal")
        is_new = _create_file(path) or (not is_begun and _emptied(path, busy_seconds))
        return _open_checked(path, directory, busy_seconds, tables, is_new=is_new, has_wal=has_wal)


def _open_checked(
    path: str, directory: int, busy_seconds: float, tables: Sequence[str], *, is_new: bool, has_wal: bool
) -> tuple[Identity | None, _SqliteConnection]:
    made: tuple[str, ...] = _ALL if is_new else ()
    connection, identity = None, _identity(path)
    _in_use.append(identity)
    try:
        if is_new:
            sync_directory(directory)  # SQLite syncs it too, but does not tell when that fails
        connection = _connect(path, busy_seconds)
        bound_steps(connection.raw, path)
        application_id, version, count = connection.one(_WHAT_IT_IS) or (0, 0, 0)
        if application_id != APPLICATION_ID and (application_id or count):
            raise InvalidInput(f"{path} is a database of another program", code="not_a_store")
        made = _ALL if is_new or not count else () if has_wal else _LOG
        if made:
            # Before the schema is committed: a store that has one has durable names, whoever was stopped when.
            sync_directory(directory)
            sync_way_to(os.path.dirname(path))
        if version != SCHEMA_VERSION:
            _transaction(connection, lambda tx: _upgrade(tx, path, tables))
        _check_schema(connection, path, tables)
        if not count:
            connection.truncate_wal()
        connection.raw.set_progress_handler(None)
    except BaseException as exc:
        if connection is not None:
            connection.raw.close()
        _in_use.remove(identity)
        if isinstance(exc, OSError | apsw.IOError):
            _remove(path, made)
        raise
    return identity, connection


def _remove(path: str, endings: Sequence[str]) -> None:
    """Remove files that nothing was acknowledged in when a sync failed: made anew, they are synced anew."""
    for ending in endings:
        with suppress(OSError):
            os.unlink(f"{path}{ending}")


class _Creation:
    """Lets one process at a time create or upgrade a store, by a lock that the kernel drops when its holder dies.

    A child forked meanwhile would share that lock for as long as it lives, so forks wait for the end.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        tell_of_forks(self)

    @contextmanager
    def locked(self, directory: str) -> Iterator[int]:
        with self._lock:
            descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX)
                yield descriptor
            finally:
                os.close(descriptor)

    def before_fork(self) -> None:
        self._lock.acquire()

    def after_fork(self, *, is_child: bool) -> None:  # noqa: ARG002  (both sides only go on)
        self._lock.release()


_creation = _Creation()

_in_use: Final[list[Identity | None]] = []
"""The databases that this process has open, once for each backend. One that it has open is never opened beside SQLite:
closing it would drop the locks of all its connections."""


_TRIES: Final = 20
_TRY_SECONDS: Final = 0.01


def _identity(path: str) -> Identity | None:
    """Which file it is, whatever its name; None when there is none."""
    found = _file_at(path)
    return None if found is None else found[:2]


def _file_at(path: str) -> _File | None:
    try:
        found = os.stat(path)
    except FileNotFoundError:
        return None
    return found.st_dev, found.st_ino, found.st_size


def _create_file(path: str) -> bool:
    """Pre-create the database 0600, so that -wal and -shm follow; True if it is new."""
    try:
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC, 0o600))
    except FileExistsError:
        return os.stat(path).st_size == 0
    return True


_SETTINGS: Final = (
    ("journal_mode", "WAL", "wal"),
    ("synchronous", "FULL", 2),
    ("fullfsync", 1, 1),  # macOS syncs for real only when asked
    ("checkpoint_fullfsync", 1, 1),
    ("mmap_size", 0, 0),
    ("cell_size_check", 1, 1),
    ("temp_store", 2, 2),
    ("secure_delete", "FAST", 2),
)
"""Pragmas of every connection: name, value, and what SQLite answers once it is set."""


def _connect(path: str, busy_seconds: float) -> _SqliteConnection:
    raw = apsw.Connection(path, flags=apsw.SQLITE_OPEN_READWRITE, statementcachesize=200)
    connection = _SqliteConnection(raw, LockWait(path, busy_seconds))
    try:
        raw.set_busy_handler(connection.lock_wait)
        raw.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
        distrust_schema(raw)
        if os.stat(path).st_size <= PAGE_BYTES:  # one page is undone if a journal of its making is left
            connection.all("PRAGMA auto_vacuum = INCREMENTAL")  # has an effect only before the first page
        connection.set_pragmas(_SETTINGS)
    except BaseException:
        raw.close()
        raise
    return connection


def distrust_schema(connection: apsw.Connection) -> None:
    """Let nothing in the schema of a file act: whoever made it may have left triggers, views and odd functions."""
    connection.config(apsw.SQLITE_DBCONFIG_TRUSTED_SCHEMA, 0)
    connection.config(apsw.SQLITE_DBCONFIG_ENABLE_TRIGGER, 0)
    connection.config(apsw.SQLITE_DBCONFIG_ENABLE_VIEW, 0)


_MIN_STEPS: Final = 10_000_000
_STEPS_PER_BYTE: Final = 20


def bound_steps(connection: apsw.Connection, path: str) -> Callable[[], None]:
    """Let no statement take more steps than reading the whole file would; what this returns is called before each.

    One that takes more is interrupted, with an error of SQLite.
    """
    most = (_MIN_STEPS + _STEPS_PER_BYTE * os.stat(path).st_size) // _STEPS_AT_ONCE
    left = most

    def begin() -> None:
        nonlocal left
        left = most

    def is_over() -> bool:
        nonlocal left
        left -= 1
        return left < 0

    connection.set_progress_handler(is_over, _STEPS_AT_ONCE)
    return begin


_STEPS_AT_ONCE: Final = 100_000


def _check_foreign(path: str) -> bool:
    """Refuse a file of another program before SQLite changes anything in it; whether it has a first page."""
    if _in_use and _identity(path) in _in_use:
        return True
    try:
        with open(path, "rb") as file:
            header = file.read(100)
    except FileNotFoundError:
        return False
    if not any(header) and (_is_blank(path) or _size_of(f"{path}-wal") > 0):
        return False  # its creation was cut short by a loss of power; what there is of it is in the log
    if header and not header.startswith(_MAGIC):
        header = _header_before(path)  # the power failed while the first page was written
        if not header.startswith(_MAGIC):
            raise InvalidInput(f"{path} is not a Stepkeep store", code="not_a_store")
    application_id = int.from_bytes(header[68:72], "big")
    # 0 is a new database, or one of ours whose creation was interrupted, with its first page still in the log.
    if application_id not in (0, APPLICATION_ID) or (header and application_id == 0 and _has_tables(path)):
        raise InvalidInput(f"{path} is a database of another program", code="not_a_store")
    return any(header)


def _header_before(path: str) -> bytes:
    """The beginning of the database as SQLite will take it from a journal that is left; empty if there is none."""
    try:
        with open(f"{path}-journal", "rb") as file:
            head = file.read(28)
            if len(head) < 28 or not head.startswith(_JOURNAL_MAGIC):
                return b""
            file.seek(int.from_bytes(head[20:24], "big"))
            number, header = file.read(4), file.read(100)
    except OSError:
        return b""
    return header if number == b"\0\0\0\1" else b""


def _is_blank(path: str) -> bool:
    """Whether a file has nothing but zeros in it: its size reached the disk, its first page did not."""
    with open(path, "rb") as file:
        return not any(any(part) for part in iter(lambda: file.read(4096), b""))


def _size_of(path: str) -> int:
    """How much a file takes; nothing if it is not there."""
    try:
        return os.stat(path).st_size
    except FileNotFoundError:
        return 0


def _absolute(path: str | os.PathLike[str]) -> str:
    """The path from the root, by the names it was given."""
    name = os.fspath(path)
    if not os.path.isabs(name):  # a directory that is gone has no name, and is asked for it only then
        name = os.path.join(os.getcwd(), name)
    return "/" + "/".join([part for part in name.split("/") if part not in ("", ".")])


def _emptied(path: str, busy_seconds: float) -> bool:
    """Empty a database of nothing but zeros that no log completes; True if it was one."""
    if not _is_blank(path):
        return False
    try:
        _connect(path, busy_seconds).raw.close()
    except apsw.NotADBError:
        os.truncate(path, 0)
        return True
    return False


def _has_tables(path: str) -> bool:
    """Whether the database file itself has tables; nothing is locked, created or changed."""
    from urllib.parse import quote  # nearly every store is recognized without this

    flags = apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_URI
    connection = apsw.Connection(f"file:{quote(path)}?immutable=1", flags=flags)
    try:
        return bool(connection.execute("SELECT count(*) FROM sqlite_master").fetchall()[0][0])
    finally:
        connection.close()


_WHAT_IT_IS: Final = (
    "SELECT (SELECT application_id FROM pragma_application_id), (SELECT user_version FROM pragma_user_version),"
    " (SELECT count(*) FROM sqlite_master)"
)


def _upgrade(tx: Connection, path: str, tables: Sequence[str]) -> None:
    (version,) = tx.one("PRAGMA user_version") or (0,)
    if version > SCHEMA_VERSION:
        raise Unsupported(
            f"{path} has schema {version}, newer than {SCHEMA_VERSION}: upgrade stepkeep", code="schema_newer"
        )
    for step in range(version + 1, SCHEMA_VERSION + 1):
        for statement in statements(step, DIALECT):
            tx.run(statement)
    if version == 0:
        for statement in tables:
            tx.run(statement)
        tx.run("INSERT INTO meta (name, value) VALUES ('store_id', ?)", (new_uid(),))
        tx.run(f"PRAGMA application_id = {APPLICATION_ID}")
    if version < SCHEMA_VERSION:
        tx.run(f"PRAGMA user_version = {SCHEMA_VERSION}")


_Entry: TypeAlias = tuple[str, str, str, str]
"""Type, name, table and text of something in the schema."""


def _entry(sql: str) -> _Entry:
    """What SQLite notes of a statement that creates a table or an index."""
    words = [word for word in sql.split(None, 6) if word != "UNIQUE"]
    kind, name = words[1].lower(), words[2]
    return kind, name, name if kind == "table" else words[4], sql


@cache
def _expected_schema() -> frozenset[_Entry]:
    return frozenset(_entry(sql) for version in MIGRATIONS for sql in statements(version, DIALECT))


_OF_SQLITE: Final = frozenset(
    {
        ("table", "sqlite_sequence", "sqlite_sequence", "CREATE TABLE sqlite_sequence(name,seq)"),
        ("setting", "auto_vacuum", "", "2"),
    }
)
# Only the indexes of primary keys have no text.
_SCHEMA: Final = (
    "SELECT type, name, tbl_name, sql FROM sqlite_master WHERE sql IS NOT NULL OR type <> 'index'"
    " UNION ALL SELECT 'setting', 'auto_vacuum', '', CAST(auto_vacuum AS TEXT) FROM pragma_auto_vacuum"
)


def _check_schema(connection: _SqliteConnection, path: str, tables: Sequence[str]) -> None:
    """Damage to the schema can turn an index into nonsense unseen, so it is compared with what was created."""
    found = set(connection.all(_SCHEMA))
    if found != _expected_schema().union(map(_entry, tables), _OF_SQLITE):
        raise Corrupt(
            f"the schema of {path} is not the expected one: recover it into a new store",
            code="schema_damaged",
        )


# --- errors ----------------------------------------------------------------------------------------------------


@contextmanager
def _translated(path: str) -> Iterator[None]:
    """Turn errors of SQLite and of the file system into errors of this package."""
    try:
        yield
    except (apsw.Error, OSError) as exc:
        raise _error_of(exc, path) from exc


def _error_of(exc: apsw.Error | OSError, path: str) -> StepkeepError:
    """An error of SQLite or of the file system as one of this package."""
    if isinstance(exc, OSError):
        return BackendUnavailable(
            f"{path} cannot be used: {exc.strerror or exc}", code="store_not_writable", retryable=False
        )
    if isinstance(exc, apsw.BusyError | apsw.LockedError):
        return BackendUnavailable(f"{path} is locked by another process: {exc}", code="store_busy")
    if isinstance(exc, apsw.NotADBError):
        return InvalidInput(f"{path} is not a Stepkeep store: {exc}", code="not_a_store")
    if isinstance(exc, apsw.CorruptError) or "unsupported file format" in str(exc):
        return Corrupt(f"{path} is damaged: {exc}; recover it into a new store")
    if isinstance(exc, apsw.FullError):
        return BackendUnavailable(
            f"the disk of {path} is full: {exc}; free space or prune", code=WRITE_FAILED, retryable=False
        )
    if isinstance(exc, apsw.ReadOnlyError | apsw.PermissionsError | apsw.CantOpenError | apsw.AuthError):
        return BackendUnavailable(
            f"{path} cannot be opened for writing: {exc}", code="store_not_writable", retryable=False
        )
    if isinstance(exc, apsw.TooBigError):
        return InvalidInput(f"a record is larger than SQLite can store: {exc}", code="state_too_large")
    if isinstance(exc, apsw.IOError | apsw.NoMemError):
        return BackendUnavailable(f"{path} could not be read or written: {exc}", code=WRITE_FAILED)
    return BackendUnavailable(f"SQLite refused: {exc}", code="sqlite_error", retryable=False)


def make_single_file(path: Path) -> None:
    """Move the write-ahead log into the database and remove it, so that the file alone is the store.

    Raises:
        BackendUnavailable: another process, or another part of this one, has the store open.
    """
    with _translated(str(path)):
        connection = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READWRITE)
        try:
            connection.execute("PRAGMA journal_mode = DELETE").fetchall()
        finally:
            connection.close()
