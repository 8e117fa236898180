"""The project files beside the events of an agent: captured by a process of its own, so that no agent waits for them.

A prompt is saved with the files as they are before the agent does anything, the end of a turn with what it made of
them. An event is durable in the spool before the process that saves it starts. Its checkpoint comes a moment later, and
has the files; where they cannot be had it comes without, and the person is told. A process that dies leaves the event
to the next hook, which brings it in. Before a command that destroys, the files are captured at once.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING

from stepkeep.engine import Engine
from stepkeep.errors import BackendUnavailable, Conflict, InvalidInput
from stepkeep.model import Header, SessionInfo, Trigger, TriggerKind
from stepkeep.recording.coding_agents import agent_session, hook_events, hook_process
from stepkeep.recording.coding_agents.environment import project_tree
from stepkeep.recording.coding_agents.hook_events import HookEvent
from stepkeep.recording.coding_agents.hook_notes import HookNotes
from stepkeep.recording.coding_agents.spool import Spool, Spooled
from stepkeep.secrets import safe_text
from stepkeep.text import count

if TYPE_CHECKING:
    from stepkeep.config import Settings
    from stepkeep.recording.coding_agents.destruction import Destroys
    from stepkeep.recording.coding_agents.responses import AnyStore
    from stepkeep.workspace.capture import CaptureLimits, TreeCapture
    from stepkeep.workspace.manifest import Manifest

BOUNDARIES = (hook_events.PROMPT, hook_events.TURN_END, hook_events.COMPACTION, hook_events.END)
BEFORE_COMMAND = Trigger(TriggerKind.AUTO, "before_command")
OTHER_TREE = Trigger(TriggerKind.AUTO, "turn_end")

TOO_SLOW = "files_took_too_long"
"""In the metadata of a session: when its tree took too long, in microseconds."""

SECONDS = 30
RETRY_SECONDS = 600
"""So long after a tree took too long it is tried again."""

EARLIER_SECONDS = 45.0
"""How long the process that captures waits for those that save the events before its own."""

MAX_NAMED = 2000
"""How many files that rules leave out are captured before a command that destroys them."""

_NICE = 10


# --- which tree ------------------------------------------------------------------------------------------------


def tree_of(event: HookEvent, settings: Settings, environ: Mapping[str, str]) -> str | None:
    """The tree whose files belong to an event; None when there is none, or it is switched off.

    That is the repository, or with `hooks.workspace: always` the working directory where there is none.
    """
    wanted = settings["hooks.workspace"]
    if not wanted or event.kind not in (*BOUNDARIES, hook_events.BEFORE_TOOL):
        return None
    return project_tree(event.cwd, environ, outside_git=wanted == "always")


def _limits(settings: Settings) -> CaptureLimits:
    from stepkeep.workspace.capture import CaptureLimits

    return CaptureLimits(
        max_file_bytes=settings["workspace.max_file_bytes"],
        max_total_bytes=settings["workspace.max_total_bytes"],
        ignore=tuple(settings["workspace.ignore"] or ()),
    )


# --- in the background: an event with its files ------------------------------------------------------------------


def start(store: AnyStore, spool: Spool, spooled: Spooled, root: str, environ: Mapping[str, str]) -> bool:
    """Let a process of its own save the event with the files of a tree; False if none can be made."""
    return _forked(lambda: _saved(store, spool, spooled, root, environ), nice=_NICE) is not None


def _forked(work: Callable[[], None], *, nice: int) -> int | None:
    """A process that works away from the agent; what can be read to its end while it lives. None if none can be
    made."""
    ours, its = os.pipe()
    try:
        process = os.fork()
    except OSError:
        os.close(ours)
        os.close(its)
        return None
    if process == 0:
        try:
            _leave_the_agent(nice)
            work()
        finally:
            os._exit(0)  # it is a copy of the hook, and must not go on as one
    os.close(its)
    return ours


def _leave_the_agent(nice: int) -> None:
    """Be no part of what the agent waits for, and in nobody's way."""
    os.setsid()
    nowhere = os.open(os.devnull, os.O_RDWR)
    for descriptor in range(3):
        os.dup2(nowhere, descriptor)
    os.nice(nice)


