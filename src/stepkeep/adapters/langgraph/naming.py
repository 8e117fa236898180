"""How LangGraph's names become names of Stepkeep, and back: threads, namespaces, runs.

LangGraph takes any text, also empty, with NUL, or 10,000 characters long. What Stepkeep would not take as a name is
named by its digest, and the text itself is stored beside it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any, Final

import msgspec
from langchain_core.runnables import RunnableConfig

from stepkeep.errors import InvalidInput
from stepkeep.model import MAIN_BRANCH, check_branch_name, check_name

WORKFLOW: Final = "langgraph"
"""The workflow of every session that is a thread: what tells it from other sessions of the store."""

THREAD_ID: Final = "thread_id"
_THREAD: Final = "thread#"
_NAMESPACE: Final = "ns:"
_HASHED_NAMESPACE: Final = "ns#"
_RUN: Final = "run:"
_HASHED_RUN: Final = "run#"


class Place(msgspec.Struct, frozen=True, kw_only=True):
    """What a config names: a thread, a namespace in it, and maybe one checkpoint there."""

    thread: str
    namespace: str = ""
    checkpoint: str | None = None

    @property
    def key(self) -> str:
        """The key of the thread's session."""
        return session_key(self.thread)

    @property
    def branch(self) -> str:
        return branch_of(self.namespace)

    def config(self, checkpoint: str | None = None) -> RunnableConfig:
        """The config that names a checkpoint here."""
        return {
            "configurable": {
                "thread_id": self.thread,
                "checkpoint_ns": self.namespace,
                "checkpoint_id": self.checkpoint if checkpoint is None else checkpoint,
            }
        }


def place_of(config: RunnableConfig) -> Place:
    """The place that a config names.

    Raises:
        InvalidInput: it has no thread id (`thread_id_missing`), or a name of it is no text.
    """
    configurable = config.get("configurable") or {}
    return Place(
        thread=thread_of(config),
        namespace=_text("checkpoint_ns", configurable.get("checkpoint_ns") or ""),
        checkpoint=checkpoint_of(config),
    )


def thread_of(config: RunnableConfig) -> str:
    thread = (config.get("configurable") or {}).get("thread_id")
    if thread is None:
        raise InvalidInput(
            'the config has no thread id: pass {"configurable": {"thread_id": "…"}}', code="thread_id_missing"
        )
    return _text("thread_id", thread)


def checkpoint_of(config: RunnableConfig) -> str | None:
    """The checkpoint id that a config names, None without one."""
    checkpoint = (config.get("configurable") or {}).get("checkpoint_id")
    return _text("checkpoint_id", checkpoint) if checkpoint else None


def _text(what: str, value: object) -> str:
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise InvalidInput(f"{what} must be text, not {type(value).__name__}", code="invalid_name")
    return str(value)


# --- threads


def session_key(thread: str) -> str:
    """The key of a thread's session: the thread id itself where that can be a key."""
    is_plain = not thread.startswith(_THREAD) and _is_name(thread)
    return thread if is_plain else _THREAD + _digest(thread)


def session_metadata(thread: str) -> dict[str, Any]:
    """What a session must remember to give its thread id back."""
    return {} if session_key(thread) == thread else {THREAD_ID: json.dumps(thread)}


def thread_named(key: str, metadata: Mapping[str, Any]) -> str:
    """The thread id of a session."""
    stored = metadata.get(THREAD_ID)
    return key if stored is None else str(json.loads(stored))


# --- namespaces


def branch_of(namespace: str) -> str:
    """The branch of a namespace: `main` for the root, `ns:NAME` for others, unless that reads like a ref."""
    if not namespace:
        return MAIN_BRANCH
    name = _NAMESPACE + namespace
    try:
        return check_branch_name(name)
    except InvalidInput:
        return _HASHED_NAMESPACE + _digest(namespace)


def hidden_namespace(namespace: str) -> str | None:
    """What a header must remember of a namespace because its branch does not tell it."""
    return json.dumps(namespace) if branch_of(namespace).startswith(_HASHED_NAMESPACE) else None


def namespace_of(branch: str, hidden: str | None) -> str:
    """The namespace of a branch, given what its headers remember."""
    if hidden is not None:
        return str(json.loads(hidden))
    return "" if branch == MAIN_BRANCH else branch.removeprefix(_NAMESPACE)


def is_namespace(branch: str) -> bool:
    """Whether a branch is one of a namespace, and not one that somebody made beside them."""
    return branch == MAIN_BRANCH or branch.startswith((_NAMESPACE, _HASHED_NAMESPACE))


# --- runs


def run_tag(run: str) -> str:
    """The tag by which the checkpoints of a run are found."""
    tag = _RUN + run
    return tag if _is_name(tag) else _HASHED_RUN + _digest(run)


def _is_name(text: str) -> bool:
    try:
        check_name("a name", text)
    except InvalidInput:
        return False
    return True


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
