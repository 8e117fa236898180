"""What lies beside documents: `verify` tells, also where nobody may write, and `verify --repair` makes it anew."""

from __future__ import annotations

import gzip
import json
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import stepkeep
from stepkeep import config
from stepkeep.storage.files.directory import FilesBackend
from tests.surfaces.test_cli import Cli

QUIET = config.load(cwd=None, environ={})


@pytest.fixture
def cli(tmp_path: Path) -> Cli:
    """A store of runs with three checkpoints."""
    (tmp_path / "work").mkdir()
    cli = Cli(tmp_path / "work")
    cli.url = f"files:{tmp_path}/st?layout=run"
    fill(tmp_path / "st")
    return cli


def fill(root: Path, count: int = 3, layout: str = "run") -> list[str]:
    with stepkeep.open(f"files:{root}?layout={layout}", config=QUIET) as store:
        return [store.session("r").save({"n": number}).id for number in range(count)]


def latest(tmp_path: Path) -> Path:
    return tmp_path / "st/checkpoints/r/latest.json"


def history(tmp_path: Path) -> list[Path]:
    return sorted((tmp_path / "st/checkpoints/r/history").glob("cp_*.json"))


HARM: dict[str, Callable[[Path, Path], object]] = {
    "missing": lambda pointer, _: pointer.unlink(),
    "empty": lambda pointer, _: pointer.write_bytes(b""),
    "stale": lambda pointer, older: shutil.copy(older, pointer),
    "zeros": lambda pointer, _: pointer.write_bytes(bytes(100)),
    "junk": lambda pointer, _: pointer.write_text("junk"),
}


@pytest.mark.parametrize("harm", HARM)
def test_a_latest_json_that_is_not_current_is_told_and_mended(cli: Cli, tmp_path: Path, harm: str) -> None:
    """By `verify` and `doctor --full`, with advice that helps; loading never depended on it."""
    good = latest(tmp_path).read_bytes()
    HARM[harm](latest(tmp_path), history(tmp_path)[0])
    told = cli("verify", "--json")
    assert (told.code, [each["code"] for each in told.json["findings"]]) == (4, ["checkpoint_latest_stale"])
    assert told.json["fixes"] == ["stepkeep verify --repair"]
    sick = cli("doctor", "--full")
    assert (sick.code, "verify --repair" in sick.out, "recover" in sick.out) == (1, True, False)
    assert cli("show", "r", "--raw").json == {"n": 2}
    mended = cli("verify", "--repair")
    assert mended.out.splitlines() == [
        "Repaired: wrote checkpoints/r/latest.json",
        "Verified 3 checkpoints in 1 session: intact",
    ]
    assert latest(tmp_path).read_bytes() == good
    assert cli("verify", "--repair").out == "Verified 3 checkpoints in 1 session: intact\n"
    assert cli("doctor", "--full").code == 0


def test_a_lost_checksum_is_told_as_such_and_written_again(cli: Cli, tmp_path: Path) -> None:
    """The checkpoint loads: the checksum inside the document proves it."""
    with stepkeep.Store(backend := FilesBackend(tmp_path / "st")):
        backend.compress(2**60)
    beside = min((tmp_path / "st/checkpoints/r/history").glob("*.sha256"))
    content = beside.read_bytes()
    beside.unlink()
    told = cli("verify", "--json")
    assert [each["code"] for each in told.json["findings"]] == ["checkpoint_checksum_missing"]
    assert cli("show", "r", "seq:1", "--raw").json == {"n": 0}
    wrote = f"Repaired: wrote {beside.relative_to(tmp_path / 'st')}"
    assert cli("verify", "r", "--repair").out.splitlines()[0] == wrote
    assert beside.read_bytes() == content
    subprocess.run(["sha256sum", "--check", beside.name], cwd=beside.parent, check=True)


def test_the_newest_document_is_restored_from_its_copy(cli: Cli, tmp_path: Path) -> None:
    """Damage to a checkpoint that nothing else holds is told, and not repaired away."""
    _, middle, newest = history(tmp_path)
    good = newest.read_bytes()
    newest.write_bytes(b"junk")
    assert cli("verify", "--repair").out.startswith("Repaired: restored checkpoints/r/history/cp_")
    assert newest.read_bytes() == good
    middle.write_bytes(b"junk")
    done = cli("verify", "--repair")
    assert (done.code, done.out.count("Repaired"), done.out.count("DAMAGED")) == (4, 0, 1)


def test_files_that_belong_to_nothing_are_removed(cli: Cli, tmp_path: Path) -> None:
    """What a kill left, and checksums of what is gone; files of others stay."""
    folder = tmp_path / "st/checkpoints/r/history"
    (folder / ".tmp-0123456789abcdef").write_bytes(b"half")
    (folder / "cp_20250101T000000000000_aaaaaaaaaa.json.gz.sha256").write_text("0" * 64)
    (folder / "notes.txt").write_text("mine")
    done = cli("verify", "--repair", "--json").json
    assert done["repaired"] == [
        "removed checkpoints/r/history/.tmp-0123456789abcdef",
        "removed checkpoints/r/history/cp_20250101T000000000000_aaaaaaaaaa.json.gz.sha256",
    ]
    assert done["is_intact"]
    assert (folder / "notes.txt").read_text() == "mine"
    assert len(history(tmp_path)) == 3


def test_a_database_has_nothing_beside_it(cli: Cli) -> None:
    """Repairing it is harmless."""
    cli.url = f"sqlite:{cli.folder}/a.db"
    cli("save", "a", "--state", "1")
    assert cli("verify", "--repair").out == "Verified 1 checkpoint in 1 session: intact\n"


