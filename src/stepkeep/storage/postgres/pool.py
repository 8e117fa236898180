"""Connections that wait for their next use. None of them survives a fork, and there is no thread behind them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import psycopg
from psycopg.pq import TransactionStatus

from stepkeep.errors import BackendUnavailable
from stepkeep.storage.postgres.connection import Raw


class Pool:
    """At most `size` connections at once; who finds none free waits, for at most `wait_seconds`."""

    def __init__(self, connect: Callable[[], Raw], *, name: str, size: int, wait_seconds: float) -> None:
        self._connect = connect
        self._name = name
        self._size = size
        self._wait_seconds = wait_seconds
        self._changed = threading.Condition(threading.Lock())  # guards the three below
        self._idle: list[Raw] = []
        self._borrowed = 0
        self._is_closed = False

    @contextmanager
    def borrow(self) -> Iterator[Raw]:
        """A connection for one transaction. Only one that is whole and outside a transaction is used again."""
        raw = self._take()
        try:
            if raw is None:
                raw = self._connect()
            yield raw
        except BaseException as exc:
            if raw is not None and not isinstance(exc, Exception):
                raw.close()  # interrupted anywhere: nobody knows what is under way
            raise
        finally:
            self._give_back(raw)

    def _take(self) -> Raw | None:
        with self._changed:
            self.check_open()
            if not self._changed.wait_for(
                lambda: self._is_closed or self._borrowed < self._size, timeout=self._wait_seconds
            ):
                raise BackendUnavailable(
                    f"all {self._size} connections to {self._name} are in use: raise pool_size in the URL",
                    code="store_busy",
                )
            self.check_open()
            self._borrowed += 1
            return self._idle.pop() if self._idle else None

    def _give_back(self, raw: Raw | None) -> None:
        if raw is not None and not _is_reusable(raw):
            raw.close()
            raw = None
        with self._changed:
            self._borrowed -= 1
            if raw is not None:
                self._idle.append(raw)
            self._changed.notify_all()

    def drop_idle(self) -> None:
        """Close the connections that wait: one broke, so they may all be."""
        with self._changed:
            self._close_idle()

    def check_open(self) -> None:
        if self._is_closed:
            raise BackendUnavailable(
                f"the store {self._name} is closed", code="store_closed", retryable=False
            )

    def close(self) -> None:
        """Let work that is under way end, then close everything; repeating it is harmless."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._borrowed == 0)
            self._close_idle()

    def before_fork(self) -> None:
        """Close everything: a connection that two processes use is broken for both."""
        self._changed.acquire()
        self._changed.wait_for(lambda: self._borrowed == 0)
        self._close_idle()

    def after_fork(self, *, is_child: bool) -> None:  # noqa: ARG002  (both sides only go on)
        self._changed.release()

    def _close_idle(self) -> None:
        for raw in self._idle:
            with suppress(psycopg.Error):
                raw.close()
        self._idle.clear()


def _is_reusable(raw: Raw) -> bool:
    return not raw.closed and raw.info.transaction_status == TransactionStatus.IDLE
