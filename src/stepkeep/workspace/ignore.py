"""Which files are left out: built-in rules, git's ignore files, and `.stepkeepignore`.

The last rule that matches decides; rules of a deeper directory come after those above it. All of `.stepkeepignore`
comes after all of `.gitignore`, and both after the built-in rules. What lies in an ignored directory is ignored.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from typing import Final

import msgspec

from stepkeep.workspace.patterns import Pattern, as_latin, parse

GIT_IGNORE: Final = ".gitignore"
OWN_IGNORE: Final = ".stepkeepignore"

BUILT_IN: Final = (
    "node_modules/",
    ".venv/",
    "venv/",
    ".virtualenv/",
    "__pycache__/",
    "*.py[co]",
    ".mypy_cache/",
    ".pytest_cache/",
    ".ruff_cache/",
    ".hypothesis/",
    ".tox/",
    ".nox/",
    ".eggs/",
    ".cache/",
    ".gradle/",
    ".terraform/",
    ".next/",
    ".nuxt/",
    ".parcel-cache/",
    ".turbo/",
    ".DS_Store",
    "Thumbs.db",
)
"""Virtual environments, installed packages and caches. A line such as `!venv/` in an ignore file takes one back."""

MAX_NAMES: Final = 10_000
"""How many names a set of rules remembers its answer for."""


class RuleList:
    """The rules of one ignore file: of the directory `base` below the root, or of one above it, from which `lead`
    leads to the root."""

    def __init__(self, patterns: Sequence[Pattern], *, base: str = "", lead: str = "") -> None:
        self._patterns = tuple(reversed(patterns))
        self._depth = len(base) + 1 if base else 0
        self._lead = lead
        self._names = _union(pattern for pattern in patterns if not pattern.is_path)
        self._paths = _union(pattern for pattern in patterns if pattern.is_path)

    def may_match_name(self, name: str) -> bool:
        """Whether a pattern for names matches; the last word has `verdict`."""
        return self._names is not None and self._names(name) is not None

    def may_match_path(self, path: str) -> bool:
        """Whether a pattern for paths matches; the last word has `verdict`."""
        return self._paths is not None and self._paths(self._lead + path[self._depth :]) is not None

    @property
    def has_paths(self) -> bool:
        return self._paths is not None

    def verdict(self, path: str, name: str, is_directory: bool) -> bool | None:
        """True: ignored. False: taken back. None: these rules say nothing."""
        path = self._lead + path[self._depth :]
        for pattern in self._patterns:
            if pattern.matches(path, name, is_directory):
                return not pattern.is_negated
        return None


def _union(patterns: Iterable[Pattern]) -> Callable[[str], object] | None:
    """A function that tells whether any of these may match; None when there are none."""
    sources = [pattern.regex.pattern for pattern in patterns]
    if not sources:
        return None
    return re.compile("|".join(f"(?:{source})" for source in sources), re.DOTALL).fullmatch


class Rules:
    """All rules that hold in one directory, the strongest first. They never change: `within` gives those of a child.

    From the same files comes the very same object: what was found to belong to the tree under it still does.
    """

    def __init__(
        self,
        *,
        own: tuple[RuleList, ...] = (),
        git: tuple[RuleList, ...] = (),
        outer: tuple[RuleList, ...] = (),
    ) -> None:
        self._own = own
        self._git = git
        self._outer = outer
        self._all = own + git + outer
        self._with_paths = [rules for rules in self._all if rules.has_paths]
        self._names: dict[str, bool] = {}
        self._children: dict[str, tuple[tuple[bytes | None, bytes | None, bool], Rules]] = {}

    def is_ignored(self, path: str, name: str, is_directory: bool) -> bool:
        """Whether these rules leave out an entry of their directory."""
        if not path.isascii():
            path, name = as_latin(path), as_latin(name)
        if not self._may_match_name(name) and not any(
            rules.may_match_path(path) for rules in self._with_paths
        ):
            return False
        for rules in self._all:
            verdict = rules.verdict(path, name, is_directory)
            if verdict is not None:
                return verdict
        return False

    def _may_match_name(self, name: str) -> bool:
        # Most files match nothing, and names come again and again.
        known = self._names.get(name)
        if known is None:
            if len(self._names) >= MAX_NAMES:
                self._names.clear()
            known = self._names[name] = any(rules.may_match_name(name) for rules in self._all)
        return known

    def within(
        self,
        directory: str,
        *,
        git: bytes | None = None,
        own: bytes | None = None,
        is_repository: bool = False,
    ) -> Rules:
        """The rules below `directory`, with the contents of its ignore files.

        Where another repository begins, the `.gitignore` files above it end.
        """
        if not git and not own and not (is_repository and self._git):
            return self
        files = git, own, is_repository
        known = self._children.get(directory)
        if known is None or known[0] != files:
            known = self._children[directory] = (files, self._child(directory, git, own, is_repository))
        return known[1]

    def _child(self, directory: str, git: bytes | None, own: bytes | None, is_repository: bool) -> Rules:
        base = as_latin(directory)
        more_git = (RuleList(parse(git), base=base),) if git else ()
        more_own = (RuleList(parse(own), base=base),) if own else ()
        inherited = () if is_repository else self._git
        return Rules(own=more_own + self._own, git=more_git + inherited, outer=self._outer)


class Outside(msgspec.Struct, frozen=True):
    """An ignore file of git that lies outside the workspace, and what leads from its directory to the workspace."""

    content: bytes
    lead: str = ""


def first_rules(
    extra: Iterable[str] = (), *, above: Sequence[Outside] = (), everywhere: Sequence[Outside] = ()
) -> Rules:
    """The rules before any file of the tree is read: the built-in ones and `extra`, and git's from outside.

    `above` are the ignore files of the directories above, the nearest first; `everywhere` those that hold for the
    whole repository, the strongest first.
    """
    return _first_rules(tuple(extra), tuple(above), tuple(everywhere))


@lru_cache(maxsize=16)
def _first_rules(
    extra: tuple[str, ...], above: tuple[Outside, ...], everywhere: tuple[Outside, ...]
) -> Rules:
    lines = "\n".join([*BUILT_IN, *extra]).encode("utf-8", "surrogateescape")
    outer = (*map(_outside, everywhere), RuleList(parse(lines)))
    return Rules(git=tuple(map(_outside, above)), outer=outer)


def own_rules(extra: Iterable[str] = ()) -> Rules:
    """The rules that hold even for what git tracks: `extra`, and `.stepkeepignore` files by `within`."""
    return Rules(outer=(RuleList(parse("\n".join(extra).encode("utf-8", "surrogateescape"))),))


def _outside(file: Outside) -> RuleList:
    return RuleList(parse(file.content), lead=as_latin(file.lead))
