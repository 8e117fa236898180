"""The state of a workflow: what a checkpoint of its session holds.

```
version          1
workflow         name, file, folder, text: so that a run can be resumed without the file
current_step     how many steps are done before the first that is not; total_steps
variables        by name; secret ones are hidden
completed_steps  in the order they ended: id, index, name, kind, command, output, captured, duration_ms, completed_at
skipped_steps    id, index, reason
failed_steps     id, index, name, kind, command, error, and what of its output is known
error            the last failure: step, index, message, time
```

`history.rendering` shows what changed between two such states as variables and steps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from typing import Any, Final

import msgspec

from stepkeep.errors import InvalidInput
from stepkeep.executor.plan import LastError, PlanStep, StepResult, StepStatus, iso
from stepkeep.executor.progress import Progress, StepProgress
from stepkeep.executor.workflow.document import Workflow
from stepkeep.executor.workflow.reading import parse_workflow
from stepkeep.executor.workflow.redaction import Redactor

VERSION: Final = 1


class Origin(msgspec.Struct, frozen=True, kw_only=True):
    """Where a stored workflow came from."""

    name: str
    file: str
    folder: str
    text: str


class WorkflowShape:
    """Stores progress as the state above.

    `failures` has what failed steps printed. `check` looks at each state before it is saved, and may refuse it.
    """

    def __init__(
        self,
        workflow: Workflow,
        *,
        folder: str,
        redactor: Redactor,
        failures: Mapping[str, Mapping[str, Any]],
        check: Callable[[Mapping[str, Any]], None],
    ) -> None:
        self._workflow = workflow
        self._folder = folder
        self._redactor = redactor
        self._failures = failures
        self._check = check
        self._text = redactor.text(workflow.text)

    def plan(self) -> tuple[PlanStep, ...]:
        """The plan as it is stored: without secrets, so that it can be compared with a stored one."""
        return plan_of(self._workflow, self._redactor)

    def dump(self, progress: Progress) -> dict[str, Any]:
        numbered = list(enumerate(progress.steps))
        completed = [(index, entry) for index, entry in numbered if entry.result is not None]
        state = {
            "version": VERSION,
            "workflow": {
                "name": self._workflow.name,
                "file": self._workflow.source,
                "folder": self._folder,
                "text": self._text,
            },
            "current_step": progress.current_step_index,
            "total_steps": len(progress.steps),
            "variables": self._redactor.value(progress.context),
            "completed_steps": [_completed(index, entry) for index, entry in sorted(completed, key=_ended)],
            "skipped_steps": [
                {"id": entry.step.id, "index": index, "reason": entry.error or ""}
                for index, entry in numbered
                if entry.status is StepStatus.SKIPPED
            ],
            "failed_steps": [
                self._failed(index, entry) for index, entry in numbered if entry.status is StepStatus.FAILED
            ],
            "error": _error(progress),
        }
        self._check(state)
        return state

    def _failed(self, index: int, entry: StepProgress) -> dict[str, Any]:
        return {
            **_described(index, entry.step),
            "error": entry.error or "",
            "attempts": entry.attempts,
            "output": dict(self._failures.get(entry.step.id, {})),
        }

    def load(self, state: Any) -> Progress:
        return load(state)


def plan_of(workflow: Workflow, redactor: Redactor) -> tuple[PlanStep, ...]:
    return tuple(
        msgspec.structs.replace(
            step,
            description=redactor.text(step.description),
            parameters=redactor.value(step.parameters),
        )
        for step in workflow.plan()
    )


def _described(index: int, step: PlanStep) -> dict[str, Any]:
    return {
        "id": step.id,
        "index": index,
        "name": step.description,
        "kind": step.action,
        "command": step.parameters["command"],
    }


def _ended(numbered: tuple[int, StepProgress]) -> tuple[float, int]:
    index, entry = numbered
    when = None if entry.result is None else entry.result.completed_at
    return (0.0 if when is None else when.timestamp()), index


def _completed(index: int, entry: StepProgress) -> dict[str, Any]:
    assert entry.result is not None
    output = dict(entry.result.output)
    fields = {
        **_described(index, entry.step),
        "captured": output.pop("captured", {}),
        "output": output,
        "duration_ms": entry.result.duration_ms,
        "completed_at": iso(entry.result.completed_at),
    }
    return fields | ({"blobs": list(entry.result.blobs)} if entry.result.blobs else {})


def _error(progress: Progress) -> dict[str, Any] | None:
    error = progress.last_error
    if error is None:
        return None
    return {
        "step": progress.plan[error.step_index].id,
        "index": error.step_index,
        "message": error.message,
        "time": iso(error.timestamp),
    }


# --- reading it ------------------------------------------------------------------------------------------------


def origin_of(state: Any) -> Origin:
    """Where the workflow of a stored state came from, or `InvalidInput` when it is no such state."""
    if not isinstance(state, Mapping) or not isinstance(state.get("workflow"), Mapping):
        raise InvalidInput("this is no state of a workflow", code="not_resumable")
    if state.get("version") != VERSION:
        raise InvalidInput(
            f"this state has version {state.get('version')!r}, and this release reads {VERSION}",
            code="not_resumable",
        )
    try:
        return msgspec.convert(state["workflow"], Origin)
    except msgspec.ValidationError as exc:
        raise InvalidInput(f"the workflow in this state is not whole: {exc}", code="not_resumable") from exc


def load(state: Any) -> Progress:
    """The progress a stored state tells of.

    Raises:
        InvalidInput: it is no state of a workflow.
    """
    origin = origin_of(state)
    plan = parse_workflow(origin.text, source=origin.file).plan()
    try:
        return _progress(plan, state)
    except (KeyError, TypeError, ValueError, AttributeError) as exc:
        raise InvalidInput(f"this state of a workflow is not whole: {exc!r}", code="not_resumable") from exc


def _progress(plan: Iterable[PlanStep], state: Mapping[str, Any]) -> Progress:
    known = {entry["id"]: _loaded_result(entry) for entry in state["completed_steps"]}
    skipped = {entry["id"]: entry["reason"] for entry in state["skipped_steps"]}
    failed = {entry["id"]: entry for entry in state["failed_steps"]}
    return Progress(
        steps=tuple(_loaded_step(step, known, skipped, failed) for step in plan),
        context=dict(state["variables"]),
        last_error=_loaded_error(state["error"]),
    )


def _loaded_step(
    step: PlanStep,
    known: Mapping[str, StepResult],
    skipped: Mapping[str, str],
    failed: Mapping[str, Mapping[str, Any]],
) -> StepProgress:
    if step.id in known:
        return StepProgress(step=_with(step, StepStatus.COMPLETED), result=known[step.id])
    if step.id in skipped:
        return StepProgress(step=_with(step, StepStatus.SKIPPED), error=skipped[step.id])
    if step.id in failed:
        entry = failed[step.id]
        return StepProgress(
            step=_with(step, StepStatus.FAILED), error=entry["error"], attempts=entry["attempts"]
        )
    return StepProgress(step=step)


def _with(step: PlanStep, status: StepStatus) -> PlanStep:
    return msgspec.structs.replace(step, status=status)


def _loaded_result(entry: Mapping[str, Any]) -> StepResult:
    captured = entry["captured"]
    return StepResult(
        step_id=entry["id"],
        output={**entry["output"], **({"captured": captured} if captured else {})},
        completed_at=_moment(entry["completed_at"]),
        duration_ms=entry["duration_ms"],
        blobs=tuple(entry.get("blobs", ())),
    )


def _loaded_error(error: Mapping[str, Any] | None) -> LastError | None:
    if error is None:
        return None
    return LastError(step_index=error["index"], message=error["message"], timestamp=_moment(error["time"]))


def _moment(text: str | None) -> datetime | None:
    return None if text is None else datetime.fromisoformat(text)
