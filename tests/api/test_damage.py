"""Every stored byte counts: damage to a body, header, session row or branch row is detected."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any

import apsw
import pytest

import stepkeep
from tests.api import programs

KEY = "run/ä"


@pytest.fixture
def origin(tmp_path: Path) -> Path:
    """A small closed store: six checkpoints on two branches, one gap, in a folder that is copied per trial."""
    path = tmp_path / "origin" / "h.db"
    with stepkeep.open(path) as store:
        session = store.session(KEY, profile="archive", project="p", metadata={"m": 1})
        ids = [session.save({"n": n, "text": "same words " * 120}, step=n, tags=["t"]).id for n in (1, 2, 3)]
        session.save({"n": 4}, branch="side", parents=[ids[1]], idempotency_key="key", external_id="ext")
        session.save({"n": 5, "text": "same words " * 120})
        session.save({"n": 6, "text": "same words " * 120}, message="last")
        session.delete(ids[0])
    return path


STATES = {n: {"n": n, "text": "same words " * 120} for n in (2, 3, 5, 6)} | {4: {"n": 4}}


@contextmanager
def trial(origin: Path, damage: Callable[[apsw.Connection], object]) -> Iterator[Path]:
    """A damaged copy of the store."""
    folder = origin.parent.parent / "trial"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    path = folder / "h.db"
    shutil.copy(origin, path)
    with programs.raw(path) as connection:
        damage(connection)
    yield path


def one(connection: apsw.Connection, sql: str, values: tuple[Any, ...] = ()) -> Any:
    ((value,),) = programs.rows(connection, sql, values)
    return value


def byte_damages(data: bytes, *, every_bit: bool, seed: int = 0) -> Iterator[tuple[str, bytes]]:
    """`data` with each byte changed in one bit, or in each of the eight; and cut, extended, emptied."""
    chooser = random.Random(seed)
    for at in range(len(data)):
        for bit in range(8) if every_bit else (chooser.randrange(8),):
            yield f"byte {at} bit {bit}", programs.flipped(data, at, bit)
    yield "cut", data[:-1]
    yield "empty", b""
    yield "longer", data + b"\0"


# --- headers and bodies: bytes ---------------------------------------------------------------------------------


def undetected(path: Path, table: str, column: str, *, every_bit: bool) -> list[str]:
    """Which changes of the newest checkpoint's bytes `latest` does not answer with a fallback to the one before."""
    missed = []
    with stepkeep.open(path) as store, programs.raw(path) as connection:
        session = store.session(KEY)
        where = "id" if table == "checkpoints" else "checkpoint"
        newest = session.load(6).id
        data = one(connection, f"SELECT {column} FROM {table} WHERE {where} = ?", (newest,))
        for what, changed in byte_damages(data, every_bit=every_bit):
            connection.execute(f"UPDATE {table} SET {column} = ? WHERE {where} = ?", (changed, newest))
            try:
                latest = session.latest()
                if latest is None or latest.seq != 5 or latest.fallback is None or latest.state != STATES[5]:
                    missed.append(what)
                session.load(6)
                missed.append(f"{what}: loads")
            except stepkeep.Corrupt:
                continue
            except Exception as exc:
                missed.append(f"{what}: {exc!r}")
        connection.execute(f"UPDATE {table} SET {column} = ? WHERE {where} = ?", (data, newest))
        assert session.load(6).state == STATES[6]
    return missed


@pytest.mark.parametrize(("table", "column"), [("checkpoints", "header"), ("bodies", "data")])
def test_every_byte_of_a_checkpoint_is_covered(origin: Path, table: str, column: str) -> None:
    """One bit of any byte of a header or body shows, and `latest` falls back to the checkpoint before."""
    assert undetected(origin, table, column, every_bit=False) == []


@pytest.mark.full
@pytest.mark.parametrize(("table", "column"), [("checkpoints", "header"), ("bodies", "data")])
def test_every_bit_of_a_checkpoint_is_covered(origin: Path, table: str, column: str) -> None:
    """Each single bit of a header and a body shows."""
    assert undetected(origin, table, column, every_bit=True) == []


