"""Saving a state."""

from __future__ import annotations

from typing import TypedDict, Unpack

from stepkeep.api import SaveOptions, Session, Store
from stepkeep.errors import NotFound
from stepkeep.model import is_checkpoint_id
from stepkeep.operations.views import CheckpointView, checkpoint_views
from stepkeep.storage.urls import open_backend


class SessionFields(TypedDict):
    """What a save says of its session; None leaves it as it is."""

    profile: str | None
    project: str | None
    workflow: str | None
    test: bool | None


def save(
    store: Store,
    key: str,
    state: object,
    *,
    profile: str | None = None,
    project: str | None = None,
    workflow: str | None = None,
    test: bool | None = None,
    **options: Unpack[SaveOptions],
) -> CheckpointView:
    """Save a state as the next checkpoint of a session, which is created if need be.

    Input that is refused leaves nothing behind, not even an empty session.
    """
    fields = SessionFields(profile=profile, project=project, workflow=workflow, test=test)
    if any(value is not None for value in fields.values()) or not _has_session(store, key):
        _rehearse(key, state, fields, options)
    if options.get("expect_head") is not None:
        session = store.get(key)  # a head can be expected only of a session that exists
        options["expect_head"] = _head_named(session, str(options["expect_head"]))
    session = store.session(key, **fields)
    header = session.save(state, **options)
    return checkpoint_views(session.key, session, [header])[0]


def _has_session(store: Store, key: str) -> bool:
    try:
        store.get(key)
    except NotFound:
        return False
    return True


def _rehearse(key: str, state: object, fields: SessionFields, options: SaveOptions) -> None:
    """Do the same save in memory, where all that can be wrong with the input comes out."""
    rehearsed = options.copy()
    rehearsed.pop("expect_head", None)
    rehearsed.pop("requires", None)
    rehearsed.pop("parents", None)
    rehearsed.pop("fence", None)
    rehearsed.pop("workspace", None)
    with Store(open_backend("memory:")) as scratch:
        scratch.session(key, **fields).save(state, **rehearsed)


def _head_named(session: Session, text: str) -> str:
    """A full id as it is, so that an id which is not there is a conflict; the beginning of one resolved."""
    return text if is_checkpoint_id(text) else session.header(text).id
