"""A backend that fails, hesitates or stops at a chosen call, before or after the work was done.

    faults = Faults(Fault(fail, method="append", call=3, is_after=True))
    backend = faults.wrap(SqliteBackend(path))

`is_after` is the case that hurts: the commit happened, and the answer was lost.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any, NamedTuple, NoReturn, TypeAlias, cast

from stepkeep.errors import BackendUnavailable
from stepkeep.storage.port import Backend

Action: TypeAlias = Callable[[], object]
"""What happens at the chosen place. Any callable will do: the `wait` of an event holds the call there."""


class Stopped(BaseException):
    """The process ended here, as far as this backend is concerned. Nothing that catches `Exception` sees it."""


def fail() -> NoReturn:
    """Fail as a backend may: with an error that says a repeat can help."""
    raise BackendUnavailable("a fault was injected")


def stop() -> NoReturn:
    """End the life of the wrapper: this call and every later one raise `Stopped`."""
    raise Stopped("a fault was injected")


def delay(seconds: float) -> Action:
    """Hesitate, then go on."""
    return lambda: time.sleep(seconds)


class Fault(NamedTuple):
    """Do `action` at the `call`-th call of `method`, or of any method; once."""

    action: Action
    method: str | None = None
    call: int = 1
    is_after: bool = False


class Faults:
    """A plan of faults, and the names of the methods called so far. Safe for threads."""

    def __init__(self, *faults: Fault) -> None:
        self._faults = list(faults)
        self._lock = threading.Lock()
        self._is_stopped = False
        self.calls: list[str] = []

    def add(self, *faults: Fault) -> None:
        """Plan more faults. Their calls are counted from now on."""
        with self._lock:
            self._faults += [fault._replace(call=fault.call + self._count(fault.method)) for fault in faults]

    def wrap(self, inner: Backend) -> Backend:
        """The backend with these faults. What a generator does while it is read is not interrupted."""
        return cast(Backend, _Faulty(inner, self))

    def _count(self, method: str | None) -> int:
        return len(self.calls) if method is None else self.calls.count(method)

    def enter(self, method: str) -> list[Fault]:
        """Count a call, and take the faults meant for it out of the plan."""
        with self._lock:
            if self._is_stopped:
                stop()
            self.calls.append(method)
            due = [
                fault
                for fault in self._faults
                if fault.method in (None, method) and fault.call == self._count(fault.method)
            ]
            self._faults = [fault for fault in self._faults if fault not in due]
            return due

    def act(self, due: list[Fault], *, is_after: bool) -> None:
        try:
            for fault in due:
                if fault.is_after == is_after:
                    fault.action()
        except Stopped:
            self._is_stopped = True
            raise


class _Faulty:
    """Passes everything on to the inner backend; calls of methods go by the plan."""

    def __init__(self, inner: Backend, faults: Faults) -> None:
        self._inner = inner
        self._faults = faults

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._inner, name)
        return self._planned(name, value) if callable(value) else value

    def _planned(self, name: str, method: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            due = self._faults.enter(name)
            self._faults.act(due, is_after=False)
            answer = method(*args, **kwargs)
            self._faults.act(due, is_after=True)
            return answer

        return call