def test_samples_of_a_long_body_are_covered(session: stepkeep.Session, path: Path) -> None:
    """A long keyframe: a bit at many places of its stored bytes shows."""
    random.seed(5)
    session.save({"n": 1})
    header = session.save({"noise": random.randbytes(100_000).hex()}, status="paused")
    with programs.raw(path) as connection:
        connection.execute("DELETE FROM bodies WHERE is_redundant = 1")
        data = one(connection, "SELECT data FROM bodies WHERE checkpoint = ?", (header.id,))
        for at in random.sample(range(len(data)), 60):
            connection.execute(
                "UPDATE bodies SET data = ? WHERE checkpoint = ?",
                (programs.flipped(data, at, at % 8), header.id),
            )
            assert session.load().seq == 1


def test_bytes_of_another_checkpoint_are_not_taken(session: stepkeep.Session, path: Path) -> None:
    """An intact header or body in the wrong place is damage."""
    for n in (1, 2, 3):
        session.save({"n": n}, status="paused")
    for table, column, where in (("checkpoints", "header", "id"), ("bodies", "data", "checkpoint")):
        with programs.raw(path) as connection:
            third, second = session.header(3).id, session.header(2).id
            data = one(connection, f"SELECT {column} FROM {table} WHERE {where} = ?", (third,))
            other = one(connection, f"SELECT {column} FROM {table} WHERE {where} = ?", (second,))
            connection.execute(f"UPDATE {table} SET {column} = ? WHERE {where} = ?", (other, third))
            assert session.load().state == {"n": 2}
            connection.execute(f"UPDATE {table} SET {column} = ? WHERE {where} = ?", (data, third))


# --- the other columns of headers and bodies -------------------------------------------------------------------


def columns_of(connection: apsw.Connection, table: str) -> list[str]:
    return [row[1] for row in programs.rows(connection, f"PRAGMA table_info({table})")]


def column_damages(value: Any) -> list[Any]:
    """Other values that damage may leave in a column: other numbers, texts, types, and none at all."""
    as_bytes = str(value).encode() if value is not None else b""
    damages: list[Any] = [None, b"\x01\x02", "x", "", -1, 0, 7, 2**40, 2**62 + 1, 1.5]
    damages += [as_bytes.decode() + "x", as_bytes]
    if isinstance(value, int):
        damages += [value ^ 1, value ^ 2, value + 2**33]
    if isinstance(value, str):
        damages += [chr(ord(value[0]) ^ 1) + value[1:] if value else "y"]
    return [damage for damage in damages if damage != value or type(damage) is not type(value)]


INVALID_TEXT = "CAST(x'ff80' AS TEXT)"


Damage = Callable[[apsw.Connection], object]


def row_damages(origin: Path, table: str, where: str) -> Iterator[tuple[str, str, Damage]]:
    """Every damage of one column of a row: the column, the value, and what does it."""
    with programs.raw(origin) as connection:
        columns = columns_of(connection, table)
        (row,) = programs.rows(connection, f"SELECT {', '.join(columns)} FROM {table} WHERE {where}")
    for column, value in zip(columns, row, strict=True):
        if (table, column) == ("sessions", "sid"):
            continue  # the number of a row is its place in the tree, not a stored value
        for damage in column_damages(value):
            yield column, repr(damage), change(table, column, where, "?", damage)
        yield column, "no UTF-8", change(table, column, where, INVALID_TEXT)


def change(table: str, column: str, where: str, expression: str, *values: Any) -> Damage:
    """Set a column where its constraints allow it; otherwise nothing is damaged."""

    def apply(connection: apsw.Connection) -> None:
        try:
            connection.execute(f"UPDATE {table} SET {column} = {expression} WHERE {where}", values)
        except (apsw.ConstraintError, apsw.MismatchError):
            return

    return apply


def is_unchanged(origin: Path, path: Path, table: str) -> bool:
    """Whether a damage had no effect, because a constraint or the column's type turned it back."""
    contents = []
    for each in (origin, path):
        with programs.raw(each) as connection:
            columns = [f"hex({name}), typeof({name})" for name in columns_of(connection, table)]
            rows = programs.rows(connection, f"SELECT {', '.join(columns)} FROM {table}")
            contents.append(sorted(rows))
    return bool(contents[0] == contents[1])


def newest_id(origin: Path) -> str:
    with programs.raw(origin) as connection:
        return str(one(connection, "SELECT id FROM checkpoints WHERE seq = 6"))


