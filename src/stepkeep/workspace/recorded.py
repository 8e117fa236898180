"""The files of a checkpoint, read from the store: contents, and the ignore rules that held there."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator

from stepkeep.engine import Engine
from stepkeep.errors import NotFound, StepkeepError
from stepkeep.model import Header
from stepkeep.workspace.capture import Limits
from stepkeep.workspace.ignore import GIT_IGNORE, OWN_IGNORE, Rules, first_rules
from stepkeep.workspace.known import load_manifest
from stepkeep.workspace.manifest import Entry, GitState, Manifest, Skipped
from stepkeep.workspace.names import parents
from stepkeep.workspace.scan import content_of as ignore_file
from stepkeep.workspace.scan import opened_root


class CapturedFiles:
    """The files of one checkpoint: what was captured, what was not, and every content."""

    def __init__(self, engine: Engine, header: Header) -> None:
        self._engine = engine
        self._manifest = load_manifest(engine, header)
        self._entries = self._manifest.by_path()
        self.checkpoint = header.id

    @property
    def manifest(self) -> Manifest:
        return self._manifest

    @property
    def root(self) -> str:
        """The directory that was captured."""
        return self._manifest.root

    @property
    def git(self) -> GitState | None:
        """Commit, branch and dirty state of the repository then; None where there was none."""
        return self._manifest.git

    @property
    def skipped(self) -> tuple[Skipped, ...]:
        """What was there, belongs to the project, and was not captured; each with its reason."""
        return self._manifest.skipped

    @property
    def size_bytes(self) -> int:
        return self._manifest.size_bytes

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[Entry]:
        return iter(self._manifest.entries)

    def __contains__(self, path: object) -> bool:
        return path in self._entries

    def entry(self, path: str) -> Entry:
        """What is recorded of one path, or `NotFound` (`file_not_found`)."""
        if path not in self._entries:
            raise NotFound(
                f"{self.checkpoint} has no file {path!r}", code="file_not_found", checkpoint=self.checkpoint
            )
        return self._entries[path]

    def read(self, path: str) -> bytes:
        """The content of a file, verified; of a link its target.

        Raises:
            NotFound: there is no such file. Corrupt: it is damaged.
        """
        entry = self.entry(path)
        return content_of(self._engine, entry)

    def __repr__(self) -> str:
        return f"<CapturedFiles {self.checkpoint}: {len(self)} files>"


def content_of(engine: Engine, entry: Entry) -> bytes:
    """What an entry holds, verified; of a link its target."""
    return os.fsencode(entry.target) if entry.is_link else engine.load_blob(entry.digest)


class TreeRules:
    """What the ignore files in a tree leave out; `content` gives each of them by its path. Nothing else counts: not
    where a nested repository begins, nor what git says outside the tree or tracks."""

    def __init__(self, content: Callable[[str], bytes | None], rules: Rules) -> None:
        self._content = content
        self._rules = {"": self._within(rules, "")}

    def is_ignored(self, path: str) -> bool:
        """Whether the rules leave out a file, or a directory above it."""
        rules = self._rules[""]
        for directory in reversed(list(parents(path))):
            if rules.is_ignored(directory, directory.rpartition("/")[2], is_directory=True):
                return True
            if directory not in self._rules:
                self._rules[directory] = self._within(rules, directory)
            rules = self._rules[directory]
        return rules.is_ignored(path, path.rpartition("/")[2], is_directory=False)

    def _within(self, rules: Rules, directory: str) -> Rules:
        lead = f"{directory}/" if directory else ""
        return rules.within(
            directory, git=self._content(lead + GIT_IGNORE), own=self._content(lead + OWN_IGNORE)
        )


def was_left_out(engine: Engine, manifest: Manifest, root: str, limits: Limits) -> Callable[[str], bool]:
    """Tells of a path that is captured in the tree as it is now whether the captured tree left it out.

    It did if its ignore files say so, and those that are there now do not. Where both say so and the path is captured
    all the same, they do not decide about it: it lies in a nested repository, git tracks it, or a rule from outside
    the tree takes it back.
    """
    rules = first_rules(limits.ignore)
    then = TreeRules(_recorded(engine, manifest), rules)
    now = TreeRules(_live(root), rules)
    return lambda path: then.is_ignored(path) and not now.is_ignored(path)


def _recorded(engine: Engine, manifest: Manifest) -> Callable[[str], bytes | None]:
    entries = manifest.by_path()

    def content(path: str) -> bytes | None:
        entry = entries.get(path)
        if entry is None or entry.is_link:
            return None
        try:
            return engine.load_blob(entry.digest)
        except StepkeepError:
            return b"*"  # rules that cannot be read leave everything out: nothing is removed by mistake

    return content


def _live(root: str) -> Callable[[str], bytes | None]:
    def content(path: str) -> bytes | None:
        with opened_root(root) as directory:
            return ignore_file(directory, path)

    return content
