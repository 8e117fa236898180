"""What every backend answers when it refuses, said in the same words; and the order inside a batch of appends.

Whether something is refused is decided by each backend on its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from stepkeep.errors import BackendUnavailable, Conflict, InvalidInput, NotFound, StepkeepError
from stepkeep.model import Header, SessionInfo
from stepkeep.storage.port import REPEATABLE, Append, Appended, Body, Lease, Seal


def append_in_order(
    batch: Sequence[Append], append: Callable[[Append, Seal], Appended], seal: Seal
) -> list[Appended | StepkeepError]:
    """Append one by one; each refusal is an outcome of its own.

    After one that is to be sent again, the later ones of its session are refused as well: stored now, they would
    come before it.
    """
    outcomes: list[Appended | StepkeepError] = []
    waiting: set[str] = set()
    for item in batch:
        try:
            if item.draft.session in waiting:
                raise Conflict(
                    f"{item.draft.id} waits for an earlier save of its session",
                    code="predecessor_refused",
                    session=item.draft.session,
                )
            outcomes.append(append(item, seal))
        except BackendUnavailable:
            raise
        except StepkeepError as exc:
            if exc.code in REPEATABLE:
                waiting.add(item.draft.session)
            outcomes.append(exc)
    return outcomes


# --- sessions and branches -------------------------------------------------------------------------------------


def session_not_found(uid: str) -> NotFound:
    message = f"no session {uid}: it was deleted or never existed"
    return NotFound(message, code="session_not_found", session=uid)


def session_exists(session: SessionInfo) -> Conflict:
    return Conflict(f"a session {session.key!r} exists already", code="session_exists", session=session.key)


def key_taken(session: SessionInfo) -> Conflict:
    message = f"the key {session.key!r} belongs to another session here"
    return Conflict(message, code="session_exists", retryable=False)


def session_changed(session: SessionInfo) -> Conflict:
    message = f"session {session.key!r} changed meanwhile"
    return Conflict(message, code="session_changed", session=session.uid)


def version_changed(session: SessionInfo, expected: int) -> Conflict:
    message = f"session {session.key!r} is at version {session.version}, not {expected}: reload and retry"
    return Conflict(message, code="version_changed", session=session.uid)


def unchangeable(fields: Iterable[str]) -> InvalidInput:
    message = f"a session's {', '.join(sorted(fields))} cannot be changed"
    return InvalidInput(message, code="invalid_change")


def branch_not_found(session: SessionInfo, name: str) -> NotFound:
    message = f"session {session.key!r} has no branch {name!r}"
    return NotFound(message, code="branch_not_found", session=session.uid, branch=name)


def checkpoint_not_found(uid: str, checkpoint: str) -> NotFound:
    message = f"session {uid} has no checkpoint {checkpoint}"
    return NotFound(message, code="checkpoint_not_found", session=uid, checkpoint=checkpoint)


def head_moved(uid: str, branch: str, head: str | None, expected: str | None) -> Conflict:
    now = f"the head of branch {branch!r} is {head or 'empty'}, not {expected or 'empty'}"
    return Conflict(f"{now}: reload and retry", code="head_moved", session=uid, branch=branch)


def lease_held(uid: str, lease: Lease) -> Conflict:
    owner = lease.owner
    by = f"{owner.label or 'another process'} (pid {owner.pid} on {owner.host})"
    return Conflict(f"session {uid} is run by {by}", code="lease_held", session=uid)


def lease_lost(uid: str) -> Conflict:
    message = f"the lease on session {uid} was taken over or released: this writer must stop"
    return Conflict(message, code="lease_lost", retryable=False, session=uid)


# --- checkpoints and bodies ------------------------------------------------------------------------------------


def branch_switched(key: str, current: str, draft: Header) -> Conflict:
    message = f"session {key!r} is on branch {current!r} now, not {draft.branch!r}"
    return Conflict(message, code="branch_switched", session=draft.session, branch=current)


def idempotency_mismatch(draft: Header, holder: str) -> Conflict:
    return Conflict(
        f"{holder} already holds the key of this save, with other content",
        code="idempotency_mismatch",
        retryable=False,
        session=draft.session,
        checkpoint=holder,
    )


def external_id_exists(header: Header, holder: str) -> Conflict:
    branch, external_id = header.branch, header.external_id
    message = f"branch {branch!r} already has a checkpoint with external id {external_id!r}"
    return Conflict(message, code="external_id_exists", retryable=False, branch=branch, checkpoint=holder)


def id_taken(draft: Header) -> Conflict:
    message = f"{draft.id} was removed, and others still need its body"
    return Conflict(message, code="id_taken", retryable=False, checkpoint=draft.id)


def place_taken(header: Header) -> Conflict:
    message = f"{header.id} (seq {header.seq}) cannot be adopted: its id, number or key is taken"
    return Conflict(message, code="place_taken", retryable=False, checkpoint=header.id)


def foreign_checkpoint(header: Header, uid: str) -> InvalidInput:
    message = f"{header.id} belongs to session {header.session}, not {uid}"
    return InvalidInput(message, code="foreign_checkpoint")


def base_gone(body: Body) -> Conflict:
    message = f"body {body.name!r} of {body.checkpoint} is based on {body.base}, which is gone"
    return Conflict(message, code="base_gone", checkpoint=body.checkpoint)


def blob_gone(digest: str) -> Conflict:
    return Conflict(f"blob {digest} is gone: send it again", code="blob_gone")


def body_not_found(body: Body) -> NotFound:
    message = f"{body.checkpoint} has no body {body.name!r}"
    return NotFound(message, code="body_not_found", checkpoint=body.checkpoint)


def body_changed(body: Body) -> Conflict:
    return Conflict(f"body {body.name!r} of {body.checkpoint} changed meanwhile", code="body_changed")


def _shown(url: str) -> str:
    from stepkeep.secrets import url_without_password

    return url_without_password(url)


def key_missing(url: str) -> InvalidInput:
    return InvalidInput(
        f"{_shown(url)} is encrypted, and no key was given: set STEPKEEP_KEY_FILE, "
        "STEPKEEP_KEY_COMMAND or STEPKEEP_KEY",
        code="key_missing",
    )


class OtherKey(Conflict):
    """What was to be stored is encrypted with another data key than the store has now: encrypt it anew."""


def other_key(url: str) -> OtherKey:
    return OtherKey(f"{_shown(url)} has another data key now: open it again", code="keys_changed")


def keys_changed(url: str) -> Conflict:
    return Conflict(
        f"somebody else changed the keys of {_shown(url)}: look at them again, then repeat",
        code="keys_changed",
    )


def store_not_empty(url: str) -> Conflict:
    return Conflict(
        f"{_shown(url)} has sessions that are not encrypted: a store is encrypted from its creation or "
        "never; `stepkeep copy --encrypt` makes an encrypted copy of it",
        code="store_not_empty",
        retryable=False,
    )
