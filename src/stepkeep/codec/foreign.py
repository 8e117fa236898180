"""Checkpoint documents of other systems: what they say, and how much of it could be checked; pure.

They follow the same specifications and do not have our header. Nothing of theirs is taken for ours: what a reader
gets is a description, from which a new checkpoint can be made.

A specification that says "a checksum" leaves open what it covers. The usual answers are tried: the text before the
last line, the document without its integrity member, with an empty checksum in it, the payload, each in the usual
ways of writing JSON. A SHA-256 that one of them has is confirmed: it cannot be met by chance.
"""

from __future__ import annotations

import json
import re
from base64 import b64decode
from binascii import Error as Base64Error
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from datetime import datetime
from hashlib import sha256
from typing import Any, Final, TypeVar

import msgspec

from stepkeep import typed
from stepkeep.codec import exact
from stepkeep.codec.compression import decompress
from stepkeep.codec.document import unzip
from stepkeep.codec.readable import (
    SOURCES,
    STEP_WORDS,
    CommandOutcome,
    ContextDigest,
    CriterionFields,
    Layout,
    Source,
    StepState,
    step_status,
)
from stepkeep.errors import SCHEMA_INVALID, Corrupt, StepkeepError
from stepkeep.model import PHASES, Status, Trigger, TriggerKind, to_us
from stepkeep.text import occurs_twice, repeated_key

MAX_BYTES: Final = exact.MAX_BYTES
"""No document and no payload of others is taken in that is larger."""

T = TypeVar("T")

_ZSTD: Final = b"\x28\xb5\x2f\xfd"
_NAMED_TIME: Final = re.compile(r"checkpoint-(\d{8}-\d{6})")
_STATUSES: Final = {
    **{str(status): status for status in Status},
    "running": Status.IN_PROGRESS,
    "inprogress": Status.IN_PROGRESS,
    "active": Status.IN_PROGRESS,
    "interrupted": Status.PAUSED,
    "suspended": Status.PAUSED,
    "done": Status.COMPLETED,
    "success": Status.COMPLETED,
    "error": Status.FAILED,
    "canceled": Status.CANCELLED,
    "aborted": Status.CANCELLED,
}
_STEPS: Final = ("step", "current_step", "current_step_index", "step_index", "currentStepIndex")
_TIMES: Final = ("created_at", "timestamp", "updated_at", "createdAt")
_SESSIONS: Final = ("session_id", "sessionId", "run_id", "workflow_id")
_RUN_PARTS: Final[dict[str, Any]] = {
    "step_state": StepState,
    "context_digest": ContextDigest,
    "command_outcomes": list[CommandOutcome],
}


class Foreign(msgspec.Struct, frozen=True, kw_only=True):
    """A checkpoint of another system.

    `external_id` is its id there, or the digest of its file where it has none. `time_us` is None when nothing tells
    when it was made. `verified` and `unverified` say what was checked, and what could not be.
    """

    external_id: str
    session: str | None
    time_us: int | None
    status: Status
    state: Any
    step: int | None = None
    trigger: Trigger = Trigger()
    message: str = ""
    details: dict[str, Any] | None = None
    metadata: dict[str, Any] = {}
    verified: tuple[str, ...] = ()
    unverified: tuple[str, ...] = ()


def parse(data: bytes) -> dict[str, Any]:
    """The JSON object in a file.

    Raises:
        Corrupt: (`checkpoint_schema_invalid`) the file is empty, cut off, or something else.
    """
    if not data.strip():
        raise _invalid("the file is empty")
    try:
        found = exact.decode(exact.JSON, data)
    except StepkeepError as exc:
        raise _invalid(f"the file is not JSON, or was cut off: {exc.message}") from exc
    _check_keys(data)
    if not isinstance(found, dict):
        raise _invalid("the file is JSON, but not an object")
    return found


def is_ours(document: Mapping[str, Any]) -> bool:
    """Whether a document has a header of ours: then it belongs to a store of files, and is not imported."""
    record = document.get("stepkeep")
    return isinstance(record, Mapping) and "header" in record


