"""The storage port: the promises every backend keeps.

A backend stores records and gives them back. It knows nothing of states, compression or retention: bodies and
blobs arrive encoded, headers arrive sealed, and what to remove is decided above. Rows come back raw; the engine
judges whether they are intact, so that damage is treated in one place.

Promises common to all methods:

- Writes are atomic and durable when the method returns (V1, V2); on an exception nothing of the call is stored.
- All methods may be called from any thread, and again after a fork.
- A method that takes `fence` raises `Conflict` (code `lease_lost`) unless it is the session's current lease
  token. Without a fence nothing is checked.
- A `uid` that names no session, or a deleted incarnation, is `NotFound`.
- Driver errors never escape: they become errors of `stepkeep.errors`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from enum import Enum
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias, runtime_checkable

import msgspec

from stepkeep.codec.delta import Body as Body
from stepkeep.codec.delta import BodyInfo as BodyInfo
from stepkeep.errors import StepkeepError
from stepkeep.model import Branch, Header, SessionInfo, Status
from stepkeep.processes import Owner

if TYPE_CHECKING:
    from pathlib import Path

ANY_HEAD: Final = "*"
"""Whatever the branch's head is: as `expect_head` it matches, as the head of a record to set it stays."""

MAX_EVENTS: Final = 1000
LOST: Final = "checkpoints_lost"
REBUILT: Final = "session_rebuilt"
"""The events that tell which numbers (`seqs`) a recovery could not bring over, and of which a rebuilt index does not
know whether they were removed."""

"""How many events a session keeps; older ones go first."""

REPEATABLE: Final = frozenset({"base_gone", "blob_gone", "branch_switched", "predecessor_refused"})
"""Codes of refusals that only mean: others worked on this session meanwhile, send it again standing alone."""

Seal: TypeAlias = Callable[[Header, int, Sequence[str], Sequence[str | None]], bytes]
"""(draft, seq, parents, parent_chains) -> header bytes."""

Target: TypeAlias = str | tuple[str, str]
Kind: TypeAlias = str | int
"""What an annotation is about: a checkpoint id, or a (branch, external id) that may still have to come."""


# --- records ---------------------------------------------------------------------------------------------------


class Blob(msgspec.Struct, frozen=True, kw_only=True):
    """Content-addressed bytes, stored once over all sessions. `digest` names the content, `stored_digest` the bytes."""

    digest: str
    size: int
    codec: str
    stored_digest: str
    data: bytes


class BlobSize(msgspec.Struct, frozen=True):
    """The bytes that a blob takes, and whether bodies of other sessions name it too."""

    stored_size: int
    is_shared: bool


class HeaderRow(msgspec.Struct, frozen=True, kw_only=True):
    """A stored header as found: where it belongs, and the sealed bytes, unverified.

    `problem` is why a backend that reads headers out of documents has no bytes to give, or why they cannot be
    decrypted. `opened` is the header of an encrypted store, decrypted and verified.
    """

    id: str
    session: str
    seq: int
    branch: str
    raw: bytes
    problem: StepkeepError | None = None
    opened: bytes = b""


class Inconsistency(msgspec.Struct, frozen=True):
    """Something that `verify` reports beside damaged headers, bodies and blobs.

    `location` is the checkpoint, or the session or file where none is known.
    """

    location: str
    message: str
    code: str = "index_damaged"


class Append(msgspec.Struct, frozen=True, kw_only=True):
    """One checkpoint to store. `draft` is its header but for `seq`, parents and chain, which storing it decides.

    `parents` None means the branch's head at that moment. `expect_head` is the compare-and-set; None means a branch
    without head. With `on_current` the draft's branch must be the session's current one.
    """

    draft: Header
    bodies: tuple[Body, ...]
    blobs: tuple[Blob, ...] = ()
    parents: tuple[str, ...] | None = None
    expect_head: str | None = ANY_HEAD
    fence: int | None = None
    on_current: bool = False


class Appended(msgspec.Struct, frozen=True, kw_only=True):
    """What `append` stored, or the original when its idempotency key was already there."""

    row: HeaderRow
    is_new: bool


class StoredHead(msgspec.Struct, frozen=True, kw_only=True):
    """The newest checkpoint of a branch as found: its session, its header, and the chain of records of each body."""

    session: SessionInfo
    row: HeaderRow
    chains: dict[str, list[Body]]


class Unchanged(Enum):
    """The head is the checkpoint that the caller knows, and nobody wrote anything since this backend stored it."""

    UNCHANGED = "unchanged"


