"""A child process under strace: which calls it makes, and which of them fails or is its last.

The child is forked from this process and waits until strace holds it. So it starts in a millisecond, counters of
calls begin at the operation, and nothing but the operation is in the log. Counters are per name of the call and per
thread; only the main thread of a child works. A fault that needs no log is set without strace where the kernel can.
"""

from __future__ import annotations

import ctypes
import gc
import logging
import os
import re
import resource
import shutil
import signal
import socket
import subprocess
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from stepkeep.errors import StepkeepError
from tests.crash import bugs, notices
from tests.crash.stores import Operation, opened

CHANGING = (
    "openat",
    "write",
    "pwrite64",
    "sendfile",
    "fsync",
    "fdatasync",
    "ftruncate",
    "fallocate",
    "rename",
    "renameat",
    "renameat2",
    "link",
    "linkat",
    "unlink",
    "unlinkat",
    "mkdir",
    "mkdirat",
    "rmdir",
)
"""Calls that can change what is on the disk."""

READING = (
    "read",
    "pread64",
    "newfstatat",
    "fstat",
    "lseek",
    "getdents64",
    "fcntl",
    "flock",
    "close",
    "fchmod",
)
TIMEOUT_SECONDS = 60
_ANYBODY = ctypes.c_ulong(-1).value  # PR_SET_PTRACER_ANY


def why_not() -> str | None:
    """Why strace cannot be used here; None when it can."""
    if shutil.which("strace") is None:
        return "strace is not installed"
    probe = subprocess.run(
        ["strace", "-qq", "-o", "/dev/null", "-e", "trace=none", "true"], capture_output=True, check=False
    )
    return None if probe.returncode == 0 else f"strace does not work here: {probe.stderr.decode().strip()}"


@dataclass(frozen=True)
class Call:
    """One call of the log. `number` counts the calls of its name, from 1, as strace does."""

    name: str
    number: int
    args: list[str]
    result: str
    is_injected: bool
    tid: int

    @property
    def value(self) -> int:
        return int(self.result.split("<")[0].split(" ")[0], 0) if self.result not in ("?", "") else -1

    def text(self, index: int) -> bytes:
        """A text argument."""
        return literal(self.args[index])

    def path_of(self, index: int) -> str:
        """What a descriptor refers to."""
        found = re.search(r"<(.*)>", self.args[index])
        return _plain(found[1]) if found else ""

    @property
    def path(self) -> str:
        """The first path or file that the call is about."""
        if self.name in ("rename", "link", "unlink", "mkdir", "rmdir"):
            return self.text(0).decode()
        if self.name in ("openat", "renameat", "renameat2", "linkat", "unlinkat", "mkdirat", "newfstatat"):
            return os.path.join(self.path_of(0), self.text(1).decode())  # noqa: PTH118
        return self.path_of(0)

    def shape(self) -> tuple[str, str]:
        """What is the same whenever the operation is done: the call, and its file without random parts."""
        return self.name, re.sub(
            r"(?<=_)[0-9a-z]{10}(?=\.)|[0-9a-z]{16,}|\d{6,}", "*", self.path.rpartition("/")[2]
        )


@dataclass
class Run:
    """What became of a child: what it said, how it ended, and its calls."""

    said: list[str]
    code: int
    calls: list[Call] = field(default_factory=list)
    has_fired: bool = False
    """Whether the fault happened."""

    @property
    def acks(self) -> list[str]:
        return [line for line in self.said if line.startswith("ACK ")]


Change = Callable[[], None]


