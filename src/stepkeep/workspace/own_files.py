"""Which files of a workspace belong to the store: they are no part of the project, and never captured."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Final

from stepkeep.storage.urls import database_file, directory_of

DATABASE_ENDINGS: Final = (
    "",
    "-wal",
    "-shm",
    "-journal",
    "-reserve",
    ".metrics",
    ".metrics-wal",
    ".metrics-shm",
    ".metrics-journal",
)
"""What follows the name of a database in the names of all files that a SQLite store makes."""


def own_files(url: str, root: str) -> frozenset[str]:
    """The files and folders of the store with that URL that lie below a root, relative to it, there or not."""
    places = (os.path.relpath(place, root) for place in _places(url, root))
    return frozenset(place for place in places if place != os.curdir and place.split("/")[0] != os.pardir)


def _places(url: str, root: str) -> Iterator[str]:
    if (file := database_file(url)) is not None:
        # Where the name is a link, the log is beside what it leads to, and the rest beside the link.
        beside = f"{os.path.realpath(file.parent)}/{file.name}"
        for place in {os.path.realpath(file), beside}:
            yield from (place + ending for ending in DATABASE_ENDINGS)
    elif (directory := directory_of(url)) is not None:
        place = os.path.realpath(directory)
        yield place
        if place == root:
            yield from (f"{place}/{name}" for name in _folders(url))


def _folders(url: str) -> Iterator[str]:
    """The folders inside a store of files; one that is the workspace itself owns only these."""
    from stepkeep.codec.readable import Layout
    from stepkeep.storage.files.layouts import NAMES, SIDECAR

    yield SIDECAR
    yield NAMES[Layout(url.rpartition("?layout=")[2])].top
