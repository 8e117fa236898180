"""Which session is meant, where a user names none or may have named a checkpoint instead."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from itertools import islice
from pathlib import Path

import msgspec

from stepkeep.api.store import Store
from stepkeep.errors import InvalidInput, NotFound
from stepkeep.history import refs
from stepkeep.history.times import zone_named
from stepkeep.model import check_name
from stepkeep.storage.port import HeaderQuery


class Chosen(msgspec.Struct, frozen=True, kw_only=True):
    """A session, and what of the given words are refs. `why` is set when nobody named the session."""

    session: str
    refs: tuple[str, ...] = ()
    why: str | None = None


def choose(store: Store, words: Sequence[str], *, fallback: str | None = None) -> Chosen:
    """The session and the refs that words stand for: `SESSION REF…` or only `REF…`.

    The first word is the session if there is one with that key. If it is a ref instead, the session is `fallback`,
    else that of the checkpoint if its id is given, else the current one.

    Raises:
        NotFound: there is no such session, or none at all.
        InvalidInput: the first word is a time that there is not.
    """
    if words and _has_session(store, words[0]):
        return Chosen(session=words[0], refs=tuple(words[1:]))
    if words and not _is_ref(store, words[0]):
        store.get(words[0])
    if fallback is not None:
        return Chosen(session=fallback, refs=tuple(words))
    for word in words[:1]:
        if (key := _session_of(store, word)) is not None:
            return Chosen(session=key, refs=tuple(words), why=f"the one with {word}")
    current = current_session(store)
    return msgspec.structs.replace(current, refs=tuple(words))


def current_session(store: Store) -> Chosen:
    """The most recently updated session of the configured project; without one, of the store.

    Raises:
        NotFound: there is none.
    """
    project = store.settings["project"]
    info = next(store.sessions(project=project, limit=1), None)
    if info is None:
        where = "this store" if project is None else f"project {project!r}"
        raise NotFound(
            f"{where} has no session yet: name one by --session or in STEPKEEP_SESSION",
            code="session_not_found",
        )
    of = "" if project is None else f" of project {project}"
    return Chosen(session=info.key, why=f"the most recently updated one{of}")


def session_here(store: Store, folder: Path) -> Chosen:
    """The session that work in a folder belongs to: the most recently updated one with a checkpoint whose project is
    that folder, else the nearest folder above it. Without any it is the current one.

    Hooks of coding agents keep the folder of their work as the project of a session.

    Raises:
        NotFound: there is no session at all.
    """
    for place in (folder, *folder.parents):
        with suppress(InvalidInput):  # a path that cannot be the name of a project is that of none
            project = check_name("a project", str(place))
            info = next((each for each in store.sessions(project=project) if each.last_seq), None)
            if info is not None:
                return Chosen(session=info.key, why=f"the most recently updated one of {place}")
    return current_session(store)


def _has_session(store: Store, key: str) -> bool:
    try:
        store.get(key)
    except NotFound:
        return False
    return True


def _is_ref(store: Store, word: str) -> bool:
    zone = zone_named(store.settings["time.zone"])
    try:
        refs.parse(word, now_us=store.engine.clock(), zone=zone)
    except InvalidInput as exc:
        if exc.code != "invalid_ref":
            raise
        return False
    return True


def _session_of(store: Store, word: str) -> str | None:
    """The only session that has a checkpoint whose id begins so."""
    if not word.startswith("cp_"):
        return None
    rows = islice(store.engine.backend.headers(HeaderQuery(id_prefix=word, limit=100)), 100)
    uids = {row.session for row in rows}
    return store.engine.backend.session(uids.pop()).key if len(uids) == 1 else None
