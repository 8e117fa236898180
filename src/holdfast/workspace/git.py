"""What a repository says of itself. It is only read: no ref, object, index or stash is ever written.

Programs that a repository may name are switched off (hooks, file watchers, pagers, filters, transports), variables
that could lead elsewhere are left out, and every call is a list of words.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from holdfast.workspace.ignore import BUILT_IN, GIT_IGNORE, Outside
from holdfast.workspace.manifest import GitState

if TYPE_CHECKING:
    import subprocess

log = logging.getLogger("holdfast")

PATIENCE_SECONDS: Final = 60
_OFF: Final = (
    "core.hooksPath=/dev/null",
    "core.fsmonitor=false",
    "core.untrackedCache=false",
    "core.pager=cat",
    "core.sshCommand=false",
    "core.alternateRefsCommand=",
    "credential.helper=",
    "diff.external=",
    "gc.auto=0",
    "maintenance.auto=false",
    "protocol.allow=never",
)
_COMMIT: Final = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")


class Call:
    """A git process under way. Its output is asked for later; a failure or a long silence is no output."""

    def __init__(self, process: subprocess.Popen[bytes] | None, words: Sequence[str]) -> None:
        self._process = process
        self._words = words

    def output(self, given: bytes | None = None) -> bytes | None:
        if self._process is None:
            return None
        from subprocess import TimeoutExpired

        try:
            out, complaint = self._process.communicate(given, timeout=PATIENCE_SECONDS)
        except TimeoutExpired:
            self.stop()
            log.warning("git %s took too long: it is left out", self._words[0])
            return None
        if self._process.returncode != 0:
            log.debug("git %s: %s", self._words[0], complaint.decode("utf-8", "replace").strip())
            return None
        return out

    def stop(self) -> None:
        """End a call whose output nobody wants any more."""
        if self._process is not None and self._process.returncode is None:
            self._process.kill()
            self._process.communicate()


class Git:
    """The repository around a directory. Every answer is None or empty where git, or a repository, is missing."""

    def __init__(self, root: str, *, environ: Mapping[str, str] | None = None) -> None:
        self._root = root
        self._program = _program()
        self._environ = _environ(os.environ if environ is None else environ)
        self._without: tuple[str, ...] = ()

    def call(self, *words: str, reads: bool = False) -> Call:
        """Start git in the root; with `reads` it gets input later."""
        if self._program is None:
            return Call(None, words)
        import subprocess  # only who captures files in a repository pays for it

        options = [part for each in (*_OFF, *self._without) for part in ("-c", each)]
        command = [
            self._program,
            "--no-pager",
            "--no-optional-locks",
            *options,
            *words,
        ]
        try:
            process = subprocess.Popen(
                command,
                cwd=self._root,
                env=self._environ,
                stdin=subprocess.PIPE if reads else subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
            )
        except OSError as exc:
            log.debug("git cannot be run: %s", exc)
            return Call(None, words)
        return Call(process, words)

    def look(self) -> Look | None:
        """What the scan must know before it begins; None outside of a repository."""
        if self._program is None or not any(
            os.path.lexists(each / ".git") for each in (Path(self._root), *Path(self._root).parents)
        ):
            return None
        place = self.call("rev-parse", "--show-prefix", "--git-path", "info/exclude")
        config = self.call("config", "--null", "--get-regexp", r"^(filter\..*|core\.excludesfile)$")
        is_top = os.path.lexists(Path(self._root, ".git"))
        left_out = Call(None, ()) if is_top else self.call("check-ignore", "--quiet", ".")
        found, settings = place.output(), _settings(config.output() or b"")
        is_left_out = left_out.output() is not None
        lines = (found or b"").split(b"\n")
        if len(lines) < 2:
            return None
        self._without = tuple(
            f"filter.{name}.{key}"
            for name in sorted(
                {key.split(".", 1)[1].rpartition(".")[0] for key in settings if key.startswith("filter.")}
            )
            for key in ("clean=", "smudge=", "process=", "required=false")
        )
        prefix = os.fsdecode(lines[0])
        if is_left_out and prefix:
            return Look(self, prefix)  # the root was named on purpose: rules from above do not hold
        chosen = os.fsdecode(settings.get("core.excludesfile", b""))
        excludes = [
            Path(self._root, os.fsdecode(lines[1])),
            Path(chosen).expanduser() if chosen else _default_excludes(self._environ),
        ]
        return Look(self, prefix, tuple(_above(Path(self._root), prefix)), tuple(_outside(excludes, prefix)))


class Look:
    """A repository, its ignore files outside the root, and the two slow questions, asked while others work."""

    def __init__(
        self, git: Git, prefix: str, above: tuple[Outside, ...] = (), everywhere: tuple[Outside, ...] = ()
    ) -> None:
        self.above = above
        self.everywhere = everywhere
        self._prefix = prefix
        self._status = git.call(
            "status",
            "--porcelain=v2",
            "--branch",
            "-z",
            "--untracked-files=no",
            "--ignore-submodules=dirty",
            "--no-renames",
            "--",
            ".",
        )
        patterns = [f"--exclude={pattern}" for pattern in BUILT_IN]
        self._ignored = git.call("ls-files", "-z", "--cached", "--ignored", "--exclude-standard", *patterns)

    def state(self) -> GitState | None:
        """Commit, branch, and whether anything differs."""
        output = self._status.output()
        if output is None:
            return None
        records = output.split(b"\0")
        facts = dict(_facts(records))
        commit, branch = facts.get("oid", ""), facts.get("head")
        return GitState(
            commit=commit if _COMMIT.fullmatch(commit) else None,
            branch=None if branch == "(detached)" else branch,
            is_dirty=any(record and not record.startswith(b"# ") for record in records),
            prefix=self._prefix,
        )

    def tracked_but_ignored(self) -> list[str]:
        """Files that a rule leaves out and git tracks nevertheless: they belong to the project."""
        return [os.fsdecode(path) for path in (self._ignored.output() or b"").split(b"\0") if path]

    def stop(self) -> None:
        self._status.stop()
        self._ignored.stop()


def is_commit(text: object) -> bool:
    return isinstance(text, str) and _COMMIT.fullmatch(text) is not None


def _program() -> str | None:
    from shutil import which

    found = which("git")
    return found if found is not None and Path(found).is_absolute() else None


def _environ(given: Mapping[str, str]) -> dict[str, str]:
    kept = {name: value for name, value in given.items() if not name.startswith("GIT_")}
    return kept | {
        "GIT_OPTIONAL_LOCKS": "0",
        "GIT_TERMINAL_PROMPT": "0",
        "GIT_NO_LAZY_FETCH": "1",
        "GIT_ATTR_NOSYSTEM": "1",
        "LC_ALL": "C",
    }


def _settings(output: bytes) -> dict[str, bytes]:
    pairs = (record.partition(b"\n") for record in output.split(b"\0") if record)
    return {name.decode("utf-8", "replace"): value for name, _, value in pairs}


def _default_excludes(environ: Mapping[str, str]) -> Path:
    home = environ.get("XDG_CONFIG_HOME") or Path(environ.get("HOME", ""), ".config")
    return Path(home, "git", "ignore")


def _above(root: Path, prefix: str) -> Iterator[Outside]:
    """The ignore files of the directories between the root and the top of its repository, the nearest first."""
    parts = prefix.rstrip("/").split("/") if prefix else []
    for count, directory in zip(range(1, len(parts) + 1), root.parents, strict=False):
        yield from _outside([directory / GIT_IGNORE], "/".join(parts[-count:]) + "/")


def _outside(files: Iterable[Path], lead: str) -> Iterator[Outside]:
    for file in files:
        try:
            yield Outside(file.read_bytes(), lead)
        except OSError:
            continue


def _facts(records: Iterable[bytes]) -> Iterator[tuple[str, str]]:
    for record in records:
        if record.startswith(b"# branch."):
            name, _, value = record[len(b"# branch.") :].decode("utf-8", "replace").partition(" ")
            yield name, value
