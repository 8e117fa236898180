"""The readable documents: one JSON object per checkpoint, whose last line proves every byte before it. Pure.

A document is written line by line, so that people and tools find their way: the readable fields, the state as one
compact JSON value on a line of its own, what the store needs to take the checkpoint up again, and the integrity
line. `head -n -1 FILE | sha256sum` gives the checksum that the last line names. Contents come back as the exact
bytes that were put in, so digests hold.
"""

from __future__ import annotations

import re
import zlib
from base64 import b64decode, b64encode
from binascii import Error as Base64Error
from collections.abc import Sequence
from contextlib import suppress
from hashlib import sha256
from typing import Any, Final

import msgspec
from msgspec import UNSET, Raw

from stepkeep import typed
from stepkeep.codec.delta import Body, StoredForm
from stepkeep.codec.integrity import open_header
from stepkeep.codec.readable import (
    DOCUMENTS,
    FORMAT_VERSION,
    STATE_MEMBER,
    Form,
    Layout,
    Record,
    StoredRecord,
    fields_of,
)
from stepkeep.errors import SCHEMA_INVALID, Corrupt, Unsupported
from stepkeep.model import DETAILS, STATE, Header, SessionInfo

COMPRESS_ABOVE: Final = 1024 * 1024
"""States larger than this are compressed inside the envelope of the `workflow` layout."""

MAX_DOCUMENT_BYTES: Final = 1024 * 1024 * 1024
"""No document is larger: the largest state in base64, and room for the rest."""


_INTEGRITY: Final = re.compile(
    rb',"integrity":\{"format_version":(\d{1,9}),"algorithm":"sha256","checksum":"([0-9a-f]{64})"\}\}\n'
)
_GZIP_BITS: Final = 31  # zlib's word for: the largest window, and a gzip header
_PLACE: Final = re.compile(rb'"session":"([0-9A-Za-z_-]{1,64})","seq":(\d{1,18}),"branch":')

_encoder = msgspec.json.Encoder()
_decoders = {layout: typed.json_decoder(shape) for layout, shape in DOCUMENTS.items()}


class Document(msgspec.Struct, frozen=True, kw_only=True):
    """What a document holds: the header and its sealed bytes, the session as it was, and every body."""

    raw: bytes
    header: Header
    session: SessionInfo
    bodies: tuple[Body, ...]


# --- writing ---------------------------------------------------------------------------------------------------


def encode(layout: Layout, document: Document, *, merged: Sequence[str] = ()) -> bytes:
    """The bytes of a document. They are read back before they are returned: what cannot be read is never written.

    `merged` names the triggers that were merged into the checkpoint after it was saved.
    """
    encoded = _encode(layout, document, merged, is_plain=False)
    with suppress(Corrupt):
        if _decode(layout, encoded, document.header) == document:
            return encoded
    # Content that is marked as JSON but is not JSON must not break out of its line.
    return _encode(layout, document, merged, is_plain=True)


def _encode(layout: Layout, document: Document, merged: Sequence[str], *, is_plain: bool) -> bytes:
    header = document.header
    own = _whole_body(document.bodies, STATE)  # shown as the document's state
    is_large = layout is Layout.WORKFLOW and own is not None and len(own.data) > COMPRESS_ABOVE
    form, value = _written(own, header, is_plain, is_large) if own is not None else ("json", b"null")
    fields = fields_of(
        layout,
        header,
        document.session,
        details=None if is_plain else _details(document.bodies, header),
        merged=merged,
    )
    if layout is Layout.WORKFLOW:
        fields |= {"compressed": form == "gzip", "stored_size": len(value) if own is not None else 0}
    lines = [_member(name, given) for name, given in fields.items()]
    lines += [b'"%s":\n%s\n' % (STATE_MEMBER[layout].encode(), value)]
    lines += [b'"stepkeep":{"version":%d\n' % FORMAT_VERSION]
    lines += [_member("session", document.session)]
    lines += [b'"header":\n%s\n' % document.raw]
    records = [
        _record_line(body, header, is_plain, form if body is own else None) for body in document.bodies
    ]
    lines += [b'"bodies":[\n%s]}\n' % b",".join(records)]
    covered = b"{" + b",".join(lines)
    return covered + integrity_line(sha256(covered).hexdigest())


def integrity_line(checksum: str) -> bytes:
    """The last line of a document whose other bytes have this SHA-256."""
    return b',"integrity":{"format_version":%d,"algorithm":"sha256","checksum":"%s"}}\n' % (
        FORMAT_VERSION,
        checksum.encode(),
    )


def _member(name: str, value: object) -> bytes:
    return b'"%s":%s\n' % (name.encode(), _encoder.encode(value))


def _whole_body(bodies: Sequence[Body], name: str) -> Body | None:
    return next((body for body in bodies if body.name == name and not body.is_redundant), None)