def _saved(store: AnyStore, spool: Spool, spooled: Spooled, root: str, environ: Mapping[str, str]) -> None:
    """Save the event, with the files where they can be had. What cannot be saved is left to the next hook."""
    engine, event = store.engine, spooled.event
    try:
        bring_in(store, spool, event.session, until=spooled, wait_seconds=EARLIER_SECONDS)
        try:
            with hook_process.Timeout(SECONDS, "the files were not captured"):
                _record_with_files(store, spooled, root, environ)
        except Exception as exc:  # the agent goes on, whatever it is
            if not _is_saved(exc):
                _record(store, spooled)
                _failed(engine, event, root, environ, exc)
        spooled.done()
        bring_in(store, spool, event.session)
    except Exception as exc:
        spooled.leave()
        _log(event, environ, exc, f"kept for the next event: {exc}")
    finally:
        store.close()


def _record_with_files(store: AnyStore, spooled: Spooled, root: str, environ: Mapping[str, str]) -> None:
    """Save an event with its tree. A turn ends with all trees in which the agent worked, that of its prompt first."""
    engine, event = store.engine, spooled.event
    session = agent_session.find_session(engine, event)
    is_new = session is None or event.kind == hook_events.PROMPT
    before = [] if session is None or is_new else agent_session.captures_of_turn(engine, session)
    trees = [header.metadata["tree"] for header in before if os.path.isdir(header.metadata["tree"])]  # noqa: PTH112
    first, *others = dict.fromkeys([*trees, root])
    made: list[TreeCapture] = []

    def capture(session: SessionInfo) -> TreeCapture | None:
        tree = _tree(engine, session, first, _named_in(engine, before, first))
        made.extend([] if tree is None else [tree])
        return tree

    keeps_transcript = store.settings["hooks.transcript"]
    agent_session.record(engine, event, key=spooled.key, capture=capture, keeps_transcript=keeps_transcript)
    for tree in made:
        _tell_left_out(HookNotes(environ, event.session), tree.root, tree.manifest)
    for other in others if made else ():
        with suppress(InvalidInput):  # a worktree that is gone
            also, session = _named_in(engine, before, other), agent_session.session_for(engine, event)
            _save_now(engine, session, other, OTHER_TREE, "", environ, event, also)


def _named_in(engine: Engine, captures: Iterable[Header], tree: str) -> list[str]:
    """The paths of a tree that were captured in a turn only because commands named them."""
    from stepkeep.workspace.captured_files import load_manifest
    from stepkeep.workspace.file_restore import seen_later

    found = [load_manifest(engine, each) for each in captures if each.metadata["tree"] == tree]
    return sorted(seen_later(found[0], found[1:])) if found else []


def _tree(engine: Engine, session: SessionInfo, root: str, also: list[str]) -> TreeCapture | None:
    """What captures a tree; None when the settings switch it off, or it took too long a while ago.

    A configuration that is wrong costs the files.
    """
    from stepkeep import config
    from stepkeep.workspace.capture import TreeCapture

    settings = config.here()
    if not settings["hooks.workspace"] or _is_resting(engine, session):
        return None
    return TreeCapture(engine, session.uid, root, limits=_limits(settings), also=also)


def _is_resting(engine: Engine, session: SessionInfo) -> bool:
    """Whether the tree of a session took too long a while ago."""
    since_us = session.metadata.get(TOO_SLOW) or 0
    return engine.clock() - since_us < RETRY_SECONDS * 1_000_000


def _record(store: AnyStore, spooled: Spooled) -> None:
    keeps_transcript = store.settings["hooks.transcript"]
    try:
        agent_session.record(store.engine, spooled.event, key=spooled.key, keeps_transcript=keeps_transcript)
    except Conflict as exc:
        if not _is_saved(exc):
            raise


