"""A coding agent: what its hook saves before the context is compacted, and how hooks get into its settings."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from unittest.mock import patch

from stepkeep import Store
from stepkeep.api import agent_hooks
from stepkeep.errors import StepkeepError
from stepkeep.recording.coding_agents.hook_events import CLAUDE_CODE
from stepkeep.recording.coding_agents.installing import install_hooks
from tests.crash.stores import SQLITE, Operation, Say, url_at

KEY = "claude-code:agent"
PROMPT = "move the invoices"


def respond(root: Path, event: str, **fields: Any) -> None:
    """Answer an event as `stepkeep hook` does; what went wrong is raised."""
    content = {"session_id": "agent", "hook_event_name": event, "cwd": str(root / "project"), **fields}
    environ = {"HOME": str(root / "home"), "PATH": ""}
    with failures() as failed, closed_stores():
        agent_hooks.answer_event(
            CLAUDE_CODE, event, json.dumps(content).encode(), store=url_at(root), environ=environ
        )
    if failed:
        raise failed[0]


@contextmanager
def failures() -> Iterator[list[Exception]]:
    """What a hook notes in its log: an agent is never told by a code or an exception."""
    failed: list[Exception] = []
    told = agent_hooks._told

    def noting(*args: Any) -> dict[str, Any]:
        failed.append(args[-1])
        return told(*args)

    with patch.object(agent_hooks, "_told", noting):
        yield failed


@contextmanager
def closed_stores() -> Iterator[None]:
    """A hook's process ends with its store open; here the process goes on."""
    opened = []
    open_store = agent_hooks.open

    def opening(*args: Any, **options: Any) -> Store:
        opened.append(open_store(*args, **options))
        return opened[-1]

    with patch.object(agent_hooks, "open", opening):
        yield
    for store in opened:
        with suppress(StepkeepError):
            store.close()


def working(store: Store, root: Path) -> None:
    """An agent that was asked for something, and used a tool: what it did waits for the next checkpoint."""
    (root / "project").mkdir()
    respond(root, "UserPromptSubmit", prompt=PROMPT)
    respond(root, "PostToolUse", tool_name="Bash", tool_input={"command": "ls"}, tool_response={"stdout": ""})
    store.session("other", profile="archive").save({"other": True})


def compact(store: Store, root: Path, say: Say) -> None:
    respond(root, "PreCompact", trigger="auto")


def is_known(store: Store, root: Path) -> list[str]:
    """What was asked for is never forgotten."""
    state = store.get(KEY).load().state
    return [] if state["prompt"] == PROMPT else [f"the newest state is {state}"]


def is_saved(store: Store, root: Path) -> list[str]:
    """The compaction, and once what had waited for it."""
    state = store.get(KEY).load().state
    is_whole = state.get("compacted") is True and len(state["recent"]) == 1
    return [] if is_whole else [f"the compaction is not in the newest state {state}"]


HOOK = Operation("hook", working, compact, adds_to=KEY, at_any_time=is_known, when_done=is_saved)


# --- the settings of an agent, which are a person's own file ---------------------------------------------------------

OWN = '{\n  "model": "large",\n  "hooks": {"Stop": [{"hooks": [{"type": "command", "command": "say done"}]}]}\n}\n'


def settings(root: Path) -> Path:
    return root / "project/.claude/settings.json"


def has_settings(store: Store, root: Path) -> None:
    store.session("other", profile="archive").save({"other": True})
    settings(root).parent.mkdir(parents=True)
    settings(root).write_text(OWN)


def install(store: Store, root: Path, say: Say) -> None:
    install_hooks(CLAUDE_CODE, "project", folder=root / "project")


def is_own(store: Store, root: Path) -> list[str]:
    """What a person wrote is there at every moment."""
    text = settings(root).read_text()
    has_own = text == OWN or ('"large"' in text and "say done" in text and json.loads(text))
    return [] if has_own else [f"the settings are {text[:200]!r}"]


def is_installed(store: Store, root: Path) -> list[str]:
    text = settings(root).read_text()
    kept = settings(root).with_name("settings.json.before-stepkeep")
    return [] if "stepkeep hook" in text and kept.read_text() == OWN else [f"the settings are {text[:200]!r}"]


INSTALL = Operation(
    "hooks install",
    has_settings,
    install,
    kinds=(SQLITE,),
    at_any_time=is_own,
    when_done=is_installed,
    doubts=("settings_not_writable",),
)
