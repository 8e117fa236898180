"""The keys of an encrypted store: what opens it, and where the key of this process comes from."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from stepkeep.engine import Engine
from stepkeep.errors import InvalidInput, NotFound
from stepkeep.storage.key_slots import FindKey, Keyring, SlotInfo, read_record, record_of, told
from stepkeep.storage.port import Backend, Key, Locked

if TYPE_CHECKING:
    from stepkeep.maintenance.copying import CopyReport, RecoverReport
    from stepkeep.maintenance.rekey import RekeyReport
    from stepkeep.maintenance.verify import Progress


def finder_of(key: Key | os.PathLike[str] | None) -> FindKey:
    """Finds the key that is given, or that the environment names."""

    def find() -> Key | None:
        from stepkeep.config.key_sources import key_of, read_key_file

        if key is None:
            return key_of(os.environ)
        return read_key_file(key) if isinstance(key, os.PathLike) else key

    return find


def given_key(
    *, file: str | None = None, new_file: str | None = None, command: str | None = None
) -> bytes | None:
    """The key in a file, in a file that is made for it, or that a command prints; None where none of them is named.

    Raises:
        InvalidInput: the file cannot be read (`key_missing`), or the new one exists (`file_exists`).
        BackendUnavailable: the command failed (`key_unavailable`).
    """
    from stepkeep.config.key_sources import key_from_command, new_key_file, read_key_file

    if new_file is not None:
        return new_key_file(new_file)
    if command is not None:
        return key_from_command(command)
    return None if file is None else read_key_file(file)


class Keys:
    """The slots of an encrypted store. Each holds the keys of the store, and is opened by a key of its own."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def list(self) -> tuple[SlotInfo, ...]:
        """All slots, the oldest first; also of a store that is opened without a key.

        Raises:
            NotFound: the store is not encrypted (`not_encrypted`).
        """
        backend = self._engine.backend
        yours = "" if isinstance(backend, Locked) else self._ring.slot
        return told(read_record(_record(backend)).slots, yours)

    def add(self, key: Key, *, label: str = "") -> SlotInfo:
        """One slot more: a passphrase as text, a secret of 32 bytes or more, or a `KeyService`."""
        return told([self._ring.add(key, label=label, now_us=self._engine.clock())])[0]

    def remove(self, id: str) -> None:
        """Remove a slot, named by its id or the beginning of it. Who had its key may have kept the keys: see `rekey`.

        Raises:
            NotFound: there is no such slot (`slot_not_found`).
            Conflict: it is the last one (`last_slot`).
        """
        self._ring.remove(id)

    def rotate(self, key: Key) -> SlotInfo:
        """Another key in place of the one that this store was opened with."""
        return told([self._ring.rotate(key, now_us=self._engine.clock())], self._ring.slot)[0]

    def rekey(
        self,
        *,
        drop_slots: bool = False,
        dry_run: bool = False,
        progress: Callable[[float], None] | None = None,
    ) -> RekeyReport:
        """Give the store a new data key, and encrypt everything with it that was encrypted with another.

        Saves use the new key at once, in every process that has the store open. The rest goes on beside them in small
        transactions; stopped anywhere, it is finished by the next call. Then the old key leaves the store: who kept it
        can read nothing any more. With `dry_run` only what is left to do is told, which needs no key. `progress` gets
        the part that is done, from 0 to 1.

        Raises:
            NotFound: the store is not encrypted (`not_encrypted`).
            Conflict: there are slots beside the one that opened the store, into which the new key cannot be put
                (`other_slots`); with `drop_slots` they are removed.
        """
        from stepkeep.maintenance.rekey import progress_of, rekey

        _record(self._engine.backend)
        if dry_run:
            return progress_of(self._engine.backend)
        return rekey(self._engine, self._ring, drop_slots=drop_slots, progress=progress)

    @property
    def _ring(self) -> Keyring:
        backend = self._engine.backend
        _record(backend)
        ring = getattr(backend, "keyring", None)
        if not isinstance(ring, Keyring):
            raise InvalidInput("the store was opened without its key", code="key_missing")
        return ring


def _record(backend: Backend) -> str:
    text = record_of(backend)
    if not text:
        raise not_encrypted(backend)
    return text


def not_encrypted(backend: Backend) -> NotFound:
    """What to raise where a key is given for a store that has none."""
    return NotFound(
        f"{backend.url} is not encrypted: `stepkeep key init` makes a new store that is, `stepkeep copy --encrypt` "
        "an encrypted copy of this one",
        code="not_encrypted",
    )


def copy_store(
    source: str,
    destination: str,
    *,
    keys: Sequence[str] = (),
    key: Key | os.PathLike[str] | None = None,
    encrypt: bool = False,
    progress: Progress | None = None,
) -> CopyReport:
    """Copy sessions, all of them unless named, from the store at one URL into the store at another.

    With `encrypt` the destination is an encrypted store, which is made if there is none. `key` opens what is
    encrypted, as in `open`. The copy of an encrypted store has the same keys, unless it has others already.

    Raises:
        NotFound: there is no such store or session.
        InvalidInput: both URLs name the same store, or a key is missing or wrong (`key_missing`, `key_wrong`).
        Conflict: the destination is to be encrypted, and has sessions that are not (`store_not_empty`).
        BackendUnavailable: one of the stores failed. What was copied is whole; copy again to go on.
    """
    from stepkeep.maintenance.copying import copy_store

    return copy_store(
        source, destination, keys=keys, find_key=finder_of(key), encrypt=encrypt, progress=progress
    )


def recover(
    source: str,
    destination: str,
    *,
    key: Key | os.PathLike[str] | None = None,
    progress: Progress | None = None,
) -> RecoverReport:
    """Salvage what still verifies in a damaged store into a new one. The damaged one is not written to.

    What comes out of an encrypted store is encrypted with the same keys.

    Raises:
        NotFound: there is no such store, or nothing in it verifies.
        InvalidInput: the destination is the source, or not empty; or a key is missing or wrong.
    """
    from stepkeep.maintenance.copying import recover

    return recover(source, destination, find_key=finder_of(key), progress=progress)
