"""One runner per session: a lease that is renewed while work goes on, and the saves that it fences.

```python
with Held(engine, session.uid, label="nightly") as held:
    RunSaver(held).save({"n": 1})
```

The lease keeps others from starting; its token keeps a runner that was taken over from saving.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final, TypeVar

from stepkeep.engine import Engine, Pending, Save
from stepkeep.errors import BackendUnavailable, Conflict, NotFound, StepkeepError
from stepkeep.logs import Log
from stepkeep.model import Header, Status, from_us, new_uid
from stepkeep.processes import Worker, is_dead, is_this_process, this_process
from stepkeep.storage.port import Lease

log = Log("stepkeep")
T = TypeVar("T")

LEASE_SECONDS: Final = 15.0
BEATS_PER_LEASE: Final = 3
"""A lease is renewed that often before it would run out."""

LEASE_LOST: Final = "lease_lost"
MAX_TRIES: Final = 3

SAVE_DELAYS: Final = (0.1, 0.5, 2.0)
"""Seconds to wait before a save that failed for a passing reason is repeated."""

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
        self.engine = engine
        self.uid = uid
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

    def persistently(self, write: Callable[[], T]) -> T:
        """Do a write, and repeat it after `SAVE_DELAYS` as long as it fails for a passing reason.

        The write must be one that may be repeated. A full disk or a missing permission is final at once.
        """
        with self.naming():
            for delay in SAVE_DELAYS:
                try:
                    return write()
                except BackendUnavailable as exc:
                    if not exc.retryable:
                        raise
                    log.warning("a write failed and is repeated in %g s: %s", delay, exc)
                    self.lost.wait(delay)
            return write()

    @contextmanager
    def naming(self) -> Iterator[None]:
        """An error that the lease is lost names the session, of which the store knows the uid alone."""
        try:
            yield
        except Conflict as exc:
            if exc.code != LEASE_LOST:
                raise
            raise self._is_lost() from exc

    def check(self) -> None:
        """Raise `Conflict` (`lease_lost`) when another took over."""
        if self.lost.is_set():
            raise self._is_lost()

    def _is_lost(self) -> Conflict:
        return Conflict(
            f"another runner took session {self.key!r} over, or it was deleted: this one stops and saves no more",
            code=LEASE_LOST,
            retryable=False,
            session=self.key,
        )

    @property
    def key(self) -> str:
        """The key of the session; its uid where that cannot be found out."""
        try:
            return self.engine.seen(self.uid).key
        except StepkeepError:
            return self.uid

    def __enter__(self) -> Held:
        """Take the lease, at once if its holder is dead on this machine.

        Raises:
            Conflict: (`lease_held`) someone holds it; the message says who, and until when. (`lease_lost`) the
                lease that was taken already is another's by now.
        """
        if self._lease is None:
            self._lease = acquire(self.engine, self.uid, label=self._label, seconds=self._seconds)
        else:
            with self.naming():
                self._lease = self.engine.backend.renew_lease(self.uid, self.token, seconds=self._seconds)
        self._pid = os.getpid()
        self._heartbeat.start(self._seconds / BEATS_PER_LEASE)
        return self

    def __exit__(self, *_: object) -> None:
        if os.getpid() != self._pid:
            return  # a forked child: the parent holds it
        self._heartbeat.stop()
        try:
            self.engine.backend.release_lease(self.uid, self.token)
            self._tell_keeper()
        except NotFound:
            pass  # the session was deleted, and its lease with it
        except StepkeepError as exc:
            # It runs out by itself, this process may take it again, and what the work itself raised matters more.
            _abandoned.add((self.engine.backend.url, self.uid, self.token))
            log.warning("the lease on session %s was not given back: %s", self.key, exc)

    def _tell_keeper(self) -> None:
        """Announce the end of a session once more: it had to be left alone while the lease was held (V7)."""
        if self.engine.on_finished:
            session = self.engine.backend.session(self.uid)
            if session.status.is_finished:
                self.engine.tell_finished(session)

    def _renew(self) -> float | None:
        """Keep the lease; how many seconds later to do so again, or None when it is lost."""
        try:
            self.engine.backend.renew_lease(self.uid, self.token, seconds=self._seconds)
        except BackendUnavailable as exc:
            log.warning("the lease on session %s was not renewed, next try soon: %s", self.key, exc)
        except StepkeepError as exc:
            log.error("the lease on session %s is lost: %s", self.key, exc.code)
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


class RunSaver:
    """Stores the checkpoints of one run, of a plan, a workflow or a script, fenced by its lease.

    `branch` is the one to stay on; None follows the session. `parent` is that of the first save. `metadata` goes onto
    every checkpoint.
    """

    def __init__(
        self,
        held: Held,
        *,
        branch: str | None = None,
        parent: str | None = None,
        metadata: Mapping[str, Any] | None = None,
    ) -> None:
        self._held = held
        self._branch = branch
        self._parent = parent
        self._metadata = dict(metadata or {})
        self._run = new_uid()
        self._count = 0

    def save(self, state: object, **fields: Any) -> Header:
        """Store a checkpoint durably, once. A passing failure is repeated.

        Raises:
            InvalidInput: this state cannot be saved.
            Conflict: (`lease_lost`) another runner took over. Nothing is stored.
            BackendUnavailable: nothing is stored, and a repeat did not or would not help.
        """
        self._count += 1
        save = self._save_of(
            state,
            parents=None if self._parent is None else (self._parent,),
            # The answer to a save may be lost on its way: repeated, it must not count twice.
            idempotency_key=f"run-{self._run}-{self._count}",
            **fields,
        )
        header = self._held.persistently(lambda: self._held.engine.save(save))
        self._parent = None
        return header

    def submit(self, state: object, **fields: Any) -> Pending:
        """Queue a checkpoint; whoever asks for its result commits it, with all that were queued meanwhile."""
        return self._held.engine.submit(self._save_of(state, **fields))

    def mark(self, status: Status, error: str | None = None) -> None:
        """Set the status of the session. A passing failure is repeated."""
        held = self._held
        held.persistently(lambda: held.engine.finish(held.uid, status, error=error, fence=held.token))

    def _save_of(self, state: object, *, metadata: Mapping[str, Any] | None = None, **fields: Any) -> Save:
        return Save(
            session=self._held.uid,
            state=state,
            branch=self._branch,
            fence=self._held.token,
            metadata={**self._metadata, **(metadata or {})},
            **fields,
        )
