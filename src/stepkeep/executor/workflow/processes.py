"""Running one command: bounded capture of what it prints, a time limit, and an end for its whole group."""

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

from stepkeep.executor.workflow.leash import Leash

MAX_CAPTURE: Final = 16 * 1024 * 1024
TAIL_BYTES: Final = 64 * 1024
GRACE_SECONDS: Final = 3.0
"""How long a group may take to end after SIGTERM, before SIGKILL."""

LINGER_SECONDS: Final = 1.0
"""How long output is still read after a command ended, when something it left behind keeps its pipes open."""

_CHUNK: Final = 64 * 1024
_POLL_SECONDS: Final = 0.05


class Captured(msgspec.Struct, frozen=True, kw_only=True):
    """What came out: the beginning up to a limit, the end if more came, and how many bytes it was in all."""

    head: bytes = b""
    tail: bytes = b""
    size: int = 0

    @property
    def is_cut(self) -> bool:
        return self.size > len(self.head)


class Finished(msgspec.Struct, frozen=True, kw_only=True):
    """How a command ended. A negative `exit_code` is the signal that killed it. `reply` is what it sent besides."""

    exit_code: int
    stdout: Captured
    stderr: Captured
    reply: Captured = Captured()
    is_timed_out: bool = False
    is_cancelled: bool = False

    @property
    def signal_name(self) -> str | None:
        if self.exit_code >= 0:
            return None
        try:
            return signal.Signals(-self.exit_code).name
        except ValueError:
            return f"signal {-self.exit_code}"


class Command(msgspec.Struct, frozen=True, kw_only=True):
    """What to run. With `has_reply` the number of a pipe to answer on is added as last word."""

    words: tuple[str, ...]
    env: Mapping[str, str]
    folder: Path
    stdin: bytes = b""
    has_reply: bool = False


def run(
    command: Command,
    *,
    leash: Leash,
    timeout_seconds: float | None = None,
    cancelled: threading.Event | None = None,
    max_capture: int = MAX_CAPTURE,
) -> Finished:
    """Run a command to its end, in a process group of its own, and return what it printed.

    When the time is up, or `cancelled` is set, the group gets SIGTERM and, if it does not end, SIGKILL. Memory is
    bounded by `max_capture`, however much is printed.

    Raises:
        OSError: it could not be started.
    """
    reading, writing = os.pipe() if command.has_reply else (-1, -1)
    try:
        words = [*command.words, *([str(writing)] if command.has_reply else [])]
        process = subprocess.Popen(
            words,
            env=dict(command.env),
            cwd=command.folder,
            stdin=subprocess.PIPE if command.stdin else subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
            pass_fds=(writing,) if command.has_reply else (),
        )
    except BaseException:
        _close(reading, writing)
        raise
    _close(writing)
    leash.add(process.pid)
    try:
        return _Watch(process, command.stdin, reading, max_capture).until_end(timeout_seconds, cancelled)
    finally:
        leash.end(process.pid)


def _close(*numbers: int) -> None:
    for number in numbers:
        if number >= 0:
            os.close(number)


class _Watch:
    """A process under way: threads that feed and read it, and its end."""

    def __init__(self, process: subprocess.Popen[bytes], stdin: bytes, reply: int, max_capture: int) -> None:
        pipes = [process.stdout, process.stderr, os.fdopen(reply, "rb", 0) if reply >= 0 else None]
        self._process = process
        self._outputs = [_Output(pipe, max_capture) for pipe in pipes if pipe is not None]
        self._reading = [_start(output.read) for output in self._outputs]
        if stdin:
            _start(lambda: _feed(process, stdin))

    def until_end(self, timeout_seconds: float | None, cancelled: threading.Event | None) -> Finished:
        deadline = None if timeout_seconds is None else time.monotonic() + timeout_seconds
        is_timed_out = is_cancelled = False
        while not self._has_ended(_POLL_SECONDS):
            is_timed_out = deadline is not None and time.monotonic() >= deadline
            is_cancelled = cancelled is not None and cancelled.is_set()
            if is_timed_out or is_cancelled:
                break
        if is_timed_out or is_cancelled:
            self._stop()
        return self._finished(is_timed_out, is_cancelled and not is_timed_out)

    def _has_ended(self, seconds: float) -> bool:
        try:
            self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            return False
        return True

    def _stop(self) -> None:
        self._signal(signal.SIGTERM)
        if not self._has_ended(GRACE_SECONDS):
            self._signal(signal.SIGKILL)
            self._process.wait()
        self._signal(signal.SIGKILL)  # what is left of the group

    def _signal(self, number: int) -> None:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, number)

    def _finished(self, is_timed_out: bool, is_cancelled: bool) -> Finished:
        deadline = time.monotonic() + LINGER_SECONDS
        for thread in self._reading:
            thread.join(max(0.0, deadline - time.monotonic()))
        captured = [output.captured() for output in self._outputs]
        return Finished(
            exit_code=self._process.returncode,
            stdout=captured[0],
            stderr=captured[1],
            reply=captured[2] if len(captured) > 2 else Captured(),
            is_timed_out=is_timed_out,
            is_cancelled=is_cancelled,
        )


class _Output:
    """One pipe: read to its end, kept up to a limit."""

    def __init__(self, pipe: IO[bytes], most: int) -> None:
        self._pipe = pipe
        self._most = most
        self._head = bytearray()
        self._tail = b""
        self._size = 0
        self._lock = threading.Lock()

    def read(self) -> None:
        with self._pipe:
            while chunk := os.read(self._pipe.fileno(), _CHUNK):
                with self._lock:
                    self._keep(chunk)

    def _keep(self, chunk: bytes) -> None:
        self._size += len(chunk)
        room = self._most - len(self._head)
        if room > 0:
            self._head += chunk[:room]
        if len(chunk) > room:
            self._tail = (self._tail + chunk[max(room, 0) :])[-TAIL_BYTES:]

    def captured(self) -> Captured:
        with self._lock:
            return Captured(head=bytes(self._head), tail=self._tail, size=self._size)


def _start(work: Callable[[], None]) -> threading.Thread:
    thread = threading.Thread(target=work, name="stepkeep-step-output", daemon=True)
    thread.start()
    return thread


def _feed(process: subprocess.Popen[bytes], data: bytes) -> None:
    assert process.stdin is not None
    with suppress(OSError, ValueError):  # a command need not read what it is given
        process.stdin.write(data)
    with suppress(OSError, ValueError):
        process.stdin.close()


def describe(command: Command, exc: OSError) -> str:
    """Why a command could not be started."""
    program = command.words[0]
    if isinstance(exc, FileNotFoundError) and exc.filename == str(command.folder):
        return f"the folder {exc.filename!r} is not there any more"
    if isinstance(exc, FileNotFoundError):
        return f"there is no program {program!r}"
    return f"{program!r} could not be started: {exc.strerror or exc}"
