"""Bad input: a clear error of the tree with its code, nothing written, nothing lost."""

from __future__ import annotations

import contextlib
import os
import stat
import subprocess
import sys
from collections import OrderedDict
from collections.abc import Callable, Iterator
from enum import Enum
from pathlib import Path
from typing import Any

import apsw
import pytest

import stepkeep
from tests.api import programs

NOBODY = 65534
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user or mount")


def check_untouched(session: stepkeep.Session) -> None:
    """Nothing was written, and the next save works."""
    assert session.latest() is None
    assert session.info.last_seq == 0
    assert session.save({"fine": True}).seq == 1
    assert session.verify().is_intact


# --- states ----------------------------------------------------------------------------------------------------


class Colour(Enum):
    RED = object()


def cycle() -> list[Any]:
    loop: list[Any] = []
    loop.append(loop)
    return loop


def deep(levels: int) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = [value]
    return value


@pytest.mark.parametrize(
    ("state", "where", "code"),
    [
        ({"a": {"b": [1, print]}}, "a.b[1]", "state_not_exact"),
        ({"text": "\ud800"}, "text", "state_not_exact"),
        ({"c": Colour.RED}, "c", "state_not_exact"),
        ({"x": object()}, "x", "state_not_exact"),
        ({"loop": cycle()}, "loop", None),
        ({"deep": deep(500)}, "deep", "state_too_deep"),
    ],
)
def test_a_state_that_would_not_come_back_is_refused(
    session: stepkeep.Session, state: Any, where: str, code: str | None
) -> None:
    """The error names the place inside the state; seq is not used up."""
    with pytest.raises(stepkeep.InvalidInput) as caught:
        session.save(state)
    assert caught.value.path is not None
    assert caught.value.path.startswith(where)
    assert code is None or caught.value.code == code
    check_untouched(session)


def test_details_are_checked_like_a_state(session: stepkeep.Session) -> None:
    """Bad details refuse the whole save."""
    with pytest.raises(stepkeep.InvalidInput):
        session.save({"fine": True}, details={"f": print})
    check_untouched(session)


def test_a_state_too_large_is_refused(url: str) -> None:
    """`max_state_bytes` bounds what one state may take."""
    with stepkeep.open(url, max_state_bytes=1000) as store:
        session = store.session("run")
        with pytest.raises(stepkeep.InvalidInput) as caught:
            session.save({"text": "x" * 1000})
        assert caught.value.code == "state_too_large"
        check_untouched(session)
        assert session.save({"text": "x" * 900}).seq == 2


# --- options ---------------------------------------------------------------------------------------------------

BAD_NAMES = ["", "a\0b", "\ud800", "x" * 1025, "ä" * 513]
ODD_NAMES = [
    "../../etc/passwd",
    "/",
    "a\nb",
    "\x1b[31m",
    " ",
    "latest",
    "'; DROP TABLE sessions; --",
    "💥" * 256,
]
ODD_NAMES += ["x" * 1024, "con", "-rf", "‮", "%s", "a/b\\c"]


@pytest.mark.parametrize("name", BAD_NAMES)
def test_bad_names_are_refused_everywhere(
    store: stepkeep.Store, session: stepkeep.Session, name: str
) -> None:
    """One rule for keys, branches, tags, external ids and idempotency keys."""
    attempts: list[Callable[[], object]] = [
        lambda: store.session(name),
        lambda: store.get(name),
        lambda: store.session("k", project=name),
        lambda: store.session("k", workflow=name),
        lambda: session.save({}, branch=name),
        lambda: session.save({}, tags=["fine", name]),
        lambda: session.save({}, external_id=name),
        lambda: session.save({}, idempotency_key=name),
    ]
    for attempt in attempts:
        with pytest.raises(stepkeep.InvalidInput) as caught:
            attempt()
        assert caught.value.code == "invalid_name"
    assert [info.key for info in store.sessions()] == ["run"]
    check_untouched(session)


