"""Looking a store over: what it runs on, whether it is in order, and what to do about each thing that is not.

Every check is a small function that yields what it found. A check that cannot look says so instead of raising.
"""

from __future__ import annotations

import os
import platform
import shutil
import stat
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Final

import apsw
import msgspec

from stepkeep import __version__, config
from stepkeep.api.keys import finder_of
from stepkeep.config import Settings
from stepkeep.config.store_names import default_url
from stepkeep.engine import Engine, Save, reader
from stepkeep.errors import (
    CHECKSUM_MISSING,
    LATEST_STALE,
    PRUNE_FAILED,
    BackendUnavailable,
    Corrupt,
    NotFound,
    StepkeepError,
)
from stepkeep.maintenance.last_backup import BackupNote
from stepkeep.maintenance.space import counted_bytes, store_free_bytes
from stepkeep.maintenance.verify import Progress, verify
from stepkeep.model import SessionInfo, Status, new_uid, to_us, utc_now_us
from stepkeep.recording.coding_agents.hook_process import hook_trouble
from stepkeep.recording.coding_agents.installing import hooks_status
from stepkeep.secrets import url_without_password
from stepkeep.storage.disk import NETWORK_TYPES, file_system_type
from stepkeep.storage.key_slots import has_keys, unlocked
from stepkeep.storage.port import SessionQuery, TellsFacts
from stepkeep.storage.sqlite import OLDEST_SQLITE
from stepkeep.storage.urls import database_file, directory_of, open_backend
from stepkeep.text import count, size, span

SAMPLE_SESSIONS: Final = 20
LOOKED_AT_SESSIONS: Final = 500
STALE_SECONDS: Final = 3600
STALLED_US: Final = 24 * 3600 * 1_000_000
LITTLE_SPACE_BYTES: Final = 256 * 1024 * 1024
LARGE_LOG_BYTES: Final = 64 * 1024 * 1024
NEAR_BUDGET: Final = 0.9


