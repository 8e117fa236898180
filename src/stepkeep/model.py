"""The values everything else speaks in: frozen, typed, without I/O."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from functools import lru_cache
from time import time_ns
from typing import Any, Final

import msgspec

from stepkeep.errors import InvalidInput

MAIN_BRANCH: Final = "main"
STATE: Final = "state"
DETAILS: Final = "details"
FILES: Final = "files"
"""The names of a checkpoint's bodies: what was saved, what describes it, and the manifest of project files."""

SHA256: Final = "sha256"
HIDDEN_SHA256: Final = "siv"
"""The kinds of digests in a header; the second one in an encrypted store."""

PHASES: Final = ("observe", "think", "plan", "build", "execute", "verify", "learn")
"""The phases of an agent's work, in their order."""

MAX_NAME_BYTES: Final = 1024
MAX_MESSAGE_BYTES: Final = 64 * 1024
MAX_METADATA_BYTES: Final = 64 * 1024
MAX_TAGS: Final = 256
MAX_SEQ: Final = 2**62


class Status(StrEnum):
    """Where a session, or the work at one checkpoint, stands."""

    IN_PROGRESS = "in_progress"
    PAUSED = "paused"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"

    is_finished: bool

    def __init__(self, text: str) -> None:
        self.is_finished = text in ("completed", "failed", "cancelled")


class TriggerKind(StrEnum):
    AUTO = "auto"
    MANUAL = "manual"
    ERROR = "error"
    TIMER = "timer"


