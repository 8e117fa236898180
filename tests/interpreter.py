"""Python processes that start in a moment: forked from one that has imported everything.

An interpreter that imports the commands takes a third of a second before it begins to work. `python` has the same
outside, a process with its own environment, folder, files and exit code, and takes a hundredth. Each process that runs
tests has a server of its own that forks for it. The server has no store open, no threads and nothing of pytest, so that
a child begins as a new interpreter would, but for the imports.

Tests of the start itself (what is imported, terminals, locales, signals, processes that go on) use `subprocess`.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import json
import os
import pkgutil
import runpy
import select
import selectors
import signal
import socket
import subprocess
import sys
import threading
import time
import types
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

_LEFT_OUT = ("stepkeep.testing", "stepkeep.adapters", "stepkeep.mcp", "stepkeep.web", "stepkeep.__main__")
"""Packages that take long to import or are for tests, and what runs when it is imported."""

_FIXED_AT_START = ("PYTHON", "LC_", "LANG")
"""Variables with these beginnings have their effect when an interpreter starts."""


# --- for the tests


def stepkeep(
    *words: str, input: str = "", cwd: Path | None = None, env: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a command as `python -m stepkeep` would, with text instead of bytes."""
    done = python("-m", "stepkeep", *words, input=input.encode(), cwd=cwd, env=env)
    return subprocess.CompletedProcess(words, done.returncode, done.stdout.decode(), done.stderr.decode())


def python(
    *words: str | bytes,
    input: bytes = b"",
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
) -> subprocess.CompletedProcess[bytes]:
    """Run what an interpreter would run with these words (`-m NAME`, `-c CODE` or a path first), to its end."""
    pipe = subprocess.PIPE
    with start(
        [os.fsdecode(word) for word in words], stdin=pipe, stdout=pipe, stderr=pipe, cwd=cwd, env=env
    ) as process:
        out, err = process.communicate(input)
    return subprocess.CompletedProcess(words, process.returncode, out, err)


def start(words: Sequence[str], **options: Any) -> subprocess.Popen[Any]:
    """Start what an interpreter would run with these words; the options are those of `subprocess.Popen`."""
    environment = os.environ if options.get("env") is None else options["env"]
    if _start_of(environment) != _start_of(os.environ):
        return subprocess.Popen([sys.executable, *words], **options)
    return _Forked(words, **options)


class _Forked(subprocess.Popen[Any]):
    """A process that the server forked: only the server can wait for it, and tells how it ended."""

    def _execute_child(self, words: Any, *given: Any) -> None:
        (_, _, _, _, cwd, env, _, _, _, stdin, stdin_end, stdout_end, stdout, stderr_end, stderr) = given[:15]
        standard = [
            os.dup(each) if each != -1 else os.open(os.devnull, os.O_RDWR) for each in (stdin, stdout, stderr)
        ]
        self._connection, theirs = socket.socketpair()
        with theirs:
            _server().send(theirs.fileno(), *standard)
        for descriptor in standard:
            os.close(descriptor)
        for theirs_, ours in ((stdin, stdin_end), (stdout, stdout_end), (stderr, stderr_end)):
            if theirs_ != -1 and ours != -1:
                os.close(theirs_)
        request = {
            "words": words,
            "cwd": os.fspath(cwd or Path.cwd()),
            "environment": dict(env or os.environ),
        }
        self._connection.sendall(json.dumps(request).encode() + b"\n")
        self._answers = self._connection.makefile()
        self.pid = int(self._answers.readline())
        self._child_created = True

    def _has_ended(self) -> bool:
        return bool(select.select([self._connection], [], [], 0)[0])

    def _internal_poll(self, *_: Any, **__: Any) -> int | None:
        if self.returncode is None and self._has_ended():
            self._try_wait(0)
        return self.returncode

    def _try_wait(self, flags: int) -> tuple[int, int]:
        """What `os.waitpid` would answer."""
        if flags and not self._has_ended():
            return 0, 0
        status = int(self._answers.readline())
        self._handle_exitstatus(status)  # type: ignore[attr-defined]
        self._answers.close()
        self._connection.close()
        return self.pid, status


def _start_of(environment: Mapping[str, str]) -> dict[str, str]:
    return {
        name: value
        for name, value in environment.items()
        if name.startswith(_FIXED_AT_START) and name != "PYTHONPATH"
    }


class _Server:
    """The process that forks."""

    def __init__(self) -> None:
        self._channel, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, __file__, str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
                cwd="/",
            )
        self._lock = threading.Lock()

    def send(self, *descriptors: int) -> None:
        with self._lock:
            socket.send_fds(self._channel, [b"."], list(descriptors))

    def close(self) -> None:
        self._channel.close()
        self._process.wait()


