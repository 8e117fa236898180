"""How stored bytes are compressed is a choice: a level, none, or an algorithm of one's own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zlib
from pathlib import Path
from typing import Any

import pytest

import stepkeep
from stepkeep import config
from tests.postgres.server import Server

TEXT = "the tide comes in and the tide goes out, twice a day, and the moon looks on. "
STATES: list[dict[str, Any]] = [
    {"notes": [TEXT * 20 + str(number) for number in range(12 + step)], "step": step, "seed": step * 7919}
    for step in range(30)
]

PACKAGE = """
import zlib

class Deflate:
    name = "deflate"

    def compress(self, content):
        return zlib.compress(content)

    def decompress(self, data, *, limit):
        return zlib.decompressobj().decompress(data, limit + 1)
"""

READ = """
import sys, stepkeep
with stepkeep.open(sys.argv[1]) as store:
    run = store.get("run")
    for header in run.history():
        print(run.load(header.id).state["step"])
"""


class Deflate:
    """An algorithm that Stepkeep has not."""

    name = "deflate"

    def compress(self, content: bytes) -> bytes:
        return zlib.compress(content)

    def decompress(self, data: bytes, *, limit: int) -> bytes:
        return zlib.decompressobj().decompress(data, limit + 1)


class Forgetful(Deflate):
    """One that loses a byte."""

    name = "forgetful"

    def decompress(self, data: bytes, *, limit: int) -> bytes:
        return super().decompress(data, limit=limit)[:-1]


def saved(url: str, compression: Any) -> dict[str, int]:
    """Save all states, and tell how many bytes each codec takes."""
    settings = config.load(cwd=None, environ={}, flags={"keeper.enabled": False})
    with stepkeep.open(url, config=settings, compression=compression) as store:
        run = store.session("run", profile="archive")
        for state in STATES:
            run.save(state)
        taken: dict[str, int] = {}
        for body in store.engine.backend.bodies(run.uid):
            taken[body.codec] = taken.get(body.codec, 0) + body.stored_size
    return taken


def in_another_process(url: str, *more: Path, program: str = READ) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join([*map(str, more), *sys.path])
    return subprocess.run(
        [sys.executable, "-c", program, url],
        cwd=Path(url[7:]).parent,
        env={"PYTHONPATH": path, "PATH": os.environ["PATH"], "HOME": str(Path(url[7:]).parent)},
        capture_output=True,
        text=True,
        check=False,
    )


def package(folder: Path) -> Path:
    """An installed package that offers the algorithm."""
    folder.mkdir()
    (folder / "tides_deflate.py").write_text(PACKAGE)
    info = folder / "tides_deflate-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: tides-deflate\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[stepkeep.compression]\ndeflate = tides_deflate:Deflate\n")
    return folder


def all_steps() -> list[int]:
    return [state["step"] for state in reversed(STATES)]


@pytest.mark.parametrize("choice", ["zstd", "zstd-1", "zstd-19", "none"])
def test_what_is_chosen_is_read_without_choosing(url: str, choice: str) -> None:
    """Every choice gives the same states back, in a process that chose nothing."""
    saved(url, choice)
    with stepkeep.open(url) as store:
        run = store.get("run")
        assert [run.load(f"#{number + 1}").state for number in range(len(STATES))] == STATES
        assert not store.verify().findings
    assert [int(line) for line in in_another_process(url).stdout.split()] == all_steps()


def test_none_stores_what_can_be_read_in_the_file(url: str, path: Path) -> None:
    """Without compression no record is a frame, and the text is in the file as it is."""
    assert set(saved(url, "none")) <= {"raw", "splice+raw"}
    assert TEXT.encode() * 3 in path.read_bytes()


def test_a_higher_level_takes_less(tmp_path: Path) -> None:
    words = ["".join(chr(97 + hash_of % 26) for hash_of in (n, n * 7, n * 31, n * 57)) for n in range(3000)]
    taken = []
    for choice in ("zstd-1", "zstd-19"):
        with stepkeep.open(f"sqlite:{tmp_path / choice}.db", compression=choice) as store:
            run = store.session("run")
            run.save({"words": words})
            taken += [body.stored_size for body in store.engine.backend.bodies(run.uid)]
    assert taken[1] < taken[0]


def test_the_configuration_chooses(tmp_path: Path, path: Path, url: str) -> None:
    """The setting holds for every process that reads it, and a wrong one is told with its line."""
    file = tmp_path / "stepkeep.yaml"
    file.write_text("checkpoint:\n  compression: none\n")
    with stepkeep.open(url, config=config.load(cwd=tmp_path, environ={})) as store:
        store.session("run").save(STATES[0])
    assert TEXT.encode() * 3 in path.read_bytes()
    for wrong in ("zstd-20", "zstd-0", "lz77", "raw"):
        file.write_text(f"checkpoint:\n  compression: {wrong}\n")
        with pytest.raises(stepkeep.InvalidInput, match=r"stepkeep.yaml:2: .*no compression") as caught:
            config.load(cwd=tmp_path, environ={})
        assert caught.value.code == "invalid_config"


def test_an_algorithm_of_ones_own_compresses_everything(url: str, tmp_path: Path) -> None:
    """States, deltas and captured files go through it, and nothing through zstd."""
    tree = tmp_path / "tree"
    tree.mkdir()
    (tree / "notes.txt").write_text(TEXT * 50)
    assert {"deflate", "splice+deflate"} <= set(saved(url, Deflate())) <= {"deflate", "splice+deflate", "raw"}
    with stepkeep.open(url, compression=Deflate()) as store:
        run = store.get("run")
        run.save({"step": 30}, workspace=tree)
        entry = run.files.at().entry("notes.txt")
        blob = store.engine.backend.blob(entry.digest)
        assert blob is not None
        assert blob.codec == "deflate"
        assert [run.load(f"#{number + 1}").state for number in range(len(STATES))] == STATES
        assert run.files.read("notes.txt") == (TEXT * 50).encode()
        run.complete()  # stores the newest whole once more
        assert run.load("latest").state == {"step": 30}


def test_stored_bytes_load_no_package(url: str, tmp_path: Path) -> None:
    """A record names an algorithm, and that imports nothing: loads fail and say so until somebody chooses it."""
    saved(url, Deflate())
    site = package(tmp_path / "site")
    unchosen = in_another_process(url, site)
    assert unchosen.returncode != 0
    assert "'deflate' was not chosen" in unchosen.stderr
    (tmp_path / "stepkeep.yaml").write_text("checkpoint:\n  compression: deflate\n")
    chosen = in_another_process(url, site)
    assert [int(line) for line in chosen.stdout.split()] == all_steps(), chosen.stderr


def test_a_name_in_the_configuration_uses_the_package(url: str, tmp_path: Path) -> None:
    (tmp_path / "store").mkdir()
    site = package(tmp_path / "site")
    chosen = in_another_process(
        url,
        site,
        program="""
