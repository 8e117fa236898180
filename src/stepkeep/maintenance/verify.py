"""Proof that everything stored is intact: every header, chain value, body and blob."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import msgspec

from stepkeep.codec.integrity import digest
from stepkeep.engine import Engine, reader
from stepkeep.errors import INTEGRITY_MISMATCH, NotFound, StepkeepError
from stepkeep.fixes import FAIL, FOUND_DAMAGE, PASS, WARN, fixes_for_codes
from stepkeep.maintenance.space import sweep
from stepkeep.model import Header, SessionInfo, missing_numbers
from stepkeep.storage.port import LOST, REBUILT, HeaderQuery, HeaderRow, Repairs, SessionQuery
from stepkeep.text import size


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """Something that is not as it was written, or cannot be read any more."""

    session: str
    checkpoint: str | None = None
    seq: int | None = None
    code: str
    message: str

    @classmethod
    def of(cls, key: str, exc: StepkeepError, at: Header | HeaderRow | None = None) -> Finding:
        """What was met while a session, or one of its checkpoints, was read."""
        id, seq = (None, None) if at is None else (at.id, at.seq)
        return cls(session=key, code=exc.code, message=str(exc), checkpoint=id, seq=seq)


class VerifyReport(msgspec.Struct, frozen=True, kw_only=True):
    """What was looked at and what was found. `pruned` counts checkpoints that were removed on purpose, `lost` those
    that a recovery could not bring over, and `unknown` those of which nobody knows: the index that had it was lost.

    `parent_unknown` has the ids of checkpoints that continue one which the store did not have: nothing is wrong with
    them, but where they come from cannot be proven.
    `result` is PASS when nothing was found, WARN when something was lost or is unknown, else FAIL; `fixes` is what to
    do about the findings. `repaired` is what was put right before, where that was asked for.
    """

    is_intact: bool
    sessions: int
    checkpoints: int
    bodies: int
    pruned: int
    parent_unknown: tuple[str, ...]
    findings: tuple[Finding, ...]
    result: str
    fixes: tuple[str, ...]
    lost: int = 0
    unknown: int = 0
    repaired: tuple[str, ...] = ()


Progress = Callable[[int], None]


def verify(
    engine: Engine,
    session: SessionInfo | None = None,
    *,
    repair: bool = False,
    progress: Progress | None = None,
) -> VerifyReport:
    """Check one session, or all of them. Reads everything, changes nothing but rows that can be rebuilt.

    With `repair` what lies beside the checkpoints is first made anew from them, and what belongs to nothing is removed.
    """
    repaired = tuple(_repaired(engine, session)) if repair else ()
    sessions = [session] if session is not None else list(engine.backend.sessions(SessionQuery()))
    findings: list[Finding] = []
    if session is None:
        findings += [
            Finding(session=each.location, code=each.code, message=each.message)
            for each in engine.backend.inconsistencies()
        ]
    checkpoints = bodies = 0
    parent_unknown: list[str] = []
    for each in sessions:
        engine.backend.branches(each.uid)  # rebuilds records that are damaged or lost
        headers, broken = _headers(engine, each)
        findings += broken
        findings += _chain_findings(each, headers)
        findings += _numbering_findings(engine, each)
        checkpoints += len(headers) + len(broken)
        parent_unknown += [header.id for header in headers if None in header.parent_chains]
        findings += _blob_findings(engine, each, any(header.cipher for header in headers))
        findings += _index_findings(engine, each, {finding.checkpoint for finding in broken})
        for header in headers:
            findings += _body_findings(engine, each, header)
            bodies += len(header.contents)
            if progress is not None:
                progress(1)
    key = None if session is None else session.key
    lost, unknown = (sum(_noted(engine, each, type) for each in sessions) for type in (LOST, REBUILT))
    return VerifyReport(
        is_intact=not findings,
        sessions=len(sessions),
        checkpoints=checkpoints,
        bodies=bodies,
        pruned=sum(each.removed_count for each in sessions) - lost - unknown,
        parent_unknown=tuple(parent_unknown),
        lost=lost,
        unknown=unknown,
        repaired=repaired,
        findings=tuple(findings),
        result=FAIL if findings else WARN if lost or unknown else PASS,
        fixes=fixes_for_codes((finding.code for finding in findings), table=FOUND_DAMAGE, session=key),
    )


def _repaired(engine: Engine, session: SessionInfo | None) -> Iterator[str]:
    uid = None if session is None else session.uid
    if isinstance(engine.backend, Repairs):
        yield from engine.backend.repair(uid)
    if freed := sweep(engine, uid):
        yield f"removed records that nothing needs ({size(freed)})"


def _noted(engine: Engine, session: SessionInfo, type: str) -> int:
    """How many of the removed numbers of a session an event of that type tells of."""
    try:
        events = [each for each in engine.backend.events(session.uid) if each.type == type]
    except NotFound:
        return 0
    told = [(first, last) for each in events for first, last in each.data.get("seqs", ())]
    # What is in both is what is missing from neither; they are ranges, since a stranger's may be of any length.
    others = [
        each for ranges in (told, session.gaps) for each in missing_numbers([], ranges, session.last_seq)
    ]
    return sum(last - first + 1 for first, last in missing_numbers([], others, session.last_seq))


def _headers(engine: Engine, session: SessionInfo) -> tuple[list[Header], list[Finding]]:
    broken: list[tuple[HeaderRow, StepkeepError]] = []
    query = HeaderQuery(session=session.uid, newest_first=False)
    headers = list(engine.headers(query, broken=broken))
    return headers, [Finding.of(session.key, exc, row) for row, exc in broken]


def _chain_findings(session: SessionInfo, headers: list[Header]) -> Iterator[Finding]:
    """A header that names another chain value than its stored parent has: one of the two was exchanged."""
    chains = {header.id: header.chain for header in headers}
    for header in headers:
        for parent, chain in zip(header.parents, header.parent_chains, strict=True):
            if chain is not None and chains.get(parent, chain) != chain:
                yield _finding(session, header, f"the chain to its parent {parent} is broken")


def _numbering_findings(engine: Engine, session: SessionInfo) -> Iterator[Finding]:
    """Numbers that are neither stored nor recorded as removed: checkpoints that were lost.

    The gaps are read after the headers, and numbers given since `session` was read do not count: others may save
    and prune meanwhile.
    """
    stored = [row.seq for row in engine.backend.headers(HeaderQuery(session=session.uid))]
    gaps = engine.backend.session(session.uid).gaps
    for first, last in missing_numbers(stored, gaps, session.last_seq):
        yield Finding(
            session=session.key,
            code="checkpoint_missing",
            message=f"checkpoint {numbers(first, last)} is missing and was not removed on purpose",
            seq=first,
        )


def numbers(first: int, last: int) -> str:
    """A closed range of numbers as it is told: `3`, `3 to 9`."""
    return str(first) if first == last else f"{first} to {last}"


def _body_findings(engine: Engine, session: SessionInfo, header: Header) -> Iterator[Finding]:
    """Damaged bodies, also those that their redundant delta still gives, and damaged redundant deltas."""
    backend = engine.backend
    for name in header.contents:
        try:
            reader.check_body(backend, header, name)
        except StepkeepError as exc:
            if not is_stored(engine, header):
                return  # someone removed it while it was being looked at
            served = ", but its redundant delta serves" if _loads(engine, header, name) else ""
            yield _finding(session, header, f"{exc}{served}", exc.code)
        redundant = backend.redundant_delta(session.uid, header.id, name)
        if redundant is not None and digest(redundant.data) != redundant.digest:
            yield _finding(session, header, f"the redundant delta of body {name!r} of {header.id} is damaged")


def is_stored(engine: Engine, row: Header | HeaderRow) -> bool:
    """Whether a checkpoint that was read before is still there."""
    query = HeaderQuery(session=row.session, ids=(row.id,), limit=1)
    return next(engine.backend.headers(query), None) is not None


def _loads(engine: Engine, header: Header, name: str) -> bool:
    try:
        reader.load_body(engine.backend, header, name)
    except StepkeepError:
        return False
    return True


def _blob_findings(engine: Engine, session: SessionInfo, is_locked: bool) -> Iterator[Finding]:
    """Blobs that bodies of the session name, each looked at once."""
    named = {blob for info in engine.backend.bodies(session.uid) for blob in info.blobs}
    for blob in sorted(named):
        try:
            if is_locked:
                engine.stored_blob(blob, session.uid)
            else:
                engine.load_blob(blob, session.uid)
        except StepkeepError as exc:
            yield Finding.of(session.key, exc)


def _index_findings(engine: Engine, session: SessionInfo, told: set[str | None]) -> Iterator[Finding]:
    """What the backend keeps beside the headers to find them by, where it differs from those not told of yet."""
    for each in engine.backend.inconsistencies(session.uid):
        if each.location not in told:
            yield Finding(session=session.key, code=each.code, message=each.message, checkpoint=each.location)


def _finding(session: SessionInfo, header: Header, message: str, code: str = INTEGRITY_MISMATCH) -> Finding:
    return Finding(session=session.key, code=code, message=message, checkpoint=header.id, seq=header.seq)
