"""Backups in object storage: `s3://BUCKET/PREFIX`.

A backup is the same verified SQLite file as any other, cut into pieces that are named after their content. What an
earlier backup brought is not sent again, and one that was interrupted goes on where it stopped. Its list of pieces is
written last, so a backup that has one is whole. Below the prefix are `pieces/SHA256`, each compressed,
`backups/NAME.json`, and `lock` while somebody writes. Credentials are those that S3 clients find in the environment.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path
from typing import Any, Final

import msgspec

from stepkeep import typed
from stepkeep.codec.compression import compress, decompress
from stepkeep.codec.integrity import digest
from stepkeep.errors import (
    BackendUnavailable,
    Conflict,
    Corrupt,
    InvalidInput,
    NotFound,
    Unsupported,
    driver_missing,
)
from stepkeep.model import from_us, utc_now_us
from stepkeep.processes import Owner, is_dead, this_process

SCHEME: Final = "s3://"
PIECE_BYTES: Final = 256 * 1024
"""Small enough that a save changes few of them, large enough that 10 GB are 40,000 objects."""

LOCK_SECONDS: Final = 900
"""After so long without a sign of life a backup counts as ended."""

SENDERS: Final = 8

Progress = Callable[[float], None]


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """What a backup consists of: the digests of its pieces, in order."""

    v: int = 1
    created: datetime
    size_bytes: int
    sessions: int
    checkpoints: int
    piece_bytes: int
    pieces: tuple[str, ...]


class _Lock(msgspec.Struct, frozen=True, kw_only=True):
    owner: Owner
    expires_us: int


class Sent(msgspec.Struct, frozen=True, kw_only=True):
    """A backup that was written: where, what had to be sent for it, and the older ones that went."""

    path: str
    sent_bytes: int
    removed: tuple[str, ...]


def is_object_url(url: object) -> bool:
    return str(url).startswith(SCHEME)


class ObjectBackups:
    """The backups below one prefix. Opening it proves that the service keeps conditional writes: without them two
    backups at once could destroy each other.

    Raises:
        InvalidInput: not an address of a bucket. Unsupported: the extra `s3`, or conditional writes, are missing.
        BackendUnavailable: the service does not answer, or refuses.
    """

    def __init__(self, url: str) -> None:
        try:
            import obstore
            from obstore.store import from_url
        except ImportError as exc:
            raise driver_missing("a backup in object storage", "s3", exc) from exc
        base, _, self._chosen = url.partition("/backups/")
        self.url = base.rstrip("/")
        if not base.removeprefix(SCHEME).partition("/")[0] or "?" in url or "#" in url:
            raise InvalidInput(
                f"{url} is no place for backups: use s3://BUCKET/PREFIX", code="invalid_option"
            )
        self._obstore: Any = obstore
        with self._errors():
            self._store: Any = from_url(self.url)
            self._prove_conditions()

    def _prove_conditions(self) -> None:
        name = f"probe-{digest(repr(time.time_ns()).encode() + repr(this_process()).encode())[:16]}"
        self._obstore.put(self._store, name, b"", mode="create")
        try:
            self._obstore.put(self._store, name, b"", mode="create")
        except self._obstore.exceptions.AlreadyExistsError:
            return
        finally:
            with suppress(self._obstore.exceptions.BaseError):
                self._obstore.delete(self._store, name)
        raise Unsupported(
            f"the service behind {self.url} overwrites what must not be overwritten (it ignores If-None-Match)",
            code="conditional_writes_missing",
        )

    @contextmanager
    def _errors(self) -> Iterator[None]:
        errors = self._obstore.exceptions
        try:
            yield
        except errors.BaseError as exc:
            text = str(exc).partition("\n\nDebug source")[0]
            is_final = isinstance(exc, (errors.PermissionDeniedError, errors.UnauthenticatedError))
            raise BackendUnavailable(
                f"{self.url}: {text}", code="backup_failed", retryable=not is_final
            ) from exc

    # --- what is there

    def names(self) -> list[str]:
        """The backups that are whole, oldest first."""
        return sorted(name.removesuffix(".json") for name in self._listed("backups"))

    def _listed(self, folder: str) -> dict[str, int]:
        """The names in a folder, with sizes."""
        with self._errors():
            found = self._obstore.list(self._store, folder).collect()
        return {each["path"].rpartition("/")[2]: each["size"] for each in found}

    def newest(self) -> Manifest:
        """The chosen backup, else the newest one.

        Raises:
            NotFound: there is none.
        """
        names = [self._chosen.removesuffix(".json")] if self._chosen else self.names()
        if not names:
            raise NotFound(f"there is no backup in {self.url}", code="backup_not_found")
        return self.manifest(names[-1])

    def manifest(self, name: str) -> Manifest:
        content = self._get(f"backups/{name}.json")
        if content is None:
            raise NotFound(f"no backup {name} in {self.url}", code="backup_not_found")
        try:
            return typed.from_json(content, Manifest)
        except msgspec.MsgspecError as exc:
            raise Corrupt(f"the list of {self.url}/backups/{name}.json cannot be read: {exc}") from exc

    def _get(self, path: str) -> bytes | None:
        with self._errors():
            try:
                return bytes(self._obstore.get(self._store, path).bytes())
            except (self._obstore.exceptions.NotFoundError, FileNotFoundError):
                return None

    # --- writing

    def put(
        self,
        file: Path,
        name: str,
        *,
        sessions: int,
        checkpoints: int,
        keep: int | None = None,
        progress: Progress | None = None,
    ) -> Sent:
        """Write a verified backup file under a name, whole or not at all; with `keep` only so many stay.

        Every piece that is sent is read back. Repeating after an interruption sends what is missing.

        Raises:
            Conflict: somebody else writes a backup there (`backup_running`).
            Corrupt: the service gave back something else than it was sent.
        """
        if self._chosen:
            raise InvalidInput(f"{self.url} has backups: name it, not one of them", code="invalid_option")
        with self._locked() as renew:
            known = self._listed("pieces")
            pieces, sent = self._send(file, set(known), renew, progress)
            manifest = Manifest(
                created=from_us(utc_now_us()),
                size_bytes=file.stat().st_size,
                sessions=sessions,
                checkpoints=checkpoints,
                piece_bytes=PIECE_BYTES,
                pieces=tuple(pieces),
            )
            path = f"backups/{name}.json"
            with self._errors():
                self._obstore.put(self._store, path, msgspec.json.encode(manifest), mode="create")
            removed = () if keep is None else self._rotate(keep, renew)
        return Sent(path=f"{self.url}/{path}", sent_bytes=sent, removed=removed)

    def _send(
        self, file: Path, known: set[str], renew: Callable[[], None], progress: Progress | None
    ) -> tuple[list[str], int]:
        pieces: list[str] = []
        sent, total = 0, max(1, file.stat().st_size)
        with file.open("rb") as source, ThreadPoolExecutor(SENDERS) as pool:
            while batch := [piece for _ in range(SENDERS) if (piece := source.read(PIECE_BYTES))]:
                renew()
                names = [digest(piece) for piece in batch]
                missing = {name: piece for name, piece in zip(names, batch, strict=True) if name not in known}
                sent += sum(pool.map(self._send_piece, missing, missing.values()))
                known |= missing.keys()
                pieces += names
                if progress is not None:
                    progress(min(1.0, source.tell() / total))
        return pieces, sent

    def _send_piece(self, name: str, piece: bytes) -> int:
        content = compress(piece)
        path = f"pieces/{name}"
        with self._errors(), suppress(self._obstore.exceptions.AlreadyExistsError):
            self._obstore.put(self._store, path, content, mode="create")
        self._piece(name, PIECE_BYTES)
        return len(content)

    def _piece(self, name: str, limit: int) -> bytes:
        """The content of a piece, which is what its name says."""
        content = self._get(f"pieces/{name}")
        piece = None if content is None else decompress(content, limit=limit)
        if piece is None or digest(piece) != name:
            what = "is missing" if piece is None else "is not what was sent"
            raise Corrupt(f"{self.url}/pieces/{name} {what}", code="backup_damaged")
        return piece

    def _rotate(self, keep: int, renew: Callable[[], None]) -> tuple[str, ...]:
        """Remove the oldest backups, then the pieces that none of the others has."""
        names = self.names()
        going, staying = names[:-keep], names[-keep:]
        with self._errors():
            for name in going:
                self._obstore.delete(self._store, f"backups/{name}.json")
        needed = {piece for name in staying for piece in self.manifest(name).pieces}
        orphans = sorted(self._listed("pieces").keys() - needed)
        for at in range(0, len(orphans), 1000):
            renew()
            with self._errors():
                self._obstore.delete(self._store, [f"pieces/{each}" for each in orphans[at : at + 1000]])
        return tuple(f"{self.url}/backups/{name}.json" for name in going)

    @contextmanager
    def _locked(self) -> Iterator[Callable[[], None]]:
        """Be the only one who writes here. What is yielded keeps it so, and is to be called now and then."""
        held = self._take_lock()
        renewed = time.monotonic()

        def renew() -> None:
            nonlocal held, renewed
            if time.monotonic() - renewed > LOCK_SECONDS / 3:
                held, renewed = self._write_lock({"e_tag": held["e_tag"]}), time.monotonic()

        try:
            yield renew
        finally:
            with suppress(BackendUnavailable, Conflict):
                if time.monotonic() - renewed < LOCK_SECONDS:
                    with self._errors():
                        self._obstore.delete(self._store, "lock")

    def _take_lock(self) -> dict[str, Any]:
        try:
            return self._write_lock("create")
        except Conflict:
            with self._errors():
                try:
                    found = self._obstore.get(self._store, "lock")
                except (self._obstore.exceptions.NotFoundError, FileNotFoundError):
                    return self._write_lock("create")
                tag, lock = found.meta["e_tag"], typed.from_json(bytes(found.bytes()), _Lock)
            if lock.expires_us > utc_now_us() and not is_dead(lock.owner):
                raise
            return self._write_lock({"e_tag": tag})

    def _write_lock(self, mode: Any) -> dict[str, Any]:
        lock = _Lock(owner=this_process("backup"), expires_us=utc_now_us() + LOCK_SECONDS * 1_000_000)
        errors = self._obstore.exceptions
        with self._errors():
            try:
                found: dict[str, Any] = self._obstore.put(
                    self._store, "lock", msgspec.json.encode(lock), mode=mode
                )
            except (errors.AlreadyExistsError, errors.PreconditionError) as exc:
                raise Conflict(
                    f"somebody else writes a backup to {self.url}: try again later",
                    code="backup_running",
                    retryable=True,
                ) from exc
        return found

    # --- reading

    def fetch(self, file: Path, *, progress: Progress | None = None) -> Manifest:
        """Write the chosen backup, else the newest one, to a new file; every piece is verified.

        Raises:
            NotFound: there is none.
            Corrupt: a piece is missing or damaged.
        """
        manifest = self.newest()
        with file.open("xb") as target, ThreadPoolExecutor(SENDERS) as pool:
            for at in range(0, len(manifest.pieces), SENDERS):
                batch = manifest.pieces[at : at + SENDERS]
                for piece in pool.map(self._piece, batch, [manifest.piece_bytes] * len(batch)):
                    target.write(piece)
                if progress is not None:
                    progress(min(1.0, (at + len(batch)) / len(manifest.pieces)))
        if file.stat().st_size != manifest.size_bytes:
            raise Corrupt(f"a backup in {self.url} is not of its size", code="backup_damaged")
        return manifest


@contextmanager
def workplace() -> Iterator[Path]:
    """A directory for the file that a backup is made of; it goes at the end."""
    with tempfile.TemporaryDirectory(prefix="stepkeep-backup-") as folder:
        yield Path(folder)
