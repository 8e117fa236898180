"""One runner per session: a lease that is renewed while work goes on.

```python
with Held(engine, session.uid, label="nightly") as held:
    engine.save(Save(..., fence=held.token))
```

The lease keeps others from starting; the token keeps a runner that was taken over from saving.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Final

from stepkeep.engine import Engine
from stepkeep.errors import BackendUnavailable, Conflict, NotFound, StepkeepError
from stepkeep.model import from_us
from stepkeep.processes import Worker, is_dead, is_this_process, this_process
from stepkeep.storage.port import Lease

log = logging.getLogger("stepkeep")

LEASE_SECONDS: Final = 15.0
BEATS_PER_LEASE: Final = 3
"""A lease is renewed that often before it would run out."""

MAX_TRIES: Final = 3

_abandoned: set[tuple[str, str, int]] = set()
"""Leases that this process ended with and could not give back: store, session and token."""


class Held:
    """The lease of a session, from `with` to its end. Safe for threads; a forked child does not hold it.

    `token` is the fence for every save. `lost` is set, and `on_lost` called once on the heartbeat's thread, when
    another took over or the session is gone. A store that cannot be reached for a while loses nothing: the token
    stays good until someone else takes the lease.
    """

    def __init__(
        self,
        engine: Engine,
        uid: str,
        *,
        label: str = "",
        seconds: float = LEASE_SECONDS,
        lease: Lease | None = None,
        on_lost: Callable[[], object] = lambda: None,
    ) -> None:
        """`lease` is one that was taken already, to be kept from here on."""
        self._engine = engine
        self._uid = uid
        self._label = label
        self._seconds = seconds
        self._on_lost = on_lost
        self._lease = lease
        self._pid = 0
        self._heartbeat = Worker("stepkeep-lease", self._renew)
        self.lost = threading.Event()

    @property
    def token(self) -> int:
        """The fencing token of the lease that was taken."""
        if self._lease is None:
            raise RuntimeError("the lease is not held: enter it with `with`")
        return self._lease.token

    def check(self) -> None:
        """Raise `Conflict` (`lease_lost`) when another took over."""
        if self.lost.is_set():
            raise Conflict(
                f"another runner took session {self._uid} over, or it was deleted: this one stops and saves no more",
                code="lease_lost",
                retryable=False,
                session=self._uid,
            )

    def __enter__(self) -> Held:
        """Take the lease, at once if its holder is dead on this machine.

        Raises:
            Conflict: (`lease_held`) someone holds it; the message says who, and until when. (`lease_lost`) the
                lease that was taken already is another's by now.
        """
        if self._lease is None:
            self._lease = acquire(self._engine, self._uid, label=self._label, seconds=self._seconds)
        else:
            self._lease = self._engine.backend.renew_lease(self._uid, self.token, seconds=self._seconds)
        self._pid = os.getpid()
        self._heartbeat.start(self._seconds / BEATS_PER_LEASE)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if os.getpid() != self._pid:
            return  # a forked child: the parent holds it
        self._heartbeat.stop()
        try:
            self._engine.backend.release_lease(self._uid, self.token)
            self._tell_keeper()
        except NotFound:
            pass  # the session was deleted, and its lease with it
        except StepkeepError as exc:
            # It runs out by itself, this process may take it again, and what the work itself raised matters more.
            _abandoned.add((self._engine.backend.url, self._uid, self.token))
            log.warning("the lease on session %s was not given back: %s", self._uid, exc)

    def _tell_keeper(self) -> None:
        """Announce the end of a session once more: it had to be left alone while the lease was held (V7)."""
        if self._engine.on_finished:
            session = self._engine.backend.session(self._uid)
            if session.status.is_finished:
                self._engine.tell_finished(session)

    def _renew(self) -> float | None:
        """Keep the lease; how many seconds later to do so again, or None when it is lost."""
        try:
            self._engine.backend.renew_lease(self._uid, self.token, seconds=self._seconds)
        except BackendUnavailable as exc:
            log.warning("the lease on session %s was not renewed, next try soon: %s", self._uid, exc)
        except StepkeepError as exc:
            log.error("the lease on session %s is lost: %s", self._uid, exc)
            self.lost.set()
            self._on_lost()
            return None
        return self._seconds / BEATS_PER_LEASE


def acquire(engine: Engine, uid: str, *, label: str = "", seconds: float = LEASE_SECONDS) -> Lease:
    """Take the lease of a session, replacing a holder that is dead on this machine, or that was this process itself.

    Raises:
        Conflict: (`lease_held`) a holder that may be alive has it.
    """
    owner, replacing = this_process(label), None
    for _ in range(MAX_TRIES):
        try:
            return engine.backend.acquire_lease(uid, owner, seconds=seconds, replacing=replacing)
        except Conflict as exc:
            held = engine.backend.lease(uid)
            if held is None:
                continue  # given back meanwhile
            if not (is_dead(held.owner) or is_abandoned(engine, uid, held)):
                raise _is_held(engine, uid, held) from exc
            replacing = held.token
    return engine.backend.acquire_lease(uid, owner, seconds=seconds, replacing=replacing)


def is_abandoned(engine: Engine, uid: str, lease: Lease) -> bool:
    """Whether this very process held the lease, is done with it, and only failed to give it back."""
    return is_this_process(lease.owner) and (engine.backend.url, uid, lease.token) in _abandoned


def _is_held(engine: Engine, uid: str, lease: Lease) -> Conflict:
    key, owner = engine.backend.session(uid).key, lease.owner
    until = from_us(lease.expires_us).isoformat(timespec="seconds").replace("+00:00", "Z")
    is_ours = is_this_process(owner)
    who = f"{owner.label or 'a run'} in this very process" if is_ours else owner.label or "another process"
    return Conflict(
        f"session {key!r} is run by {who} (pid {owner.pid} on {owner.host}),"
        f" which holds its lease until {until}: wait for its end, or stop it first",
        code="lease_held",
        session=key,
    )