def read(layout: Layout, document: Mapping[str, Any], data: bytes, *, name: str, file_digest: str) -> Foreign:
    """What a document of that specification says. `data` are the bytes it was parsed from.

    Raises:
        Corrupt: it does not have the fields of its specification (`checkpoint_schema_invalid`), or a size or
            compressed payload in it is wrong (`checkpoint_integrity_mismatch`).
    """
    payload = None
    if layout is Layout.WORKFLOW:
        found, payload = _workflow(document, name, f"sha256:{file_digest[:32]}")
    else:
        found = (_run if layout is Layout.RUN else _phase)(document)
    verified, unverified = list(found.verified), list(found.unverified)
    checksum = claimed(document)
    if checksum is not None and is_confirmed(checksum, document, data, payload):
        verified.append("checksum")
    elif any(document.get(name) for name in _MEMBERS):  # a checksum of whichever kind
        unverified.append("checksum")
    return msgspec.structs.replace(found, verified=tuple(verified), unverified=tuple(unverified))


def _check_keys(document: bytes) -> None:
    if (key := repeated_key(document)) is not None:
        raise _invalid(occurs_twice(key))


def _invalid(message: str) -> Corrupt:
    return Corrupt(message, code=SCHEMA_INVALID)


# --- checksums -------------------------------------------------------------------------------------------------

_DIGEST: Final = re.compile(r"(?:sha-?256[:=])?([0-9a-f]{64})", re.IGNORECASE)
_MEMBERS: Final = ("integrity", "integrity_hash", "checksum")
_INSIDE: Final = ("checksum", "sha256", "hash", "integrity_hash")
_COMPACT: Final = (",", ":")
_STYLES: Final[tuple[dict[str, Any], ...]] = tuple(
    {"sort_keys": is_sorted, "ensure_ascii": is_ascii, **shape}
    for is_sorted in (True, False)
    for is_ascii in (True, False)
    for shape in ({"separators": _COMPACT}, {}, {"indent": 2})
)


def claimed(document: Mapping[str, Any]) -> str | None:
    """The SHA-256 that a document says it has, in small letters; None when it names none that we know."""
    for name in _MEMBERS:
        given = document.get(name)
        words = [given] if isinstance(given, str) else []
        if isinstance(given, Mapping):
            words = [given[inside] for inside in _INSIDE if isinstance(given.get(inside), str)]
        for word in words:
            if (found := _DIGEST.fullmatch(word.strip())) is not None:
                return found[1].lower()
    return None


def is_confirmed(checksum: str, document: Mapping[str, Any], data: bytes, payload: bytes | None) -> bool:
    """Whether some part of the document that a checksum may cover has it."""
    try:
        return any(sha256(covered).hexdigest() == checksum for covered in _covered(document, data, payload))
    except RecursionError:  # nested too deep to be written again: no part of it can be found
        return False


def _covered(document: Mapping[str, Any], data: bytes, payload: bytes | None) -> Iterator[bytes]:
    yield data[: data.rfind(b"\n", 0, max(0, len(data) - 1)) + 1]
    values: list[Any] = [{name: value for name, value in document.items() if name not in _MEMBERS}]
    values += [_emptied(document, remove=remove) for remove in (False, True)]
    if payload is None:
        values += [document["data"]] if "data" in document else []
    else:
        yield payload
        with suppress(ValueError):
            values.append(json.loads(payload))
    for value in values:
        for style in _STYLES:
            text = json.dumps(value, **style).encode("utf-8", "surrogatepass")
            yield text
            yield text + b"\n"


def _emptied(document: Mapping[str, Any], *, remove: bool) -> dict[str, Any]:
    """The document as it was before its checksum was put in: an empty text, or nothing in its place."""
    found = dict(document)
    for name in found.keys() & set(_MEMBERS):
        if isinstance(inside := found[name], Mapping):
            kept = {key: each for key, each in inside.items() if not (remove and key in _INSIDE)}
            found[name] = {key: "" if key in _INSIDE else each for key, each in kept.items()}
        elif remove:
            del found[name]
        else:
            found[name] = ""
    return found


