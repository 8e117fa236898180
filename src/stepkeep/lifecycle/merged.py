"""Triggers that were merged into a snapshot: annotations of it, since records never change."""

from __future__ import annotations

import logging
from typing import Any, Final

import msgspec

from stepkeep.codec.integrity import digest
from stepkeep.codec.readable import Layout, fields_of
from stepkeep.engine import Engine, Loaded
from stepkeep.lifecycle.sources import source_of
from stepkeep.model import Header, Session, Trigger

log = logging.getLogger("stepkeep")

KIND: Final = "trigger"
DETAILS: Final = "details"


class MergedTrigger(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A trigger that found nothing changed: why it fired and when, with what its caller said."""

    trigger: Trigger
    time_us: int
    message: str = ""
    interruption: str | None = None

    @property
    def word(self) -> str:
        """How `source_details` names it."""
        return self.trigger.event or source_of(self.trigger)


def merge(engine: Engine, header: Header, merged: MergedTrigger, *, place: int, fence: int | None) -> None:
    """Note a trigger on a snapshot. `place` keeps those of one microsecond apart."""
    engine.backend.annotate(
        header.session,
        header.id,
        KIND,
        f"{merged.time_us}-{place}",
        msgspec.json.encode(merged),
        time_us=merged.time_us,
        fence=fence,
    )


def merged_triggers(engine: Engine, header: Header) -> list[MergedTrigger]:
    """What was merged into a snapshot, oldest first. Damaged ones are left out and logged."""
    found = []
    for annotation in engine.backend.annotations(header.session, [header.id], KIND):
        if digest(annotation.data) != annotation.digest:
            log.warning("a trigger merged into %s does not match its digest and is left out", header.id)
            continue
        try:
            found.append(msgspec.json.decode(annotation.data, type=MergedTrigger))
        except msgspec.MsgspecError as exc:
            log.warning("a trigger merged into %s makes no sense and is left out: %s", header.id, exc)
    return found


def merged_words(engine: Engine, header: Header) -> list[str]:
    """How `source_details` names what was merged into a snapshot."""
    return [merged.word for merged in merged_triggers(engine, header)]


def snapshot_fields(engine: Engine, session: Session, loaded: Loaded) -> dict[str, Any]:
    """The fields of the snapshot document for a checkpoint of any backend, as plain data, in their order.

    What was merged into it is named in `source_details`. State and integrity are not among them: they are the
    concern of whoever writes the document.
    """
    details = loaded.value(DETAILS) if DETAILS in loaded.contents else None
    merged = merged_words(engine, loaded.header)
    plain: dict[str, Any] = msgspec.to_builtins(
        fields_of(Layout.RUN, loaded.header, session, details=details, merged=merged)
    )
    return plain
