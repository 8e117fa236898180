"""The documents are the truth: a sidecar that is lost, damaged or behind is made from them again."""

from __future__ import annotations

import shutil
from pathlib import Path

import apsw
import pytest

import stepkeep
from stepkeep.maintenance.copying import copy_store
from stepkeep.storage.files import FilesBackend, Layout
from stepkeep.testing import FakeClock
from tests.storage_files.test_bad_files import file_of
from tests.storage_files.test_store import documents, load, opened


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "store"


def fill(root: Path, layout: Layout) -> list[str]:
    """Two branches, one gap, a finished session, another session, one checkpoint compressed in `run`."""
    clock = FakeClock()
    backend = FilesBackend(root, layout=layout, clock=clock)
    with stepkeep.Store(backend, clock=clock) as store:
        run = store.session("run/ä", profile="archive", project="p", metadata={"m": 1})
        ids = [run.save({"n": n}, step=n, tags=["t"], details={"d": n}).id for n in range(4)]
        ids.append(run.save({"n": 4}, branch="side", parents=[ids[1]], external_id="e").id)
        run.delete(ids[2])
        clock.advance(10)
        ids.append(run.save({"n": 5}, status="completed").id)
        store.session("other").save({"other": True})
        backend.compress(clock() - 5_000_000, limit=1)
    return ids


def as_listed(store: stepkeep.Store) -> list[tuple[object, ...]]:
    return [
        (session.key, header.id, header.seq, header.branch, header.tags, session.load(header.id).state)
        for session in sorted((store.get(info.key) for info in store.sessions()), key=lambda s: s.key)
        for header in session.history()
    ]


@pytest.mark.parametrize("layout", Layout)
@pytest.mark.parametrize("loss", ["sidecar", "index", "garbage", "schema", "flag"])
def test_a_lost_sidecar_is_made_again(root: Path, layout: Layout, loss: str) -> None:
    """Every checkpoint, number, branch, status and gap is there again, and the counter goes on."""
    fill(root, layout)
    with opened(root) as store:
        before = as_listed(store)
        info = store.get("run/ä").info
    lose(root, loss)
    with opened(root, layout if loss == "sidecar" else None) as store:
        assert as_listed(store) == before
        run = store.get("run/ä")
        after = run.info
        assert (after.uid, after.key, after.project, after.metadata) == (info.uid, info.key, "p", {"m": 1})
        assert (after.last_seq, after.status, after.profile) == (6, "completed", "archive")
        assert after.gaps == ((3, 3),)
        heads = {branch.name: branch.head_seq for branch in run.branches}
        assert heads == {"main": 6, "side": 5}
        assert run.latest().details is None
        assert run.load(2).details == {"d": 1}
        assert store.verify().is_intact
        assert run.save({"n": 6}).seq == 7


@pytest.mark.parametrize("layout", Layout)
def test_a_rebuilt_session_is_on_a_branch_with_checkpoints(
    root: Path, layout: Layout, tmp_path: Path
) -> None:
    """A copied store told a branch that has none of its own; its newest checkpoint is found all the same."""
    source, target = f"sqlite:{tmp_path}/source.db", f"files:{root}?layout={layout}"
    with stepkeep.open(source) as store:
        run = store.session("r", profile="archive")
        ids = [run.save({"n": n}).id for n in range(3)]
        run.restore("#2")
    copy_store(source, target)
    with stepkeep.open(target) as other:
        assert (other.get("r").info.branch, other.get("r").latest().id) == ("from-2", ids[1])
    lose(root, "sidecar")
    with opened(root, layout) as store:
        run = store.get("r")
        assert (run.info.branch, run.latest().id) == ("main", ids[2])
        assert [branch.name for branch in run.branches] == ["main"]
        assert store.verify().is_intact


@pytest.mark.parametrize("layout", Layout)
def test_a_rebuilt_session_is_as_its_newest_document_tells(root: Path, layout: Layout) -> None:
    """Its current branch too, where that has a checkpoint."""
    with opened(root, layout) as store:
        run = store.session("r", profile="archive")
        first = run.save({"n": 1})
        run.branches.fork(first.id, name="idea", switch=True)
        idea = run.save({"n": 2})
        before = run.info
    lose(root, "sidecar")
    with opened(root, layout) as store:
        run = store.get("r")
        assert (run.info.branch, run.latest().id) == ("idea", idea.id)
        assert run.info.metadata == before.metadata
        run.branches.switch("main")
        assert run.latest().id == first.id


