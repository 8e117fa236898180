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
questions        what steps asked a person, and the answers; left out when nothing was asked
```

`history.changes` shows what changed between two such states as variables and steps.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from heapq import nlargest
from typing import Any, Final

import msgspec

from stepkeep import typed
from stepkeep.codec import delta
from stepkeep.errors import InvalidInput
from stepkeep.logs import Log
from stepkeep.runs.plan import (
    ASKED_FOR,
    LastError,
    PlanStep,
    Progress,
    StepProgress,
    StepResult,
    StepStatus,
    iso,
    progress_of,
    question_state,
    questions_in,
    with_status,
)
from stepkeep.runs.workflow.definition import Workflow
from stepkeep.runs.workflow.parse import parse_workflow
from stepkeep.secrets import Redactor
from stepkeep.text import size

log = Log("stepkeep")

VERSION: Final = 1

NAMED: Final = 5
"""How many of the largest values are named where a state is large."""


class StateLimits(msgspec.Struct, frozen=True, kw_only=True):
    """In bytes: as stored, compressed, and as they are. The keys of the configuration have the same names."""

    warn_stored_bytes: int = 10_000_000
    max_stored_bytes: int = 100_000_000
    max_raw_bytes: int = 500_000_000


class WorkflowOrigin(msgspec.Struct, frozen=True, kw_only=True):
    """Where a stored workflow came from."""

    name: str
    file: str
    folder: str
    text: str


class WorkflowSerializer:
    """Stores progress as the state above. One that is too large is refused; one that becomes large is told once.

    `failures` has what failed steps printed.
    """

    def __init__(
        self, workflow: Workflow, *, folder: str, redactor: Redactor, limits: StateLimits | None = None
    ) -> None:
        self._origin = WorkflowOrigin(
            name=workflow.name, file=workflow.source, folder=folder, text=redactor.text(workflow.text)
        )
        self._redactor = redactor
        self._limits = StateLimits() if limits is None else limits
        self._has_warned = False
        self.plan = plan_of(workflow, redactor)
        self.failures: dict[str, dict[str, Any]] = {}

    def dump(self, progress: Progress) -> dict[str, Any]:
        numbered = list(enumerate(progress.steps))
        by_id = {entry.step.id: (index, entry) for index, entry in numbered}
        error = progress.last_error
        state = {
            "version": VERSION,
            "workflow": msgspec.structs.asdict(self._origin),
            "current_step": progress.current_step_index,
            "total_steps": len(progress.steps),
            "variables": self._redactor.value(progress.context),
            "completed_steps": [_completed(*by_id[result.step_id], result) for result in progress.results],
            "skipped_steps": [
                {"id": entry.step.id, "index": index, "reason": entry.error or ""}
                for index, entry in numbered
                if entry.status is StepStatus.SKIPPED
            ],
            "failed_steps": [
                self._failed(index, entry) for index, entry in numbered if entry.status is StepStatus.FAILED
            ],
            "error": None
            if error is None
            else {
                "step": progress.steps[error.step_index].step.id,
                "index": error.step_index,
                "message": error.message,
                "time": iso(error.timestamp),
            },
        }
        if progress.questions:
            asked = [question_state(question) for question in progress.questions]
            state[ASKED_FOR] = self._redactor.value(asked)
        self._check(state)
        return state

    def _failed(self, index: int, entry: StepProgress) -> dict[str, Any]:
        return {
            **_described(index, entry.step),
            "error": entry.error or "",
            "attempts": entry.attempts,
            "output": dict(self.failures.get(entry.step.id, {})),
        }

    @staticmethod
    def load(state: Any) -> Progress:
        """The progress a stored state tells of, or `InvalidInput` when it is not the state of a workflow."""
        origin = origin_of(state)
        plan = parse_workflow(origin.text, source=origin.file).plan()
        try:
            return _progress(plan, state)
        except (KeyError, TypeError, ValueError, AttributeError) as exc:
            raise InvalidInput(
                f"this state of a workflow is not whole: {exc!r}", code="not_resumable"
            ) from exc

    def _check(self, state: Mapping[str, Any]) -> None:
        """Refuse a state that is too large (`workflow_too_large`), naming the key that allows more."""
        limits, content = self._limits, _encoded(state)
        self._check_size("", len(content), "max_raw_bytes", state)
        if len(content) <= limits.warn_stored_bytes:
            return
        stored = len(delta.encode_keyframe(content).data)
        self._check_size("stored, ", stored, "max_stored_bytes", state)
        if stored > limits.warn_stored_bytes and not self._has_warned:
            self._has_warned = True
            log.warning(
                "the state of this workflow takes %s stored; largest: %s", size(stored), _largest(state)
            )

    def _check_size(self, how: str, size_bytes: int, key: str, state: Mapping[str, Any]) -> None:
        most = getattr(self._limits, key)
        if size_bytes > most:
            raise InvalidInput(
                f"the state of this workflow would take {size(size_bytes)} ({how}workflow.{key} allows {size(most)});"
                f" largest: {_largest(state)}. Keep large data in files, or raise workflow.{key}",
                code="workflow_too_large",
            )


def _largest(state: Mapping[str, Any]) -> str:
    """The variables and outputs that take most, with their sizes."""
    parts = {f"vars.{name}": value for name, value in state["variables"].items()}
    parts |= {f"steps.{step['id']}.output": step["output"] for step in state["completed_steps"]}
    found = nlargest(NAMED, ((len(_encoded(value)), name) for name, value in parts.items()))
    return ", ".join(f"{name} {size(size_bytes)}" for size_bytes, name in found)


def _encoded(value: object) -> bytes:
    """About as the state is stored; exactness is checked when it is saved."""
    return msgspec.json.encode(value, enc_hook=repr)


def plan_of(workflow: Workflow, redactor: Redactor) -> tuple[PlanStep, ...]:
    """The plan as it is stored: without secrets, so that it can be compared with a stored one."""
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


def _completed(index: int, entry: StepProgress, result: StepResult) -> dict[str, Any]:
    output = dict(result.output)
    fields = {
        **_described(index, entry.step),
        "captured": output.pop("captured", {}),
        "output": output,
        "duration_ms": result.duration_ms,
        "completed_at": iso(result.completed_at),
    }
    if result.attempts > 1:
        fields["attempts"] = result.attempts
    return fields | ({"blobs": list(result.blobs)} if result.blobs else {})


# --- reading it ------------------------------------------------------------------------------------------------


def origin_of(state: Any) -> WorkflowOrigin:
    """Where the workflow of a stored state came from, or `InvalidInput` when it is not the state of a workflow."""
    if not isinstance(state, Mapping) or not isinstance(state.get("workflow"), Mapping):
        raise InvalidInput(
            "this is not the state of a workflow, so the program that saved it has to go on with it; "
            "`stepkeep show SESSION --raw` prints it",
            code="not_resumable",
        )
    if state.get("version") != VERSION:
        raise InvalidInput(
            f"this state has version {state.get('version')!r}, and this release reads {VERSION}",
            code="not_resumable",
        )
    try:
        return typed.convert(state["workflow"], WorkflowOrigin)
    except msgspec.ValidationError as exc:
        raise InvalidInput(f"the workflow in this state is not whole: {exc}", code="not_resumable") from exc


def _progress(plan: Iterable[PlanStep], state: Mapping[str, Any]) -> Progress:
    known: dict[str, tuple[StepStatus, dict[str, Any]]] = {}
    for entry in state["failed_steps"]:
        fields = {"error": entry["error"], "attempts": entry["attempts"]}
        known[entry["id"]] = StepStatus.FAILED, fields
    for entry in state["skipped_steps"]:
        known[entry["id"]] = StepStatus.SKIPPED, {"error": entry["reason"]}
    for entry in state["completed_steps"]:
        known[entry["id"]] = StepStatus.COMPLETED, {"result": _loaded_result(entry)}
    error = state["error"]
    steps = [(step, *known.get(step.id, (step.status, {}))) for step in plan]
    return progress_of(
        (StepProgress(step=with_status(step, status), **fields) for step, status, fields in steps),
        results=[known[entry["id"]][1]["result"] for entry in state["completed_steps"]],
        context=dict(state["variables"]),
        questions=questions_in(state),
        last_error=None
        if error is None
        else LastError(step_index=error["index"], message=error["message"], timestamp=_moment(error["time"])),
    )


def _loaded_result(entry: Mapping[str, Any]) -> StepResult:
    captured = entry["captured"]
    return StepResult(
        step_id=entry["id"],
        output={**entry["output"], **({"captured": captured} if captured else {})},
        completed_at=_moment(entry["completed_at"]),
        duration_ms=entry["duration_ms"],
        blobs=tuple(entry.get("blobs", ())),
        attempts=entry.get("attempts", 1),
    )


def _moment(text: str | None) -> datetime | None:
    return None if text is None else datetime.fromisoformat(text)