_servers: dict[int, _Server] = {}
_lock = threading.Lock()


def _server() -> _Server:
    """The server of this process: one that was inherited by a fork belongs to the parent."""
    with _lock:
        if os.getpid() not in _servers:
            _servers[os.getpid()] = _Server()
            atexit.register(stop)
        return _servers[os.getpid()]


def stop() -> None:
    """End the server of this process, if there is one."""
    server = _servers.pop(os.getpid(), None)
    if server is not None:
        server.close()


# --- the server


def _serve(channel: socket.socket) -> None:
    """Fork for each request, and answer it with the id of the process, and with how it ended as `os.waitpid` has it."""
    running: dict[int, socket.socket] = {}
    woken, bell = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.set_wakeup_fd(bell)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    ready = selectors.DefaultSelector()
    ready.register(woken, selectors.EVENT_READ)
    ready.register(channel, selectors.EVENT_READ)
    while True:
        for key, _ in ready.select():
            if key.fileobj == woken:
                os.read(woken, 4096)
                _answer(running)
                continue
            _, descriptors, _, _ = socket.recv_fds(channel, 1, 4)
            if not descriptors:
                return
            caller = socket.socket(fileno=descriptors[0])
            with caller.makefile() as lines:
                request = json.loads(lines.readline())
            _import_for(request["words"])
            pid = os.fork()
            if pid == 0:
                _forget(woken, bell, channel, caller, *running.values())
                ready.close()
                _become(request, descriptors[1:])
            running[pid] = caller
            _tell(caller, pid)
            for descriptor in descriptors[1:]:
                os.close(descriptor)


def _forget(woken: int, bell: int, *sockets: socket.socket) -> None:
    """Leave what belongs to the server alone, in a child."""
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    for each in sockets:
        each.close()
    for descriptor in (woken, bell):
        os.close(descriptor)


def _answer(running: dict[int, socket.socket]) -> None:
    """Tell the callers of the children that have ended."""
    while running:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid == 0:
            return
        with running.pop(pid) as caller:
            _tell(caller, status)


def _tell(caller: socket.socket, number: int) -> None:
    with contextlib.suppress(OSError):  # nobody waits for it
        caller.sendall(f"{number}\n".encode())


def _become(request: dict[str, Any], standard: list[int]) -> None:
    """Be the new process, to its end."""
    gc.freeze()
    for number, descriptor in enumerate(standard):
        os.dup2(descriptor, number)
        os.close(descriptor)
    os.environ.clear()
    os.environ.update(request["environment"])
    time.tzset()
    os.chdir(request["cwd"])
    code = _outcome(request["words"])
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
    os._exit(code)


def _outcome(words: list[str]) -> int:
    try:
        _run(words)
    except SystemExit as exc:
        if exc.code is None or isinstance(exc.code, int):
            return (exc.code or 0) & 0xFF
        print(exc.code, file=sys.stderr)
        return 1
    except BaseException:
        sys.excepthook(*sys.exc_info())  # type: ignore[arg-type]
        return 1
    return 0


def _run(words: list[str]) -> None:
    if words[0] == "-m":
        sys.path.insert(0, str(Path.cwd()))
        sys.argv[:] = ["-m", *words[2:]]
        runpy.run_module(words[1], run_name="__main__", alter_sys=True)
    elif words[0] == "-c":
        sys.path.insert(0, "")
        sys.argv[:] = ["-c", *words[2:]]
        sys.modules["__main__"] = main = types.ModuleType("__main__")
        exec(compile(words[1], "<string>", "exec"), main.__dict__)
    else:
        sys.path.insert(0, str(Path(words[0]).parent))
        sys.argv[:] = words
        runpy.run_path(words[0], run_name="__main__")


def _import_everything() -> None:
    package = import_module("stepkeep")
    for found in pkgutil.walk_packages(package.__path__, "stepkeep."):
        if not found.name.startswith(_LEFT_OUT):
            with contextlib.suppress(ImportError):
                import_module(found.name)
    for name in (
        "platformdirs.unix",
        "rich.table",
        "rich.console",
        "rich.progress",
        "rich.tree",
        "rich.text",
    ):
        import_module(name)


def _import_for(words: list[str]) -> None:
    """What takes seconds to import, and only some processes need."""
    if words[:3] == ["-m", "stepkeep", "mcp"]:
        import_module("mcp.server")


if __name__ == "__main__":
    del sys.path[0]  # this folder
    _import_everything()
    gc.collect()
    with socket.socket(fileno=int(sys.argv[1])) as _channel:
        _serve(_channel)
