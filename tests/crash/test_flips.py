"""Bits flipped and ends cut off in the stored forms that no other test covers whole: gzip files, PostgreSQL rows."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import stepkeep
from stepkeep.errors import Corrupt, StepkeepError
from stepkeep.storage.files import FilesBackend, Layout
from tests.postgres.access import PostgresAccess
from tests.postgres.server import Server


def bits(data: bytes, every: int) -> Iterator[bytes]:
    """The data with one bit flipped, for each `every`-th bit, and cut off at each `every`-th length."""
    for at in range(0, 8 * len(data), every):
        changed = bytearray(data)
        changed[at // 8] ^= 1 << at % 8
        yield bytes(changed)
    for length in range(0, len(data), every):
        yield data[:length]


@pytest.mark.parametrize(
    "every",
    [
        pytest.param(29, id="some"),
        pytest.param(1, id="every one", marks=pytest.mark.slow),
    ],
)
def test_bits_and_lengths_of_a_compressed_document(
    tmp_path: Path, every: int, tell: Callable[[str], None]
) -> None:
    """All are noticed, in the document and in its checksum; `latest.json` keeps a copy of the newest, unharmed."""
    logging.disable(logging.CRITICAL)
    backend = FilesBackend(tmp_path, layout=Layout.RUN)
    tried = 0
    with stepkeep.Store(backend) as store:
        run = store.session("r", profile="archive")
        ids = [run.save({"n": n}).id for n in range(3)]
        backend.compress(2**60)
        file = tmp_path / f"checkpoints/r/history/{ids[1]}.json.gz"
        for path in (file, Path(f"{file}.sha256")):
            good = path.read_bytes()
            checked = good if path == file else good[:64]  # what follows the digest only names the file
            for changed in bits(checked, every):
                path.write_bytes(changed + good[len(checked) :])
                _is_noticed(run, ids, is_checksum=path != file)
                tried += 1
            path.write_bytes(good)
        assert run.load(ids[1]).state == {"n": 1}
    logging.disable(logging.NOTSET)
    tell(f"{tried:,} changes of a compressed document, all noticed")


def _is_noticed(run: stepkeep.Session, ids: list[str], *, is_checksum: bool) -> None:
    try:
        state = run.load(ids[1]).state
    except Corrupt:
        newest = run.latest()
        assert newest is not None
        assert newest.state == {"n": 2}
    else:
        # A digest in capital letters is the same digest.
        assert is_checksum
        assert state == {"n": 1}


@pytest.mark.full
@pytest.mark.parametrize(("table", "column"), [("checkpoints", "header"), ("bodies", "data")])
def test_bits_of_a_row_in_postgresql(postgres: Server, table: str, column: str) -> None:
    """A flipped bit of a header or a body is noticed, and the newest older checkpoint is loaded instead."""
    url = postgres.fresh_url()
    access = PostgresAccess(postgres, url)
    logging.disable(logging.CRITICAL)
    with stepkeep.open(url) as store:
        run = store.session("r", profile="archive")
        ids = [run.save({"n": n}).id for n in range(2)]
        key = "id" if table == "checkpoints" else "checkpoint"
        update = f"UPDATE {{}}.{table} SET {column} = %s WHERE {key} = %s"
        ((good,),) = access.run(f"SELECT {column} FROM {{}}.{table} WHERE {key} = %s", (ids[1],))
        for changed in bits(bytes(good), 97):
            access.run(update, (changed, ids[1]))
            with pytest.raises(StepkeepError):
                run.load(ids[1])
            newest = run.latest()
            assert newest is not None
            assert newest.state == {"n": 0}
        access.run(update, (good, ids[1]))
        assert run.load(ids[1]).state == {"n": 1}
    logging.disable(logging.NOTSET)
