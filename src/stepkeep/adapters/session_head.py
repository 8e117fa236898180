"""The newest state of a session, changed by compare-and-set: what the adapters of frameworks are made of.

A framework that keeps conversations asks for two things: the newest state under a key, and a change of it that loses
nobody else's. `SessionHeads` has both. Each change is an ordinary save, so everything that works on sessions works on
what a framework saved. Synchronous work runs on threads by `settled`.
"""

from __future__ import annotations

import asyncio
import os
import random
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import suppress
from contextvars import copy_context
from functools import partial
from typing import Any, Final, ParamSpec, Self, TypeVar

import msgspec

from stepkeep import api
from stepkeep.api import Checkpoint, Header, RetentionRules, SaveOptions, Session, SessionInfo
from stepkeep.api.extension import Frozen, HeaderQuery, decode, encode, load_body
from stepkeep.errors import Conflict, Corrupt, InvalidInput, NotFound
from stepkeep.model import DETAILS
from stepkeep.text import clean, shortened

MAX_TRIES: Final = 200
"""How often a change is made anew while others save into the session. Others have to come in between each time."""

MAX_REMEMBERED: Final = 256
MAX_REMEMBERED_BYTES: Final = 64 * 1024 * 1024
"""How many states are remembered between changes, and what they may take together."""

KEEPS_ALL: Final = "archive"
"""The profile of new sessions: a framework believes that what it saved stays."""

MAX_MESSAGE: Final = 80
"""The text itself is in the state: of every checkpoint there is one line to know it by."""

P = ParamSpec("P")
R = TypeVar("R")


def key_of(framework: str, *parts: str) -> str:
    """The key of a session: `claude:project/session`. Different parts never make the same key."""
    escaped = (part.replace("%", "%25").replace("/", "%2F") for part in parts)
    return f"{framework}:{'/'.join(escaped)}"


def part_of(escaped: str) -> str:
    """One part of a key as it was given."""
    return escaped.replace("%2F", "/").replace("%25", "%")


def detached(value: Any) -> Any:
    """A copy that shares nothing with what the caller may change later; `InvalidInput` if it cannot be saved."""
    return decode(*encode(value))


def stored_value(value: Any) -> Any:
    """A value as it comes back: the same, or of an object what pydantic makes of it."""
    try:
        return detached(value)
    except InvalidInput as refusal:
        from pydantic_core import PydanticSerializationError, to_jsonable_python  # comes with the framework

        try:
            return detached(to_jsonable_python(value))
        except PydanticSerializationError:
            raise refusal from None


def message_of(text: str) -> str:
    """What was said as the message of a checkpoint: one line that a terminal can show."""
    return shortened(clean(text), MAX_MESSAGE)


class Change(msgspec.Struct, frozen=True):
    """What a session is to hold next, and how it is saved."""

    state: Any
    options: SaveOptions = {}


class Head(msgspec.Struct, frozen=True):
    """The newest checkpoint of a session: its id, its state and its details. All None where there is none yet."""

    id: str | None = None
    state: Any = None
    details: Any = None


class _Known(msgspec.Struct, frozen=True):
    """A session, if there is one, and its head."""

    session: Session | None = None
    head: Head = Head()
    size_bytes: int = 0


