"""Errors as a model can act on them: a stable code, what happened, whether to repeat, and what to do next."""

from __future__ import annotations

from typing import Any, Final

import msgspec
from mcp.types import CallToolResult, TextContent

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


def refused(error: StepkeepError) -> CallToolResult:
    """A tool's error, the same in text and as data."""
    fields = {
        "code": error.code,
        "message": error.message[:MAX_MESSAGE],
        "retryable": error.retryable,
        "next": _next(error),
        "sessionId": error.session,
        "checkpointId": error.checkpoint,
        "path": error.path,
    }
    answer: dict[str, Any] = {"error": {name: value for name, value in fields.items() if value is not None}}
    text = msgspec.json.encode(answer).decode()
    return CallToolResult(
        content=[TextContent(type="text", text=text)], structured_content=answer, is_error=True
    )


def refusal_text(error: StepkeepError) -> str:
    """The same in one line, where an answer has no fields."""
    return f"{error.code}: {error.message[:MAX_MESSAGE]} {_next(error)}"


def _next(error: StepkeepError) -> str:
    if error.code in _NEXT_BY_CODE:
        return _NEXT_BY_CODE[error.code]
    if isinstance(error, BackendUnavailable) and error.retryable:
        return "Nothing was stored. Wait a little, then call again."
    return next((text for kind, text in _NEXT_BY_KIND if isinstance(error, kind)), "Tell the user.")
