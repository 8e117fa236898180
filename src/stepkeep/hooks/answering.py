"""`stepkeep hook EVENT`: read what the agent tells, store it, answer as the client expects.

Whatever happens, the agent goes on: the exit code is 0, stdout holds the answer and nothing else, and an error is
noted in the log of hooks and told to the person in the answer.
"""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from stepkeep import api

USAGE = """\
Usage: stepkeep hook EVENT [--client claude-code|gemini|codex|copilot|cursor|opencode] [--store URL]

Reads the JSON of a coding agent's event on stdin, saves what it tells, and answers on stdout. Agents run this; install
it with `stepkeep hooks install`. The exit code is always 0, so that an agent is never stopped.
"""


class Request:
    """The command line of a hook."""

    def __init__(self, args: Sequence[str]) -> None:
        self.client = "claude-code"
        self.store: str | None = None
        self.asks_help = False
        words: list[str] = []
        rest = iter(args)
        for word in rest:
            name, separator, value = word.partition("=")
            if name in ("--client", "--store"):
                text = value if separator else next(rest, "")
                if name == "--client":
                    self.client = text
                else:
                    self.store = text or None
            elif word in ("-h", "--help"):
                self.asks_help = True
            elif not word.startswith("--"):
                words.append(word)
        self.event = words[0] if words else ""
        # Codex gives its `notify` program the JSON as an argument.
        self.argument = words[1].encode("utf-8", "replace") if len(words) > 1 else None


def main(args: Sequence[str]) -> int:
    """Answer one event. Never raises, and never returns 2."""
    request = Request(args)
    if request.asks_help or not request.event:
        print(USAGE, end="", file=sys.stdout if request.asks_help else sys.stderr)
        return 0
    answer = api.answer_hook(request.client, request.event, request.argument, store=request.store)
    if answer is not None:
        _print(answer)
    return 0


def run_process() -> None:
    """Answer the event of this process's command line, and end it without taking anything down in order.

    What is saved is durable already, and the log of the database is taken up by whoever opens it next.
    """
    try:
        gc.disable()  # one event, and the process is gone; looking for cycles takes a tenth of the time
        main(sys.argv[2:])
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(0)  # also when the agent interrupts it: another code could stop the agent


def _print(answer: dict[str, Any]) -> None:
    with suppress(OSError):  # nobody listens
        os.write(1, _encoded(answer) + b"\n")


def _encoded(answer: dict[str, Any]) -> bytes:
    import msgspec  # by now the api has it, without what it would bring along

    try:
        return msgspec.json.encode(answer)
    except UnicodeEncodeError:  # part of a path that is not Unicode
        import json

        return json.dumps(answer).encode()
