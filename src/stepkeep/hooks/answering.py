"""`stepkeep hook EVENT`: read what the agent tells, store it, answer as the client expects.

Whatever happens, the agent goes on: the exit code is 0, stdout holds the answer and nothing else, and an error is
noted in the log of hooks and told to the person in the answer.
"""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from stepkeep.recording.coding_agents import hook_events, hook_process

TIMEOUT_SECONDS = 10
"""After so long a hook gives up, whatever it waits for. Long enough that a busy machine still saves."""

USAGE = """\
Usage: stepkeep hook EVENT [--client claude-code|gemini|codex] [--store URL]

Reads the JSON of a coding agent's event on stdin, saves what it tells, and answers on stdout. Agents run this; install
it with `stepkeep hooks install`. The exit code is always 0, so that an agent is never stopped.
"""


class Request:
    """The command line of a hook."""

    def __init__(self, args: Sequence[str]) -> None:
        self.client = hook_events.CLAUDE_CODE
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
    answer = answered(request, os.environ)
    if answer or request.client in hook_events.ANSWERS_ALWAYS:
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
    try:
        import json

        os.write(1, json.dumps(answer).encode() + b"\n")
    except OSError:
        pass  # nobody listens


def answered(request: Request, environ: Mapping[str, str]) -> dict[str, Any]:
    """The answer to an event; a problem becomes a message in it."""
    session = ""
    try:
        with hook_process.Timeout(TIMEOUT_SECONDS, "nothing was saved"):
            content = hook_events.read_input(0) if request.argument is None else request.argument
            event = hook_events.read_event(
                request.client, request.event, content, cwd=hook_process.cwd() or "/"
            )
            session = event.session
            from stepkeep.recording.coding_agents.responses import respond

            return respond(event, hook_process.store_url(request.store, environ, hook_process.cwd()), environ)
    except Exception as exc:  # the agent goes on, whatever it is
        return _told(request, environ, session, exc)


def _told(request: Request, environ: Mapping[str, str], session: str, exc: Exception) -> dict[str, Any]:
    code = getattr(exc, "code", None)
    code = code if isinstance(code, str) else type(exc).__name__
    message = str(exc) or type(exc).__name__
    is_news = hook_process.log_problem(
        environ, client=request.client, event=request.event, session=session, code=code, message=message
    )
    # A turn has many tools: trouble that lasts is told once in a while, not at every one of them.
    return (
        {"systemMessage": f"Stepkeep saved nothing at {request.event[:80]}: {message[:500]}"}
        if is_news
        else {}
    )
