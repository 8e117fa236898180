"""All that is kept of what a step gave, where the state itself has only the two ends of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, Literal, TypeAlias

import msgspec

from stepkeep.codec import exact
from stepkeep.runs.ledger import SCRIPT

Stream: TypeAlias = Literal["stdout", "stderr"]
LoadBlob: TypeAlias = Callable[[str], bytes]

StepOutputs: TypeAlias = dict[str, Callable[[], tuple[bytes, bool]]]
"""By step, how to get its output, and whether that was cut."""


def outputs_of(state: object, details: object, stream: Stream, load_blob: LoadBlob) -> StepOutputs:
    """What the steps had given when a state was saved.

    Of a workflow that is what a step printed; of a plan its blobs, or else its output; of a script its output.
    """
    if not isinstance(state, Mapping):
        return {}
    if isinstance(details, Mapping) and SCRIPT in details:
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
