"""Doing one step: fill in its values, run its process, keep what came of it."""

from __future__ import annotations

import signal
from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec

from stepkeep import typed
from stepkeep.codec import exact
from stepkeep.errors import Conflict, StepkeepError
from stepkeep.processes import child
from stepkeep.processes.child import Captured, ChildCommand, Finished, SupervisorPipe
from stepkeep.runs.run_options import Outcome, StepContext
from stepkeep.runs.workflow import python_call
from stepkeep.runs.workflow.definition import NOT_TRUE, StepKind, Workflow, WorkflowStep
from stepkeep.runs.workflow.expressions import (
    BadExpression,
    Ref,
    as_text,
    fill,
    fill_value,
    holds,
    parse_condition,
    parse_template,
    resolve,
)
from stepkeep.runs.workflow.inputs import Inputs, LoadBlob, StepScope, value_of_step
from stepkeep.runs.workflow.parse import PASSED_ON
from stepkeep.runs.workflow.python_call import Reply
from stepkeep.runs.workflow.quoting import PREFIX, shell_command
from stepkeep.secrets import Redactor
from stepkeep.storage.port import Blob
from stepkeep.text import shortened

PREVIEW_BYTES: Final = 8 * 1024
"""Longer output is kept as a blob; the state has its first and last half of this."""


class Kept(msgspec.Struct):
    """Collects the fields of one output, its blobs, and their contents by digest."""

    make_blob: Callable[[bytes], Blob]
    redactor: Redactor
    fields: dict[str, Any] = {}
    blobs: list[Blob] = []
    contents: dict[str, bytes] = {}

    def add(self, name: str, captured: Captured) -> None:
        """Keep a stream under its name: `NAME`, and for long ones `NAME_bytes`, `NAME_blob` and `NAME_is_cut`."""
        whole = self.redactor.data(captured.head, ends_inside=captured.is_cut)
        if len(whole) <= PREVIEW_BYTES and not captured.is_cut:
            self.fields[name] = _text(whole)
            return
        blob = self.make_blob(whole)
        self.blobs.append(blob)
        self.contents[blob.digest] = whole
        self.fields |= {
            name: self._preview(whole, captured),
            f"{name}_bytes": captured.size,
            f"{name}_blob": blob.digest,
        }
        if captured.is_cut:
            self.fields[f"{name}_is_cut"] = True

    def _preview(self, whole: bytes, captured: Captured) -> str:
        half = PREVIEW_BYTES // 2
        end = self.redactor.data(captured.tail, starts_inside=True) if captured.is_cut else whole
        head, tail = whole[:half], end[-half:]
        left_out = captured.size - len(head) - len(tail)
        return f"{_text(head)}\n… {left_out:,} bytes left out …\n{_text(tail)}"


def _text(data: bytes) -> str:
    return data.decode("utf-8", "replace")


def last_line(output: Mapping[str, Any]) -> str:
    """The last thing a step said, for a message: of stderr, else of stdout."""
    for name in ("stderr", "stdout"):
        lines = [line.strip() for line in str(output.get(name, "")).splitlines() if line.strip()]
        if lines:
            return shortened(lines[-1], 300)
    return ""


MAX_WORD_BYTES: Final = 128 * 1024 - 1
"""What the kernel takes as one argument or variable of a process, its end included."""

PROMPT: Final = "{prompt}"


class StepFailed(Exception):
    """Why a step failed; its message is what is stored and shown."""


