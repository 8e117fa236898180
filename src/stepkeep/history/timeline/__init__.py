"""The timeline of a session: its checkpoints as rows of a graph, newest first, and what each row says.

The values here are what Python gets and what `--json` prints. `assembly` reads them from a store, `lanes` decides where
lines run, `terminal` and `svg` draw them; they are imported when they are used. States are never read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from os import PathLike
from typing import ClassVar, TypeAlias

import msgspec

from stepkeep.history.documents import CheckpointInfo
from stepkeep.model import BranchState, SessionError, Status, TriggerKind
from stepkeep.storage.disk import write_file
from stepkeep.text import clean, count, cut, size, span


class NodeLink(msgspec.Struct, frozen=True, gc=False):
    """A line down to an older row, by its index. It is broken where what lay between is no longer stored."""

    row: int
    is_broken: bool = False


class _Node(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", gc=False):
    lane: int = 0
    links: tuple[NodeLink, ...] = ()


class CheckpointNode(_Node, frozen=True, kw_only=True, tag="checkpoint"):
    """One checkpoint. `heads` are the branches that stand here, `forks` those that began here. `is_current` marks
    the head of the current branch. Without `is_match` it is shown only because lines meet in it."""

    checkpoint: CheckpointInfo
    heads: tuple[str, ...] = ()
    forks: tuple[str, ...] = ()
    is_current: bool = False
    is_match: bool = True

    @property
    def mark(self) -> str:
        """What it is drawn as."""
        status, kind = self.checkpoint.status, self.checkpoint.trigger.kind
        if status is Status.COMPLETED or status is Status.PAUSED:
            return status.value
        if status is not Status.IN_PROGRESS or kind is TriggerKind.ERROR:
            return "failed"
        if len(self.checkpoint.parents) > 1:
            return "merge"
        return "manual" if kind is TriggerKind.MANUAL else "automatic"

    def tag_labels(self, most: int = 3) -> list[str]:
        tags = self.checkpoint.tags
        return _first([cut(clean(tag), 20) for tag in tags[:most]], len(tags) - most)


class FoldNode(_Node, frozen=True, kw_only=True, tag="fold"):
    """So many checkpoints of one branch in a row, with what is pruned and damaged between them. With `is_match`
    they are plain automatic ones; without, the filter left them out."""

    mark: ClassVar = "fold"
    count: int
    branch: str
    first_seq: int
    last_seq: int
    first_step: int | None
    last_step: int | None
    first_time: datetime
    last_time: datetime
    size_bytes: int
    stored_bytes: int
    pruned: int
    damaged: int
    is_match: bool

    @property
    def is_bad(self) -> bool:
        return self.damaged > 0

    def facts(self) -> Iterator[str]:
        if self.pruned:
            yield f"{self.pruned:,} pruned"
        if self.damaged:
            yield f"{self.damaged:,} damaged"
        if self.first_step is not None:
            is_one = self.first_step == self.last_step
            yield f"step {self.first_step}" if is_one else f"steps {self.first_step}–{self.last_step}"
        if length := span((self.last_time - self.first_time) // timedelta(microseconds=1)):
            yield length
        yield f"{size(self.stored_bytes)} stored"


class GapNode(_Node, frozen=True, kw_only=True, tag="pruned"):
    """So many checkpoints that were removed on purpose, somewhere in this range of seq."""

    mark: ClassVar = "gap"
    is_bad: ClassVar = False
    count: int
    first_seq: int
    last_seq: int


class DamagedNode(_Node, frozen=True, kw_only=True, tag="damaged"):
    """A checkpoint whose header does not verify: only its location is known."""

    mark: ClassVar = "damaged"
    is_bad: ClassVar = True
    id: str
    seq: int
    branch: str


class RestNode(_Node, frozen=True, kw_only=True, tag="older"):
    """The last row: so many older checkpoints that are not shown. The lines that reach it go on there."""

    mark: ClassVar = "fold"
    is_bad: ClassVar = False
    count: int


Node: TypeAlias = CheckpointNode | FoldNode | GapNode | DamagedNode | RestNode


class BranchMark(msgspec.Struct, frozen=True, kw_only=True):
    """A branch: where it stands and where it began."""

    name: str
    state: BranchState
    is_current: bool
    head: str | None
    head_seq: int
    fork: str | None
    fork_branch: str | None
    fork_seq: int


class LaneMove(msgspec.Struct, frozen=True):
    """A line that runs from one lane to another below a row."""

    source: int
    target: int
    is_broken: bool


class DrawnRow(msgspec.Struct, frozen=True, kw_only=True):
    """A row and how it is drawn: what it stands for, the lane of its mark, the lines that come from above and go on
    below (lane, whether it is broken), and those that change their lane before the next row. `text` is what a row says
    that is not one checkpoint."""

    node: Node
    mark: str
    lane: int
    above: tuple[tuple[int, bool], ...]
    below: tuple[tuple[int, bool], ...]
    moves: tuple[LaneMove, ...]
    text: str | None


class TimelinePage(msgspec.Struct, frozen=True, kw_only=True):
    """Some rows of a timeline, from number `start` on, of `rows` in all, with what is said of all of it."""

    session: str
    status: Status
    branch: str
    title: str
    total: int
    left_out: int
    pruned: int
    damaged: tuple[str, ...]
    size_bytes: int
    stored_bytes: int
    branches: tuple[BranchMark, ...]
    lanes: int
    rows: int
    start: int
    drawn: tuple[DrawnRow, ...]


class Timeline(msgspec.Struct, frozen=True, kw_only=True):
    """A session as a graph: rows newest first, in lanes, the line of the current branch in lane 0.

    Every link leads to a later row. `total` counts the intact checkpoints of the session: each is in exactly one
    row, or among the `left_out`, of which no shown checkpoint is a descendant. `damaged` are ids, `pruned`
    counts what was removed on purpose.
    """

    session: str
    status: Status
    branch: str
    total: int
    left_out: int
    pruned: int
    damaged: tuple[str, ...]
    size_bytes: int
    stored_bytes: int
    branches: tuple[BranchMark, ...]
    rows: tuple[Node, ...]

    @property
    def entries(self) -> tuple[CheckpointNode, ...]:
        """The checkpoints that have a row of their own."""
        return tuple(row for row in self.rows if isinstance(row, CheckpointNode))

    @property
    def title(self) -> str:
        """What the session is and holds, in one line."""
        is_empty = not self.total and not self.damaged
        facts = [self.status.value, "no checkpoint yet" if is_empty else count(self.total, "checkpoint")]
        if len(self.branches) > 1:
            facts.append(count(len(self.branches), "branch", "branches"))
        if self.pruned:
            facts.append(f"{self.pruned:,} pruned")
        if self.damaged:
            facts.append(f"{len(self.damaged):,} damaged")
        if self.total:
            facts.append(f"{size(self.stored_bytes)} stored")
        return ", ".join(facts)

    @property
    def task(self) -> str:
        """What a coding agent works on; empty of any other session."""
        return next(filter(None, (entry.checkpoint.task for entry in self.entries)), "")

    @property
    def left_out_text(self) -> str:
        left_out = f"{count(self.left_out, 'checkpoint')} left out"
        return f"{left_out} that nothing here descends from" if self.rows else f"nothing matches: {left_out}"

    def draw(
        self, *, width: int, is_ascii: bool = False, paint: Callable[[str, str], str] | None = None
    ) -> list[str]:
        """The graph in lines of at most `width` columns, safe for a terminal; `paint` colours a text by its role."""
        from stepkeep.history.timeline.terminal import ASCII, UNICODE, draw

        return draw(self, width=width, glyphs=ASCII if is_ascii else UNICODE, paint=paint)


class Pictured(msgspec.Struct, frozen=True, kw_only=True):
    """What was drawn, and where it was written. `output` None means that it was not written to a file."""

    sessions: tuple[str, ...]
    rows: int
    output: str | None
    size_bytes: int
    errors: tuple[SessionError, ...]


class Timelines(msgspec.Struct, frozen=True, kw_only=True):
    """The timelines that were asked for, of the most recently used session first, and what could not be read."""

    timelines: tuple[Timeline, ...]
    errors: tuple[SessionError, ...] = ()

    def picture(self) -> bytes:
        """All of them as one SVG picture."""
        from stepkeep.history.timeline.svg import picture

        return picture(self.timelines).encode()

    def write_picture(self, output: str | PathLike[str], *, force: bool = False) -> Pictured:
        """Write the picture to a file: whole or not at all, durable, readable only by its owner, and over an existing
        file only with `force`."""
        from pathlib import Path  # who draws on a terminal needs none

        content = self.picture()
        write_file(Path(output), content, force=force)
        return Pictured(
            sessions=tuple(timeline.session for timeline in self.timelines),
            rows=sum(len(timeline.rows) for timeline in self.timelines),
            output=str(output),
            size_bytes=len(content),
            errors=self.errors,
        )


def first_row(rows: Sequence[Node]) -> int | None:
    """The row of the current head, where it is shown: its line has lane 0."""
    found = (at for at, row in enumerate(rows) if isinstance(row, CheckpointNode) and row.is_current)
    return next(found, None)


def node_text(node: FoldNode | GapNode | DamagedNode | RestNode, *, names_branch: bool) -> str:
    """What a row says that is not one checkpoint: `214 automatic, steps 18–231, 3 h 20 min, 1.2MB stored`."""
    match node:
        case FoldNode():
            branch = f" on {cut(clean(node.branch), 24)}" if names_branch and not node.is_match else ""
            what = "automatic" if node.is_match else "left out"
            return ", ".join([f"{node.count:,} {what}{branch}", *node.facts()])
        case GapNode() if node.first_seq == node.last_seq:
            return f"checkpoint {node.first_seq} pruned"
        case GapNode():
            return f"{node.count:,} pruned, {node.first_seq}–{node.last_seq}"
        case DamagedNode():
            return f"checkpoint {node.seq} has a damaged header: run stepkeep verify"
        case RestNode():
            return f"{node.count:,} older"


def branch_labels(entry: CheckpointNode, branches: Mapping[str, BranchMark], most: int = 3) -> list[str]:
    """The branches that stand at a checkpoint, the current one first; those that are closed with their state."""
    heads = sorted((branches[name] for name in entry.heads), key=lambda branch: not branch.is_current)
    labels = [
        cut(clean(branch.name), 24) + ("" if branch.state is BranchState.OPEN else f" {branch.state.value}")
        for branch in heads[:most]
    ]
    return _first(labels, len(heads) - most)


def _first(labels: list[str], more: int) -> list[str]:
    return [*labels, f"+{more:,}"] if more > 0 else labels
