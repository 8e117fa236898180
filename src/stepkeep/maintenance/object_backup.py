"""Backups in object storage: `s3://BUCKET/PREFIX`.

A backup is the same verified SQLite file as any other, cut into pieces that are named after their content. What an
earlier backup brought is not sent again, and one that was interrupted goes on where it stopped. Its list of pieces is
written last, so a backup that has one is whole. Below the prefix are `pieces/SHA256`, each compressed,
`backups/NAME.json`, and `lock` while somebody writes. Credentials are those that S3 clients find in the environment.
"""

from __future__ import annotations

import os
import random
import re
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Final, TypeAlias

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
    StepkeepError,
    Unsupported,
    driver_missing,
)
from stepkeep.logs import Log
from stepkeep.model import from_us, new_uid, utc_now_us
from stepkeep.policy.retention import Retention
from stepkeep.policy.rotation import dated_name, surplus
from stepkeep.processes import Owner, is_dead, is_this_process, this_process
from stepkeep.storage.disk import file_errors

log = Log("stepkeep")

SCHEME: Final = "s3://"
PIECE_BYTES: Final = 256 * 1024
"""Small enough that a save changes few of them, large enough that 10 GB are 40,000 objects."""

LOCK_SECONDS: Final = 900
"""After so long without a sign of life, by the clock of the service, a backup counts as ended."""

SENDERS: Final = 8
TRIES: Final = 5
"""How often a request is made whose connection breaks. The outcome of each can be read back, so that is safe."""


PAUSE_SECONDS: Final = 0.2
"""How long is waited before a request is made again, twice as long each time."""

Progress = Callable[[float], None]
Piece: TypeAlias = tuple[str, str]
"""The digest of its content, and the tag that the service gave the object that was read back."""


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """What a backup consists of: its pieces, in order."""

    v: int = 1
    created: datetime
    size_bytes: int
    sessions: int
    checkpoints: int
    piece_bytes: int
    pieces: tuple[Piece, ...]


class _Lock(msgspec.Struct, frozen=True, kw_only=True):
    """Who writes here, and the name of the backup that it will be."""

    owner: Owner
    token: str
    name: str


class _Held(msgspec.Struct):
    """A lock that this process has."""

    lock: _Lock
    e_tag: str
    renewed: float


_held: Final[set[str]] = set()
"""The tokens of the locks that this process has."""


class Sent(msgspec.Struct, frozen=True, kw_only=True):
    """A backup that was written: where, what had to be sent for it, and the older ones that went."""

    path: str
    sent_bytes: int
    removed: tuple[str, ...]


def is_object_url(url: object) -> bool:
    return str(url).startswith(SCHEME)