def lose(root: Path, loss: str) -> None:
    sidecar = root / ".stepkeep"
    index = sidecar / "index.db"
    if loss == "sidecar":
        shutil.rmtree(sidecar)
    elif loss == "index":
        for file in sidecar.glob("index.db*"):
            file.unlink()
    elif loss == "garbage":
        for file in sidecar.glob("index.db-*"):
            file.unlink()
        index.write_bytes(b"no database " * 1000)
    elif loss == "schema":
        connection = apsw.Connection(str(index))
        connection.execute("DROP TABLE tags")
        connection.close()
    else:
        (sidecar / "rebuild").touch()


def test_a_damaged_sidecar_is_set_aside(root: Path) -> None:
    """What only it has is kept for whoever wants to look."""
    fill(root, Layout.RUN)
    lose(root, "garbage")
    with opened(root):
        pass
    assert len(list((root / ".stepkeep").glob("damaged-*.db"))) == 1


@pytest.mark.parametrize("layout", Layout)
def test_a_sidecar_that_is_behind_catches_up(root: Path, layout: Layout, tmp_path: Path) -> None:
    """An old copy of it, put back, takes up every document saved since; none is lost or given a number twice."""
    with opened(root, layout) as store:
        store.session("r", profile="archive").save({"n": 1})
    shutil.copytree(root / ".stepkeep", tmp_path / "old")
    with opened(root) as store:
        for n in (2, 3):
            store.get("r").save({"n": n}, status="paused")
    shutil.rmtree(root / ".stepkeep")
    shutil.copytree(tmp_path / "old", root / ".stepkeep")
    with opened(root) as store:
        run = store.get("r")
        assert [run.load(header.id).state["n"] for header in run.history()] == [3, 2, 1]
        assert (run.info.status, run.info.last_seq) == ("paused", 3)
        assert run.verify().is_intact
        assert run.save({"n": 4}).seq == 4


@pytest.mark.parametrize("layout", Layout)
def test_documents_that_come_by_hand_are_taken_up(root: Path, layout: Layout, tmp_path: Path) -> None:
    """A store that was copied file by file, without its sidecar, is the store; later files follow."""
    fill(root, layout)
    copy = tmp_path / "copy"
    for file in documents(root):
        if file.name in ("checkpoint.json", "latest.json"):
            continue
        (copy / file.relative_to(root)).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(file, copy / file.relative_to(root))
    with opened(copy, layout) as store:
        assert store.get("run/ä").load(1).state == {"n": 0}
    for file in documents(root):
        (copy / file.relative_to(root)).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(file, copy / file.relative_to(root))
    with opened(root) as one, opened(copy) as other:
        assert as_listed(other) == as_listed(one)
        assert other.verify().is_intact


def test_verify_takes_up_what_came_meanwhile(root: Path, tmp_path: Path) -> None:
    """Also while the store is open."""
    with opened(root, Layout.PHASE) as store:
        run = store.session("r", profile="archive")
        ids = [run.save({"n": n}).id for n in range(2)]
        file = file_of(root, ids[0])
        shutil.copytree(root / "checkpoints", tmp_path / "other" / "checkpoints")
        with opened(tmp_path / "other", Layout.PHASE) as other:
            (tmp_path / "other" / "checkpoints" / file.name).unlink()
            assert other.get("r").latest().id == ids[1]
            shutil.copy(file, tmp_path / "other" / "checkpoints" / file.name)
            assert other.verify().is_intact
            assert other.get("r").load(ids[0]).state == {"n": 0}


