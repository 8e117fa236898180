"""The key record of an encrypted store: its key set, once for each slot, under what opens that slot.

Slots come and go without touching anything that is stored. A passphrase is stretched by scrypt, which takes a tenth of
a second and 32 MiB; a secret of 32 bytes or more, from a file or a command, needs no stretching; a service, such as a
key management service, wraps and unwraps a key without giving its own away.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from hashlib import scrypt
from typing import TYPE_CHECKING, Final, TypeAlias

import msgspec

from stepkeep import typed
from stepkeep.errors import Conflict, Corrupt, InvalidInput, NotFound, Unsupported
from stepkeep.model import utc_now_us
from stepkeep.storage import conflicts
from stepkeep.storage.port import Backend, KeepsFiles, KeepsKeys, Key, Locked

if TYPE_CHECKING:
    from stepkeep.codec.encryption import Cipher, KeySet

MIN_SECRET_BYTES: Final = 32
"""A secret of a file or command must be so long: it is not stretched."""

PASSPHRASE, SECRET, SERVICE = "passphrase", "secret", "service"

_VERSION: Final = 1
_SCRYPT_N, _SCRYPT_R, _SCRYPT_P = 1 << 15, 8, 1
_SCRYPT_BYTES: Final = 64 << 20
_SALT_BYTES: Final = 32


class Slot(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One way to the key set: how it is opened, and the key set as it is stored there."""

    id: str
    kind: str
    label: str
    created_us: int
    salt: bytes
    wrapped: bytes
    service: bytes = b""


class SlotInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A slot as it is told: nothing of it opens anything. `is_yours` is the one this store was opened with."""

    id: str
    kind: str
    label: str
    created_us: int
    is_yours: bool


class KeyRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a store keeps of its keys. `id` is the same in copies that share them; `key` numbers the newest data key.

    While another data key takes the place of older ones, these are in `old`, under the newest: no slot holds them.
    """

    v: int
    id: str
    key: int
    slots: tuple[Slot, ...]
    old: bytes = b""

    def text(self) -> str:
        return msgspec.json.encode(self).decode()

    def with_slot(self, keys: KeySet, key: Key, *, label: str, created_us: int) -> KeyRecord:
        """The record with one slot more."""
        slot = _new_slot(self.id, keys.current(), key, label, created_us)
        return msgspec.structs.replace(self, slots=(*self.slots, slot))

    def without_slot(self, id: str) -> KeyRecord:
        """The record with one slot less; never without any."""
        found = [slot for slot in self.slots if slot.id.startswith(id)] if id else []
        if len(found) != 1:
            what = "no" if not found else "more than one"
            raise NotFound(f"{what} key slot {id!r}: see `stepkeep key list`", code="slot_not_found")
        if len(self.slots) == 1:
            raise Conflict(
                "this is the last key slot: nothing could open the store any more; add another one first",
                code="last_slot",
                retryable=False,
            )
        return msgspec.structs.replace(self, slots=tuple(slot for slot in self.slots if slot not in found))

    def opened(self, key: Key) -> tuple[KeySet, Slot]:
        """The key set, and the slot that gave it.

        Raises:
            InvalidInput: no slot is opened by this key (`key_wrong`).
        """
        for slot in sorted(self.slots, key=lambda slot: slot.kind == PASSPHRASE):  # the quick ones first
            with suppress(Corrupt):
                return self._with_old(_opened(self.id, slot, key)), slot
        raise InvalidInput(
            "the key opens no slot of this store: nothing was read. Name another one, see "
            "`stepkeep key list --help`",
            code="key_wrong",
        )

    def _with_old(self, keys: KeySet) -> KeySet:
        from stepkeep.codec.encryption import KeySet, unpack_keys, unwrap

        if not self.old:
            return keys
        old = unpack_keys(unwrap(_key_of_old(keys), self.old, _bound(self.id, "old")))
        return KeySet(keys.names, {**old.keys, **keys.keys})

    def rekeyed(self, keys: KeySet, slot_id: str, key: Key) -> KeyRecord:
        """The record for a key set whose newest data key is new. Only the slot is left that the key opens."""
        from stepkeep.codec.encryption import pack_keys, wrap

        slot = next((each for each in self.slots if each.id == slot_id), None)
        if slot is None:
            raise NotFound(f"the key slot {slot_id} is gone: see `stepkeep key list`", code="slot_not_found")
        return msgspec.structs.replace(
            self,
            key=keys.newest,
            slots=(_filled(self.id, slot, keys.current(), key),),
            old=wrap(_key_of_old(keys), pack_keys(keys.older()), _bound(self.id, "old")),
        )

    def without_old(self) -> KeyRecord:
        """The record when nothing is encrypted with an older data key any more."""
        return msgspec.structs.replace(self, old=b"")


