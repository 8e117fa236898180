"""The tables of the memory backend, and how a checkpoint enters them: by `append`, or verbatim by `adopt`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from msgspec.structs import replace

from stepkeep.codec import integrity
from stepkeep.errors import Conflict, InvalidInput, NotFound
from stepkeep.model import Draft, Header
from stepkeep.storage.memory_shelf import Shelf, Stored
from stepkeep.storage.port import ANY_HEAD, Append, Appended, Blob, Body, Seal


@dataclass
class Tables:
    shelves: dict[str, Shelf] = field(default_factory=dict)
    blobs: dict[str, Blob] = field(default_factory=dict)

    def copy(self, uids: Iterable[str]) -> Tables:
        """Tables of their own, with shelves of their own for these sessions."""
        mine = {uid: self.shelves[uid].copy() for uid in uids if uid in self.shelves}
        return Tables(self.shelves | mine, self.blobs.copy())

    def shelf(self, uid: str, fence: int | None = None) -> Shelf:
        """The session's shelf; where a fence is given, it must be current."""
        if uid not in self.shelves:
            raise NotFound(f"no session {uid}, or it was deleted", code="session_not_found", session=uid)
        shelf = self.shelves[uid]
        shelf.check_fence(fence)
        return shelf

    def some(self, uid: str | None) -> list[Shelf]:
        """One session's shelf, or all."""
        return list(self.shelves.values()) if uid is None else [self.shelf(uid)]

    def uid_of(self, key: str) -> str | None:
        return next((uid for uid, shelf in self.shelves.items() if shelf.key == key), None)

    def stored(self, checkpoint: str) -> Stored | None:
        """The header with that id, which is unique over all sessions."""
        found = (shelf.headers.get(checkpoint) for shelf in self.shelves.values())
        return next((stored for stored in found if stored is not None), None)

    def chain(self, checkpoint: str) -> str | None:
        stored = self.stored(checkpoint)
        return None if stored is None else integrity.chain_of(stored.raw)

    def loose_blobs(self) -> list[str]:
        named = {digest for shelf in self.shelves.values() for digest in shelf.blobs()}
        return [digest for digest in self.blobs if digest not in named]

    # --- append -----------------------------------------------------------------------------------------

    def append(self, item: Append, seal: Seal) -> Appended:
        """Check everything, then store: a refused one leaves nothing behind for those after it."""
        draft = item.draft
        shelf = self.shelf(draft.session, item.fence)
        original = shelf.keyed(draft.idempotency_key) or self.stored(draft.id)
        if original is not None:
            _check_same(original.header, draft)
            return Appended(row=original.row, is_new=False)
        if item.on_current and shelf.session.branch != draft.branch:
            raise Conflict(
                f"the session is on branch {shelf.session.branch!r} now",
                code="branch_switched",
                session=draft.session,
            )
        head = shelf.head(draft.branch)
        check_head(draft.branch, head, item.expect_head)
        shelf.check_external_id(draft.branch, draft.external_id)
        shelf.check_required(draft.requires)
        self._check_bodies(shelf, item.bodies, item.blobs)
        if any((body.checkpoint, body.name) in shelf.bodies for body in item.bodies):
            raise Conflict(
                f"{draft.id} was removed, and others still need its body",
                code="id_taken",
                checkpoint=draft.id,
            )
        stored = self._seal(draft, shelf.session.last_seq + 1, head, seal)
        self._put(shelf, stored, item.bodies, item.blobs)
        shelf.advance(stored.header)
        shelf.follow(draft, stored.header.seq)
        return Appended(row=stored.row, is_new=True)

    def _seal(self, draft: Draft, seq: int, head: str | None, seal: Seal) -> Stored:
        parents = draft.parents
        if parents is None:
            parents = () if head is None else (head,)
        raw = seal(draft, seq, parents, [self.chain(parent) for parent in parents])
        return Stored(integrity.open_header(raw), raw)

    # --- adopt ------------------------------------------------------------------------------------------

    def adopt(self, uid: str, raw: bytes, bodies: Sequence[Body], blobs: Sequence[Blob]) -> bool:
        shelf = self.shelf(uid)
        header = integrity.open_header(raw)
        if header.session != uid:
            raise InvalidInput(
                f"{header.id} belongs to session {header.session}", code="foreign_checkpoint", session=uid
            )
        stored = self.stored(header.id)
        if stored is not None and stored.raw == raw:
            return False
        if stored is not None or any(s.header.seq == header.seq for s in shelf.headers.values()):
            raise _taken(header, "its id or seq")
        if shelf.keyed(header.idempotency_key) is not None:
            raise _taken(header, "its idempotency key")
        shelf.check_external_id(header.branch, header.external_id)
        self._check_bodies(shelf, bodies, blobs)
        # A hidden body has the same content (V4), and others are patched against it: it shows again as it is.
        missing = [body for body in bodies if (body.checkpoint, body.name) not in shelf.bodies]
        self._put(shelf, Stored(header, raw), missing, blobs)
        branch = shelf.branch(header.branch)
        if branch is None or header.seq > branch.head_seq:
            shelf.advance(header)
        session = shelf.session
        shelf.put_session(replace(session, last_seq=max(session.last_seq, header.seq)))
        return True

    # --- both -------------------------------------------------------------------------------------------

    def _check_bodies(self, shelf: Shelf, bodies: Sequence[Body], sent: Sequence[Blob]) -> None:
        shelf.check_bases(bodies)
        there = self.blobs.keys() | {blob.digest for blob in sent}
        for digest in (digest for body in bodies for digest in body.blobs):
            if digest not in there:
                raise Conflict(f"blob {digest} is not stored: send it", code="blob_gone")

    def _put(self, shelf: Shelf, stored: Stored, bodies: Iterable[Body], blobs: Iterable[Blob]) -> None:
        shelf.headers[stored.header.id] = stored
        shelf.put_bodies(bodies)
        for blob in blobs:
            self.blobs.setdefault(blob.digest, blob)


def check_head(branch: str, head: str | None, expect_head: str | None) -> None:
    if expect_head not in (ANY_HEAD, head):
        raise Conflict(
            f"the head of {branch!r} is {head}, not {expect_head}",
            code="head_moved",
            branch=branch,
            checkpoint=head,
        )


def _taken(header: Header, what: str) -> Conflict:
    return Conflict(
        f"{header.id} cannot be adopted: {what} is taken", code="place_taken", checkpoint=header.id
    )


def _check_same(original: Header, draft: Draft) -> None:
    """An idempotency key, or an id, stands for one content."""
    held = (original.session, original.contents, original.step, original.status)
    if held != (draft.session, draft.contents, draft.step, draft.status):
        raise Conflict(
            f"{original.id} holds other content under that key or id",
            code="idempotency_mismatch",
            checkpoint=original.id,
        )
