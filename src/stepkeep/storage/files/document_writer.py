"""Where each document goes, and in which order its bytes and names become durable.

`run` and `phase`: the document under its own name, synced, then its folder; in `run` an independent copy as
`latest.json` follows. `workflow`: the new document under a temporary name, synced; the old `checkpoint.json` linked
into the history, that folder synced; then the new one renamed over it, and its folder synced.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from functools import partial
from typing import TypeVar

from stepkeep.codec.document import Document
from stepkeep.codec.readable import Layout
from stepkeep.errors import SCHEMA_INVALID, Corrupt, StepkeepError, Unsupported
from stepkeep.logs import Log
from stepkeep.model import Header
from stepkeep.storage.files import sidecar
from stepkeep.storage.files.document_reader import DocumentReader, checksum_file, is_sealed, read_bytes
from stepkeep.storage.files.durable_files import Fingerprint, OpenFolder, Tree, split
from stepkeep.storage.files.layouts import (
    CHECKSUM,
    GZIP,
    HISTORY,
    INTENT,
    Names,
    compressed,
    found_names,
    plain,
)
from stepkeep.storage.files.sidecar import DocumentEntry, Leftover
from stepkeep.storage.sql.connection import Connection

log = Log("stepkeep.storage")

T = TypeVar("T")


class Changes:
    """What one transaction did to the files, so that it can be undone if its commit fails."""

    def __init__(self, *, is_secure: bool) -> None:
        self._undo: list[Callable[[], None]] = []
        self.told: list[Callable[[], None]] = []
        """What to tell those beside the store once it is committed."""
        self.is_secure = is_secure
        self.announced: str | None = None
        self.has_left = False

    def __bool__(self) -> bool:
        return bool(self._undo)

    def add(self, undo: Callable[[], None]) -> None:
        self._undo.append(undo)

    def undo(self) -> None:
        """Take everything back, the last first. What cannot be taken back is found by whoever writes next."""
        self.told.clear()
        while self._undo:
            try:
                self._undo.pop()()
            except (OSError, StepkeepError) as exc:
                log.warning("a document of a save that failed could not be removed: %s", exc)


class DocumentWriter:
    """Puts documents into their locations within one transaction of the sidecar."""

    def __init__(self, tree: Tree, names: Names, tx: Connection, changes: Changes) -> None:
        self._tree = tree
        self._names = names
        self._tx = tx
        self._changes = changes
        self._reader = DocumentReader(tree, names)

    def announce(self) -> None:
        """Say before the first document is written that the files are about to change."""
        number = str(int(sidecar.fact(self._tx, INTENT) or 0) + 1)
        sidecar.announce(self._tree.root, number)
        sidecar.state_fact(self._tx, INTENT, number)
        self._changes.announced = number

    def tell(self, told: Callable[[], None]) -> None:
        """Call something once the transaction is committed."""
        self._changes.told.append(told)

    # --- one document

    def store(self, key: str, header: Header, content: bytes, *, is_newest: bool) -> None:
        """Store a document durably, and remember where it is."""
        if is_newest and self._names.layout is Layout.WORKFLOW:
            self._store_newest(key, header, content)
        else:
            self._store_in_history(key, header, content)

    def _store_in_history(self, key: str, header: Header, content: bytes) -> None:
        with self._tree.folder(self._names.history(key), create=True) as folder:
            temporary = folder.write_temporary(content)
            try:
                name, _ = _first_free(
                    self._names.names(header), lambda name: folder.give_name(temporary, name)
                )
            except BaseException:
                folder.discard(temporary)
                raise
            self._changes.add(lambda: self._take_back(folder.location, name))
            self._sync(folder)
            self._remember(folder, name, header.id, header.session)

    def _sync(self, folder: OpenFolder, *, is_known: bool = False) -> None:
        """Make the names in a folder durable, and with the first of them the way there.

        Whoever made the folder may have been stopped before its own name was. `is_known` tells that it holds something
        durable already.
        """
        folder.sync()
        if not is_known and not sidecar.has_any_in(self._tx, folder.location):
            self._tree.sync_way(folder.location)

    def _take_back(self, location: str, name: str) -> None:
        with self._tree.folder(location) as folder:
            folder.remove(name)
            folder.sync()

    def _remember(self, folder: OpenFolder, name: str, checkpoint: str | None, session: str | None) -> None:
        entry = DocumentEntry(
            file=f"{folder.location}/{name}",
            fingerprint=folder.fingerprint(name),
            checkpoint=checkpoint,
            session=session,
        )
        sidecar.put(self._tx, entry)

    def _put(self, file: str, content: bytes) -> None:
        """Write a file over whatever is there, in one step, durably."""
        location, name = split(file)
        with self._tree.folder(location, create=True) as folder:
            folder.put(name, content)
            folder.sync()

    # --- workflow: the newest record is checkpoint.json itself

    def _store_newest(self, key: str, header: Header, content: bytes) -> None:
        pointer = self._names.pointer
        with self._tree.folder(self._names.folder(key), create=True) as folder:
            temporary = folder.write_temporary(content)
            try:
                found = folder.look(pointer)
                archived = None if found is None else self._archive(folder, found)
                folder.replace(temporary, pointer)
            except BaseException:
                folder.discard(temporary)
                raise
            self._changes.add(lambda: self._put_back(key, archived))
            self._sync(folder, is_known=archived is not None)
            self._remember(folder, pointer, header.id, header.session)

    def _archive(self, folder: OpenFolder, found: Fingerprint) -> str:
        """Link checkpoint.json into the history under the name of its own time; that name."""
        pointer = self._names.pointer
        file = f"{folder.location}/{pointer}"
        with folder.below(HISTORY, create=True) as history:
            header, last = sidecar.header_and_last(self._tx, file, history.location)
            # A file that is not ours is kept too, and stays one that is not ours.
            names = _found(folder, pointer) if header is None else self._names.names(header)
            name, is_link = _first_free(names, lambda name: folder.link(pointer, history, name), taken=last)
            self._sync(history, is_known=last is not None)
            if header is not None:
                seen = found if is_link else folder.fingerprint(pointer)
                now = found if is_link else history.fingerprint(name)
                sidecar.moved(self._tx, file, f"{history.location}/{name}", seen=seen, now=now)
            log.debug("Archived checkpoint to history: %s/%s", history, name)
        return name

    def _put_back(self, key: str, archived: str | None) -> None:
        pointer = self._names.pointer
        with self._tree.folder(self._names.folder(key)) as folder:
            if archived is None:
                folder.remove(pointer)
            else:
                with self._tree.folder(self._names.history(key)) as history:
                    history.move(archived, folder, pointer)
                    history.sync()
            folder.sync()

    # --- run: latest.json shows the newest

    def keep_shown(self, key: str, sid: int, seq: int) -> str | None:
        """Let the history have what latest.json is about to lose, the newest below a number; the file that holds it.

        It is read again only if its size or time changed, or if it is compressed and its checksum is another file.
        """
        if self._names.layout is not Layout.RUN:
            return None
        before = sidecar.before(self._tx, sid, seq)
        if before is None:
            self._set_aside(key)
            return None
        if not before.file.endswith(GZIP) and self._tree.fingerprint(before.file) == before.fingerprint:
            return before.file
        try:
            self._saved_document(before.file, before.checkpoint)
        except Unsupported:
            return before.file  # a newer version wrote it, and can read it
        except Corrupt as exc:
            return self._restore(key, before, exc)
        location, name = split(before.file)
        with self._tree.folder(location) as folder:
            self._remember(folder, name, before.checkpoint, before.session)
        return before.file

    def _set_aside(self, key: str) -> None:
        """Keep a latest.json that is not ours: it moves into the history, and is reported from there."""
        pointer = self._names.pointer
        with self._tree.folder(self._names.folder(key), create=True) as folder:
            if not folder.has(pointer):
                return
            with folder.below(HISTORY, create=True) as history:
                shown = f"{folder.location}/{pointer}"
                name = next(name for name in _found(folder, pointer) if not history.has(name))
                is_ours = self._reader.shown(shown) is not None
                folder.move(pointer, history, name)
                self._sync(history)
                folder.sync()
                sidecar.forget(self._tx, shown)
                if not is_ours:  # else the next opening takes it up
                    file, problem = f"{history.location}/{name}", f"{SCHEMA_INVALID}: it was found as {shown}"
                    fingerprint = history.fingerprint(name)
                    sidecar.put(self._tx, DocumentEntry(file=file, fingerprint=fingerprint, problem=problem))
                    log.warning("%s is left out: %s", file, problem)

    def _saved_document(self, file: str, checkpoint: str | None) -> Document:
        found = self._reader.document_in(file, checkpoint)
        stored = sidecar.header_of(self._tx, checkpoint)
        if stored is not None and stored != found.raw and is_sealed(stored):
            raise Corrupt(f"{file} is not the document that was saved", checkpoint=checkpoint)
        return found

    def _restore(self, key: str, entry: DocumentEntry, damage: Corrupt) -> str:
        """Write a damaged or missing document again from latest.json, if that still has it."""
        pointer = self._reader.pointer_beside(entry.file)
        try:
            header = self._saved_document(pointer, entry.checkpoint).header
            content = read_bytes(self._tree, pointer)
        except (Corrupt, Unsupported):
            return entry.file
        try:
            file = self._write_again(entry, content)
        except OSError:  # a directory has its name
            self._store_in_history(key, header, content)
            file = sidecar.of_checkpoints(self._tx, [header.id])[header.id].file
        log.warning("%s is restored from latest.json (%s)", file, damage.code)
        return file

    def _write_again(self, entry: DocumentEntry, content: bytes) -> str:
        """Write a document in its plain form over whatever is there; the compressed one goes."""
        file = plain(entry.file)
        location, name = split(file)
        with self._tree.folder(location, create=True) as folder:
            folder.put(name, content)
            folder.sync()
            self._remember(folder, name, entry.checkpoint, entry.session)
        if file != entry.file:
            self.leave([entry.file], entry.session or "")
        return file

    def show_latest(self, key: str, content: bytes, *, session: str, before: str | None) -> None:
        """Write the independent copy of the newest document. It is a hint: a failure leaves it to the next transaction.

        `before` is the file that it showed until now.
        """
        if self._names.layout is not Layout.RUN:
            return
        pointer = f"{self._names.folder(key)}/{self._names.pointer}"
        try:
            self._put(pointer, content)
        except OSError as exc:
            log.warning("latest.json of %r is not up to date: %s", key, exc)
            self.leave([pointer], session)
            return
        self._changes.add(lambda: self._show_again(pointer, before))

    def _show_again(self, pointer: str, before: str | None) -> None:
        if before is None:
            location, name = split(pointer)
            with self._tree.folder(location) as folder:
                folder.remove(name)
        else:
            self._put(pointer, read_bytes(self._tree, before))

    # --- other forms of the same document

    def rewrite(self, entry: DocumentEntry, content: bytes) -> None:
        """Exchange the bytes of a document, in one step."""
        old = read_bytes(self._tree, entry.file)
        self._changes.add(lambda: self._put(plain(entry.file), old))
        self._write_again(entry, content)

    def compress(self, entry: DocumentEntry, packed: bytes) -> None:
        """Put the compressed form beside a document, durably, and let the plain one go after the commit."""
        location, name = split(compressed(entry.file))
        with self._tree.folder(location) as folder:
            # The checksum first: without it the compressed form would be a document without integrity.
            for found, content in ((name + CHECKSUM, checksum_file(name, packed)), (name, packed)):
                folder.put(found, content)
                self._changes.add(lambda found=found: self._take_back(location, found))  # type: ignore[misc]
                folder.sync()
            self._remember(folder, name, entry.checkpoint, entry.session)
        self.leave([entry.file], entry.session or "")

    def write_checksum(self, file: str) -> str:
        """Put the checksum of a compressed document beside it again; its file."""
        location, name = split(file)
        with self._tree.folder(location) as folder:
            folder.put(name + CHECKSUM, checksum_file(name, folder.read(name, limit=None)))
            folder.sync()
        return file + CHECKSUM

    # --- files that are to go

    def leave(self, files: Iterable[str], session: str, *, is_removal: bool = False) -> None:
        """Let files go after the commit. With a removal go the bytes, if that is asked of the transaction.

        Otherwise another name of the same file may have to stay as it is.
        """
        sidecar.leave(self._tx, files, session, is_secure=is_removal and self._changes.is_secure)
        self._changes.has_left = True

    def clear_leftovers(self, stuck: set[str]) -> None:
        """Remove what earlier transactions left to remove, and let the pointers show what is newest now.

        What cannot be removed stays listed, joins the `stuck` and is not tried again while it is one of them: no save
        fails, or takes longer, because of it.
        """
        going = [leftover for leftover in sidecar.leftovers(self._tx) if leftover.file not in stuck]
        gone: dict[str, list[str]] = {}
        for leftover in going:
            clear = self._refresh if self._names.is_pointer(leftover.file) else self._remove
            if self._did([leftover.file], stuck, partial(clear, leftover)):
                gone.setdefault(split(leftover.file)[0], []).append(leftover.file)
        for location in sorted(gone, key=len, reverse=True):  # a history before the folder it is in
            if self._did(gone[location], stuck, partial(self._sync_or_remove, location)):
                sidecar.cleared(self._tx, gone[location])
        self._changes.has_left = False

    def _did(self, files: list[str], stuck: set[str], work: Callable[[], bool | None]) -> bool:
        """Do a part of the removal of files; whether that went well. What says False is tried again."""
        try:
            return work() is not False
        except OSError as exc:
            stuck.update(files)
            for file in files:
                reason = exc.strerror or exc
                log.warning("%s is removed later, now it cannot be: %s", self._tree.root / file, reason)
            return False

    def _remove(self, leftover: Leftover) -> None:
        location, name = split(leftover.file)
        with suppress(FileNotFoundError, NotADirectoryError), self._tree.folder(location) as folder:
            folder.occupy(name)
            folder.remove(name, secure=leftover.is_secure)
            if name.endswith(GZIP) or not folder.has(compressed(name)):
                folder.remove(compressed(plain(name)) + CHECKSUM)
        log.debug("Removed %s", leftover.file)

    def _refresh(self, leftover: Leftover) -> bool:
        """Let a pointer whose checkpoint went show the newest that remains, or go with the last; whether it does."""
        checkpoint = sidecar.newest(self._tx, leftover.session)
        entry = None if checkpoint is None else sidecar.of_checkpoint(self._tx, checkpoint)
        if entry is not None and entry.file == leftover.file:
            return True
        if entry is None:
            self._remove(leftover)
            return True
        try:
            is_shown = self._shows(leftover.file, entry)
        except OSError:
            if leftover.is_secure:
                raise  # who knows what would be overwritten
            is_shown = False
        if is_shown and self._names.layout is Layout.WORKFLOW:
            return True  # an earlier attempt got that far
        # A copy is written anew also where it is there: the sync of an earlier attempt may have failed.
        if leftover.is_secure and not is_shown:
            self._remove(leftover)
        try:
            self._promote(entry, leftover.file)
        except (OSError, Corrupt) as exc:
            log.warning("%s does not show the newest checkpoint: %s", leftover.file, exc)
            return isinstance(exc, Corrupt)
        return True

    def _shows(self, pointer: str, entry: DocumentEntry) -> bool:
        """Whether a pointer shows the checkpoint already."""
        if self._reader.shown(pointer) != entry.checkpoint:
            return False
        if self._names.layout is Layout.WORKFLOW:
            location, name = split(pointer)
            with self._tree.folder(location) as folder:
                self._remember(folder, name, entry.checkpoint, entry.session)
        return True

    def _promote(self, entry: DocumentEntry, pointer: str) -> None:
        """Let a pointer show a checkpoint of the history."""
        if self._names.layout is not Layout.WORKFLOW:
            self._put(pointer, read_bytes(self._tree, entry.file))
            return
        (location, name), (from_location, from_name) = split(pointer), split(entry.file)
        with self._tree.folder(location) as folder, self._tree.folder(from_location) as history:
            history.move(from_name, folder, name)
            self._changes.add(lambda: self._move_back(pointer, entry.file))
            history.sync()
            self._remember(folder, name, entry.checkpoint, entry.session)
            folder.sync()

    def _move_back(self, pointer: str, file: str) -> None:
        (location, name), (to_location, to_name) = split(pointer), split(file)
        with self._tree.folder(location) as folder, self._tree.folder(to_location) as history:
            folder.move(name, history, to_name)

    def _sync_or_remove(self, location: str) -> None:
        is_empty = False
        with suppress(FileNotFoundError, NotADirectoryError), self._tree.folder(location) as folder:
            folder.sync()
            is_empty = not folder.entries()
        if is_empty and location != self._names.top:
            self._tree.remove_empty(location)


def _found(folder: OpenFolder, pointer: str) -> Iterator[str]:
    return found_names(pointer, folder.fingerprint(pointer).mtime_ns // 1000)


def _first_free(names: Iterator[str], take: Callable[[str], T], taken: str | None = None) -> tuple[str, T]:
    """The first name that nothing else has, and what taking it answered; of one name it is known that it is taken."""
    for name in names:
        if name == taken:
            continue
        try:
            return name, take(name)
        except FileExistsError:
            continue
    raise AssertionError("there is always another name")
