"""Which rules hold for a session: its profile's, changed by the configuration, changed by its own policy."""

from __future__ import annotations

from holdfast.config.settings import Settings
from holdfast.model import Session
from holdfast.policy.cleanup import CleanupPolicies
from holdfast.policy.profiles import retention_for
from holdfast.policy.retention import Retention

CLEANUP = "cleanup"
"""The key of a session's policy that speaks of the session as a whole; the others are rules for its history."""


def retention_of(settings: Settings, session: Session) -> Retention:
    """Which checkpoints of a session stay. Of each rule the session's own word counts, then the configuration's.

    Raises:
        InvalidInput: the session's profile or policy makes no sense; nothing may be removed.
    """
    own = {key: value for key, value in (session.policy or {}).items() if key != CLEANUP}
    return retention_for(session.profile, settings.retention_overrides(session.profile) | own)


def policies_of(settings: Settings, session: Session) -> CleanupPolicies:
    """What the configuration says about cleaning this session; `policy.cleanup.decide` knows the rest."""
    return settings.cleanup_policies(session.profile)