import json, sys, stepkeep
with stepkeep.open(sys.argv[1], compression="deflate") as store:
    run = store.session("run")
    run.save({"text": "tide " * 1000})
    print(json.dumps([body.codec for body in store.engine.backend.bodies(run.uid)]))
""",
    )
    assert json.loads(chosen.stdout) == ["deflate"], chosen.stderr


def test_what_does_not_come_back_is_not_stored(url: str) -> None:
    """An algorithm that loses a byte is found out before anything is written."""
    with stepkeep.open(url, compression=Forgetful()) as store:
        run = store.session("run")
        with pytest.raises(stepkeep.InvalidInput, match="does not bring back") as caught:
            run.save(STATES[0])
        assert caught.value.code == "compression_failed"
    with stepkeep.open(url) as store:
        assert list(store.get("run").history()) == []


@pytest.mark.parametrize("name", ["zstd", "raw", "splice", "none", "", "Deflate", "a+b", "x" * 33, None, 5])
def test_a_name_that_means_something_else_is_refused(url: str, name: Any) -> None:
    class Named(Deflate):
        pass

    Named.name = name
    with pytest.raises(stepkeep.InvalidInput) as caught:
        stepkeep.open(url, compression=Named())
    assert caught.value.code == "invalid_compression"


def test_documents_of_a_store_of_files_stay_readable(tmp_path: Path) -> None:
    """Whatever is chosen: only captured files go through it."""
    tree, folder = tmp_path / "tree", tmp_path / "files"
    tree.mkdir()
    (tree / "notes.txt").write_text(TEXT * 50)
    with stepkeep.open(f"files:{folder}?layout=run", compression=Deflate()) as store:
        store.session("run").save(STATES[0], workspace=tree)
    (document,) = folder.glob("checkpoints/run/history/*.json")
    assert json.loads(document.read_text())["state"] == STATES[0]
    with stepkeep.open(f"files:{folder}?layout=run") as store:
        assert store.get("run").files.read("notes.txt") == (TEXT * 50).encode()


@pytest.mark.full
@pytest.mark.parametrize("compression", ["none", Deflate()])
def test_a_server_keeps_what_was_compressed_otherwise(postgres: Server, compression: Any) -> None:
    """Deltas and keyframes of every name come back from PostgreSQL."""
    url = postgres.fresh_url()
    assert any(codec.startswith("splice+") for codec in saved(url, compression))
    with stepkeep.open(url) as store:
        run = store.get("run")
        assert [run.load(f"#{number + 1}").state for number in range(len(STATES))] == STATES


def test_a_copy_is_compressed_as_its_destination_does(url: str, tmp_path: Path) -> None:
    """Copying into a store without the algorithm frees states and files of it."""
    tree = tmp_path / "tree"
    tree.mkdir()
    (tree / "notes.txt").write_text(TEXT * 50)
    saved(url, Deflate())
    copy = f"sqlite:{tmp_path / 'copy.db'}"
    with stepkeep.open(url, compression=Deflate()) as store:
        store.get("run").save({"step": 30}, workspace=tree)
        store.copy(copy)
    read = in_another_process(copy)
    assert [int(line) for line in read.stdout.split()] == [30, *all_steps()], read.stderr
    files = in_another_process(
        copy,
        program="""
import sys, stepkeep
with stepkeep.open(sys.argv[1]) as store:
    print(len(store.get("run").files.read("notes.txt")))
""",
    )
    assert files.stdout.split() == [str(len(TEXT) * 50)], files.stderr
