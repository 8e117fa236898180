"""The files beside a store of phases: the pointer in `seed.json`, and the event log. Neither ever raises.

`seed.json` belongs to others. Its text is edited, not written anew: the one member `state.checkpointRef` is put in,
changed or taken out, and all other bytes stay. The new text is checked, written beside the file, synced and renamed
over it, under the lock of the file, and only if nobody replaced the file meanwhile. A file that is missing or makes no
sense is never written.

The event log has one JSON object a line, one file a day (UTC). The types of events are closed there, so ours have the
type `custom`, and `data.action` names them.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, Final, NamedTuple

from stepkeep.codec.readable import timestamp
from stepkeep.model import new_uid
from stepkeep.storage.disk import make_private_directory, put_in_place, temporary_beside, write_new

SEED_FILE: Final = "seed.json"
REF: Final = "checkpointRef"
MAX_BYTES: Final = 16 << 20
WAIT_SECONDS: Final = 2.0
EVENTS_FOLDER: Final = "events"
CREATED = "checkpoint_created"
COMPLETED = "checkpoint_completed"
DELETED = "checkpoint_deleted"

_SPACE: Final = re.compile(r"[ \t\r\n]*")
_DECODER: Final = json.JSONDecoder()


class SeedProblem(Exception):
    """Why the file was left as it is."""


# --- the text of seed.json -------------------------------------------------------------------------------------


class _Member(NamedTuple):
    key: str
    start: int
    key_end: int
    value_start: int
    end: int


def ref_in(text: str) -> str | None:
    """The reference in the text of a seed file, None when there is none.

    Raises:
        SeedProblem: the text is not a seed file.
    """
    found = next((each for each in _members(text, _state(text).value_start) if each.key == REF), None)
    value = None if found is None else json.loads(text[found.value_start : found.end])
    return value if isinstance(value, str) else None


def with_ref(text: str, checkpoint: str) -> str:
    """The text with the reference set; all other characters stay."""
    state = _state(text)
    members = _members(text, state.value_start)
    value = json.dumps(checkpoint)
    found = next((each for each in members if each.key == REF), None)
    if found is not None:
        changed = text[: found.value_start] + value + text[found.end :]
    elif members:
        last, opening = members[-1], state.value_start + 1
        before = text[members[-2].end if len(members) > 1 else opening : last.start].rpartition(",")[2]
        colon = text[last.key_end : last.value_start]
        changed = f'{text[: last.end]},{before}"{REF}"{colon}{value}{text[last.end :]}'
    else:
        changed = text[: state.value_start] + _first_member(text, value) + text[state.end :]
    return _proven(text, changed, checkpoint)


def without_ref(text: str) -> str:
    """The text without the reference; all other characters stay."""
    state = _state(text)
    members = _members(text, state.value_start)
    at = next((at for at, each in enumerate(members) if each.key == REF), None)
    if at is None:
        return text
    if at + 1 < len(members):
        changed = text[: members[at].start] + text[members[at + 1].start :]
    elif at:
        changed = text[: members[at - 1].end] + text[members[at].end :]
    else:
        changed = text[: state.value_start] + "{}" + text[state.end :]
    return _proven(text, changed, None)


def _state(text: str) -> _Member:
    try:
        json.loads(text)
        start = _skip(text, 0)
        found = [each for each in _members(text, start) if each.key == "state"] if text[start] == "{" else []
    except (ValueError, RecursionError, IndexError) as exc:
        raise SeedProblem(f"is not valid JSON: {exc}") from exc
    if len(found) != 1 or text[found[0].value_start] != "{":
        raise SeedProblem("has no single object `state`")
    return found[0]


def _members(text: str, opening: int) -> list[_Member]:
    """The members of the object whose brace is at `opening`. The text is known to be valid."""
    found: list[_Member] = []
    at = _skip(text, opening + 1)
    while text[at] == '"':
        key, key_end = _DECODER.raw_decode(text, at)
        value_start = _skip(text, _skip(text, key_end) + 1)
        _, end = _DECODER.raw_decode(text, value_start)
        found.append(_Member(key, at, key_end, value_start, end))
        at = _skip(text, end)
        if text[at] == ",":
            at = _skip(text, at + 1)
    return found


def _skip(text: str, at: int) -> int:
    match = _SPACE.match(text, at)
    return at if match is None else match.end()


def _first_member(text: str, value: str) -> str:
    """An object with the reference alone, indented as the file is."""
    opening = _skip(text, 0)
    newline, separator, indent = text[opening + 1 : _skip(text, opening + 1)].rpartition("\n")
    outer = newline + separator + indent if separator else ""
    inner = outer + indent if separator else ""
    return f'{{{inner}"{REF}": {value}{outer}}}'


def _proven(before: str, after: str, checkpoint: str | None) -> str:
    """The new text, once it is known to say the same but for the reference."""
    wanted: Any = json.loads(before)
    wanted["state"].pop(REF, None)
    try:
        found: Any = json.loads(after)
    except ValueError:
        found = {"state": {}}
    if found["state"].pop(REF, None) != checkpoint or found != wanted:
        raise SeedProblem("is written in a way that cannot be edited safely")
    return after


# --- the file seed.json ----------------------------------------------------------------------------------------


def read_ref(path: Path) -> str | None:
    """The reference in the file; None when there is none, or the file is missing or broken."""
    try:
        with path.open("rb") as file:
            return ref_in(_text(file))
    except (OSError, SeedProblem):
        return None


def set_ref(path: Path, checkpoint: str, *, wait_seconds: float = WAIT_SECONDS) -> str | None:
    """Point the file at a checkpoint. Returns what is wrong with the file, None when it is done."""
    return _edit(path, lambda text: with_ref(text, checkpoint), wait_seconds)


def clear_ref(path: Path, checkpoints: Collection[str], *, wait_seconds: float = WAIT_SECONDS) -> str | None:
    """Take the pointer out if it names one of these. Returns what is wrong with the file, None when it is done."""

    def cleared(text: str) -> str:
        return without_ref(text) if ref_in(text) in checkpoints else text

    return _edit(path, cleared, wait_seconds)


def _edit(path: Path, change: Callable[[str], str], wait_seconds: float) -> str | None:
    deadline = time.monotonic() + wait_seconds
    try:
        real = path.resolve(strict=True)
        while not _edited(real, change, deadline):
            if time.monotonic() >= deadline:
                return f"{path} was replaced again and again while it was to be changed"
    except FileNotFoundError:
        return f"{path} is missing"
    except SeedProblem as exc:
        return f"{path} {exc}"
    except (OSError, RuntimeError) as exc:
        return f"{path} could not be changed: {exc}"
    return None


def _edited(path: Path, change: Callable[[str], str], deadline: float) -> bool:
    """Change the file once; False when somebody replaced it meanwhile."""
    with _locked(path, deadline) as file:
        before = os.fstat(file.fileno())
        text = _text(file)
        changed = change(text)
        if changed == text:
            return True
        temporary = temporary_beside(path)
        try:
            write_new(temporary, changed.encode())
            temporary.chmod(before.st_mode & 0o7777)
            if _identity(path.stat()) != _identity(before):
                return False
            put_in_place(temporary, path, replace=True)
        finally:
            temporary.unlink(missing_ok=True)
        return True


def _identity(found: os.stat_result) -> tuple[int, int, int, int]:
    return found.st_dev, found.st_ino, found.st_mtime_ns, found.st_size


@contextmanager
def _locked(path: Path, deadline: float) -> Iterator[BinaryIO]:
    """The file, held by its own lock. Whoever renames over it holds the lock of what it was."""
    while True:
        with path.open("rb") as file:
            _lock(file.fileno(), deadline)
            held, there = os.fstat(file.fileno()), path.stat()
            if (held.st_dev, held.st_ino) == (there.st_dev, there.st_ino):
                yield file
                return


def _lock(descriptor: int, deadline: float) -> None:
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if time.monotonic() >= deadline:
                raise SeedProblem("is locked by another process") from None
            time.sleep(0.01)


def _text(file: BinaryIO) -> str:
    content = file.read(MAX_BYTES + 1)
    if len(content) > MAX_BYTES:
        raise SeedProblem(f"is larger than {MAX_BYTES:,} bytes")
    try:
        return content.decode()
    except UnicodeDecodeError as exc:
        raise SeedProblem("is not UTF-8 text") from exc


# --- the event log ---------------------------------------------------------------------------------------------


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
        path = folder / f"events-{timestamp(time_us)[:10]}.jsonl"
        _append(path, json.dumps(event).encode() + b"\n")
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
