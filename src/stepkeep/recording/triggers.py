"""Triggers: why a checkpoint is taken, and whether a trigger becomes one of its own.

Two triggers that come shortly after each other and find nothing changed tell one thing: the second is noted on the
snapshot that the first one made, as an annotation, since records never change. A warning that the context is about to
be compacted is never held back, because what is not saved then is lost.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from enum import StrEnum
from typing import Any, Final, TypeAlias

import msgspec

from stepkeep import typed
from stepkeep.codec.integrity import digest
from stepkeep.engine import Engine, Loaded
from stepkeep.errors import InvalidInput
from stepkeep.logs import Log
from stepkeep.model import DETAILS, Header, SessionInfo, Status, Trigger, TriggerKind

log = Log("stepkeep")

STEP_BOUNDARY: Final = "step_boundary"
RECOVERABLE_ERROR: Final = "recoverable_error"
FORCED_STOP: Final = "forced_stop"
HEARTBEAT: Final = "heartbeat"
COMPACTION_WARNING: Final = "context_compaction_warning"

NEVER_HELD_BACK: Final = frozenset({COMPACTION_WARNING})

COALESCE_SECONDS: Final = 3.0
HEARTBEAT_SECONDS: Final = 120.0
SIGNIFICANT_SECONDS: Final = 300.0
"""After so long without a checkpoint, time itself is worth one (profile `debug`)."""


ANNOTATION: Final = "trigger"
"""The kind of the annotations that note merged triggers on a snapshot; `MERGED` of the readable documents."""


# --- deciding; pure --------------------------------------------------------------------------------------------


class Material(msgspec.Struct, frozen=True):
    """What has to differ for a trigger to be worth a snapshot of its own. `state` may be the digest of the state."""

    state: object
    status: Status
    step: tuple[object, ...] = ()
    tags: tuple[str, ...] = ()


def is_repeated(
    event: str | None,
    material: Material,
    was: Material,
    *,
    now_us: int,
    last_us: int,
    window_seconds: float = COALESCE_SECONDS,
) -> bool:
    """Whether a trigger tells nothing new, and is merged into the last snapshot: that of `was`, made at `last_us`.

    It comes within the window of that snapshot, state, status and step are the same, and it brings no tags, by which
    it is to be found. A clock that went back decides for saving.
    """
    if event in NEVER_HELD_BACK or _differs(material, was):
        return False
    return 0 <= now_us - last_us <= to_us(window_seconds)


def _differs(material: Material, last: Material) -> bool:
    is_same = (material.state, material.status, material.step) == (last.state, last.status, last.step)
    return not is_same or not set(material.tags) <= set(last.tags)


def heartbeat_due(
    *, now_us: int, last_us: int, status: Status, every_seconds: float = HEARTBEAT_SECONDS
) -> bool:
    """Whether work that is in progress has gone on for so long since its last snapshot."""
    return status is Status.IN_PROGRESS and now_us - last_us >= to_us(every_seconds)


def seconds_to_heartbeat(*, now_us: int, last_us: int, every_seconds: float = HEARTBEAT_SECONDS) -> float:
    """How long to wait before the next look: until a heartbeat may be due, or a whole period when it was already.

    Then it was not taken, because the work rests or saving fails, and the next look need not come sooner.
    """
    left = (last_us - now_us) / 1_000_000 + every_seconds
    return left if 0 < left <= every_seconds else every_seconds


def listed(what: str, given: Iterable[Any], *, code: str = "invalid_name") -> tuple[Any, ...]:
    """The members of a list. One text is refused, although its letters could be taken for members."""
    found: object = given
    if isinstance(found, str | bytes) or not isinstance(found, Iterable):
        raise InvalidInput(f"{what} takes a list, not {found!r}", code=code)
    return tuple(found)


def to_us(seconds: float) -> int:
    return round(seconds * 1_000_000)


# --- automatic checkpoints -------------------------------------------------------------------------------------

AUTO_TAG: Final = "auto"


class AutoTrigger(StrEnum):
    """Why an automatic checkpoint is made."""

    HYPOTHESIS_STATUS_CHANGE = "hypothesis_status_change"
    NEW_CONTRADICTION_DETECTED = "new_contradiction_detected"
    VERIFICATION_COMPLETE = "verification_complete"
    BRANCH_SWITCH = "branch_switch"
    GAP_FILLED = "gap_filled"
    CODE_MODIFIED = "code_modified"
    SIGNIFICANT_TIME_PASSED = "significant_time_passed"
    CONTEXT_COMPACTION_WARNING = COMPACTION_WARNING

    @property
    def word(self) -> str:
        """The name as messages and tags have it: `HypothesisStatusChange`."""
        return "".join(part.capitalize() for part in self.value.split("_"))

    @property
    def message(self) -> str:
        return f"Auto: {self.word}"

    @property
    def tags(self) -> tuple[str, str]:
        return AUTO_TAG, self.word

    @property
    def trigger(self) -> Trigger:
        return Trigger(TriggerKind.AUTO, self.value)


_BY_NAME: Final = {name: each for each in AutoTrigger for name in (each.value, each.word)}


def auto_trigger(name: AutoTrigger | str) -> AutoTrigger:
    """The trigger of that name, in either spelling.

    Raises:
        InvalidInput: there is none (`invalid_trigger`).
    """
    found = _BY_NAME.get(name)
    if found is None:
        raise InvalidInput(
            f"no automatic trigger {name!r}: choose one of {', '.join(AutoTrigger)}", code="invalid_trigger"
        )
    return found


# --- the path from a trigger to a checkpoint -------------------------------------------------------------------


class Recorded(msgspec.Struct, frozen=True, kw_only=True):
    """The snapshot a trigger made, or was merged into."""

    header: Header
    is_merged: bool = False


class TriggerPath:
    """Whether a trigger of one session becomes a checkpoint, or a note on the newest one. Its owner locks.

    Recorders, connected parts and hook events all take this path.
    """

    def __init__(
        self,
        engine: Engine,
        session: str,
        *,
        coalesce_seconds: float = COALESCE_SECONDS,
        fence: int | None = None,
    ) -> None:
        self._engine = engine
        self._session = session
        self._coalesce_seconds = coalesce_seconds
        self._fence = fence
        self._noted = 0

    def is_repeated(
        self, event: str | None, material: Material, *, newest: Header, was: Material, now_us: int
    ) -> bool:
        """Whether a trigger comes right after the newest checkpoint, changes nothing, and may be merged into it."""
        window = self._coalesce_seconds
        return is_repeated(
            event, material, was, now_us=now_us, last_us=newest.time_us, window_seconds=window
        ) and self._is_head(newest)

    def _is_head(self, header: Header) -> bool:
        """Whether the session stands at this checkpoint: nobody saved after it, removed it or went elsewhere."""
        session = self._engine.backend.session(self._session)
        branch = self._engine.backend.branch(self._session, session.branch)
        return branch is not None and branch.head == header.id

    def note(
        self,
        header: Header,
        trigger: Trigger,
        *,
        time_us: int,
        message: str = "",
        interruption: str | None = None,
    ) -> Recorded:
        """Merge a trigger into a checkpoint: an annotation of it says that it fired. The number keeps those of one
        microsecond apart."""
        self._noted += 1
        merged = MergedTrigger(trigger=trigger, time_us=time_us, message=message, interruption=interruption)
        self._engine.annotate(
            header.session,
            header.id,
            ANNOTATION,
            f"{time_us}-{self._noted}",
            msgspec.json.encode(merged),
            time_us=time_us,
            fence=self._fence,
        )
        return Recorded(header=header, is_merged=True)


# --- what was merged into a checkpoint -------------------------------------------------------------------------


class MergedTrigger(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A trigger that found nothing changed: why it fired and when, with what its caller said."""

    trigger: Trigger
    time_us: int
    message: str = ""
    interruption: str | None = None

    @property
    def word(self) -> str:
        """How `source_details` names it."""
        from stepkeep.codec.readable import source_word  # a hook starts without the documents' types

        return source_word(self.trigger)


