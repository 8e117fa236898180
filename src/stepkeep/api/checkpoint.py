"""A checkpoint as its reader sees it, and going on from one."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from datetime import datetime
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from stepkeep.engine import Engine, Fallback, Loaded
from stepkeep.errors import NotFound, StepkeepError
from stepkeep.model import DETAILS, STATE, Header
from stepkeep.storage.port import ANY_HEAD

if TYPE_CHECKING:
    from stepkeep.api.files import Workspace
    from stepkeep.api.options import Ref
    from stepkeep.api.session import Session
    from stepkeep.history.conversation import Conversation
    from stepkeep.history.documents import CheckpointInfo
    from stepkeep.history.outline import Outline
    from stepkeep.history.state_diff import ChangeCounts
    from stepkeep.recording.connected_parts import Extra, Missing
    from stepkeep.workspace.file_restore import RestoredFiles, UndoStep

T = TypeVar("T")


class Checkpoint:
    """A verified checkpoint: its header, and the values that were saved."""

    def __init__(self, loaded: Loaded) -> None:
        self._loaded = loaded

    @property
    def header(self) -> Header:
        return self._loaded.header

    @property
    def id(self) -> str:
        return self._loaded.header.id

    @property
    def seq(self) -> int:
        return self._loaded.header.seq

    @property
    def step(self) -> int | None:
        return self._loaded.header.step

    @property
    def created_at(self) -> datetime:
        return self._loaded.header.created_at

    @property
    def fallback(self) -> Fallback | None:
        """Set when this is not the newest checkpoint, because newer ones are damaged."""
        return self._loaded.fallback

    @cached_property
    def state(self) -> Any:
        """What was saved."""
        return self._loaded.value()

    @cached_property
    def details(self) -> Any:
        """What was saved as details, None if nothing was."""
        return self._loaded.value(DETAILS) if DETAILS in self._loaded.contents else None

    def load(self, type: type[T]) -> T:
        """The state rebuilt as a dataclass, msgspec struct or pydantic model."""
        from stepkeep.codec.models import convert

        return convert(self._loaded.value(), type)

    def outline(self, path: str = "$", *, name: str = STATE, start: int = 0, limit: int = 100) -> Outline:
        """The value at a path of the state, or of another body, and `limit` of the values right below it.

        Only that level is decoded, however large the state is.

        Raises:
            NotFound: it has no such body (`body_not_found`), or nothing at that path (`path_not_found`).
            InvalidInput: the path cannot be read (`invalid_path`).
            Unsupported: the body cannot be looked into.
        """
        from stepkeep.history.outline import outline

        return outline(self.id, *self._body(name), path, start=start, limit=limit)

    def conversation(self, *, start: int | None = None, limit: int = 50) -> Conversation:
        """The messages in the state, where it has a list of them: `limit` from number `start` on, else the last."""
        from stepkeep.history.conversation import conversation

        return conversation(self.id, *self._body(STATE), start=start, limit=limit)

    def _body(self, name: str) -> tuple[str, bytes]:
        if name not in self._loaded.contents:
            raise NotFound(f"{self.id} has no {name}", code="body_not_found", checkpoint=self.id)
        return self.header.contents[name].encoding, self.content(name)

    def content(self, name: str = STATE) -> bytes:
        """The exact bytes of a body."""
        return self._loaded.contents[name]

    def __repr__(self) -> str:
        return f"<Checkpoint {self.id} seq={self.seq}>"


class Restored(msgspec.Struct, frozen=True, kw_only=True):
    """A session that goes on from an old checkpoint: on which branch, and what it left behind.

    `changes` lead from the state before to the restored one; None when that cannot be read, or nobody asked. `files` is
    what became of the project files, None where they were not asked for; `files_left` counts those that the checkpoint
    holds and that were left as they are.
    """

    session: str
    checkpoint: Checkpoint
    info: CheckpointInfo
    branch: str
    is_new_branch: bool
    previous_branch: str
    previous_head: str | None
    previous_seq: int | None
    undo: str
    changes: ChangeCounts | None = None
    parts: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    extra: tuple[str, ...] = ()
    files: RestoredFiles | None = None
    files_left: int = 0

    @property
    def state(self) -> Any:
        """The state to go on with."""
        return self.checkpoint.state

    @property
    def restored_to(self) -> str:
        """The id of the checkpoint."""
        return self.checkpoint.id

    @property
    def timestamp(self) -> datetime:
        """When it was saved."""
        return self.checkpoint.created_at

    @property
    def message(self) -> str:
        return self.checkpoint.header.message

    def document(self) -> dict[str, Any]:
        """The same as JSON can hold it, without the state. `undo` is the ref that leads back."""
        from stepkeep.history.refs import BEFORE

        moved = [
            *("branch", "is_new_branch", "previous_branch", "previous_head", "previous_seq", "changes"),
            *("files", "files_left", "recovery_complete"),
        ]
        document = {"session": self.session, "checkpoint": self.info, "undo": BEFORE}
        return document | {name: getattr(self, name) for name in moved}

    @property
    def recovery_complete(self) -> bool:
        """Whether every connected part was in the checkpoint, every part of it is connected, and its files are back.

        With no part connected the state is the caller's, and nothing is missing.
        """
        is_whole = not self.missing and not (self.parts and self.extra)
        return is_whole and not self.files_left and (self.files is None or self.files.is_complete)


def restore(
    session: Session,
    ref: Ref,
    *,
    branch: str | None = None,
    expect_head: str | None = ANY_HEAD,
    missing: Missing = "error",
    extra: Extra = "ignore",
    force: bool = False,
    compare: bool = False,
    files: bool = False,
    parts: bool = True,
    workspace: Workspace = None,
    step: UndoStep | None = None,
) -> Restored:
    """Let a session go on from a checkpoint together with its connected parts: all of it happens, or none.

    With parts the session moves last, and only if its head is still the one of the beginning; otherwise the parts go
    back. An undo moves it first; where the parts fail, it moves back. Files are restored before, and go back as well.
    `step` is what an undo takes back.
    """
    from stepkeep.history import branches
    from stepkeep.history.documents import readable_header
    from stepkeep.history.refs import BEFORE
    from stepkeep.recording.connected_parts import PutBack
    from stepkeep.workspace.captured_files import has_files
    from stepkeep.workspace.file_restore import RESTORED_ALL

    engine, connected = session._engine, session._parts
    has_parts = parts and connected is not None and bool(connected.names)
    moved: RestoredFiles | None = None

    def put_back(loaded: Loaded) -> AbstractContextManager[PutBack]:
        if connected is None or not has_parts:
            return nullcontext(PutBack())
        return connected.put_back(
            loaded.value(), missing=missing, extra=extra, checkpoint=loaded.header.id, force=force
        )

    if step is not None or (ref == BEFORE and branch is None and not files):
        if step is not None and step.files is not None:
            moved = session.files.take_back(step, workspace=workspace, force=force)
        why: branches.Why = "undo" if step is None or step.takes_back else "restore"
        switch = None if step is None else step.switch
        done = branches.undo(engine, session.info, switch=switch, why=why, expect_head=expect_head)
        try:
            with put_back(done.loaded) as report:
                pass
        except BaseException:
            if done.left.name != done.branch.name:
                branches.undo(engine, session.info)  # undoing twice is doing it again
            raise
    else:
        header = session.header(ref)
        if files and has_files(header):
            current = branches.find(engine, session.uid, session.info.branch)
            branches.check_head(session.info, current, expect_head)
            expect_head = ANY_HEAD  # the safety checkpoint comes on top of it
            moved = session.files.restore(header.id, workspace=workspace, force=force)
        if has_parts and expect_head == ANY_HEAD:
            head = engine.backend.branch(session.uid, session.info.branch)
            expect_head = None if head is None else head.head
        loaded = engine.load(header)
        try:
            with put_back(loaded) as report:
                done = branches.restore(engine, loaded, branch=branch, expect_head=expect_head)
        except BaseException:
            if moved is not None and moved.safety is not None:
                session.files.undo(workspace=workspace, force=True)
            raise
    if moved is not None and moved.safety is not None and done.left.name != done.branch.name:
        engine.backend.record_event(
            session.uid, RESTORED_ALL, {"safety": moved.safety}, time_us=engine.clock()
        )
    previous = readable_header(engine, session.uid, done.left.head)
    checkpoint = Checkpoint(done.loaded)
    return Restored(
        session=session.key,
        checkpoint=checkpoint,
        info=session.describe(checkpoint.header),
        branch=done.branch.name,
        is_new_branch=done.is_new_branch,
        previous_branch=done.left.name,
        previous_head=done.left.head,
        previous_seq=None if previous is None else previous.seq,
        changes=_changes(engine, previous, checkpoint.state) if compare and previous is not None else None,
        undo=done.undo,
        parts=report.restored,
        missing=report.missing,
        extra=report.extra,
        files=moved,
        files_left=0 if files or moved is not None else _count_files(engine, checkpoint.header),
    )


def _count_files(engine: Engine, header: Header) -> int:
    from stepkeep.workspace.captured_files import has_files, load_manifest

    return len(load_manifest(engine, header).entries) if has_files(header) else 0


def _changes(engine: Engine, previous: Header, state: object) -> ChangeCounts | None:
    from stepkeep.history.documents import copied
    from stepkeep.history.state_diff import ChangeCounts, compare

    try:
        before = engine.load(previous).value()
    except StepkeepError:
        return None
    return copied(ChangeCounts, compare(before, state, limit=0))
