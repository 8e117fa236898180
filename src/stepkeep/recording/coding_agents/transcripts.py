"""Transcripts of coding agents, kept beside the state: in pieces, so that a long one costs its growth.

A checkpoint names the pieces of the transcript as it was then; a piece is stored once. What a client writes anew, as
after a compaction, is kept anew.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any, Final

import msgspec

from stepkeep import typed
from stepkeep.codec import exact
from stepkeep.codec.integrity import digest
from stepkeep.engine import Engine, NewBody, reader
from stepkeep.errors import Corrupt, NotFound
from stepkeep.model import Header, SessionInfo
from stepkeep.recording.coding_agents.environment import Entry, entry_of
from stepkeep.storage.port import Blob, HeaderQuery

TRANSCRIPT: Final = "transcript"
"""The name of the body."""

PIECE_BYTES: Final = 1 << 20
MAX_BYTES: Final = 512 << 20
"""A longer transcript is not kept."""

MAX_LOOKED_AT: Final = 50
MAX_SHOWN: Final = 10
MAX_TEXT: Final = 2000


class Piece(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Some bytes of a transcript, which follow those of the piece before."""

    digest: str
    size: int


class KeptTranscript(msgspec.Struct, frozen=True, kw_only=True):
    """What a checkpoint has of a transcript."""

    version: int = 1
    path: str = ""
    pieces: tuple[Piece, ...] = ()

    @property
    def size_bytes(self) -> int:
        return sum(piece.size for piece in self.pieces)


class Kept(msgspec.Struct, frozen=True):
    """A transcript to save: the body that names its pieces, and those that are new."""

    bodies: dict[str, NewBody] = {}
    blobs: tuple[Blob, ...] = ()


def kept(engine: Engine, session: SessionInfo, path: str) -> Kept:
    """What keeps a transcript as it is now; nothing where there is none, or it cannot be read."""
    try:
        descriptor = os.open(os.path.expanduser(path), os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)  # noqa: PTH111
    except (OSError, ValueError):
        return Kept()
    try:
        return _kept(engine, _newest(engine, session), descriptor, path)
    except OSError:
        return Kept()
    finally:
        os.close(descriptor)


def _kept(engine: Engine, before: KeptTranscript, descriptor: int, path: str) -> Kept:
    size = os.fstat(descriptor).st_size
    if not 0 < size <= MAX_BYTES:
        return Kept()
    pieces = list(before.pieces) if _goes_on(before, descriptor, size) else []
    at, blobs = sum(piece.size for piece in pieces), list[Blob]()
    while at < size and (content := os.pread(descriptor, min(PIECE_BYTES, size - at), at)):
        blobs.append(engine.make_blob(content))
        pieces.append(Piece(blobs[-1].digest, len(content)))
        at += len(content)
    found = KeptTranscript(path=path.encode("utf-8", "replace").decode(), pieces=tuple(pieces))
    body = NewBody(msgspec.json.encode(found), exact.JSON, frozenset(piece.digest for piece in pieces))
    return Kept({TRANSCRIPT: body}, tuple({blob.digest: blob for blob in blobs}.values()))


def _goes_on(before: KeptTranscript, descriptor: int, size: int) -> bool:
    """Whether a file begins with what was kept of it: its last piece is still where it was."""
    if not before.pieces or before.size_bytes > size:
        return False
    last = before.pieces[-1]
    return digest(os.pread(descriptor, last.size, before.size_bytes - last.size)) == last.digest


def _newest(engine: Engine, session: SessionInfo) -> KeptTranscript:
    for header in engine.headers(HeaderQuery(session=session.uid, limit=MAX_LOOKED_AT)):
        if TRANSCRIPT in header.contents:
            return load_transcript(engine, header)
    return KeptTranscript()


# --- reading -----------------------------------------------------------------------------------------------------


class TranscriptMessage(msgspec.Struct, frozen=True, kw_only=True):
    """Something that was said, cut to what can be shown."""

    role: str
    text: str


class TranscriptView(msgspec.Struct, frozen=True, kw_only=True):
    """A kept transcript: how long it is, and what was said last."""

    size_bytes: int
    entries: int
    messages: tuple[TranscriptMessage, ...]


def load_transcript(engine: Engine, header: Header) -> KeptTranscript:
    """What a checkpoint has of a transcript, verified.

    Raises:
        NotFound: none was kept with it (`transcript_not_kept`).
        Corrupt: it is damaged.
    """
    if TRANSCRIPT not in header.contents:
        raise NotFound(
            f"checkpoint {header.seq} ({header.id}) has no transcript: `hooks.transcript: true` keeps them",
            code="transcript_not_kept",
            checkpoint=header.id,
        )
    try:
        return typed.from_json(reader.load_body(engine.backend, header, TRANSCRIPT), KeptTranscript)
    except msgspec.MsgspecError as exc:
        raise Corrupt(f"the list of pieces of a transcript is damaged: {exc}", checkpoint=header.id) from exc


def pieces_of(engine: Engine, header: Header) -> Iterator[bytes]:
    """A transcript as it was at a checkpoint, byte for byte, verified, piece by piece."""
    for piece in load_transcript(engine, header).pieces:
        yield engine.load_blob(piece.digest, header.session)


def view_of(engine: Engine, header: Header) -> TranscriptView:
    """The last things that were said in a transcript as it was at a checkpoint."""
    size, count, messages = 0, 0, list[TranscriptMessage]()
    for entry in entries(engine, header):
        size, count = size + entry[1], count + 1
        text = entry[0].text
        if text and not entry[0].isSidechain:
            role = str(entry[0].type or "")
            messages = [*messages, TranscriptMessage(role=role, text=text[:MAX_TEXT])][-MAX_SHOWN:]
    return TranscriptView(size_bytes=size, entries=count, messages=tuple(messages))


def entries(engine: Engine, header: Header) -> Iterator[tuple[Entry, int]]:
    """The entries of a transcript with one JSON object a line, and how many bytes each takes."""
    rest = b""
    for content in pieces_of(engine, header):
        *lines, rest = (rest + content).split(b"\n")
        for line in lines:
            yield entry_of(line) or Entry(), len(line) + 1
    if rest:
        yield entry_of(rest) or Entry(), len(rest)


def prompt_in(engine: Engine, header: Header, id: Any) -> str | None:
    """The whole text of an entry of a transcript; None where that was not kept."""
    if TRANSCRIPT not in header.contents or not id:
        return None
    return next((entry.text for entry, _ in entries(engine, header) if entry.uuid == id), None)
