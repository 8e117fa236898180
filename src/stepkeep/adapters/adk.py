"""Sessions of Google's Agent Development Kit: `StepkeepSessionService`. It needs `pip install stepkeep[adk]`.

```python
service = StepkeepSessionService("sqlite:agents.db")
runner = Runner(app_name="shop", agent=agent, session_service=service)
```

A session of ADK is a session of the store: its state has the events and ADK's state of that session, one checkpoint per
event. State that begins with `app:` or `user:` belongs to all sessions, and is in sessions of its own.
"""

from __future__ import annotations

import uuid
from operator import itemgetter
from typing import Any, Final

from google.adk.errors import InvocationNotFoundError, StaleSessionError
from google.adk.errors.already_exists_error import AlreadyExistsError
from google.adk.errors.session_not_found_error import SessionNotFoundError
from google.adk.events import Event
from google.adk.sessions import BaseSessionService, Session
from google.adk.sessions.base_session_service import GetSessionConfig, ListSessionsResponse
from google.adk.sessions.state import State

from stepkeep.adapters.session_head import (
    Change,
    Head,
    HeadsOwner,
    detached,
    key_of,
    message_of,
    part_of,
    settled,
    stored_value,
)
from stepkeep.api import Checkpoint, SaveOptions

FRAMEWORK: Final = "adk"
APP: Final = "adk-app"
USER: Final = "adk-user"
EVENTS: Final = "events"
STATE: Final = "state"
UPDATED: Final = "last_update_time"
_id: Final = itemgetter("id")


class StepkeepSessionService(HeadsOwner, BaseSessionService):  # type: ignore[misc]
    """Sessions of ADK in a Stepkeep store, for any number of processes.

    `store` is an open store, or the URL of one, which is then opened here and closed by `close`. An event is appended
    to the very checkpoint that the caller's session was read at, or `StaleSessionError` tells that someone else was
    there first: no clocks are compared. Every checkpoint has the whole session; `retention` says how many stay.
    """

    async def create_session(
        self,
        *,
        app_name: str,
        user_id: str,
        state: dict[str, Any] | None = None,
        session_id: str | None = None,
    ) -> Session:
        """A new session.

        Raises:
            AlreadyExistsError: there is one with that id.
        """
        id = (session_id or "").strip() or str(uuid.uuid4())
        await settled(self._create, app_name, user_id, id, _scoped(state or {}))
        found = await self.get_session(app_name=app_name, user_id=user_id, session_id=id)
        if found is None:
            raise SessionNotFoundError(f"Session {id} not found.")  # someone deleted it right away
        return found

    async def get_session(
        self, *, app_name: str, user_id: str, session_id: str, config: GetSessionConfig | None = None
    ) -> Session | None:
        """The session with its events, or with those that the config asks for; None if there is none.

        Raises:
            Corrupt: it is damaged. No older one is taken instead.
        """
        return await settled(self._get, app_name, user_id, session_id.strip(), config)

    async def list_sessions(self, *, app_name: str, user_id: str | None = None) -> ListSessionsResponse:
        """The sessions of a user or of all, without their events, the one that was used last at the end."""
        found = await settled(self._list, app_name, user_id)
        return ListSessionsResponse(sessions=found)

    async def delete_session(self, *, app_name: str, user_id: str, session_id: str) -> None:
        """Remove a session with all its bytes."""
        await settled(self._heads.remove, key_of(FRAMEWORK, app_name, user_id, session_id.strip()))

    async def get_user_state(self, *, app_name: str, user_id: str) -> dict[str, Any]:
        return await settled(self._shared, key_of(USER, app_name, user_id))

    async def append_event(self, session: Session, event: Event) -> Event:
        """Save an event durably, and what it changes. One that is there already is not stored again.

        Raises:
            StaleSessionError: the session was changed since the caller read it.
            SessionNotFoundError: it was deleted.
        """
        if event.partial:
            return event
        self._apply_temp_state(session, event)
        event = self._trim_temp_delta_state(event)
        head = await settled(self._append, session, event)
        if head is None:
            return event
        session._storage_update_marker = head
        session.last_update_time = event.timestamp
        return self._commit_event_to_session(session, event)

    async def rewind(self, session: Session, before_invocation: str) -> Session:
        """Let a session go on from before an invocation, exactly as it was; what came after stays on its branch.

        State of `app:` and `user:` belongs to other sessions too, and stays as it is.

        Raises:
            InvocationNotFoundError: the session has no event of it.
            NotFound: the checkpoint before it was pruned.
        """
        await settled(self._rewind, session, before_invocation)
        found = await self.get_session(
            app_name=session.app_name, user_id=session.user_id, session_id=session.id
        )
        if found is None:
            raise SessionNotFoundError(f"Session {session.id} not found.")
        return found

    # --- the same on a thread

    def _create(self, app: str, user: str, id: str, state: dict[str, dict[str, Any]]) -> None:
        now = self.store.engine.clock() / 1e6

        def begin(head: Head) -> Change:
            if head.id is not None:
                raise AlreadyExistsError(f"Session with id {id} already exists.")
            return Change({EVENTS: [], STATE: state[FRAMEWORK], UPDATED: now}, SaveOptions(step=0))

        self._heads.change(key_of(FRAMEWORK, app, user, id), begin, project=app)
        self._share(app, user, state)

    def _get(self, app: str, user: str, id: str, config: GetSessionConfig | None) -> Session | None:
        found = self._heads.read(key_of(FRAMEWORK, app, user, id))
        if found is None:
            return None
        events = [Event.model_validate(event) for event in found.state[EVENTS]]
        if config is not None and config.num_recent_events is not None:
            events = events[max(0, len(events) - config.num_recent_events) :]
        if config is not None and config.after_timestamp is not None:
            events = [event for event in events if event.timestamp >= config.after_timestamp]
        return self._session(app, user, id, found, events)

    def _session(self, app: str, user: str, id: str, found: Checkpoint, events: list[Event]) -> Session:
        shared = {State.APP_PREFIX: key_of(APP, app), State.USER_PREFIX: key_of(USER, app, user)}
        state: dict[str, Any] = dict(found.state[STATE])
        for prefix, key in shared.items():
            state |= {prefix + name: value for name, value in self._shared(key).items()}
        session = Session(
            id=id,
            app_name=app,
            user_id=user,
            state=state,
            events=events,
            last_update_time=found.state[UPDATED],
        )
        session._storage_update_marker = found.id
        return session

    def _list(self, app: str, user: str | None) -> list[Session]:
        prefix = f"{key_of(FRAMEWORK, app, *([] if user is None else [user]))}/"
        sessions = []
        for info in self._heads.sessions(prefix):
            _, owner, id = map(part_of, info.key.removeprefix(f"{FRAMEWORK}:").split("/"))
            found = self._heads.read(info.key)
            if found is not None:  # it may have been deleted meanwhile
                sessions.append(self._session(app, owner, id, found, []))
        return sorted(sessions, key=lambda each: (each.last_update_time, each.user_id, each.id))

    def _append(self, session: Session, event: Event) -> str | None:
        """The checkpoint with the event; None if an earlier one has it."""
        key = key_of(FRAMEWORK, session.app_name, session.user_id, session.id)
        state = _scoped(event.actions.state_delta if event.actions else {})
        document = detached(event.model_dump(mode="json", exclude_none=True))
        if state[APP] or state[USER]:
            # Before the event: one that is lost is made again, and with it what it shares.
            found = self._heads.read(key)
            if found is not None and _appended(session, Head(found.id, found.state), document) is not None:
                self._share(session.app_name, session.user_id, state)

        def work(head: Head) -> Change | None:
            events = _appended(session, head, document)
            if events is None:
                return None
            changed = {
                EVENTS: events,
                STATE: head.state[STATE] | state[FRAMEWORK],
                UPDATED: event.timestamp,
            }
            return Change(changed, SaveOptions(step=len(events), message=_message(event)))

        header = self._heads.change(key, work)
        return None if header is None else header.id

    def _share(self, app: str, user: str, state: dict[str, dict[str, Any]]) -> None:
        """Store what an event or a new session changes for others."""

        def put(key: str, new: dict[str, Any]) -> None:
            if new:
                self._heads.change(key, lambda head: Change((head.state or {}) | new), project=app)

        put(key_of(APP, app), state[APP])
        put(key_of(USER, app, user), state[USER])

    def _shared(self, key: str) -> dict[str, Any]:
        return dict(self._heads.state(key) or {})

    def _rewind(self, session: Session, invocation: str) -> None:
        key = key_of(FRAMEWORK, session.app_name, session.user_id, session.id)
        state = self._heads.state(key)
        events = [] if state is None else state[EVENTS]
        for count, event in enumerate(events):
            if event.get("invocation_id") == invocation:
                self.store.get(key).restore(f"step-{count}")
                return
        raise InvocationNotFoundError(f"Invocation {invocation} not found in session {session.id}.")


