"""Salvaging what still verifies from damaged stores."""

from __future__ import annotations

import random
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from stepkeep import api
from stepkeep.api import Store
from stepkeep.errors import InvalidInput, NotFound
from stepkeep.storage.port import HeaderQuery
from stepkeep.storage.sql.row_mapping import session_row
from stepkeep.storage.sqlite import SqliteBackend, make_single_file
from tests.api.programs import raw
from tests.maintenance.mixed import contents, fill

PAGE = 4096


def bare(path: Path) -> Store:
    return Store(SqliteBackend(path))


class Original:
    """A healthy store whose newest saves are still in its log, and what each of its checkpoints needs to be read."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.ever: dict[str, tuple[str, bytes]] = {}  # what was pruned since, too
        self.contents: dict[str, bytes] = {}
        self.seqs: dict[str, tuple[str, int]] = {}
        self.needs: dict[str, list[bytes]] = {}
        self.rows: dict[str, bytes] = {}
        self.store = bare(path)
        for number in range(3):
            run = self.store.session(f"s{number}", profile="archive")
            rng = random.Random(number)
            state: dict[str, object] = {"log": []}
            for step in range(30):
                log = state["log"]
                assert isinstance(log, list)
                log.append(f"step {step} of {number}: {rng.random()}")
                header = run.save(state, step=step, tags=["t"])
                self.ever[header.id] = (run.key, self.store.checkpoint(header.id).content())
            run.prune(keep_last=20)
        for info in list(self.store.sessions()):
            self._note(info.key, info.uid)
            self.rows[info.key] = str(session_row(info)[-1]).encode()
        # Copied while it is open: the log still holds what was not moved into the database.

    def _note(self, key: str, uid: str) -> None:
        backend = self.store.engine.backend
        for header in self.store.get(key).history():
            (row,) = list(backend.headers(HeaderQuery(session=uid, ids=(header.id,))))
            chain = backend.body_chain(uid, header.id, "state")
            self.contents[header.id] = self.store.checkpoint(header.id).content()
            self.seqs[header.id] = (key, header.seq)
            self.needs[header.id] = [row.raw, *(body.digest.encode() for body in chain)]

    def fold(self, target: Path) -> None:
        """A copy in one file, and where in it the rows lie that each checkpoint needs.

        A page may also hold old bytes of a row that was moved, which nothing points to. Which place is the living
        one is not known, so all of them count as needed.
        """
        for ending in ("", "-wal"):
            shutil.copyfile(f"{self.path}{ending}", f"{target}{ending}")
        make_single_file(target)
        self.folded = target.read_bytes()
        self.places = {
            id: [(at, need) for need in needs for at in _occurrences(self.folded, need)]
            for id, needs in self.needs.items()
        }

    def readable(self, damaged: bytes) -> set[str]:
        """The checkpoints all of whose rows are where they were in the folded copy, with their pages' beginnings."""
        return {
            id
            for id, places in self.places.items()
            if all(self._is_whole(damaged, at, len(need)) for at, need in places)
        }

    def _is_whole(self, damaged: bytes, at: int, size: int) -> bool:
        pages = range(at // PAGE, (at + size - 1) // PAGE + 1)
        return all(
            damaged[page * PAGE : (page + 1) * PAGE] == self.folded[page * PAGE : (page + 1) * PAGE]
            for page in pages
        )


def _occurrences(data: bytes, wanted: bytes) -> Iterator[int]:
    at = data.find(wanted)
    while at >= 0:
        yield at
        at = data.find(wanted, at + 1)


def read_as_a_store(damaged: Path, folder: Path) -> set[str]:
    """What SQLite itself still reads, from a copy."""
    with tempfile.TemporaryDirectory(dir=folder) as work:
        for ending in ("", "-wal"):
            if Path(f"{damaged}{ending}").exists():
                shutil.copyfile(f"{damaged}{ending}", f"{work}/copy.db{ending}")
        with bare(Path(work) / "copy.db") as store:
            return {header.id for header in store.checkpoints() if store.checkpoint(header.id)}


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Original]:
    folder = tmp_path_factory.mktemp("original")
    found = Original(folder / "store.db")
    found.fold(folder / "folded.db")
    yield found
    found.store.close()