UNCHANGED: Final = Unchanged.UNCHANGED


class HeaderQuery(msgspec.Struct, frozen=True, kw_only=True):
    """Which headers, in which order. Conditions unite with *and*.

    Within a session the order is by `seq`, across sessions by id, which begins with the time. `after` continues
    behind a header: (seq, id) within a session, (time_us, id) across.
    """

    session: str | None = None
    project: str | None = None
    branch: str | None = None
    ids: tuple[str, ...] | None = None
    id_prefix: str | None = None
    external_id: str | None = None
    step: int | None = None
    status: Status | None = None
    tag: str | None = None
    min_seq: int | None = None
    max_seq: int | None = None
    since_us: int | None = None
    until_us: int | None = None
    newest_first: bool = True
    limit: int | None = None
    after: tuple[int, str] | None = None


class SessionQuery(msgspec.Struct, frozen=True, kw_only=True):
    """Which sessions, most recently updated first. `after` is the (updated_us, uid) to continue behind."""

    project: str | None = None
    workflow: str | None = None
    statuses: tuple[Status, ...] | None = None
    key_prefix: str | None = None
    updated_before_us: int | None = None
    limit: int | None = None
    after: tuple[int, str] | None = None


class Annotation(msgspec.Struct, frozen=True, kw_only=True):
    """Keyed bytes about a checkpoint. `digest` is over `data`, unverified on reading."""

    target: Target
    kind: str
    name: str
    data: bytes
    time_us: int
    digest: str


class Event(msgspec.Struct, frozen=True, kw_only=True):
    """Something that happened to a session."""

    number: int
    time_us: int
    type: str
    data: dict[str, Any] = {}


class Lease(msgspec.Struct, frozen=True, kw_only=True):
    """The right to run a session. `token` only ever grows; a stale one is refused as `fence`."""

    token: int
    owner: Owner
    expires_us: int


class Removed(msgspec.Struct, frozen=True, kw_only=True):
    """What `remove` did: `refused` are ids that must stay, and `missing` those not there."""

    removed: tuple[str, ...] = ()
    refused: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    stored_bytes: int = 0


class Swept(msgspec.Struct, frozen=True, kw_only=True):
    """What one sweep removed; `has_more` when its limit stopped it."""

    bodies: int = 0
    blobs: int = 0
    annotations: int = 0
    stored_bytes: int = 0
    has_more: bool = False


class Usage(msgspec.Struct, frozen=True, kw_only=True):
    """Counts and bytes of a session or a store. `hidden_*` are pruned bodies that others still need."""

    sessions: int = 0
    checkpoints: int = 0
    bodies: int = 0
    body_bytes: int = 0
    hidden_bodies: int = 0
    hidden_bytes: int = 0
    blobs: int = 0
    blob_bytes: int = 0
    store_bytes: int = 0


class Capabilities(msgspec.Struct, frozen=True, kw_only=True):
    """What must be known about a backend: whether a body may be a delta, which profile new sessions have for which
    nobody names one, and whether savers of all sessions wait for one lock."""

    takes_deltas: bool = True
    has_one_writer: bool = True
    profile: str | None = None


# --- the protocols ---------------------------------------------------------------------------------------------