# --- run -------------------------------------------------------------------------------------------------------


class _Run(msgspec.Struct, frozen=True):
    snapshot_id: str
    created_at: str
    run_id: str
    source: Source
    status: Status
    source_details: list[Any] = []


_KINDS: Final = {source: kind for kind, source in SOURCES.items()}


def _run(document: Mapping[str, Any]) -> Foreign:
    fields = _fields(document, _Run)
    details, unverified = _run_details(document)
    known = {*_Run.__struct_fields__, "state", "integrity", *details}
    other = {key: value for key, value in document.items() if key not in known}
    if "state" in document and other:
        details["other"] = other
    events = [each for each in fields.source_details if isinstance(each, str) and each]
    ordinal = details.get("step_state", {}).get("step_ordinal")
    return Foreign(
        external_id=fields.snapshot_id,
        session=fields.run_id,
        time_us=_required_time(fields.created_at),
        status=fields.status,
        state=document["state"] if "state" in document else dict(document),
        step=_count(ordinal),
        trigger=Trigger(_KINDS[fields.source], events[0] if events else None),
        details=details or None,
        metadata={"source_details": events} if len(events) > 1 else {},
        verified=("schema",),
        unverified=tuple(unverified),
    )


def _run_details(document: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """The parts of a snapshot that have the shape of its specification, in our words; and those that have not."""
    details: dict[str, Any] = {}
    unverified: list[str] = []
    for name, shape in _RUN_PARTS.items():
        if name not in document:
            continue
        try:
            details[name] = msgspec.to_builtins(typed.convert(document[name], shape))
        except (msgspec.ValidationError, TypeError):
            unverified.append(name)
    word = details.get("step_state", {}).get("step_status")
    if word in STEP_WORDS.values():
        details["step_state"]["step_status"] = step_status(word)
    return details, unverified


# --- workflow --------------------------------------------------------------------------------------------------


def _workflow(document: Mapping[str, Any], name: str, digest_id: str) -> tuple[Foreign, bytes | None]:
    """The envelope, or the state of a workflow as it is."""
    state: Any
    if "data" not in document:
        if not any(member in document for member in (*_SESSIONS, *_STEPS)):
            raise _invalid("neither an envelope with `data` nor the state of a workflow")
        state, payload, verified, unverified = dict(document), None, [], ["envelope"]
    else:
        state, payload = _payload(document)
        verified, unverified = ["schema"], []
        if "original_size" in document and payload is not None:
            if document["original_size"] != len(payload):
                raise Corrupt(f"the payload has {len(payload)} bytes, not {document['original_size']}")
            verified.append("size")
    inner = state if isinstance(state, Mapping) else {}
    given = [document, inner]
    status = _first(given, ("status",), _status)
    found = Foreign(
        external_id=_first(given, ("checkpoint_id",), _text) or digest_id,
        session=_first(given, _SESSIONS, _text),
        time_us=_first(given, _TIMES, _time) or _time_in(name),
        status=status or Status.IN_PROGRESS,
        state=state,
        step=_first(given, _STEPS, _count),
        verified=tuple(verified),
        unverified=(*unverified, *(() if status else ("status",))),
    )
    return found, payload


def _payload(document: Mapping[str, Any]) -> tuple[Any, bytes | None]:
    """The state in an envelope, and its bytes where they are known: text, base64, or a list of bytes."""
    given, is_compressed = document["data"], document.get("compressed") is True
    if isinstance(given, str):
        raw = _bytes_of(given, is_compressed)
    elif (
        isinstance(given, list)
        and given
        and all(isinstance(each, int) and 0 <= each <= 255 for each in given)
    ):
        raw = bytes(given)
    elif is_compressed:
        raise _invalid("`data` is said to be compressed, but is neither text nor a list of bytes")
    else:
        return given, None
    if is_compressed:
        is_zstd = raw.startswith(_ZSTD)
        raw = decompress(raw, limit=MAX_BYTES) if is_zstd else unzip(raw, limit=MAX_BYTES, takes_zlib=True)
    try:
        found = exact.decode(exact.JSON, raw)
    except StepkeepError as exc:
        if isinstance(given, str) and not is_compressed:
            return given, given.encode("utf-8", "surrogatepass")
        raise _invalid(f"the payload is not JSON: {exc.message}") from exc
    _check_keys(raw)
    return found, raw


def _bytes_of(text: str, is_compressed: bool) -> bytes:
    try:
        raw = b64decode(text, validate=True)
    except (Base64Error, ValueError) as exc:
        if is_compressed:
            raise Corrupt("the compressed payload is not base64") from exc
        return text.encode("utf-8", "surrogatepass")
    return raw if is_compressed or raw[:1] in (b"{", b"[") else text.encode()


# --- phase -----------------------------------------------------------------------------------------------------


class _Phase(msgspec.Struct, frozen=True):
    id: str
    sessionId: str
    phase: str
    createdAt: str
    completed: bool
    taskSummary: str = ""
    phaseNumber: int | None = None
    iscCriteria: list[CriterionFields] = []
    metadata: dict[str, Any] = {}


def _phase(document: Mapping[str, Any]) -> Foreign:
    fields = _fields(document, _Phase)
    number = fields.phaseNumber
    if number is None and fields.phase.lower() in PHASES:
        number = PHASES.index(fields.phase.lower()) + 1
    if number is not None and not 1 <= number <= len(PHASES):
        raise _invalid(f"a phase number is from 1 to {len(PHASES)}, not {number}")
    ours = {
        "phase": fields.phase,
        **({} if number is None else {"phase_number": number}),
        "task_summary": fields.taskSummary,
        "criteria": document.get("iscCriteria", []),
    }
    return Foreign(
        external_id=fields.id,
        session=fields.sessionId,
        time_us=_required_time(fields.createdAt),
        status=Status.COMPLETED if fields.completed else Status.IN_PROGRESS,
        state=document.get("state", fields.metadata),
        trigger=Trigger(TriggerKind.AUTO, "phase_transition"),
        message=fields.taskSummary,
        metadata={key: value for key, value in fields.metadata.items() if key not in ours} | ours,
        verified=("schema",),
    )


# --- fields ----------------------------------------------------------------------------------------------------


def _fields(document: Mapping[str, Any], shape: type[T]) -> T:
    try:
        return typed.convert(dict(document), shape)
    except (msgspec.ValidationError, TypeError) as exc:
        raise _invalid(f"not a document of this layout: {exc}") from exc


def _first(
    given: list[Mapping[str, Any]], names: tuple[str, ...], read: Callable[[Any], T | None]
) -> T | None:
    """The first of some members, in the envelope or in the state, that makes sense."""
    for each in given:
        for name in names:
            if name in each and (value := read(each[name])) is not None:
                return value
    return None


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) and value else None


def _count(value: Any) -> int | None:
    is_count = isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 53
    return value if is_count else None


def _status(value: Any) -> Status | None:
    if not isinstance(value, str):
        return None
    return _STATUSES.get(value.lower()) or _STATUSES.get(re.sub(r"(?<=[a-z])(?=[A-Z])", "_", value).lower())


def _required_time(text: str) -> int:
    if (time_us := _time(text)) is None:
        raise _invalid(f"{text!r} is not a time in RFC 3339")
    return time_us


def _time(value: Any) -> int | None:
    try:
        return to_us(datetime.fromisoformat(value))
    except (TypeError, ValueError, OverflowError):
        return None


def _time_in(name: str) -> int | None:
    found = _NAMED_TIME.search(name)
    try:
        return None if found is None else to_us(datetime.strptime(f"{found[1]}+0000", "%Y%m%d-%H%M%S%z"))
    except ValueError:
        return None
