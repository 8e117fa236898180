"""Bisection: the first checkpoint at whose files a command fails, found in scratch copies by halves."""

from __future__ import annotations

import shlex
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final, Literal, TypeAlias

import msgspec

from stepkeep.engine import Engine, reader
from stepkeep.errors import Corrupt, InvalidInput, NotFound, StepkeepError
from stepkeep.history.documents import CheckpointInfo, describe_one
from stepkeep.model import Header, SessionInfo
from stepkeep.processes import child
from stepkeep.processes.child import Captured, ChildCommand, Finished
from stepkeep.storage.port import HeaderQuery, HeaderRow
from stepkeep.workspace.captured_files import content_of, has_files, is_safety, load_manifest
from stepkeep.workspace.file_diff import ChangedFile, changed_file, compare_files
from stepkeep.workspace.manifest import UNSEEN, FileEntry, Manifest, PathFilter
from stepkeep.workspace.scan import opened_root
from stepkeep.workspace.staging import write_new

SKIP: Final = 125
"""The exit code by which a command says that these files cannot be tested."""

CANNOT_RUN: Final = (126, 127)
"""What a shell answers when there is no such command: no checkpoint is to blame for that."""

MAX_OUTPUT: Final = 16_000

Outcome: TypeAlias = Literal["passed", "failed", "timed_out", "skipped"]


class BisectStep(msgspec.Struct, frozen=True, kw_only=True):
    """One run of the command at the files of a checkpoint. `output` is bounded; `reason` says why one was skipped."""

    checkpoint: CheckpointInfo
    outcome: Outcome
    exit_code: int | None = None
    duration_ms: int = 0
    output: str = ""
    reason: str = ""


class Bisection(msgspec.Struct, frozen=True, kw_only=True):
    """What a bisection found. `first_failed` is None where the command passes at the newest files; `last_passed` where
    it fails from the first ones on. `changes` lead from the one to the other, `output` is what the command printed at
    the first to fail. `unsure` were skipped between the two: it may have been one of them. `total` counts the
    checkpoints in question, `steps` are the runs in their order."""

    session: str
    command: str
    first_failed: CheckpointInfo | None
    last_passed: CheckpointInfo | None
    unsure: tuple[CheckpointInfo, ...]
    changes: tuple[ChangedFile, ...]
    output: str
    total: int
    steps: tuple[BisectStep, ...]


OnStep: TypeAlias = Callable[[BisectStep], object]


def bisect(
    engine: Engine,
    session: SessionInfo,
    command: Sequence[str],
    *,
    good: Header | None,
    bad: Header,
    folder: str = "",
    environment: Mapping[str, str],
    timeout_seconds: float | None = None,
    on_step: OnStep | None = None,
) -> Bisection:
    """Find the first checkpoint on the way to `bad`, from `good` on, at whose files a command fails.

    The files of a checkpoint are written to a new scratch folder, the command is run there, and the folder is removed;
    store and project are only read. Exit code 0 passes, 125 skips, any other fails, as does one that takes too long.

    Raises:
        NotFound: no checkpoint on that way has files (`files_not_captured`).
        InvalidInput: the command cannot be run (`command_not_found`).
    """
    query = HeaderQuery(max_seq=bad.seq, min_seq=None if good is None else good.seq)
    line = reader.line_of(engine.backend, session, bad.branch, matching=query)
    headers = [header for row in line if (header := _with_files(row)) is not None]
    if not headers:
        raise NotFound(
            f"session {session.key!r} has no checkpoint with files there: save with `workspace`",
            code="files_not_captured",
            session=session.key,
        )
    trial = _Trial(engine, session, command, folder, environment, timeout_seconds, on_step)
    return _Search(trial, headers[::-1]).result()


def _with_files(row: HeaderRow) -> Header | None:
    """The checkpoint, if it can be tried: one that is damaged cannot."""
    try:
        header = reader.verified(row)
    except StepkeepError:
        return None
    return header if has_files(header) and not is_safety(header) else None


