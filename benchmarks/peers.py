"""The subjects of a comparison: Stepkeep, a floor, and what people use instead, behind one interface."""

from __future__ import annotations

import importlib
import json
import os
import sqlite3
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from types import ModuleType
from typing import Any, Final, Protocol

import apsw

import stepkeep
from benchmarks.workloads import State
from stepkeep.model import STATE

_SESSION: Final = "bench"

LATEST: Final = "latest"
OLD: Final = "old"
LIST: Final = "list"


class Subject(Protocol):
    """Something that keeps states in a directory. Saving is durable when it returns."""

    name: str

    def saver(self, step: int, state: State) -> Callable[[], object]:
        """The save of one step. What a caller would have at hand already is prepared here, untimed."""

    def reads(self, old_step: int) -> Mapping[str, Callable[[], object]]:
        """The reads this subject offers: `latest` and `old` return a state, `list` how many there are."""

    def size_bytes(self) -> int:
        """What the subject would take on disk if it were closed now."""

    def close(self) -> None: ...


class Stepkeep:
    """Stepkeep on SQLite, keeping every checkpoint."""

    name = "stepkeep"

    def __init__(self, directory: Path) -> None:
        self._path = directory / "stepkeep.db"
        self._store = stepkeep.open(f"sqlite:{self._path}")
        self._session = self._store.session(_SESSION, profile="archive")
        self._newest: str | None = None

    def use_session(self, key: str) -> None:
        """Go on in another session."""
        self._session = self._store.session(key, profile="archive")

    def saver(self, step: int, state: State) -> Callable[[], object]:
        def save() -> None:
            self._newest = self._session.save(state, step=step).id

        return save

    def last_stored(self) -> bytes:
        """The bytes of the newest body as they are stored: a patch, or a keyframe."""
        if self._newest is None:
            return b""
        return self._store.engine.backend.body_chain(self._session.uid, self._newest, STATE)[0].data

    def reads(self, old_step: int) -> Mapping[str, Callable[[], object]]:
        return {
            LATEST: lambda: self._session.load().state,
            OLD: lambda: self._session.at(old_step).state,
            LIST: lambda: sum(1 for _ in self._session.history()),
        }

    def size_bytes(self) -> int:
        return database_bytes(self._path)

    def close(self) -> None:
        self._store.close()


class BareInsert:
    """The floor: one durable insert of the very bytes that Stepkeep stored last, and nothing else."""

    name = "bare insert"

    def __init__(self, directory: Path, source: Stepkeep) -> None:
        self._path = directory / "bare.db"
        self._source = source
        self._connection = apsw.Connection(str(self._path))
        for pragma in ("journal_mode = WAL", "synchronous = FULL"):
            self._connection.execute(f"PRAGMA {pragma}").fetchall()
        self._connection.execute("CREATE TABLE bodies (id INTEGER PRIMARY KEY, data BLOB NOT NULL)")

    def saver(self, step: int, state: State) -> Callable[[], object]:  # noqa: ARG002
        data = self._source.last_stored()
        return lambda: self._connection.execute("INSERT INTO bodies (data) VALUES (?)", (data,))

    def reads(self, old_step: int) -> Mapping[str, Callable[[], object]]:  # noqa: ARG002
        return {}

    def size_bytes(self) -> int:
        return database_bytes(self._path)

    def close(self) -> None:
        self._connection.close()


class JsonFile:
    """One JSON file, replaced by write, fsync and rename. It keeps the newest state only."""

    name = "json file"

    def __init__(self, directory: Path) -> None:
        self._path = directory / "state.json"
        self._temporary = directory / "state.json.tmp"

    def saver(self, step: int, state: State) -> Callable[[], object]:  # noqa: ARG002
        return lambda: self._write(state)

    def _write(self, state: State) -> None:
        with self._temporary.open("w", encoding="utf-8") as file:
            file.write(json.dumps(state))
            file.flush()
            os.fsync(file.fileno())
        self._temporary.replace(self._path)
        directory = os.open(self._path.parent, os.O_RDONLY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)

    def reads(self, old_step: int) -> Mapping[str, Callable[[], object]]:  # noqa: ARG002
        return {LATEST: lambda: json.loads(self._path.read_text(encoding="utf-8"))}

    def size_bytes(self) -> int:
        return self._path.stat().st_size

    def close(self) -> None:
        pass


