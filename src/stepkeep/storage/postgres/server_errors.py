"""Errors of psycopg and of the server, as errors of this package."""

from __future__ import annotations

import re
from typing import Final

import psycopg

from stepkeep.errors import (
    WRITE_FAILED,
    BackendUnavailable,
    Corrupt,
    InvalidInput,
    StepkeepError,
)

# The server rolled the transaction back because of another one; the same work may well succeed now. A unique key that
# another transaction took first is seen, and answered properly, when the work is done again.
_COLLISIONS: Final = frozenset({"40001", "40P01", "23505"})
# The server ends the connection, or has no place for one.
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
    state = exc.sqlstate or ""
    if is_lost(exc):
        return _lost(exc, url, is_unknown=is_unknown)
    if is_collision(exc):
        return BackendUnavailable(f"{url} is too busy: {_text(exc)}", code="store_busy")
    if isinstance(exc, psycopg.DataError):
        return InvalidInput(f"a value cannot be stored or looked for: {_text(exc)}", code="invalid_value")
    return _by_state(exc, state, url)


def _lost(exc: psycopg.Error, url: str, *, is_unknown: bool) -> StepkeepError:
    if is_unknown:
        return BackendUnavailable(
            f"the connection to {url} broke during the commit, so it may or may not be stored:"
            f" repeat it with the same key, or look ({_text(exc)})",
            code="connection_lost",
        )
    return BackendUnavailable(
        f"{url} cannot be reached, and nothing was stored: {_text(exc)}", code="server_unreachable"
    )


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
