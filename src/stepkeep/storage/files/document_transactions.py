"""Transactions over the sidecar and the files: all of it, or nothing.

The sidecar's write lock orders the savers; a document is durable before the sidecar commits. What a crash leaves
between the two is taken up by whoever writes next, in whichever process, and files whose checkpoint was removed are
listed in the commit that removed it, so that a crash cannot bring them back.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from stepkeep.codec.readable import Layout
from stepkeep.errors import BackendUnavailable, InvalidInput, StepkeepError
from stepkeep.model import utc_now_us
from stepkeep.storage.files import sidecar
from stepkeep.storage.files.document_reader import DocumentReader
from stepkeep.storage.files.document_writer import Changes, DocumentWriter
from stepkeep.storage.files.durable_files import Tree, translated
from stepkeep.storage.files.layouts import INDEX, INTENT, NAMES, SIDECAR
from stepkeep.storage.files.rebuild import Rebuild, is_up_to_date
from stepkeep.storage.files.sidecar import announce, announced, detect_layout, note_damage, open_sidecar
from stepkeep.storage.sql.backend import SqlBackend
from stepkeep.storage.sql.connection import Connection
from stepkeep.storage.sql.sessions import NeedsRepair, repair
from stepkeep.storage.sqlite import BUSY_SECONDS

log = logging.getLogger("stepkeep.storage")

T = TypeVar("T")


class FilesTransactions(SqlBackend):
    """A store in a directory. Directory, sidecar and folders are made on demand, readable only by their owner."""

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
        self._local = threading.local()
        self._sidecar = open_sidecar(self._root, clock=clock, busy_seconds=busy_seconds)
        self._inode = self._index_inode()
        try:
            self._layout = self._settled_layout(None if layout is None else Layout(layout))
            self._names = NAMES[self._layout]
            self._tree = Tree(self._root)
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
    def url(self) -> str:
        return f"files:{self._root}?layout={self._layout}"

    # --- transactions

    def _read(self, work: Callable[[Connection], T]) -> T:
        with note_damage(self._root):
            return self._sidecar._read(work)

    def _write(self, work: Callable[[Connection], T], *, secure: bool = False) -> T:
        """Run a transaction of the sidecar, with what it does to the files: all of it, or nothing."""
        changes = Changes()

        def transaction(tx: Connection) -> T:
            self._check_in_place()
            try:
                writer = DocumentWriter(self._tree, self._names, tx, changes)
                self._settle(tx, writer)
                self._local.writer = writer
                result = work(tx)
                self._also_do(tx, writer, result)
            except BaseException:
                changes.undo()
                raise
            return result

        try:
            with note_damage(self._root):
                return self._sidecar._write(transaction, secure=secure)
        except BaseException:
            if changes:
                self._undo_uncommitted(changes)
            raise

    def _check_in_place(self) -> None:
        """A store that was moved or removed under its users must not take their saves into nowhere."""
        if self._index_inode() != self._inode:
            raise BackendUnavailable(
                f"{self._root} was removed or replaced while it was open: open it again",
                code="store_not_writable",
                retryable=False,
            )

    def _index_inode(self) -> tuple[int, int] | None:
        try:
            found = (self._root / SIDECAR / INDEX).stat()
        except OSError:
            return None
        return found.st_dev, found.st_ino

    def _settle(self, tx: Connection, writer: DocumentWriter) -> None:
        """Finish what earlier transactions left: files to remove, and documents whose commit never came."""
        with translated(self._root):
            writer.clear_leftovers()
            number = announced(self._root)
            if sidecar.fact(tx, INTENT) != number:
                if not is_up_to_date(tx, self._tree, self._names):
                    self._rebuild(tx, writer)
                    writer.clear_leftovers()
                sidecar.state_fact(tx, INTENT, number)

    def _rebuild(self, tx: Connection, writer: DocumentWriter) -> None:
        try:
            Rebuild(tx, self._tree, self._names, writer).run()
        except NeedsRepair:
            repair(tx)
            Rebuild(tx, self._tree, self._names, writer).run()

    def _undo_uncommitted(self, changes: Changes) -> None:
        """Take documents back whose commit failed, unless another process took them up meanwhile.

        The sidecar first writes over what the failed commit left in its log, or the next opening would find the
        commit there and miss the documents. If that fails too they stay: each alone leads to the whole checkpoint.
        """
        mine = getattr(self._local, "announced", None)

        def undo(tx: Connection) -> None:
            if sidecar.fact(tx, INTENT) != mine:
                changes.undo()

        try:
            self._sidecar._write(undo)
        except StepkeepError as exc:
            log.warning("documents of a failed save stay until the next one: %s", exc)

    def _announce(self, tx: Connection) -> None:
        """Say before the first document is written that the files are about to change."""
        number = str(int(sidecar.fact(tx, INTENT) or 0) + 1)
        announce(self._root, number)
        sidecar.state_fact(tx, INTENT, number)
        self._local.announced = number

    # --- what a method does to the files inside its transaction

    @contextmanager
    def _also(self, then: Callable[[Connection, DocumentWriter, Any], None]) -> Iterator[None]:
        """Within this, every transaction ends with `then`, which gets the result of its work."""
        self._local.then = then
        try:
            yield
        finally:
            self._local.then = None

    def _also_do(self, tx: Connection, writer: DocumentWriter, result: object) -> None:
        then = getattr(self._local, "then", None)
        if then is not None:
            with translated(self._root):
                then(tx, writer, result)

    def _take_up(self) -> None:
        """Take up documents that came or went while the store was closed, or by hand."""
        if not self._read(lambda tx: is_up_to_date(tx, self._tree, self._names)):
            self._writing(self._take_up_changes)

    def _take_up_changes(self, tx: Connection) -> None:
        with translated(self._root):
            self._rebuild(tx, self._local.writer)

    def _store_bytes(self) -> int:
        return self._sidecar._store_bytes() + self._read(sidecar.stored_bytes)

    def close(self) -> None:
        self._sidecar.close()