class Trigger(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """Why a checkpoint was saved: the kind, and the event behind it where there is one."""

    kind: TriggerKind = TriggerKind.AUTO
    event: str | None = None


class BranchState(StrEnum):
    OPEN = "open"
    MERGED = "merged"
    ABANDONED = "abandoned"
    ARCHIVED = "archived"


class Content(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """What a body contains, however it is stored: SHA-256, size in bytes, and how the bytes encode a value.

    `first_at` is the position in the value of the key that the bytes have first. Of a list of files, `count` says how
    many it has, and `total_bytes` what they take together.
    """

    digest: str
    size: int
    encoding: str
    first_at: int = 0
    count: int | None = None
    total_bytes: int = 0


class Header(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """The immutable description of one checkpoint. Its bytes are sealed: see `codec.integrity`.

    `secret` and `cipher` are there only while a header of an encrypted store is not decrypted.
    """

    v: int
    id: str
    session: str
    seq: int
    branch: str
    time_us: int
    contents: dict[str, Content]
    parents: tuple[str, ...] = ()
    parent_chains: tuple[str | None, ...] = ()
    external_id: str | None = None
    idempotency_key: str | None = None
    step: int | None = None
    status: Status = Status.IN_PROGRESS
    trigger: Trigger = Trigger()
    message: str = ""
    tags: tuple[str, ...] = ()
    metadata: dict[str, Any] = {}
    requires: tuple[str, ...] = ()
    digests: str = SHA256
    secret: str = ""
    cipher: str = ""
    chain: str = ""

    @property
    def created_at(self) -> datetime:
        return from_us(self.time_us)

    @property
    def size_bytes(self) -> int:
        """The size of all contents, before compression."""
        size = 0
        for content in self.contents.values():
            size += content.size
        return size


class SessionInfo(msgspec.Struct, frozen=True, kw_only=True):
    """One run of an agent or workflow. `uid` names this incarnation; `key` may be reused after deletion.

    `last_seq` and `gaps` belong to the backend: the counter that `seq` comes from, and the closed ranges of
    `seq` that were removed on purpose.
    """

    uid: str
    key: str
    created_us: int
    updated_us: int
    project: str | None = None
    workflow: str | None = None
    profile: str = "standard"
    is_test: bool = False
    status: Status = Status.IN_PROGRESS
    branch: str = MAIN_BRANCH
    finished_us: int | None = None
    error: str | None = None
    policy: dict[str, Any] | None = None
    fingerprint: str | None = None
    metadata: dict[str, Any] = {}
    version: int = 1
    last_seq: int = 0
    gaps: tuple[tuple[int, int], ...] = ()

    @property
    def removed_count(self) -> int:
        """How many checkpoints were removed on purpose."""
        return sum(last - first + 1 for first, last in self.gaps)

    @property
    def stored_count(self) -> int:
        """How many checkpoints it has, without reading them."""
        return self.last_seq - self.removed_count


def missing_numbers(
    stored: Iterable[int], gaps: Iterable[tuple[int, int]], last_seq: int
) -> Iterator[tuple[int, int]]:
    """Closed ranges of numbers up to `last_seq` that are neither stored nor in one of the gaps."""
    expected = 1
    for first, last in sorted([*((seq, seq) for seq in stored), *gaps, (last_seq + 1, last_seq + 1)]):
        if first > last_seq + 1:
            return
        if first > expected:
            yield expected, first - 1
        expected = max(expected, last + 1)


class SessionError(msgspec.Struct, frozen=True, kw_only=True):
    """A session that work on several could not deal with, and why; `session` is None for what concerns them all."""

    session: str | None
    code: str | None
    message: str


class Branch(msgspec.Struct, frozen=True, kw_only=True):
    """A named line of checkpoints. The fork is remembered by id and by place, so that the line can be
    followed back even after the fork point itself was pruned."""

    name: str
    created_us: int
    head: str | None = None
    head_seq: int = 0
    fork: str | None = None
    fork_branch: str | None = None
    fork_seq: int = 0
    state: BranchState = BranchState.OPEN
    is_pinned: bool = True
    metadata: dict[str, Any] = {}


def utc_now_us() -> int:
    return time_ns() // 1000


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def to_us(moment: datetime) -> int:
    """Microseconds since 1970 in UTC, exactly; a moment without zone counts as UTC."""
    aware = moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
    return (aware - _EPOCH) // timedelta(microseconds=1)


def from_us(time_us: int) -> datetime:
    """The moment; of a number that no calendar has, as a hostile store may hold, the nearest one."""
    try:
        return _EPOCH + timedelta(microseconds=time_us)
    except OverflowError:
        return _EPOCH + timedelta(microseconds=within_calendar(time_us))


MIN_TIME_US: Final = -62_135_596_800_000_000
MAX_TIME_US: Final = 253_402_300_799_999_999
"""The first and the last microsecond that a calendar of four-digit years can name."""


def within_calendar(time_us: int) -> int:
    """The nearest time that a calendar has."""
    return min(max(time_us, MIN_TIME_US), MAX_TIME_US)


_ID_ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"  # base32 without letters that read like digits
ID_PAIRS: Final = [first + second for first in _ID_ALPHABET for second in _ID_ALPHABET]
_PUNCTUATION = str.maketrans("", "", "-:.")
_CHECKPOINT_ID: Final = r"cp_\d{8}T\d{12}_[0-9a-hjkmnp-tv-z]{10}"


def id_prefix(time_us: int) -> str:
    """How the id of a checkpoint of that time begins; ids sort like times."""
    seconds, microseconds = divmod(time_us, 1_000_000)
    return f"{_second(seconds)}{microseconds:06}"


@lru_cache(maxsize=4)
def _second(seconds: int) -> str:
    """The same without microseconds: many ids are made in one second."""
    text = from_us(seconds * 1_000_000).isoformat()  # several times faster than strftime
    return "cp_" + text[:19].translate(_PUNCTUATION)


def is_checkpoint_id(text: str) -> bool:
    return re.fullmatch(_CHECKPOINT_ID, text) is not None


def maker_of(checkpoint: str) -> str:
    """The part of a checkpoint's id that stands for the process that made it."""
    return checkpoint[-10:-4]


def new_uid() -> str:
    return os.urandom(12).hex()


def check_name(
    what: str, text: object, least: int = 1, most: int = MAX_NAME_BYTES, code: str = "invalid_name"
) -> str:
    """`text` if it may be a key, branch, tag, external id or idempotency key; the rule is the same everywhere."""
    if not isinstance(text, str):
        raise InvalidInput(f"{what} must be text, not {type(text).__name__}", code=code)
    try:
        size = len(text.encode())
    except UnicodeEncodeError as exc:
        raise InvalidInput(
            f"{what} contains a lone surrogate, which is not text", code="invalid_name"
        ) from exc
    if not least <= size <= most:
        amount = f"{least} to {most}" if least else f"at most {most}"
        raise InvalidInput(f"{what} must have {amount} bytes of UTF-8, not {size}", code=code)
    if "\0" in text:
        raise InvalidInput(f"{what} must not contain a NUL character", code=code)
    return str(text)


# Texts, compiled when a name is checked first: most processes never check one.
_REF_WORDS: Final = r"latest|newest|now|latest[~@].*|\#?\d+|(?:seq|tag|branch):.*|step--?\d+|cp_.*"
_TIME_WORDS: Final = (
    r"(?:today|yesterday)(?:\s.*)?|.*\sago|\d{1,2}:\d\d(?::\d\d.*)?|\d{4,}-\d\d-\d\d(?:[T\s]\d.*)?"
    r"|\d{8}(?:[T\s]\d.*)?|\d{4}-?W\d\d.*"
)


def check_branch_name(name: object) -> str:
    """`name` if a user may give it to a branch: a name, and none that reads like a ref or a time.

    Stored branches may have any name; what comes from a user must stay apart from what names a checkpoint.
    """
    if name == MAIN_BRANCH:
        return MAIN_BRANCH
    text = check_name("a branch", name)
    if re.fullmatch(f"{_REF_WORDS}|{_TIME_WORDS}", text, re.IGNORECASE | re.DOTALL):
        raise InvalidInput(
            f"{text[:80]!r} cannot be the name of a branch: it reads like a checkpoint's ref",
            code="reserved_name",
            branch=text,
        )
    return text


def check_text(what: str, text: object, limit: int = MAX_MESSAGE_BYTES) -> str:
    """`text` if it may be a message: any Unicode text within the limit, also empty."""
    return check_name(what, text, 0, limit, "invalid_text")


def check_metadata(what: str, encoded_size: int) -> None:
    """Refuse metadata that would make listing slow."""
    if encoded_size > MAX_METADATA_BYTES:
        raise InvalidInput(
            f"{what} must encode to at most {MAX_METADATA_BYTES} bytes, not {encoded_size}: "
            "put large values into the state",
            code="metadata_too_large",
        )
