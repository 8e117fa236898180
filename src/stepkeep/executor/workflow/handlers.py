"""Doing one step: fill in its values, run its process, keep what came of it."""

from __future__ import annotations

import signal
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from stepkeep.errors import StepkeepError
from stepkeep.executor.steps import Outcome, StepContext
from stepkeep.executor.workflow import processes, python_call
from stepkeep.executor.workflow.checking import PASSED_ON
from stepkeep.executor.workflow.document import Kind, Step, Workflow
from stepkeep.executor.workflow.expressions import (
    BadExpression,
    as_text,
    fill,
    fill_value,
    holds,
    parse_template,
    resolve,
)
from stepkeep.executor.workflow.leash import Leash
from stepkeep.executor.workflow.outputs import STREAMS, Kept, last_line
from stepkeep.executor.workflow.processes import Command, Finished
from stepkeep.executor.workflow.python_call import Reply
from stepkeep.executor.workflow.quoting import PREFIX, shell_command
from stepkeep.executor.workflow.redaction import Redactor
from stepkeep.executor.workflow.scope import Given, LoadBlob, StepScope, StepValues

MAX_WORD_BYTES: Final = 128 * 1024 - 1
"""What the kernel takes as one argument or variable of a process, its end included."""

PROMPT: Final = "{prompt}"
NOT_TRUE: Final = "its condition is not true"


class StepFailed(Exception):
    """Why a step failed; its message is what is stored and shown."""


class Handlers:
    """Does the steps of one workflow; called by the runner, from several threads at a time.

    `failures` has what the steps that failed printed, for the next state.
    """

    def __init__(
        self, workflow: Workflow, given: Given, *, leash: Leash, redactor: Redactor, load_blob: LoadBlob
    ) -> None:
        self._workflow = workflow
        self._given = given
        self._leash = leash
        self._redactor = redactor
        self._load_blob = load_blob
        self.failures: dict[str, dict[str, Any]] = {}

    def __call__(self, context: StepContext) -> Outcome:
        step = self._workflow.step(context.step.id)
        scope = StepScope(self._workflow, step, self._given, context, self._load_blob)
        self.failures.pop(step.id, None)
        try:
            if step.when is not None and not holds(step.when, scope):
                return Outcome(is_skipped=True, output=NOT_TRUE)
            return self._run(step, context, scope)
        except (BadExpression, StepFailed) as exc:
            raise StepFailed(self._redactor.text(str(exc))) from None

    def _run(self, step: Step, context: StepContext, scope: StepScope) -> Outcome:
        command = self._command(step, context, scope)
        try:
            finished = processes.run(
                command, leash=self._leash, timeout_seconds=step.timeout_seconds, cancelled=context.cancelled
            )
        except OSError as exc:
            raise StepFailed(processes.describe(command, exc)) from exc
        kept = Kept(context.blob, self._redactor)
        for name, captured in zip(STREAMS, (finished.stdout, finished.stderr), strict=True):
            kept.add(name, captured)
        output = {"exit_code": finished.exit_code, **kept.fields}
        try:
            _check_end(step, finished, output)
            if step.kind is Kind.PYTHON:
                output["value"] = self._redactor.value(_returned(finished))
            self._capture(step, context, output, kept)
        except (BadExpression, StepFailed):
            # Blobs go with a completed step only, so a failed one has its previews.
            self.failures[step.id] = {
                key: value for key, value in output.items() if not key.endswith("_blob")
            }
            raise
        return Outcome(output=output, blobs=tuple(kept.blobs))

    def _capture(self, step: Step, context: StepContext, output: dict[str, Any], kept: Kept) -> None:
        """Set the variables that the step is to set."""
        if not step.capture:
            return
        values = StepValues(step.kind, output, lambda digest: kept.contents[digest])
        captured: dict[str, Any] = {}
        for capture in step.capture:
            try:
                captured[capture.name] = self._redactor.value(values.at(capture.path))
            except BadExpression as exc:
                raise BadExpression(f"capture {capture.name}: {exc}") from None
        context.context.update(captured)
        output["captured"] = captured

    # --- the command

    def _command(self, step: Step, context: StepContext, scope: StepScope) -> Command:
        env = self._environment(step, context, scope)
        stdin = b"" if step.stdin is None else _encoded(fill(step.stdin, scope))
        if step.kind is Kind.SHELL:
            text, refs = shell_command(step.template)
            words: tuple[str, ...] = ("/bin/sh", "-c", text)
            for number, ref in enumerate(refs, start=1):
                env[f"{PREFIX}{number}"] = _word(f"${{{ref}}}", as_text(resolve(ref, scope)))
        elif step.kind is Kind.AGENT:
            words, stdin = self._agent_words(fill(step.template, scope), stdin)
        else:
            words, stdin = python_call.words(step.command), _request(step, scope)
        return Command(
            words=words,
            env=env,
            folder=self._given.folder,
            stdin=stdin,
            has_reply=step.kind is Kind.PYTHON,
        )

    def _agent_words(self, prompt: str, stdin: bytes) -> tuple[tuple[str, ...], bytes]:
        """The prompt in place of `{prompt}`; without such a word it goes to stdin, before what else goes there."""
        template = self._workflow.agent_command or self._given.agent_command
        if any(PROMPT in word for word in template):
            if prompt.startswith("-") and PROMPT in template:
                raise StepFailed("the prompt begins with '-' and would be taken for an option of the agent")
            return tuple(word.replace(PROMPT, _word("the prompt", prompt)) for word in template), stdin
        return template, _encoded(prompt) + (b"\n" + stdin if stdin else b"")

    def _environment(self, step: Step, context: StepContext, scope: StepScope) -> dict[str, str]:
        names = (*PASSED_ON, *(setting.name for setting in (*self._workflow.env, *step.env)))
        values = {name: scope.environment(name) for name in names}
        env = {name: _word(f"env.{name}", value) for name, value in values.items() if value is not None}
        return env | {
            "STEPKEEP_WORKFLOW": self._workflow.name,
            "STEPKEEP_RUN": self._given.run,
            "STEPKEEP_STEP": step.id,
            "STEPKEEP_ATTEMPT": str(context.attempt),
        }


def _request(step: Step, scope: StepScope) -> bytes:
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


def _check_end(step: Step, finished: Finished, output: Mapping[str, Any]) -> None:
    """Raise `StepFailed` unless the process ended as it should."""
    if finished.is_timed_out:
        raise StepFailed(_told(f"took longer than {step.timeout_seconds:g} s and was killed", output))
    if finished.is_cancelled:
        raise StepFailed("was interrupted")
    if finished.signal_name is not None:
        raise StepFailed(_told(f"was killed by {finished.signal_name}", output))
    if finished.exit_code == 0 or step.allow_failure:
        return
    reply = _reply(finished) if step.kind is Kind.PYTHON else None
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
        return msgspec.msgpack.decode(finished.reply.head, type=Reply)
    except msgspec.DecodeError:
        return None


def _returned(finished: Finished) -> Any:
    """What the function of a python step returned."""
    if finished.reply.is_cut:
        most = processes.MAX_CAPTURE
        raise StepFailed(f"returned {finished.reply.size:,} bytes, and {most:,} are possible: write a file")
    reply = _reply(finished)
    if reply is None:
        raise StepFailed("ended before its function returned")
    return python_call.value_of(reply)
