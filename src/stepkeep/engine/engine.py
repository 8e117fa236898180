"""The engine: every layer above works on it, and it alone knows how a state becomes records."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import msgspec

from stepkeep import forks
from stepkeep.codec import exact, patch
from stepkeep.codec.integrity import check_content, check_stored, describe, digest, seal
from stepkeep.engine import reader, writer
from stepkeep.engine.committer import Committer, Ticket
from stepkeep.engine.reader import Loaded
from stepkeep.engine.writer import Line, LineKey, Lines, LineState, Member, Shares
from stepkeep.errors import Conflict, Corrupt, InvalidInput, NotFound, StepkeepError
from stepkeep.logs import Log
from stepkeep.model import (
    MAX_TAGS,
    Content,
    Draft,
    Header,
    Session,
    Status,
    Trigger,
    check_branch_name,
    check_metadata,
    check_name,
    check_text,
    new_checkpoint_id,
    new_uid,
    utc_now_us,
)
from stepkeep.policy.profiles import profile_named
from stepkeep.storage.port import (
    ANY_HEAD,
    REPEATABLE,
    Append,
    Backend,
    Blob,
    Body,
    BodyInfo,
    HeaderQuery,
    HeaderRow,
)

if TYPE_CHECKING:
    from queue import Queue

log = Log("stepkeep")

MAX_REPEATS: Final = 100
"""How often a save is sent again because a sweep took its base or blobs, or the session changed its branch. Others have
to come in between each time, so the end is only for a fault."""


MAX_KNOWN_SESSIONS: Final = 1000

MAX_LOOK_BACK: Final = 64
"""Among how many checkpoints the last one with a body is looked for, to store a patch instead of all of it."""

MAX_ERROR_BYTES: Final = 16 * 1024


class NewBody(msgspec.Struct, frozen=True):
    """The content of one body to save, and all blobs it names.

    Who knows the digest of the content, or what it shares with an earlier one, says so: it is not looked for again.
    """

    content: bytes
    encoding: str
    blobs: frozenset[str] = frozenset()
    digest: str | None = None
    shares: Shares | None = None

    def described(self) -> Content:
        """How the header names it."""
        if self.digest is None:
            return describe(self.content, self.encoding)
        return Content(digest=self.digest, size=len(self.content), encoding=self.encoding)


class Save(msgspec.Struct, frozen=True, kw_only=True):
    """Everything about a checkpoint that its saver decides. `branch` None means the session's current one."""

    session: str
    bodies: dict[str, NewBody]
    blobs: tuple[Blob, ...] = ()
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


class Pending:
    """A save on its way. `result` returns its header once it is durable, or raises why it is not stored."""

    def __init__(self, engine: Engine, checkpoint: str, ticket: Ticket) -> None:
        self._engine = engine
        self._ticket = ticket
        self._header: Header | None = None
        self.id = checkpoint

    @property
    def is_done(self) -> bool:
        return self._ticket.is_done

    def result(self) -> Header:
        if self._header is None:
            self._header = self._engine.confirm(self._ticket)
        return self._header


