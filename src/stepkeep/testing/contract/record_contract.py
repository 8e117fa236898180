"""Reading headers, bodies and blobs: filters, orders, pages, chains, re-encoding."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from stepkeep.errors import Conflict, NotFound
from stepkeep.model import Header, Status
from stepkeep.storage.port import Backend, BlobSize, Body, HeaderQuery
from stepkeep.testing.builders import (
    START_US,
    append,
    append_one,
    delta_on,
    draft,
    headers,
    ids,
    info,
    item,
    keyframe,
    new_blob,
    new_session,
    redundant_on,
    save,
)
from stepkeep.testing.contract.contract_fixtures import HOSTILE_NAMES, Fixtures, refused


def walk(backend: Backend, *, size: int, **conditions: Any) -> list[Header]:
    """All headers of a query, read in pages of that size."""
    walked: list[Header] = []
    after = None
    while page := headers(backend, limit=size, after=after, **conditions):
        assert len(page) <= size
        assert page[0] not in walked, "a page begins again"
        walked += page
        last = page[-1]
        after = (last.seq if conditions.get("session") else last.time_us, last.id)
    return walked


class HeaderContract(Fixtures):
    def test_within_a_session_the_order_is_by_seq(self, backend: Backend, uid: str) -> None:
        """Times that go back do not matter there."""
        first = save(backend, uid, time_us=START_US + 2)
        second = save(backend, uid, time_us=START_US + 1)
        assert headers(backend, session=uid) == [second, first]
        assert headers(backend, session=uid, newest_first=False) == [first, second]

    def test_across_sessions_the_order_is_that_of_ids(self, backend: Backend, uid: str, other: str) -> None:
        """An id begins with the time; equal times are told apart by the rest, so that paging is exact."""
        times = (START_US + 2, START_US + 1, START_US + 1, START_US + 3)
        saved = [save(backend, each, time_us=time_us).id for each in (uid, other) for time_us in times]
        assert ids(backend) == sorted(saved, reverse=True)
        assert ids(backend, newest_first=False) == sorted(saved)

    def test_each_condition_selects(self, backend: Backend, uid: str) -> None:
        """Every field of a query is a condition of its own."""
        save(backend, uid, id="cp_x1", time_us=START_US + 1, step=1, tags=("t", "u"))
        save(backend, uid, id="cp_x2", time_us=START_US + 2, branch="b", external_id="e", step=2)
        save(backend, uid, id="cp_y3", time_us=START_US + 3, status=Status.FAILED, tags=("tt",))
        expected: list[tuple[dict[str, Any], list[str]]] = [
            ({"branch": "b"}, ["cp_x2"]),
            ({"ids": ("cp_x1", "cp_y3", "cp_z")}, ["cp_y3", "cp_x1"]),
            ({"ids": ()}, []),
            ({"id_prefix": "cp_x"}, ["cp_x2", "cp_x1"]),
            ({"external_id": "e"}, ["cp_x2"]),
            ({"step": 1}, ["cp_x1"]),
            ({"status": Status.FAILED}, ["cp_y3"]),
            ({"tag": "t"}, ["cp_x1"]),
            ({"tag": "u"}, ["cp_x1"]),
            ({"min_seq": 2}, ["cp_y3", "cp_x2"]),
            ({"max_seq": 2}, ["cp_x2", "cp_x1"]),
            ({"since_us": START_US + 2}, ["cp_y3", "cp_x2"]),
            ({"until_us": START_US + 2}, ["cp_x2", "cp_x1"]),
            ({"limit": 2}, ["cp_y3", "cp_x2"]),
            ({"limit": 0}, []),
            ({"step": 0}, []),
            ({}, ["cp_y3", "cp_x2", "cp_x1"]),
        ]
        for conditions, found in expected:
            assert ids(backend, session=uid, **conditions) == found, conditions
            assert ids(backend, **conditions) == found, conditions

    def test_conditions_unite_with_and(self, backend: Backend, uid: str) -> None:
        """Only what meets all of them is found."""
        for number in range(8):
            save(backend, uid, branch="ab"[number & 1], step=number >> 1 & 1, tags=("xy"[number >> 2],))
        (found,) = headers(backend, session=uid, branch="b", step=1, tag="y", min_seq=2, since_us=START_US)
        assert found.seq == 8

    def test_a_session_hides_others(self, backend: Backend, uid: str) -> None:
        """A query within a session never shows another one's checkpoints, not even by id."""
        other = backend.create_session(new_session()).uid
        mine, theirs = save(backend, uid), save(backend, other)
        assert ids(backend, session=uid, ids=(mine.id, theirs.id)) == [mine.id]
        assert ids(backend, session=other, id_prefix="cp_") == [theirs.id]

    @pytest.mark.parametrize("name", HOSTILE_NAMES)
    def test_a_project_selects_its_sessions(self, backend: Backend, uid: str, name: str) -> None:
        """The project is the session's, and any text."""
        one = backend.create_session(new_session(project=name)).uid
        two = backend.create_session(new_session(project=name)).uid
        save(backend, uid)
        first, second = save(backend, one), save(backend, two)
        assert headers(backend, project=name) == [second, first]
        assert headers(backend, project=name, session=one) == [first]
        assert headers(backend, project=name, session=uid) == []

    def test_an_id_prefix_is_literal(self, backend: Backend, uid: str) -> None:
        """Case counts, and `%` and `_` in a prefix match themselves only."""
        for id_ in ("cp_a", "cpXa", "CP_A", "cp%a", "cp\\a"):
            save(backend, uid, id=id_)
        for prefix, found in (
            ("cp_", ["cp_a"]),
            ("cp%", ["cp%a"]),
            ("cp\\", ["cp\\a"]),
            ("%", []),
            ("_", []),
        ):
            assert ids(backend, session=uid, id_prefix=prefix) == found
            assert ids(backend, id_prefix=prefix) == found
        assert len(ids(backend, session=uid, id_prefix="cp")) == 4

    @pytest.mark.parametrize("name", HOSTILE_NAMES)
    def test_an_id_prefix_is_any_text(self, backend: Backend, uid: str, name: str) -> None:
        """A prefix with any character finds what starts with it, and nothing else."""
        save(backend, uid)
        assert ids(backend, id_prefix=name) == []
        save(backend, uid, id=name + "tail")
        assert ids(backend, id_prefix=name) == [name + "tail"]
        assert ids(backend, ids=(name + "tail", name)) == [name + "tail"]

    def test_many_ids_can_be_asked_for(self, backend: Backend, uid: str) -> None:
        """The number of ids in a query has no small limit."""
        first = save(backend, uid)
        wanted = tuple(f"cp_{number}" for number in range(5000))
        assert ids(backend, session=uid, ids=(*wanted, first.id)) == [first.id]

    @pytest.mark.parametrize("newest_first", [True, False])
    @pytest.mark.parametrize("size", [1, 7, 1000])
    def test_pages_within_a_session(self, backend: Backend, uid: str, newest_first: bool, size: int) -> None:
        """`limit` and `after` walk over all headers exactly once, in either order."""
        append(backend, *(item(draft(uid, branch=("a", "b")[n % 2])) for n in range(60)))
        for conditions in ({}, {"branch": "a"}, {"min_seq": 10, "max_seq": 40}):
            query = {"session": uid, "newest_first": newest_first, **conditions}
            assert walk(backend, size=size, **query) == headers(backend, **query)

    @pytest.mark.parametrize("newest_first", [True, False])
    @pytest.mark.parametrize("size", [1, 7, 1000])
    def test_pages_across_sessions(self, backend: Backend, uid: str, newest_first: bool, size: int) -> None:
        """Also where many times are equal."""
        uids = [uid, *(backend.create_session(new_session(project="p")).uid for _ in range(3))]
        append(backend, *(item(draft(uids[n % 4], time_us=START_US + n // 9)) for n in range(60)))
        for conditions in ({}, {"project": "p"}, {"since_us": START_US + 2, "until_us": START_US + 4}):
            query = {"newest_first": newest_first, **conditions}
            assert walk(backend, size=size, **query) == headers(backend, **query)
        assert len(headers(backend)) == 60

    def test_many_headers_are_listed(self, backend: Backend, uid: str) -> None:
        """A list longer than any page is complete and in order, within a session and across."""
        append(backend, *(item(draft(uid)) for _ in range(700)))
        assert [row.seq for row in backend.headers(HeaderQuery(session=uid))] == list(range(700, 0, -1))
        assert len(set(ids(backend))) == 700
        assert len(ids(backend, limit=600)) == 600

    @pytest.mark.parametrize("newest_first", [True, False])
    def test_headers_can_be_written_while_they_are_listed(
        self, backend: Backend, uid: str, newest_first: bool
    ) -> None:
        """Nothing is held between pages: what stays is seen once, whatever else is saved and removed."""
        append(backend, *(item(draft(uid)) for _ in range(400)))
        stays = {header.id for header in headers(backend, session=uid) if header.seq % 5}
        seen = []
        for row in backend.headers(HeaderQuery(session=uid, newest_first=newest_first)):
            seen.append(row.id)
            if row.seq <= 400 and row.seq % 5 == 0:
                backend.remove(uid, [row.id])
            elif row.seq <= 10:
                save(backend, uid)
        assert len(seen) == len(set(seen))
        assert stays <= set(seen)

    def test_two_lists_can_be_read_at_once(self, backend: Backend, uid: str) -> None:
        """An iterator left half read disturbs nobody."""
        append(backend, *(item(draft(uid)) for _ in range(300)))
        one, two = (backend.headers(HeaderQuery(session=uid)) for _ in range(2))
        assert [next(one).seq, next(two).seq, next(one).seq] == [300, 300, 299]
        save(backend, uid)
        assert next(two).seq == 299


def checkpoints(chain: list[Body]) -> list[str]:
    return [body.checkpoint for body in chain]


class BodyContract(Fixtures):
    def test_a_body_comes_back_equal(self, backend: Backend, uid: str) -> None:
        """Every field and every byte of a body record is kept; its blobs are a set, whatever their order."""
        blobs = tuple(new_blob(data) for data in (b"one", b"two"))
        base, new = save(backend, uid), draft(uid)
        data = bytes(range(256)) * 1000
        state = Body(
            checkpoint=new.id,
            name="state",
            codec="prefix",
            size=1_000_000,
            stored_size=len(data),
            digest="d" * 64,
            base=base.id,
            position=7,
            group_bytes=12_345,
            blobs=tuple(sorted(blob.digest for blob in blobs)),
            data=data,
        )
        empty = keyframe(new.id, "details", data=b"")
        append_one(backend, item(new, bodies=[state, empty], blobs=blobs))
        found = backend.body_chain(uid, new.id, "state")[0]
        assert replace(found, blobs=tuple(sorted(found.blobs))) == state
        assert backend.body_chain(uid, new.id, "details") == [empty]

    def test_a_chain_is_target_first(self, backend: Backend, uid: str) -> None:
        """Every body needed to rebuild the target follows it, up to the keyframe."""
        line = [save(backend, uid).id]
        for _ in range(30):
            line.append(save(backend, uid, base=line[-1]).id)
        assert checkpoints(backend.body_chain(uid, line[-1], "state")) == line[::-1]
        assert checkpoints(backend.body_chain(uid, line[0], "state")) == [line[0]]

    def test_a_chain_follows_one_name(self, backend: Backend, uid: str) -> None:
        """Bodies of other names of the same checkpoints are not part of it."""
        first, second = draft(uid), draft(uid)
        append_one(backend, item(first, bodies=[keyframe(first.id), keyframe(first.id, "files")]))
        append_one(
            backend, item(second, bodies=[keyframe(second.id), delta_on(first.id, second.id, "files")])
        )
        assert checkpoints(backend.body_chain(uid, second.id, "state")) == [second.id]
        assert backend.body_chain(uid, second.id, "files") == [
            delta_on(first.id, second.id, "files"),
            keyframe(first.id, "files"),
        ]

    def test_a_head_comes_with_all_it_takes(self, backend: Backend, uid: str) -> None:
        """Session, header and chains are what single reads give; a backend that cannot bring them says None."""
        assert backend.load_head(uid) is None
        first = save(backend, uid)
        second = save(backend, uid, base=first.id)
        save(backend, uid, branch="b")
        for branch, header in (("main", second), ("b", headers(backend, session=uid, branch="b")[0])):
            head = backend.load_head(uid, branch)
            if head is not None:
                assert head.session == backend.session(uid)
                assert [head.row] == list(backend.headers(HeaderQuery(session=uid, ids=(header.id,))))
                assert head.chains == {"state": backend.body_chain(uid, header.id, "state")}
        known = backend.load_head(uid, known=(second.id, "state"))
        if known is not None:
            assert known.row.id == second.id
            assert checkpoints(known.chains["state"]) in ([second.id], [])
        assert backend.load_head(uid, "nowhere") is None

    def test_there_is_no_chain_without_a_body(self, backend: Backend, uid: str) -> None:
        """An unknown checkpoint, name or another session's checkpoint gives an empty list."""
        foreign = save(backend, backend.create_session(new_session()).uid)
        header = save(backend, uid)
        assert backend.body_chain(uid, "cp_nothing", "state") == []
        assert backend.body_chain(uid, header.id, "files") == []
        assert backend.body_chain(uid, foreign.id, "state") == []

    @pytest.mark.parametrize("name", HOSTILE_NAMES)
    def test_a_body_name_is_any_text(self, backend: Backend, uid: str, name: str) -> None:
        """A name with quotes, wildcards or newlines finds its body and no other."""
        new = draft(uid)
        body = keyframe(new.id, name)
        append_one(backend, item(new, bodies=[keyframe(new.id), body]))
        assert backend.body_chain(uid, new.id, name) == [body]

    def test_body_records_of_some_checkpoints(self, backend: Backend, uid: str) -> None:
        """Only theirs are read; of none, none; of very many, all of theirs."""
        saved = [save(backend, uid) for _ in range(3)]
        assert [info.checkpoint for info in backend.bodies(uid, [saved[1].id])] == [saved[1].id]
        assert backend.bodies(uid, []) == []
        many = [f"cp_{number}" for number in range(1000)]
        assert backend.bodies(uid, [*many, saved[0].id]) == backend.bodies(uid, [saved[0].id])
        assert len(backend.bodies(uid)) == 3

    def test_bodies_lists_every_record_without_bytes(self, backend: Backend, uid: str) -> None:
        """Hidden bodies and redundant deltas are listed, other sessions' are not."""
        save(backend, backend.create_session(new_session()).uid)
        first = save(backend, uid)
        second = draft(uid)
        records = [delta_on(first.id, second.id, blobs=()), keyframe(second.id, "files")]
        redundant = redundant_on(first.id, second.id, "files")
        append_one(backend, item(second, bodies=[*records, redundant]))
        backend.remove(uid, [first.id])
        assert set(backend.bodies(uid)) == {info(body) for body in (keyframe(first.id), *records, redundant)}

    # --- redundant deltas ---

    def test_a_redundant_delta_stands_beside_its_keyframe(self, backend: Backend, uid: str) -> None:
        """It has its own reading, and is never part of a chain."""
        first, new = save(backend, uid), draft(uid)
        redundant = redundant_on(first.id, new.id)
        append_one(backend, item(new, bodies=[keyframe(new.id), redundant]))
        assert backend.redundant_delta(uid, new.id, "state") == redundant
        assert backend.body_chain(uid, new.id, "state") == [keyframe(new.id)]
        assert backend.redundant_delta(uid, first.id, "state") is None
        assert backend.redundant_delta(uid, "cp_nothing", "state") is None

    # --- replace_body ---

    def test_a_body_can_be_stored_otherwise(self, backend: Backend, uid: str) -> None:
        """A delta becomes a keyframe; headers do not change (V4), and its old base is free to go (V5)."""
        first = save(backend, uid)
        second = save(backend, uid, base=first.id)
        third = save(backend, uid, base=second.id)
        before = headers(backend, session=uid)
        new = keyframe(second.id, data=b"whole", position=0)
        backend.replace_body(uid, new, expect_digest=delta_on(first.id, second.id).digest)
        assert backend.body_chain(uid, third.id, "state") == [delta_on(second.id, third.id), new]
        assert headers(backend, session=uid) == before
        assert backend.bodies(uid).count(info(new)) == 1
        backend.remove(uid, [first.id])
        assert backend.usage(uid).hidden_bodies == 0

    def test_a_keyframe_can_become_a_delta(self, backend: Backend, uid: str) -> None:
        """The new record's base is what keeps a body alive from then on."""
        first, second = save(backend, uid), save(backend, uid)
        delta = delta_on(first.id, second.id)
        backend.replace_body(uid, delta, expect_digest=keyframe(second.id).digest)
        backend.remove(uid, [first.id])
        backend.sweep()
        assert backend.body_chain(uid, second.id, "state") == [delta, keyframe(first.id)]

    def test_replacing_compares_the_digest(self, backend: Backend, uid: str) -> None:
        """Of two who re-encode the same body, the second is refused."""
        header = save(backend, uid)
        old, new = keyframe(header.id), keyframe(header.id, data=b"new")
        backend.replace_body(uid, new, expect_digest=old.digest)
        with pytest.raises(Conflict):
            backend.replace_body(uid, keyframe(header.id, data=b"late"), expect_digest=old.digest)
        assert backend.body_chain(uid, header.id, "state") == [new]

    def test_replacing_needs_its_base(self, backend: Backend, uid: str) -> None:
        """A new encoding against what is not stored is `base_gone`."""
        header = save(backend, uid)
        with refused("base_gone"):
            backend.replace_body(
                uid, delta_on("cp_nothing", header.id), expect_digest=keyframe(header.id).digest
            )
        assert backend.body_chain(uid, header.id, "state") == [keyframe(header.id)]

    def test_replacing_drops_the_redundant_delta(self, backend: Backend, uid: str) -> None:
        """A redundant is of the encoding before; redundant deltas based on the body keep their base."""
        first, second, third = save(backend, uid), draft(uid), draft(uid)
        append_one(backend, item(second, bodies=[keyframe(second.id), redundant_on(first.id, second.id)]))
        append_one(backend, item(third, bodies=[keyframe(third.id), redundant_on(second.id, third.id)]))
        new = keyframe(second.id, data=b"new")
        backend.replace_body(uid, new, expect_digest=keyframe(second.id).digest)
        assert backend.redundant_delta(uid, second.id, "state") is None
        assert backend.redundant_delta(uid, third.id, "state") == redundant_on(second.id, third.id)

    def test_replacing_changes_which_blobs_are_kept(self, backend: Backend, uid: str) -> None:
        """The blobs of the new record are kept alive, and those only of the old one are not."""
        one, two, new = new_blob(b"one"), new_blob(b"two"), draft(uid)
        body = keyframe(new.id, blobs=(one.digest, two.digest))
        append_one(backend, item(new, bodies=[body], blobs=[one, two]))
        backend.replace_body(uid, replace(body, blobs=(two.digest,)), expect_digest=body.digest)
        backend.sweep()
        assert backend.has_blobs([one.digest, two.digest]) == {two.digest}

    def test_a_hidden_body_can_be_replaced(self, backend: Backend, uid: str) -> None:
        """What others are based on can be re-encoded too."""
        first = save(backend, uid)
        second = save(backend, uid, base=first.id)
        backend.remove(uid, [first.id])
        new = keyframe(first.id, data=b"new")
        backend.replace_body(uid, new, expect_digest=keyframe(first.id).digest)
        assert backend.body_chain(uid, second.id, "state")[-1] == new

    def test_only_a_stored_body_can_be_replaced(self, backend: Backend, uid: str) -> None:
        """There is nothing to exchange where there is no body."""
        header = save(backend, uid)
        for body in (keyframe("cp_nothing"), keyframe(header.id, "files")):
            with pytest.raises(NotFound):
                backend.replace_body(uid, body, expect_digest=body.digest)

    # --- blobs ---

    def test_a_blob_comes_back_equal(self, backend: Backend, uid: str) -> None:
        """Every field and byte is kept, also of an empty one; an unknown digest is None."""
        blobs = [
            replace(new_blob(bytes(range(256))), codec="zstd", size=999, stored_digest="s"),
            new_blob(b""),
        ]
        append_one(backend, item(draft(uid), blobs=blobs))
        assert [backend.blob(blob.digest) for blob in blobs] == blobs
        assert backend.blob("0" * 64) is None

    def test_a_blob_is_stored_once(self, backend: Backend, uid: str, other: str) -> None:
        """Sent again, by any session, it is the same blob, and the first bytes stay."""
        blob = new_blob(b"shared")
        append_one(backend, item(draft(uid), blobs=[blob]))
        append_one(backend, item(draft(other), blobs=[replace(blob, codec="other", data=b"recoded")]))
        assert backend.blob(blob.digest) == blob
        assert backend.usage().blobs == 1

    def test_blobs_of_a_session_are_weighed(self, backend: Backend, uid: str, other: str) -> None:
        """What each one takes, and whether another session names it too; those of others are not told."""
        own, shared, foreign = new_blob(b"own"), new_blob(b"of both"), new_blob(b"of the other")
        for session, blobs in ((uid, [own, shared]), (other, [shared, foreign])):
            new = draft(session)
            body = replace(keyframe(new.id), blobs=tuple(sorted(blob.digest for blob in blobs)))
            append_one(backend, item(new, bodies=[body], blobs=blobs))
        assert backend.blob_sizes(uid) == {
            own.digest: BlobSize(len(own.data), is_shared=False),
            shared.digest: BlobSize(len(shared.data), is_shared=True),
        }
        assert backend.blob_sizes(backend.create_session(new_session()).uid) == {}

    def test_has_blobs_answers_for_many(self, backend: Backend, uid: str) -> None:
        """Those that are stored, of any number asked for."""
        blob = new_blob(b"there")
        append_one(backend, item(draft(uid), blobs=[blob]))
        asked = [*(new_blob(str(number).encode()).digest for number in range(3000)), blob.digest, blob.digest]
        assert backend.has_blobs(asked) == {blob.digest}
        assert backend.has_blobs([]) == set()
