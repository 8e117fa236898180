"""Resources: the sessions there are, and checkpoints with their states as JSON documents."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import Any, Final, TypeVar

import anyio
import anyio.to_thread
import msgspec
from mcp.server.mcpserver import MCPServer, ResourceSecurity
from mcp.server.mcpserver.exceptions import ResourceError, ResourceNotFoundError
from mcp.types import Completion, ResourceTemplateReference

from stepkeep import operations
from stepkeep.errors import InvalidInput, NotFound, StepkeepError
from stepkeep.mcp.opened import OpenedStore
from stepkeep.mcp.refusals import refusal_of
from stepkeep.operations import Shown

log = logging.getLogger("stepkeep")

T = TypeVar("T")

JSON: Final = "application/json"
SESSIONS: Final = "stepkeep://sessions"
LATEST: Final = "stepkeep://session/{sessionId}/latest"
CHECKPOINT: Final = "stepkeep://session/{sessionId}/checkpoint/{checkpointId}"

MAX_SESSIONS: Final = 100
MAX_BYTES: Final = 16_000_000

# A session is any text and never a path: nothing here is looked up by it but rows.
_ANY_TEXT: Final = ResourceSecurity(reject_path_traversal=False, reject_absolute_paths=False)


def add_resources(server: MCPServer[Any], opened: OpenedStore) -> None:
    """Offer the resources of a store."""

    @server.resource(
        SESSIONS,
        name="sessions",
        title="Sessions",
        description="The sessions of the store, most recently used first.",
        mime_type=JSON,
    )
    def sessions() -> str:
        return _answered(lambda: _json(operations.list_sessions(opened.get(), limit=MAX_SESSIONS)))

    @server.resource(
        LATEST,
        name="latest",
        title="Latest checkpoint",
        description="The latest checkpoint of a session with its state.",
        mime_type=JSON,
        security=_ANY_TEXT,
    )
    def latest(sessionId: str) -> str:
        return _answered(lambda: _document(operations.show(opened.get(), sessionId)))

    @server.resource(
        CHECKPOINT,
        name="checkpoint",
        title="Checkpoint",
        description="A checkpoint of a session with its state.",
        mime_type=JSON,
        security=_ANY_TEXT,
    )
    def checkpoint(sessionId: str, checkpointId: str) -> str:
        return _answered(lambda: _document(operations.show(opened.get(), sessionId, checkpointId)))

    @server.completion()  # type: ignore[no-untyped-call, untyped-decorator]
    async def complete(ref: Any, argument: Any, context: Any) -> Completion | None:
        if not isinstance(ref, ResourceTemplateReference):
            return None
        work = partial(_completions, opened, argument.name, argument.value, context)
        try:
            return Completion(values=await anyio.to_thread.run_sync(work))
        except StepkeepError:
            return None  # completing never complains


def _completions(opened: OpenedStore, name: str, prefix: str, context: Any) -> list[str]:
    if name == "sessionId":
        return list(operations.complete_sessions(opened.get(), prefix))
    known = getattr(context, "arguments", None) or {}
    return list(operations.complete_refs(opened.get(), known.get("sessionId"), prefix))[:100]


def _answered(work: Callable[[], str]) -> str:
    """The document, or an error that says what to do."""
    try:
        return work()
    except StepkeepError as exc:
        refusal = refusal_of(exc)
        text = f"{refusal.code}: {refusal.message} {refusal.next}"
        raise (ResourceNotFoundError if isinstance(exc, NotFound) else ResourceError)(text) from exc


def _document(shown: Shown) -> str:
    if shown.checkpoint.size_bytes > MAX_BYTES:
        raise InvalidInput(
            f"the state takes {shown.checkpoint.size_bytes} bytes: get parts of it by checkpoint_load and a path",
            code="state_too_large",
            checkpoint=shown.checkpoint.id,
        )
    return _json(shown)


def _json(value: object) -> str:
    return msgspec.json.encode(value).decode()
