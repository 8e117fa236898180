"""What a store that someone else made can do: be refused, or be read as data."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import apsw
import pytest

import stepkeep
from stepkeep.errors import Corrupt, StepkeepError

DELETES = (
    "CREATE TRIGGER {name} AFTER INSERT ON checkpoints BEGIN DELETE FROM checkpoints WHERE seq < new.seq; END"
)
ENDLESS = "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n) SELECT"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A store with two checkpoints."""
    with stepkeep.open(tmp_path / "store.db") as store:
        for number in range(2):
            store.session("s").save({"number": number})
    return tmp_path / "store.db"


def rewrite_schema(file: Path, *statements: str) -> None:
    """Change a database as whoever made it could: also what SQLite itself refuses."""
    connection = apsw.Connection(str(file))
    connection.execute("PRAGMA writable_schema = ON")
    for statement in statements:
        connection.execute(statement)
    connection.close()


@pytest.mark.parametrize("name", ["sqlite_sequence", "sqlite_stat1", "checkpoints", "evil"])
def test_a_trigger_of_a_stranger_is_refused_under_any_name(file: Path, name: str) -> None:
    """The schema is compared whole: type, name, table and text, whatever something is called."""
    sql = DELETES.format(name=name)
    row = f"INSERT INTO sqlite_master VALUES ('trigger', '{name}', 'checkpoints', 0, '{sql}')"
    rewrite_schema(file, row)
    with pytest.raises(Corrupt) as refused:
        stepkeep.open(file)
    assert refused.value.code == "schema_damaged"


def test_a_trigger_that_comes_later_does_not_act(file: Path) -> None:
    """Triggers never run in a store, also one that was added while it is open."""
    with stepkeep.open(file) as store:
        rewrite_schema(file, DELETES.format(name="evil"))
        store.session("s").save({"number": 2})
        assert [header.seq for header in store.session("s").history()] == [3, 2, 1]


def test_a_view_in_the_place_of_a_table_is_not_read(tmp_path: Path) -> None:
    """An import from a database whose tables are views without end is refused at once."""
    migration = pytest.importorskip("stepkeep.adapters.langgraph.migration")
    source = tmp_path / "source.db"
    for name in ("checkpoints", "writes"):
        rewrite_schema(source, f"CREATE VIEW {name} AS {ENDLESS} x AS thread_id FROM n")
    with pytest.raises(StepkeepError) as refused, migration.open_source(f"sqlite:{source}") as opened:
        opened.threads()
    assert refused.value.code == "source_unreadable"


COMMANDS = [
    *(
        "list",
        "log s",
        "show s",
        "history s",
        "timeline s",
        "diff s seq:1 seq:2",
        "status",
        "status s",
        "verify",
        "stats",
    ),
    *(
        "prune s --dry-run",
        "prune --all",
        "clean --dry-run",
        "export s -o out.json",
        "branch list s",
        "doctor",
    ),
]


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("time_us", [2**62, -(2**62)])
def test_times_beyond_any_calendar_give_no_traceback(tmp_path: Path, command: str, time_us: int) -> None:
    """Sealed headers and session rows with absurd times are shown with the nearest time there is."""
    with stepkeep.open(tmp_path / "store.db", clock=lambda: time_us) as store:
        for number in range(2):
            store.session("s").save({"number": number})
    done = subprocess.run(
        [sys.executable, "-m", "stepkeep", *command.split(), "--store", f"sqlite:{tmp_path}/store.db"],
        cwd=tmp_path,
        env={"PATH": os.environ["PATH"], "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert "Traceback" not in done.stderr
    assert done.returncode in (0, 4)
