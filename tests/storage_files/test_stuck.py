"""A file that cannot be removed is remembered, told and tried again, and stands in nobody's way."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import stepkeep
from stepkeep import config
from stepkeep.api import diagnose

URL = "files:{}?layout=workflow"


@contextmanager
def unremovable(file: Path) -> Iterator[None]:
    """For as long as this holds nobody removes the file, not even root."""
    if os.geteuid() != 0:
        file.parent.chmod(0o500)
    elif subprocess.run(["chattr", "+i", file], check=False, capture_output=True).returncode:
        pytest.skip("the file system has no immutable files")
    try:
        yield
    finally:
        if os.geteuid() != 0:
            file.parent.chmod(0o700)
        else:
            subprocess.run(["chattr", "-i", file], check=True)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    with stepkeep.open(URL.format(tmp_path / "st")) as store:
        for number in range(3):
            store.session("a").save({"n": number})
        store.session("other").save(1)
    return tmp_path / "st"


def test_a_file_that_cannot_be_removed_blocks_no_save(root: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Neither in its session nor in another; the next prune that can removes it."""
    file = min((root / "sessions" / "a" / "history").iterdir())
    url = URL.format(root)
    with unremovable(file):
        with stepkeep.open(url) as store:
            assert store.session("a").prune(keep_last=1).deleted == 2
            assert str(file) in caplog.text
            assert store.session("other").save(2).seq == 2
            # in its own folder only where that can be written to at all
            assert os.geteuid() != 0 or store.session("a").save({"n": 3}).seq == 4
        assert any(str(file) in each.message for each in diagnose(url).symptoms)
        with stepkeep.open(url) as store:
            assert store.session("other").save(3).seq == 3
            assert 1 not in [header.seq for header in store.session("a").history()]
        assert file.exists()
    with stepkeep.open(url) as store:
        store.prune()
        assert store.verify().is_intact
    assert not file.exists()
    assert not any(str(file) in each.message for each in diagnose(url).symptoms)


def test_a_keeper_that_cannot_remove_a_file_fails_no_save(root: Path) -> None:
    """Pruning after a save is no part of it: each save returns, and the rules hold for what can be removed."""
    file = min((root / "sessions" / "a" / "history").iterdir())
    rules = config.load(cwd=None, environ={}, flags={"retention.keep_last": 1})
    with unremovable(file):
        for number in range(2):
            with stepkeep.open(URL.format(root), config=rules) as store:
                assert store.session("other").save(number).seq == 2 + number
                # in its own folder only where that can be written to at all
                assert os.geteuid() != 0 or store.session("a").save({"n": number}).seq == 4 + number
        assert file.exists()
    with stepkeep.open(URL.format(root), config=rules) as store:
        store.prune()
        assert store.verify().is_intact
    assert not file.exists()


def test_a_session_goes_although_one_of_its_files_stays(root: Path) -> None:
    """It does not come back with that file, and no other session is to blame."""
    file = min((root / "sessions" / "a" / "history").iterdir())
    url = URL.format(root)
    with unremovable(file):
        with stepkeep.open(url) as store:
            store.session("a", cleanup={"retention_days": 0}).complete()
            assert store.clean().error == 0
            assert [each.key for each in store.sessions()] == ["other"]
        with stepkeep.open(url) as store:
            assert [each.key for each in store.sessions()] == ["other"]
            assert store.verify().is_intact
    with stepkeep.open(url) as store:
        store.prune()
    assert not file.exists()


def test_a_deletion_that_leaves_bytes_behind_says_so(root: Path) -> None:
    """A secret that cannot be taken off the disk is never reported as gone; the next opening tries again."""
    file = next(
        each for each in (root / "sessions" / "a" / "history").iterdir() if '"n":0' in each.read_text()
    )
    url = URL.format(root)
    with unremovable(file):
        with stepkeep.open(url) as store, pytest.raises(stepkeep.BackendUnavailable) as failed:
            store.session("a").delete("seq:1")
        assert failed.value.code == "file_not_removed"
        assert str(file) in str(failed.value)
    with stepkeep.open(url) as store:
        assert [header.seq for header in store.session("a").history()] == [3, 2]
        store.session("a").save({"n": 3})
    assert not any('"n":0' in each.read_text(encoding="utf-8") for each in root.rglob("*.json"))
