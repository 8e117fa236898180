"""Every name in a store of files, for writers and readers alike. Pure: nothing here touches a disk.

Keys and ids are free text. A name is made from them by `safe_name` alone, so nothing that anyone saved can lead
out of the store, fold together with another name, or be one that a file system refuses (V10).
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Iterator
from itertools import count
from typing import Final

from stepkeep.codec.integrity import digest
from stepkeep.codec.readable import Layout, phase_of, timestamp
from stepkeep.model import Header

SIDECAR: Final = ".stepkeep"
INDEX: Final = "index.db"
INTENT: Final = "intent"
REBUILD: Final = "rebuild"
HISTORY: Final = "history"

PLAIN: Final = ".json"
GZIP: Final = ".json.gz"
CHECKSUM: Final = ".sha256"
"""What follows the name of a compressed document to name the file with the digest of its bytes."""

_TEMPORARY: Final = ".tmp-"
_MAX_CHARS: Final = 120
_SLUG_CHARS: Final = 40
_DIGEST_CHARS: Final = 20

# Lower case only: file systems that fold case must not see one name where there are two keys.
_PLAIN_NAME: Final = re.compile(r"[a-z0-9_](?:[a-z0-9._-]*[a-z0-9_-])?")
_OTHER: Final = re.compile(r"[^a-z0-9]+")
_DEVICES: Final = frozenset(
    [
        "con",
        "prn",
        "aux",
        "nul",
        "conin$",
        "conout$",
        *(f"{port}{n}" for port in ("com", "lpt") for n in range(10)),
    ]
)

# An id of ours has capital letters in its time, and nothing that folds with another id.
_ID: Final = re.compile(r"cp_\d{8}T\d{12}_[0-9a-z]{1,32}")
_FOLDED_ID: Final = re.compile(r"cp_\d{8}t\d{12}_.*")


def safe_name(text: str) -> str:
    """A file name for any text: the text itself where it is harmless, else a readable part and a digest.

    Two texts never have the same name, also where case is folded. No name is longer than 200 bytes, begins with a
    dot or a dash, ends with a dot, or is a device.
    """
    is_harmless = len(text) <= _MAX_CHARS and text.split(".", 1)[0] not in _DEVICES
    is_plain = _PLAIN_NAME.fullmatch(text) and not _FOLDED_ID.fullmatch(text)
    if is_harmless and (is_plain or _ID.fullmatch(text)):
        return text
    return f"{slug(text) or 'x'}~{digest(text.encode('utf-8', 'surrogatepass'))[:_DIGEST_CHARS]}"


def slug(text: str) -> str:
    """The letters and digits of a text, in small letters, joined by dashes."""
    return _OTHER.sub("-", text.lower()).strip("-")[:_SLUG_CHARS].strip("-")


def temporary_name(token: str) -> str:
    return _TEMPORARY + token


def is_temporary(name: str) -> bool:
    return name.startswith(_TEMPORARY)


def is_document(name: str) -> bool:
    """Whether a name may be that of a document, plain or compressed."""
    return name.endswith((PLAIN, GZIP)) and not name.startswith(".")


def compressed(file: str) -> str:
    """The name of the compressed form of a plain document."""
    return file.removesuffix(PLAIN) + GZIP


def plain(file: str) -> str:
    """The name of the plain form of a document."""
    return file.removesuffix(GZIP) + PLAIN if file.endswith(GZIP) else file


class Names(ABC):
    """The locations of one layout. They are relative to the root, with `/` between their parts."""

    layout: Layout
    top: str
    pointer = ""
    """The file that shows the newest checkpoint of a session; empty where there is none."""
    has_folders = True
    """Whether each session has a folder of its own, with its history inside."""

    def folder(self, key: str) -> str:
        """Where a session lives."""
        return f"{self.top}/{safe_name(key)}" if self.has_folders else self.top

    def history(self, key: str) -> str:
        """Where the documents of a session that are not the pointer lie."""
        return f"{self.folder(key)}/{HISTORY}" if self.has_folders else self.top

    def history_of_folder(self, folder: str) -> str:
        """The history folder inside a session's folder, where there is one."""
        return f"{folder}/{HISTORY}"

    def is_pointer(self, file: str) -> bool:
        return self.pointer != "" and file.endswith(f"/{self.pointer}") and file.count("/") == 2

    @abstractmethod
    def is_history(self, name: str) -> bool:
        """Whether a file of this name may be a checkpoint in the history."""

    def names(self, header: Header) -> Iterator[str]:
        """Names for a document in the history, the best one first, without end."""
        bare, more = self._bare(header), self._suffix(header)
        yield bare + PLAIN
        yield f"{bare}-{more}{PLAIN}"
        for number in count(2):
            yield f"{bare}-{more}-{number}{PLAIN}"

    @abstractmethod
    def _bare(self, header: Header) -> str:
        """The name that the specification gives, without its ending."""

    def _suffix(self, header: Header) -> str:
        """What tells two checkpoints with the same bare name apart."""
        return str(header.seq)


class WorkflowNames(Names):
    """`sessions/ID/checkpoint.json`, and `history/checkpoint-YYYYMMDD-HHMMSS.json`, with the number on collision."""

    layout = Layout.WORKFLOW
    top = "sessions"
    pointer = "checkpoint.json"
    _history = re.compile(r"checkpoint-\d{8}-\d{6}(?:-[A-Za-z0-9_.~-]+)?\.json(?:\.gz)?")

    def is_history(self, name: str) -> bool:
        return self._history.fullmatch(name) is not None

    def _bare(self, header: Header) -> str:
        return f"checkpoint-{second_of(header.time_us)}"


class RunNames(Names):
    """`checkpoints/RUN/latest.json`, and `history/SNAPSHOT.json`."""

    layout = Layout.RUN
    top = "checkpoints"
    pointer = "latest.json"

    def is_history(self, name: str) -> bool:
        return is_document(name)

    def _bare(self, header: Header) -> str:
        return safe_name(header.id)


class PhaseNames(Names):
    """`checkpoints/ckpt-TIMESTAMP-PHASE.json`, all in one folder, with the end of the id on collision."""

    layout = Layout.PHASE
    top = "checkpoints"
    has_folders = False

    def is_history(self, name: str) -> bool:
        return name.startswith("ckpt-") and is_document(name)

    def _bare(self, header: Header) -> str:
        moment = timestamp(header.time_us).translate(str.maketrans("", "", "-:."))
        return f"ckpt-{moment}-{slug(phase_of(header)) or 'phase'}"

    def _suffix(self, header: Header) -> str:
        return safe_name(header.id.rsplit("_", 1)[-1])


def found_names(pointer: str, time_us: int) -> Iterator[str]:
    """Names in the history for a pointer that is not ours, the best one first, without end."""
    bare = f"{pointer.removesuffix(PLAIN)}-{second_of(time_us)}-found"
    yield bare + PLAIN
    for number in count(2):
        yield f"{bare}-{number}{PLAIN}"


def second_of(time_us: int) -> str:
    """`YYYYMMDD-HHMMSS` in UTC."""
    text = timestamp(time_us)
    return text[:10].replace("-", "") + "-" + text[11:19].replace(":", "")


NAMES: Final[dict[Layout, Names]] = {
    names.layout: names for names in (WorkflowNames(), RunNames(), PhaseNames())
}
