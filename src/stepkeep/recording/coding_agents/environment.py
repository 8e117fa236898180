"""The environment of a coding agent: its transcript, its repository, its process. All of it is read, cheaply."""

from __future__ import annotations

import os
from hashlib import sha256
from typing import Any

import msgspec

from stepkeep import typed
from stepkeep.processes import boot_id, process_stat
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
    return position, tail


class _Line(msgspec.Struct):
    type: Any = None
    message: Any = None
    isSidechain: Any = None


def last_message(tail: bytes, limit: int) -> str:
    """The text of the last answer in the tail of a transcript with one JSON object a line; empty when there is none."""
    for line in reversed(tail.splitlines()):
        if b'"assistant"' not in line:
            continue
        try:
            found = typed.from_json(line, _Line)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            continue  # the first line of the tail is cut
        if found.type == "assistant" and not found.isSidechain:
            text = _text_of(found.message)
            if text:
                return safe_text(text, limit)
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
    pid = os.getppid()
    for _ in range(3):
        found = process_stat(pid)
        if found is None:
            return None
        if found.name not in _SHELLS:
            return {"pid": pid, "started": found.started, "boot": boot_id()}
        pid = found.parent
    return None


def is_alive(process: object) -> bool:
    """Whether an agent's process still runs. One that cannot be told apart counts as gone."""
    if not isinstance(process, dict):
        return False
    pid = process.get("pid")
    found = process_stat(pid) if isinstance(pid, int) else None
    is_same = found is not None and found.started == process.get("started")
    return is_same and process.get("boot") == boot_id()