class ObjectBackups:
    """The backups below one prefix. Who reads them needs no right to write.

    Raises, also from every method:
        InvalidInput: not an address of a bucket. Unsupported: the extra `s3` is missing.
        BackendUnavailable: the service does not answer, or refuses. NotFound: there is no such bucket.
    """

    def __init__(self, url: str) -> None:
        try:
            import obstore
            from obstore.store import S3Store
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
            self._store: Any = S3Store.from_url(
                self.url, retry_config={"max_retries": 2, "retry_timeout": timedelta(seconds=20)}
            )

    # --- requests

    def _ask(self, what: str, *words: Any, **options: Any) -> Any:
        """One request. It is made again where its connection broke, so what it asks for must be repeatable."""
        errors = self._obstore.exceptions
        for tried in range(1, TRIES + 1):
            try:
                return getattr(self, f"_{what}")(*words, **options)
            except (errors.GenericError, errors.JoinError, ConnectionError, TimeoutError):
                if tried == TRIES:
                    raise
                time.sleep(random.uniform(0.5, 1.0) * PAUSE_SECONDS * 2**tried)
        raise AssertionError

    def _put(self, path: str, content: bytes, mode: Any) -> str:
        """Write an object; the tag that the service gave it."""
        written = self._obstore.put(self._store, path, content, mode=mode, use_multipart=False)
        return str(written.get("e_tag") or "")

    def _get(self, path: str) -> tuple[bytes, dict[str, Any]] | None:
        """The content of an object and what the service knows of it; None where there is none."""
        try:
            found = self._obstore.get(self._store, path)
            return bytes(found.bytes()), found.meta
        except (self._obstore.exceptions.NotFoundError, FileNotFoundError):
            return None

    def _list(self, folder: str) -> dict[str, dict[str, Any]]:
        """The objects in a folder, by their names."""
        found = self._obstore.list(self._store, folder).collect()
        return {each["path"].rpartition("/")[2]: each for each in found}

    def _delete(self, paths: list[str]) -> None:
        with suppress(self._obstore.exceptions.NotFoundError, FileNotFoundError):
            self._obstore.delete(self._store, paths)

    def _create(self, path: str, content: bytes) -> str | None:
        """Write an object that is not there yet; its tag, None if there is another one.

        An answer that is lost is no matter: what was written is known by its content.
        """
        errors = self._obstore.exceptions
        with suppress(errors.AlreadyExistsError, errors.PreconditionError):
            return str(self._ask("put", path, content, "create"))
        found = self._ask("get", path)
        return None if found is None or found[0] != content else str(found[1]["e_tag"] or "")

    def prove_conditions(self) -> None:
        """Write one object twice: to be called before `put`, which relies on it.

        Raises:
            Unsupported: the second write was not refused, or not by its condition.
        """
        with self._errors(), self._probe() as name:
            errors = self._obstore.exceptions
            refused = 0
            for mode in ("create", {"e_tag": '"00000000000000000000000000000000"'}):
                try:
                    self._ask("put", name, b"another", mode)
                except (errors.AlreadyExistsError, errors.PreconditionError):
                    refused += 1
        if refused < 2:
            raise Unsupported(
                f"the service behind {self.url} overwrites what must not be overwritten: it ignores If-None-Match or"
                " If-Match, so that two backups at once could destroy each other. Use a service that has conditional"
                " writes, or back up to a directory",
                code="conditional_writes_missing",
            )

    @contextmanager
    def _probe(self) -> Iterator[str]:
        """The name of an object that is there for a moment."""
        name = f"probe-{new_uid()}"
        try:
            self._ask("put", name, b"", "overwrite")
            yield name
        finally:
            with suppress(Exception):
                self._delete([name])

    @contextmanager
    def _errors(self) -> Iterator[None]:
        errors = self._obstore.exceptions
        try:
            yield
        except (errors.BaseError, ConnectionError, TimeoutError, FileNotFoundError) as exc:
            text = _reason(str(exc))
            if isinstance(exc, (errors.NotFoundError, FileNotFoundError)):
                bucket = self.url.removeprefix(SCHEME).partition("/")[0]
                raise NotFound(
                    f"there is no bucket {bucket} (or it is in another region): {text}",
                    code="bucket_not_found",
                ) from exc
            is_final = text in _HINTS.values() or isinstance(
                exc, (errors.PermissionDeniedError, errors.UnauthenticatedError)
            )
            raise BackendUnavailable(
                f"{self.url}: {text}", code="backup_failed", retryable=not is_final
            ) from exc

    # --- what is there

    def names(self) -> list[str]:
        """The backups that are whole, oldest first."""
        with self._errors():
            found = self._ask("list", "backups")
        # An empty one bars the name of a backup that was overtaken.
        return sorted(name.removesuffix(".json") for name, each in found.items() if each["size"])

    def newest_name(self) -> str | None:
        """That of the chosen backup, else of the newest one; None where there is none."""
        return self._chosen.removesuffix(".json") or next(reversed(self.names()), None)

    def newest(self) -> Manifest:
        """The chosen backup, else the newest one.

        Raises:
            NotFound: there is none.
        """
        name = self.newest_name()
        if name is None:
            raise NotFound(f"there is no backup in {self.url}", code="backup_not_found")
        return self._manifest(name)

    def _manifest(self, name: str) -> Manifest:
        with self._errors():
            found = self._ask("get", f"backups/{name}.json")
        if found is None or not found[0]:
            raise NotFound(f"no backup {name} in {self.url}", code="backup_not_found")
        try:
            return typed.from_json(found[0], Manifest)
        except msgspec.MsgspecError as exc:
            raise Corrupt(f"the list of {self.url}/backups/{name}.json cannot be read: {exc}") from exc

    # --- writing

    def put(
        self,
        file: Path,
        *,
        now_us: int,
        sessions: int,
        checkpoints: int,
        rules: Retention | None = None,
        after: str | None = "",
        progress: Progress | None = None,
    ) -> Sent:
        """Write a verified backup file under a name after the time, whole or not at all; with `rules` others may go.

        Every piece that is sent is read back, and that all of them are there is looked at once more before the list of
        them is written. Repeating after an interruption sends what is missing. With `after` it is only written where
        the newest backup has that name, or there is none.

        Raises:
            Conflict: somebody else writes a backup there (`backup_running`), or did so meanwhile (`backup_overtaken`).
            Corrupt: the service gave back something else than it was sent.
        """
        if self._chosen:
            raise InvalidInput(f"{self.url} has backups: name it, not one of them", code="invalid_option")
        with self._errors(), self._locked(now_us) as held:
            if after != "" and after != self.newest_name():
                raise _overtaken(self.url)
            pieces, sent = self._send(file, held, progress)
            manifest = Manifest(
                created=from_us(utc_now_us()),
                size_bytes=file.stat().st_size,
                sessions=sessions,
                checkpoints=checkpoints,
                piece_bytes=PIECE_BYTES,
                pieces=tuple(pieces),
            )
            path = self._commit(manifest, held)
            removed = () if rules is None else self._rotate(rules, now_us, held)
        return Sent(path=f"{self.url}/{path}", sent_bytes=sent, removed=removed)

    def _send(self, file: Path, held: _Held, progress: Progress | None) -> tuple[list[Piece], int]:
        there = {name: str(each["e_tag"] or "") for name, each in self._ask("list", "pieces").items()}
        known = self._proven(there)
        pieces: list[Piece] = []
        sent, total = 0, max(1, file.stat().st_size)
        with file.open("rb") as source, ThreadPoolExecutor(SENDERS) as pool:
            while batch := [piece for _ in range(SENDERS) if (piece := source.read(PIECE_BYTES))]:
                self._renew(held)
                contents = {digest(piece): piece for piece in batch}
                missing = {name: piece for name, piece in contents.items() if name not in known}
                for name, tag, size in pool.map(
                    lambda each: self._send_piece(*each, is_there=each[0] in there), missing.items()
                ):
                    known[name] = tag
                    sent += size
                pieces += [(name, known[name]) for name in map(digest, batch)]
                if progress is not None:
                    progress(min(1.0, source.tell() / total))
        return pieces, sent

    def _proven(self, there: Mapping[str, str]) -> dict[str, str]:
        """The pieces that the newest backup has, and that are still the objects that were read back for it."""
        name = self.newest_name()
        try:
            listed = () if name is None else self._manifest(name).pieces
        except (Corrupt, NotFound) as exc:
            log.warning("the backup before cannot be read, so everything is looked at: %s", exc)
            listed = ()
        return {name: tag for name, tag in listed if tag and there.get(name) == tag}

    def _send_piece(self, name: str, piece: bytes, *, is_there: bool) -> Sending:
        """Have a piece there that is what its name says; what had to be sent for it."""
        if is_there and (tag := self._tag_if_intact(name)) is not None:
            return name, tag, 0
        content = compress(piece)
        self._ask("put", f"pieces/{name}", content, "overwrite")
        tag = self._tag_if_intact(name)
        if tag is None:
            raise Corrupt(f"{self.url}/pieces/{name} is not what was sent", code="backup_damaged")
        return name, tag, len(content)

    def _tag_if_intact(self, name: str) -> str | None:
        """The tag of a piece, None when it is not there or is another one than its name says."""
        found = self._ask("get", f"pieces/{name}")
        with suppress(Corrupt):
            if found is not None and digest(decompress(found[0], limit=PIECE_BYTES)) == name:
                return str(found[1]["e_tag"] or "")
        return None

    def _commit(self, manifest: Manifest, held: _Held) -> str:
        """Write the list, which makes it a backup, while nobody else writes and all pieces are there."""
        self._renew(held, now=True)
        there = self._ask("list", "pieces")
        gone = next((name for name, _ in manifest.pieces if name not in there), None)
        path, content = f"backups/{held.lock.name}.json", msgspec.json.encode(manifest)
        if gone is not None or self._create(path, content) is None:
            raise _overtaken(self.url)
        found = self._ask("get", path)
        if found is None or found[0] != content:
            self._ask("delete", [path])
            raise Corrupt(f"{self.url}/{path} is not what was sent", code="backup_damaged")
        return path

    def _rotate(self, rules: Retention, now_us: int, held: _Held) -> tuple[str, ...]:
        """Remove the backups that no rule keeps, then the pieces that none of the others has.

        A list that cannot be read keeps every piece, and what came after this backup began is left alone.
        """
        names = self.names()
        going = surplus(names, rules, now_us)
        staying = [name for name in names if name not in set(going)]
        try:
            needed = {piece for name in staying for piece, _ in self._manifest(name).pieces}
        except (Corrupt, NotFound) as exc:
            log.warning("no old backup is removed: %s", exc)
            return ()
        self._renew(held, now=True)
        if going:
            self._ask("delete", [f"backups/{name}.json" for name in going])
        orphans = sorted(self._ask("list", "pieces").keys() - needed)
        for at in range(0, len(orphans), 1000):
            self._renew(held, now=True)
            self._ask("delete", [f"pieces/{each}" for each in orphans[at : at + 1000]])
        return tuple(f"{self.url}/backups/{name}.json" for name in going)

    # --- one at a time

    @contextmanager
    def _locked(self, now_us: int) -> Iterator[_Held]:
        """Be the only one who writes here."""
        there = [name.removesuffix(".json") for name in self._ask("list", "backups")]
        lock = _Lock(owner=this_process("backup"), token=new_uid(), name=dated_name(now_us, there))
        held = _Held(lock, self._take_lock(lock), time.monotonic())
        _held.add(lock.token)
        try:
            yield held
        finally:
            with suppress(StepkeepError, self._obstore.exceptions.BaseError):
                self._renew(held, now=True)
                self._ask("delete", ["lock"])
            _held.discard(lock.token)

    def _renew(self, held: _Held, *, now: bool = False) -> None:
        """Show that this backup is alive.

        Raises:
            Conflict: it was not for too long, and another one took its place.
        """
        if now or time.monotonic() - held.renewed > LOCK_SECONDS / 3:
            tag = self._replace_lock(held.lock, held.e_tag)
            if tag is None:
                raise _overtaken(self.url)
            held.e_tag, held.renewed = tag, time.monotonic()

    def _take_lock(self, lock: _Lock) -> str:
        tag = self._create("lock", msgspec.json.encode(lock))
        while tag is None:
            found = self._ask("get", "lock")
            if found is None:
                tag = self._create("lock", msgspec.json.encode(lock))
                continue
            holder = _holder(found[0])
            if not self._has_ended(holder, found[1]["last_modified"]):
                raise _running(self.url)
            tag = self._replace_lock(lock, str(found[1]["e_tag"]))
            if tag is None:
                raise _running(self.url)
            if holder is not None:
                # It may live yet, or its last request be under way: its list must not come any more.
                self._create(f"backups/{holder.name}.json", b"")
        return tag

    def _replace_lock(self, lock: _Lock, e_tag: str) -> str | None:
        """The tag of the lock, None if somebody else has it by now."""
        # Some services make the tag of the content: the moment makes each one another.
        content = msgspec.json.encode(lock) + b" " * random.randrange(1, 4096)
        errors = self._obstore.exceptions
        with suppress(
            errors.PreconditionError, errors.AlreadyExistsError, errors.NotFoundError, FileNotFoundError
        ):
            return str(self._ask("put", "lock", content, {"e_tag": e_tag}))
        found = self._ask("get", "lock")
        return str(found[1]["e_tag"]) if found is not None and found[0] == content else None

    def _has_ended(self, holder: _Lock | None, renewed: datetime) -> bool:
        """Whether the backup that has the lock surely ended, or gave no sign of life for too long."""
        if holder is not None and (
            is_dead(holder.owner) or (is_this_process(holder.owner) and holder.token not in _held)
        ):
            return True
        with self._probe() as name:  # the clocks of machines differ; the service has one
            found = self._ask("get", name)
            return found is not None and found[1]["last_modified"] - renewed > timedelta(seconds=LOCK_SECONDS)

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
                for piece in pool.map(
                    self._piece, [name for name, _ in batch], [manifest.piece_bytes] * len(batch)
                ):
                    target.write(piece)
                if progress is not None:
                    progress(min(1.0, (at + len(batch)) / len(manifest.pieces)))
        if file.stat().st_size != manifest.size_bytes:
            raise Corrupt(f"a backup in {self.url} is not of its size", code="backup_damaged")
        return manifest

    def _piece(self, name: str, limit: int) -> bytes:
        """The content of a piece, which is what its name says."""
        with self._errors():
            found = self._ask("get", f"pieces/{name}")
        piece = None if found is None else decompress(found[0], limit=limit)
        if piece is None or digest(piece) != name:
            what = "is missing" if piece is None else "is not what was sent"
            raise Corrupt(f"{self.url}/pieces/{name} {what}", code="backup_damaged")
        return piece


