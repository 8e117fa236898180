"""Running a command: bounded capture of what it prints, a time limit, and an end for its whole process group.

No child outlives the process that runs it where a `SupervisorPipe` is given, not even when that one is killed.
"""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import IO, Final

import msgspec

MAX_CAPTURE: Final = 16 * 1024 * 1024
TAIL_BYTES: Final = 64 * 1024
GRACE_SECONDS: Final = 3.0
"""How long a group may take to end after SIGTERM, before SIGKILL."""

LINGER_SECONDS: Final = 1.0
"""How long output is still read after a command ended, when something it left behind keeps its pipes open."""

_CHUNK: Final = 64 * 1024
_POLL_SECONDS: Final = 0.02


class Captured(msgspec.Struct, frozen=True, kw_only=True):
    """What came out: the beginning up to a limit, the end if more came, and how many bytes it was in all."""

    head: bytes = b""
    tail: bytes = b""
    size: int = 0

    @property
    def is_cut(self) -> bool:
        """Whether `head` is not all of it."""
        return self.size > len(self.head)

    @property
    def left_out(self) -> int:
        """How many bytes are neither in `head` nor in `tail`."""
        return self.size - len(self.head) - len(self.tail)


class Finished(msgspec.Struct, frozen=True, kw_only=True):
    """How a command ended. A negative `exit_code` is the signal that killed it. `reply` is what it sent besides."""

    exit_code: int
    stdout: Captured
    stderr: Captured
    reply: Captured = Captured()
    is_timed_out: bool = False
    is_cancelled: bool = False
    duration_ms: int = 0

    @property
    def signal_name(self) -> str | None:
        if self.exit_code >= 0:
            return None
        try:
            return signal.Signals(-self.exit_code).name
        except ValueError:
            return f"signal {-self.exit_code}"


class Interrupted(KeyboardInterrupt):
    """Ctrl-C while a command ran. It was ended; `finished` has what it printed until then."""

    def __init__(self, finished: Finished) -> None:
        super().__init__()
        self.finished = finished


class ChildCommand(msgspec.Struct, frozen=True, kw_only=True):
    """What to run, and where: in this process's own folder and environment unless told otherwise.

    With `has_reply` the number of a pipe to answer on is added as last word.
    """

    words: tuple[str, ...]
    env: Mapping[str, str] | None = None
    folder: Path | None = None
    stdin: bytes = b""
    has_reply: bool = False


def run(
    command: ChildCommand,
    *,
    supervisor: SupervisorPipe | None = None,
    timeout_seconds: float | None = None,
    cancelled: threading.Event | None = None,
    max_capture: int = MAX_CAPTURE,
    tail_bytes: int = TAIL_BYTES,
    ends_group: bool = False,
) -> Finished:
    """Run a command to its end, in a process group of its own, and return what it printed.

    When the time is up, or `cancelled` is set, the group gets SIGTERM and, if it does not end, SIGKILL. With
    `ends_group` what the command started and left behind ends with it in any case, also when this call is
    interrupted. Memory is bounded by `max_capture` and `tail_bytes`, however much is printed.

    Raises:
        OSError: it could not be started.
        Interrupted: Ctrl-C, with what was printed.
    """
    began = time.monotonic()
    release = _held_interrupt()
    try:
        process, reply = _started(command)
    except BaseException:
        release()
        raise
    if supervisor is not None:
        supervisor.add(process.pid)
    outputs: list[_Output] = []
    ending, interrupt = "", None
    try:
        try:
            try:
                pipes = [process.stdout, process.stderr, os.fdopen(reply, "rb", 0) if reply >= 0 else None]
                outputs += [_Output(pipe, max_capture, tail_bytes) for pipe in pipes if pipe is not None]
                if command.stdin:
                    _start(lambda: _feed(process, command.stdin))
            finally:
                release()
            ending = _wait(process, timeout_seconds, cancelled)
        except KeyboardInterrupt as exc:
            interrupt = exc
        finally:
            _end(process, is_whole=ends_group or bool(ending))
        captured = _captured(outputs)
        finished = Finished(
            exit_code=process.returncode,
            stdout=captured[0],
            stderr=captured[1],
            reply=captured[2] if len(captured) > 2 else Captured(),
            is_timed_out=ending == "timed out",
            is_cancelled=ending == "cancelled",
            duration_ms=round((time.monotonic() - began) * 1000),
        )
        if interrupt is not None:
            raise Interrupted(finished) from interrupt
        return finished
    finally:
        if supervisor is not None:
            supervisor.end(process.pid)


def _held_interrupt() -> Callable[[], None]:
    """Let Ctrl-C wait until what is returned is called: one in the middle of a start would leave a process that nobody
    knows. A blocked signal would be blocked in the process too."""
    previous = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(previous):
        return lambda: None
    came: list[int] = []
    signal.signal(signal.SIGINT, lambda number, _: came.append(number))

    def release() -> None:
        signal.signal(signal.SIGINT, previous)
        for number in came[:1]:
            signal.raise_signal(number)

    return release


def _started(command: ChildCommand) -> tuple[subprocess.Popen[bytes], int]:
    """The process, and the end of the pipe to read its reply from, or -1."""
    reading, writing = os.pipe() if command.has_reply else (-1, -1)
    try:
        process = subprocess.Popen(
            [*command.words, *([str(writing)] if command.has_reply else [])],
            env=None if command.env is None else dict(command.env),
            cwd=command.folder,
            stdin=subprocess.PIPE if command.stdin else subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
            pass_fds=(writing,) if command.has_reply else (),
        )
    except BaseException:
        if reading >= 0:
            os.close(reading)
        raise
    finally:
        if writing >= 0:
            os.close(writing)
    return process, reading


