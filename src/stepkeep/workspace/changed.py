"""Whether the project was changed since it was captured, and telling whoever wants to know."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from stepkeep.engine import Engine
from stepkeep.workspace.capture import DEFAULT_LIMITS, Limits
from stepkeep.workspace.compare import FileComparison, compare_files
from stepkeep.workspace.known import look_at, newest_capture
from stepkeep.workspace.manifest import Manifest


class CodeChanges(msgspec.Struct, frozen=True, kw_only=True):
    """What changed since the newest capture: the paths, and the commit where the repository stands now."""

    paths: tuple[str, ...]
    commit: str | None
    is_commit_new: bool
    comparison: FileComparison


def code_changed(
    engine: Engine,
    session: str,
    root: str,
    *,
    notify: Callable[[tuple[str, ...], str | None], object] | None = None,
    limits: Limits = DEFAULT_LIMITS,
) -> CodeChanges | None:
    """Compare the tree with its newest capture in a session; None when nothing changed. Nothing is stored.

    A tree that was never captured has changed in all its files. When something changed, `notify` is called with the
    paths and the commit: what reacts to modified code takes exactly these two.
    """
    found = newest_capture(engine, session, root)
    before = Manifest(root=root) if found is None else found[1]
    now = look_at(engine, session, root, limits=limits).manifest
    comparison = compare_files(before, now)
    old, new = _commit(before), _commit(now)
    if not comparison.changes and old == new:
        return None
    changes = CodeChanges(
        paths=tuple(change.path for change in comparison.changes),
        commit=new,
        is_commit_new=old != new,
        comparison=comparison,
    )
    if notify is not None:
        notify(changes.paths, changes.commit)
    return changes


def _commit(manifest: Manifest) -> str | None:
    return None if manifest.git is None else manifest.git.commit
