"""What a store that someone else made can do: be refused, or be read as data."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any
from uuid import UUID

import apsw
import msgspec
import pytest

import stepkeep
from stepkeep.cli.app import run
from stepkeep.codec import exact, integrity
from stepkeep.engine import commit, engine
from stepkeep.engine.state_encoder import NewBody
from stepkeep.errors import Corrupt, StepkeepError
from stepkeep.storage.sqlite import SqliteBackend, bound_steps

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


def test_no_statement_runs_for_ever_on_a_strangers_file(file: Path) -> None:
    """What takes more steps than the file has bytes for is interrupted, the next one has as many again."""
    connection = apsw.Connection(str(file))
    begin = bound_steps(connection, str(file))
    for _ in range(2):
        begin()
        with pytest.raises(apsw.InterruptError):
            connection.execute(f"{ENDLESS} count(*) FROM n").fetchall()
    begin()
    assert connection.execute("SELECT count(*) FROM checkpoints").fetchall() == [(2,)]


# --- files that change while they are open -------------------------------------------------------------------------


def cut_database(file: Path) -> None:
    os.truncate(file, file.stat().st_size // 2 // 4096 * 4096)


def cut_log(file: Path) -> None:
    os.truncate(f"{file}-wal", 0)


@pytest.mark.parametrize("cut", [cut_database, cut_log, lambda file: os.truncate(file, 0)])
def test_a_store_that_is_cut_under_its_feet_takes_no_saves(file: Path, cut: Callable[[Path], None]) -> None:
    """Nothing is acknowledged that would be lost with the process."""
    with stepkeep.open(file) as store:
        session = store.session("s")
        for number in range(20):
            session.save({"text": str(number) * 5000})
        connection = apsw.Connection(str(file))
        connection.wal_checkpoint()
        connection.close()
        session.save({"number": 20})
        cut(file)
        with pytest.raises(stepkeep.BackendUnavailable) as refused:
            session.save({"number": 21})
        assert (refused.value.code, refused.value.retryable) == ("store_replaced", False)


def test_a_store_that_is_cut_to_nothing_is_not_waited_for(file: Path) -> None:
    """A new connection would make the file anew, and wait for those that are open: it is refused instead."""
    backend = SqliteBackend(file, busy_seconds=0)
    first = backend._take_reader()  # there is no other
    first.all("SELECT count(*) FROM checkpoints")
    os.truncate(file, 0)
    with pytest.raises(stepkeep.BackendUnavailable) as refused:
        backend.session_by_key("s")
    assert refused.value.code == "store_replaced"
    backend._give_back(first)
    with suppress(Corrupt):
        backend.close()


def test_space_that_another_process_gives_back_is_no_cut(file: Path) -> None:
    """A store that another one vacuums, and whose log another one truncates, takes saves as before."""
    with stepkeep.open(file) as store:
        other = apsw.Connection(str(file))
        for statement in ("CREATE TABLE scratch (data)", "INSERT INTO scratch VALUES (zeroblob(1000000))"):
            other.execute(statement)
        other.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
        store.session("s").save({})
        before = file.stat().st_size
        for statement in ("DROP TABLE scratch", "PRAGMA incremental_vacuum"):
            other.execute(statement).fetchall()
        other.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
        other.close()
        assert file.stat().st_size < before
        store.session("t").save({"number": 1})
    with stepkeep.open(file) as store:
        assert store.get("t").load().state == {"number": 1}


# --- sealed bytes --------------------------------------------------------------------------------------------------

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
        "show s --json",
        "show s --raw",
        "show s latest number",
        "at s now",
        "files ls --session s",
        "timeline s --json",
        "restore s 1",
        "resume s",
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
    assert done.returncode in (0, 4) or "error: " in done.stderr


def nested(levels: int) -> Any:
    """A list in a list in a list."""
    return json.loads("[" * levels + "]" * levels)


def told(**changes: Any) -> Callable[[Any], None]:
    return lambda header: header.update(changes)


def described(**changes: Any) -> Callable[[Any], None]:
    return lambda header: header["contents"]["state"].update(changes)


HEADERS: dict[str, Callable[[Any], None]] = {
    "a step beyond 64 bits": told(step=2**70),
    "a step of 63 bits": told(step=2**62),
    "a number beyond any": told(seq=2**62),
    "a number below any": told(seq=-4),
    "a size beyond any": described(size=2**62),
    "a size beyond 64 bits": described(size=2**100),
    "a size below none": described(size=-1),
    "a key order beyond the state": described(first_at=2**62),
    "a key order from the end": described(first_at=-3),
    "an unknown encoding": described(encoding="pickle"),
    "no state": told(contents={}),
    "a state as details": lambda header: header["contents"].update(details=header["contents"]["state"]),
    "a state as files": lambda header: header["contents"].update(files=header["contents"]["state"]),
    "deep metadata": told(metadata={"a": nested(900)}),
    "its own parent": lambda header: header.update(parents=[header["id"]], parent_chains=["x"]),
    "parents without chains": told(parents=["a", "b"], parent_chains=[]),
    "a branch of another name": told(branch="../x\n"),
    "an old version": told(v=-5),
    "controls of a terminal": told(tags=["\x1b[2J", "\u202e"], message="\x1b]0;x\x07"),
}

COLLIDING = [hex(number * (2**61 - 1)) for number in range(9, 20_000)]

STATES: dict[str, tuple[str, bytes]] = {
    "deep JSON": ("json", b"[" * 5000 + b"]" * 5000),
    "deep objects": ("json", b'{"a":' * 3000 + b"1" + b"}" * 3000),
    "NaN": ("json", b'{"a":NaN}'),
    "nothing": ("json", b""),
    "no Unicode": ("json", b'{"a":"\xff"}'),
    "half a character": ("json", b'{"a":"\\ud800"}'),
    "half a document": ("json", b'{"a":'),
    "two documents": ("json", b"{} {}"),
    "an unknown tag": ("json+tags", b'{"$boom":1}'),
    "a day beyond any": ("json+tags", b'{"$timedelta":[99999999999999999999,0,0]}'),
    "a zone outside": ("json+tags", b'{"$datetime":["2020-01-01T00:00:00",0,"../../etc/passwd"]}'),
    "a decimal beyond any": ("json+tags", b'{"$decimal":"1e9999999999999999999"}'),
    "unhashable keys": ("json+tags", b'{"$dict":[[{},1]]}'),
    "keys that collide": ("json+tags", json.dumps({"$dict": [[{"$int": n}, 0] for n in COLLIDING]}).encode()),
    "elements that collide": (
        "json+tags",
        json.dumps({"$set": [{"$uuid": str(UUID(int=int(n, 16)))} for n in COLLIDING]}).encode(),
    ),
}


@pytest.fixture
def in_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Callable[[str], tuple[int, str]]:
    """Run a command in this process, so that whatever it raises is raised here: its exit code, and what it said."""
    monkeypatch.chdir(tmp_path)
    for name in ("HOME", "XDG_CONFIG_HOME", "XDG_STATE_HOME", "XDG_DATA_HOME"):
        monkeypatch.setenv(name, str(tmp_path))
    monkeypatch.setenv("STEPKEEP_STORE", f"sqlite:{tmp_path}/store.db")

    def call(command: str) -> tuple[int, str]:
        capfd.readouterr()
        code = run(command.split())
        return code, capfd.readouterr().err

    return call


def check_commands(call: Callable[[str], tuple[int, str]]) -> None:
    for command in [*COMMANDS, "recover sqlite:store.db sqlite:new.db"]:
        code, said = call(command)
        assert "Traceback" not in said, command
        assert code in (0, 1, 2, 3, 4), command


@pytest.mark.full
@pytest.mark.parametrize("case", HEADERS)
def test_no_sealed_header_gives_a_traceback(
    file: Path, monkeypatch: pytest.MonkeyPatch, in_process: Callable[[str], tuple[int, str]], case: str
) -> None:
    """Whatever a header says under a valid seal, each command answers or refuses in its own words."""

    def seal(*place: Any) -> bytes:
        header = json.loads(integrity.seal(*place))
        del header["chain"]
        HEADERS[case](header)
        unsealed = json.dumps(header).encode()
        return unsealed[:-1] + b',"chain":"' + integrity.digest(unsealed).encode() + b'"}'

    with stepkeep.open(file) as store, monkeypatch.context() as patch:
        patch.setattr(commit, "seal", seal)
        with suppress(StepkeepError):  # stored all the same
            store.session("s").save({"number": 2})
    check_commands(in_process)


@pytest.mark.full
@pytest.mark.parametrize("case", STATES)
def test_no_sealed_state_gives_a_traceback(
    file: Path, in_process: Callable[[str], tuple[int, str]], case: str
) -> None:
    """Whatever a state is under a valid seal, each command answers or refuses in its own words, and at once."""
    encoding, content = STATES[case]
    with stepkeep.open(file) as store:
        store.session("s").save(NewBody(content, encoding))
    started = time.process_time()
    check_commands(in_process)
    assert time.process_time() - started < 60  # keys that collide took minutes


@pytest.mark.parametrize("case", ["keys that collide", "elements that collide"])
def test_values_with_chosen_hashes_are_refused(file: Path, case: str) -> None:
    """Each of them would be compared with all others; a handful that chance could make is read."""
    encoding, content = STATES[case]
    with stepkeep.open(file) as store:
        store.session("s").save(NewBody(content, encoding))
    with stepkeep.open(file) as store, pytest.raises(Corrupt):
        store.get("s").load(3).state  # noqa: B018
    few = json.dumps({"$dict": [[{"$int": n}, 0] for n in COLLIDING[:8]]}).encode()
    assert len(exact.decode(exact.TAGGED, few)) == 8


# --- memory --------------------------------------------------------------------------------------------------------

MEMORY_BYTES = 1 << 30

DENSE = {
    "empty lists": b"[],",
    "empty objects": b"{},",
    "small objects": b'{"a":0},',
    "short texts": b'"ab",',
    "deep lists": b"[" * 190 + b"]" * 190 + b",",
}


def filled(item: bytes, size: int, last: bytes) -> bytes:
    return b"[" + item * (size // len(item)) + last + b"]"


def limited(folder: Path, command: str) -> subprocess.CompletedProcess[str]:
    """A command in a process with little memory."""
    return subprocess.run(
        [sys.executable, "-m", "stepkeep", *command.split(), "--store", f"sqlite:{folder}/store.db"],
        cwd=folder,
        env={"PATH": os.environ["PATH"], "HOME": str(folder)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES)),
    )


@pytest.mark.full
@pytest.mark.parametrize("case", DENSE)
def test_a_small_store_does_not_exhaust_memory(
    file: Path, monkeypatch: pytest.MonkeyPatch, case: str
) -> None:
    """A hundred kilobytes that unfold into many gigabytes of values are refused before they are decoded."""
    with stepkeep.open(file) as store, monkeypatch.context() as patch:
        patch.setattr(exact, "MAX_DECODED_BYTES", 1 << 60)  # whoever made it does not follow our rules
        for number in range(2):
            store.session("s").save(NewBody(filled(DENSE[case], 80 << 20, b"%d" % number), exact.JSON))
    assert file.stat().st_size < 1 << 20
    for command in ("show s", "diff s"):
        done = limited(file.parent, command)
        assert (done.returncode, done.stderr) == (
            4,
            "error: the state unfolds into more than any that is saved\n",
        ), command


def test_what_would_be_refused_on_load_is_not_saved(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same bound holds for saving, by the values and not by texts that look like them."""
    monkeypatch.setattr(exact, "MAX_DECODED_BYTES", 1 << 20)
    monkeypatch.setattr(exact, "NEVER_DENSE_BYTES", (1 << 20) // 80)
    text = ',[{"' * 50_000
    with stepkeep.open(file) as store:
        session = store.session("s")
        with pytest.raises(stepkeep.InvalidInput) as refused:
            session.save({"a": [{} for _ in range(20_000)]})
        assert refused.value.code == "state_too_large"
        session.save({"text": text})
    with stepkeep.open(file) as store:
        assert store.get("s").load().state == {"text": text}


def test_deep_values_are_printed_without_indentation(
    file: Path,
    in_process: Callable[[str], tuple[int, str]],
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A large state of deep lists would be hundreds of times its size, were each on a line of its own."""
    monkeypatch.setattr("stepkeep.text._MAX_INDENTED_BYTES", 1 << 16)
    with stepkeep.open(file) as store:
        store.session("s").save({"a": [nested(190) for _ in range(200)]})
    capfd.readouterr()
    assert run(["show", "s"]) == 0
    assert len(capfd.readouterr().out) < 200_000


def test_a_header_with_many_bodies_is_not_loaded(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bodies are bounded together: each compresses into nothing."""
    monkeypatch.setattr("stepkeep.engine.reader.MAX_LOADED_BYTES", 1 << 20)
    content = b'"' + b"x" * (1 << 18) + b'"'
    with stepkeep.open(file) as store, monkeypatch.context() as patch:
        patch.setattr("stepkeep.engine.reader.MAX_LOADED_BYTES", 1 << 60)
        bodies = {f"body{number}": NewBody(content, exact.JSON) for number in range(8)}
        info = store.session("s").info
        store.engine.save(engine.Save(session=info.uid, state={}, bodies=bodies))
    with stepkeep.open(file) as store:
        assert store.session("s").latest().fallback is not None  # type: ignore[union-attr]
        with pytest.raises(stepkeep.InvalidInput):
            store.engine.save(engine.Save(session=info.uid, state={}, bodies=bodies))


@pytest.mark.parametrize("url", ["sqlite:{}/other.db", "files:{}/other?layout=run"])
def test_numbers_beyond_any_are_ranges(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, url: str) -> None:
    """What is missing before a checkpoint with a huge number is told as one range, by each that rebuilds a store."""
    url = url.format(tmp_path)
    with stepkeep.open(url) as store:
        session = store.session("s")
        session.save({"number": 0})
        uid = session.info.uid
        far = msgspec.structs.replace(session.info, last_seq=2**40)
        store.engine.backend.adopt_session(far)
        session.save({"number": 1})
    if url.startswith("files:"):
        for name in ("index.db", "index.db-wal", "index.db-shm"):
            (tmp_path / "other" / ".stepkeep" / name).unlink(missing_ok=True)
        with stepkeep.open(url) as store:
            assert store.get("s").info.uid == uid
            assert store.get("s").info.gaps == ((2, 2**40),)
    found = stepkeep.api.recover(url, f"sqlite:{tmp_path}/new.db").copied
    assert [each.seq for each in found.lost] in ([], [2])