def judge(path: Path) -> str | None:
    """What is wrong with how a damaged store is read and saved into; None when all is well.

    Every load is right or an error of the tree, an older `latest` says that it is a fallback, and the next
    save works.
    """
    try:
        with stepkeep.open(path) as store:
            session = store.session(KEY)
            for seq, state in STATES.items():
                try:
                    if session.load(seq).state != state:
                        return f"#{seq} loads another state"
                except (stepkeep.Corrupt, stepkeep.NotFound, stepkeep.Unsupported):
                    continue
            latest = session.latest()
            if latest is None:
                return "latest is None"
            if latest.state != STATES[latest.seq]:
                return "latest has another state"
            if latest.seq != 6 and latest.fallback is None:
                return f"latest is #{latest.seq} and does not say that it is a fallback"
            list(session.history())
            saved = session.save({"n": "next"})
            if saved.seq <= 6:
                return f"the next save got number {saved.seq}"
            if session.load().state != {"n": "next"}:
                return "the next save is not latest"
    except Exception as exc:
        return f"{type(exc).__name__}: {exc}"
    return None


# All damages take a minute together; elsewhere some of every column are enough.
EVERY = pytest.mark.parametrize(
    "every", [pytest.param(9, id="some"), pytest.param(1, id="all", marks=pytest.mark.slow)]
)
SOME_BYTES = pytest.mark.parametrize(
    "every", [pytest.param(7, marks=pytest.mark.full), pytest.param(1, marks=pytest.mark.slow)]
)


def failures_of(
    origin: Path, table: str, where: str, judge: Callable[[Path], str | None], every: int
) -> list[str]:
    """What goes wrong when a column of a row is damaged; `every` chooses one in so many damages."""
    damages = islice(row_damages(origin, table, where), 0, None, every)
    return failures_among(origin, table, damages, judge)


def failures_among(
    origin: Path,
    table: str,
    damages: Iterable[tuple[str, str, Damage]],
    judge: Callable[[Path], str | None],
) -> list[str]:
    """What goes wrong, once per column and kind of problem, with a damage that leads there."""
    found: dict[tuple[str, str], list[str]] = {}
    for column, value, damage in damages:
        with trial(origin, damage) as path:
            if is_unchanged(origin, path, table):
                continue
            if (problem := judge(path)) is not None:
                found.setdefault((column, problem[:24]), []).append(f"{value}: {problem}")
    return [
        f"{table}.{column} = {cases[0][:200]} ({len(cases)} cases)" for (column, _), cases in found.items()
    ]


def report(failures: list[str]) -> str:
    return "\n".join(["", *failures])


@EVERY
def test_every_column_of_a_body_row(origin: Path, every: int) -> None:
    """Whatever a column of the newest body says, loads are right or refused, and saving goes on."""
    failures = failures_of(
        origin, "bodies", f"checkpoint = '{newest_id(origin)}' AND is_redundant = 0", judge, every
    )
    assert not failures, report(failures)


@EVERY
def test_every_column_of_the_row_of_a_base(origin: Path, every: int) -> None:
    """The same for a body that others are based on."""
    with programs.raw(origin) as connection:
        base = one(connection, "SELECT base FROM bodies WHERE checkpoint = ?", (newest_id(origin),))
    assert base is not None
    failures = failures_of(origin, "bodies", f"checkpoint = '{base}' AND is_redundant = 0", judge, every)
    assert not failures, report(failures)


@EVERY
def test_every_column_of_a_header_row(origin: Path, every: int) -> None:
    """Whatever a column of the newest header's row says, a fallback is never silent."""
    failures = failures_of(origin, "checkpoints", "seq = 6", judge, every)
    assert not failures, report(failures)


def judge_by_verify(path: Path) -> str | None:
    """Whether `verify` finds the damage, or it was repaired."""
    try:
        with stepkeep.open(path) as store:
            report = store.verify()
            repaired = any(event.type.endswith("_repaired") for event in store.session(KEY).events())
            return None if report.findings or repaired else "verify finds nothing"
    except Exception as exc:
        return f"{type(exc).__name__}: {exc}"


@pytest.mark.parametrize("where", ["seq = 6", "seq = 4"])
@EVERY
def test_verify_finds_every_changed_column_of_a_header_row(origin: Path, where: str, every: int) -> None:
    """The columns that only filters read (time, step, status, names) are compared with the header too."""
    failures = failures_of(origin, "checkpoints", where, judge_by_verify, every)
    assert not failures, report(failures)


# --- session rows ----------------------------------------------------------------------------------------------


