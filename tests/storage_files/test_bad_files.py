"""Files that are damaged, foreign, or not files: listing leaves them out, loading says why, saving goes on."""

from __future__ import annotations

import json
import logging
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

import stepkeep
from stepkeep.codec import document, integrity
from stepkeep.errors import Corrupt, StepkeepError, Unsupported
from stepkeep.storage.files import FilesBackend, Layout
from tests.storage_files.test_store import documents, load, names, opened, shell

SCHEMA, MISMATCH = "checkpoint_schema_invalid", "checkpoint_integrity_mismatch"


def resealed(data: bytes) -> bytes:
    covered = data[: data.rindex(b',"integrity"')]
    return covered + document.integrity_line(integrity.digest(covered))


BAD: dict[str, tuple[Callable[[bytes], bytes], str]] = {
    "empty": (lambda _: b"", SCHEMA),
    "truncated": (lambda data: data[: len(data) // 2], SCHEMA),
    "no json": (lambda _: b"nothing of the kind\n", SCHEMA),
    "zeroes": (lambda data: bytes(len(data)), SCHEMA),
    "wrong schema": (
        lambda data: resealed(data.replace(b'"status":"in_progress"', b'"status":"odd"')),
        SCHEMA,
    ),
    "wrong checksum": (lambda data: data.replace(b'"n":', b'"m":'), MISMATCH),
    "no checksum": (lambda data: data[: data.rindex(b',"integrity"')] + b"}\n", MISMATCH),
    "other json": (lambda _: b'{"a":1}\n', MISMATCH),
    "newer": (
        lambda data: resealed(data.replace(b'"stepkeep":{"version":1', b'"stepkeep":{"version":2')),
        "format_newer",
    ),
}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "store"


def fill(root: Path, layout: Layout, count: int = 3) -> list[str]:
    with opened(root, layout) as store:
        run = store.session("r", profile="archive")
        return [run.save({"n": n}).id for n in range(count)]


def file_of(root: Path, id: str) -> Path:
    """The file of a checkpoint; the copy of the newest is not it."""
    (file,) = [
        file
        for file in documents(root)
        if id in file.read_text() and file.name != "latest.json" and f'"id":"{id}"' in header_line(file)
    ]
    return file


def header_line(file: Path) -> str:
    lines = file.read_text().splitlines()
    return lines[lines.index(',"header":') + 1]


@pytest.mark.parametrize("layout", Layout)
@pytest.mark.parametrize("kind", BAD)
def test_a_bad_file_is_left_out_and_told(
    root: Path, layout: Layout, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Listing skips it with a warning, loading raises its code, verify finds it, and the others load."""
    ids = fill(root, layout)
    damage, code = BAD[kind]
    file = file_of(root, ids[1])
    file.write_bytes(damage(file.read_bytes()))
    with opened(root) as store:
        run = store.get("r")
        with caplog.at_level(logging.WARNING):
            assert [header.id for header in run.history()] == [ids[2], ids[0]]
        assert ids[1] in caplog.text
        assert code in caplog.text
        with pytest.raises((Corrupt, Unsupported)) as refusal:
            run.load(ids[1])
        assert refusal.value.code == code
        assert ids[1] in {finding.checkpoint for finding in run.verify().findings}
        assert run.latest().state == {"n": 2}
        assert run.save({"n": 3}).seq == 4


@pytest.mark.parametrize("layout", Layout)
@pytest.mark.parametrize("kind", [kind for kind in BAD if kind != "newer"])
def test_a_bad_newest_file_is_fallen_back_from(root: Path, layout: Layout, kind: str) -> None:
    """The newest older one that is intact is loaded, and it says so; `run` still has the copy."""
    ids = fill(root, layout)
    file = file_of(root, ids[2])
    damaged = BAD[kind][0](file.read_bytes())
    file.write_bytes(damaged)
    with opened(root) as store:
        latest = store.get("r").latest()
        if layout is Layout.RUN:
            assert (latest.id, latest.fallback) == (ids[2], None)
            (root / "checkpoints/r/latest.json").write_bytes(damaged)
            latest = store.get("r").latest()
        assert latest.id == ids[1]
        assert latest.fallback is not None
        store.get("r").save({"n": 3})
    with opened(root) as store:
        assert store.get("r").latest().state == {"n": 3}
    assert damaged in [each.read_bytes() for each in documents(root)], "evidence is never overwritten"


def test_all_bad_is_told_with_the_number_tried(root: Path) -> None:
    """Exhausted: every one of them was tried, latest included."""
    fill(root, Layout.WORKFLOW)
    for file in documents(root):
        file.write_text("{")
    with opened(root) as store, pytest.raises(Corrupt, match="tried 3 checkpoints") as refusal:
        store.get("r").latest()
    assert refusal.value.code == "no_valid_checkpoint"


@pytest.mark.parametrize("layout", Layout)
def test_a_missing_file_is_told(root: Path, layout: Layout) -> None:
    """A document that was removed by hand is missing, not forgotten; the others load."""
    ids = fill(root, layout)
    file_of(root, ids[1]).unlink()
    with opened(root) as store:
        run = store.get("r")
        assert [header.id for header in run.history()] == [ids[2], ids[0]]
        assert not run.verify().is_intact
        assert run.latest().state == {"n": 2}


@pytest.mark.parametrize("is_stale", [True, False])
def test_latest_json_is_only_a_hint(root: Path, is_stale: bool) -> None:
    """Missing or stale, the newest that verifies is taken."""
    ids = fill(root, Layout.RUN)
    latest = root / "checkpoints/r/latest.json"
    if is_stale:
        latest.write_bytes((root / f"checkpoints/r/history/{ids[0]}.json").read_bytes())
    else:
        latest.unlink()
    with opened(root) as store:
        assert store.get("r").latest().id == ids[2]
        new = store.get("r").save({"n": 3})
        assert load(latest)["snapshot_id"] == new.id


# --- run: the history gets back what only latest.json has ------------------------------------------------------


def keep_time(file: Path, data: bytes) -> None:
    """Other bytes of the same length and time, as a failing disk leaves them."""
    found = file.stat()
    file.write_bytes(data)
    os.utime(file, ns=(found.st_atime_ns, found.st_mtime_ns))


def in_its_place(file: Path, data: bytes) -> None:
    file.unlink()
    file.mkdir()
    (file / "note.txt").write_bytes(data[:10])


HARM: dict[str, Callable[[Path, bytes], object]] = {
    "edited": lambda file, data: file.write_bytes(data.replace(b'"n":2', b'"n":7')),
    "empty": lambda file, _: file.write_bytes(b""),
    "same time": lambda file, data: keep_time(file, data.replace(b'"n":2', b'"n":7')),
    "missing": lambda file, _: file.unlink(),
    "directory": in_its_place,
}


@pytest.mark.parametrize("is_open", [True, False])
@pytest.mark.parametrize("harm", HARM)
def test_a_save_restores_the_newest_document_from_its_copy(root: Path, harm: str, is_open: bool) -> None:
    """Verify or a load notices the damage, and latest.json is overwritten only after the history has it again."""
    ids = fill(root, Layout.RUN)
    file = file_of(root, ids[2])
    good = file.read_bytes()
    if not is_open:
        HARM[harm](file, good)
    with opened(root) as store:
        run = store.get("r")
        if is_open:
            HARM[harm](file, good)
        assert run.load(ids[2]).state == {"n": 2}
        if harm != "missing" or is_open:
            found = [finding for finding in run.verify().findings if finding.checkpoint == ids[2]]
            assert "latest.json still has it" in found[0].message
        run.save({"n": 3})
    with opened(root) as store:
        assert store.get("r").load(ids[2]).state == {"n": 2}
        assert store.get("r").verify().is_intact
    assert good in [each.read_bytes() for each in documents(root)]


def test_a_save_alone_notices_a_changed_document(root: Path) -> None:
    """Nobody looked between the damage and the save."""
    ids = fill(root, Layout.RUN)
    file = file_of(root, ids[2])
    good = file.read_bytes()
    with opened(root) as store:
        file.write_bytes(good[:-50])
        store.get("r").save({"n": 3})
        assert file.read_bytes() == good
        assert store.verify().is_intact


def test_a_compressed_newest_document_is_restored_too(root: Path) -> None:
    """The plain document takes its place."""
    ids = fill(root, Layout.RUN)
    backend = FilesBackend(root)
    with stepkeep.Store(backend) as store:
        backend.compress(2**60)
        packed = root / f"checkpoints/r/history/{ids[2]}.json.gz"
        packed.write_bytes(b"")
        assert not store.verify().is_intact
        store.get("r").save({"n": 3})
    with opened(root) as store:
        assert store.get("r").load(ids[2]).state == {"n": 2}
        assert store.verify().is_intact
    assert not packed.exists()


def test_a_save_does_not_read_the_document_before_it(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Size and time tell that it is as it was written."""
    fill(root, Layout.RUN)
    with opened(root) as store:
        run = store.get("r")
        monkeypatch.setattr("stepkeep.storage.files.document_reader.read_document", None)
        run.save({"n": 3})


@pytest.mark.parametrize("layout", Layout)
def test_a_symbolic_link_is_not_followed(root: Path, layout: Layout, tmp_path: Path) -> None:
    """Neither a linked document nor a linked folder is read or written through (V10)."""
    ids = fill(root, layout)
    file = file_of(root, ids[1])
    outside = tmp_path / "outside.json"
    file.rename(outside)
    file.symlink_to(outside)
    with opened(root) as store:
        with pytest.raises(Corrupt) as refusal:
            store.get("r").load(ids[1])
        assert refusal.value.code == SCHEMA
        assert store.get("r").latest().id == ids[2]


def test_a_linked_folder_is_not_written_through(root: Path, tmp_path: Path) -> None:
    """A session folder that leads elsewhere fails the save, and nothing appears there."""
    outside = tmp_path / "outside"
    outside.mkdir()
    with opened(root, Layout.RUN) as store:
        run = store.session("r")
        (root / "checkpoints").mkdir(mode=0o700)
        (root / "checkpoints/r").symlink_to(outside)
        with pytest.raises(StepkeepError) as refusal:
            run.save({"n": 1})
        assert (refusal.value.code, refusal.value.retryable) == ("checkpoint_atomic_write_failed", False)
        assert list(outside.iterdir()) == []
        (root / "checkpoints/r").unlink()
        assert run.save({"n": 1}).seq == 1


@pytest.mark.parametrize("layout", Layout)
def test_an_oversized_file_is_not_read(root: Path, layout: Layout) -> None:
    """A file larger than any checkpoint is refused by its size."""
    ids = fill(root, layout)
    os.truncate(file_of(root, ids[1]), 2 * document.MAX_DOCUMENT_BYTES)
    with opened(root) as store:
        with pytest.raises(Corrupt) as refusal:
            store.get("r").load(ids[1])
        assert refusal.value.code == SCHEMA
        assert [header.id for header in store.get("r").history()] == [ids[2], ids[0]]


FOREIGN = {
    Layout.WORKFLOW: "sessions/r/history/checkpoint-20200101-000000.json",
    Layout.RUN: "checkpoints/r/history/theirs.json",
    Layout.PHASE: "checkpoints/ckpt-2020-plan.json",
}


@pytest.mark.parametrize("layout", Layout)
def test_foreign_files_are_ignored_and_reported(root: Path, layout: Layout) -> None:
    """A file of another system is never loaded as ours, never touched, and verify names it."""
    fill(root, layout)
    foreign = root / FOREIGN[layout]
    foreign.write_text('{"version": 1}')
    (foreign.parent / "README.txt").write_text("notes")
    with opened(root) as store:
        run = store.get("r")
        assert len(list(run.history())) == 3
        assert [finding.session for finding in store.verify().findings] == [FOREIGN[layout]]
        run.save({"n": 3})
    with opened(root) as store:
        assert len(list(store.get("r").history())) == 4
    assert foreign.read_text() == '{"version": 1}'
    foreign.unlink()
    with opened(root) as store:
        assert store.verify().is_intact


def test_a_foreign_checkpoint_json_is_kept(root: Path) -> None:
    """What another system left in the place of ours is archived, not overwritten."""
    pointer = root / "sessions/r/checkpoint.json"
    pointer.parent.mkdir(parents=True)
    pointer.write_text('{"theirs": true}')
    with opened(root, Layout.WORKFLOW) as store:
        store.session("r").save({"n": 1})
        assert store.get("r").latest().state == {"n": 1}
    contents = [file.read_text() for file in documents(root)]
    assert '{"theirs": true}' in contents
    with opened(root) as store:
        assert [header.seq for header in store.get("r").history()] == [1]


def test_a_foreign_checkpoint_json_is_kept_beside_another(root: Path) -> None:
    """Two of them with the same time have two names."""
    fill(root, Layout.WORKFLOW, 1)
    pointer = root / "sessions" / "r" / "checkpoint.json"
    for n in range(2):
        pointer.write_text(f'{{"mine":{n}}}')
        os.utime(pointer, (1_700_000_000, 1_700_000_000))
        shutil.rmtree(root / ".stepkeep")
        with opened(root) as store:
            store.session("r").save({"n": n})
    kept = [file.read_text() for file in pointer.parent.glob("history/*-found*.json")]
    assert sorted(kept) == ['{"mine":0}', '{"mine":1}']


@pytest.mark.parametrize("content", [b'{"theirs":1}\n', b"", b"no json"])
def test_a_foreign_latest_json_is_kept(root: Path, content: bytes) -> None:
    """Another system's newest snapshot is reported, and moves into the history before the first save."""
    pointer = root / "checkpoints" / "r" / "latest.json"
    pointer.parent.mkdir(parents=True)
    pointer.write_bytes(content)
    with opened(root, Layout.RUN) as store:
        (finding,) = store.verify().findings
        assert finding.session == "checkpoints/r/latest.json"
        store.session("r").save({"n": 1})
    (kept,) = pointer.parent.glob("history/latest-*-found.json")
    assert kept.read_bytes() == content
    with opened(root) as store:
        assert [header.seq for header in store.get("r").history()] == [1]
        assert [finding.session for finding in store.verify().findings] == [str(kept.relative_to(root))]


def test_verify_looks_at_latest_json(root: Path) -> None:
    """People read it first, so junk in it is told; the next save mends it."""
    fill(root, Layout.RUN)
    pointer = root / "checkpoints" / "r" / "latest.json"
    pointer.write_text("junk")
    with opened(root) as store:
        (finding,) = store.verify().findings
        assert finding.code == "checkpoint_latest_stale"
        assert "latest.json: the document is not JSON" in finding.message
        store.get("r").save({"n": 3})
        assert store.verify().is_intact


def test_a_damaged_checkpoint_json_stays_damaged_in_the_history(root: Path) -> None:
    """A save archives it as it is, and listing leaves it out as before."""
    fill(root, Layout.WORKFLOW)
    pointer = root / "sessions" / "r" / "checkpoint.json"
    pointer.write_bytes(BAD["wrong schema"][0](pointer.read_bytes()))
    with opened(root) as store:
        store.get("r").save({"n": 3})
    with opened(root) as store:
        assert [header.seq for header in store.get("r").history()] == [4, 2, 1]
        with pytest.raises(Corrupt) as error:
            store.get("r").load(3)
        assert error.value.code == SCHEMA


@pytest.mark.parametrize("kind", ["truncated", "no json", "newer"])
@pytest.mark.parametrize("layout", Layout)
def test_the_reason_is_that_of_the_document(root: Path, layout: Layout, kind: str) -> None:
    """Loading names the file and what is wrong with it, and verify reports it once."""
    ids = fill(root, layout)
    file = file_of(root, ids[1])
    file.write_bytes(BAD[kind][0](file.read_bytes()))
    with opened(root) as store:
        with pytest.raises(StepkeepError) as error:
            store.get("r").load(2)
        assert error.value.code == BAD[kind][1]
        assert file.name in str(error.value)
        assert [(each.seq, each.code) for each in store.verify().findings] == [(2, BAD[kind][1])]


@pytest.mark.parametrize("layout", Layout)
def test_a_second_copy_is_one_checkpoint(root: Path, layout: Layout) -> None:
    """A copy under another name is reported and ignored."""
    ids = fill(root, layout)
    file = file_of(root, ids[1])
    (root / FOREIGN[layout]).write_bytes(file.read_bytes())
    with opened(root) as store:
        assert len(list(store.get("r").history())) == 3
        assert [finding.session for finding in store.verify().findings] == [FOREIGN[layout]]


# --- compressed ------------------------------------------------------------------------------------------------


def test_damage_to_compressed_history_is_noticed(root: Path) -> None:
    """Any flipped bit of the stored bytes. Without the checksum beside it the one inside proves the content."""
    ids = fill(root, Layout.RUN)
    backend = FilesBackend(root)
    with stepkeep.Store(backend) as store:
        backend.compress(2**60)
        run = store.get("r")
        file = root / f"checkpoints/r/history/{ids[0]}.json.gz"
        good = file.read_bytes()
        for at in range(0, len(good), 7):
            changed = bytearray(good)
            changed[at] ^= 4
            file.write_bytes(changed)
            with pytest.raises(Corrupt):
                run.load(ids[0])
        file.write_bytes(good)
        assert run.load(ids[0]).state == {"n": 0}
        Path(f"{file}.sha256").unlink()
        assert run.load(ids[0]).state == {"n": 0}
        assert run.latest().id == ids[2]
        changed = bytearray(good)
        changed[len(good) // 2] ^= 4
        file.write_bytes(changed)
        with pytest.raises(Corrupt):
            run.load(ids[0])


def test_gzip_by_hand_may_have_a_checksum(root: Path) -> None:
    """A bare gzip file is read, and told; a checksum beside it has to match."""
    ids = fill(root, Layout.RUN)
    history = root / "checkpoints/r/history"
    shell(f"gzip {history}/{ids[0]}.json")
    with opened(root) as store:
        assert [header.id for header in store.get("r").history()] == ids[::-1]
        assert [finding.code for finding in store.verify().findings] == ["checkpoint_checksum_missing"]
    shell(f"cd {history} && sha256sum {ids[0]}.json.gz > {ids[0]}.json.gz.sha256")
    with opened(root) as store:
        assert store.verify().is_intact
    shell(f"cd {history} && sha256sum {ids[1]}.json > {ids[0]}.json.gz.sha256")
    with opened(root) as store, pytest.raises(Corrupt):
        store.get("r").load(ids[0])


# --- the disk --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("layout", Layout)
def test_a_store_that_vanishes_fails_its_saves(root: Path, layout: Layout) -> None:
    """Nothing is acknowledged into a directory that is gone, and nothing is made anew behind its back."""
    with opened(root, layout) as store:
        run = store.session("r")
        run.save({"n": 1})
        root.rename(root.with_name("moved"))
        with pytest.raises(StepkeepError) as refusal:
            run.save({"n": 2})
        assert refusal.value.code == "store_replaced"
        assert not root.exists()
        root.with_name("moved").rename(root)
        assert run.save({"n": 2}).seq == 2


@pytest.mark.parametrize("layout", Layout)
def test_data_without_history_keeps_working(root: Path, layout: Layout) -> None:
    """A history folder that was thrown away costs what was in it, and no more."""
    ids = fill(root, layout)
    for file in documents(root):
        if "history" in file.parts or layout is Layout.PHASE:
            file.unlink()
    with opened(root) as store:
        run = store.get("r")
        if layout is not Layout.PHASE:
            assert run.latest().id == ids[2]
        assert run.save({"n": 9}).seq == 4
        assert run.latest().state == {"n": 9}


def test_names_do_not_grow(root: Path) -> None:
    """Every document is plain JSON that other tools can read."""
    fill(root, Layout.WORKFLOW)
    assert all(name.endswith(".json") for name in names(root))
    assert all(json.loads(file.read_text()) for file in documents(root))
