"""Processes and threads: what must be quiet during a fork, which process is alive, and the background worker.

`processes.child` runs commands; it is a module of its own because most processes never start another. What a run does
when it gets a signal is not here but in `runs`.
"""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from itertools import count
from typing import Protocol

import msgspec

from stepkeep import typed as typed  # it registers its lock for forks, before ours
from stepkeep.logs import Log
from stepkeep.model import ID_PAIRS, id_prefix

log = Log("stepkeep")


# --- forks -----------------------------------------------------------------------------------------------------


class ForkAware(Protocol):
    """What must be quiet while the process forks.

    An open SQLite connection must not cross a fork: the child's copy of SQLite believes it holds the parent's file
    locks, and a new connection there would take none. So holders of such things put them down before every fork and
    take them up again, on demand, on both sides.
    """

    def before_fork(self) -> None:
        """Finish what is under way, close what must not cross, and hold new work back."""

    def after_fork(self, *, is_child: bool) -> None:
        """Let work go on; called in the parent and in the child."""


_holders: list[weakref.ref[ForkAware]] = []
_quiet: list[ForkAware] = []


def tell_of_forks(holder: ForkAware) -> None:
    """Tell `holder` about forks for as long as it lives. Users are told before what they use."""
    _holders.append(weakref.ref(holder, _holders.remove))


def _before() -> None:
    while unquiet := _not_yet_quiet():
        for holder in unquiet:
            holder.before_fork()
            _quiet.append(holder)


def _not_yet_quiet() -> list[ForkAware]:
    """The youngest first. A thread that a holder waits for may have made another one meanwhile."""
    known = {id(holder) for holder in _quiet}
    holders = (reference() for reference in reversed(tuple(_holders)))
    return [holder for holder in holders if holder is not None and id(holder) not in known]


def _after(*, is_child: bool) -> None:
    global _makes_ids
    if is_child:
        _makes_ids = None
    while _quiet:
        _quiet.pop().after_fork(is_child=is_child)


# What is registered last goes first before a fork. A thread that a holder waits for may have to meet a type: the lock
# of `typed` must be taken after the holders are quiet, so it is imported above.
if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_before,
        after_in_parent=lambda: _after(is_child=False),
        after_in_child=lambda: _after(is_child=True),
    )


# --- who is alive ----------------------------------------------------------------------------------------------


class Owner(msgspec.Struct, frozen=True, kw_only=True):
    """Who holds a lease, precisely enough to tell whether that process is dead on this very machine."""

    host: str
    boot_id: str
    pid_namespace: str
    pid: int
    started: int
    label: str = ""


class ProcessStat(msgspec.Struct, frozen=True):
    """What the system tells of a process. `started` counts from boot, so that a reused process id is noticed."""

    name: str
    state: str
    parent: int
    started: int


def this_process(label: str = "") -> Owner:
    """This process, precisely enough that others on the same machine can tell when it is gone."""
    pid = os.getpid()
    stat = process_stat(pid)
    return Owner(
        host=os.uname().nodename,
        boot_id=boot_id(),
        pid_namespace=_link("/proc/self/ns/pid"),
        pid=pid,
        started=0 if stat is None else stat.started,
        label=label,
    )


def is_this_process(owner: Owner) -> bool:
    """Whether that is the process that asks, whatever it was doing."""
    return msgspec.structs.replace(owner, label="") == this_process()


def is_dead(owner: Owner) -> bool:
    """Whether that process surely runs no more; False for one on another machine, or one that cannot be seen from here.

    A process id that another process uses by now counts as dead: the start times differ.
    """
    here = this_process()
    if (owner.host, owner.boot_id, owner.pid_namespace) != (here.host, here.boot_id, here.pid_namespace):
        return False
    stat = process_stat(owner.pid) if here.started else None
    if stat is None:  # without /proc only a missing process is sure
        return not _exists(owner.pid)
    return stat.state in "ZX" or stat.started != owner.started


def is_running(process: object) -> bool:
    """Whether a process that was noted as its `pid`, `started` and `boot` still runs; False if that cannot be told."""
    if not isinstance(process, dict):
        return False
    pid = process.get("pid")
    found = process_stat(pid) if isinstance(pid, int) else None
    is_same = found is not None and found.started == process.get("started")
    return is_same and process.get("boot") == boot_id()


def process_stat(pid: int) -> ProcessStat | None:
    """Name, state, parent and start time of a process, where the system tells."""
    # The second field is the name in parentheses, which may hold anything.
    before, _, after = _text(f"/proc/{pid}/stat").rpartition(")")
    fields = after.split()
    if len(fields) < 20:
        return None
    return ProcessStat(before.partition("(")[2], fields[0], int(fields[1]), int(fields[19]))


def boot_id() -> str:
    """What tells this run of the machine from others; empty where the system does not say."""
    return _text("/proc/sys/kernel/random/boot_id")


def _exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (OverflowError, OSError):
        pass  # it exists and is somebody else's
    return True


