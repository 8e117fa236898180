"""Answering the events of coding agents, on an ordinary store. `stepkeep.hooks` is the process around it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Final

import msgspec

from stepkeep import config
from stepkeep.api.opening import open
from stepkeep.api.store import Store
from stepkeep.config.settings import KEY_VARIABLES
from stepkeep.config.store_names import default_url
from stepkeep.errors import InvalidInput, StepkeepError
from stepkeep.recording.coding_agents import environment, hook_events, hook_process
from stepkeep.recording.coding_agents.responses import respond
from stepkeep.recording.coding_agents.spool import Spool, Spooled, spool_root
from stepkeep.storage.urls import database_name

if TYPE_CHECKING:
    from stepkeep.codec.encryption import Cipher

TIMEOUT_SECONDS: Final = 8
"""After so long a hook gives up, whatever it waits for, and keeps its event: clients end it after ten seconds."""

BUSY_SECONDS: Final = {hook_events.COMPACTION: 5.0, hook_events.TURN_END: 2.5}
OTHERS_BUSY_SECONDS: Final = 1.0
"""How long a hook waits for a store that others write to, by what its event means. The agent waits for the hook."""

MAX_LOG_BYTES: Final = 1 << 20
"""A larger write-ahead log is emptied: the next process reads all of it, and agents wait for their hooks."""


_REPAIRED: Final = InvalidInput("half characters in the input", code=hook_process.REPAIRED)


def answer_event(
    client: str, event: str, content: bytes | None, *, store: str | None, environ: Mapping[str, str]
) -> dict[str, Any] | None:
    """Answer an event with the store it is saved in; see `hook_answers.answer_hook`."""
    stores = _Stores(client, event, store, environ)
    try:
        answer = _answer(client, event, content, stores)
    except Exception as exc:  # the agent goes on, whatever it is
        answer = _told(stores, exc)
    return answer if answer or client in hook_events.ANSWERS_ALWAYS else None


def _answer(client: str, name: str, content: bytes | None, stores: _Stores) -> dict[str, Any]:
    with hook_process.Timeout(TIMEOUT_SECONDS, "nothing was saved"):
        content = hook_events.read_input(0) if content is None else content
        event = hook_events.read_event(client, name, content, cwd=_cwd() or "/")
        stores.event = event
        if event.is_repaired:
            stores.note(_REPAIRED, "half characters in the input were replaced; the event is saved")
        answer = respond(event, stores, stores.environ)
        stores.settle()
        return answer


class _Stores:
    """The stores that the answer to one event needs."""

    def __init__(self, client: str, name: str, url: str | None, environ: Mapping[str, str]) -> None:
        self.environ = environ
        self.client = client
        self.name = name
        self.event: hook_events.HookEvent | None = None
        self._is_saved = False
        self._kept: Spooled | None = None
        self._url = url or environ.get("STEPKEEP_STORE") or None
        self._opened: list[Store] = []
        self._own: Store | None = None
        self._loaded: config.Settings | None = None

    def own(self, *, create: bool = True) -> Store | None:
        """The agent's own store; None where it is not there and must not be made."""
        try:
            self._own = self._open(self._url, create=create)
        except StepkeepError as exc:
            if exc.code in hook_process.KEY_TROUBLE:
                with suppress(OSError):
                    self.spool.note_key_record(self.spool.key_record() or "")
            raise
        if (text := _key_record(self._own)) is not None:
            with suppress(OSError):
                self.spool.note_key_record(text)
        return self._own

    def phases(self) -> Store | None:
        """The phase checkpoints of other programs; None where there are none, or they cannot be used."""
        home = hook_process.phases_home(self.environ)
        if home is None:
            return None
        try:
            return self._open(f"files:{home}?layout=phase", create=False)
        except StepkeepError as exc:
            self.note(exc, f"the phase checkpoints in {home} cannot be used: {exc.message}")
            return None

    @property
    def spool(self) -> Spool:
        """The events that wait for the agent's own store."""
        url = self._url or default_url(self._settings())
        file = database_name(url)
        place = url if file is None else os.path.abspath(file)  # noqa: PTH100
        name = sha256(place.encode("utf-8", "replace")).hexdigest()[:32]
        return Spool(f"{self.spool_root}/{name}", self._cipher)

    @property
    def is_encrypted(self) -> bool:
        """Whether the agent's own store is; where it cannot be asked, whether it may be."""
        if self._own is not None:
            return getattr(self._own.engine.backend, "cipher", None) is not None
        return self.spool.key_record() is not None or any(self.environ.get(name) for name in KEY_VARIABLES)

    def _cipher(self) -> Cipher | None:
        """What encrypts the events that wait for the agent's own store; None where it is not encrypted.

        Raises:
            OSError: it is, and there is no key: nothing of the event may be written.
        """
        if not self.is_encrypted:
            return None  # if the store is not made yet, the first save will tell
        noted = self.spool.key_record()
        from stepkeep.config.key_sources import key_of
        from stepkeep.storage.key_slots import cipher_by, cipher_of

        try:
            if self._own is None and not noted:
                self.own()
            if self._own is not None:
                cipher = cipher_of(self._own.engine.backend)
                return None if cipher is None else cipher.outside()
            key = key_of(self.environ)
            if key is None or not noted:
                raise OSError("the store is encrypted, and there is no key")
            return cipher_by(noted, key).outside()
        except StepkeepError as exc:
            raise OSError("the store is encrypted, and its key cannot be used") from exc

    @property
    def spool_root(self) -> str:
        """The folder with the spools of all stores."""
        return spool_root(self.environ)

    def keep(self) -> Spooled | None:
        """Keep the event in the spool, once; None where that is not possible."""
        if self._kept is None and self.event is not None:
            with suppress(StepkeepError, OSError, ValueError):
                agent, start = environment.agent_process(), None
                if self.event.kind == hook_events.PROMPT:
                    start = environment.turn_start(self.event.transcript, self.event.prompt)
                self._kept = self.spool.put(msgspec.structs.replace(self.event, agent=agent, start=start))
        return self._kept

    def saved(self, *, by_another: bool = False) -> None:
        """The event is saved, or another process saves what is kept."""
        self._is_saved = True
        if self._kept is not None and not by_another:
            self._kept.done()

    def keeps_what_failed(self, exc: Exception) -> bool:
        """Whether the event that could not be saved is kept for the next hook, which may be able to."""
        nothing_to_save = (hook_events.START, hook_events.BEFORE_TOOL)
        if self._is_saved or self.event is None or self.event.kind in nothing_to_save:
            return False
        if isinstance(exc, InvalidInput):
            self.saved()  # no waiting helps
            return False
        kept = self.keep()
        if kept is not None:
            kept.leave()
        return kept is not None

    def _open(self, url: str | None, *, create: bool) -> Store | None:
        try:
            kind = "" if self.event is None else self.event.kind
            seconds = BUSY_SECONDS.get(kind, OTHERS_BUSY_SECONDS)
            store = open(url, config=self._settings(), busy_seconds=seconds, create=create)
        except StepkeepError as exc:
            if exc.code == "store_not_found":
                return None
            raise
        self._opened.append(store)
        return store

    def _settings(self) -> config.Settings:
        """As every command has them. Where the store is named, a wrong configuration keeps nobody from saving."""
        if self._loaded is None:
            environ = self.environ if self._url is None else {}
            try:
                self._loaded = config.load(
                    cwd=_cwd(), environ=environ, user_path=config.user_file(self.environ)
                )
            except InvalidInput:
                if self._url is None:
                    raise
                self._loaded = config.load(cwd=None, environ={})
        return self._loaded

    def note(self, exc: Exception, message: str) -> bool:
        """Note in the log of hooks what went wrong; whether the person should be told."""
        code = getattr(exc, "code", None)
        return hook_process.log_problem(
            self.environ,
            client=self.client,
            event=self.name,
            session="" if self.event is None else self.event.session,
            code=code if isinstance(code, str) else type(exc).__name__,
            message=message,
        )

    def settle(self) -> None:
        """Count and keep what is due; a store whose log is small stays open, because the process ends anyway."""
        for store in self._opened:
            with suppress(StepkeepError):
                if _has_small_log(store.url):
                    store._settle()
                else:
                    store.close()