# --- what is not known -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("layout", ["run", "workflow"])
def test_what_a_lost_index_knew_is_told_as_unknown(tmp_path: Path, layout: str) -> None:
    """A lost checkpoint is not called removed on purpose; what a later document knew to be removed is."""
    root = tmp_path / "st"
    fill(root, 5, layout)
    url = f"files:{root}?layout={layout}"
    with stepkeep.open(url, config=QUIET) as store:
        store.get("r").delete("seq:1")
        store.get("r").save({"n": 5})
    for file in root.rglob("*.json"):
        if json.loads(file.read_text())["stepkeep"]["header"]["seq"] == 3:
            file.unlink()
    shutil.rmtree(root / ".stepkeep")
    with stepkeep.open(url, config=QUIET) as store:
        report = store.verify()
        assert (report.pruned, report.unknown, report.lost, report.result) == (1, 1, 0, "WARN")
    cli = Cli(tmp_path)
    cli.url = url
    assert cli("verify").out == (
        "Verified 4 checkpoints in 1 session, 1 removed on purpose, 1 removed or lost, which is not known: intact\n"
    )


def test_what_a_recovery_lost_is_told_as_lost(tmp_path: Path) -> None:
    """In the new store, by every later `verify`, also after it was copied on."""
    source = tmp_path / "st"
    fill(source, 4)
    history(tmp_path)[1].write_bytes(b"junk")
    cli = Cli(tmp_path)
    new, copied = f"sqlite:{tmp_path}/new.db", f"sqlite:{tmp_path}/copied.db"
    cli("recover", f"files:{source}?layout=run", new)
    cli("copy", new, copied)
    for url in (new, copied):
        cli.url = url
        report = cli("verify", "--json").json
        assert (report["pruned"], report["lost"], report["unknown"], report["result"]) == (0, 1, 0, "WARN")
    assert "1 lost before a recovery: intact" in cli("verify").out


# --- where nobody may write --------------------------------------------------------------------------------------


@contextmanager
def unwritable(root: Path) -> Iterator[Path]:
    """The same store where nobody may write, not even root."""
    if os.geteuid() != 0:
        folders = [root, *(each for each in root.rglob("*") if each.is_dir())]
        for folder in folders:
            folder.chmod(0o500)
        try:
            yield root
        finally:
            for folder in folders:
                folder.chmod(0o700)
        return
    place = root.parent / "unwritable"
    place.mkdir(exist_ok=True)
    if subprocess.run(["mount", "--bind", root, place], check=False, capture_output=True).returncode:
        pytest.skip("nothing can be mounted here")
    try:
        subprocess.run(["mount", "-o", "remount,ro,bind", place], check=True)
        yield place
    finally:
        subprocess.run(["umount", place], check=True)


@pytest.mark.parametrize("layout", ["run", "workflow", "phase"])
def test_a_store_that_cannot_be_written_is_verified(tmp_path: Path, layout: str) -> None:
    """Intact as it is, and with damage, which is told as elsewhere."""
    root = tmp_path / "st"
    fill(root, 3, layout)
    cli = Cli(tmp_path)
    with unwritable(root) as place:
        cli.url = f"files:{place}?layout={layout}"
        done = cli("verify")
        assert (done.code, done.out) == (0, "Verified 3 checkpoints in 1 session: intact\n")
        assert cli("history", "r").code == 0
        assert "every byte of 3 checkpoints" in cli("doctor", "--full").out
    damaged = min(file for file in root.rglob("*.json") if b'"n":0' in file.read_bytes())
    damaged.write_bytes(b"junk")
    with unwritable(root) as place:
        cli.url = f"files:{place}?layout={layout}"
        told = cli("verify", "--json")
        assert (told.code, len(told.json["findings"])) == (4, 1)
        assert cli("show", "r", "--raw").json == {"n": 2}
        refused = cli("prune", "r", "--keep-last", "1")
        assert refused.code == 1
        assert "prune again" not in refused.err


def test_compressed_history_is_verified_where_nobody_may_write(tmp_path: Path) -> None:
    """A document that was exchanged by hand is read from where it is."""
    fill(tmp_path / "st")
    first = history(tmp_path)[0]
    first.with_name(first.name + ".gz").write_bytes(gzip.compress(first.read_bytes()))
    first.unlink()
    with stepkeep.open(f"files:{tmp_path}/st", config=QUIET):
        pass
    cli = Cli(tmp_path)
    with unwritable(tmp_path / "st") as place:
        cli.url = f"files:{place}"
        assert [each["code"] for each in cli("verify", "--json").json["findings"]] == [
            "checkpoint_checksum_missing"
        ]
        assert cli("show", "r", "seq:1", "--raw").json == {"n": 0}


def test_verify_does_not_advise_to_verify(cli: Cli, tmp_path: Path) -> None:
    """What it advises about damage can be done, and mends it."""
    damaged = history(tmp_path)[1]
    damaged.write_text("junk")
    told = cli("verify", "--json")
    assert (told.code, told.json["fixes"]) == (
        4,
        [
            "stepkeep show SESSION latest",
            "bring the file back from a backup",
            "stepkeep delete SESSION CHECKPOINT",
        ],
    )
    assert cli("show", "r", "latest", "--raw").json == {"n": 2}
    assert cli("delete", "r", damaged.stem, "--yes").code == 0
    assert cli("verify").code == 0
