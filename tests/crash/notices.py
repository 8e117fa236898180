"""Faults without a tracer: the kernel asks this process before each call of one name, and waits for the answer.

A child installs a filter for one system call (seccomp with user notification). Its calls of that name stop until
they are answered: go on, fail with an error, or be the last thing the child did. All other calls run at full speed,
which makes a run several times cheaper than under strace. Where the kernel or the processor is another one, strace
does the same. A fault is named as strace names it: `fsync:error=EIO:when=3`, `openat:signal=KILL:when=2`, and
`when=3+` for that call and all later ones. Calls are counted per thread.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import functools
import os
import platform
import select
import signal
import socket
import struct
import time
from collections import Counter
from dataclasses import dataclass

NUMBERS = {
    "read": 0,
    "write": 1,
    "fstat": 5,
    "lseek": 8,
    "pread64": 17,
    "pwrite64": 18,
    "fsync": 74,
    "fdatasync": 75,
    "ftruncate": 77,
    "rename": 82,
    "mkdir": 83,
    "rmdir": 84,
    "link": 86,
    "unlink": 87,
    "getdents64": 217,
    "openat": 257,
    "mkdirat": 258,
    "newfstatat": 262,
    "unlinkat": 263,
    "renameat": 264,
    "linkat": 265,
    "fallocate": 285,
    "renameat2": 316,
}
"""System calls of x86-64, the only processor for which there is a table."""

_SECCOMP = 317
_ARCHITECTURE = 0xC000003E
_SET_FILTER, _IS_AVAILABLE, _NEW_LISTENER = 1, 2, 8
_ASK, _ALLOW = 0x7FC00000, 0x7FFF0000
_LOAD, _IF_EQUAL, _RETURN = 0x20, 0x15, 0x06
_NO_NEW_PRIVILEGES = 38
_RECEIVE, _SEND = 0xC0502100, 0xC0182101
_NOTICE_BYTES = 80
_GO_ON = 1


@dataclass(frozen=True)
class Fault:
    """A fault as strace writes it."""

    name: str
    number: int
    error: int | None
    """None kills."""
    is_lasting: bool

    @classmethod
    def parse(cls, inject: str) -> Fault:
        name, what, when = inject.split(":")
        kind, _, value = what.partition("=")
        count = when.removeprefix("when=")
        error = getattr(errno, value) if kind == "error" else None
        return cls(name, int(count.rstrip("+")), error, count.endswith("+"))

    def is_due(self, number: int) -> bool:
        return number == self.number or (self.is_lasting and number > self.number)


@functools.cache
def can_inject(name: str) -> bool:
    """Whether the kernel can ask for this call here."""
    if platform.machine() != "x86_64" or platform.system() != "Linux" or name not in NUMBERS:
        return False
    action = ctypes.c_uint32(_ASK)
    return int(_libc().syscall(_SECCOMP, _IS_AVAILABLE, 0, ctypes.byref(action))) == 0


def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def ask_for(name: str, link: socket.socket) -> None:
    """In the child: from now on each call of this name waits for the answer of who is at the other end."""
    steps = (
        (_LOAD, 0, 0, 4),
        (_IF_EQUAL, 0, 3, _ARCHITECTURE),
        (_LOAD, 0, 0, 0),
        (_IF_EQUAL, 0, 1, NUMBERS[name]),
        (_RETURN, 0, 0, _ASK),
        (_RETURN, 0, 0, _ALLOW),
    )
    code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *step) for step in steps))
    program = ctypes.create_string_buffer(struct.pack("HxxxxxxQ", len(steps), ctypes.addressof(code)))
    libc = _libc()
    libc.prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0)
    listener = libc.syscall(_SECCOMP, _SET_FILTER, _NEW_LISTENER, program)
    if listener < 0:
        raise OSError(ctypes.get_errno(), "the filter was refused")
    socket.send_fds(link, [b"."], [listener])
    os.close(listener)


def answer(link: socket.socket, child: int, fault: Fault, *, seconds: float) -> bool:
    """In the parent: answer until the child is gone; whether the fault fired."""
    _, descriptors, _, _ = socket.recv_fds(link, 1, 1)
    if not descriptors:
        return False
    (listener,) = descriptors
    try:
        return _answer_all(listener, child, fault, time.monotonic() + seconds)
    finally:
        os.close(listener)


def _answer_all(listener: int, child: int, fault: Fault, until: float) -> bool:
    counts: Counter[int] = Counter()
    has_fired = False
    waiting = select.poll()
    waiting.register(listener, select.POLLIN)
    while True:
        events = waiting.poll(max(0.0, until - time.monotonic()) * 1000)
        if not events:
            os.kill(child, signal.SIGKILL)
            return has_fired
        if not events[0][1] & select.POLLIN:
            return has_fired
        notice = bytearray(_NOTICE_BYTES)
        try:
            fcntl.ioctl(listener, _RECEIVE, notice)
            number, thread = struct.unpack_from("QI", notice)
            counts[thread] += 1
            is_due = fault.is_due(counts[thread])
            has_fired |= is_due
            if is_due and fault.error is None:
                os.kill(child, signal.SIGKILL)
                return True
            error = fault.error if is_due and fault.error is not None else 0
            fcntl.ioctl(listener, _SEND, struct.pack("QqiI", number, 0, -error, 0 if error else _GO_ON))
        except FileNotFoundError:
            continue  # its thread ended meanwhile
