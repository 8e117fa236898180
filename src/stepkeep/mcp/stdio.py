"""Stdin and stdout as a transport on which a request that cannot be read is answered.

The transport of the `mcp` package hands a line that it cannot read on as an error, and the server drops it: whoever
sent it waits for ever. JSON that is nested about 200 levels deep is such a line. Here it is answered with an error.
"""

from __future__ import annotations

import re
from typing import Any, Final

import anyio
import msgspec
from mcp.server.mcpserver import MCPServer
from mcp.server.stdio import stdio_server
from mcp.shared.message import SessionMessage
from mcp.types import ErrorData, JSONRPCError
from pydantic import ValidationError

INVALID_REQUEST: Final = -32600


_TOKEN: Final = re.compile(r'"(?:[^"\\]|\\.)*"|[\[\]{}]|[^\[\]{}"]+')


class _Envelope(msgspec.Struct):
    """What has to be known of a request to answer it."""

    id: str | int
    method: str


async def serve(server: MCPServer[Any]) -> None:
    """Serve until the client closes stdin."""
    # No other way to run a server on streams of one's own.
    inner = server._lowlevel_server
    async with stdio_server() as (incoming, outgoing), anyio.create_task_group() as tasks:
        readable, requests = anyio.create_memory_object_stream[SessionMessage | Exception](0)

        async def forward() -> None:
            async with readable:
                async for item in incoming:
                    refusal = refusal_of(item) if isinstance(item, Exception) else None
                    if refusal is None:
                        await readable.send(item)
                    else:
                        await outgoing.send(SessionMessage(refusal))

        tasks.start_soon(forward)
        await inner.run(requests, outgoing, inner.create_initialization_options())
        tasks.cancel_scope.cancel()


def refusal_of(error: Exception) -> JSONRPCError | None:
    """The answer to a line that could not be read; None when it was no request."""
    line = error.errors()[0].get("input") if isinstance(error, ValidationError) else None
    if not isinstance(line, str):
        return None
    try:
        request = msgspec.json.decode(_outline(line), type=_Envelope)
    except msgspec.DecodeError:
        return None
    return JSONRPCError(
        jsonrpc="2.0",
        id=request.id,
        error=ErrorData(
            code=INVALID_REQUEST,
            message="the request cannot be read, most likely because it is nested too deep: flatten the state, or"
            " save its deepest part as a text",
        ),
    )


def _outline(line: str) -> str:
    """The outermost object of a line, with null for whatever is nested in it, so that no depth is too much."""
    depth, kept = 0, list[str]()
    for token in _TOKEN.findall(line):
        if token in "[{":
            depth += 1
            kept.append(token if depth == 1 else "null" if depth == 2 else "")
        elif token in "]}":
            kept.append(token if depth == 1 else "")
            depth -= 1
        elif depth == 1:
            kept.append(token)
    return "".join(kept)