def judge_session(path: Path) -> str | None:
    """What is wrong with a session whose row was damaged, when it is opened by its key in a new store."""
    if (problem := judge(path)) is not None:
        return problem
    with stepkeep.open(path) as store:
        session = store.get(KEY)
        if [header.seq for header in session.history(newest_first=False)][:-1] != [2, 3, 4, 5, 6]:
            return "history is not whole"
        if session.info.last_seq < 7:
            return f"the counter is {session.info.last_seq}"
        if [event.type for event in session.events()].count("session_repaired") != 1:
            return "no event session_repaired"
        if [info.key for info in store.sessions()] != [KEY]:
            return "the list has other keys"
    return None


@EVERY
def test_every_column_of_the_session_row(origin: Path, every: int) -> None:
    """A damaged session row is rebuilt: found by its key, with an event, and its counter never lower."""
    failures = failures_of(origin, "sessions", "sid = 1", judge_session, every)
    assert not failures, report(failures)


def text_flips(origin: Path, table: str, where: str, columns: list[str]) -> Iterator[tuple[str, str, Damage]]:
    """Each byte of text columns with one bit flipped; the result need not be UTF-8."""
    with programs.raw(origin) as connection:
        texts = [
            (column, one(connection, f"SELECT CAST({column} AS BLOB) FROM {table} WHERE {where}"))
            for column in columns
        ]
    for column, data in texts:
        for at in range(len(data)):
            for bit in (at % 7, 7):
                changed = f"CAST(x'{programs.flipped(data, at, bit).hex()}' AS TEXT)"
                yield column, f"byte {at} bit {bit}", change(table, column, where, changed)


SESSION_TEXTS = [
    "uid",
    "key",
    "key_digest",
    "profile",
    "status",
    "branch",
    "metadata",
    "gaps",
    "digest",
    "project",
]
SESSION_TEXTS += ["description"]


@SOME_BYTES
def test_every_byte_of_the_session_row(origin: Path, every: int) -> None:
    """A bit of any byte of any text of the session row: rebuilt as above."""
    damages = islice(text_flips(origin, "sessions", "sid = 1", SESSION_TEXTS), 0, None, every)
    failures = failures_among(origin, "sessions", damages, judge_session)
    assert not failures, report(failures)


def test_a_damaged_status_is_taken_from_the_newest_header(store: stepkeep.Store, path: Path) -> None:
    """What the newest checkpoint says about the session's status is what the session says after a rebuild."""
    session = store.session("run")
    session.save({"n": 1})
    session.save({"n": 2}, status="paused")
    with programs.raw(path) as connection:
        connection.execute("UPDATE sessions SET status = 'nonsense'")
    assert session.info.status is stepkeep.Status.PAUSED
    assert session.info.uid == session.uid
    assert [event.type for event in session.events()] == ["session_repaired"]


def test_a_session_is_found_by_its_key_when_the_key_column_is_damaged(
    store: stepkeep.Store, path: Path
) -> None:
    """The digest of the key finds the row, and the key that was asked for is the key again."""
    uid = store.session("run").uid
    store.get("run").save({"n": 1})
    with programs.raw(path) as connection:
        connection.execute("UPDATE sessions SET key = 'rum'")
    assert store.get("run").uid == uid
    assert store.get("run").info.key == "run"
    with pytest.raises(stepkeep.NotFound):
        store.get("rum")


def test_an_open_handle_survives_damage_to_the_uid(session: stepkeep.Session, path: Path) -> None:
    """A changed uid is damage, not a deletion: the handle goes on with the rebuilt row."""
    session.save({"n": 1})
    with programs.raw(path) as connection:
        connection.execute("UPDATE sessions SET uid = 'x' || uid")
    assert session.save({"n": 2}).seq == 2


def test_the_counter_is_not_lowered_below_a_damaged_header(session: stepkeep.Session, path: Path) -> None:
    """A row with a damaged header still holds its number: a rebuilt counter is not below it (V3)."""
    for n in (1, 2, 3):
        session.save({"n": n}, status="paused")
    with programs.raw(path) as connection:
        connection.execute("UPDATE checkpoints SET header = x'00' WHERE seq = 3")
        connection.execute("UPDATE sessions SET last_seq = 2")
    assert session.save({"n": 4}).seq == 4


def test_the_counter_is_not_lowered_below_a_removed_checkpoint(session: stepkeep.Session, path: Path) -> None:
    """The gaps remember numbers that were removed: a rebuilt counter is not below them (V3)."""
    for n in (1, 2, 3):
        session.save({"n": n})
    session.delete(session.header(3).id)
    with programs.raw(path) as connection:
        connection.execute("UPDATE sessions SET last_seq = 2")
    assert session.save({"n": 4}).seq == 4


