"""What a repository says of itself. It is only read: no ref, object, index or stash is ever written.

Programs that a repository may name are switched off (hooks, file watchers, pagers, filters, transports), variables
that could lead elsewhere are left out, and every call is a list of words.
"""

from __future__ import annotations

import os
import re
import stat
import time
from collections import OrderedDict
from collections.abc import Hashable, Iterable, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias, TypeVar

import msgspec

from stepkeep.logs import Log
from stepkeep.workspace.ignore import GIT_IGNORE, Outside
from stepkeep.workspace.manifest import GitState, parents
from stepkeep.workspace.scan import signature_of

if TYPE_CHECKING:
    import subprocess

log = Log("stepkeep")

T = TypeVar("T")

TIMEOUT_SECONDS: Final = 60
_FIELDS: Final = {b"1": 8, b"u": 10}
"""How many fields of a line of `git status` come before the path."""
_OFF: Final = (
    "core.hooksPath=/dev/null",
    "core.fsmonitor=false",
    "core.untrackedCache=false",
    "core.pager=cat",
    "core.preloadIndex=false",
    "core.sshCommand=false",
    "core.alternateRefsCommand=",
    "credential.helper=",
    "diff.external=",
    "gc.auto=0",
    "maintenance.auto=false",
    "protocol.allow=never",
)
_LIST_TRACKED: Final = ("ls-files", "-t", "-z", "--cached")
_NEXT: Final = "--stepkeep-next"
"""A word that `rev-parse` does not know and repeats: between paths, which may have line ends in them."""
_COMMIT: Final = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")


class GitCall:
    """A git process under way. Its output is asked for later; None where git failed or took too long."""

    def __init__(self, process: subprocess.Popen[bytes] | None, words: Sequence[str]) -> None:
        self._process = process
        self._words = words
        self.complaint = "git cannot be run" if process is None else ""

    def output(self, given: bytes | None = None) -> bytes | None:
        if self._process is None:
            return None
        from subprocess import TimeoutExpired

        try:
            out, complaint = self._process.communicate(given, timeout=TIMEOUT_SECONDS)
        except TimeoutExpired:
            self.stop()
            self.complaint = f"git {self._words[0]} took too long"
            log.warning("%s: it is left out", self.complaint)
            return None
        if self._process.returncode != 0:
            told = complaint.decode("utf-8", "replace").strip()
            self.complaint = told.partition("\n")[0] or f"git {self._words[0]} failed"
            log.debug("git %s: %s", self._words[0], told)
            return None
        return out

    def stop(self) -> None:
        """End a call whose output nobody wants any more."""
        if self._process is not None and self._process.returncode is None:
            self._process.kill()
            self._process.communicate()


