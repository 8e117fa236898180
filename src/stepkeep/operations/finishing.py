"""Ending or pausing a session."""

from __future__ import annotations

from stepkeep.api import Store
from stepkeep.errors import InvalidInput
from stepkeep.model import Status
from stepkeep.operations.views import SessionView, session_view


def finish(store: Store, key: str, status: Status, *, error: str | None = None) -> SessionView:
    """Set the status of a session: completed, failed, cancelled or paused."""
    session = store.get(key)
    match status:
        case Status.COMPLETED:
            return session_view(session.complete())
        case Status.FAILED:
            return session_view(session.fail(error))
        case Status.CANCELLED:
            return session_view(session.cancel())
        case Status.PAUSED:
            return session_view(session.pause())
        case _:
            raise InvalidInput(f"a session does not finish as {status}", code="invalid_status")
