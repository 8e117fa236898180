"""Backups that only the holder of a key can read: files that the command `age` opens as well (extra `age`)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from stepkeep.errors import Corrupt, InvalidInput, driver_missing

ENDING: Final = ".age"
_FIRST_LINE: Final = b"age-encryption.org/v1\n"


def _pyrage() -> Any:
    try:
        import pyrage
    except ImportError as exc:
        raise driver_missing("an encrypted backup", "age", exc) from exc
    return pyrage


def is_encrypted(file: Path) -> bool:
    with file.open("rb") as source:
        return source.read(len(_FIRST_LINE)) == _FIRST_LINE


class Recipients:
    """Who can read a backup: public keys, `age1…` or those of SSH.

    Raises:
        InvalidInput: one of them is not a public key. Unsupported: the extra is missing.
    """

    def __init__(self, texts: Sequence[str]) -> None:
        self._pyrage = _pyrage()
        self._keys = [self._key(text.strip()) for text in texts]

    def _key(self, text: str) -> Any:
        kind = self._pyrage.ssh if text.startswith("ssh-") else self._pyrage.x25519
        try:
            return kind.Recipient.from_str(text)
        except self._pyrage.RecipientError as exc:
            hint = "; this is a secret key, give its public one" if text.startswith("AGE-SECRET-KEY-") else ""
            shown = "" if hint else f" {text!r}"
            raise InvalidInput(
                f"{shown.strip() or 'this'} is no public key of age (age1… or ssh-ed25519 …){hint}",
                code="invalid_recipient",
            ) from exc

    def encrypt(self, source: Path, target: Path) -> None:
        """Write a new file, for its owner only."""
        target.touch(mode=0o600, exist_ok=False)
        try:
            self._pyrage.encrypt_file(str(source), str(target), self._keys)
        except self._pyrage.EncryptError as exc:  # of the disk: the keys were checked
            raise OSError(str(exc)) from exc


def decrypt(source: Path, target: Path, identity: Path | None, *, name: str) -> None:
    """Write what an encrypted file holds to a new one; `name` is how errors call it.

    Raises:
        InvalidInput: no identity was given, or it cannot be read, or is not one of those that it was encrypted for.
        Corrupt: the file was changed or cut.
    """
    if identity is None:
        raise InvalidInput(
            f"{name} is encrypted: name the file with its key by --identity", code="identity_needed"
        )
    pyrage = _pyrage()
    target.touch(mode=0o600, exist_ok=False)
    try:
        pyrage.decrypt_file(str(source), str(target), _identities(pyrage, identity))
    except (pyrage.DecryptError, OSError) as exc:
        if isinstance(exc, OSError) and exc.errno is not None:
            raise  # of the disk
        if "No matching keys" in str(exc):
            raise InvalidInput(
                f"{name} was not encrypted for the key in {identity}", code="wrong_identity"
            ) from exc
        raise Corrupt(f"{name} cannot be decrypted: {exc}", code="backup_damaged") from exc


def _identities(pyrage: Any, file: Path) -> list[Any]:
    try:
        content = file.read_bytes()
        if b"PRIVATE KEY-----" in content:
            return [pyrage.ssh.Identity.from_buffer(content)]
        lines = [line.strip() for line in content.decode().splitlines()]
        found = [pyrage.x25519.Identity.from_str(line) for line in lines if line and not line.startswith("#")]
    except (OSError, ValueError, pyrage.IdentityError) as exc:
        reason = getattr(exc, "strerror", None) or exc
        raise InvalidInput(
            f"{file} is not a file with a key of age: {reason}", code="invalid_identity"
        ) from exc
    if not found:
        raise InvalidInput(f"{file} has no key of age in it", code="invalid_identity")
    return found
