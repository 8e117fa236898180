"""Walking a tree without ever following a link: every directory is opened relative to the one above it."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from holdfast.errors import InvalidInput
from holdfast.workspace.ignore import GIT_IGNORE, OWN_IGNORE, Rules
from holdfast.workspace.manifest import Skipped
from holdfast.workspace.names import STAGING_PREFIX, VCS_NAMES

MAX_DEPTH: Final = 200
MAX_RULES_BYTES: Final = 10_000_000
"""An ignore file that is larger is not read, as git would not read it to a good end either."""

DIRECTORY_FLAGS: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
FILE_FLAGS: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC

_KIND_BITS: Final = 0o170000
_CAPTURED: Final = frozenset({stat.S_IFREG, stat.S_IFLNK})
_KINDS: Final = {
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


class Scan:
    """What is in a tree: files and links with their status, and what was left out for another reason than a rule."""

    def __init__(self, is_excluded: Callable[[str], bool] | None = None) -> None:
        self.found: dict[str, os.stat_result] = {}
        self.skipped: list[Skipped] = []
        self._is_excluded = is_excluded

    def tree(self, root: int, rules: Rules) -> None:
        """Add everything below the root that no rule leaves out."""
        self._directory(root, "", rules, 0)

    def path(self, root: int, path: str) -> bool:
        """Add one path, whatever the rules say; False when nothing is there, or a directory."""
        if path in self.found:
            return True
        try:
            status = status_of(root, path)
        except OSError:
            return False
        if stat.S_ISDIR(status.st_mode):
            return False
        self._file(path, status)
        return True

    def _directory(self, directory: int, path: str, rules: Rules, depth: int) -> None:
        with os.scandir(directory) as listing:
            entries = list(listing)
        rules = self._rules_within(directory, path, {entry.name for entry in entries}, rules)
        lead = path + "/" if path else ""
        found, is_harmless = self.found, rules.harmless.get if self._is_excluded is None else _nothing
        # The innermost loop runs for every file of the tree at every capture: it calls nothing that it can spare.
        for entry in entries:
            name = entry.name
            below = lead + name
            try:
                is_directory = entry.is_dir(follow_symlinks=False)
                if not is_harmless(name) and self._is_left_out(below, name, is_directory, rules):
                    continue
                if is_directory:
                    self._below(directory, name, below, rules, depth + 1)
                    continue
                status = entry.stat(follow_symlinks=False)
                if status.st_mode & _KIND_BITS in _CAPTURED:
                    found[below] = status
                else:
                    self._file(below, status)
            except FileNotFoundError:
                continue  # it vanished meanwhile: it is not there
            except OSError as exc:
                self.skipped.append(Skipped(below, f"unreadable: {exc.strerror}"))

    def _is_left_out(self, path: str, name: str, is_directory: bool, rules: Rules) -> bool:
        if name.lower() in VCS_NAMES or name.startswith(STAGING_PREFIX):
            return True
        is_excluded = self._is_excluded is not None and self._is_excluded(path)
        return is_excluded or rules.is_ignored(path, name, is_directory)

    def _rules_within(self, directory: int, path: str, names: set[str], rules: Rules) -> Rules:
        is_repository = bool(path) and ".git" in names
        if GIT_IGNORE not in names and OWN_IGNORE not in names and not is_repository:
            return rules
        return rules.within(
            path,
            git=content_of(directory, GIT_IGNORE) if GIT_IGNORE in names else None,
            own=content_of(directory, OWN_IGNORE) if OWN_IGNORE in names else None,
            is_repository=is_repository,
        )

    def _below(self, parent: int, name: str, path: str, rules: Rules, depth: int) -> None:
        if depth > MAX_DEPTH:
            self.skipped.append(Skipped(path + "/", f"more than {MAX_DEPTH} directories deep"))
            return
        try:
            directory = os.open(name, DIRECTORY_FLAGS, dir_fd=parent)
        except PermissionError as exc:
            self.skipped.append(Skipped(path + "/", f"unreadable: {exc.strerror}"))
            return
        try:
            self._directory(directory, path, rules, depth)
        finally:
            os.close(directory)

    def _file(self, path: str, status: os.stat_result) -> None:
        kind = status.st_mode & _KIND_BITS
        if kind not in _CAPTURED:
            self.skipped.append(Skipped(path, _KINDS.get(kind, "of an unknown kind")))
        else:
            self.found[path] = status


def status_of(root: int, path: str) -> os.stat_result:
    """The status of what is at a path below the root, or `OSError`."""
    with opened_parent(root, path) as (directory, name):
        return os.stat(name, dir_fd=directory, follow_symlinks=False)


def content_of(directory: int, path: str) -> bytes | None:
    """An ignore file; None where it is missing, a link or unreadable. git does not follow such links either."""
    try:
        with opened_parent(directory, path) as (parent, name):
            descriptor = os.open(name, FILE_FLAGS, dir_fd=parent)
    except OSError:
        return None
    with os.fdopen(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            return None
        content = file.read(MAX_RULES_BYTES + 1)
    return content if len(content) <= MAX_RULES_BYTES else None


@contextmanager
def opened_root(root: str) -> Iterator[int]:
    """The root as a directory; links on the way to it are followed, for its name comes from the caller.

    Raises:
        InvalidInput: it is no directory that can be read.
    """
    try:
        descriptor = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as exc:
        raise InvalidInput(
            f"the workspace {root!r} cannot be opened: {exc.strerror}", code="invalid_workspace"
        ) from exc
    try:
        yield descriptor
    finally:
        os.close(descriptor)


@contextmanager
def opened_parent(
    root: int, path: str, make: Callable[[int, str], None] | None = None
) -> Iterator[tuple[int, str]]:
    """The directory of a path below the root, opened step by step without following a link, and the last name.

    `make` is called for a directory that is missing. A step that is no directory is `OSError`.
    """
    *parents, name = path.split("/")
    current, is_own = root, False
    try:
        for part in parents:
            try:
                below = os.open(part, DIRECTORY_FLAGS, dir_fd=current)
            except FileNotFoundError:
                if make is None:
                    raise
                make(current, part)
                below = os.open(part, DIRECTORY_FLAGS, dir_fd=current)
            if is_own:
                os.close(current)
            current, is_own = below, True
        yield current, name
    finally:
        if is_own:
            os.close(current)


def _nothing(_: str) -> bool:
    return False
