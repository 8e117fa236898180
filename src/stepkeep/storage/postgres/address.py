"""What a `postgresql://` URL says: where the server is, for libpq, and how this package uses it."""

from __future__ import annotations

import re
from typing import Any, Final
from urllib.parse import parse_qsl, quote, urlencode

import msgspec
import psycopg
from psycopg.conninfo import conninfo_to_dict

from stepkeep.errors import InvalidInput
from stepkeep.secrets import url_password, url_without_password

DEFAULT_SCHEMA: Final = "stepkeep"
DEFAULT_POOL_SIZE: Final = 8
DEFAULT_TIMEOUT_SECONDS: Final = 60.0

_MAX_POOL_SIZE: Final = 1000
_MAX_TIMEOUT_SECONDS: Final = 24 * 3600.0
_MAX_IDENTIFIER_BYTES: Final = 63
_OURS: Final = ("schema", "pool_size", "statement_timeout", "project")

# A machine that vanished must not hold a caller for hours; whoever knows better says so in the URL.
_NETWORK: Final = {
    "connect_timeout": 10,
    "keepalives_idle": 30,
    "keepalives_interval": 10,
    "keepalives_count": 3,
    "tcp_user_timeout": 30_000,
    "fallback_application_name": "stepkeep",
}


_SPECIAL: Final = "special characters of a password are written as %XX"


class Address(msgspec.Struct, frozen=True, kw_only=True):
    """A store on a server. `url` opens it again, without any password; `parameters` are for libpq."""

    url: str
    parameters: dict[str, Any]
    schema: str = DEFAULT_SCHEMA
    pool_size: int = DEFAULT_POOL_SIZE
    timeout_seconds: float = DEFAULT_TIMEOUT_SECONDS
    project: str | None = None

    @property
    def search_path(self) -> str:
        """Where the server looks for the tables, and for nothing else but what is its own."""
        return f"{quoted(self.schema)}, pg_temp"

    @property
    def timeout_ms(self) -> str:
        return str(max(1, round(self.timeout_seconds * 1000)))


def quoted(name: str) -> str:
    """A name as an SQL identifier."""
    return '"' + name.replace('"', '""') + '"'


def parse(url: str) -> Address:
    """The store that a URL names; everything that is not an option of ours is left to libpq.

    Raises:
        InvalidInput: libpq does not understand it, or an option of ours makes no sense.
    """
    base, pairs = _split(url)
    ours = {name: value for name, value in pairs if name in _OURS}
    theirs = _joined(base, [pair for pair in pairs if pair[0] not in _OURS])
    try:
        given = conninfo_to_dict(theirs)
    except psycopg.Error as exc:
        why = _without_secrets(str(exc), theirs, url_password(url))
        raise InvalidInput(f"no store {_shown(url)!r}: {why}", code="unknown_store_url") from exc
    if url_password(url) and "@" in str(given.get("host", "")):
        # The end of a password would be looked for as the name of a host, and shown.
        raise InvalidInput(f"no store {_shown(url)!r}: {_SPECIAL}", code="unknown_store_url")
    project = ours.get("project")
    if project is not None and (not project or "\0" in project):
        raise InvalidInput("project= in the URL needs a name", code="unknown_store_url")
    return Address(
        url=_shown(url),
        parameters={**_NETWORK, **_writable(given), **given, "client_encoding": "UTF8"},
        schema=_schema(ours.get("schema", DEFAULT_SCHEMA)),
        pool_size=int(_number("pool_size", ours, DEFAULT_POOL_SIZE, 1, _MAX_POOL_SIZE)),
        timeout_seconds=_number(
            "statement_timeout", ours, DEFAULT_TIMEOUT_SECONDS, 0.001, _MAX_TIMEOUT_SECONDS
        ),
        project=project,
    )


def _writable(given: dict[str, Any]) -> dict[str, str]:
    """Of several hosts the one that takes writes is meant: the others are its standbys."""
    return {"target_session_attrs": "read-write"} if "," in str(given.get("host", "")) else {}


def _shown(url: str) -> str:
    """The URL without passwords: it is printed, logged and stored."""
    base, pairs = _split(url_without_password(url, mark=""))
    return _joined(base, pairs, unquoted="/")


def _without_secrets(text: str, url: str, password: str) -> str:
    """What libpq says of a URL, on one line; it quotes what it does not understand, which may be the password."""
    if re.search(r"[^\w%.~!$&'()*+,;=-]", password):
        return _SPECIAL  # libpq would quote a part of it
    text = " ".join(text.replace(url, _shown(url)).split())
    return text.replace(password, "***") if password else text


def _split(url: str) -> tuple[str, list[tuple[str, str]]]:
    """What is before the options, as it is, and the options.

    An empty host means something to libpq, and functions for URLs of the web would leave its slashes out.
    """
    base, _, query = url.partition("?")
    return base, parse_qsl(query, keep_blank_values=True)


def _joined(base: str, pairs: list[tuple[str, str]], *, unquoted: str = "") -> str:
    # libpq takes a plus sign as it is, so spaces are written as %20.
    return f"{base}?{urlencode(pairs, quote_via=quote, safe=unquoted)}" if pairs else base


def _schema(name: str) -> str:
    if not 1 <= len(name.encode("utf-8", "replace")) <= _MAX_IDENTIFIER_BYTES or not name.isprintable():
        raise InvalidInput("a schema is named by 1 to 63 bytes", code="unknown_store_url")
    if name.startswith("pg_"):
        raise InvalidInput(f"schema {name!r}: names with pg_ belong to the server", code="unknown_store_url")
    return name


def _number(name: str, given: dict[str, str], default: float, least: float, most: float) -> float:
    try:
        value = float(given.get(name, default))
    except ValueError:
        value = float("nan")
    if not least <= value <= most:
        raise InvalidInput(
            f"{name}={given[name]}: a number from {least:g} to {most:g} is needed", code="unknown_store_url"
        )
    return value