class Handlers(msgspec.Struct, kw_only=True):
    """Does the steps of one workflow; called by the runner, from several threads at a time.

    What the steps that fail printed goes into `failures`, for the next state.
    """

    workflow: Workflow
    inputs: Inputs
    supervisor: SupervisorPipe
    redactor: Redactor
    load_blob: LoadBlob
    failures: dict[str, dict[str, Any]]

    def __call__(self, context: StepContext) -> Outcome:
        step = self.workflow.step(context.step.id)
        scope = StepScope(self.workflow, step, self.inputs, context, self.load_blob)
        self.failures.pop(step.id, None)
        try:
            if step.when is not None and not holds(parse_condition(step.when), scope):
                return Outcome(is_skipped=True, output=NOT_TRUE)
            return (self._ask if step.kind is StepKind.ASK else self._run)(step, context, scope)
        except (BadExpression, StepFailed) as exc:
            raise StepFailed(self.redactor.text(str(exc))) from None

    def _ask(self, step: WorkflowStep, context: StepContext, scope: StepScope) -> Outcome:
        """The answer of a person as output; a refusal counts as an exit code."""
        text = self.redactor.text(fill(parse_template(step.command), scope))
        output: dict[str, Any]
        try:
            answer = self.redactor.value(context.ask(text, timeout=step.timeout_seconds))
            output = {"exit_code": 0, "stdout": as_text(answer), "stderr": "", "value": answer}
        except Conflict as exc:
            if not step.allow_failure:
                raise
            output = {"exit_code": 1, "stdout": "", "stderr": exc.message, "value": None}
        self._capture(step, context, output, Kept(context.blob, self.redactor))
        return Outcome(output=output)

    def _run(self, step: WorkflowStep, context: StepContext, scope: StepScope) -> Outcome:
        command = self._command(step, context, scope)
        try:
            finished = child.run(
                command,
                supervisor=self.supervisor,
                timeout_seconds=step.timeout_seconds,
                cancelled=context.cancelled,
            )
        except OSError as exc:
            raise StepFailed(child.start_error(command, exc)) from exc
        kept = Kept(context.blob, self.redactor)
        kept.add("stdout", finished.stdout)
        kept.add("stderr", finished.stderr)
        output = {"exit_code": finished.exit_code, **kept.fields}
        try:
            _check_end(step, finished, output)
            if step.kind is StepKind.PYTHON:
                output["value"] = self.redactor.value(_returned(finished))
            self._capture(step, context, output, kept)
        except (BadExpression, StepFailed):
            # Blobs go with a completed step only, so a failed one has its previews.
            self.failures[step.id] = {
                key: value for key, value in output.items() if not key.endswith("_blob")
            }
            raise
        return Outcome(output=output, blobs=tuple(kept.blobs))

    def _capture(self, step: WorkflowStep, context: StepContext, output: dict[str, Any], kept: Kept) -> None:
        """Set the variables that the step is to set."""
        if not step.capture:
            return

        def scope(ref: Ref) -> Any:
            return value_of_step(step.kind, output, ref.path[2], kept.contents.__getitem__)

        captured: dict[str, Any] = {}
        for capture in step.capture:
            try:
                captured[capture.name] = self.redactor.value(
                    resolve(Ref(("steps", step.id, *capture.path)), scope)
                )
            except BadExpression as exc:
                raise BadExpression(f"capture {capture.name}: {exc}") from None
        context.context.update(captured)
        output["captured"] = captured

    # --- the command

    def _command(self, step: WorkflowStep, context: StepContext, scope: StepScope) -> ChildCommand:
        env = self._environment(step, context, scope)
        stdin = b"" if step.stdin is None else _encoded(fill(parse_template(step.stdin), scope))
        if step.kind is StepKind.SHELL:
            text, refs = shell_command(parse_template(step.command))
            words: tuple[str, ...] = ("/bin/sh", "-c", text)
            for number, ref in enumerate(refs, start=1):
                env[f"{PREFIX}{number}"] = _word(f"${{{ref}}}", as_text(resolve(ref, scope)))
        elif step.kind is StepKind.AGENT:
            words, stdin = self._agent_words(fill(parse_template(step.command), scope), stdin)
        else:
            words, stdin = python_call.words(step.command), _request(step, scope)
        return ChildCommand(
            words=words,
            env=env,
            folder=self.inputs.folder,
            stdin=stdin,
            has_reply=step.kind is StepKind.PYTHON,
        )

    def _agent_words(self, prompt: str, stdin: bytes) -> tuple[tuple[str, ...], bytes]:
        """The prompt in place of `{prompt}`; without such a word it goes to stdin, before what else goes there."""
        template = self.workflow.agent_command or self.inputs.agent_command
        if any(PROMPT in word for word in template):
            if prompt.startswith("-") and PROMPT in template:
                raise StepFailed("the prompt begins with '-' and would be taken for an option of the agent")
            return tuple(word.replace(PROMPT, _word("the prompt", prompt)) for word in template), stdin
        return template, _encoded(prompt) + (b"\n" + stdin if stdin else b"")

    def _environment(self, step: WorkflowStep, context: StepContext, scope: StepScope) -> dict[str, str]:
        names = (*PASSED_ON, *(setting.name for setting in (*self.workflow.env, *step.env)))
        values = {name: scope.environment(name) for name in names}
        env = {name: _word(f"env.{name}", value) for name, value in values.items() if value is not None}
        return env | {
            "STEPKEEP_WORKFLOW": self.workflow.name,
            "STEPKEEP_RUN": self.inputs.run,
            "STEPKEEP_STEP": step.id,
            "STEPKEEP_ATTEMPT": str(context.attempt),
            "STEPKEEP_IDEMPOTENCY_KEY": context.idempotency_key,
        }


