"""What pages may change, where the command allows it: by name, a function that calls the api and returns its value.

What comes from a request names sessions, checkpoints, branches and messages, never a file: project files are restored
only in the tree that they were captured in, and only where the server was started inside it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeAlias

import msgspec

from stepkeep import api, typed
from stepkeep.errors import InvalidInput

MAX_PREVIEWED: Final = 50
"""How many changes are shown before a session is restored."""

Action: TypeAlias = Callable[[api.Store, "Request"], object]


class Request(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The body of a request; each action takes the fields that it needs."""

    key: str
    ref: str | None = None
    name: str | None = None
    message: str = ""
    tags: tuple[str, ...] = ()
    dry_run: bool = False
    force: bool = False
    confirm: str | None = None
    answer: msgspec.Raw = msgspec.Raw(b"null")

    @property
    def wanted(self) -> str:
        if self.ref is None:
            raise InvalidInput("which checkpoint? ref is missing", code="invalid_query")
        return self.ref

    def check_confirmed(self) -> None:
        """What removes a session needs its key once more."""
        if self.confirm != self.key:
            raise InvalidInput(
                "confirm by the key of the session", code="confirmation_needed", session=self.key
            )


def _create(store: api.Store, request: Request) -> object:
    session = store.get(request.key)
    return session.describe(session.save_again(request.message, tags=request.tags))


def _delete(store: api.Store, request: Request) -> object:
    if request.ref is not None:
        return store.get(request.key).delete(request.ref)
    request.check_confirmed()
    return store.get(request.key).clear()


def _restore(store: api.Store, request: Request) -> object:
    """Go back to a checkpoint; a dry run tells what leads from the latest state to that one."""
    session = store.get(request.key)
    if request.dry_run:
        return session.diff("latest", request.wanted, limit=MAX_PREVIEWED).view()
    return session.restore(request.wanted, branch=request.name, compare=True)


def _files(store: api.Store, request: Request) -> object:
    files = store.get(request.key).files
    return files.restore(request.wanted, dry_run=request.dry_run, force=request.force)


def _undo(store: api.Store, request: Request) -> object:
    """Take back whichever was restored last: the session, project files, or both."""
    return store.get(request.key).undo(force=request.force, compare=True)


def _prune(store: api.Store, request: Request) -> object:
    return store.get(request.key).prune(dry_run=request.dry_run)


def _complete(store: api.Store, request: Request) -> object:
    session = store.get(request.key)
    return session.summary(session.complete())


def _approve(store: api.Store, request: Request) -> object:
    return store.approve(request.key, msgspec.json.decode(request.answer), step=request.name)


def _refuse(store: api.Store, request: Request) -> object:
    return store.refuse(request.key, msgspec.json.decode(request.answer), step=request.name)


ACTIONS: Final[dict[str, Action]] = {
    "create": _create,
    "fork": lambda store, request: store.get(request.key).branches.fork(request.wanted, request.name),
    "restore": _restore,
    "undo": _undo,
    "restore_files": _files,
    "approve": _approve,
    "refuse": _refuse,
    "complete": _complete,
    "prune": _prune,
    "delete": _delete,
}
"""Everything that pages can do, by name."""


def read_request(body: bytes) -> Request:
    """The request in a body.

    Raises:
        InvalidInput: it is none (`invalid_query`).
    """
    try:
        return typed.from_json(body, Request)
    except (msgspec.MsgspecError, UnicodeDecodeError) as exc:
        raise InvalidInput(f"the request cannot be read: {exc}", code="invalid_query") from exc
