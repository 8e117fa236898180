"""Another data key for an encrypted store, while it is in use.

The new key is there from the first moment: whoever saves uses it, also processes that had the store open. Then what
is encrypted with an older key is encrypted anew, a few records in each transaction. Stopped anywhere, it goes on when
it is called again; only when nothing is left does the older key leave the store.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Final

import msgspec

from stepkeep.engine import Engine
from stepkeep.errors import Corrupt, NotFound, Unsupported
from stepkeep.maintenance.space import in_turn, reclaim, sweep
from stepkeep.storage.encrypted import RenewingBackend
from stepkeep.storage.key_slots import Keyring, read_record, record_of
from stepkeep.storage.port import RENEWED_PARTS, Backend, Renewed

Progress = Callable[[float], None]

_COUNTED: Final = frozenset({"annotations", "blobs", "bodies"})
"""What `left` counts: records with bytes of their own."""


class RekeyReport(msgspec.Struct, frozen=True, kw_only=True):
    """What became of a change of the data key.

    `key` numbers the newest data key. `renewed` are the records that were encrypted anew, `damaged` those that could
    not be, `left` the bodies, blobs and annotations under an older key. `is_done` when the store has no older key.
    """

    key: int
    renewed: int
    left: int
    damaged: int
    is_done: bool


def progress_of(backend: Backend) -> RekeyReport:
    """How far a change of the data key is, by the key record and a look at all records. Needs no key."""
    record = read_record(record_of(backend))
    left = _able(backend).count_older() if record.old else 0
    return RekeyReport(key=record.key, renewed=0, left=left, damaged=0, is_done=not record.old)


def rekey(
    engine: Engine, keyring: Keyring, *, drop_slots: bool = False, progress: Progress | None = None
) -> RekeyReport:
    """Give the store a new data key, or finish a change that was begun. What is damaged keeps the older key there.

    Raises:
        Conflict: there are slots that the new key cannot be put into (`other_slots`); with `drop_slots` they go.
        Unsupported: the store cannot have another one (`keys_used_up`), or hides sessions (`sessions_hidden`).
        BackendUnavailable: the store failed. What was done stays; call again to go on.
    """
    backend = _able(engine.backend)
    backend.all_sessions()  # which is refused before anything is changed
    keyring.begin_rekey(drop_slots=drop_slots)
    backend.cipher.learn(keyring.keys)
    if not keyring.record().old:
        return progress_of(backend)
    total, done, renewed, damaged = backend.count_older(), 0, 0, 0
    for page, is_counted in _pages(engine, backend):
        renewed += page.renewed
        damaged += page.damaged
        if is_counted and progress is not None:
            done += page.renewed
            progress(min(1.0, done / max(1, total)))
    sweep(engine)  # blobs that nothing names belong to no session, and cannot be encrypted anew
    reclaim(engine)  # and with the free pages go the bytes that were in them
    left = backend.count_older()
    if not damaged and not left:
        keyring.finish_rekey()
    return RekeyReport(
        key=keyring.keys.newest,
        renewed=renewed,
        left=left,
        damaged=damaged,
        is_done=not keyring.record().old,
    )


def _pages(engine: Engine, backend: RenewingBackend) -> Iterator[tuple[Renewed, bool]]:
    """Encrypt everything anew, page by page; what became of each, and whether it has what `left` counts."""
    for uid in backend.all_sessions():
        for part in RENEWED_PARTS:
            after: tuple[Any, ...] | None = ()
            while after is not None:
                page = in_turn(engine, partial(_renewed, backend, uid, part, after))
                yield page, part in _COUNTED
                after = page.after


def _renewed(backend: RenewingBackend, uid: str, part: str, after: tuple[Any, ...]) -> Renewed:
    try:
        return backend.renew(uid, part, after)
    except NotFound:  # the session was deleted meanwhile
        return Renewed(0, 0, None)
    except Corrupt:  # its row is damaged
        return Renewed(0, 1, None)


def _able(backend: Backend) -> RenewingBackend:
    if not isinstance(backend, RenewingBackend):
        raise Unsupported(f"{backend.url} cannot get another data key", code="rekey_unsupported")
    return backend
