"""Opening the store that a command means."""

from __future__ import annotations

from stepkeep import api, config
from stepkeep.api import Store
from stepkeep.errors import NotFound
from stepkeep.storage.urls import missing_place


def store_url(url: str | None = None) -> str:
    """The named store, or the one that a command uses when none is named."""
    return api.default_url(config.here()) if url is None else url


def open_store(url: str | None = None, *, create: bool = False) -> Store:
    """Open the named store, or the one that environment and configuration name, or the one in the data folder.

    Raises:
        InvalidInput: the configuration is wrong, whichever store is meant.
        NotFound: there is none, and `create` was not asked for. Nothing is made.
    """
    settings = config.here()
    url = api.default_url(settings) if url is None else url
    place = None if create else missing_place(url)
    if place is not None:
        raise NotFound(f"no store at {place} yet: the first save creates it", code="store_not_found")
    return api.open(url, config=settings)