Sending: TypeAlias = tuple[str, str, int]
"""A piece: its name, its tag, and the bytes that had to be sent."""


_HINTS: Final = {
    "/latest/api/token": "there are no credentials: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY",
    "builder error": "AWS_ENDPOINT_URL is not https: set AWS_ALLOW_HTTP=true if it is in your own network",
}


def _reason(text: str) -> str:
    """What went wrong, without what only the makers of the client need."""
    for sign, hint in _HINTS.items():
        if sign in text:
            return hint
    if answer := re.search(r"<Code>([^<]*)</Code>.*?<Message>([^<]*)</Message>", text, re.DOTALL):
        return f"{answer[1]}: {answer[2]}"
    return text.partition("\n\nDebug source")[0].removeprefix("Generic S3 error: ")


def _holder(content: bytes) -> _Lock | None:
    try:
        return typed.from_json(content, _Lock)
    except msgspec.MsgspecError:
        return None


def _running(url: str) -> Conflict:
    return Conflict(
        f"somebody else writes a backup to {url}: try again later", code="backup_running", retryable=True
    )


def _overtaken(url: str) -> Conflict:
    return Conflict(
        f"another backup was written to {url} meanwhile, and this one is none: make it again",
        code="backup_overtaken",
        retryable=True,
    )


_WORKPLACE: Final = "stepkeep-backup-"
ABANDONED_SECONDS: Final = 86_400
"""Nobody works on what was not written to for so long."""


@contextmanager
def workplace() -> Iterator[Path]:
    """A directory for the file that a backup is made of; it goes at the end, and so does what a killed one left.

    Raises:
        BackendUnavailable: it cannot be made. One that cannot be removed is left to the next.
    """
    with file_errors(Path("the temporary directory"), code="backup_failed"):
        made = tempfile.TemporaryDirectory(prefix=_WORKPLACE, ignore_cleanup_errors=True)
    with made as folder:
        _remove_abandoned(Path(folder).parent)
        yield Path(folder)


def _remove_abandoned(temporary: Path) -> None:
    with suppress(OSError):
        for left in temporary.glob(f"{_WORKPLACE}*"):
            found = left.lstat()
            if found.st_uid == os.geteuid() and time.time() - found.st_mtime > ABANDONED_SECONDS:
                shutil.rmtree(left)
