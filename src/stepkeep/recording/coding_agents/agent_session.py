"""What a hook stores: an event that waits, or a checkpoint with all that waited.

Every hook is a process of its own, and several may run at once. A tool that was used is noted as an event of the
session, in one small transaction; a boundary makes a checkpoint from the last state and the deltas since. The state
holds where the work stands and where the transcript ends, never the transcript itself.
"""

from __future__ import annotations

from collections.abc import Callable
from hashlib import sha256
from typing import TYPE_CHECKING, Any

import msgspec

from stepkeep import typed
from stepkeep.engine import Engine, Save
from stepkeep.errors import Corrupt, InvalidInput, NotFound
from stepkeep.model import FILES, PHASES, STATE, Header, SessionInfo, Status, Trigger, TriggerKind, check_name
from stepkeep.recording import triggers
from stepkeep.recording.coding_agents import environment, hook_events
from stepkeep.recording.coding_agents.hook_events import (
    MAX_MESSAGE,
    MAX_TASKS,
    Delta,
    HookEvent,
    Task,
    ToolOutcome,
)
from stepkeep.recording.phase_sessions import PROFILE, newest_phase
from stepkeep.recording.triggers import Material, TriggerPath
from stepkeep.storage.port import HeaderQuery, SessionQuery

if TYPE_CHECKING:
    from stepkeep.recording.coding_agents.transcripts import Kept
    from stepkeep.workspace.capture import TreeCapture

MAX_RECENT = 10
MAX_OUTCOMES = 50
MAX_EDITED = 500
MAX_IN_TURN = 1000
"""How many checkpoints of a turn are looked at."""

MAX_LOOKED_AT = 50
"""Among how many sessions the one is looked for that an agent took up."""

SUMMARY_WORDS = 8
_SHORT_ANSWER = 12
"""A prompt of one or two words is a task if it has so many characters."""

WAITING = "agent_event"
RESTORED = "context_restored"

_TRIGGERS = {
    hook_events.PROMPT: Trigger(TriggerKind.AUTO, "prompt"),
    hook_events.TOOL: Trigger(TriggerKind.AUTO, triggers.STEP_BOUNDARY),
    hook_events.TOOL_FAILED: Trigger(TriggerKind.ERROR, triggers.RECOVERABLE_ERROR),
    hook_events.COMPACTION: Trigger(TriggerKind.AUTO, triggers.COMPACTION_WARNING),
    hook_events.TURN_END: Trigger(TriggerKind.AUTO, "turn_end"),
    hook_events.SUBAGENT_END: Trigger(TriggerKind.AUTO, "subagent_end"),
    hook_events.TASK_DONE: Trigger(TriggerKind.AUTO, triggers.STEP_BOUNDARY),
    hook_events.END: Trigger(TriggerKind.AUTO, "session_end"),
}
_HEARTBEAT = Trigger(TriggerKind.TIMER, triggers.HEARTBEAT)


SessionState = dict[str, Any]


# --- the state of a session; pure ------------------------------------------------------------------------------


def changed(state: SessionState, delta: Delta) -> SessionState:
    """The state after an event."""
    after = dict(state)
    if delta.phase:
        after["phase"] = delta.phase
    if delta.edited:
        after["edited"] = list(dict.fromkeys([*state.get("edited", []), *delta.edited]))[-MAX_EDITED:]
    if delta.prompt:
        after["prompt"] = delta.prompt
        if not after.get("task") and is_substantial(delta.prompt):
            after["task"] = delta.prompt
    if delta.message:
        after["last_message"] = delta.message
    if delta.tasks is not None:
        after["tasks"] = [msgspec.to_builtins(task) for task in delta.tasks]
    if delta.task is not None:
        after["tasks"] = _with_task(state.get("tasks", []), delta.task)
    if delta.outcome is not None:
        after["recent"] = [*state.get("recent", []), msgspec.to_builtins(delta.outcome)][-MAX_RECENT:]
    if delta.kind == hook_events.COMPACTION:
        after["compacted"] = True
    elif delta.kind == hook_events.PROMPT:
        after.pop("compacted", None)
    if delta.kind == hook_events.TURN_END:
        after["turn"] = "ended"
    elif delta.kind in (hook_events.PROMPT, hook_events.TOOL, hook_events.TOOL_FAILED):
        after["turn"] = "running"
    return after


