"""What an agent does with its own state, through whichever surface: save it, and page through what was saved."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime
from itertools import islice
from typing import Any

import msgspec

from stepkeep.api import Store
from stepkeep.codec import exact
from stepkeep.errors import Conflict, Corrupt, InvalidInput
from stepkeep.history.paths import ROOT, find, format_path, parse_path
from stepkeep.model import Header, Status, TriggerKind, check_text
from stepkeep.operations.views import stored_count
from stepkeep.storage.port import HeaderQuery


class AgentEntry(msgspec.Struct, frozen=True, kw_only=True):
    """A checkpoint of an agent without its state."""

    id: str
    session: str
    seq: int
    branch: str
    time: datetime
    step: int
    status: Status
    trigger: TriggerKind
    description: str
    tags: tuple[str, ...]
    duration_ms: int | float
    token_usage: int | None
    size_bytes: int


class AgentPage(msgspec.Struct, frozen=True, kw_only=True):
    """Checkpoints of a session, newest first. `next_before` is where the next page begins, None at the end."""

    session: str
    status: Status
    branch: str
    total: int
    checkpoints: tuple[AgentEntry, ...]
    next_before: int | None


def save_agent_state(
    store: Store,
    key: str,
    state: Mapping[str, Any],
    *,
    description: str = "",
    project: str | None = None,
) -> AgentEntry:
    """Save the state of an agent as the next checkpoint of its session, which is made if need be, with trigger auto.

    Input that is refused leaves nothing behind.

    Raises:
        Conflict: the configuration switches checkpoints of agents off (`checkpoints_disabled`).
    """
    if not store.settings["agent.checkpoints.enabled"]:
        raise Conflict(
            "nothing was saved: agent.checkpoints.enabled is false in the configuration",
            code="checkpoints_disabled",
            retryable=False,
            session=key,
        )
    check_text("a description", description)
    saved = store.agents.save(key, project, state, description=description)
    return _entry(saved.session, store.engine.header(saved.id))


def page_of_checkpoints(store: Store, key: str, *, limit: int, before: int | None = None) -> AgentPage:
    """So many checkpoints of a session, on whichever branch, newest first, with numbers below `before`."""
    if limit < 1:
        raise InvalidInput(f"limit counts checkpoints: 1 or more, not {limit}", code="invalid_option")
    info = store.get(key).info
    query = HeaderQuery(session=info.uid, max_seq=None if before is None else before - 1)
    headers = list(islice(store.engine.headers(query), limit + 1))
    return AgentPage(
        session=info.key,
        status=info.status,
        branch=info.branch,
        total=stored_count(info),
        checkpoints=tuple(_entry(info.key, header) for header in headers[:limit]),
        next_before=headers[limit - 1].seq if len(headers) > limit else None,
    )


def _entry(key: str, header: Header) -> AgentEntry:
    usage = header.metadata.get("tokenUsage")
    return AgentEntry(
        id=header.id,
        session=key,
        seq=header.seq,
        branch=header.branch,
        time=header.created_at,
        step=header.step or 0,
        status=header.status,
        trigger=header.trigger.kind,
        description=header.message,
        tags=header.tags,
        duration_ms=header.metadata.get("durationMs", 0),
        token_usage=usage if isinstance(usage, int) else None,
        size_bytes=header.size_bytes,
    )


# --- parts of a state that is too large to show ----------------------------------------------------------------


class StatePart(msgspec.Struct, frozen=True, kw_only=True):
    """One value of a state: where it is, what it is, and how many bytes it takes."""

    path: str
    kind: str
    size_bytes: int


def parts_of(state: object, path: str = ROOT, *, limit: int) -> tuple[StatePart, ...]:
    """The values right below a place in a state, the first ones; those that have no path are left out."""
    steps = parse_path(path)
    value = find(state, steps)
    if isinstance(value, dict):
        below: Iterator[tuple[Any, Any]] = iter(value.items())
    elif isinstance(value, list | tuple):
        below = iter(enumerate(value))
    else:
        return ()
    return tuple(
        StatePart(
            path=format_path((*steps, step)), kind=type(each).__name__, size_bytes=len(exact.encode(each)[1])
        )
        for step, each in islice(below, limit)
    )


def state_of_tags(tree: object) -> Any:
    """The state that a document with tags stands for, as `show` and `export` print it.

    Raises:
        InvalidInput: it is no such document (`invalid_tags`).
    """
    try:
        return exact.decode(exact.TAGGED, exact.encode(tree)[1])
    except Corrupt as exc:
        raise InvalidInput(
            f"the state does not follow the encoding json+tags: {exc}", code="invalid_tags"
        ) from exc


def check_plain(state: object) -> None:
    """Refuse numbers that JSON cannot hold, which some readers of JSON make of texts like 1e999.

    Raises:
        InvalidInput: with code `invalid_json`.
    """
    encoding, content = exact.encode(state)
    if encoding == exact.TAGGED and b'{"$float":' in content:
        raise InvalidInput(
            "the state has a number that is no finite number: save it as text", code="invalid_json"
        )