def _text(path: str) -> str:
    try:
        with open(path, errors="replace") as file:
            return file.read(4096).strip()
    except OSError:
        return ""


def _link(path: str) -> str:
    try:
        return os.readlink(path)
    except OSError:
        return ""


# --- which process made an id ----------------------------------------------------------------------------------


_makes_ids: tuple[str, Iterator[int]] | None = None
"""What stands for this process in ids, and the count of them; made with the first one, and anew in a child."""


def new_checkpoint_id(time_us: int) -> str:
    """`cp_<UTC time in microseconds>_<process><count>`: sortable, path-safe, and it tells whether its maker lives.

    It begins to repeat after a million of one process in one microsecond.
    """
    maker, numbers = _makes_ids or _begin_ids()
    number = next(numbers)
    return f"{id_prefix(time_us)}_{maker}{ID_PAIRS[number >> 10 & 1023]}{ID_PAIRS[number & 1023]}"


def _begin_ids() -> tuple[str, Iterator[int]]:
    global _makes_ids
    pid = os.getpid()
    # From anywhere: a process that replaces its program stays the same one.
    _makes_ids = _maker(_this_system(), pid, process_stat(pid)), count(int.from_bytes(os.urandom(3)))
    return _makes_ids


def living_makers() -> dict[str, int]:
    """The processes that run on this machine: what stands for each in ids, and its process id."""
    system = _this_system()
    found = ((pid, process_stat(pid)) for pid in _pids())
    return {_maker(system, pid, stat): pid for pid, stat in found if stat is None or stat.state not in "ZX"}


def _pids() -> list[int]:
    """The process ids that are in use."""
    try:
        return [int(name) for name in os.listdir("/proc") if name.isdecimal()]
    except OSError:  # no Linux; these are all that macOS gives
        return [pid for pid in range(1, 100_000) if _exists(pid)]


def _maker(system: str, pid: int, stat: ProcessStat | None) -> str:
    """30 bits that stand for a process, the same whoever asks, as long as it runs."""
    from hashlib import sha256

    who = f"{system} {pid} {0 if stat is None else stat.started}"
    bits = int.from_bytes(sha256(who.encode()).digest()[:4]) >> 2
    return ID_PAIRS[bits >> 20] + ID_PAIRS[bits >> 10 & 1023] + ID_PAIRS[bits & 1023]


def _this_system() -> str:
    """What a process id belongs to."""
    return f"{boot_id() or os.uname().nodename} {_link('/proc/self/ns/pid')}"


# --- the background worker -------------------------------------------------------------------------------------


class Worker:
    """One daemon thread, started on demand, that does jobs in order, or the same work again and again.

    ```python
    saver = Worker("stepkeep-saver")
    saver.submit(pending.result)          # starts the thread; jobs run one after the other
    saver.wait()                          # every job so far is done

    self._worker = Worker("stepkeep-lease", self._renew)   # `_renew` returns the seconds until its next turn
    self._worker.start(after_seconds=5.0)
    self._worker.stop()
    ```

    `work` returns how many seconds later it is to be called again, or None to end the thread. What work or a job raises
    is logged and ends nothing. A bound method is held weakly, so that an owner which is dropped without `stop` takes
    the thread along; at the end of the program the thread is stopped too, within `END_SECONDS`.

    Safe for threads and forks. Before a fork all jobs are finished. Work is not waited for, because it may wait for
    something that the forking thread holds: what it uses must be fork-aware itself. A forked child begins without a
    thread and without jobs; `start` and `submit` give it a thread of its own.
    """

    def __init__(
        self,
        name: str,
        work: Callable[[], float | None] | None = None,
        *,
        wait: Callable[[float], bool] | None = None,
    ) -> None:
        """`wait` replaces sleeping until the next turn, and returns True to stop: tests move their clock with it."""
        self._name = name
        self._work = _weakly(work)
        self._wait = wait
        self._start_afresh()
        tell_of_forks(self)

    def _start_afresh(self) -> None:
        self._lock = threading.Lock()
        self._renew()

    def _renew(self) -> None:
        self._turn = _Turn(self._work, self._wait)
        self._end = weakref.finalize(self, self._turn.stop, END_SECONDS)

    @property
    def is_alive(self) -> bool:
        """Whether the thread was started and was not told to end."""
        turn = self._turn
        return turn.thread is not None and not turn.is_stopping

    @property
    def is_current(self) -> bool:
        """Whether this is the thread that asks."""
        return self._turn.thread is threading.current_thread()

    @property
    def is_stopping(self) -> bool:
        """Whether the thread was told to end: long work looks at this between its parts."""
        return self._turn.is_stopping

    def start(self, after_seconds: float = 0.0) -> None:
        """Begin to work, the first time after so many seconds. Nothing happens when the thread is alive."""
        with self._lock:
            if not self.is_alive:
                self._begin(after_seconds)

    def submit(self, job: Callable[[], object]) -> None:
        """Let the thread do this after the jobs that came before it."""
        with self._lock:
            if self.is_alive or self._begin(0.0):
                self._turn.add(job)
                return
        _do(job)  # the program is ending, and no thread can be started

    def _begin(self, after_seconds: float) -> bool:
        if self._turn.is_stopping:  # a thread that is still ending must not go on with the new work
            self._end.detach()
            self._renew()
        return self._turn.start(self._name, after_seconds)

    def wake(self) -> None:
        """Let the work come now."""
        self._turn.wake()

    def pause(self, seconds: float) -> bool:
        """Sleep, but not when the thread is told to end; whether it was. For long work on the thread."""
        return self._turn.pause(seconds)

    def wait(self) -> None:
        """Return when every job so far is done. A job that waits for the others returns at once."""
        self._turn.finish()

    def stop(self, seconds: float | None = None) -> None:
        """End the thread after the jobs so far, or after the current turn of its work, and wait so long for it.

        Without a limit it returns when the thread has ended, except on that very thread. It may be started again.
        """
        self._turn.stop(seconds)

    def before_fork(self) -> None:
        self._turn.finish()

    def after_fork(self, *, is_child: bool) -> None:
        if is_child:
            self._end.detach()
            self._start_afresh()


