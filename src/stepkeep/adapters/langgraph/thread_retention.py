"""Which checkpoints of a thread stay.

The rules are those of its session, and the store's keeper applies them. What a delta channel is rebuilt from is
required by the checkpoint that needs it, and pending writes, interrupts among them, go only with their checkpoint.
The newest checkpoint of every namespace stays too: a subgraph may be waiting there. Once the checkpoint of the outer
graph that called a subgraph is gone, nothing can resume that call, and its namespace is let go.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any, Final, cast

import msgspec

from stepkeep.adapters.langgraph.records import namespace_of_header
from stepkeep.adapters.langgraph.threads import KEEPS_ALL
from stepkeep.api import PruneReport, RetentionRules
from stepkeep.api.extension import (
    Engine,
    HeaderQuery,
    Retention,
    apply_prune,
    change_branch,
    close_branch_at,
    plan_prune,
    retention_for,
)
from stepkeep.model import MAIN_BRANCH, Branch, BranchState, Header, SessionInfo

RELEASE_EVERY: Final = 64
"""After how many puts a saver looks for namespaces that can be let go."""

_CALL: Final = ":"
_LEVEL: Final = "|"


def rules_of(
    *, keep_last: int | None, max_age: timedelta | str | None, max_bytes: int | str | None
) -> RetentionRules:
    """The rules that are given; none keep everything.

    Raises:
        InvalidInput: one of them makes no sense (`invalid_setting`).
    """
    given = {"keep_last": keep_last, "max_age": max_age, "max_bytes": max_bytes}
    rules = cast(RetentionRules, {name: value for name, value in given.items() if value is not None})
    retention_for(KEEPS_ALL, rules)
    return rules


def keep_latest(engine: Engine, session: SessionInfo) -> PruneReport:
    """Remove all but the newest checkpoint of each namespace, and what those need."""
    plan = plan_prune(engine, session, Retention(keep_last=1), now_us=engine.clock())
    return apply_prune(engine, plan)


def release(engine: Engine, session: SessionInfo) -> None:
    """Let namespaces of subgraph calls go whose calling checkpoint is no longer stored."""
    for branch in _abandoned(engine, session):
        unpinned = msgspec.structs.replace(branch, is_pinned=False)
        close_branch_at(engine, session.uid, unpinned, BranchState.ARCHIVED)


def hold(engine: Engine, header: Header) -> None:
    """Open a namespace again that was let go, once somebody puts into it: the call goes on after all."""
    branch = engine.backend.branch(header.session, header.branch)
    if branch is not None and branch.state is BranchState.ARCHIVED:
        change_branch(engine, header.session, branch, state=BranchState.OPEN, is_pinned=True)


def _abandoned(engine: Engine, session: SessionInfo) -> Iterator[Branch]:
    branches = engine.backend.branches(session.uid)
    newest = max((branch.head_seq for branch in branches if branch.name == MAIN_BRANCH), default=0)
    for branch in branches:
        if branch.name == MAIN_BRANCH or branch.head is None or branch.state is not BranchState.OPEN:
            continue
        if branch.head_seq > newest:
            continue  # the checkpoint that called it may still be on its way
        head = next(engine.headers(HeaderQuery(session=session.uid, ids=(branch.head,), limit=1)), None)
        if head is not None and _is_abandoned(engine, head):
            yield branch


def _is_abandoned(engine: Engine, head: Header) -> bool:
    """A namespace that ends in a call (`node:id`) belongs to that call alone; others live on between runs."""
    if _CALL not in namespace_of_header(head).rpartition(_LEVEL)[2]:
        return False
    parents: Any = head.metadata.get("parents")
    caller = parents.get("") if isinstance(parents, dict) else None
    if not isinstance(caller, str) or not caller:
        return False
    query = HeaderQuery(session=head.session, branch=MAIN_BRANCH, external_id=caller, limit=1)
    return next(engine.backend.headers(query), None) is None
