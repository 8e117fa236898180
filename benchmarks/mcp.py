"""What the MCP server costs: a save of 100 KB through stdio, beside the same save in Python, in one process each; and
its start, until `initialize` is answered, beside a server of the same library that has nothing."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any, Final

import stepkeep
from benchmarks.cold import environment
from benchmarks.parts import Part, Row, Table
from benchmarks.startup import cpu_seconds
from benchmarks.timing import percentile, say

STATE_BYTES: Final = 100_000
TARGET: Final = 5.0
"""A call is JSON written and read twice, beside two processes that take turns; the save itself is a small part."""

START_TARGET: Final = 1.3
_EMPTY: Final = "from mcp.server.mcpserver import MCPServer; MCPServer('empty').run()"
_INITIALIZE: Final = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {
        "protocolVersion": "2025-06-18",
        "capabilities": {},
        "clientInfo": {"name": "benchmark", "version": "1"},
    },
}


def run(directory: Path, *, quick: bool, with_peers: bool) -> Part:  # noqa: ARG001
    """Median and 95th percentile of a save by each way; the states change as a conversation does."""
    say("MCP")
    samples = 10 if quick else 200
    python = _python(directory / "python.db", samples)
    stdio = asyncio.run(_stdio(directory / "stdio.db", samples))
    ours, empty = _starts(directory, 2 if quick else 9)
    lines = [
        [name, f"{median(taken) * 1e3:.2f}", f"{percentile(taken, 95) * 1e3:.2f}"]
        for name, taken in (("AgentStore.save", python), ("checkpoint_save through stdio", stdio))
    ]
    return Part(
        tables=[
            Table("a save of 100 KB, profile agent", ["by", "p50 ms", "p95 ms"], lines),
            Table(
                "start until initialize is answered (milliseconds of CPU)",
                ["server", "time"],
                [["stepkeep mcp", f"{ours * 1e3:.0f}"], ["an empty one", f"{empty * 1e3:.0f}"]],
            ),
        ],
        rows=[
            Row(
                "checkpoint_save of 100 KB through stdio ÷ the Python call",
                median(stdio) / median(python),
                TARGET,
            ),
            Row("stepkeep mcp: start to initialize ÷ an empty server, CPU", ours / empty, START_TARGET),
        ],
    )


def _starts(directory: Path, samples: int) -> tuple[float, float]:
    """The CPU seconds until `initialize` is answered: of our server, and of an empty one; in turns, medians."""
    servers = (("-m", "stepkeep", "mcp", "--store", f"sqlite:{directory / 'start.db'}"), ("-c", _EMPTY))
    taken: tuple[list[float], ...] = ([], [])
    for at in range(samples + 1):
        for server, seconds in zip(servers, taken, strict=True):
            used = cpu_seconds(server, environment(), directory, stdout=subprocess.PIPE, talk=_initialize)
            if at:  # the first one compiles what was not compiled yet
                seconds.append(used)
    return median(taken[0]), median(taken[1])


def _initialize(server: subprocess.Popen[bytes]) -> None:
    assert server.stdin is not None
    assert server.stdout is not None
    server.stdin.write(json.dumps(_INITIALIZE).encode() + b"\n")
    server.stdin.flush()
    if b'"result"' not in (answer := server.stdout.readline()):
        raise RuntimeError(f"not initialized: {answer!r}")


def _states(count: int) -> list[dict[str, Any]]:
    """States of about 100 KB, each with one message more than the one before."""
    messages = [
        {"role": "user", "content": f"message {number} " + "x" * 940} for number in range(100 + count)
    ]
    return [{"currentStepIndex": n, "messages": messages[n : n + STATE_BYTES // 1000]} for n in range(count)]


def _python(file: Path, samples: int) -> list[float]:
    taken = []
    with stepkeep.open(f"sqlite:{file}") as store:
        for state in _states(samples):
            start = perf_counter()
            store.agents.save("s", None, state)
            taken.append(perf_counter() - start)
    return taken


async def _stdio(file: Path, samples: int) -> list[float]:
    from mcp import Client, StdioServerParameters

    server = StdioServerParameters(
        command=sys.executable, args=["-m", "stepkeep", "mcp", "--store", f"sqlite:{file}"], env=environment()
    )
    taken = []
    async with Client(server) as client:
        for state in _states(samples):
            start = perf_counter()
            result = await client.call_tool("checkpoint_save", {"sessionId": "s", "state": state})
            taken.append(perf_counter() - start)
            if result.is_error:
                raise RuntimeError(f"the save was refused: {result.content}")
    return taken
