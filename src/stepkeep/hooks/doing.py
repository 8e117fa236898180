"""What each event leads to, with the store open for as long as it takes."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import msgspec

from stepkeep.engine import Engine
from stepkeep.errors import StepkeepError
from stepkeep.hooks import capturing, place
from stepkeep.lifecycle.agent import clients, finding, kinds, offering, saving
from stepkeep.lifecycle.agent.finding import Unfinished
from stepkeep.lifecycle.agent.moments import Moment
from stepkeep.model import Header
from stepkeep.storage.urls import database_name, directory_of, open_backend

MAX_CLEANED = 20
MAX_LOG_BYTES = 1 << 20

Answer = dict[str, Any]


def respond(moment: Moment, url: str, environ: Mapping[str, str]) -> Answer:
    """Do what the event asks for; the answer for the client, empty when there is nothing to say."""
    if moment.kind == kinds.START:
        return _started(moment, url, environ)
    engine = open_engine(url)
    before = _compacted(engine, moment) if moment.kind == kinds.PROMPT else ""
    saved = saving.record(engine, moment)
    if moment.kind == kinds.END:
        _clean(engine)
    is_handed_on = saved is not None and _starts_capture(engine, saved, moment, environ)
    if not is_handed_on and not _has_small_log(url):
        _close(engine)
    return _adding(moment, before) if before else {}


def open_engine(url: str) -> Engine:
    """The engine on a store, with little patience for others that write to it."""
    file, directory = database_name(url), directory_of(url) if url.startswith("files:") else None
    if file is not None:
        from stepkeep.storage.sqlite import SqliteBackend

        return Engine(SqliteBackend(file, busy_seconds=place.BUSY_SECONDS))
    if directory is not None:
        from stepkeep.storage.files import FilesBackend

        layout = url.partition("?layout=")[2] or None
        return Engine(FilesBackend(directory, layout=layout, busy_seconds=place.BUSY_SECONDS))
    return Engine(open_backend(url))


def _starts_capture(engine: Engine, saved: Header, moment: Moment, environ: Mapping[str, str]) -> bool:
    """Have the files captured beside a checkpoint; True when a process has begun, which closes the store."""
    root = capturing.tree_of(moment, environ)
    return root is not None and capturing.start(engine, saved.session, root, moment, environ)


def _has_small_log(url: str) -> bool:
    """Whether the next process opens the store fast as it is left: it reads the whole log, and never shortens it."""
    file = database_name(url)
    try:
        return file is not None and os.stat(f"{file}-wal").st_size < MAX_LOG_BYTES  # noqa: PTH116
    except OSError:
        return False


def _close(engine: Engine) -> None:
    """Close the store in order, which empties its log. What was saved is safe, whatever becomes of this."""
    with suppress(StepkeepError):
        engine.close()


def _started(moment: Moment, url: str, environ: Mapping[str, str]) -> Answer:
    file = database_name(url)
    engine = None if file is not None and not os.path.exists(file) else open_engine(url)  # noqa: PTH110
    if moment.source == "compact":
        return _adding(moment, "" if engine is None else _restored(engine, moment))
    if moment.source == "resume" and engine is not None and _has_work(engine, moment):
        return {}
    found = [] if engine is None else finding.to_offer(engine, moment)
    found += _of_other_programs(moment, environ)
    if not found:
        return {}
    best = max(found, key=lambda each: each.time_us)
    return _offer(moment, best, others=len(found) - 1, engine=engine, url=url)


def _offer(moment: Moment, best: Unfinished, *, others: int, engine: Engine | None, url: str) -> Answer:
    engine = open_engine(url) if engine is None else engine
    if best.store is None:
        saving.offered(engine, moment, best.key)
    text = offering.offer(
        best.number,
        best.task,
        key=best.key,
        age_seconds=(engine.clock() - best.time_us) / 1e6,
        others=others,
        store=best.store,
    )
    return {**_adding(moment, text), "systemMessage": offering.offer_line(best.number, best.task)}


def _of_other_programs(moment: Moment, environ: Mapping[str, str]) -> list[Unfinished]:
    """Unfinished work among the phase checkpoints in the user's folder, where there are any."""
    home = place.phases_home(environ)
    if home is None:
        return []
    url = f"files:{home}?layout=phase"
    found = finding.to_offer(open_engine(url), moment)
    return [msgspec.structs.replace(each, store=url) for each in found]


def _has_work(engine: Engine, moment: Moment) -> bool:
    """Whether the client itself brings this work back: it is the agent's own session."""
    session = engine.backend.session_by_key(saving.session_key(moment))
    return session is not None and saving.known(engine, session).header is not None


def _restored(engine: Engine, moment: Moment) -> str:
    """What was saved before the compaction."""
    own = engine.backend.session_by_key(saving.session_key(moment))
    if own is None:
        return ""
    session = saving.continued(engine, own, moment)
    known = saving.known(engine, session)
    if known.header is None:
        return ""
    engine.backend.record_event(session.uid, saving.RESTORED, {}, time_us=engine.clock())
    return offering.context(
        known.now, title="Saved before the context was compacted", checkpoint=known.header.id
    )


def _compacted(engine: Engine, moment: Moment) -> str:
    """What was saved before a compaction, for clients that start no session after one."""
    if moment.client != clients.GEMINI:
        return ""
    own = engine.backend.session_by_key(saving.session_key(moment))
    if own is None:
        return ""
    known = saving.known(engine, saving.continued(engine, own, moment))
    return _restored(engine, moment) if known.now.get("compacted") else ""


def _adding(moment: Moment, text: str) -> Answer:
    if not text or moment.event not in clients.ADDS_CONTEXT:
        return {}
    return {"hookSpecificOutput": {"hookEventName": moment.event, "additionalContext": text}}


def _clean(engine: Engine) -> None:
    """Remove sessions whose time has come, by the rules of the configuration. It may fail: others clean too."""
    from stepkeep import config
    from stepkeep.maintenance.clean import apply_clean
    from stepkeep.maintenance.keeper import plans_to_clean

    try:
        policies = config.here().cleanup_policies
        now_us = engine.clock()
        for plan in plans_to_clean(engine, policies, now_us=now_us):
            apply_clean(engine, plan, now_us=now_us, limit=MAX_CLEANED)
    except (StepkeepError, OSError):
        return