class LangGraphSqlite:
    """LangGraph's SqliteSaver, set up as its documentation shows; the keys of the state are its channels."""

    name = "SqliteSaver"

    def __init__(self, directory: Path, *, make: bool = False) -> None:
        if make:
            directory.mkdir(parents=True)
        self._base, sqlite = langgraph_modules()
        self._ids: dict[int, str] = {}
        # Python's sqlite3 leaves `synchronous` at FULL, and the saver turns WAL on: its commits are durable too.
        self._connection = sqlite3.connect(directory / "langgraph.db", check_same_thread=False)
        self._saver = sqlite.SqliteSaver(self._connection)
        self._saver.setup()
        self._config: dict[str, Any] = {"configurable": {"thread_id": _SESSION, "checkpoint_ns": ""}}
        self._newest = self._config

    def in_thread(self, thread: str) -> Callable[[int, State], None]:
        """Puts states into a thread of its own, one after the other."""
        newest: dict[str, Any] = {"configurable": {"thread_id": thread, "checkpoint_ns": ""}}

        def put(step: int, state: State) -> None:
            nonlocal newest
            newest = self._saver.put(newest, *self._checkpoint(step, state))

        return put

    def saver(self, step: int, state: State) -> Callable[[], object]:
        checkpoint, metadata, versions = self._checkpoint(step, state)
        self._ids[step] = checkpoint["id"]

        def put() -> None:
            self._newest = self._saver.put(self._newest, checkpoint, metadata, versions)

        return put

    def _checkpoint(self, step: int, state: State) -> tuple[Any, Any, Any]:
        checkpoint = self._base.empty_checkpoint()
        versions = dict.fromkeys(state, f"{step:032}.{0.5:016}")
        checkpoint.update(
            id=str(self._base.uuid6(clock_seq=step)),
            ts=datetime.now(UTC).isoformat(),
            channel_values=dict(state),
            channel_versions=versions,
            versions_seen={"agent": versions},
            updated_channels=sorted(versions),
        )
        return checkpoint, {"source": "loop", "step": step, "parents": {}}, versions

    def reads(self, old_step: int) -> Mapping[str, Callable[[], object]]:
        return {
            LATEST: lambda: self._state(self._config),
            OLD: lambda: self._state(self._config_of(old_step)),
            LIST: lambda: sum(1 for _ in self._saver.list(self._config)),
        }

    def _config_of(self, step: int) -> dict[str, Any]:
        return {"configurable": {**self._config["configurable"], "checkpoint_id": self._ids[step]}}

    def _state(self, config: dict[str, Any]) -> object:
        return self._saver.get_tuple(config).checkpoint["channel_values"]

    def size_bytes(self) -> int:
        # Asked of the saver's own connection: a second SQLite library in one process must not open the file.
        ((pages,),) = self._connection.execute("PRAGMA page_count").fetchall()
        ((page_bytes,),) = self._connection.execute("PRAGMA page_size").fetchall()
        return int(pages * page_bytes)

    def close(self) -> None:
        self._connection.close()


def database_bytes(path: Path) -> int:
    """The size of a database with what its write-ahead log still holds, without touching either."""
    connection = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)
    try:
        pages, page_bytes = (connection.pragma(name) for name in ("page_count", "page_size"))
    finally:
        connection.close()
    return int(pages) * int(page_bytes)


class PeersMissing(Exception):
    """The packages of the peers are not installed."""


def langgraph_modules() -> tuple[ModuleType, ModuleType]:
    """The modules of LangGraph's saver, imported only when it takes part."""
    try:
        base = importlib.import_module("langgraph.checkpoint.base")
        return base, importlib.import_module("langgraph.checkpoint.sqlite")
    except ImportError as exc:
        raise PeersMissing(f"{exc}: install the peers with `pip install -r requirements/bench.txt`") from exc


def reopen(name: str, directory: Path) -> Subject:
    """A subject over what an earlier one of that name left in the directory."""
    kinds: dict[str, Callable[[Path], Subject]] = {
        Stepkeep.name: Stepkeep,
        JsonFile.name: JsonFile,
        LangGraphSqlite.name: LangGraphSqlite,
    }
    return kinds[name](directory)


def subjects(directory: Path, *, with_peers: bool) -> list[Subject]:
    """All subjects, each in its own directory below the given one."""
    ours = Stepkeep(place(directory, Stepkeep.name))
    found: list[Subject] = [
        ours,
        BareInsert(place(directory, BareInsert.name), ours),
        JsonFile(place(directory, JsonFile.name)),
    ]
    if with_peers:
        found.append(LangGraphSqlite(place(directory, LangGraphSqlite.name)))
    return found


def place(directory: Path, name: str) -> Path:
    """The directory of one subject."""
    path = directory / name.replace(" ", "-")
    path.mkdir(parents=True, exist_ok=True)
    return path
