"""Exporting a checkpoint as a readable document."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import msgspec

from stepkeep.api.checkpoint import Checkpoint
from stepkeep.api.values import FallbackInfo, Shown
from stepkeep.api.values import shown as shown_of
from stepkeep.codec import delta
from stepkeep.codec.document import Document, encode
from stepkeep.codec.integrity import digest
from stepkeep.codec.readable import LAYOUTS, Layout
from stepkeep.engine import Engine
from stepkeep.engine.reader import verified
from stepkeep.errors import NotFound
from stepkeep.history.documents import CheckpointInfo
from stepkeep.model import Header, SessionInfo
from stepkeep.recording.triggers import merged_words
from stepkeep.storage.disk import write_file
from stepkeep.storage.port import HeaderQuery

EXPORT_VERSION = 1

OURS: Final = "stepkeep"
FORMATS: Final = (OURS, *LAYOUTS)
"""What `export` can write: our own document, or that of a layout."""


class Export(msgspec.Struct, frozen=True, kw_only=True):
    """The document that `export` writes."""

    stepkeep_export: int
    checkpoint: CheckpointInfo
    encoding: str
    state: msgspec.Raw
    details_encoding: str | None
    details: msgspec.Raw | None


class Exported(msgspec.Struct, frozen=True, kw_only=True):
    """What was written where, and as which document. `output` None means that it was not written to a file."""

    checkpoint: str
    encoding: str
    output: str | None
    size_bytes: int
    fallback: FallbackInfo | None
    format: str


def export(
    engine: Engine,
    session: SessionInfo,
    checkpoint: Checkpoint,
    *,
    output: Path | None,
    force: bool,
    form: str,
) -> tuple[Exported, bytes]:
    """The readable document of a checkpoint, and its bytes. With `output` it is written there: whole or not at
    all, durable, readable only by its owner, and over an existing file only with `force`.

    `form` is one of `FORMATS`. The document of a layout is the one that a store of files writes, whichever store the
    checkpoint is in, and names the triggers that were merged into it; its last line proves its bytes.
    """
    shown = shown_of(engine, checkpoint)
    content = _own_document(shown) if form == OURS else _document(Layout(form), engine, session, checkpoint)
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


def _document(layout: Layout, engine: Engine, session: SessionInfo, checkpoint: Checkpoint) -> bytes:
    """Every body whole, whatever it is stored as. Blobs are not in a document, so it names none."""
    header = checkpoint.header
    bodies = [
        delta.Body(
            checkpoint=header.id,
            name=name,
            codec=delta.RAW,
            size=len(content),
            stored_size=len(content),
            digest=digest(content),
            data=content,
        )
        for name in header.contents
        for content in [checkpoint.content(name)]
    ]
    document = Document(raw=_sealed(engine, header), header=header, session=session, bodies=tuple(bodies))
    return encode(layout, document, merged=merged_words(engine, header))


def _sealed(engine: Engine, header: Header) -> bytes:
    query = HeaderQuery(session=header.session, ids=(header.id,), limit=1)
    row = next(engine.backend.headers(query), None)
    if row is None:
        raise NotFound(f"{header.id} was removed while it was exported", code="checkpoint_not_found")
    verified(row)
    return row.raw