class Engine:
    """Saves, loads and removes checkpoints on a backend. Safe for threads and forks.

    Three callbacks let a keeper watch: `on_append` before a save is queued, and raising there refuses it;
    `on_saved` when one is durable; `on_finished` when a session got its final status. They are called on the
    saver's thread, so they are quick, and the last two never raise.
    """

    def __init__(
        self,
        backend: Backend,
        *,
        clock: Callable[[], int] = utc_now_us,
        keyframe_every: int | None = None,
        max_state_bytes: int = exact.MAX_BYTES,
        compresses: Callable[[Session], bool] = lambda _: True,
    ) -> None:
        self.backend = backend
        self.clock = clock
        self._keyframe_every = keyframe_every
        self._compresses = compresses
        self.max_state_bytes = max_state_bytes
        self._committer = Committer(lambda batch: backend.append(batch, seal))
        self._lines = Lines()
        self._sessions: dict[str, Session] = {}
        self._background = _Background()
        self.on_append: Callable[[Append], None] | None = None
        self.on_saved: Callable[[Header], None] | None = None
        self.on_finished: Callable[[Session], None] | None = None
        forks.register(self)

    # --- sessions

    def open_session(self, key: str, **fields: Any) -> Session:
        """The living session with that key, created with these fields if there is none."""
        check_name("a session key", key)
        found = self.backend.session_by_key(key)
        return self._create_session(key, fields) if found is None else found

    def _create_session(self, key: str, fields: dict[str, Any]) -> Session:
        now_us = self.clock()
        session = Session(
            uid=new_uid(), key=key, created_us=now_us, updated_us=now_us, **_checked_fields(fields)
        )
        try:
            return self.backend.create_session(session)
        except Conflict:
            # Another process was faster: its session is the session.
            found = self.backend.session_by_key(key)
            if found is None:
                raise
            return found

    def find_session(self, key: str) -> Session:
        """The living session with that key, or `NotFound`."""
        check_name("a session key", key)
        session = self.backend.session_by_key(key)
        if session is None:
            raise NotFound(f"no session {key!r}", code="session_not_found", session=key)
        return session

    def describe_session(self, uid: str, changes: dict[str, Any]) -> Session:
        """Change what a session says of itself: profile, project, workflow, test flag, metadata."""
        self._sessions.pop(uid, None)
        return self.backend.update_session(uid, _checked_fields(changes))

    def finish(
        self, uid: str, status: Status, *, error: str | None = None, fence: int | None = None
    ) -> Session:
        """Set the status of a session; one that pauses or ends gets a newest checkpoint that stands alone."""
        now_us = self.clock()
        error = None if error is None else shortened(error)
        changes = {
            "status": status,
            "updated_us": now_us,
            "finished_us": now_us if status.is_finished else None,
            "error": error,
        }
        session = self.backend.update_session(uid, changes, fence=fence)
        self.backend.record_event(uid, f"session_{status}", {"error": error} if error else {}, time_us=now_us)
        if status is not Status.IN_PROGRESS:
            self._make_head_stand_alone(session, fence)
        if status.is_finished and self.on_finished is not None:
            self.on_finished(session)
        return session

    def _make_head_stand_alone(self, session: Session, fence: int | None) -> None:
        head = self._head(session.uid, session.branch)
        if head is None or not self.backend.capabilities.takes_patches:
            return
        try:
            for name in reader.verified(head).contents:
                self._reencode(session.uid, head.id, name, fence)
        except (Conflict, Corrupt, NotFound) as exc:
            log.warning("the newest checkpoint of %r was not made to stand alone: %s", session.key, exc)
        self.forget(session.uid)

    def _reencode(self, uid: str, checkpoint: str, name: str, fence: int | None = None) -> None:
        """Store a body as a keyframe, if it is a patch."""
        chain = self.backend.body_chain(uid, checkpoint, name)
        if not chain or chain[0].base is None:
            return
        content = reader.rebuild(self.backend, uid, checkpoint, name)
        header = self._find_row(uid, checkpoint)
        if header is not None:
            check_content(content, reader.verified(header).contents[name], checkpoint=checkpoint, body=name)
        body = writer.keyframe(name, writer.member_of(chain, content))
        self.backend.replace_body(uid, body, expect_digest=chain[0].digest, fence=fence)

    # --- saving

    def encode(self, value: object) -> NewBody:
        """The body for a value, or `InvalidInput` naming the place that would not come back equal."""
        encoding, content = exact.encode(value, max_bytes=self.max_state_bytes)
        return NewBody(content, encoding)

    def save(self, save: Save) -> Header:
        """Store a checkpoint durably. When this returns it survives a kill and a loss of power (V1)."""
        return self.submit(save).result()

    def submit(self, save: Save) -> Pending:
        """Queue a checkpoint; whoever asks for a result commits it, with all that were queued meanwhile."""
        session = self._session(save.session)
        draft = self._draft(save, session)
        return Pending(self, draft.id, self._send(save, draft, session))

    def _session(self, uid: str) -> Session:
        """The session as last seen. Its branch may have changed since: `append` checks that, and refuses."""
        known = self._sessions.get(uid)
        if known is None:
            if len(self._sessions) >= MAX_KNOWN_SESSIONS:
                self._sessions.clear()
            known = self._sessions[uid] = self.backend.session(uid)
        return known

    def submit_in_background(self, save: Save) -> Pending:
        """Queue a checkpoint that a background thread commits; `close` waits for it."""
        pending = self.submit(save)
        self._background.settle(pending)
        return pending

    def _draft(self, save: Save, session: Session) -> Draft:
        time_us = self.clock()
        return Draft(
            id=new_checkpoint_id(time_us),
            session=session.uid,
            branch=session.branch if save.branch is None else check_branch_name(save.branch),
            time_us=time_us,
            contents={name: body.described() for name, body in save.bodies.items()},
            parents=save.parents,
            external_id=_optional_name("an external id", save.external_id),
            idempotency_key=_optional_name("an idempotency key", save.idempotency_key),
            step=_checked_step(save.step),
            status=save.status,
            trigger=save.trigger,
            message=check_text("a message", save.message),
            tags=_checked_tags(save.tags),
            metadata=plain_metadata(save.metadata),
            requires=save.requires,
        )

    def _send(self, save: Save, draft: Draft, session: Session) -> Ticket:
        """Encode the bodies of a draft and queue it."""
        keys = [LineKey(draft.session, draft.branch, name) for name in save.bodies]
        # The lines stay locked until the append is queued: a body must not be committed before its base.
        with self._lines.locked(keys) as lines:
            bodies = [
                body
                for key, line in zip(keys, lines, strict=True)
                for body in self._encode(key, line, save, draft, session)
            ]
            append = _append(save, draft, bodies, self._missing(save.blobs))
            self._admit(append)
            return self._committer.enqueue(append, _Repeats(self, save, draft))

    def _admit(self, append: Append) -> None:
        if self.on_append is None:
            return
        try:
            self.on_append(append)
        except StepkeepError:
            self.forget(append.draft.session)  # the lines already count on it
            raise

    def _encode(self, key: LineKey, line: Line, save: Save, draft: Draft, session: Session) -> list[Body]:
        """The records for the next body of a line."""
        new = save.bodies[key.name]
        member = Member(draft.id, new.content, new.blobs)
        if not self.backend.capabilities.takes_patches:
            return [writer.plain(key.name, member)]
        if line.is_cold:
            line.state = self._warm(key)
            line.is_cold = False
        bodies, line.state = writer.encode(
            key.name,
            line.state,
            member,
            limit=self.group_limit(session),
            as_keyframe=save.status is not Status.IN_PROGRESS,
            compress=self._compresses(session),
            shares=new.shares,
        )
        return bodies

    def group_limit(self, session: Session) -> int:
        keep_last = (session.policy or {}).get("keep_last", profile_named(session.profile).keep_last)
        return patch.group_limit(keep_last, self._keyframe_every)

    def _missing(self, blobs: tuple[Blob, ...]) -> tuple[Blob, ...]:
        if not blobs:
            return blobs
        stored = self.backend.has_blobs([blob.digest for blob in blobs])
        return tuple(blob for blob in blobs if blob.digest not in stored)

    def _warm(self, key: LineKey) -> LineState | None:
        """What the line's newest stored body is, verified; None when the next one must be a keyframe."""
        try:
            header = self._newest_with(key)
            if header is None:
                return None
            chain = self.backend.body_chain(key.session, header.id, key.name)
            if not chain or chain[-1].base is not None:
                return None
            state = writer.warm(chain, reader.from_chain)
            check_content(state.last.content, header.contents[key.name], checkpoint=header.id, body=key.name)
        except Corrupt as exc:
            log.warning("%s cannot be built upon, a keyframe follows: %s", exc.checkpoint or key.session, exc)
            return None
        return state

    def _newest_with(self, key: LineKey) -> Header | None:
        """The newest checkpoint of a line that has its body, verified. Not every checkpoint has every body."""
        head = self._head(key.session, key.branch)
        if head is None:
            return None
        header = reader.verified(head)
        if key.name in header.contents:
            return header
        query = HeaderQuery(
            session=key.session, branch=key.branch, max_seq=header.seq - 1, limit=MAX_LOOK_BACK
        )
        found = map(reader.verified, self.backend.headers(query))
        return next((each for each in found if key.name in each.contents), None)

    def confirm(self, ticket: Ticket) -> Header:
        """The header of a queued save, once it is durable."""
        draft = ticket.item.draft
        try:
            appended = ticket.result()
        except StepkeepError:
            self.forget(draft.session)
            raise
        if not appended.is_new:
            self.forget(draft.session)
        header = reader.verified(appended.row)
        if self.on_saved is not None:
            self.on_saved(header)
        return header

    def forget(self, uid: str) -> None:
        """Forget what is remembered of a session: it may not be what is stored."""
        self._sessions.pop(uid, None)
        self._lines.forget(uid)

    # --- blobs

    def make_blob(self, content: bytes) -> Blob:
        encoded = patch.encode_keyframe(content)
        return Blob(
            digest=digest(content),
            size=len(content),
            codec=encoded.codec,
            stored_digest=digest(encoded.data),
            data=encoded.data,
        )

    def load_blob(self, wanted: str) -> bytes:
        """The content with that digest, verified."""
        blob = self.backend.blob(wanted)
        if blob is None:
            raise NotFound(f"no blob {wanted}", code="blob_not_found")
        check_stored(blob.data, blob.stored_digest, checkpoint=wanted, body="blob")
        content = patch.decode(blob.codec, blob.data, size=blob.size)
        if digest(content) != wanted:
            raise Corrupt(f"blob {wanted} does not match its digest")
        return content

    # --- reading

    def latest(self, session: Session, branch: str | None = None) -> Loaded | None:
        """The newest checkpoint of a branch that verifies; see `reader.load_latest`."""
        return reader.load_latest(self.backend, session, branch or session.branch, self._remembered)

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
        return reader.load(self.backend, header, self._remembered)

    def _remembered(self, header: Header, name: str) -> bytes | None:
        return self._lines.remembered(LineKey(header.session, header.branch, name), header.id)

    def _find_row(self, session: str | None, checkpoint: str) -> HeaderRow | None:
        return next(self.backend.headers(HeaderQuery(session=session, ids=(checkpoint,), limit=1)), None)

    def _head(self, uid: str, branch: str) -> HeaderRow | None:
        record = self.backend.branch(uid, branch)
        return None if record is None or record.head is None else self._find_row(uid, record.head)

    # --- deleting

    def delete(self, uid: str, checkpoints: Sequence[str], *, fence: int | None = None) -> None:
        """Remove checkpoints so that their bytes are gone from the store.

        What is patched against them is re-encoded first; a secret saved by mistake must not live on in a base.

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
        # Whoever patched against one of them meanwhile keeps it hidden: detach again until it is gone.
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
        """Re-encode every body that is patched against one of these; False when there was none."""
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
            if info.base in going and info.checkpoint not in going and not info.is_spare
        ]

    def delete_session(self, uid: str, *, fence: int | None = None) -> None:
        """Remove a session and all its bytes."""
        self.backend.delete_session(uid, secure=True, fence=fence)
        self.forget(uid)
        self._sweep(None)

    def _sweep(self, uid: str | None) -> None:
        while self.backend.sweep(session=uid, secure=True).has_more:
            pass

    # --- lifetime

    def flush(self) -> None:
        """Return when every save submitted so far is settled."""
        self._background.wait()
        self._committer.flush()

    def close(self) -> None:
        """Finish what was submitted and close the backend."""
        self._background.close()
        self._committer.flush()
        self.backend.close()

    def before_fork(self) -> None:
        self._background.wait()
        self._committer.before_fork()

    def after_fork(self, *, is_child: bool) -> None:
        self._committer.after_fork(is_child=is_child)
        if is_child:
            self._lines = Lines()  # another thread of the parent may have held one of the old locks
            self._background = _Background()


class _Repeats:
    """What to send when a save is refused because others worked on its session meanwhile.

    Each repeat depends on nothing that is stored: bodies as keyframes, and all blobs.
    """

    def __init__(self, engine: Engine, save: Save, draft: Draft) -> None:
        self._engine = engine
        self._save = save
        self._draft = draft
        self._left = MAX_REPEATS

    def __call__(self, refusal: StepkeepError) -> Append | None:
        if refusal.code not in REPEATABLE or not self._left:
            return None
        self._left -= 1
        self._engine.forget(self._draft.session)
        if refusal.code == "branch_switched":
            session = self._engine.backend.session(self._draft.session)
            self._draft = msgspec.structs.replace(self._draft, branch=session.branch)
        bodies = [
            writer.keyframe(name, Member(self._draft.id, new.content, new.blobs))
            for name, new in self._save.bodies.items()
        ]
        return _append(self._save, self._draft, bodies, self._save.blobs)


def _append(save: Save, draft: Draft, bodies: Sequence[Body], blobs: tuple[Blob, ...]) -> Append:
    return Append(
        draft=draft,
        bodies=tuple(bodies),
        blobs=blobs,
        expect_head=save.expect_head,
        fence=save.fence,
        on_current=save.branch is None,
    )


class _Background:
    """One daemon thread, started on demand, that settles saves nobody waits for."""

    def __init__(self) -> None:
        self._queue: Queue[Pending | None] | None = None
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    def settle(self, pending: Pending) -> None:
        from queue import Queue  # most processes never save in the background

        with self._lock:
            if self._queue is None:
                self._queue = Queue()
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._work, args=(self._queue,), name="stepkeep-saver", daemon=True
                )
                self._thread.start()
            self._queue.put(pending)

    def _work(self, queue: Queue[Pending | None]) -> None:
        while (pending := queue.get()) is not None:
            try:
                pending.result()
            except Exception as exc:  # whoever asks for the result gets it; the thread must go on
                log.error("a save in the background failed: %s", exc)
            finally:
                queue.task_done()
        queue.task_done()

    def wait(self) -> None:
        if self._queue is not None:
            self._queue.join()

    def close(self) -> None:
        with self._lock:
            thread, self._thread = self._thread, None
        if thread is not None and self._queue is not None:
            self._queue.put(None)
            thread.join()


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


def plain_metadata(metadata: object) -> dict[str, Any]:
    """A copy of metadata as plain JSON values, or `InvalidInput`."""
    if not isinstance(metadata, Mapping):
        raise InvalidInput(f"metadata is a dict, not {type(metadata).__name__}", code="metadata_not_plain")
    if not metadata:
        return {}
    encoding, content = exact.encode(dict(metadata))
    if encoding != exact.JSON:
        raise InvalidInput(
            "metadata may only hold text, numbers, booleans, None, lists and dicts with text keys: "
            "put other values into the state",
            code="metadata_not_plain",
        )
    check_metadata("metadata", len(content))
    copy: dict[str, Any] = exact.decode(encoding, content)  # the caller may change its own right away
    return copy


def shortened(text: str) -> str:
    """A text of any length cut to what a session keeps: a long traceback must not stop it from being marked."""
    encoded = text.encode("utf-8", "replace").replace(b"\0", b"?")
    return encoded[:MAX_ERROR_BYTES].decode("utf-8", "ignore")


def _optional_name(what: str, text: str | None) -> str | None:
    return None if text is None else check_name(what, text)


def _checked_tags(tags: Sequence[str]) -> tuple[str, ...]:
    if len(tags) > MAX_TAGS:
        raise InvalidInput(f"a checkpoint has at most {MAX_TAGS} tags, not {len(tags)}", code="too_many_tags")
    return tuple(dict.fromkeys(check_name("a tag", tag) for tag in tags))


def _checked_step(step: object) -> int | None:
    if step is None:
        return None
    if isinstance(step, bool) or not isinstance(step, int) or not -(2**63) <= step < 2**63:
        raise InvalidInput(f"a step is a whole number of 64 bits, not {step!r}", code="invalid_step")
    return int(step)
