"""Threads of LangGraph's own savers, brought into a Stepkeep store."""

from __future__ import annotations

import json
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, Final, TypeAlias

import msgspec
from langgraph.checkpoint.serde._msgpack import SAFE_MSGPACK_TYPES
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer

from stepkeep.adapters.langgraph import writes
from stepkeep.adapters.langgraph.channel_values import Values
from stepkeep.adapters.langgraph.records import save_of, store_once
from stepkeep.adapters.langgraph.serde import MARK, data_in
from stepkeep.adapters.langgraph.threads import Location, Threads
from stepkeep.adapters.langgraph.writes import Write
from stepkeep.api import Store
from stepkeep.api.extension import (
    Engine,
    NewBody,
    bound_steps,
    distrust_schema,
    is_connection_lost,
    postgres_url,
)
from stepkeep.errors import BackendUnavailable, Corrupt, InvalidInput, NotFound, StepkeepError, driver_missing
from stepkeep.model import Header
from stepkeep.secrets import url_without_password

# --- what LangGraph's own savers stored ----------------------------------------------------------------------------

Ask: TypeAlias = Callable[[str, Sequence[Any]], Sequence[Sequence[Any]]]
"""Runs a statement with `?` for its values, and returns all rows."""

EMPTY: Final = "empty"
_POSTGRES: Final = ("postgresql", "postgres")


class SourceCheckpoint(msgspec.Struct, frozen=True):
    """A checkpoint of another saver; its values are data, with objects laid open. `location` names its parent."""

    location: Location
    checkpoint: dict[str, Any]
    metadata: dict[str, Any]
    writes: Sequence[Write]


class Source(ABC):
    """Threads of an official saver."""

    def __init__(self, ask: Ask) -> None:
        self._ask = ask

    def threads(self) -> list[str]:
        """All thread ids."""
        rows = self._ask("SELECT DISTINCT thread_id FROM checkpoints ORDER BY thread_id", ())
        return [row[0] for row in rows]

    def places(self, thread: str) -> list[tuple[str, str]]:
        """Namespace and id of every checkpoint of a thread, by id: parents come before their children."""
        rows = self._ask(
            "SELECT checkpoint_ns, checkpoint_id FROM checkpoints WHERE thread_id = ?"
            " ORDER BY checkpoint_id, checkpoint_ns",
            (thread,),
        )
        return [(row[0], row[1]) for row in rows]

    def checkpoint(self, thread: str, namespace: str, id: str) -> SourceCheckpoint:
        """One checkpoint with its values and writes.

        Raises:
            Corrupt: its bytes are not readable.
        """
        location = (thread, namespace, id)
        where = "WHERE thread_id = ? AND checkpoint_ns = ? AND checkpoint_id = ?"
        query = f"SELECT parent_checkpoint_id, type, checkpoint, metadata FROM checkpoints {where}"
        rows = self._ask(query, location)
        if not rows:
            raise NotFound(f"checkpoint {id} was removed meanwhile", code="checkpoint_not_found")
        ((parent, kind, stored, metadata),) = rows
        written = self._ask(f"{self._writes_query()} {where} ORDER BY task_id, idx", location)
        return SourceCheckpoint(
            Location(thread=thread, namespace=namespace, checkpoint=parent or None),
            {**self._document(location, kind, stored), "id": id},
            _object(id, metadata),
            [
                Write(task, path or "", index, channel, data_in(kind or "", value))
                for task, path, index, channel, kind, value in written
            ],
        )

    @abstractmethod
    def _document(self, location: tuple[str, str, str], kind: str | None, stored: Any) -> dict[str, Any]:
        """The whole checkpoint, with its values."""

    @abstractmethod
    def _writes_query(self) -> str:
        """What selects task, path, index, channel, type and value of pending writes."""


class SqliteSource(Source):
    """`SqliteSaver`: a checkpoint is one blob."""

    def _document(self, location: tuple[str, str, str], kind: str | None, stored: Any) -> dict[str, Any]:
        document = data_in(kind or "", stored)
        if not isinstance(document, dict) or MARK in document:
            raise Corrupt(f"checkpoint {location[2]} is not readable as {kind}", code="source_unreadable")
        return document

    def _writes_query(self) -> str:
        columns = {row[1] for row in self._ask("PRAGMA table_info(writes)", ())}
        path = "task_path" if "task_path" in columns else "''"
        return f"SELECT task_id, {path}, idx, channel, type, value FROM writes"


class PostgresSource(Source):
    """`PostgresSaver`: values other than JSON atoms lie in a table of their own, by channel and version."""

    def _document(self, location: tuple[str, str, str], kind: str | None, stored: Any) -> dict[str, Any]:  # noqa: ARG002
        document = _object(location[2], stored)
        rows = self._ask(
            "SELECT b.channel, b.type, b.blob FROM checkpoints c, jsonb_each_text(c.checkpoint -> 'channel_versions') v"
            " JOIN checkpoint_blobs b ON b.channel = v.key AND b.version = v.value"
            " WHERE c.thread_id = ? AND c.checkpoint_ns = ? AND c.checkpoint_id = ?"
            " AND b.thread_id = c.thread_id AND b.checkpoint_ns = c.checkpoint_ns",
            location,
        )
        values = dict(document.get("channel_values") or {})
        values |= {channel: data_in(type, blob) for channel, type, blob in rows if type != EMPTY}
        return {**document, "channel_values": values}

    def _writes_query(self) -> str:
        return "SELECT task_id, task_path, idx, channel, type, blob FROM checkpoint_writes"