@pytest.mark.parametrize("name", ODD_NAMES)
def test_odd_names_are_data(url: str, path: Path, name: str) -> None:
    """Any other text is a name, never a path or a statement, and comes back as it was."""
    branch = "main" if name == "latest" else name  # a branch may not be called like a ref
    with stepkeep.open(url) as store:
        session = store.session(name, project=name, workflow=name)
        header = session.save({"n": 1}, branch=branch, tags=[name], external_id=name, idempotency_key=name)
        assert (header.branch, header.tags, header.external_id) == (branch, (name,), name)
    with stepkeep.open(url) as store:
        assert [info.key for info in store.sessions(prefix=name[:1], project=name)] == [name]
        assert [found.id for found in store.get(name).history(tag=name, branch=branch)] == [header.id]
        assert store.get(name).load(header.id).state == {"n": 1}
    assert {file.name for file in path.parent.iterdir()} <= {
        "stepkeep.db",
        "stepkeep.db.metrics",
        "stepkeep.db-wal",
        "stepkeep.db-shm",
    }


@pytest.mark.parametrize("name", ["x" * 1024, "💥" * 256])
def test_a_ref_reaches_the_longest_names(session: stepkeep.Session, name: str) -> None:
    """`tag:` and `branch:` before a name of 1,024 bytes make a longer text, which is a ref all the same."""
    header = session.save({"n": 1}, tags=[name])
    side = session.save({"n": 2}, branch=name)
    assert session.load(f"tag:{name}").id == header.id
    assert session.load(f"branch:{name}").id == side.id


class Count(int):
    pass


class Word(str):
    __slots__ = ()


BAD_OPTIONS: list[dict[str, Any]] = [
    {"step": True},
    {"step": 1.5},
    {"step": 2**63},
    {"step": "1"},
    {"status": "done"},
    {"trigger": "because"},
    {"message": None},
    {"message": "\ud800"},
    {"message": "x" * 70_000},
    {"tags": "abc"},
    {"tags": [1]},
    {"tags": [f"t{n}" for n in range(300)]},
    {"metadata": {"x": "y" * 70_000}},
    {"metadata": {"x": (1, 2)}},
    {"metadata": {"x": float("nan")}},
    {"metadata": {"x": 2**70}},
    {"metadata": {1: 2}},
    {"metadata": {"x": print}},
    {"branch": 5},
    {"external_id": 5},
    {"idempotency_key": b"x"},
]

WRONG_TYPES: list[dict[str, Any]] = [
    {"metadata": "abc"},
    {"metadata": 5},
    {"metadata": [1, 2]},
    {"tags": 5},
    {"tags": None},
    {"parents": [1]},
    {"parents": 5},
    {"parents": ["\ud800"]},
    {"parents": "cp_text"},
    {"requires": [1]},
    {"requires": ["\ud800"]},
    {"trigger": 5},
    {"trigger": stepkeep.Trigger(kind="bogus")},  # type: ignore[arg-type]
    {"trigger": stepkeep.Trigger(event=5)},  # type: ignore[arg-type]
    {"trigger": stepkeep.Trigger(event="\ud800")},
    {"expect_head": "\ud800"},
    {"fence": "x"},
]


@pytest.mark.parametrize("options", BAD_OPTIONS, ids=lambda options: str(options)[:40])
def test_bad_options_are_refused(session: stepkeep.Session, options: dict[str, Any]) -> None:
    """Each is `InvalidInput` with a code, before anything is written."""
    with pytest.raises(stepkeep.InvalidInput):
        session.save({}, **options)
    check_untouched(session)


@pytest.mark.parametrize("options", WRONG_TYPES, ids=lambda options: ascii(options)[:50])
def test_options_of_a_wrong_type_are_refused(session: stepkeep.Session, options: dict[str, Any]) -> None:
    """An error of the tree, nothing stored: a save must not fail after it was committed."""
    with pytest.raises(stepkeep.StepkeepError):
        session.save({}, **options)
    check_untouched(session)


@pytest.mark.parametrize(
    "metadata",
    [{"n": Count(3)}, {"w": Word("x")}, OrderedDict(a=1), {"d": OrderedDict(b=[Count(1)])}, {Word("k"): 1}],
    ids=repr,
)
def test_metadata_of_plain_subclasses_is_saved_or_refused(
    session: stepkeep.Session, metadata: dict[str, Any]
) -> None:
    """Subclasses of built-ins come back as plain values, or are refused before any write."""
    try:
        header = session.save({}, metadata=metadata)
    except stepkeep.InvalidInput:
        check_untouched(session)
    else:
        assert session.header(header.id).metadata == metadata
        assert session.verify().is_intact


