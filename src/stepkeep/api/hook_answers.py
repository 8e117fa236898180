"""Answering the hooks of coding agents. Most tools that are about to be used need nothing: these are answered without a
store, and without importing what one needs."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from stepkeep.recording.coding_agents import hook_events
from stepkeep.recording.coding_agents.hook_notes import HookNotes


def answer_hook(
    client: str,
    event: str,
    content: bytes | None = None,
    *,
    store: str | None = None,
    environ: Mapping[str, str] = os.environ,
) -> dict[str, Any] | None:
    """Save what an event of a coding agent tells, and answer as its client expects; None is no answer at all.

    `content` is the JSON of the event, read from standard input unless given. Never raises: what goes wrong is noted in
    the log of hooks, and told to the person in the answer, now and then. Stores stay open, but for a large log.
    """
    if hook_events.EVENTS.get(client, {}).get(event) == hook_events.BEFORE_TOOL:
        with suppress(Exception):  # what makes no sense is told by who answers with a store
            content = hook_events.read_input(0) if content is None else content
            found = hook_events.read_event(client, event, content, cwd=os.getcwd())  # noqa: PTH109
            if _needs_nothing(found, environ):
                untold = HookNotes(environ, found.session).untold()
                answer = {"systemMessage": untold} if untold else {}
                return answer if answer or client in hook_events.ANSWERS_ALWAYS else None
    from stepkeep.api.agent_hooks import answer_event

    return answer_event(client, event, content, store=store, environ=environ)


def _needs_nothing(event: hook_events.HookEvent, environ: Mapping[str, str]) -> bool:
    """Whether a tool changes no files, or is harmless in a tree that has its capture."""
    from stepkeep.recording.coding_agents.destruction import destroyed_by
    from stepkeep.recording.coding_agents.environment import project_tree
    from stepkeep.recording.coding_agents.spool import is_being_saved, spool_root

    if not event.may_write:
        return True
    if is_being_saved(spool_root(environ), event.session) or destroyed_by(event.command, event.cwd):
        return False
    root = project_tree(event.cwd, environ)
    return root is None or HookNotes(environ, event.session).has_captured(root)
