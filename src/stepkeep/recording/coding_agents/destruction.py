"""What a shell command may destroy, told from its text before it runs.

The answer errs on the side of danger: a command that only looks dangerous costs one capture of the files. Nothing is
run or expanded but the stars of file names.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from typing import NamedTuple

MAX_COMMAND = 20_000
"""A longer command is not taken apart: it counts as one that destroys."""

MAX_PATHS = 1000

_GIT = (
    "am|apply|checkout|cherry-pick|clean|merge|mv|pull|read-tree|rebase|reset|restore|revert|rm|stash|submodule|switch"
    "|worktree"
)
_DANGER = re.compile(
    rf"""
    \b(?:rm|rmdir|mv|unlink|shred|truncate|dd|rsync|tee|cp|ln|install|patch|unzip|tar|wipe|srm|trash)\b
    | \bgit\b [^;|&\n]*? \b(?:{_GIT})\b
    | \bfind\b [^;|&\n]* \s-(?:delete|exec|execdir|ok)\b
    | \b(?:sed|perl|ruby|gawk)\b [^;|&\n]* \s-(?:\w*i|-in-place)\b
    | rmtree | unlink | \bremove\s*\( | rmSync | removeSync | rimraf | Remove-Item
    """,
    re.VERBOSE,
)
_SUBSTITUTION = re.compile(r"[$`]")
_PREFIXES = frozenset(
    {
        *("!", "{", "builtin", "command", "do", "doas", "else", "env", "exec", "if", "nice", "nohup", "sudo"),
        *("then", "time", "until", "while", "xargs"),
    }
)
_SHELLS = frozenset({"bash", "dash", "eval", "ksh", "sh", "zsh"})
_TAKES_PATHS = frozenset({"cp", "find", "mv", "rm", "rmdir", "shred", "tee", "truncate", "unlink"})
_SEPARATORS = re.compile(r"[;|&()\n]+")
_ASSIGNMENT = re.compile(r"\w+=")


class Destroys(NamedTuple):
    """What a command may take away: the files of its tree, and by name `paths`, absolute and there, directories too.

    `takes_ignored` says that it also takes what git ignores.
    """

    paths: tuple[str, ...] = ()
    takes_ignored: bool = False


def destroyed_by(command: str, cwd: str) -> Destroys | None:
    """What a command that is run in a directory may destroy; None for one that looks harmless."""
    if len(command) > MAX_COMMAND:
        return Destroys()
    is_dangerous = _DANGER.search(command) is not None
    if not is_dangerous and ">" not in command:
        return None
    found = _Found()
    try:
        found.look_at(command, cwd)
    except ValueError:  # a quote without its end
        return Destroys()
    if not is_dangerous and not found.overwrites:
        return None
    return Destroys(tuple(dict.fromkeys(found.paths))[:MAX_PATHS], found.takes_ignored)


class _Found:
    """What was found in the parts of a command so far."""

    def __init__(self) -> None:
        self.paths: list[str] = []
        self.takes_ignored = False
        self.overwrites = False

    def look_at(self, command: str, cwd: str) -> None:
        for words in _simple_commands(command):
            words = self._without_redirections(words, cwd)
            words = _without_prefixes(words)
            if not words:
                continue
            name, rest = words[0].rpartition("/")[2], words[1:]
            if name == "cd" and rest and not _SUBSTITUTION.search(rest[0]):
                cwd = os.path.normpath(os.path.join(cwd, os.path.expanduser(rest[0])))  # noqa: PTH111, PTH118
            elif name in _SHELLS:
                for each in rest:
                    if " " in each:
                        self.look_at(each, cwd)
            elif name == "git":
                self._git(rest)
            elif name in _TAKES_PATHS:
                self._named(rest, cwd)

    def _without_redirections(self, words: list[str], cwd: str) -> list[str]:
        """The words of a command; a file that exists and is written anew is noted."""
        kept: list[str] = []
        rest = iter(words)
        for word in rest:
            if ">" not in word or word.strip("<>&|") != "":
                kept.append(word)
                continue
            target = next(rest, "")
            if word in (">", ">|", "&>") and (_SUBSTITUTION.search(target) or _is_file(target, cwd)):
                self.overwrites = True
                self._named([target], cwd)
        return kept

    def _git(self, words: list[str]) -> None:
        """What git takes is in the tree that is captured, but for what it ignores."""
        flags = [word for word in words if word.startswith("-")]
        short = "".join(flag[1:] for flag in flags if not flag.startswith("--"))
        if "clean" in words:
            self.takes_ignored |= "x" in short.lower()
        elif "stash" in words:
            self.takes_ignored |= "a" in short or "--all" in flags

    def _named(self, words: list[str], cwd: str) -> None:
        for word in words:
            if word.startswith("-") or _SUBSTITUTION.search(word) or len(self.paths) > MAX_PATHS:
                continue
            path = os.path.normpath(os.path.join(cwd, os.path.expanduser(word)))  # noqa: PTH111, PTH118
            self.paths += [each for each in _expanded(path) if os.path.lexists(each)]


def _simple_commands(command: str) -> Iterator[list[str]]:
    """The words of each part of a compound command, those in substitutions too.

    Raises:
        ValueError: a quote has no end.
    """
    import shlex  # only commands that may be dangerous need it

    lexer = shlex.shlex(command, posix=True, punctuation_chars="();<>|&\n")
    lexer.whitespace, lexer.whitespace_split, lexer.commenters = " \t\r", True, ""
    words: list[str] = []
    for word in lexer:
        if _SEPARATORS.fullmatch(word) and word != ">|":
            yield words
            words = []
            continue
        words.append(word)
        for inner in re.findall(r"`([^`]*)`|\$\(([^)]*)\)", word):
            yield from _simple_commands(inner[0] or inner[1])
    yield words


def _without_prefixes(words: list[str]) -> list[str]:
    """A command without what stands before its name: assignments, `sudo`, `xargs`, and their options."""
    at = 0
    while at < len(words) and (
        words[at] in _PREFIXES or _ASSIGNMENT.match(words[at]) or (at and words[at].startswith("-"))
    ):
        at += 1
    return words[at:]


def _is_file(path: str, cwd: str) -> bool:
    return bool(path) and os.path.isfile(os.path.join(cwd, os.path.expanduser(path)))  # noqa: PTH111, PTH113, PTH118


def _expanded(path: str) -> list[str]:
    if not any(char in path for char in "*?["):
        return [path]
    from glob import iglob
    from itertools import islice

    return [path, *islice(iglob(path), MAX_PATHS)]  # noqa: PTH207
