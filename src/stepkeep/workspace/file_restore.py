"""Bringing files back: previewed, after a safety checkpoint, each whole, and undone the same way."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from operator import attrgetter
from typing import Any, Final

import msgspec

from stepkeep.engine import Engine
from stepkeep.errors import BackendUnavailable, Conflict, Corrupt, NotFound, StepkeepError
from stepkeep.history.documents import CheckpointInfo, describe_one
from stepkeep.history.refs import SWITCHED
from stepkeep.model import Header, SessionInfo
from stepkeep.policy.retention import SAFETY_TAG
from stepkeep.storage.port import Event
from stepkeep.workspace.capture import DEFAULT_LIMITS, CapturedTree, CaptureLimits, capture_live, save_tree
from stepkeep.workspace.captured_files import SAFETY, content_of, load_manifest, newest_capture, no_file
from stepkeep.workspace.file_diff import ChangedFile, FileChange, change_of, changed_file
from stepkeep.workspace.ignore import TreeRules, first_rules
from stepkeep.workspace.manifest import (
    FileEntry,
    Manifest,
    PathFilter,
    PrivateFolder,
    Skipped,
    from_text,
    parents,
    to_text,
)
from stepkeep.workspace.scan import NO_SIGNATURE, ignore_file, opened_parent, opened_root
from stepkeep.workspace.staging import ChangedMeanwhile, Staging

BEGUN: Final = "files_restore_begun"
RESTORED: Final = "files_restored"
RESTORED_ALL: Final = "restored_with_files"
"""The event that says that the restore of files and the change of branches before it were one step."""


class FileProblem(msgspec.Struct, frozen=True, kw_only=True):
    """A path that stayed as it was, and why."""

    path: str
    reason: str


class RestoredFiles(msgspec.Struct, frozen=True, kw_only=True):
    """What a restore of files did, or on a dry run would do. Paths are text that can be shown.

    `changes` lead from the tree as it was to the checkpoint. `failures` are paths that are as they were, and why.
    `kept` are files that the checkpoint does not have, but did not look at either, with the reason for that: they stay.
    `safety` is the checkpoint that has the tree as it was; None when nothing had to change. `conflicts` are paths
    whose content no capture had: they are only overwritten by force.
    """

    session: str
    checkpoint: CheckpointInfo
    root: str
    is_dry_run: bool
    is_complete: bool
    safety: str | None
    total: int
    changes: tuple[ChangedFile, ...]
    conflicts: tuple[str, ...]
    failures: tuple[FileProblem, ...]
    kept: tuple[FileProblem, ...]


class SomeFiles(msgspec.Struct, frozen=True, kw_only=True):
    """Some files of a tree, each out of the capture that has what it is to be.

    `wanted` maps a path to that, None where it is to go, and `sources` to the checkpoint that tells it. `expected` has
    what it may be now: what is something else, somebody else changed. `mark` names the restores that are one step
    together.
    """

    wanted: Mapping[str, FileEntry | None]
    sources: Mapping[str, str]
    expected: Mapping[str, tuple[FileEntry | None, ...]]
    mark: str
    private: tuple[PrivateFolder, ...] = ()

    def manifest(self, root: str) -> Manifest:
        """The tree that has these files, and is known to lack those that are to go."""
        entries = [entry for entry in self.wanted.values() if entry is not None]
        absent = tuple(sorted(path for path, entry in self.wanted.items() if entry is None))
        return Manifest(
            root=root,
            absent=absent,
            ignored=(),
            private=self.private,
            entries=tuple(sorted(entries, key=attrgetter("path"))),
        )

    def is_expected(self, path: str, now: FileEntry | None) -> bool:
        """Whether a file is as it may be now."""
        known = self.expected.get(path, ())
        return any(now is each if now is None or each is None else now.is_same(each) for each in known)

    def facts(self, paths: Iterable[str]) -> dict[str, Any]:
        """What an event notes about these paths: the checkpoints, and for each path the index of its own."""
        ids = sorted(set(self.sources.values()))
        return {"mark": self.mark, "sources": ids, "from": [ids.index(self.sources[path]) for path in paths]}


def restore_files(
    engine: Engine,
    header: Header,
    root: str,
    *,
    paths: Iterable[str] = (),
    some: SomeFiles | None = None,
    limits: CaptureLimits = DEFAULT_LIMITS,
    dry_run: bool = False,
    force: bool = False,
    is_undo: bool = False,
    must_exist: bool = True,
) -> RestoredFiles:
    """Make the tree, or these paths of it, what they were at a checkpoint; or make `some` files what they were.

    First everything is prepared beside the tree, then a safety checkpoint is taken, then each file is moved into
    its place, whole. When this is interrupted, every file is old or new; repeating it finishes. A file is removed only
    if it is known not to have been there. Nothing outside the root or behind a link is touched.

    Raises:
        NotFound: the checkpoint has no files, or none of these paths, unless they need not exist.
        Conflict: files changed since the newest capture, or somebody else changed them (`files_changed`), and `force`
            is not given.
        Corrupt: a file of the checkpoint is damaged. BackendUnavailable: a file cannot be prepared
            (`files_not_restored`). In all these cases nothing changed.
        BackendUnavailable: all files are in place, but a loss of power may take some back (`files_not_durable`).
    """
    work = _FilesRestore(engine, header, root, paths, some, limits, is_dry_run=dry_run, is_undo=is_undo)
    if some is None and must_exist:
        work.check_paths()
    if not dry_run:
        work.check_conflicts(force=force)
        if work.plan.changes:
            return work.apply()
    return work.outcome(None, work.plan.blocked)


class UndoStep(msgspec.Struct, frozen=True, kw_only=True):
    """Something that can be taken back: a change of branches (`switch`), a restore of files, or both at once.

    Both are what the events noted. `takes_back` is False where that is itself an undo: taking it back does it again.
    `is_ended` is False for a restore of files that was stopped in the middle.
    """

    switch: Mapping[str, Any] | None = None
    files: Mapping[str, Any] | None = None
    takes_back: bool = True
    is_ended: bool = True


def last_step(engine: Engine, session: SessionInfo, *, files_only: bool = False) -> UndoStep:
    """What an undo takes back: the newest step that was not taken back yet, else the last undo. An undo that was
    stopped in the middle took nothing back: another one finishes it.

    Raises:
        NotFound: nothing was restored or switched (`nothing_to_undo`).
    """
    steps = _steps(engine.backend.events(session.uid), files_only=files_only)
    waiting: list[UndoStep] = []
    for step in steps:
        if step.takes_back:
            waiting.append(step)
        elif waiting and step.is_ended:
            waiting.pop()
    if not steps:
        what = (
            f"no files were restored in session {session.key!r}"
            if files_only
            else f"session {session.key!r} was never restored or switched to another branch"
        )
        raise NotFound(f"{what}: there is nothing to undo", code="nothing_to_undo", session=session.key)
    return waiting[-1] if waiting else msgspec.structs.replace(steps[-1], takes_back=False)


def _steps(events: Iterable[Event], *, files_only: bool) -> list[UndoStep]:
    """All changes of branches and restores of files, oldest first. One that could change nothing does not count."""
    steps: list[UndoStep] = []
    for event in events:
        last = steps[-1] if steps else UndoStep()
        if event.type == BEGUN:
            steps.append(UndoStep(files=event.data, takes_back=not event.data.get("is_undo"), is_ended=False))
        elif event.type == SWITCHED and not files_only:
            steps.append(UndoStep(switch=event.data, takes_back=event.data.get("why") != "undo"))
        elif event.type == RESTORED and last.files is not None:
            ended = [msgspec.structs.replace(last, is_ended=True)] if event.data.get("done", 1) else []
            steps[-1:] = ended
        elif event.type == RESTORED_ALL and not files_only and len(steps) > 1:
            steps[-2:] = [msgspec.structs.replace(last, files=steps[-2].files)]
    return steps


def safety_of(engine: Engine, session: SessionInfo, step: UndoStep) -> tuple[Header, tuple[str, ...]]:
    """The safety checkpoint that has the files as they were before a step, and the paths that it restored."""
    assert step.files is not None
    paths = tuple(from_text(path) for path in step.files["paths"])
    return engine.header(step.files["safety"], session=session.uid), paths


def stopped_restore(engine: Engine, uid: str) -> str | None:
    """The checkpoint whose files were restored last, if that did not come to its end: another one finishes it, an undo
    takes it back."""
    last = next(iter(_events(engine, uid)), None)
    return None if last is None or last.type == RESTORED else str(last.data["target"])


def _events(engine: Engine, uid: str) -> list[Event]:
    """The restores of files, the newest first."""
    return [event for event in reversed(engine.backend.events(uid)) if event.type in (BEGUN, RESTORED)]


class _FilesRestore:
    """One restore under way."""

    def __init__(
        self,
        engine: Engine,
        header: Header,
        root: str,
        paths: Iterable[str],
        some: SomeFiles | None,
        limits: CaptureLimits,
        *,
        is_dry_run: bool,
        is_undo: bool,
    ) -> None:
        self._engine = engine
        self._header = header
        self._root = root
        self._limits = limits
        self._is_dry_run = is_dry_run
        self._is_undo = is_undo
        self._some = some
        if some is None:
            self._target = load_manifest(engine, header)
            self._wanted = PathFilter(as_named(paths, self._target, root))
        else:
            self._target, self._wanted = some.manifest(root), PathFilter(sorted(some.wanted))
        self._newest = newest_capture(engine, header.session, root)
        self._live = self._scan_live(with_blobs=not is_dry_run)
        plan = plan_restore(
            self._target,
            self._live.manifest,
            is_known=captured_in(self._known()) if some is None else some.is_expected,
            wanted=self._wanted,
            is_left_out=was_left_out(engine, header.session, self._target, root, limits),
        )
        self.plan = self._without_full_directories(plan)

    def _scan_live(self, *, with_blobs: bool) -> CapturedTree:
        also = [entry.path for entry in self._target.entries if entry.path in self._wanted]
        also += [path for path in self._target.absent if path in self._wanted]
        uid, limits = self._header.session, self._limits
        return capture_live(self._engine, uid, self._root, limits=limits, also=also, with_blobs=with_blobs)

    def check_paths(self) -> None:
        """Refuse paths that are nowhere."""
        have = [entry.path for each in (self._target, self._live.manifest) for entry in each.entries]
        have += [each.path for each in self._live.manifest.skipped]
        for path in self._wanted.naming_none(have):
            raise no_file(self._header.id, path, f"neither {self._header.id} nor the workspace has")

    def _known(self) -> Iterable[Manifest]:
        """Captures that hold what may be overwritten: the newest, and what was restored since."""
        if self._newest is None:
            return
        yield self._newest[1]
        for event in _events(self._engine, self._header.session):
            if event.type == BEGUN and event.time_us >= self._newest[0].time_us:
                for restored in (event.data["target"], *event.data.get("sources", ())):
                    with suppress(StepkeepError):  # pruned or damaged: then it vouches for nothing
                        header = self._engine.header(restored, session=self._header.session)
                        yield load_manifest(self._engine, header)

    def _without_full_directories(self, plan: RestorePlan) -> RestorePlan:
        """Leave a directory alone where a file would go, if it holds anything that was not captured."""
        gone = {change.path for change in plan.changes if change.new is None}
        with opened_root(self._root) as root:
            arriving = [change.path for change in plan.changes if change.old is None]
            full = [path for path in arriving if _holds_others(root, path, gone)]
        if not full:
            return plan
        stays = PathFilter(full)
        blocked = [Skipped(path, "a directory is there that holds files no capture has") for path in full]
        return msgspec.structs.replace(
            plan,
            changes=tuple(change for change in plan.changes if change.path not in stays),
            conflicts=tuple(path for path in plan.conflicts if path not in stays),
            blocked=(*plan.blocked, *blocked),
        )

    def outcome(self, safety: str | None, failures: Sequence[Skipped]) -> RestoredFiles:
        checkpoint = describe_one(self._engine, self._header)
        return RestoredFiles(
            session=checkpoint.session,
            checkpoint=checkpoint,
            root=to_text(self._root),
            is_dry_run=self._is_dry_run,
            is_complete=not failures and not self._is_dry_run,
            safety=safety,
            total=len(self.plan.changes),
            changes=tuple(map(changed_file, self.plan.changes)),
            conflicts=tuple(map(to_text, self.plan.conflicts)),
            failures=_problems(failures),
            kept=_problems(self.plan.kept),
        )

    def check_conflicts(self, *, force: bool) -> None:
        if force or not self.plan.conflicts:
            return
        first, total = ", ".join(map(repr, self.plan.conflicts[:5])), len(self.plan.conflicts)
        message = (
            f"files changed since the newest capture, {total} in all: {first}. {self._what_helps()}"
            if self._some is None
            else f"somebody else changed {total} of these files since: {first}. Use force=True (--force) to go back "
            "over that; the safety checkpoint then has it"
        )
        raise Conflict(
            message,
            code="files_changed",
            retryable=False,
            checkpoint=self._header.id,
        )

    def _what_helps(self) -> str:
        """Advice against conflicts. A restore also captures what a save leaves out because of a rule or its size."""
        saved = capture_live(
            self._engine, self._header.session, self._root, limits=self._limits
        ).manifest.by_path()
        others = [path for path in self.plan.conflicts if path not in saved]
        if not others:
            return "Capture them first, or use force=True (--force)"
        first, total = ", ".join(map(repr, others[:5])), len(others)
        return (
            f"A save leaves out {total} of them, ignored or over a limit of the settings: {first}. Use force=True "
            "(--force): the safety checkpoint then has them all"
        )

    # --- doing it

    def apply(self) -> RestoredFiles:
        with opened_root(self._root) as root:
            try:
                with Staging(root, self._target.private) as area:
                    self._prepare(area)
                    safety = self._safety()
                    failures = self._move(area, safety)
            except OSError as exc:
                raise BackendUnavailable(
                    f"the files of {self._header.id} cannot be written to {self._root!r}: {exc.strerror}. "
                    "Nothing was changed.",
                    code="files_not_restored",
                    retryable=False,
                    checkpoint=self._header.id,
                ) from exc
        total = len(self.plan.changes)
        self._note(RESTORED, safety, changed=total, failed=len(failures), done=total - len(failures))
        return self.outcome(safety, [*self.plan.blocked, *failures])

    def _prepare(self, area: Staging) -> None:
        for change in self.plan.changes:
            if change.new is not None:
                area.prepare(change.new, content_of(self._engine, change.new, self._header.session))
        area.prepared()

    def _safety(self) -> str:
        """The safety checkpoint: a new one, or that of the same restore if it was interrupted before."""
        if (safety := self._interrupted()) is None:
            safety = self._save_safety()
            self._note(BEGUN, safety, is_undo=self._is_undo)
        return safety

    def _interrupted(self) -> str | None:
        """The safety checkpoint of the same restore, if that was stopped or could not make all changes."""
        last = next(iter(_events(self._engine, self._header.session)), None)
        if last is None or self._newest is None or (last.type == RESTORED and not last.data.get("failed")):
            return None
        facts = self._facts(self._newest[0].id)
        is_same = {name: last.data.get(name) for name in facts} == facts
        is_on_its_way = is_same and is_between(self._live.manifest, self._newest[1], self._target)
        return self._newest[0].id if is_on_its_way else None

    def _save_safety(self) -> str:
        message = f"before the files of checkpoint {self._header.seq} were restored"
        return save_tree(
            self._engine, self._header.session, self._live, SAFETY, message=message, tags=(SAFETY_TAG,)
        ).id

    def _facts(self, safety: str) -> dict[str, Any]:
        paths = self._wanted.paths
        some = {} if self._some is None else self._some.facts(paths)
        return {"target": self._header.id, "safety": safety, "paths": list(map(to_text, paths)), **some}

    def _note(self, kind: str, safety: str, **more: int) -> None:
        data = {**self._facts(safety), **more}
        self._engine.backend.record_event(self._header.session, kind, data, time_us=self._engine.clock())

    def _move(self, area: Staging, safety: str) -> list[Skipped]:
        """Make all changes; what cannot be changed stays as it is and is reported."""
        first = in_the_way(self.plan.changes)
        gone = {change.path for change in first}
        others = [change for change in self.plan.changes if change.path not in gone]
        failures: list[Skipped] = []
        for change in (*first, *sorted(others, key=lambda change: change.new is None)):
            signature = self._live.signature(change.path)
            try:
                if change.new is None:
                    area.remove(change.path, signature or NO_SIGNATURE)
                else:
                    area.place(change.path, signature)
            except ChangedMeanwhile:
                failures.append(Skipped(change.path, "it changed while files were restored"))
            except OSError as exc:
                failures.append(Skipped(change.path, exc.strerror or "it cannot be written"))
        try:
            area.placed()
        except OSError as exc:
            raise BackendUnavailable(
                f"the files of {self._header.id} are in place, but the disk did not confirm it: {exc.strerror}. After "
                f"a loss of power some may be as they were. The tree as it was is in {safety}.",
                code="files_not_durable",
                retryable=False,
                checkpoint=self._header.id,
            ) from exc
        return failures


def as_named(paths: Iterable[str], manifest: Manifest, root: str) -> list[str]:
    """The paths that are meant: one that nothing has may be spelled as output shows it, with escapes."""
    known = {entry.path for entry in manifest.entries}

    def meant(path: str) -> str:
        if "\\" not in path or path in known or os.path.lexists(os.path.join(root, path)):  # noqa: PTH118
            return path
        try:
            return from_text(path)
        except Corrupt:
            return path

    return [meant(path) for path in paths]


def _problems(found: Iterable[Skipped]) -> tuple[FileProblem, ...]:
    return tuple(FileProblem(path=to_text(each.path), reason=each.reason) for each in found)


def _holds_others(root: int, path: str, gone: set[str]) -> bool:
    """Whether a directory is at that path, with anything in it that is not to be removed."""
    try:
        with opened_parent(root, f"{path}/.") as (directory, _), os.scandir(directory) as listing:
            names = [(each.name, each.is_dir(follow_symlinks=False)) for each in listing]
    except PermissionError:
        return True  # it cannot be listed, so it may hold something
    except OSError:
        return False
    return any(
        _holds_others(root, f"{path}/{name}", gone) if is_directory else f"{path}/{name}" not in gone
        for name, is_directory in names
    )


# --- the plan: what would change, decided from manifests alone ---------------------------------------------------


class RestorePlan(msgspec.Struct, frozen=True, kw_only=True):
    """The changes a restore makes, from the live tree to the captured one.

    `conflicts` are paths of these that hold work no capture has. `blocked` stay as they are, and why. `kept` stay since
    the captured tree may have had them.
    """

    changes: tuple[FileChange, ...]
    conflicts: tuple[str, ...]
    blocked: tuple[Skipped, ...]
    kept: tuple[Skipped, ...] = ()


def plan_restore(
    target: Manifest,
    live: Manifest,
    *,
    is_known: Callable[[str, FileEntry | None], bool],
    wanted: PathFilter,
    is_left_out: Callable[[str], bool],
) -> RestorePlan:
    """Decide for every path. `is_known` tells whether what is there now may be overwritten.

    A live file that the target does not have is removed if it was not there then. What the target left out it may have
    had: that stays, and so does what its ignore files would leave out (`is_left_out`). What would be removed or
    replaced and cannot be captured first is blocked.
    """
    before, after = live.by_path(), target.by_path()
    unseen, uncaptured = UnseenPaths(target, is_left_out), {each.path: each for each in live.skipped}
    changes: list[FileChange] = []
    kept: list[Skipped] = []
    for path in sorted(before.keys() | after.keys()):
        change = change_of(path, before.get(path), after.get(path))
        if change is None or path not in wanted:
            continue
        if change.kind == "removed" and (reason := unseen.reason(path)) is not None:
            kept.append(Skipped(path, reason))
        elif change.kind != "added" or path not in uncaptured:
            changes.append(change)
    blocked = [
        Skipped(path, f"what is there cannot be captured first: {each.reason}")
        for path, each in sorted(uncaptured.items())
        if path in wanted and path not in before and (path in after or unseen.reason(path) is None)
    ]
    conflicts = tuple(change.path for change in changes if not is_known(change.path, change.old))
    return RestorePlan(changes=tuple(changes), conflicts=conflicts, blocked=tuple(blocked), kept=tuple(kept))


class UnseenPaths:
    """What a capture did not look at, with the reasons: that the manifest does not have it proves nothing."""

    def __init__(self, manifest: Manifest, is_left_out: Callable[[str], bool]) -> None:
        self._absent = frozenset(manifest.absent)
        self._skipped = {each.path: each.reason for each in manifest.skipped}
        self._left_out = dict.fromkeys(manifest.left_out, "not checked out, or left out by a rule,")
        self._left_out |= {each.path: f"ignored ({each.rule})" for each in manifest.ignored or ()}
        self._is_left_out = is_left_out
        self._knows_all = manifest.ignored is not None

    def reason(self, path: str) -> str | None:
        """Why nobody looked whether it was there; None for a path that was looked for."""
        folder = path.rpartition("/")[0]
        ways = (path, f"{folder}/*" if folder else "*", *(f"{above}/" for above in parents(path)))
        found = next((self._skipped[way] for way in ways if way in self._skipped), None)
        if found is None and path in self._absent:
            return None
        found = found or next((self._left_out[way] for way in ways if way in self._left_out), None)
        if found is not None:
            return f"it may have been there: {found} then"
        if self._is_left_out(path):
            return "the checkpoint's ignore files leave it out"
        return None if self._knows_all else "the checkpoint does not tell what it left out"


def seen_later(first: Manifest, later: Iterable[Manifest]) -> dict[str, tuple[int, FileEntry]]:
    """The files that a capture did not look at, with the index of the later one that has each first, and its entry."""
    unseen, known = UnseenPaths(first, lambda _: False), first.by_path()
    found: dict[str, tuple[int, FileEntry]] = {}
    for index, manifest in enumerate(later):
        for entry in manifest.entries:
            if entry.path not in known and entry.path not in found and unseen.reason(entry.path) is not None:
                found[entry.path] = index, entry
    return found


def captured_in(known: Iterable[Manifest]) -> Callable[[str, FileEntry | None], bool]:
    """Tells whether captures hold what is at a path now; where nothing is, nothing can be lost."""
    safe = [manifest.by_path() for manifest in known]
    return lambda path, now: now is None or any(now.is_same(entries.get(path)) for entries in safe)


def in_the_way(changes: Sequence[FileChange]) -> list[FileChange]:
    """The removals without which others cannot happen: a file where a directory must be, or the reverse."""
    arriving = {change.path for change in changes if change.new is not None}
    above = {directory for path in arriving for directory in parents(path)}
    return [
        change
        for change in changes
        if change.new is None
        and (change.path in above or any(directory in arriving for directory in parents(change.path)))
    ]


def is_between(live: Manifest, old: Manifest, new: Manifest) -> bool:
    """Whether every file is as in one of two captures: a restore from one to the other stopped on its way."""
    now, before, after = live.by_path(), old.by_path(), new.by_path()
    return before.keys() & after.keys() <= now.keys() and all(
        entry.is_same(before.get(path)) or entry.is_same(after.get(path)) for path, entry in now.items()
    )


# --- what the ignore files of a tree leave out -------------------------------------------------------------------


def was_left_out(
    engine: Engine, session: str, manifest: Manifest, root: str, limits: CaptureLimits
) -> Callable[[str], bool]:
    """Tells of a path that is captured in the tree as it is now whether the captured tree left it out.

    It did if its ignore files say so, and those that are there now do not. Where both say so and the path is captured
    all the same, they do not decide about it: it lies in a nested repository, git tracks it, or a rule from outside
    the tree takes it back.
    """
    entries, rules = manifest.by_path(), first_rules(limits.ignore)

    def recorded(path: str) -> bytes | None:
        entry = entries.get(path)
        if entry is None or entry.is_link:
            return None
        try:
            return engine.load_blob(entry.digest, session)
        except StepkeepError:
            return b"*"  # rules that cannot be read leave everything out: nothing is removed by mistake

    def live(path: str) -> bytes | None:
        with opened_root(root) as directory:
            return ignore_file(directory, path)

    then, now = TreeRules(recorded, rules), TreeRules(live, rules)
    return lambda path: then.left_out_by(path) is not None and now.left_out_by(path) is None