class Sessions(Protocol):
    """Sessions and branches."""

    def create_session(self, session: SessionInfo) -> SessionInfo:
        """Store a new session, with the branch it is on, empty.

        Raises:
            Conflict: a session with that key or uid exists.
        """

    def session(self, uid: str) -> SessionInfo:
        """The session of this incarnation. A damaged record is rebuilt from the headers, or it is `Corrupt`."""

    def session_by_key(self, key: str) -> SessionInfo | None:
        """The living session with that key."""

    def sessions(self, query: SessionQuery) -> Iterator[SessionInfo]:
        """Sessions, most recently updated first, read page by page without holding a transaction between pages."""

    def update_session(
        self,
        uid: str,
        changes: dict[str, Any],
        *,
        expect_version: int | None = None,
        fence: int | None = None,
    ) -> SessionInfo:
        """Change fields of a session and raise its version. Identity, counter and gaps cannot be changed.

        Raises:
            Conflict: `expect_version` was given and is not the session's version.
            NotFound: `changes` name a current branch that does not exist.
        """

    def delete_session(
        self, uid: str, *, secure: bool = False, fence: int | None = None, expect: SessionInfo | None = None
    ) -> None:
        """Remove a session with all that belongs to it; blobs are left to `sweep`. `secure` overwrites the bytes.

        With `expect` it goes only if it is still exactly that, and nobody runs it.

        Raises:
            Conflict: `expect` was given, and the stored session differs from it (code `session_changed`), or
                another holds its lease, not expired (code `lease_held`). Nothing is removed.
        """

    def delete_sessions(
        self, expected: Sequence[SessionInfo], *, secure: bool = False
    ) -> list[int | StepkeepError]:
        """Remove sessions that are still exactly as expected and that nobody runs, all of them in one commit.

        Each is decided alone, as `delete_session` decides about it: for one that goes the stored bytes of its bodies,
        else the error that tells why it stays. That takes nothing from the others.
        """

    def branch(self, uid: str, name: str) -> Branch | None:
        """One branch of a session."""

    def branches(self, uid: str) -> list[Branch]:
        """All branches of a session, oldest first. Lost records are rebuilt from the headers."""

    def set_branch(
        self, uid: str, branch: Branch, *, expect_head: str | None = ANY_HEAD, fence: int | None = None
    ) -> Branch:
        """Create or replace a branch record; `head_seq` and, where not given, the location of the fork are filled in.

        With `ANY_HEAD` as its head the record keeps the head that the branch has at that moment.

        Raises:
            Conflict: `expect_head` was given and is not the branch's head (`head_moved`; None: it is new or empty).
            NotFound: `head` or `fork` names a checkpoint that this session does not have.
        """


class Checkpoints(Protocol):
    """Checkpoints: headers, bodies, blobs."""

    def append(self, batch: Sequence[Append], seal: Seal) -> list[Appended | StepkeepError]:
        """Store checkpoints durably, in order, in one commit, and make each the head of its branch.

        Each is decided alone: its `seq` comes from the session's counter (V3), its parents from the branch's
        head unless the draft names them, `seal` gives its header bytes, and its session's status and times
        follow it. A finished session that is saved into reopens, with an event `session_reopened`. A refused
        one is returned as an error and takes nothing from the others:

        - `NotFound`: session gone, or a required id is not there;
        - `Conflict`: `expect_head` is not the head (`head_moved`), the session is on another branch
          (`branch_switched`, only with `on_current`), `lease_lost`, an external id that exists on
          the branch, the id of a removed checkpoint whose body others still need, or an idempotency key (its
          own id counts as one) that holds other content. The same key with the same bodies, step and status is
          no error: the original is returned with `is_new` false. The key is looked at before the head;
        - `Conflict` with code `base_gone` or `blob_gone`: a body names a base, or a blob, that is not stored.
          The caller sends a keyframe, or the blob. A hidden body still serves as a base;
        - `Conflict` with code `predecessor_refused`: an earlier one of its session was refused with a code in
          `REPEATABLE`. To keep a writer's order, all of them are to be sent again.

        A branch that does not exist is created. Raises `BackendUnavailable` when the commit failed: then none
        is stored.
        """

    def load_head(
        self, uid: str, branch: str | None = None, *, known: tuple[str, str] | None = None
    ) -> StoredHead | Unchanged | None:
        """The head of a branch, of the current one unless named, with all it takes to load it: one consistent read.

        `known` is a (checkpoint, body name) whose content the caller has: a chain of that body ends there. Where that
        checkpoint is the head, this backend itself stored it, and it is certain that nobody wrote since, it is
        `UNCHANGED` without being read. Blobs are left out. None when there is no head, when something about it is
        damaged, or when this backend cannot bring all of it at once: then the caller looks step by step, and finds
        out.
        """

    def headers(self, query: HeaderQuery) -> Iterator[HeaderRow]:
        """Stored headers as found, page by page without holding a transaction between pages. Bodies are not read."""

    def body(self, uid: str, checkpoint: str, name: str) -> Body | None:
        """One body record with its bytes, also of a hidden body."""

    def body_chain(self, uid: str, checkpoint: str, name: str) -> list[Body]:
        """A body and every body it is rebuilt from, target first; empty when there is none.

        The chain ends where a base is missing: the caller sees that the last one still names a base.
        """

    def all_chains(self, uid: str, checkpoints: Sequence[str]) -> list[Body]:
        """The bodies of several checkpoints and every body they are rebuilt from, each once; blobs are left out."""

    def redundant_delta(self, uid: str, checkpoint: str, name: str) -> Body | None:
        """The second encoding of a keyframe, where it still exists."""

    def bodies(self, uid: str, checkpoints: Sequence[str] | None = None) -> list[BodyInfo]:
        """The body records of these checkpoints (None: all of the session) without their bytes, hidden ones and
        redundant deltas included."""

    def replace_body(self, uid: str, body: Body, *, expect_digest: str, fence: int | None = None) -> None:
        """Exchange how a body is stored, and drop its redundant delta. V4: the caller keeps the content the same.

        Raises:
            Conflict: the stored digest is not `expect_digest`, or `base_gone`.
        """

    def blob(self, digest: str, session: str | None = None) -> Blob | None:
        """The blob with that content digest, as found; that of a session, where each has its own."""

    def has_blobs(self, digests: Sequence[str], session: str | None = None) -> set[str]:
        """Those of the digests that are stored, so that a body of the session, or of any, may name them."""

    def blob_sizes(self, uid: str) -> dict[str, BlobSize]:
        """What the blobs take that bodies of a session name, by digest, without reading them."""

    def remove(
        self,
        uid: str,
        checkpoints: Sequence[str],
        *,
        secure: bool = False,
        fence: int | None = None,
        keep_heads: bool = False,
    ) -> Removed:
        """Remove checkpoints with their annotations, record the gap, and move heads to the newest that remain.

        Their bodies go too, unless another body is based on them: those stay hidden until `sweep` (V5).
        Redundant deltas based on a removed body go. What a remaining checkpoint requires is refused. With
        `keep_heads` so are the session's newest checkpoint, and heads and fork points of branches that are
        current, or open and pinned.
        """

    def sweep(
        self,
        *,
        session: str | None = None,
        limit: int = 1000,
        annotations_before_us: int | None = None,
        secure: bool = False,
    ) -> Swept:
        """Remove hidden bodies that nothing is based on, blobs that no body names, and annotations older
        than the given time whose checkpoint never came; at most `limit` of each."""

    def adopt_session(
        self, session: SessionInfo, branches: Sequence[Branch] = (), events: Sequence[Event] = ()
    ) -> SessionInfo:
        """Store a session of another store: uid, counter, gaps, branches, events. Equal again: no-op.

        Over an older copy of itself it brings what is new; the counter and the gaps never go back.

        Raises:
            Conflict: the key is held by another uid.
        """

    def adopt(
        self,
        uid: str,
        raw: bytes,
        *,
        bodies: Sequence[Body],
        blobs: Sequence[Blob] = (),
        annotations: Sequence[Annotation] = (),
    ) -> bool:
        """Store a sealed checkpoint verbatim, with its own seq; raise the counter and the head of its branch.

        False when the very same header is already there. A body that is hidden here shows again as it is.

        Raises:
            Conflict: its id, seq, external id or idempotency key is taken by other bytes, `base_gone` or `blob_gone`.
            InvalidInput: it is a checkpoint of another session.
        """


