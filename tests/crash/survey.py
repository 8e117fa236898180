"""What a store holds, and whether that is allowed after an operation was stopped.

Rules, from the promises R1 to R4: everything loads or is absent; what the operation does not touch is there; what was
acknowledged is there; a call that returned has its whole effect; and doing it again leads to the same end.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from stepkeep import Store
from stepkeep.errors import StepkeepError
from stepkeep.maintenance.space import sweep
from stepkeep.storage.sqlite import SqliteBackend
from tests.crash.operations import BACKUP, COPY
from tests.crash.stores import Operation, backend_of, later, opened

Checkpoints = dict[str, dict[int, Any]]


@dataclass
class Survey:
    sessions: Checkpoints = field(default_factory=dict)
    findings: list[str] = field(default_factory=list)


def survey(store: Store, *, verify: bool) -> Survey:
    """Load everything."""
    found = Survey()
    for info in store.sessions():
        session = store.get(info.key)
        states = {header.seq: session.load(header.id).state for header in session.history(branch=None)}
        found.sessions[info.key] = states
        newest = session.latest() if states else None
        if newest is not None and newest.fallback is not None:
            found.findings.append(f"{info.key}: the newest checkpoint is not whole: {newest.fallback}")
    if verify:
        found.findings += [str(finding) for finding in store.verify().findings]
    return found


def survey_at(kind: str, root: Path, *, verify: bool = True) -> Survey:
    with opened(kind, root) as store:
        return survey(store, verify=verify)


@dataclass
class Expected:
    """What was there before the operation, and what is there after it."""

    before: Checkpoints
    after: Checkpoints
    during: Checkpoints
    extras: tuple[str, ...]
    """Databases beside the store that the operation makes."""


def expected_of(operation: Operation, kind: str, before_root: Path | None, after_root: Path) -> Expected:
    before = survey_at(kind, before_root).sessions if before_root is not None else {}
    extras = tuple(name for name in (BACKUP, COPY) if (after_root / name).exists())
    return Expected(before, survey_at(kind, after_root).sessions, operation.during, extras)


def judge(operation: Operation, kind: str, root: Path, expected: Expected, said: list[str]) -> list[str]:
    """What is wrong with the store that was left; empty when all promises hold."""
    logging.disable(logging.CRITICAL)
    try:
        return _problems(operation, kind, root, expected, said)
    except StepkeepError as exc:
        return [f"unusable: {type(exc).__name__} {exc.code}: {exc}"]
    except Exception as exc:
        return [f"unusable: {type(exc).__name__}: {exc}"]
    finally:
        logging.disable(logging.NOTSET)


def _problems(operation: Operation, kind: str, root: Path, expected: Expected, said: list[str]) -> list[str]:
    problems = [line for line in said if line.startswith("BUG")]
    is_done = "OK" in said or "AGAIN OK" in said
    problems += [
        f"a repeat in the same process failed: {line}" for line in said if line.startswith("AGAIN ERR")
    ]
    acked = [(key, int(seq)) for _, key, seq in (line.split(" ") for line in said if line.startswith("ACK "))]
    with opened(kind, root) as store:
        found = survey(store, verify=False)
        problems += operation.at_any_time(store, root)
        if is_done and not _is_doubtful(operation, said):
            problems += operation.when_done(store, root)
    problems += found.findings
    problems += compare(found.sessions, expected, acked, operation.adds_to, is_done=is_done)
    for name in expected.extras:
        problems += _extra(root / name, expected, is_done=is_done)
    if problems:
        return problems
    return _again(operation, kind, root, expected)


def _is_doubtful(operation: Operation, said: list[str]) -> bool:
    """Whether it was told that what is in place may not be durable; a repeat cannot know better."""
    return any(f"ERR {code}" in said for code in operation.doubts)


def compare(
    found: Checkpoints, expected: Expected, acked: list[tuple[str, int]], adds_to: str = "", *, is_done: bool
) -> list[str]:
    problems = []
    before, after = expected.before, expected.after
    for key, states in found.items():
        for seq, state in states.items():
            if key == adds_to and seq not in before.get(key, {}):
                continue
            known = [side[key][seq] for side in (before, expected.during, after) if seq in side.get(key, {})]
            if state not in known:
                problems.append(f"{key} {seq} is {str(state)[:80]}, not one of {str(known)[:160]}")
    for key in before.keys() & after.keys():
        for seq in before[key].keys() & after[key].keys():
            if seq not in found.get(key, {}):
                problems.append(f"{key} {seq} was there before and is lost")
    for key, seq in acked:
        is_kept = seq in after.get(key, {})
        if is_kept and seq not in found.get(key, {}):
            problems.append(f"{key} {seq} was acknowledged and is lost")
    one, other = _shape(found, adds_to), _shape(after, adds_to)
    if is_done and one != other:
        problems.append(f"it returned, and {one} is there instead of {other}")
    return problems


def _shape(sessions: Checkpoints, adds_to: str = "") -> dict[str, list[int]]:
    return {key: sorted(states) for key, states in sorted(sessions.items()) if key != adds_to}


def _extra(path: Path, expected: Expected, *, is_done: bool) -> list[str]:
    """A database that is there under its name is whole, or at least opens and has nothing wrong in it."""
    if not path.exists():
        return [f"it returned, and {path.name} is lost"] if is_done else []
    if path.name == COPY and not is_done and path.stat().st_size == 0:
        return []  # a store in the making
    with Store(SqliteBackend(path)) as store:
        found = survey(store, verify=True)
    is_whole = found.sessions == expected.before
    if path.name == COPY and not is_done:
        is_part = all(
            expected.before.get(key, {}).get(seq) == state
            for key, states in found.sessions.items()
            for seq, state in states.items()
        )
        return [] if is_part else [f"{path.name} has wrong data: {found.sessions}"]
    return found.findings + ([] if is_whole else [f"{path.name} is not whole: {_shape(found.sessions)}"])


def _again(operation: Operation, kind: str, root: Path, expected: Expected) -> list[str]:
    """Do it again, which must work; then the end is the same, verified, and nothing is left lying about."""
    said: list[str] = []
    with opened(kind, root) as store:
        operation.act(store, root, said.append)
    with Store(backend_of(kind, root, clock=later)) as store:
        sweep(store.engine)
        found = survey(store, verify=True)
        problems = found.findings + operation.at_any_time(store, root) + operation.when_done(store, root)
        problems += operation.in_the_end(store, root)
    again = compare(found.sessions, expected, [], operation.adds_to, is_done=True)
    problems += [f"done again: {problem}" for problem in again]
    left = [path for path in root.rglob("*") if path.name.startswith(".tmp-")]
    problems += [f"left over: {path.relative_to(root)}" for path in left]
    return problems


Judge = Callable[[Path, list[str]], list[str]]
