"""Exporting a checkpoint as a readable document."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec

from holdfast.api import Store
from holdfast.errors import BackendUnavailable, InvalidInput
from holdfast.operations.looking import show
from holdfast.operations.views import Export, Exported
from holdfast.storage.disk import sync_directory

EXPORT_VERSION = 1


def export(
    store: Store, key: str, ref: str = "latest", *, output: Path | None, force: bool = False
) -> tuple[Exported, bytes]:
    """The readable document of a checkpoint, and its bytes. With `output` it is written there: whole or not at
    all, durable, readable only by its owner, and over an existing file only with `force`."""
    shown = show(store, key, ref)
    document = Export(
        holdfast_export=EXPORT_VERSION,
        checkpoint=shown.checkpoint,
        encoding=shown.encoding,
        state=shown.state,
        details_encoding=shown.details_encoding,
        details=shown.details,
    )
    content = msgspec.json.format(msgspec.json.encode(document), indent=2) + b"\n"
    if output is not None:
        _write_file(output, content, force=force)
    exported = Exported(
        checkpoint=shown.checkpoint.id,
        encoding=shown.encoding,
        output=None if output is None else str(output),
        size_bytes=len(content),
        fallback=shown.fallback,
    )
    return exported, content


def _write_file(path: Path, content: bytes, *, force: bool) -> None:
    if path.is_dir():
        raise InvalidInput(f"{path} is a directory: name a file in it", code="not_a_file")
    temporary = path.with_name(f".holdfast-{secrets.token_hex(8)}.tmp")
    with _file_errors(path):
        try:
            _write_new(temporary, content)
            _put_in_place(temporary, path, force=force)
            sync_directory(path.parent)
        finally:
            with suppress(OSError):
                temporary.unlink(missing_ok=True)


def _put_in_place(temporary: Path, path: Path, *, force: bool) -> None:
    if not force:
        try:
            path.hardlink_to(temporary)  # unlike a rename, it never replaces
            return
        except FileExistsError:
            raise
        except OSError:  # a file system without links
            if path.exists():
                raise FileExistsError(path) from None
    temporary.replace(path)


def _write_new(path: Path, content: bytes) -> None:
    descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


@contextmanager
def _file_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except FileExistsError as exc:
        raise InvalidInput(f"{path} exists: use --force to replace it", code="file_exists") from exc
    except (OSError, ValueError) as exc:
        reason = getattr(exc, "strerror", None) or exc
        raise BackendUnavailable(
            f"{path} cannot be written: {reason}", code="export_failed", retryable=False
        ) from exc
