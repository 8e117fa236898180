"""Adopting checkpoint files of other systems: each is read, checked as far as it can be, and saved as a new one.

Nothing of theirs is ever loaded as ours. The id they gave a checkpoint is its external id, by which repeating an import
finds what is there. The time they gave it is in its metadata, with what was checked: a checkpoint that was
adopted today must not be pruned today because it is old. They are saved oldest first.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import msgspec

from stepkeep.api.options import SaveOptions
from stepkeep.api.session import Session
from stepkeep.api.store import Store
from stepkeep.codec import foreign
from stepkeep.codec.foreign import Foreign
from stepkeep.codec.readable import Layout, timestamp
from stepkeep.errors import Conflict, Corrupt, InvalidInput, NotFound, StepkeepError
from stepkeep.fixes import FAIL, IMPORT_FIXES, PASS, WARN, fixes_for_codes
from stepkeep.model import MAX_TIME_US, Header, SessionInfo
from stepkeep.storage.files.document_reader import FoundFile, find_files, read_foreign
from stepkeep.storage.port import HeaderQuery

IMPORTED: Final = "imported"
"""The member of a checkpoint's metadata that tells where it came from."""

PROFILES: Final = {Layout.RUN: "archive", Layout.WORKFLOW: "archive", Layout.PHASE: "phase"}
"""What a session that an import makes gets: nothing that was just adopted is pruned."""

_MAX_OWN_METADATA: Final = 32 * 1024


class FileImport(msgspec.Struct, frozen=True, kw_only=True):
    """What became of one file. `outcome` is imported, present, ours (a document of Stepkeep) or skipped.

    `verified` and `unverified` name what was checked and what could not be; `code` and `message` say why a file was
    skipped.
    """

    file: str
    outcome: str
    session: str | None = None
    checkpoint: str | None = None
    external_id: str | None = None
    created_at: str | None = None
    verified: tuple[str, ...] = ()
    unverified: tuple[str, ...] = ()
    code: str | None = None
    message: str | None = None


class FilesImport(msgspec.Struct, frozen=True, kw_only=True):
    """What an import of files did, or would do: counts, and every file with its fate.

    Where there is no file at all, `note` says so, and which other layouts have some.
    """

    directory: str
    layout: str
    is_dry_run: bool
    imported: int
    present: int
    ours: int
    skipped: int
    files: tuple[FileImport, ...]
    result: str
    fixes: tuple[str, ...]
    note: str | None = None


class _Read(msgspec.Struct, frozen=True, kw_only=True):
    """A file that can be adopted."""

    found: FoundFile
    document: Foreign
    digest: str
    key: str

    @property
    def created_at(self) -> str | None:
        return None if self.document.time_us is None else timestamp(self.document.time_us)

    @property
    def order(self) -> tuple[str, int, bool, str]:
        """Oldest first. Where nothing tells the time of the newest, it is still the newest."""
        unknown = MAX_TIME_US if self.found.is_pointer else 0
        time_us = unknown if self.document.time_us is None else self.document.time_us
        return self.key, time_us, self.found.is_pointer, self.found.file


def import_files(
    store: Store,
    directory: Path,
    layout: str,
    *,
    session: str | None = None,
    accept_unverified: bool = False,
    dry_run: bool = False,
) -> FilesImport:
    """Adopt the checkpoint files below a directory; see `Store.import_files`."""
    chosen = Layout(layout)
    _check_directory(store, directory)
    read, fates = _read_all(directory, chosen, session, accept_unverified)
    adopter = _Adopter(store, chosen, is_named=session is not None, dry_run=dry_run)
    fates += [adopter.adopt(each) for each in sorted(read, key=lambda each: each.order)]
    report = _report(directory, chosen, fates, dry_run)
    return report if report.files else _nothing_found(report, directory, chosen)


def _check_directory(store: Store, directory: Path) -> None:
    if not directory.is_dir():
        raise InvalidInput(f"{directory} is not a directory", code="not_a_directory")
    if store.url.partition("?")[0] == f"files:{directory.absolute()}":
        raise InvalidInput(f"{directory} is the store itself: import into another one", code="same_store")


def _read_all(
    directory: Path, layout: Layout, session: str | None, accept_unverified: bool
) -> tuple[list[_Read], list[FileImport]]:
    read: list[_Read] = []
    fates: list[FileImport] = []
    for found in find_files(directory, layout):
        try:
            each = _read(directory, layout, found, session)
        except StepkeepError as exc:
            fates.append(_skipped(found, exc))
            continue
        if each is None:
            message = "a document of Stepkeep: open it as files:DIR, or copy that store"
            fates.append(FileImport(file=found.shown, outcome="ours", message=message))
        elif "checksum" in each.document.unverified and not accept_unverified:
            unconfirmed = Corrupt(
                "its checksum could not be confirmed: damaged, or made in a way unknown here"
            )
            fates.append(_skipped(found, unconfirmed, each))
        else:
            read.append(each)
    return read, fates


def _read(directory: Path, layout: Layout, found: FoundFile, session: str | None) -> _Read | None:
    data, file_digest, checked = read_foreign(directory, found)
    parsed = foreign.parse(data)
    if foreign.is_ours(parsed):
        return None
    document = foreign.read(layout, parsed, data, name=found.file, file_digest=file_digest)
    document = msgspec.structs.replace(document, verified=(*document.verified, *checked))
    key = session or document.session or found.session
    if key is None:
        raise InvalidInput("nothing names its session: give one with --session", code="usage")
    return _Read(found=found, document=document, digest=file_digest, key=key)


