"""Which files are left out: built-in rules, names of secrets, git's ignore files, and `.stepkeepignore`.

The last rule that matches decides; rules of a deeper directory come after those above it. All of `.stepkeepignore`
comes after all of `.gitignore`, and both after the built-in rules. What lies in an ignored directory is ignored.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from typing import Final, NamedTuple

from stepkeep.workspace.manifest import parents

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

_SECRET_FILES: Final = (
    *(".env", ".git-credentials", ".htpasswd", ".netrc", ".pgpass", ".pypirc", "_netrc", "credentials"),
    *("credentials.json", "id_dsa", "id_ecdsa", "id_ed25519", "id_rsa", "secrets.json", "secrets.toml"),
    *("secrets.yaml", "secrets.yml"),
)
LIKE_SECRETS: Final = (
    *_SECRET_FILES,
    *(f"!{name}/" for name in _SECRET_FILES),  # a folder of that name is no secret
    ".env.*",
    *(f"!.env.{kind}" for kind in ("defaults", "dist", "example", "sample", "template")),
    *("*.jks", "*.kdbx", "*.key", "*.keystore", "*.p12", "*.pem", "*.pfx", "*.ppk", "service-account*.json"),
)
"""Files whose names look like those of secrets. What git tracks is no secret any more, and is captured."""

SECRET: Final = "looks like a secret"
"""How a reader knows the rules for such names."""

MAX_NAMES: Final = 10_000
"""How many names a set of rules remembers its answer for."""


class RuleList:
    """The rules of one ignore file: of the directory `base` below the root, or of one above it, from which `lead`
    leads to the root. `source` says to a reader which file it is."""

    def __init__(self, patterns: Sequence[Pattern], source: str, *, base: str = "", lead: str = "") -> None:
        self._source = source
        self._patterns = tuple(reversed(patterns))
        self._depth = len(base) + 1 if base else 0
        self._lead = lead
        self._names = _union(pattern for pattern in patterns if not pattern.is_path)
        self._paths = _union(pattern for pattern in patterns if pattern.is_path)
        self.has_paths = self._paths is not None

    def may_match_name(self, name: str) -> bool:
        """Whether a pattern for names matches; the last word has `verdict`."""
        return self._names is not None and self._names(name) is not None

    def may_match_path(self, path: str) -> bool:
        """Whether a pattern for paths matches; the last word has `verdict`."""
        return self._paths is not None and self._paths(self._lead + path[self._depth :]) is not None

    def verdict(self, path: str, name: str, is_directory: bool) -> str | None:
        """The rule that ignores it, for a reader; empty where one takes it back. None: these rules say nothing."""
        path = self._lead + path[self._depth :]
        for pattern in self._patterns:
            if pattern.matches(path, name, is_directory):
                return "" if pattern.is_negated else f"{self._source}: {pattern.text}"
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
        return bool(self.ignored_by(path, name, is_directory))

    def ignored_by(self, path: str, name: str, is_directory: bool) -> str:
        """The rule that leaves out an entry of their directory, for a reader; empty where none does."""
        if not path.isascii():
            path, name = as_latin(path), as_latin(name)
        if not self._may_match_name(name) and not any(
            rules.may_match_path(path) for rules in self._with_paths
        ):
            return ""
        for rules in self._all:
            verdict = rules.verdict(path, name, is_directory)
            if verdict is not None:
                return verdict
        return ""

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
        base, lead = as_latin(directory), f"{directory}/" if directory else ""
        more_git = (RuleList(parse(git), lead + GIT_IGNORE, base=base),) if git else ()
        more_own = (RuleList(parse(own), lead + OWN_IGNORE, base=base),) if own else ()
        inherited = () if is_repository else self._git
        return Rules(own=more_own + self._own, git=more_git + inherited, outer=self._outer)


class Outside(NamedTuple):
    """An ignore file of git that lies outside the workspace, what leads from its directory to the workspace, and how a
    reader knows it."""

    content: bytes
    lead: str = ""
    source: str = "git"


@lru_cache(maxsize=16)
def first_rules(
    extra: tuple[str, ...], above: tuple[Outside, ...] = (), everywhere: tuple[Outside, ...] = ()
) -> Rules:
    """The rules before any file of the tree is read: the built-in ones and `extra`, and git's from outside.

    `above` are the ignore files of the directories above, the nearest first; `everywhere` those that hold for the
    whole repository, the strongest first.
    """
    outer = (
        *map(_outside, everywhere),
        _settings(extra),
        RuleList(parse("\n".join(BUILT_IN).encode()), "built in"),
        RuleList(parse("\n".join(LIKE_SECRETS).encode()), SECRET),
    )
    return Rules(git=tuple(map(_outside, above)), outer=outer)


def looks_like_secret(name: str) -> bool:
    """Whether the name of a file looks like that of a secret."""
    rules = Rules(outer=(RuleList(parse("\n".join(LIKE_SECRETS).encode()), SECRET),))
    return rules.is_ignored(name, name, is_directory=False)


def own_rules(extra: Iterable[str] = ()) -> Rules:
    """The rules that hold even for what git tracks: `extra`, and `.stepkeepignore` files by `within`."""
    return Rules(outer=(_settings(extra),))


def _settings(extra: Iterable[str]) -> RuleList:
    return RuleList(parse("\n".join(extra).encode("utf-8", "surrogateescape")), "workspace.ignore")


def _outside(file: Outside) -> RuleList:
    return RuleList(parse(file.content), file.source, lead=as_latin(file.lead))


class TreeRules:
    """What the ignore files in a tree leave out; `content` gives each of them by its path. Nothing else counts: not
    where a nested repository begins, nor what git says outside the tree or tracks."""

    def __init__(self, content: Callable[[str], bytes | None], rules: Rules) -> None:
        self._content = content
        self._rules = {"": self._within(rules, "")}

    def left_out_by(self, path: str) -> str | None:
        """The file, or the directory above it with a slash at its end, that a rule leaves out; None if none does."""
        rules = self._rules[""]
        for directory in reversed(list(parents(path))):
            if rules.is_ignored(directory, directory.rpartition("/")[2], is_directory=True):
                return f"{directory}/"
            if directory not in self._rules:
                self._rules[directory] = self._within(rules, directory)
            rules = self._rules[directory]
        return path if rules.is_ignored(path, path.rpartition("/")[2], is_directory=False) else None

    def _within(self, rules: Rules, directory: str) -> Rules:
        lead = f"{directory}/" if directory else ""
        return rules.within(
            directory, git=self._content(lead + GIT_IGNORE), own=self._content(lead + OWN_IGNORE)
        )


# --- one line of an ignore file, with the meaning git gives it ---------------------------------------------------

# Names are compared byte by byte, as git does: a path is its bytes read as Latin-1, so that one character is one byte.

_SPECIAL: Final = frozenset("*?[\\")
_NEVER: Final = re.compile(r"(?!)")

_CLASSES: Final = {
    "alnum": lambda char: char.isascii() and char.isalnum(),
    "alpha": lambda char: char.isascii() and char.isalpha(),
    "blank": lambda char: char in " \t",
    "cntrl": lambda char: ord(char) < 32 or ord(char) == 127,
    "digit": lambda char: char in "0123456789",
    "graph": lambda char: 32 < ord(char) < 127,
    "lower": lambda char: "a" <= char <= "z",
    "print": lambda char: 32 <= ord(char) < 127,
    "punct": lambda char: 32 < ord(char) < 127 and not char.isalnum(),
    "space": lambda char: char in " \t\n\v\f\r",
    "upper": lambda char: "A" <= char <= "Z",
    "xdigit": lambda char: char in "0123456789abcdefABCDEF",
}
_BYTES: Final = [chr(number) for number in range(256)]


class Pattern(NamedTuple):
    """What a line ignores or, if `is_negated`, takes back: names anywhere below, or paths from its directory."""

    text: str
    regex: re.Pattern[str]
    is_negated: bool
    only_directories: bool
    is_path: bool

    def matches(self, path: str, name: str, is_directory: bool) -> bool:
        """`path` is relative to the directory of the ignore file; both are bytes read as Latin-1."""
        if self.only_directories and not is_directory:
            return False
        return self.regex.fullmatch(path if self.is_path else name) is not None


def as_latin(path: str) -> str:
    """A path as patterns compare it: one character for each byte."""
    return path if path.isascii() else os.fsencode(path).decode("latin-1")


@lru_cache(maxsize=256)
def parse(content: bytes) -> tuple[Pattern, ...]:
    """The patterns in an ignore file, in their order."""
    text = content.removeprefix(b"\xef\xbb\xbf").decode("latin-1")
    lines = (line.removesuffix("\r") if line != "\r" else line for line in text.split("\n"))
    found = (_pattern(line) for line in lines)
    return tuple(pattern for pattern in found if pattern is not None)


def _pattern(line: str) -> Pattern | None:
    text = _without_trailing_spaces(line.partition("\0")[0])
    if not text or text.startswith("#"):
        return None
    shown = text.encode("latin-1").decode("utf-8", "backslashreplace")
    is_negated = text.startswith("!")
    text = text[1:] if is_negated else text
    only_directories = text.endswith("/")
    text = text[:-1] if only_directories else text
    is_path = "/" in text
    text = text.removeprefix("/") if is_path else text
    return Pattern(shown, _regex(text, is_path=is_path), is_negated, only_directories, is_path)


def _without_trailing_spaces(line: str) -> str:
    end, at = None, 0
    while at < len(line):
        if line[at] == " ":
            end = at if end is None else end
        else:
            end = None
            if line[at] == "\\":
                at += 1
                if at == len(line):
                    return line
        at += 1
    return line if end is None else line[:end]


def _regex(text: str, *, is_path: bool) -> re.Pattern[str]:
    literal = next((at for at, char in enumerate(text) if char in _SPECIAL), len(text))
    # git compares what comes before the first special character as it is, and lets a pattern begin after it.
    try:
        rest = _translated(text[literal:], is_path=is_path)
    except _Malformed:
        return _NEVER
    return re.compile(re.escape(text[:literal]) + rest, re.DOTALL)


class _Malformed(Exception):
    """A pattern that matches nothing."""


def _translated(text: str, *, is_path: bool) -> str:
    anything = "[^/]" if is_path else "."
    at, pieces = 0, []
    while at < len(text):
        char = text[at]
        if char == "*":
            end = at
            while end < len(text) and text[end] == "*":
                end += 1
            piece, at = _stars(text, at, end) if is_path else (".*", end)
            pieces.append(piece)
        elif char == "?":
            pieces.append(anything)
            at += 1
        elif char == "[":
            chars, at = _bracket(text, at)
            pieces.append(_class(chars - {"/"} if is_path else chars))
        elif char == "\\":
            if at + 1 == len(text):
                raise _Malformed
            pieces.append(re.escape(text[at + 1]))
            at += 2
        else:
            pieces.append(re.escape(char))
            at += 1
    return "".join(pieces)


def _stars(text: str, start: int, end: int) -> tuple[str, int]:
    """What a run of stars in a path stands for: `**` between slashes crosses directories."""
    is_at_start = start == 0 or text[start - 1] == "/"
    if end - start >= 2 and is_at_start:
        if end == len(text):
            return ".*", end
        if text[end] == "/":
            return "(?:.*/)?", end + 1
        if text.startswith("\\/", end):
            return ".*", end
    return "[^/]*", end


def _class(chars: set[str]) -> str:
    return "[" + "".join(map(re.escape, sorted(chars))) + "]" if chars else "(?!)"


def _bracket(text: str, start: int) -> tuple[set[str], int]:
    """The characters that `[...]` at `start` stands for, and where it ends."""
    at = start + 1
    is_negated = at < len(text) and text[at] in "!^"
    at += is_negated
    found: set[str] = set()
    previous, is_first = "", True
    while is_first or at >= len(text) or text[at] != "]":
        if at >= len(text):
            raise _Malformed
        is_first = False
        char = text[at]
        if char == "-" and previous and at + 1 < len(text) and text[at + 1] != "]":
            last, at = _escaped(text, at + 1)
            found.update(each for each in _BYTES if previous <= each <= last)
            previous = ""
        elif char == "[" and text.startswith(":", at + 1):
            previous, at = _named_class(text, at, found)
        else:
            previous, at = _escaped(text, at)
            found.add(previous)
    return (set(_BYTES) - found if is_negated else found), at + 1


def _escaped(text: str, at: int) -> tuple[str, int]:
    at += text[at] == "\\"
    if at >= len(text):
        raise _Malformed
    return text[at], at + 1


def _named_class(text: str, at: int, found: set[str]) -> tuple[str, int]:
    end = text.find("]", at + 2)
    if end < 0:
        raise _Malformed
    name = text[at + 2 : end - 1]
    if end - 1 < at + 2 or text[end - 1] != ":":
        found.add("[")
        return "[", at + 1
    if name not in _CLASSES:
        raise _Malformed
    found.update(filter(_CLASSES[name], _BYTES))
    return "", end + 1
