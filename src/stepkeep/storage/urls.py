"""Store URLs: `sqlite:PATH`, `files:DIR`, `postgresql://…`, `memory:`."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from stepkeep.errors import InvalidInput, driver_missing
from stepkeep.storage.port import Backend

if TYPE_CHECKING:
    from pathlib import Path


def open_backend(url: str, *, busy_seconds: float | None = None) -> Backend:
    """Open, or create, the store a URL names. A text without scheme that looks like a path is a SQLite file.

    `busy_seconds` is how long a file waits for other processes that write to it, a minute unless given.

    Raises:
        InvalidInput: no such kind of store, or a part of the URL that has no meaning.
    """
    if url == "memory:":
        from stepkeep.storage.memory import MemoryBackend

        return MemoryBackend()
    if url.startswith(("postgresql:", "postgres:")):
        return _open_postgres(url)
    if url.startswith("files:"):
        return _open_files(url, busy_seconds)
    path = database_name(url)
    if path is None:
        raise _no_store(url, "sqlite:PATH, files:DIR, postgresql:// or memory:")
    from stepkeep.storage.sqlite import BUSY_SECONDS, SqliteBackend

    return SqliteBackend(path, busy_seconds=BUSY_SECONDS if busy_seconds is None else busy_seconds)


def _no_store(url: str, forms: str) -> InvalidInput:
    from stepkeep.secrets import url_without_password

    return InvalidInput(f"no store {url_without_password(url)!r}: use {forms}", code="unknown_store_url")


def _open_files(url: str, busy_seconds: float | None) -> Backend:
    """`files:DIR?layout=workflow|run|phase`; without a layout that of the store, and `run` for a new one."""
    from stepkeep.storage.files import FilesBackend, Layout

    directory, query = directory_of(url), url.partition("?")[2]
    layout = query.removeprefix("layout=")
    if directory is None or (query and layout not in list(Layout)) or (query and layout == query):
        raise _no_store(url, f"files:DIR or files:DIR?layout={'|'.join(Layout)}")
    if busy_seconds is None:
        return FilesBackend(directory, layout=layout or None)
    return FilesBackend(directory, layout=layout or None, busy_seconds=busy_seconds)


def _open_postgres(url: str) -> Backend:
    try:
        from stepkeep.storage.postgres import PostgresBackend
    except ImportError as exc:
        raise driver_missing("PostgreSQL", "postgres", exc) from exc
    return PostgresBackend(url)


def database_file(url: str) -> Path | None:
    """The file of a SQLite store; None when the URL names another kind of store, or nothing at all."""
    from pathlib import Path

    name = database_name(url)
    return None if name is None else Path(name)


def database_name(url: str) -> str | None:
    """The same as text: a hook of an agent needs no more, and `pathlib` takes long to import."""
    scheme, separator, rest = url.partition(":")
    if not separator and ("/" in url or url.endswith((".db", ".sqlite"))):
        scheme, rest = "sqlite", url
    path = rest.removeprefix("//") if rest.startswith("///") else rest
    if scheme != "sqlite" or not path or "?" in path or not _is_file_name(path):
        return None
    return os.path.expanduser(path)  # noqa: PTH111


def directory_of(url: str) -> Path | None:
    """The directory of a store of files; None when the URL names another kind of store."""
    from pathlib import Path

    scheme, _, rest = url.partition(":")
    path = rest.partition("?")[0]
    path = path.removeprefix("//") if path.startswith("///") else path
    if scheme != "files" or not path or not _is_file_name(path):
        return None
    return Path(path).expanduser()


def missing_location(url: str) -> str | Path | None:
    """Where the store of a URL will be once it is made; None when it is there, or is not on this machine's disk.

    A directory is a store of files when it has the sidecar, or the folder of a layout: documents alone are enough.
    """
    file = database_name(url)
    if file is not None:
        return None if _exists(file) else file
    directory = directory_of(url)
    if directory is None or not directory.is_dir():
        return None if directory is None or directory.exists() else directory
    from stepkeep.storage.files.layouts import NAMES, SIDECAR

    folders = {SIDECAR, *(names.top for names in NAMES.values())}
    return None if any((directory / name).exists() for name in folders) else directory


def _exists(file: str) -> bool:
    """Whether there is something; what cannot be looked at is for the opening to tell."""
    try:
        os.stat(file)  # noqa: PTH116
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:
        return True
    return True


def _is_file_name(path: str) -> bool:
    """SQLite names files in UTF-8; a name of other bytes cannot be given to it."""
    try:
        return b"\0" not in path.encode()
    except UnicodeEncodeError:
        return False
