"""What earlier captures say: finding them, and saving a new one beside a state."""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple
from weakref import WeakKeyDictionary

import msgspec

from stepkeep.codec import exact
from stepkeep.engine import Engine, NewBody, Save, reader
from stepkeep.errors import Conflict, NotFound, StepkeepError
from stepkeep.model import Header, Session, Trigger, TriggerKind
from stepkeep.storage.port import HeaderQuery
from stepkeep.workspace.capture import DEFAULT_LIMITS, Captured, Earlier, Limits, capture
from stepkeep.workspace.manifest import FILES, UNSEEN, Manifest, body_after, body_of, manifest_of

log = logging.getLogger("stepkeep")

SAFETY: Final = Trigger(TriggerKind.AUTO, "files_restore")
"""Why a safety checkpoint was saved: files were about to be restored."""

TRIES: Final = 3
REMEMBERED: Final = 8

_memory: WeakKeyDictionary[Engine, OrderedDict[tuple[str, str], Remembered]] = WeakKeyDictionary()
"""The newest captures of an engine, by session and root: only to save reading them again."""


class Remembered(NamedTuple):
    """A capture, and the body it was stored as."""

    earlier: Earlier
    content: bytes


def has_files(header: Header) -> bool:
    return FILES in header.contents


def is_safety(header: Header) -> bool:
    """Whether a checkpoint was taken before files were restored. To those who ask for files `latest` is none of these:
    asking again for the same restore means the same checkpoint."""
    return header.trigger.event == SAFETY.event


def load_manifest(engine: Engine, header: Header) -> Manifest:
    """The files of a checkpoint, verified.

    Raises:
        NotFound: it was saved without files (`files_not_captured`).
        Corrupt: the list is damaged.
    """
    if not has_files(header):
        before = next(captures(engine, header.session, before=header.seq), None)
        hint = (
            "and no earlier one has"
            if before is None
            else f"the capture before it is #{before.seq} ({before.id})"
        )
        raise NotFound(
            f"checkpoint #{header.seq} ({header.id}) holds no files: {hint}",
            code="files_not_captured",
            checkpoint=header.id,
        )
    return manifest_of(reader.load_body(engine.backend, header, FILES))


def captures(engine: Engine, uid: str, *, before: int | None = None) -> Iterator[Header]:
    """The checkpoints of a session that hold files, newest first, on whichever branch."""
    query = HeaderQuery(session=uid, max_seq=None if before is None else before - 1)
    return (header for header in engine.headers(query) if has_files(header))


def newest_capture(engine: Engine, uid: str, root: str | None = None) -> tuple[Header, Manifest] | None:
    """The newest capture of a session, of that tree if one is named."""
    for header in captures(engine, uid):
        manifest = load_manifest(engine, header)
        if root is None or manifest.root == root:
            return header, manifest
    return None


def latest_capture(engine: Engine, session: Session) -> Header:
    """The newest checkpoint on the current line that holds files, but for safety checkpoints; or `NotFound`."""
    for row in reader.line_of(engine.backend, session, session.branch):
        header = reader.verified(row)
        if has_files(header) and not is_safety(header):
            return header
    raise NotFound(
        f"session {session.key!r} has no checkpoint with files: save one with `workspace`",
        code="files_not_captured",
        session=session.key,
    )


def look_at(
    engine: Engine,
    uid: str,
    root: str,
    *,
    limits: Limits = DEFAULT_LIMITS,
    also: Sequence[str] = (),
    with_blobs: bool = False,
) -> Captured:
    """The live tree, read as far as it changed since the newest capture; nothing is stored.

    With blobs it can be stored: then files whose content the store has no more are read again too.
    """
    known = _previous(engine, uid, root)
    previous = None if known is None else known.earlier
    if with_blobs:
        previous = _still_stored(engine, previous)
    return capture(engine, root, previous=previous, limits=limits, also=also, with_blobs=with_blobs)


