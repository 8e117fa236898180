"""The log of hooks: what went wrong where nobody was looking. Writing it never raises."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from typing import Any

from stepkeep.recording.coding_agents.locations import log_file

MAX_BYTES = 256 << 10
QUIET_SECONDS = 300
"""How long the same trouble is not told to the person again."""


def note(
    environ: Mapping[str, str], *, client: str, event: str, session: str, code: str, message: str
) -> bool:
    """Write one line. Returns whether the person should be told: not when the same was told shortly before."""
    now = time.time()
    entry = {
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(now)),
        "client": client[:80],
        "event": event[:80],
        "session": session[:200],
        "code": code,
        "message": message[:1000],
    }
    try:
        path = log_file(environ)
        is_told = _told_before(path, code, event, now)
        _append(path, json.dumps(entry).encode() + b"\n")
    except (OSError, ValueError):
        return True
    return not is_told


def recent(environ: Mapping[str, str], limit: int = 20) -> list[dict[str, Any]]:
    """The newest entries, newest first; lines that make no sense are left out."""
    try:
        with open(log_file(environ), "rb") as file:  # noqa: PTH123
            lines = file.read(MAX_BYTES * 2).splitlines()
    except OSError:
        return []
    found = []
    for line in reversed(lines):
        try:
            entry = json.loads(line)
        except ValueError:
            continue
        if isinstance(entry, dict):
            found.append(entry)
        if len(found) == limit:
            break
    return found


def _told_before(path: str, code: str, event: str, now: float) -> bool:
    try:
        if now - os.stat(path).st_mtime > QUIET_SECONDS:  # noqa: PTH116
            return False
        with open(path, "rb") as file:  # noqa: PTH123
            lines = file.read().splitlines()[-20:]
    except OSError:
        return False
    since = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(now - QUIET_SECONDS))
    for line in lines:
        try:
            entry = json.loads(line)
            if (entry["code"], entry["event"]) == (code, event[:80]) and entry["time"] >= since:
                return True
        except (ValueError, KeyError, TypeError):
            continue
    return False


def _append(path: str, line: bytes) -> None:
    os.makedirs(os.path.dirname(path) or ".", mode=0o700, exist_ok=True)  # noqa: PTH103, PTH120
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    try:
        if os.fstat(descriptor).st_size > MAX_BYTES:
            os.replace(path, f"{path}.1")  # noqa: PTH105  (this line still goes to the old file)
        os.write(descriptor, line)
    finally:
        os.close(descriptor)
