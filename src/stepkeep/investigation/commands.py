"""Commands: the history of what was run where, and verifications, which show whether something is so.

Of what a command printed the beginning and the end are kept.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

from stepkeep.errors import InvalidInput
from stepkeep.investigation.entries import (
    Announcer,
    Clock,
    Entry,
    EventKind,
    NewId,
    Records,
    check_words,
    new_id,
)
from stepkeep.model import check_text
from stepkeep.processes import child
from stepkeep.processes.child import Captured, ChildCommand, Finished

MAX_COMMANDS: Final = 200
MAX_PREVIEW: Final = 2000
_CUT: Final = "\n[…]\n"


class ExecutedCommand(Entry, frozen=True, kw_only=True):
    """`replay` marks what has to be run again to be where it was left, such as starting a server."""

    time_us: int
    command: str
    working_dir: str
    exit_code: int | None
    stdout_preview: str = ""
    stderr_preview: str = ""
    replay: bool = False


class CommandHistory(Announcer):
    """The newest commands, oldest first."""

    def __init__(self, clock: Clock, *, make_id: NewId = new_id) -> None:
        super().__init__()
        self._clock = clock
        self._commands = Records(ExecutedCommand, "command", "x", make_id)

    def all(self) -> tuple[ExecutedCommand, ...]:
        return tuple(self._commands)

    def record(
        self,
        command: str,
        *,
        working_dir: str = ".",
        exit_code: int | None = None,
        stdout: str = "",
        stderr: str = "",
        replay: bool = False,
        is_announced: bool = True,
    ) -> ExecutedCommand:
        """Note a command that was run; of what it said only previews are kept."""
        added = ExecutedCommand(
            id=self._commands.new_id(),
            time_us=self._clock(),
            command=check_words("a command", command),
            working_dir=working_dir,
            exit_code=exit_code,
            stdout_preview=preview(stdout),
            stderr_preview=preview(stderr),
            replay=replay,
        )
        self._commands.put(added)
        self._commands.keep_newest(MAX_COMMANDS)
        if is_announced:
            self.announce(EventKind.COMMAND_RECORDED, added.id)
        return added

    def snapshot(self) -> dict[str, Any]:
        return self._commands.snapshot()

    def validate(self, data: Any) -> None:
        self._commands.read(data)

    def restore(self, data: Any) -> None:
        self._commands.restore(data)


def preview(text: str, most: int = MAX_PREVIEW) -> str:
    """The beginning and the end of a long text, and text that can be saved whatever it was."""
    text = text.replace("\0", "\ufffd").encode("utf-8", "replace").decode()
    if len(text) <= most:
        return text
    half = (most - len(_CUT)) // 2
    return text[:half] + _CUT + text[-half:]


TIMEOUT_SECONDS: Final = 300.0
MAX_TIMEOUT_SECONDS: Final = 86_400.0
MAX_OUTPUT_BYTES: Final = 16 * 1024


class VerificationStatus(StrEnum):
    PASSED = "passed"
    FAILED = "failed"
    TIMED_OUT = "timed_out"
    ERROR = "error"
    SKIPPED = "skipped"


class VerificationResult(Entry, frozen=True, kw_only=True):
    """What a verification showed. `plan` says what was to be shown; `output` is bounded."""

    plan: str
    command: str
    executed_us: int
    duration_ms: int
    status: VerificationStatus
    exit_code: int | None = None
    output: str = ""
    is_cut: bool = False
    hypothesis: str | None = None


class VerificationRunner(Announcer):
    """Runs verifications and keeps their results. Each command is also noted in the history of commands."""

    def __init__(self, clock: Clock, commands: CommandHistory, *, make_id: NewId = new_id) -> None:
        super().__init__()
        self._clock = clock
        self._commands = commands
        self._results = Records(VerificationResult, "verification", "v", make_id)

    def all(self) -> tuple[VerificationResult, ...]:
        return tuple(self._results)

    def run(
        self,
        command: str | Sequence[str],
        *,
        plan: str = "",
        hypothesis: str | None = None,
        timeout_seconds: float = TIMEOUT_SECONDS,
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
        try:
            ended = child.run(
                ChildCommand(words=tuple(words), folder=Path(folder), env=environment),
                timeout_seconds=timeout_seconds,
                max_capture=max_output // 2,
                tail_bytes=max_output // 2,
                ends_group=True,
            )
        except (OSError, ValueError) as exc:
            return self._done(plan or line, line, began_us, hypothesis, str(folder), None, str(exc))
        return self._done(plan or line, line, began_us, hypothesis, str(folder), ended, "")

    def skip(self, plan: str, reason: str = "", *, hypothesis: str | None = None) -> VerificationResult:
        """Note that a verification was not made, and why."""
        return self._keep(
            VerificationResult(
                id=self._results.new_id(),
                plan=check_words("a plan", plan),
                command="",
                executed_us=self._clock(),
                duration_ms=0,
                status=VerificationStatus.SKIPPED,
                output=check_text("a reason", reason),
                hypothesis=hypothesis,
            )
        )

    def _done(
        self,
        plan: str,
        line: str,
        began_us: int,
        hypothesis: str | None,
        folder: str,
        ended: Finished | None,
        problem: str,
    ) -> VerificationResult:
        exit_code = None if ended is None else ended.exit_code
        stdout, stderr = ("", problem) if ended is None else (_text(ended.stdout), _text(ended.stderr))
        # The result is announced: one event, one checkpoint.
        self._commands.record(
            line,
            working_dir=folder,
            exit_code=exit_code,
            stdout=stdout,
            stderr=stderr,
            is_announced=False,
        )
        return self._keep(
            VerificationResult(
                id=self._results.new_id(),
                plan=plan,
                command=line,
                executed_us=began_us,
                duration_ms=0 if ended is None else ended.duration_ms,
                status=_status(ended),
                exit_code=exit_code,
                output="".join((stdout, stderr)),
                is_cut=ended is not None and bool(ended.stdout.left_out or ended.stderr.left_out),
                hypothesis=hypothesis,
            )
        )

    def _keep(self, result: VerificationResult) -> VerificationResult:
        self._results.put(result)
        self.announce(EventKind.VERIFICATION_DONE, result.id, result.status)
        return result

    # --- as a part

    def snapshot(self) -> dict[str, Any]:
        return self._results.snapshot()

    def validate(self, data: Any) -> None:
        self._results.read(data)

    def restore(self, data: Any) -> None:
        self._results.restore(data)


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