class _Adopter:
    """Saves what was read, session by session."""

    def __init__(self, store: Store, layout: Layout, *, is_named: bool, dry_run: bool) -> None:
        self._store = store
        self._layout = layout
        self._is_named = is_named
        self._dry_run = dry_run
        self._sessions: dict[str, Session] = {}
        self._planned: dict[tuple[str, str], str] = {}

    def adopt(self, read: _Read) -> FileImport:
        try:
            held = self._held(read)
            if held is None:
                checkpoint = self._save(read)
                self._planned[read.key, read.document.external_id] = read.digest
                return _fate(read, IMPORTED, checkpoint)
            checkpoint, digest = held
            if digest != read.digest:
                raise Conflict(
                    f"session {read.key!r} has other content under the id {read.document.external_id}",
                    code="external_id_exists",
                    retryable=False,
                    session=read.key,
                )
            return _fate(read, "present", checkpoint)
        except StepkeepError as exc:
            return _skipped(read.found, exc, read)

    def _held(self, read: _Read) -> tuple[str | None, str] | None:
        """The checkpoint that has the id of a file already, and the digest of the file that it came from."""
        external_id = read.document.external_id
        session = self._session(read.key)
        if session is not None:
            query = HeaderQuery(session=session.uid, external_id=external_id, limit=1)
            for header in self._store.engine.headers(query):
                return header.id, _origin(header).get("sha256", "")
        planned = self._planned.get((read.key, external_id))
        return None if planned is None else (None, planned)

    def _session(self, key: str) -> Session | None:
        """The session with a key; None when there is none yet."""
        if key not in self._sessions:
            with suppress(NotFound):
                self._sessions[key] = self._store.get(key)
        return self._sessions.get(key)

    def _save(self, read: _Read) -> str | None:
        """The id of the new checkpoint. A dry run refuses what the real one would, and gives None.

        A session is made only when there is something for it.
        """
        session, document = self._session(read.key), read.document
        if session is not None and not self._is_named:
            self._refuse_work_of_others(session)
        options = SaveOptions(
            step=document.step,
            status=document.status,
            trigger=document.trigger,
            message=document.message,
            details=document.details,
            metadata=_metadata(read, self._layout),
            external_id=document.external_id,
        )
        if self._dry_run:
            nobody = SessionInfo(uid="", key=read.key, created_us=0, updated_us=0)
            draft = self._store._session(nobody)._save_of(document.state, **options)
            self._store.engine.checked(draft)
            return None
        if session is None:
            return self._store.save(read.key, document.state, profile=PROFILES[self._layout], **options).id
        return session.save(document.state, **options).id

    def _refuse_work_of_others(self, session: Session) -> None:
        """Files that only happen to name a session of this store must not become its newest checkpoints."""
        newest = next(iter(session.history(limit=1)), None)
        if newest is not None and not _origin(newest):
            raise Conflict(
                f"session {session.key!r} has work of its own: name another one with --session",
                code="session_exists",
                retryable=False,
                session=session.key,
            )


def _origin(header: Header) -> dict[str, Any]:
    origin = header.metadata.get(IMPORTED)
    return origin if isinstance(origin, dict) else {}


def _metadata(read: _Read, layout: Layout) -> dict[str, Any]:
    document = read.document
    origin = {
        "layout": str(layout),
        "file": read.found.shown,
        "sha256": read.digest,
        "created_at": read.created_at,
        "verified": list(document.verified),
        "unverified": list(document.unverified),
    }
    own = document.metadata
    if len(msgspec.json.encode(own)) > _MAX_OWN_METADATA:  # all of it is in the state
        own = {name: own[name] for name in ("phase", "phase_number", "task_summary") if name in own}
    return {**own, IMPORTED: origin}


# --- reporting -------------------------------------------------------------------------------------------------


def _fate(read: _Read, outcome: str, checkpoint: str | None, exc: StepkeepError | None = None) -> FileImport:
    document = read.document
    return FileImport(
        file=read.found.shown,
        outcome=outcome,
        session=read.key,
        checkpoint=checkpoint,
        external_id=document.external_id,
        created_at=read.created_at,
        verified=document.verified,
        unverified=document.unverified,
        code=None if exc is None else exc.code,
        message=None if exc is None else exc.message,
    )


def _skipped(found: FoundFile, exc: StepkeepError, read: _Read | None = None) -> FileImport:
    if read is not None:
        return _fate(read, "skipped", None, exc)
    return FileImport(file=found.shown, outcome="skipped", code=exc.code, message=exc.message)


def _report(directory: Path, layout: Layout, fates: Iterable[FileImport], dry_run: bool) -> FilesImport:
    files = tuple(sorted(fates, key=lambda fate: fate.file))
    counts = Counter(fate.outcome for fate in files)
    skipped = [fate for fate in files if fate.outcome == "skipped"]
    is_useful = len(skipped) < len(files)
    return FilesImport(
        directory=str(directory),
        layout=str(layout),
        is_dry_run=dry_run,
        imported=counts[IMPORTED],
        present=counts["present"],
        ours=counts["ours"],
        skipped=len(skipped),
        files=files,
        result=PASS if not skipped else WARN if is_useful else FAIL,
        fixes=fixes_for_codes((fate.code for fate in skipped), table=IMPORT_FIXES),
    )


def _nothing_found(report: FilesImport, directory: Path, layout: Layout) -> FilesImport:
    """The report of an import without files: which other layouts have some there."""
    others = [str(each) for each in Layout if each != layout and next(find_files(directory, each), None)]
    but = f"but of layout {' and '.join(others)}" if others else "nor of any other"
    return msgspec.structs.replace(
        report,
        result=WARN,
        note=f"{directory} has no files of layout {layout}, {but}",
        fixes=tuple(f"use --layout {each}" for each in others)
        or ("name the folder of the other store, or one in it",),
    )