def merged_triggers(engine: Engine, header: Header) -> list[MergedTrigger]:
    """What was merged into a snapshot, oldest first. Damaged ones are left out and logged."""
    found = []
    for annotation in engine.backend.annotations(header.session, [header.id], ANNOTATION):
        if digest(annotation.data) != annotation.digest:
            log.warning("a trigger merged into %s does not match its digest and is left out", header.id)
            continue
        try:
            found.append(typed.from_json(annotation.data, MergedTrigger))
        except msgspec.MsgspecError as exc:
            log.warning("a trigger merged into %s makes no sense and is left out: %s", header.id, exc)
    return found


def merged_words(engine: Engine, header: Header) -> list[str]:
    """How `source_details` names what was merged into a snapshot."""
    return [merged.word for merged in merged_triggers(engine, header)]


def snapshot_fields(engine: Engine, session: SessionInfo, loaded: Loaded) -> dict[str, Any]:
    """The fields of the snapshot document for a checkpoint of any backend, as plain data, in their order.

    What was merged into it is named in `source_details`. State and integrity are not among them: they are the
    concern of whoever writes the document.
    """
    from stepkeep.codec.readable import Layout, fields_of

    details = loaded.value(DETAILS) if DETAILS in loaded.contents else None
    merged = merged_words(engine, loaded.header)
    plain: dict[str, Any] = msgspec.to_builtins(
        fields_of(Layout.RUN, loaded.header, session, details=details, merged=merged)
    )
    return plain


Wait: TypeAlias = Callable[[float], bool]
"""Wait so many seconds; True when the heartbeat is to stop. Tests give one that moves their clock instead."""