class _Trial:
    """Runs the command at the files of checkpoints; the same files are not tried twice."""

    def __init__(
        self,
        engine: Engine,
        session: SessionInfo,
        command: Sequence[str],
        folder: str,
        environment: Mapping[str, str],
        timeout_seconds: float | None,
        on_step: OnStep | None,
    ) -> None:
        if not command:
            raise InvalidInput("which command? Name one to run at each checkpoint", code="invalid_option")
        self.engine = engine
        self.session = session
        self.line = shlex.join(command)
        self._words = tuple(command)
        self._folder = folder
        self._environment = environment
        self._timeout_seconds = timeout_seconds
        self._on_step = on_step
        self._known: dict[tuple[FileEntry, ...], BisectStep] = {}
        self.steps: list[BisectStep] = []

    def at(self, header: Header) -> BisectStep:
        """What the command does at the files of a checkpoint."""
        info = describe_one(self.engine, header)
        try:
            manifest = load_manifest(self.engine, header)
            tree = tuple(msgspec.structs.replace(each, seen=UNSEEN) for each in manifest.entries)
            if (known := self._known.get(tree)) is not None:
                return known
            step = self._known[tree] = self._step(info, manifest)
        except Corrupt as exc:
            step = BisectStep(checkpoint=info, outcome="skipped", reason=str(exc))
        self.steps.append(step)
        if self._on_step is not None:
            self._on_step(step)
        return step

    def _step(self, info: CheckpointInfo, manifest: Manifest) -> BisectStep:
        with tempfile.TemporaryDirectory(prefix="stepkeep-bisect-", ignore_cleanup_errors=True) as scratch:
            with opened_root(scratch) as root:
                for entry in manifest.entries:
                    write_new(root, entry, content_of(self.engine, entry))
            ended = self._run(info, Path(scratch), manifest.root)
        code = ended.exit_code
        outcome: Outcome = "passed" if code == 0 else "skipped" if code == SKIP else "failed"
        return BisectStep(
            checkpoint=info,
            outcome="timed_out" if ended.is_timed_out else outcome,
            exit_code=code,
            duration_ms=ended.duration_ms,
            output=_text(ended.stdout) + _text(ended.stderr),
            reason="the command says so" if outcome == "skipped" else "",
        )

    def _run(self, info: CheckpointInfo, scratch: Path, root: str) -> Finished:
        here = scratch / self._folder
        more = {
            "STEPKEEP_SESSION": self.session.key,
            "STEPKEEP_CHECKPOINT": info.id,
            "STEPKEEP_WORKSPACE": root,
        }
        command = ChildCommand(
            words=self._words,
            folder=here if here.is_dir() else scratch,
            env={**self._environment, **more},
        )
        try:
            ended = child.run(
                command,
                timeout_seconds=self._timeout_seconds,
                max_capture=MAX_OUTPUT // 4,
                tail_bytes=MAX_OUTPUT // 4,
                ends_group=True,
            )
        except (OSError, ValueError) as exc:
            raise InvalidInput(f"{self.line} cannot be run: {exc}", code="command_not_found") from exc
        if ended.exit_code in CANNOT_RUN:
            raise InvalidInput(
                f"{self.line} cannot be run: exit code {ended.exit_code} means that there is no such command. "
                f"{_text(ended.stderr).strip()}",
                code="command_not_found",
            )
        return ended


def _text(captured: Captured) -> str:
    head, tail = (data.decode("utf-8", "replace") for data in (captured.head, captured.tail))
    return f"{head}\n[… {captured.left_out:,} bytes left out …]\n{tail}" if captured.left_out else head + tail


class _Search:
    """Halves what lies between the newest files that pass and the oldest ones after them that fail."""

    def __init__(self, trial: _Trial, headers: list[Header]) -> None:
        self._trial = trial
        self._headers = headers  # oldest first
        self._steps: dict[int, BisectStep] = {}

    def result(self) -> Bisection:
        return self._found(*self.bounds())

    def bounds(self) -> tuple[int | None, int | None]:
        """The last that passes and the first that fails, with nothing between them but what was skipped."""
        failed = self._first_tested(range(len(self._headers) - 1, -1, -1))
        if failed is None or self._passes(failed):
            return failed, None
        passed = self._first_tested(range(failed))
        if passed is None or not self._passes(passed):
            return None, failed if passed is None else passed
        while between := [at for at in range(passed + 1, failed) if at not in self._steps]:
            middle = between[len(between) // 2]
            if self._is_tested(middle):
                passed, failed = (middle, failed) if self._passes(middle) else (passed, middle)
        return passed, failed

    def _first_tested(self, positions: Sequence[int]) -> int | None:
        return next((at for at in positions if self._is_tested(at)), None)

    def _is_tested(self, at: int) -> bool:
        return self._step(at).outcome != "skipped"

    def _passes(self, at: int) -> bool:
        return self._step(at).outcome == "passed"

    def _step(self, at: int) -> BisectStep:
        if at not in self._steps:
            self._steps[at] = self._trial.at(self._headers[at])
        return self._steps[at]

    def _found(self, passed: int | None, failed: int | None) -> Bisection:
        trial, headers = self._trial, self._headers
        first = 0 if passed is None else passed + 1
        unsure = range(first, first if failed is None else failed)  # all others between the two were tested
        return Bisection(
            session=trial.session.key,
            command=trial.line,
            first_failed=self._info(failed),
            last_passed=self._info(passed),
            unsure=tuple(describe_one(trial.engine, headers[at]) for at in unsure),
            changes=() if passed is None or failed is None else self._changes(passed, failed),
            output="" if failed is None else self._step(failed).output,
            total=len(headers),
            steps=tuple(trial.steps),
        )

    def _info(self, at: int | None) -> CheckpointInfo | None:
        return None if at is None else describe_one(self._trial.engine, self._headers[at])

    def _changes(self, passed: int, failed: int) -> tuple[ChangedFile, ...]:
        older, newer = (load_manifest(self._trial.engine, self._headers[at]) for at in (passed, failed))
        return tuple(changed_file(each) for each in compare_files(older, newer, PathFilter())[0])
