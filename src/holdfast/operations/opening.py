"""Opening the store that a command means."""

from __future__ import annotations

from holdfast import api, config
from holdfast.api import Store
from holdfast.errors import NotFound
from holdfast.storage.urls import database_file


def open_store(url: str | None = None, *, create: bool = False) -> Store:
    """Open the named store, or the one that environment and configuration name, or the one in the data folder.

    Raises:
        InvalidInput: the configuration is wrong, whichever store is meant.
        NotFound: there is none, and `create` was not asked for. Nothing is made.
    """
    settings = config.here()
    url = api.default_url(settings) if url is None else url
    file = database_file(url)
    if not create and file is not None and not file.exists():
        raise NotFound(f"no store at {file} yet: the first save creates it", code="store_not_found")
    return api.open(url, config=settings)
