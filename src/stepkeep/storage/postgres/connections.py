"""Connections to a server: kept for their next use, the transactions that run over them, and their errors.

There is no thread behind the pool, and none of its connections survives a fork.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import lru_cache
from itertools import count
from typing import Any, Final, Generic, TypeVar

import psycopg
from psycopg import Pipeline, RawCursor, generators
from psycopg.errors import InvalidSqlStatementName, error_from_result
from psycopg.pq import ExecStatus, TransactionStatus
from psycopg.pq.abc import PGresult

from stepkeep.errors import WRITE_FAILED, BackendUnavailable, Corrupt, InvalidInput, StepkeepError
from stepkeep.storage.postgres.address import Address
from stepkeep.storage.sql.connection import NO_LOCKS, Locks, Query, Row, Value

T = TypeVar("T")


class Raw(psycopg.Connection[tuple[Any, ...]]):
    """A connection.

    `calls` has the names of the calls of functions that are prepared on it, by their SQL, and `noticing` the functions
    of the server that gave notice during the last transaction.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.calls: dict[str, bytes] = {}
        self.names = count()
        self.noticing: list[str | None] = []
        self.add_notice_handler(lambda notice: self.noticing.append(notice.source_function))


# --- the pool --------------------------------------------------------------------------------------------------