class Symptom(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that was looked at, and what to do about it. `verdict` is ok, note, warning or problem."""

    name: str
    verdict: str
    message: str
    advice: str | None = None


class Diagnosis(msgspec.Struct, frozen=True, kw_only=True):
    """What `doctor` found. Healthy is a store without problems; it may have warnings."""

    store: str
    is_healthy: bool
    symptoms: tuple[Symptom, ...]


Found = Iterator[Symptom]


def _symptom(verdict: str, name: str, message: str, advice: str | None = None) -> Symptom:
    return Symptom(name=name, verdict=verdict, message=message, advice=advice)


_ok = partial(_symptom, "ok")
_note = partial(_symptom, "note")
_warning = partial(_symptom, "warning")
_problem = partial(_symptom, "problem")


def _else_ok(troubles: Iterable[Symptom], name: str, message: str) -> Found:
    """The troubles, or that there are none."""
    yield from list(troubles) or [_ok(name, message)]


def diagnose(
    url: str | None = None, *, full: bool = False, trial: bool = True, progress: Progress | None = None
) -> Diagnosis:
    """Everything worth knowing about a store and what it runs on. Never raises for what is sick.

    The newest checkpoint of the sessions used last is verified; with `full` every byte is. With `trial` a
    store that exists gets a small save of its own, which is read back and removed; nothing else is created.
    """
    symptoms = [*_versions(), *_configuration(), *_agents()]
    settings, _ = config.inspect_here({"store": url})
    place = url
    if place is None:
        with suppress(StepkeepError):  # the configuration is too wrong to say which store is meant
            place = default_url()
    if place is not None:
        symptoms += [*_surroundings(place), *_store(place, settings, full, trial, progress)]
    return Diagnosis(
        store="unknown" if place is None else url_without_password(place),
        is_healthy=not any(each.verdict == "problem" for each in symptoms),
        symptoms=tuple(symptoms),
    )


# --- what it runs on -------------------------------------------------------------------------------------------


def _versions() -> Found:
    yield _ok("versions", f"stepkeep {__version__}, Python {platform.python_version()}")
    library = apsw.sqlite_lib_version()
    if tuple(map(int, library.split("."))) < OLDEST_SQLITE:
        yield _problem("sqlite", f"SQLite {library} can corrupt a store", "upgrade apsw to 3.51.3 or newer")
    else:
        yield _ok("sqlite", f"SQLite {library}, bundled with apsw")


def _configuration() -> Found:
    settings, problems = config.inspect_here({})
    advice = "correct it; `stepkeep config` shows all keys"
    used = ", ".join(each.path for each in settings.files if each.is_used)
    troubles = (_problem("configuration", problem.text, advice) for problem in problems)
    yield from _else_ok(troubles, "configuration", used or "defaults, no file")


def _agents() -> Found:
    """Coding agents that call us: their hooks, and whether the MCP server could run."""
    status = hooks_status()
    for file in status.files:
        place = f"{file.client} ({file.scope}: {file.path})"
        if file.problem is not None:
            yield _warning(
                "hooks", f"{place}: {file.problem}", "correct the file, then `stepkeep hooks status`"
            )
        elif file.events and file.missing:
            yield _warning(
                "hooks",
                f"{place} lacks {', '.join(file.missing)}",
                f"`stepkeep hooks install --client {file.client}`",
            )
        elif file.events:
            yield _ok("hooks", place)
    if trouble := hook_trouble(utc_now_us()):
        yield _warning("hooks", trouble, "`stepkeep hooks status` lists it")
    elif not any(file.events or file.problem for file in status.files):
        yield _ok("hooks", "no coding agent calls them")
    try:
        yield _ok("mcp", f"the MCP server can run (mcp {version('mcp')})")
    except PackageNotFoundError:
        yield _ok("mcp", "not installed: `pip install stepkeep[mcp]` if an agent is to use it")


# --- where it lies ---------------------------------------------------------------------------------------------


def _surroundings(url: str) -> Found:
    directory = directory_of(url)
    place = database_file(url) or directory
    if place is None or not place.exists():
        return
    files = [place.parent, place, *(Path(f"{place}{ending}") for ending in ("-wal", "-shm"))]
    paths = [path for path in files if path.exists()] if directory is None else [place]
    yield from _else_ok(_permissions(paths), "permissions", "only you can read the store")
    yield from _file_system(place)
    yield from _else_ok(_leftovers(place.parent), "leftovers", "none")


def _permissions(paths: list[Path]) -> Found:
    for path in filter(_is_open_to_others, paths):
        mode = stat.S_IMODE(path.stat().st_mode)
        right = "700" if path.is_dir() else "600"
        message = f"{path} is open to others (mode {mode:03o})"
        yield _warning("permissions", message, f"chmod {right} '{path}'")
    for path in paths:
        if (owner := path.stat().st_uid) != os.geteuid():
            yield _warning("permissions", f"{path} belongs to user {owner}, not to you", "run as its owner")


def _is_open_to_others(path: Path) -> bool:
    """A directory is when others may exchange what is in it, a file when they may read it."""
    return bool(stat.S_IMODE(path.stat().st_mode) & (0o022 if path.is_dir() else 0o077))


def _file_system(place: Path) -> Found:
    kind = file_system_type(place)
    if kind in NETWORK_TYPES:
        message = f"{place} is on a network file system ({kind})"
        yield _problem("file system", message, "use a local disk, or PostgreSQL")
    else:
        yield _ok("file system", kind or "unknown kind")
    free = shutil.disk_usage(place.parent).free
    left = f"{size(free)} are left on its disk"
    if free < LITTLE_SPACE_BYTES:
        yield _warning("free space", f"only {left}", "free space, or `stepkeep prune`")
    else:
        yield _ok("free space", left)


def _leftovers(folder: Path) -> Found:
    """Files of work that was interrupted; those of the last hour may still be in use."""
    before = time.time() - STALE_SECONDS
    for path in sorted(folder.glob(".stepkeep-*")):
        if path.lstat().st_mtime < before:
            yield _warning("leftovers", f"{path} was left by an interrupted command", f"rm '{path}'")


# --- the store itself ------------------------------------------------------------------------------------------


def _store(url: str, settings: Settings, full: bool, trial: bool, progress: Progress | None) -> Found:
    place = database_file(url) or directory_of(url)
    if place is not None and not place.exists():
        yield _note("store", f"no store at {place} yet: the first save creates it")
        return
    try:
        engine = Engine(unlocked(open_backend(url), finder_of(None)))
    except StepkeepError as exc:
        yield _problem("store", str(exc), _advice_for(exc))
        return
    checks = {  # generators: each looks only below, where it may fail
        "store": _contents(engine),
        "durability": _facts(engine),
        "encryption": _encryption(engine),
        "files": _stuck(engine),
        "budget": _budget(engine, settings),
        "backup": _backup(engine),
        "keeper": _keeper(engine, settings),
        "sessions": _else_ok(_sessions(engine), "sessions", "none was left behind"),
        "intact": _everything(engine, progress) if full else _sample(engine),
        "saving": _trial(engine) if trial else iter(()),
    }
    for name, check in checks.items():
        try:
            yield from check
        except StepkeepError as exc:
            yield _problem(name, str(exc), _advice_for(exc))
    with suppress(StepkeepError):  # what cannot be tidied was told above
        engine.close()


def _advice_for(exc: StepkeepError) -> str:
    if exc.code == "schema_newer":
        return "upgrade stepkeep"
    if exc.code == "not_a_store":
        return "name the right file"
    if isinstance(exc, Corrupt):
        return "`stepkeep recover` into a new store, or `stepkeep restore-backup`"
    if exc.code == "store_busy":
        return "try again when it is free"
    if isinstance(exc, BackendUnavailable):
        return "see that it can be reached, its disk has space, and you may write to it"
    return "see `stepkeep status` and the error's code: " + exc.code


def _contents(engine: Engine) -> Found:
    usage = engine.backend.usage()
    yield _ok(
        "store",
        f"{count(usage.checkpoints, 'checkpoint')} in {count(usage.sessions, 'session')},"
        f" {size(usage.store_bytes)}",
    )


def _facts(engine: Engine) -> Found:
    backend = engine.backend
    if not isinstance(backend, TellsFacts):
        return
    facts = backend.facts()
    if facts.weakness is not None:
        advice = "close all programs that use the store, and open it again"
        yield _problem("durability", facts.weakness, advice)
    else:
        yield _ok("durability", facts.durability)
    if facts.log_bytes > LARGE_LOG_BYTES:
        message = f"the write-ahead log has grown to {size(facts.log_bytes)}"
        advice = "a program reads from the store all the time: end it, then `stepkeep prune`"
        yield _warning("log", message, advice)


def _encryption(engine: Engine) -> Found:
    if not has_keys(engine.backend):
        return
    from stepkeep.maintenance.rekey import progress_of  # few stores are

    report = progress_of(engine.backend)
    if report.is_done:
        yield _ok("encryption", f"everything is encrypted, with data key {report.key}")
    else:
        message = f"an older data key is still in the store, {count(report.left, 'record')} need it"
        yield _warning("encryption", message, "`stepkeep key rekey` goes on")


def _stuck(engine: Engine) -> Found:
    """Files that are to go. Most do with the next save; those that stay need a hand."""
    backend = engine.backend
    for file in backend.facts().stuck if isinstance(backend, TellsFacts) else ():
        message = f"{file} belongs to a removed checkpoint and could not be removed yet"
        yield _warning("files", message, "let its folder be written to, then `stepkeep prune`")


def _backup(engine: Engine) -> Found:
    last = BackupNote(engine.backend.url, data_folder=config.data_folder).read()
    if last is None:
        yield _ok("backup", "none is known of: `stepkeep backup` makes one, also from a timer")
        return
    age = span(max(0, engine.clock() - to_us(last.time))) or "a moment"
    yield _ok("backup", f"the last one is {age} old: {last.path} ({size(last.size_bytes)})")


def _budget(engine: Engine, settings: Settings) -> Found:
    limit, budget = (settings.for_store[f"limits.{name}_bytes"] for name in ("max", "budget"))
    used = counted_bytes(engine.backend, engine.backend.usage())
    free = store_free_bytes(engine.backend.url)
    if limit is not None and used >= NEAR_BUDGET * limit:
        text = f"the limit is nearly used up: {size(used)} of {size(limit)} (limits.max_bytes)"
        yield _warning("budget", text, "`stepkeep prune`, or raise limits.max_bytes")
    elif limit is not None and free is not None and free < limit - used:
        text = f"{size(used)} of {size(limit)} (limits.max_bytes), but its disk has only {size(free)} left"
        yield _warning("budget", text, "free space, or lower limits.max_bytes")
    elif budget is not None and used > budget:
        text = f"used up: {size(used)} of {size(budget)} (limits.budget_bytes); saves go on"
        yield _warning("budget", text, "let sessions go, or raise limits.budget_bytes")
    else:
        most = min((each for each in (limit, budget) if each is not None), default=None)
        yield _ok("budget", "no limit in bytes" if most is None else f"{size(used)} of {size(most)}")


def _keeper(engine: Engine, settings: Settings) -> Found:
    if not settings["keeper.enabled"]:
        yield _warning(
            "keeper",
            "switched off (keeper.enabled): nothing is pruned by itself",
            "run `stepkeep prune` and `stepkeep clean` regularly",
        )
    failed = [session.key for session in _recent(engine) if _prune_failed(engine, session)]
    if failed:
        yield _warning("keeper", f"the last pruning of {_names(failed)} failed", "`stepkeep prune` says why")
    elif settings["keeper.enabled"]:
        yield _ok("keeper", "prunes and cleans while a store is open")


def _prune_failed(engine: Engine, session: SessionInfo) -> bool:
    try:
        return any(
            event.data.get("code") == PRUNE_FAILED for event in engine.backend.events(session.uid)[-5:]
        )
    except NotFound:
        return False


def _sessions(engine: Engine) -> Found:
    """Work that nobody does: runners that died, and sessions that were left open."""
    now_us = utc_now_us()
    died, stalled = [], []
    for session in _recent(engine, Status.IN_PROGRESS):
        try:
            lease = engine.backend.lease(session.uid)
        except NotFound:
            continue
        if lease is not None and lease.expires_us < now_us:
            died.append(session.key)
        elif lease is None and now_us - session.updated_us > STALLED_US:
            stalled.append(session.key)
    if died:
        yield _warning("sessions", f"whoever ran {_names(died)} died", "`stepkeep resume`")
    if stalled:
        yield _note("sessions", f"{_names(stalled)} in progress without a save for a day")


def _recent(engine: Engine, *statuses: Status) -> list[SessionInfo]:
    query = SessionQuery(statuses=statuses or None, limit=LOOKED_AT_SESSIONS)
    return list(engine.backend.sessions(query))


def _sample(engine: Engine) -> Found:
    damaged: list[Symptom] = []
    sessions = list(engine.backend.sessions(SessionQuery(limit=SAMPLE_SESSIONS)))
    for session in sessions:
        branch = engine.backend.branch(session.uid, session.branch)
        if branch is None or branch.head is None:
            continue
        try:
            reader.load(engine.backend, engine.header(branch.head, session=session.uid))
        except NotFound:
            continue
        except StepkeepError as exc:
            advice = "`stepkeep verify`; loading falls back to an older checkpoint"
            damaged.append(_problem("intact", f"{session.key}: {exc}", advice))
    message = f"the newest checkpoint of {count(len(sessions), 'session')}; --full looks at all"
    yield from _else_ok(damaged, "intact", message)


def _trial(engine: Engine) -> Found:
    """What a program that saves now would meet. The session is a finished test: `clean` takes what stays behind."""
    state = {"trial": new_uid()}
    session = engine.create_session(
        f"doctor-{state['trial']}", is_test=True, status=Status.CANCELLED, finished_us=engine.clock()
    )
    try:
        saved = engine.save(Save(session=session.uid, state=state, status=Status.COMPLETED))
        found = reader.load(engine.backend, engine.header(saved.id, session=session.uid))
    except StepkeepError:
        with suppress(StepkeepError):
            engine.delete_session(session.uid)
        raise
    engine.delete_session(session.uid)
    if found.value() == state:
        yield _ok("saving", "a trial save was stored, read back and removed")
    else:
        yield _problem("saving", "a trial save came back changed", "use another store, and keep this one")


def _everything(engine: Engine, progress: Progress | None) -> Found:
    report = verify(engine, progress=progress)
    for finding in report.findings:
        message = f"{finding.session}: {finding.message}"
        if finding.code in (LATEST_STALE, CHECKSUM_MISSING):
            yield _problem("intact", message, "`stepkeep verify --repair`")
        else:
            yield _problem("intact", message, "`stepkeep recover` into a new store")
    if report.is_intact:
        yield _ok("intact", f"every byte of {count(report.checkpoints, 'checkpoint')}")


def _names(keys: list[str]) -> str:
    shown = ", ".join(keys[:3])
    return shown if len(keys) <= 3 else f"{shown} and {len(keys) - 3} more"