def _with_task(tasks: list[dict[str, str]], task: Task) -> list[dict[str, str]]:
    """The list with one task put in or changed, found by its id, else by what it says."""
    at = next((at for at, each in enumerate(tasks) if each["id"] == task.id), None)
    if at is None and task.subject:
        at = next((at for at, each in enumerate(tasks) if each["subject"] == task.subject), None)
    if at is None:
        return [*tasks, msgspec.to_builtins(task)][-MAX_TASKS:]
    known = tasks[at]
    return [
        *tasks[:at],
        {**known, "subject": task.subject or known["subject"], "status": task.status},
        *tasks[at + 1 :],
    ]


def open_tasks(state: SessionState) -> list[dict[str, str]]:
    return [task for task in state.get("tasks", []) if task["status"] != "completed"]


def is_work_done(state: SessionState) -> bool:
    """Whether nothing is left over when the session ends now: the last turn came to its end, and no task is open."""
    return state.get("turn") == "ended" and not open_tasks(state)


def phase_number(state: SessionState) -> int:
    return PHASES.index(state.get("phase", PHASES[0])) + 1


def is_substantial(prompt: str) -> bool:
    """Whether a prompt says what to do, and is not only an answer or a command of the client."""
    words = prompt.split()
    return not prompt.startswith("/") and (len(words) > 2 or len(prompt) >= _SHORT_ANSWER)


def summary(state: SessionState) -> str:
    """The task in eight words: the one in progress, else what was asked for first, else what was said last."""
    running = [task["subject"] for task in open_tasks(state) if task["status"] == "in_progress"]
    waiting = [task["subject"] for task in open_tasks(state)]
    asked = (state.get("task", ""), state.get("prompt", ""))
    texts = (*running, *waiting, *asked, state.get("last_message", ""))
    text = next((text for text in texts if text), "")
    return " ".join(text.split()[:SUMMARY_WORDS]) or "unnamed work"


def metadata(state: SessionState) -> dict[str, Any]:
    """What a checkpoint says of the phase, so that it is one among all phase checkpoints."""
    return {
        "phase": state.get("phase", PHASES[0]),
        "phase_number": phase_number(state),
        "task_summary": summary(state),
        "criteria": state.get("tasks", [])[:50],
        "client": state.get("client", ""),
        "turn": state.get("turn_number", 0),
        "prompt": state.get("prompt", ""),
        "entry": (state.get("transcript") or {}).get("entry"),
    }


def details(state: SessionState, outcomes: list[ToolOutcome]) -> dict[str, Any]:
    """What a checkpoint says of commands and of the step, as the snapshot lifecycle names it."""
    found: dict[str, Any] = {
        "command_outcomes": [msgspec.to_builtins(each) for each in outcomes[-MAX_OUTCOMES:]]
    }
    if len(outcomes) > MAX_OUTCOMES:
        found["command_outcomes_dropped"] = len(outcomes) - MAX_OUTCOMES
    step = next(iter(open_tasks(state)), None)
    if step is not None:
        status = "running" if step["status"] == "in_progress" else "pending"
        found["step_state"] = {"step_id": step["id"], "step_status": status}
    return found


def comparable(state: SessionState) -> SessionState:
    """What has to differ for an event to be worth a checkpoint of its own, wherever the transcript ends."""
    passing = {"transcript", "events_seen", "git", "recent", "turn_number", "turn_start", "edited"}
    return {key: value for key, value in state.items() if key not in passing}


# --- the session of an agent -----------------------------------------------------------------------------------