def _key_of_old(keys: KeySet) -> bytes:
    from stepkeep.codec.encryption import hkdf

    return hkdf(keys.keys[keys.newest], salt=b"", info=b"stepkeep old keys")


def new_record(keys: KeySet, key: Key, *, label: str, created_us: int) -> KeyRecord:
    empty = KeyRecord(v=_VERSION, id=os.urandom(12).hex(), key=keys.newest, slots=())
    return empty.with_slot(keys, key, label=label, created_us=created_us)


def read_record(text: str) -> KeyRecord:
    """The key record in a text.

    Raises:
        Corrupt: it is damaged.
        Unsupported: it is of a newer release (`format_newer`).
    """
    try:
        record = typed.from_json(text, KeyRecord)
    except (msgspec.MsgspecError, UnicodeError) as exc:
        raise Corrupt(
            f"the key record of the store is damaged ({exc}): put back a backup", code="key_record_damaged"
        ) from exc
    if record.v > _VERSION:
        raise Unsupported("the key record is of a newer release: upgrade stepkeep", code="format_newer")
    return record


class _Number(msgspec.Struct):
    key: int


_numbers = typed.json_decoder(_Number)


def key_number(text: str | None) -> int | None:
    """The number of the newest data key, by a key record."""
    try:
        return _numbers.decode(text or "").key
    except (msgspec.MsgspecError, UnicodeError):
        return None


def told(slots: Sequence[Slot], yours: str = "") -> tuple[SlotInfo, ...]:
    return tuple(
        SlotInfo(
            id=slot.id,
            kind=slot.kind,
            label=slot.label,
            created_us=slot.created_us,
            is_yours=slot.id == yours,
        )
        for slot in slots
    )


def _new_slot(record: str, keys: KeySet, key: Key, label: str, created_us: int) -> Slot:
    kind = {str: PASSPHRASE, bytes: SECRET}.get(type(key), SERVICE)
    if isinstance(key, str | bytes):
        _check(key)
    empty = Slot(id=os.urandom(6).hex(), kind=kind, label=label, created_us=created_us, salt=b"", wrapped=b"")
    return _filled(record, empty, keys, key)


def _filled(record: str, slot: Slot, keys: KeySet, key: Key) -> Slot:
    """The slot with this key set in it, under a key that serves for it alone."""
    from stepkeep.codec.encryption import KEY_BYTES, pack_keys, wrap

    salt, service = os.urandom(_SALT_BYTES), b""
    if isinstance(key, str | bytes):
        wrapping = _derived(slot.kind, key, salt)
    else:
        wrapping = os.urandom(KEY_BYTES)
        service = key.wrap(wrapping)
    wrapped = wrap(wrapping, pack_keys(keys), _bound(record, slot.id, slot.kind))
    return msgspec.structs.replace(slot, salt=salt, wrapped=wrapped, service=service)


def _opened(record: str, slot: Slot, key: Key) -> KeySet:
    from stepkeep.codec.encryption import KEY_BYTES, unpack_keys, unwrap

    try:
        keys = unpack_keys(unwrap(_wrapping(slot, key), slot.wrapped, _bound(record, slot.id, slot.kind)))
    except Exception as exc:  # whatever a service raises
        raise Corrupt(f"the slot does not open: {exc}") from exc
    if not all(len(each) == KEY_BYTES for each in (keys.names, *keys.keys.values())):
        raise Corrupt("the key set is damaged")
    return keys


def _wrapping(slot: Slot, key: Key) -> bytes:
    return _derived(slot.kind, key, slot.salt) if isinstance(key, str | bytes) else key.unwrap(slot.service)


def _check(key: str | bytes) -> None:
    """Refuse what is not good for opening a slot."""
    if not key:
        raise InvalidInput("the key is empty", code="key_missing")
    if isinstance(key, bytes) and len(key) < MIN_SECRET_BYTES:
        raise InvalidInput(
            f"a key of a file or command has at least {MIN_SECRET_BYTES} bytes, this one {len(key)}: make one by "
            "`stepkeep key add --new-file FILE`, or give it as a passphrase",
            code="key_too_short",
        )


