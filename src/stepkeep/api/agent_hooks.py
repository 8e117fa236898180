"""Answering the events of coding agents, on an ordinary store. `stepkeep.hooks` is the process around it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Final

from stepkeep import config
from stepkeep.api.opening import open
from stepkeep.api.store import Store
from stepkeep.errors import InvalidInput, StepkeepError
from stepkeep.recording.coding_agents import hook_events, hook_process
from stepkeep.recording.coding_agents.responses import respond
from stepkeep.storage.urls import database_name

TIMEOUT_SECONDS: Final = 10
"""After so long a hook gives up, whatever it waits for. Long enough that a busy machine still saves."""

BUSY_SECONDS: Final = 1.5
"""How long a hook waits for a store that others write to. The agent waits for the hook."""

MAX_LOG_BYTES: Final = 1 << 20
"""A larger write-ahead log is emptied: the next process reads all of it, and agents wait for their hooks."""


def answer_hook(
    client: str,
    event: str,
    content: bytes | None = None,
    *,
    store: str | None = None,
    environ: Mapping[str, str] = os.environ,
) -> dict[str, Any] | None:
    """Save what an event of a coding agent tells, and answer as its client expects; None is no answer at all.

    `content` is the JSON of the event, read from standard input unless given. Never raises: what goes wrong is noted in
    the log of hooks, and told to the person in the answer, now and then. Stores stay open, but for a large log.
    """
    stores = _Stores(store, environ)
    try:
        answer = _answer(client, event, content, stores)
    except Exception as exc:  # the agent goes on, whatever it is
        answer = _told(client, event, stores, exc)
    return answer if answer or client in hook_events.ANSWERS_ALWAYS else None


def _answer(client: str, name: str, content: bytes | None, stores: _Stores) -> dict[str, Any]:
    with hook_process.Timeout(TIMEOUT_SECONDS, "nothing was saved"):
        content = hook_events.read_input(0) if content is None else content
        event = hook_events.read_event(client, name, content, cwd=_cwd() or "/")
        stores.session = event.session
        answer = respond(event, stores, stores.environ)
        stores.settle()
        return answer


class _Stores:
    """The stores that the answer to one event needs."""

    def __init__(self, url: str | None, environ: Mapping[str, str]) -> None:
        self.environ = environ
        self.session = ""
        self._url = url or environ.get("STEPKEEP_STORE") or None
        self._opened: list[Store] = []

    def open(self, url: str | None = None, *, create: bool = True) -> Store | None:
        """The agent's own store, or another one; None where it is not there and must not be made."""
        try:
            store = open(url or self._url, config=self._settings(), busy_seconds=BUSY_SECONDS, create=create)
        except StepkeepError as exc:
            if exc.code == "store_not_found":
                return None
            raise
        self._opened.append(store)
        return store

    def _settings(self) -> config.Settings:
        """As every command has them. Where the store is named, a wrong configuration keeps nobody from saving."""
        try:
            return config.load(
                cwd=_cwd(),
                environ=self.environ if self._url is None else {},
                user_path=config.user_file(self.environ),
            )
        except InvalidInput:
            if self._url is None:
                raise
            return config.load(cwd=None, environ={})

    def settle(self) -> None:
        """Count and keep what is due; a store whose log is small stays open, because the process ends anyway."""
        for store in self._opened:
            with suppress(StepkeepError):
                if _has_small_log(store.url):
                    store._settle()
                else:
                    store.close()


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


def _told(client: str, event: str, stores: _Stores, exc: Exception) -> dict[str, Any]:
    code = getattr(exc, "code", None)
    code = code if isinstance(code, str) else type(exc).__name__
    message = str(exc) or type(exc).__name__
    is_news = hook_process.log_problem(
        stores.environ, client=client, event=event, session=stores.session, code=code, message=message
    )
    # A turn has many tools: trouble that lasts is told once in a while, not at every one of them.
    return {"systemMessage": f"Stepkeep saved nothing at {event[:80]}: {message[:500]}"} if is_news else {}
