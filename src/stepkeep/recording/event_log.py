"""The event log beside a store of phases: one JSON object a line, one file a day (UTC). Appending never raises.

The types of events are closed there, so ours have the type `custom`, and `data.action` names them.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, Final

from stepkeep.codec.readable import timestamp
from stepkeep.model import new_uid
from stepkeep.storage.disk import make_private_directory

FOLDER: Final = "events"
CREATED = "checkpoint_created"
COMPLETED = "checkpoint_completed"
DELETED = "checkpoint_deleted"


def file_name(time_us: int) -> str:
    """The file for the events of a moment."""
    return f"events-{timestamp(time_us)[:10]}.jsonl"


def append_event(
    folder: Path, action: str, *, session: str, data: dict[str, Any], time_us: int
) -> str | None:
    """Append one event. Returns what went wrong, None when it is written."""
    try:
        event = {
            "id": new_uid(),
            "timestamp": timestamp(time_us),
            "sessionId": session,
            "type": "custom",
            "data": {"action": action, **data},
        }
        make_private_directory(folder)
        _append(folder / file_name(time_us), json.dumps(event).encode() + b"\n")
    except Exception as exc:  # the work goes on without its log
        return f"the event {action} could not be logged in {folder}: {exc}"
    return None


def _append(path: Path, line: bytes) -> None:
    """One write, so that lines of several processes do not mix; a torn last line is ended first."""
    flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
    descriptor = os.open(path, flags, 0o600)
    try:
        size = os.fstat(descriptor).st_size
        is_torn = size > 0 and os.pread(descriptor, 1, size - 1) != b"\n"
        content = b"\n" + line if is_torn else line
        if os.write(descriptor, content) != len(content):
            raise OSError("the disk took only a part of it")
    finally:
        os.close(descriptor)
