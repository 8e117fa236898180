"""Backups that only the holder of a key can read, and that the command `age` opens."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pyrage
import pytest

import stepkeep
from stepkeep import api
from stepkeep.errors import Corrupt, InvalidInput
from tests import interpreter
from tests.needed import missing

MARKER = "a text that nobody else may read"


@pytest.fixture
def key(tmp_path: Path) -> tuple[str, Path]:
    """The public key, and the file with the secret one, as `age-keygen` writes it."""
    identity = pyrage.x25519.Identity.generate()
    file = tmp_path / "key.txt"
    file.write_text(f"# created: 2026-01-01\n# public key: {identity.to_public()}\n{identity}\n")
    return str(identity.to_public()), file


@pytest.fixture
def url(tmp_path: Path) -> str:
    with stepkeep.open(tmp_path / "a.db") as store:
        for number in range(5):
            store.session("s").save({"n": number, "text": MARKER})
    return f"sqlite:{tmp_path / 'a.db'}"


def states(path: Path) -> list[object]:
    with stepkeep.open(path) as store:
        return [store.get("s").load(header.id).state for header in store.get("s").history()]


def test_it_comes_back_with_its_key_only(url: str, key: tuple[str, Path], tmp_path: Path) -> None:
    """By the commands: without the key, or with another one, it is refused with a code, and nothing is written."""
    folder = tmp_path / "backups"
    folder.mkdir()
    done = interpreter.stepkeep(
        "backup", str(folder), "--recipient", key[0], "--keep-last", "2", "--store", url
    )
    assert done.returncode == 0, done.stderr
    assert "encrypted for 1 key" in done.stdout
    (made,) = folder.iterdir()
    assert made.name.endswith(".db.age")
    assert made.stat().st_mode & 0o777 == 0o600
    assert MARKER.encode() not in made.read_bytes()
    other = tmp_path / "other.txt"
    other.write_text(str(pyrage.x25519.Identity.generate()))
    target = f"sqlite:{tmp_path / 'b.db'}"
    for words, code in (
        ((), "identity_needed"),
        (("--identity", str(other)), "wrong_identity"),
        (("--identity", str(made)), "invalid_identity"),
        (("--identity", str(tmp_path / "none")), "invalid_identity"),
    ):
        refused = interpreter.stepkeep("restore-backup", str(made), *words, "--store", target, "--json")
        assert (refused.returncode, code in refused.stderr) == (2, True), refused.stderr
    assert not (tmp_path / "b.db").exists()
    done = interpreter.stepkeep("restore-backup", str(made), "--identity", str(key[1]), "--store", target)
    assert done.returncode == 0, done.stderr
    assert states(tmp_path / "b.db") == states(tmp_path / "a.db")


def test_the_command_age_opens_it(url: str, key: tuple[str, Path], tmp_path: Path) -> None:
    """What is inside is a store; and what `age` encrypted can be restored."""
    age = shutil.which("age")
    if age is None:
        missing("the command age is not here")
    with stepkeep.open(url) as store:
        store.backup(tmp_path / "b.age", recipients=[key[0]])
        store.backup(tmp_path / "plain.db")
    subprocess.run(
        [age, "-d", "-i", str(key[1]), "-o", str(tmp_path / "b.db"), str(tmp_path / "b.age")], check=True
    )
    assert states(tmp_path / "b.db") == states(tmp_path / "a.db")
    subprocess.run([age, "-r", key[0], "-o", str(tmp_path / "c.age"), str(tmp_path / "plain.db")], check=True)
    api.restore_backup(tmp_path / "c.age", f"sqlite:{tmp_path / 'c.db'}", identity=key[1])
    assert states(tmp_path / "c.db") == states(tmp_path / "a.db")


@pytest.mark.parametrize("harm", ["cut", "header", "changed"])
def test_a_damaged_one_is_refused(url: str, key: tuple[str, Path], tmp_path: Path, harm: str) -> None:
    """One that was cut or changed is told as damaged, and the store at the destination stays."""
    file = tmp_path / "b.age"
    with stepkeep.open(url) as store:
        store.backup(file, recipients=[key[0]])
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= harm == "changed"
    end = {"cut": len(content) - 100, "header": 60, "changed": len(content)}[harm]
    file.write_bytes(content[:end])
    with pytest.raises(Corrupt) as refused:
        api.restore_backup(file, url, identity=key[1], force=True)
    assert refused.value.code == "backup_damaged"
    assert len(states(tmp_path / "a.db")) == 5


@pytest.mark.parametrize("text", ["age1nonsense", "someone@example.org", "AGE-SECRET-KEY-1QQQQ"])
def test_what_is_no_public_key_is_refused_before_anything_is_written(
    url: str, tmp_path: Path, text: str
) -> None:
    """A secret key that was given by mistake is not repeated in the message."""
    with stepkeep.open(url) as store, pytest.raises(InvalidInput) as refused:
        store.backup(tmp_path / "b.age", recipients=[text])
    assert refused.value.code == "invalid_recipient"
    assert ("AGE-SECRET" in str(refused.value)) is False
    assert not (tmp_path / "b.age").exists()


def test_nothing_in_clear_lies_at_the_destination(
    url: str, key: tuple[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The store is written in clear to the temporary directory only, for its owner, and is gone afterwards."""
    work, folder = tmp_path / "work", tmp_path / "backups"
    work.mkdir()
    folder.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(work))
    seen: list[bytes] = []

    def look(_: float) -> None:
        seen.extend(path.read_bytes() for path in folder.iterdir())

    with stepkeep.open(url) as store:
        store.backup(folder, recipients=[key[0]], progress=look)
    assert not any(MARKER.encode() in content for content in seen)
    assert list(work.iterdir()) == []


def test_a_key_of_ssh_does_as_well(url: str, tmp_path: Path) -> None:
    """As with the command: whoever has the private key of SSH can read it."""
    if shutil.which("ssh-keygen") is None:
        pytest.skip("ssh-keygen is not here")
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(tmp_path / "id")], check=True)
    with stepkeep.open(url) as store:
        store.backup(tmp_path / "b.age", recipients=[(tmp_path / "id.pub").read_text()])
    api.restore_backup(tmp_path / "b.age", f"sqlite:{tmp_path / 'b.db'}", identity=tmp_path / "id")
    assert states(tmp_path / "b.db") == states(tmp_path / "a.db")
