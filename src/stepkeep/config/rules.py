"""Which rules hold for a session: its profile's, changed by the configuration, changed by its own policy."""

from __future__ import annotations

from stepkeep.config.settings import Settings
from stepkeep.model import SessionInfo
from stepkeep.policy.profiles import profile_named, retention_for
from stepkeep.policy.retention import Retention

CLEANUP = "cleanup"
"""The key of a session's policy that speaks of the session as a whole; the others are rules for its history."""


def retention_of(settings: Settings, session: SessionInfo) -> Retention:
    """Which checkpoints of a session stay. Of each rule the session's own word counts, then the configuration's.

    The configuration does not touch a profile that keeps everything, as `archive` does.

    Raises:
        InvalidInput: the session's profile or policy makes no sense; nothing may be removed.
    """
    own = {key: value for key, value in (session.policy or {}).items() if key != CLEANUP}
    if not profile_named(session.profile).is_cleaned:
        return retention_for(session.profile, own)
    return retention_for(session.profile, settings.retention_overrides(session.profile) | own)


def compresses(settings: Settings, session: SessionInfo) -> bool:
    """Whether states of a session are compressed where they are stored whole."""
    return session.profile != "agent" or bool(settings["agent.checkpoints.compress_state"])