def test_a_checkpoint_that_only_latest_json_has_is_saved(root: Path) -> None:
    """With sidecar and history lost, the copy is still a checkpoint, and gets its place again."""
    ids = fill(root, Layout.RUN)
    lose(root, "sidecar")
    folder = next(file for file in (root / "checkpoints").iterdir() if file.name.startswith("run"))
    shutil.rmtree(folder / "history")
    with opened(root) as store:
        run = store.get("run/ä")
        assert run.latest().id == ids[5]
        assert [file.stem for file in (folder / "history").iterdir()] == [ids[5]]
        assert run.save({"n": 6}).seq == 7


def test_a_store_of_which_only_latest_json_is_left_is_found(root: Path) -> None:
    """Without index and history the copy is the only one, and the next save does not write over it."""
    with opened(root, Layout.RUN) as store:
        store.session("r").save({"precious": 1})
    shutil.rmtree(root / ".stepkeep")
    shutil.rmtree(root / "checkpoints" / "r" / "history")
    with opened(root) as store:
        run = store.get("r")
        assert run.load().state == {"precious": 1}
        run.save({"n": 2})
    with opened(root) as store:
        assert [store.get("r").load(seq).state for seq in (1, 2)] == [{"precious": 1}, {"n": 2}]
        assert store.verify().is_intact


@pytest.mark.parametrize("layout", Layout)
def test_a_damaged_document_keeps_its_number(root: Path, layout: Layout) -> None:
    """Where the sidecar is lost too, the number in a damaged document is still not given again (V3)."""
    with opened(root, layout) as store:
        run = store.session("r", profile="archive")
        ids = [run.save({"n": n}).id for n in range(3)]
    for file in documents(root):
        if ids[2] in file.read_text():
            file.write_bytes(file.read_bytes().replace(b'{"n":2}', b'{"n":7}'))
    lose(root, "sidecar")
    with opened(root, layout) as store:
        assert store.get("r").latest().state == {"n": 1}
        assert store.get("r").save({"n": 3}).seq == 4


@pytest.mark.parametrize("layout", Layout)
def test_what_was_removed_does_not_come_back(root: Path, layout: Layout) -> None:
    """A crash between the commit of a removal and the removal of its files brings nothing back."""
    with opened(root, layout) as store:
        run = store.session("r", profile="archive")
        ids = [run.save({"n": n}).id for n in range(3)]
        store.session("gone").save({"gone": True})
    backend = FilesBackend(root)
    backend._clear = lambda: None  # the process is stopped here
    with stepkeep.Store(backend) as store:
        store.get("r").delete(ids[0], ids[2])
        backend.delete_session(store.get("gone").info.uid)
    assert any(b'"gone":true' in file.read_bytes() for file in documents(root))
    with opened(root) as store:
        assert [session.key for session in store.sessions()] == ["r"]
        run = store.get("r")
        assert [header.id for header in run.history()] == [ids[1]]
        assert run.save({"n": 3}).seq == 4
        assert run.verify().is_intact
    assert not any(b'"gone":true' in file.read_bytes() for file in documents(root))
    if layout is Layout.WORKFLOW:
        assert load(root / "sessions/r/checkpoint.json")["data"] == {"n": 3}


def test_opening_reads_no_document_that_is_known(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Names are compared; a document is read only when its name is new."""
    fill(root, Layout.RUN)

    def refuse(*_: object) -> None:
        raise AssertionError("a document was read")

    monkeypatch.setattr("stepkeep.storage.files.rebuild.read_document", refuse)
    with opened(root) as store:
        assert len(list(store.get("run/ä").history())) == 5


def test_latest_json_shows_what_a_killed_save_left(tmp_path: Path) -> None:
    """The document was there and its copy was not: opening puts that right."""
    killed, whole = tmp_path / "killed", tmp_path / "whole"
    with stepkeep.open(f"files:{killed}?layout=run") as store:
        store.session("a").save({"n": 1})
    shutil.copytree(killed, whole)
    with stepkeep.open(f"files:{whole}") as store:
        newest = store.session("a").save({"n": 2}).id
    document = f"checkpoints/a/history/{newest}.json"
    shutil.copy(whole / document, killed / document)
    with stepkeep.open(f"files:{killed}") as store:
        assert store.session("a").load().state == {"n": 2}
    shown = (killed / "checkpoints" / "a" / "latest.json").read_bytes()
    assert shown == (killed / document).read_bytes()
