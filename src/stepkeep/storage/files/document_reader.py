"""Documents read back, plain or compressed, every byte of them checked; also those of other systems.

Beside that: files of other systems, found and read, and the way between the records of the port and of the documents.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from stepkeep.codec import delta, document
from stepkeep.codec.document import MAX_DOCUMENT_BYTES, Document
from stepkeep.codec.foreign import MAX_BYTES
from stepkeep.codec.integrity import digest, open_header
from stepkeep.codec.readable import Layout
from stepkeep.errors import INTEGRITY_MISMATCH, SCHEMA_INVALID, Corrupt, StepkeepError, Unsupported
from stepkeep.logs import Log
from stepkeep.storage.files.durable_files import OpenFolder, Tree, split
from stepkeep.storage.files.layouts import CHECKSUM, GZIP, NAMES, Names
from stepkeep.storage.files.sidecar import DocumentEntry
from stepkeep.storage.port import Append, Body, Inconsistency

log = Log("stepkeep.storage")

_CHECKSUM: Final = re.compile(rb"([0-9a-fA-F]{64})(?:\s[^\n]*)?\n?")
_MAX_CHECKSUM_BYTES: Final = 4096


def read_document(tree: Tree, layout: Layout, file: str) -> Document:
    """What the document in a file holds.

    Raises:
        Corrupt: the file is missing, damaged, or not a document of ours; the code says which.
        Unsupported: a document of a newer format.
    """
    try:
        return document.decode(layout, read_bytes(tree, file))
    except (Corrupt, Unsupported) as exc:
        raise type(exc)(f"{file}: {exc.message}", code=exc.code, checkpoint=exc.checkpoint) from exc


def read_bytes(tree: Tree, file: str) -> bytes:
    """The bytes of a document, decompressed after the digest of the stored bytes was checked, if there is one."""
    location, name = split(file)
    with _reading(tree, location) as folder:
        data = folder.read(name, limit=MAX_DOCUMENT_BYTES)
        return _unzipped(folder, name, data) if name.endswith(GZIP) else data


@contextmanager
def _reading(tree: Tree, location: str) -> Iterator[OpenFolder]:
    """A folder to read a file from; what goes wrong there makes the document `Corrupt`."""
    try:
        with tree.folder(location) as folder:
            yield folder
    except FileNotFoundError as exc:
        raise Corrupt("the document is missing", code="checkpoint_missing") from exc
    except NotADirectoryError as exc:
        raise Corrupt(
            "a folder on its way is a symbolic link or a file: not followed", code=SCHEMA_INVALID
        ) from exc
    except OSError as exc:
        raise Corrupt(f"the document cannot be read: {exc.strerror or exc}") from exc


def _unzipped(folder: OpenFolder, name: str, data: bytes) -> bytes:
    """The document in a compressed file. Where its checksum is gone, that inside the document proves as much."""
    if _matches_checksum(folder, name, data) is False:
        raise Corrupt("the compressed document does not match its checksum")
    recorded = int.from_bytes(data[-4:], "little")
    return document.unzip(data, limit=min(recorded, MAX_DOCUMENT_BYTES))


def _matches_checksum(folder: OpenFolder, name: str, data: bytes) -> bool | None:
    """Whether a file is what the checksum beside it says; None when there is no checksum."""
    try:
        given = _CHECKSUM.fullmatch(folder.read(name + CHECKSUM, limit=_MAX_CHECKSUM_BYTES))
    except FileNotFoundError:
        return None
    return given is not None and digest(data).encode() == given[1].lower()


def checksum_file(name: str, data: bytes) -> bytes:
    """What lies beside a compressed document: a line that `sha256sum --check` takes."""
    return f"{digest(data)}  {name}\n".encode()


class DocumentReader:
    """The documents of a store, found by what the sidecar knows of them."""

    def __init__(self, tree: Tree, names: Names) -> None:
        self._tree = tree
        self._names = names

    def served(self, entry: DocumentEntry | None, checkpoint: str) -> tuple[Document, bool]:
        """The document of a checkpoint, and whether it is the original.

        In the `run` layout its copy serves where the original is damaged.
        """
        try:
            return self.original(entry, checkpoint), True
        except (Corrupt, Unsupported):
            copy = self.copy(entry, checkpoint)
            if entry is None or copy is None:
                raise
            log.warning("%s is damaged, latest.json served", entry.file)
            return copy, False

    def original(self, entry: DocumentEntry | None, checkpoint: str) -> Document:
        """The document of a checkpoint, from its own file alone."""
        if entry is None:
            raise Corrupt(f"the document of {checkpoint} is missing", code="checkpoint_missing")
        return self.document_in(entry.file, checkpoint)

    def copy(self, entry: DocumentEntry | None, checkpoint: str) -> Document | None:
        """The same document as `latest.json` has it in the `run` layout, while it shows this checkpoint."""
        if entry is not None and self._names.layout is Layout.RUN:
            with suppress(Corrupt, Unsupported):
                return self.document_in(self.pointer_beside(entry.file), checkpoint)
        return None

    def document_in(self, file: str, checkpoint: str | None) -> Document:
        """The document in a file, if it is that of the checkpoint."""
        found = read_document(self._tree, self._names.layout, file)
        if found.header.id != checkpoint:
            raise Corrupt(f"{file} holds {found.header.id}, not {checkpoint}", checkpoint=checkpoint)
        return found

    def lacks_checksum(self, file: str) -> bool:
        """Whether a compressed document has no checksum beside it."""
        location, name = split(file)
        if not name.endswith(GZIP):
            return False
        with suppress(OSError), self._tree.folder(location) as folder:
            return not folder.has(name + CHECKSUM)
        return False

    def pointer_beside(self, file: str) -> str:
        """The file that shows the newest checkpoint of the session that a file belongs to."""
        return "/".join([*file.split("/")[:2], self._names.pointer])

    def shown(self, pointer: str) -> str | None:
        """The checkpoint that a pointer shows, None when it shows nothing that can be read."""
        try:
            return read_document(self._tree, self._names.layout, pointer).header.id
        except (Corrupt, Unsupported):
            return None


# --- files of other systems, named as a layout names its own, and never followed out of the folder ---------------

_HERE: Final = "."


class FoundFile(NamedTuple):
    """A file, by its path below the folder; `session` is the name of the folder it lies in, None without one."""

    file: str
    session: str | None
    is_pointer: bool

    @property
    def shown(self) -> str:
        return self.file.removeprefix(f"{_HERE}/")


def find_files(directory: Path, layout: Layout) -> Iterator[FoundFile]:
    """Every file that may be a checkpoint by its name, those behind symbolic links included, unread.

    The folder is the root of such a store, the folder in it that holds all sessions, or that of one session.
    """
    names, tree = NAMES[layout], Tree(directory)
    top = names.top if (directory / names.top).is_dir() else _HERE
    if not names.has_folders:
        yield from (FoundFile(f"{top}/{name}", None, False) for name in _names(tree, top, names))
        return
    if _is_session(directory / top, names):
        yield from _in_session(tree, top, directory.absolute().name, names)
        return
    for name in sorted(each.name for each in tree.entries(top) if not each.is_file(follow_symlinks=False)):
        yield from _in_session(tree, f"{top}/{name}", name, names)


def _is_session(folder: Path, names: Names) -> bool:
    return (folder / names.pointer).is_file() or (folder / names.history_of_folder(".")).is_dir()


def _in_session(tree: Tree, folder: str, session: str, names: Names) -> Iterator[FoundFile]:
    history = names.history_of_folder(folder)
    try:
        yield from (FoundFile(f"{history}/{name}", session, False) for name in _names(tree, history, names))
        if any(entry.name == names.pointer for entry in tree.entries(folder)):
            yield FoundFile(f"{folder}/{names.pointer}", session, True)
    except OSError:  # a symbolic link, or closed to us: told when the file itself is to be read
        yield FoundFile(f"{folder}/{names.pointer}", session, True)


def _names(tree: Tree, location: str, names: Names) -> list[str]:
    return sorted(entry.name for entry in tree.entries(location) if names.is_history(entry.name))


def read_foreign(directory: Path, found: FoundFile) -> tuple[bytes, str, list[str]]:
    """The bytes of a document, decompressed; the digest of the file; and what was checked on the way.

    Raises:
        Corrupt: it is a symbolic link, not a regular file, too large, or not what the checksum beside it says.
    """
    location, name = split(found.file)
    with _reading(Tree(directory), location) as folder:
        data = folder.read(name, limit=MAX_BYTES)
        matches = _matches_checksum(folder, name, data)
    if matches is False:
        raise Corrupt(f"the file does not match {name}{CHECKSUM}")
    content = document.unzip(data, limit=MAX_BYTES) if name.endswith(GZIP) else data
    return content, digest(content), ["checksum file"] if matches else []


# --- between the records of the port and those of the documents ------------------------------------------------


_CODE: Final = re.compile(r"[a-z]+(?:_[a-z]+)+")


def without_bytes(item: Append) -> Append:
    """What the sidecar keeps of an append: the records, whose bytes are in the document. Blobs it has already."""
    bodies = tuple(msgspec.structs.replace(body, data=b"") for body in item.bodies)
    return msgspec.structs.replace(item, bodies=bodies, blobs=())


def standing_alone(body: Body) -> Body:
    """A compressed body as plain content, so that people can read it. The content stays the same."""
    if body.codec != delta.ZSTD or body.base is not None:
        return body
    try:
        content = delta.decode(body.codec, body.data, size=body.size)
    except (Corrupt, Unsupported):
        return body
    return msgspec.structs.replace(
        body, codec=delta.RAW, data=content, stored_size=len(content), digest=digest(content)
    )


def is_sealed(raw: bytes) -> bool:
    """Whether a stored header is as it was written, also one of a newer version."""
    try:
        open_header(raw)
    except Corrupt:
        return False
    except StepkeepError:
        return True
    return True


def foreign_file(entry: DocumentEntry) -> Inconsistency:
    """What is told of a file that holds no checkpoint of ours: the index has its code before its text."""
    code, found, text = (entry.problem or "").partition(": ")
    if found and _CODE.fullmatch(code):
        return Inconsistency(entry.file, text, code)
    return Inconsistency(entry.file, entry.problem or "", INTEGRITY_MISMATCH)
