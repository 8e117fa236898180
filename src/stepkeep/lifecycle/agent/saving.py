"""What a hook stores: an event that waits, or a checkpoint with all that waited.

Every hook is a process of its own, and several may run at once. A tool that was used is noted as an event of the
session, in one small transaction; a boundary makes a checkpoint from the last picture and the events since.
"""

from __future__ import annotations

from hashlib import sha256
from typing import Any

import msgspec

from stepkeep.engine import Engine, Save
from stepkeep.errors import Corrupt, InvalidInput, NotFound
from stepkeep.lifecycle.agent import kinds, picture, surroundings
from stepkeep.lifecycle.agent.moments import MAX_MESSAGE, Moment
from stepkeep.lifecycle.agent.picture import Facts, Picture
from stepkeep.model import STATE, Header, Session, Status, Trigger, TriggerKind, check_name
from stepkeep.storage.port import HeaderQuery

PROFILE = "phase"
DETAILS = "details"
WAITING = "agent_event"
RESTORED = "context_restored"

COALESCE_US = 3_000_000
HEARTBEAT_US = 120_000_000

_TRIGGERS = {
    kinds.PROMPT: Trigger(TriggerKind.AUTO, "prompt"),
    kinds.TOOL: Trigger(TriggerKind.AUTO, "step_boundary"),
    kinds.TOOL_FAILED: Trigger(TriggerKind.ERROR, "recoverable_error"),
    kinds.COMPACTION: Trigger(TriggerKind.AUTO, "context_compaction_warning"),
    kinds.TURN_END: Trigger(TriggerKind.AUTO, "turn_end"),
    kinds.SUBAGENT_END: Trigger(TriggerKind.AUTO, "subagent_end"),
    kinds.TASK_DONE: Trigger(TriggerKind.AUTO, "step_boundary"),
    kinds.END: Trigger(TriggerKind.AUTO, "session_end"),
}
_HEARTBEAT = Trigger(TriggerKind.TIMER, "heartbeat")


class Known(msgspec.Struct, frozen=True):
    """The newest checkpoint of a session, and what waits to be part of the next."""

    header: Header | None
    picture: Picture
    waiting: tuple[Facts, ...]
    last_event: int

    @property
    def now(self) -> Picture:
        """The picture with all that waits."""
        found = self.picture
        for facts in self.waiting:
            found = picture.changed(found, facts)
        return found


def session_key(moment: Moment) -> str:
    """The key of an agent's session. One that cannot be a key is replaced by its digest."""
    key = f"{moment.client}:{moment.session}"
    try:
        return check_name("a session key", key)
    except InvalidInput:
        return f"{moment.client}:{sha256(key.encode('utf-8', 'surrogatepass')).hexdigest()}"


def open_session(engine: Engine, moment: Moment) -> Session:
    """The session in which the work of this agent is kept: its own, or the one that it took up."""
    own = engine.backend.session_by_key(session_key(moment))
    if own is None:
        given = {"metadata": {"client": moment.client, "agent": surroundings.agent_process()}}
        project = project_name(moment)
        return engine.open_session(
            session_key(moment), profile=PROFILE, **({"project": project} if project else {}), **given
        )
    return continued(engine, own, moment)


def project_name(moment: Moment) -> str | None:
    try:
        return check_name("a project", surroundings.project_of(moment.cwd))
    except InvalidInput:
        return None


def continued(engine: Engine, own: Session, moment: Moment) -> Session:
    """The session that was offered to this agent, once a person said yes and until it is finished."""
    key = own.metadata.get("continues") or own.metadata.get("offered")
    taken = engine.backend.session_by_key(key) if isinstance(key, str) else None
    if taken is None or taken.uid == own.uid:
        return own
    if "continues" not in own.metadata:
        if taken.metadata.get("taken_up_us", 0) < own.metadata.get("offered_us", 0):
            return own
        engine.describe_session(own.uid, {"metadata": {**own.metadata, "continues": key}})
        agent = {"agent": surroundings.agent_process()}
        taken = engine.describe_session(taken.uid, {"metadata": {**taken.metadata, **agent}})
    if taken.status.is_finished and moment.kind == kinds.PROMPT:
        rest = {name: value for name, value in own.metadata.items() if name not in ("continues", "offered")}
        return engine.describe_session(own.uid, {"metadata": rest})
    return taken


def known(engine: Engine, session: Session) -> Known:
    """What is stored of a session. Damaged checkpoints are stepped over; without any, the picture is empty."""
    try:
        loaded = engine.latest(session)
    except Corrupt:
        loaded = None
    state: Any = None if loaded is None else loaded.value(STATE)
    found: Picture = state if isinstance(state, dict) else {}
    seen = found.get("events_seen", 0)
    waiting = engine.backend.events(session.uid, after=seen if isinstance(seen, int) else 0)
    return Known(
        None if loaded is None else loaded.header,
        found,
        tuple(facts for each in waiting if each.type == WAITING and (facts := _facts(each.data))),
        max((each.number for each in waiting), default=seen),
    )