class Annotations(Protocol):
    def annotate(
        self,
        uid: str,
        target: Target,
        kind: str,
        name: str,
        data: bytes,
        *,
        time_us: int,
        replace: bool = False,
        fence: int | None = None,
    ) -> bool:
        """Attach bytes to a checkpoint that is there or may come. Without `replace` the first one stays: False."""

    def annotations(
        self, uid: str, targets: Sequence[Target] | None = None, kind: str | None = None
    ) -> list[Annotation]:
        """Annotations of these targets (None: all of the session), by time, at equal times as they came.

        An id also finds what was attached to the checkpoint's (branch, external id), and the other way round.
        """


class Events(Protocol):
    def record_event(self, uid: str, type: str, data: dict[str, Any], *, time_us: int) -> Event:
        """Append to the session's log, which keeps the newest `MAX_EVENTS`."""

    def events(self, uid: str, *, after: int = 0, limit: int | None = None) -> list[Event]:
        """Events with a number above `after`, oldest first."""


class Leases(Protocol):
    def acquire_lease(self, uid: str, owner: Owner, *, seconds: float, replacing: int | None = None) -> Lease:
        """Take the lease of a session with a token higher than any before.

        Succeeds when none is held, the held one expired, or its token is `replacing` (its owner is known to be
        dead).

        Raises:
            Conflict: another owner holds it (code `lease_held`).
        """

    def renew_lease(self, uid: str, token: int, *, seconds: float) -> Lease:
        """Prolong the lease; `Conflict` (`lease_lost`) when a higher token was issued or it was released."""

    def release_lease(self, uid: str, token: int) -> None:
        """Give the lease up. A token that is no longer current is ignored."""

    def lease(self, uid: str) -> Lease | None:
        """The lease as last taken, expired or not; None when it was never taken or was released."""