def test_a_raised_counter_does_not_make_verify_run_for_ever(url: str, path: Path) -> None:
    """One flipped bit of the counter names billions of numbers: `verify` answers all the same."""
    with stepkeep.open(url) as store:
        store.session("run").save({"n": 1})
    with programs.raw(path) as connection:
        connection.execute("UPDATE sessions SET last_seq = last_seq + (1 << 33)")
    child = programs.start(programs.verify_within, url, "run")
    try:
        child.wait(timeout=8)
    except Exception:
        child.kill()
        pytest.fail("verify counts numbers that were never given")
    finally:
        child.communicate()


def test_a_damaged_session_does_not_fail_saves_of_others(store: stepkeep.Store, path: Path) -> None:
    """In one commit, a session whose row cannot be rebuilt takes nothing from the other sessions."""
    broken, well = store.session("broken"), store.session("well")
    broken.save({"n": 1})
    well.save({"n": 1})
    pending = []
    with store.engine._committer._leader:
        pending.append(broken.save({"n": 2}, wait=False))
        pending.append(well.save({"n": 2}, wait=False))
        with programs.raw(path) as connection:
            change("sessions", "description", "key = 'broken'", "'yy'")(connection)
            connection.execute("UPDATE sessions SET key = 'other', key_digest = 'zz' WHERE key = 'broken'")
    with pytest.raises(stepkeep.Corrupt):
        pending[0].result()
    assert pending[1].result().seq == 2


# --- branch rows -----------------------------------------------------------------------------------------------


def judge_branches(path: Path) -> str | None:
    """What is wrong with the branches of a session after the row of one was damaged."""
    try:
        with stepkeep.open(path) as store:
            session = store.session(KEY)
            head = session.header("#6").id
            branches = {branch.name: branch for branch in session.branches}
            if set(branches) != {"main", "side"}:
                return f"the branches are {sorted(branches)}"
            main, side = branches["main"], branches["side"]
            if (main.head, main.head_seq, main.fork) != (head, 6, None):
                return f"main is {main}"
            if (side.head_seq, side.fork, side.fork_branch, side.fork_seq) != (
                4,
                session.header("#2").id,
                "main",
                2,
            ):
                return f"side is {side}"
            saved = session.save({"n": "next"}, expect_head=head)
            if saved.parents != (head,):
                return "the chain of parents is broken"
            if not any(event.type == "branch_repaired" for event in session.events()):
                return "no event branch_repaired"
    except Exception as exc:
        return f"{type(exc).__name__}: {exc}"
    return None


@pytest.mark.parametrize("name", ["main", "side"])
@EVERY
def test_every_column_of_a_branch_row(origin: Path, name: str, every: int) -> None:
    """A damaged branch row is rebuilt from the headers: name, head and fork are as they were."""
    failures = failures_of(origin, "branches", f"name = '{name}'", judge_branches, every)
    assert not failures, report(failures)


@SOME_BYTES
@pytest.mark.parametrize("name", ["main", "side"])
def test_every_byte_of_a_branch_row(origin: Path, name: str, every: int) -> None:
    """A bit of any byte of any text of a branch row: rebuilt as above."""
    columns = ["name", "head", "state", "metadata", "digest"] + (
        ["fork", "fork_branch"] if name == "side" else []
    )
    damages = islice(text_flips(origin, "branches", f"name = '{name}'", columns), 0, None, every)
    failures = failures_among(origin, "branches", damages, judge_branches)
    assert not failures, report(failures)


def delete_branch(name: str) -> Damage:
    return lambda connection: connection.execute("DELETE FROM branches WHERE name = ?", (name,))


def test_a_missing_branch_row_is_rebuilt(origin: Path) -> None:
    """A branch whose row is gone is known from its checkpoints."""
    for name in ("main", "side"):
        with trial(origin, delete_branch(name)) as path:
            assert judge_branches(path) is None


def test_a_living_body_marked_hidden_is_not_swept(session: stepkeep.Session, path: Path) -> None:
    """A body of a checkpoint that is there stays, whatever the mark says (V5)."""
    first = session.save({"n": 1}, status="paused")
    session.save({"n": 2}, status="paused")
    with programs.raw(path) as connection:
        connection.execute("UPDATE bodies SET is_hidden = 1")
    session.delete(first.id)
    assert session.load().state == {"n": 2}


