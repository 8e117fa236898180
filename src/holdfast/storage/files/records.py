"""Between the records of the port and those of the documents."""

from __future__ import annotations

import msgspec

from holdfast.codec import patch
from holdfast.codec.document import BodyRecord
from holdfast.codec.integrity import digest, open_header
from holdfast.errors import SCHEMA_INVALID, Corrupt, HoldfastError, Unsupported
from holdfast.storage.port import Append, Body


def record_of(body: Body) -> BodyRecord:
    fields = msgspec.structs.asdict(body)
    del fields["checkpoint"]
    return BodyRecord(**fields)


def without_bytes(item: Append) -> Append:
    """What the sidecar keeps of an append: the records, whose bytes are in the document."""
    bodies = tuple(msgspec.structs.replace(body, data=b"") for body in item.bodies)
    return msgspec.structs.replace(item, bodies=bodies)


def standing_alone(body: Body) -> Body:
    """A compressed body as plain content, so that people can read it. The content stays the same."""
    if body.codec != patch.ZSTD or body.base is not None:
        return body
    try:
        content = patch.decode(body.codec, body.data, size=body.size)
    except (Corrupt, Unsupported):
        return body
    return msgspec.structs.replace(
        body, codec=patch.RAW, data=content, stored_size=len(content), digest=digest(content)
    )


def damaged(body: Body) -> Body:
    """A record whose bytes match no digest: the engine sees the damage."""
    data = b"" if body.digest != digest(b"") else b"\0"
    return msgspec.structs.replace(body, data=data)


def is_sealed(raw: bytes) -> bool:
    try:
        open_header(raw)
    except HoldfastError:
        return False
    return True


def stand_in(exc: HoldfastError) -> bytes:
    """Header bytes for a document that cannot be read, which the engine refuses for the same reason."""
    if isinstance(exc, Unsupported):
        unsealed = b'{"v":999999999}'
    elif exc.code == SCHEMA_INVALID:
        unsealed = b'{"v":1}'
    else:
        return b""
    return unsealed[:-1] + b',"chain":"' + digest(unsealed).encode() + b'"}'