END_SECONDS = 5.0
"""How long the end of the program waits for a thread."""


class _Turn:
    """One life of a worker's thread. It does not know its worker, which may be dropped meanwhile."""

    def __init__(
        self, work: Callable[[], Callable[[], float | None] | None], wait: Callable[[float], bool] | None
    ) -> None:
        self._work = work
        self._wait = wait
        self._changed = threading.Condition(threading.Lock())
        self._jobs: deque[Callable[[], object]] = deque()
        self._is_busy = False
        self._is_woken = False
        self._seconds: float | None = None
        self._due = 0.0
        self.is_stopping = False
        self.thread: threading.Thread | None = None

    def start(self, name: str, after_seconds: float) -> bool:
        self._set_due(after_seconds)
        self.thread = threading.Thread(target=self._run, name=name, daemon=True)
        try:
            self.thread.start()
        except RuntimeError:  # the program is ending
            self.thread = None
        return self.thread is not None

    def add(self, job: Callable[[], object]) -> None:
        with self._changed:
            self._jobs.append(job)
            self._changed.notify_all()

    def wake(self) -> None:
        if not self._is_woken:
            with self._changed:
                self._is_woken = True
                self._changed.notify_all()

    def pause(self, seconds: float) -> bool:
        with self._changed:
            return self._changed.wait_for(lambda: self.is_stopping, seconds)

    def finish(self) -> None:
        if self.thread is not threading.current_thread():
            with self._changed:
                self._changed.wait_for(lambda: not self._jobs and not self._is_busy)

    def stop(self, seconds: float | None = None) -> None:
        with self._changed:
            self.is_stopping = True
            self._changed.notify_all()
        if self.thread is not None and self.thread is not threading.current_thread():
            self.thread.join(seconds)

    def _set_due(self, seconds: float | None) -> None:
        """Let the work come so many seconds from now, or never again."""
        self._seconds = seconds
        self._due = time.monotonic() + (seconds or 0.0)

    def _run(self) -> None:
        while self._seconds is not None and self._is_due(self._seconds):
            if self._jobs:
                self._do_next()
            else:
                self._do_work()
        with self._changed:
            self.is_stopping = True

    def _is_due(self, seconds: float) -> bool:
        """Wait for a job or the time of the work; False when the thread is to end."""
        if self._wait is not None and not self._jobs:
            return not self.is_stopping and not self._wait(seconds)
        with self._changed:
            while not (self._jobs or self.is_stopping or self._is_woken):
                left = self._seconds_left()
                if left is not None and left <= 0:
                    break
                self._changed.wait(left)
            return bool(self._jobs) or not self.is_stopping

    def _seconds_left(self) -> float | None:
        return None if self._work is _nothing else self._due - time.monotonic()

    def _do_next(self) -> None:
        with self._changed:
            job, self._is_busy = self._jobs.popleft(), True
        _do(job)
        del job
        with self._changed:
            self._is_busy = False
            self._changed.notify_all()

    def _do_work(self) -> None:
        self._is_woken = False
        if self._work is _nothing:
            return
        work = self._work()
        if work is None:  # its owner is gone
            self._seconds = None
            return
        try:
            self._set_due(work())
        except Exception as exc:
            log.error("%s failed: %s", threading.current_thread().name, exc, exc_info=exc)
            self._set_due(self._seconds or 1.0)


def _do(job: Callable[[], object]) -> None:
    try:
        job()
    except Exception as exc:  # who waits for its result gets the error there; the thread must go on
        log.error("%s failed: %s", threading.current_thread().name, exc)


def _nothing() -> None:
    """The work of a worker that has only jobs."""


def _weakly(work: Callable[[], float | None] | None) -> Callable[[], Callable[[], float | None] | None]:
    if work is None:
        return _nothing
    if getattr(work, "__self__", None) is None:
        return lambda: work
    return weakref.WeakMethod(work)
