"""Adopting checkpoint files of other systems: each is read, checked as far as it can be, and saved as a new one.

Nothing of theirs is ever loaded as ours. The id they gave a checkpoint is its external id, by which repeating an import
finds what is there. They are saved oldest first, with the times they had. Metadata tells when they were adopted and
what was checked: what was adopted today must not be pruned today because it is old.

What comes when newer ones are there takes its place beside them: on a branch of its own, behind the checkpoint that it
followed. The session goes on where it stands, and a time finds it as if it had come in order.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from stepkeep.api.option_types import SaveOptions
from stepkeep.api.session import Session
from stepkeep.api.store import Store
from stepkeep.codec import foreign
from stepkeep.codec.foreign import Foreign
from stepkeep.codec.readable import Layout, timestamp
from stepkeep.engine import reader
from stepkeep.errors import Conflict, Corrupt, InvalidInput, NotFound, StepkeepError
from stepkeep.fixes import FAIL, IMPORT_FIXES, PASS, WARN, fixes_for_codes
from stepkeep.history.refs import LATE
from stepkeep.model import MAX_TIME_US, Header, SessionInfo
from stepkeep.policy.retention import IMPORTED
from stepkeep.storage.files.document_reader import FoundFile, find_files, read_foreign
from stepkeep.storage.files.layouts import NAMES, SIDECAR
from stepkeep.storage.port import HeaderQuery
from stepkeep.storage.urls import directory_of

SKIPPED: Final = "skipped"

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


class ReadCheckpoint(msgspec.Struct, frozen=True, kw_only=True):
    """A file that can be read."""

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

    def fate(self, outcome: str, checkpoint: str | None = None) -> FileImport:
        return FileImport(
            file=self.found.shown,
            outcome=outcome,
            session=self.key,
            checkpoint=checkpoint,
            external_id=self.document.external_id,
            created_at=self.created_at,
            verified=self.document.verified,
            unverified=self.document.unverified,
        )


class Importer(msgspec.Struct, kw_only=True):
    """One import of files, as `Store.import_files` was asked for it."""

    store: Store
    directory: Path
    layout: Layout
    session: str | None
    accept_unverified: bool
    dry_run: bool
    known: dict[str, Session] = {}
    planned: dict[tuple[str, str], str] = {}
    """The digest of each file that this import adopted, by the session and the id in it."""
    places: dict[str, list[Header]] = {}
    """What each session has on its line and beside it, for whatever comes late."""
    stood: dict[str, SessionInfo] = {}
    """How each session was before something came late."""

    def run(self) -> FilesImport:
        """Adopt what can be adopted, oldest first, and report on all files."""
        if not self.directory.is_dir():
            raise InvalidInput(f"{self.directory} is not a directory", code="not_a_directory")
        root = directory_of(self.store.url)
        is_same = root is not None and self.directory.absolute() in (root, root / NAMES[Layout.PHASE].top)
        if is_same and self.layout is not Layout.PHASE:
            raise InvalidInput(
                f"{self.directory} is the store itself: import into another one", code="same_store"
            )
        read: list[ReadCheckpoint] = []
        fates: list[FileImport] = []
        for found in find_files(self.directory, self.layout):
            try:
                each = self._read(found)
            except StepkeepError as exc:
                fates.append(skipped_fate(FileImport(file=found.shown, outcome=""), exc))
                continue
            if isinstance(each, ReadCheckpoint):
                read.append(each)
            else:
                fates.append(each)
        for each in sorted(read, key=lambda each: each.order):
            fate = self._adopt(each)
            fates.append(fate)
            if root is not None and is_same and fate.outcome != SKIPPED and not self.dry_run:
                _put_away(root, self.directory / each.found.shown)
        self._settle()
        return self._report(sorted(fates, key=lambda fate: fate.file))

    def _read(self, found: FoundFile) -> ReadCheckpoint | FileImport:
        """What a file holds, or its fate where that is not to be adopted."""
        data, file_digest, checked = read_foreign(self.directory, found)
        parsed = foreign.parse(data)
        if foreign.is_ours(parsed):
            message = "a document of Stepkeep: open it as files:DIR, or copy that store"
            return FileImport(file=found.shown, outcome="ours", message=message)
        document = foreign.read(self.layout, parsed, data, name=found.file, file_digest=file_digest)
        document = replace(document, verified=(*document.verified, *checked))
        key = self.session or document.session or found.session
        if key is None:
            raise InvalidInput("nothing names its session: give one with --session", code="usage")
        read = ReadCheckpoint(found=found, document=document, digest=file_digest, key=key)
        if "checksum" in document.unverified and not self.accept_unverified:
            message = "its checksum could not be confirmed: damaged, or made in a way unknown here"
            return skipped_fate(read.fate(""), Corrupt(message))
        return read

    def _adopt(self, read: ReadCheckpoint) -> FileImport:
        try:
            held = self._held(read)
            if held is None:
                checkpoint = self._save(read)
                self.planned[read.key, read.document.external_id] = read.digest
                return read.fate(IMPORTED, checkpoint)
            checkpoint, digest = held
            if digest != read.digest:
                raise Conflict(
                    f"session {read.key!r} has other content under the id {read.document.external_id}",
                    code="external_id_exists",
                    retryable=False,
                    session=read.key,
                )
            return read.fate("present", checkpoint)
        except StepkeepError as exc:
            return skipped_fate(read.fate(""), exc)

    def _held(self, read: ReadCheckpoint) -> tuple[str | None, str] | None:
        """The checkpoint that has the id of a file already, and the digest of the file that it came from."""
        external_id = read.document.external_id
        session = self._session(read.key)
        if session is not None:
            query = HeaderQuery(session=session.uid, external_id=external_id, limit=1)
            for header in self.store.engine.headers(query):
                return header.id, _origin(header).get("sha256", "")
        planned = self.planned.get((read.key, external_id))
        return None if planned is None else (None, planned)

    def _session(self, key: str) -> Session | None:
        """The session with a key; None when there is none yet."""
        if key not in self.known:
            with suppress(NotFound):
                self.known[key] = self.store.get(key)
        return self.known.get(key)

    def _save(self, read: ReadCheckpoint) -> str | None:
        """The id of the new checkpoint. A dry run refuses what the real one would, and gives None.

        A session is made only when there is something for it.
        """
        session, document = self._session(read.key), read.document
        if session is not None and self.session is None:
            _refuse_work_of_others(session)
        engine, now_us = self.store.engine, self.store.engine.clock()
        options = SaveOptions(
            step=document.step,
            status=document.status,
            trigger=document.trigger,
            message=document.message,
            details=document.details,
            metadata=_metadata(read, self.source, now_us),
            external_id=document.external_id,
        )
        info = (
            SessionInfo(uid="", key=read.key, created_us=0, updated_us=0) if session is None else session.info
        )
        time_us = now_us if document.time_us is None else min(max(document.time_us, 0), now_us)
        draft = Session(engine, info, self.store.settings)
        save = replace(draft._save_of(document.state, **options), time_us=time_us)
        save = engine.checked(save)
        if self.dry_run:
            return None
        if session is None:
            session = self.known[read.key] = self.store.session(read.key, **self._made_with(read))
        place = self._late_place(session, time_us)
        if place is not None:
            self.stood.setdefault(read.key, info)
            save = replace(save, branch=LATE, parents=place)
        saved = engine.save(replace(save, session=session.uid))
        self.places[read.key].append(saved)
        return saved.id

    def _late_place(self, session: Session, time_us: int) -> tuple[str, ...] | None:
        """The parents of a checkpoint before which newer ones came; None if it is the newest."""
        if session.key not in self.places:
            late = self.store.engine.headers(HeaderQuery(session=session.uid, branch=LATE))
            self.places[session.key] = [*self._line(session), *late]
        known = self.places[session.key]
        if all(header.time_us <= time_us for header in known if header.branch != LATE):
            return None
        before = [header for header in known if header.time_us <= time_us]
        newest = max(before, key=lambda header: (header.time_us, header.seq), default=None)
        return () if newest is None else (newest.id,)

    def _line(self, session: Session) -> Iterator[Header]:
        """What led to where a session stands, newest first."""
        backend, info = self.store.engine.backend, session.info
        for row in reader.line_of(backend, info, info.branch):
            with suppress(StepkeepError):
                yield reader.verified(row)

    def _settle(self) -> None:
        """A session stays what it was whatever came late; after a crash it is again what its newest checkpoint says."""
        for session in [] if self.dry_run else self.known.values():
            info, head, stood = session.info, next(self._line(session), None), self.stood.get(session.key)
            status, ended_us = info.status, self.store.engine.clock()
            if stood is not None:
                status, ended_us = stood.status, stood.finished_us or ended_us
            elif head is not None and _origin(head):
                status = head.status
            if status is not info.status:
                changes = {"status": status, "finished_us": ended_us if status.is_finished else None}
                error = None if stood is None else stood.error
                self.store.engine.backend.update_session(info.uid, {**changes, "error": error})

    @property
    def source(self) -> str:
        """What the result and the metadata call that which things come from."""
        return str(self.layout)

    def _made_with(self, read: ReadCheckpoint) -> dict[str, Any]:  # noqa: ARG002  (some sources say more)
        """What a session that an import makes gets."""
        return {"profile": PROFILES[self.layout]}

    def _nothing_found(self) -> tuple[str, tuple[str, ...]]:
        places = {each: find_files(self.directory, each) for each in Layout if each != self.layout}
        others = [str(each) for each, found in places.items() if next(found, None)]
        but = f"but of layout {' and '.join(others)}" if others else "nor of any other"
        fixes = tuple(f"use --layout {each}" for each in others)
        return (
            f"{self.directory} has no files of layout {self.layout}, {but}",
            fixes or ("name the folder of the other store, or one in it",),
        )

    def _report(self, files: list[FileImport]) -> FilesImport:
        counts = Counter(fate.outcome for fate in files)
        skipped = [fate.code for fate in files if fate.outcome == SKIPPED]
        result = PASS if not skipped else WARN if len(skipped) < len(files) else FAIL
        note, fixes = None, fixes_for_codes(skipped, table=IMPORT_FIXES)
        if not files:
            note, fixes = self._nothing_found()
            result = WARN
        return FilesImport(
            directory=str(self.directory),
            layout=self.source,
            is_dry_run=self.dry_run,
            imported=counts[IMPORTED],
            present=counts["present"],
            ours=counts["ours"],
            skipped=len(skipped),
            files=tuple(files),
            result=result,
            fixes=fixes,
            note=note,
        )


def _put_away(root: Path, file: Path) -> None:
    """Move a file that was adopted in its own folder out of the way: its document takes its place for all readers.

    It stays beside the index, byte for byte. Where it cannot be moved it is found as present by the next import.
    """
    folder = root / SIDECAR / "adopted"
    with suppress(OSError):
        folder.mkdir(mode=0o700, exist_ok=True)
        file.rename(folder / file.name)


def skipped_fate(fate: FileImport, exc: StepkeepError) -> FileImport:
    return replace(fate, outcome=SKIPPED, code=exc.code, message=exc.message)


def _refuse_work_of_others(session: Session) -> None:
    """Files that only happen to name a session of this store must not become its newest checkpoints."""
    newest = next(session.history(limit=1), None)
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


def _metadata(read: ReadCheckpoint, source: str, adopted_us: int) -> dict[str, Any]:
    document = read.document
    origin = {
        "layout": source,
        "file": read.found.shown,
        "sha256": read.digest,
        "created_at": read.created_at,
        "adopted_us": adopted_us,
        "verified": list(document.verified),
        "unverified": list(document.unverified),
    }
    own = document.metadata
    if len(msgspec.json.encode(own)) > _MAX_OWN_METADATA:  # all of it is in the state
        own = {name: own[name] for name in ("phase", "phase_number", "task_summary") if name in own}
    return {**own, IMPORTED: origin}