def check(original: Original, damaged: Path, target: Path, expected: set[str]) -> int:
    """Recover; nothing is invented, nothing expected is left behind, and the report names what is lost."""
    files = [Path(f"{damaged}{ending}") for ending in ("", "-wal") if Path(f"{damaged}{ending}").exists()]
    before = [file.read_bytes() for file in files]
    report = api.recover(f"sqlite:{damaged}", f"sqlite:{target}")
    assert [file.read_bytes() for file in files] == before  # the damaged store is only read
    with bare(target) as store:
        found = {header.id: store.checkpoint(header.id).content() for header in store.checkpoints()}
        assert store.verify().is_intact
    assert all(original.ever[id][1] == content for id, content in found.items())
    assert expected <= found.keys()
    assert report.copied.copied == len(found)
    lost = {original.seqs[id] for id in original.contents.keys() - found.keys()}
    told = {(each.session, each.seq) for each in report.copied.lost}
    for key, row in original.rows.items():
        # The session's own row tells how far it came, and what was pruned.
        if any(row in file for file in before):
            assert {each for each in told if each[0] == key} == {each for each in lost if each[0] == key}
            assert {id for id in found if original.ever[id][0] == key} <= original.contents.keys()
    return len(found)


def damage(data: bytearray, rng: random.Random, how: str) -> bytearray:
    pages = len(data) // PAGE
    match how:
        case "overwritten":
            for page in rng.sample(range(pages), rng.randint(1, 3)):
                data[page * PAGE : (page + 1) * PAGE] = rng.randbytes(PAGE)
        case "truncated":
            del data[rng.randrange(PAGE, len(data)) :]
        case "header":
            data[:100] = bytes(100)
        case "zeroed":
            page = rng.randrange(pages)
            data[page * PAGE : (page + 1) * PAGE] = bytes(PAGE)
    return data


HOW = ("overwritten", "truncated", "header", "zeroed", "log deleted", "log truncated")


def recover_damaged_copies(original: Original, folder: Path, seeds: range) -> None:
    total = 0
    for seed in seeds:
        rng, how = random.Random(seed), HOW[seed % len(HOW)]
        damaged, target = folder / "damaged.db", folder / f"target{seed}.db"
        log = Path(f"{damaged}-wal")
        log.unlink(missing_ok=True)
        if how.startswith("log"):
            shutil.copyfile(original.path, damaged)
            if how == "log truncated":
                data = Path(f"{original.path}-wal").read_bytes()
                log.write_bytes(data[: rng.randrange(len(data))])
            expected = read_as_a_store(damaged, folder)
        else:
            damaged.write_bytes(damage(bytearray(original.folded), rng, how))
            expected = original.readable(damaged.read_bytes())
        try:
            found = check(original, damaged, target, expected)
        except NotFound:
            assert not expected
            found = 0
        total += found
        for ending in ("", "-wal", "-shm"):
            Path(f"{target}{ending}").unlink(missing_ok=True)
    assert total > 0


@pytest.mark.full
def test_damaged_copies_give_all_that_is_readable(original: Original, tmp_path: Path) -> None:
    """Pages overwritten or zeroed, the end cut off, the header gone, the log deleted or cut."""
    recover_damaged_copies(original, tmp_path, range(12))


@pytest.mark.slow
def test_two_hundred_damaged_copies(original: Original, tmp_path: Path) -> None:
    """The same, often."""
    recover_damaged_copies(original, tmp_path, range(200))


def test_a_healthy_store_is_recovered_whole(tmp_path: Path) -> None:
    """Nothing is lost, and it is read as a store."""
    with bare(tmp_path / "a.db") as store:
        fill(store)
        before = contents(store)
    report = api.recover(f"sqlite:{tmp_path}/a.db", f"sqlite:{tmp_path}/b.db")
    assert (report.by_pages, report.copied.lost) == (False, ())
    with bare(tmp_path / "b.db") as copy:
        assert contents(copy) == before