def test_metadata_up_to_the_limit_is_taken(session: stepkeep.Session) -> None:
    """64 KiB encoded is the limit."""
    session.save({}, metadata={"x": "y" * (64 * 1024 - 8)})
    with pytest.raises(stepkeep.InvalidInput) as caught:
        session.save({}, metadata={"x": "y" * (64 * 1024 - 7)})
    assert caught.value.code == "metadata_too_large"


@pytest.mark.parametrize(
    "query",
    [
        lambda store, session: list(store.sessions(project="\ud800")),
        lambda store, session: list(store.sessions(prefix="\ud800")),
        lambda store, session: list(store.sessions(workflow="a\0b")),
        lambda store, session: list(session.history(tag="\ud800")),
        lambda store, session: list(session.history(branch="\ud800")),
        lambda store, session: list(session.history(step=2**70)),
        lambda store, session: list(store.checkpoints(tag="\ud800")),
        lambda store, session: store.checkpoint("\ud800"),
        lambda store, session: store.checkpoint(""),
        lambda store, session: session.delete("\ud800"),
        lambda store, session: session.load("tag:\ud800"),
        lambda store, session: session.history(status="nothing"),
        lambda store, session: store.sessions(status="nothing"),
    ],
)
def test_odd_questions_get_no_foreign_error(
    store: stepkeep.Store, session: stepkeep.Session, query: Callable[[Any, Any], object]
) -> None:
    """Text that can be no name is refused or found nowhere; no error of a driver comes through."""
    session.save({})
    try:
        assert query(store, session) == []
    except stepkeep.StepkeepError:
        return


def test_a_prefix_finds_every_key(store: stepkeep.Store) -> None:
    """Also a key that goes on with the last character there is."""
    store.session("a\U0010ffffb")
    assert [info.key for info in store.sessions(prefix="a")] == ["a\U0010ffffb"]


def test_unknown_profiles_and_options_are_refused(store: stepkeep.Store, url: str) -> None:
    """A profile or an option that does not exist is named in the error."""
    with pytest.raises(stepkeep.InvalidInput) as caught:
        store.session("k", profile="nonsense")
    assert caught.value.code == "unknown_profile"
    with pytest.raises(stepkeep.NotFound):
        store.get("k")
    with pytest.raises(stepkeep.InvalidInput):
        stepkeep.open(url, keyframe_every=0)


def test_a_closed_store_says_so(url: str) -> None:
    """Any call after `close` is `BackendUnavailable`, and closing again is harmless."""
    store = stepkeep.open(url)
    session = store.session("run")
    store.close()
    store.close()
    for call in (lambda: session.save({}), session.latest, lambda: store.get("run"), store.verify):
        with pytest.raises(stepkeep.BackendUnavailable) as caught:
            call()
        assert (caught.value.code, caught.value.retryable) == ("store_closed", False)