def _appended(session: Session, head: Head, event: dict[str, Any]) -> list[Any] | None:
    """The events with one more; None if it is there. Raises unless the session was read at the head."""
    if head.id is None:
        raise SessionNotFoundError(f"Session {session.id} not found.")
    events: list[Any] = head.state[EVENTS]
    if event["id"] in map(_id, events) and event in events:
        return None
    marker = session._storage_update_marker
    # A session that did not come from here is known by its events.
    is_current = (
        [*map(_id, events)] == [each.id for each in session.events] if marker is None else marker == head.id
    )
    if not is_current:
        raise StaleSessionError(
            f"session {session.id} was changed since it was read: get it again, then decide what to append"
        )
    return [*events, event]


def _scoped(state: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """State by whom it belongs to, as it is stored; what is temporary belongs to nobody."""
    scoped: dict[str, dict[str, Any]] = {APP: {}, USER: {}, FRAMEWORK: {}}
    for name, value in state.items():
        if name.startswith(State.APP_PREFIX):
            scoped[APP][name.removeprefix(State.APP_PREFIX)] = stored_value(value)
        elif name.startswith(State.USER_PREFIX):
            scoped[USER][name.removeprefix(State.USER_PREFIX)] = stored_value(value)
        elif not name.startswith(State.TEMP_PREFIX):
            scoped[FRAMEWORK][name] = stored_value(value)
    return scoped


def _message(event: Event) -> str:
    parts = event.content.parts or () if event.content else ()
    texts = " ".join(part.text for part in parts if part.text)
    return message_of(f"{event.author}: {texts}" if texts else str(event.author))
