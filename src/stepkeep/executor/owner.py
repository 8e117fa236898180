"""Who this process is, and whether another one on this machine is dead."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import msgspec

from stepkeep.storage.port import Owner

_PROC = Path("/proc")


def this_process(label: str = "") -> Owner:
    """This process, precisely enough that others on the same machine can tell when it is gone."""
    pid = os.getpid()
    stat = _stat(pid)
    return Owner(
        host=socket.gethostname(),
        boot_id=_text(_PROC / "sys/kernel/random/boot_id"),
        pid_namespace=_link(_PROC / "self/ns/pid"),
        pid=pid,
        started=0 if stat is None else stat[1],
        label=label,
    )


def is_this_process(owner: Owner) -> bool:
    """Whether that is the process that asks, whatever it was doing."""
    return msgspec.structs.replace(owner, label="") == this_process()


def is_dead(owner: Owner) -> bool:
    """Whether that process surely runs no more. One on another machine, or unseen from here, never is.

    A process id that another process uses by now counts as dead: the start times differ.
    """
    here = this_process()
    if (owner.host, owner.boot_id, owner.pid_namespace) != (here.host, here.boot_id, here.pid_namespace):
        return False
    if not here.started:  # no /proc on this system: only a missing process is sure
        return not _exists(owner.pid)
    stat = _stat(owner.pid)
    if stat is None:
        return not _exists(owner.pid)
    state, started = stat
    return state in "ZX" or started != owner.started


def _exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (OverflowError, OSError):  # it exists and is somebody else's
        return True
    return True


def _stat(pid: int) -> tuple[str, int] | None:
    """State letter and start time of a process, where the system tells."""
    text = _text(_PROC / str(pid) / "stat")
    # The second field is the name in parentheses, which may hold anything.
    fields = text.rpartition(")")[2].split()
    return (fields[0], int(fields[19])) if len(fields) > 19 else None


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return ""


def _link(path: Path) -> str:
    try:
        return str(path.readlink())
    except OSError:
        return ""