class Pool:
    """At most `size` connections at once; who finds none free waits, for at most `wait_seconds`."""

    def __init__(self, connect: Callable[[], Raw], *, name: str, size: int, wait_seconds: float) -> None:
        self._connect = connect
        self._name = name
        self._size = size
        self._wait_seconds = wait_seconds
        self._changed = threading.Condition(threading.Lock())  # guards the three below
        self._idle: list[Raw] = []
        self._borrowed = 0
        self._is_closed = False

    @contextmanager
    def borrow(self) -> Iterator[Raw]:
        """A connection for one transaction. Only one that is whole and outside a transaction is used again."""
        raw = self._take()
        try:
            if raw is None:
                raw = self._connect()
            yield raw
        except BaseException as exc:
            if raw is not None and not isinstance(exc, Exception):
                raw.close()  # interrupted anywhere: nobody knows what is under way
            raise
        finally:
            self._give_back(raw)

    def _take(self) -> Raw | None:
        with self._changed:
            self.check_open()
            if self._borrowed >= self._size and not self._changed.wait_for(
                lambda: self._is_closed or self._borrowed < self._size, timeout=self._wait_seconds
            ):
                raise BackendUnavailable(
                    f"all {self._size} connections to {self._name} are in use: raise pool_size in the URL",
                    code="store_busy",
                )
            self.check_open()
            self._borrowed += 1
            return self._idle.pop() if self._idle else None

    def _give_back(self, raw: Raw | None) -> None:
        if raw is not None and raw.pgconn.transaction_status != TransactionStatus.IDLE:
            raw.close()
            raw = None
        with self._changed:
            self._borrowed -= 1
            if raw is not None:
                self._idle.append(raw)
            self._changed.notify_all()

    def drop_idle(self) -> None:
        """Close the connections that wait: one broke, so they may all be."""
        with self._changed:
            self._close_idle()

    def check_open(self) -> None:
        if self._is_closed:
            raise BackendUnavailable(
                f"the store {self._name} is closed", code="store_closed", retryable=False
            )

    def close(self) -> None:
        """Let work that is under way end, then close everything; repeating it is harmless."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._borrowed == 0)
            self._close_idle()

    def before_fork(self) -> None:
        """Close everything: a connection that two processes use is broken for both."""
        self._changed.acquire()
        self._changed.wait_for(lambda: self._borrowed == 0)
        self._close_idle()

    def after_fork(self, *, is_child: bool) -> None:  # noqa: ARG002  (both sides only go on)
        self._changed.release()

    def _close_idle(self) -> None:
        for raw in self._idle:
            with suppress(psycopg.Error):
                raw.close()
        self._idle.clear()


# --- statements ------------------------------------------------------------------------------------------------


ROW_LOCKS: Final = Locks(change=" FOR UPDATE", keep=" FOR KEY SHARE", free=" FOR UPDATE SKIP LOCKED")

_INTEGERS: Final = range(-(2**63), 2**63)


class PostgresConnection:
    """Statements of one transaction, in a pipeline: each call that wants an answer is one round trip.

    Without a pipeline each statement is a transaction of its own.
    """

    trusts_storage = True  # its pages have checksums, by default since PostgreSQL 18

    def __init__(self, raw: Raw, pipeline: Pipeline | None, locks: Locks) -> None:
        self.raw = raw
        self._pipeline = pipeline
        self.locks = locks

    def all(self, sql: str, values: Sequence[Value] = ()) -> list[Row]:
        return self.ask([(sql, values)])[0]

    def one(self, sql: str, values: Sequence[Value] = ()) -> Row | None:
        return next(iter(self.all(sql, values)), None)

    def run(self, sql: str, values: Sequence[Value] = ()) -> int:
        cursor = self.send(sql, values)
        self._wait()
        return cursor.rowcount

    def put(self, sql: str, values: Sequence[Value] = ()) -> None:
        self.send(sql, values)

    def run_many(self, sql: str, rows: Iterable[Sequence[Value]]) -> None:
        for row in rows:
            self.send(sql, row)

    def ask(self, queries: Sequence[Query]) -> list[list[Row]]:
        cursors = [self.send(sql, values) for sql, values in queries]
        if cursors:
            self._wait()
        return [
            cursor.fetchall() if cursor.pgresult and cursor.pgresult.nfields else [] for cursor in cursors
        ]

    def rows_at_hand(self) -> None:
        """Others may have written at any time."""

    def _wait(self) -> None:
        if self._pipeline is not None:
            self._pipeline.sync()

    def send(self, sql: str, values: Sequence[Value] = ()) -> RawCursor[Row]:
        """Queue a statement; its answer is there after the next one that is waited for."""
        for value in values:
            if isinstance(value, int) and value not in _INTEGERS:
                raise InvalidInput("a number is beyond 64 bits", code="invalid_value")
        cursor: RawCursor[Row] = RawCursor(self.raw)
        try:
            cursor.execute(numbered(sql), values, binary=True)
        except UnicodeEncodeError as exc:
            raise _not_text(exc) from exc
        return cursor

    def call(self, sql: str, values: Sequence[Value]) -> list[bool]:
        """What a function that answers true or false says, for each row that the statement calls it for.

        A call alone is prepared, and goes past psycopg's cursors: these would take most of the client's time (decision
        59). Waiting for the answer is psycopg's, so it can be interrupted.
        """
        if self._pipeline is not None:
            return [answer for (answer,) in self.all(sql, values)]
        try:
            sent = [
                value if value is None or type(value) is bytes else str(value).encode() for value in values
            ]
        except UnicodeEncodeError as exc:
            raise _not_text(exc) from exc
        # Texts go as they are, so that the server looks at each of their bytes; numbers are read by it.
        formats = [int(type(value) in (str, bytes)) for value in values]
        try:
            answers = self._call(sql, sent, formats)
        except InvalidSqlStatementName:  # after a rollback psycopg lets go of all that is prepared
            self.raw.calls.clear()
            answers = self._call(sql, sent, formats)
        return [answers.get_value(at, 0) == b"\x01" for at in range(answers.ntuples)]

    def _call(self, sql: str, sent: Sequence[bytes | None], formats: Sequence[int]) -> PGresult:
        pgconn, calls = self.raw.pgconn, self.raw.calls
        if sql not in calls:
            name = b"call_%d" % next(self.raw.names)
            pgconn.send_prepare(name, numbered(sql))
            self._answer()
            calls[sql] = name
        pgconn.send_query_prepared(calls[sql], sent, formats, result_format=1)
        return self._answer()

    def _answer(self) -> PGresult:
        result: PGresult
        (result,) = self.raw.wait(generators.execute(self.raw.pgconn))
        if result.status not in (ExecStatus.TUPLES_OK, ExecStatus.COMMAND_OK):
            raise error_from_result(result)
        return result


def _not_text(exc: UnicodeEncodeError) -> InvalidInput:
    return InvalidInput(f"a value cannot be stored or looked for: {exc}", code="invalid_value")


@lru_cache(maxsize=1000)
def numbered(sql: str) -> bytes:
    """The statement with `$1`, `$2` … for its question marks; none of the statements has one in a literal."""
    first, *rest = sql.split("?")
    return (first + "".join(f"${at}{part}" for at, part in enumerate(rest, 1))).encode()


# --- transactions ----------------------------------------------------------------------------------------------


_WRITE: Final = "BEGIN ISOLATION LEVEL READ COMMITTED"
COMMIT: Final = "COMMIT"
_WAIT_FOR_STANDBY: Final = "SyncRepWaitForLSN"
"""The function of the server that warns when its wait for a standby was cancelled; then it commits without."""
_READ: Final = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"  # one state of the store for all statements

# A server that acknowledges before it wrote is not believed (V1); a stricter setting than `on` stays.
_DURABLE: Final = (
    "CASE current_setting('synchronous_commit') WHEN 'off' THEN 'on'"
    " ELSE current_setting('synchronous_commit') END"
)


PLANNING: Final = {"plan_cache_mode": "force_generic_plan", "enable_seqscan": "off", "jit": "off"}
"""Plans are kept, so they must be good for tables that grow: every statement finds its rows by an index.

