"""Checkpoints at the phases of an algorithm, and the offer to resume what was not finished.

A task is a session, and each phase of it a checkpoint. The fields of a phase lie in the checkpoint's metadata; the
`phase` layout writes them as the specification names them, and keeps `seed.json` and the event log beside them true,
whoever saves, ends or removes. `completed` is a property of the session, so finishing it closes all its phases, and a
finished task is never offered again.

What a caller must expect to fail is told in the result, not raised: an invalid field, a store that cannot be written,
an id that is not there.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime
from functools import wraps
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, ParamSpec, cast

import msgspec

from stepkeep import typed
from stepkeep.codec.readable import CriterionFields, Layout, phase_of
from stepkeep.engine import Engine, Save
from stepkeep.engine.reader import verified
from stepkeep.errors import SCHEMA_INVALID, Corrupt, InvalidInput, NotFound, StepkeepError
from stepkeep.logs import Log
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
from stepkeep.recording.phase_sessions import PROFILE, is_phase, is_to_go, newest_phase, offer_line
from stepkeep.storage.port import HeaderQuery, SessionQuery

if TYPE_CHECKING:
    from stepkeep.maintenance.clean import Policies
    from stepkeep.storage.files.phase_files import PhaseFiles

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

log = Log("stepkeep")

P = ParamSpec("P")


# --- a checkpoint of a phase -----------------------------------------------------------------------------------


class Criterion(CriterionFields, frozen=True, omit_defaults=True):
    """A criterion of a task. `extra` are further keys of it, which are stored beside the others as they are."""

    extra: dict[str, Any] = msgspec.field(default_factory=dict)


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
        return offer_line(self.phase_number, self.task_summary)


def _checked_number(phase: str, number: object) -> int:
    if number is None:
        if phase.lower() not in PHASES:
            raise _invalid(f"phase {phase!r} is not one of {', '.join(PHASES)}: give its number")
        return PHASES.index(phase.lower()) + 1
    if isinstance(number, bool) or not isinstance(number, int) or not 1 <= number <= MAX_NUMBER:
        raise _invalid(f"a phase number is a whole number from 1 to {MAX_NUMBER}, not {number!r}")
    return number


def _checked_criteria(criteria: object) -> list[dict[str, Any]]:
    """The criteria as they are stored, if they are some."""
    if isinstance(criteria, str | Mapping) or not isinstance(criteria, Iterable):
        raise _invalid(f"criteria is a list of id, subject and status, not {type(criteria).__name__}")
    found = [_stored_criterion(each) for each in criteria]
    for each in found:
        if each["status"] not in CRITERION_STATUSES:
            raise _invalid(
                f"criterion {each['id']!r} has the status {each['status']!r}: use {', '.join(CRITERION_STATUSES)}"
            )
    return found


def _stored_criterion(given: object) -> dict[str, Any]:
    if isinstance(given, Criterion):
        return {**given.extra, "id": given.id, "subject": given.subject, "status": given.status}
    try:
        fields = dict(given) if isinstance(given, Mapping) else msgspec.to_builtins(given)
        typed.convert(fields, CriterionFields)
    except (msgspec.ValidationError, TypeError) as exc:
        raise _invalid(f"criteria: {exc}") from exc
    return cast(dict[str, Any], fields)


def _criteria(stored: object) -> object:
    """Stored criteria by the fields of `Criterion`; what is not a list of them stays, and is refused."""
    if not isinstance(stored, list) or not all(isinstance(each, Mapping) for each in stored):
        return stored
    known = CriterionFields.__struct_fields__
    return [
        {key: value for key, value in each.items() if key in known}
        | {"extra": {key: value for key, value in each.items() if key not in known}}
        for each in stored
    ]


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
        "criteria": _criteria(header.metadata.get("criteria", [])),
        "metadata": rest,
        "state": state,
    }
    try:
        return typed.convert(fields, PhaseCheckpoint)
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
        return Path(override, FOLDER).expanduser()
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
    """Phase checkpoints on any backend. `close` releases the store that was opened for these phases.

    `policies` are the cleanup policies of a profile: what they let go is not offered any more.
    """

    def __init__(
        self, engine: Engine, *, policies: Policies | None = None, close: Callable[[], None] | None = None
    ) -> None:
        self._engine = engine
        self._policies = policies
        self._close_store = close

    @property
    def _beside(self) -> PhaseFiles | None:
        """`seed.json` and the event log, where the store has them."""
        return getattr(self._engine.backend, "phase_files", None)

    @property
    def checkpoints_dir(self) -> Path | None:
        """The folder of the documents; None where the store has none."""
        root = _root(self._engine)
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
            "criteria": _checked_criteria(criteria),
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
        return self._done(header)

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

    def _done(self, header: Header) -> PhaseResult:
        file = _file_of(self._engine, header)
        return PhaseResult(ok=True, checkpoint_id=header.id, file=file, warnings=self._problems())

    def _problems(self) -> tuple[str, ...]:
        return () if self._beside is None else self._beside.problems()

    # --- reading

    def load_checkpoint(self, id: str) -> PhaseCheckpoint | None:
        """The checkpoint with that id, or the only one whose id begins so, and its state; None when there is none.

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
        """Checkpoints without their states, newest first. Invalid ones are left out and logged.

        Raises:
            InvalidInput: the limit is below 0.
        """
        if limit is not None and (type(limit) is not int or limit < 0):
            raise InvalidInput(f"limit is a whole number from 0, not {limit!r}", code="invalid_option")
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
            if header.session in sessions and is_phase(header):
                try:
                    yield record_of(header, sessions[header.session])
                except Corrupt as exc:
                    log.warning("checkpoint %s is left out of the list: %s", header.id, exc)

    def detect_incomplete_checkpoint(self, *, project: str | None = None) -> PhaseCheckpoint | None:
        """The newest phase of the task that was worked on last and is not finished; None when there is none.

        With `project` only tasks of it, and those of none. Nothing is resumed by this: that takes a person's yes.
        """
        return next(self.incomplete(project=project), None)

    def incomplete(self, *, project: str | None = None) -> Iterator[PhaseCheckpoint]:
        """The newest phase of every task that is not finished, the task that was worked on last first."""
        self._clear_stale_ref()
        for session in self._sessions(statuses=OPEN_STATUSES):
            if project is not None and session.project not in (None, project):
                continue
            if self._policies is not None and is_to_go(self._engine, session, self._policies):
                continue
            try:
                loaded = newest_phase(self._engine, session)
                if loaded is not None:
                    yield record_of(loaded.header, session, loaded.value(STATE))
            except StepkeepError as exc:
                log.warning("session %s cannot be offered: %s (%s)", session.key, exc, exc.code)

    def _find(self, id: str) -> tuple[Header, SessionInfo] | None:
        """A checkpoint by its id, the beginning of it, or the id that another system gave it."""
        for query in (HeaderQuery(id_prefix=id), HeaderQuery(external_id=id)) if id else ():
            found = list(islice(self._engine.backend.headers(query), 2))
            if len(found) == 1 or (found and found[0].id == id):
                session = self._engine.backend.session(found[0].session)
                return (verified(found[0]), session) if session.profile == PROFILE else None
        return None

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
            self._engine.finish(session.uid, Status.COMPLETED)
        return self._done(header)

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
        deleted = 0
        problems: list[str] = []
        for session in sorted(
            self._sessions(), key=lambda each: (not each.status.is_finished, each.updated_us, each.uid)
        ):
            try:
                deleted += self._cleaned(session, before_us, now_us)
            except StepkeepError as exc:
                problems.append(f"session {session.key} stays: {exc}")
                log.warning("%s", problems[-1])
        return PhaseResult(ok=True, deleted=deleted, warnings=(*problems, *self._problems()))

    def _cleaned(self, session: SessionInfo, before_us: int, now_us: int) -> int:
        """Remove what is old of one session; how many went."""
        headers = list(self._engine.headers(HeaderQuery(session=session.uid)))
        old = [each for each in headers if each.time_us <= before_us]
        lease = self._engine.backend.lease(session.uid) if old else None
        if not old or (lease is not None and lease.expires_us > now_us):
            return 0
        if len(old) == len(headers):
            self._engine.backend.delete_session(session.uid, expect=session)
            self._engine.forget(session.uid)
        else:
            self._engine.delete(session.uid, [each.id for each in old])
        return len(old)

    def _clear_stale_ref(self) -> None:
        """Take out a pointer to what is gone or finished: a program may have been stopped before it did."""
        beside = self._beside
        ref = None if beside is None else beside.ref
        if beside is None or ref is None:
            return
        try:
            found = self._find(ref)
        except StepkeepError:
            return  # damaged, not gone
        if found is None or found[1].status.is_finished:
            beside.forget_ref(ref)

    # --- lifetime

    def close(self) -> None:
        """Release the store, if this was opened with it. Repeating it is harmless."""
        if self._close_store is not None:
            self._close_store()

    def __enter__(self) -> Phases:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _root(engine: Engine) -> Path | None:
    """The root of a store with the `phase` layout."""
    layout, root = getattr(engine.backend, "layout", None), getattr(engine.backend, "root", None)
    return root if layout == Layout.PHASE and isinstance(root, Path) else None


def _file_of(engine: Engine, header: Header) -> str | None:
    """The path of a checkpoint's document, None where the store has none."""
    root = _root(engine)
    if root is None:
        return None
    from stepkeep.storage.files.layouts import NAMES

    needle = f'"{header.id}"'.encode()
    for name in islice(NAMES[Layout.PHASE].names(header), _NAMES_TRIED):
        path = root / FOLDER / name
        if path.exists() and needle in path.read_bytes()[:4096]:
            return str(path)
    return None
