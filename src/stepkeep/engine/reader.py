"""Reading back what was saved, exactly or not at all, and the fallback to an older checkpoint."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final, TypeAlias

import msgspec

from stepkeep.codec import exact, patch
from stepkeep.codec.integrity import check_content, check_stored, digest, open_header
from stepkeep.engine.writer import Member, plain
from stepkeep.errors import Corrupt, NotFound, Unsupported
from stepkeep.logs import Log
from stepkeep.model import STATE, Header, Session, from_us
from stepkeep.storage.port import Backend, Body, HeaderQuery, HeaderRow

log = Log("stepkeep")

MAX_SPARES: Final = 64
"""How many damaged keyframes in a row are bridged by their spares."""


class Fallback(msgspec.Struct, frozen=True, kw_only=True):
    """Why a load did not return the newest checkpoint: how many were tried, and what was wrong with each."""

    tried: int
    failures: tuple[tuple[str, str], ...]


class Loaded(msgspec.Struct, frozen=True, kw_only=True):
    """A checkpoint whose header and every body were verified. `fallback` is set when newer ones were damaged."""

    header: Header
    contents: dict[str, bytes]
    fallback: Fallback | None = None

    def value(self, name: str = STATE) -> Any:
        """The value in a body, decoded anew at each call: changing it changes nothing else."""
        return exact.decode(self.header.contents[name].encoding, self.contents[name])


def verified(row: HeaderRow) -> Header:
    """The header in a row, if every byte and its place are as they were written."""
    if row.problem is not None:
        raise row.problem
    header = open_header(row.raw, expect_id=row.id)
    if (header.session, header.seq, header.branch) != (row.session, row.seq, row.branch):
        raise Corrupt(
            f"the row of {row.id} is not where it was written", session=row.session, checkpoint=row.id
        )
    return header


Remembered: TypeAlias = Callable[[Header, str], bytes | None]
"""The content of a body that is still in memory: of this header and name, or None."""


def load(backend: Backend, header: Header, remembered: Remembered | None = None) -> Loaded:
    """All contents of a checkpoint, each verified against the header.

    What is `remembered` was verified when it was saved or read; then only its own stored record is checked.

    Raises:
        Corrupt: a body is damaged.
        NotFound: the checkpoint was removed meanwhile.
    """
    try:
        contents = {
            name: _from_memory(backend, header, name, remembered) or load_body(backend, header, name)
            for name in header.contents
        }
    except Corrupt as exc:
        query = HeaderQuery(session=header.session, ids=(header.id,), limit=1)
        if next(backend.headers(query), None) is None:
            raise NotFound(
                f"{header.id} was removed while it was loaded",
                code="checkpoint_not_found",
                checkpoint=header.id,
            ) from exc
        raise
    return Loaded(header=header, contents=contents)


def _from_memory(backend: Backend, header: Header, name: str, remembered: Remembered | None) -> bytes | None:
    content = None if remembered is None else remembered(header, name)
    if content is None or len(content) != header.contents[name].size:
        return None
    record = backend.body(header.session, header.id, name)
    return content if record is not None and digest(record.data) == record.digest else None


def load_body(backend: Backend, header: Header, name: str) -> bytes:
    """The content of one body, verified against the header."""
    content = rebuild(backend, header.session, header.id, name)
    check_content(content, header.contents[name], checkpoint=header.id, body=name)
    return content


def rebuild(
    backend: Backend, session: str, checkpoint: str, name: str, *, spares_left: int = MAX_SPARES
) -> bytes:
    """The content of a body from its records, through the spare of its keyframe if that one is damaged.

    The result is what the records say; whether it is what was saved, the digest in the header tells.
    """
    chain = backend.body_chain(session, checkpoint, name)
    try:
        return from_chain(chain)
    except Corrupt:
        # A keyframe that is damaged or lost may have a spare; `above` is what is patched upon it.
        is_complete = bool(chain) and chain[-1].base is None
        above = chain[:-1] if is_complete else chain
        keyframe = (chain[-1].checkpoint if is_complete else chain[-1].base) if chain else checkpoint
        spare = backend.spare(session, keyframe or checkpoint, name) if spares_left else None
        if spare is None or spare.base is None:
            raise
    base = rebuild(backend, session, spare.base, name, spares_left=spares_left - 1)
    content = from_chain([spare, plain(name, Member(spare.base, base))])
    rebuilt = from_chain([*above, plain(name, Member(spare.checkpoint, content))])
    log.warning("The keyframe %s is damaged, its spare served", spare.checkpoint)
    return rebuilt


def from_chain(chain: list[Body]) -> bytes:
    """The content at the top of a chain, after the stored bytes of every link were checked."""
    if not chain:
        raise Corrupt("the body is missing")
    if chain[-1].base is not None:
        raise Corrupt(
            f"the body of {chain[-1].base}, which {chain[0].checkpoint} is rebuilt from, is missing"
        )
    for body in chain:
        check_stored(body.data, body.digest, checkpoint=body.checkpoint, body=body.name)
        # A newer release says so in the header's version: here another codec or size can only be damage.
        if body.codec not in patch.CODECS or not 0 <= body.size <= patch.DEFAULT_CEILING_BYTES:
            raise Corrupt(
                f"the record of body {body.name!r} of {body.checkpoint} is damaged",
                checkpoint=body.checkpoint,
            )
    return patch.rebuild([patch.Link(body.codec, body.data, body.size) for body in chain])


# --- the line of a branch, and falling back along it -----------------------------------------------------------


def line_of(
    backend: Backend, session: Session, branch: str, *, matching: HeaderQuery | None = None
) -> Iterator[HeaderRow]:
    """The stored headers of a branch from its head backwards, followed through its fork points.

    With `matching` only those that its tag, step, status, `until_us` and `max_seq` let through, unverified.
    """
    wanted = HeaderQuery() if matching is None else matching
    record = backend.branch(session.uid, branch)
    max_seq = 0 if record is None else record.head_seq
    seen: set[str] = set()
    while record is not None and record.name not in seen:
        seen.add(record.name)
        last = max_seq if wanted.max_seq is None else min(max_seq, wanted.max_seq)
        yield from backend.headers(
            msgspec.structs.replace(wanted, session=session.uid, branch=record.name, max_seq=last)
        )
        max_seq = record.fork_seq
        record = backend.branch(session.uid, record.fork_branch) if record.fork_branch is not None else None


def load_latest(
    backend: Backend, session: Session, branch: str, remembered: Remembered | None = None
) -> Loaded | None:
    """The head of a branch, or the newest before it that verifies; None when the branch has no checkpoint.

    Raises:
        Corrupt: checkpoints exist and none of them verifies (code `no_valid_checkpoint`).
    """
    head = _head(backend, session, branch)
    while head is not None:
        try:
            loaded = load(backend, _header(backend, session, head), remembered)
        except (Corrupt, NotFound) as exc:
            now = _head(backend, session, branch)
            if now != head:
                head = now  # someone saved or removed meanwhile
                continue
            log.warning("Latest checkpoint failed to load: %s", exc)
            history = [row for row in line_of(backend, session, branch) if row.id != head]
            return _fall_back(backend, session, (head, exc.code), history)
        log.debug("Loaded latest checkpoint")
        return loaded
    return None


def _head(backend: Backend, session: Session, branch: str) -> str | None:
    record = backend.branch(session.uid, branch)
    return None if record is None else record.head


def _header(backend: Backend, session: Session, checkpoint: str) -> Header:
    row = next(backend.headers(HeaderQuery(session=session.uid, ids=(checkpoint,), limit=1)), None)
    if row is None:
        raise Corrupt(f"{checkpoint} is missing", code="checkpoint_missing", checkpoint=checkpoint)
    return verified(row)


def _fall_back(
    backend: Backend, session: Session, first_failure: tuple[str, str], history: list[HeaderRow]
) -> Loaded:
    log.info("Attempting fallback to %d history checkpoints", len(history))
    failures = [first_failure]
    for number, row in enumerate(history, start=1):
        log.debug("Trying history checkpoint %d: %s", number, row.id)
        try:
            loaded = load(backend, verified(row))
        except NotFound:
            continue
        except (Corrupt, Unsupported) as exc:
            log.warning("History checkpoint %d failed: %s", number, exc)
            failures.append((row.id, exc.code))
            continue
        moment = f"{from_us(loaded.header.time_us):%Y-%m-%d %H:%M:%S}"
        log.warning("Recovered from history checkpoint: %s (%s)", moment, row.id)
        log.warning("Latest checkpoint corrupted, using history checkpoint from %s", moment)
        fallback = Fallback(tried=len(failures) + 1, failures=tuple(failures))
        return msgspec.structs.replace(loaded, fallback=fallback)
    raise Corrupt(
        f"No valid checkpoint found (tried {len(failures)} checkpoints). "
        f"Start session {session.key!r} afresh, or run `stepkeep verify` to see what is damaged.",
        code="no_valid_checkpoint",
        session=session.key,
    )
