"""The turns of a coding agent: what a person asked for, what the agent changed for it, and how to go back before it.

What a turn changed is told by comparing the capture at its prompt with that at its end. Files that somebody else
changed are told apart by their contents: where a turn did not find what the one before it left, another hand was there.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from functools import cached_property
from types import MappingProxyType
from typing import Any, Final, Literal, NamedTuple, TypeAlias

import msgspec

from stepkeep.engine import Engine
from stepkeep.errors import Corrupt, NotFound, StepkeepError
from stepkeep.model import FILES, STATE, Header, SessionInfo
from stepkeep.recording.coding_agents.agent_session import SessionState, open_tasks
from stepkeep.recording.coding_agents.transcripts import prompt_in
from stepkeep.storage.port import HeaderQuery, SessionQuery
from stepkeep.workspace.capture import CaptureLimits, capture_live
from stepkeep.workspace.captured_files import is_safety, load_manifest
from stepkeep.workspace.file_diff import ChangedFile, ChangeSides, change_of, changed_file, compare_files
from stepkeep.workspace.file_restore import BEGUN, RESTORED, SomeFiles, UnseenPaths, seen_later
from stepkeep.workspace.manifest import FileEntry, Manifest, PathFilter, from_text, to_text

TurnStatus: TypeAlias = Literal["running", "ended", "interrupted"]

PROMPT: Final = "prompt"
TURN_END: Final = "turn_end"
SESSION_END: Final = "session_end"

MAX_OTHERS: Final = 50
"""Among how many other sessions it is looked for who else changed a file."""


class Turn(msgspec.Struct, frozen=True, kw_only=True):
    """What a person asked for, and what the agent did to the files for it.

    `checkpoint` has everything as it was when the prompt was given. `files` lead from there to the end of the turn, or
    to the files as they are now; None where they were not captured. `entry` is the last entry of the transcript before
    the prompt, `prompt_entry` that of the prompt itself. `prompt` is whole where the transcript is kept, else cut;
    `answer` is the last thing that the agent said.
    """

    number: int
    checkpoint: str
    time: datetime
    prompt: str
    status: TurnStatus
    tasks: int
    open_tasks: int
    files: tuple[ChangedFile, ...] | None
    entry: str | None
    prompt_entry: str | None
    answer: str = ""

    @property
    def added_lines(self) -> int:
        return sum(each.added_lines or 0 for each in self.files or ())

    @property
    def removed_lines(self) -> int:
        return sum(each.removed_lines or 0 for each in self.files or ())


Change: TypeAlias = tuple[FileEntry | None, FileEntry | None]
"""What a file was, and what it became; None where it was not there."""


class Span(NamedTuple):
    """The captures of a tree in a turn: the first, those before commands, and that at its end, if it has one."""

    first: Header
    between: tuple[Header, ...]
    last: Header | None


class Step(NamedTuple):
    """Something that this session did to a tree: a turn, or a restore of files, which may have been stopped.

    `source` is the checkpoint that has the tree as it was before; `sources` those that have single files.
    """

    seq: int
    source: str
    changes: Mapping[str, Change]
    sources: Mapping[str, str] = MappingProxyType({})
    is_whole: bool = True


class _Turn:
    """A turn as it is stored: its prompt, and the captures until the next one."""

    def __init__(self, prompt: Header) -> None:
        self.prompt = prompt
        self.headers = [prompt]

    @property
    def number(self) -> int:
        number = self.prompt.metadata.get("turn")
        return number if isinstance(number, int) else 0

    @cached_property
    def spans(self) -> dict[str, Span]:
        """What was captured of each tree."""
        found: dict[str, list[Header]] = {}
        for header in self.headers:
            if FILES in header.contents and isinstance(tree := header.metadata.get("tree"), str):
                found.setdefault(tree, []).append(header)
        return {tree: _span(headers) for tree, headers in found.items()}

    @property
    def is_ended(self) -> bool:
        return any(header.trigger.event in (TURN_END, SESSION_END) for header in self.headers)


def _span(headers: Sequence[Header]) -> Span:
    """The captures of a tree. After the end of a turn the person may have worked."""
    ends = [[each for each in headers if each.trigger.event == event] for event in (TURN_END, SESSION_END)]
    last = next((found[-1] for found in ends if found), None)
    return Span(headers[0], tuple(each for each in headers[1:] if each is not last), last)


class AgentTurns:
    """The turns of one session, oldest first. What was found is kept: an object is for one look."""

    def __init__(self, engine: Engine, session: SessionInfo, limits: CaptureLimits) -> None:
        self._engine = engine
        self._session = session
        self._limits = limits
        self._manifests: dict[str, Manifest] = {}
        self._live: dict[str, Manifest] = {}

    # --- what there is

    @cached_property
    def _headers(self) -> list[Header]:
        """The checkpoints of agents, oldest first. What was captured before the first prompt counts as a turn."""
        query = HeaderQuery(session=self._session.uid, newest_first=False)
        return [header for header in self._engine.headers(query) if header.metadata.keys() & {"turn", "tree"}]

    @cached_property
    def _turns(self) -> list[_Turn]:
        turns: list[_Turn] = []
        for header in self._headers:
            if is_safety(header):
                continue
            if header.trigger.event == PROMPT or not turns:
                turns.append(_Turn(header))
            else:
                turns[-1].headers.append(header)
        return turns

    def newest_first(self, limit: int | None = None) -> tuple[Turn, ...]:
        """The turns with what each changed."""
        newest = self._turns[::-1][:limit]
        return tuple(self._described(turn) for turn in newest)

    def find(self, number: int) -> Turn:
        """The newest turn with that number.

        Raises:
            NotFound: there is none (`turn_not_found`).
        """
        return self._described(self._found(number))

    def _found(self, number: int) -> _Turn:
        for turn in reversed(self._turns):
            if turn.number == number:
                return turn
        there = f": there are {self._turns[0].number} to {self._turns[-1].number}" if self._turns else ""
        raise NotFound(
            f"session {self._session.key!r} has no turn {number}{there}",
            code="turn_not_found",
            session=self._session.key,
        )

    def is_newest(self, number: int) -> bool:
        return self._turns[-1] is self._found(number)

    def _described(self, turn: _Turn) -> Turn:
        state, prompt = self._state(turn.headers[-1]), self._state(turn.prompt)
        start = state.get("turn_start") if state.get("turn_number") == turn.number else None
        start = start or prompt.get("turn_start") or {}
        is_newest = turn is self._turns[-1]
        status: TurnStatus = "ended" if turn.is_ended else "running" if is_newest else "interrupted"
        return Turn(
            number=turn.number,
            checkpoint=turn.prompt.id,
            time=turn.prompt.created_at,
            prompt=prompt_in(self._engine, turn.headers[-1], start.get("prompt_entry")) or _told(turn.prompt),
            status=status,
            tasks=len(state.get("tasks", [])),
            open_tasks=len(open_tasks(state)),
            files=self._files(turn),
            entry=start.get("entry"),
            prompt_entry=start.get("prompt_entry"),
            answer=str(state.get("last_message", "")) if turn.is_ended else "",
        )

    def _state(self, header: Header) -> SessionState:
        try:
            value = self._engine.load(header).value(STATE)
        except (Corrupt, NotFound):
            return {}
        return value if isinstance(value, dict) else {}

    def _files(self, turn: _Turn) -> tuple[ChangedFile, ...] | None:
        if not turn.spans:
            return None
        found: list[ChangedFile] = []
        for tree in turn.spans:
            sides = ChangeSides(self._engine, tree if self._end(turn, tree) is None else None)
            for path, (old, new) in sorted(self._changes(turn, tree).items()):
                change = change_of(path, old, new)
                assert change is not None
                found.append(changed_file(change, *sides.line_counts(change, True)))
        return tuple(found)

    # --- what changed

    def _end(self, turn: _Turn, tree: str) -> Header | None:
        """The capture at the end of a turn: its own, else that at the next prompt. None: the files as they are now."""
        last = turn.spans[tree].last
        after = self._turns[self._turns.index(turn) + 1 :]
        return last or next((later.spans[tree].first for later in after if tree in later.spans), None)

    def _changes(self, turn: _Turn, tree: str) -> dict[str, Change]:
        span, end = turn.spans[tree], self._end(turn, tree)
        if span.first is end:
            return {}
        before, more = self._manifest(span.first), self._seen_later(span)
        after = self._now(tree, more) if end is None else self._manifest(end)
        found, unseen = _differences(before, after), UnseenPaths(after, lambda _: False)
        now = after.by_path()
        for path, (_, old) in more.items():
            found.pop(path, None)
            new = now.get(path)
            if not old.is_same(new) and (new is not None or unseen.reason(path) is None):
                found[path] = old, new
        return found

    def _seen_later(self, span: Span) -> dict[str, tuple[str, FileEntry]]:
        """Files that only a capture before a command has, with that checkpoint."""
        later = seen_later(self._manifest(span.first), map(self._manifest, span.between))
        return {path: (span.between[index].id, entry) for path, (index, entry) in later.items()}

    def _manifest(self, header: Header) -> Manifest:
        digest = header.contents[FILES].digest
        if digest not in self._manifests:
            self._manifests[digest] = load_manifest(self._engine, header)
        return self._manifests[digest]

    def _now(self, tree: str, also: Iterable[str] = ()) -> Manifest:
        more = sorted(also)
        if tree not in self._live or more:
            if os.path.isdir(tree):  # noqa: PTH112
                uid, limits = self._session.uid, self._limits
                found = capture_live(self._engine, uid, tree, limits=limits, also=more).manifest
            else:
                found = Manifest(root=tree)
            self._live[tree] = found
        return self._live[tree]

    # --- going back

    def trees(self, number: int) -> dict[str, Header]:
        """The trees that this session changed since the prompt of a turn, each with its first capture from then on.

        Trees that are not there any more are left out.
        """
        found: dict[str, Header] = {}
        for turn in self._since(number):
            for tree, span in turn.spans.items():
                found.setdefault(tree, span.first)
        return {tree: first for tree, first in found.items() if os.path.isdir(tree)}  # noqa: PTH112

    def _since(self, number: int) -> Sequence[_Turn]:
        return self._turns[self._turns.index(self._found(number)) :]

    def before(self, number: int, tree: str, mark: str) -> SomeFiles:
        """What the files that this session changed in a tree since the prompt of a turn were before that.

        A file that somebody else changed in between, or may have changed at the same time, is not expected to be
        anything: it is a conflict.
        """
        wanted: dict[str, FileEntry | None] = {}
        sources: dict[str, str] = {}
        expected: dict[str, tuple[FileEntry | None, ...]] = {}
        foreign = self._contested(number, tree)
        for step in self._steps(number, tree):
            for path, (old, new) in step.changes.items():
                if path not in wanted:
                    wanted[path], sources[path] = old, step.sources.get(path, step.source)
                elif not any(_is_same(each, old) for each in expected[path]):
                    foreign.add(path)
                expected[path] = (new,) if step.is_whole else (*expected.get(path, (old,)), new)
        known = {path: entries for path, entries in expected.items() if path not in foreign}
        private = self._manifest(self.trees(number)[tree]).private
        return SomeFiles(wanted=wanted, sources=sources, expected=known, mark=mark, private=private)

    def _steps(self, number: int, tree: str) -> list[Step]:
        """What this session did to a tree since a prompt, in order."""
        steps = [self._step(turn, tree) for turn in self._since(number) if tree in turn.spans]
        first = self._found(number).prompt.seq
        steps += [step for step in self._restores(tree) if step.seq > first]
        return sorted(steps, key=lambda step: step.seq)

    def _step(self, turn: _Turn, tree: str) -> Step:
        span = turn.spans[tree]
        sources = {path: source for path, (source, _) in self._seen_later(span).items()}
        return Step(turn.prompt.seq, span.first.id, self._own_changes(turn, tree), sources)

    def _restores(self, tree: str) -> Iterator[Step]:
        """The restores of files in this session, as the safety checkpoints before them tell."""
        events = self._engine.backend.events(self._session.uid)
        whole = {
            event.data["safety"]
            for event in events
            if event.type == RESTORED and not event.data.get("failed")
        }
        begun = {event.data["safety"]: event.data for event in events if event.type == BEGUN}
        for header in self._engine.headers(HeaderQuery(session=self._session.uid, newest_first=False)):
            if header.id not in begun or (before := self._manifest(header)).root != tree:
                continue
            paths = PathFilter(map(from_text, begun[header.id]["paths"]))
            with suppress(StepkeepError):  # what was restored is pruned or damaged
                after = self._restored(begun[header.id], before)
                changes, is_whole = _differences(before, after, paths), header.id in whole
                yield Step(header.seq, header.id, changes, is_whole=is_whole)

    def _restored(self, data: Mapping[str, Any], before: Manifest) -> Manifest:
        """The tree after a restore."""

        def entries_of(id: str) -> dict[str, FileEntry]:
            return self._manifest(self._engine.header(id, session=self._session.uid)).by_path()

        if "from" not in data:
            return self._manifest(self._engine.header(data["target"], session=self._session.uid))
        captures, entries = list(map(entries_of, data["sources"])), before.by_path()
        for path, index in zip(map(from_text, data["paths"]), data["from"], strict=True):
            entries.pop(path, None)
            if (entry := captures[index].get(path)) is not None:
                entries[path] = entry
        return msgspec.structs.replace(before, entries=tuple(entries[path] for path in sorted(entries)))

    # --- others who work in the same tree

    def _own_changes(self, turn: _Turn, tree: str) -> dict[str, Change]:
        """What a turn changed, without what an agent that worked at the same time was told to write."""
        changes = self._changes(turn, tree)
        theirs = self._named_by_others(turn, tree) - self._named(turn, tree)
        return {path: change for path, change in changes.items() if path not in theirs}

    def _contested(self, number: int, tree: str) -> set[str]:
        """Files that this session and another changed at the same time, and nobody can tell who did."""
        found: set[str] = set()
        for turn in self._since(number):
            if tree not in turn.spans:
                continue
            mine, sure = self._own_changes(turn, tree), self._named(turn, tree)
            for other, theirs in self._at_the_same_time(turn, tree):
                both = mine.keys() & other._changes(theirs, tree).keys()
                found |= both - (sure - other._named(theirs, tree))
        return found

    def _named_by_others(self, turn: _Turn, tree: str) -> set[str]:
        others = self._at_the_same_time(turn, tree)
        return {path for other, theirs in others for path in other._named(theirs, tree)}

    def _named(self, turn: _Turn, tree: str) -> set[str]:
        """The files that tools of a turn were told to write."""
        state = self._state(turn.headers[-1])
        names = state.get("edited", []) if state.get("turn_number") == turn.number else []
        paths = (os.path.join(str(state.get("cwd", tree)), name) for name in names)  # noqa: PTH118
        return {os.path.relpath(os.path.realpath(path), tree) for path in paths}

    def _at_the_same_time(self, turn: _Turn, tree: str) -> Iterator[tuple[AgentTurns, _Turn]]:
        begin, end = turn.prompt.time_us, self._time_of_end(turn, tree)
        for other in self.others:
            for theirs in other._turns:
                has_begun = tree in theirs.spans and theirs.prompt.time_us < end
                if has_begun and other._time_of_end(theirs, tree) > begin:
                    yield other, theirs

    def _time_of_end(self, turn: _Turn, tree: str) -> int:
        end = self._end(turn, tree)
        return self._engine.clock() if end is None else end.time_us

    @cached_property
    def others(self) -> list[AgentTurns]:
        """The turns of other sessions that worked on the same project since this one began."""
        query = SessionQuery(project=self._session.project, limit=MAX_OTHERS)
        sessions = self._engine.backend.sessions(query) if self._session.project else ()
        return [
            AgentTurns(self._engine, session, self._limits)
            for session in sessions
            if session.uid != self._session.uid and session.updated_us >= self._session.created_us
        ]

    def who_changed(self, tree: str, paths: Iterable[str]) -> dict[str, str]:
        """Which other session left each of these files as it is now, as far as that is known; paths are as shown."""
        now, found = self._now(tree).by_path(), dict[str, str]()
        for path in map(from_text, paths):
            for other in self.others:
                if other._left(tree, path, now.get(path)):
                    found[to_text(path)] = other._session.key
                    break
        return found

    def _left(self, tree: str, path: str, now: FileEntry | None) -> bool:
        turns = [turn for turn in self._turns if tree in turn.spans]
        changes = (self._changes(turn, tree).get(path) for turn in turns)
        return any(change is not None and _is_same(change[1], now) for change in changes)


def _differences(before: Manifest, after: Manifest, wanted: PathFilter | None = None) -> dict[str, Change]:
    """What changed from one capture to another, as far as both looked at it."""
    unseen = UnseenPaths(before, lambda _: False)
    changes, _ = compare_files(before, after, PathFilter() if wanted is None else wanted)
    return {
        change.path: (change.old, change.new)
        for change in changes
        if change.old is not None or unseen.reason(change.path) is None
    }


def _told(prompt: Header) -> str:
    return str(prompt.metadata.get("prompt") or "")


def _is_same(one: FileEntry | None, other: FileEntry | None) -> bool:
    return one is other if one is None or other is None else one.is_same(other)