class Known(msgspec.Struct, frozen=True):
    """The newest checkpoint of a session, and what waits to be part of the next."""

    header: Header | None
    state: SessionState
    waiting: tuple[Delta, ...]
    last_event: int

    @property
    def now(self) -> SessionState:
        """The state with all that waits."""
        found = self.state
        for delta in self.waiting:
            found = changed(found, delta)
        return found


def session_key(event: HookEvent) -> str:
    """The key of an agent's session. One that cannot be a key is replaced by its digest."""
    key = f"{event.client}:{event.session}"
    try:
        return check_name("a session key", key)
    except InvalidInput:
        return f"{event.client}:{sha256(key.encode('utf-8', 'surrogatepass')).hexdigest()}"


def find_session(engine: Engine, event: HookEvent) -> SessionInfo | None:
    """The session in which the work of this agent is kept: its own, or the one that it took up; None before both."""
    own = engine.backend.session_by_key(session_key(event))
    return _accepted(engine, event) if own is None else continued(engine, own, event)


def _accepted(engine: Engine, event: HookEvent) -> SessionInfo | None:
    """The session that was offered to an agent before it did anything, once a person said yes."""
    key = session_key(event)
    for session in engine.backend.sessions(SessionQuery(limit=MAX_LOOKED_AT)):
        about = session.metadata
        if about.get("offered_to") == key and about.get("taken_up_us", 0) >= about.get("offered_us", 0):
            if session.status.is_finished:
                return None if event.kind == hook_events.PROMPT else session
            return _held(engine, session, event)
    return None


def _held(engine: Engine, session: SessionInfo, event: HookEvent) -> SessionInfo:
    """The session, which says that this agent is at work in it."""
    agent = event.agent or environment.agent_process()
    if session.metadata.get("agent") == agent:
        return session
    return engine.describe_session(session.uid, {"metadata": {**session.metadata, "agent": agent}})


def _begun(engine: Engine, event: HookEvent) -> SessionInfo:
    project = project_name(event)
    metadata = {"client": event.client, "agent": event.agent or environment.agent_process()}
    given = {"metadata": metadata, **({"project": project} if project else {})}
    return engine.open_session(session_key(event), profile=PROFILE, **given)


def session_for(engine: Engine, event: HookEvent) -> SessionInfo:
    """The session in which the work of this agent is kept; made if there is none."""
    return find_session(engine, event) or _begun(engine, event)


def captures_of_turn(engine: Engine, session: SessionInfo) -> list[Header]:
    """The checkpoints since the last prompt that have the files of a tree, oldest first."""
    found: list[Header] = []
    for header in engine.headers(HeaderQuery(session=session.uid, limit=MAX_IN_TURN)):
        if FILES in header.contents and isinstance(header.metadata.get("tree"), str):
            found.append(header)
        if header.trigger == _TRIGGERS[hook_events.PROMPT]:
            break
    return found[::-1]


def project_name(event: HookEvent) -> str | None:
    """The folder that a piece of work belongs to: the one with the repository, else the working directory."""
    try:
        return check_name("a project", environment.repository_of(event.cwd) or event.cwd)
    except InvalidInput:
        return None


def continued(engine: Engine, own: SessionInfo, event: HookEvent) -> SessionInfo:
    """The session that was offered to this agent, once a person said yes and until it is finished."""
    key = own.metadata.get("continues") or own.metadata.get("offered")
    taken = engine.backend.session_by_key(key) if isinstance(key, str) else None
    if taken is None or taken.uid == own.uid:
        return own
    if "continues" not in own.metadata:
        if taken.metadata.get("taken_up_us", 0) < own.metadata.get("offered_us", 0):
            return own
        engine.describe_session(own.uid, {"metadata": {**own.metadata, "continues": key}})
        taken = _held(engine, taken, event)
    if taken.status.is_finished and event.kind == hook_events.PROMPT:
        rest = {name: value for name, value in own.metadata.items() if name not in ("continues", "offered")}
        return engine.describe_session(own.uid, {"metadata": rest})
    return taken


