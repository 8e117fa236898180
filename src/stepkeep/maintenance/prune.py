"""Pruning the history of sessions: plan what goes, show it, apply it.

What must stay is decided by `policy.retention` (V7) from verified headers and stored bytes. Applying removes in
small transactions, in an order in which every state between two of them is a valid store. So it may run while
others save, and after a kill the next prune finishes the work.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from functools import partial
from typing import Any, Final, TypeAlias

import msgspec

from stepkeep.engine import Engine, reader
from stepkeep.errors import (
    PRUNE_FAILED,
    BackendUnavailable,
    Corrupt,
    InvalidInput,
    NotFound,
    StepkeepError,
    Unsupported,
)
from stepkeep.fixes import FAIL, PASS, fixes_for_codes
from stepkeep.logs import Log
from stepkeep.maintenance.space import compress_history, count_compressible, in_turn, reclaim, sweep
from stepkeep.model import Header, SessionError, SessionInfo
from stepkeep.policy.retention import (
    FROM_THE_FUTURE,
    NOTHING_VERIFIES,
    OVER_BUDGET,
    PRUNED,
    CheckpointDecision,
    Retention,
    decide,
    rule_texts,
)
from stepkeep.storage.port import (
    BlobSize,
    BodyInfo,
    HeaderQuery,
    HeaderRow,
    KeepsFiles,
    Locked,
    Removed,
    SessionQuery,
)
from stepkeep.text import count, size

log = Log("stepkeep")
pruned_ones = Log("stepkeep.pruned")
"""Each checkpoint that goes, which may be thousands: one line of `log` sums them up."""

MARK: Final = ("keeper", "history_off")
"""Kind and name of the annotation of a checkpoint that was saved with history off."""

_NEWEST_ONLY: Final = Retention(keep_last=1, keep_terminal=False)

Progress: TypeAlias = Callable[[int], None]
"""Called after each batch, outside any transaction, with the number of checkpoints dealt with."""


class PrunePlan(msgspec.Struct, frozen=True, kw_only=True):
    """What pruning would do to a session, checkpoint by checkpoint, newest first.

    `going` are the ids that go, in the order in which they can: the oldest first, but what requires another before
    that one. `reclaimable_bytes` are the stored bytes of bodies that nothing would need any more. Blobs are shared
    between sessions and not counted.
    """

    session: SessionInfo
    decisions: tuple[CheckpointDecision, ...]
    going: tuple[str, ...]
    warnings: tuple[str, ...] = ()
    reclaimable_bytes: int = 0

    @property
    def is_over_budget(self) -> bool:
        """Whether something goes because the session takes more than its budget."""
        return any(each.reasons[0].startswith(OVER_BUDGET) for each in self.decisions if not each.stays)


class PruneCounts(msgspec.Struct, frozen=True, kw_only=True):
    """`total` = `kept` + `deleted` + `missing`. `refused` are those of the kept that were to go and became needed
    meanwhile; `missing` are those that others removed meanwhile. `stored_bytes` are needed no more."""

    total: int = 0
    kept: int = 0
    deleted: int = 0
    refused: int = 0
    missing: int = 0
    stored_bytes: int = 0


class PruneReport(PruneCounts, frozen=True, kw_only=True):
    """What pruning did to the session with that key, or in a dry run would do; `rules` are in words.

    A dry run has a decision for each checkpoint, newest first.
    """

    session: str
    rules: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    decisions: tuple[CheckpointDecision, ...] = ()


class Pruned(PruneCounts, frozen=True, kw_only=True):
    """What pruning did to all sessions it was asked for, or would do. `reclaimed_bytes` is what the store became
    smaller; other data may still use the room of what was removed. `compressed` counts checkpoints that stay and
    are stored smaller. `result` is PASS, or FAIL with `errors`; `fixes` is what to do about those."""

    is_dry_run: bool
    reclaimed_bytes: int
    sessions: tuple[PruneReport, ...]
    errors: tuple[SessionError, ...]
    compressed: int
    result: str
    fixes: tuple[str, ...]


# --- plan ------------------------------------------------------------------------------------------------------


def plan_prune(
    engine: Engine,
    session: SessionInfo,
    retention: Retention,
    *,
    now_us: int,
    saved_with_history_off: Iterable[str] = (),
) -> PrunePlan:
    """Decide for each checkpoint of a session whether it stays. Reads only.

    A checkpoint whose header is damaged is left alone, and warned of. With history off only those go that were saved
    so: those that are marked, and those that are given because nobody marked them yet.

    Raises:
        NotFound: the session was deleted.
    """
    _check_readable(engine, retention)
    bodies = engine.backend.bodies(session.uid)
    session = engine.backend.session(session.uid)
    branches = engine.backend.branches(session.uid)
    # Before the headers, so that it is among them although others save meanwhile.
    verified_id = _newest_that_verifies(engine, session)
    broken: list[tuple[HeaderRow, StepkeepError]] = []
    headers = list(engine.headers(HeaderQuery(session=session.uid), broken=broken))
    blobs = engine.backend.blob_sizes(session.uid) if any(body.blobs for body in bodies) else {}
    decisions = decide(
        headers,
        _stored_bytes(engine, session, headers, bodies, blobs),
        _NEWEST_ONLY if retention.is_off else retention,
        now_us,
        branches=branches,
        current=session.branch,
        verified_id=verified_id,
    )
    if retention.is_off:
        unkept = {*marked(engine, session.uid), *saved_with_history_off}
        decisions = [_if_unkept(each, each.checkpoint in unkept) for each in decisions]
    going = tuple(_in_order(headers, {each.checkpoint for each in decisions if not each.stays}))
    staying = {header.id for header in headers}.difference(going) | {row.id for row, _ in broken}
    return PrunePlan(
        session=session,
        decisions=tuple(decisions),
        going=going,
        warnings=tuple(_warnings(broken, decisions, verified_id)),
        reclaimable_bytes=_reclaimable(bodies, blobs, staying),
    )


def _check_readable(engine: Engine, retention: Retention) -> None:
    """Refuse rules about what cannot be read in an encrypted store without its key."""
    if (retention.keep_tags or retention.is_off) and isinstance(engine.backend, Locked):
        rule = "keep_tags" if retention.keep_tags else "history off"
        raise InvalidInput(
            f"the store is encrypted and no key was given: the rule {rule} looks at what is encrypted, so nothing "
            "was pruned; give the key, or other rules",
            code="key_missing",
        )


def marked(engine: Engine, uid: str) -> set[str]:
    """The checkpoints of a session that are marked as saved with history off."""
    kind, name = MARK
    return {str(note.target) for note in engine.backend.annotations(uid, kind=kind) if note.name == name}


def _if_unkept(decision: CheckpointDecision, is_unkept: bool) -> CheckpointDecision:
    if decision.stays:
        return decision
    reason = "history is off" if is_unkept else "saved before history was switched off"
    return msgspec.structs.replace(decision, stays=not is_unkept, reasons=(reason,))


def _stored_bytes(
    engine: Engine,
    session: SessionInfo,
    headers: Sequence[Header],
    bodies: Sequence[BodyInfo],
    blobs: Mapping[str, BlobSize],
) -> dict[str, int]:
    """What each checkpoint takes: its file or its bodies, and the blobs that it is the newest to need."""
    stored = dict.fromkeys((header.id for header in headers), 0)
    if isinstance(engine.backend, KeepsFiles):
        stored |= engine.backend.file_bytes(session.uid)
    else:
        for body in bodies:
            stored[body.checkpoint] = stored.get(body.checkpoint, 0) + body.stored_size
    for blob, checkpoint in _newest_with(headers, bodies).items() if blobs else ():
        stored[checkpoint] += blobs[blob].stored_size if blob in blobs else 0
    return stored


def _newest_with(headers: Sequence[Header], bodies: Sequence[BodyInfo]) -> dict[str, str]:
    """For each blob the newest checkpoint that needs it.

    A delta tells only the blobs that its base does not name, so every one built on a record needs its blobs.
    """
    newest_first = [header.id for header in sorted(headers, key=lambda header: -header.seq)]
    needers = _needers(newest_first, bodies)
    rank = {id: number for number, id in enumerate(newest_first)}
    found: dict[str, str] = {}
    for body in bodies:
        needer = needers.get((body.checkpoint, body.name))
        if needer is not None:
            found |= {blob: min(found.get(blob, needer), needer, key=rank.__getitem__) for blob in body.blobs}
    return found


def _needers(checkpoints: Iterable[str], bodies: Sequence[BodyInfo]) -> dict[tuple[str, str], str]:
    """The records that these checkpoints are made of, each with the first of them that needs it."""
    bases = {(body.checkpoint, body.name): body.base for body in bodies if not body.is_redundant}
    names: dict[str, list[str]] = {}
    for checkpoint, name in bases:
        names.setdefault(checkpoint, []).append(name)
    found: dict[tuple[str, str], str] = {}
    for checkpoint in checkpoints:
        for name in names.get(checkpoint, ()):
            at: str | None = checkpoint
            while at is not None and (at, name) not in found:
                found[at, name] = checkpoint
                at = bases.get((at, name))
    return found


def _newest_that_verifies(engine: Engine, session: SessionInfo) -> str:
    """The newest checkpoint of the current line whose stored bytes give what was saved (V7)."""
    for row in reader.line_of(engine.backend, session, session.branch):
        try:
            header = reader.verified(row)
            if not header.cipher:
                return reader.load(engine.backend, header).header.id
            for name in header.contents:
                reader.check_body(engine.backend, header, name)
            return header.id
        except (Corrupt, NotFound, Unsupported):
            continue
    return NOTHING_VERIFIES


def _warnings(
    broken: Sequence[tuple[HeaderRow, StepkeepError]],
    decisions: Sequence[CheckpointDecision],
    verified_id: str,
) -> Iterator[str]:
    for row, exc in broken:
        yield f"{row.id} is left alone, its header is damaged: {exc}"
    if decisions and verified_id == NOTHING_VERIFIES:
        yield "no checkpoint of the current line verifies, so all of it stays: run verify"
    for decision in decisions:
        if decision.warning == FROM_THE_FUTURE:
            yield f"{decision.checkpoint}: {decision.warning}"


def _reclaimable(bodies: Sequence[BodyInfo], blobs: Mapping[str, BlobSize], staying: Set[str]) -> int:
    """The stored bytes of what is left over when only these checkpoints stay, and what they are based on.

    Blobs that other sessions name are never left over.
    """
    needed = _needers(staying, bodies).keys()
    kept = {blob for body in bodies if _is_needed(body, needed) for blob in body.blobs}
    return sum(body.stored_size for body in bodies if not _is_needed(body, needed)) + sum(
        size.stored_size for blob, size in blobs.items() if blob not in kept and not size.is_shared
    )


def _is_needed(body: BodyInfo, needed: Set[tuple[str, str]]) -> bool:
    is_own = (body.checkpoint, body.name) in needed
    return is_own and (not body.is_redundant or body.base is None or (body.base, body.name) in needed)


def _in_order(headers: Sequence[Header], going: Set[str]) -> Iterator[str]:
    """What goes, the oldest first, but what requires another before that one, or it would be refused."""
    oldest_first = [header for header in reversed(headers) if header.id in going]
    dependents: dict[str, list[str]] = {}
    for header in oldest_first:
        for required in header.requires:
            dependents.setdefault(required, []).append(header.id)
    seen: set[str] = set()
    for header in oldest_first:
        waiting = [(header.id, False)]  # not the call stack: a chain may be longer than Python recurses
        while waiting:
            id, is_ready = waiting.pop()
            if is_ready:
                yield id
            elif id not in seen:
                seen.add(id)
                waiting.append((id, True))
                waiting.extend((each, False) for each in dependents.get(id, ()))


# --- apply -----------------------------------------------------------------------------------------------------


def apply_prune(
    engine: Engine, plan: PrunePlan, *, batch: int = 100, progress: Progress | None = None
) -> PruneReport:
    """Remove what the plan lets go, the oldest first, and sweep the bodies and blobs that nothing needs then (V5).

    Each batch is one transaction. What became a head, a fork point, the newest or required since the plan was
    made stays. What others removed meanwhile is not missed, be it the whole session. Repeatable: after a kill,
    plan and apply again.

    Raises:
        BackendUnavailable: with code `checkpoint_retention_prune_failed`; nothing is half removed.
    """
    if batch < 1:
        raise InvalidInput(f"batch must be at least 1, not {batch}", code="invalid_setting")
    try:
        return _apply(engine, plan, batch, progress)
    except StepkeepError as exc:
        raise _failed(engine, plan.session, exc) from exc


def prune_session(
    engine: Engine,
    session: SessionInfo,
    retention: Retention,
    *,
    sources: Mapping[str, str] | None = None,
    dry_run: bool = False,
) -> PruneReport:
    """Plan and apply in one go. A dry run removes nothing, and says of each checkpoint what would become of it.

    `sources` names where rules come from that are not those of the session's profile.

    Raises:
        NotFound: the session was deleted before anything was done.
        InvalidInput: a rule is about what is encrypted, and there is no key (`key_missing`).
        BackendUnavailable: with code `checkpoint_retention_prune_failed`; nothing is half removed.
    """
    try:
        plan = plan_prune(engine, session, retention, now_us=engine.clock())
    except (NotFound, InvalidInput):
        raise
    except StepkeepError as exc:
        raise exc if dry_run else _failed(engine, session, exc) from exc
    if dry_run:
        would = Removed(removed=plan.going, stored_bytes=plan.reclaimable_bytes)
        report = msgspec.structs.replace(_report(plan, [would], 0), decisions=plan.decisions)
    else:
        report = apply_prune(engine, plan)
    rules = rule_texts(retention, session.profile, sources)
    return msgspec.structs.replace(report, rules=rules, warnings=plan.warnings)


def prune_store(
    engine: Engine,
    retention_of: Callable[[SessionInfo], Retention],
    *,
    sources_of: Callable[[SessionInfo], Mapping[str, str]] = lambda _: {},
    only: SessionInfo | None = None,
    compress_after_hours: int | None = None,
    dry_run: bool = False,
) -> Pruned:
    """Prune every session, or only one; compress what stays and is old enough; give the space back.

    With all sessions, one that fails is in `errors` and does not stop the others. The error of the only one is raised.
    """
    reports: list[PruneReport] = []
    errors: list[SessionError] = []

    def prune(session: SessionInfo) -> PruneReport:
        rules, sources = retention_of(session), sources_of(session)
        return prune_session(engine, session, rules, sources=sources, dry_run=dry_run)

    if only is not None:
        reports.append(prune(only))
    for session in [] if only is not None else list(engine.backend.sessions(SessionQuery())):
        try:
            reports.append(prune(session))
        except StepkeepError as exc:
            if not (isinstance(exc, NotFound) and exc.code == "session_not_found"):  # deleted meanwhile
                errors.append(SessionError(session=session.key, code=exc.code, message=exc.message))
    uid = None if only is None else only.uid
    compress = count_compressible if dry_run else compress_history
    hours = compress_after_hours
    return Pruned(
        is_dry_run=dry_run,
        **{name: sum(getattr(each, name) for each in reports) for name in PruneCounts.__struct_fields__},
        compressed=0
        if hours is None
        else compress(engine, after_hours=hours, now_us=engine.clock(), session=uid),
        reclaimed_bytes=0 if dry_run else reclaim(engine),
        sessions=tuple(reports),
        errors=tuple(errors),
        result=FAIL if errors else PASS,
        fixes=fixes_for_codes(error.code for error in errors),
    )


def _apply(engine: Engine, plan: PrunePlan, batch: int, progress: Progress | None) -> PruneReport:
    uid, done, swept_bytes = plan.session.uid, list[Removed](), 0
    try:
        for start in range(0, len(plan.going), batch):
            remove = partial(engine.backend.remove, uid, plan.going[start : start + batch], keep_heads=True)
            done.append(in_turn(engine, remove))
            for id in done[-1].removed:
                pruned_ones.info("Pruning old checkpoint from history: %s", id)
            if progress is not None:
                progress(len(done[-1].removed) + len(done[-1].refused) + len(done[-1].missing))
        if plan.reclaimable_bytes or any(each.removed for each in done):
            swept_bytes = sweep(engine, uid)
        report = _report(plan, done, swept_bytes)
        if report.deleted:
            went = f"{report.deleted:,} of {count(report.total, 'checkpoint')}, {size(report.stored_bytes)}"
            log.info("Pruned session %r: %s", plan.session.key, went)
            data: dict[str, Any] = {name: getattr(report, name) for name in PruneCounts.__struct_fields__}
            data["removed"] = _ranges(plan, {id for each in done for id in each.removed})
            engine.backend.record_event(uid, PRUNED, data, time_us=engine.clock())
    except NotFound:  # others removed the whole session
        report = _report(plan, done, swept_bytes)
        return msgspec.structs.replace(report, kept=0, refused=0, missing=report.total - report.deleted)
    return report


def _ranges(plan: PrunePlan, removed: Set[str]) -> list[dict[str, Any]]:
    """What went and by which rule, for whoever looks for it later: neighbours that went for the same reason are one."""
    gone = sorted((each for each in plan.decisions if each.checkpoint in removed), key=lambda each: each.seq)
    ranges: list[dict[str, Any]] = []
    for each in gone:
        rule = ", ".join(each.reasons)
        if ranges and ranges[-1]["last"] == each.seq - 1 and ranges[-1]["rule"] == rule:
            ranges[-1] |= {"last": each.seq, "last_id": each.checkpoint}
        else:
            ids = {"first_id": each.checkpoint, "last_id": each.checkpoint}
            ranges.append({"first": each.seq, "last": each.seq, "rule": rule, **ids})
    return ranges


def _report(plan: PrunePlan, done: Sequence[Removed], swept_bytes: int) -> PruneReport:
    deleted, missing = sum(len(each.removed) for each in done), sum(len(each.missing) for each in done)
    return PruneReport(
        session=plan.session.key,
        total=len(plan.decisions),
        kept=len(plan.decisions) - deleted - missing,
        deleted=deleted,
        refused=sum(len(each.refused) for each in done),
        missing=missing,
        stored_bytes=swept_bytes + sum(each.stored_bytes for each in done),
    )


def _failed(engine: Engine, session: SessionInfo, cause: StepkeepError) -> StepkeepError:
    """The error for a prune that failed, after it was logged and, if that is possible, recorded."""
    log.error("Pruning session %r failed: %s (%s: %s)", session.key, cause, PRUNE_FAILED, cause.code)
    try:
        data = {"error": str(cause), "code": PRUNE_FAILED, "cause": cause.code}
        engine.backend.record_event(session.uid, "prune_failed", data, time_us=engine.clock())
    except StepkeepError as exc:
        log.warning("The failed prune of session %r could not be recorded: %s", session.key, exc)
    again = "; prune again" if cause.retryable else ""
    return BackendUnavailable(
        f"pruning session {session.key!r} failed: {cause}. What stays is intact{again}.",
        code=PRUNE_FAILED,
        retryable=cause.retryable,
        session=session.key,
    )