def _object(id: str, stored: Any) -> dict[str, Any]:
    """A JSON object that a driver gives as bytes, text, or already read."""
    try:
        found = json.loads(stored) if isinstance(stored, bytes | str) else stored
    except ValueError as exc:
        raise Corrupt(f"checkpoint {id} is not readable: {exc}", code="source_unreadable") from exc
    return dict(found) if isinstance(found, Mapping) else {}


# --- opening


@contextmanager
def open_source(url: str) -> Iterator[Source]:
    """The threads at a URL, `sqlite:PATH` or `postgresql://…`. Nothing is written there.

    Raises:
        InvalidInput: it names neither.
        NotFound: there is no such file, or no tables of LangGraph in it.
    """
    scheme, _, path = url.partition(":")
    if scheme in _POSTGRES:
        opened = _postgres(url)
    elif scheme == "sqlite" and path:
        file = path.removeprefix("//") if path.startswith("///") else path
        opened = _sqlite(Path(file).expanduser())
    else:
        raise InvalidInput(
            f"unknown source {url_without_password(url)!r}: use sqlite:PATH or postgresql://…, as LangGraph's savers "
            "were given",
            code="unknown_store_url",
        )
    with opened as source:
        yield source


def shown(url: str) -> str:
    """The URL of a source without passwords: it is printed.

    Raises:
        InvalidInput: it begins like a URL of PostgreSQL and is not one.
    """
    return postgres_url(url) if url.partition(":")[0] in _POSTGRES else url_without_password(url)


@contextmanager
def _sqlite(path: Path) -> Iterator[Source]:
    import apsw

    if not path.is_file():
        raise NotFound(f"there is no file {path}", code="store_not_found")
    try:
        with closing(apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)) as connection:
            connection.set_busy_timeout(10_000)
            distrust_schema(connection)
            begin = bound_steps(connection, str(path))

            def rows(sql: str, values: Sequence[Any] = ()) -> list[Any]:
                begin()
                return connection.execute(sql, tuple(values)).fetchall()

            _check_tables(rows("SELECT name FROM sqlite_master"), "writes", str(path))
            yield SqliteSource(rows)
    except apsw.Error as exc:
        raise BackendUnavailable(
            f"{path} could not be read: {exc}", code="source_unreadable", retryable=False
        ) from exc


@contextmanager
def _postgres(url: str) -> Iterator[Source]:
    try:
        import psycopg
    except ImportError as exc:
        raise driver_missing("PostgreSQL", "postgres", exc) from exc
    name = shown(url)
    try:
        with psycopg.connect(
            url, autocommit=True, options="-c default_transaction_read_only=on"
        ) as connection:
            tables = connection.execute(
                "SELECT table_name FROM information_schema.tables WHERE table_schema = ANY (current_schemas(false))"
            ).fetchall()
            _check_tables(tables, "checkpoint_writes", name)
            yield PostgresSource(
                lambda sql, values: connection.execute(sql.replace("?", "%s"), list(values)).fetchall()
            )
    except psycopg.Error as exc:
        raise BackendUnavailable(
            f"{name} could not be read: {exc}", code="source_unreadable", retryable=is_connection_lost(exc)
        ) from exc


def _check_tables(rows: Sequence[Sequence[Any]], wanted: str, where: str) -> None:
    if not {"checkpoints", wanted} <= {row[0] for row in rows}:
        raise NotFound(
            f"{where} has no threads of LangGraph: their tables are not there", code="store_not_found"
        )


# --- taking it over ------------------------------------------------------------------------------------------------

_CLASS: Final = re.compile(rb'"\$serde":\d+,"class":"([^"\\]+):([^"\\:]+)"')


class RefusedCheckpoint(msgspec.Struct, frozen=True, kw_only=True):
    """What could not be brought over, and why."""

    thread: str
    namespace: str = ""
    checkpoint: str | None = None
    code: str
    message: str


class LangGraphImport(msgspec.Struct, frozen=True, kw_only=True):
    """What an import did. Every checkpoint that is `imported` or `present` was read back and verified.

    `classes` are those whose objects are stored and that LangGraph does not count as safe: a saver needs them in
    `allow` to bring them back.
    """

    source: str
    threads: int = 0
    imported: int = 0
    present: int = 0
    writes: int = 0
    verified: int = 0
    classes: tuple[str, ...] = ()
    refused: tuple[RefusedCheckpoint, ...] = ()


class LaidOpen(Values):
    """Values that are laid open already: they are stored as they are."""

    def __init__(self, engine: Engine) -> None:
        super().__init__(engine, JsonPlusSerializer())

    def body(self, values: dict[str, Any]) -> NewBody:
        return self.engine.encode(values)

    def channels(self, key: str, values: dict[str, Any]) -> NewBody:  # noqa: ARG002
        return self.body(values)


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
        self._values = LaidOpen(store.engine)
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
        parents = self._threads.parents(uid, found.location)
        save = save_of(self._values, uid, found.location, found.checkpoint, found.metadata, parents)
        self._note_classes(body.content for body in (save.state, *save.bodies.values()))
        before = self._engine.backend.session(uid).last_seq
        header = store_once(self._engine, save)
        self._threads.stored(header)
        self._counts["imported" if header.seq > before else "present"] += 1
        self._store_writes(header, found.writes)
        self._engine.load(header)  # every byte against its digest
        self._counts["verified"] += 1

    def _store_writes(self, header: Header, found: Iterable[Write]) -> None:
        """One annotation for the writes of each task, and one for each special write."""
        groups: dict[tuple[str, str, int], list[Write]] = {}
        for write in found:
            groups.setdefault((write.task, write.path, min(write.index, 0)), []).append(write)
        target = (header.branch, str(header.external_id))
        for group in groups.values():
            if writes.store(self._values, header.session, target, group):
                self._counts["writes"] += len(group)

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
