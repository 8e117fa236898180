"""Walking a tree without ever following a link: every directory is opened relative to the one above it."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Final

from stepkeep.errors import InvalidInput
from stepkeep.workspace.ignore import GIT_IGNORE, OWN_IGNORE, Rules
from stepkeep.workspace.looks import Folder, Folders, Look, folder_of, look_at_path, look_of
from stepkeep.workspace.manifest import Skipped
from stepkeep.workspace.names import STAGING_PREFIX, is_vcs_name

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
    """What is in a tree, compared with what an earlier capture knows of it.

    `folders` are all files and links that belong to it; `found` those of them that do not look as they are
    known. `skipped` was left out for another reason than a rule. `left_out` are files and directories that a
    rule leaves out, and `on_left_out` is called at the first of them.
    """

    def __init__(
        self,
        is_excluded: Callable[[str], bool] | None = None,
        *,
        known: Folders | None = None,
        on_left_out: Callable[[], None] | None = None,
    ) -> None:
        self.found: dict[str, Look] = {}
        self.folders: Folders = {}
        self.skipped: list[Skipped] = []
        self.left_out: set[str] = set()
        self._known: Folders = {} if known is None else known
        self._is_excluded = is_excluded
        self._on_left_out = on_left_out

    def tree(self, root: int, rules: Rules) -> None:
        """Add everything below the root that no rule leaves out."""
        self._directory(root, "", rules, 0)

    def path(self, root: int, path: str) -> bool:
        """Add one path, whatever the rules say; False when nothing is there, or a directory.

        Where it cannot be told whether something is there, the path is skipped.
        """
        if path in self:
            return True
        try:
            look = look_of(status_of(root, path))
        except (FileNotFoundError, NotADirectoryError):
            return False
        except OSError as exc:
            self.skipped.append(Skipped(path, f"unreadable: {exc.strerror}"))
            return True
        if stat.S_ISDIR(look[4]):
            return False
        self._file(path, look)
        return True

    def __contains__(self, path: str) -> bool:
        return path in self.found or look_at_path(self.folders, path) is not None

    def is_excluded(self, path: str) -> bool:
        """Whether a path is the caller's own."""
        return self._is_excluded is not None and self._is_excluded(path)

    def _directory(self, directory: int, path: str, rules: Rules, depth: int) -> None:
        lead = path + "/" if path else ""
        here = self._listing(directory, lead)
        rules = self._rules_within(directory, path, here, rules)
        known = self._known.get(path)
        expected = self._expected(known, here, lead, rules)
        if here == expected:
            same, more = expected, dict[str, Look]()
        else:
            same = {name: look for name, look in expected.items() if here.get(name) == look}
            others = {name: look for name, look in here.items() if name not in same}
            more = self._others(directory, lead, others, rules, depth)
        if known is not None and known.rules is rules and len(same) == len(known.looks) and not more:
            self.folders[path] = known
        else:
            self.folders[path] = folder_of(rules, {**same, **more})

    def _listing(self, directory: int, lead: str) -> dict[str, Look]:
        """How everything in a directory looks."""
        try:
            with os.scandir(directory) as listing:
                # This runs for every file of the tree at every capture: it does nothing that it can spare.
                return {entry.name: look_of(entry.stat(follow_symlinks=False)) for entry in listing}
        except OSError:
            return dict(self._listing_one_by_one(directory, lead))

    def _listing_one_by_one(self, directory: int, lead: str) -> Iterator[tuple[str, Look]]:
        for name in os.listdir(directory):
            try:
                yield name, look_of(os.stat(name, dir_fd=directory, follow_symlinks=False))
            except FileNotFoundError:
                continue  # it vanished meanwhile: it is not there
            except OSError as exc:
                self.skipped.append(Skipped(lead + name, f"unreadable: {exc.strerror}"))

    def _expected(
        self, known: Folder | None, here: Mapping[str, Look], lead: str, rules: Rules
    ) -> dict[str, Look]:
        """How the files here looked that belong to the tree under these rules."""
        if known is None:
            return {}
        if known.rules is rules:
            return known.looks
        return {
            name: look
            for name, look in known.looks.items()
            if here.get(name) == look and not self._is_left_out(lead + name, name, False, rules)
        }

    def _others(
        self, directory: int, lead: str, here: Mapping[str, Look], rules: Rules, depth: int
    ) -> dict[str, Look]:
        """Look closely at what is not as it is known; the files among it."""
        files: dict[str, Look] = {}
        for name, look in here.items():
            path, is_directory = lead + name, stat.S_ISDIR(look[4])
            if self._is_left_out(path, name, is_directory, rules):
                continue
            if is_directory:
                self._below(directory, name, path, rules, depth + 1)
            elif self._file(path, look):
                files[name] = look
        return files

    def _is_left_out(self, path: str, name: str, is_directory: bool, rules: Rules) -> bool:
        if is_vcs_name(name, is_directory=is_directory) or name.startswith(STAGING_PREFIX):
            return True
        if self.is_excluded(path):
            return True
        if not rules.is_ignored(path, name, is_directory):
            return False
        if not self.left_out and self._on_left_out is not None:
            self._on_left_out()
        self.left_out.add(path)
        return True

    def _rules_within(self, directory: int, path: str, names: Mapping[str, object], rules: Rules) -> Rules:
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
        except FileNotFoundError:
            return
        except OSError as exc:
            self.skipped.append(Skipped(path + "/", f"unreadable: {exc.strerror}"))
            return
        try:
            self._directory(directory, path, rules, depth)
        except OSError as exc:
            self.skipped.append(Skipped(path + "/", f"unreadable: {exc.strerror}"))
        finally:
            os.close(directory)

    def _file(self, path: str, look: Look) -> bool:
        kind = look[4] & _KIND_BITS
        if kind not in _CAPTURED:
            self.skipped.append(Skipped(path, _KINDS.get(kind, "of an unknown kind")))
            return False
        self.found[path] = look
        return True


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
