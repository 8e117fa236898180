"""Opening a store by its URL, or the one that environment and configuration name."""

from __future__ import annotations

import os
from collections.abc import Callable

from stepkeep import config as configuration
from stepkeep.api.store import Store
from stepkeep.codec import exact
from stepkeep.codec.compression import Compression
from stepkeep.config import Settings
from stepkeep.config.settings import KEY_VARIABLES
from stepkeep.config.store_names import default_url
from stepkeep.errors import InvalidInput, NotFound
from stepkeep.model import utc_now_us
from stepkeep.storage.port import Backend, KeepsKeys, Key
from stepkeep.storage.urls import database_name, missing_location, open_backend


def open(
    url: str | os.PathLike[str] | None = None,
    *,
    config: Settings | None = None,
    keyframe_every: int | None = None,
    max_state_bytes: int = exact.MAX_BYTES,
    compression: str | Compression | None = None,
    clock: Callable[[], int] = utc_now_us,
    busy_seconds: float | None = None,
    create: bool = True,
    key: Key | os.PathLike[str] | None = None,
    encrypt: bool = False,
    locked: bool = False,
) -> Store:
    """Open a store, creating it if need be.

    `url` is `sqlite:PATH` (or just a path) or `memory:`. Without one: the environment's `STEPKEEP_STORE`, then the
    store that a configuration file names, then a database in the user's data folder. `config` replaces the
    settings from environment and files. `keyframe_every=1` stores full copies instead of deltas. States that
    encode to more than `max_state_bytes` are refused. `compression` replaces the setting `checkpoint.compression`, by a
    name or an object of one's own. `clock` gives the time in microseconds since 1970. `busy_seconds`
    is how long to wait for other processes that write to a file, a minute unless given. With `create=False` a store
    that is not there is an error, and nothing is made.

    An encrypted store is opened by `key`: a passphrase as text, a secret of 32 bytes or more, the path of a key file,
    or a `KeyService`; without one by what `STEPKEEP_KEY_FILE`, `STEPKEEP_KEY_COMMAND` or `STEPKEEP_KEY` name. With
    `encrypt` a store that is empty becomes an encrypted one, and any other must be one; a new database becomes one too
    while the environment names a key. With `locked` no key is looked for: an encrypted store can then be verified,
    backed up and pruned, and nothing in it read or written.

    Raises:
        InvalidInput: the configuration, the URL or an option makes no sense; there is no key (`key_missing`), or it
            opens nothing (`key_wrong`).
        NotFound: there is no such store (`store_not_found`), and `create` is False; or it is not encrypted, and a `key`
            is given (`not_encrypted`).
        Conflict: `encrypt` is given, and the store has sessions that are not encrypted (`store_not_empty`).
        Unsupported: a store of this kind cannot be encrypted (`encryption_unsupported`).
        BackendUnavailable: the command for the key failed (`key_unavailable`), or the store cannot be used.
    """
    if keyframe_every is not None and keyframe_every < 1:
        raise InvalidInput("keyframe_every counts checkpoints: 1 or more", code="invalid_option")
    settings = configuration.here() if config is None else config
    if isinstance(url, os.PathLike):
        url = f"sqlite:{os.fspath(url)}"
    settings = settings if url is None else settings.with_store(url)
    url = default_url(settings) if url is None else url
    if not create and (place := missing_location(url)) is not None:
        raise NotFound(f"no store at {place} yet: the first save creates it", code="store_not_found")
    if key is None and not encrypt and any(map(os.environ.get, KEY_VARIABLES)):
        encrypt = database_name(url) is not None and missing_location(url) is not None
    backend = open_backend(url, busy_seconds=busy_seconds)
    try:
        usable = backend
        if (
            encrypt
            or key is not None
            or (isinstance(backend, KeepsKeys) and backend.key_record() is not None)
        ):
            usable = _unlocked(backend, key, encrypt=encrypt, locked=locked, clock=clock)
    except BaseException:
        backend.close()
        raise
    return Store(
        usable,
        settings=settings,
        keyframe_every=keyframe_every,
        max_state_bytes=max_state_bytes,
        compression=compression,
        clock=clock,
    )


def _unlocked(
    backend: Backend,
    key: Key | os.PathLike[str] | None,
    *,
    encrypt: bool,
    locked: bool,
    clock: Callable[[], int],
) -> Backend:
    """An encrypted store as who has its key sees it. Most are not, and do not pay for importing this."""
    from stepkeep.api.keys import finder_of, not_encrypted
    from stepkeep.storage.key_slots import unlocked

    usable = unlocked(backend, finder_of(key), encrypt=encrypt, locked=locked, clock=clock)
    if key is not None and usable is backend:
        raise not_encrypted(backend)
    return usable
