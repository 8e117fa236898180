"""Copying sessions from one store into another, so that both prove the same; also out of a damaged one.

Headers are carried over byte for byte, hence ids, numbers, chains and digests. Bodies are encoded anew, the way
the destination stores them. A copy that was interrupted is repeated: what is there already is left alone.

Recovering copies what still verifies in a damaged store into a new one. The damaged store is only read.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Final

import msgspec

from stepkeep.codec import delta
from stepkeep.codec.integrity import check_content, seal_plainly
from stepkeep.engine import Engine, chains, reader
from stepkeep.engine.chains import Base, Chain
from stepkeep.errors import BackendUnavailable, Conflict, Corrupt, InvalidInput, NotFound, StepkeepError
from stepkeep.maintenance.object_backup import ObjectBackups, is_object_url, workplace
from stepkeep.maintenance.verify import Finding, Progress, is_stored, numbers, verify
from stepkeep.model import Branch, Header, SessionInfo, Status, missing_numbers
from stepkeep.storage.key_slots import (
    FindKey,
    has_keys,
    have_same_names,
    header_for,
    no_key,
    unlocked,
    with_keys_of,
)
from stepkeep.storage.port import LOST, Backend, Blob, Body, HeaderQuery, HeaderRow, SessionQuery
from stepkeep.storage.salvage import salvage
from stepkeep.storage.sqlite import SqliteBackend
from stepkeep.storage.urls import database_file, directory_of, open_backend


class CopyReport(msgspec.Struct, frozen=True, kw_only=True):
    """What a copy did. `present` counts checkpoints that were there before; `refused` are sessions not copied, and
    `lost` checkpoints, or blobs they name. `findings` is damage at the destination."""

    sessions: int = 0
    copied: int = 0
    present: int = 0
    lost: tuple[Finding, ...] = ()
    refused: tuple[Finding, ...] = ()
    findings: tuple[Finding, ...] = ()

    @property
    def is_whole(self) -> bool:
        """Everything the source has is in the destination and verifies there."""
        return not (self.lost or self.refused or self.findings)


def copy(
    source: Engine,
    destination: Engine,
    *,
    sessions: Iterable[SessionInfo] | None = None,
    salvage: bool = False,
    progress: Progress | None = None,
) -> CopyReport:
    """Copy sessions, all of them unless given, and verify each in the destination.

    A session that is refused does not stop the others; the report names it. With `salvage` the numbers of lost
    checkpoints are recorded as removed, so that the destination is whole in itself.

    Raises:
        BackendUnavailable: one of the stores failed. What was copied is whole; copy again to go on.
    """
    chosen = list(source.backend.sessions(SessionQuery())) if sessions is None else list(sessions)
    total = CopyReport()
    for session in chosen:
        try:
            report = _SessionCopy(source, destination, session, salvage, progress).run()
        except NotFound:
            continue  # deleted meanwhile
        except BackendUnavailable:
            raise  # one of the stores cannot be used: the next session would fail too
        except StepkeepError as exc:
            report = CopyReport(refused=(Finding.of(session.key, exc),))
        total = CopyReport(
            **{name: getattr(total, name) + getattr(report, name) for name in CopyReport.__struct_fields__}
        )
    return total


class _SessionCopy:
    """The copy of one session, up to the number it had when the copy began: others may go on saving."""

    def __init__(
        self,
        source: Engine,
        destination: Engine,
        session: SessionInfo,
        salvage: bool,
        progress: Progress | None,
    ) -> None:
        self._source = source
        self._destination = destination
        self._salvage = salvage
        self._progress = progress
        # Branches before the session: no head is beyond the counter that bounds the copy.
        self._branches = source.backend.branches(session.uid)
        self._session = source.backend.session(session.uid)
        self._chains: dict[tuple[str, str], Chain] = {}
        self._lost: list[Finding] = []

    def run(self) -> CopyReport:
        uid = self._session.uid
        self._refuse_if_ahead()
        self._destination.backend.adopt_session(msgspec.structs.replace(self._session, last_seq=0))
        stored = {row.id for row in self._destination.backend.headers(HeaderQuery(session=uid))}
        copied = present = 0
        query = HeaderQuery(session=uid, max_seq=self._session.last_seq, newest_first=False)
        for row in self._source.backend.headers(query):
            if row.id in stored:
                present += 1
            else:
                copied += self._copy_row(row)
            if self._progress is not None:
                self._progress(1)
        self._copy_waiting_annotations()
        self._finish()
        findings = verify(self._destination, self._destination.backend.session(uid)).findings
        return CopyReport(
            sessions=1, copied=copied, present=present, lost=tuple(self._lost), findings=findings
        )

    def _refuse_if_ahead(self) -> None:
        """A copy that was worked on since must not be set back to where its source stands."""
        try:
            held = self._destination.backend.session(self._session.uid)
        except NotFound:
            return
        if held.last_seq > self._session.last_seq:
            raise Conflict(
                f"session {self._session.key!r} went on at the destination, to checkpoint {held.last_seq}; "
                f"the source is at {self._session.last_seq}: copy the other way round, or into another store",
                code="destination_ahead",
                retryable=False,
                session=self._session.key,
            )

    def _copy_row(self, row: HeaderRow) -> bool:
        try:
            header = reader.verified(row)
            contents = {name: self._content(header, name) for name in header.contents}
        except NotFound:
            return False
        except StepkeepError as exc:
            if is_stored(self._source, row):
                self._lost.append(Finding.of(self._session.key, exc, row))
            return False
        blobs = self._blobs(row, {blob for content in contents.values() for blob in content.blobs})
        bodies = [
            body
            for name, content in contents.items()
            for body in self._encode(header, name, content._replace(blobs=content.blobs & blobs.keys()))
        ]
        target = self._destination.backend
        raw = self._sealed(row, header)
        stored = target.has_blobs(list(blobs), header.session) if blobs else set()
        return target.adopt(
            header.session,
            raw,
            bodies=bodies,
            blobs=[blob for digest, blob in blobs.items() if digest not in stored],
            annotations=self._source.backend.annotations(self._session.uid, [header.id]),
        )

    def _sealed(self, row: HeaderRow, header: Header) -> bytes:
        """A header as the destination takes it: as it is, with its chain under another data key, or decrypted."""
        if not row.opened:
            return row.raw
        source, destination = self._source.backend, self._destination.backend
        if not have_same_names(source, destination):
            return seal_plainly(header)
        return header_for(source, row.raw, destination)

    def _content(self, header: Header, name: str) -> Base:
        """The verified content of a body, with every blob its records keep alive."""
        backend = self._source.backend
        chain = backend.body_chain(header.session, header.id, name)
        try:
            content = reader.from_chain(chain)
            check_content(content, header.contents[name], checkpoint=header.id, body=name)
        except Corrupt:
            content = reader.load_body(backend, header, name)  # its keyframe may have a redundant delta
        return Base(header.id, content, frozenset(blob for body in chain for blob in body.blobs))

    def _encode(self, header: Header, name: str, content: Base) -> list[Body]:
        if not self._destination.backend.capabilities.takes_deltas:
            return [chains.plain(name, content)]
        place = (header.branch, name)
        bodies, self._chains[place] = chains.encode(
            name,
            self._chains.get(place),
            content,
            limit=self._destination.group_limit(self._session),
            as_keyframe=header.status is not Status.IN_PROGRESS,
            compression=self._destination.compression_of(self._session),
        )
        return bodies

    def _blobs(self, row: HeaderRow, wanted: set[str]) -> dict[str, Blob]:
        """The blobs of a checkpoint that are intact; others are reported, and the checkpoint goes without."""
        intact = {}
        for digest in sorted(wanted):
            try:
                content = self._source.load_blob(digest, self._session.uid)
            except StepkeepError as exc:
                self._lost.append(Finding.of(self._session.key, exc, row))
                continue
            blob = self._source.backend.blob(digest, self._session.uid)
            if blob is None or blob.codec not in (delta.RAW, self._destination.compression.name):
                blob = self._destination.make_blob(content)
            intact[digest] = blob
        return intact

    def _copy_waiting_annotations(self) -> None:
        """Those whose checkpoint has not come yet."""
        uid, backend = self._session.uid, self._destination.backend
        there = {(note.target, note.kind, note.name) for note in backend.annotations(uid)}
        for note in self._source.backend.annotations(uid):
            if isinstance(note.target, tuple) and (note.target, note.kind, note.name) not in there:
                backend.annotate(uid, note.target, note.kind, note.name, note.data, time_us=note.time_us)

    def _finish(self) -> None:
        """Bring the session, its branches and events to what they were at the source."""
        uid, end = self._session.uid, self._session.last_seq
        source, destination = self._source.backend, self._destination.backend
        now = source.session(uid)
        gaps = [(first, min(last, end)) for first, last in now.gaps if first <= end]
        lost = self._lost_numbers(gaps) if self._salvage else []
        final = msgspec.structs.replace(now, last_seq=end, gaps=tuple(sorted([*gaps, *lost])))
        destination.adopt_session(final, self._branches, source.events(uid))
        if lost:
            destination.adopt_session(final, [self._without_lost_head(each) for each in self._branches])
            data = {"seqs": [list(each) for each in lost]}
            destination.record_event(uid, LOST, data, time_us=self._destination.clock())

    def _lost_numbers(self, gaps: list[tuple[int, int]]) -> list[tuple[int, int]]:
        """Closed ranges of numbers that are neither in the destination nor removed on purpose.

        Those whose checkpoint was not even found are reported too.
        """
        rows = self._destination.backend.headers(HeaderQuery(session=self._session.uid))
        stored, end = [row.seq for row in rows], self._session.last_seq
        named = [(each.seq, each.seq) for each in self._lost if each.seq is not None]
        self._lost += [
            Finding(
                session=self._session.key,
                code="checkpoint_missing",
                message=f"checkpoint {numbers(first, last)} was not found, and it is not known to be pruned",
                seq=first,
            )
            for found in missing_numbers(stored, [*gaps, *named], end)
            for first, last in _told(*found)
        ]
        return list(missing_numbers(stored, gaps, end))

    def _without_lost_head(self, branch: Branch) -> Branch:
        """The branch with the newest checkpoint it still has as its head."""
        backend, uid = self._destination.backend, self._session.uid
        query = HeaderQuery(session=uid, branch=branch.name, max_seq=branch.head_seq, limit=1)
        row = next(backend.headers(query), None)
        if row is None and branch.fork is not None:
            row = next(backend.headers(HeaderQuery(session=uid, ids=(branch.fork,), limit=1)), None)
        head, seq = (None, 0) if row is None else (row.id, row.seq)
        return msgspec.structs.replace(branch, head=head, head_seq=seq)


_MAX_TOLD: Final = 1000


def _told(first: int, last: int) -> Iterable[tuple[int, int]]:
    """Numbers that are lost, one by one; very many are a range, as a damaged counter claims them."""
    return [(first, last)] if last - first >= _MAX_TOLD else [(seq, seq) for seq in range(first, last + 1)]


# --- recovering ------------------------------------------------------------------------------------------------


class RecoverReport(msgspec.Struct, frozen=True, kw_only=True):
    """What was salvaged. `by_pages` is set when the file was read page by page, because SQLite could not."""

    copied: CopyReport
    by_pages: bool = False
    problem: str | None = None


def recover(
    source: str, destination: str, *, find_key: FindKey = no_key, progress: Progress | None = None
) -> RecoverReport:
    """Salvage what still verifies in a damaged store into a new one. The damaged one is not written to.

    Raises:
        NotFound: there is no such store, or nothing in it verifies.
        InvalidInput: the destination is the source, or not empty.
        BackendUnavailable: the destination cannot be written; one that was made for it is removed again.
    """
    _check_apart(source, destination)
    made = database_file(destination)
    is_new = made is not None and not made.exists()
    try:
        with _opened(destination, find_key) as target:
            if next(target.backend.sessions(SessionQuery(limit=1)), None) is not None:
                raise InvalidInput(
                    f"{destination} is not empty: name a new store", code="destination_not_new"
                )
        return _recover(source, destination, find_key, progress)
    except BaseException:  # also Ctrl-C: what is there under that name would be taken for all there was
        if made is not None and is_new:
            for ending in ("", "-wal", "-shm"):
                with suppress(OSError):
                    Path(f"{made}{ending}").unlink(missing_ok=True)
        raise


def _recover(source: str, target: str, find_key: FindKey, progress: Progress | None) -> RecoverReport:
    _check_exists(source)
    file, directory = database_file(source), directory_of(source)
    try:
        if file is not None:
            return _recover_database(file, target, find_key, progress)
        if directory is not None:
            with tempfile.TemporaryDirectory(prefix="stepkeep-recover-") as folder:
                work = Path(folder) / "store"
                shutil.copytree(directory, work, symlinks=True)
                backend = open_backend(f"files:{work}?{source.partition('?')[2]}")
                return RecoverReport(copied=_salvage(backend, target, find_key, progress))
    except OSError as exc:
        raise BackendUnavailable(
            f"{file or directory} cannot be read: {exc.strerror or exc}",
            code="store_not_readable",
            retryable=False,
        ) from exc
    return RecoverReport(copied=_salvage(open_backend(source), target, find_key, progress))


def _recover_database(
    damaged: Path, destination: str, find_key: FindKey, progress: Progress | None
) -> RecoverReport:
    """Salvage a SQLite store, with its log where there is one.

    It is read as a store first. When that fails, or does not give everything, its pages are read one by one.
    """
    with _working_copy(damaged) as work:
        problem = _trouble(work, damaged)
        if problem is None:
            copied = _salvage(SqliteBackend(work), destination, find_key, progress)
            if copied.is_whole:
                return RecoverReport(copied=copied)
            found = [*copied.refused, *copied.lost, *copied.findings]
            problem = found[0].message.replace(str(work), str(damaged))
    with _working_copy(damaged) as work:  # opening may have changed the first one
        pages = salvage(work, work.with_name("salvaged.db"))
        copied = _salvage(pages, destination, find_key, progress)
        copied = msgspec.structs.replace(copied, copied=copied.copied + copied.present, present=0)
    if not copied.sessions and not copied.refused:
        raise NotFound(f"{damaged} holds no checkpoint that verifies: {problem}", code="nothing_recoverable")
    return RecoverReport(copied=copied, by_pages=True, problem=problem)


@contextmanager
def _working_copy(damaged: Path) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="stepkeep-recover-") as folder:
        work = Path(folder) / "damaged.db"
        copy_database(damaged, work)
        yield work


def copy_database(source: Path, target: Path) -> None:
    """Copy a database, which nobody writes to, and its log, should it have one: the log has the newest commits."""
    for ending in ("", "-wal"):
        if (file := Path(f"{source}{ending}")).is_file():
            copied = Path(f"{target}{ending}")
            copied.touch(mode=0o600, exist_ok=False)
            shutil.copyfile(file, copied)


def _trouble(work: Path, damaged: Path) -> str | None:
    """Why the store cannot be read whole; None when it can."""
    try:
        with _closing(Engine(SqliteBackend(work))) as engine:
            report, stored = verify(engine), engine.backend.usage()
    except StepkeepError as exc:
        return str(exc).replace(str(work), str(damaged))
    if report.findings:
        return report.findings[0].message
    if report.checkpoints != stored.checkpoints:
        return f"{stored.checkpoints - report.checkpoints} checkpoints belong to no session"
    return None if report.sessions else "it has no session"


@contextmanager
def _closing(engine: Engine) -> Iterator[Engine]:
    """A damaged database may fail to close as well; nothing of it is needed any more."""
    try:
        yield engine
    finally:
        with suppress(StepkeepError):
            engine.close()


def _salvage(backend: Backend, destination: str, find_key: FindKey, progress: Progress | None) -> CopyReport:
    with (
        _closing(Engine(unlocked(backend, find_key))) as engine,
        _opened(destination, find_key, source=engine) as target,
    ):
        return copy(engine, target, salvage=True, progress=progress)


# --- stores by their URLs --------------------------------------------------------------------------------------


def copy_store(
    source: str,
    destination: str,
    *,
    keys: Sequence[str] = (),
    find_key: FindKey = no_key,
    encrypt: bool = False,
    progress: Progress | None = None,
) -> CopyReport:
    """Copy sessions, all of them unless named, from the store at one URL into the store at another.

    With `encrypt` the destination is an encrypted store, which is made if there is none. The copy of an encrypted store
    has the keys of its source, unless it has others already.

    Raises:
        NotFound: there is no such store or session.
        InvalidInput: both URLs name the same store.
        BackendUnavailable: one of the stores failed. What was copied is whole; copy again to go on.
    """
    _check_apart(source, destination)
    _check_exists(source)
    with _opened(source, find_key) as engine:
        return copy_into(
            engine, destination, keys=keys, find_key=find_key, encrypt=encrypt, progress=progress
        )


def copy_into(
    source: Engine,
    destination: str,
    *,
    keys: Sequence[str] = (),
    find_key: FindKey = no_key,
    encrypt: bool = False,
    progress: Progress | None = None,
) -> CopyReport:
    """The same for a source that is open."""
    _check_apart(source.backend.url, destination)
    sessions = [source.find_session(key) for key in keys] if keys else None
    with _opened(destination, find_key, is_written=True, source=source, encrypt=encrypt) as target:
        return copy(source, target, sessions=sessions, progress=progress)


def count_copied(source: str, keys: Sequence[str] = ()) -> int:
    """How many checkpoints `copy_store` will look at."""
    if is_object_url(source):
        return ObjectBackups(source).newest().checkpoints
    _check_exists(source)
    with _opened(source, locked=True) as engine:
        uids = [engine.find_session(key).uid for key in keys] if keys else [None]
        return sum(engine.backend.usage(uid).checkpoints for uid in uids)


def _check_apart(source: str, destination: str) -> None:
    one, other = (database_file(url) or directory_of(url) for url in (source, destination))
    is_same = source == destination
    if one is not None and other is not None:
        is_same = one.resolve() == other.resolve()
    if is_same:
        raise InvalidInput(f"{destination} is the source itself", code="same_store")


def _check_exists(url: str) -> None:
    path = database_file(url) or directory_of(url)
    if path is not None and not path.exists():
        raise NotFound(f"no store at {path}", code="store_not_found")


@contextmanager
def _opened(
    url: str,
    find_key: FindKey = no_key,
    *,
    is_written: bool = False,
    locked: bool = False,
    encrypt: bool = False,
    source: Engine | None = None,
) -> Iterator[Engine]:
    """The bare engine: nothing may be pruned while it is copied. Of object storage it is that of the newest backup, and
    what was written becomes the next one. What is copied from an encrypted `source` is encrypted here too."""
    with _as_file(url, is_written) if is_object_url(url) else nullcontext(url) as where:
        backend = open_backend(where)
        try:
            if source is None or not has_keys(source.backend):
                usable = unlocked(backend, find_key, encrypt=encrypt, locked=locked)
            else:
                usable = with_keys_of(source.backend, backend, find_key)
        except BaseException:
            backend.close()
            raise
        engine = Engine(usable)
        try:
            yield engine
        finally:
            engine.close()


@contextmanager
def _as_file(url: str, is_written: bool) -> Iterator[str]:
    from stepkeep.maintenance.age_files import is_encrypted
    from stepkeep.maintenance.backup import backup

    objects = ObjectBackups(url)
    newest = objects.newest_name() if is_written else ""
    with workplace() as folder:
        file = folder / "copy.db"
        if newest is not None:
            objects.fetch(file)
            if is_encrypted(file):
                raise InvalidInput(
                    f"the newest backup in {url} is encrypted: restore it with --identity, and copy that store",
                    code="identity_needed",
                )
        yield f"sqlite:{file}"
        if is_written:
            with _opened(f"sqlite:{file}", locked=True) as engine:
                backup(engine, url, after=newest)