class Git:
    """The repository around a directory. Every answer is None or empty where git, or a repository, is missing."""

    def __init__(self, root: str) -> None:
        self.root = root
        self._program = _program()
        self._environ = _environ()
        self._problem = "git is not installed"
        self._without: tuple[tuple[str, str], ...] = ()

    @property
    def is_usable(self) -> bool:
        """Whether there is something to ask, and somebody; known once the repository was looked for."""
        return self._program is not None

    def call(self, *words: str, reads: bool = False) -> GitCall:
        """Start git in the root; with `reads` it gets input later."""
        if self._program is None:
            return GitCall(None, words)
        import subprocess  # only who captures files in a repository pays for it

        plain = [f"{name}={value}" for name, value in self._without if "=" not in name]
        options = [part for each in (*_OFF, *plain) for part in ("-c", each)]
        command = [self._program, "--no-pager", "--no-optional-locks", *options, *words]
        try:
            process = subprocess.Popen(
                command,
                cwd=self.root,
                env={**self._environ, **_as_variables(self._without)},
                stdin=subprocess.PIPE if reads else subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
            )
        except OSError as exc:
            log.debug("git cannot be run: %s", exc)
            return GitCall(None, words)
        return GitCall(process, words)

    def repository(self) -> Repository:
        """What the scan must know before it begins; outside of a repository one that says nothing."""
        spots = [each / ".git" for each in (Path(self.root), *Path(self.root).parents)]
        top = next((number for number, spot in enumerate(spots) if os.path.lexists(spot)), None)
        location = None if top is None else self._location(spots[: top + 1])
        if location is None:
            problem = "" if top is None else self._problem
            self._program = None
            return Repository(self, "", problem=problem)
        self._without = location.without
        found = Repository(self, location.prefix, is_sparse=location.is_sparse)
        # Where git ignores the root, which was named on purpose, rules from above do not hold.
        if not top or not location.prefix or self.call("check-ignore", "--quiet", ".").output() is None:
            found.above = tuple(_above(Path(self.root), location.prefix))
            found.everywhere = tuple(_outside(location.excludes, location.prefix))
        return found

    def _location(self, spots: Sequence[Path]) -> GitLocation | None:
        """Programs are slow to start: what they say is remembered while no file it depends on changes."""
        key = self.root, self._program, *(self._environ.get(name) for name in ENVIRON)
        known = _locations.get(key)
        if known is not None and known.is_as_watched():
            return known
        location = None if self._program is None else self._asked_location(spots)
        _locations.remember(key, None if location is None or location.watched is None else location)
        return location

    def _asked_location(self, spots: Sequence[Path]) -> GitLocation | None:
        began_ns = time.time_ns()
        where = self.call(
            "rev-parse", "--show-prefix", _NEXT, "--git-path", "info/exclude", _NEXT, "--git-dir"
        )
        config = self.call("config", "--null", "--show-origin", "--list")
        answers = (where.output() or b"").split(f"\n{_NEXT}\n".encode())
        settings = GitSettings(config.output() or b"")
        if len(answers) != 3:
            self._problem = where.complaint
            return None
        prefix, exclude, folder = (os.fsdecode(each.removesuffix(b"\n")) for each in answers)
        chosen = os.fsdecode(settings.values.get("core.excludesfile", b""))
        home = Path(self._environ.get("HOME", ""))
        user = Path(self._environ.get("XDG_CONFIG_HOME") or home / ".config", "git")
        files = [*spots, Path("/etc/gitconfig"), home / ".gitconfig", user / "config"]
        files += [Path(self.root, each) for each in (f"{folder}/config.worktree", *settings.files)]
        return GitLocation(
            prefix=prefix,
            is_sparse=settings.is_sparse,
            excludes=(
                Path(self.root, exclude),
                Path(chosen).expanduser() if chosen else user / "ignore",
            ),
            without=settings.without_filters(),
            # Where one file includes others, not all that it depends on are known.
            watched=None if settings.includes else watched(files, before_ns=began_ns),
        )


class TrackedPaths(NamedTuple):
    """What git tracks below a root, and which of that is not to be in the tree."""

    paths: list[str]
    not_checked_out: frozenset[str]