class Backend(Sessions, Checkpoints, Annotations, Events, Leases, Protocol):
    """Everything a store needs."""

    @property
    def capabilities(self) -> Capabilities: ...

    @property
    def url(self) -> str:
        """How to open this store again."""

    def inconsistencies(self, uid: str | None = None) -> list[Inconsistency]:
        """Checkpoints where that by which headers are found differs from the headers.

        Without a uid: sessions whose records are damaged beyond rebuilding, and files that are not ours.
        """

    def usage(self, uid: str | None = None) -> Usage:
        """Counts and bytes of one session, or of the whole store, without reading bodies."""

    def reclaim(self, max_bytes: int) -> int:
        """Give freed space back to the file system, at most about `max_bytes` of work; the bytes returned."""

    def close(self) -> None:
        """Release everything. Repeating it is harmless; any other call afterwards is `BackendUnavailable`."""


class Facts(msgspec.Struct, frozen=True, kw_only=True):
    """What a backend says of itself: how it makes saves durable, or why it does not, the size of its log, and the
    files that are to go and could not be removed yet."""

    durability: str
    weakness: str | None = None
    log_bytes: int = 0
    stuck: tuple[str, ...] = ()


@runtime_checkable
class TellsFacts(Protocol):
    """A backend that can say how durable its saves are."""

    def facts(self) -> Facts:
        """As it is set right now, asked from the store itself."""


@runtime_checkable
class TakesSnapshots(Protocol):
    """A backend that can copy itself into one file while others go on saving."""

    def snapshot(self, path: Path, *, progress: Callable[[float], None] | None = None) -> None:
        """Write a store with everything acknowledged before this call to a new file, durably.

        `progress` gets the fraction that is done. After an exception the file may exist without being a store.
        """


@runtime_checkable
class Compresses(Protocol):
    """A backend that can store old checkpoints smaller, as they are."""

    @property
    def can_compress(self) -> bool:
        """Whether this store, as it is laid out, has such checkpoints."""

    def compressible(self, before_us: int, *, session: str | None = None) -> int:
        """How many checkpoints, of one session or of all, `compress` would look at."""

    def compress(self, before_us: int, *, session: str | None = None, limit: int | None = None) -> int:
        """Compress checkpoints saved before that time, of one session or of all, at most `limit`; how many were.

        The compressed form is durable before the other one goes; it may be stopped anywhere and repeated.
        """


class ClaimQuery(msgspec.Struct, frozen=True, kw_only=True):
    """Which sessions may be claimed: those with a status of these and with this part in their stored metadata."""

    statuses: tuple[Status, ...]
    metadata_part: str


class Claimed(msgspec.Struct, frozen=True, kw_only=True):
    """A session, and the lease on it that was taken."""

    session: SessionInfo
    lease: Lease


@runtime_checkable
class ClaimsSessions(Protocol):
    """A backend that can hand sessions out: of many who ask at once, each gets another one without waiting."""

    def claim(
        self,
        query: ClaimQuery,
        owner: Owner,
        *,
        seconds: float,
        may_take: Callable[[SessionInfo, Lease | None], bool],
    ) -> Claimed | None:
        """Take the lease of the session that was longest not updated and that `may_take` agrees to.

        `may_take` is pure. It gets the session and the lease that someone holds and that has not run out; if it
        agrees to such a one, its holder is known to be dead. Sessions that others claim right now are passed over.
        """


@runtime_checkable
class KeepsFiles(Protocol):
    """A backend whose checkpoints are files of their own, of another size than their records."""

    def files(self, uid: str) -> dict[str, str]:
        """The file of each checkpoint of a session, by id, relative to the store."""

    def file_bytes(self, uid: str) -> dict[str, int]:
        """What the file of each checkpoint of a session takes of the disk, by id."""

    def written_bytes(self, bodies: Sequence[Body]) -> int:
        """About what a file with these bodies would take."""


@runtime_checkable
class BoundsLog(Protocol):
    """A backend in one file beside a log, which what is written goes through."""

    def bound_log(self, max_bytes: int) -> None:
        """Let the log of this process take about that much at most, and one transaction more."""


@runtime_checkable
class Repairs(Protocol):
    """A backend that keeps more than its checkpoints, which can be lost and made anew from them."""

    def repair(self, uid: str | None = None) -> list[str]:
        """Make it anew, of one session or of all, and remove what belongs to nothing; what was done, in words.

        No checkpoint is changed or removed. Repeatable.
        """