def save_with_files(
    engine: Engine, save: Save, root: str, *, limits: Limits = DEFAULT_LIMITS, also: Sequence[str] = ()
) -> tuple[Header, Captured]:
    """Store a checkpoint with the tree as it is now.

    What could not be captured is in the manifest, and logged.

    Raises:
        InvalidInput: the root is no directory (`invalid_workspace`).
        Conflict, NotFound, BackendUnavailable: as for any save; nothing is stored.
    """
    known = _previous(engine, save.session, root)
    earlier = None if known is None else known.earlier
    for left in reversed(range(TRIES)):
        captured = capture(engine, root, previous=earlier, limits=limits, also=also)
        body = _body(captured, known)
        try:
            header = engine.save(_with_body(save, captured, body))
        except Conflict as exc:
            if (stored := _repeated(engine, exc, captured.manifest)) is not None:
                return engine.save(_with_body(save, captured, stored)), captured
            if exc.code != "blob_gone" or not left:
                raise
            # A sweep was faster: those files are read again.
            known, earlier = None, _still_stored(engine, earlier)
            continue
        before = Earlier(Manifest(root=root)) if earlier is None else earlier
        _remember(engine, save.session, Remembered(before.followed_by(captured), body.content))
        _tell(header, captured.manifest)
        return header, captured
    raise AssertionError("unreachable")


def _repeated(engine: Engine, conflict: Conflict, manifest: Manifest) -> NewBody | None:
    """The stored list of files of a save that this one repeats, if the tree is still what it says.

    Only when and where files were seen may differ: a step that is done again writes the same files once more.
    """
    if conflict.code != "idempotency_mismatch" or conflict.checkpoint is None:
        return None
    try:
        header = engine.header(conflict.checkpoint)
        content = reader.load_body(engine.backend, header, FILES) if has_files(header) else None
        is_same = content is not None and _unseen(manifest_of(content)) == _unseen(manifest)
    except StepkeepError:
        return None  # pruned or damaged meanwhile: the conflict says it all
    return NewBody(content, exact.JSON, manifest.blobs) if content is not None and is_same else None


def _unseen(manifest: Manifest) -> Manifest:
    entries = tuple(msgspec.structs.replace(entry, seen=UNSEEN) for entry in manifest.entries)
    return msgspec.structs.replace(manifest, entries=entries)


def _body(captured: Captured, known: Remembered | None) -> NewBody:
    if known is None or captured.replaced is None:
        return body_of(captured.manifest)
    return body_after(captured.manifest, known.content, captured.replaced)


def with_files(save: Save, captured: Captured) -> Save:
    """The save with a captured tree."""
    return _with_body(save, captured, body_of(captured.manifest))


def _with_body(save: Save, captured: Captured, body: NewBody) -> Save:
    bodies = {**save.bodies, FILES: body}
    return msgspec.structs.replace(save, bodies=bodies, blobs=(*save.blobs, *captured.blobs))


def _tell(header: Header, manifest: Manifest) -> None:
    for each in manifest.skipped[:20]:
        log.warning("%s has not captured %r: %s", header.id, each.path, each.reason)
    if len(manifest.skipped) > 20:
        log.warning("%s has not captured %d more", header.id, len(manifest.skipped) - 20)


def _previous(engine: Engine, uid: str, root: str) -> Remembered | None:
    remembered = _memory.get(engine, OrderedDict()).get((uid, root))
    if remembered is not None:
        return remembered
    for header in captures(engine, uid):
        content = reader.load_body(engine.backend, header, FILES)
        manifest = manifest_of(content)
        if manifest.root == root:
            return _remember(engine, uid, Remembered(Earlier(manifest), content))
    return None


def _remember(engine: Engine, uid: str, capture: Remembered) -> Remembered:
    known, root = _memory.setdefault(engine, OrderedDict()), capture.earlier.manifest.root
    known[uid, root] = capture
    known.move_to_end((uid, root))
    while len(known) > REMEMBERED:
        known.popitem(last=False)
    return capture


def _still_stored(engine: Engine, earlier: Earlier | None) -> Earlier | None:
    """The capture without the files whose content the store has no more."""
    if earlier is None:
        return None
    manifest = earlier.manifest
    wanted = manifest.blobs
    stored = engine.backend.has_blobs(sorted(wanted))
    if stored >= wanted:
        return earlier
    entries = tuple(each for each in manifest.entries if each.is_link or each.digest in stored)
    return Earlier(msgspec.structs.replace(manifest, entries=entries))