def test_a_store_without_its_header_is_read_page_by_page(tmp_path: Path) -> None:
    """SQLite cannot open it, and yet everything is there: blobs, annotations, branches and events too."""
    with bare(tmp_path / "a.db") as store:
        fill(store)
        before = contents(store)
    data = bytearray((tmp_path / "a.db").read_bytes())
    data[:100] = bytes(100)
    (tmp_path / "a.db").write_bytes(data)
    report = api.recover(f"sqlite:{tmp_path}/a.db", f"sqlite:{tmp_path}/b.db")
    assert report.by_pages
    with bare(tmp_path / "b.db") as copy:
        assert contents(copy) == before


def test_a_large_state_is_put_together_from_its_pages(tmp_path: Path) -> None:
    """A body that spans many pages."""
    state = {"noise": random.Random(1).randbytes(300_000)}
    with bare(tmp_path / "a.db") as store:
        store.session("s").save(state)
    data = bytearray((tmp_path / "a.db").read_bytes())
    data[:100] = bytes(100)
    (tmp_path / "a.db").write_bytes(data)
    api.recover(f"sqlite:{tmp_path}/a.db", f"sqlite:{tmp_path}/b.db")
    with bare(tmp_path / "b.db") as copy:
        assert copy.get("s").load().state == state


def test_checkpoints_whose_session_row_is_lost_get_a_session(tmp_path: Path) -> None:
    """Under a name that tells it, and nothing of it is pruned."""
    with bare(tmp_path / "a.db") as store:
        run = store.session("s")
        for number in range(5):
            run.save({"n": number})
        uid = run.uid
    with raw(tmp_path / "a.db") as connection:
        connection.execute("DELETE FROM sessions")
    api.recover(f"sqlite:{tmp_path}/a.db", f"sqlite:{tmp_path}/b.db")
    with bare(tmp_path / "b.db") as copy:
        run = copy.get(f"recovered-{uid}")
        assert [header.seq for header in run.history()] == [5, 4, 3, 2, 1]
        assert run.info.profile == "archive"


def test_a_deleted_secret_does_not_come_back(tmp_path: Path) -> None:
    """What was deleted or pruned before the damage stays gone."""
    with bare(tmp_path / "a.db") as store:
        run = store.session("s", profile="archive")
        for number in range(6):
            run.save({"n": number, "text": f"secret {number} " * 200})
        run.delete(run.header("#2").id)
        run.prune(keep_last=3)
        left = [header.seq for header in run.history()]
    data = bytearray((tmp_path / "a.db").read_bytes())
    data[:100] = bytes(100)
    (tmp_path / "a.db").write_bytes(data)
    report = api.recover(f"sqlite:{tmp_path}/a.db", f"sqlite:{tmp_path}/b.db")
    with bare(tmp_path / "b.db") as copy:
        assert [header.seq for header in copy.get("s").history()] == left
    assert report.copied.lost == ()


def test_what_holds_nothing_of_ours_gives_nothing(tmp_path: Path) -> None:
    """Noise, text, an empty file, a missing one: a clear error, and no new store is left behind."""
    cases = {"noise": random.Random(1).randbytes(50_000), "text": b"hello " * 1000, "empty": b""}
    for name, data in cases.items():
        (tmp_path / name).write_bytes(data)
        with pytest.raises(NotFound) as error:
            api.recover(f"sqlite:{tmp_path}/{name}", f"sqlite:{tmp_path}/b.db")
        assert error.value.code == "nothing_recoverable"
        assert str(tmp_path / name) in str(error.value)
    with pytest.raises(NotFound):
        api.recover(f"sqlite:{tmp_path}/missing", f"sqlite:{tmp_path}/b.db")
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(cases)


def test_only_a_new_store_receives_what_is_salvaged(tmp_path: Path) -> None:
    """A store with sessions, and the damaged one itself, are refused."""
    for name in ("a", "b"):
        with bare(tmp_path / f"{name}.db") as store:
            store.session("s").save({"n": name})
    for target in ("a", "b"):
        with pytest.raises(InvalidInput):
            api.recover(f"sqlite:{tmp_path}/a.db", f"sqlite:{tmp_path}/{target}.db")
    with bare(tmp_path / "b.db") as store:
        assert store.get("s").load().state == {"n": "b"}
