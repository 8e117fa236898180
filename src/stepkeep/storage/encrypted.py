"""A store whose records are encrypted: a backend around a backend.

What comes down is encrypted here before the backend below sees it, and what comes up is decrypted. Neither side knows:
the engine above speaks of plain headers and bodies, the backend below stores bytes, and what it has to know of a
checkpoint is in the clear part of the header. What is in clear and what not, and what each record is bound to, is in
the format.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec

from stepkeep import typed
from stepkeep.codec import integrity
from stepkeep.codec.encryption import Cipher, mark_of, place, record_of
from stepkeep.errors import Corrupt, InvalidInput, StepkeepError
from stepkeep.model import HIDDEN_SHA256, SHA256, Branch, Content, Header, SessionInfo, Status, Trigger
from stepkeep.policy.retention import IMPORTED, PRUNED, SAFETY_TAG
from stepkeep.processes import Owner
from stepkeep.storage import conflicts, port
from stepkeep.storage.key_slots import Keyring, key_number
from stepkeep.storage.key_slots import record_of as record_of_keys
from stepkeep.storage.port import LOST, REBUILT, Annotation, Append, Appended, Backend, Blob, Body, Event

T = TypeVar("T")

replace = msgspec.structs.replace

_TEXTS: Final = ("error", "fingerprint")
"""The fields of a session that are encrypted, beside its metadata."""

_OWN_EVENTS: Final = frozenset(
    {"session_reopened", "session_repaired", "branch_repaired", REBUILT, LOST, PRUNED}
)
"""What a store notes itself, without anybody's words in it."""

_CIPHER: Final = "cipher"
_EXTERNAL, _IDEMPOTENCY, _ANNOTATION = "external id", "idempotency key", "annotation"

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder().decode