def run(
    operation: Operation,
    kind: str,
    root: Path,
    *,
    inject: str | None = None,
    record: bool = False,
    bug: str | None = None,
    limit: int | None = None,
    again: bool = False,
    trace: bool = True,
) -> Run:
    """Let a child do the operation on the store below `root`.

    `inject` is strace's expression for the fault. With `record` the log has all bytes. `limit` bounds the size of
    files. With `again` an operation that failed is tried once more in the same process.
    """
    said, log = root.with_name(root.name + ".said"), root.with_name(root.name + ".log")
    # Opened here: a slow child may not have got so far when the tracer comes, and its calls would have other numbers.
    output = os.open(said, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND, 0o600)
    asked = inject.split(":")[0] if inject and not record else None
    if asked is not None and not notices.can_inject(asked):
        asked = None
    ours, theirs = socket.socketpair()
    child = os.fork()
    if child == 0:
        ours.close()
        _be_child(operation, kind, root, output, theirs, asked, bug, limit, again)
    theirs.close()
    os.close(output)
    has_fired = False
    if asked is not None:
        assert inject is not None
        ours.shutdown(socket.SHUT_WR)
        has_fired = notices.answer(ours, child, notices.Fault.parse(inject), seconds=TIMEOUT_SECONDS)
        trace = False
    else:
        ours.recv(1)  # all that the child does before the operation is done, and has no number
    tracer = _attach(child, log, inject, record) if trace else None
    ours.close()
    code = _wait(child)
    if tracer is not None:
        tracer.wait(TIMEOUT_SECONDS)
        assert tracer.stderr is not None
        tracer.stderr.close()
    calls = list(parsed(log)) if trace else []
    if trace and inject is not None:
        has_fired = code == -9 if ":signal=KILL:" in inject else any(call.is_injected for call in calls)
    lines = [line for line in said.read_text().splitlines(keepends=True) if line.endswith("\n")]
    return Run([line.rstrip("\n") for line in lines], code, calls, has_fired)


def _wait(child: int) -> int:
    def stop(*_: object) -> None:
        os.kill(child, signal.SIGKILL)

    old = signal.signal(signal.SIGALRM, stop)
    signal.alarm(TIMEOUT_SECONDS)
    try:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, old)


def _attach(child: int, log: Path, inject: str | None, record: bool) -> subprocess.Popen[bytes]:
    names = inject.split(":")[0] if inject and not record else ",".join(CHANGING + READING)
    command = ["strace", "-f", "-y", "-o", str(log), "-e", f"trace={names}", "-e", "signal=none"]
    command += ["-xx", "-s", "16777216"] if record else ["-s", "80"]
    command += ["-e", f"inject={inject}"] if inject else []
    tracer = subprocess.Popen([*command, "-p", str(child)], stderr=subprocess.PIPE, stdin=subprocess.DEVNULL)
    assert tracer.stderr is not None
    line = tracer.stderr.readline()
    if b"attached" not in line:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        raise AssertionError(f"strace did not attach: {line.decode()}{tracer.stderr.read().decode()}")
    return tracer


def _be_child(
    operation: Operation,
    kind: str,
    root: Path,
    output: int,
    go: socket.socket,
    asked: str | None,
    bug: str | None,
    limit: int | None,
    again: bool,
) -> None:
    """Never returns."""
    code = 1
    try:
        gc.disable()
        logging.disable(logging.CRITICAL)
        ctypes.CDLL(None).prctl(0x59616D61, _ANYBODY, 0, 0, 0)  # where a tracer must be allowed by its tracee
        signal.signal(signal.SIGALRM, signal.SIG_DFL)

        def say(line: str) -> None:
            os.write(output, line.encode() + b"\n")

        bugs.apply(bug, say)
        if asked is not None:
            notices.ask_for(asked, go)
        else:
            go.send(b".")
        os.read(go.fileno(), 1)  # ends when nobody is at the other end: all is set
        os.write(output, b"BEGIN\n")
        if limit is not None:
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            soft = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, soft))
        attempt = _attempt(operation, kind, root, say)
        if again and attempt.startswith("ERR"):
            say(f"AGAIN {_attempt(operation, kind, root, say)}")
        code = 0
    finally:
        os._exit(code)


def _attempt(operation: Operation, kind: str, root: Path, say: Callable[[str], None]) -> str:
    """Do it, and tell how it ended: `OK`, `ERR code` for an error of ours, or `BUG …` for any other."""
    store = None
    try:
        store = opened(kind, root)
        operation.act(store, root, say)
        end = "OK"
    except StepkeepError as exc:
        end = f"ERR {exc.code}"
    except BaseException as exc:
        end = _bug(exc)
    say(end)
    try:
        if store is not None:
            store.close()
    except StepkeepError:
        pass  # what was acknowledged is durable all the same
    except BaseException as exc:
        say(_bug(exc))
    return end