def _is_saved(exc: Exception) -> bool:
    """Whether another process saved the event meanwhile."""
    return isinstance(exc, Conflict) and exc.code == "idempotency_mismatch"


def bring_in(
    store: AnyStore, spool: Spool, own: str, *, until: Spooled | None = None, wait_seconds: float = 0.0
) -> bool:
    """Save what others could not, in order, up to one; while the store cannot be used all of it stays.

    What the store will never take is set aside, so that it stops nobody. Returns whether events of the session `own`
    are still being saved by others.

    Raises:
        StepkeepError: the store cannot be used.
    """
    waiting, is_busy = spool.left_behind(own, until=until, wait_seconds=wait_seconds)
    try:
        while waiting:
            try:
                _record(store, waiting[0])
            except Exception as exc:
                if isinstance(exc, BackendUnavailable) or getattr(exc, "retryable", False):
                    raise
                waiting.pop(0).set_aside()
            else:
                waiting.pop(0).done()
    finally:
        for each in waiting:
            each.leave()
    return is_busy


# --- at once: before a command that destroys ---------------------------------------------------------------------


def capture_now(
    store: AnyStore, event: HookEvent, root: str, danger: Destroys, environ: Mapping[str, str], until: float
) -> bool:
    """Capture a tree before a command runs; whether that came to its end in time, be it without success."""

    def work() -> None:
        engine = store.engine
        try:
            with hook_process.Timeout(SECONDS, "the files were not captured"):
                session = agent_session.session_for(engine, event)
                message = (
                    f"before {safe_text(event.command, 200)}" if event.command else "before the first tool"
                )
                also = _left_out_by_rules(engine, session, root, danger, HookNotes(environ, event.session))
                _save_now(engine, session, root, BEFORE_COMMAND, message, environ, event, list(also))
        except Exception as exc:  # the agent goes on, whatever it is
            _failed(engine, event, root, environ, exc)
        finally:
            store.close()

    ended = _forked(work, nice=0)
    if ended is None:
        return False
    import select

    try:
        return bool(select.select([ended], [], [], max(0.0, until - time.monotonic()))[0])
    finally:
        os.close(ended)


def _save_now(
    engine: Engine,
    session: SessionInfo,
    root: str,
    trigger: Trigger,
    message: str,
    environ: Mapping[str, str],
    event: HookEvent,
    also: list[str],
) -> None:
    """Save a tree beside the newest state, unless the newest capture of it has all of it."""
    from stepkeep import config
    from stepkeep.workspace.capture import capture_live, save_tree
    from stepkeep.workspace.captured_files import newest_capture

    notes, limits = HookNotes(environ, event.session), _limits(config.here())
    tree = capture_live(engine, session.uid, root, limits=limits, also=also, with_blobs=True)
    newest = newest_capture(engine, session.uid, root)
    if newest is None or not _holds(newest[1], tree.manifest):
        save_tree(engine, session.uid, tree, trigger, message=message, metadata={"tree": root})
    _tell_left_out(notes, root, tree.manifest)


def _holds(newest: Manifest, now: Manifest) -> bool:
    """Whether a capture has every file of another as it is there, and no other."""
    before = newest.by_path()
    return len(before) == len(now.entries) and all(
        entry.is_same(before.get(entry.path)) for entry in now.entries
    )


