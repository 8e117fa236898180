"""Documents read back, plain or compressed, every byte of them checked."""

from __future__ import annotations

import logging
import re
from contextlib import suppress
from typing import Final

from stepkeep.codec import document
from stepkeep.codec.document import MAX_DOCUMENT_BYTES, Document
from stepkeep.codec.integrity import digest
from stepkeep.codec.readable import Layout
from stepkeep.errors import SCHEMA_INVALID, Corrupt, Unsupported
from stepkeep.storage.files.index import Entry
from stepkeep.storage.files.layouts import CHECKSUM, GZIP, Names
from stepkeep.storage.files.writing import Folder, Tree, split

log = logging.getLogger("stepkeep.storage")

_CHECKSUM: Final = re.compile(rb"([0-9a-f]{64})(?: [ *][^\n]*)?\n?")
_MAX_CHECKSUM_BYTES: Final = 4096


def read_document(tree: Tree, layout: Layout, file: str) -> Document:
    """What the document in a file holds.

    Raises:
        Corrupt: the file is missing, damaged, or no document of ours; the code says which.
        Unsupported: a document of a newer format.
    """
    try:
        return document.decode(layout, read_bytes(tree, file))
    except (Corrupt, Unsupported) as exc:
        raise type(exc)(f"{file}: {exc.message}", code=exc.code, checkpoint=exc.checkpoint) from exc


def read_bytes(tree: Tree, file: str) -> bytes:
    """The bytes of a document, decompressed after the digest of the stored bytes was checked."""
    place, name = split(file)
    try:
        with tree.folder(place) as folder:
            data = folder.read(name, limit=MAX_DOCUMENT_BYTES)
            return _unzipped(folder, name, data) if name.endswith(GZIP) else data
    except FileNotFoundError as exc:
        raise Corrupt("the document is missing", code="checkpoint_missing") from exc
    except NotADirectoryError as exc:
        raise Corrupt("a folder on its way is a symbolic link or a file", code=SCHEMA_INVALID) from exc
    except OSError as exc:
        raise Corrupt(f"the document cannot be read: {exc.strerror or exc}") from exc


def _unzipped(folder: Folder, name: str, data: bytes) -> bytes:
    try:
        expected = _CHECKSUM.fullmatch(folder.read(name + CHECKSUM, limit=_MAX_CHECKSUM_BYTES))
    except FileNotFoundError as exc:
        raise Corrupt("the compressed document has no checksum beside it") from exc
    if expected is None or digest(data).encode() != expected[1]:
        raise Corrupt("the compressed document does not match its checksum")
    recorded = int.from_bytes(data[-4:], "little")
    return document.unzip(data, limit=min(recorded, MAX_DOCUMENT_BYTES))


def checksum_file(name: str, data: bytes) -> bytes:
    """What lies beside a compressed document: a line that `sha256sum --check` takes."""
    return f"{digest(data)}  {name}\n".encode()


class Shelf:
    """The documents of a store, found by what the sidecar knows of them."""

    def __init__(self, tree: Tree, names: Names) -> None:
        self._tree = tree
        self._names = names

    def document(self, entry: Entry | None, checkpoint: str) -> Document:
        """The document of a checkpoint; in the `run` layout its copy serves where the original is damaged."""
        return self.served(entry, checkpoint)[0]

    def served(self, entry: Entry | None, checkpoint: str) -> tuple[Document, bool]:
        """The document of a checkpoint, and whether it is the original."""
        try:
            return self.original(entry, checkpoint), True
        except (Corrupt, Unsupported):
            copy = self.copy(entry, checkpoint)
            if entry is None or copy is None:
                raise
            log.warning("%s is damaged, latest.json served", entry.file)
            return copy, False

    def original(self, entry: Entry | None, checkpoint: str) -> Document:
        """The document of a checkpoint, from its own file alone."""
        if entry is None:
            raise Corrupt(f"the document of {checkpoint} is missing", code="checkpoint_missing")
        return self.document_in(entry.file, checkpoint)

    def copy(self, entry: Entry | None, checkpoint: str) -> Document | None:
        """The same document as `latest.json` has it in the `run` layout, while it shows this checkpoint."""
        if entry is not None and self._names.layout is Layout.RUN:
            with suppress(Corrupt, Unsupported):
                return self.document_in(self.pointer_beside(entry.file), checkpoint)
        return None

    def document_in(self, file: str, checkpoint: str) -> Document:
        """The document in a file, if it is that of the checkpoint."""
        found = read_document(self._tree, self._names.layout, file)
        if found.header.id != checkpoint:
            raise Corrupt(f"{file} holds {found.header.id}, not {checkpoint}", checkpoint=checkpoint)
        return found

    def pointer_beside(self, file: str) -> str:
        """The file that shows the newest checkpoint of the session that a file belongs to."""
        return "/".join([*file.split("/")[:2], self._names.pointer or ""])

    def shown(self, pointer: str) -> str | None:
        """The checkpoint that a pointer shows, None when it shows nothing that can be read."""
        try:
            return read_document(self._tree, self._names.layout, pointer).header.id
        except (Corrupt, Unsupported):
            return None