def known(engine: Engine, session: SessionInfo) -> Known:
    """What is stored of a session. Damaged checkpoints, and those that others saved by hand, are stepped over.

    Without any, the state is empty.
    """
    try:
        loaded = newest_phase(engine, session) or engine.latest(session)
    except Corrupt:
        loaded = None
    state: Any = None if loaded is None else loaded.value(STATE)
    found: SessionState = state if isinstance(state, dict) else {}
    seen = found.get("events_seen", 0)
    waiting = engine.backend.events(session.uid, after=seen if isinstance(seen, int) else 0)
    return Known(
        None if loaded is None else loaded.header,
        found,
        tuple(delta for each in waiting if each.type == WAITING and (delta := _delta(each.data))),
        max((each.number for each in waiting), default=seen),
    )


def _delta(data: dict[str, Any]) -> Delta | None:
    try:
        return typed.convert(data, Delta)
    except msgspec.ValidationError:
        return None


CapturesFiles = Callable[[SessionInfo], "TreeCapture | None"]
"""What captures the project files beside a checkpoint of a session; None where none are to be."""


def record(
    engine: Engine,
    event: HookEvent,
    *,
    key: str | None = None,
    capture: CapturesFiles = lambda _: None,
    keeps_transcript: bool = False,
) -> Header | None:
    """Store what an event tells; the checkpoint that was made, None when it only waits or nothing goes on.

    A session that was finished is opened again by a new prompt alone: what an agent still does after it said that
    the work is done is not unfinished work. With a `key` it is stored once, however often this is repeated.

    Raises:
        Conflict: (`idempotency_mismatch`) it is stored already.
    """
    session = find_session(engine, event)
    if session is None:
        if event.kind == hook_events.END:
            return None  # nothing was done in it
        session = _begun(engine, event)
    if session.status.is_finished and event.kind != hook_events.PROMPT:
        return None
    if event.kind == hook_events.TOOL and event.tasks is None and event.task is None:
        return _note(engine, session, event, key)
    before = known(engine, session)
    if event.kind == hook_events.END and before.header is None and not before.waiting:
        return None
    if _is_repeated(engine, session, event, before):
        _wait(engine, session, event, key)
        return None
    files = capture(session)
    transcript = _transcript(engine, session, event) if keeps_transcript else None
    trigger = _TRIGGERS[event.kind]
    return save(engine, session, event, before, trigger, key=key, files=files, transcript=transcript)


def _transcript(engine: Engine, session: SessionInfo, event: HookEvent) -> Kept | None:
    from stepkeep.recording.coding_agents.transcripts import kept  # few keep them

    return kept(engine, session, event.transcript) if event.transcript else None


def _note(engine: Engine, session: SessionInfo, event: HookEvent, key: str | None) -> Header | None:
    """Let a tool's outcome wait, unless the last checkpoint is too long ago."""
    row = next(engine.backend.headers(HeaderQuery(session=session.uid, limit=1)), None)
    is_due = triggers.heartbeat_due(
        now_us=engine.clock(), last_us=session.updated_us, status=Status.IN_PROGRESS
    )
    if row is not None and not is_due:
        _wait(engine, session, event, key)
        return None
    trigger = _TRIGGERS[hook_events.TOOL] if row is None else _HEARTBEAT
    return save(engine, session, event, known(engine, session), trigger, key=key)


def _wait(engine: Engine, session: SessionInfo, event: HookEvent, key: str | None) -> None:
    data = msgspec.to_builtins(event.delta)
    if key is not None:
        if any(each.data.get("key") == key for each in engine.backend.events(session.uid)):
            return  # it was noted by who brought it in before
        data["key"] = key
    engine.backend.record_event(session.uid, WAITING, data, time_us=engine.clock())