def _key_record(store: Store | None) -> str | None:
    """What an encrypted store keeps of its keys; None of one that is not."""
    if store is None or getattr(store.engine.backend, "cipher", None) is None:
        return None
    from stepkeep.storage.key_slots import record_of

    return record_of(store.engine.backend)


def _cwd() -> str | None:
    """The working directory; None when it was removed under us."""
    try:
        return os.getcwd()  # noqa: PTH109
    except OSError:
        return None


def _has_small_log(url: str) -> bool:
    file = database_name(url)
    try:
        return file is not None and os.stat(f"{file}-wal").st_size < MAX_LOG_BYTES  # noqa: PTH116
    except OSError:
        return False


def _told(stores: _Stores, exc: Exception) -> dict[str, Any]:
    message = str(exc) or type(exc).__name__
    is_kept = stores.keeps_what_failed(exc)
    # A turn has many tools: trouble that lasts is told once in a while, not at every one of them.
    try:
        is_encrypted = stores.is_encrypted
    except StepkeepError:  # which store it is cannot be told
        is_encrypted = True
    logged = hook_process.loggable(exc, is_encrypted=is_encrypted)
    is_news = stores.note(exc, f"kept for the next event: {logged}" if is_kept else logged)
    what = (
        "Stepkeep could not save yet, and keeps it for the next event,"
        if is_kept
        else "Stepkeep saved nothing"
    )
    return {"systemMessage": f"{what} at {stores.name[:80]}: {message[:500]}"} if is_news else {}
