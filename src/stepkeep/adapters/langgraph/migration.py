"""Threads of LangGraph's own savers, brought into a Stepkeep store."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

from langgraph.checkpoint.serde._msgpack import SAFE_MSGPACK_TYPES

from stepkeep.adapters.langgraph import writes
from stepkeep.adapters.langgraph.copying import store_once
from stepkeep.adapters.langgraph.memory import Line
from stepkeep.adapters.langgraph.naming import Place
from stepkeep.adapters.langgraph.records import save_of
from stepkeep.adapters.langgraph.sources import Source, SourceCheckpoint, open_source, shown
from stepkeep.adapters.langgraph.threads import Threads
from stepkeep.api import Store
from stepkeep.engine import Engine, NewBody
from stepkeep.errors import NotFound, StepkeepError
from stepkeep.model import Header
from stepkeep.operations.importing import LangGraphImport, RefusedCheckpoint

_CLASS: Final = re.compile(rb'"\$serde":\d+,"class":"([^"\\]+):([^"\\:]+)"')


class Laid:
    """Values that are laid open already: they are stored as they are."""

    def body(self, engine: Engine, values: dict[str, Any]) -> NewBody:
        return engine.encode(values)

    def channels(self, engine: Engine, line: Line, values: dict[str, Any]) -> tuple[NewBody, list[str]]:  # noqa: ARG002
        return engine.encode(values), list(values)


def count(source: str, threads: Sequence[str]) -> int:
    """How many checkpoints `migrate` will look at."""
    with open_source(source) as opened:
        return sum(len(opened.places(thread)) for thread in _wanted(opened, threads))


def migrate(
    store: Store, source: str, threads: Sequence[str], progress: Callable[[int], None] | None
) -> LangGraphImport:
    """Copy threads in the order of their checkpoint ids, with parents and writes, and verify each checkpoint."""
    with open_source(source) as opened:
        work = _Migration(store, opened, progress)
        for thread in _wanted(opened, threads):
            work.thread(thread)
        return work.report(source)


def _wanted(source: Source, threads: Sequence[str]) -> list[str]:
    stored = source.threads()
    missing = sorted(set(threads) - set(stored))
    if missing:
        raise NotFound(
            f"the source has no thread {missing[0]!r}", code="thread_not_found", session=missing[0]
        )
    return list(dict.fromkeys(threads)) or stored


class _Migration:
    """One import under way, and what it did so far."""

    def __init__(self, store: Store, source: Source, progress: Callable[[int], None] | None) -> None:
        self._engine = store.engine
        self._source = source
        self._progress = progress
        self._threads = Threads(store, {})
        self._counts = dict.fromkeys(("threads", "imported", "present", "writes", "verified"), 0)
        self._classes: set[str] = set()
        self._refused: list[RefusedCheckpoint] = []

    def report(self, source: str) -> LangGraphImport:
        return LangGraphImport(
            source=shown(source),
            classes=tuple(sorted(self._classes)),
            refused=tuple(self._refused),
            **self._counts,
        )

    def thread(self, thread: str) -> None:
        try:
            uid = self._threads.opened(thread).uid
        except StepkeepError as exc:
            self._refuse(exc, thread)
            return
        self._counts["threads"] += 1
        for namespace, id in self._source.places(thread):
            try:
                self._checkpoint(uid, self._source.checkpoint(thread, namespace, id))
            except StepkeepError as exc:
                self._refuse(exc, thread, namespace, id)
            if self._progress is not None:
                self._progress(1)

    def _checkpoint(self, uid: str, found: SourceCheckpoint) -> None:
        place = Place(thread=found.thread, namespace=found.namespace, checkpoint=found.parent)
        parent = self._threads.parent_id(uid, place)
        parents = () if parent is None else (parent,)
        checkpoint = {**found.checkpoint, "id": found.id}
        save = save_of(self._engine, Laid(), uid, place, checkpoint, found.metadata, parents=parents)
        self._note_classes(body.content for body in save.bodies.values())
        before = self._engine.backend.session(uid).last_seq
        header = store_once(self._engine, save)
        self._threads.stored(header)
        self._counts["imported" if header.seq > before else "present"] += 1
        self._writes(header, found)
        self._verify(header)

    def _writes(self, header: Header, found: SourceCheckpoint) -> None:
        """One annotation for the writes of each task, and one for each special write."""
        groups: dict[tuple[str, str, int], list[tuple[int, str, Any]]] = {}
        for write in found.writes:
            key = (write.task, write.path, min(write.index, 0))
            groups.setdefault(key, []).append((write.index, write.channel, write.value))
        for (task, path, _), indexed in groups.items():
            document = writes.document(self._engine, Laid(), indexed, task=task, path=path)
            is_new = writes.store(self._engine, header.session, (header.branch, found.id), document)
            self._counts["writes"] += len(indexed) if is_new else 0

    def _verify(self, header: Header) -> None:
        """Read back what is stored, every byte against its digest."""
        self._engine.load(header)
        self._counts["verified"] += 1

    def _note_classes(self, contents: Iterable[bytes]) -> None:
        for content in contents:
            for module, name in _CLASS.findall(content):
                named = (module.decode(), name.decode())
                if named not in SAFE_MSGPACK_TYPES:
                    self._classes.add(":".join(named))

    def _refuse(self, exc: StepkeepError, thread: str, namespace: str = "", id: str | None = None) -> None:
        self._refused.append(
            RefusedCheckpoint(
                thread=thread, namespace=namespace, checkpoint=id, code=exc.code, message=exc.message
            )
        )