def _is_repeated(engine: Engine, session: SessionInfo, event: HookEvent, before: Known) -> bool:
    """Whether this comes right after the last checkpoint and changes nothing."""
    if before.header is None:
        return False
    after = changed(before.now, event)
    return TriggerPath(engine, session.uid).is_repeated(
        _TRIGGERS[event.kind].event,
        Material(comparable(after), _status(event, after)),
        newest=before.header,
        was=Material(comparable(before.now), before.header.status),
        now_us=engine.clock(),
    )


def save(
    engine: Engine,
    session: SessionInfo,
    event: HookEvent,
    before: Known,
    trigger: Trigger,
    *,
    key: str | None = None,
    files: TreeCapture | None = None,
    transcript: Kept | None = None,
) -> Header:
    """Make a checkpoint of all that is known."""
    now = _with_environment(changed(before.now, event), event, before.last_event)
    if (
        event.kind == hook_events.PROMPT
    ):  # one that only repeats another, as where hooks are installed twice, comes not here
        now |= {"turn_number": before.now.get("turn_number", 0) + 1, "edited": []}
    tree = {} if files is None else {"tree": files.root}
    outcomes = [each.outcome for each in (*before.waiting, event) if each.outcome is not None]
    status = _status(event, now)
    header = engine.save(
        Save(
            session=session.uid,
            state=now,
            details=details(now, outcomes),
            files=files,
            bodies={} if transcript is None else transcript.bodies,
            blobs=() if transcript is None else transcript.blobs,
            idempotency_key=key,
            step=phase_number(now),
            status=status,
            trigger=trigger,
            message=summary(now),
            metadata={**metadata(now), **tree},
        )
    )
    if status is not Status.IN_PROGRESS:
        engine.finish(session.uid, status)
    return header


def _status(event: HookEvent, now: SessionState) -> Status:
    if event.kind != hook_events.END:
        return Status.IN_PROGRESS
    return Status.COMPLETED if is_work_done(now) else Status.PAUSED


def _with_environment(now: SessionState, event: HookEvent, last_event: int) -> SessionState:
    """The state with where the transcript ends, and what is checked out."""
    position, tail = environment.transcript_position(event.transcript)
    now = {
        **now,
        "client": event.client,
        "agent_session": event.session,
        "cwd": event.cwd.encode("utf-8", "replace").decode(),
        "events_seen": last_event,
    }
    if position is not None:
        now["transcript"] = position
    if start := _turn_start(now, event):
        now["turn_start"] = start
    if not event.message and (message := environment.last_message(tail, MAX_MESSAGE)):
        now["last_message"] = message
    if commit := environment.git_commit(event.cwd):
        now["git"] = commit
    return now


def _turn_start(now: SessionState, event: HookEvent) -> dict[str, Any] | None:
    """Where the transcript ended before the turn, and the id of the prompt as soon as it is there."""
    if event.kind == hook_events.PROMPT:
        begun = event.start or environment.turn_start(event.transcript, event.prompt)
        return {"entry": begun.entry, **msgspec.to_builtins(begun)}
    start = now.get("turn_start")
    if not isinstance(start, dict):
        return None
    if start.get("prompt_entry"):
        return start
    found = environment.prompt_entry(event.transcript, start.get("size_bytes", 0))
    return {**start, "prompt_entry": found} if found else start


def offered(engine: Engine, event: HookEvent, key: str) -> None:
    """Remember which work was offered to this agent, so that a yes can be told to be its own."""
    own, now_us = engine.backend.session_by_key(session_key(event)), engine.clock()
    work = engine.find_session(key)
    about = {"offered_to": session_key(event), "offered_us": now_us}
    engine.describe_session(work.uid, {"metadata": {**work.metadata, **about}})
    if own is not None and not own.metadata.get("continues"):
        about = {"offered": key, "offered_us": now_us}
        _held(engine, engine.describe_session(own.uid, {"metadata": {**own.metadata, **about}}), event)


def take_up(engine: Engine, key: str) -> tuple[SessionInfo, Known]:
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
