"""The cipher of an encrypted store: records bound to their place, and names that tell nothing.

Every record is AES-256-GCM under a key of its own, made by HKDF from the data key and random bytes in front of it. Its
associated data names its place, so that a record which was moved, exchanged or cut does not decrypt. Digests and other
names are keyed: equal ones stay equal, and nobody without the key can test a guess.
"""

from __future__ import annotations

import os
from base64 import b64decode, b64encode, urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Callable
from hashlib import sha256
from typing import Any, Final

import msgspec

from stepkeep import typed
from stepkeep.errors import Corrupt, driver_missing

try:
    from cryptography.exceptions import InvalidTag
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM, AESSIV
except ImportError as exc:
    raise driver_missing("encryption", "crypto", exc) from exc

KEY_BYTES: Final = 32
NONCE_BYTES: Final = 12
_VERSION: Final = 1
_SALT_BYTES: Final = 16
_HEAD_BYTES: Final = 2 + _SALT_BYTES
_RECORD: Final = b"stepkeep record"

_encode = msgspec.json.Encoder().encode


class KeySet(msgspec.Struct, frozen=True):
    """Everything it takes to read and write an encrypted store: the key for names, and the data keys by number."""

    names: bytes
    keys: dict[int, bytes]

    @property
    def newest(self) -> int:
        return max(self.keys)

    def older(self) -> KeySet:
        """Without the newest data key."""
        return KeySet(self.names, {number: key for number, key in self.keys.items() if number != self.newest})

    def current(self) -> KeySet:
        """With the newest data key only."""
        return KeySet(self.names, {self.newest: self.keys[self.newest]})

    def __repr__(self) -> str:
        return f"<KeySet of {len(self.keys)} data keys>"  # keys must not reach a log


MAX_KEYS: Final = 255
"""The number of a data key is one byte."""


def new_keys() -> KeySet:
    return KeySet(os.urandom(KEY_BYTES), {1: os.urandom(KEY_BYTES)})


def with_new_key(keys: KeySet) -> KeySet:
    """The key set with a data key more, which is the newest."""
    return KeySet(keys.names, {**keys.keys, keys.newest + 1: os.urandom(KEY_BYTES)})


def pack_keys(keys: KeySet) -> bytes:
    return _encode(keys)


def unpack_keys(packed: bytes) -> KeySet:
    return typed.from_json(packed, KeySet)


_BLOCK_BYTES: Final = 64
_INNER, _OUTER = (bytes(each ^ pad for each in range(256)) for pad in (0x36, 0x5C))


class _Hmac:
    """HMAC-SHA-256 (RFC 2104) under one key of at most 64 bytes.

    By hand, since every record takes four: OpenSSL spends most of its time on setting each of them up.
    """

    def __init__(self, key: bytes) -> None:
        block = key.ljust(_BLOCK_BYTES, b"\0")
        self._inner, self._outer = block.translate(_INNER), block.translate(_OUTER)

    def __call__(self, message: bytes) -> bytes:
        return sha256(self._outer + sha256(self._inner + message).digest()).digest()


def hkdf(key: bytes, *, salt: bytes, info: bytes, length: int = KEY_BYTES) -> bytes:
    """HKDF-SHA-256 (RFC 5869) with a salt of at most 64 bytes; a record needs two blocks at most."""
    expand = _Hmac(_Hmac(salt)(key))
    first = expand(info + b"\x01")
    if length <= KEY_BYTES:
        return first[:length]
    return (first + expand(first + info + b"\x02"))[:length]


def place(*parts: Any) -> bytes:
    """The associated data of what lies at a place."""
    return _encode((_VERSION, *parts))


def mark_of(key: int) -> bytes:
    """What a record that is encrypted with the data key of that number begins with."""
    return bytes((_VERSION, key))


