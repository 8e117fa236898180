"""What takes bytes from outside: each target reads any bytes, and answers or refuses with an error of ours.

Anything else is a crash. `python -m tests.fuzz` runs them for a while and counts.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import tempfile
from collections.abc import Callable
from datetime import UTC
from pathlib import Path
from typing import Any

import attrs
import msgspec
import pydantic

from stepkeep import yaml_lines
from stepkeep.codec import document, exact
from stepkeep.codec.compression import compress, decompress
from stepkeep.codec.integrity import digest, open_header, seal
from stepkeep.codec.models import convert
from stepkeep.codec.readable import Layout
from stepkeep.config import schema
from stepkeep.errors import StepkeepError
from stepkeep.history import paths, refs
from stepkeep.history.documents import checkpoint_info
from stepkeep.model import Header, check_branch_name, check_name
from stepkeep.processes import new_checkpoint_id
from stepkeep.recording.coding_agents import hook_events as hooks
from stepkeep.runs.workflow.definition import InvalidWorkflow
from stepkeep.runs.workflow.expressions import BadExpression, parse_template
from stepkeep.runs.workflow.parse import parse_workflow
from stepkeep.runs.workflow.quoting import PREFIX, shell_command
from stepkeep.storage.files.layouts import safe_name

MAX_BYTES = 1 << 16

Target = Callable[[bytes], None]


def documents(data: bytes) -> None:
    """A file of any layout, a header, and a state in either encoding."""
    for layout in Layout:
        _tried(document.decode, layout, data)
    _tried(open_header, data)
    for encoding in (exact.JSON, exact.TAGGED):
        _tried(exact.decode, encoding, data)


def decompression(data: bytes) -> None:
    """No frame gives more than its recorded size."""
    for unpack in (decompress, document.unzip):
        with contextlib.suppress(StepkeepError):
            assert len(unpack(data, limit=4096)) <= 4096


def ids(data: bytes) -> None:
    """Names, refs and paths; no text becomes a file name that leads anywhere."""
    text = data.decode("utf-8", "surrogateescape")
    _tried(check_name, "a name", text)
    _tried(check_branch_name, text)
    _tried(functools.partial(refs.parse, now_us=1_800_000_000_000_000, zone=UTC), text)
    _tried(paths.parse_path, text)
    name = safe_name(text)
    assert "/" not in name
    assert "\0" not in name
    assert name not in ("", ".", "..")
    assert not name.startswith((".", "-"))
    assert len(name.encode()) <= 200


def configuration(data: bytes) -> None:
    """A configuration file."""
    try:
        root = yaml_lines.parse(data.decode("utf-8", "replace"))
    except yaml_lines.Unreadable:
        return
    schema.values_of(root, "file")


def workflows(data: bytes) -> None:
    """A workflow file."""
    with contextlib.suppress(InvalidWorkflow):
        parse_workflow(data.decode("utf-8", "replace"), source="flow.yaml")


def hook_input(data: bytes) -> None:
    """What a coding agent tells of an event."""
    for client, event in (("claude-code", "SessionStart"), ("claude-code", "PostToolUse"), ("x", "y")):
        with contextlib.suppress(hooks.InvalidEvent):
            hooks.read_event(client, event, data, cwd="/")


_folder = tempfile.TemporaryDirectory(prefix="stepkeep-fuzz-")


@functools.cache
def _server() -> Any:
    from stepkeep.mcp.server import build_server
    from stepkeep.mcp.tools import OpenedStore

    return build_server(OpenedStore(f"sqlite:{Path(_folder.name) / 'h.db'}"))


def mcp_requests(data: bytes) -> None:
    """Arguments of a tool call, as the transports read them: JSON without lone surrogates."""
    try:
        arguments = msgspec.json.decode(data)
    except (ValueError, RecursionError):
        return
    if isinstance(arguments, dict):
        for tool in ("checkpoint_load", "checkpoint_list", "checkpoint_diff"):
            _loop().run(_call(tool, arguments))


@functools.cache
def _loop() -> asyncio.Runner:
    """A server has one event loop for all calls."""
    return asyncio.Runner()


async def _call(tool: str, arguments: dict[str, Any]) -> None:
    await _server().call_tool(tool, arguments)


_HEADER = msgspec.json.decode(
    seal(
        Header(v=1, id=new_checkpoint_id(0), session="s", seq=0, branch="main", time_us=0, contents={}),
        1,
        (),
        (),
    )
)


def sealed_headers(data: bytes) -> None:
    """A header with any values under a valid seal, shown as every surface does."""
    try:
        changes = msgspec.json.decode(data)
    except (ValueError, RecursionError):
        return
    if not isinstance(changes, dict):
        return
    unsealed = msgspec.json.encode({**_HEADER, **changes} | {"chain": ""})
    unsealed = unsealed.replace(b',"chain":""', b"", 1)
    with contextlib.suppress(StepkeepError):
        header = open_header(unsealed[:-1] + b',"chain":"%s"}' % digest(unsealed).encode())
        msgspec.json.encode(checkpoint_info("s", header, 1))
        str(header.created_at)


class Part(pydantic.BaseModel, extra="allow"):
    name: str = ""
    hidden: int = pydantic.Field(default=0, exclude=True)
    _note: Any = None


class LargePart(Part):
    size: float = 0


class Whole(pydantic.BaseModel):
    parts: list[Part] = []
    more: Any = None


@attrs.define(slots=False)
class Cell:
    row: Any = None
    column: int = 0


def models(data: bytes) -> None:
    """Models of pydantic and attrs with any values, never validated: saved ones come back equal."""
    try:
        values = msgspec.json.decode(data)
    except (ValueError, RecursionError):
        return
    fields = values if isinstance(values, dict) else {"name": values}
    part = (LargePart if "size" in fields else Part).model_construct(**fields)
    part._note = fields.get("note")
    cell = Cell(row=fields.get("row"), column=fields.get("column", 0))
    cell.__dict__.update({name: each for name, each in fields.items() if name == "added"})
    for model in (part, Whole.model_construct(parts=[part], more=values), cell):
        with contextlib.suppress(StepkeepError):
            encoding, content = exact.encode({"model": model})
            again = convert(exact.decode(encoding, content)["model"], type(model))
            assert again == model
            assert vars(again) == vars(model)


def shell_templates(data: bytes) -> None:
    """A command with a value in it: the text has the names of all values, or the template is refused."""
    text = data.decode("utf-8", "replace").replace("\0", "")
    try:
        command, refs = shell_command(parse_template(text))
    except BadExpression:
        return
    assert all(f"${{{PREFIX}{number}}}" in command for number in range(1, len(refs) + 1))


def _tried(work: Callable[..., object], *arguments: object) -> None:
    with contextlib.suppress(StepkeepError):
        work(*arguments)


TARGETS: dict[str, Target] = {
    target.__name__: target
    for target in (
        documents,
        decompression,
        ids,
        configuration,
        workflows,
        hook_input,
        mcp_requests,
        sealed_headers,
        models,
        shell_templates,
    )
}

SEEDS: dict[str, list[bytes]] = {
    "documents": [b'{"$tuple":[1,2]}', b'{"a":[1,2.5,null,true,"x"]}', b'{"version":1,"integrity":{}}\n'],
    "decompression": [compress(b"some text, some text"), document.gzip(b"some text, some text")],
    "ids": [
        b"latest",
        b"latest~2",
        b"#12",
        b"main@2026-01-01",
        b"/etc/passwd",
        b'a["b"][0].c',
        b"2 hours ago",
    ],
    "configuration": [
        b"store: sqlite:x.db\nretention:\n  keep_last: 5\n",
        b"a: &a [*a]\n",
        b"a: !!python/x 1\n",
        b"checkpoint: {cleanup: {stale_days: 0}}\nlimits: {max_bytes: 1KB}\nkeeper: {interval_seconds: 1}\n",
        b"store: postgresql://bob:p@127.0.0.1:1/x?sslmode=disable\n",
    ],
    "sealed_headers": [
        b'{"time_us":4611686018427387904,"step":-9223372036854775808}',
        b'{"contents":{"state":{"digest":"x","size":-1,"encoding":"json","first_at":99}}}',
        b'{"parents":["a"],"parent_chains":[],"metadata":{"a":[[[]]]},"tags":["\\u001b"]}',
    ],
    "models": [
        b'{"name":"a","size":1.5,"hidden":3,"note":[1]}',
        b'{"row":{"a":[1]},"column":2,"added":1}',
        b'{"name":7,"parts":[{"name":"x"}]}',
    ],
    "shell_templates": [
        b"cat <<END\n${vars.x}\nEND\n",
        b"cat <<-'END'\n\t${vars.x}\n\tEND\n",
        b'printf %s "$(case x in x) echo ${vars.x};; esac)"',
        b"x=$(cat <<A <<B\n${vars.x}\nA\n`b`\nB\n) # it's ${vars.x}\n",
    ],
    "workflows": [
        b"name: x\nsteps:\n- id: a\n  shell: echo\n- id: b\n  needs: [a]\n  shell: echo ${{ a.b }}\n",
        b"name: x\nsteps:\n- id: >\n  shell: a\n",
    ],
    "hook_input": [b'{"session_id":"s","tool_name":"Bash","tool_input":{"command":"x"},"cwd":"/"}'],
    "mcp_requests": [
        b'{"sessionId":"s","checkpointId":"latest"}',
        b'{"sessionId":"s","limit":3,"cursor":"1"}',
    ],
}
