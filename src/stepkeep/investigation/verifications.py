"""Verifications: commands that show whether something is so."""

from __future__ import annotations

import math
import shlex
from collections.abc import Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

from stepkeep.errors import InvalidInput
from stepkeep.investigation import processes
from stepkeep.investigation.commands import CommandHistory
from stepkeep.investigation.events import Announcer, EventKind
from stepkeep.investigation.records import Clock, Entry, NewId, Records, check_words, new_id
from stepkeep.model import check_text

TIMEOUT_SECONDS: Final = 300.0
MAX_TIMEOUT_SECONDS: Final = 86_400.0
MAX_OUTPUT: Final = 16 * 1024


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
        max_output: int = MAX_OUTPUT,
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
            ended = processes.run(
                words,
                folder=Path(folder),
                environment=environment,
                timeout_seconds=timeout_seconds,
                max_output=max_output,
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
        ended: processes.Ended | None,
        problem: str,
    ) -> VerificationResult:
        exit_code = None if ended is None else ended.exit_code
        stdout, stderr = (ended.stdout, ended.stderr) if ended is not None else ("", problem)
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
                is_cut=ended is not None and ended.is_cut,
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


def _status(ended: processes.Ended | None) -> VerificationStatus:
    if ended is None:
        return VerificationStatus.ERROR
    if ended.is_timed_out:
        return VerificationStatus.TIMED_OUT
    return VerificationStatus.PASSED if ended.exit_code == 0 else VerificationStatus.FAILED