def _bug(exc: BaseException) -> str:
    where = traceback.extract_tb(exc.__traceback__)[-1]
    return f"BUG {type(exc).__name__}: {exc} at {Path(where.filename).name}:{where.lineno}".replace("\n", " ")


# --- the log ---------------------------------------------------------------------------------------------------

_LINE = re.compile(r"(\d+) +(\w+)\((.*)\) += (.*)", re.DOTALL)
_BEGUN = re.compile(r"(\d+) +(\w+)\((.*) <unfinished \.\.\.>")
_RESUMED = re.compile(r"(\d+) +<\.\.\. (\w+) resumed>(.*)")


def parsed(log: Path) -> Iterator[Call]:
    """The calls of a log in the order in which they ended."""
    begun: dict[tuple[str, str], str] = {}
    counts: dict[tuple[str, str], int] = {}
    for line in log.read_text(errors="surrogateescape").splitlines():
        if found := _BEGUN.match(line):
            begun[found[1], found[2]] = found[3]
            continue
        if found := _RESUMED.match(line):
            line = f"{found[1]} {found[2]}({begun.pop((found[1], found[2]), '')}{found[3]}"
        if not (found := _LINE.match(line)):
            continue
        tid, name, args, result = found.groups()
        key = tid, name
        counts[key] = counts.get(key, 0) + 1
        yield Call(name, counts[key], split(args), result, "(INJECTED)" in result, int(tid))
    for (tid, name), args in begun.items():  # killed inside
        key = tid, name
        yield Call(name, counts.get(key, 0) + 1, split(args), "?", False, int(tid))


def split(text: str) -> list[str]:
    """The arguments of a call."""
    parts, depth, start, at, is_quoted = [], 0, 0, 0, False
    while at < len(text):
        char = text[at]
        if is_quoted:
            if char == "\\":
                at += 1
            elif char == '"':
                is_quoted = False
                end = text.find('"', at)
                assert end >= 0
        elif char == '"':
            is_quoted = True
            if text.startswith('"\\x', at):  # long data: jump to its end
                at = text.index('"', at + 1) - 1
        elif char in "([{":
            depth += 1
        elif char in ")]}":
            depth -= 1
        elif char == "," and depth == 0:
            parts.append(text[start:at].strip())
            start = at + 1
        at += 1
    return [*parts, text[start:].strip()]


_ESCAPES = {"n": b"\n", "t": b"\t", "r": b"\r", "v": b"\v", "f": b"\f", '"': b'"', "\\": b"\\"}


def literal(text: str) -> bytes:
    """The bytes of a quoted argument."""
    assert text.startswith('"'), text[:100]
    assert text.endswith('"'), f"cut off: {text[-40:]}"
    inner = text[1:-1]
    if inner.startswith("\\x"):
        return bytes.fromhex(inner.replace("\\x", ""))
    return _unescaped(inner)


def _unescaped(text: str) -> bytes:
    def one(match: re.Match[str]) -> str:
        if match[1] in _ESCAPES:
            return _ESCAPES[match[1]].decode()
        return chr(int(match[1], 8))

    return re.sub(r"\\([0-7]{1,3}|.)", one, text).encode("latin-1")


def _plain(path: str) -> str:
    if path.startswith("\\x"):
        return bytes.fromhex(path.replace("\\x", "")).decode()
    return path.removesuffix("(deleted)")


def shapes(calls: list[Call], root: Path) -> list[tuple[str, str, int]]:
    """The sequence of calls on files of the store, with the numbers by which they are found again."""
    return [(*call.shape(), call.number) for call in on_store(calls, root)]


def on_store(calls: list[Call], root: Path) -> list[Call]:
    """The calls that touch files below a directory."""
    inside = str(root)
    return [call for call in calls if _touches(call, inside)]


def _touches(call: Call, inside: str) -> bool:
    path: Any = call.path if call.args and call.args != [""] else ""
    return bool(path == inside or path.startswith(inside + "/"))
