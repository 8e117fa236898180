"""The process that a `python` step runs in: call one function, send back what it returns.

A process of its own, so that a function that hangs can be killed, one that ends its process ends only that one, and
none sees the store or the secrets of other steps.
"""

from __future__ import annotations

import asyncio
import importlib
import inspect
import os
import sys
import traceback
from pathlib import Path
from typing import Any, Final

import msgspec

from stepkeep.codec import exact
from stepkeep.errors import StepkeepError

BOOTSTRAP: Final = (
    "import sys; sys.path.append(sys.argv.pop(1)); "
    "from stepkeep.runs.workflow.python_call import main; sys.exit(main(sys.argv[1:]))"
)
"""The path of this package comes as first word: the environment of a step has no PYTHONPATH."""


class Reply(msgspec.Struct, frozen=True):
    """What a call came to: an encoded value, or the text of an error."""

    encoding: str = ""
    data: bytes = b""
    error: str | None = None


def words(function: str) -> tuple[str, ...]:
    """The command that calls a function; the arguments go to its stdin, the reply comes on the pipe it is given."""
    package = Path(__file__).parents[3]
    return (sys.executable, "-c", BOOTSTRAP, str(package), function)


def request(arguments: dict[str, Any]) -> bytes:
    encoding, data = exact.encode(arguments)
    return msgspec.msgpack.encode((encoding, data))


def main(arguments: list[str]) -> int:
    """Do one call; the exit code says whether it went well, the reply what came of it."""
    function, pipe = arguments[0], int(arguments[1])
    os.set_inheritable(pipe, False)
    encoding, data = msgspec.msgpack.decode(sys.stdin.buffer.read(), type=tuple[str, bytes])
    sys.stdin = Path(os.devnull).open(encoding="utf-8")  # noqa: SIM115  as long as this process
    reply = _call(function, exact.decode(encoding, data))
    sys.stdout.flush()
    with os.fdopen(pipe, "wb") as answer:
        answer.write(msgspec.msgpack.encode(reply))
    return 0 if reply.error is None else 1


def _call(function: str, arguments: dict[str, Any]) -> Reply:
    try:
        result = _found(function)(**arguments)
        if inspect.iscoroutine(result):
            result = asyncio.run(result)
    except Exception as exc:
        traceback.print_exc()
        return Reply(error=f"{type(exc).__name__}: {exc}")
    try:
        encoding, data = exact.encode(result)
    except StepkeepError as exc:
        return Reply(error=f"{function} returned what cannot be saved: {exc.message}")
    return Reply(encoding, data)


def _found(function: str) -> Any:
    module, _, names = function.partition(":")
    found: Any = importlib.import_module(module)
    for name in names.split("."):
        found = getattr(found, name)
    return found
