"""Trying the hooks of a coding agent: sample inputs for its events, real processes, and a store that goes again."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any, Final

import msgspec

from stepkeep.api.opening import open
from stepkeep.config.store_names import default_url
from stepkeep.recording.coding_agents.installing import events_of, program_of

SECONDS: Final = 30
_SAMPLE: Final[dict[str, Any]] = {
    "session_id": "stepkeep-trial",
    "source": "startup",
    "prompt": "Try whether hooks work here",
    "prompt_response": "They do.",
    "last_assistant_message": "They do.",
    "tool_name": "Bash",
    "tool_input": {"command": "true", "description": "nothing"},
    "tool_response": {"stdout": ""},
    "error": "a sample of a failure",
    "task_id": "1",
    "task_subject": "Try the hooks",
    "trigger": "auto",
    "reason": "other",
}
_OF_FAILURES: Final = ("error",)


class EventTried(msgspec.Struct, frozen=True, kw_only=True):
    """What became of one event: how many checkpoints it left, what was answered, and how long the agent waited."""

    event: str
    checkpoints: int
    answer: str
    milliseconds: float
    problem: str | None = None


class HooksTrial(msgspec.Struct, frozen=True, kw_only=True):
    """The hooks of a client with sample events. `store` is where real events go; the samples went elsewhere."""

    client: str
    program: str
    is_installed: bool
    store: str
    events: tuple[EventTried, ...]

    @property
    def is_working(self) -> bool:
        return all(each.problem is None for each in self.events)


def try_hooks(client: str, *, store: str | None = None) -> HooksTrial:
    """Replay the events of a client by what is installed for it, or by this program where nothing is.

    Raises:
        InvalidInput: there is no such client.
    """
    program, is_installed = program_of(client)
    with tempfile.TemporaryDirectory(prefix="stepkeep-trial-") as folder:
        events = tuple(_tried(client, event, program, Path(folder)) for event in events_of(client))
    return HooksTrial(
        client=client,
        program=program,
        is_installed=is_installed,
        store=store or default_url(),
        events=events,
    )


def _tried(client: str, event: str, program: str, folder: Path) -> EventTried:
    url = f"sqlite:{folder / 'store.db'}"
    line = f"{program} hook {event} --client {client} --store {shlex.quote(url)}"
    sample = {
        name: value for name, value in _SAMPLE.items() if "Failure" in event or name not in _OF_FAILURES
    }
    content = json.dumps({**sample, "cwd": str(folder), "hook_event_name": event})
    log = folder / "hooks.log"
    environment = {**os.environ, "STEPKEEP_PHASES": str(folder / "phases"), "STEPKEEP_HOOK_LOG": str(log)}
    began = time.perf_counter()
    try:
        done = subprocess.run(
            ["/bin/sh", "-c", line],
            input=content,
            capture_output=True,
            text=True,
            cwd=folder,
            env=environment | {"XDG_STATE_HOME": str(folder)},
            timeout=SECONDS,
            check=False,
        )
        problem = _problem(done, log)
        answer = done.stdout.strip()
    except (OSError, subprocess.SubprocessError) as exc:
        answer, problem = "", str(exc)
    milliseconds = round((time.perf_counter() - began) * 1e3, 1)
    return EventTried(
        event=event,
        checkpoints=_saved(url),
        answer=answer,
        milliseconds=milliseconds,
        problem=problem,
    )


def _problem(done: subprocess.CompletedProcess[str], log: Path) -> str | None:
    if done.returncode:
        return (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1][:300]
    noted = log.read_text(encoding="utf-8", errors="replace") if log.exists() else ""
    log.unlink(missing_ok=True)
    return str(json.loads(noted.splitlines()[-1])["message"]) if noted else None


def _saved(url: str) -> int:
    if not Path(url.removeprefix("sqlite:")).exists():
        return 0
    with open(url) as store:
        return store.usage().checkpoints
