"""What git's settings say about a repository, remembered for as long as the files they come from look the same."""

from __future__ import annotations

import os
import stat
from collections import OrderedDict
from collections.abc import Hashable, Iterable, Mapping
from pathlib import Path
from typing import Final, TypeAlias

import msgspec

from stepkeep.workspace.looks import look_of

ENVIRON: Final = ("HOME", "XDG_CONFIG_HOME")
"""Variables that say where settings are."""

REMEMBERED: Final = 16
YOUNG_NS: Final = 2_000_000_000
"""A file that is younger could change once more without a trace."""

_FALSE: Final = frozenset({b"false", b"no", b"off", b"0"})

Watched: TypeAlias = tuple[tuple[Path, tuple[int, ...] | None], ...]
"""Files, and how each looks, None for one that is not there."""


class Place(msgspec.Struct, frozen=True, kw_only=True):
    """Where a workspace is in its repository, which ignore files hold everywhere, and how filters are switched off.

    With `is_sparse` perhaps not all that is tracked is checked out.
    """

    prefix: str
    is_sparse: bool
    excludes: tuple[Path, ...]
    without: tuple[tuple[str, str], ...]
    watched: Watched | None

    def is_as_watched(self) -> bool:
        return self.watched is not None and all(_look(path) == look for path, look in self.watched)


class Settings:
    """The settings that git lists, with their origins."""

    def __init__(self, listed: bytes) -> None:
        words = listed.split(b"\0")
        origins, records = words[:-1:2], [record.partition(b"\n") for record in words[1::2]]
        self.files = [os.fsdecode(each[5:]) for each in dict.fromkeys(origins) if each.startswith(b"file:")]
        self.values = {name.decode("utf-8", "replace"): value for name, _, value in records}

    @property
    def includes(self) -> bool:
        return any(name.startswith(("include.", "includeif.")) for name in self.values)

    @property
    def is_sparse(self) -> bool:
        return self.values.get("core.sparsecheckout", b"false").lower() not in _FALSE

    def without_filters(self) -> tuple[tuple[str, str], ...]:
        """The settings, names and values, with which no filter is started."""
        names = {name[7:].rpartition(".")[0] for name in self.values if name.startswith("filter.")}
        off = {"clean": "", "smudge": "", "process": "", "required": "false"}
        return tuple((f"filter.{name}.{key}", value) for name in sorted(names) for key, value in off.items())


def config_files(environ: Mapping[str, str]) -> tuple[Path, ...]:
    """Where settings of the user and of the machine may come to be."""
    home = Path(environ.get("HOME", ""))
    return Path("/etc/gitconfig"), home / ".gitconfig", _xdg(environ) / "git" / "config"


def default_excludes(environ: Mapping[str, str]) -> Path:
    return _xdg(environ) / "git" / "ignore"


def _xdg(environ: Mapping[str, str]) -> Path:
    return Path(environ.get("XDG_CONFIG_HOME") or Path(environ.get("HOME", ""), ".config"))


def watched(files: Iterable[Path], *, before_ns: int) -> Watched | None:
    """How files look; None if one was so young at that time that its look proves nothing."""
    looks = tuple((path, _look(path)) for path in dict.fromkeys(files))
    is_young = any(look is not None and max(look[:2]) + YOUNG_NS > before_ns for _, look in looks)
    return None if is_young else looks


def _look(path: Path) -> tuple[int, ...] | None:
    try:
        status = path.stat()
    except OSError:
        return None
    if stat.S_ISDIR(status.st_mode):
        return 0, 0, status.st_ino, status.st_mode, status.st_uid  # its times tell of what is in it
    return *look_of(status), status.st_uid


_places: OrderedDict[Hashable, Place] = OrderedDict()


def known_place(key: Hashable) -> Place | None:
    """What is remembered, if it still holds."""
    place = _places.get(key)
    return place if place is not None and place.is_as_watched() else None


def remember_place(key: Hashable, place: Place | None) -> Place | None:
    if place is None or place.watched is None:
        _places.pop(key, None)
        return place
    _places[key] = place
    _places.move_to_end(key)
    while len(_places) > REMEMBERED:
        _places.popitem(last=False)
    return place