# --- files that are no store -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "url",
    [
        "",
        "sqlite:",
        "sqlite:a?x=1",
        "sqlite:\0",
        "sqlite:\udcff.db",
        "http://x",
        "nothing",
        "memory:x",
        "postgres://x?nonsense=1",
        "files:",
        "files:x?layout=other",
    ],
)
def test_unknown_urls_are_refused(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No store of that kind, or a part without meaning: `InvalidInput`, and no file appears."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(stepkeep.InvalidInput):
        stepkeep.open(url)
    assert list(tmp_path.iterdir()) == []


def foreign(path: Path) -> None:
    connection = apsw.Connection(str(path))
    connection.execute("CREATE TABLE theirs (x)")
    connection.execute("INSERT INTO theirs VALUES (1)")
    connection.close()


def other_application(path: Path) -> None:
    connection = apsw.Connection(str(path))
    connection.execute("PRAGMA application_id = 12345")
    connection.execute("PRAGMA user_version = 1")
    connection.close()


def garbage(path: Path) -> None:
    path.write_bytes(b"This is a letter to my aunt, not a database. " * 200)


def short(path: Path) -> None:
    path.write_bytes(b"x")


def almost(path: Path) -> None:
    path.write_bytes(b"SQLite format 3\0" + b"\0" * 84)


@pytest.mark.parametrize("make", [foreign, other_application, garbage, short, almost])
def test_a_foreign_file_is_refused_and_left_as_it_is(tmp_path: Path, make: Callable[[Path], None]) -> None:
    """Not one byte of a file that is no store is changed, and nothing is left beside it."""
    path = tmp_path / "theirs.db"
    make(path)
    before = path.read_bytes()
    with pytest.raises((stepkeep.InvalidInput, stepkeep.Corrupt)) as caught:
        stepkeep.open(path)
    assert isinstance(caught.value, stepkeep.StepkeepError)
    assert path.read_bytes() == before
    assert [file.name for file in tmp_path.iterdir()] == ["theirs.db"]


def test_a_directory_is_no_store(tmp_path: Path) -> None:
    """A directory, or a file where a directory should be, is refused."""
    with pytest.raises(stepkeep.InvalidInput):
        stepkeep.open(f"sqlite:{tmp_path}")
    (tmp_path / "file").write_text("x")
    with pytest.raises(stepkeep.BackendUnavailable):
        stepkeep.open(f"sqlite:{tmp_path / 'file' / 'h.db'}")
    with pytest.raises(stepkeep.StepkeepError):
        stepkeep.open(f"sqlite:{tmp_path / ('x' * 300)}/h.db")


def filled(path: Path) -> None:
    with stepkeep.open(path) as store:
        store.session("run").save({"n": 1})


def test_a_newer_schema_is_refused_and_kept(tmp_path: Path) -> None:
    """A store of a later release says that this build must be upgraded, and is not changed."""
    path = tmp_path / "h.db"
    filled(path)
    with programs.raw(path) as connection:
        connection.execute("PRAGMA user_version = 999")
    before = path.read_bytes()
    with pytest.raises(stepkeep.Unsupported) as caught:
        stepkeep.open(path)
    assert caught.value.code == "schema_newer"
    assert path.read_bytes() == before


@pytest.mark.parametrize(
    "damage",
    [
        "DROP INDEX bodies_base",
        "DROP TABLE tags",
        "CREATE TABLE extra (x)",
        "ALTER TABLE bodies ADD COLUMN more",
        "CREATE TRIGGER t AFTER INSERT ON bodies BEGIN DELETE FROM bodies; END",
    ],
)
def test_a_changed_schema_is_refused(tmp_path: Path, damage: str) -> None:
    """`open` compares the schema with the expected one."""
    path = tmp_path / "h.db"
    filled(path)
    with programs.raw(path) as connection:
        connection.execute(damage)
    with pytest.raises(stepkeep.Corrupt) as caught:
        stepkeep.open(path)
    assert caught.value.code == "schema_damaged"


def test_a_truncated_database_is_refused(tmp_path: Path) -> None:
    """A file that was cut is `Corrupt`, whatever the length, or opens and says what is missing."""
    path = tmp_path / "h.db"
    filled(path)
    data = path.read_bytes()
    for size in (1, 50, 100, 4096, len(data) // 2, len(data) - 4096):
        path.write_bytes(data[:size])
        for suffix in ("-wal", "-shm"):
            Path(f"{path}{suffix}").unlink(missing_ok=True)
        with pytest.raises((stepkeep.Corrupt, stepkeep.InvalidInput)), stepkeep.open(path) as store:
            store.get("run").load()


# --- the disk --------------------------------------------------------------------------------------------------


def test_files_are_readable_by_their_owner_only(tmp_path: Path) -> None:
    """0600 for the database, its log and its index, 0700 for every directory that was made, under umask 000."""
    path = tmp_path / "a" / "b" / "h.db"
    program = (
        "import os, sys, stepkeep\n"
        "os.umask(0)\n"
        "store = stepkeep.open(sys.argv[1])\n"
        "store.session('run').save({'n': 1})\n"
        "os._exit(0)"
    )
    subprocess.run(
        [sys.executable, "-c", program, str(path)], check=True, env=programs.environment(), timeout=60
    )
    modes = {file.name: stat.S_IMODE(file.stat().st_mode) for file in path.parent.iterdir()}
    assert modes == {"h.db": 0o600, "h.db-wal": 0o600, "h.db-shm": 0o600}
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert stat.S_IMODE(path.parent.parent.stat().st_mode) == 0o700


@needs_root
def test_a_read_only_directory_is_a_clear_error(tmp_path: Path) -> None:
    """Another user gets `BackendUnavailable` for a directory or store that he may not write."""
    for folder in (tmp_path, *tmp_path.parents):
        if not folder.stat().st_mode & stat.S_IXOTH and folder.stat().st_uid == os.geteuid():
            folder.chmod(folder.stat().st_mode | 0o055)
    locked = tmp_path / "locked"
    locked.mkdir(mode=0o755)
    refusal = {"error": "BackendUnavailable", "code": "store_not_writable", "retryable": False}
    assert programs.run(programs.outcome, f"sqlite:{locked / 'h.db'}", "run", NOBODY) == refusal
    assert programs.run(programs.outcome, f"sqlite:{locked / 'new' / 'h.db'}", "run", NOBODY) == refusal
    assert list(locked.iterdir()) == []
    filled(locked / "h.db")
    assert programs.run(programs.outcome, f"sqlite:{locked / 'h.db'}", "run", NOBODY) == refusal
    (locked / "h.db").chmod(0o644)
    assert programs.run(programs.outcome, f"sqlite:{locked / 'h.db'}", "run", NOBODY) == refusal
    assert programs.run(programs.survey, f"sqlite:{locked / 'h.db'}", "run")["seqs"] == [1]


def test_a_file_size_limit_is_a_clear_error(url: str) -> None:
    """Writes that fail in the middle: the error of the tree, nothing half stored, saving goes on afterwards."""
    result = programs.run(programs.save_under_size_limit, url, "run", 400_000)
    assert result["codes"] == ["BackendUnavailable checkpoint_atomic_write_failed"]
    assert result["after"] == result["acknowledged"] + 1
    found = programs.run(programs.survey, url, "run")
    assert found["seqs"] == list(range(1, result["after"] + 1))
    assert found["findings"] == []


@pytest.fixture
def tiny_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 1 MiB."""
    folder = tmp_path / "tiny"
    folder.mkdir()
    mount = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder)], capture_output=True, check=False
    )
    if mount.returncode != 0:
        pytest.skip("mounting is not allowed here")
    try:
        yield folder
    finally:
        subprocess.run(["umount", str(folder)], check=True)


def fill_up(ballast: Path) -> None:
    """Take all space that is left."""
    with ballast.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(b"\0" * 4096)


@needs_root
def test_a_full_disk_is_a_clear_error_and_loses_nothing(tiny_disk: Path) -> None:
    """Saves fail with their code while the disk is full; what was saved loads, and saving goes on later."""
    url = f"sqlite:{tiny_disk / 'h.db'}"
    ballast = tiny_disk / "ballast"
    with stepkeep.open(url) as store:
        session = store.session("run")
        for n in range(5):
            session.save({"n": n})
        fill_up(ballast)
        codes = set()
        for _ in range(20):
            try:
                session.save({"noise": os.urandom(20_000).hex()})
            except stepkeep.BackendUnavailable as exc:
                codes.add(exc.code)
        assert codes == {"checkpoint_atomic_write_failed"}
        assert session.load(5).state == {"n": 4}
        ballast.unlink()
        session.save({"n": "after"})
    found = programs.run(programs.survey, url, "run")
    assert found["findings"] == []
    assert found["states"][:5] == [{"n": n} for n in range(5)]
    assert found["states"][-1] == {"n": "after"}


@needs_root
def test_a_store_cannot_be_made_on_a_full_disk(tiny_disk: Path) -> None:
    """Creating fails with the code of a failed write, and works once there is room."""
    ballast = tiny_disk / "ballast"
    fill_up(ballast)
    result = programs.run(programs.outcome, f"sqlite:{tiny_disk / 'h.db'}", "run")
    assert result["error"] == "BackendUnavailable"
    ballast.unlink()
    assert programs.run(programs.outcome, f"sqlite:{tiny_disk / 'h.db'}", "run") == {"seq": 1}
