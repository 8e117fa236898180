"""Digests, sealing, and the chain of headers.

A header's bytes are JSON whose last member is `chain`: the SHA-256 of all bytes before it, closed by `}`.
Since those bytes hold the digest of each body's content and the chain values of the parents, a changed byte
anywhere in a checkpoint or in what it descends from shows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from hashlib import sha256
from typing import Any, Final

import msgspec

from stepkeep import typed
from stepkeep.errors import SCHEMA_INVALID, Corrupt, InvalidInput, Unsupported
from stepkeep.model import HIDDEN_SHA256, SHA256, Content, Header

FORMAT_VERSION: Final = 1

_CHAIN_OPEN = b',"chain":"'
_CHAIN_CLOSE = b'"}'
_DIGEST_CHARS = 64
_TAIL = len(_CHAIN_OPEN) + _DIGEST_CHARS + len(_CHAIN_CLOSE)
_CIPHER_OPEN = b',"cipher":"'
_CHECK_BYTES = 5

_UNSETTLED_BYTES: Final = 1024
"""How much at the end of what two contents share is hashed again: a list that stays shares its closing bracket, and
one that grows next time does not. Going back behind what was hashed means to begin anew."""

_encoder = msgspec.json.Encoder()
_header_decoder = typed.json_decoder(Header)


class _HeaderVersion(msgspec.Struct):
    v: int


_version_decoder = typed.json_decoder(_HeaderVersion)


def digest(data: bytes | memoryview) -> str:
    """SHA-256 as 64 hexadecimal characters."""
    return sha256(data).hexdigest()


class RunningDigest:
    """SHA-256 of one content after the other: what one shares with the start of the last is not hashed again."""

    def __init__(self) -> None:
        self._hashed = sha256()
        self._bytes = 0

    def of(self, content: bytes, shared: int) -> str:
        """The digest of a content whose first `shared` bytes are those of the last one."""
        if shared < self._bytes:
            self._hashed, self._bytes = sha256(), 0
        view = memoryview(content)
        settled = max(self._bytes, shared - _UNSETTLED_BYTES)
        self._hashed.update(view[self._bytes : settled])
        self._bytes = settled
        whole = self._hashed.copy()
        whole.update(view[settled:])
        return whole.hexdigest()


def describe(content: bytes, encoding: str) -> Content:
    return Content(digest=digest(content), size=len(content), encoding=encoding)


def row_digest(*values: Any) -> str:
    """The digest a stored row carries over its own columns, in their order."""
    return sha256(_encoder.encode(values)).hexdigest()


def seal(
    draft: Header,
    seq: int,
    parents: Sequence[str],
    parent_chains: Sequence[str | None],
    *,
    encrypt: Callable[[bytes], bytes] | None = None,
) -> bytes:
    """The final header bytes of a draft that got its place. Pure: the backend calls it inside its transaction.

    In an encrypted store `encrypt` gets the bytes of the clear part, and returns the cipher text of the rest.
    """
    header = msgspec.structs.replace(
        draft, seq=seq, parents=tuple(parents), parent_chains=tuple(parent_chains)
    )
    try:
        unsealed = _encoder.encode(header)
        if encrypt is None:  # else it was sealed in clear before
            _header_decoder.decode(unsealed)  # what cannot be read must never be written
    except (msgspec.MsgspecError, TypeError, UnicodeEncodeError) as exc:
        raise unwritable(draft, exc) from exc
    if encrypt is not None:
        return with_cipher(clear := unsealed[:-1], encrypt(clear))
    return unsealed[:-1] + _chain_member(unsealed)


def with_cipher(clear: bytes, record: bytes) -> bytes:
    """The header with that clear part and cipher text. Its chain value is that of the clear part."""
    from base64 import b64encode  # few stores are encrypted, and every one is opened

    cipher = _CIPHER_OPEN + b64encode(record + _check(clear, record)) + b'"'
    return clear + cipher + _chain_member(clear + b"}")


def _chain_member(unsealed: bytes) -> bytes:
    return _CHAIN_OPEN + sha256(unsealed).hexdigest().encode() + _CHAIN_CLOSE


def _check(clear: bytes, record: bytes) -> bytes:
    """Shows damage to the cipher text of a header to those who cannot decrypt it."""
    return sha256(clear + record).digest()[:_CHECK_BYTES]


def unwritable(draft: Header, cause: Exception) -> InvalidInput:
    """The error for a header that has no bytes."""
    return InvalidInput(f"the header of {draft.id} cannot be written: {cause}", code="invalid_header")


def seal_plainly(header: Header) -> bytes:
    """A header that was decrypted, as a store that is not encrypted would have it."""
    return seal(msgspec.structs.replace(header, chain=""), header.seq, header.parents, header.parent_chains)


def with_chain(sealed: bytes, chain: str) -> bytes:
    """A header of an encrypted store in clear: with the chain value that it has there."""
    return sealed[: -_DIGEST_CHARS - len(_CHAIN_CLOSE)] + chain.encode() + _CHAIN_CLOSE


def clear_part(sealed: bytes) -> bytes:
    """The bytes of a header before its cipher text; nothing a user wrote is in them."""
    return sealed[: sealed.rfind(_CIPHER_OPEN)]


def cipher_text(header: Header, clear: bytes) -> bytes:
    """The cipher text in a header with that clear part; `Corrupt` when it is damaged."""
    from base64 import b64decode

    try:
        stored = b64decode(header.cipher, validate=True)
    except ValueError:
        stored = b""
    record, check = stored[:-_CHECK_BYTES], stored[-_CHECK_BYTES:]
    if not record or check != _check(clear, record):
        raise Corrupt("header bytes do not match their digest", checkpoint=header.id)
    return record


def chain_of(sealed: bytes) -> str:
    """The chain value at the end of sealed header bytes, unchecked."""
    return sealed[-_DIGEST_CHARS - len(_CHAIN_CLOSE) : -len(_CHAIN_CLOSE)].decode("ascii", "replace")


def read_header(sealed: bytes) -> Header:
    """The header in sealed bytes that were sealed or checked here before."""
    return _header_decoder.decode(sealed)


def open_header(sealed: bytes, *, expect_id: str | None = None) -> Header:
    """The header in sealed bytes, after checking every byte of them.

    Raises:
        Corrupt: the bytes do not match their chain value, have none, or are another checkpoint's.
        Unsupported: an intact header of a newer format.
    """
    unsealed = sealed[:-_TAIL] + b"}"
    is_encrypted = sealed[-_TAIL:] != _chain_member(unsealed)
    if is_encrypted and sealed[-_TAIL:] != _chain_member(clear_part(sealed) + b"}"):
        raise Corrupt("header bytes do not match their digest", checkpoint=expect_id)
    try:
        version = _version_decoder.decode(sealed).v
        if version > FORMAT_VERSION:
            raise Unsupported(
                f"checkpoint format {version} is newer than {FORMAT_VERSION}: upgrade stepkeep",
                code="format_newer",
                checkpoint=expect_id,
            )
        header = _header_decoder.decode(sealed)
        if header.digests != (HIDDEN_SHA256 if is_encrypted else SHA256):
            raise Unsupported(
                f"digests of the kind {header.digests!r} need a newer release: upgrade stepkeep",
                code="digest_unknown",
                checkpoint=expect_id,
            )
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as exc:
        raise Corrupt(f"header is not valid: {exc}", code=SCHEMA_INVALID, checkpoint=expect_id) from exc
    if is_encrypted:
        cipher_text(header, clear_part(sealed))
    if len(header.parents) != len(header.parent_chains):
        raise Corrupt("a header has other parents than chains", code=SCHEMA_INVALID, checkpoint=expect_id)
    if expect_id is not None and header.id != expect_id:
        raise Corrupt(f"the header stored for {expect_id} belongs to {header.id}", checkpoint=expect_id)
    return header


def check_content(
    content: bytes, expected: Content, *, checkpoint: str, body: str, found: str | None = None
) -> None:
    """Raise `Corrupt` unless `content`, with the digest `found`, is byte for byte what the sealed header names."""
    if len(content) != expected.size or (found or digest(content)) != expected.digest:
        raise Corrupt(f"body {body!r} of {checkpoint} does not match its digest", checkpoint=checkpoint)


def check_stored(data: bytes, expected: str, *, checkpoint: str, body: str) -> None:
    """Raise `Corrupt` unless stored bytes match their digest: checked before anything is decompressed."""
    if sha256(data).hexdigest() != expected:
        raise Corrupt(f"stored bytes of body {body!r} of {checkpoint} are damaged", checkpoint=checkpoint)
