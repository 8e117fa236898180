"""Slots and where keys come from, by the command and in Python."""

from __future__ import annotations

import json
import os
import shlex
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

import stepkeep
from stepkeep.cli.app import stepkeep as command
from stepkeep.errors import BackendUnavailable, Conflict, InvalidInput, NotFound
from tests.encryption.stores_of_encryption import KEY, opened, rows


@pytest.fixture(autouse=True)
def _no_key(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("STEPKEEP_KEY", "STEPKEEP_KEY_FILE", "STEPKEEP_KEY_COMMAND"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "agent.db"


def ran(path: Path, *words: str, input: str | None = None, **environment: str) -> str:
    done = CliRunner(env=environment).invoke(command, ["--store", f"sqlite:{path}", *words], input=input)
    assert done.exit_code == 0, done.output
    return done.stdout


def test_a_store_is_made_opened_and_its_keys_changed_by_the_command(path: Path, tmp_path: Path) -> None:
    """init, list, add, remove, rotate: at each moment those keys open it that are listed, and no other."""
    first, second, third = (tmp_path / name for name in ("first", "second", "third"))
    assert "is encrypted" in ran(path, "key", "init", "--new-file", str(first))
    assert first.stat().st_mode & 0o777 == 0o600
    by_first = {"STEPKEEP_KEY_FILE": str(first)}
    ran(path, "save", "run", "--state", "-", input='{"a": 1}', **by_first)
    added = json.loads(
        ran(path, "key", "add", "--passphrase", "--label", "safe", "--json", input="open\nopen\n", **by_first)
    )
    assert (added["kind"], added["label"]) == ("passphrase", "safe")
    assert json.loads(ran(path, "show", "run", "--json", STEPKEEP_KEY="open"))["state"] == {"a": 1}
    slots = json.loads(ran(path, "key", "list", "--json"))  # needs no key
    assert [(slot["kind"], slot["is_yours"]) for slot in slots] == [("secret", False), ("passphrase", False)]
    ran(path, "key", "remove", added["id"][:6], **by_first)
    with pytest.raises(InvalidInput):
        opened(path, key="open")
    ran(path, "key", "rotate", "--new-file", str(second), **by_first)
    with pytest.raises(InvalidInput):
        opened(path, key=first)
    ran(path, "key", "add", "--command", f"cat {shlex.quote(str(first))}", STEPKEEP_KEY_FILE=str(second))
    shown = ran(path, "show", "run", "--json", STEPKEEP_KEY_COMMAND=f"cat {shlex.quote(str(first))}")
    assert json.loads(shown)["state"] == {"a": 1}
    assert not third.exists()


def test_the_last_slot_stays(path: Path) -> None:
    with opened(path, encrypt=True) as store:
        (slot,) = store.keys.list()
        assert slot.is_yours
        with pytest.raises(Conflict) as error:
            store.keys.remove(slot.id)
        assert error.value.code == "last_slot"
        with pytest.raises(NotFound):
            store.keys.remove("zz")


def test_a_service_wraps_and_unwraps(path: Path) -> None:
    """What it raises is a wrong key; it never sees what is stored."""

    class Service:
        def __init__(self, key: int) -> None:
            self._key = key

        def wrap(self, key: bytes) -> bytes:
            return bytes(each ^ self._key for each in key)

        def unwrap(self, wrapped: bytes) -> bytes:
            if self._key == 0:
                raise RuntimeError("access denied")
            return self.wrap(wrapped)

    with opened(path, key=Service(7), encrypt=True) as store:
        store.session("run").save({"a": 1})
        store.keys.add(KEY)
    for wrong in (Service(9), Service(0)):
        with pytest.raises(InvalidInput) as error:
            opened(path, key=wrong)
        assert error.value.code == "key_wrong"
    for right in (Service(7), KEY):
        with opened(path, key=right) as store:
            assert store.get("run").latest().state == {"a": 1}


def test_weak_secrets_and_broken_commands_are_told(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InvalidInput) as short:
        opened(path, key=b"short", encrypt=True)
    assert short.value.code == "key_too_short"
    with pytest.raises(InvalidInput):
        opened(path, key="", encrypt=True)
    opened(path, encrypt=True).close()
    for broken in ("false", "/nowhere/at/all", "'"):
        monkeypatch.setenv("STEPKEEP_KEY_COMMAND", broken)
        with pytest.raises(BackendUnavailable) as failed:
            stepkeep.open(f"sqlite:{path}")
        assert failed.value.code == "key_unavailable"
    monkeypatch.setenv("STEPKEEP_KEY_FILE", "/nowhere/at/all")
    with pytest.raises(InvalidInput) as missing:
        stepkeep.open(f"sqlite:{path}")
    assert missing.value.code == "key_missing"


def test_a_command_is_not_run_for_a_store_that_is_not_encrypted(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trace = tmp_path / "ran"
    stepkeep.open(f"sqlite:{path}").close()
    monkeypatch.setenv("STEPKEEP_KEY_COMMAND", f"{sys.executable} -c \"open('{trace}', 'w')\"")
    stepkeep.open(f"sqlite:{path}").close()
    assert not trace.exists()


def test_who_changes_the_slots_at_once_loses_nothing(path: Path) -> None:
    """A stale change is refused, and both keys that were added open the store."""
    with opened(path, encrypt=True) as one, opened(path) as other:
        one.keys.add(b"1" * 32)
        other.keys.add(b"2" * 32)
        record = one.engine.backend.inner.key_record()
        with pytest.raises(Conflict) as error:
            one.engine.backend.inner.set_key_record("{}", expect="what it was")
        assert error.value.code == "keys_changed"
        assert other.engine.backend.inner.key_record() == record
    for key in (KEY, b"1" * 32, b"2" * 32):
        opened(path, key=key).close()


def test_no_key_is_in_the_store(path: Path) -> None:
    """Neither the secret of a slot nor the data keys, in any table."""
    secret = os.urandom(32)
    with opened(path, key=secret, encrypt=True) as store:
        keys = store.engine.backend.keyring.keys
        store.session("run").save({"a": 1})
    content = path.read_bytes()
    for each in (secret, keys.names, *keys.keys.values()):
        assert each not in content
        assert each.hex().encode() not in content
    assert len(rows(path, "SELECT value FROM meta WHERE name = 'encryption'")) == 1