def _wait(
    process: subprocess.Popen[bytes], timeout_seconds: float | None, cancelled: threading.Event | None
) -> str:
    """Wait for the end of the command, and say what came before it: nothing, `timed out` or `cancelled`."""
    deadline = None if timeout_seconds is None else time.monotonic() + timeout_seconds
    pause = 0.001
    while not _is_over(process):
        if deadline is not None and time.monotonic() >= deadline:
            return "timed out"
        if cancelled is not None and cancelled.is_set():
            return "cancelled"
        time.sleep(pause)
        pause = min(2 * pause, _POLL_SECONDS)
    return ""


def _is_over(process: subprocess.Popen[bytes]) -> bool:
    """Whether the command ended. It is not reaped yet: its number still names its group."""
    if process.returncode is not None:
        return True
    if not hasattr(os, "waitid"):  # macOS before Python 3.13
        return process.poll() is not None
    return os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT | os.WNOHANG) is not None


def _end(process: subprocess.Popen[bytes], *, is_whole: bool) -> None:
    """Stop the command if it still runs, and what is left of its group where the whole of it must end."""
    if not _is_over(process):
        _signal(process, signal.SIGTERM)
        _wait(process, GRACE_SECONDS, None)
        is_whole = True
    if is_whole:
        _signal(process, signal.SIGKILL)
    process.wait()


def _signal(process: subprocess.Popen[bytes], number: int) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, number)


def _feed(process: subprocess.Popen[bytes], data: bytes) -> None:
    assert process.stdin is not None
    with suppress(OSError, ValueError):  # a command need not read what it is given
        process.stdin.write(data)
    with suppress(OSError, ValueError):
        process.stdin.close()


class _Output:
    """One pipe, read to its end on a thread, kept up to a limit."""

    def __init__(self, pipe: IO[bytes], most: int, tail: int) -> None:
        self._pipe = pipe
        self._most = most
        self._most_tail = tail
        self._head = bytearray()
        self._tail = bytearray()
        self._size = 0
        self._lock = threading.Lock()
        self.thread = _start(self._read)

    def _read(self) -> None:
        with self._pipe:
            while chunk := os.read(self._pipe.fileno(), _CHUNK):
                with self._lock:
                    self._keep(chunk)

    def _keep(self, chunk: bytes) -> None:
        self._size += len(chunk)
        room = max(0, self._most - len(self._head))
        self._head += chunk[:room]
        self._tail += chunk[room:]
        del self._tail[: -self._most_tail]

    def captured(self) -> Captured:
        with self._lock:
            return Captured(head=bytes(self._head), tail=bytes(self._tail), size=self._size)


def _captured(outputs: list[_Output]) -> list[Captured]:
    """What was kept once the pipes ended; a process that still holds one open is not waited for."""
    deadline = time.monotonic() + LINGER_SECONDS
    for output in outputs:
        output.thread.join(max(0.0, deadline - time.monotonic()))
    return [output.captured() for output in outputs]


def _start(work: Callable[[], None]) -> threading.Thread:
    thread = threading.Thread(target=work, name="stepkeep-child-output", daemon=True)
    thread.start()
    return thread


def start_error(command: ChildCommand, exc: OSError) -> str:
    """Why a command could not be started."""
    program = command.words[0]
    if isinstance(exc, FileNotFoundError) and exc.filename == str(command.folder):
        return f"the folder {exc.filename!r} is not there any more"
    if isinstance(exc, FileNotFoundError):
        return f"there is no program {program!r}"
    return f"{program!r} could not be started: {exc.strerror or exc}"


# --- no child outlives us --------------------------------------------------------------------------------------

_SUPERVISOR: Final = """
groups=' '
while read -r verb group; do
  case $verb in
    add) groups="$groups$group " ;;
    end) groups="${groups%% "$group" *} ${groups#* "$group" }" ;;
  esac
done
for group in $groups; do kill -KILL "-$group"; done
"""


class SupervisorPipe:
    """Ends process groups when this process goes, from `with` to its end. Safe for threads.

    A small shell waits at the end of a pipe and is told of every process group that starts and ends. When this
    process goes, for whatever reason, the pipe ends, and the shell kills the groups that are left. So a resumed
    workflow never works beside a forgotten half of itself.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._shell: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> SupervisorPipe:
        # A session of its own, so that Ctrl-C on the terminal does not reach it before us.
        self._shell = subprocess.Popen(
            ["/bin/sh", "-c", _SUPERVISOR],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            cwd="/",
            env={"PATH": os.defpath},
        )
        return self

    def __exit__(self, *_: object) -> None:
        shell = self._shell
        if shell is not None and shell.stdin is not None:
            with suppress(OSError):
                shell.stdin.close()
            shell.wait()

    def add(self, group: int) -> None:
        self._tell(f"add {group}\n")

    def end(self, group: int) -> None:
        self._tell(f"end {group}\n")

    def _tell(self, line: str) -> None:
        shell = self._shell
        if shell is None or shell.stdin is None:
            return
        with self._lock, suppress(OSError):  # a shell that was killed guards nothing more, and stops nothing
            shell.stdin.write(line.encode())
            shell.stdin.flush()
