"""The tool that restores, which asks the person first.

A client that can put a question to its user gets one; any other has to say `confirm`. The annotations below name what
is made here, so they are values and not texts: no `from __future__ import annotations` in this module.
"""

from collections.abc import Callable
from typing import Annotated, Any

from mcp.server.mcpserver import AcceptedElicitation, Context, Elicit, ElicitationResult, Resolve
from pydantic import BaseModel, Field

from stepkeep.errors import Conflict, InvalidInput
from stepkeep.mcp.answers import RestoreAnswer, restore_answer
from stepkeep.mcp.tools import OpenedStore, SessionId

FIRST_WITHOUT_REQUESTS = "2026-07-28"
"""From this version on a question is part of an answer; before, it is a request to the client."""


class Consent(BaseModel):
    """What the person is asked for."""

    restore: bool = Field(description="Go on from this checkpoint")


RestoreId = Annotated[
    str,
    Field(description="The checkpoint to go on from: an ID, latest~2, step-5, #12, or latest@before to undo"),
]
BranchName = Annotated[str, Field(description="Name of the branch to go on with (optional)")]
Confirm = Annotated[
    bool,
    Field(strict=True, description="True only if the user agreed; not needed where the client asks them"),
]


def restore_tool(opened: OpenedStore) -> Callable[..., Any]:
    """The function of the tool `checkpoint_restore` on a store."""

    def ask(
        sessionId: str, checkpointId: str, confirm: bool, ctx: Context[Any, Any]
    ) -> Consent | Elicit[Consent] | None:
        session = opened.get().get(sessionId)
        header = session.header(checkpointId)
        if confirm:
            return Consent(restore=True)
        if not _can_ask(ctx):
            return None
        name = f" ({header.message[:200]})" if header.message else ""
        return Elicit(
            f"Let session {session.key[:200]!r} go on from checkpoint #{header.seq}{name}? Nothing is deleted: what"
            f" came after stays on branch {session.info.branch!r}, and latest@before leads back.",
            Consent,
        )

    def checkpoint_restore(
        sessionId: SessionId,
        checkpointId: RestoreId,
        consent: Annotated[ElicitationResult[Consent], Resolve(ask)],
        branch: BranchName = "",
        confirm: Confirm = False,  # noqa: ARG001  (the question above asks for it by name)
    ) -> RestoreAnswer:
        """Let a session go on from an old checkpoint, on a branch. Nothing is deleted, and it can be undone.

        The user is asked first, where the client can; elsewhere ask them yourself and set confirm.
        """
        _check(consent, sessionId)
        session = opened.get().get(sessionId)
        done = session.restore(checkpointId, branch=branch or None, compare=True)
        return restore_answer(done.document())

    return checkpoint_restore


def _can_ask(ctx: Context[Any, Any]) -> bool:
    capabilities = ctx.client_capabilities
    asked = None if capabilities is None else capabilities.elicitation
    if asked is None or (asked.form is None and asked.url is not None):
        return False
    version = ctx.protocol_version
    return (version is not None and version >= FIRST_WITHOUT_REQUESTS) or ctx.session.can_send_request


def _check(consent: Any, session: str) -> None:
    if isinstance(consent, AcceptedElicitation) and consent.data is None:
        raise InvalidInput(
            "restoring lets the session go on from an older checkpoint, and nobody has agreed to it yet",
            code="confirmation_needed",
            session=session,
        )
    if not isinstance(consent, AcceptedElicitation) or not consent.data.restore:
        raise Conflict(
            "the user did not agree: nothing was restored",
            code="confirmation_declined",
            retryable=False,
            session=session,
        )
