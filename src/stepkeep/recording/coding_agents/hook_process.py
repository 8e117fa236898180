"""What a hook needs as a process: where its log is, what went wrong, and a limit on its time.

The folders are those that every command uses, found without heavy imports: an agent waits for the hook.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

import msgspec

from stepkeep import typed
from stepkeep.errors import BackendUnavailable

if TYPE_CHECKING:
    from types import FrameType

REPAIRED = "text_repaired"
"""The code of what was saved, but not quite as it came."""

MAX_LOG_BYTES = 256 << 10
QUIET_SECONDS = 300
"""How long the same trouble is not told to the person again."""


# --- where things are -----------------------------------------------------------------------------------------


def phases_home(environ: Mapping[str, str]) -> str | None:
    """The folder with the phase checkpoints of other programs, None when there is none."""
    home = environ.get("STEPKEEP_PHASES") or f"{home_of(environ)}/.pai"
    if home.startswith("~"):
        home = os.path.expanduser(home)  # noqa: PTH111
    return home if os.path.isdir(f"{home}/checkpoints") else None  # noqa: PTH112


def log_file(environ: Mapping[str, str]) -> str:
    """The file in which hooks note what went wrong."""
    return (
        environ.get("STEPKEEP_HOOK_LOG")
        or f"{folder_of(environ, 'XDG_STATE_HOME', '.local/state')}/hooks.log"
    )


def folder_of(environ: Mapping[str, str], variable: str, default: str) -> str:
    if sys.platform == "darwin":
        return f"{home_of(environ)}/Library/Application Support/stepkeep"
    base = environ.get(variable, "").strip() or f"{home_of(environ)}/{default}"
    return f"{base}/stepkeep"


def home_of(environ: Mapping[str, str]) -> str:
    return environ.get("HOME") or os.path.expanduser("~")  # noqa: PTH111


def program() -> str:
    """How a shell calls us: by name where that is found, else by the path of this environment."""
    folders = os.environ.get("PATH", "").split(os.pathsep)
    if any(os.access(f"{folder}/stepkeep", os.X_OK) for folder in folders if os.path.isabs(folder)):  # noqa: PTH117
        return "stepkeep"
    return program_by_path()


def program_by_path() -> str:
    """How we are called from anywhere: by the path of this environment's command, or of its interpreter.

    The interpreter takes nothing from the folder it runs in: that may be anybody's.
    """
    import shlex

    script = os.path.join(os.path.dirname(sys.executable), "stepkeep")  # noqa: PTH118, PTH120
    if os.access(script, os.X_OK):
        return shlex.quote(script)
    return f"{shlex.quote(sys.executable)} -P -m stepkeep"


# --- what went wrong where nobody was looking ------------------------------------------------------------------


class HookProblem(msgspec.Struct, frozen=True, kw_only=True):
    """Something that a hook could not do."""

    time: str
    client: str
    event: str
    session: str
    code: str
    message: str


KEY_TROUBLE: Final = frozenset({"key_missing", "key_wrong", "key_unavailable"})
"""Codes of errors about the key of an encrypted store."""


def loggable(exc: Exception, *, is_encrypted: bool) -> str:
    """What an error says, as it may stand in a file.

    Of an encrypted store only what is about the store itself: other errors may name what was to be saved.
    """
    if not is_encrypted or isinstance(exc, BackendUnavailable) or getattr(exc, "code", "") in KEY_TROUBLE:
        return str(exc) or type(exc).__name__
    return "the store is encrypted, and the message may name what was to be saved: it is not written down"


def log_problem(
    environ: Mapping[str, str], *, client: str, event: str, session: str, code: str, message: str
) -> bool:
    """Write one line to the log; never raises.

    Returns whether the person should be told: not when the same was told shortly before.
    """
    now = time.time()
    problem = HookProblem(
        time=timestamp(now),
        client=_valid(client, 80),
        event=_valid(event, 80),
        session=_valid(session, 200),
        code=code,
        message=_valid(message, 1000),
    )
    since, same = timestamp(now - QUIET_SECONDS), (problem.code, problem.event)
    is_told = any((each.code, each.event) == same and each.time >= since for each in recent_problems(environ))
    try:
        _append(log_file(environ), msgspec.json.encode(problem) + b"\n")
    except (OSError, ValueError):
        return True
    return not is_told


def recent_problems(environ: Mapping[str, str], limit: int = 20) -> list[HookProblem]:
    """What hooks could not do lately, newest first; lines that make no sense are left out."""
    found: list[HookProblem] = []
    try:
        with open(log_file(environ), "rb") as file:  # noqa: PTH123
            lines = file.read(MAX_LOG_BYTES * 2).splitlines()
    except (OSError, ValueError):
        return found
    while lines and len(found) < limit:
        try:
            found.append(typed.from_json(lines.pop(), HookProblem))
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            continue
    return found


def hook_trouble(now_us: int) -> str | None:
    """One line about what hooks could not save within the last day, None when they could save everything."""
    since = timestamp(now_us / 1_000_000 - 86_400)
    problems = recent_problems(os.environ, 100)
    found = [each for each in problems if each.time >= since and each.code != REPAIRED]
    if not found:
        return None
    return (
        f"hooks could not save {len(found)} times within a day, last at {found[0].time} ({found[0].message}):"
        " see `stepkeep hooks status`"
    )


def _valid(text: str, limit: int) -> str:
    return text[:limit].encode("utf-8", "replace").decode()


def timestamp(seconds: float) -> str:
    """A time as the log has it; these texts are in the order of their times."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(seconds))


def _append(path: str, line: bytes) -> None:
    os.makedirs(os.path.dirname(path) or ".", mode=0o700, exist_ok=True)  # noqa: PTH103, PTH120
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    try:
        if os.fstat(descriptor).st_size > MAX_LOG_BYTES:
            os.replace(path, f"{path}.1")  # noqa: PTH105  (this line still goes to the old file)
        os.write(descriptor, line)
    finally:
        os.close(descriptor)


# --- how long it may take --------------------------------------------------------------------------------------


class Timeout:
    """Raise in the block when it takes too long, where signals allow it. Blocks may be nested.

    Raises:
        BackendUnavailable: (`hook_timeout`) the time is over.
    """

    def __init__(self, seconds: float, problem: str) -> None:
        self._seconds = seconds
        self._problem = problem
        self._is_main_thread = threading.current_thread() is threading.main_thread()

    def __enter__(self) -> None:
        if self._is_main_thread:
            self._began = time.monotonic()
            self._handler = signal.signal(signal.SIGALRM, self._give_up)
            self._left, _ = signal.setitimer(signal.ITIMER_REAL, self._seconds)

    def __exit__(self, *_: object) -> None:
        if self._is_main_thread:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, self._handler)
            if self._left:  # that of the block around this one goes on
                passed = time.monotonic() - self._began
                signal.setitimer(signal.ITIMER_REAL, max(0.001, self._left - passed))

    def _give_up(self, number: int, frame: FrameType | None) -> None:  # noqa: ARG002
        raise BackendUnavailable(f"{self._problem} within {self._seconds:g} seconds", code="hook_timeout")
