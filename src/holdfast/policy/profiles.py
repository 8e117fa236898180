"""Profiles: named sets of defaults for the history of a session."""

from __future__ import annotations

from typing import Final

import msgspec

from holdfast.errors import InvalidInput


class Profile(msgspec.Struct, frozen=True):
    """How much history a session keeps: the last `keep_last` checkpoints, None for all of them."""

    name: str
    keep_last: int | None


PROFILES: Final = {
    profile.name: profile
    for profile in (
        Profile("standard", 100),
        Profile("workflow", 10),
        Profile("run", 50),
        Profile("debug", 100),
        Profile("phase", None),
        Profile("agent", 10),
        Profile("archive", None),
    )
}


def profile_named(name: str) -> Profile:
    try:
        return PROFILES[name]
    except KeyError:
        raise InvalidInput(
            f"no profile {name!r}: choose one of {', '.join(PROFILES)}", code="unknown_profile"
        ) from None
