"""What the methods of stores and sessions return beside the values of the packages below, and how it is shown: as JSON,
and as the document that an export writes.

The fields of these frozen structs, encoded as JSON, are what `--json` prints: a field is never renamed or removed, new
ones may come. Times are UTC in RFC 3339, sizes are bytes. A result that holds live values of a state has a method
`document()` that gives the struct JSON can hold; `to_json` calls it.
"""

from __future__ import annotations

from contextlib import nullcontext, suppress
from datetime import datetime
from typing import IO, TYPE_CHECKING, Any, Final

import msgspec

from stepkeep.api.checkpoint import Checkpoint
from stepkeep.api.options import zone_of
from stepkeep.codec.exact import JSON
from stepkeep.codec.readable import LAYOUTS, Layout
from stepkeep.engine import Engine
from stepkeep.engine.reader import verified
from stepkeep.errors import NotFound, Unsupported
from stepkeep.history import times
from stepkeep.history.documents import CheckpointInfo, copied, describe_one, encoded
from stepkeep.history.paths import find, format_path, parse_path
from stepkeep.model import DETAILS, STATE, Header, TriggerKind, from_us
from stepkeep.recording.coding_agents.transcripts import TRANSCRIPT, TranscriptView, pieces_of, view_of
from stepkeep.recording.triggers import merged_triggers, merged_words
from stepkeep.runs.plan import Stream, outputs_of
from stepkeep.storage.disk import new_file, write_file
from stepkeep.storage.port import Event, HeaderQuery
from stepkeep.text import indented

if TYPE_CHECKING:
    from pathlib import Path

    from stepkeep.api.session import Session

EXPORT_VERSION: Final = 1

OURS: Final = "stepkeep"
FORMATS: Final = (OURS, *LAYOUTS)
"""What `export` can write: our own document, or that of a layout."""


def to_json(value: Any) -> bytes:
    """A result as the JSON document that every surface shows."""
    document = getattr(value, "document", None)
    return msgspec.json.encode(value if document is None else document())


class Failure(msgspec.Struct, frozen=True, kw_only=True):
    """A checkpoint that did not load, and why."""

    checkpoint: str
    code: str


class FallbackInfo(msgspec.Struct, frozen=True, kw_only=True):
    """Set when newer checkpoints are damaged and an older one was loaded."""

    tried: int
    failures: tuple[Failure, ...]


class MergedTriggerInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A trigger that found nothing changed, and was noted on the checkpoint instead of making another."""

    kind: TriggerKind
    event: str | None
    time: datetime
    message: str


class Shown(msgspec.Struct, frozen=True, kw_only=True):
    """A checkpoint with its state, verified. With encoding `json` the state is the document itself; with
    `json+tags` an object with one `$` key stands for a value JSON lacks. `transcript` is that of a coding agent, if one
    was kept."""

    checkpoint: CheckpointInfo
    encoding: str
    state: msgspec.Raw
    details_encoding: str | None
    details: msgspec.Raw | None
    fallback: FallbackInfo | None
    merged_triggers: tuple[MergedTriggerInfo, ...]
    transcript: TranscriptView | None = None


class ValueShown(msgspec.Struct, frozen=True, kw_only=True):
    """One value of the state of a checkpoint, verified, written like a state."""

    checkpoint: CheckpointInfo
    path: str
    encoding: str
    value: msgspec.Raw
    fallback: FallbackInfo | None


class ShownAt(Shown, frozen=True, kw_only=True):
    """The newest checkpoint at or before a time. `asked` is that time, read in `zone` unless it named its own."""

    asked: datetime
    asked_text: str
    zone: str
    is_future: bool


class ValueAt(ValueShown, frozen=True, kw_only=True):
    """The same for one value of its state."""

    asked: datetime
    asked_text: str
    zone: str
    is_future: bool


class StepOutput(msgspec.Struct, frozen=True, kw_only=True):
    """What a step gave, byte for byte. `is_cut` says that it gave more than is stored."""

    checkpoint: CheckpointInfo
    step: str
    stream: Stream
    content: bytes
    is_cut: bool
    fallback: FallbackInfo | None

    def document(self) -> dict[str, Any]:
        """The same with the content as text, and how many bytes of it are stored."""
        fields = msgspec.structs.asdict(self)
        content = fields.pop("content")
        return fields | {"text": content.decode("utf-8", "replace"), "size_bytes": len(content)}


class Exported(msgspec.Struct, frozen=True, kw_only=True):
    """What was written where, and as which document. `output` None means that it was not written to a file."""

    checkpoint: str
    encoding: str
    output: str | None
    size_bytes: int
    fallback: FallbackInfo | None
    format: str


class Deleted(msgspec.Struct, frozen=True, kw_only=True):
    """What was removed: these checkpoints, or the whole session."""

    session: str
    is_whole_session: bool
    checkpoints: tuple[str, ...]
    count: int


# --- showing a checkpoint ----------------------------------------------------------------------------------------


def shown(engine: Engine, checkpoint: Checkpoint) -> Shown:
    """A loaded checkpoint as it is shown, with the triggers that were merged into it."""
    encoding, state = _document(checkpoint, STATE)
    has_details = DETAILS in checkpoint.header.contents
    details_encoding, details = _document(checkpoint, DETAILS) if has_details else (None, None)
    return Shown(
        checkpoint=describe_one(engine, checkpoint.header),
        encoding=encoding,
        state=state,
        details_encoding=details_encoding,
        details=details,
        fallback=fallback_info(checkpoint),
        merged_triggers=tuple(
            MergedTriggerInfo(
                kind=merged.trigger.kind,
                event=merged.trigger.event,
                time=from_us(merged.time_us),
                message=merged.message,
            )
            for merged in merged_triggers(engine, checkpoint.header)
        ),
        transcript=view_of(engine, checkpoint.header) if TRANSCRIPT in checkpoint.header.contents else None,
    )


def _document(checkpoint: Checkpoint, name: str) -> tuple[str, msgspec.Raw]:
    """A body of a checkpoint as a document, after its encoding."""
    encoding = checkpoint.header.contents[name].encoding
    if encoding != JSON:
        with suppress(
            Unsupported
        ):  # a time zone that this machine does not know: its name is in the document
            return encoded(checkpoint.state if name == STATE else checkpoint.details)
    return encoding, msgspec.Raw(checkpoint._loaded.json(name))


def events_about(engine: Engine, header: Header, events: list[Event]) -> list[Event]:
    """Those that name a checkpoint, and one for each trigger that was merged into it, oldest first."""
    found = [event for event in events if header.id.encode() in msgspec.json.encode(event.data)]
    for merged in merged_triggers(engine, header):
        words = {"kind": merged.trigger.kind, "event": merged.trigger.event, "message": merged.message}
        data = {name: word for name, word in words.items() if word}
        found.append(Event(number=0, time_us=merged.time_us, type="trigger_merged", data=data))
    return sorted(found, key=lambda event: event.time_us)


def value_shown(engine: Engine, checkpoint: Checkpoint, path: str) -> ValueShown:
    """One value of a loaded checkpoint as it is shown."""
    steps = parse_path(path)
    encoding, value = encoded(find(checkpoint.state, steps))
    return ValueShown(
        checkpoint=describe_one(engine, checkpoint.header),
        path=format_path(steps),
        encoding=encoding,
        value=value,
        fallback=fallback_info(checkpoint),
    )


def step_output(engine: Engine, checkpoint: Checkpoint, key: str, step: str, stream: Stream) -> StepOutput:
    """What a step had given when a checkpoint was saved."""
    given = outputs_of(checkpoint.state, checkpoint.details, stream, engine.load_blob)
    if step not in given:
        names = ", ".join(given) or "none"
        raise NotFound(
            f"{checkpoint.id} has no output of a step {step!r}; there is: {names}",
            code="step_not_found",
            session=key,
            checkpoint=checkpoint.id,
        )
    content, is_cut = given[step]()
    return StepOutput(
        checkpoint=describe_one(engine, checkpoint.header),
        step=step,
        stream=stream,
        content=content,
        is_cut=is_cut,
        fallback=fallback_info(checkpoint),
    )


def shown_at(session: Session, time: str, path: str | None) -> ShownAt | ValueAt:
    """The checkpoint of a session at a time, or one value of it, as it is shown."""
    engine, zone = session._engine, zone_of(session._settings)
    now_us = engine.clock()
    time_us = times.read(time, now_us=now_us, zone=zone)
    checkpoint = session.load(from_us(time_us))
    asked: dict[str, Any] = {
        "asked": from_us(time_us),
        "asked_text": times.written(time_us, zone, fraction=False),
        "zone": times.zone_name(zone),
        "is_future": time_us > now_us,
    }
    if path is not None:
        return copied(ValueAt, value_shown(engine, checkpoint, path), **asked)
    return copied(ShownAt, shown(engine, checkpoint), **asked)


def fallback_info(checkpoint: Checkpoint) -> FallbackInfo | None:
    """Which newer checkpoints were passed over to load this one."""
    if (fallback := checkpoint.fallback) is None:
        return None
    failures = tuple(Failure(checkpoint=id, code=code) for id, code in fallback.failures)
    return FallbackInfo(tried=fallback.tried, failures=failures)


# --- exporting a transcript --------------------------------------------------------------------------------------


class TranscriptExported(msgspec.Struct, frozen=True, kw_only=True):
    """A transcript that was written; `output` is None where it went to a stream."""

    checkpoint: str
    output: str | None
    size_bytes: int


def export_transcript(
    engine: Engine, header: Header, output: Path | IO[bytes], *, force: bool
) -> TranscriptExported:
    """Write the transcript of a checkpoint; see `Session.export_transcript`."""
    from pathlib import Path

    with new_file(output, force=force) if isinstance(output, Path) else nullcontext(output) as file:
        size = sum(file.write(piece) for piece in pieces_of(engine, header))
    place = str(output) if isinstance(output, Path) else None
    return TranscriptExported(checkpoint=header.id, output=place, size_bytes=size)


# --- exporting a checkpoint --------------------------------------------------------------------------------------


def export(
    session: Session, checkpoint: Checkpoint, *, output: Path | None, force: bool, form: str
) -> tuple[Exported, bytes]:
    """The readable document of a checkpoint, and its bytes; see `Session.export`.

    `form` is one of `FORMATS`. The document of a layout is the one that a store of files writes, whichever store the
    checkpoint is in, and names the triggers that were merged into it; its last line proves its bytes.
    """
    found = shown(session._engine, checkpoint)
    content = _own_document(found) if form == OURS else _layout_document(Layout(form), session, checkpoint)
    if output is not None:
        write_file(output, content, force=force)
    exported = Exported(
        checkpoint=checkpoint.id,
        encoding=found.encoding,
        output=None if output is None else str(output),
        size_bytes=len(content),
        fallback=found.fallback,
        format=form,
    )
    return exported, content


def _own_document(found: Shown) -> bytes:
    names = ("checkpoint", "encoding", "state", "details_encoding", "details")
    document = {"stepkeep_export": EXPORT_VERSION} | {name: getattr(found, name) for name in names}
    return indented(msgspec.json.encode(document)) + b"\n"


def _layout_document(layout: Layout, session: Session, checkpoint: Checkpoint) -> bytes:
    """Every body whole, whatever it is stored as. Blobs are not in a document, so it names none."""
    from stepkeep.codec import delta
    from stepkeep.codec.document import Document, encode
    from stepkeep.codec.integrity import digest

    engine, header = session._engine, checkpoint.header
    row = next(engine.backend.headers(HeaderQuery(session=header.session, ids=(header.id,), limit=1)), None)
    if row is None:
        raise NotFound(f"{header.id} was removed while it was exported", code="checkpoint_not_found")
    verified(row)
    bodies = tuple(
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
    )
    document = Document(raw=row.raw, header=header, session=session.info, bodies=bodies)
    return encode(layout, document, merged=merged_words(engine, header))