A server that has no such setting does without."""


class Settings:
    """Where the tables are, how long things may take, and how statements are planned.

    A connection to the server itself gets them once and for all, and keeps prepared statements. Behind a pooler, which
    may hand each transaction another one, every transaction brings them along.
    """

    def __init__(self, address: Address) -> None:
        wanted = {
            "search_path": address.search_path,
            "statement_timeout": address.timeout_ms,
            # A client that froze must not hold the rows of a session for ever.
            "idle_in_transaction_session_timeout": address.timeout_ms,
            "default_transaction_isolation": "read committed",
        }
        if address.project is not None:
            wanted["stepkeep.project"] = address.project
        self._values: list[Value] = [text for pair in wanted.items() for text in pair]
        self._values += [text for name, value in PLANNING.items() for text in (name, name, value)]
        self._wanted = ["set_config(?, ?, {})"] * len(wanted)
        self._wanted += [
            "CASE WHEN current_setting(?, true) IS NOT NULL THEN set_config(?, ?, {}) END"
        ] * len(PLANNING)

    def for_transaction(self) -> Query:
        return self._statement(is_local="true"), self._values

    def keep(self, raw: Raw) -> None:
        """Give a new connection its settings, if the server process at its end is the one it was promised.

        A pooler promises one of its own, since it has to tell its clients apart.
        """
        cursor: RawCursor[Row] = RawCursor(raw)
        sql = f"{self._statement(is_local='false')} WHERE pg_backend_pid() = ?"
        if cursor.execute(numbered(sql), (*self._values, raw.info.backend_pid)).fetchone():
            raw.prepare_threshold = PREPARED_AFTER

    def _statement(self, *, is_local: str) -> str:
        given = ", ".join(self._wanted).format(*[is_local] * len(self._wanted))
        return f"SELECT {given}, set_config('synchronous_commit', {_DURABLE}, {is_local})"


PREPARED_AFTER: Final = 1
"""How often a statement is sent over a connection before it is prepared there."""


def keeps_settings(raw: Raw) -> bool:
    return raw.prepare_threshold is not None


class Transaction(Generic[T]):
    """Work that can be tried several times, on a new connection each time.

    Work that `is_single` is one statement: it is the transaction where the connection keeps its settings.
    `is_unknown` tells of the last try whether its commit was under way: if the connection broke, it may have been made.
    """

    def __init__(
        self,
        work: Callable[[PostgresConnection], T],
        settings: Settings,
        *,
        is_write: bool,
        is_single: bool = False,
    ) -> None:
        self._work = work
        self._settings = settings
        self._is_write = is_write
        self._is_single = is_single
        self.is_unknown = False

    def run(self, raw: Raw) -> T:
        """Do the work and commit. The last statements and the commit travel together.

        Raises:
            BackendUnavailable: it is committed, and perhaps on no standby, though it should be (`not_replicated`).
        """
        raw.noticing.clear()
        result = self._done(raw)
        if self._is_write and _WAIT_FOR_STANDBY in raw.noticing:
            raise BackendUnavailable(
                "the server stored it, but its wait for a standby was cancelled, and a fail-over may lose it: repeat"
                " it with the same key, or look",
                code="not_replicated",
            )
        return result

    def _done(self, raw: Raw) -> T:
        if self._is_single and keeps_settings(raw):
            self.is_unknown = self._is_write
            return self._work(PostgresConnection(raw, None, NO_LOCKS))
        self.is_unknown = False
        results: list[tuple[T, RawCursor[Row]]] = []
        failure: BaseException | None = None
        try:
            with raw.pipeline() as pipeline:
                tx = PostgresConnection(raw, pipeline, ROW_LOCKS if self._is_write else NO_LOCKS)
                try:
                    results.append(self._send(tx))
                except BaseException as exc:
                    failure = exc  # the pipeline ends in order, whatever happened in it
        except psycopg.Error as exc:
            failure = failure or exc
        if failure is not None:
            _undo(raw)
            raise failure
        self.is_unknown = False
        ((result, commit),) = results
        if commit.statusmessage != COMMIT:
            raise BackendUnavailable(
                "the server undid a transaction without saying why", code="server_error", retryable=True
            )
        return result

    def _send(self, tx: PostgresConnection) -> tuple[T, RawCursor[Row]]:
        """Do the work, and send the commit; the end of the pipeline waits for its answer."""
        tx.put(_WRITE if self._is_write else _READ)
        if not keeps_settings(tx.raw):
            tx.put(*self._settings.for_transaction())
        result = self._work(tx)
        self.is_unknown = self._is_write
        return result, tx.send(COMMIT)


def _undo(raw: Raw) -> None:
    """Leave the transaction, or the connection where that is not possible."""
    with suppress(psycopg.Error):
        if raw.info.transaction_status in (TransactionStatus.INTRANS, TransactionStatus.INERROR):
            raw.execute("ROLLBACK")
        if raw.info.transaction_status is TransactionStatus.IDLE:
            return
    raw.close()


# --- errors of psycopg and of the server, as errors of this package ---------------------------------------------

# The server rolled the transaction back because of another one; the same work may well succeed now. A unique key that
# another transaction took first is seen, and answered properly, when the work is done again.
_COLLISIONS: Final = frozenset({"40001", "40P01", "23505"})
# The server ends the connection, or cannot take another one.
_ENDED: Final = frozenset({"57P01", "57P02", "57P03", "25P03", "25P04"})

# Of a connection that could not be made libpq gives only text, without a code. What it says of one that was there
# has the same words, so that is never looked at.
_REFUSED: Final = (
    "password",
    "pg_hba.conf",
    "authentication",
    "does not exist",
    "permission denied",
    "not permitted to log in",
    "certificate",
    "sslmode",
    "SSL",
)
# One with TLS broke before it was complete.
_CUT: Final = ("SSL connection has been closed", "SSL SYSCALL error", "unexpected eof")
# Hosts, paths and users may be called anything.
_NAMES: Final = re.compile(r"""\"[^"]*\"|host: '[^']*'""")


