"""The store of readable files, behind the same port as every other.

Checkpoints are JSON documents, and the documents are the truth. What a layout cannot hold lives in a
sidecar, `ROOT/.stepkeep/index.db`, with an index of the documents: an SQL store like any other, whose rows hold no
body bytes.

A transaction over the sidecar and the files is all of it, or nothing. The sidecar's write lock orders the savers; a
document is durable before the sidecar commits. What a crash leaves between the two is taken up by whoever writes next,
in whichever process, and files whose checkpoint was removed are listed in the commit that removed it, so that a crash
cannot bring them back.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec

from stepkeep.codec import document as documents
from stepkeep.codec.document import Document
from stepkeep.codec.integrity import digest, open_header
from stepkeep.codec.readable import MERGED, Layout, merged_source
from stepkeep.errors import (
    CHECKSUM_MISSING,
    LATEST_STALE,
    NOT_WRITABLE,
    BackendUnavailable,
    Corrupt,
    InvalidInput,
    StepkeepError,
    Unsupported,
)
from stepkeep.logs import Log
from stepkeep.model import Header, SessionInfo, utc_now_us
from stepkeep.storage import port
from stepkeep.storage.files import sidecar
from stepkeep.storage.files.document_reader import (
    DocumentReader,
    foreign_file,
    is_sealed,
    read_bytes,
    read_document,
    standing_alone,
    without_bytes,
)
from stepkeep.storage.files.document_writer import Changes, DocumentWriter
from stepkeep.storage.files.durable_files import Tree, split, translated
from stepkeep.storage.files.layouts import CHECKSUM, GZIP, INTENT, NAMES, is_temporary
from stepkeep.storage.files.phase_files import PhaseFiles
from stepkeep.storage.files.rebuild import Rebuild, folders_in, is_up_to_date
from stepkeep.storage.files.sidecar import (
    DocumentEntry,
    announced,
    detect_layout,
    note_damage,
    open_sidecar,
)
from stepkeep.storage.sql import attachments
from stepkeep.storage.sql import bodies as body_rows
from stepkeep.storage.sql import sessions as session_rows
from stepkeep.storage.sql.backend import SqlBackend
from stepkeep.storage.sql.connection import Connection
from stepkeep.storage.sql.row_mapping import intact_header
from stepkeep.storage.sql.sessions import NeedsRepair, repair
from stepkeep.storage.sqlite import BUSY_SECONDS

log = Log("stepkeep.storage")

T = TypeVar("T")

TEMPORARY_AGE_US: Final = 3600 * 1_000_000
"""How old a temporary file must be before it is cleaned away."""

COMPRESS_STEP: Final = 20
"""How many documents one transaction compresses: savers wait for no longer than that takes."""


PROFILES: Final = {Layout.RUN: "run", Layout.WORKFLOW: "workflow"}
"""The rules of the specification that a layout comes from hold for its sessions, unless somebody says otherwise."""

Served = tuple[Document, bool]
"""A document, and whether it is the original."""


class FilesBackend(SqlBackend):
    """A store in a directory. Directory, sidecar and folders are made on demand, readable only by their owner."""

    capabilities = port.Capabilities(takes_deltas=False)

    _writer: DocumentWriter
    """That of the transaction that is under way; there is one at a time."""

    def __init__(
        self,
        root: str | os.PathLike[str],
        *,
        layout: Layout | str | None = None,
        clock: Callable[[], int] = utc_now_us,
        busy_seconds: float = BUSY_SECONDS,
    ) -> None:
        """Open the store at `root`. Without a `layout` it has the one it was made with, a new one `run`.

        Raises:
            InvalidInput: the root is not a directory, or the store has another layout.
        """
        super().__init__(clock=clock)
        self._root = Path(root).absolute()
        self._stuck: set[str] = set()
        self._sidecar = open_sidecar(self._root, clock=clock, busy_seconds=busy_seconds)
        try:
            self._layout = self._settled_layout(None if layout is None else Layout(layout))
            self.url = f"files:{self._root}?layout={self._layout}"
            self.capabilities = port.Capabilities(takes_deltas=False, profile=PROFILES.get(self._layout))
            self._names = NAMES[self._layout]
            self._tree = Tree(self._root)
            is_phase = self._layout is Layout.PHASE
            self._phase_files = PhaseFiles(self._root, clock=clock) if is_phase else None
            self._reader = DocumentReader(self._tree, self._names)
            self._take_up()
        except BaseException:
            self._sidecar.close()
            raise

    def _settled_layout(self, wanted: Layout | None) -> Layout:
        def settle(tx: Connection) -> str:
            known = sidecar.fact(tx, "layout")
            if known is None:
                known = wanted or detect_layout(self._root)
                sidecar.state_fact(tx, "layout", known)
            return known

        stored = self._sidecar._read(lambda tx: sidecar.fact(tx, "layout")) or self._sidecar._write(settle)
        if wanted not in (None, stored):
            raise InvalidInput(
                f"{self._root} has the layout {stored}, not {wanted}: open it with layout={stored}",
                code="layout_mismatch",
            )
        return Layout(stored)

    @property
    def root(self) -> Path:
        return self._root

    @property
    def layout(self) -> Layout:
        return self._layout

    @property
    def phase_files(self) -> PhaseFiles | None:
        """`seed.json` and the event log beside the documents, in the `phase` layout."""
        return self._phase_files

    # --- transactions

    def _read(self, work: Callable[[Connection], T]) -> T:
        with note_damage(self._root):
            return self._sidecar._read(work)

    def _write(self, work: Callable[[Connection], T], *, secure: bool = False) -> T:
        """Run a transaction of the sidecar, with what it does to the files: all of it, or nothing."""
        changes = Changes(is_secure=secure)
        stuck_before = frozenset(self._stuck)

        def transaction(tx: Connection) -> T:
            try:
                self._writer = DocumentWriter(self._tree, self._names, tx, changes)
                with translated(self._root):
                    self._settle(tx)
                    return work(tx)
            except BaseException:
                changes.undo()
                raise

        try:
            with note_damage(self._root):
                result = self._sidecar._write(transaction, secure=secure)
        except BaseException:
            if changes:
                self._undo_uncommitted(changes)
            raise
        if changes.has_left:
            self._clear()
        for tell in changes.told:
            tell()
        if secure and (stuck := self._stuck - stuck_before):
            named = ", ".join(str(self._root / file) for file in sorted(stuck))
            raise BackendUnavailable(
                f"{named} cannot be removed: what it holds left the store, but is still on the disk; remove it "
                "by hand, or open the store again when that is possible",
                code="file_not_removed",
                retryable=False,
            )
        return result

    def _clear(self) -> None:
        """Remove the files that a transaction left; a failure leaves them to the next one."""
        try:
            self._write(lambda _: None)
        except StepkeepError as exc:
            log.warning("files of removed checkpoints stay for now: %s", exc)

    def _settle(self, tx: Connection) -> None:
        """Finish what earlier transactions left: files to remove, and documents whose commit never came."""
        self._writer.clear_leftovers(self._stuck)
        number = announced(self._root)
        if sidecar.fact(tx, INTENT) != number:
            if not is_up_to_date(tx, self._tree, self._names):
                self._rebuild(tx)
                self._writer.clear_leftovers(self._stuck)
            sidecar.state_fact(tx, INTENT, number)

    def _rebuild(self, tx: Connection) -> None:
        try:
            Rebuild(tx, self._tree, self._names, self._writer).run()
        except NeedsRepair:
            repair(tx)
            Rebuild(tx, self._tree, self._names, self._writer).run()

    def _undo_uncommitted(self, changes: Changes) -> None:
        """Take documents back whose commit failed, unless another process took them up meanwhile.

        The sidecar first writes over what the failed commit left in its log, or the next opening would find the
        commit there and miss the documents. If that fails too they stay: each alone leads to the whole checkpoint.
        """

        def undo(tx: Connection) -> None:
            if changes.announced is None or sidecar.fact(tx, INTENT) != changes.announced:
                changes.undo()

        try:
            self._sidecar._write(undo)
        except StepkeepError as exc:
            log.warning("documents of a failed save stay until the next one: %s", exc)

    def _take_up(self) -> None:
        """Take up documents that came or went while the store was closed, or by hand, and what a kill left half done.

        In a store that cannot be written it is left to the next one who can.
        """
        try:
            if not self._read(lambda tx: is_up_to_date(tx, self._tree, self._names)):
                self._writing(self._rebuild)
            elif any(self._names.is_pointer(each.file) for each in self._read(sidecar.leftovers)):
                self._clear()
        except BackendUnavailable as exc:
            if exc.code != NOT_WRITABLE:
                raise
            log.warning("files that came or went are not taken up: %s", exc)

    def _agreed(self, work: Callable[[Connection, bool], T]) -> T:
        """Run something under the lock, where sidecar and documents agree: nobody is between writing one and the other.

        A store that cannot be written is looked at without, and the second argument is False: nothing can be noted.
        """
        try:
            return self._write(lambda tx: work(tx, True))
        except BackendUnavailable as exc:
            if exc.code != NOT_WRITABLE:
                raise
            return self._read(lambda tx: work(tx, False))

    # --- saving

    def append(self, batch: Sequence[port.Append], seal: port.Seal) -> list[port.Appended | StepkeepError]:
        whole = [
            msgspec.structs.replace(item, bodies=tuple(map(standing_alone, item.bodies))) for item in batch
        ]
        self._store_blobs([blob for item in batch for blob in item.blobs])
        return super().append(whole, seal)

    def _append_batch(
        self, tx: Connection, batch: Sequence[port.Append], seal: port.Seal, **how: bool
    ) -> list[port.Appended | StepkeepError]:
        bare = [without_bytes(item) for item in batch]
        outcomes = super()._append_batch(tx, bare, seal, **how)
        self._write_documents(tx, batch, outcomes)
        refused = [
            each for each, answer in zip(batch, outcomes, strict=True) if isinstance(answer, StepkeepError)
        ]
        body_rows.remove_unnamed(tx, [blob.digest for item in refused for blob in item.blobs])
        return outcomes

    def _store_blobs(self, blobs: Sequence[port.Blob]) -> None:
        """Store blobs before the documents that name them: a document that is taken up after a crash is then whole.

        One that is swept before its document is written makes the save `blob_gone`, which is repeated.
        """
        stored = self.has_blobs([blob.digest for blob in blobs]) if blobs else set()
        missing = [blob for blob in blobs if blob.digest not in stored]
        if missing:
            self._writing(lambda tx: body_rows.insert_blobs(tx, missing))

    def _write_documents(
        self, tx: Connection, batch: Sequence[port.Append], outcomes: Sequence[port.Appended | StepkeepError]
    ) -> None:
        stored = [
            (item, outcome.row)
            for item, outcome in zip(batch, outcomes, strict=True)
            if isinstance(outcome, port.Appended) and outcome.is_new
        ]
        if not stored:
            return
        self._writer.announce()
        shown: dict[str, str | None] = {}
        newest: dict[str, bytes] = {}
        uids: dict[str, str] = {}
        for item, row in stored:
            sid, session = session_rows.by_uid(tx, row.session)
            header = sidecar.opened(row.raw)
            newest[session.key] = content = self._encoded(row.raw, header, session, item.bodies)
            if session.key not in shown:
                shown[session.key] = self._writer.keep_shown(session.key, sid, row.seq)
            self._writer.store(session.key, header, content, is_newest=True)
            self._note_saved(tx, sid, session, header)
            uids[session.key] = session.uid
        for key, content in newest.items():
            self._writer.show_latest(key, content, session=uids[key], before=shown[key])

    def _encoded(
        self, raw: bytes, header: Header, session: SessionInfo, bodies: Sequence[port.Body]
    ) -> bytes:
        """The document of a checkpoint; the session is told as the checkpoint left it, or as it ended."""
        is_over = self._layout is Layout.PHASE and session.status.is_finished
        status = session.status if is_over else header.status
        then = msgspec.structs.replace(
            session,
            last_seq=max(header.seq, 0),
            status=status,
            updated_us=header.time_us,
            finished_us=header.time_us if status.is_finished else None,
        )
        document = Document(raw=raw, header=header, session=then, bodies=tuple(bodies))
        return documents.encode(self._layout, document)

    # --- the run layout: `source_details` of a snapshot that triggers were merged into

    def annotate(
        self,
        uid: str,
        target: port.Target,
        kind: str,
        name: str,
        data: bytes,
        *,
        time_us: int,
        replace: bool = False,
        fence: int | None = None,
    ) -> bool:
        """Also append a merged trigger to the stored document and its copy, in the same transaction."""
        if kind != MERGED or self._layout is not Layout.RUN or not isinstance(target, str):
            return super().annotate(
                uid, target, kind, name, data, time_us=time_us, replace=replace, fence=fence
            )

        def transaction(tx: Connection, sid: int) -> bool:
            note = port.Annotation(
                target=target, kind=kind, name=name, data=data, time_us=time_us, digest=digest(data)
            )
            is_new = attachments.annotate(tx, sid, note, replace=replace)
            entry = sidecar.of_checkpoint(tx, target)
            try:
                if is_new and entry is not None:
                    self._exchange(tx, entry, self._reader.original(entry, target))
            except (Corrupt, Unsupported) as exc:
                log.warning("%s does not name the trigger that was merged into it: %s", entry, exc)
            return is_new

        return self._beside_session(uid, transaction, fence=fence)

    def _merged(self, tx: Connection, sid: int, checkpoint: str) -> list[str]:
        """What was merged into a snapshot, as its document names it, oldest first."""
        if self._layout is not Layout.RUN:
            return []
        notes = attachments.read_annotations(tx, sid, [checkpoint], MERGED)
        found = [merged_source(note.data) for note in notes if digest(note.data) == note.digest]
        return [word for word in found if word is not None]

    # --- the phase layout: `completed` in a document, and the files beside

    def update_session(
        self,
        uid: str,
        changes: dict[str, Any],
        *,
        expect_version: int | None = None,
        fence: int | None = None,
    ) -> SessionInfo:
        def transaction(tx: Connection, sid: int, session: SessionInfo) -> SessionInfo:
            changed = session_rows.update(tx, sid, session, changes, expect_version)
            if changed.status.is_finished and not session.status.is_finished:
                self._note_end(tx, changed)
            return changed

        return self._in_session(uid, transaction, fence=fence)

    def _note_saved(self, tx: Connection, sid: int, session: SessionInfo, header: Header) -> None:
        beside = self._phase_files
        if beside is None:
            return
        self._writer.tell(lambda: beside.created(session, header))
        if session.status.is_finished and sidecar.is_newest(tx, sid, header.seq):
            self._note_end(tx, session)

    def _note_end(self, tx: Connection, session: SessionInfo) -> None:
        """Mark every document of a session that ended as completed: other programs read nothing else."""
        beside = self._phase_files
        if beside is None:
            return
        headers = []
        for entry in sidecar.of_session(tx, session.uid):
            try:
                found = self._reader.original(entry, entry.checkpoint or "")
            except (Corrupt, Unsupported) as exc:
                log.warning("%s is not marked as completed: %s", entry.file, exc)
                continue
            headers.append(found.header)
            if not found.session.status.is_finished:
                ended = msgspec.structs.replace(
                    found.session, status=session.status, finished_us=session.finished_us
                )
                self._exchange(tx, entry, msgspec.structs.replace(found, session=ended))
        headers.sort(key=lambda header: header.seq)
        self._writer.tell(lambda: beside.ended(session, headers))

    def _phase_headers(self, tx: Connection, checkpoints: Sequence[str | None]) -> list[Header]:
        """The headers of checkpoints that are about to go; none where nobody is told of them."""
        if self._phase_files is None:
            return []
        found = [intact_header(sidecar.header_of(tx, checkpoint)) for checkpoint in checkpoints]
        return [header for header in found if header is not None]

    def _note_removed(self, session: SessionInfo, headers: Sequence[Header]) -> None:
        beside = self._phase_files
        if beside is not None and headers:
            self._writer.tell(lambda: beside.removed(session, headers))

    def _store_ahead(self, blobs: Sequence[port.Blob]) -> Sequence[port.Blob]:
        self._store_blobs(blobs)
        return ()

    def _adopt(
        self,
        tx: Connection,
        sid: int,
        session: SessionInfo,
        raw: bytes,
        bodies: Sequence[port.Body],
        blobs: Sequence[port.Blob],
    ) -> bool:
        whole = [standing_alone(body) for body in bodies]
        bare = [msgspec.structs.replace(body, data=b"") for body in whole]
        is_new = super()._adopt(tx, sid, session, raw, bare, blobs)
        if is_new:
            self._write_adopted(tx, raw, whole)
        return is_new

    def _write_adopted(self, tx: Connection, raw: bytes, given: Sequence[port.Body]) -> None:
        """A body that was hidden shows again as it was: its bytes move from the sidecar into the document."""
        header = open_header(raw)
        sid, session = session_rows.by_uid(tx, header.session)
        by_key = {(body.name, body.is_redundant): body for body in given}
        bodies: list[port.Body] = []
        for held in body_rows.stored(tx, sid, header.id):
            sent = by_key.get((held.name, held.is_redundant))
            bodies.append(sent if sent is not None and sent.digest == held.digest else held)
            sidecar.set_data(tx, sid, header.id, held.name, held.is_redundant, b"")
        self._writer.announce()
        content = self._encoded(raw, header, session, bodies)
        is_newest = sidecar.is_newest(tx, sid, header.seq)
        kept = self._writer.keep_shown(session.key, sid, header.seq) if is_newest else None
        self._writer.store(session.key, header, content, is_newest=is_newest)
        if is_newest:
            self._writer.show_latest(session.key, content, session=session.uid, before=kept)

    # --- reading

    def load_head(self, *_: object, **__: object) -> port.StoredHead | None:
        return None  # documents are read one by one

    def _header_page(
        self, sid: int | None, query: port.HeaderQuery, after: tuple[int, str] | None, size: int
    ) -> list[tuple[tuple[int, str], port.HeaderRow]]:
        page = super()._header_page(sid, query, after, size)
        checked = self._checked([row for _, row in page])
        return [(position, checked.get(row.id, row)) for position, row in page]

    def _checked(self, rows: list[port.HeaderRow]) -> dict[str, port.HeaderRow]:
        """The rows whose documents are not as they were, as those say now."""
        entries = self._read(lambda tx: sidecar.of_checkpoints(tx, [row.id for row in rows]))
        doubtful = [
            row
            for row in rows
            if (entry := entries.get(row.id)) is None
            or self._tree.fingerprint(entry.file) != entry.fingerprint
            or not is_sealed(row.raw)
        ]
        if not doubtful:
            return {}
        documented = self._agreed(
            lambda tx, may_note: [self._as_documented(tx, row, may_note) for row in doubtful]
        )
        return {row.id: row for row in documented}

    def _as_documented(self, tx: Connection, row: port.HeaderRow, may_note: bool) -> port.HeaderRow:
        stored = sidecar.header_of(tx, row.id)
        if stored is None:
            return row  # removed meanwhile
        entry = sidecar.of_checkpoint(tx, row.id)
        try:
            found, is_original = self._reader.served(entry, row.id)
            if is_sealed(stored) and stored != found.raw:
                raise Corrupt("the document is not the one that was saved", checkpoint=row.id)
        except (Corrupt, Unsupported) as exc:
            log.warning("%s: %s (%s)", row.id, exc, exc.code)
            problem = type(exc)(exc.message, code=exc.code, session=row.session, checkpoint=row.id)
            return msgspec.structs.replace(row, raw=b"", problem=problem)
        if may_note:
            self._note_looked_at(tx, row.id, entry, is_original, None if stored == found.raw else found.raw)
        return msgspec.structs.replace(row, raw=found.raw)

    def _note_looked_at(
        self,
        tx: Connection,
        checkpoint: str,
        entry: DocumentEntry | None,
        is_original: bool,
        raw: bytes | None,
    ) -> None:
        """Remember what was found of a document, and its header if the sidecar has another one."""
        if raw is not None:
            sidecar.mend_header(tx, checkpoint, raw)
        fingerprint = None if entry is None else self._tree.fingerprint(entry.file)
        if not is_original:
            sidecar.doubt(tx, checkpoint)
        elif entry is not None and fingerprint is not None:
            sidecar.put(tx, msgspec.structs.replace(entry, fingerprint=fingerprint))

    def body(self, uid: str, checkpoint: str, name: str) -> port.Body | None:
        found = super().body(uid, checkpoint, name)
        return None if found is None else self._with_bytes(found)

    def body_chain(self, uid: str, checkpoint: str, name: str) -> list[port.Body]:
        return [self._with_bytes(body) for body in super().body_chain(uid, checkpoint, name)]

    def all_chains(self, uid: str, checkpoints: Sequence[str]) -> list[port.Body]:
        return [self._with_bytes(body) for body in super().all_chains(uid, checkpoints)]

    def redundant_delta(self, uid: str, checkpoint: str, name: str) -> port.Body | None:
        found = super().redundant_delta(uid, checkpoint, name)
        return None if found is None else self._with_bytes(found)

    def _with_bytes(self, body: port.Body) -> port.Body:
        """The record as the document has it; where that is damaged without bytes, which its digest does not match."""
        try:
            found = self._read(lambda tx: self._found(tx, body.checkpoint))
        except (Corrupt, Unsupported):
            try:
                found = self._agreed(lambda tx, _: self._found(tx, body.checkpoint))
            except (Corrupt, Unsupported) as exc:
                log.warning("%s: %s", body.checkpoint, exc)
                return msgspec.structs.replace(body, data=b"")
        if found is None:
            return body  # the checkpoint was removed: what others still need of it is in the sidecar
        document, is_original = found
        if not is_original:
            self._doubt(body.checkpoint)
        key = (body.name, body.is_redundant)
        kept = (each for each in document.bodies if (each.name, each.is_redundant) == key)
        return next(kept, None) or msgspec.structs.replace(body, data=b"")

    def _found(self, tx: Connection, checkpoint: str) -> Served | None:
        """The document of a checkpoint, None when it was removed."""
        entry = sidecar.of_checkpoint(tx, checkpoint)
        if entry is None and sidecar.header_of(tx, checkpoint) is None:
            return None
        return self._reader.served(entry, checkpoint)

    def _doubt(self, checkpoint: str) -> None:
        """Let the next save put the original right before it overwrites the copy that served here."""
        try:
            self._write(lambda tx: sidecar.doubt(tx, checkpoint))
        except BackendUnavailable as exc:
            log.warning("the damage to %s could not be noted: %s", checkpoint, exc)

    # --- changing and removing

    def replace_body(
        self, uid: str, body: port.Body, *, expect_digest: str, fence: int | None = None
    ) -> None:
        def transaction(tx: Connection, sid: int, _: SessionInfo) -> None:
            entry = sidecar.of_checkpoint(tx, body.checkpoint)
            if entry is None:
                body_rows.replace(tx, sid, body, expect_digest)
            else:
                body_rows.replace(tx, sid, msgspec.structs.replace(body, data=b""), expect_digest)
                self._rewrite(tx, entry, body)

        self._in_session(uid, transaction, fence=fence)

    def _rewrite(self, tx: Connection, entry: DocumentEntry, body: port.Body) -> None:
        found = self._reader.served(entry, body.checkpoint)[0]
        if body in found.bodies:
            return
        kept = [each for each in found.bodies if each.name != body.name]
        bodies = tuple(sorted([*kept, body], key=lambda each: (each.name, each.is_redundant)))
        self._exchange(tx, entry, msgspec.structs.replace(found, bodies=bodies))

    def _exchange(self, tx: Connection, entry: DocumentEntry, document: Document) -> None:
        """Write another document of the same checkpoint over the one in a file, and over its copy."""
        id, session = document.header.id, document.session
        sid, _ = session_rows.by_uid(tx, document.header.session)
        content = documents.encode(self._layout, document, merged=self._merged(tx, sid, id))
        self._writer.announce()
        self._writer.rewrite(entry, content)
        if self.can_compress and self._reader.shown(self._reader.pointer_beside(entry.file)) == id:
            self._writer.show_latest(session.key, content, session=session.uid, before=entry.file)

    def _remove(
        self, tx: Connection, sid: int, session: SessionInfo, checkpoints: Sequence[str], keep_heads: bool
    ) -> port.Removed:
        headers = self._phase_headers(tx, checkpoints)
        removed = super()._remove(tx, sid, session, checkpoints, keep_heads)
        self._leave(tx, sid, session.uid, removed.removed)
        self._note_removed(session, [each for each in headers if each.id in removed.removed])
        return removed

    def _leave(self, tx: Connection, sid: int, uid: str, checkpoints: Sequence[str]) -> None:
        """Let the files of removed checkpoints go after the commit, but keep the bodies that others need."""
        entries = sidecar.of_checkpoints(tx, checkpoints)
        needed: dict[str, list[tuple[str, bool]]] = {}
        for checkpoint, name, is_redundant in sidecar.hidden_bodies(tx, sid, checkpoints):
            needed.setdefault(checkpoint, []).append((name, is_redundant))
        for checkpoint, keys in needed.items():
            for each in self._reader.served(entries.get(checkpoint), checkpoint)[0].bodies:
                if (each.name, each.is_redundant) in keys:
                    sidecar.set_data(tx, sid, checkpoint, each.name, each.is_redundant, each.data)
        self._let_go(tx, uid, list(entries.values()))

    def _let_go(self, tx: Connection, uid: str, entries: Sequence[DocumentEntry]) -> None:
        files = {entry.file for entry in entries}
        if self._layout is Layout.RUN:
            files |= self._stale_pointers(entries)
        for file in files:
            sidecar.forget(tx, file)
        self._writer.leave(files, uid, is_removal=True)

    def _stale_pointers(self, entries: Sequence[DocumentEntry]) -> set[str]:
        """The copies that show one of these checkpoints, or nothing that can be read."""
        gone = {entry.checkpoint for entry in entries}
        pointers = {self._reader.pointer_beside(entry.file) for entry in entries}
        return {pointer for pointer in pointers if self._reader.shown(pointer) in {None, *gone}}

    def _delete_sessions(self, tx: Connection, uids: Mapping[int, str]) -> dict[int, int]:
        entries = {uid: sidecar.of_session(tx, uid) for uid in uids.values()}
        for uid, own in entries.items():
            headers = self._phase_headers(tx, [entry.checkpoint for entry in own])
            if headers:
                self._note_removed(session_rows.by_uid(tx, uid)[1], headers)
        freed = super()._delete_sessions(tx, uids)
        for uid, own in entries.items():
            self._let_go(tx, uid, own)
        return freed

    def _sweep(self, tx: Connection, uid: str | None, limit: int, before_us: int | None) -> port.Swept:
        self._clean_temporaries()
        return super()._sweep(tx, uid, limit, before_us)

    def _clean_temporaries(self) -> None:
        """Under the lock no writer is at work, so an old temporary file is nobody's."""
        before_ns = (self._clock() - TEMPORARY_AGE_US) * 1000
        for location in folders_in(self._tree, self._names):
            with suppress(OSError), self._tree.folder(location) as folder:
                for entry in folder.entries():
                    if is_temporary(entry.name) and folder.fingerprint(entry.name).mtime_ns < before_ns:
                        folder.discard(entry.name)

    def facts(self) -> port.Facts:
        stuck = [str(self._root / leftover.file) for leftover in self._read(sidecar.leftovers)]
        return msgspec.structs.replace(self._sidecar.facts(), stuck=tuple(stuck))

    def reclaim(self, max_bytes: int) -> int:
        self._stuck.clear()
        if self._read(sidecar.leftovers):
            self._clear()
        return self._sidecar.reclaim(max_bytes)

    def files(self, uid: str) -> dict[str, str]:
        entries = self._read(lambda tx: sidecar.of_session(tx, uid))
        return {entry.checkpoint: entry.file for entry in entries if entry.checkpoint is not None}

    def file_bytes(self, uid: str) -> dict[str, int]:
        return self._read(lambda tx: sidecar.bytes_of_session(tx, uid))

    def written_bytes(self, bodies: Sequence[port.Body]) -> int:
        return sum(documents.packed_size(self._layout, standing_alone(body)) for body in bodies)

    def _store_bytes(self) -> int:
        return self._sidecar._store_bytes() + self._read(sidecar.stored_bytes)

    def close(self) -> None:
        self._sidecar.close()

    # --- compressing

    @property
    def can_compress(self) -> bool:
        return self._layout is Layout.RUN

    def compressible(self, before_us: int, *, session: str | None = None) -> int:
        if not self.can_compress:
            return 0
        return self._read(lambda tx: sidecar.count_plain_before(tx, before_us, session))

    def compress(self, before_us: int, *, session: str | None = None, limit: int | None = None) -> int:
        """Only the history of the `run` layout; `latest.json` stays as it is."""
        done = 0
        skipped: set[str] = set()
        while self.can_compress and (limit is None or done < limit):
            step = COMPRESS_STEP if limit is None else min(COMPRESS_STEP, limit - done)
            count, found = self._writing(
                lambda tx, step=step: self._compress_some(  # type: ignore[misc]
                    tx, before_us, session, step, skipped
                )
            )
            done += count
            if found == 0:
                break
        return done

    def _compress_some(
        self, tx: Connection, before_us: int, session: str | None, step: int, skipped: set[str]
    ) -> tuple[int, int]:
        """Compress a few; (how many, how many were looked at). Damaged ones are skipped, and told."""
        entries = sidecar.plain_before(tx, before_us, session, step + len(skipped))
        going = [entry for entry in entries if entry.file not in skipped][:step]
        count = 0
        if going:
            self._writer.announce()
        for entry in going:
            try:
                self._reader.document_in(entry.file, entry.checkpoint)
                packed = documents.gzip(read_bytes(self._tree, entry.file))
            except (Corrupt, Unsupported) as exc:
                log.warning("%s is not compressed: %s", entry.file, exc)
                skipped.add(entry.file)
                continue
            self._writer.compress(entry, packed)
            count += 1
        return count, len(going)

    # --- the store

    def inconsistencies(self, uid: str | None = None) -> list[port.Inconsistency]:
        if uid is None:
            self._take_up()
            return [*super().inconsistencies(), *map(foreign_file, self._read(sidecar.problems))]
        return [*super().inconsistencies(uid), *self._document_problems(uid)]

    def _document_problems(self, uid: str) -> Iterator[port.Inconsistency]:
        """Checkpoints whose documents are missing or damaged, and a copy of the newest that is not."""
        rows = list(self.headers(port.HeaderQuery(session=uid, newest_first=False)))
        for row in rows:
            look = partial(self._document_problem, row.id)
            if self._read(look) is not None:  # perhaps someone is just writing it
                problem = self._agreed(look)
                yield from () if problem is None else (problem,)
        if rows and self.can_compress and self._read(lambda tx: self._copy_problem(tx, uid)) is not None:
            problem = self._agreed(lambda tx, _: self._copy_problem(tx, uid))
            yield from () if problem is None else (problem,)

    def _copy_problem(self, tx: Connection, uid: str) -> port.Inconsistency | None:
        """What is wrong with the copy of the newest document, which people read first."""
        newest = sidecar.newest(tx, uid)
        entry = None if newest is None else sidecar.of_checkpoint(tx, newest)
        if entry is None or newest is None or self._is_broken(entry, newest):
            return None  # that is told of the document itself
        pointer = self._reader.pointer_beside(entry.file)
        try:
            shown = read_document(self._tree, self._layout, pointer).header.id
        except (Corrupt, Unsupported) as exc:
            message = f"{pointer} is missing" if exc.code == "checkpoint_missing" else exc.message
        else:
            if shown == newest:
                return None
            message = f"{pointer} shows {shown}, not the newest checkpoint"
        return port.Inconsistency(newest, f"{message}; the next save writes it anew", LATEST_STALE)

    def _is_broken(self, entry: DocumentEntry, checkpoint: str) -> bool:
        try:
            self._reader.original(entry, checkpoint)
        except (Corrupt, Unsupported):
            return True
        return False

    def _document_problem(
        self, checkpoint: str, tx: Connection, may_note: bool = False
    ) -> port.Inconsistency | None:
        """What is wrong with the file of a checkpoint, also where its copy serves."""
        if sidecar.header_of(tx, checkpoint) is None:
            return None  # removed meanwhile
        entry = sidecar.of_checkpoint(tx, checkpoint)
        try:
            self._reader.original(entry, checkpoint)
        except (Corrupt, Unsupported) as exc:
            if isinstance(exc, Unsupported) or self._reader.copy(entry, checkpoint) is None:
                return port.Inconsistency(checkpoint, exc.message, exc.code)
            if may_note:
                sidecar.doubt(tx, checkpoint)
            message = f"{exc.message}; latest.json still has it, and the next save restores it from there"
            return port.Inconsistency(checkpoint, message, exc.code)
        if entry is not None and self._reader.lacks_checksum(entry.file):
            message = (
                f"{entry.file}{CHECKSUM} is missing; the checksum inside the document proves its content"
            )
            return port.Inconsistency(checkpoint, message, CHECKSUM_MISSING)
        return None

    # --- repairing

    def repair(self, uid: str | None = None) -> list[str]:
        self._stuck.clear()
        self._take_up()
        return self._write(lambda tx: list(self._repaired(tx, uid)))

    def _repaired(self, tx: Connection, uid: str | None) -> Iterator[str]:
        """Under the lock no writer is at work, so a temporary file is nobody's."""
        self._writer.announce()
        for each in [uid] if uid is not None else sidecar.sessions(tx):
            for entry in sidecar.of_session(tx, each):
                if self._reader.lacks_checksum(entry.file) and not self._is_broken(
                    entry, entry.checkpoint or ""
                ):
                    yield f"wrote {self._writer.write_checksum(entry.file)}"
            if self.can_compress and (newest := sidecar.newest(tx, each)) is not None:
                yield from self._with_its_copy(tx, each, newest)
        for file in self._orphans(uid is None):
            location, name = split(file)
            with self._tree.folder(location) as folder:
                folder.remove(name)
            yield f"removed {file}"

    def _with_its_copy(self, tx: Connection, uid: str, newest: str) -> Iterator[str]:
        """Let the newest document and its copy be the same again, from whichever is intact."""
        sid, session = session_rows.by_uid(tx, uid)
        entry = sidecar.of_checkpoint(tx, newest)
        if entry is not None and self._is_broken(entry, newest) and self._reader.copy(entry, newest):
            sidecar.doubt(tx, newest)
            yield f"restored {self._writer.keep_shown(session.key, sid, session.last_seq + 1)} from latest.json"
            entry = sidecar.of_checkpoint(tx, newest)
        if entry is not None and self._copy_problem(tx, uid) is not None:
            content = read_bytes(self._tree, entry.file)
            self._writer.show_latest(session.key, content, session=uid, before=entry.file)
            yield f"wrote {self._reader.pointer_beside(entry.file)}"

    def _orphans(self, is_all: bool) -> Iterator[str]:
        """Files that belong to nothing: temporary ones, and checksums of what is not there."""
        for location in folders_in(self._tree, self._names) if is_all else ():
            names = {entry.name for entry in self._tree.entries(location)}
            for name in sorted(names):
                is_checksum = name.endswith(GZIP + CHECKSUM) and name.removesuffix(CHECKSUM) not in names
                if is_temporary(name) or is_checksum:
                    yield f"{location}/{name}"
