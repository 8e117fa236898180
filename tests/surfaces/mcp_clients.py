"""Servers as clients start them, and the official client connected to them."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, TypeVar

import httpx2
from mcp import Client, StdioServerParameters
from mcp.client.streamable_http import streamable_http_client
from mcp.types import CallToolResult

from tests import interpreter

TOKEN = "a-token-for-tests"
T = TypeVar("T")


def environment(file: Path, **more: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("STEPKEEP_")}
    path = os.pathsep.join(filter(None, sys.path))
    return {**kept, "STEPKEEP_STORE": f"sqlite:{file}", "PYTHONPATH": path, **more}


def stdio_server(file: Path, *options: str) -> StdioServerParameters:
    """How a client starts a server of its own."""
    return StdioServerParameters(
        command=sys.executable,
        args=["-m", "stepkeep", "mcp", *options],
        env=environment(file),
        cwd=str(file.parent),
    )


class HttpServer:
    """A server process that listens on a free port."""

    def __init__(self, file: Path, *options: str) -> None:
        self.process = interpreter.start(
            ["-m", "stepkeep", "mcp", "--http", "127.0.0.1:0", *options],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            cwd=file.parent,
            env=environment(file, STEPKEEP_MCP_TOKEN=TOKEN),
        )
        assert self.process.stderr is not None
        self.url = self.process.stderr.readline().split()[-1]

    def stop(self) -> None:
        self.process.terminate()
        self.process.communicate(timeout=30)


@contextmanager
def http_server(file: Path, *options: str) -> Iterator[HttpServer]:
    server = HttpServer(file, *options)
    try:
        yield server
    finally:
        server.stop()


@asynccontextmanager
async def http_client(url: str, **options: Any) -> AsyncIterator[Client]:
    """The official client over HTTP, with the token."""
    headers = {"Authorization": f"Bearer {TOKEN}"}
    async with (
        httpx2.AsyncClient(headers=headers, timeout=60) as transport,
        Client(streamable_http_client(url, http_client=transport), **options) as client,
    ):
        yield client


def with_client(server: Any, work: Callable[[Client], Awaitable[T]], **options: Any) -> T:
    """Do something with a client that is connected to a server."""

    async def run() -> T:
        async with Client(server, **options) as client:
            return await work(client)

    return asyncio.run(run())


async def answered(client: Client, tool: str, **arguments: Any) -> dict[str, Any]:
    """The data of an answer that is no error."""
    result = await client.call_tool(tool, arguments)
    assert isinstance(result, CallToolResult)
    assert not result.is_error, result.content
    assert result.structured_content is not None
    return result.structured_content


async def refused(client: Client, tool: str, **arguments: Any) -> dict[str, Any]:
    """The error of a call that is refused."""
    result = await client.call_tool(tool, arguments)
    assert isinstance(result, CallToolResult)
    assert result.is_error, result.structured_content
    assert result.structured_content is not None
    error: dict[str, Any] = result.structured_content["error"]
    assert error["code"]
    assert error["next"]
    return error
