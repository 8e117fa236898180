"""What was done: notes, the commands that were run, verifications, and the state of the code.

Of what a command printed the beginning and the end are kept.
"""

from __future__ import annotations

import logging
import math
import os
import shlex
from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Any, Final, Unpack

import msgspec

from stepkeep import typed
from stepkeep.errors import InvalidInput
from stepkeep.investigation.entries import (
    BrokenEntry,
    Clock,
    Entry,
    EntryPart,
    EntryRef,
    OnChange,
    PartOptions,
    RepairedEntry,
    check_ids,
    check_tags,
    check_words,
    entry_id,
    plain,
)
from stepkeep.model import check_text
from stepkeep.processes import child
from stepkeep.processes.child import Captured, ChildCommand, Finished
from stepkeep.recording.recovery import ALLOWED, CodeState, captured, checked_commit
from stepkeep.recording.triggers import AutoTrigger, listed

log = logging.getLogger("stepkeep")

MAX_COMMANDS: Final = 200
MAX_PREVIEW: Final = 2000
VERIFICATION_SECONDS: Final = 300.0
MAX_TIMEOUT_SECONDS: Final = 86_400.0
MAX_OUTPUT_BYTES: Final = 16 * 1024
_CUT: Final = "\n[…]\n"


# --- notes


class DebugNote(Entry, frozen=True, kw_only=True):
    plural = "notes"
    prefix = "n"

    time_us: int
    content: str
    tags: tuple[str, ...] = ()
    hypotheses: tuple[str, ...] = ()


class Notebook(EntryPart[DebugNote]):
    """Notes, oldest first. They are added and never change."""

    kinds = (DebugNote,)

    def add(
        self, content: str, *, tags: Iterable[str] = (), hypotheses: Iterable[EntryRef] = ()
    ) -> DebugNote:
        """Write something down. `hypotheses` are those it is about, or their ids."""
        return self._put(
            DebugNote(
                id=self._new_id(DebugNote),
                time_us=self._clock(),
                content=check_words("a note", content),
                tags=check_tags(tags),
                hypotheses=check_ids(hypotheses),
            )
        )


# --- commands and verifications


class ExecutedCommand(Entry, frozen=True, kw_only=True):
    """`replay` marks what has to be run again to be where it was left, such as starting a server."""

    plural = "commands"
    prefix = "x"

    time_us: int
    command: str
    working_dir: str = "."
    exit_code: int | None = None
    stdout_preview: str = ""
    stderr_preview: str = ""
    replay: bool = False


class CommandHistory(EntryPart[ExecutedCommand]):
    """The newest commands, oldest first."""

    kinds = (ExecutedCommand,)

    def record(
        self,
        command: str,
        *,
        working_dir: str | os.PathLike[str] = ".",
        exit_code: int | None = None,
        stdout: str | bytes = "",
        stderr: str | bytes = "",
        replay: bool = False,
        is_told: bool = True,
    ) -> ExecutedCommand:
        """Note a command that was run; of what it said only previews are kept."""
        added = ExecutedCommand(
            id=self._new_id(ExecutedCommand),
            time_us=self._clock(),
            command=check_words("a command", command),
            working_dir=_folder(working_dir),
            exit_code=exit_code,
            stdout_preview=preview(stdout),
            stderr_preview=preview(stderr),
            replay=replay,
        )
        self._keep(added)
        kept = self._of(ExecutedCommand)
        for id in list(kept)[:-MAX_COMMANDS]:
            del kept[id]
        if is_told:
            self._changed()
        return added

    def run(
        self,
        command: str | Sequence[str],
        *,
        folder: str | Path = ".",
        environment: Mapping[str, str] | None = None,
        replay: bool = False,
    ) -> ExecutedCommand:
        """Run a command, and note how it ended and what it printed. A text goes to the shell.

        It may take as long as it takes. One that cannot be started, or is interrupted, has no exit code; an interrupt
        is raised when it is noted.

        Raises:
            InvalidInput: no command, or an option that makes no sense. Nothing was run.
        """
        words, line = _words(command)
        where = _folder(folder)
        if type(replay) is not bool:
            raise InvalidInput(f"replay is True or False, not {replay!r}", code="invalid_option")
        done = _executed(words, where, environment, None, MAX_OUTPUT_BYTES)
        added = self.record(
            line,
            working_dir=where,
            exit_code=done.exit_code,
            stdout=done.stdout,
            stderr=done.stderr,
            replay=replay,
        )
        if done.interrupt is not None:
            raise done.interrupt
        return added


def _folder(path: str | os.PathLike[str]) -> str:
    if not isinstance(path, str | os.PathLike):
        raise InvalidInput(f"a working directory is a path, not {path!r}", code="invalid_option")
    return check_text("a working directory", os.fspath(path))


