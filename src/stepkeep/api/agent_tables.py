"""Checkpoints of agents in a database with the columns of their specification: adopting one, and writing one.

The table is `checkpoints` or `agent_checkpoints`, with a row for each checkpoint and its state as JSON.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any, Final

import apsw
import msgspec

from stepkeep.api.import_files import FileImport, FilesImport, Importer, ReadCheckpoint, skipped_fate
from stepkeep.api.session import Session
from stepkeep.codec.foreign import Foreign
from stepkeep.codec.integrity import digest
from stepkeep.codec.readable import timestamp
from stepkeep.errors import SCHEMA_INVALID, Corrupt, InvalidInput, StepkeepError
from stepkeep.history.times import of_datetime
from stepkeep.model import Status, Trigger, TriggerKind
from stepkeep.storage.disk import write_file
from stepkeep.storage.files.document_reader import FoundFile
from stepkeep.text import occurs_twice, repeated_key

TABLES: Final = ("agent_checkpoints", "checkpoints")
COLUMNS: Final = (
    *("id", "session_id", "project_id", "step_number", "created_at"),
    *("state_json", "description", "trigger_type", "duration_ms", "token_usage"),
)
_NEEDED: Final = {"id", "session_id", "step_number", "created_at", "state_json"}
_COMPLETE: Final = "Execution complete"
_SCHEMA: Final = """
CREATE TABLE checkpoints (
  id TEXT PRIMARY KEY,
  session_id TEXT NOT NULL,
  project_id TEXT NOT NULL,
  step_number INTEGER NOT NULL,
  created_at TEXT NOT NULL,
  state_json TEXT NOT NULL,
  description TEXT,
  trigger_type TEXT NOT NULL,
  duration_ms INTEGER,
  token_usage INTEGER
);
CREATE INDEX idx_checkpoints_session ON checkpoints(session_id, step_number DESC);
CREATE INDEX idx_checkpoints_project ON checkpoints(project_id, created_at DESC);
"""

Row = dict[str, Any]


# --- importing -------------------------------------------------------------------------------------------------


class AgentImporter(Importer, kw_only=True):
    """One import of a database, as `Store.import_agents` was asked for it. `directory` is its file."""

    projects: dict[str, str] = msgspec.field(default_factory=dict)
    """The project of each session that the rows name."""

    def run(self) -> FilesImport:
        """Adopt what can be adopted, oldest first, and report on all rows."""
        read: list[ReadCheckpoint] = []
        fates: list[FileImport] = []
        for table, row in rows_of(self.directory):
            found = FoundFile(f"{table}/{row['id']}", None, is_pointer=False)
            try:
                document = _foreign(row)
            except StepkeepError as exc:
                fates.append(skipped_fate(FileImport(file=found.shown, outcome=""), exc))
                continue
            key = self.session or str(row["session_id"])
            if isinstance(row["project_id"], str) and row["project_id"]:
                self.projects[key] = row["project_id"]
            content = json.dumps(row, sort_keys=True, default=str).encode()
            read.append(ReadCheckpoint(found=found, document=document, digest=digest(content), key=key))
        fates += map(self._adopt, sorted(read, key=lambda each: (each.key, each.document.time_us or 0)))
        return self._report(sorted(fates, key=lambda fate: fate.file))

    @property
    def source(self) -> str:
        return "agents"

    def _made_with(self, read: ReadCheckpoint) -> dict[str, Any]:
        project = self.projects.get(read.key)
        return {"profile": "archive", **({} if project is None else {"project": project})}

    def _nothing_found(self) -> tuple[str, tuple[str, ...]]:
        return f"{self.directory} has no checkpoints", ("name the database of the other system",)


def rows_of(file: Path) -> Iterator[tuple[str, Row]]:
    """The rows of a database with the name of their table. The file is only read.

    Raises:
        InvalidInput: (`not_a_store`) it is no such database.
    """
    if not file.is_file():
        raise InvalidInput(f"{file} is not a file", code="not_a_store")
    try:
        connection = apsw.Connection(str(file), flags=apsw.SQLITE_OPEN_READONLY)
        try:
            table, columns = _table(connection, file)
            names = [name if name in columns else f"NULL AS {name}" for name in COLUMNS]
            for values in connection.execute(
                f"SELECT {', '.join(names)} FROM {table} ORDER BY created_at, step_number"
            ):
                yield table, dict(zip(COLUMNS, values, strict=True))
        finally:
            connection.close()
    except apsw.Error as exc:
        raise InvalidInput(f"{file} cannot be read: {exc}", code="not_a_store") from exc


def _table(connection: apsw.Connection, file: Path) -> tuple[str, set[str]]:
    for table in TABLES:
        columns = {str(row[1]) for row in connection.execute(f"PRAGMA table_info({table})")}
        if columns >= _NEEDED:
            return table, columns
    raise InvalidInput(
        f"{file} has no table {' or '.join(TABLES)} with the columns {', '.join(sorted(_NEEDED))}",
        code="not_a_store",
    )


def _foreign(row: Row) -> Foreign:
    """What a row says.

    Raises:
        Corrupt: (`checkpoint_schema_invalid`) it makes no sense.
    """
    try:
        state = json.loads(row["state_json"], parse_constant=_refused)
    except (ValueError, TypeError, RecursionError) as exc:
        raise Corrupt(f"state_json is not JSON: {exc}", code=SCHEMA_INVALID) from exc
    if (key := repeated_key(row["state_json"])) is not None:
        raise Corrupt(f"state_json: {occurs_twice(key)}", code=SCHEMA_INVALID)
    trigger = row["trigger_type"] or TriggerKind.AUTO
    if not isinstance(row["id"], str) or trigger not in tuple(TriggerKind):
        raise Corrupt("the row has no id, or an unknown trigger_type", code=SCHEMA_INVALID)
    description = row["description"] if isinstance(row["description"], str) else ""
    is_done = description == _COMPLETE
    status = Status.COMPLETED if is_done else Status.FAILED if trigger == "error" else Status.IN_PROGRESS
    numbers = {"durationMs": row["duration_ms"] or 0, "tokenUsage": row["token_usage"]}
    return Foreign(
        external_id=row["id"],
        session=str(row["session_id"]),
        time_us=_time_us(row["created_at"]),
        status=status,
        state=state,
        step=row["step_number"] if isinstance(row["step_number"], int) else None,
        trigger=Trigger(TriggerKind(trigger)),
        message=description,
        metadata={name: number for name, number in numbers.items() if number is not None},
        verified=("schema",),
    )


def _refused(text: str) -> float:
    raise ValueError(f"{text} is no number of JSON")


def _time_us(text: object) -> int | None:
    try:
        return of_datetime(datetime.fromisoformat(str(text)))
    except (ValueError, OverflowError, InvalidInput):
        return None


# --- exporting -------------------------------------------------------------------------------------------------


class AgentsExported(msgspec.Struct, frozen=True, kw_only=True):
    """A database that was written, and how many rows it has."""

    session: str
    output: str
    rows: int
    size_bytes: int


def export_agents(session: Session, output: Path, *, force: bool = False) -> AgentsExported:
    """Write the checkpoints of a session into a new database with the columns of the specification.

    Values that JSON lacks are written as objects with one `$` key.
    """
    connection = apsw.Connection(":memory:")
    try:
        connection.execute(_SCHEMA)
        rows = [_row(session, header.id) for header in session.history()]
        marks = ", ".join("?" for _ in COLUMNS)
        connection.executemany(f"INSERT INTO checkpoints VALUES ({marks})", rows)
        content = connection.serialize("main")
    finally:
        connection.close()
    write_file(output, content, force=force)
    return AgentsExported(session=session.key, output=str(output), rows=len(rows), size_bytes=len(content))


def _row(session: Session, checkpoint: str) -> tuple[Any, ...]:
    shown, info = session.show(checkpoint), session.info
    header = session.header(checkpoint)
    return (
        header.id,
        info.key,
        info.project or "",
        header.step or 0,
        timestamp(header.time_us),
        bytes(shown.state).decode(),
        header.message or None,
        str(header.trigger.kind),
        header.metadata.get("durationMs", 0),
        header.metadata.get("tokenUsage"),
    )
