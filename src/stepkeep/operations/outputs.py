"""All that is kept of what a step gave, where the state itself has only the two ends of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, Literal, TypeAlias

import msgspec

from stepkeep.api import Checkpoint, Store
from stepkeep.codec import exact
from stepkeep.errors import NotFound
from stepkeep.executor.script_record import SCRIPT
from stepkeep.operations.views import CheckpointView, FallbackView, checkpoint_views, fallback_view

Stream: TypeAlias = Literal["stdout", "stderr"]
LoadBlob: TypeAlias = Callable[[str], bytes]


class OutputShown(msgspec.Struct, frozen=True, kw_only=True):
    """What a step gave, as text, and how many bytes of it are stored. `is_cut` says that the step gave more."""

    checkpoint: CheckpointView
    step: str
    stream: Stream
    text: str
    size_bytes: int
    is_cut: bool
    fallback: FallbackView | None


def show_output(
    store: Store, key: str, ref: str, step: str, *, stream: Stream = "stdout"
) -> tuple[OutputShown, bytes]:
    """What a step had given when a checkpoint was saved, and the same byte for byte.

    Of a workflow that is what the step printed; of a plan its blobs, or else its output; of a script its output.

    Raises:
        NotFound: no such step was done by then (`step_not_found`); the message names those that were.
    """
    session = store.get(key)
    checkpoint = session.load(ref)
    given = _steps(checkpoint, stream, store.engine.load_blob)
    if step not in given:
        names = ", ".join(given) or "none"
        raise NotFound(
            f"{checkpoint.id} has no output of a step {step!r}; there is: {names}",
            code="step_not_found",
            session=key,
            checkpoint=checkpoint.id,
        )
    content, is_cut = given[step]()
    (view,) = checkpoint_views(session.key, session, [checkpoint.header])
    shown = OutputShown(
        checkpoint=view,
        step=step,
        stream=stream,
        text=content.decode("utf-8", "replace"),
        size_bytes=len(content),
        is_cut=is_cut,
        fallback=fallback_view(checkpoint),
    )
    return shown, content


_Given: TypeAlias = dict[str, Callable[[], tuple[bytes, bool]]]
"""By step, how to get its output, and whether that was cut."""


def _steps(checkpoint: Checkpoint, stream: Stream, load_blob: LoadBlob) -> _Given:
    state = checkpoint.state
    if not isinstance(state, Mapping):
        return {}
    if isinstance(checkpoint.details, Mapping) and SCRIPT in checkpoint.details:
        return {name: partial(_value, output) for name, output in state.items()}
    if "completed_steps" in state:
        ended = [*_dicts(state["completed_steps"]), *_dicts(state.get("failed_steps"))]
        return {
            str(entry.get("id")): partial(_printed, entry.get("output"), stream, load_blob) for entry in ended
        }
    return {
        str(result.get("stepId")): partial(_returned, result, load_blob)
        for result in _dicts(state.get("results"))
    }


def _dicts(values: object) -> Iterable[Mapping[str, Any]]:
    return [value for value in values if isinstance(value, Mapping)] if isinstance(values, list) else []


def _printed(output: object, stream: Stream, load_blob: LoadBlob) -> tuple[bytes, bool]:
    """A stream of a workflow's step: its blob, or the text in the state. A failed step has no blob."""
    fields = output if isinstance(output, Mapping) else {}
    digest = fields.get(f"{stream}_blob")
    if digest is not None:
        return load_blob(digest), bool(fields.get(f"{stream}_is_cut"))
    return _written(fields.get(stream, "")), f"{stream}_bytes" in fields


def _returned(result: Mapping[str, Any], load_blob: LoadBlob) -> tuple[bytes, bool]:
    blobs = result.get("blobs") or []
    if blobs:
        return b"".join(load_blob(digest) for digest in blobs), False
    return _value(result.get("output"))


def _value(value: object) -> tuple[bytes, bool]:
    return _written(value), False


def _written(value: object) -> bytes:
    """Text and bytes as they are, anything else as JSON."""
    if isinstance(value, bytes):
        return value
    if isinstance(value, str):
        return value.encode("utf-8", "surrogateescape")
    _, content = exact.encode(value)
    return msgspec.json.format(content, indent=2)
