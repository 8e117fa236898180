"""Rows to records and back. Session and branch rows carry a digest over their own columns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, Generic, TypeVar

import msgspec

from stepkeep import typed
from stepkeep.codec.integrity import digest, open_header, row_digest
from stepkeep.errors import Corrupt, StepkeepError
from stepkeep.model import Branch, Header, SessionInfo
from stepkeep.storage.port import Blob, Body, BodyInfo, HeaderRow
from stepkeep.storage.sql.connection import Row, Value

_encoder = msgspec.json.Encoder()

S = TypeVar("S", bound=msgspec.Struct)

SESSION_FIELDS: Final = SessionInfo.__struct_fields__
SESSION_NAMES: Final = (*SESSION_FIELDS, "key_digest", "description", "digest")
SESSION_COLUMNS: Final = ", ".join(SESSION_NAMES)
BRANCH_FIELDS: Final = Branch.__struct_fields__
BRANCH_COLUMNS: Final = ", ".join((*BRANCH_FIELDS, "digest"))

_JSON_FIELDS: Final = frozenset({"policy", "metadata", "gaps"})
_FLAG_FIELDS: Final = frozenset({"is_test", "is_pinned"})
_ENUM_FIELDS: Final = frozenset({"status", "state"})


class _Mapping(Generic[S]):
    """How one struct lies in columns: most fields as they are, a few as JSON, 0 or 1, or plain text."""

    def __init__(self, noun: str, struct: type[S]) -> None:
        self.noun = noun
        self.struct = struct
        self.fields = struct.__struct_fields__
        self._json = self._positions(_JSON_FIELDS)
        self._flags = self._positions(_FLAG_FIELDS)
        self._enums = self._positions(_ENUM_FIELDS)

    def _positions(self, names: frozenset[str]) -> list[int]:
        return [at for at, name in enumerate(self.fields) if name in names]

    def columns(self, value: S) -> list[Any]:
        columns = list(msgspec.structs.astuple(value))
        for at in self._json:
            columns[at] = None if columns[at] is None else _encoder.encode(columns[at]).decode()
        for at in self._flags:
            columns[at] = int(columns[at])
        for at in self._enums:
            columns[at] = str(columns[at])
        return columns

    def check(self, row: Row) -> None:
        """Raise `Corrupt` unless the last column is the digest of those before it: each is what was written."""
        try:
            if row_digest(*row[:-1]) != row[-1]:
                raise Corrupt(f"a {self.noun} row does not match its digest")
        except (msgspec.MsgspecError, TypeError, UnicodeError) as exc:
            raise Corrupt(f"a {self.noun} row is not valid: {exc}") from exc

    def restore(self, row: Row) -> S:
        """The struct in a row; `Corrupt` when a column is not what was written."""
        self.check(row)
        values = list(row[: len(self.fields)])
        try:
            for at in self._json:
                values[at] = None if values[at] is None else msgspec.json.decode(values[at])
            for at in self._flags:
                values[at] = bool(values[at])
            return typed.convert(dict(zip(self.fields, values, strict=True)), self.struct)
        except (msgspec.MsgspecError, TypeError, UnicodeError) as exc:
            raise Corrupt(f"a {self.noun} row is not valid: {exc}") from exc

    def readable(self, columns: Sequence[Any]) -> dict[str, Any]:
        """The fields of a damaged row that can still be what they should be; the others are left out."""
        types = {field.name: field.type for field in msgspec.structs.fields(self.struct)}
        fields: dict[str, Any] = {}
        for at, name in enumerate(self.fields):
            column = columns[at]
            try:
                value = msgspec.json.decode(column) if at in self._json and column is not None else column
                fields[name] = typed.convert(bool(value) if at in self._flags else value, types[name])
            except (msgspec.MsgspecError, TypeError, UnicodeError, RecursionError):
                continue
        return fields


_sessions = _Mapping("session", SessionInfo)
_branches = _Mapping("branch", Branch)
check_session, check_branch = _sessions.check, _branches.check
session_from, branch_from = _sessions.restore, _branches.restore
readable_session, readable_branch = _sessions.readable, _branches.readable


def session_row(session: SessionInfo) -> tuple[Value, ...]:
    """The columns of `SESSION_COLUMNS`."""
    columns = _sessions.columns(session)
    described = _encoder.encode({name: getattr(session, name) for name in _DESCRIPTIVE})
    description = digest(described) + described.decode()
    columns += (digest(session.key.encode()), description)
    return (*columns, row_digest(*columns))


# What a session says of itself, and no header repeats. A second copy with its own digest lies beside the columns,
# so that a damaged row can be rebuilt: this part from the copy, the rest from the headers.
_DESCRIPTIVE: Final = (
    "uid",
    "key",
    "created_us",
    "project",
    "workflow",
    "profile",
    "is_test",
    "policy",
    "fingerprint",
    "metadata",
)


def open_description(sealed: object) -> dict[str, Any]:
    """The descriptive fields in a copy; empty when it is damaged too."""
    if not isinstance(sealed, str) or digest(sealed[64:].encode("utf-8", "replace")) != sealed[:64]:
        return {}
    fields: dict[str, Any] = msgspec.json.decode(sealed[64:])
    return fields


def branch_row(branch: Branch) -> tuple[Value, ...]:
    """The columns of `BRANCH_COLUMNS`."""
    columns = _branches.columns(branch)
    return (*columns, row_digest(*columns))


# SQLite stores any type in any column, so damage can change the type of a value. Such a value is replaced by one
# that no digest matches, and whoever reads it finds the damage.

_OPTIONAL: Final = str | None
_INSTEAD: Final[dict[Any, Any]] = {str: "", _OPTIONAL: "", int: -1, bytes: b""}


def _sound(row: Row, kinds: tuple[Any, ...]) -> Row:
    """The columns of a row with values of these types."""
    found = tuple(map(type, row))
    return row if found == kinds or found in _AS_WRITTEN else tuple(map(_of_kind, row, kinds))


def _of_kind(value: object, kind: Any) -> Any:
    value = bytes(value) if isinstance(value, memoryview) else value
    return value if isinstance(value, kind) else _INSTEAD[kind]


def intact_header(raw: object) -> Header | None:
    """The header in stored bytes; None when they are damaged, or of another version."""
    try:
        return open_header(raw) if isinstance(raw, bytes) else None
    except StepkeepError:
        return None


HEADER_COLUMNS: Final = "c.id, s.uid, c.seq, c.branch, c.header"
_HEADER_KINDS: Final = (str, str, int, str, bytes)


def header_row(row: Row) -> HeaderRow:
    """A header from the columns of `HEADER_COLUMNS`, and others behind them."""
    id, session, seq, branch, raw = _sound(row[:5], _HEADER_KINDS)
    return HeaderRow(id=id, session=session, seq=seq, branch=branch, raw=raw)


_INFO_NAMES: Final = (
    "checkpoint",
    "name",
    "codec",
    "size",
    "stored_size",
    "digest",
    "base",
    "position",
    "group_bytes",
    "is_redundant",
)
INFO_COLUMNS: Final = ", ".join(f"b.{name}" for name in _INFO_NAMES)
_INFO_KINDS: Final = (str, str, str, int, int, str, _OPTIONAL, int, int, int)
_BODY_KINDS: Final = (*_INFO_KINDS, bytes)
_AS_WRITTEN: Final = frozenset(
    tuple(base if kind is _OPTIONAL else kind for kind in kinds)
    for kinds in (_INFO_KINDS, _BODY_KINDS)
    for base in (str, type(None))
)


def body_info(row: Row, blobs: tuple[str, ...] = ()) -> BodyInfo:
    """What is known of a body from the columns of `INFO_COLUMNS`."""
    fields: dict[str, Any] = dict(zip(_INFO_NAMES, _sound(row, _INFO_KINDS), strict=True))
    fields["is_redundant"] = bool(fields["is_redundant"])
    return BodyInfo(**fields, blobs=blobs)


def body(row: Row, blobs: tuple[str, ...] = ()) -> Body:
    """A body from the columns of `INFO_COLUMNS` and its data, and others behind them."""
    *columns, data = _sound(row[: len(_BODY_KINDS)], _BODY_KINDS)
    fields: dict[str, Any] = dict(zip(_INFO_NAMES, columns, strict=True))
    fields["is_redundant"] = bool(fields["is_redundant"])
    return Body(**fields, blobs=blobs, data=data)


BLOB_COLUMNS: Final = "digest, size, codec, stored_digest, data"
_BLOB_KINDS: Final = (str, int, str, str, bytes)


def blob(row: Row) -> Blob:
    digest, size, codec, stored_digest, data = _sound(row, _BLOB_KINDS)
    return Blob(digest=digest, size=size, codec=codec, stored_digest=stored_digest, data=data)