def _derived(kind: str, key: str | bytes, salt: bytes) -> bytes:
    from stepkeep.codec.encryption import KEY_BYTES, hkdf

    secret = key.encode() if isinstance(key, str) else key
    if kind == SERVICE:
        raise Corrupt("the slot is opened by a service")
    if kind == SECRET:
        return hkdf(secret, salt=salt, info=b"stepkeep slot")
    return scrypt(
        secret, salt=salt, n=_SCRYPT_N, r=_SCRYPT_R, p=_SCRYPT_P, maxmem=_SCRYPT_BYTES, dklen=KEY_BYTES
    )


def _bound(*place: str) -> bytes:
    return "\0".join(("stepkeep slot", *place)).encode()


# --- opening -----------------------------------------------------------------------------------------------------

FindKey: TypeAlias = Callable[[], Key | None]
"""Finds the key, when one is needed: a command that prints it is not run for a store that is not encrypted."""


def no_key() -> None:
    return None


def unlocked(
    backend: Backend,
    find_key: FindKey = no_key,
    *,
    encrypt: bool = False,
    locked: bool = False,
    clock: Callable[[], int] = utc_now_us,
) -> Backend:
    """The backend as an engine uses it: as it is, or decrypting what is encrypted.

    With `encrypt` an empty store becomes an encrypted one, and every other must be one. With `locked` no key is
    needed, and nothing can be read.

    Raises:
        InvalidInput: there is no key (`key_missing`), or it is a wrong one (`key_wrong`).
        Conflict: the store has sessions that are not encrypted (`store_not_empty`).
        Unsupported: this kind of store cannot be encrypted (`encryption_unsupported`).
    """
    if isinstance(backend, KeepsFiles) or not isinstance(backend, KeepsKeys):
        if encrypt:
            raise Unsupported(
                f"{backend.url} cannot be encrypted: its checkpoints are documents that people and programs read; "
                "use sqlite: or postgresql:",
                code="encryption_unsupported",
            )
        return backend
    text = backend.key_record()
    if text is None and not encrypt:
        return backend
    from stepkeep.storage.encrypted import encrypted, without_key

    if locked:
        return without_key(backend)
    key = find_key()
    if key is None:
        raise conflicts.key_missing(backend.url)
    if text is None:
        _make_encrypted(backend, key, clock())
    return encrypted(backend, Keyring(backend, key))


class Keyring:
    """The keys of an open store, and what they came by. Safe for threads: who changes them compares first."""

    def __init__(self, keeper: KeepsKeys, key: Key) -> None:
        """Open the store's slots by a key; `InvalidInput` (`key_wrong`) when it fits none."""
        self.keeper = keeper
        self._key = key
        self._open(self.record())

    def _open(self, record: KeyRecord) -> None:
        self.keys, slot = record.opened(self._key)
        self.slot = slot.id

    def over(self, keeper: KeepsKeys) -> Keyring:
        """The same for another store with the same keys."""
        return Keyring(keeper, self._key)

    def record(self) -> KeyRecord:
        return read_record(self.keeper.key_record() or "")

    def refresh(self) -> KeySet:
        """The keys as they are now: another process may have given the store a new data key.

        Raises:
            InvalidInput: the key that opened the store does not open it any more (`key_wrong`).
        """
        record = self.record()
        if record.key != self.keys.newest:
            self._open(record)
        return self.keys

    def add(self, key: Key, *, label: str, now_us: int) -> Slot:
        """One slot more, opened by another key."""
        record = self._changed(lambda now: now.with_slot(self.keys, key, label=label, created_us=now_us))
        return record.slots[-1]

    def remove(self, id: str) -> None:
        self._changed(lambda now: now.without_slot(id))

    def rotate(self, key: Key, *, now_us: int) -> Slot:
        """Another key instead of the one that opened the store."""

        def rotated(now: KeyRecord) -> KeyRecord:
            label = next((slot.label for slot in now.slots if slot.id == self.slot), "")
            added = now.with_slot(self.keys, key, label=label, created_us=now_us)
            return added.without_slot(self.slot)

        record = self._changed(rotated)
        self._key, self.slot = key, record.slots[-1].id
        return record.slots[-1]

    def begin_rekey(self, *, drop_slots: bool) -> None:
        """Give the store a new data key, for all that is saved from now on, unless it just got one.

        Raises:
            Conflict: there are slots that cannot hold it, because what opens them is not at hand (`other_slots`).
            Unsupported: a store has had as many data keys as it can (`keys_used_up`).
        """
        from stepkeep.codec.encryption import MAX_KEYS, with_new_key

        def begun(now: KeyRecord) -> KeyRecord:
            if now.old:
                return now
            others = [slot for slot in now.slots if slot.id != self.slot]
            if others and not drop_slots:
                raise _other_slots(others)
            if now.key >= MAX_KEYS:
                raise Unsupported(
                    f"the store has had {MAX_KEYS} data keys, which is all it can have: copy it into a new one",
                    code="keys_used_up",
                )
            return now.rekeyed(with_new_key(self.keys), self.slot, self._key)

        self._open(self.record())
        self._open(self._changed(begun))

    def finish_rekey(self) -> None:
        """Forget the older data keys: nothing is encrypted with them any more."""
        self._open(self._changed(KeyRecord.without_old, secure=True))

    def _changed(self, change: Callable[[KeyRecord], KeyRecord], *, secure: bool = False) -> KeyRecord:
        before = self.keeper.key_record()
        now = read_record(before or "")
        if now.key != self.keys.newest:
            self.refresh()  # a slot must hold the newest data key
        record = change(now)
        if record != now:
            self.keeper.set_key_record(record.text(), expect=before, secure=secure)
        return record


