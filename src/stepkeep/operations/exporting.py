"""Exporting a checkpoint as a readable document."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

import msgspec

from stepkeep.api import Checkpoint, Session, Store
from stepkeep.codec import patch
from stepkeep.codec.document import BodyRecord, Document, encode
from stepkeep.codec.integrity import digest
from stepkeep.codec.readable import Layout
from stepkeep.engine.reader import verified
from stepkeep.errors import BackendUnavailable, InvalidInput, NotFound
from stepkeep.lifecycle.merged import merged_words
from stepkeep.model import Header
from stepkeep.operations.looking import shown_of
from stepkeep.operations.views import Export, Exported, Shown
from stepkeep.storage.disk import check_replaceable, put_in_place, temporary_beside, write_new
from stepkeep.storage.port import HeaderQuery

EXPORT_VERSION = 1


OURS: Final = "stepkeep"
LAYOUTS: Final = tuple(str(layout) for layout in Layout)
FORMATS: Final = (OURS, *LAYOUTS)
"""What `export` can write: our own document, or that of a layout."""


def export(
    store: Store,
    key: str,
    ref: str = "latest",
    *,
    output: Path | None,
    force: bool = False,
    form: str = OURS,
) -> tuple[Exported, bytes]:
    """The readable document of a checkpoint, and its bytes. With `output` it is written there: whole or not at
    all, durable, readable only by its owner, and over an existing file only with `force`.

    `form` is one of `FORMATS`. The document of a layout is the one that a store of files writes, whichever store the
    checkpoint is in, and names the triggers that were merged into it; its last line proves its bytes.
    """
    session = store.get(key)
    checkpoint = session.load(ref)
    shown = shown_of(store, session, checkpoint)
    content = _own_document(shown) if form == OURS else _document(Layout(form), store, session, checkpoint)
    if output is not None:
        write_file(output, content, force=force)
    exported = Exported(
        checkpoint=shown.checkpoint.id,
        encoding=shown.encoding,
        output=None if output is None else str(output),
        size_bytes=len(content),
        fallback=shown.fallback,
        format=form,
    )
    return exported, content


def _own_document(shown: Shown) -> bytes:
    document = Export(
        stepkeep_export=EXPORT_VERSION,
        checkpoint=shown.checkpoint,
        encoding=shown.encoding,
        state=shown.state,
        details_encoding=shown.details_encoding,
        details=shown.details,
    )
    return msgspec.json.format(msgspec.json.encode(document), indent=2) + b"\n"


def _document(layout: Layout, store: Store, session: Session, checkpoint: Checkpoint) -> bytes:
    """Every body whole, whatever it is stored as. Blobs are not in a document, so it names none."""
    header = checkpoint.header
    bodies = [
        BodyRecord(
            name=name,
            codec=patch.RAW,
            size=len(content),
            stored_size=len(content),
            digest=digest(content),
            data=content,
        )
        for name in header.contents
        for content in [checkpoint.content(name)]
    ]
    document = Document(raw=_sealed(store, header), session=session.info, bodies=tuple(bodies))
    return encode(layout, document, merged=merged_words(store.engine, header))


def _sealed(store: Store, header: Header) -> bytes:
    query = HeaderQuery(session=header.session, ids=(header.id,), limit=1)
    row = next(store.engine.backend.headers(query), None)
    if row is None:
        raise NotFound(f"{header.id} was removed while it was exported", code="checkpoint_not_found")
    verified(row)
    return row.raw


def write_file(path: Path, content: bytes, *, force: bool) -> None:
    """Write a file whole or not at all, durable, for its owner only, and over an existing one only with `force`."""
    check_replaceable(path)
    temporary = temporary_beside(path)
    with _file_errors(path):
        try:
            write_new(temporary, content)
            put_in_place(temporary, path, replace=force)
        finally:
            with suppress(OSError):
                temporary.unlink(missing_ok=True)


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
