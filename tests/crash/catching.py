"""Which method finds which seeded bug."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from tests.crash import power, short, tracing
from tests.crash.operations import OPERATIONS
from tests.crash.points import KILL, ON, ONCE, Outcome, Scene


class Catch(NamedTuple):
    bug: str
    operation: str
    kind: str
    method: str
    call: str = ""
    """The name of the call at which a fault shows it; empty for any."""


PLAIN = "no fault"

CATCHES = (
    Catch("no_sync", "save", "files-run", power.METHOD),
    Catch("no_directory_sync", "save", "files-phase", power.METHOD),
    Catch("no_sync_at_creation", "first save", "sqlite", power.METHOD),
    Catch("acknowledged_before_the_commit", "save", "sqlite", KILL),
    Catch("pointer_overwritten_in_place", "save", "files-workflow", KILL),
    Catch("failed_sync_swallowed", "save", "files-phase", power.SYNCS),
    Catch("failed_sync_retried", "save", "files-phase", power.SYNCS),
    Catch("write_count_ignored", short.LARGE.name, "files-phase", short.METHOD),
    Catch("failed_write_swallowed", "save", "files-phase", ONCE, "write"),
    Catch("prune_takes_the_newest", "prune", "sqlite", PLAIN),
    Catch("original_removed_before_its_copy", "gzip", "files-run", KILL),
    Catch("documents_removed_before_the_commit", "prune", "files-phase", KILL),
    Catch("wal_normal", "save", "sqlite", power.METHOD),
    Catch("rollback_journal", "save", "sqlite", power.METHOD),
    Catch("failed_commit_left_in_the_log", "first save", "files-workflow", ON),
    Catch("files_stored_with_the_commit", "capture of files", "files-phase", KILL),
    Catch("restored_names_not_synced", "restore of files", "sqlite", power.METHOD),
    Catch("files_replaced_before_they_are_safe", "restore of files", "sqlite", KILL),
)


def run_plain(scene: Scene) -> Outcome:
    outcome = Outcome()
    scene.fresh()
    run = tracing.run(scene.operation, scene.kind, scene.root, bug=scene.bug, trace=False)
    outcome.note(PLAIN, scene.judge(run.said))
    return outcome


def _faults(method: str) -> Callable[[Scene, str], Outcome]:
    def find(scene: Scene, name: str) -> Outcome:
        outcome = Outcome()
        faults = [each for each in scene.faults(reads=False) if each.method == method]
        for fault in reversed([each for each in faults if name in ("", each.call.name)]):
            outcome.note(str(fault), scene.inject(fault))
            if outcome.violations:
                break
        return outcome

    return find


FIND: dict[str, Callable[[Scene, str], Outcome]] = {
    PLAIN: lambda scene, _: run_plain(scene),
    KILL: _faults(KILL),
    ONCE: _faults(ONCE),
    ON: _faults(ON),
    power.METHOD: lambda scene, _: power.replay(scene, scene.recording.calls, limit=8, stop_at=1),
    power.SYNCS: lambda scene, _: power.replay_failed_syncs(scene, limit=8, stop_at=1),
    short.METHOD: lambda scene, _: short.shorten(scene, (400_000, 500_000)),
}


def caught(catch: Catch) -> Outcome:
    """What the method finds in an operation with the bug."""
    known = {**OPERATIONS, short.LARGE.name: short.LARGE}
    with Scene(known[catch.operation], catch.kind, bug=catch.bug) as scene:
        return FIND[catch.method](scene, catch.call)
