"""A store on disk, a tree to capture, and a session that captures it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import stepkeep
from stepkeep import config
from tests.workspace.repositories import init


@pytest.fixture(autouse=True)
def _own_git_settings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Nothing of the user's own git settings counts."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:{tmp_path / 'store' / 'stepkeep.db'}"


@pytest.fixture
def store(url: str) -> Iterator[stepkeep.Store]:
    with stepkeep.open(url) as store:
        yield store


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """An empty tree outside of a repository."""
    root = tmp_path / "tree"
    root.mkdir()
    return root


@pytest.fixture
def repository(root: Path) -> Path:
    """The tree as a repository."""
    return init(root)


@pytest.fixture
def run(store: stepkeep.Store, root: Path) -> stepkeep.Session:
    return store.session("run", profile="archive", workspace=root)


@pytest.fixture
def limited(url: str, root: Path, tmp_path: Path) -> Iterator[stepkeep.Session]:
    """A session that captures no file over 1,000 bytes."""
    (tmp_path / "stepkeep.yaml").write_text("workspace:\n  max_file_bytes: 1000\n")
    with stepkeep.open(url, config=config.load(cwd=tmp_path, environ={})) as store:
        yield store.session("run", profile="archive", workspace=root)
