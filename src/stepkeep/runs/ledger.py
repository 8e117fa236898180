"""What a script has done so far: its finished steps and with which arguments they were called; pure.

The outputs are the state of a checkpoint, this record is its details. Arguments are kept as digests of their
exact encoding: enough to see that one changed, too little to leak it.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import msgspec

from stepkeep.codec import exact
from stepkeep.codec.integrity import digest
from stepkeep.errors import SCHEMA_INVALID, Conflict, Corrupt, InvalidInput
from stepkeep.model import from_us
from stepkeep.runs.plan import SCRIPT

KEY: Final = "key"
_PLACE: Final = "#"


class FinishedStep(msgspec.Struct, frozen=True, kw_only=True):
    """One finished step: its place in the run, what it was called with, and when it was done."""

    ordinal: int
    arguments: dict[str, str]
    completed_at: str
    duration_ms: int


class ScriptError(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """What ended a run. `step` is None when no step is to blame."""

    message: str
    timestamp: str
    step: str | None = None
    step_index: int | None = None


class ScriptRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The details of a script's checkpoint. `run` counts the fresh starts in one session."""

    run: int = 1
    steps: dict[str, FinishedStep] = {}
    last_error: ScriptError | None = msgspec.field(default=None, name="lastError")


class Started(msgspec.Struct, frozen=True, kw_only=True):
    """A step that is to be called now."""

    name: str
    ordinal: int
    arguments: dict[str, str]
    started_us: int


class Ledger(msgspec.Struct, frozen=True, kw_only=True):
    """The finished steps of a run and what they returned: the record and the state of its checkpoints."""

    record: ScriptRecord = ScriptRecord()
    outputs: dict[str, Any] = {}

    def with_step(self, started: Started, output: object, *, now_us: int) -> Ledger:
        """This ledger after one more step finished."""
        finished = FinishedStep(
            ordinal=started.ordinal,
            arguments=started.arguments,
            completed_at=timestamp(now_us),
            duration_ms=max(0, now_us - started.started_us) // 1000,
        )
        others = {name: step for name, step in self.record.steps.items() if name != started.name}
        steps = {**others, started.name: finished}
        return Ledger(
            record=msgspec.structs.replace(self.record, steps=steps),
            outputs={**self.outputs, started.name: output},
        )

    @property
    def last_step(self) -> str:
        """The step that finished last, in words."""
        name = next(reversed(self.record.steps), None)
        return "no step" if name is None else f"step {self.record.steps[name].ordinal}: {name}"


def details_of(record: ScriptRecord) -> dict[str, Any]:
    return {SCRIPT: msgspec.to_builtins(record)}


def record_from(details: object, *, session: str) -> ScriptRecord:
    """The record in the details of a checkpoint.

    Raises:
        Conflict: the checkpoint was not saved by a script (code `not_a_script`).
        Corrupt: it is, and makes no sense.
    """
    if not isinstance(details, Mapping) or SCRIPT not in details:
        raise Conflict(
            f"the newest checkpoint of {session!r} was not saved by a script: name the run otherwise, or "
            "begin it afresh with resume=False",
            code="not_a_script",
            retryable=False,
            session=session,
        )
    try:
        return msgspec.convert(details[SCRIPT], ScriptRecord)
    except msgspec.ValidationError as exc:
        raise Corrupt(f"the steps of script {session!r}: {exc}", code=SCHEMA_INVALID) from exc


def timestamp(time_us: int) -> str:
    return from_us(time_us).isoformat(timespec="microseconds").replace("+00:00", "Z")


# --- arguments -------------------------------------------------------------------------------------------------


def arguments_of(step: str, args: Sequence[Any], kwargs: Mapping[str, Any], key: object) -> dict[str, str]:
    """A digest for every argument, by `#place` or name; with a `key`, that alone is compared.

    Raises:
        InvalidInput: one has no exact encoding; `.path` names the place in it.
    """
    if key is not None:
        return {KEY: _digest(step, KEY, key)}
    placed = {f"{_PLACE}{place}": value for place, value in enumerate(args, 1)}
    return {name: _digest(step, name, value) for name, value in {**placed, **kwargs}.items()}


def _digest(step: str, name: str, value: object) -> str:
    try:
        encoding, content = exact.encode(value)
    except InvalidInput as exc:
        path = f"{name}{_below(exc.path)}"
        raise InvalidInput(
            f"step {step!r}: argument {path} cannot be compared with that of a later run ({exc.message}): "
            "pass plain data, or key= to say what the step depends on",
            code=exc.code,
            path=path,
        ) from exc
    return digest(encoding.encode() + b"\0" + content)


def _below(path: str | None) -> str:
    if path is None or path == "$":
        return ""
    return path[1:] if path.startswith("$") else f".{path}"


def check_same(step: str, call: Callable[..., Any], was: FinishedStep, now: Mapping[str, str]) -> None:
    """Refuse a finished step that is called with other arguments than it was finished with.

    Raises:
        Conflict: code `step_changed`, naming the arguments that differ.
    """
    changed = [name for name in {**was.arguments, **now} if was.arguments.get(name) != now.get(name)]
    if not changed:
        return
    names = _parameter_names(call)
    listed = ", ".join(_shown(name, names, was.arguments, now) for name in changed)
    raise Conflict(
        f"step {step!r} was finished with other arguments: {listed}. Give the step another name, run it again "
        "with force=True, or begin afresh with resume=False",
        code="step_changed",
        retryable=False,
    )


def _parameter_names(call: Callable[..., Any]) -> list[str]:
    try:
        return list(inspect.signature(call).parameters)
    except (TypeError, ValueError):  # some built-ins tell nothing
        return []


def _shown(name: str, names: Sequence[str], was: Mapping[str, str], now: Mapping[str, str]) -> str:
    """`argument 1 (url) changed`, `argument depth is new`, `the key changed`."""
    change = "changed" if name in was and name in now else "is new" if name in now else "is gone"
    if name == KEY:
        return f"the key {change}"
    if not name.startswith(_PLACE):
        return f"argument {name} {change}"
    place = int(name.removeprefix(_PLACE))
    label = f" ({names[place - 1]})" if place <= len(names) else ""
    return f"argument {place}{label} {change}"