class SessionHeads:
    """The newest states of the sessions of a store. Safe for threads and several processes.

    `store` is an open store, or the URL of one, which is then opened here and closed by `close`. `retention` becomes
    the rules of every session that is changed here; without it a new session keeps everything.
    """

    def __init__(
        self, store: api.Store | str | os.PathLike[str], *, retention: RetentionRules | None = None
    ) -> None:
        self._owns_store = not isinstance(store, api.Store)
        self.store = store if isinstance(store, api.Store) else api.open(store)
        self._retention = retention
        self._locks = [threading.Lock() for _ in range(64)]
        self._memory_lock = threading.Lock()
        self._memory: OrderedDict[str, _Known] = OrderedDict()
        self._sessions: dict[str, Session] = {}  # those that were read
        self._saved: dict[str, Session] = {}  # and those that were saved into, which have the rules
        self._held_bytes = 0

    def read(self, key: str) -> Checkpoint | None:
        """The newest checkpoint of a session, None if it has none. Its state is the caller's to change.

        Raises:
            Corrupt: it is damaged. No older one is taken instead: an application would go on without knowing.
        """
        found = _used(self._sessions, key, Session.latest)
        if found is None:
            try:
                session = self.store.get(key)
                found = session.latest()
            except NotFound:
                return None
            _keep(self._sessions, key, session)
        if found is not None and found.fallback is not None:
            damaged, reason = found.fallback.failures[0]
            raise Corrupt(
                f"the newest checkpoint {damaged} of session {key!r} is damaged ({reason}); {found.id} is intact: "
                f"`stepkeep restore {key} {found.id}` goes on from there",
                session=key,
                checkpoint=damaged,
            )
        return found

    def state(self, key: str) -> Any | None:
        """The newest state of a session, None if it has none; `Corrupt` as `read`."""
        found = self.read(key)
        return None if found is None else found.state

    def details(self, key: str) -> Any | None:
        """The details of the newest checkpoint of a session, None if there are none; its state is not read.

        Raises:
            Corrupt: they are damaged.
        """
        engine = self.store.engine
        try:
            info = engine.find_session(key)
            branch = engine.backend.branch(info.uid, info.branch)
            if branch is None or branch.head is None:
                return None
            header = engine.header(branch.head, session=info.uid)
        except NotFound:
            return None
        if DETAILS not in header.contents:
            return None
        return decode(header.contents[DETAILS].encoding, load_body(engine.backend, header, DETAILS))

    def change(
        self, key: str, work: Callable[[Head], Change | None], *, project: str | None = None
    ) -> Header | None:
        """Save what `work` makes of the head of a session, which need not exist yet; nothing where it returns None.

        When someone else saved meanwhile, `work` is called again with what they saved. So it only computes, changes
        nothing it is given, and shares nothing with its caller: states are remembered between changes.

        Raises:
            Conflict: others save all the time.
            Corrupt: the newest state is damaged.
        """
        with self._locks[hash(key) % len(self._locks)]:
            known, change = self._take(key) or _Known(), None
            if known.session is not None:
                with suppress(
                    Exception
                ):  # only a save proves that it is still the newest, nothing else counts
                    change = work(known.head)
            for tries in range(MAX_TRIES):
                if change is None:
                    known = self._known(key)
                    change = work(known.head)
                if change is None:
                    self._remember(key, known)
                    return None
                try:
                    return self._save(key, known, change, project)
                except (Conflict, NotFound) as exc:
                    if exc.code not in ("head_moved", "session_not_found"):
                        raise
                change = None
                time.sleep(random.random() * 0.001 * 2 ** min(tries, 6))
        raise Conflict(f"others save into session {key!r} all the time: try again", session=key)

    def _save(self, key: str, known: _Known, change: Change, project: str | None) -> Header:
        """Save a change of a head that is still the newest."""
        session = known.session
        options = change.options | SaveOptions(expect_head=known.head.id)
        if session is None:
            session, header = self.begin(key, Frozen(change.state), options, project=project)
        else:
            header = session.save(Frozen(change.state), **options)
        head = Head(header.id, change.state, change.options.get("details"))
        self._remember(key, _Known(session, head, header.size_bytes))
        return header

    def save(self, key: str, state: Any, options: SaveOptions) -> Header:
        """Save into a session that need not exist yet, whatever its head is."""
        saved = _used(self._saved, key, lambda session: session.save(state, **options))
        if saved is None:
            session, saved = self.begin(key, state, options)
            _keep(self._saved, key, session)
        return saved

    def replace(self, key: str, state: Any, options: SaveOptions, remove: Callable[[], object]) -> None:
        """Save under an external id; a checkpoint that has it already is removed first, by `remove`."""
        try:
            self.save(key, state, options)
        except Conflict as exc:
            if exc.code != "external_id_exists":
                raise
            remove()
            self.save(key, state, options)

    def opened(self, key: str, *, project: str | None = None) -> Session:
        """A session, made if there is none. A new one keeps everything, unless rules were given."""
        return self.store.session(key, retention=self._retention, **self._of_new(key, project))

    def begin(
        self, key: str, state: Any, options: SaveOptions, *, project: str | None = None
    ) -> tuple[Session, Header]:
        """Save into a session that need not exist yet. What is refused leaves nothing behind, not even a session."""
        header = self.store.save(key, state, **self._of_new(key, project), **options)
        return self.store.session(key, retention=self._retention), header

    def _of_new(self, key: str, project: str | None) -> dict[str, Any]:
        """What a session is made with; nothing if it is there."""
        is_there = self.store.engine.session_with(key) is not None
        return {} if is_there else {"profile": KEEPS_ALL, "project": project}

    def _known(self, key: str) -> _Known:
        found = self.read(key)
        if self.store.engine.session_with(key) is None:
            return _Known()
        session = self.store.session(key, retention=self._retention)
        if found is None:
            return _Known(session)
        return _Known(session, Head(found.id, found.state, found.details), found.header.size_bytes)

    def history(self, key: str) -> list[Header]:
        """The headers of a session, oldest first; none if there is no session.

        Raises:
            Corrupt: one of them is damaged.
        """
        info = self.store.engine.session_with(key)
        return [] if info is None else self.headers(HeaderQuery(session=info.uid, newest_first=False))

    def headers(self, query: HeaderQuery) -> list[Header]:
        """The headers that a query finds.

        Raises:
            Corrupt: one of them is damaged. It is not left out: an application would not know.
        """
        broken: list[Any] = []
        found = list(self.store.engine.headers(query, broken=broken))
        for _, error in broken:
            raise error
        return found

    def sessions(self, prefix: str) -> Iterator[SessionInfo]:
        """Sessions with a checkpoint whose keys begin so, most recently used first."""
        return (info for info in self.store.sessions(prefix=prefix) if info.stored_count)

    def remove(self, key: str) -> bool:
        """Remove a session for good; False if there is none."""
        with self._locks[hash(key) % len(self._locks)]:
            self._take(key)
            try:
                self.store.get(key).clear()
            except NotFound:
                return False
            return True

    def close(self) -> None:
        """Close the store if it was opened here."""
        if self._owns_store:
            self.store.close()

    # --- what is remembered: the objects of a state, so that of the next one only what is new is encoded

    def _take(self, key: str) -> _Known | None:
        with self._memory_lock:
            known = self._memory.pop(key, None)
            self._held_bytes -= 0 if known is None else known.size_bytes
            return known

    def _remember(self, key: str, known: _Known) -> None:
        if known.size_bytes > MAX_REMEMBERED_BYTES:
            return
        with self._memory_lock:
            self._memory[key] = known
            self._held_bytes += known.size_bytes
            while len(self._memory) > MAX_REMEMBERED or self._held_bytes > MAX_REMEMBERED_BYTES:
                _, oldest = self._memory.popitem(last=False)
                self._held_bytes -= oldest.size_bytes