# --- bytes of the file -----------------------------------------------------------------------------------------


def file_flips(origin: Path, count: int | None, seed: int) -> list[str]:
    """Flip bits of the database file; what goes wrong beyond a clear error."""
    data = origin.read_bytes()
    chooser = random.Random(seed)
    used = [at for at in range(len(data)) if data[at]]  # most of a page is empty
    places = used if count is None else chooser.sample(used, count)
    failures = []
    for number, at in enumerate(places):
        problem = flip(origin, data, at, chooser.randrange(8))
        if problem is not None:
            failures.append(f"{number}: byte {at} (page {at // 4096 + 1}): {problem}")
    return failures


def flip(origin: Path, data: bytes, at: int, bit: int) -> str | None:
    """What goes wrong with one bit of a file flipped, beyond a clear error."""
    folder = origin.parent.parent / "flips"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    path = folder / "h.db"
    path.write_bytes(programs.flipped(data, at, bit))
    problem = judge(path)
    allowed = ("Corrupt:", "InvalidInput:", "Unsupported:", "BackendUnavailable:", "NotFound:")
    is_clear = problem is None or (problem.startswith(allowed) and "SQLite refused" not in problem)
    return None if is_clear else problem


def test_flipped_bits_of_the_file(origin: Path) -> None:
    """A bit of the file may cost the store, but never gives wrong data, an older state in silence, or a crash."""
    failures = file_flips(origin, 60, seed=11)
    assert not failures, report(failures)


@pytest.mark.slow
def test_many_flipped_bits_of_the_file(origin: Path) -> None:
    """The same at ten times as many places."""
    failures = file_flips(origin, 600, seed=13)
    assert not failures, report(failures)


@pytest.mark.parametrize(
    "every",
    [pytest.param(7, id="some", marks=pytest.mark.full), pytest.param(1, id="all", marks=pytest.mark.slow)],
)
@pytest.mark.parametrize("table", ["checkpoints", "sqlite_autoindex_checkpoints_1", "bodies", "bodies_place"])
def test_every_bit_of_the_heads_of_pages(origin: Path, table: str, every: int) -> None:
    """Where a page says what it holds, an insert can go astray: a save is refused there, or found again."""
    with programs.raw(origin) as connection:
        page = one(connection, "SELECT rootpage FROM sqlite_master WHERE name = ?", (table,))
    data = origin.read_bytes()
    first = (page - 1) * 4096 * 8
    failures = [
        f"byte {at // 8}, bit {at % 8}: {problem}"
        for at in range(first, first + 16 * 8, every)
        if (problem := flip(origin, data, at // 8, at % 8)) is not None
    ]
    assert not failures, report(failures)


@pytest.mark.slow
def test_a_bit_of_every_byte_of_the_file(origin: Path) -> None:
    """The same for every byte that is not zero."""
    failures = file_flips(origin, None, seed=12)
    assert not failures, report(failures)


def test_a_store_that_is_deleted_under_its_feet_takes_no_saves(tmp_path: Path) -> None:
    """Nothing is acknowledged that lands in a file nobody will find; a replaced file is another store."""
    path = tmp_path / "store.db"
    with stepkeep.open(path) as store, stepkeep.open(tmp_path / "other.db") as other:
        run = store.session("s")
        run.save({"n": 1})
        other.session("o").save({"n": 1})
        for change in (path.unlink, lambda: path.hardlink_to(tmp_path / "other.db")):
            change()
            with pytest.raises(stepkeep.BackendUnavailable) as refusal:
                run.save({"n": 2})
            assert (refusal.value.code, refusal.value.retryable) == ("store_replaced", False)


def test_a_store_whose_log_is_deleted_under_its_feet_takes_no_saves(tmp_path: Path) -> None:
    """What would be acknowledged into a log that nobody finds is refused; opened again, the store takes saves."""
    path = tmp_path / "store.db"
    with stepkeep.open(path) as store:
        run = store.session("s")
        run.save({"n": 1})
        run.save({"n": 2})
        Path(f"{path}-wal").unlink()
        with pytest.raises(stepkeep.BackendUnavailable) as refusal:
            run.save({"n": 3})
        assert (refusal.value.code, refusal.value.retryable) == ("store_replaced", False)
    with stepkeep.open(path) as store:
        store.session("s").save({"n": 4})
        assert store.verify().is_intact
