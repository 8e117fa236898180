"""Checkpoints of the connected parts: by hand, by themselves, and back.

One at a time: a warning that comes while another thread saves waits and is saved right after it. One that comes out
of a part that is being captured, or from a signal in the middle of a save, cannot wait for itself: it is taken as soon
as that save is over.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Final, TypeAlias

import msgspec

from stepkeep.codec.integrity import digest
from stepkeep.engine import Engine, NewBody, Save
from stepkeep.errors import Conflict, InvalidInput
from stepkeep.model import STATE, Header, Status, Trigger, TriggerKind
from stepkeep.parts.automatic import AutoTrigger, auto_trigger
from stepkeep.parts.connected import ConnectedParts, Extra, Missing, PutBack
from stepkeep.parts.port import Part
from stepkeep.policy import triggers
from stepkeep.policy.triggers import Decision, Last, Material
from stepkeep.storage.port import ANY_HEAD, HeaderQuery

DETAILS: Final = "details"
MANUAL: Final = Trigger(TriggerKind.MANUAL)

Merge: TypeAlias = Callable[[Header, Trigger, int, str], None]
"""Notes a trigger that found nothing changed on the checkpoint that has it all: header, trigger, time, message."""


class _Wanted(msgspec.Struct, frozen=True, kw_only=True):
    """An automatic checkpoint that is asked for."""

    trigger: AutoTrigger
    tags: tuple[str, ...] = ()
    details: Callable[[], object] | None = None


class Parts:
    """The parts connected to one session, and the checkpoints of them. Safe for threads."""

    def __init__(
        self,
        engine: Engine,
        session: str,
        *,
        save: Callable[[Save], Header] | None = None,
        merge: Merge | None = None,
        significant_seconds: float = triggers.SIGNIFICANT_SECONDS,
        coalesce_seconds: float = triggers.COALESCE_SECONDS,
    ) -> None:
        self._engine = engine
        self._session = session
        self._store = engine.save if save is None else save
        self._merge = merge
        self._significant_seconds = significant_seconds
        self._coalesce_seconds = coalesce_seconds
        self._connected = ConnectedParts(engine, session)
        self._lock = threading.Lock()
        self._pid = os.getpid()
        self._owner: int | None = None
        self._deferred: list[_Wanted] = []
        self._catching_up: int | None = None

    # --- connecting

    @property
    def names(self) -> tuple[str, ...]:
        return self._connected.names

    def connect(self, name: str, part: Part) -> None:
        """See `ConnectedParts.connect`."""
        with self._exclusive():
            self._connected.connect(name, part)

    def disconnect(self, name: str) -> None:
        """See `ConnectedParts.disconnect`."""
        with self._exclusive():
            self._connected.disconnect(name)

    def capture(self) -> dict[str, Any]:
        """What all parts hold at this moment, by name."""
        with self._exclusive():
            return self._connected.capture()

    # --- saving

    def checkpoint(
        self,
        message: str = "",
        tags: Iterable[str] = (),
        *,
        trigger: Trigger = MANUAL,
        details: Callable[[], object] | None = None,
        expect_head: str | None = ANY_HEAD,
    ) -> Header:
        """Save what all parts hold; on return it is durable.

        Raises:
            PartFailed: a part could not say what it holds (`part_snapshot_failed`). Nothing was saved.
            InvalidInput: what a part gave cannot be saved; the path begins with its name.
            Conflict: `expect_head` is not the head any more, or this is called out of a part that is being captured
                (`checkpoint_nested`).
        """
        try:
            with self._exclusive():
                body = self._connected.encoded()
                return self._save(body, trigger, message, checked_tags(tags), details, expect_head)
        finally:
            self._catch_up()

    def auto_checkpoint(
        self,
        trigger: AutoTrigger | str,
        *,
        tags: Iterable[str] = (),
        details: Callable[[], object] | None = None,
        expect_head: str | None = ANY_HEAD,
    ) -> Header | None:
        """Save what all parts hold because something happened; None when that is held back.

        Time alone is worth a checkpoint only so long after the last one. A trigger that follows its like within
        moments and finds nothing changed is noted on that checkpoint, which is returned. A warning of compaction is
        always saved. None also comes for a call out of a save of the same thread: it follows that save.
        """
        wanted = _Wanted(trigger=auto_trigger(trigger), tags=checked_tags(tags), details=details)
        if self._is_own:
            if not self._is_catching_up:
                self._deferred.append(wanted)
            return None
        try:
            with self._exclusive():
                return self._automatic(wanted, expect_head)
        finally:
            self._catch_up()

    def _automatic(self, wanted: _Wanted, expect_head: str | None) -> Header | None:
        now_us, event = self._engine.clock(), wanted.trigger.value
        newest = next(self._engine.headers(HeaderQuery(session=self._session, limit=1)), None)
        if wanted.trigger is AutoTrigger.SIGNIFICANT_TIME_PASSED and triggers.is_throttled(
            event, now_us=now_us, last_us=self._last_us(newest), min_seconds=self._significant_seconds
        ):
            return None
        body, tags = self._connected.encoded(), (*wanted.trigger.tags, *wanted.tags)
        material = Material(digest(body.content), Status.IN_PROGRESS, (), tags)
        decision = triggers.decide(
            event,
            now_us=now_us,
            last=self._last(newest),
            material=material,
            window_seconds=self._coalesce_seconds,
        )
        if decision is Decision.COALESCE and newest is not None and self._merge is not None:
            self._merge(newest, wanted.trigger.trigger, now_us, wanted.trigger.message)
            return newest
        return self._save(
            body, wanted.trigger.trigger, wanted.trigger.message, tags, wanted.details, expect_head
        )

    def _last_us(self, newest: Header | None) -> int:
        return self._engine.backend.session(self._session).created_us if newest is None else newest.time_us

    def _last(self, newest: Header | None) -> Last | None:
        """What the newest checkpoint is of, if it is where the next one would follow."""
        if newest is None or newest.branch != self._engine.backend.session(self._session).branch:
            return None
        state = newest.contents.get(STATE)
        if state is None:
            return None
        return Last(newest.time_us, Material(state.digest, newest.status, (), newest.tags))

    def _save(
        self,
        body: NewBody,
        trigger: Trigger,
        message: str,
        tags: tuple[str, ...],
        details: Callable[[], object] | None,
        expect_head: str | None,
    ) -> Header:
        bodies = {STATE: body}
        if details is not None:
            bodies[DETAILS] = self._engine.encode(details())
        return self._store(
            Save(
                session=self._session,
                bodies=bodies,
                expect_head=expect_head,
                trigger=trigger,
                message=message,
                tags=tuple(dict.fromkeys(tags)),
            )
        )

    # --- going back

    @contextmanager
    def put_back(
        self,
        state: object,
        *,
        missing: Missing = "error",
        extra: Extra = "ignore",
        checkpoint: str | None = None,
    ) -> Iterator[PutBack]:
        """Give every part its data out of a captured state, all or none; see `ConnectedParts.put_back`."""
        try:
            with (
                self._exclusive(),
                self._connected.put_back(
                    state, missing=missing, extra=extra, checkpoint=checkpoint
                ) as report,
            ):
                yield report
        finally:
            self._catch_up()

    # --- one at a time

    @property
    def _is_own(self) -> bool:
        """Whether this very thread is in the middle of it."""
        return self._owner == threading.get_ident()

    @property
    def _is_catching_up(self) -> bool:
        return self._catching_up == threading.get_ident()

    @contextmanager
    def _exclusive(self) -> Iterator[None]:
        if self._is_own:
            raise Conflict(
                "the parts of this session are being saved or restored by this very thread: do that first",
                code="checkpoint_nested",
                retryable=False,
                session=self._session,
            )
        if os.getpid() != self._pid:
            # Another thread of the parent may have held the old lock when the process forked.
            self._lock, self._pid = threading.Lock(), os.getpid()
        with self._lock:
            self._owner = threading.get_ident()
            try:
                yield
            finally:
                self._owner = None

    def _catch_up(self) -> None:
        """Take the checkpoints that were asked for in the middle of another one.

        What asks again meanwhile, such as a part that warns whenever it is captured, is covered by these.
        """
        if self._is_own or self._is_catching_up or not self._deferred:
            return
        self._catching_up = threading.get_ident()
        try:
            while self._deferred:
                wanted = self._deferred.pop(0)
                self.auto_checkpoint(wanted.trigger, tags=wanted.tags, details=wanted.details)
        finally:
            self._catching_up = None


def checked_tags(tags: Iterable[str]) -> tuple[str, ...]:
    if isinstance(tags, str):
        raise InvalidInput(f"tags takes a list of texts, not {tags!r}", code="invalid_name")
    return tuple(tags)
