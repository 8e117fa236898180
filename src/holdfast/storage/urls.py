"""Store URLs: `sqlite:PATH`, `memory:`."""

from __future__ import annotations

from pathlib import Path

from holdfast.errors import InvalidInput
from holdfast.storage.port import Backend


def open_backend(url: str) -> Backend:
    """Open, or create, the store a URL names. A text without scheme that looks like a path is a SQLite file.

    Raises:
        InvalidInput: no such kind of store, or a part of the URL that has no meaning.
    """
    if url == "memory:":
        from holdfast.storage.memory import MemoryBackend

        return MemoryBackend()
    path = database_file(url)
    if path is None:
        raise InvalidInput(f"no store {url!r}: use sqlite:PATH or memory:", code="unknown_store_url")
    from holdfast.storage.sqlite import SqliteBackend

    return SqliteBackend(path)


def database_file(url: str) -> Path | None:
    """The file of a SQLite store; None when the URL names another kind of store, or nothing at all."""
    scheme, separator, rest = url.partition(":")
    if not separator and ("/" in url or url.endswith((".db", ".sqlite"))):
        scheme, rest = "sqlite", url
    path = rest.removeprefix("//") if rest.startswith("///") else rest
    if scheme != "sqlite" or not path or "?" in path or not _is_file_name(path):
        return None
    return Path(path).expanduser()


def _is_file_name(path: str) -> bool:
    """SQLite names files in UTF-8; a name of other bytes cannot be given to it."""
    try:
        return b"\0" not in path.encode()
    except UnicodeEncodeError:
        return False
