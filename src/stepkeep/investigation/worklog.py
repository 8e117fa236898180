"""What was done: notes, the commands that were run, verifications, and the state of the code.

Of what a command printed the beginning and the end are kept.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Any, Final, Unpack

import msgspec

from stepkeep.errors import InvalidInput
from stepkeep.investigation.entries import (
    Clock,
    Entry,
    EntryPart,
    OnChange,
    PartOptions,
    check_tags,
    check_words,
    invalid_entries,
    plain,
)
from stepkeep.model import check_text
from stepkeep.processes import child
from stepkeep.processes.child import Captured, ChildCommand, Finished
from stepkeep.recording.recovery import ALLOWED, CodeState, captured, checked_commit
from stepkeep.recording.triggers import AutoTrigger

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

    def add(self, content: str, *, tags: Iterable[str] = (), hypotheses: Iterable[str] = ()) -> DebugNote:
        """Write something down. `hypotheses` are ids of those it is about."""
        return self._put(
            DebugNote(
                id=self._new_id(DebugNote),
                time_us=self._clock(),
                content=check_words("a note", content),
                tags=check_tags(tags),
                hypotheses=check_tags(hypotheses),
            )
        )


# --- commands and verifications


class ExecutedCommand(Entry, frozen=True, kw_only=True):
    """`replay` marks what has to be run again to be where it was left, such as starting a server."""

    plural = "commands"
    prefix = "x"

    time_us: int
    command: str
    working_dir: str
    exit_code: int | None
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
        working_dir: str = ".",
        exit_code: int | None = None,
        stdout: str = "",
        stderr: str = "",
        replay: bool = False,
        is_told: bool = True,
    ) -> ExecutedCommand:
        """Note a command that was run; of what it said only previews are kept."""
        added = ExecutedCommand(
            id=self._new_id(ExecutedCommand),
            time_us=self._clock(),
            command=check_words("a command", command),
            working_dir=working_dir,
            exit_code=exit_code,
            stdout_preview=preview(stdout),
            stderr_preview=preview(stderr),
            replay=replay,
        )
        kept = self._of(ExecutedCommand)
        kept[added.id] = added
        for id in list(kept)[:-MAX_COMMANDS]:
            del kept[id]
        if is_told:
            self._changed()
        return added


def preview(text: str) -> str:
    """The beginning and the end of a long text, and text that can be saved whatever it was."""
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
        hypothesis: str | None = None,
        timeout_seconds: float = VERIFICATION_SECONDS,
        folder: str | Path = ".",
        environment: Mapping[str, str] | None = None,
        max_output: int = MAX_OUTPUT_BYTES,
    ) -> VerificationResult:
        """Run a command: exit code 0 is `passed`. A text goes to the shell, words are run as they are.

        A command that hangs is ended with its whole group when the time is up (`timed_out`); of one that floods its
        output the beginning and the end are kept. One that cannot be started is an `error`. None of them raises.

        Raises:
            InvalidInput: no command, or a time-out that makes no sense. Nothing was run.
        """
        words = ["/bin/sh", "-c", command] if isinstance(command, str) else [str(word) for word in command]
        line = command if isinstance(command, str) else shlex.join(words)
        check_words("a command", line)
        check_text("a plan", plan)
        if not math.isfinite(timeout_seconds) or not 0 < timeout_seconds <= MAX_TIMEOUT_SECONDS:
            raise InvalidInput(
                f"timeout_seconds must be above 0 and at most {MAX_TIMEOUT_SECONDS:g}, not {timeout_seconds!r}",
                code="invalid_option",
            )
        if max_output < 2:
            raise InvalidInput("max_output counts bytes: 2 or more", code="invalid_option")
        began_us = self._clock()
        ended, stdout, stderr = None, "", ""
        try:
            ended = child.run(
                ChildCommand(words=tuple(words), folder=Path(folder), env=environment),
                timeout_seconds=timeout_seconds,
                max_capture=max_output // 2,
                tail_bytes=max_output // 2,
                ends_group=True,
            )
            stdout, stderr = _text(ended.stdout), _text(ended.stderr)
        except (OSError, ValueError) as exc:
            stderr = str(exc)
        exit_code = None if ended is None else ended.exit_code
        # The result is told: one event, one checkpoint.
        self._commands.record(
            line, working_dir=str(folder), exit_code=exit_code, stdout=stdout, stderr=stderr, is_told=False
        )
        return self._put(
            VerificationResult(
                id=self._new_id(VerificationResult),
                plan=plan or line,
                command=line,
                executed_us=began_us,
                duration_ms=0 if ended is None else ended.duration_ms,
                status=_status(ended),
                exit_code=exit_code,
                output=stdout + stderr,
                is_cut=ended is not None and bool(ended.stdout.left_out or ended.stderr.left_out),
                hypothesis=hypothesis,
            ),
            AutoTrigger.VERIFICATION_COMPLETE,
        )

    def skip(self, plan: str, reason: str = "", *, hypothesis: str | None = None) -> VerificationResult:
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
                hypothesis=hypothesis,
            ),
            AutoTrigger.VERIFICATION_COMPLETE,
        )


def _text(captured: Captured) -> str:
    """The beginning and the end of an output, and how much is missing between them."""
    head, tail = (data.decode("utf-8", "replace") for data in (captured.head, captured.tail))
    between = f"\n[… {captured.left_out:,} bytes left out …]\n" if captured.left_out else ""
    return f"{head}{between}{tail}".replace("\0", "\ufffd")


def _status(ended: Finished | None) -> VerificationStatus:
    if ended is None:
        return VerificationStatus.ERROR
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
        if self._on_change is not None:
            self._on_change(AutoTrigger.CODE_MODIFIED, ())
        return state

    def snapshot(self) -> dict[str, Any] | None:
        state: dict[str, Any] | None = plain(self.state)
        return state

    def validate(self, data: Any) -> None:
        _code_state(data)

    def restore(self, data: Any) -> None:
        self.state = _code_state(data)


def _code_state(data: Any) -> CodeState | None:
    try:
        return msgspec.convert(data, CodeState | None)
    except msgspec.ValidationError as exc:
        raise invalid_entries(f"this is not a state of code: {exc}") from exc
