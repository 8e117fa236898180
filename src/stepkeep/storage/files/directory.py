"""The store of readable files, behind the same port as every other.

Checkpoints are JSON documents, and the documents are the truth. Everything a layout has no place for lives in a
sidecar, `ROOT/.stepkeep/index.db`, with an index of the documents: an SQL store like any other, whose rows hold no
body bytes.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Final

import msgspec

from stepkeep.codec import document as documents
from stepkeep.codec.document import Document
from stepkeep.codec.integrity import open_header
from stepkeep.codec.readable import Layout
from stepkeep.errors import BackendUnavailable, Corrupt, StepkeepError, Unsupported
from stepkeep.model import Header, SessionInfo
from stepkeep.storage.files import sidecar
from stepkeep.storage.files.document_reader import (
    damaged,
    foreign_file,
    is_sealed,
    located,
    read_bytes,
    read_document,
    standing_alone,
    without_bytes,
)
from stepkeep.storage.files.document_transactions import FilesTransactions
from stepkeep.storage.files.document_writer import DocumentWriter
from stepkeep.storage.files.durable_files import translated
from stepkeep.storage.files.layouts import is_temporary
from stepkeep.storage.files.rebuild import folders_in
from stepkeep.storage.files.sidecar import DocumentEntry, Leftover
from stepkeep.storage.port import (
    Annotation,
    Append,
    Appended,
    Blob,
    Body,
    Capabilities,
    HeaderQuery,
    HeaderRow,
    Inconsistency,
    Removed,
    Seal,
    StoredHead,
    Swept,
)
from stepkeep.storage.sql import bodies as body_rows
from stepkeep.storage.sql import sessions as session_rows
from stepkeep.storage.sql.connection import Connection

log = logging.getLogger("stepkeep.storage")

TEMPORARY_AGE_US: Final = 3600 * 1_000_000
"""How old a temporary file must be before it is cleaned away."""

COMPRESS_STEP: Final = 20
"""How many documents one transaction compresses: savers wait for no longer than that takes."""


Served = tuple[Document, bool]
"""A document, and whether it is the original."""


class FilesBackend(FilesTransactions):
    """Everything the port promises, with checkpoints as documents."""

    capabilities = Capabilities(takes_deltas=False)

    # --- saving

    def append(self, batch: Sequence[Append], seal: Seal) -> list[Appended | StepkeepError]:
        whole = [
            msgspec.structs.replace(item, bodies=tuple(map(standing_alone, item.bodies))) for item in batch
        ]

        def then(tx: Connection, writer: DocumentWriter, outcomes: object) -> None:
            if isinstance(outcomes, list):
                self._write_documents(tx, writer, whole, outcomes)
                body_rows.remove_unnamed(tx, list(_refused_blobs(batch, outcomes)))

        self._store_blobs([blob for item in batch for blob in item.blobs])
        with self._also(then):
            return super().append([without_bytes(item) for item in whole], seal)

    def _store_blobs(self, blobs: Sequence[Blob]) -> None:
        """Store blobs before the documents that name them: a document that is taken up after a crash is then whole.

        One that is swept before its document is written makes the save `blob_gone`, which is repeated.
        """
        stored = self.has_blobs([blob.digest for blob in blobs]) if blobs else set()
        missing = [blob for blob in blobs if blob.digest not in stored]
        if missing:
            self._writing(lambda tx: body_rows.insert_blobs(tx, missing))

    def _write_documents(
        self,
        tx: Connection,
        writer: DocumentWriter,
        batch: Sequence[Append],
        outcomes: Sequence[Appended | StepkeepError],
    ) -> None:
        stored = [
            (item, outcome.row)
            for item, outcome in zip(batch, outcomes, strict=True)
            if isinstance(outcome, Appended) and outcome.is_new
        ]
        if not stored:
            return
        self._announce(tx)
        newest: dict[str, tuple[str, bytes, str | None]] = {}
        for item, row in stored:
            sid, session = session_rows.by_uid(tx, row.session)
            header = open_header(row.raw)
            content = self._encoded(row.raw, header, session, item.bodies)
            if row.session not in newest:
                before = writer.keep_shown(session.key, sid, row.seq)
                newest[row.session] = session.key, content, before
            newest[row.session] = (session.key, content, newest[row.session][2])
            writer.place(session.key, header, content, is_newest=True)
        for key, content, before in newest.values():
            writer.show_latest(key, content, before=before)

    def _encoded(self, raw: bytes, header: Header, session: SessionInfo, bodies: Sequence[Body]) -> bytes:
        """The document of a checkpoint; the session is told as the checkpoint left it."""
        then = msgspec.structs.replace(
            session,
            last_seq=max(header.seq, 0),
            status=header.status,
            updated_us=header.time_us,
            finished_us=header.time_us if header.status.is_finished else None,
        )
        document = Document(raw=raw, header=header, session=then, bodies=tuple(bodies))
        return documents.encode(self._layout, document)

    def adopt(
        self,
        uid: str,
        raw: bytes,
        *,
        bodies: Sequence[Body],
        blobs: Sequence[Blob] = (),
        annotations: Sequence[Annotation] = (),
    ) -> bool:
        whole = [standing_alone(body) for body in bodies]

        def then(tx: Connection, writer: DocumentWriter, is_new: object) -> None:
            if is_new is True:
                self._write_adopted(tx, writer, raw, whole)

        bare = [msgspec.structs.replace(body, data=b"") for body in whole]
        self._store_blobs(blobs)
        with self._also(then):
            return super().adopt(uid, raw, bodies=bare, annotations=annotations)

    def _write_adopted(
        self, tx: Connection, writer: DocumentWriter, raw: bytes, given: Sequence[Body]
    ) -> None:
        """A body that was hidden shows again as it was: its bytes move from the sidecar into the document."""
        header = open_header(raw)
        sid, session = session_rows.by_uid(tx, header.session)
        by_place = {(body.name, body.is_redundant): body for body in given}
        bodies: list[Body] = []
        for held in body_rows.stored(tx, sid, header.id):
            sent = by_place.get((held.name, held.is_redundant))
            bodies.append(sent if sent is not None and sent.digest == held.digest else held)
            sidecar.set_data(tx, sid, header.id, held.name, held.is_redundant, b"")
        self._announce(tx)
        content = self._encoded(raw, header, session, bodies)
        is_newest = sidecar.is_newest(tx, sid, header.seq)
        kept = writer.keep_shown(session.key, sid, header.seq) if is_newest else None
        writer.place(session.key, header, content, is_newest=is_newest)
        if is_newest:
            writer.show_latest(session.key, content, before=kept)

    # --- reading

    def load_head(self, *_: object, **__: object) -> StoredHead | None:
        return None  # documents are read one by one

    def _header_page(
        self, sid: int | None, query: HeaderQuery, after: tuple[int, str] | None, size: int
    ) -> list[tuple[tuple[int, str], HeaderRow]]:
        page = super()._header_page(sid, query, after, size)
        checked = self._checked([row for _, row in page])
        return [(place, checked.get(row.id, row)) for place, row in page]

    def _checked(self, rows: list[HeaderRow]) -> dict[str, HeaderRow]:
        """The rows whose documents are not as they were, as those say now."""
        entries = self._read(lambda tx: sidecar.of_checkpoints(tx, [row.id for row in rows]))
        doubtful = [row for row in rows if not self._is_unchanged(row, entries.get(row.id))]
        if not doubtful:
            return {}
        # Under the lock sidecar and documents agree: nobody is between writing the one and the other.
        return {
            row.id: row for row in self._write(lambda tx: [self._as_documented(tx, row) for row in doubtful])
        }

    def _is_unchanged(self, row: HeaderRow, entry: DocumentEntry | None) -> bool:
        return (
            entry is not None
            and self._tree.fingerprint(entry.file) == entry.fingerprint
            and is_sealed(row.raw)
        )

    def _as_documented(self, tx: Connection, row: HeaderRow) -> HeaderRow:
        stored = sidecar.header_of(tx, row.id)
        if stored is None:
            return row  # removed meanwhile
        entry = sidecar.of_checkpoints(tx, [row.id]).get(row.id)
        try:
            found, is_original = self._reader.served(entry, row.id)
            if is_sealed(stored) and stored != found.raw:
                raise Corrupt("the document is not the one that was saved", checkpoint=row.id)
        except (Corrupt, Unsupported) as exc:
            log.warning("%s: %s (%s)", row.id, exc, exc.code)
            return msgspec.structs.replace(row, raw=b"", problem=located(exc, row.session, row.id))
        if stored != found.raw:
            sidecar.mend_header(tx, row.id, found.raw)
        if not is_original:
            sidecar.doubt(tx, row.id)
            return msgspec.structs.replace(row, raw=found.raw)
        fingerprint = None if entry is None else self._tree.fingerprint(entry.file)
        if entry is not None and fingerprint is not None:
            sidecar.put(tx, msgspec.structs.replace(entry, fingerprint=fingerprint))
        return msgspec.structs.replace(row, raw=found.raw)

    def body(self, uid: str, checkpoint: str, name: str) -> Body | None:
        found = super().body(uid, checkpoint, name)
        return None if found is None else self._with_bytes(found)

    def body_chain(self, uid: str, checkpoint: str, name: str) -> list[Body]:
        return [self._with_bytes(body) for body in super().body_chain(uid, checkpoint, name)]

    def redundant_delta(self, uid: str, checkpoint: str, name: str) -> Body | None:
        found = super().redundant_delta(uid, checkpoint, name)
        return None if found is None else self._with_bytes(found)

    def _with_bytes(self, body: Body) -> Body:
        """The record as the document has it. Where that is damaged, bytes that match no digest."""
        try:
            found = self._found(self._read, body.checkpoint)
        except (Corrupt, Unsupported):
            try:
                found = self._found(self._write, body.checkpoint)
            except (Corrupt, Unsupported) as exc:
                log.warning("%s: %s", body.checkpoint, exc)
                return damaged(body)
        if found is None:
            return body  # the checkpoint was removed: what others still need of it is in the sidecar
        document, is_original = found
        if not is_original:
            self._doubt(body.checkpoint)
        place = (body.name, body.is_redundant)
        kept = (each for each in document.bodies if (each.name, each.is_redundant) == place)
        return next(kept, None) or damaged(body)

    def _found(
        self,
        run: Callable[[Callable[[Connection], Served | None]], Served | None],
        checkpoint: str,
    ) -> Served | None:
        """The document of a checkpoint, None when it was removed."""

        def find(tx: Connection) -> Served | None:
            entry = sidecar.of_checkpoints(tx, [checkpoint]).get(checkpoint)
            if entry is None and sidecar.header_of(tx, checkpoint) is None:
                return None
            return self._reader.served(entry, checkpoint)

        return run(find)

    def _doubt(self, checkpoint: str) -> None:
        """Let the next save put the original right before it overwrites the copy that served here."""
        try:
            self._write(lambda tx: sidecar.doubt(tx, checkpoint))
        except BackendUnavailable as exc:
            log.warning("the damage to %s could not be noted: %s", checkpoint, exc)

    # --- changing and removing

    def replace_body(self, uid: str, body: Body, *, expect_digest: str, fence: int | None = None) -> None:
        def transaction(tx: Connection, sid: int, _: SessionInfo) -> None:
            entry = sidecar.of_checkpoints(tx, [body.checkpoint]).get(body.checkpoint)
            if entry is None:
                body_rows.replace(tx, sid, body, expect_digest)
                return
            body_rows.replace(tx, sid, msgspec.structs.replace(body, data=b""), expect_digest)

        def then(tx: Connection, writer: DocumentWriter, result: object) -> None:  # noqa: ARG001
            entry = sidecar.of_checkpoints(tx, [body.checkpoint]).get(body.checkpoint)
            if entry is not None:
                self._rewrite(tx, writer, entry, body)

        with self._also(then):
            self._in_session(uid, transaction, fence=fence)

    def _rewrite(self, tx: Connection, writer: DocumentWriter, entry: DocumentEntry, body: Body) -> None:
        found = self._reader.document(entry, body.checkpoint)
        if body in found.bodies:
            return
        kept = [each for each in found.bodies if each.name != body.name]
        bodies = tuple(sorted([*kept, body], key=lambda each: (each.name, each.is_redundant)))
        content = documents.encode(self._layout, msgspec.structs.replace(found, bodies=bodies))
        self._announce(tx)
        writer.rewrite(entry, content)
        if (
            self._layout is Layout.RUN
            and self._reader.shown(self._reader.pointer_beside(entry.file)) == body.checkpoint
        ):
            writer.show_latest(found.session.key, content, before=entry.file)

    def remove(
        self,
        uid: str,
        checkpoints: Sequence[str],
        *,
        secure: bool = False,
        fence: int | None = None,
        keep_heads: bool = False,
    ) -> Removed:
        def then(tx: Connection, writer: DocumentWriter, removed: object) -> None:  # noqa: ARG001
            if isinstance(removed, Removed):
                self._leave(tx, uid, removed.removed, secure)

        with self._also(then):
            removed = super().remove(uid, checkpoints, secure=secure, fence=fence, keep_heads=keep_heads)
        self._clear()
        return removed

    def _leave(self, tx: Connection, uid: str, checkpoints: Sequence[str], secure: bool) -> None:
        """Let the files of removed checkpoints go after the commit, but keep the bodies that others need."""
        sid = session_rows.sid_of(tx, uid)
        entries = sidecar.of_checkpoints(tx, checkpoints)
        needed: dict[str, list[tuple[str, bool]]] = {}
        for checkpoint, name, is_redundant in sidecar.hidden_bodies(tx, sid, checkpoints):
            needed.setdefault(checkpoint, []).append((name, is_redundant))
        for checkpoint, places in needed.items():
            for each in self._reader.document(entries.get(checkpoint), checkpoint).bodies:
                if (each.name, each.is_redundant) in places:
                    sidecar.set_data(tx, sid, checkpoint, each.name, each.is_redundant, each.data)
        self._let_go(tx, uid, list(entries.values()), secure)

    def _let_go(self, tx: Connection, uid: str, entries: Sequence[DocumentEntry], secure: bool) -> None:
        files = {entry.file for entry in entries}
        if self._layout is Layout.RUN:
            files |= self._stale_pointers(entries)
        for file in files:
            sidecar.forget(tx, file)
        sidecar.leave(tx, [Leftover(file=file, session=uid, is_secure=secure) for file in files])

    def _stale_pointers(self, entries: Sequence[DocumentEntry]) -> set[str]:
        """The copies that show one of these checkpoints, or nothing that can be read."""
        gone = {entry.checkpoint for entry in entries}
        pointers = {self._reader.pointer_beside(entry.file) for entry in entries}
        return {pointer for pointer in pointers if self._reader.shown(pointer) in {None, *gone}}

    def _clear(self) -> None:
        """Remove the files that a transaction left; a failure leaves them to the next one."""
        if not self._read(sidecar.leftovers):
            return
        try:
            self._write(lambda _: None)
        except BackendUnavailable as exc:
            log.warning("files of removed checkpoints stay for now: %s", exc)

    def delete_session(
        self,
        uid: str,
        *,
        secure: bool = False,
        fence: int | None = None,
        expect: SessionInfo | None = None,
    ) -> None:
        def then(tx: Connection, writer: DocumentWriter, result: object) -> None:  # noqa: ARG001
            if tx.one("SELECT 1 FROM sessions WHERE uid = ?", (uid,)) is None:
                self._let_go(tx, uid, sidecar.of_session(tx, uid), secure)

        with self._also(then):
            super().delete_session(uid, secure=secure, fence=fence, expect=expect)
        self._clear()

    def sweep(
        self,
        *,
        session: str | None = None,
        limit: int = 1000,
        annotations_before_us: int | None = None,
        secure: bool = False,
    ) -> Swept:
        swept = super().sweep(
            session=session, limit=limit, annotations_before_us=annotations_before_us, secure=secure
        )
        self._write(self._clean_temporaries)
        return swept

    def _clean_temporaries(self, tx: Connection) -> None:  # noqa: ARG002
        """Under the lock no writer is at work, so an old temporary file is nobody's."""
        before_ns = (self._clock() - TEMPORARY_AGE_US) * 1000
        for place in folders_in(self._tree, self._names):
            with suppress(OSError), self._tree.folder(place) as folder:
                for entry in folder.entries():
                    if is_temporary(entry.name) and folder.fingerprint(entry.name).mtime_ns < before_ns:
                        folder.discard(entry.name)

    def reclaim(self, max_bytes: int) -> int:
        self._clear()
        return self._sidecar.reclaim(max_bytes)

    # --- compressing

    def compressible(self, before_us: int, *, session: str | None = None) -> int:
        if self._layout is not Layout.RUN:
            return 0
        return self._read(lambda tx: sidecar.count_plain_before(tx, before_us, session))

    def compress(self, before_us: int, *, session: str | None = None, limit: int | None = None) -> int:
        """Compress the history of the `run` layout that was saved before a time; `latest.json` stays as it is.

        The compressed file and its checksum are durable before the plain one goes. Stopped anywhere, both are
        there and are one checkpoint.
        """
        done = 0
        skipped: set[str] = set()
        while self._layout is Layout.RUN and (limit is None or done < limit):
            step = COMPRESS_STEP if limit is None else min(COMPRESS_STEP, limit - done)
            count, found = self._writing(
                lambda tx, step=step: self._compress_some(  # type: ignore[misc]
                    tx, before_us, session, step, skipped
                )
            )
            done += count
            if found == 0:
                break
        self._clear()
        return done

    def _compress_some(
        self, tx: Connection, before_us: int, session: str | None, step: int, skipped: set[str]
    ) -> tuple[int, int]:
        """Compress a few; (how many, how many were looked at). Damaged ones are skipped, and told."""
        entries = sidecar.plain_before(tx, before_us, session, step + len(skipped))
        going = [entry for entry in entries if entry.file not in skipped][:step]
        writer: DocumentWriter = self._local.writer
        count = 0
        if going:
            self._announce(tx)
        for entry in going:
            try:
                self._reader.document_in(entry.file, entry.checkpoint or "")
                packed = documents.gzip(read_bytes(self._tree, entry.file))
            except (Corrupt, Unsupported) as exc:
                log.warning("%s is not compressed: %s", entry.file, exc)
                skipped.add(entry.file)
                continue
            with translated(self._root):
                writer.compress(entry, packed)
            count += 1
        return count, len(going)

    # --- the store

    def inconsistencies(self, uid: str | None = None) -> list[Inconsistency]:
        if uid is None:
            self._take_up()
            return [*super().inconsistencies(), *map(foreign_file, self._read(sidecar.problems))]
        return [*super().inconsistencies(uid), *self._document_problems(uid)]

    def _document_problems(self, uid: str) -> Iterator[Inconsistency]:
        """Checkpoints whose documents are missing or damaged."""
        rows = list(self.headers(HeaderQuery(session=uid, newest_first=False)))
        for row in rows:
            problem = self._write(lambda tx, id=row.id: self._document_problem(tx, id))  # type: ignore[misc]
            if problem is not None:
                yield problem
        copy_problem = self._write(lambda tx: self._copy_problem(tx, rows[-1])) if rows else None
        if copy_problem is not None:
            yield copy_problem

    def _is_erased(self, pointer: str) -> bool:
        """Whether a copy holds nothing but zeros: its checkpoint was deleted, and the power failed before it went."""
        try:
            return not any(read_bytes(self._tree, pointer))
        except (OSError, Corrupt):
            return False

    def _copy_problem(self, tx: Connection, newest: HeaderRow) -> Inconsistency | None:
        """What is wrong with the copy that people read first; one that shows an older checkpoint is no damage."""
        pointers = {
            self._reader.pointer_beside(entry.file) for entry in sidecar.of_session(tx, newest.session)
        }
        for pointer in pointers if self._layout is Layout.RUN else ():
            try:
                read_document(self._tree, self._layout, pointer)
            except (Corrupt, Unsupported) as exc:
                if exc.code != "checkpoint_missing" and not self._is_erased(pointer):
                    message = f"{exc.message}; the next save writes it anew"
                    return Inconsistency(newest.id, message, exc.code)
        return None

    def _document_problem(self, tx: Connection, checkpoint: str) -> Inconsistency | None:
        """What is wrong with the file of a checkpoint, also where its copy serves."""
        if sidecar.header_of(tx, checkpoint) is None:
            return None  # removed meanwhile
        entry = sidecar.of_checkpoints(tx, [checkpoint]).get(checkpoint)
        try:
            self._reader.original(entry, checkpoint)
        except (Corrupt, Unsupported) as exc:
            if isinstance(exc, Unsupported) or self._reader.copy(entry, checkpoint) is None:
                return Inconsistency(checkpoint, exc.message, exc.code)
            sidecar.doubt(tx, checkpoint)
            message = f"{exc.message}; latest.json still has it, and the next save restores it from there"
            return Inconsistency(checkpoint, message, exc.code)
        return None


def _refused_blobs(batch: Sequence[Append], outcomes: Sequence[Appended | StepkeepError]) -> Iterator[str]:
    """The blobs that came with appends that were refused."""
    for item, outcome in zip(batch, outcomes, strict=True):
        if isinstance(outcome, StepkeepError):
            yield from (blob.digest for blob in item.blobs)