def packed_size(layout: Layout, body: Body) -> int:
    """About what a body takes in a document."""
    if layout is not Layout.WORKFLOW or len(body.data) <= COMPRESS_ABOVE:
        return len(body.data)
    return min(len(body.data), len(zlib.compress(body.data, level=1)) * 4 // 3)


def _written(body: Body, header: Header, is_plain: bool, is_large: bool = False) -> tuple[Form, bytes]:
    """The form of a body's bytes, and the JSON value that stands for them."""
    if is_large:
        packed = zlib.compress(body.data, level=1, wbits=_GZIP_BITS)
        if len(packed) < len(body.data):
            return "gzip", _quoted(packed)
    content = header.contents.get(body.name)
    is_json = content is not None and content.encoding.startswith("json") and body.codec == "raw"
    if is_plain or not is_json or not body.data or b"\n" in body.data or body.data[:1].isspace():
        return "base64", _quoted(body.data)
    return "json", body.data


def _quoted(data: bytes) -> bytes:
    return b'"%s"' % b64encode(data)


def _record_line(body: Body, header: Header, is_plain: bool, form: Form | None) -> bytes:
    """One body record. `form` is given for the state, whose content stands elsewhere."""
    value = b""
    if form is None:
        form, value = _written(body, header, is_plain)
    line = _encoder.encode(StoredRecord(**_stored_form(body), form=form))
    return line + b"\n" if not value else b'%s,"content":\n%s\n}\n' % (line[:-1], value)


def _stored_form(record: StoredForm) -> dict[str, Any]:
    return {name: getattr(record, name) for name in StoredForm.__struct_fields__}


def _details(bodies: Sequence[Body], header: Header) -> object:
    """The details that were saved, where they are plain data."""
    content, body = header.contents.get(DETAILS), _whole_body(bodies, DETAILS)
    if content is None or body is None or content.encoding != "json" or body.codec != "raw":
        return None
    try:
        return msgspec.json.decode(body.data)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
        return None


# --- reading ---------------------------------------------------------------------------------------------------


def decode(layout: Layout, data: bytes) -> Document:
    """What a document holds, after every byte of it was checked.

    Raises:
        Corrupt: the checksum is missing or wrong (`checkpoint_integrity_mismatch`), or the bytes are not a document
            of this layout (`checkpoint_schema_invalid`).
        Unsupported: a document of a newer format.
    """
    check_integrity(data)
    try:
        return _decode(layout, data)
    except Corrupt:
        _check_version(data)
        raise


def check_integrity(data: bytes) -> None:
    """Raise `Corrupt` unless the last line names the SHA-256 of everything before it."""
    start = data.rfind(b"\n", 0, max(0, len(data) - 1)) + 1
    found = _INTEGRITY.fullmatch(data, start)
    if found is None:
        if not _is_json(data):
            raise Corrupt("the document is not JSON", code=SCHEMA_INVALID)
        raise Corrupt("the document has no integrity line")
    if sha256(memoryview(data)[:start]).hexdigest().encode() != found[2]:
        raise Corrupt("the document does not match its checksum")
    version = int(found[1])
    if version > FORMAT_VERSION:
        raise _newer(version)
    if version < FORMAT_VERSION:  # the only byte that no checksum covers
        raise Corrupt("the integrity line is damaged")


def _is_json(data: bytes) -> bool:
    try:
        typed.from_json(data, Raw)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
        return False
    return bool(data.strip())


class _Inner(msgspec.Struct):
    version: int


class _DocumentVersion(msgspec.Struct):
    stepkeep: _Inner


_version_decoder = typed.json_decoder(_DocumentVersion)


def _check_version(data: bytes) -> None:
    try:
        version = _version_decoder.decode(data).stepkeep.version
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as exc:
        raise Corrupt(f"not a document of stepkeep: {exc}", code=SCHEMA_INVALID) from exc
    if version > FORMAT_VERSION:
        raise _newer(version)


def _newer(version: int) -> Unsupported:
    return Unsupported(
        f"document format {version} is newer than {FORMAT_VERSION}: upgrade stepkeep", code="format_newer"
    )


def _decode(layout: Layout, data: bytes, header: Header | None = None) -> Document:
    """What a document holds; its header is opened, and so its seal checked, unless it is known."""
    try:
        found: Any = _decoders[layout].decode(data)
        record: Record = found.stepkeep
        if record.version > FORMAT_VERSION:
            raise _newer(record.version)
        raw, state = bytes(record.header), bytes(getattr(found, STATE_MEMBER[layout]))
        contents = [
            _content(stored, state if stored.content is UNSET else bytes(stored.content))
            for stored in record.bodies
        ]
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError, Base64Error, zlib.error) as exc:
        raise Corrupt(f"the document is not valid: {exc}", code=SCHEMA_INVALID) from exc
    header = open_header(raw) if header is None else header
    bodies = tuple(
        Body(**_stored_form(stored), checkpoint=header.id, data=content)
        for stored, content in zip(record.bodies, contents, strict=True)
    )
    return Document(raw=raw, header=header, session=record.session, bodies=bodies)


def _content(stored: StoredRecord, value: bytes) -> bytes:
    data = value if stored.form == "json" else b64decode(typed.from_json(value, str), validate=True)
    if stored.form == "gzip":
        return unzip(data, limit=min(max(0, stored.stored_size), MAX_DOCUMENT_BYTES))
    return data


def seq_hint(data: bytes) -> tuple[str, int]:
    """The session and the number that a damaged document seems to have; 0 when none can be made out."""
    found = _PLACE.search(data)
    return (found[1].decode(), int(found[2])) if found else ("", 0)


# --- gzip ------------------------------------------------------------------------------------------------------


def gzip(data: bytes) -> bytes:
    """The same bytes for the same data, whenever they are compressed."""
    return zlib.compress(data, level=6, wbits=_GZIP_BITS)


def unzip(data: bytes, *, limit: int, takes_zlib: bool = False) -> bytes:
    """One whole gzip member of at most `limit` bytes; memory stays within that, whatever the data claims."""
    decompressor = zlib.decompressobj(wbits=_GZIP_BITS + 16 if takes_zlib else _GZIP_BITS)
    try:
        content = decompressor.decompress(data, limit + 1)
    except zlib.error as exc:
        raise Corrupt(f"compressed bytes are damaged: {exc}") from exc
    if len(content) > limit or not decompressor.eof or decompressor.unused_data:
        raise Corrupt("compressed bytes are not exactly one member of the expected size")
    return content