class Collided(BackendUnavailable):
    """The server undid a transaction because of another one."""


def is_collision(exc: psycopg.Error) -> bool:
    """Whether another transaction is the cause: this one is undone and may be done again."""
    return exc.sqlstate in _COLLISIONS


def is_lost(exc: psycopg.Error) -> bool:
    """Whether the connection is gone, or could not be made though it may be later."""
    if exc.sqlstate is None:
        return isinstance(exc, psycopg.OperationalError) and not _is_refused(exc)
    return exc.sqlstate.startswith("08") or exc.sqlstate in _ENDED


def _is_refused(exc: psycopg.Error) -> bool:
    """Whether the server, or libpq itself, would refuse another attempt to connect too."""
    if exc.pgconn is None:
        return False  # psycopg has it only for attempts to connect
    text = _NAMES.sub("", str(exc))
    return any(sign in text for sign in _REFUSED) and not any(sign in text for sign in _CUT)


def translate(exc: psycopg.Error, url: str, *, is_unknown: bool = False) -> StepkeepError:
    """The error of this package; `is_unknown` when it is not known whether the transaction was committed."""
    text = _text(exc)
    if is_lost(exc) and is_unknown:
        return BackendUnavailable(
            f"the connection to {url} broke during the commit, so it may or may not be stored:"
            f" repeat it with the same key, or look ({text})",
            code="connection_lost",
        )
    if is_lost(exc):
        return BackendUnavailable(
            f"{url} cannot be reached, and nothing was stored: {text}", code="server_unreachable"
        )
    if is_collision(exc):
        return Collided(f"{url} is too busy: {text}", code="store_busy")
    if isinstance(exc, psycopg.DataError):
        return InvalidInput(f"a value cannot be stored or looked for: {text}", code="invalid_value")
    return _by_state(exc, exc.sqlstate or "", url)


