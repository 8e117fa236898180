"""Between the records of the port and those of the documents."""

from __future__ import annotations

import re
from typing import Final

import msgspec

from stepkeep.codec import patch
from stepkeep.codec.document import BodyRecord
from stepkeep.codec.integrity import digest, open_header
from stepkeep.errors import INTEGRITY_MISMATCH, Corrupt, StepkeepError, Unsupported
from stepkeep.storage.files.index import Entry
from stepkeep.storage.port import Append, Body, Inconsistency

_CODE: Final = re.compile(r"[a-z]+(?:_[a-z]+)+")


def record_of(body: Body) -> BodyRecord:
    fields = msgspec.structs.asdict(body)
    del fields["checkpoint"]
    return BodyRecord(**fields)


def without_bytes(item: Append) -> Append:
    """What the sidecar keeps of an append: the records, whose bytes are in the document. Blobs it has already."""
    bodies = tuple(msgspec.structs.replace(body, data=b"") for body in item.bodies)
    return msgspec.structs.replace(item, bodies=bodies, blobs=())


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
    except StepkeepError:
        return False
    return True


def foreign_file(entry: Entry) -> Inconsistency:
    """What is told of a file that holds no checkpoint of ours: the index has its code before its text."""
    code, found, text = (entry.problem or "").partition(": ")
    if found and _CODE.fullmatch(code):
        return Inconsistency(entry.file, text, code)
    return Inconsistency(entry.file, entry.problem or "", INTEGRITY_MISMATCH)


def refusal(exc: Corrupt | Unsupported, session: str, checkpoint: str) -> StepkeepError:
    """Why the header of a checkpoint cannot be given, told with its place."""
    return type(exc)(exc.message, code=exc.code, session=session, checkpoint=checkpoint)