def _other_slots(slots: Sequence[Slot]) -> Conflict:
    named = ", ".join(f"{slot.id} {slot.label}".strip() for slot in slots)
    return Conflict(
        f"a new data key cannot be put into other slots than the one that opened the store: {named}. Remove them by "
        "`stepkeep key remove`, or all at once with --drop-slots, and add them again afterwards",
        code="other_slots",
        retryable=False,
    )


def has_keys(backend: Backend) -> bool:
    """Whether a store is encrypted, opened or not."""
    return bool(record_of(backend))


def have_same_names(one: Backend, other: Backend) -> bool:
    """Whether one of two encrypted stores began as a copy of the other: they have the same key for names, hence the
    same chains. Their data keys may have changed since."""
    return _record_id(one) == _record_id(other)


def header_for(source: Backend, raw: bytes, destination: Backend) -> bytes:
    """A header of an encrypted store for one that has the same key for names, and perhaps another data key."""
    from stepkeep.storage.encrypted import EncryptedBackend

    assert isinstance(source, EncryptedBackend)
    assert isinstance(destination, EncryptedBackend)
    return source.header_for(raw, destination.cipher)


def with_keys_of(source: Backend, backend: Backend, find_key: FindKey) -> Backend:
    """A store for what comes out of an encrypted one: it has the same keys, or others of its own.

    Raises:
        Conflict: it has sessions that are not encrypted (`store_not_empty`).
    """
    from stepkeep.storage.encrypted import EncryptedBackend, encrypted, without_key

    assert isinstance(source, EncryptedBackend)
    if isinstance(backend, KeepsFiles) or not isinstance(backend, KeepsKeys):
        return unlocked(backend, find_key, encrypt=True)  # which is refused, with the reason
    if backend.key_record() is None:
        backend.set_key_record(record_of(source), expect=None)
    if isinstance(source, Locked):
        return without_key(backend)
    if read_record(backend.key_record() or "").id != _record_id(source):
        return unlocked(backend, find_key)
    return encrypted(backend, source.keyring.over(backend))


def cipher_of(backend: Backend) -> Cipher | None:
    """What encrypts for an open store; None if it is not encrypted."""
    return getattr(backend, "cipher", None)


def cipher_by(record: str, key: Key) -> Cipher:
    """What encrypts for a store that cannot be opened now, but whose key record was noted."""
    from stepkeep.codec.encryption import Cipher

    return Cipher(read_record(record).opened(key)[0])


def record_of(backend: Backend) -> str:
    """The key record of a store; empty if it is not encrypted."""
    keeper = getattr(backend, "inner", backend)
    return (keeper.key_record() or "") if isinstance(keeper, KeepsKeys) else ""


def _record_id(backend: Backend) -> str:
    text = record_of(backend)
    return read_record(text).id if text else ""


def _make_encrypted(backend: KeepsKeys, key: Key, now_us: int) -> None:
    """Make an empty store an encrypted one, unless another process was faster."""
    from stepkeep.codec.encryption import new_keys

    record = new_record(new_keys(), key, label="first", created_us=now_us)
    try:
        backend.set_key_record(record.text(), expect=None)
    except Conflict as exc:
        if exc.code != "keys_changed":
            raise
