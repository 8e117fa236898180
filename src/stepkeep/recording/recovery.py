"""Recovery points: what a person does to be where a checkpoint was, as data, as text, and as a script to read.

Also which variables of the environment may be stored for that. Nothing here runs anything.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Mapping
from typing import Final, TypeAlias

import msgspec

from stepkeep.errors import InvalidInput
from stepkeep.model import check_text
from stepkeep.secrets import HIDDEN, has_secret, is_secret_name
from stepkeep.text import count

ALLOWED: Final = (
    *("CI", "CONDA_DEFAULT_ENV", "GOPATH", "JAVA_HOME", "LANG", "LC_ALL", "LD_LIBRARY_PATH", "NODE_ENV"),
    *("PATH", "PYTHONPATH", "RUST_BACKTRACE", "RUST_LOG", "SHELL", "TZ", "VIRTUAL_ENV"),
)
"""What is captured unless other names are given. Never the whole environment."""

MAX_VALUE: Final = 32 * 1024

_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_COMMIT: Final = re.compile(r"[0-9a-f]{4,64}", re.IGNORECASE)


# --- the environment


def captured(environ: Mapping[str, str], allowed: Iterable[str] = ALLOWED) -> dict[str, str]:
    """The variables with an allowed name, sorted; a value that looks like a secret, or cannot be stored, is hidden."""
    names = sorted({name for name in allowed if is_variable(name) and name in environ})
    if others := [name for name in names if not isinstance(environ[name], str)]:
        raise InvalidInput(f"variable {others[0]} is no text: {environ[others[0]]!r}", code="invalid_option")
    return {name: HIDDEN if _is_hidden(name, environ[name]) else environ[name] for name in names}


def _is_hidden(name: str, value: str) -> bool:
    is_text = value == value.encode("utf-8", "replace").decode()
    return len(value) > MAX_VALUE or not is_text or is_secret_name(name) or has_secret(value)


def is_variable(name: str) -> bool:
    """Whether a shell takes it as the name of a variable."""
    return _NAME.fullmatch(name) is not None


# --- steps: each as a text for a person, and as lines of a shell script


class RestoreCodeState(msgspec.Struct, frozen=True, kw_only=True, tag="restore_code_state", tag_field="step"):
    """Check out a commit, then apply patches, in that order."""

    commit_hash: str | None
    patches: tuple[str, ...] = ()

    def as_text(self) -> list[str]:
        where = "at the top of a clone without submodules"
        patches = (
            f", then apply {count(len(self.patches), 'patch', 'patches')} {where}" if self.patches else ""
        )
        return [f"Check out commit {self.commit_hash or '(unknown)'}{patches}"]

    def as_script(self) -> list[str]:
        return [
            "# at the top of a clone of the repository, without its submodules: patches bring their files",
            *([f"git checkout --detach {shlex.quote(self.commit_hash)}"] if self.commit_hash else []),
            *(f"printf '%s' {shlex.quote(patch)} | git apply" for patch in self.patches),
        ]


class RestoreEnvironment(
    msgspec.Struct, frozen=True, kw_only=True, tag="restore_environment", tag_field="step"
):
    """Set variables. One that is `(hidden)` has to be set by whoever knows it."""

    env_vars: dict[str, str]

    def as_text(self) -> list[str]:
        return ["Set the environment:", *(f"{name}={value}" for name, value in self.env_vars.items())]

    def as_script(self) -> list[str]:
        return [
            f"# set {name} yourself: its value looks like a secret and was not stored"
            if value == HIDDEN
            else f"export {name}={shlex.quote(value)}"
            for name, value in self.env_vars.items()
            if is_variable(name)
        ]


class ReplayCommand(msgspec.Struct, frozen=True, kw_only=True, tag="replay_command", tag_field="step"):
    """Run a command line again."""

    command: str
    working_dir: str | None = None

    def as_text(self) -> list[str]:
        where = f" (in {self.working_dir})" if self.working_dir else ""
        return [f"Run: {self.command}{where}"]

    def as_script(self) -> list[str]:
        if not self.working_dir:
            return [self.command]
        return [f"(cd -- {shlex.quote(self.working_dir)} && {self.command})"]


class ManualInstruction(
    msgspec.Struct, frozen=True, kw_only=True, tag="manual_instruction", tag_field="step"
):
    """Something that only a person does."""

    instruction: str

    def as_text(self) -> list[str]:
        return [self.instruction]

    def as_script(self) -> list[str]:
        return [f"# {line}" for line in self.instruction.splitlines()]


RecoveryStep: TypeAlias = RestoreCodeState | RestoreEnvironment | ReplayCommand | ManualInstruction


class CodeState(msgspec.Struct, frozen=True, kw_only=True):
    """The code as it was: the commit, what differs from it, which paths changed, and the captured environment."""

    commit: str | None = None
    patches: tuple[str, ...] = ()
    paths: tuple[str, ...] = ()
    env_vars: dict[str, str] = {}
    changed_us: int = 0


class RecoveryPoint(msgspec.Struct, frozen=True, kw_only=True):
    """How to get back to a checkpoint of a session, step by step."""

    session: str
    checkpoint_id: str
    recovery_instructions: tuple[RecoveryStep, ...]

    def as_text(self) -> str:
        """For a person: numbered steps. Show it through a filter for control characters."""
        lines = [f"Recovery point for session {self.session}, checkpoint {self.checkpoint_id}"]
        for number, step in enumerate(self.recovery_instructions, 1):
            first, *rest = step.as_text()
            lines += [f"{number}. {first}", *(f"   {line}" for line in rest)]
        return "\n".join(lines) + "\n"

    def as_script(self) -> str:
        """A shell script for a person to read, and to run if they want; every value is quoted."""
        lines = ["#!/bin/sh", "# Read this before you run it: it was not run by itself.", "set -eu", ""]
        for step in self.recovery_instructions:
            lines += [*step.as_script(), ""]
        return "\n".join(lines)


def recovery_point(
    session: str,
    checkpoint: str,
    *,
    code: CodeState | None = None,
    environment: Mapping[str, str] | None = None,
    commands: Iterable[ReplayCommand] = (),
    notes: Iterable[str] = (),
    store: str | None = None,
) -> RecoveryPoint:
    """The instructions in the order in which they are followed: code, environment, commands, then the session.

    `notes` are what a person has to do about the code by hand, `store` names the store where it is not the default.

    Raises:
        InvalidInput: the commit is not the id of one (`invalid_commit`).
    """
    steps: list[RecoveryStep] = []
    if code is not None and (code.commit or code.patches):
        steps.append(RestoreCodeState(commit_hash=checked_commit(code.commit), patches=code.patches))
    steps += [ManualInstruction(instruction=note) for note in notes]
    variables = {**(code.env_vars if code is not None else {}), **(environment or {})}
    if variables:
        steps.append(RestoreEnvironment(env_vars=variables))
    steps += commands
    steps.append(
        ManualInstruction(instruction=f"Restore debugging session {session} from checkpoint {checkpoint}")
    )
    where = "" if store is None else f" --store {shlex.quote(store)}"
    steps.append(
        ReplayCommand(command=f"stepkeep restore{where} --session {shlex.quote(session)} {checkpoint}")
    )
    return RecoveryPoint(session=session, checkpoint_id=checkpoint, recovery_instructions=tuple(steps))


def checked_commit(commit: str | None) -> str | None:
    """`commit` if it may be the id of one: never an option or a command."""
    if commit is not None and not _COMMIT.fullmatch(check_text("a commit", commit)):
        raise InvalidInput(
            f"{commit[:80]!r} is not the id of a commit: give its hexadecimal digits", code="invalid_commit"
        )
    return commit