class Repository:
    """A repository, its ignore files outside the root, and the slow questions, asked while others work.

    `problem` says why there is one and git cannot be asked, or could not say what it tracks.
    """

    def __init__(self, git: Git, prefix: str, *, is_sparse: bool = False, problem: str = "") -> None:
        self.problem = problem
        self.above: tuple[Outside, ...] = ()
        self.everywhere: tuple[Outside, ...] = ()
        self._git = git
        self._prefix = prefix
        self._hint = _dirty.get(git.root)
        self._status = self._ask("." if self._hint is None else f":(top,literal){self._hint}")
        self._tracked: GitCall | None = None
        self._is_sparse = is_sparse
        if is_sparse:
            self.ask_for_tracked()

    def _ask(self, where: str) -> GitCall:
        return self._git.call(
            "status",
            "--porcelain=v2",
            "--branch",
            "-z",
            "--untracked-files=no",
            "--ignore-submodules=dirty",
            "--no-renames",
            "--no-ahead-behind",
            "--",
            where,
        )

    def state(self) -> GitState | None:
        """Commit, branch, and whether anything differs.

        One difference is enough: the path that differed last time is asked for first, the rest only if that is clean.
        """
        output = self._status.output()
        if self._hint is not None and (output is None or not any(_differences(output))):
            self._status = self._ask(".")
            output = self._status.output()
        if output is None:
            return None
        facts, differing = dict(_facts(output.split(b"\0"))), next(_differences(output), None)
        _dirty.remember(self._git.root, differing)
        commit, branch = facts.get("oid", ""), facts.get("head")
        return GitState(
            commit=commit if _COMMIT.fullmatch(commit) else None,
            branch=None if branch == "(detached)" else branch,
            is_dirty=differing is not None,
            prefix=self._prefix,
        )

    def ask_for_tracked(self) -> None:
        """Begin to find out what `tracked` tells."""
        if self._tracked is None:
            self._tracked = self._git.call(*_LIST_TRACKED, "--recurse-submodules")

    @cached_property
    def tracked(self) -> TrackedPaths:
        """Every path below the root that is in the index, or in that of a submodule."""
        self.ask_for_tracked()
        assert self._tracked is not None
        output = self._tracked.output()
        if output is None:  # perhaps a submodule is damaged
            self._tracked = self._git.call(*_LIST_TRACKED)
            output = self._tracked.output()
        if output is None and self._git.is_usable:  # without a repository there is nothing to tell
            self.problem = self._tracked.complaint
        records = [os.fsdecode(record) for record in (output or b"").split(b"\0") if record]
        return TrackedPaths(
            paths=[record[2:] for record in records],
            not_checked_out=frozenset(record[2:] for record in records if record.startswith("S")),
        )

    def not_checked_out(self) -> list[str]:
        """What is tracked and not checked out; a directory, with a slash at its end, for all of what is below it."""
        if not self._is_sparse:
            return []
        missing = self.tracked.not_checked_out
        there = {above for path in self.tracked.paths if path not in missing for above in parents(path)}
        return [
            next((f"{above}/" for above in reversed(list(parents(path))) if above not in there), path)
            for path in missing
        ]

    def stop(self) -> None:
        self._status.stop()
        if self._tracked is not None:
            self._tracked.stop()


class _Recent(OrderedDict[Hashable, T]):
    """What was found out lately, so many answers at most."""

    def __init__(self, most: int) -> None:
        super().__init__()
        self._most = most

    def remember(self, key: Hashable, value: T | None) -> None:
        self.pop(key, None)
        if value is not None:
            self[key] = value
        while len(self) > self._most:
            self.popitem(last=False)


_dirty: _Recent[str] = _Recent(64)
"""Root -> a path that differed from the commit when it was asked for last."""

_locations: _Recent[GitLocation] = _Recent(16)
"""Where workspaces are in their repositories, by root, program and what says where settings are."""


def _differences(output: bytes) -> Iterator[str]:
    """The paths that differ, from the top of the repository."""
    for record in output.split(b"\0"):
        if record and not record.startswith(b"# "):
            fields = _FIELDS.get(record[:1], 0)
            yield os.fsdecode(record.split(b" ", fields)[-1])


def is_commit(text: object) -> bool:
    return isinstance(text, str) and _COMMIT.fullmatch(text) is not None


def _program() -> str | None:
    from shutil import which

    found = which("git")
    return found if found is not None and Path(found).is_absolute() else None


def _environ() -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    return kept | {
        "GIT_OPTIONAL_LOCKS": "0",
        "GIT_TERMINAL_PROMPT": "0",
        "GIT_NO_LAZY_FETCH": "1",
        "GIT_ATTR_NOSYSTEM": "1",
        "LC_ALL": "C",
    }