def preview(output: str | bytes) -> str:
    """The beginning and the end of a long text, and text that can be saved whatever it was."""
    text = output.decode("utf-8", "replace") if isinstance(output, bytes) else output
    if not isinstance(text, str):
        raise InvalidInput(f"an output is text or bytes, not {text!r}", code="invalid_option")
    text = text.replace("\0", "\ufffd").encode("utf-8", "replace").decode()
    if len(text) <= MAX_PREVIEW:
        return text
    half = (MAX_PREVIEW - len(_CUT)) // 2
    return text[:half] + _CUT + text[-half:]


class VerificationStatus(StrEnum):
    PASSED = "passed"
    FAILED = "failed"
    TIMED_OUT = "timed_out"
    ERROR = "error"
    INTERRUPTED = "interrupted"
    SKIPPED = "skipped"


class VerificationResult(Entry, frozen=True, kw_only=True):
    """What a verification showed. `plan` says what was to be shown; `output` is bounded."""

    plural = "verifications"
    prefix = "v"

    plan: str
    command: str
    executed_us: int
    duration_ms: int
    status: VerificationStatus
    exit_code: int | None = None
    output: str = ""
    is_cut: bool = False
    hypothesis: str | None = None


class VerificationRunner(EntryPart[VerificationResult]):
    """Runs verifications and keeps their results. Each command is also noted in the history of commands."""

    kinds = (VerificationResult,)

    def __init__(self, clock: Clock, commands: CommandHistory, **options: Unpack[PartOptions]) -> None:
        super().__init__(clock, **options)
        self._commands = commands

    def run(
        self,
        command: str | Sequence[str],
        *,
        plan: str = "",
        hypothesis: EntryRef | None = None,
        timeout_seconds: float = VERIFICATION_SECONDS,
        folder: str | Path = ".",
        environment: Mapping[str, str] | None = None,
        max_output: int = MAX_OUTPUT_BYTES,
    ) -> VerificationResult:
        """Run a command: exit code 0 is `passed`. A text goes to the shell, words are run as they are.

        A command that hangs is ended with its whole group when the time is up (`timed_out`); of one that floods its
        output the beginning and the end are kept. One that cannot be started is an `error`. None of them raises. One
        that is interrupted by Ctrl-C is noted as `interrupted` before that is raised.

        Raises:
            InvalidInput: no command, or an option that makes no sense. Nothing was run.
        """
        words, line = _words(command)
        check_text("a plan", plan)
        where = _folder(folder)
        tested = None if hypothesis is None else entry_id(hypothesis)
        check_seconds("timeout_seconds", timeout_seconds)
        if type(max_output) is not int or max_output < 2:
            raise InvalidInput("max_output counts bytes: 2 or more", code="invalid_option")
        began_us = self._clock()
        done = _executed(words, where, environment, timeout_seconds, max_output)
        # The result is told: one event, one checkpoint.
        self._commands.record(
            line,
            working_dir=where,
            exit_code=done.exit_code,
            stdout=done.stdout,
            stderr=done.stderr,
            is_told=False,
        )
        result = self._put(
            VerificationResult(
                id=self._new_id(VerificationResult),
                plan=plan or line,
                command=line,
                executed_us=began_us,
                duration_ms=done.duration_ms,
                status=done.status,
                exit_code=done.exit_code,
                output=done.stdout + done.stderr,
                is_cut=done.is_cut,
                hypothesis=tested,
            ),
            AutoTrigger.VERIFICATION_COMPLETE,
        )
        if done.interrupt is not None:
            raise done.interrupt
        return result

    def skip(self, plan: str, reason: str = "", *, hypothesis: EntryRef | None = None) -> VerificationResult:
        """Note that a verification was not made, and why."""
        return self._put(
            VerificationResult(
                id=self._new_id(VerificationResult),
                plan=check_words("a plan", plan),
                command="",
                executed_us=self._clock(),
                duration_ms=0,
                status=VerificationStatus.SKIPPED,
                output=check_text("a reason", reason),
                hypothesis=None if hypothesis is None else entry_id(hypothesis),
            ),
            AutoTrigger.VERIFICATION_COMPLETE,
        )


def check_seconds(name: str, seconds: object) -> None:
    is_number = isinstance(seconds, int | float) and not isinstance(seconds, bool) and math.isfinite(seconds)
    if not is_number or not 0 < seconds <= MAX_TIMEOUT_SECONDS:  # type: ignore[operator]
        raise InvalidInput(
            f"{name} must be above 0 and at most {MAX_TIMEOUT_SECONDS:g}, not {seconds!r}",
            code="invalid_option",
        )


