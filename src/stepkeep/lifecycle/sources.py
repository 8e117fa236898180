"""Why a snapshot was taken, in the words of the snapshot lifecycle and in ours, both ways; pure."""

from __future__ import annotations

from typing import Final

from stepkeep.codec.readable import SOURCES
from stepkeep.errors import InvalidInput
from stepkeep.model import Trigger

_KINDS: Final = {str(source): kind for kind, source in SOURCES.items()}


def source_of(trigger: Trigger) -> str:
    """The snapshot's word for a trigger."""
    return SOURCES[trigger.kind]


def trigger_of(source: str, event: str | None = None) -> Trigger:
    """Our trigger for a snapshot's source.

    Raises:
        InvalidInput: there is no such source.
    """
    kind = _KINDS.get(source)
    if kind is None:
        raise InvalidInput(f"no source {source!r}: choose one of {', '.join(_KINDS)}", code="invalid_trigger")
    return Trigger(kind, event)