class _Secret(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What of a header is encrypted. `was` is the chain value that the header had in the store it was copied from."""

    external_id: str | None = None
    idempotency_key: str | None = None
    event: str | None = None
    message: str = ""
    tags: tuple[str, ...] = ()
    metadata: dict[str, Any] = {}
    was: str = ""


_secrets = typed.json_decoder(_Secret)
_NOTHING: Final = _encode(_Secret())


class EncryptedBackend:
    """An encrypted store as everything above sees it."""

    def __init__(self, inner: Backend, keyring: Keyring) -> None:
        self.inner = inner
        self.keyring = keyring
        self._cipher = Cipher(keyring.keys, keyring.refresh)
        self._last_with_blob: str | None = None
        self.capabilities = inner.capabilities
        self.url = inner.url

    @property
    def cipher(self) -> Cipher:
        """What encrypts for this store: events of agents that wait for it are encrypted by it too."""
        return self._cipher

    def _stored(self, store: Callable[[], T]) -> T:
        """Store what is encrypted in `store`; anew, if the store got another data key meanwhile.

        Raises:
            InvalidInput: that key is not for this one any more (`key_wrong`).
        """
        cipher, admit = self.cipher, self.keyring.keeper.admit_encrypted
        while True:
            admit(key := cipher.newest)
            try:
                return store()
            except conflicts.OtherKey:
                cipher.learn(self.keyring.refresh())
                if cipher.newest == key:
                    raise
            finally:
                admit(None)

    # --- headers

    def _hidden(self, draft: Header, was: str = "") -> tuple[Header, bytes]:
        """The clear part of a header, and the plain text of the rest."""
        secret = _encode(
            _Secret(
                external_id=draft.external_id,
                idempotency_key=draft.idempotency_key,
                event=draft.trigger.event,
                message=draft.message,
                tags=draft.tags,
                metadata=draft.metadata,
                was=was,
            )
        )
        cipher, uid = self.cipher, draft.session
        hidden = replace(
            draft,
            contents={name: self._hidden_content(each, uid) for name, each in draft.contents.items()},
            external_id=draft.external_id and cipher.name(_EXTERNAL, draft.external_id),
            idempotency_key=draft.idempotency_key and cipher.name(_IDEMPOTENCY, draft.idempotency_key),
            trigger=draft.trigger if draft.trigger.event is None else Trigger(draft.trigger.kind),
            message="",
            tags=(SAFETY_TAG,) if SAFETY_TAG in draft.tags else (),
            metadata=_clear_metadata(draft),
            digests=HIDDEN_SHA256,
            secret="" if secret == _NOTHING else cipher.commitment(secret, place("header", uid, draft.id)),
            chain="",
        )
        return hidden, secret

    def _hidden_content(self, content: Content, uid: str) -> Content:
        return replace(content, digest=self.cipher.hide(content.digest, uid))

    def _sealed(
        self, hidden: Header, secret: bytes, seq: int, parents: Sequence[str], chains: Sequence[str | None]
    ) -> bytes:
        def encrypt(clear: bytes) -> bytes:
            return self.cipher.encrypt(secret, place("header") + clear)

        return integrity.seal(hidden, seq, parents, chains, encrypt=encrypt)

    def _adopted(self, header: Header) -> bytes:
        """The bytes for a header of a store that is not encrypted; they remember the chain value it had.

        The same header gives the same bytes again, so that a copy can be repeated.
        """
        hidden, secret = self._hidden(header, header.chain)
        chains = [self._chain_of(header.session, parent) for parent in header.parents]

        def encrypt(clear: bytes) -> bytes:
            return self.cipher.encrypt_again(secret, place("header") + clear)

        return integrity.seal(hidden, header.seq, header.parents, chains, encrypt=encrypt)

    def header_for(self, raw: bytes, cipher: Cipher) -> bytes:
        """A header of this store as a cipher with the same key for names encrypts it; the same bytes if it did.

        Only the cipher text changes, so it has the same chain value. The same header gives the same bytes again.

        Raises:
            Corrupt: it is damaged, or not encrypted.
        """
        clear = integrity.clear_part(raw)
        record = integrity.cipher_text(integrity.open_header(raw), clear)
        if cipher.is_current(record) and cipher.writes_as(self.cipher):
            return raw
        at = place("header") + clear
        return integrity.with_cipher(clear, cipher.encrypt_again(self.cipher.decrypt(record, at), at))

    def _chain_of(self, uid: str, checkpoint: str) -> str | None:
        query = port.HeaderQuery(session=uid, ids=(checkpoint,), limit=1)
        row = next(self.inner.headers(query), None)
        return None if row is None else integrity.chain_of(row.raw)

    def open_header(self, raw: bytes, checkpoint: str | None = None) -> Header:
        """The header in stored bytes, decrypted, after every byte was checked.

        Raises:
            Corrupt: it is damaged, of another place, or not encrypted.
        """
        stored = integrity.open_header(raw, expect_id=checkpoint)
        if not stored.cipher:
            raise Corrupt(
                f"the header of {stored.id} is not encrypted, in a store that is", checkpoint=stored.id
            )
        clear = integrity.clear_part(raw)
        plain = self.cipher.decrypt(integrity.cipher_text(stored, clear), place("header") + clear)
        secret, uid = _secrets.decode(plain), stored.session
        expected = ""
        if plain != _NOTHING:
            expected = self.cipher.commitment(plain, place("header", uid, stored.id))
        if stored.secret != expected:
            raise Corrupt(f"the header of {stored.id} holds what another one said", checkpoint=stored.id)
        return replace(
            stored,
            contents={
                name: replace(each, digest=self.cipher.show(each.digest, uid))
                for name, each in stored.contents.items()
            },
            external_id=secret.external_id,
            idempotency_key=secret.idempotency_key,
            trigger=stored.trigger if secret.event is None else Trigger(stored.trigger.kind, secret.event),
            message=secret.message,
            tags=secret.tags,
            metadata=secret.metadata,
            digests=SHA256,
            secret="",
            cipher="",
        )

    def _row(self, row: port.HeaderRow) -> port.HeaderRow:
        """A row with its header decrypted, or with the reason why it cannot be."""
        if row.problem is not None:
            return row
        try:
            return replace(row, opened=_encode(self.open_header(row.raw, row.id)))
        except InvalidInput:
            raise  # the key is wrong by now, and the header is not damaged
        except (StepkeepError, msgspec.MsgspecError) as exc:
            problem = exc if isinstance(exc, StepkeepError) else Corrupt(str(exc), checkpoint=row.id)
            return replace(row, problem=problem)

    def headers(self, query: port.HeaderQuery) -> Iterator[port.HeaderRow]:
        if query.external_id is not None:
            query = replace(query, external_id=self.cipher.name(_EXTERNAL, query.external_id))
        if query.tag is None:
            return map(self._row, self.inner.headers(query))
        return self._tagged(query, query.tag)

    def _tagged(self, query: port.HeaderQuery, tag: str) -> Iterator[port.HeaderRow]:
        """Tags are in the encrypted part: every header that fits otherwise is looked into."""
        left = query.limit
        for found in self.inner.headers(replace(query, tag=None, limit=None)):
            row = self._row(found)
            if row.problem is None and tag not in integrity.read_header(row.opened).tags:
                continue
            if left is not None and (left := left - 1) < 0:
                return
            yield row

    # --- bodies and blobs

    def _body_in(self, uid: str, body: Body) -> Body:
        data = self.cipher.encrypt(body.data, _body_place(uid, body))
        return replace(
            body,
            data=data,
            stored_size=len(data),
            digest=integrity.digest(data),
            blobs=tuple(sorted(self.cipher.hide(blob, uid) for blob in body.blobs)),
        )

    def _body_out(self, uid: str, body: Body) -> Body:
        """A body decrypted. One that cannot be has no digest that fits: who reads it finds the damage."""
        try:
            integrity.check_stored(body.data, body.digest, checkpoint=body.checkpoint, body=body.name)
            data = self.cipher.decrypt(body.data, _body_place(uid, body))
            return replace(
                body,
                data=data,
                stored_size=len(data),
                digest=integrity.digest(data),
                blobs=self._shown(uid, body.blobs),
            )
        except Corrupt:
            return replace(body, digest="", blobs=())

    def _shown(self, uid: str, blobs: Sequence[str]) -> tuple[str, ...]:
        return tuple(sorted(self.cipher.show(blob, uid) for blob in blobs)) if blobs else ()

    def _blob_in(self, uid: str, blob: Blob) -> Blob:
        name = self.cipher.hide(blob.digest, uid)
        named = replace(blob, digest=name)
        data = self.cipher.encrypt(blob.data, _blob_place(uid, named))
        return replace(named, data=data, stored_digest=integrity.digest(data))

    def body(self, uid: str, checkpoint: str, name: str) -> Body | None:
        found = self.inner.body(uid, checkpoint, name)
        return None if found is None else self._body_out(uid, found)

    def body_chain(self, uid: str, checkpoint: str, name: str) -> list[Body]:
        return [self._body_out(uid, body) for body in self.inner.body_chain(uid, checkpoint, name)]

    def all_chains(self, uid: str, checkpoints: Sequence[str]) -> list[Body]:
        return [self._body_out(uid, body) for body in self.inner.all_chains(uid, checkpoints)]

    def redundant_delta(self, uid: str, checkpoint: str, name: str) -> Body | None:
        found = self.inner.redundant_delta(uid, checkpoint, name)
        return None if found is None else self._body_out(uid, found)

    def bodies(self, uid: str, checkpoints: Sequence[str] | None = None) -> list[port.BodyInfo]:
        found = self.inner.bodies(uid, checkpoints)
        return [replace(info, blobs=self._shown(uid, info.blobs)) if info.blobs else info for info in found]

    def replace_body(self, uid: str, body: Body, *, expect_digest: str, fence: int | None = None) -> None:
        def store() -> None:
            stored = self.inner.body(uid, body.checkpoint, body.name)
            if stored is None:
                raise conflicts.body_not_found(body)
            if self._body_out(uid, stored).digest != expect_digest:
                raise conflicts.body_changed(body)
            self.inner.replace_body(uid, self._body_in(uid, body), expect_digest=stored.digest, fence=fence)

        self._stored(store)

    def blob(self, digest: str, session: str | None = None) -> Blob | None:
        for uid in self._sessions_to_ask(session):
            name = self.cipher.hide(digest, uid)
            if (found := self.inner.blob(name, uid)) is not None:
                self._last_with_blob = uid
                return self._blob_out(uid, digest, found)
        return None

    def _sessions_to_ask(self, session: str | None) -> Iterator[str]:
        """The session whose blobs are looked for; where it is not known, all, that of the last blob first."""
        if session is not None:
            yield session
            return
        if self._last_with_blob is not None:
            yield self._last_with_blob
        for each in self.inner.sessions(port.SessionQuery()):
            yield each.uid

    def _blob_out(self, uid: str, digest: str, blob: Blob) -> Blob:
        try:
            integrity.check_stored(blob.data, blob.stored_digest, checkpoint=digest, body="blob")
            data = self.cipher.decrypt(blob.data, _blob_place(uid, blob))
        except Corrupt:
            return replace(blob, digest=digest, stored_digest="")
        return replace(blob, digest=digest, data=data, stored_digest=integrity.digest(data))

    def has_blobs(self, digests: Sequence[str], session: str | None = None) -> set[str]:
        found: set[str] = set()
        for uid in self._sessions_to_ask(session):
            names = {self.cipher.hide(digest, uid): digest for digest in digests}
            found |= {names[name] for name in self.inner.has_blobs(list(names), uid)}
            if len(found) == len(set(digests)):
                break
        return found

    def blob_sizes(self, uid: str) -> dict[str, port.BlobSize]:
        return {self.cipher.show(name, uid): size for name, size in self.inner.blob_sizes(uid).items()}

    # --- checkpoints

    def append(self, batch: Sequence[Append], seal: port.Seal) -> list[Appended | StepkeepError]:
        return self._stored(partial(self._append, batch, seal))

    def _append(self, batch: Sequence[Append], seal: port.Seal) -> list[Appended | StepkeepError]:
        secrets: dict[str, tuple[Append, bytes]] = {}
        opened: dict[str, bytes] = {}

        def sealed(hidden: Header, seq: int, parents: Sequence[str], chains: Sequence[str | None]) -> bytes:
            item, secret = secrets[hidden.id]
            plain = seal(item.draft, seq, parents, chains)  # what is refused in clear is refused
            raw = self._sealed(hidden, secret, seq, parents, chains)
            opened[hidden.id] = integrity.with_chain(plain, integrity.chain_of(raw))
            return raw

        refused: dict[int, StepkeepError] = {}
        items: list[Append] = []
        for at, item in enumerate(batch):
            try:
                hidden, secret = self._hidden(item.draft)
            except (msgspec.MsgspecError, TypeError, UnicodeEncodeError) as exc:
                refused[at] = integrity.unwritable(item.draft, exc)
                continue
            secrets[item.draft.id] = item, secret
            items.append(self._append_in(item, hidden))
        stored = self.inner.append(items, sealed) if items else []
        for outcome in stored:
            if isinstance(outcome, conflicts.OtherKey):
                raise outcome  # those that are stored are found when they are sent again
        outcomes = iter(stored)
        return [
            refused[at] if at in refused else self._outcome(next(outcomes), item, opened)
            for at, item in enumerate(batch)
        ]

    def _append_in(self, item: Append, hidden: Header) -> Append:
        uid = hidden.session
        return replace(
            item,
            draft=hidden,
            bodies=tuple(self._body_in(uid, body) for body in item.bodies),
            blobs=tuple(self._blob_in(uid, blob) for blob in item.blobs) if item.blobs else (),
        )

    def _outcome(
        self, outcome: Appended | StepkeepError, item: Append, opened: dict[str, bytes]
    ) -> Appended | StepkeepError:
        """What became of a save, in clear; what was just stored need not be decrypted."""
        if isinstance(outcome, StepkeepError):
            return self._told(outcome, item)
        if outcome.is_new:
            return replace(outcome, row=replace(outcome.row, opened=opened[item.draft.id]))
        return replace(outcome, row=self._row(outcome.row))

    def _told(self, error: StepkeepError, item: Append) -> StepkeepError:
        """A refusal in the words of the caller: below, only the keyed names are known."""
        for kind, text in ((_EXTERNAL, item.draft.external_id), (_IDEMPOTENCY, item.draft.idempotency_key)):
            if text is not None:
                error.message = error.message.replace(self.cipher.name(kind, text), text)
        error.args = (error.message,)
        return error

    def load_head(
        self, uid: str, branch: str | None = None, *, known: tuple[str, str] | None = None
    ) -> port.StoredHead | port.Unchanged | None:
        head = self.inner.load_head(uid, branch, known=known)
        if not isinstance(head, port.StoredHead):
            return head
        try:
            session = self._session_out(head.session)
        except Corrupt:
            return None
        chains = {name: [self._body_out(uid, body) for body in links] for name, links in head.chains.items()}
        return port.StoredHead(session=session, row=self._row(head.row), chains=chains)

    def adopt(
        self,
        uid: str,
        raw: bytes,
        *,
        bodies: Sequence[Body],
        blobs: Sequence[Blob] = (),
        annotations: Sequence[Annotation] = (),
    ) -> bool:
        self.inner.session(uid)
        header = integrity.open_header(raw)
        if header.cipher:
            self.open_header(raw)  # nothing comes in that is not encrypted with the keys of this store

        def store() -> bool:
            return self.inner.adopt(
                uid,
                self.header_for(raw, self.cipher) if header.cipher else self._adopted(header),
                bodies=[self._body_in(uid, body) for body in bodies],
                blobs=[self._blob_in(uid, blob) for blob in blobs],
                annotations=[self._annotation_in(uid, each) for each in annotations],
            )

        return self._stored(store)

    def remove(
        self,
        uid: str,
        checkpoints: Sequence[str],
        *,
        secure: bool = False,
        fence: int | None = None,
        keep_heads: bool = False,
    ) -> port.Removed:
        return self.inner.remove(uid, checkpoints, secure=secure, fence=fence, keep_heads=keep_heads)

    def sweep(
        self,
        *,
        session: str | None = None,
        limit: int = 1000,
        annotations_before_us: int | None = None,
        secure: bool = False,
    ) -> port.Swept:
        return self.inner.sweep(
            session=session, limit=limit, annotations_before_us=annotations_before_us, secure=secure
        )

    # --- sessions and branches

    def _fields_in(self, uid: str, fields: dict[str, Any]) -> dict[str, Any]:
        """Fields of a session as they are stored. What is empty says nothing, and stays as it is."""
        hidden = dict(fields)
        for name in _TEXTS:
            if hidden.get(name) is not None:
                hidden[name] = self.cipher.encrypt_text(
                    str(hidden[name]).encode(), place("session", uid, name)
                )
        if hidden.get("metadata"):
            hidden["metadata"] = self._data_in(hidden["metadata"], place("session", uid, "metadata"))
        return hidden

    def _session_in(self, session: SessionInfo) -> SessionInfo:
        fields = {name: getattr(session, name) for name in (*_TEXTS, "metadata")}
        return replace(session, **self._fields_in(session.uid, fields))

    def _session_out(self, session: SessionInfo) -> SessionInfo:
        uid, shown = session.uid, dict[str, Any]()
        for name in _TEXTS:
            if (value := getattr(session, name)) is not None:
                shown[name] = self.cipher.decrypt(record_of(value), place("session", uid, name)).decode()
        if session.metadata:
            shown["metadata"] = self._data_out(session.metadata, place("session", uid, "metadata"))
        return replace(session, **shown) if shown else session

    def _data_in(self, data: dict[str, Any], at: bytes) -> dict[str, Any]:
        return {_CIPHER: self.cipher.encrypt_text(_encode(data), at)}

    def _data_out(self, data: dict[str, Any], at: bytes) -> dict[str, Any]:
        shown: dict[str, Any] = _decode(self.cipher.decrypt(record_of(data.get(_CIPHER)), at))
        return shown

    def _branch_in(self, uid: str, branch: Branch) -> Branch:
        if not branch.metadata:
            return branch
        return replace(branch, metadata=self._data_in(branch.metadata, place("branch", uid, branch.name)))

    def _branch_out(self, uid: str, branch: Branch) -> Branch:
        if not branch.metadata:
            return branch
        return replace(branch, metadata=self._data_out(branch.metadata, place("branch", uid, branch.name)))

    def create_session(self, session: SessionInfo) -> SessionInfo:
        return self._session_out(self._stored(lambda: self.inner.create_session(self._session_in(session))))

    def session(self, uid: str) -> SessionInfo:
        return self._session_out(self.inner.session(uid))

    def session_by_key(self, key: str) -> SessionInfo | None:
        found = self.inner.session_by_key(key)
        return None if found is None else self._session_out(found)

    def sessions(self, query: port.SessionQuery) -> Iterator[SessionInfo]:
        return map(self._session_out, self.inner.sessions(query))

    def update_session(
        self,
        uid: str,
        changes: dict[str, Any],
        *,
        expect_version: int | None = None,
        fence: int | None = None,
    ) -> SessionInfo:
        return self._session_out(
            self._stored(
                lambda: self.inner.update_session(
                    uid, self._fields_in(uid, changes), expect_version=expect_version, fence=fence
                )
            )
        )

    def delete_session(
        self, uid: str, *, secure: bool = False, fence: int | None = None, expect: SessionInfo | None = None
    ) -> None:
        stored = None if expect is None else self._as_stored(expect)
        self.inner.delete_session(uid, secure=secure, fence=fence, expect=stored)

    def delete_sessions(
        self, expected: Sequence[SessionInfo], *, secure: bool = False
    ) -> list[int | StepkeepError]:
        return self.inner.delete_sessions([self._as_stored(each) for each in expected], secure=secure)

    def _as_stored(self, expect: SessionInfo) -> SessionInfo:
        """The stored form of a session, if it still is as expected; else one that will be found to differ."""
        with suppress(StepkeepError):
            stored = self.inner.session(expect.uid)
            if self._session_out(stored) == expect:
                return stored
        return expect

    def branch(self, uid: str, name: str) -> Branch | None:
        found = self.inner.branch(uid, name)
        return None if found is None else self._branch_out(uid, found)

    def branches(self, uid: str) -> list[Branch]:
        return [self._branch_out(uid, branch) for branch in self.inner.branches(uid)]

    def set_branch(
        self, uid: str, branch: Branch, *, expect_head: str | None = port.ANY_HEAD, fence: int | None = None
    ) -> Branch:
        stored = self._stored(
            lambda: self.inner.set_branch(
                uid, self._branch_in(uid, branch), expect_head=expect_head, fence=fence
            )
        )
        return self._branch_out(uid, stored)

    def adopt_session(
        self, session: SessionInfo, branches: Sequence[Branch] = (), events: Sequence[Event] = ()
    ) -> SessionInfo:
        uid = session.uid
        adopted = self._stored(
            lambda: self.inner.adopt_session(
                self._session_in(session),
                [self._branch_in(uid, branch) for branch in branches],
                [self._event_in(uid, event) for event in events],
            )
        )
        return self._session_out(adopted)

    # --- annotations, events, leases

    def _target(self, target: port.Target) -> port.Target:
        return target if isinstance(target, str) else (target[0], self.cipher.name(_EXTERNAL, target[1]))

    def _annotation_in(self, uid: str, note: Annotation) -> Annotation:
        """An annotation as it is stored: with its target and name, which are only keyed there, in its data."""
        target, name = self._target(note.target), self.cipher.name(_ANNOTATION, note.name)
        words = _encode((note.name, None if isinstance(note.target, str) else note.target[1]))
        data = self.cipher.encrypt(words + b"\n" + note.data, _annotation_place(uid, target, note.kind, name))
        return replace(note, target=target, name=name, data=data, digest=integrity.digest(data))

    def _annotation_out(self, uid: str, note: Annotation) -> Annotation:
        try:
            integrity.check_stored(note.data, note.digest, checkpoint=str(note.target), body=note.kind)
            at = _annotation_place(uid, note.target, note.kind, note.name)
            words, _, data = self.cipher.decrypt(note.data, at).partition(b"\n")
        except Corrupt:
            return replace(note, digest="")
        name, external_id = _decode(words)
        target = note.target if isinstance(note.target, str) else (note.target[0], str(external_id))
        return replace(note, target=target, name=name, data=data, digest=integrity.digest(data))

    def annotate(
        self,
        uid: str,
        target: port.Target,
        kind: str,
        name: str,
        data: bytes,
        *,
        time_us: int,
        replace: bool = False,
        fence: int | None = None,
    ) -> bool:
        plain = Annotation(target=target, kind=kind, name=name, data=data, time_us=time_us, digest="")

        def store() -> bool:
            note = self._annotation_in(uid, plain)
            return self.inner.annotate(
                uid, note.target, kind, note.name, note.data, time_us=time_us, replace=replace, fence=fence
            )

        return self._stored(store)

    def annotations(
        self, uid: str, targets: Sequence[port.Target] | None = None, kind: str | None = None
    ) -> list[Annotation]:
        wanted = None if targets is None else [self._target(target) for target in targets]
        return [self._annotation_out(uid, note) for note in self.inner.annotations(uid, wanted, kind)]

    def _event_in(self, uid: str, event: Event) -> Event:
        if not event.data or event.type in _OWN_EVENTS - {PRUNED}:
            return event
        return replace(event, data=self._data_in(event.data, _event_place(uid, event)))

    def _event_out(self, uid: str, event: Event) -> Event:
        if not event.data or (event.type in _OWN_EVENTS and _CIPHER not in event.data):
            return event
        return replace(event, data=self._data_out(event.data, _event_place(uid, event)))

    def record_event(self, uid: str, type: str, data: dict[str, Any], *, time_us: int) -> Event:
        event = Event(number=0, time_us=time_us, type=type, data=data)
        recorded = self._stored(
            lambda: self.inner.record_event(uid, type, self._event_in(uid, event).data, time_us=time_us)
        )
        return replace(recorded, data=data)

    def events(self, uid: str, *, after: int = 0, limit: int | None = None) -> list[Event]:
        return [self._event_out(uid, event) for event in self.inner.events(uid, after=after, limit=limit)]

    def acquire_lease(
        self, uid: str, owner: Owner, *, seconds: float, replacing: int | None = None
    ) -> port.Lease:
        return self.inner.acquire_lease(uid, owner, seconds=seconds, replacing=replacing)

    def renew_lease(self, uid: str, token: int, *, seconds: float) -> port.Lease:
        return self.inner.renew_lease(uid, token, seconds=seconds)

    def release_lease(self, uid: str, token: int) -> None:
        self.inner.release_lease(uid, token)

    def lease(self, uid: str) -> port.Lease | None:
        return self.inner.lease(uid)

    # --- the store

    def inconsistencies(self, uid: str | None = None) -> list[port.Inconsistency]:
        return self.inner.inconsistencies(uid)

    def usage(self, uid: str | None = None) -> port.Usage:
        return self.inner.usage(uid)

    def reclaim(self, max_bytes: int) -> int:
        return self.inner.reclaim(max_bytes)

    def close(self) -> None:
        self.inner.close()


def _body_place(uid: str, body: Body) -> bytes:
    return place("body", uid, body.checkpoint, body.name, body.codec, body.base, body.size, body.is_redundant)


def _blob_place(uid: str, blob: Blob) -> bytes:
    return place("blob", uid, blob.digest, blob.codec, blob.size)


def _annotation_place(uid: str, target: port.Target, kind: str, name: str) -> bytes:
    return place("annotation", uid, target, kind, name)


def _event_place(uid: str, event: Event) -> bytes:
    return place("event", uid, event.type, event.time_us)


def _clear_metadata(header: Header) -> dict[str, Any]:
    """What pruning has to know: when a checkpoint was imported, which counts as its age."""
    origin = header.metadata.get(IMPORTED)
    adopted_us = origin.get("adopted_us") if isinstance(origin, dict) else None
    return {IMPORTED: {"adopted_us": adopted_us}} if isinstance(adopted_us, int) else {}


# --- another data key --------------------------------------------------------------------------------------------

_R = TypeVar("_R", Body, Annotation)


class _Renewal:
    """What is encrypted with an older data key, encrypted with the newest."""

    def __init__(self, backend: EncryptedBackend) -> None:
        self._backend = backend
        self._cipher = backend.cipher
        self.mark = backend.cipher.mark

    def _is_current(self, text: object) -> bool:
        return text is not None and self._cipher.is_current(record_of(text))

    def session(self, session: SessionInfo) -> SessionInfo:
        texts = [text for name in _TEXTS if (text := getattr(session, name)) is not None]
        if all(map(self._is_current, (*texts, session.metadata.get(_CIPHER)))):
            return session
        plain = self._backend._session_out(session)
        # Empty metadata too: who remembers the row as it was must find it changed.
        metadata = self._backend._data_in(plain.metadata, place("session", session.uid, "metadata"))
        return replace(self._backend._session_in(plain), metadata=metadata)

    def branch(self, uid: str, branch: Branch) -> Branch:
        if not branch.metadata or self._is_current(branch.metadata.get(_CIPHER)):
            return branch
        return self._backend._branch_in(uid, self._backend._branch_out(uid, branch))

    def event(self, uid: str, event: Event) -> Event:
        plain = self._backend._event_out(uid, event)
        if plain is event or self._is_current(event.data.get(_CIPHER)):
            return event
        return self._backend._event_in(uid, plain)

    def header(self, raw: bytes) -> bytes:
        return self._backend.header_for(raw, self._cipher)

    def annotation(self, uid: str, note: Annotation) -> Annotation:
        return self._anew(note, _annotation_place(uid, note.target, note.kind, note.name))

    def body(self, uid: str, body: Body) -> Body:
        return self._anew(body, _body_place(uid, body))

    def blob(self, uid: str, blob: Blob) -> Blob:
        at = _blob_place(uid, blob)
        data = self._cipher.encrypt(self._cipher.decrypt(blob.data, at), at)
        return replace(blob, data=data, stored_digest=integrity.digest(data))

    def _anew(self, record: _R, at: bytes) -> _R:
        data = self._cipher.encrypt(self._cipher.decrypt(record.data, at), at)
        return replace(record, data=data, digest=integrity.digest(data))


# --- a store that is not opened by a key -------------------------------------------------------------------------


class LockedBackend(EncryptedBackend):
    """An encrypted store without its key: it can be verified, backed up and pruned, and nothing else."""

    is_locked = True

    def __init__(self, inner: Backend) -> None:
        self.inner = inner
        self.capabilities = inner.capabilities
        self.url = inner.url

    @property
    def cipher(self) -> Cipher:
        raise conflicts.key_missing(self.url)

    def _stored(self, store: Callable[[], T]) -> T:
        return store()

    def _row(self, row: port.HeaderRow) -> port.HeaderRow:
        return row

    def _body_out(self, uid: str, body: Body) -> Body:  # noqa: ARG002
        return body

    def _shown(self, uid: str, blobs: Sequence[str]) -> tuple[str, ...]:  # noqa: ARG002
        return tuple(blobs)

    def blob(self, digest: str, session: str | None = None) -> Blob | None:
        return self.inner.blob(digest, session)

    def blob_sizes(self, uid: str) -> dict[str, port.BlobSize]:
        return self.inner.blob_sizes(uid)

    def _session_out(self, session: SessionInfo) -> SessionInfo:
        return session

    def _as_stored(self, expect: SessionInfo) -> SessionInfo:
        return expect

    def _branch_out(self, uid: str, branch: Branch) -> Branch:  # noqa: ARG002
        return branch

    def _annotation_out(self, uid: str, note: Annotation) -> Annotation:  # noqa: ARG002
        return note

    def _event_out(self, uid: str, event: Event) -> Event:  # noqa: ARG002
        return event

    def record_event(self, uid: str, type: str, data: dict[str, Any], *, time_us: int) -> Event:  # noqa: ARG002
        """That something was pruned; by which words a rule chose it is nobody's to read."""
        if type != PRUNED:
            raise conflicts.key_missing(self.url)
        return self.inner.record_event(uid, type, {}, time_us=time_us)


# --- what only some backends can do ------------------------------------------------------------------------------


class _TellsFacts(EncryptedBackend):
    def facts(self) -> port.Facts:
        assert isinstance(self.inner, port.TellsFacts)
        return self.inner.facts()


class _TakesSnapshots(EncryptedBackend):
    def snapshot(self, path: Path, *, progress: Callable[[float], None] | None = None) -> None:
        assert isinstance(self.inner, port.TakesSnapshots)
        self.inner.snapshot(path, progress=progress)


class _BoundsLog(EncryptedBackend):
    def bound_log(self, max_bytes: int) -> None:
        assert isinstance(self.inner, port.BoundsLog)
        self.inner.bound_log(max_bytes)


class _ClaimsSessions(EncryptedBackend):
    def claim(
        self,
        query: port.ClaimQuery,
        owner: Owner,
        *,
        seconds: float,
        may_take: Callable[[SessionInfo, port.Lease | None], bool],
    ) -> port.Claimed | None:
        assert isinstance(self.inner, port.ClaimsSessions)

        def may(session: SessionInfo, lease: port.Lease | None) -> bool:
            try:
                shown = self._session_out(session)
            except Corrupt:
                return False
            return query.metadata_part in _encode(shown.metadata).decode() and may_take(shown, lease)

        claimed = self.inner.claim(replace(query, metadata_part=""), owner, seconds=seconds, may_take=may)
        return None if claimed is None else replace(claimed, session=self._session_out(claimed.session))


class RenewingBackend(EncryptedBackend):
    """An encrypted store that can be given another data key."""

    def _renews(self) -> port.Renews:
        assert isinstance(self.inner, port.Renews)
        return self.inner

    def all_sessions(self) -> list[str]:
        return self._renews().all_sessions()

    def renew(self, uid: str, part: str, after: tuple[Any, ...]) -> port.Renewed:
        """Encrypt some records of a part of a session with the newest data key, those behind `after`."""
        return self._stored(lambda: self._renews().renew(uid, part, after, _Renewal(self)))

    def count_older(self) -> int:
        """How many records with bytes of their own are encrypted with an older data key. Needs no key."""
        return self._renews().count_older(mark_of(key_number(record_of_keys(self.inner)) or 0))


class _LooksOver(EncryptedBackend):
    def _over(self) -> port.LooksOver:
        assert isinstance(self.inner, port.LooksOver)
        return self.inner

    def session_count(self) -> int:
        return self._over().session_count()

    def kinds(self) -> list[tuple[port.Kind, SessionInfo]]:
        return [(kind, self._session_out(session)) for kind, session in self._over().kinds()]

    def of_kind(self, kind: port.Kind, status: Status) -> Iterator[SessionInfo]:
        return map(self._session_out, self._over().of_kind(kind, status))

    def session_bytes(self) -> dict[str, int]:
        return self._over().session_bytes()

    def leased(self, *, now: bool = True) -> frozenset[str]:
        return self._over().leased(now=now)


_ABILITIES: Final[tuple[tuple[Any, type[EncryptedBackend]], ...]] = (
    (port.TellsFacts, _TellsFacts),
    (port.TakesSnapshots, _TakesSnapshots),
    (port.BoundsLog, _BoundsLog),
    (port.ClaimsSessions, _ClaimsSessions),
    (port.LooksOver, _LooksOver),
    (port.Renews, RenewingBackend),
)


def _able(kind: type[EncryptedBackend], inner: Backend) -> Any:
    """The class of an encrypted store that can do what the backend below can: who asks looks for the methods."""
    bases = tuple(able for protocol, able in _ABILITIES if isinstance(inner, protocol))
    return type(kind.__name__, (*bases, kind), {})


def encrypted(inner: Backend, keyring: Keyring) -> EncryptedBackend:
    """The store as those see it who have its key."""
    made: EncryptedBackend = _able(EncryptedBackend, inner)(inner, keyring)
    return made


def without_key(inner: Backend) -> EncryptedBackend:
    """The store as those see it who do not."""
    made: EncryptedBackend = _able(LockedBackend, inner)(inner)
    return made
