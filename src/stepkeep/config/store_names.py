"""Which store is meant where none is named, and how a printed command names another one."""

from __future__ import annotations

from stepkeep import config
from stepkeep.config.settings import Settings, data_folder
from stepkeep.errors import InvalidInput
from stepkeep.storage.urls import database_file, directory_of


def default_url(settings: Settings | None = None) -> str:
    """The store used when none is named: that of the settings, else the one in the user's data folder."""
    url = (config.here() if settings is None else settings).store_url()
    return f"sqlite:{data_folder()}/stepkeep.db" if url is None else url


def store_to_name(url: str, settings: Settings) -> str | None:
    """How a command that is run later, from any folder, names a store; None for the one it takes without a name."""
    url, default = _anywhere(url), _anywhere(default_url(settings))
    return None if url in (default, "memory:") else url


def store_option(url: str, settings: Settings | None = None) -> str:
    """` --store URL` for a printed command; empty where it takes that store without a name."""
    import shlex

    try:
        name = store_to_name(url, config.here() if settings is None else settings)
    except InvalidInput:  # the configuration here is broken
        name = url
    return "" if name is None else f" --store {shlex.quote(name)}"


def _anywhere(url: str) -> str:
    """The URL of a store as it reads in every folder."""
    if (file := database_file(url)) is not None:
        return f"sqlite:{file.resolve()}"
    if (directory := directory_of(url)) is not None:
        query = url.partition("?")[2]
        return f"files:{directory.resolve()}{query and f'?{query}'}"
    return url
