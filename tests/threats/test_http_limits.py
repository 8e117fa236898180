"""What a stranger's connections can do to our HTTP servers: be closed, and leave room for those of others."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest

import stepkeep
from tests.surfaces.mcp_clients import TOKEN, environment

LIMITED = """
import sys
from stepkeep.access import Guard
from stepkeep.guarded_server import GuardedApp, Limits, listen, serve

async def app(scope, receive, send):
    if scope["type"] != "http":
        return
    while (message := await receive())["type"] == "http.request" and message.get("more_body"):
        pass
    body = message["type"].encode()
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"%d" % len(body))]})
    await send({"type": "http.response.body", "body": body})

limits = Limits(connections=16, head_seconds=float(sys.argv[1]), body_seconds=float(sys.argv[2]))
listening = listen("127.0.0.1", 0)
port = listening.getsockname()[1]
print(port, flush=True)
serve(GuardedApp(app, Guard(token="t", port=port), limits), listening, limits=limits)
"""


@contextlib.contextmanager
def server(head_seconds: float = 600, body_seconds: float = 600) -> Iterator[int]:
    """The port of a server behind the guard; what it says to stderr would be an error."""
    command = [sys.executable, "-c", LIMITED, str(head_seconds), str(body_seconds)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        yield int(process.stdout.readline())
    finally:
        process.terminate()
        _, said = process.communicate(timeout=60)
        assert said == ""


def connect(port: int, sent: bytes = b"") -> socket.socket:
    connection = socket.create_connection(("127.0.0.1", port), timeout=60)
    connection.sendall(sent)
    return connection


def head(method: str, port: int, *more: str) -> bytes:
    lines = [f"{method} / HTTP/1.1", f"Host: 127.0.0.1:{port}", "Authorization: Bearer t", *more]
    return "\r\n".join([*lines, "", ""]).encode()


def received(connection: socket.socket) -> bytes:
    """All that comes until the other side closes."""
    found = b""
    with contextlib.suppress(ConnectionResetError):
        while part := connection.recv(65536):
            found += part
    return found


def test_idle_connections_leave_room_for_others() -> None:
    """Of more connections than are allowed the oldest idle one goes, so that who asks something is answered."""
    with server() as port, contextlib.ExitStack() as opened:
        idle = [opened.enter_context(connect(port)) for _ in range(100)]
        asking = opened.enter_context(connect(port, head("GET", port, "Connection: close")))
        assert b"200" in received(asking)
        assert received(idle[0]) == b""


@pytest.mark.parametrize("sent", [b"", b"GET / HTTP/1.1\r\nHost: x\r\nX: "])
def test_a_head_that_does_not_come_is_not_waited_for(sent: bytes) -> None:
    """Neither from one who says nothing, nor from one who says a little of it."""
    with server(head_seconds=0.2) as port, connect(port, sent) as waiting:
        assert received(waiting) == b""


def test_a_second_head_is_not_waited_for_either() -> None:
    """After an answer the time begins anew."""
    with server(head_seconds=0.5) as port, connect(port, head("GET", port)) as waiting:
        waiting.sendall(b"GET / HTT")
        assert received(waiting).count(b"HTTP/1.1") == 1


def test_a_body_that_does_not_come_is_not_waited_for() -> None:
    """It ends as if the client had gone."""
    with (
        server(body_seconds=0.2) as port,
        connect(port, head("POST", port, "Content-Length: 10", "Connection: close") + b"abc") as waiting,
    ):
        assert received(waiting).endswith(b"http.disconnect")


@pytest.mark.full
@pytest.mark.parametrize("command", ["mcp --http 127.0.0.1:0", "ui --no-open", "stats --serve 0"])
def test_a_flood_of_idle_connections_does_not_end_a_server(tmp_path: Path, command: str) -> None:
    """With room for 256 files, 400 connections that say nothing: the next request is answered all the same."""
    with stepkeep.open(tmp_path / "store.db") as store:
        store.session("s").save({})
    limited = ["sh", "-c", 'ulimit -n 256; exec "$@"', "sh"]
    process = subprocess.Popen(
        [
            *limited,
            sys.executable,
            "-m",
            "stepkeep",
            *command.split(),
            "--store",
            f"sqlite:{tmp_path}/store.db",
        ],
        cwd=tmp_path,
        env={**environment(tmp_path / "store.db"), "STEPKEEP_METRICS_TOKEN": TOKEN},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        assert process.stdout is not None
        port = int(process.stdout.readline().partition("127.0.0.1:")[2].partition("/")[0])
        with contextlib.ExitStack() as opened:
            for _ in range(400):
                opened.enter_context(connect(port))
            answer = b""
            while not answer:  # also by the metrics, once the first of the others are given up
                with connect(port, b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n") as asking:
                    answer = received(asking)
        assert answer.startswith(b"HTTP/1")
        assert process.poll() is None
    finally:
        process.terminate()
        said, _ = process.communicate(timeout=60)
        assert "Traceback" not in said


CLIENTS = """
import sys
from stepkeep.mcp import http

