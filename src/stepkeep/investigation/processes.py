"""Running one command to its end or its time-out: output is bounded, and nothing of its group stays behind."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Final

import msgspec

GRACE_SECONDS: Final = 2.0
"""How long a group may take to end after SIGTERM, before SIGKILL."""

_CHUNK: Final = 64 * 1024
_LINGER_SECONDS: Final = 1.0
_POLL_SECONDS: Final = 0.01


class Ended(msgspec.Struct, frozen=True, kw_only=True):
    """How a command ended; a negative exit code is a signal. The texts are bounded, `is_cut` says that more came."""

    exit_code: int
    stdout: str
    stderr: str
    is_cut: bool
    is_timed_out: bool
    duration_ms: int


def run(
    words: Sequence[str],
    *,
    folder: Path | None = None,
    environment: Mapping[str, str] | None = None,
    timeout_seconds: float,
    max_output: int,
) -> Ended:
    """Run a command in a process group of its own, without input.

    When the time is up the group gets SIGTERM, then SIGKILL. What the command started and left behind ends with it,
    also when this call is interrupted.

    Raises:
        OSError: it could not be started.
    """
    began = time.monotonic()
    process = subprocess.Popen(
        list(words),
        cwd=folder,
        env=None if environment is None else dict(environment),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    assert process.stdout is not None
    assert process.stderr is not None
    outputs = [_Output(process.stdout, max_output), _Output(process.stderr, max_output)]
    try:
        is_timed_out = not _has_ended(process, timeout_seconds)
    finally:
        _end(process)
    texts = [output.text() for output in outputs]
    return Ended(
        exit_code=process.returncode,
        stdout=texts[0],
        stderr=texts[1],
        is_cut=any(output.is_cut for output in outputs),
        is_timed_out=is_timed_out,
        duration_ms=round((time.monotonic() - began) * 1000),
    )


def _has_ended(process: subprocess.Popen[bytes], seconds: float) -> bool:
    """Whether the command ended within the time. It is not reaped yet: its number still names its group."""
    deadline = time.monotonic() + seconds
    while not _is_over(process):
        if time.monotonic() >= deadline:
            return False
        time.sleep(_POLL_SECONDS)
    return True


def _is_over(process: subprocess.Popen[bytes]) -> bool:
    if process.returncode is not None:
        return True
    if not hasattr(os, "waitid"):  # macOS before Python 3.13
        return process.poll() is not None
    return os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT | os.WNOHANG) is not None


def _end(process: subprocess.Popen[bytes]) -> None:
    if not _has_ended(process, 0):
        _signal(process, signal.SIGTERM)
        _has_ended(process, GRACE_SECONDS)
    _signal(process, signal.SIGKILL)  # what is left of the group
    process.wait()


def _signal(process: subprocess.Popen[bytes], number: int) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, number)


class _Output:
    """One pipe, read to its end on a thread: the beginning and the end of what came are kept."""

    def __init__(self, pipe: IO[bytes], most: int) -> None:
        self._pipe = pipe
        self._half = max(1, most // 2)
        self._head = bytearray()
        self._tail = bytearray()
        self._size = 0
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._read, name="stepkeep-verification", daemon=True)
        self._thread.start()

    def _read(self) -> None:
        with self._pipe:
            while chunk := os.read(self._pipe.fileno(), _CHUNK):
                with self._lock:
                    self._keep(chunk)

    def _keep(self, chunk: bytes) -> None:
        self._size += len(chunk)
        room = self._half - len(self._head)
        self._head += chunk[: max(0, room)]
        self._tail += chunk[max(0, room) :]
        del self._tail[: -self._half]

    @property
    def is_cut(self) -> bool:
        return self._size > len(self._head) + len(self._tail)

    def text(self) -> str:
        """What was kept, once the pipe ended; a process that escaped the group is not waited for."""
        self._thread.join(_LINGER_SECONDS)
        with self._lock:
            between = f"\n[… {self._size - 2 * self._half:,} bytes left out …]\n" if self.is_cut else ""
            head, tail = (bytes(each).decode("utf-8", "replace") for each in (self._head, self._tail))
        return f"{head}{between}{tail}".replace("\0", "\ufffd")