def _left_out_by_rules(
    engine: Engine,
    session: SessionInfo,
    root: str,
    danger: Destroys,
    notes: HookNotes,
) -> Iterator[str]:
    """The files that a command names, or takes with all that git ignores: these are captured whatever rules say, up to
    a bound. Names of secrets are told instead."""
    from stepkeep import config
    from stepkeep.workspace.capture import capture_live
    from stepkeep.workspace.ignore import looks_like_secret
    from stepkeep.workspace.manifest import is_safe

    limits = _limits(config.here())
    paths = [_with_real_folder(path) for path in danger.paths]
    if danger.takes_ignored:
        ignored = capture_live(engine, session.uid, root, limits=limits).manifest.ignored or ()
        paths += [f"{root}/{each.path}" for each in ignored if not each.rule.startswith("built in")]
    left, secrets = limits.max_total_bytes, list[str]()
    for path in _files_of(path for path in paths if path.startswith(f"{root}/")):
        size = os.lstat(path).st_size
        name = path.removeprefix(f"{root}/")
        if looks_like_secret(os.path.basename(path)):  # noqa: PTH119
            secrets.append(name)
        elif size <= limits.max_file_bytes and (left := left - size) >= 0 and is_safe(name):
            yield name
    if secrets:
        notes.tell(
            f"Stepkeep does not capture {_named(secrets)}, which looks like a secret: what a command does to it cannot"
            " be undone."
        )


def _with_real_folder(path: str) -> str:
    """A path without links on the way to it; a link at its end stays one."""
    folder, name = os.path.split(path)
    return os.path.join(os.path.realpath(folder), name)  # noqa: PTH118


def _files_of(paths: Iterable[str]) -> Iterator[str]:
    """The files at and below some paths, up to a bound."""
    left = MAX_NAMED
    for top in paths:
        inside = (
            f"{folder}/{name}" for folder, _, names in os.walk(top.rstrip("/")) for name in names
        )  # links are not followed
        is_folder = os.path.isdir(top) and not os.path.islink(top)  # noqa: PTH112, PTH114
        for path in inside if is_folder else [top]:
            if left and os.path.lexists(path):
                left -= 1
                yield path


# --- what the person has to know ---------------------------------------------------------------------------------


def _tell_left_out(notes: HookNotes, root: str, manifest: Manifest | None) -> None:
    """Note that a tree has a capture; tell once what is not in it."""
    from stepkeep.workspace.ignore import SECRET
    from stepkeep.workspace.manifest import to_text

    notes.captured(root)
    if manifest is None:
        return
    secrets = [to_text(each.path) for each in manifest.ignored or () if each.rule.startswith(SECRET)]
    if news := notes.news(root, secrets):
        notes.tell(
            f"Stepkeep leaves out of its captures what looks like a secret: {_named(news)}. A line such as `!{news[0]}`"
            " in .stepkeepignore takes it in."
        )
    skipped = {to_text(each.path): each.reason for each in manifest.skipped}
    if news := notes.news(root, skipped):
        notes.tell(f"Stepkeep cannot capture {_named(news)}: {skipped[news[0]]}.")


def _named(names: list[str]) -> str:
    more = f" and {count(len(names) - 3, 'more file')}" if len(names) > 3 else ""
    return ", ".join(names[:3]) + more


def _failed(engine: Engine, event: HookEvent, root: str, environ: Mapping[str, str], exc: Exception) -> None:
    """Note that an event has no files, and let the next hook tell it."""
    from stepkeep.storage.key_slots import cipher_of

    is_slow = getattr(exc, "code", "") == "hook_timeout"
    later = f"; tried again in {RETRY_SECONDS // 60} minutes" if is_slow else ""
    said = hook_process.loggable(exc, is_encrypted=cipher_of(engine.backend) is not None)
    if _log(event, environ, exc, f"saved without files: {said}{later}"):
        notes = HookNotes(environ, event.session)
        notes.tell(f"Stepkeep could not capture the files of {root} at {event.name}: {said[:300]}{later}.")
    if is_slow:
        session = agent_session.find_session(engine, event)
        if session is not None:
            engine.describe_session(session.uid, {"metadata": {**session.metadata, TOO_SLOW: engine.clock()}})


def _log(event: HookEvent, environ: Mapping[str, str], exc: Exception, message: str) -> bool:
    return hook_process.log_problem(
        environ,
        client=event.client,
        event=event.name,
        session=event.session,
        code=str(getattr(exc, "code", type(exc).__name__)),
        message=message,
    )