def _as_variables(settings: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Settings whose names hold an equals sign, which no option can set."""
    odd = [each for each in settings if "=" in each[0]]
    if not odd:
        return {}
    keys = {f"GIT_CONFIG_KEY_{number}": name for number, (name, _) in enumerate(odd)}
    values = {f"GIT_CONFIG_VALUE_{number}": value for number, (_, value) in enumerate(odd)}
    return {"GIT_CONFIG_COUNT": str(len(odd)), **keys, **values}


def _above(root: Path, prefix: str) -> Iterator[Outside]:
    """The ignore files of the directories between the root and the top of its repository, the nearest first."""
    parts = prefix.rstrip("/").split("/") if prefix else []
    for count, directory in zip(range(1, len(parts) + 1), root.parents, strict=False):
        yield from _outside([directory / GIT_IGNORE], "/".join(parts[-count:]) + "/")


def _outside(files: Iterable[Path], lead: str) -> Iterator[Outside]:
    for file in files:
        try:
            yield Outside(file.read_bytes(), lead, "/".join(file.parts[-2:]))
        except OSError:
            continue


def _facts(records: Iterable[bytes]) -> Iterator[tuple[str, str]]:
    for record in records:
        if record.startswith(b"# branch."):
            name, _, value = record[len(b"# branch.") :].decode("utf-8", "replace").partition(" ")
            yield name, value


# --- settings, remembered for as long as the files they come from are unchanged ----------------------------------

ENVIRON: Final = ("HOME", "XDG_CONFIG_HOME")
"""Variables that say where settings are."""

YOUNG_NS: Final = 2_000_000_000
"""A file that is younger could change once more without a trace."""

_FALSE: Final = frozenset({b"false", b"no", b"off", b"0"})

Watched: TypeAlias = tuple[tuple[Path, tuple[int, ...] | None], ...]
"""Files with their signatures; None for one that does not exist."""


class GitLocation(msgspec.Struct, frozen=True, kw_only=True):
    """Where a workspace is in its repository, which ignore files hold everywhere, and how filters are switched off.

    With `is_sparse` perhaps not all that is tracked is checked out.
    """

    prefix: str
    is_sparse: bool
    excludes: tuple[Path, ...]
    without: tuple[tuple[str, str], ...]
    watched: Watched | None

    def is_as_watched(self) -> bool:
        return self.watched is not None and all(
            _file_signature(path) == signature for path, signature in self.watched
        )


class GitSettings:
    """The settings that git lists, with their origins."""

    def __init__(self, listed: bytes) -> None:
        words = listed.split(b"\0")
        origins, records = words[:-1:2], [record.partition(b"\n") for record in words[1::2]]
        self.files = [os.fsdecode(each[5:]) for each in dict.fromkeys(origins) if each.startswith(b"file:")]
        self.values = {name.decode("utf-8", "replace"): value for name, _, value in records}

    @property
    def includes(self) -> bool:
        return any(name.startswith(("include.", "includeif.")) for name in self.values)

    @property
    def is_sparse(self) -> bool:
        return self.values.get("core.sparsecheckout", b"false").lower() not in _FALSE

    def without_filters(self) -> tuple[tuple[str, str], ...]:
        """The settings, names and values, with which no filter is started."""
        names = {name[7:].rpartition(".")[0] for name in self.values if name.startswith("filter.")}
        off = {"clean": "", "smudge": "", "process": "", "required": "false"}
        return tuple((f"filter.{name}.{key}", value) for name in sorted(names) for key, value in off.items())


def watched(files: Iterable[Path], *, before_ns: int) -> Watched | None:
    """The signatures of files; None if one changed so recently that it could change again unnoticed."""
    signatures = tuple((path, _file_signature(path)) for path in dict.fromkeys(files))
    is_young = any(
        signature is not None and max(signature[:2]) + YOUNG_NS > before_ns for _, signature in signatures
    )
    return None if is_young else signatures


def _file_signature(path: Path) -> tuple[int, ...] | None:
    try:
        status = path.stat()
    except OSError:
        return None
    if stat.S_ISDIR(status.st_mode):
        return 0, 0, status.st_ino, status.st_mode, status.st_uid  # its times tell of what is in it
    return *signature_of(status), status.st_uid