class Cipher:
    """What a key set can do. Safe for threads.

    `refresh` gives the key set anew, where the store may have got another data key since: it is asked for a record that
    was encrypted with one that is not known here. Keys that were known are not forgotten.
    """

    def __init__(self, keys: KeySet, refresh: Callable[[], KeySet] | None = None) -> None:
        self._names = keys.names
        self._keys = keys.keys
        self._refresh = refresh
        self.newest = keys.newest
        self._siv = AESSIV(hkdf(keys.names, salt=b"", info=b"stepkeep siv", length=2 * KEY_BYTES))
        self._hmac = _Hmac(hkdf(keys.names, salt=b"", info=b"stepkeep hmac"))

    def learn(self, keys: KeySet) -> None:
        """Know these keys too; the newest of them encrypts from now on."""
        self._keys = {**self._keys, **keys.keys}
        self.newest = max(self._keys)

    def outside(self) -> Cipher:
        """What encrypts that which waits outside the store: with a key that stays when the data key changes."""
        return Cipher(KeySet(self._names, {0: hkdf(self._names, salt=b"", info=b"stepkeep outside")}))

    def writes_as(self, other: Cipher) -> bool:
        """Whether both encrypt with the same data key."""
        return self.newest == other.newest and self._keys[self.newest] == other._keys[other.newest]

    def encrypt(self, plain: bytes, at: bytes) -> bytes:
        """The cipher text of a record at a place."""
        return self._encrypted(os.urandom(_SALT_BYTES), plain, at)

    def encrypt_again(self, plain: bytes, at: bytes) -> bytes:
        """The same, so that the same text at the same place has the same cipher text; another one has another key."""
        return self._encrypted(bytes.fromhex(self.commitment(plain, at)), plain, at)

    def _encrypted(self, salt: bytes, plain: bytes, at: bytes) -> bytes:
        number = self.newest
        made = hkdf(self._keys[number], salt=salt, info=_RECORD, length=KEY_BYTES + NONCE_BYTES)
        text = AESGCM(made[:KEY_BYTES]).encrypt(made[KEY_BYTES:], plain, at)
        return mark_of(number) + salt + text

    def decrypt(self, record: bytes, at: bytes) -> bytes:
        """The plain text of a record.

        Raises:
            Corrupt: it is not what was encrypted for this place.
            InvalidInput: it needs a newer data key, which this one's key does not open any more (`key_wrong`).
        """
        if len(record) < _HEAD_BYTES or record[0] != _VERSION:
            raise Corrupt("the record is not encrypted, or cut")
        key = self._keys.get(record[1]) or self._learned(record[1])
        if key is None:
            raise Corrupt(f"the record needs data key {record[1]}, which the store does not have")
        made = hkdf(key, salt=record[2:_HEAD_BYTES], info=_RECORD, length=KEY_BYTES + NONCE_BYTES)
        try:
            return AESGCM(made[:KEY_BYTES]).decrypt(made[KEY_BYTES:], memoryview(record)[_HEAD_BYTES:], at)
        except InvalidTag:
            raise Corrupt("the record is damaged, or was encrypted for another place") from None

    def _learned(self, number: int) -> bytes | None:
        if self._refresh is not None:
            self.learn(self._refresh())
        return self._keys.get(number)

    @property
    def mark(self) -> bytes:
        """What a record that is encrypted with the newest data key begins with."""
        return mark_of(self.newest)

    def is_current(self, record: bytes) -> bool:
        """Whether a record is encrypted with the newest data key."""
        return record.startswith(self.mark)

    def encrypt_text(self, plain: bytes, at: bytes) -> str:
        return b64encode(self.encrypt(plain, at)).decode()

    def hide(self, digest: str, session: str) -> str:
        """A SHA-256 so that only who has the key can tell what it is of; equal ones of a session stay equal."""
        try:
            plain = bytes.fromhex(digest)
        except ValueError:
            plain = digest.encode()  # nothing has such a digest
        return urlsafe_b64encode(self._siv.encrypt(plain or b"\0", [session.encode()])).decode()

    def show(self, hidden: str, session: str) -> str:
        """The SHA-256 again; `Corrupt` when it is not one of this session and store."""
        try:
            return self._siv.decrypt(urlsafe_b64decode(hidden), [session.encode()]).hex()
        except (InvalidTag, ValueError):
            raise Corrupt("a digest is damaged, or of another session") from None

    def name(self, kind: str, text: str) -> str:
        """A text by which something is found, so that only who has the key can tell it."""
        return self._hmac(f"{kind}\0{text}".encode()).hex()

    def commitment(self, plain: bytes, at: bytes) -> str:
        """What a chain value covers instead of a cipher text: it tells nothing, and no other text has it."""
        return self._hmac(at + b"\0" + plain).hex()[:32]


def record_of(text: object) -> bytes:
    """The cipher text in a text; `Corrupt` when it is none."""
    try:
        return b64decode(str(text), validate=True)
    except ValueError:
        raise Corrupt("a field is not encrypted, or damaged") from None


def wrap(key: bytes, plain: bytes, at: bytes) -> bytes:
    """A text under a key that serves for it alone."""
    nonce = os.urandom(NONCE_BYTES)
    return nonce + AESGCM(key).encrypt(nonce, plain, at)


def unwrap(key: bytes, wrapped: bytes, at: bytes) -> bytes:
    """What was wrapped; `Corrupt` when it was not by this key, or not for this place."""
    try:
        return AESGCM(key).decrypt(wrapped[:NONCE_BYTES], wrapped[NONCE_BYTES:], at)
    except (InvalidTag, ValueError):
        raise Corrupt("the key does not fit") from None
