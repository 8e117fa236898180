"""Which project's files the user trusts to name a store: remembered by path and content, as `direnv allow` does.

A file that comes with a clone could send every state, and the password in the environment, to a stranger's server.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Final

import msgspec

from stepkeep.config.settings import AnyPath, inspect, user_file
from stepkeep.errors import BackendUnavailable, InvalidInput, NotFound
from stepkeep.storage.urls import database_name, directory_of
from stepkeep.yaml_lines import read_text

LIST: Final = "trusted"
"""The file with what is trusted, beside the user's own configuration: a digest and a path per line."""


class Trusted(msgspec.Struct, frozen=True, kw_only=True):
    """The project's file that is trusted as it is now, and the store it names. `is_new`: it was not trusted before."""

    file: str
    store: str | None
    is_new: bool


def trust(folder: AnyPath | None = None) -> Trusted:
    """Trust the project's file that holds in a folder, the working directory unless given, until it changes.

    Raises:
        NotFound: there is no such file (`config_not_found`).
        InvalidInput: it makes no sense (`invalid_config`).
        BackendUnavailable: the list of trusted files cannot be written.
    """
    from stepkeep.config.schema import text_of

    path = user_file()
    settings, problems = inspect(cwd=Path.cwd() if folder is None else folder, environ={}, user_path=path)
    file, store = settings.project_file, settings.given.get("store")
    if file is None:
        raise NotFound("no stepkeep.yaml in this folder or above it", code="config_not_found")
    if problems:
        raise InvalidInput(f"bad configuration: {problems[0].text}", code="invalid_config")
    text = read_text(file)
    is_new = not is_trusted_file(file, text, user_path=path)
    if is_new:
        _remember(f"{_digest(file, text)} {json.dumps(file)}\n", Path(path).with_name(LIST))
    is_projects = store is not None and store.origin.layer == "project"
    return Trusted(file=file, store=text_of(store) if store and is_projects else None, is_new=is_new)


def is_trusted_file(path: str, text: str, *, user_path: AnyPath | None) -> bool:
    """Whether the user trusted the file at that path with exactly this text."""
    if user_path is None:
        return False
    try:
        with Path(user_path).with_name(LIST).open(encoding="utf-8") as lines:
            return _digest(path, text) in {line.partition(" ")[0] for line in lines}
    except (OSError, UnicodeDecodeError):
        return False


def is_inside(url: str, folder: AnyPath) -> bool:
    """Whether a store lies below a folder, wherever links lead."""
    place = database_name(url) or directory_of(url)
    if place is None:
        return False  # of one in memory nothing stays, and on a server is everything of it elsewhere
    return Path(folder).resolve() in Path(place).resolve().parents


def _digest(path: str, text: str) -> str:
    return hashlib.sha256(f"{Path(path).resolve()}\0{text}".encode("utf-8", "surrogateescape")).hexdigest()


def _remember(line: str, file: Path) -> None:
    try:
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        file.touch(mode=0o600)
        with file.open("a", encoding="utf-8") as lines:
            lines.write(line)
    except OSError as exc:
        raise BackendUnavailable(
            f"the list of trusted files cannot be written: {exc}", code="settings_not_writable"
        ) from exc
