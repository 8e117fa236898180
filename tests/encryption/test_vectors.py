"""Known answers: bytes that must stay readable as they are, made once and written down."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from stepkeep.codec.encryption import Cipher, KeySet, hkdf, place
from stepkeep.errors import Corrupt
from stepkeep.storage.key_slots import read_record

KEYS = KeySet(bytes(range(32)), {1: bytes(range(32, 64)), 2: bytes(range(64, 96))})
AT = place("body", "a1b2c3d4e5f60718293a4b5c", "cp_1", "state", "zstd", None, 30, False)
PLAIN = b'{"query":"tides","results":[]}'
DIGEST = "9b6c903c74c2fb4d36e6b18a82a191cc805e8963aecf79854bd5fc5a0820a949"


def test_hkdf_is_that_of_the_standard() -> None:
    """RFC 5869, test cases 1 and 3."""
    made = hkdf(b"\x0b" * 22, salt=bytes(range(13)), info=bytes(range(0xF0, 0xFA)), length=42)
    assert made.hex() == (
        "3cb25f25faacd57a90434f64d0362f2a2d2d0a90cf1a5a4c5db02d56ecc4c5bf34007208d5b887185865"
    )
    made = hkdf(b"\x0b" * 22, salt=b"", info=b"", length=42)
    assert made.hex() == (
        "8da4e775a563c18f715f802a063c5a31b8a11f5c5ee1879ec3454e5f3c738d2d9d201395faa4b61a96c8"
    )


VECTORS = json.loads(Path(__file__).with_name("vectors.json").read_text())


def test_records_decrypt_to_what_they_were_made_of() -> None:
    cipher = Cipher(KEYS)
    assert AT.decode() == VECTORS["place"]
    assert cipher.decrypt(bytes.fromhex(VECTORS["record of key 1"]), AT) == PLAIN
    assert cipher.decrypt(bytes.fromhex(VECTORS["record of key 2"]), AT) == PLAIN
    assert cipher.encrypt_again(PLAIN, AT).hex() == VECTORS["repeatable record"]


def test_a_record_is_bound_to_every_part_of_its_place() -> None:
    cipher, record = Cipher(KEYS), bytes.fromhex(VECTORS["record of key 2"])
    parts = json.loads(AT)
    for at in range(1, len(parts)):
        other = [*parts]
        other[at] = "another"
        with pytest.raises(Corrupt):
            cipher.decrypt(record, place(*other[1:]))
    for cut in range(len(record)):
        with pytest.raises(Corrupt):
            cipher.decrypt(record[:cut], AT)


def test_names_are_what_they_were() -> None:
    cipher, uid = Cipher(KEYS), "a1b2c3d4e5f60718293a4b5c"
    assert cipher.hide(DIGEST, uid) == VECTORS["hidden digest"]
    assert cipher.show(VECTORS["hidden digest"], uid) == DIGEST
    assert cipher.name("external id", "theirs") == VECTORS["name of an external id"]
    assert cipher.commitment(PLAIN, AT) == VECTORS["commitment"]
    with pytest.raises(Corrupt):
        cipher.show(VECTORS["hidden digest"], "b1b2c3d4e5f60718293a4b5c")


def test_a_key_record_opens() -> None:
    """By a secret and by a passphrase."""
    record = read_record(VECTORS["key record"])
    assert record.opened(b"s" * 32)[0] == KEYS
    assert record.opened("correct horse")[0] == KEYS
