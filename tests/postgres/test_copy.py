"""Copying through PostgreSQL."""

from __future__ import annotations

from pathlib import Path

from stepkeep import api
from stepkeep.api import Store
from stepkeep.storage.urls import open_backend
from tests.maintenance.mixed import contents, fill


def test_a_store_goes_round_through_files_and_a_server(url: str, tmp_path: Path) -> None:
    """SQLite, files, PostgreSQL, SQLite: branches, annotations, workspace files and gaps are the same, and verify."""
    project = tmp_path / "project"
    project.mkdir()
    (project / "notes.txt").write_text("captured with the state " * 200)
    first, readable, last = f"sqlite:{tmp_path}/a.db", f"files:{tmp_path}/readable", f"sqlite:{tmp_path}/b.db"
    with Store(open_backend(first)) as store:
        fill(store)
        store.session("with-files", profile="archive").save({"n": 1}, workspace=project)
        before = contents(store)
        assert before["with-files"]["blobs"]
    for source, destination in ((first, readable), (readable, url), (url, last)):
        report = api.copy_store(source, destination)
        assert report.is_whole
        with Store(open_backend(destination)) as store:
            assert store.verify().is_intact
            assert contents(store) == before


def test_a_server_is_backed_up_into_a_file(url: str, tmp_path: Path) -> None:
    """The file is a store with everything."""
    with Store(open_backend(url)) as store:
        fill(store)
        before = contents(store)
        store.backup(tmp_path / "b.db")
    with Store(open_backend(f"sqlite:{tmp_path}/b.db")) as copy:
        assert contents(copy) == before
