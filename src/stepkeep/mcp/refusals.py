"""Errors as a model can act on them: a stable code, what happened, whether to repeat, and what to do next."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

import msgspec
from mcp.types import CallToolResult, TextContent
from pydantic import ValidationError

from stepkeep.errors import (
    BackendUnavailable,
    Conflict,
    Corrupt,
    InvalidInput,
    NotFound,
    StepkeepError,
    Unsupported,
)

MAX_MESSAGE: Final = 2000

_NEXT_BY_CODE: Final = {
    "session_not_found": "Check the sessionId. checkpoint_save makes a session; stepkeep://sessions lists them.",
    "checkpoint_not_found": "Call checkpoint_list for the checkpoints there are, and pass one of their ids.",
    "path_not_found": "Call checkpoint_load without path, or with a path that the message names.",
    "invalid_path": "A path reads like context.messages[-1]; $ is the whole state.",
    "state_too_large": "Save less: leave out what can be fetched again.",
    "state_too_deep": "Flatten the state.",
    "checkpoints_disabled": "Tell the user: agent.checkpoints.enabled switches checkpoints off.",
    "confirmation_needed": "Ask the user. If they agree, call again with confirm set to true.",
    "confirmation_declined": "The user said no. Do not repeat it unless they ask for it.",
    "store_busy": "Another process holds the store. Wait a little, then call again.",
    "store_budget_exceeded": "Nothing was stored. Tell the user that the store has reached its limit.",
    "invalid_arguments": "Correct the arguments and call again.",
}
_NEXT_BY_KIND: Final = (
    (NotFound, "Call checkpoint_list to see what there is."),
    (Conflict, "Someone wrote first: call checkpoint_load, decide again, then repeat."),
    (Corrupt, "Do not repeat it. Tell the user to run `stepkeep doctor` and `stepkeep verify`."),
    (BackendUnavailable, "Nothing was stored. Tell the user that the store cannot be used."),
    (Unsupported, "Do not repeat it. Tell the user what is missing."),
    (InvalidInput, "Correct the input and call again."),
)


class ToolRefusal(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An error as it is answered."""

    code: str
    message: str
    retryable: bool
    next: str
    sessionId: str | None = None
    checkpointId: str | None = None
    path: str | None = None


def refusal_of(error: StepkeepError) -> ToolRefusal:
    return ToolRefusal(
        code=error.code,
        message=error.message[:MAX_MESSAGE],
        retryable=error.retryable,
        next=_next(error),
        sessionId=error.session,
        checkpointId=error.checkpoint,
        path=error.path,
    )


def _next(error: StepkeepError) -> str:
    if error.code in _NEXT_BY_CODE:
        return _NEXT_BY_CODE[error.code]
    if isinstance(error, BackendUnavailable) and error.retryable:
        return "Nothing was stored. Wait a little, then call again."
    return next((text for kind, text in _NEXT_BY_KIND if isinstance(error, kind)), "Tell the user.")


def wrong_arguments(error: ValidationError) -> ToolRefusal:
    """What is wrong with the arguments of a call, without repeating their values."""
    problems = [
        f"{'.'.join(str(step) for step in each['loc']) or 'arguments'}: {each['msg']}"
        for each in error.errors()
    ]
    return ToolRefusal(
        code="invalid_arguments",
        message="; ".join(problems)[:MAX_MESSAGE],
        retryable=False,
        next=_NEXT_BY_CODE["invalid_arguments"],
    )


def unknown_arguments(unknown: Iterable[str], known: Iterable[str]) -> ToolRefusal:
    """A call with arguments that the tool does not have: a mistyped one would be lost without a word."""
    return ToolRefusal(
        code="invalid_arguments",
        message=f"no such argument: {', '.join(unknown)}; there are {', '.join(known)}"[:MAX_MESSAGE],
        retryable=False,
        next=_NEXT_BY_CODE["invalid_arguments"],
    )


def refused(refusal: ToolRefusal) -> CallToolResult:
    """A tool's error, the same in text and as data."""
    error: dict[str, Any] = {"error": msgspec.to_builtins(refusal)}
    text = msgspec.json.encode(error).decode()
    return CallToolResult(
        content=[TextContent(type="text", text=text)], structured_content=error, is_error=True
    )