def _facts(data: dict[str, Any]) -> Facts | None:
    try:
        return msgspec.convert(data, Facts)
    except msgspec.ValidationError:
        return None


def record(engine: Engine, moment: Moment) -> Header | None:
    """Store what an event tells; the checkpoint that was made, None when it only waits or nothing goes on.

    A session that was finished is opened again by a new prompt alone: what an agent still does after it said that
    the work is done is not unfinished work.
    """
    session = open_session(engine, moment)
    if session.status.is_finished and moment.kind != kinds.PROMPT:
        return None
    if moment.kind == kinds.TOOL and moment.tasks is None and moment.task is None:
        return _note(engine, session, moment)
    before = known(engine, session)
    if moment.kind == kinds.END and before.header is None and not before.waiting:
        return None
    if _is_repeated(engine, moment, before):
        _wait(engine, session, moment)
        return None
    return save(engine, session, moment, before, _TRIGGERS[moment.kind])


def _note(engine: Engine, session: Session, moment: Moment) -> Header | None:
    """Let a tool's outcome wait, unless the last checkpoint is too long ago."""
    row = next(engine.backend.headers(HeaderQuery(session=session.uid, limit=1)), None)
    if row is not None and engine.clock() - session.updated_us < HEARTBEAT_US:
        _wait(engine, session, moment)
        return None
    trigger = _TRIGGERS[kinds.TOOL] if row is None else _HEARTBEAT
    return save(engine, session, moment, known(engine, session), trigger)


def _wait(engine: Engine, session: Session, moment: Moment) -> None:
    data = msgspec.to_builtins(picture.facts_of(moment))
    engine.backend.record_event(session.uid, WAITING, data, time_us=engine.clock())


def _is_repeated(engine: Engine, moment: Moment, before: Known) -> bool:
    """Whether this comes right after the last checkpoint and changes nothing. A compaction is never held back."""
    if before.header is None or moment.kind in (kinds.COMPACTION, kinds.END):
        return False
    is_soon = 0 <= engine.clock() - before.header.time_us < COALESCE_US
    return is_soon and picture.is_same(before.now, picture.changed(before.now, picture.facts_of(moment)))


def save(engine: Engine, session: Session, moment: Moment, before: Known, trigger: Trigger) -> Header:
    """Make a checkpoint of all that is known."""
    facts = picture.facts_of(moment)
    now = _surrounded(picture.changed(before.now, facts), moment, before.last_event)
    outcomes = [each.outcome for each in (*before.waiting, facts) if each.outcome is not None]
    status = _status(moment, now)
    header = engine.save(
        Save(
            session=session.uid,
            bodies={STATE: engine.encode(now), DETAILS: engine.encode(picture.details(now, outcomes))},
            step=picture.phase_number(now),
            status=status,
            trigger=trigger,
            message=picture.summary(now),
            metadata=picture.metadata(now),
        )
    )
    if status is not Status.IN_PROGRESS:
        engine.finish(session.uid, status)
    return header


def _status(moment: Moment, now: Picture) -> Status:
    if moment.kind != kinds.END:
        return Status.IN_PROGRESS
    return Status.COMPLETED if picture.is_work_done(now) else Status.PAUSED


def _surrounded(now: Picture, moment: Moment, last_event: int) -> Picture:
    """The picture with where the transcript ends, and what is checked out."""
    position, tail = surroundings.transcript_position(moment.transcript)
    now = {
        **now,
        "client": moment.client,
        "agent_session": moment.session,
        "cwd": moment.cwd.encode("utf-8", "replace").decode(),
        "events_seen": last_event,
    }
    if position is not None:
        now["transcript"] = position
    if not moment.message and (message := surroundings.last_message(tail, MAX_MESSAGE)):
        now["last_message"] = message
    if commit := surroundings.git_commit(moment.cwd):
        now["git"] = commit
    return now


def offered(engine: Engine, moment: Moment, key: str) -> None:
    """Remember which work was offered to this agent, so that a yes can be told to be its own."""
    own = engine.backend.session_by_key(session_key(moment))
    about = {
        "client": moment.client,
        "agent": surroundings.agent_process(),
        "offered": key,
        "offered_us": engine.clock(),
    }
    if own is None:
        project = project_name(moment)
        given = {"project": project} if project else {}
        engine.open_session(session_key(moment), profile=PROFILE, metadata=about, **given)
    elif not own.metadata.get("continues"):
        engine.describe_session(own.uid, {"metadata": {**own.metadata, **about}})


def take_up(engine: Engine, key: str) -> tuple[Session, Known]:
    """Mark unfinished work as taken up: the agent it was offered to goes on in its session.

    Raises:
        NotFound: there is no such session, or nothing to resume in it (`nothing_to_resume`).
    """
    session = engine.find_session(key)
    found = known(engine, session)
    if session.status.is_finished or found.header is None:
        raise NotFound(f"session {key!r} has no unfinished work", code="nothing_to_resume", session=key)
    now_us = engine.clock()
    engine.describe_session(session.uid, {"metadata": {**session.metadata, "taken_up_us": now_us}})
    engine.backend.record_event(session.uid, "resume_accepted", {}, time_us=now_us)
    return session, found