def _request(step: WorkflowStep, scope: StepScope) -> bytes:
    try:
        return python_call.request(_filled(step.arguments or {}, scope))
    except StepkeepError as exc:
        raise StepFailed(f"with: {exc.message}") from exc


def _filled(value: Any, scope: StepScope) -> Any:
    if isinstance(value, dict):
        return {key: _filled(item, scope) for key, item in value.items()}
    if isinstance(value, list):
        return [_filled(item, scope) for item in value]
    return fill_value(parse_template(value), scope) if isinstance(value, str) else value


def _encoded(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


def _word(what: str, text: str) -> str:
    """A text that a process can be given as argument or variable."""
    if "\0" in text:
        raise StepFailed(f"{what} has a NUL character, which no process can be given")
    size = len(_encoded(text))
    if size > MAX_WORD_BYTES:
        raise StepFailed(
            f"{what} has {size:,} bytes, and a process takes {MAX_WORD_BYTES:,}: use stdin, or a file"
        )
    return text


# --- how it ended ----------------------------------------------------------------------------------------------


def _check_end(step: WorkflowStep, finished: Finished, output: Mapping[str, Any]) -> None:
    """Raise `StepFailed` unless the process ended as it should."""
    if finished.is_timed_out:
        raise StepFailed(_told(f"took longer than {step.timeout_seconds:g} s and was killed", output))
    if finished.is_cancelled:
        raise StepFailed("was interrupted")
    if finished.signal_name is not None:
        raise StepFailed(_told(f"was killed by {finished.signal_name}", output))
    if finished.exit_code == 0 or step.allow_failure:
        return
    reply = _reply(finished) if step.kind is StepKind.PYTHON else None
    if reply is not None and reply.error is not None:
        raise StepFailed(reply.error)
    raise StepFailed(_told(f"ended with exit code {_code(finished.exit_code)}", output))


def _code(number: int) -> str:
    """The exit code; a shell tells of the signal that killed its command by adding 128."""
    try:
        return f"{number} ({signal.Signals(number - 128).name})" if number > 128 else str(number)
    except ValueError:
        return str(number)


def _told(text: str, output: Mapping[str, Any]) -> str:
    line = last_line(output)
    return f"{text}: {line}" if line else text


def _reply(finished: Finished) -> Reply | None:
    try:
        return typed.from_msgpack(finished.reply.head, Reply)
    except msgspec.DecodeError:
        return None


def _returned(finished: Finished) -> Any:
    """What the function of a python step returned."""
    if finished.reply.is_cut:
        most = child.MAX_CAPTURE
        raise StepFailed(f"returned {finished.reply.size:,} bytes, and {most:,} are possible: write a file")
    reply = _reply(finished)
    if reply is None:
        raise StepFailed("ended before its function returned")
    return exact.decode(reply.encoding, reply.data)
