"""The engine, the one door: every save and every load of the product passes here."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import count
from time import perf_counter
from typing import Any, Final, Protocol

import msgspec

from stepkeep.codec import delta, exact
from stepkeep.codec.compression import NO_COMPRESSION, ZSTD_COMPRESSION, Compression
from stepkeep.codec.integrity import (
    FORMAT_VERSION,
    check_content,
    check_stored,
    digest,
    read_header,
)
from stepkeep.engine import chains, reader
from stepkeep.engine.chains import Base, BranchWriter, Chain, Writers
from stepkeep.engine.commit import Committer, Queued
from stepkeep.engine.reader import Loaded, Remembered
from stepkeep.engine.state_encoder import IncrementalEncoder, NewBody
from stepkeep.errors import Conflict, Corrupt, InvalidInput, NotFound, StepkeepError
from stepkeep.logs import Log
from stepkeep.model import (
    DETAILS,
    FILES,
    MAIN_BRANCH,
    MAX_TAGS,
    STATE,
    Header,
    SessionInfo,
    Status,
    Trigger,
    check_branch_name,
    check_metadata,
    check_name,
    check_text,
    new_uid,
    utc_now_us,
)
from stepkeep.policy.profiles import profile_named
from stepkeep.processes import Worker, new_checkpoint_id, tell_of_forks
from stepkeep.storage.port import (
    ANY_HEAD,
    REPEATABLE,
    UNCHANGED,
    Annotation,
    Append,
    Backend,
    Blob,
    Body,
    BodyInfo,
    HeaderQuery,
    HeaderRow,
    StoredHead,
    Target,
)
from stepkeep.text import error_text

log = Log("stepkeep")

MAX_REPEATS: Final = 100
"""How often a save is sent again because a sweep took its base or blobs, or the session changed its branch. Others have
to come in between each time, so the end is only for a fault."""

MAX_KNOWN_SESSIONS: Final = 1000

MAKING: Final = "stepkeep-capture"
SETTLING: Final = "stepkeep-saver"
"""The threads that make bodies which take a while, and that settle saves nobody waits for."""

MAX_LOOK_BACK: Final = 64
"""Among how many checkpoints the last one with a body is looked for, to store a delta instead of all of it."""

MAX_READ_BYTES: Final = 64 * 1024 * 1024
"""Up to which size a state that was read is kept for who reads its session again."""


class Made(msgspec.Struct, frozen=True):
    """A body that was made for a save, and the blobs that come with it."""

    body: NewBody
    blobs: tuple[Blob, ...] = ()


class MakesBody(Protocol):
    """Makes a body when its turn comes: the capture of files takes a while, and may be done in the background."""

    def make(self, refusal: Conflict | None) -> Made | None:
        """The body; after a refusal another one to try instead, or None when the refusal stands."""

    def stored(self, header: Header) -> None:
        """Told when the checkpoint with the body is durable."""


class Save(msgspec.Struct, frozen=True, kw_only=True):
    """Everything about a checkpoint that its saver decides.

    `state` and `details` are values, which are encoded and proven (`Frozen` ones without a copy, `Verbatim` ones as
    they are), or bodies that are encoded already; details that are None are left out. `files` is a body, or what makes
    it; `bodies` are further ones by name.
    `blobs` come with the save, and `state_blobs` are those that the state names, by digest. `branch` None means the
    session's current one, `parents` None its head, and `time_us` None now.
    """

    session: str = ""
    state: Any
    details: Any = None
    files: Made | MakesBody | None = None
    bodies: Mapping[str, NewBody] = {}
    blobs: tuple[Blob, ...] = ()
    state_blobs: frozenset[str] = frozenset()
    branch: str | None = None
    parents: tuple[str, ...] | None = None
    expect_head: str | None = ANY_HEAD
    idempotency_key: str | None = None
    external_id: str | None = None
    fence: int | None = None
    step: int | None = None
    status: Status = Status.IN_PROGRESS
    trigger: Trigger = Trigger()
    message: str = ""
    tags: tuple[str, ...] = ()
    metadata: Mapping[str, Any] = {}
    requires: tuple[str, ...] = ()
    time_us: int | None = None


class Saved(msgspec.Struct, frozen=True):
    """A save that is durable, for those who count and keep. A repeat of an earlier one is not new."""

    header: Header
    is_new: bool
    stored_bytes: int
    seconds: float


class _Known(msgspec.Struct, frozen=True):
    """A session as last seen, and what its profile says about how its bodies are stored."""

    session: SessionInfo
    group_limit: int
    compression: Compression


class Pending(Queued):
    """A save on its way. `result` returns its header once it is durable, or raises why it is not stored."""

    def __init__(
        self, engine: Engine, save: Save, bodies: dict[str, NewBody], item: Append, started: float
    ) -> None:
        super().__init__(item)
        self._engine = engine
        self._save = save
        self._bodies = bodies
        self._repeats_left = MAX_REPEATS
        self._header: Header | None = None
        self._untold = [True]
        self.started = started

    @property
    def id(self) -> str:
        return self.item.draft.id

    @property
    def is_done(self) -> bool:
        return self.outcome is not None

    def result(self) -> Header:
        if self._header is None:
            self._header = self._engine.confirm(self)
        return self._header

    def _is_first_to_tell(self) -> bool:
        """True once: of several threads that ask for the result, one tells those who count."""
        try:
            return self._untold.pop()
        except IndexError:
            return False

    def _instead(self, refusal: StepkeepError) -> Append | None:
        """The same save depending on nothing that is stored, if others only worked on its session meanwhile."""
        if refusal.code not in REPEATABLE or not self._repeats_left:
            return None
        self._repeats_left -= 1
        draft = self.item.draft
        self._engine.forget(draft.session)
        if refusal.code == "branch_switched":
            session = self._engine.backend.session(draft.session)
            draft = msgspec.structs.replace(draft, branch=session.branch)
        bodies = tuple(
            chains.keyframe(name, Base(draft.id, new.content, new.blobs), self._engine.compression)
            for name, new in self._bodies.items()
        )
        return msgspec.structs.replace(self.item, draft=draft, bodies=bodies, blobs=_blobs(self._save))


class PendingBody(Pending):
    """A save whose files are still being captured. Its id is known at the end."""

    def __init__(self, work: Callable[[], Header]) -> None:
        self._work = work
        self._done = threading.Event()
        self._error: BaseException | None = None

    def run(self) -> None:
        """Do it, on whichever thread; what it raises is for who asks for the result."""
        try:
            self._header = self._work()
        except BaseException as exc:
            log.error("a capture in the background failed: %s", exc)
            self._error = exc
        finally:
            self._done.set()

    @property
    def id(self) -> str:
        return self.result().id

    @property
    def is_done(self) -> bool:
        return self._done.is_set()

    def wait(self) -> None:
        self._done.wait()

    def result(self) -> Header:
        self._done.wait()
        if self._error is not None:
            raise self._error
        assert self._header is not None
        return self._header


class Engine:
    """Saves, loads and removes checkpoints on a backend. Safe for threads and forks.

    Lists of callbacks tell those who count and keep: `on_append` before a save is queued, and raising there refuses it;
    `on_saved` when one is durable, `on_failed` when one is not; `on_finished` when a session got its final status;
    `on_fallback` when a load fell back; `on_resumed` when work goes on, with the number of steps that need not be done
    again. They are called on the saver's thread, so they are quick, and all but the first never raise.
    """

    def __init__(
        self,
        backend: Backend,
        *,
        clock: Callable[[], int] = utc_now_us,
        keyframe_every: int | None = None,
        max_state_bytes: int = exact.MAX_BYTES,
        compression: Compression = ZSTD_COMPRESSION,
        compresses: Callable[[SessionInfo], bool] = lambda _: True,
        policy_of_new: dict[str, Any] | None = None,
    ) -> None:
        self.backend = backend
        self.clock = clock
        self._keyframe_every = keyframe_every
        self.compression = compression
        self._compresses = compresses
        self._policy_of_new = policy_of_new
        self.max_state_bytes = max_state_bytes
        self._committer = Committer(backend)
        self._writers = Writers()
        self.encoder = IncrementalEncoder(max_state_bytes)
        self._known: dict[str, _Known] = {}
        self._seen: dict[str, SessionInfo] = {}
        self._workers: dict[str, Worker] = {}
        self._being_made: dict[str, PendingBody] = {}
        self._contents = reader.Contents()
        self._last_read: dict[str, Base] = {}  # the newest state of the session that was read last
        self._annotated = count(1)
        self._last_annotated = 0
        self.on_append: list[Callable[[Append], None]] = []
        self.on_saved: list[Callable[[Saved], None]] = []
        self.on_failed: list[Callable[[StepkeepError], None]] = []
        self.on_finished: list[Callable[[SessionInfo], None]] = []
        self.on_fallback: list[Callable[[], None]] = []
        self.on_resumed: list[Callable[[int], None]] = []
        tell_of_forks(self)

    # --- sessions

    def session_with(self, key: str) -> SessionInfo | None:
        """The living session with that key."""
        session = self.backend.session_by_key(check_name("a session key", key))
        if session is not None:
            if len(self._seen) >= MAX_KNOWN_SESSIONS:
                self._seen.clear()
            self._seen[session.uid] = session
        return session

    def seen(self, uid: str) -> SessionInfo:
        """A session as last seen here: its key never changes, the rest may have."""
        known = self._known.get(uid)
        return self.backend.session(uid) if known is None else known.session

    def open_session(self, key: str, **fields: Any) -> SessionInfo:
        """The living session with that key, created with these fields if there is none."""
        found = self.session_with(key)
        return self.create_session(key, **fields) if found is None else found

    def create_session(self, key: str, **fields: Any) -> SessionInfo:
        """A new session with that key; the one of another process where that was faster."""
        now_us = self.clock()
        session = SessionInfo(
            uid=new_uid(),
            key=key,
            created_us=now_us,
            updated_us=now_us,
            **_checked_fields({"policy": self._policy_of_new} | fields),
        )
        try:
            created = self.backend.create_session(session)
            self._writers.get(created.uid, created.branch).is_new = True
            self._seen[created.uid] = created
            return created
        except Conflict:
            found = self.backend.session_by_key(key)
            if found is None:
                raise
            return found

    def find_session(self, key: str) -> SessionInfo:
        """The living session with that key, or `NotFound`."""
        session = self.session_with(key)
        if session is None:
            raise NotFound(f"no session {key!r}", code="session_not_found", session=key)
        return session

    def describe_session(self, uid: str, changes: dict[str, Any]) -> SessionInfo:
        """Change what a session says of itself: profile, project, workflow, test flag, metadata."""
        self._known.pop(uid, None)
        self._seen.pop(uid, None)
        return self.backend.update_session(uid, _checked_fields(changes))

    def finish(
        self, uid: str, status: Status, *, error: str | None = None, fence: int | None = None
    ) -> SessionInfo:
        """Set the status of a session; one that pauses or ends gets a newest checkpoint that stands alone."""
        now_us = self.clock()
        error = None if error is None else error_text(error)
        before = self.backend.session(uid)
        ended_us = before.finished_us if before.status is status else None  # saying so again ends nothing
        changes = {
            "status": status,
            "updated_us": now_us,
            "finished_us": (ended_us or now_us) if status.is_finished else None,
            "error": error,
        }
        session = self.backend.update_session(uid, changes, fence=fence)
        self.backend.record_event(uid, f"session_{status}", {"error": error} if error else {}, time_us=now_us)
        if status is not Status.IN_PROGRESS:
            self._make_head_stand_alone(session, fence)
        if status.is_finished:
            self.encoder.forget(uid)
            self.tell_finished(session)
        return session

    def tell_finished(self, session: SessionInfo) -> None:
        """Tell those who keep that a session ended; once more when its lease is given up."""
        for told in self.on_finished:
            told(session)

    def _make_head_stand_alone(self, session: SessionInfo, fence: int | None) -> None:
        head = self._head(session.uid, session.branch)
        if head is None or not self.backend.capabilities.takes_deltas:
            return
        try:
            for name in reader.verified(head).contents:
                self._reencode(session.uid, head.id, name, fence)
        except (Conflict, Corrupt, NotFound) as exc:
            log.warning("the newest checkpoint of %r was not made to stand alone: %s", session.key, exc)
        self.forget(session.uid)

    def _reencode(self, uid: str, checkpoint: str, name: str, fence: int | None = None) -> None:
        """Store a body as a keyframe, if it is a delta."""
        chain = self.backend.body_chain(uid, checkpoint, name)
        if not chain or chain[0].base is None:
            return
        content = reader.rebuild(self.backend, uid, checkpoint, name)
        header = self._find_row(uid, checkpoint)
        if header is not None:
            check_content(content, reader.verified(header).contents[name], checkpoint=checkpoint, body=name)
        body = chains.keyframe(name, chains.base_of(chain, content), self.compression)
        self.backend.replace_body(uid, body, expect_digest=chain[0].digest, fence=fence)

    # --- saving

    def encode(self, value: object, session: str = "") -> NewBody:
        """The body for a value, or `InvalidInput` naming the place that would not come back equal.

        Of the states of one session only what is new is encoded. Where whole contents are stored for people to read,
        the keys are in their own order.
        """
        if self.backend.capabilities.takes_deltas:
            return self.encoder.encode(session, value)
        return self.encoder.whole(value)

    def encode_plain(self, value: object) -> NewBody | None:
        """The same for plain JSON data, of which nothing is remembered; None for all else, or where `encode` will tell
        what is wrong."""
        try:
            if self.backend.capabilities.takes_deltas:
                return self.encoder.plain(value)
            found = exact.plain(value, max_bytes=self.max_state_bytes)
        except (exact.ValidationError, RecursionError):
            return None
        return None if found is None else NewBody(found[0], exact.JSON)

    def encoded(self, save: Save) -> Save:
        """The save with its values encoded: they may change from now on."""
        if isinstance(save.state, NewBody):
            return save
        details = save.details
        return msgspec.structs.replace(
            save,
            state=self.encode(save.state, save.session),
            details=None if details is None else self.encode(details),
        )

    def save(self, save: Save) -> Header:
        """Store a checkpoint durably. When this returns it survives a kill and a loss of power (V1).

        It comes after all saves of its session that were asked for before, also those whose files are being captured.
        """
        if save.files is None or isinstance(save.files, Made):
            return self.submit(save).result()
        if self._being_made:
            self._wait_for(save.session)
        return self._save_making(save, self._bodies(save))

    def save_in(self, key: str, save: Save, **fields: Any) -> Header:
        """The same into the session with that key, which is created with these fields if there is none.

        Input that is refused leaves nothing behind, not even an empty session. `save.session` is filled in here.
        """
        session = self.session_with(key)
        if session is None:
            save = self.checked(save)
            session = self.create_session(key, **fields)
        return self.save(msgspec.structs.replace(save, session=session.uid))

    def checked(self, save: Save) -> Save:
        """The save with its state encoded; raises what is wrong with it, before its session need exist."""
        save = self.encoded(save)
        _draft(save, self._bodies(save), MAIN_BRANCH, self.clock())
        return save

    def save_later(self, save: Save) -> Pending:
        """The same in the background; the state is encoded before this returns. `close` waits for it."""
        is_late = save.files is not None and not isinstance(save.files, Made)
        before = self._being_made.get(save.session)
        if not is_late and (before is None or before.is_done):
            pending = self.submit(save)
            self._worker(SETTLING).submit(pending.result)
            return pending
        bodies = self._bodies(save)
        if is_late:
            late = PendingBody(lambda: self._save_making(save, bodies))
        else:
            late = PendingBody(lambda: self._sent(save, bodies, perf_counter()).result())
        self._being_made[save.session] = late
        self._worker(MAKING).submit(late.run)
        return late

    def _wait_for(self, uid: str) -> None:
        late = self._being_made.get(uid)
        if late is not None:
            late.wait()
            if self._being_made.get(uid) is late:
                del self._being_made[uid]

    def _save_making(self, save: Save, bodies: dict[str, NewBody]) -> Header:
        """Store a save whose files are made now; what made them may offer another body after a refusal."""
        making = save.files
        assert making is not None
        assert not isinstance(making, Made)
        made = making.make(None)
        while made is not None:
            with_files = msgspec.structs.replace(save, files=made)
            try:
                header = self._sent(with_files, {**bodies, FILES: made.body}, perf_counter()).result()
            except Conflict as exc:
                made = making.make(exc)
                if made is None:
                    raise
            else:
                making.stored(header)
                return header
        raise AssertionError("nothing was made, and nothing was refused")

    def submit(self, save: Save) -> Pending:
        """Queue a checkpoint; whoever asks for a result commits it, with all that were queued meanwhile."""
        started = perf_counter()
        if self._being_made:
            self._wait_for(save.session)
        try:
            return self._send(save, self._bodies(save), started)
        except StepkeepError as exc:
            self._tell_failed(exc)
            raise

    def _bodies(self, save: Save) -> dict[str, NewBody]:
        """The contents of a save, encoded and proven; each value once."""
        state, details, files = save.state, save.details, save.files
        if not isinstance(state, NewBody):
            state = self.encode(state, save.session)
        if save.state_blobs:
            state = msgspec.structs.replace(state, blobs=save.state_blobs)
        bodies: dict[str, NewBody] = {STATE: state, **save.bodies}
        if details is not None:
            bodies[DETAILS] = details if isinstance(details, NewBody) else self.encode(details)
        if isinstance(files, Made):
            bodies[FILES] = files.body
        return bodies

    def _session(self, uid: str) -> _Known:
        """The session as last seen. Its branch may have changed since: `append` checks that, and refuses."""
        known = self._known.get(uid)
        if known is None:
            if len(self._known) >= MAX_KNOWN_SESSIONS:
                self._known.clear()
            session = self._seen.pop(uid, None) or self.backend.session(uid)
            known = self._known[uid] = _Known(
                session, self.group_limit(session), self.compression_of(session)
            )
        return known

    def compression_of(self, session: SessionInfo) -> Compression:
        """How bodies of the session are compressed."""
        return self.compression if self._compresses(session) else NO_COMPRESSION

    def group_limit(self, session: SessionInfo) -> int:
        """How many bodies a keyframe group of the session has at most."""
        keep_last = (session.policy or {}).get(
            "keep_last", profile_named(session.profile).retention.keep_last
        )
        return delta.group_limit(keep_last, self._keyframe_every)

    def _sent(self, save: Save, bodies: dict[str, NewBody], started: float) -> Pending:
        try:
            return self._send(save, bodies, started)
        except StepkeepError as exc:
            self._tell_failed(exc)
            raise

    def _send(self, save: Save, bodies: dict[str, NewBody], started: float) -> Pending:
        """Encode the bodies of a save as records and queue it."""
        known = self._session(save.session)
        time_us = self.clock() if save.time_us is None else save.time_us
        draft = _draft(save, bodies, known.session.branch, time_us)
        # The writer stays locked until the append is queued: a body must not be committed before its base.
        writer = self._writers.get(draft.session, draft.branch)
        with writer.lock:
            records: list[Body] = []
            for name, new in bodies.items():
                base = Base(draft.id, new.content, new.blobs)
                if not self.backend.capabilities.takes_deltas:
                    records.append(chains.plain(name, base))
                    continue
                if name not in writer.chains and len(new.content) >= chains.DELTA_FLOOR:
                    self._find_chains(writer, draft.session, draft.branch, name)
                made, writer.chains[name] = chains.encode(
                    name,
                    writer.chains.get(name),
                    base,
                    limit=known.group_limit,
                    as_keyframe=save.status is not Status.IN_PROGRESS,
                    compression=known.compression,
                    derived=new.derived,
                )
                records += made
            item = Append(
                draft=draft,
                bodies=tuple(records),
                blobs=self._missing(_blobs(save), save.session)
                if save.blobs or save.files is not None
                else (),
                parents=save.parents,
                expect_head=save.expect_head,
                fence=save.fence,
                on_current=save.branch is None,
            )
            try:
                for admit in self.on_append:
                    admit(item)
            except StepkeepError:
                self.forget(draft.session)  # the writer already counts on it
                raise
            pending = Pending(self, save, bodies, item, started)
            self._committer.queue.append(pending)
        self._writers.recount(draft.session, draft.branch)
        return pending

    def _missing(self, blobs: tuple[Blob, ...], uid: str) -> tuple[Blob, ...]:
        stored = self.backend.has_blobs([blob.digest for blob in blobs], uid)
        return tuple(blob for blob in blobs if blob.digest not in stored)

    def _find_chains(self, writer: BranchWriter, uid: str, branch: str, name: str) -> None:
        """Give a writer the delta chain that the next body of a name goes on with; None when that is a keyframe.

        A cold writer gets the chains of the head's bodies by one read, which leaves blobs out: files are read alone.
        """
        if writer.is_new:
            writer.chains[name] = None
            return
        try:
            head = None if writer.chains or name == FILES else self.backend.load_head(uid, branch)
            if isinstance(head, StoredHead):
                header = reader.verified(head.row)
                for each in head.chains.keys() - {FILES}:
                    writer.chains[each] = self._chain(header, each, head.chains[each])
            if name not in writer.chains:
                found = self._newest_with(uid, branch, name)
                links = [] if found is None else self.backend.body_chain(uid, found.id, name)
                writer.chains[name] = None if found is None else self._chain(found, name, links)
        except Corrupt as exc:
            log.info("%s cannot be built upon, a keyframe follows: %s", exc.checkpoint or uid, exc)
            writer.chains.setdefault(name, None)

    def _chain(self, header: Header, name: str, links: list[Body]) -> Chain | None:
        """The delta chain in its records, verified; None when a base is missing."""
        if not links or links[-1].base is not None:
            return None
        reader.check_links(links)
        is_bridged = links[0].position >= delta.GROUP_STRIDE and (
            self.backend.redundant_delta(header.session, links[-1].checkpoint, name) is not None
        )
        chain = chains.from_records(links, is_bridged=is_bridged)
        check_content(chain.last.content, header.contents[name], checkpoint=header.id, body=name)
        return chain

    def _newest_with(self, uid: str, branch: str, name: str) -> Header | None:
        """The newest checkpoint of a branch that has a body, verified. Not every checkpoint has every body."""
        head = self._head(uid, branch)
        if head is None:
            return None
        header = reader.verified(head)
        if name in header.contents:
            return header
        query = HeaderQuery(session=uid, branch=branch, max_seq=header.seq - 1, limit=MAX_LOOK_BACK)
        found = map(reader.verified, self.backend.headers(query))
        return next((each for each in found if name in each.contents), None)

    def confirm(self, pending: Pending) -> Header:
        """The header of a queued save, once it is durable."""
        outcome = self._committer.settle(pending)
        draft = pending.item.draft
        if isinstance(outcome, StepkeepError):
            self.forget(draft.session)
            if pending._is_first_to_tell():
                self._tell_failed(outcome)
            raise outcome
        if outcome.is_new:
            header = read_header(outcome.row.opened or outcome.row.raw)
            self._remember(pending, outcome.row)
        else:
            self.forget(draft.session)
            header = reader.verified(outcome.row)
        if not pending._is_first_to_tell():
            return header
        size = 0
        for body in pending.item.bodies:
            size += body.stored_size
        for blob in pending.item.blobs:
            size += len(blob.data)
        saved = Saved(header, outcome.is_new, size, perf_counter() - pending.started)
        for told in self.on_saved:
            told(saved)
        return header

    def _remember(self, pending: Pending, row: HeaderRow) -> None:
        """Keep the newest checkpoint of a branch at hand, for those who load it next."""
        writer = self._writers.find(row.session, row.branch)
        if writer is not None and (writer.head is None or writer.head.seq < row.seq):
            writer.head = Remembered(row, pending._bodies)

    def _tell_failed(self, error: StepkeepError) -> None:
        for told in self.on_failed:
            told(error)

    def resumed(self, steps: int) -> None:
        """Note that work goes on where it stopped, and how many finished steps are not done again."""
        for told in self.on_resumed:
            told(steps)

    def forget(self, uid: str) -> None:
        """Forget what is remembered of a session: it may not be what is stored."""
        self._known.pop(uid, None)
        self._seen.pop(uid, None)
        self._writers.forget(uid)
        self._last_read.pop(uid, None)
        self._contents = reader.Contents()  # what was deleted is not kept

    # --- blobs

    def make_blob(self, content: bytes) -> Blob:
        encoded = delta.encode_keyframe(content, self.compression)
        return Blob(
            digest=digest(content),
            size=len(content),
            codec=encoded.codec,
            stored_digest=digest(encoded.data),
            data=encoded.data,
        )

    def load_blob(self, wanted: str, session: str | None = None) -> bytes:
        """The content with that digest, which a body of the session, or of any, names, verified."""
        blob = self.stored_blob(wanted, session)
        content = delta.decode(blob.codec, blob.data, size=blob.size)
        if digest(content) != wanted:
            raise Corrupt(f"blob {wanted} does not match its digest")
        return content

    def stored_blob(self, wanted: str, session: str | None) -> Blob:
        """The blob with that digest, if its stored bytes are those that were written."""
        blob = self.backend.blob(wanted, session)
        if blob is None:
            raise NotFound(f"no blob {wanted}", code="blob_not_found")
        check_stored(blob.data, blob.stored_digest, checkpoint=wanted, body="blob")
        return blob

    # --- reading

    def latest(self, session: SessionInfo, branch: str | None = None) -> Loaded | None:
        """The newest checkpoint of a branch that verifies; see `reader.load_latest`."""
        return self.latest_of(session.uid, branch or session.branch)

    def latest_of(self, uid: str, branch: str | None = None) -> Loaded | None:
        """The newest checkpoint of a branch, of the current one unless named, that verifies.

        One read brings all of it where nothing is damaged; else it is looked for step by step, and the fallback told.
        """
        loaded = self.head(uid, branch)
        if loaded is not None:
            log.debug("Loaded latest checkpoint")
            return loaded
        session = self.backend.session(uid)
        loaded = reader.load_latest(self.backend, session, branch or session.branch, self.load)
        if loaded is not None and loaded.fallback is not None:
            for told in self.on_fallback:
                told()
        return loaded

    def head(self, uid: str, branch: str | None = None) -> Loaded | None:
        """The head of a branch, of the current one unless named, by one read or from memory.

        None where there is none, or where it takes more than that to find out what is wrong with it.
        """
        found = self._newest(uid, branch)
        return found.loaded() if isinstance(found, Remembered) else found

    def _newest(self, uid: str, branch: str | None) -> Loaded | Remembered | None:
        """The head of a branch; as it is remembered where nobody else wrote since it was saved here.

        Of one that was read here and not saved, the record of its state is read again, and those that came since.
        """
        writer = self._writer_of(uid, branch)
        state = (None if writer is None else writer.newest(STATE)) or self._last_read.get(uid)
        known_id = None if state is None else state.checkpoint
        head = self.backend.load_head(uid, branch, known=None if known_id is None else (known_id, STATE))
        if head is UNCHANGED:
            if writer is not None and writer.head is not None and writer.head.id == known_id:
                return writer.head
            head = self.backend.load_head(uid, branch)
        loaded = reader.from_head(head, state) if isinstance(head, StoredHead) else None
        if loaded is not None and writer is None and len(loaded.contents[STATE]) <= MAX_READ_BYTES:
            self._last_read = {uid: Base(loaded.header.id, loaded.contents[STATE])}
        return loaded

    def _writer_of(self, uid: str, branch: str | None) -> BranchWriter | None:
        """The writer of a branch, of the current one as last seen unless named."""
        known = self._known.get(uid)
        on_branch = branch or (known.session.branch if known is not None else None)
        return None if on_branch is None else self._writers.find(uid, on_branch)

    def annotated_head(self, uid: str, branch: str, kind: str) -> tuple[Loaded, list[Annotation]] | None:
        """The head of a branch with its annotations of a kind; None where `head` has none."""
        last = self._last_annotated  # who annotates meanwhile makes what is read here outdated
        found = self._newest(uid, branch)
        if found is None:
            return None
        if not isinstance(found, Remembered):
            return found, self.backend.annotations(uid, [found.header.id], kind)
        known = found.annotations.get(kind)
        if known is None or known[0] != last:
            known = found.annotations[kind] = last, self.backend.annotations(uid, [found.id], kind)
        return found.loaded(), known[1]

    def annotate(
        self,
        uid: str,
        target: Target,
        kind: str,
        name: str,
        data: bytes,
        *,
        time_us: int | None = None,
        replace: bool = False,
        fence: int | None = None,
    ) -> bool:
        """Attach bytes to a checkpoint, also to one that is still to come; see the port."""
        time_us = self.clock() if time_us is None else time_us
        try:
            return self.backend.annotate(
                uid, target, kind, name, data, time_us=time_us, replace=replace, fence=fence
            )
        finally:
            self._last_annotated = next(self._annotated)

    def headers(
        self,
        query: HeaderQuery,
        *,
        metadata: Mapping[str, Any] | None = None,
        broken: list[tuple[HeaderRow, StepkeepError]] | None = None,
    ) -> Iterator[Header]:
        """Verified headers. Broken ones are left out, logged, and added to `broken` where it is given."""
        wanted = query.limit
        for row in self.backend.headers(msgspec.structs.replace(query, limit=None)):
            if wanted is not None and wanted <= 0:
                return
            try:
                header = reader.verified(row)
            except StepkeepError as exc:
                log.warning("checkpoint %s is left out of the list: %s (%s)", row.id, exc, exc.code)
                if broken is not None:
                    broken.append((row, exc))
                continue
            if metadata and not metadata.items() <= header.metadata.items():
                continue
            wanted = None if wanted is None else wanted - 1
            yield header

    def header(self, checkpoint: str, *, session: str | None = None) -> Header:
        """The verified header with that id."""
        row = self._find_row(session, checkpoint)
        if row is None:
            raise NotFound(
                f"no checkpoint {checkpoint}",
                code="checkpoint_not_found",
                session=session,
                checkpoint=checkpoint,
            )
        return reader.verified(row)

    def is_stored(self, header: Header) -> bool:
        """Whether a checkpoint is still there: what cannot be read may have been removed a moment ago."""
        return self._find_row(header.session, header.id) is not None

    def newest(self, uid: str) -> Loaded | None:
        """The checkpoint with the highest seq, on whichever branch, verified; no fallback."""
        row = next(self.backend.headers(HeaderQuery(session=uid, limit=1)), None)
        return None if row is None else self.load(reader.verified(row))

    def load(self, header: Header) -> Loaded:
        """A checkpoint with all its contents, verified; no fallback."""
        saved = self._writers.newest(header.session, header.branch, STATE)
        return reader.load(self.backend, header, saved or self._last_read.get(header.session))

    def load_many(self, headers: Sequence[Header]) -> dict[str, Loaded]:
        """Checkpoints of one session with all their contents, verified, by id; what they share is read once.

        Those that are damaged or gone are left out: `load` finds them another way, or tells what is wrong.
        """
        return reader.load_many(self.backend, headers, self._contents)

    def _find_row(self, session: str | None, checkpoint: str) -> HeaderRow | None:
        return next(self.backend.headers(HeaderQuery(session=session, ids=(checkpoint,), limit=1)), None)

    def _head(self, uid: str, branch: str) -> HeaderRow | None:
        record = self.backend.branch(uid, branch)
        return None if record is None or record.head is None else self._find_row(uid, record.head)

    # --- deleting

    def delete(self, uid: str, checkpoints: Sequence[str], *, fence: int | None = None) -> None:
        """Remove checkpoints so that their bytes are gone from the store.

        What is based on them is re-encoded first; a secret saved by mistake must not live on in a base.

        Raises:
            NotFound: one of them is not there. Nothing is removed.
            Conflict: another checkpoint requires one of them. The others are removed.
            Corrupt: a dependent is damaged and cannot be re-encoded: delete that one as well.
        """
        going = set(checkpoints)
        for checkpoint in checkpoints:
            if self._find_row(uid, checkpoint) is None:
                raise NotFound(
                    f"no checkpoint {checkpoint}", code="checkpoint_not_found", checkpoint=checkpoint
                )
        self._detach(uid, going, fence)
        removed = self.backend.remove(uid, checkpoints, secure=True, fence=fence)
        # Whoever based on one of them meanwhile keeps it hidden: detach again until it is gone.
        gone = set(removed.removed)
        while self._detach(uid, gone, fence):
            self._sweep(uid)
        self._sweep(uid)
        if removed.refused:
            raise Conflict(
                f"{', '.join(removed.refused)} must stay: other checkpoints require it",
                code="still_required",
                retryable=False,
                session=uid,
            )

    def _detach(self, uid: str, going: set[str], fence: int | None) -> bool:
        """Re-encode every body that is based on one of these; False when there was none."""
        dependents = self._dependents(uid, going)
        for dependent in dependents:
            try:
                self._reencode(uid, dependent.checkpoint, dependent.name, fence)
            except (Corrupt, NotFound):
                if self.backend.body(uid, dependent.checkpoint, dependent.name) is not None:
                    raise
                # It was pruned meanwhile, and depends on nothing any more.
        self.forget(uid)
        return bool(dependents)

    def _dependents(self, uid: str, going: set[str]) -> list[BodyInfo]:
        return [
            info
            for info in self.backend.bodies(uid)
            if info.base in going and info.checkpoint not in going and not info.is_redundant
        ]

    def delete_session(self, uid: str, *, fence: int | None = None) -> None:
        """Remove a session and all its bytes."""
        self.backend.delete_session(uid, secure=True, fence=fence)
        self.forget(uid)
        self.encoder.forget(uid)
        self._sweep(None)

    def _sweep(self, uid: str | None) -> None:
        while self.backend.sweep(session=uid, secure=True).has_more:
            pass

    # --- lifetime

    def _worker(self, name: str) -> Worker:
        """A background thread, made when it is needed first; of two that are made at once one is used."""
        return self._workers.get(name) or self._workers.setdefault(name, Worker(name))

    def _wait_for_workers(self) -> None:
        for name in (MAKING, SETTLING):  # what makes bodies hands the saves over
            if (worker := self._workers.get(name)) is not None:
                worker.wait()

    def flush(self) -> None:
        """Return when every save submitted so far is settled."""
        if self._workers:
            self._wait_for_workers()
        if self._committer.queue:
            self._committer.flush()

    def close(self) -> None:
        """Finish what was submitted and close the backend."""
        self.flush()
        for worker in self._workers.values():
            worker.stop()
        self.encoder.clear()
        self.backend.close()

    def before_fork(self) -> None:
        self._wait_for_workers()
        self._committer.before_fork()

    def after_fork(self, *, is_child: bool) -> None:
        self._committer.after_fork(is_child=is_child)
        if is_child:  # another thread of the parent may have held one of the old locks
            self._writers = Writers()
            self.encoder = IncrementalEncoder(self.max_state_bytes)
            self._being_made = {}
            self._contents = reader.Contents()


def _blobs(save: Save) -> tuple[Blob, ...]:
    """All blobs that come with a save."""
    return (*save.blobs, *save.files.blobs) if isinstance(save.files, Made) else save.blobs


def _draft(save: Save, bodies: dict[str, NewBody], current: str, time_us: int) -> Header:
    """The header of a save but for its place, after its options were checked."""
    contents, total = {}, 0
    for name, body in bodies.items():
        contents[name] = body.described()
        total += contents[name].size
    if total > reader.MAX_LOADED_BYTES:
        raise InvalidInput(
            "the bodies of the checkpoint are too large together: save less", code=exact.TOO_LARGE
        )
    return Header(
        v=FORMAT_VERSION,
        id=new_checkpoint_id(time_us),
        session=save.session,
        seq=0,
        branch=current if save.branch is None else check_branch_name(save.branch),
        time_us=time_us,
        contents=contents,
        external_id=None if save.external_id is None else check_name("an external id", save.external_id),
        idempotency_key=None
        if save.idempotency_key is None
        else check_name("an idempotency key", save.idempotency_key),
        step=None if save.step is None else _checked_step(save.step),
        status=save.status,
        trigger=save.trigger,
        message="" if save.message == "" else check_text("a message", save.message),
        tags=_checked_tags(save.tags) if save.tags else (),
        metadata={} if save.metadata == {} else plain_metadata(save.metadata),
        requires=save.requires,
    )


def _checked_fields(fields: dict[str, Any]) -> dict[str, Any]:
    """The fields of a session that its user chooses, or `InvalidInput`."""
    if "profile" in fields:
        profile_named(fields["profile"])
    for name in fields.keys() & {"project", "workflow"}:
        check_name(f"a {name}", fields[name])
    if "branch" in fields:
        check_branch_name(fields["branch"])
    if "metadata" in fields:
        return {**fields, "metadata": plain_metadata(fields["metadata"])}
    return fields


class PlainMetadata(dict[str, Any]):
    """Metadata that were found to be plain and small enough: they are not looked at again."""


def plain_metadata(metadata: object) -> PlainMetadata:
    """A copy of metadata as plain JSON values, or `InvalidInput`."""
    if type(metadata) is PlainMetadata:
        return metadata
    if not isinstance(metadata, Mapping):
        raise InvalidInput(f"metadata is a dict, not {type(metadata).__name__}", code="metadata_not_plain")
    if not metadata:
        return PlainMetadata()
    encoding, content, copy = exact.encode_copy(dict(metadata))
    if encoding != exact.JSON:
        raise InvalidInput(
            "metadata may only hold text, numbers, booleans, None, lists and dicts with text keys: "
            "put other values into the state",
            code="metadata_not_plain",
        )
    check_metadata("metadata", len(content))
    return PlainMetadata(copy)  # the caller may change its own right away


def _checked_tags(tags: Sequence[str]) -> tuple[str, ...]:
    if len(tags) > MAX_TAGS:
        raise InvalidInput(f"a checkpoint has at most {MAX_TAGS} tags, not {len(tags)}", code="too_many_tags")
    return tuple(dict.fromkeys(check_name("a tag", tag) for tag in tags))


def _checked_step(step: object) -> int:
    if isinstance(step, bool) or not isinstance(step, int) or not -(2**63) <= step < 2**63:
        raise InvalidInput(f"a step is a whole number of 64 bits, not {step!r}", code="invalid_step")
    return int(step)
