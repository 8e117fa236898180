"""Parts connected to a session: capturing all of them, putting back all of them or none, and their checkpoints.

What a session holds of parts that nobody connected is carried over from checkpoint to checkpoint, and a part that is
connected later gets it.

One checkpoint at a time: a warning that comes while another thread saves waits and is saved right after it. One that
comes out of a part that is being captured, or from a signal in the middle of a save, cannot wait for itself: it is
taken as soon as that save is over.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, Final, Literal, Protocol, TypeAlias, get_args, runtime_checkable

import msgspec

from stepkeep.codec.integrity import digest
from stepkeep.engine import Engine, NewBody, Save
from stepkeep.errors import Conflict, Corrupt, InvalidInput, NotFound, StepkeepError
from stepkeep.model import STATE, Header, Status, Trigger, TriggerKind, check_name
from stepkeep.recording import triggers
from stepkeep.recording.triggers import AutoTrigger, Material, TriggerPath, auto_trigger, listed
from stepkeep.storage.port import ANY_HEAD, HeaderQuery

log = logging.getLogger("stepkeep")


@runtime_checkable
class Part(Protocol):
    """Anything that can say what it holds, as data that can be saved, and take that back."""

    def snapshot(self) -> Any: ...

    def restore(self, data: Any) -> object: ...


@runtime_checkable
class Validating(Protocol):
    """A part that can tell beforehand whether `restore` would take some data: `validate` raises if not."""

    def validate(self, data: Any) -> object: ...


class PartFailure(msgspec.Struct, frozen=True):
    """A part that failed, and what it raised."""

    part: str
    error: Exception

    def __str__(self) -> str:
        return f"part {self.part!r}: {type(self.error).__name__}: {self.error}"


class PartFailed(StepkeepError):
    """A connected part raised.

    `failure` is what came first. Where parts had been changed already they were set back to what they were, and
    `not_rolled_back` names those that refused that too: only they may be in another state than before.
    """

    code = "part_failed"

    def __init__(
        self,
        what: str,
        failure: PartFailure,
        *,
        code: str,
        not_rolled_back: Sequence[PartFailure] = (),
        session: str | None = None,
        checkpoint: str | None = None,
    ) -> None:
        rest = "".join(f"; going back failed too for {each}" for each in not_rolled_back)
        super().__init__(f"{what}: {failure}{rest}", code=code, session=session, checkpoint=checkpoint)
        self.failure = failure
        self.not_rolled_back = tuple(not_rolled_back)

    @property
    def part(self) -> str:
        return self.failure.part


Missing: TypeAlias = Literal["error", "keep"]
Extra: TypeAlias = Literal["ignore", "error"]


class PutBack(msgspec.Struct, frozen=True, kw_only=True):
    """Which parts have the data of a checkpoint now.

    `missing` are connected and not in the checkpoint: they stayed as they were. `extra` are in the checkpoint and
    not connected: nobody took them.
    """

    restored: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    extra: tuple[str, ...] = ()


MANUAL: Final = Trigger(TriggerKind.MANUAL)
MakeDetails: TypeAlias = Callable[[], object]
"""Makes what is saved beside the parts, once they are captured."""


class Parts:
    """The parts connected to one session by name, and the checkpoints of them. Safe for threads.

    `save` is how the session saves: where it has a workspace, with its files.
    """

    def __init__(
        self,
        engine: Engine,
        session: str,
        *,
        save: Callable[[Save], Header] | None = None,
        significant_seconds: float = triggers.SIGNIFICANT_SECONDS,
        coalesce_seconds: float = triggers.COALESCE_SECONDS,
    ) -> None:
        self._engine = engine
        self._session = session
        self.save = engine.save if save is None else save
        self._significant_seconds = significant_seconds
        self._path = TriggerPath(engine, session, coalesce_seconds=coalesce_seconds)
        self._parts: dict[str, Part] = {}
        self._carried: dict[str, Any] = {}
        self._carried_at: str | None = None
        self._lock = threading.Lock()
        self._pid = os.getpid()
        self._owner: int | None = None
        self._deferred: list[Callable[[], object]] = []
        self._catching_up: int | None = None

    # --- connecting

    @property
    def names(self) -> tuple[str, ...]:
        """In the order in which they were connected."""
        return tuple(self._parts)

    def connect(self, name: str, part: Part, *, restore: bool = True) -> bool:
        """Let a part belong to the session under a name, and give it what the session holds of it.

        Returns whether it got anything. With `restore=False` it keeps what it has, and the next checkpoint stores that.

        Raises:
            InvalidInput: it is not a part (`not_a_part`), or the name or the part itself is connected already
                (`part_connected`).
            PartFailed: it does not take what is stored (`part_refused`, `part_restore_failed`). It is not connected.
        """
        check_name("the name of a part", name)
        if isinstance(part, type) or not _is_part(part):
            raise InvalidInput(
                f"part {name!r} needs the methods snapshot() and restore(data): {type(part).__name__} lacks one",
                code="not_a_part",
                session=self._session,
            )
        with self._exclusive():
            taken = [known for known, each in self._parts.items() if known == name or each is part]
            if taken:
                raise InvalidInput(
                    f"part {taken[0]!r} is connected already: disconnect it first",
                    code="part_connected",
                    session=self._session,
                )
            self._read_stored()
            has_data = restore and name in self._carried
            if has_data:
                self._give(name, part, self._carried[name])
            self._parts[name] = part
            self._carried.pop(name, None)
            return has_data

    def _give(self, name: str, part: Part, data: Any) -> None:
        what = "the part was not connected: connect it with restore=False to begin anew"
        code = "part_refused"
        try:
            if isinstance(part, Validating):
                part.validate(data)
            code = "part_restore_failed"
            part.restore(data)
        except Exception as exc:  # parts are foreign code
            raise self._failed(what, name, exc, code=code) from exc

    def _read_stored(self, branch: str | None = None) -> None:
        """Look what the newest checkpoint holds of parts that are not connected, if it is another one by now."""
        backend = self._engine.backend
        on = branch or backend.session(self._session).branch
        found = backend.branch(self._session, on)
        head = None if found is None else found.head
        if head in (None, self._carried_at):
            return
        try:
            loaded = self._engine.latest_of(self._session, on)
        except Corrupt as exc:
            log.warning("what the session holds of parts that are not connected is lost: %s", exc)
            loaded = None
        self._carry(None if loaded is None else loaded.value(), head)

    def _carry(self, state: object, checkpoint: str | None) -> None:
        data = state if isinstance(state, Mapping) else {}
        self._carried = {str(name): value for name, value in data.items() if name not in self._parts}
        self._carried_at = checkpoint

    def disconnect(self, name: str) -> None:
        """Let a part go. What is stored of it stays in the checkpoints that follow.

        Raises:
            NotFound: there is none of that name (`part_not_connected`).
        """
        with self._exclusive():
            if self._parts.pop(name, None) is None:
                raise NotFound(
                    f"no part {name!r} is connected: there is {_named(self._parts)}",
                    code="part_not_connected",
                    session=self._session,
                )
            self._carried_at = None

    # --- capturing

    def capture(self) -> dict[str, Any]:
        """What every part holds at this moment, by name, with what is stored of parts that are not connected.

        Raises:
            PartFailed: one of them raised (`part_snapshot_failed`).
            InvalidInput: none is connected (`no_parts`).
        """
        with self._exclusive():
            return self._captured()

    def _captured(self, stored: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """The same. With `stored`, a part that fails has what is there of it, or nothing, and is told in the log."""
        if not self._parts:
            raise InvalidInput(
                "no part is connected to this session: connect one, or save a state",
                code="no_parts",
                session=self._session,
            )
        found = dict(self._carried)
        for name, part in self._parts.items():
            try:
                found[name] = part.snapshot()
                if stored is not None:
                    self._engine.encode(found[name])
            except Exception as exc:  # parts are foreign code
                if stored is None:
                    what = "nothing was saved, since a part could not say what it holds"
                    raise self._failed(what, name, exc, code="part_snapshot_failed") from exc
                log.warning("part %r cannot be saved, and has what was stored of it before: %s", name, exc)
                found.pop(name, None)
                found |= {name: stored[name]} if name in stored else {}
        return found

    def _encoded(self, *, branch: str | None = None, tolerant: bool = False) -> NewBody:
        """The same as a body to save; what cannot be saved is `InvalidInput`, with the part first in its path."""
        self._read_stored(branch)
        return self._engine.encode(self._captured(self._stored(branch) if tolerant else None), self._session)

    def _stored(self, branch: str | None) -> Mapping[str, Any]:
        """What the newest checkpoint that verifies holds of all parts, be it that of the current branch."""
        try:
            loaded = self._engine.latest_of(self._session, branch) or self._engine.latest_of(self._session)
        except Corrupt:
            loaded = None
        state = None if loaded is None else loaded.value()
        return state if isinstance(state, Mapping) else {}

    def _failed(self, what: str, part: str, exc: Exception, *, code: str, **more: Any) -> PartFailed:
        return PartFailed(what, PartFailure(part, exc), code=code, session=self._session, **more)

    # --- saving

    def checkpoint(
        self,
        message: str = "",
        tags: Iterable[str] = (),
        *,
        trigger: Trigger = MANUAL,
        details: MakeDetails | None = None,
        branch: str | None = None,
        expect_head: str | None = ANY_HEAD,
        tolerant: bool = False,
    ) -> Header:
        """Save what all parts hold; on return it is durable.

        With `tolerant`, a part that cannot say what it holds keeps what is stored of it, and is told in the log.

        Raises:
            PartFailed: a part could not say what it holds (`part_snapshot_failed`). Nothing was saved.
            InvalidInput: what a part gave cannot be saved; the path begins with its name.
            Conflict: `expect_head` is not the head any more, or this is called out of a part that is being captured
                (`checkpoint_nested`).
        """
        with self._saving():
            body = self._encoded(branch=branch, tolerant=tolerant)
            return self._save(body, trigger, message, listed("tags", tags), details, branch, expect_head)

    def auto_checkpoint(
        self,
        trigger: AutoTrigger | str,
        *,
        tags: Iterable[str] = (),
        details: MakeDetails | None = None,
        branch: str | None = None,
        expect_head: str | None = ANY_HEAD,
    ) -> Header | None:
        """Save what all parts hold because something happened; None when that is held back.

        Time alone is worth a checkpoint only so long after the last one. A trigger that follows its like within
        moments and finds nothing changed is noted on that checkpoint, which is returned. A warning of compaction is
        always saved, be it with what is stored of a part that cannot say what it holds. None also comes for a call out
        of a save of the same thread: it follows that save.
        """
        auto, more = auto_trigger(trigger), listed("tags", tags)
        if self._is_own:
            if not self._is_catching_up:
                later = partial(self.auto_checkpoint, auto, tags=more, details=details, branch=branch)
                self._deferred.append(later)
            return None
        with self._saving():
            now_us = self._engine.clock()
            newest = next(self._engine.headers(HeaderQuery(session=self._session, limit=1)), None)
            if auto is AutoTrigger.SIGNIFICANT_TIME_PASSED:
                session = self._engine.backend.session
                since_us = session(self._session).created_us if newest is None else newest.time_us
                if 0 <= now_us - since_us < triggers.to_us(self._significant_seconds):
                    return None
            is_warning = auto is AutoTrigger.CONTEXT_COMPACTION_WARNING
            body, all_tags = self._encoded(branch=branch, tolerant=is_warning), (*auto.tags, *more)
            if newest is not None and STATE in newest.contents:
                was = Material(newest.contents[STATE].digest, newest.status, (), newest.tags)
                material = Material(digest(body.content), Status.IN_PROGRESS, (), all_tags)
                if self._path.is_repeated(auto.value, material, newest=newest, was=was, now_us=now_us):
                    self._path.note(newest, auto.trigger, time_us=now_us, message=auto.message)
                    return newest
            return self._save(body, auto.trigger, auto.message, all_tags, details, branch, expect_head)

    def _save(
        self,
        body: NewBody,
        trigger: Trigger,
        message: str,
        tags: Iterable[str],
        details: MakeDetails | None,
        branch: str | None,
        expect_head: str | None,
    ) -> Header:
        header = self.save(
            Save(
                session=self._session,
                state=body,
                details=None if details is None else details(),
                branch=branch,
                expect_head=expect_head,
                trigger=trigger,
                message=message,
                tags=tuple(dict.fromkeys(tags)),
            )
        )
        self._carried_at = header.id
        return header

    # --- going back

    @contextmanager
    def put_back(
        self,
        state: object,
        *,
        missing: Missing = "error",
        extra: Extra = "ignore",
        checkpoint: str | None = None,
        force: bool = False,
    ) -> Iterator[PutBack]:
        """Give every part its data out of a captured state, for as long as the block succeeds.

        All are asked first whether they would take it. When one fails all the same, or the block raises, every part
        is set back to what it held before. With `force` also a part gets its data that cannot say what it holds now:
        it alone is not set back.

        Raises:
            NotFound: the state lacks a connected part (`part_not_saved`), or one of its parts is not connected
                (`part_not_connected`), and that is to be an error.
            PartFailed: a part refused its data (`part_refused`) or failed to take it (`part_restore_failed`). All
                parts are as before but those that the error names.
        """
        with self._saving():
            plan = self._plan(state, missing, extra, checkpoint)
            data = state if isinstance(state, Mapping) else {}
            self._validate(plan.restored, data, checkpoint)
            before = self._before(plan.restored, force=force, checkpoint=checkpoint)
            for at, name in enumerate(plan.restored):
                try:
                    self._parts[name].restore(data[name])
                except Exception as exc:
                    raise self._failed(
                        "nothing was restored, since a part could not take its data",
                        name,
                        exc,
                        code="part_restore_failed",
                        not_rolled_back=self._roll_back(plan.restored[: at + 1], before),
                        checkpoint=checkpoint,
                    ) from exc
            try:
                yield plan
            except BaseException as exc:
                for stuck_part in self._roll_back(plan.restored, before):
                    exc.add_note(f"going back failed too for {stuck_part}")
                raise
            self._carry(state, checkpoint)

    def _before(self, names: Sequence[str], *, force: bool, checkpoint: str | None) -> dict[str, Any]:
        """What parts hold. Encoded and decoded: a part may hand out the very object that it changes later."""
        before = {}
        for name in names:
            try:
                before[name] = self._engine.encode(self._parts[name].snapshot()).value()
            except Exception as exc:  # parts are foreign code
                if force:
                    continue
                what = (
                    "nothing was restored, since a part cannot say what it holds now and could not be set back: "
                    "restore with force=True to do without"
                )
                raise self._failed(
                    what, name, exc, code="part_snapshot_failed", checkpoint=checkpoint
                ) from exc
        return before

    def _plan(self, state: object, missing: Missing, extra: Extra, checkpoint: str | None) -> PutBack:
        _check_choice("missing", missing, get_args(Missing))
        _check_choice("extra", extra, get_args(Extra))
        saved = tuple(state) if isinstance(state, Mapping) else ()
        plan = PutBack(
            restored=tuple(name for name in self._parts if name in saved),
            missing=tuple(name for name in self._parts if name not in saved),
            extra=tuple(str(name) for name in saved if name not in self._parts),
        )
        where: dict[str, Any] = {"session": self._session, "checkpoint": checkpoint}
        if plan.missing and missing == "error":
            what = f"the checkpoint has no data of the connected {_named(plan.missing)}"
            action = "restore with missing='keep' to leave that as it is"
            raise NotFound(f"{what}: {action}", code="part_not_saved", **where)
        if plan.extra and extra == "error":
            what = f"the checkpoint has data of {_named(plan.extra)}, which is not connected"
            action = "connect it, or restore with extra='ignore'"
            raise NotFound(f"{what}: {action}", code="part_not_connected", **where)
        return plan

    def _validate(self, names: Sequence[str], data: Mapping[Any, Any], checkpoint: str | None) -> None:
        for name in names:
            part = self._parts[name]
            if isinstance(part, Validating):
                try:
                    part.validate(data[name])
                except Exception as exc:
                    what = "nothing was restored, since a part refuses its data"
                    raise self._failed(what, name, exc, code="part_refused", checkpoint=checkpoint) from exc

    def _roll_back(self, names: Sequence[str], before: Mapping[str, Any]) -> list[PartFailure]:
        """Set parts back, the last one first; those that fail too."""
        stuck = []
        for name in reversed(names):
            try:
                self._parts[name].restore(before[name])
            except Exception as exc:  # also where it could not say what it held
                stuck.append(PartFailure(name, exc))
        return stuck

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

    @contextmanager
    def _saving(self) -> Iterator[None]:
        """Exclusive, and then the checkpoints that were asked for meanwhile.

        What asks again while those are taken, such as a part that warns whenever it is captured, is covered by them.
        """
        try:
            with self._exclusive():
                yield
        finally:
            if self._deferred and not (self._is_own or self._is_catching_up):
                self._catching_up = threading.get_ident()
                try:
                    while self._deferred:
                        self._deferred.pop(0)()
                finally:
                    self._catching_up = None


def _is_part(part: object) -> bool:
    return all(callable(getattr(part, method, None)) for method in ("snapshot", "restore"))


def _check_choice(what: str, given: object, choices: tuple[str, ...]) -> None:
    if given not in choices:
        raise InvalidInput(f"{what} is one of {', '.join(choices)}, not {given!r}", code="invalid_option")


def _named(names: Iterable[str]) -> str:
    return ", ".join(repr(name) for name in list(names)[:10]) or "none"
