"""The MCP server as clients run it: real processes over stdio and HTTP, in both protocol eras."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest
from mcp import Client
from mcp.types import ElicitRequestParams, ElicitResult

import stepkeep
from tests import interpreter
from tests.surfaces.mcp_clients import (
    TOKEN,
    HttpServer,
    answered,
    environment,
    http_client,
    http_server,
    refused,
    stdio_server,
)

MODES = ("auto", "legacy")
STATE = {"currentStepIndex": 2, "query": "tides", "text": "é💥", "big": "x" * 20_000}
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


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "store.db"


@pytest.fixture
def listening(file: Path) -> Iterator[HttpServer]:
    with http_server(file) as server:
        yield server


async def accept(_: Any, params: ElicitRequestParams) -> ElicitResult:
    assert "Nothing is deleted" in params.message
    return ElicitResult(action="accept", content={"restore": True})


async def accept_but_no(_: Any, __: ElicitRequestParams) -> ElicitResult:
    return ElicitResult(action="accept", content={"restore": False})


async def decline(_: Any, __: ElicitRequestParams) -> ElicitResult:
    return ElicitResult(action="decline")


async def cancel(_: Any, __: ElicitRequestParams) -> ElicitResult:
    return ElicitResult(action="cancel")


@asynccontextmanager
async def connected(transport: str, file: Path, **options: Any) -> AsyncIterator[Client]:
    if transport == "stdio":
        async with Client(stdio_server(file), **options) as client:
            yield client
        return
    with http_server(file) as server:
        async with http_client(server.url, **options) as client:
            yield client


@pytest.mark.full
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("transport", ["stdio", "http"])
def test_a_client_drives_everything(file: Path, transport: str, mode: str) -> None:
    """The official client calls every tool and reads every resource and the prompt; the store has what it saved."""

    async def run() -> None:
        async with connected(transport, file, mode=mode, elicitation_callback=accept) as client:
            await drive(client)

    asyncio.run(run())
    with stepkeep.open(f"sqlite:{file}") as store:
        assert [store.get("s").load(seq).state["n"] for seq in (1, 2, 3)] == [0, 1, 2]
        assert store.get("s").info.branch == "again"
        assert store.get("s").info.status == "completed"
        assert store.metrics().checkpoint_save_count == 3


async def drive(client: Client) -> None:
    assert len((await client.list_tools()).tools) == 12
    ids = [
        (await answered(client, "checkpoint_save", sessionId="s", state={**STATE, "n": n}))["checkpointId"]
        for n in range(3)
    ]
    assert (await answered(client, "checkpoint_load", sessionId="s"))["state"] == {**STATE, "n": 2}
    first = await answered(client, "checkpoint_load", sessionId="s", checkpointId=ids[0])
    assert first["state"] == {**STATE, "n": 0}
    listed = await answered(client, "checkpoint_list", sessionId="s")
    assert [each["checkpointId"] for each in listed["checkpoints"]] == ids[::-1]
    diff = await answered(client, "checkpoint_diff", sessionId="s", olderId=ids[0], newerId=ids[2])
    assert [(each["path"], each["old"], each["new"]) for each in diff["changes"]] == [("n", 0, 2)]
    restored = await answered(
        client, "checkpoint_restore", sessionId="s", checkpointId=ids[0], branch="again"
    )
    assert (restored["branch"], restored["isNewBranch"]) == ("again", True)
    assert restored["undo"] == "latest@before"
    graph = await answered(client, "checkpoint_timeline", sessionId="s")
    assert {branch["name"] for branch in graph["branches"]} == {"main", "again"}
    assert (await answered(client, "checkpoint_complete", sessionId="s"))["status"] == "completed"
    assert (await refused(client, "checkpoint_load", sessionId="nobody"))["code"] == "session_not_found"
    assert len((await client.list_resources()).resources) == 1
    assert len((await client.list_resource_templates()).resource_templates) == 2
    for uri in ("stepkeep://session/s/latest", f"stepkeep://session/s/checkpoint/{ids[0]}"):
        (content,) = (await client.read_resource(uri)).contents
        assert json.loads(content.text)["state"] == {**STATE, "n": 0}  # type: ignore[union-attr]
    (prompt,) = (await client.list_prompts()).prompts
    messages = (await client.get_prompt(prompt.name, {"sessionId": "s"})).messages
    assert ids[0] in messages[0].content.text  # type: ignore[union-attr]


@pytest.mark.full
@pytest.mark.parametrize(
    ("transport", "mode", "answers"),
    [
        ("stdio", "auto", [decline]),
        ("stdio", "legacy", [cancel]),
        ("http", "auto", [decline, cancel, accept_but_no]),
        pytest.param("http", "legacy", [decline, cancel, accept_but_no], marks=pytest.mark.slow),
    ],
)
def test_restoring_asks_first(file: Path, transport: str, mode: str, answers: list[Any]) -> None:
    """A person who declines, cancels or says no keeps the session as it is; a client that cannot ask must confirm."""
    with stepkeep.open(f"sqlite:{file}") as store:
        for n in range(3):
            store.session("s").save({"n": n})

    async def run() -> None:
        for answer in answers:
            async with connected(transport, file, mode=mode, elicitation_callback=answer) as client:
                error = await refused(client, "checkpoint_restore", sessionId="s", checkpointId="#1")
                assert error["code"] == "confirmation_declined"
        async with connected(transport, file, mode=mode) as client:
            error = await refused(client, "checkpoint_restore", sessionId="s", checkpointId="#1")
            assert error["code"] == "confirmation_needed"
            assert (await answered(client, "checkpoint_load", sessionId="s"))["state"] == {"n": 2}
            await answered(client, "checkpoint_restore", sessionId="s", checkpointId="#1", confirm=True)
            assert (await answered(client, "checkpoint_load", sessionId="s"))["state"] == {"n": 0}

    asyncio.run(run())


@pytest.mark.full
def test_three_servers_and_the_command_line_lose_nothing(file: Path) -> None:
    """Three server processes and the CLI save into one session at once; every acknowledged checkpoint is there."""
    each = 12
    with stepkeep.open(f"sqlite:{file}") as store:
        store.session("s", profile="archive")

    async def one(name: str) -> list[str]:
        async with Client(stdio_server(file)) as client:
            return [
                (await answered(client, "checkpoint_save", sessionId="s", state={"by": name, "n": n}))[
                    "checkpointId"
                ]
                for n in range(each)
            ]

    async def all_of_them() -> list[list[str]]:
        return await asyncio.gather(*(one(name) for name in "abc"))

    by_command: list[str] = []

    def command() -> None:
        for n in range(4):
            words = ("save", "s", "--state", json.dumps({"n": n}), "--json")
            done = interpreter.stepkeep(*words, env=environment(file))
            by_command.append(json.loads(done.stdout)["id"])

    thread = threading.Thread(target=command)
    thread.start()
    saved = [id for ids in asyncio.run(all_of_them()) for id in ids]
    thread.join()
    with stepkeep.open(f"sqlite:{file}") as store:
        headers = list(store.get("s").history())
        assert sorted(header.seq for header in headers) == list(range(1, 3 * each + 5))
        assert {header.id for header in headers} == {*saved, *by_command}
        assert store.verify().is_intact
        assert store.metrics().checkpoint_save_count == 3 * each + 4


class Raw:
    """A server spoken to line by line."""

    def __init__(self, file: Path) -> None:
        self.process = interpreter.start(
            ["-m", "stepkeep", "mcp"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=environment(file),
        )
        self.ask(HELLO)
        self.tell({"jsonrpc": "2.0", "method": "notifications/initialized"})

    def tell(self, message: dict[str, Any] | str) -> None:
        text = message if isinstance(message, str) else json.dumps(message)
        assert self.process.stdin is not None
        self.process.stdin.write(text.encode() + b"\n")
        self.process.stdin.flush()

    def ask(self, message: dict[str, Any] | str) -> dict[str, Any]:
        self.tell(message)
        assert self.process.stdout is not None
        answer: dict[str, Any] = json.loads(self.process.stdout.readline())
        return answer

    def end(self) -> None:
        self.process.kill()
        self.process.communicate()


def save_call(id: int, state: str) -> str:
    arguments = f'{{"sessionId":"s","state":{state}}}'
    return (
        f'{{"jsonrpc":"2.0","id":{id},"method":"tools/call",'
        f'"params":{{"name":"checkpoint_save","arguments":{arguments}}}}}'
    )


@pytest.mark.full
def test_a_number_that_is_none_is_refused(file: Path) -> None:
    """A number beyond every float, or NaN, is refused instead of being saved as another."""
    server = Raw(file)
    for id, state in enumerate(('{"n": 1e999}', '{"n": NaN}'), 1):
        answer = server.ask(save_call(id, state))
        refusal = answer["result"]["structuredContent"]["error"] if "result" in answer else answer["error"]
        assert refusal["code"] in ("invalid_json", -32700), answer
    answer = server.ask(save_call(9, '{"n": 123456789012345678901234567890}'))
    assert not answer["result"]["isError"]
    server.end()
    with stepkeep.open(f"sqlite:{file}") as store:
        assert store.get("s").load().state == {"n": 123456789012345678901234567890}


@pytest.mark.full
@pytest.mark.parametrize("levels", [200, 5000])
def test_a_call_that_is_nested_too_deep_is_answered(file: Path, levels: int) -> None:
    """Over stdio the client would wait for ever; it gets an error, and the next call is served."""
    server = Raw(file)
    answer = server.ask(save_call(1, '{"id": 7, "deep": ' + "[" * levels + "]" * levels + "}"))
    assert (answer["id"], answer["error"]["code"]) == (1, -32600)
    assert "nested too deep" in answer["error"]["message"]
    assert not server.ask(save_call(2, "{}"))["result"]["isError"]
    server.end()


HALVES = r'{"cut": "abc\ud83d", "low": "\udc00x", "whole": "\ud83d\ude00", "not": "\\ud83d", "n": 18446744073709551616}'
WHOLE = {
    "cut": "abc\ufffd",
    "low": "\ufffdx",
    "whole": "\U0001f600",
    "not": "\\ud83d",
    "n": 18446744073709551616,
}


@pytest.mark.full
@pytest.mark.parametrize("transport", ["stdio", "http"])
def test_half_characters_are_replaced_and_that_is_said(file: Path, transport: str) -> None:
    """What Node gives for a text that was cut is saved, and every other value as it came."""
    call = save_call(1, HALVES)
    if transport == "stdio":
        server = Raw(file)
        answer = server.ask(call)
        server.end()
    else:
        with http_server(file) as listening:
            answer = posted(listening.url, call)
    texts = [content["text"] for content in answer["result"]["content"]]
    assert not answer["result"]["isError"], texts
    assert "replaced by U+FFFD" in texts[-1]
    with stepkeep.open(f"sqlite:{file}") as store:
        assert store.get("s").load().state == WHOLE


@pytest.mark.full
@pytest.mark.parametrize("transport", ["stdio", "http"])
@pytest.mark.parametrize(
    "state",
    [
        '{"a": 1, "a": 2}',
        '{"x": [{"deep": {"a": 1, "b": 2, "a": 1}}]}',
        r'{"a": 1, "\u0061": 2, "cut": "\ud83d"}',
    ],
)
def test_a_key_that_occurs_twice_is_refused(file: Path, transport: str, state: str) -> None:
    """As the command does: nobody knows which of the two is meant. The next call is served."""
    if transport == "stdio":
        server = Raw(file)
        answer, other = server.ask(save_call(1, state)), server.ask(save_call(2, '{"a": {"a": [{"a": 1}]}}'))
        server.end()
    else:
        with http_server(file) as listening:
            answer, other = (
                posted(listening.url, save_call(1, state)),
                posted(listening.url, save_call(2, "{}")),
            )
    error = answer["result"]["structuredContent"]["error"]
    assert (error["code"], error["message"]) == ("invalid_json", "the key 'a' occurs twice in one object")
    assert not other["result"]["isError"]
    with stepkeep.open(f"sqlite:{file}") as store:
        assert store.get("s").info.last_seq == 1


def posted(url: str, call: str) -> dict[str, Any]:
    """The answer to a call over HTTP, which begins a connection of its own."""
    import httpx2

    headers = {
        "Authorization": f"Bearer {TOKEN}",
        "Accept": "application/json, text/event-stream",
        "Content-Type": "application/json",
    }
    hello = {
        "jsonrpc": "2.0",
        "id": 0,
        "method": "initialize",
        "params": {
            "protocolVersion": "2025-06-18",
            "capabilities": {},
            "clientInfo": {"name": "raw", "version": "1"},
        },
    }
    with httpx2.Client(headers=headers, timeout=60) as client:
        begun = client.post(url, json=hello)
        client.headers["Mcp-Session-Id"] = begun.headers["Mcp-Session-Id"]
        client.post(url, json={"jsonrpc": "2.0", "method": "notifications/initialized"})
        text = client.post(url, content=call.encode()).text
    data = next(line for line in text.splitlines() if line.startswith("data: {"))
    found: dict[str, Any] = json.loads(data.removeprefix("data: "))
    return found


@pytest.mark.full
def test_a_killed_server_loses_nothing_acknowledged(file: Path) -> None:
    """Killed in the middle of calls, a server has stored at least what it acknowledged, and nothing half."""
    with stepkeep.open(f"sqlite:{file}") as store:
        store.session("s", profile="archive")  # a session that the server makes keeps its newest 10 only
    for round in range(3):
        server = Raw(file)
        for n in range(20):
            server.tell(save_call(n + 1, json.dumps({"round": round, "n": n, "x": "y" * 5000})))
        assert server.process.stdout is not None
        acknowledged = []
        for _ in range(3 + 4 * round):
            answer = json.loads(server.process.stdout.readline())
            acknowledged.append(answer["result"]["structuredContent"]["checkpointId"])
        os.kill(server.process.pid, signal.SIGKILL)
        rest = server.process.stdout.read()  # communicate() would miss what readline read ahead
        server.process.communicate()
        for line in rest.splitlines(keepends=True):
            if line.endswith(b"\n"):
                acknowledged.append(json.loads(line)["result"]["structuredContent"]["checkpointId"])
        with stepkeep.open(f"sqlite:{file}") as store:
            assert set(acknowledged) <= {header.id for header in store.get("s").history()}
            assert store.verify().is_intact


@pytest.mark.full
def test_a_client_that_goes_away_leaves_a_whole_checkpoint_or_none(file: Path) -> None:
    """A call whose client closes the connection at once ends, and the server with it."""
    server = Raw(file)
    server.tell(save_call(1, json.dumps({"x": "y" * 100_000})))
    server.process.communicate(timeout=30)
    assert server.process.returncode == 0
    with stepkeep.open(f"sqlite:{file}") as store:
        assert store.verify().is_intact
        assert [info.key for info in store.sessions()] in ([], ["s"])


# --- HTTP ------------------------------------------------------------------------------------------------------

GOOD = {
    "Authorization": f"Bearer {TOKEN}",
    "Accept": "application/json, text/event-stream",
    "Content-Type": "application/json",
}


@pytest.mark.full
def test_http_lets_no_stranger_in(listening: HttpServer) -> None:
    """A foreign Host or Origin, a missing or wrong token and a body that is too long are refused."""
    with httpx2.Client(timeout=30) as client:

        def status(*, without: str = "", body: bytes | None = None, **headers: str | bytes) -> int:
            sent: dict[str, Any] = {name: value for name, value in GOOD.items() if name != without}
            sent |= headers
            content = json.dumps(HELLO).encode() if body is None else body
            return int(client.post(listening.url, headers=sent, content=content).status_code)

        assert status() == 200
        assert status(without="Authorization") == 401
        assert status(Authorization="Bearer wrong") == 401
        assert status(Authorization=f"Basic {TOKEN}") == 401
        assert status(Authorization=b"Bearer \xc3\xa9\xff") == 401
        assert status(Host="evil.example") == 421
        assert status(Host="127.0.0.1.evil.example") == 421
        assert status(Host="127.0.0.1:1") == 421
        assert status(Origin="https://evil.example") == 403
        assert status(Origin="null") == 403
        assert status(Origin="http://127.0.0.1.evil.example") == 403
        assert status(Origin="http://localhost:6274") == 200
        assert status(body=b"x" * (17 * 1024 * 1024)) == 413
        assert status(body=b"{") == 400
        assert client.get(listening.url.replace("/mcp", "/"), headers=GOOD).status_code == 404


@pytest.mark.full
def test_http_answers_to_further_names(file: Path) -> None:
    """Behind a proxy the server answers to the names it was told, and to no others."""
    with http_server(file, "--allow-host", "agents.example") as server, httpx2.Client(timeout=30) as client:

        def status(host: str) -> int:
            answer = client.post(server.url, headers={**GOOD, "Host": host}, content=json.dumps(HELLO))
            return int(answer.status_code)

        assert status("agents.example") == 200
        assert status("agents.example:443") == 200
        assert status("other.example") == 421


@pytest.mark.full
def test_a_token_that_no_header_can_carry_is_refused(file: Path) -> None:
    """A token with blanks or other characters is wrong usage, told before anything is served."""
    done = subprocess.run(
        [sys.executable, "-m", "stepkeep", "mcp", "--http", "0"],
        env=environment(file, STEPKEEP_MCP_TOKEN="two words"),
        capture_output=True,
        check=False,
    )
    assert done.returncode == 2
    assert b"STEPKEEP_MCP_TOKEN" in done.stderr
    assert b"two words" not in done.stderr


@pytest.mark.full
def test_without_the_extra_the_command_says_so(file: Path) -> None:
    """Where the SDK is not installed the command names the extra; other commands never load it."""
    program = (
        "import sys; sys.modules['mcp'] = None; from stepkeep.cli import main; sys.exit(main(sys.argv[1:]))"
    )

    def run(*args: str) -> subprocess.CompletedProcess[str]:
        words = [sys.executable, "-c", program, *args]
        return subprocess.run(words, env=environment(file), capture_output=True, text=True, check=False)

    missing = run("mcp")
    assert missing.returncode == 1
    assert "stepkeep[mcp]" in missing.stderr
    assert run("save", "s", "--state", "{}").returncode == 0
    assert run("stats").returncode == 0


@pytest.mark.full
def test_options_reach_the_sessions(file: Path) -> None:
    """`--session` and `--project` hold for what a client saves without naming them."""

    async def run() -> None:
        async with Client(stdio_server(file, "--session", "mine", "--project", "site")) as client:
            assert (await answered(client, "checkpoint_save", state={"a": 1}))["sessionId"] == "mine"

    asyncio.run(run())
    with stepkeep.open(f"sqlite:{file}") as store:
        assert [(info.key, info.project, info.profile) for info in store.sessions()] == [
            ("mine", "site", "agent")
        ]


@pytest.mark.full
def test_http_prints_a_token_of_its_own(file: Path) -> None:
    """Without a token in the environment the server makes one and tells it on stderr only."""
    process = interpreter.start(
        ["-m", "stepkeep", "mcp", "--http", "0"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(file),
    )
    assert process.stderr is not None
    url, token = (process.stderr.readline().split()[-1] for _ in range(2))
    assert url.startswith("http://127.0.0.1:")
    headers = {**GOOD, "Authorization": f"Bearer {token}"}
    with httpx2.Client(timeout=30) as client:
        answer = client.post(url, headers=headers, content=json.dumps(HELLO))
        assert answer.status_code == 200
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=30)
    assert out == ""


@pytest.mark.full
@pytest.mark.parametrize(
    ("options", "code"),
    [
        (["--http", "0.0.0.0:0"], 2),
        (["--http", "example.org:80"], 2),
        (["--http", "127.0.0.1:99999"], 2),
        (["--http", "a b"], 2),
        (["--allow-remote"], 2),
    ],
)
def test_addresses_that_make_no_sense_are_refused(file: Path, options: list[str], code: int) -> None:
    """An address that is none, or not on loopback without being told so, is wrong usage."""
    done = subprocess.run(
        [sys.executable, "-m", "stepkeep", "mcp", *options],
        env=environment(file),
        capture_output=True,
        check=False,
    )
    assert done.returncode == code
    assert b"Traceback" not in done.stderr