def _used(sessions: dict[str, Session], key: str, use: Callable[[Session], R]) -> R | None:
    """What a session that was kept gives; None if none was, or it was removed since."""
    session = sessions.get(key)
    if session is None:
        return None
    try:
        return use(session)
    except NotFound as exc:
        if exc.code != "session_not_found":
            raise
        return None


def _keep(sessions: dict[str, Session], key: str, session: Session) -> None:
    if len(sessions) >= MAX_REMEMBERED:
        sessions.clear()
    sessions[key] = session


class HeadsOwner:
    """An object of a framework whose sessions are in a store: closing it closes the store that it opened."""

    def __init__(
        self, store: api.Store | str | os.PathLike[str], *, retention: RetentionRules | None = None
    ) -> None:
        self._heads = SessionHeads(store, retention=retention)

    @property
    def store(self) -> api.Store:
        """The store that holds the sessions."""
        return self._heads.store

    def close(self) -> None:
        """Close the store if this object opened it."""
        self._heads.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await settled(self.close)


async def settled(work: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
    """Run synchronous work on a thread. A caller that is cancelled goes on when the work is settled, never before.

    So no save of a cancelled caller lands after what comes next. Under trio it is the same.
    """
    call = partial(copy_context().run, partial(work, *args, **kwargs))
    try:
        loop = asyncio.get_running_loop()
    except RuntimeError:
        from anyio import to_thread  # comes with every SDK that runs under trio

        return await to_thread.run_sync(call)
    done = loop.run_in_executor(None, call)
    cancelled: asyncio.CancelledError | None = None
    while not done.done():
        try:
            await asyncio.wait([done])
        except asyncio.CancelledError as exc:
            cancelled = exc
    if cancelled is not None:
        done.exception()  # looked at: the cancellation is what the caller learns
        raise cancelled
    return done.result()