http.MAX_SESSIONS, http.SESSION_SECONDS = 3, float(sys.argv[2])
http.serve_http(sys.argv[1], host="127.0.0.1", port=0, token="t", ready=lambda address: print(address, flush=True))
"""
HELLO = {
    "jsonrpc": "2.0",
    "id": 0,
    "method": "initialize",
    "params": {
        "protocolVersion": "2025-06-18",
        "capabilities": {},
        "clientInfo": {"name": "raw", "version": "1"},
    },
}
ACCEPT = {"Accept": "application/json, text/event-stream", "Authorization": "Bearer t"}
SESSION = "Mcp-Session-Id"


@contextlib.contextmanager
def mcp_server(file: Path, session_seconds: float) -> Iterator[str]:
    """The address of the MCP server with room for three clients."""
    said = file.with_suffix(".log")  # a pipe that nobody reads fills with what is said of refusals
    with said.open("w") as log:
        process = subprocess.Popen(
            [sys.executable, "-c", CLIENTS, f"sqlite:{file}", str(session_seconds)],
            env=environment(file),
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        )
    try:
        assert process.stdout is not None
        yield process.stdout.readline().strip()
    finally:
        process.terminate()
        process.communicate(timeout=60)
        assert "Traceback" not in said.read_text()


@pytest.mark.full
def test_more_clients_than_allowed_are_refused_and_the_others_go_on(tmp_path: Path) -> None:
    """Each `initialize` is remembered, so there is a number of them; one who says goodbye makes room."""
    with mcp_server(tmp_path / "store.db", 600) as url, httpx2.Client(headers=ACCEPT, timeout=60) as client:
        begun = [client.post(url, json=HELLO) for _ in range(5)]
        assert [each.status_code for each in begun] == [200, 200, 200, 503, 503]
        known = [each.headers[SESSION] for each in begun[:3]]
        ping = {"jsonrpc": "2.0", "id": 1, "method": "ping"}
        assert client.post(url, json=ping, headers={SESSION: known[0]}).status_code == 200
        assert client.delete(url, headers={SESSION: known[0]}).status_code == 200
        assert client.post(url, json=HELLO).status_code == 200


@pytest.mark.full
def test_a_client_that_says_nothing_is_forgotten(tmp_path: Path) -> None:
    """Then it has to begin anew, and its place is free."""
    with mcp_server(tmp_path / "store.db", 0.2) as url, httpx2.Client(headers=ACCEPT, timeout=60) as client:
        silent = [client.post(url, json=HELLO).headers[SESSION] for _ in range(3)]
        while client.post(url, json=HELLO).status_code != 200:
            pass  # they are forgotten one by one
        note = {"jsonrpc": "2.0", "method": "notifications/initialized"}
        assert client.post(url, json=note, headers={SESSION: silent[0]}).status_code == 404
