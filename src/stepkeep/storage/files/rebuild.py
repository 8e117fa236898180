"""Taking up documents that the sidecar does not know, and rebuilding it from them when it was lost.

The documents are the truth. Whatever the sidecar is, after this every document of ours is found by it, no session
counts below the highest number found (V3), and files that hold no checkpoint of ours are remembered as such.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from typing import NamedTuple

import msgspec

from stepkeep.codec.document import Document, seq_hint
from stepkeep.codec.readable import Layout
from stepkeep.errors import Conflict, Corrupt, InvalidInput, NotFound, StepkeepError, Unsupported
from stepkeep.logs import Log
from stepkeep.model import Header, SessionInfo, missing_numbers
from stepkeep.storage.files import sidecar
from stepkeep.storage.files.document_reader import is_sealed, read_bytes, read_document
from stepkeep.storage.files.document_writer import DocumentWriter
from stepkeep.storage.files.durable_files import Fingerprint, Tree
from stepkeep.storage.files.layouts import GZIP, Names, plain
from stepkeep.storage.files.sidecar import DocumentEntry
from stepkeep.storage.port import REBUILT
from stepkeep.storage.sql import bodies as body_rows
from stepkeep.storage.sql import checkpoints as checkpoint_rows
from stepkeep.storage.sql import sessions
from stepkeep.storage.sql.attachments import record_event
from stepkeep.storage.sql.checkpoints import advanced_session
from stepkeep.storage.sql.connection import Connection

log = Log("stepkeep.storage")

PLAUSIBLE_LEAD = 1000
"""How far the number in a damaged document may be ahead and still be believed."""


class FoundDocument(NamedTuple):
    """A document that was looked at, without the bytes of its bodies."""

    file: str
    fingerprint: Fingerprint
    document: Document
    header: Header


def files_in(tree: Tree, names: Names) -> set[str]:
    """Every file that may hold a checkpoint, by its name alone.

    In the `run` layout a pointer is only a copy, so it counts where there is nothing else.
    """
    if not names.has_folders:
        return {f"{names.top}/{name}" for name in _names_in(tree, names.top) if names.is_history(name)}
    found: set[str] = set()
    for folder in _folders_in(tree, names.top):
        history = names.history_of_folder(folder)
        kept = {f"{history}/{name}" for name in _names_in(tree, history) if names.is_history(name)}
        found |= kept
        counts = names.layout is Layout.WORKFLOW or not kept
        if counts and names.pointer in _names_in(tree, folder):
            found.add(f"{folder}/{names.pointer}")
    return found


def folders_in(tree: Tree, names: Names) -> Iterator[str]:
    """Every folder that documents are written to."""
    yield names.top
    if names.has_folders:
        for folder in _folders_in(tree, names.top):
            yield folder
            yield names.history_of_folder(folder)


def _folders_in(tree: Tree, location: str) -> list[str]:
    with suppress(NotADirectoryError):
        entries = tree.entries(location)
        return [f"{location}/{entry.name}" for entry in entries if entry.is_dir(follow_symlinks=False)]
    return []


def _names_in(tree: Tree, location: str) -> list[str]:
    with suppress(NotADirectoryError):
        return [entry.name for entry in tree.entries(location)]
    return []


def is_up_to_date(tx: Connection, tree: Tree, names: Names) -> bool:
    """Whether the files are those that the sidecar knows, by their names."""
    leftovers = {leftover.file for leftover in sidecar.leftovers(tx)}
    return sidecar.entries(tx).keys() == files_in(tree, names) - leftovers


class Rebuild:
    """One look at all files, inside a transaction of the sidecar."""

    def __init__(self, tx: Connection, tree: Tree, names: Names, writer: DocumentWriter) -> None:
        self._tx = tx
        self._tree = tree
        self._names = names
        self._writer = writer
        self._known = sidecar.entries(tx)
        self._present: set[str] = set()
        self._taken_up: dict[str, list[Header]] = {}
        self._new_sessions: dict[str, FoundDocument] = {}  # each by its newest document
        self._hints: dict[str, int] = {}

    def run(self) -> None:
        """Take up what is new."""
        leftovers = {leftover.file for leftover in sidecar.leftovers(self._tx)}
        self._present = files_in(self._tree, self._names) - leftovers
        for file in self._known.keys() - self._present:
            sidecar.forget(self._tx, file)
        changed = sorted(self._changed())
        if self._names.layout is Layout.RUN:  # latest.json is only a copy
            changed = [file for file in changed if not self._names.is_pointer(file)]
        looked = [found for file in changed if (found := self._look(file)) is not None]
        # A file that holds another checkpoint now must not hide where the one before it went.
        for found in looked:
            entry = self._known.get(found.file)
            if entry is not None and entry.checkpoint != found.header.id:
                sidecar.forget(self._tx, found.file)
        for found in sorted(looked, key=self._preference):
            self._take_up(found)
        self._take_up_pointers()
        self._finish()

    def _changed(self) -> set[str]:
        """Files that are new, and those beside them that are not as they were."""
        new = self._present - self._known.keys()
        gone = self._known.keys() - self._present
        touched = {self._home(file) for file in new | gone}
        altered = {
            file
            for file in self._present & self._known.keys()
            if self._home(file) in touched and self._tree.fingerprint(file) != self._known[file].fingerprint
        }
        return new | altered

    def _home(self, file: str) -> str:
        """The folder of the session that a file belongs to, or that of all of them."""
        return "/".join(file.split("/")[: 2 if self._names.has_folders else 1])

    def _look(self, file: str) -> FoundDocument | None:
        """The document in a file; None, and the problem is remembered, when it is not one of ours."""
        try:
            return self._read(file)
        except (Corrupt, Unsupported) as exc:
            if file.endswith(GZIP) and plain(file) in self._present:
                # Compressing it was never finished.
                self._writer.leave([file], "")
            else:
                self._note_problem(file, f"{exc.code}: {exc.message}")
                self._note_number(file)
        return None

    def _read(self, file: str) -> FoundDocument:
        document = read_document(self._tree, self._names.layout, file)
        bare = tuple(msgspec.structs.replace(body, data=b"") for body in document.bodies)
        document = msgspec.structs.replace(document, bodies=bare)
        return FoundDocument(file, self._fingerprint(file), document, document.header)

    def _fingerprint(self, file: str) -> Fingerprint:
        return self._tree.fingerprint(file) or Fingerprint(0, 0)

    def _note_problem(self, file: str, problem: str) -> None:
        log.warning("%s is left out: %s", file, problem)
        known = self._known.get(file)
        if known is not None and known.checkpoint is not None:
            return  # the checkpoint that was in it is still looked for there, and its loss is told
        entry = DocumentEntry(file=file, fingerprint=self._fingerprint(file), problem=problem)
        sidecar.put(self._tx, entry)

    def _note_number(self, file: str) -> None:
        """A number in a damaged document was given, so it must not be given again."""
        with suppress(StepkeepError):
            uid, seq = seq_hint(read_bytes(self._tree, file))
            self._hints[uid] = max(seq, self._hints.get(uid, 0))

    def _preference(self, found: FoundDocument) -> tuple[str, int, bool, bool]:
        """Oldest first; of two files with one checkpoint, the pointer and the plain one."""
        is_pointer = self._names.is_pointer(found.file)
        return found.header.session, found.header.seq, not is_pointer, found.file.endswith(GZIP)

    # --- one document

    def _take_up(self, found: FoundDocument) -> None:
        stored = sidecar.header_of(self._tx, found.header.id)
        if stored is not None and stored != found.document.raw and is_sealed(stored):
            self._note_problem(found.file, f"another checkpoint has the id {found.header.id}")
            return
        try:
            if stored is None:
                self._adopt(found)
            elif stored != found.document.raw:
                sidecar.mend_header(self._tx, found.header.id, found.document.raw)
        except (Conflict, InvalidInput, Corrupt) as exc:
            self._note_problem(found.file, f"{exc.code}: {exc.message}")
            return
        self._settle_location(found)

    def _settle_location(self, found: FoundDocument) -> None:
        """Remember where a checkpoint is; a second copy of it goes if it is one that a crash left."""
        held = sidecar.of_checkpoint(self._tx, found.header.id)
        if held is None or held.file == found.file:
            self._put(found)
        elif plain(held.file) == plain(found.file) or self._is_one_file(held.file, found.file):
            extra = found.file
            if held.file.endswith(GZIP):
                extra = held.file
                self._put(found)
            self._writer.leave([extra], found.header.session)
        else:
            self._note_problem(found.file, f"a second copy of {found.header.id}")

    def _put(self, found: FoundDocument) -> None:
        sidecar.put(
            self._tx,
            DocumentEntry(
                file=found.file,
                fingerprint=found.fingerprint,
                checkpoint=found.header.id,
                session=found.header.session,
            ),
        )

    def _is_one_file(self, one: str, other: str) -> bool:
        try:
            return os.path.samestat(os.lstat(self._tree.root / one), os.lstat(self._tree.root / other))
        except OSError:
            return False

    def _adopt(self, found: FoundDocument) -> None:
        header = found.header
        sid, session = self._session(found)
        checkpoint_rows.adopt(self._tx, sid, session, found.document.raw, (), ())
        held = {(body.name, body.is_redundant) for body in body_rows.stored(self._tx, sid, header.id)}
        records = found.document.bodies
        body_rows.insert(
            self._tx, sid, [body for body in records if (body.name, body.is_redundant) not in held]
        )
        self._taken_up.setdefault(session.uid, []).append(header)
        told = self._new_sessions.get(session.uid)
        if told is not None and header.seq > told.header.seq:
            self._new_sessions[session.uid] = found
        if header.seq > session.last_seq:
            _, session = sessions.by_uid(self._tx, session.uid)
            sessions.write(self._tx, sid, advanced_session(session, header, session.last_seq))

    def _session(self, found: FoundDocument) -> tuple[int, SessionInfo]:
        with suppress(NotFound):
            return sessions.by_uid(self._tx, found.header.session)
        if found.document.session.uid != found.header.session:
            raise Conflict("the document names two sessions", code="place_taken", retryable=False)
        # The branch it has first is one that has a checkpoint; which one is current is settled at the end.
        session = msgspec.structs.replace(
            found.document.session, branch=found.header.branch, last_seq=0, gaps=()
        )
        sessions.create(self._tx, session)
        self._new_sessions[session.uid] = found
        return sessions.by_uid(self._tx, session.uid)

    # --- latest.json: a copy whose original may be lost

    def _take_up_pointers(self) -> None:
        if self._names.layout is not Layout.RUN:
            return
        touched = {self._home(file) for file in self._present ^ self._known.keys()}
        for folder in sorted(touched):
            pointer = f"{folder}/{self._names.pointer}"
            problem = self._take_up_pointer(pointer)
            if problem is None:
                sidecar.forget(self._tx, pointer)
            elif pointer in self._present:
                self._note_problem(pointer, problem)
                self._note_number(pointer)

    def _take_up_pointer(self, file: str) -> str | None:
        """Put a checkpoint that only latest.json still has back into the history; else why not."""
        try:
            found = self._read(file)
            header = found.header
            stored = sidecar.header_of(self._tx, header.id)
            if sidecar.of_checkpoints(self._tx, [header.id]):
                return f"a second copy of {header.id}"
            if stored is not None and stored != found.document.raw:
                return f"another checkpoint has the id {header.id}"
            if stored is None and self._is_removed(header):
                return f"{header.id} was removed on purpose"
            if stored is None:
                self._adopt(found)
            content = read_bytes(self._tree, file)
            self._writer.store(found.document.session.key, header, content, is_newest=False)
        except (Conflict, Corrupt, InvalidInput, Unsupported) as exc:
            return f"{exc.code}: {exc.message}"
        log.warning("%s was lost, and is taken from %s", header.id, file)
        return None

    def _is_removed(self, header: Header) -> bool:
        """Whether the checkpoint was removed on purpose, and its copy only stayed behind."""
        try:
            _, session = sessions.by_uid(self._tx, header.session)
        except NotFound:
            return False
        return any(first <= header.seq <= last for first, last in session.gaps)

    # --- sessions

    def _finish(self) -> None:
        for uid in self._taken_up.keys() | self._hints.keys():
            with suppress(NotFound):
                sid, session = sessions.by_uid(self._tx, uid)
                hint = self._hints.get(uid, 0)
                if session.last_seq < hint <= session.last_seq + PLAUSIBLE_LEAD:
                    sessions.write(self._tx, sid, msgspec.structs.replace(session, last_seq=hint))
        for uid, newest in self._new_sessions.items():
            self._finish_new(uid, newest)
        if self._names.layout is Layout.RUN:
            self._show_newest()

    def _show_newest(self) -> None:
        """A writer that was stopped after a document did not come to its copy: let that show the newest again."""
        for uid in self._taken_up:
            _, session = sessions.by_uid(self._tx, uid)
            self._writer.leave([f"{self._names.folder(session.key)}/{self._names.pointer}"], uid)

    def _finish_new(self, uid: str, newest: FoundDocument) -> None:
        """A session that was lost: as its newest document says, with every number that is not there as removed."""
        sid, session = sessions.by_uid(self._tx, uid)
        headers = self._taken_up.get(uid, [])
        present = {header.seq for header in headers}
        absent = list(missing_numbers(present, [], max(present, default=0)))
        told = newest.document.session
        # A branch that was only forked, or left by a restore, has no document that tells where it begins.
        is_used = any(header.branch == told.branch for header in headers)
        rebuilt = msgspec.structs.replace(
            told,
            branch=told.branch if is_used else newest.header.branch,
            gaps=checkpoint_rows.merge_gaps([*told.gaps, *absent], []),
            last_seq=session.last_seq,
            updated_us=session.updated_us,
        )
        sessions.write(self._tx, sid, rebuilt)
        log.warning("session %r is rebuilt from %d documents", session.key, len(headers))
        unknown = missing_numbers(present, told.gaps, max(present, default=0))
        data = {
            "checkpoints": len(headers),
            "absent": sum(last - first + 1 for first, last in absent),
            "seqs": [list(each) for each in unknown],
        }
        record_event(self._tx, sid, REBUILT, data, time_us=session.updated_us)