def _text(captured: Captured) -> str:
    """The beginning and the end of an output, and how much is missing between them."""
    head, tail = (data.decode("utf-8", "replace") for data in (captured.head, captured.tail))
    between = f"\n[… {captured.left_out:,} bytes left out …]\n" if captured.left_out else ""
    return f"{head}{between}{tail}".replace("\0", "\ufffd")


class _Execution(msgspec.Struct, frozen=True, kw_only=True):
    """A command that was run, or could not be."""

    status: VerificationStatus
    exit_code: int | None = None
    stdout: str = ""
    stderr: str = ""
    duration_ms: int = 0
    is_cut: bool = False
    interrupt: KeyboardInterrupt | None = None


def _words(command: str | Sequence[str]) -> tuple[list[str], str]:
    """A command as words to run, and as one line: a text goes to the shell."""
    if isinstance(command, str):
        return ["/bin/sh", "-c", check_words("a command", command)], command
    words = [str(word) for word in listed("a command", command)]
    return words, check_words("a command", shlex.join(words))


def _executed(
    words: Sequence[str],
    folder: str,
    environment: Mapping[str, str] | None,
    timeout_seconds: float | None,
    max_output: int,
) -> _Execution:
    if environment is not None and not all(
        isinstance(each, str) for pair in environment.items() for each in pair
    ):
        raise InvalidInput("an environment has names and values that are texts", code="invalid_option")
    interrupt = None
    try:
        ended = child.run(
            ChildCommand(words=tuple(words), folder=Path(folder), env=environment),
            timeout_seconds=timeout_seconds,
            max_capture=max_output // 2,
            tail_bytes=max_output // 2,
            ends_group=True,
        )
    except (OSError, ValueError) as exc:
        return _Execution(status=VerificationStatus.ERROR, stderr=str(exc))
    except child.Interrupted as exc:
        ended, interrupt = exc.finished, exc
    return _Execution(
        status=_status(ended) if interrupt is None else VerificationStatus.INTERRUPTED,
        exit_code=ended.exit_code if interrupt is None else None,
        stdout=_text(ended.stdout),
        stderr=_text(ended.stderr),
        duration_ms=ended.duration_ms,
        is_cut=bool(ended.stdout.left_out or ended.stderr.left_out),
        interrupt=interrupt,
    )


def _status(ended: Finished) -> VerificationStatus:
    if ended.is_timed_out:
        return VerificationStatus.TIMED_OUT
    return VerificationStatus.PASSED if ended.exit_code == 0 else VerificationStatus.FAILED


# --- the code


class CodeTracker:
    """The code as it was last told; None until then."""

    def __init__(self, clock: Clock, *, on_change: OnChange | None = None) -> None:
        self._clock = clock
        self._on_change = on_change
        self.state: CodeState | None = None
        self.broken: tuple[BrokenEntry, ...] = ()

    def changed(
        self,
        paths: Iterable[str],
        commit: str | None = None,
        *,
        patches: Iterable[str] = (),
        environment: Mapping[str, str] | None = None,
        allowed: Iterable[str] = ALLOWED,
    ) -> CodeState:
        """Source code was modified. Of the environment only allowed variables are kept, secrets hidden.

        Raises:
            InvalidInput: the commit is not the id of one (`invalid_commit`), or `paths` is one text.
        """
        if isinstance(paths, str) or isinstance(patches, str):
            raise InvalidInput("paths and patches take lists of texts", code="invalid_option")
        self.state = state = CodeState(
            commit=checked_commit(commit),
            patches=tuple(check_text("a patch", patch, limit=2**20) for patch in patches),
            paths=tuple(check_text("a path", path) for path in paths),
            env_vars=captured(environment or {}, allowed),
            changed_us=self._clock(),
        )
        self.broken = ()
        if self._on_change is not None:
            self._on_change(AutoTrigger.CODE_MODIFIED, ())
        return state

    def snapshot(self) -> Any:
        return self.broken[0].data if self.broken else plain(self.state)

    def restore(self, data: Any) -> None:
        self.state, self.broken = read_code(data)
        for each in self.broken:
            log.warning("the state of the code is left out: %s", each.reason)

    def repair(self) -> tuple[RepairedEntry, ...]:
        """Drop a state of the code that cannot be read."""
        broken, self.broken = self.broken, ()
        return tuple(
            RepairedEntry(entries=each.entries, id=each.id, reason=each.reason, is_mended=False)
            for each in broken
        )


def read_code(data: Any) -> tuple[CodeState | None, tuple[BrokenEntry, ...]]:
    """The stored state of the code, or what is stored in its place and cannot be read."""
    try:
        return None if data is None else typed.convert(data, CodeState), ()
    except msgspec.ValidationError as exc:
        return None, (BrokenEntry(entries="code", id="code", reason=str(exc), data=data),)
