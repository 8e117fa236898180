"""Copies: of a store in clear into an encrypted one, of an encrypted one with its keys, and by recovery."""

from __future__ import annotations

import json
from base64 import b64decode
from pathlib import Path

import pytest

import stepkeep
from stepkeep import api
from stepkeep.errors import Conflict, InvalidInput, Unsupported
from tests.encryption.stores_of_encryption import KEY, MARK, marked_files, opened, rows


@pytest.fixture
def plain(tmp_path: Path) -> Path:
    path = tmp_path / "plain" / "plain.db"
    with opened(path, key=None) as store:
        run = store.session("run", metadata={"who": MARK})
        for step in range(20):
            run.save({"text": f"{MARK} " * step * 20}, step=step, message=MARK, tags=[MARK])
        run.branches.fork("5", name="side")
        run.save({"text": "aside"})
        store.engine.annotate(run.info.uid, run.latest().header.id, "note", "n", MARK.encode())
    return path


def headers(store: stepkeep.Store) -> list[stepkeep.Header]:
    return list(store.get("run").history(limit=None, branch=None))


def test_an_encrypted_copy_has_everything_and_remembers_its_chain(plain: Path, tmp_path: Path) -> None:
    """Ids, numbers and words are the same; chain values are new, whole, and the old ones are kept inside."""
    path = tmp_path / "sealed" / "sealed.db"
    report = api.copy_store(f"sqlite:{plain}", f"sqlite:{path}", key=KEY, encrypt=True)
    assert report.is_whole
    assert report.copied == 21
    assert marked_files(path.parent) == []
    with opened(plain, key=None) as source, opened(path) as copy:
        before, after = headers(source), headers(copy)
        assert [each.id for each in after] == [each.id for each in before]
        assert [each.message for each in after] == [each.message for each in before]
        assert {each.contents["state"].digest for each in after} == {
            each.contents["state"].digest for each in before
        }
        assert not {each.chain for each in after} & {each.chain for each in before}
        assert copy.verify().is_intact
        assert copy.get("run").latest().state == {"text": "aside"}
        cipher, uid = copy.engine.backend.cipher, copy.get("run").info.uid
        for old in before:
            ((raw,),) = rows(path, "SELECT header FROM checkpoints WHERE id = ?", old.id)
            clear = bytes(raw)[: bytes(raw).rfind(b',"cipher":"')]
            record = b64decode(json.loads(raw)["cipher"])[:-5]
            inside = cipher.decrypt(record, b'[1,"header"]' + clear)
            assert json.loads(inside)["was"] == old.chain
        assert uid == source.get("run").info.uid
    again = api.copy_store(f"sqlite:{plain}", f"sqlite:{path}", key=KEY, encrypt=True)
    assert (again.copied, again.present) == (0, 21)


def test_what_is_new_at_the_source_is_brought_over(plain: Path, tmp_path: Path) -> None:
    path = tmp_path / "sealed.db"
    api.copy_store(f"sqlite:{plain}", f"sqlite:{path}", key=KEY, encrypt=True)
    with opened(plain, key=None) as store:
        store.get("run").save({"text": "more"})
    assert api.copy_store(f"sqlite:{plain}", f"sqlite:{path}", key=KEY).copied == 1
    with opened(path) as copy:
        assert copy.get("run").latest().state == {"text": "more"}
        assert copy.verify().is_intact


def test_the_copy_of_an_encrypted_store_has_its_keys(plain: Path, tmp_path: Path) -> None:
    """Byte for byte the same headers; and into a store with other keys everything is encrypted anew."""
    one, two, three = (tmp_path / f"{name}.db" for name in ("one", "two", "three"))
    api.copy_store(f"sqlite:{plain}", f"sqlite:{one}", key=KEY, encrypt=True)
    with opened(one) as store:
        assert store.copy(f"sqlite:{two}").is_whole
    sql = "SELECT header FROM checkpoints ORDER BY seq"
    assert rows(one, sql) == rows(two, sql)
    opened(three, key=b"3" * 32, encrypt=True).close()
    with opened(one) as store:
        assert store.copy(f"sqlite:{three}", key=b"3" * 32).is_whole
    assert rows(one, sql) != rows(three, sql)
    for path, key in ((two, KEY), (three, b"3" * 32)):
        with opened(path, key=key) as copy:
            assert copy.verify().is_intact
            assert copy.get("run").latest().state == {"text": "aside"}


def test_nothing_leaves_an_encrypted_store_in_clear_by_a_copy(plain: Path, tmp_path: Path) -> None:
    """Neither into readable files nor into a store that has sessions in clear."""
    sealed = tmp_path / "sealed.db"
    api.copy_store(f"sqlite:{plain}", f"sqlite:{sealed}", key=KEY, encrypt=True)
    with opened(tmp_path / "other.db", key=None) as other:
        other.session("theirs").save({"a": 1})
    with opened(sealed) as store:
        with pytest.raises(Unsupported):
            store.copy(f"files:{tmp_path}/files")
        with pytest.raises(Conflict):
            store.copy(f"sqlite:{tmp_path}/other.db")
    with pytest.raises(InvalidInput) as error:
        api.copy_store(f"sqlite:{sealed}", f"sqlite:{tmp_path}/new.db", key=b"x" * 32)
    assert error.value.code == "key_wrong"


def test_a_damaged_encrypted_store_is_recovered_page_by_page(plain: Path, tmp_path: Path) -> None:
    """With its key record, without which nothing could be read any more."""
    sealed, new = tmp_path / "sealed" / "sealed.db", tmp_path / "sealed" / "new.db"
    api.copy_store(f"sqlite:{plain}", f"sqlite:{sealed}", key=KEY, encrypt=True)
    content = bytearray(sealed.read_bytes())
    content[100:108] = bytes(8)  # the b-tree header of the schema
    sealed.write_bytes(content)
    report = api.recover(f"sqlite:{sealed}", f"sqlite:{new}", key=KEY)
    assert report.by_pages
    assert report.copied.copied == 21
    with opened(new) as store:
        assert store.get("run").latest().state == {"text": "aside"}
        assert store.verify().is_intact
    assert marked_files(sealed.parent) == []
