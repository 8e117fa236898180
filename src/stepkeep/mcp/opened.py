"""The store of a server, opened when it is first needed.

A store that cannot be opened is an error of the call that needed it, which a model can read, and not the end of the
server: the next call tries again.
"""

from __future__ import annotations

import threading

from stepkeep import operations
from stepkeep.api import Store


class OpenedStore:
    """A store by its URL; safe for the threads that calls run on."""

    def __init__(self, url: str | None = None, *, store: Store | None = None) -> None:
        self._url = url
        self._store = store
        self._lock = threading.Lock()

    def get(self) -> Store:
        """The store, or what keeps it from being opened."""
        with self._lock:
            if self._store is None:
                self._store = operations.open_store(self._url, create=True)
            return self._store

    def close(self) -> None:
        with self._lock:
            store, self._store = self._store, None
        if store is not None:
            store.close()
