"""Creating a checkpoint by hand."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from stepkeep.api import SaveOptions, Session, Store
from stepkeep.errors import Conflict, InvalidInput, NotFound
from stepkeep.model import TriggerKind, check_name
from stepkeep.operations.choosing import Chosen, current_session
from stepkeep.operations.saving import save
from stepkeep.operations.views import CheckpointView, checkpoint_views

NO_STATE: Final[Any] = object()
"""Stands for: the state that the session has."""

MAX_TRIES: Final = 50


def session_here(store: Store, folder: Path) -> Chosen:
    """The session that work in a folder belongs to: the most recently updated one with a checkpoint whose project is
    that folder, else the nearest folder above it. Without any it is the current one.

    Hooks of coding agents keep the folder of their work as the project of a session.

    Raises:
        NotFound: there is no session at all.
    """
    for place in (folder, *folder.parents):
        with suppress(InvalidInput):  # a path that cannot be the name of a project is that of none
            project = check_name("a project", str(place))
            info = next((each for each in store.sessions(project=project) if each.last_seq), None)
            if info is not None:
                return Chosen(session=info.key, why=f"the most recently updated one of {place}")
    return current_session(store)


def create(
    store: Store,
    key: str,
    message: str,
    *,
    tags: Iterable[str] = (),
    step: int | None = None,
    state: Any = NO_STATE,
    workspace: str | None = None,
) -> CheckpointView:
    """Save a manual checkpoint: of the given state, else of the latest one of the session once more.

    The latest state keeps its step, details and metadata, and the session its status. When the latest is damaged, the
    newest intact one is saved, as it is shown. Nobody's save in between is covered up.

    Raises:
        InvalidInput: no state is given, and the session has none yet (`no_state`).
        Corrupt: there are checkpoints, and none of them verifies.
        Conflict: others save all the time.
    """
    options = SaveOptions(
        message=message, tags=list(tags), trigger=TriggerKind.MANUAL, step=step, workspace=workspace
    )
    if state is not NO_STATE:
        return save(store, key, state, **options)
    session = _existing(store, key)
    for _ in range(MAX_TRIES):
        try:
            return _save_again(session, options)
        except Conflict as exc:
            if exc.code != "head_moved":
                raise
    raise Conflict(f"others save into session {key!r} all the time: try again", session=key)


def _existing(store: Store, key: str) -> Session:
    try:
        return store.get(key)
    except NotFound:
        raise _no_state(key) from None


def _save_again(session: Session, options: SaveOptions) -> CheckpointView:
    info = session.info
    head = next((branch.head for branch in session.branches() if branch.name == info.branch), None)
    latest = session.latest()
    if latest is None:
        raise _no_state(session.key)
    again = options.copy()
    again["step"] = latest.step if options["step"] is None else options["step"]
    again["details"] = latest.details
    again["metadata"] = latest.header.metadata
    again["status"] = info.status
    again["expect_head"] = head
    header = session.save(latest.state, **again)
    return checkpoint_views(session.key, session, [header])[0]


def _no_state(key: str) -> InvalidInput:
    return InvalidInput(
        f"session {key!r} has no state to save again: give one by --state", code="no_state", session=key
    )
