"""Quick fixes: what to do about an error, derived from its code alone.

`{session}` in a command stands for the one that the error names; where it names none, SESSION is to be filled in. A
code without an entry of its own has the advice of its class.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping
from typing import Final

from stepkeep import errors
from stepkeep.errors import (
    CHECKSUM_MISSING,
    INTEGRITY_MISMATCH,
    LATEST_STALE,
    PRUNE_FAILED,
    SCHEMA_INVALID,
    WRITE_FAILED,
    StepkeepError,
)

_LOOK_FOR_DAMAGE: Final = "stepkeep verify {session}"
_REPAIR: Final = "stepkeep verify --repair"
_FREE_SPACE: Final = "free space on the disk, or name a store on another one with --store"
_LESS_HISTORY: Final = "stepkeep prune --all --dry-run"
_HELP: Final = "see the command's --help"

FIXES: Final[dict[str, tuple[str, ...]]] = {
    # the codes that the snapshot lifecycle names
    SCHEMA_INVALID: (
        _LOOK_FOR_DAMAGE,
        "stepkeep show {session} latest",
        "stepkeep import files DIR --layout L",
    ),
    INTEGRITY_MISMATCH: (_LOOK_FOR_DAMAGE, "stepkeep show {session} latest", "stepkeep doctor"),
    WRITE_FAILED: (_FREE_SPACE, "stepkeep doctor", "save again: nothing was stored"),
    PRUNE_FAILED: ("stepkeep doctor", "stepkeep prune {session} --dry-run", _LOOK_FOR_DAMAGE),
    # not found
    "store_not_found": ("save something first", "name the store with --store", "stepkeep config show"),
    "session_not_found": ("stepkeep list",),
    "checkpoint_not_found": ("stepkeep list {session}", "stepkeep history {session}"),
    "branch_not_found": ("stepkeep branch {session}",),
    "path_not_found": ("stepkeep show {session}",),
    "nothing_to_resume": ("run it without resuming",),
    "nothing_to_approve": ("stepkeep resume",),
    # conflicts
    "head_moved": ("load again, decide again, then save",),
    "lease_held": ("wait until the other process ended", "stepkeep status {session}"),
    "lease_lost": ("stop this writer: another one works on the session",),
    "branch_exists": ("stepkeep branch {session}", "choose another name"),
    "branch_closed": ("stepkeep branch reopen {session} NAME",),
    "merge_conflict": ("merge again with --on-conflict, or resolve it by hand",),
    "session_exists": ("name another session with --session", "stepkeep show {session}"),
    "plan_changed": ("look at the differences, then resume with --force",),
    "unfinished_work": ("stepkeep resume {session}", "choose another key, or use --force"),
    "refused": ("stepkeep approve {session}", "go on without the step"),
    "question_expired": ("start over, and answer in time",),
    # damage
    "no_valid_checkpoint": (
        _LOOK_FOR_DAMAGE,
        "stepkeep recover SRC DEST",
        "start the work afresh in a new session",
    ),
    "backup_damaged": ("stepkeep recover BACKUP DEST",),
    "schema_damaged": ("stepkeep recover SRC DEST", "restore a backup"),
    "checkpoint_missing": (_LOOK_FOR_DAMAGE, "restore a backup"),
    LATEST_STALE: (_REPAIR,),
    CHECKSUM_MISSING: (_REPAIR,),
    # the store
    "store_busy": ("try again", "stepkeep doctor"),
    "store_not_writable": ("check the permissions of the store's folder", "name another store with --store"),
    "store_budget_exceeded": (_LESS_HISTORY, "stepkeep clean --dry-run", "raise limits.max_bytes"),
    "disk_floor_reached": (_FREE_SPACE, _LESS_HISTORY, "lower limits.min_free_bytes"),
    "export_failed": ("check the folder of the output, or choose another one",),
    "driver_missing": ("install the extra of stepkeep that the message names",),
    "format_newer": ("upgrade stepkeep",),
    "schema_newer": ("upgrade stepkeep",),
    "network_file_system": ("put the store on a local disk", "use a PostgreSQL store"),
    # input
    "usage": (_HELP,),
    "invalid_config": ("stepkeep config check",),
    "untrusted_store": ("stepkeep trust",),
    "unknown_store_url": ("use sqlite:PATH, files:DIR?layout=run, postgresql:// or memory:",),
    "layout_mismatch": ("leave the layout out of the URL",),
    "not_a_store": ("name the file or directory of a store",),
    "file_exists": ("use --force to replace it", "choose another file"),
    "invalid_json": ("check the document with a JSON tool",),
    "invalid_ref": ("stepkeep history {session}",),
    "ambiguous_question": ("name the step with --step",),
    "ambiguous_ref": ("give more characters of the id",),
    "ambiguous_session": ("give more characters of the key",),
    "ambiguous_time": ("add the zone, such as +02:00",),
    "no_state": ("give a state with --state",),
    "state_too_large": ("keep large outputs outside the state",),
    "too_many_tags": ("use fewer tags",),
}

_BY_CLASS: Final[tuple[tuple[type[StepkeepError], tuple[str, ...]], ...]] = (
    (errors.NotFound, ("stepkeep list",)),
    (errors.Conflict, ("load again, then decide again",)),
    (errors.Corrupt, (_LOOK_FOR_DAMAGE, "stepkeep doctor")),
    (errors.BackendUnavailable, ("stepkeep doctor",)),
    (errors.Unsupported, ("upgrade stepkeep, or use another store",)),
    (errors.InvalidInput, (_HELP,)),
)


IMPORT_FIXES: Final[dict[str, tuple[str, ...]]] = {
    SCHEMA_INVALID: ("check that --layout is the one of these files", "get an intact copy of the file"),
    INTEGRITY_MISMATCH: ("get an intact copy of the file", "import it all the same with --accept-unverified"),
    "session_exists": FIXES["session_exists"],
    "external_id_exists": ("import into another session with --session",),
    "usage": ("name the session with --session",),
}
"""The same for files of other systems that an import skipped."""


_DAMAGED: Final = (
    "stepkeep show {session} latest",
    "bring the file back from a backup",
    "stepkeep delete {session} CHECKPOINT",
)
FOUND_DAMAGE: Final = FIXES | {SCHEMA_INVALID: _DAMAGED, INTEGRITY_MISMATCH: _DAMAGED}
"""The same where `verify` found it: looking again does not help."""


PASS: Final = "PASS"
WARN: Final = "WARN"
FAIL: Final = "FAIL"
"""The results of what checks many things, or does something to many."""


def fixes_for(error: StepkeepError, *, session: str | None = None) -> tuple[str, ...]:
    """What to do about an error, the best first; never empty. `session` is the one that was asked about."""
    found = FIXES.get(error.code)
    if found is None:
        found = next((fixes for kind, fixes in _BY_CLASS if isinstance(error, kind)), ("stepkeep doctor",))
    return tuple(_filled(fix, error.session or session) for fix in found)


def fixes_for_codes(
    codes: Iterable[str | None],
    *,
    session: str | None = None,
    table: Mapping[str, tuple[str, ...]] = FIXES,
) -> tuple[str, ...]:
    """What to do about several, each once, in the order of the codes."""
    found = [fix for code in codes if code is not None for fix in table.get(code, ())]
    return tuple(dict.fromkeys(_filled(fix, session) for fix in found))


def _filled(fix: str, session: str | None) -> str:
    return fix.replace("{session}", "SESSION" if session is None else shlex.quote(session))