def _by_state(exc: psycopg.Error, state: str, url: str) -> StepkeepError:
    def unavailable(what: str, *, code: str, retryable: bool) -> StepkeepError:
        return BackendUnavailable(f"{what}: {_text(exc)}", code=code, retryable=retryable)

    match state[:2], state:
        case ("", _) if isinstance(exc, psycopg.OperationalError):
            return unavailable(f"{url} lets nobody in with this URL", code="access_denied", retryable=False)
        case (_, "42501") if "row-level security" in _text(exc):
            return unavailable(
                f"{url} keeps projects apart, and the URL must name that of the session, ?project=NAME",
                code="access_denied",
                retryable=False,
            )
        case ("28" | "3D", _) | (_, "42501"):
            return unavailable(f"{url} denies access", code="access_denied", retryable=False)
        case (_, "53100"):
            return unavailable(
                f"the disk of {url} is full; free space or prune", code=WRITE_FAILED, retryable=False
            )
        case (_, "53300"):
            return unavailable(f"{url} is too busy", code="store_busy", retryable=True)
        case (_, "57014" | "55P03"):
            return unavailable(f"{url} took longer than allowed", code="statement_timeout", retryable=True)
        case (_, "25006"):
            return unavailable(f"{url} is read-only", code="store_not_writable", retryable=False)
        case (_, "42P01" | "42703" | "42883" | "3F000"):
            return Corrupt(f"tables of {url} are missing or changed: {_text(exc)}", code="schema_damaged")
        case (_, "XX001" | "XX002"):
            return Corrupt(f"{url} is damaged: {_text(exc)}; restore it from a backup")
        case ("53" | "58", _):
            return unavailable(f"{url} could not read or write", code=WRITE_FAILED, retryable=True)
        case ("54", _):
            return InvalidInput(f"a record is too large to store: {_text(exc)}", code="state_too_large")
    return unavailable(f"{url} refused", code="server_error", retryable=False)


def _text(exc: psycopg.Error) -> str:
    """The server's own words, on one line."""
    return " ".join((exc.diag.message_primary or str(exc) or type(exc).__name__).split())
