"""Checkpoints at the phases of an algorithm, and the offer to resume what was not finished.

A task is a session, and each phase of it a checkpoint. The fields of a phase lie in the checkpoint's metadata; the
`phase` layout writes them as the specification names them. Records never change: `completed` is a property of the
session, so finishing it closes all its phases, and a finished task is never offered again. Closing adds one last record
that says so, which survives even where the documents of a store are all that is left.

What a caller must expect to fail is told in the result, not raised: an invalid field, a store that cannot be written,
an id that is not there.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from datetime import datetime
from functools import wraps
from itertools import islice
from pathlib import Path
from typing import Annotated, Any, Final, ParamSpec

import msgspec

from stepkeep.codec.readable import Criterion, Layout, phase_of
from stepkeep.engine import Engine, Save
from stepkeep.errors import SCHEMA_INVALID, Corrupt, InvalidInput, NotFound, StepkeepError
from stepkeep.model import (
    PHASES,
    STATE,
    Header,
    SessionInfo,
    Status,
    Trigger,
    TriggerKind,
    check_name,
    check_text,
)
from stepkeep.recording import phase_files
from stepkeep.storage.port import HeaderQuery, SessionQuery

PROFILE: Final = "phase"
"""The profile by which sessions with phases are known."""

CLOSED: Final = "phases_closed"
"""The event of the checkpoint that closes a session. It does not stand for a phase, and lists leave it out."""

CRITERION_STATUSES: Final = ("pending", "in_progress", "completed")
MAX_NUMBER: Final = len(PHASES)
SUMMARY_WORDS: Final = 8
HOME: Final = ".pai"
FOLDER: Final = "checkpoints"
PHASE_TRANSITION: Final = "phase_transition"
OPEN_STATUSES: Final = (Status.IN_PROGRESS, Status.PAUSED)
DEFAULT_DAYS: Final = 30

_DAY_US: Final = 86_400_000_000
_NAMES_TRIED: Final = 4
_RESERVED: Final = frozenset(
    {"phase", "phase_number", "task_summary", "criteria", "phaseNumber", "taskSummary", "iscCriteria"}
)

log = logging.getLogger("stepkeep")

P = ParamSpec("P")


# --- a checkpoint of a phase -----------------------------------------------------------------------------------


class PhaseCheckpoint(msgspec.Struct, frozen=True, kw_only=True):
    """A checkpoint of a phase. `completed` tells whether its session is finished now.

    `state` is what was saved beside the fields; in lists it is left out and None.
    """

    id: str
    session_id: str
    phase: str
    phase_number: Annotated[int, msgspec.Meta(ge=1, le=MAX_NUMBER)]
    created_at: datetime
    completed: bool
    task_summary: str
    criteria: tuple[Criterion, ...] = ()
    metadata: dict[str, Any] = {}
    state: Any = None

    @property
    def offer(self) -> str:
        """The question a person is asked when a session starts."""
        return f"Checkpoint: Resume from Phase {self.phase_number}? ({self.task_summary})"


def _checked_number(phase: str, number: object) -> int:
    if number is None:
        if phase.lower() not in PHASES:
            raise _invalid(f"phase {phase!r} is not one of {', '.join(PHASES)}: give its number")
        return PHASES.index(phase.lower()) + 1
    if isinstance(number, bool) or not isinstance(number, int) or not 1 <= number <= MAX_NUMBER:
        raise _invalid(f"a phase number is a whole number from 1 to {MAX_NUMBER}, not {number!r}")
    return number


def _checked_criteria(criteria: object) -> list[Criterion]:
    if isinstance(criteria, str | Mapping) or not isinstance(criteria, Iterable):
        raise _invalid(f"criteria is a list of id, subject and status, not {type(criteria).__name__}")
    try:
        found = msgspec.convert([msgspec.to_builtins(each) for each in criteria], list[Criterion])
    except (msgspec.ValidationError, TypeError) as exc:
        raise _invalid(f"criteria: {exc}") from exc
    for each in found:
        if each.status not in CRITERION_STATUSES:
            raise _invalid(
                f"criterion {each.id!r} has the status {each.status!r}: use {', '.join(CRITERION_STATUSES)}"
            )
    return found


def _invalid(message: str) -> InvalidInput:
    return InvalidInput(message, code="invalid_phase")


def record_of(header: Header, session: SessionInfo, state: Any = None) -> PhaseCheckpoint:
    """The phase checkpoint that a header tells of.

    Raises:
        Corrupt: (`checkpoint_schema_invalid`) it has no valid fields of a phase.
    """
    rest = {key: value for key, value in header.metadata.items() if key not in _RESERVED}
    fields = {
        "id": header.id,
        "session_id": session.key,
        "phase": phase_of(header),
        "phase_number": header.metadata.get("phase_number"),
        "created_at": header.created_at,
        "completed": session.status.is_finished,
        "task_summary": header.metadata.get("task_summary", header.message),
        "criteria": header.metadata.get("criteria", []),
        "metadata": rest,
        "state": state,
    }
    try:
        return msgspec.convert(fields, PhaseCheckpoint)
    except msgspec.ValidationError as exc:
        raise Corrupt(
            f"{header.id} is not a checkpoint of a phase: {exc}", code=SCHEMA_INVALID, checkpoint=header.id
        ) from exc


# --- the checkpoints of all tasks ------------------------------------------------------------------------------


def resolve_checkpoints_dir(
    override: str | os.PathLike[str] | None = None, *, home: str | os.PathLike[str] | None = None
) -> Path:
    """Where phase checkpoints lie: `~/.pai/checkpoints`, or `checkpoints` in the folder that takes the place of `.pai`.

    `home` is the folder of the user. Nothing on the disk is read or made.
    """
    if override is not None:
        return Path(override, FOLDER)
    return Path(Path.home() if home is None else home, HOME, FOLDER)


class PhaseResult(msgspec.Struct, frozen=True, kw_only=True):
    """What became of a request. When `ok` is False, nothing was stored, and `error` and `code` say why.

    `warnings` tell what else did not work, such as a `seed.json` that is broken; the checkpoint itself is safe.
    """

    ok: bool
    checkpoint_id: str | None = None
    file: str | None = None
    deleted: int = 0
    error: str | None = None
    code: str | None = None
    warnings: tuple[str, ...] = ()


def _told(work: Callable[P, PhaseResult]) -> Callable[P, PhaseResult]:
    """Tell in the result what a caller must expect to fail."""

    @wraps(work)
    def told(*args: P.args, **options: P.kwargs) -> PhaseResult:
        try:
            return work(*args, **options)
        except StepkeepError as exc:
            return PhaseResult(ok=False, error=exc.message, code=exc.code)

    return told


class Phases:
    """Phase checkpoints on any backend. With a `home` it keeps `seed.json` and the event log there up to date.

    `close` releases the store that was opened for these phases. A missing `seed.json` is trouble only where one is to
    be: it was there before, or `expects_seed` says so.
    """

    def __init__(
        self,
        engine: Engine,
        *,
        home: Path | None = None,
        expects_seed: bool = False,
        close: Callable[[], None] | None = None,
    ) -> None:
        self._engine = engine
        self._home = home
        self._expects_seed = expects_seed or (home is not None and (home / phase_files.SEED_FILE).exists())
        self._close_store = close

    @property
    def checkpoints_dir(self) -> Path | None:
        """The folder of the documents; None where the store has none."""
        root = phases_home(self._engine)
        return None if root is None else root / FOLDER

    # --- creating

    @_told
    def create_checkpoint(
        self,
        phase: str,
        state: object = None,
        *,
        session_id: str,
        task_summary: str,
        phase_number: int | None = None,
        criteria: Iterable[Criterion | Mapping[str, Any]] = (),
        metadata: Mapping[str, Any] | None = None,
        project: str | None = None,
    ) -> PhaseResult:
        """Save a checkpoint at the transition to a phase, durably, and point `seed.json` at it.

        The number of the seven known phases need not be given. The summary is cut to eight words. A session that
        was finished is open again.
        """
        given = {} if metadata is None else metadata
        if not isinstance(given, Mapping):
            raise _invalid(f"metadata is a dict, not {type(given).__name__}")
        if taken := sorted(_RESERVED & given.keys()):
            raise _invalid(f"metadata cannot hold {', '.join(taken)}: these are fields of their own")
        name = check_name("a phase", phase)
        fields = {
            "phase": name,
            "phase_number": _checked_number(name, phase_number),
            "task_summary": " ".join(check_text("a task summary", task_summary).split()[:SUMMARY_WORDS]),
            "criteria": msgspec.to_builtins(_checked_criteria(criteria)),
            **given,
        }
        session = self._open_session(session_id, project)
        header = self._engine.save(
            Save(
                session=session.uid,
                state=state,
                step=fields["phase_number"],
                trigger=Trigger(TriggerKind.AUTO, PHASE_TRANSITION),
                message=fields["task_summary"],
                metadata=fields,
            )
        )
        return self._done(header, self._set_ref(header.id), self._log(phase_files.CREATED, session, header))

    def _open_session(self, key: str, project: str | None) -> SessionInfo:
        given = {} if project is None else {"project": project}
        session = self._engine.open_session(key, profile=PROFILE, **given)
        if session.profile != PROFILE:
            raise InvalidInput(
                f"session {key!r} has the profile {session.profile!r}: phases need one of their own",
                code="not_a_phase_session",
                session=key,
            )
        return session

    def _done(self, header: Header, *problems: str | None) -> PhaseResult:
        file = _file_of(self._engine, header)
        return PhaseResult(ok=True, checkpoint_id=header.id, file=file, warnings=self._noted(*problems))

    # --- reading

    def load_checkpoint(self, id: str) -> PhaseCheckpoint | None:
        """The checkpoint with that id and its state; None when there is none.

        Raises:
            Corrupt: it is damaged; `.code` says how.
        """
        found = self._find(id)
        if found is None:
            return None
        header, session = found
        return record_of(header, session, self._engine.load(header).value(STATE))

    def list_checkpoints(
        self, *, completed: bool | None = None, session_id: str | None = None, limit: int | None = None
    ) -> list[PhaseCheckpoint]:
        """Checkpoints without their states, newest first. Invalid ones are left out and logged."""
        sessions = {each.uid: each for each in self._sessions() if session_id in (None, each.key)}
        records = self._records(sessions)
        wanted = (each for each in records if completed in (None, each.completed))
        return list(islice(wanted, limit))

    def _sessions(self, **query: Any) -> Iterator[SessionInfo]:
        found = self._engine.backend.sessions(SessionQuery(**query))
        return (each for each in found if each.profile == PROFILE)

    def _records(self, sessions: Mapping[str, SessionInfo]) -> Iterator[PhaseCheckpoint]:
        only = next(iter(sessions)) if len(sessions) == 1 else None
        for header in self._engine.headers(HeaderQuery(session=only)):
            if header.session in sessions and header.trigger.event != CLOSED:
                try:
                    yield record_of(header, sessions[header.session])
                except Corrupt as exc:
                    log.warning("checkpoint %s is left out of the list: %s", header.id, exc)

    def detect_incomplete_checkpoint(self, *, project: str | None = None) -> PhaseCheckpoint | None:
        """The newest checkpoint of the task that was worked on last and is not finished; None when there is none.

        With `project` only tasks of it, and those of none. Nothing is resumed by this: that takes a person's yes.
        """
        self._clear_stale_ref()
        for session in self._sessions(statuses=OPEN_STATUSES):
            if project is None or session.project in (None, project):
                try:
                    loaded = self._engine.latest(session)
                    if loaded is not None:
                        return record_of(loaded.header, session, loaded.value(STATE))
                except StepkeepError as exc:
                    log.warning("session %s cannot be offered: %s (%s)", session.key, exc, exc.code)
        return None

    def _find(self, id: str) -> tuple[Header, SessionInfo] | None:
        try:
            header = self._engine.header(id)
            session = self._engine.backend.session(header.session)
        except NotFound:
            return None
        return (header, session) if session.profile == PROFILE else None

    # --- finishing

    @_told
    def complete_checkpoint(self, id: str) -> PhaseResult:
        """Finish the task that a checkpoint belongs to: none of its phases is offered any more.

        Repeating it is harmless. The pointer in `seed.json` is cleared if it names a checkpoint of this task.
        """
        found = self._find(id)
        if found is None:
            raise NotFound(f"no checkpoint {id}", code="checkpoint_not_found", checkpoint=id)
        header, session = found
        if session.status is not Status.COMPLETED:
            self._close(session, header)
        ids = {each.id for each in self._engine.headers(HeaderQuery(session=session.uid))}
        return self._done(header, self._clear_ref(ids), self._log(phase_files.COMPLETED, session, header))

    def _close(self, session: SessionInfo, header: Header) -> None:
        newest = self._engine.latest(session)
        last = header if newest is None else newest.header
        self._engine.save(
            Save(
                session=session.uid,
                state=None if newest is None else newest.body(STATE),
                step=last.step,
                status=Status.COMPLETED,
                trigger=Trigger(TriggerKind.AUTO, CLOSED),
                message=last.message,
                metadata=last.metadata,
            )
        )
        self._engine.finish(session.uid, Status.COMPLETED)

    @_told
    def cleanup_checkpoints(self, older_than_days: int = DEFAULT_DAYS) -> PhaseResult:
        """Remove checkpoints that are that many days old, those of finished tasks first. `deleted` counts them.

        The newest of a task that is still worked on is never that old. A task that someone holds a lease of stays.
        One that cannot be removed does not stop the rest; it is told in the warnings.
        """
        if type(older_than_days) is not int or older_than_days < 0:
            raise InvalidInput(
                f"older_than_days is a whole number from 0, not {older_than_days!r}", code="invalid_setting"
            )
        now_us = self._engine.clock()
        before_us = now_us - older_than_days * _DAY_US
        gone: set[str] = set()
        problems: list[str | None] = []
        for session in sorted(
            self._sessions(), key=lambda each: (not each.status.is_finished, each.updated_us, each.uid)
        ):
            try:
                gone |= self._cleaned(session, before_us, now_us)
            except StepkeepError as exc:
                problems.append(f"session {session.key} stays: {exc}")
        if gone:
            problems.append(self._clear_ref(gone))
        return PhaseResult(ok=True, deleted=len(gone), warnings=self._noted(*problems))

    def _cleaned(self, session: SessionInfo, before_us: int, now_us: int) -> set[str]:
        """Remove what is old of one session; the ids that went."""
        headers = list(self._engine.headers(HeaderQuery(session=session.uid)))
        old = [each for each in headers if each.time_us <= before_us]
        lease = self._engine.backend.lease(session.uid) if old else None
        if not old or (lease is not None and lease.expires_us > now_us):
            return set()
        if len(old) == len(headers):
            self._engine.backend.delete_session(session.uid, expect=session)
            self._engine.forget(session.uid)
        else:
            self._engine.delete(session.uid, [each.id for each in old])
        for header in old:
            self._log(phase_files.DELETED, session, header)
        return {each.id for each in old if each.trigger.event != CLOSED}

    # --- what lies beside the checkpoints

    @property
    def _seed_file(self) -> Path | None:
        """The seed file, where there is one."""
        path = None if self._home is None else self._home / phase_files.SEED_FILE
        return path if path is not None and path.exists() else None

    def _set_ref(self, checkpoint: str) -> str | None:
        """Let `seed.json` point at a checkpoint, where there is one or one is to be."""
        if self._home is None or not (self._expects_seed or self._seed_file):
            return None
        self._expects_seed = True
        return phase_files.set_ref(self._home / phase_files.SEED_FILE, checkpoint)

    def _clear_ref(self, checkpoints: Collection[str]) -> str | None:
        """Take the pointer out if it names one of these. A missing file points at nothing."""
        path = self._seed_file
        return None if path is None else phase_files.clear_ref(path, checkpoints)

    def _clear_stale_ref(self) -> None:
        """A checkpoint may also go by a command that knows nothing of `seed.json`."""
        path = self._seed_file
        ref = None if path is None else phase_files.read_ref(path)
        if ref is None:
            return
        try:
            self._engine.header(ref)
        except NotFound:
            self._noted(self._clear_ref({ref}))
        except StepkeepError:
            return  # damaged, not gone

    def _log(self, action: str, session: SessionInfo, header: Header) -> str | None:
        if self._home is None:
            return None
        data = {
            "checkpointId": header.id,
            "phase": header.metadata.get("phase"),
            "phaseNumber": header.metadata.get("phase_number"),
            "taskSummary": header.metadata.get("task_summary"),
        }
        folder, now_us = self._home / phase_files.EVENTS_FOLDER, self._engine.clock()
        return phase_files.append_event(folder, action, session=session.key, data=data, time_us=now_us)

    def _noted(self, *problems: str | None) -> tuple[str, ...]:
        found = tuple(each for each in problems if each is not None)
        for each in found:
            log.warning("%s", each)
        return found

    # --- lifetime

    def close(self) -> None:
        """Release the store, if this was opened with it. Repeating it is harmless."""
        if self._close_store is not None:
            self._close_store()

    def __enter__(self) -> Phases:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def phases_home(engine: Engine) -> Path | None:
    """The folder where `seed.json` and the event log belong: the root of a store with the `phase` layout."""
    layout, root = getattr(engine.backend, "layout", None), getattr(engine.backend, "root", None)
    return root if layout == Layout.PHASE and isinstance(root, Path) else None


def _file_of(engine: Engine, header: Header) -> str | None:
    """The path of a checkpoint's document, None where the store has none."""
    root = phases_home(engine)
    if root is None:
        return None
    from stepkeep.storage.files.layouts import NAMES

    needle = f'"{header.id}"'.encode()
    for name in islice(NAMES[Layout.PHASE].names(header), _NAMES_TRIED):
        path = root / FOLDER / name
        if path.exists() and needle in path.read_bytes()[:4096]:
            return str(path)
    return None