@runtime_checkable
class KeepsKeys(Protocol):
    """A backend that can hold an encrypted store. It knows nothing of keys: it keeps their record, a text."""

    def key_record(self) -> str | None:
        """The key record; None of a store that is not encrypted."""

    def set_key_record(self, record: str, *, expect: str | None, secure: bool = False) -> None:
        """Store the key record, if the stored one still is as expected; the first one only into an empty store.

        With `secure` the bytes of the one before are overwritten.

        Raises:
            Conflict: it is another one (`keys_changed`), or the store has sessions already (`store_not_empty`).
        """

    def admit_encrypted(self, key: int | None) -> None:
        """From now on this thread encrypts what it stores, with the data key of that number; with None it does not.

        What it stores while the key record names another one is refused (`OtherKey`), in the transaction that would
        store it. Who does not encrypt can create and adopt no session in an encrypted store (`key_missing`), also not
        those who opened it when it was not encrypted yet.
        """


class Encrypting(threading.local):
    """With which data key this thread encrypts what it stores; None if it does not."""

    key: int | None = None


class Renewal(Protocol):
    """Records encrypted anew: each as it is to be stored, the same object where it is current."""

    mark: bytes
    """What the bytes of bodies, blobs and annotations that are current begin with."""

    def session(self, session: SessionInfo) -> SessionInfo: ...

    def branch(self, uid: str, branch: Branch) -> Branch: ...

    def event(self, uid: str, event: Event) -> Event: ...

    def header(self, raw: bytes) -> bytes: ...

    def annotation(self, uid: str, note: Annotation) -> Annotation: ...

    def blob(self, uid: str, blob: Blob) -> Blob: ...

    def body(self, uid: str, body: Body) -> Body: ...


RENEWED_PARTS: Final = ("session", "branches", "events", "checkpoints", "annotations", "blobs", "bodies")
"""What of a session is encrypted, in the order in which it is renewed.

The session comes first: who knows its row from before, and would still use an older key, has to look again."""


class Renewed(msgspec.Struct, frozen=True):
    """How many records were stored anew, how many could not be, and behind which place to go on, if anywhere."""

    renewed: int
    damaged: int
    after: tuple[Any, ...] | None


@runtime_checkable
class Renews(Protocol):
    """A backend whose records can be stored anew with other bytes, where they are."""

    def all_sessions(self) -> list[str]:
        """The uids of all sessions.

        Raises:
            Unsupported: some may be hidden from who asks (`sessions_hidden`).
        """

    def renew(self, uid: str, part: str, after: tuple[Any, ...], renewal: Renewal) -> Renewed:
        """Store some records of one of the `RENEWED_PARTS` anew, those behind `after`, in one small transaction.

        One that the renewal finds `Corrupt` stays as it is.
        """

    def count_older(self, mark: bytes) -> int:
        """How many bodies, blobs and annotations do not begin so."""


class KeyService(Protocol):
    """Wraps and unwraps a key with one that it never gives away, as a key management service does."""

    def wrap(self, key: bytes) -> bytes:
        """The key so that only this service can unwrap it."""

    def unwrap(self, wrapped: bytes) -> bytes:
        """What was wrapped. Whatever it raises is told as a key that does not fit."""


Key: TypeAlias = str | bytes | KeyService
"""What opens a slot. As text it makes a slot of a passphrase, as bytes one of a secret; either opens both."""


@runtime_checkable
class Locked(Protocol):
    """An encrypted store that was opened without its key: nothing that is encrypted can be read or written."""

    is_locked: bool


@runtime_checkable
class LooksOver(Protocol):
    """A backend that can look over all its sessions in one statement, however many there are."""

    def session_count(self) -> int:
        """How many sessions there are."""

    def kinds(self) -> list[tuple[Kind, SessionInfo]]:
        """The kinds of sessions that there are, each with one session of it.

        Sessions of one kind have the same profile, workflow and policy, and are tests or not: rules for whole sessions
        tell them apart by status and age only.
        """

    def of_kind(self, kind: Kind, status: Status) -> Iterator[SessionInfo]:
        """The sessions of a kind that have this status, read as they are asked for.

        Those come first that ended first, or that were active last the longest time ago.
        """

    def session_bytes(self) -> dict[str, int]:
        """The stored bytes of the bodies of each session that has any, by uid."""

    def leased(self, *, now: bool = True) -> frozenset[str]:
        """The sessions whose lease is held; with `now` those where it has not run out, by the store's own clock."""
