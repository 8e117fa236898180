"""The environment of a coding agent: its transcript, its repository, its process. All of it is read, cheaply."""

from __future__ import annotations

import os
from collections.abc import Mapping
from hashlib import sha256
from typing import Any

import msgspec

from stepkeep import typed
from stepkeep.recording.coding_agents.hook_events import MAX_PROMPT, TurnStart
from stepkeep.recording.coding_agents.hook_process import home_of
from stepkeep.secrets import safe_text

TAIL_BYTES = 64 << 10
_MAX_SMALL_FILE = 64 << 10


# --- the transcript: where it ends, not what it says -----------------------------------------------------------


def transcript_position(path: str) -> tuple[dict[str, Any] | None, bytes]:
    """Where a transcript stands: its path, size, and the digest of its tail; and that tail."""
    if not path:
        return None, b""
    name = os.path.expanduser(path)  # noqa: PTH111  (pathlib takes longer to import than this to run)
    try:
        descriptor = os.open(name, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except (OSError, ValueError):
        return None, b""
    try:
        size = os.fstat(descriptor).st_size
        tail = os.pread(descriptor, TAIL_BYTES, max(0, size - TAIL_BYTES))
    except OSError:
        return None, b""
    finally:
        os.close(descriptor)
    position = {
        "path": safe_text(path, 4000),
        "size_bytes": size,
        "tail_bytes": len(tail),
        "tail_sha256": sha256(tail).hexdigest(),
    }
    if (last := _last_entry(tail)) is not None:
        position["entry"] = last.uuid
    return position, tail


class Entry(msgspec.Struct):
    """What is read of an entry of a transcript."""

    type: Any = None
    message: Any = None
    isSidechain: Any = None
    isMeta: Any = None
    uuid: Any = None
    parentUuid: Any = None

    @property
    def is_prompt(self) -> bool:
        """Whether a person wrote it: results of tools are entries of the user too, without text."""
        return self.type == "user" and not self.isMeta and not self.isSidechain and bool(self.text)

    @property
    def text(self) -> str:
        return _text_of(self.message)


def entry_of(line: bytes) -> Entry | None:
    """The entry in a line of a transcript; None where it is none."""
    try:
        return typed.from_json(line, Entry)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None  # the first line of a piece is cut, and perhaps the last


def _last_entry(tail: bytes) -> Entry | None:
    """The last entry of the conversation that has an id."""
    for line in reversed(tail.splitlines()):
        found = entry_of(line) if b'"uuid"' in line else None
        if found is not None and not found.isSidechain and _is_id(found.uuid):
            return found
    return None


def _is_id(value: object) -> bool:
    """Whether it can be the id of an entry: it becomes a word of a command."""
    return isinstance(value, str) and 0 < len(value) <= 100 and value.replace("-", "").isalnum()


def turn_start(path: str, prompt: str) -> TurnStart:
    """Where a transcript ended before a prompt, which may be in it already."""
    position, tail = transcript_position(path)
    if position is None:
        return TurnStart()
    last, size = _last_entry(tail), position["size_bytes"]
    if last is None:
        return TurnStart(size_bytes=size)
    if last.is_prompt and safe_text(last.text, MAX_PROMPT) == prompt:
        before = last.parentUuid if _is_id(last.parentUuid) else None
        return TurnStart(entry=before, size_bytes=size, prompt_entry=last.uuid)
    return TurnStart(entry=last.uuid, size_bytes=size)


def prompt_entry(path: str, after: int) -> str | None:
    """The id of the first prompt in a transcript behind a position; None where there is none."""
    if not path:
        return None
    for line in _piece(path, after).splitlines():
        found = entry_of(line) if b'"user"' in line else None
        if found is not None and found.is_prompt and _is_id(found.uuid):
            return str(found.uuid)
    return None


def _piece(path: str, at: int) -> bytes:
    try:
        descriptor = os.open(os.path.expanduser(path), os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)  # noqa: PTH111
    except (OSError, ValueError):
        return b""
    try:
        return os.pread(descriptor, TAIL_BYTES * 4, at)
    except OSError:
        return b""
    finally:
        os.close(descriptor)


def last_message(tail: bytes, limit: int) -> str:
    """The text of the last answer in the tail of a transcript with one JSON object a line; empty when there is none."""
    for line in reversed(tail.splitlines()):
        found = entry_of(line) if b'"assistant"' in line else None
        if found is not None and found.type == "assistant" and not found.isSidechain and found.text:
            return safe_text(found.text, limit)
    return ""


def _text_of(message: object) -> str:
    content = message.get("content") if isinstance(message, dict) else message
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        return ""
    parts = [each.get("text") for each in content if isinstance(each, dict) and each.get("type") == "text"]
    return "\n".join(part for part in parts if isinstance(part, str))


# --- the repository --------------------------------------------------------------------------------------------


def repository_of(cwd: str) -> str:
    """The folder of the repository that a folder is in; empty when it is in none."""
    return _repository(cwd)[0]


def project_tree(cwd: str, environ: Mapping[str, str], *, outside_git: bool = False) -> str | None:
    """The repository that a directory is in. A home directory is not a project, nor is what lies above it: most of its
    files have nothing to do with the work."""
    found = repository_of(cwd) or (cwd if outside_git and os.path.isabs(cwd) else "")  # noqa: PTH117
    if not found:
        return None
    root, home = os.path.realpath(found), os.path.realpath(home_of(environ))
    return None if root in ("/", home) or home.startswith(f"{root}/") else root


def git_commit(cwd: str) -> dict[str, str] | None:
    """The commit and branch checked out there, read from git's own files; git itself is not run."""
    _, folder = _repository(cwd)
    if not folder:
        return None
    head = _small(f"{folder}/HEAD")
    if not head.startswith("ref: "):
        return {"commit": head} if _is_commit(head) else None
    ref = head[5:].strip()
    if not ref.startswith("refs/") or ".." in ref:
        return None
    common = os.path.join(folder, _small(f"{folder}/commondir"))  # noqa: PTH118
    commit = _small(f"{folder}/{ref}") or _small(f"{common}/{ref}") or _packed(common, ref)
    found = {"branch": safe_text(ref.removeprefix("refs/heads/"), 200)}
    return {"commit": commit, **found} if _is_commit(commit) else found


def _repository(cwd: str) -> tuple[str, str]:
    """The folder with `.git`, and where git's files are; empty when there is no repository."""
    if not os.path.isabs(cwd) or "\0" in cwd:  # noqa: PTH117
        return "", ""
    folder = cwd.rstrip("/")
    while True:
        git = f"{folder}/.git"
        if os.path.isdir(git):  # noqa: PTH112
            return folder or "/", git
        pointer = _small(git)
        if pointer.startswith("gitdir: "):
            return folder, os.path.join(folder, pointer[8:])  # noqa: PTH118
        if not folder:
            return "", ""
        folder = folder.rpartition("/")[0]


def _packed(common: str, ref: str) -> str:
    try:
        with open(f"{common}/packed-refs", encoding="utf-8", errors="replace") as file:  # noqa: PTH123
            for line in file:
                commit, _, name = line.rstrip("\n").partition(" ")
                if name == ref:
                    return commit
    except OSError:
        pass
    return ""


def _small(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:  # noqa: PTH123
            return file.read(_MAX_SMALL_FILE).strip()
    except (OSError, ValueError):
        return ""


def _is_commit(text: str) -> bool:
    return len(text) in (40, 64) and all(char in "0123456789abcdef" for char in text)


# --- the process -----------------------------------------------------------------------------------------------

_SHELLS = {"sh", "bash", "dash", "zsh", "fish", "ash", "ksh"}


def agent_process() -> dict[str, Any] | None:
    """The process that runs the hooks: this one's parent, or the one above the shell between. None if unknown."""
    from stepkeep.processes import boot_id, process_stat

    pid = os.getppid()
    for _ in range(3):
        found = process_stat(pid)
        if found is None:
            return None
        if found.name not in _SHELLS:
            return {"pid": pid, "started": found.started, "boot": boot_id()}
        pid = found.parent
    return None
