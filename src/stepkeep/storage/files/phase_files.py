"""The files beside a store of phases: the pointer in `seed.json`, and the event log. Neither ever raises.

The store tells them of every checkpoint that is saved or removed and of every session that ends, whoever asked for it.
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
import logging
import os
import time
from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO, Final

from stepkeep.codec import json_text
from stepkeep.codec.json_text import Node
from stepkeep.codec.readable import timestamp
from stepkeep.model import Header, SessionInfo, new_uid, utc_now_us
from stepkeep.storage.disk import make_private_directory, put_in_place, temporary_beside, write_new

SEED_FILE: Final = "seed.json"
REF: Final = "checkpointRef"
MAX_BYTES: Final = 16 << 20
WAIT_SECONDS: Final = 2.0
EVENTS_FOLDER: Final = "events"
CREATED = "checkpoint_created"
COMPLETED = "checkpoint_completed"
DELETED = "checkpoint_deleted"


log = logging.getLogger("stepkeep")


class SeedProblem(Exception):
    """Why the file was left as it is."""


# --- the text of seed.json -------------------------------------------------------------------------------------


def ref_in(text: str) -> str | None:
    """The reference in the text of a seed file, None when there is none.

    Raises:
        SeedProblem: the text is not a seed file.
    """
    found = _state(text).child(REF)
    value = None if found is None else json.loads(text[found.value.start : found.value.end])
    return value if isinstance(value, str) else None


def with_ref(text: str, checkpoint: str) -> str:
    """The text with the reference set; all other characters stay."""
    state = _state(text)
    found = state.child(REF)
    if found is None:
        return _proven(text, json_text.added(text, state, checkpoint, key=REF), checkpoint)
    return _proven(text, json_text.replaced(text, found.value, checkpoint), checkpoint)


def without_ref(text: str) -> str:
    """The text without the reference; all other characters stay."""
    state = _state(text)
    keys = [each.key for each in state.children or ()]
    if REF not in keys:
        return text
    return _proven(text, json_text.removed(text, state, keys.index(REF)), None)


def _state(text: str) -> Node:
    try:
        json.loads(text)  # no comments here: others read this file
        found = [each for each in json_text.parse(text).children or () if each.key == "state"]
    except (ValueError, RecursionError) as exc:
        raise SeedProblem(f"is not valid JSON: {exc}") from exc
    if len(found) != 1 or text[found[0].value.start] != "{":
        raise SeedProblem("has no single object `state`")
    if [each.key for each in found[0].value.children or ()].count(REF) > 1:
        raise SeedProblem(f"has `{REF}` twice")
    return found[0].value


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


# --- kept true to the store ------------------------------------------------------------------------------------

MAX_PROBLEMS: Final = 20


class PhaseFiles:
    """The pointer and the event log in a folder. What goes wrong is logged, and told to who asks for `problems`.

    A missing `seed.json` is trouble only where one is to be: it was there before, or `expects_seed` is set.
    """

    def __init__(self, home: Path, *, clock: Callable[[], int] = utc_now_us) -> None:
        self._seed = home / SEED_FILE
        self._events = home / EVENTS_FOLDER
        self._clock = clock
        self._problems = deque[str](maxlen=MAX_PROBLEMS)
        self.expects_seed = self._has_seed()

    def _has_seed(self) -> bool:
        """Whether there is one; what cannot be looked at is told by who then reads or writes it."""
        try:
            return self._seed.exists()
        except OSError:
            return True

    @property
    def ref(self) -> str | None:
        """The checkpoint that `seed.json` points at."""
        return read_ref(self._seed)

    def problems(self) -> tuple[str, ...]:
        """What went wrong since this was asked last."""
        found: list[str] = []
        with suppress(IndexError):
            while True:
                found.append(self._problems.popleft())
        return tuple(found)

    def created(self, session: SessionInfo, header: Header) -> None:
        """A checkpoint of a phase was saved. One that another system named was told of by that system."""
        if not _is_of_phase(header) or header.external_id is not None:
            return
        if self.expects_seed or self._has_seed():
            self.expects_seed = True
            self._note(set_ref(self._seed, header.id))
        self._log(CREATED, session, header)

    def ended(self, session: SessionInfo, headers: Sequence[Header]) -> None:
        """A session came to its end: nothing of it is pointed at. Its last phase is told, whatever was saved since."""
        self.forget(headers)
        if headers:
            last = next((each for each in reversed(headers) if _is_of_phase(each)), headers[-1])
            self._log(COMPLETED, session, last, status=session.status)

    def removed(self, session: SessionInfo, headers: Sequence[Header]) -> None:
        """Checkpoints went for good."""
        self.forget(headers)
        for header in headers:
            self._log(DELETED, session, header)

    def forget(self, headers: Sequence[Header]) -> None:
        """Take the pointer out if it names one of these. A missing file points at nothing."""
        if self._has_seed():
            ids = {each.id for each in headers} | {each.external_id for each in headers if each.external_id}
            self._note(clear_ref(self._seed, ids))

    def forget_ref(self, ref: str) -> None:
        """Take out a pointer that leads nowhere."""
        self._note(clear_ref(self._seed, {ref}))

    def _log(self, action: str, session: SessionInfo, header: Header, **more: Any) -> None:
        data = {
            "checkpointId": header.id,
            "phase": header.metadata.get("phase"),
            "phaseNumber": header.metadata.get("phase_number"),
            "taskSummary": header.metadata.get("task_summary"),
            **more,
        }
        now_us = self._clock()
        self._note(append_event(self._events, action, session=session.key, data=data, time_us=now_us))

    def _note(self, problem: str | None) -> None:
        if problem is not None:
            log.warning("%s", problem)
            self._problems.append(problem)


def _is_of_phase(header: Header) -> bool:
    return isinstance(header.metadata.get("phase_number"), int)
