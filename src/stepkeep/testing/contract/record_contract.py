"""Reading headers, bodies and blobs: filters, orders, pages, chains, re-encoding."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from stepkeep.errors import Conflict, NotFound
from stepkeep.model import Header, Status
from stepkeep.storage.port import (
    UNCHANGED,
    Backend,
    BlobSize,
    Body,
    HeaderQuery,
    SessionQuery,
    StoredHead,
)
from stepkeep.testing.builders import (
    START_US,
    append,
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
)
from stepkeep.testing.contract.contract_fixtures import (
    HOSTILE_NAMES,
    Fixtures,
    RawAccess,
    SessionDriver,
    refused,
)


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


any_name = pytest.mark.parametrize("name", HOSTILE_NAMES)


class TextContract(Fixtures):
    """Quotes, wildcards and newlines in a name are data: it finds what has it, and nothing else."""

    @any_name
    def test_a_session_is_named_by_any_text(self, backend: Backend, name: str) -> None:
        """Its key, project and workflow."""
        plain = SessionDriver(backend, backend.create_session(new_session("plain")))
        plain.save()
        first = backend.create_session(new_session(name, project=name, workflow=name))
        second = backend.create_session(new_session(project=name))
        assert backend.session_by_key(name) == first
        for query in (SessionQuery(key_prefix=name), SessionQuery(workflow=name)):
            assert list(backend.sessions(query)) == [first]
        assert {each.uid for each in backend.sessions(SessionQuery(project=name))} == {first.uid, second.uid}
        saved = [SessionDriver(backend, each).save() for each in (first, second)]
        assert headers(backend, project=name) == saved[::-1]
        assert headers(backend, project=name, session=first.uid) == saved[:1]
        assert plain.headers(project=name) == []

    @any_name
    def test_a_checkpoint_is_named_by_any_text(self, backend: Backend, run: SessionDriver, name: str) -> None:
        """Its branch, idempotency key, external id, tags and message; its id and the name of a body."""
        run.save(idempotency_key="plain", external_id="plain", tags=("plain",))
        assert ids(backend, id_prefix=name) == []
        labels: dict[str, Any] = {"external_id": name, "tags": (name,), "message": name}
        header = run.save(branch=name, idempotency_key=name, **labels)
        assert run.save(branch=name, idempotency_key=name).id == header.id
        assert run.branch(name).head == header.id
        for condition in ({"branch": name}, {"external_id": name}, {"tag": name}):
            assert run.headers(**condition) == [header]
            assert headers(backend, **condition) == [header]
        new = run.draft(id=name + "tail")
        body = keyframe(new.id, name)
        run.append(new, bodies=[keyframe(new.id), body])
        assert run.chain(new.id, name) == [body]
        assert ids(backend, id_prefix=name) == [new.id]
        assert ids(backend, ids=(new.id, name)) == [new.id]

    @any_name
    def test_an_annotation_is_named_by_any_text(
        self, backend: Backend, run: SessionDriver, name: str
    ) -> None:
        """Its target, kind and name."""
        backend.annotate(run.uid, "plain", "plain", "plain", b"", time_us=1)
        backend.annotate(run.uid, name, name, name, b"by id", time_us=2)
        backend.annotate(run.uid, (name, name), name, name, b"by external id", time_us=3)
        assert [a.data for a in backend.annotations(run.uid, [name])] == [b"by id"]
        assert [a.data for a in backend.annotations(run.uid, [(name, name)])] == [b"by external id"]
        assert [a.data for a in backend.annotations(run.uid, kind=name)] == [b"by id", b"by external id"]


class HeaderContract(Fixtures):
    def test_within_a_session_the_order_is_by_seq(self, run: SessionDriver) -> None:
        """Times that go back do not matter there."""
        first, second = run.save(time_us=START_US + 2), run.save(time_us=START_US + 1)
        assert run.headers() == [second, first]
        assert run.headers(newest_first=False) == [first, second]

    def test_across_sessions_the_order_is_that_of_ids(
        self, backend: Backend, run: SessionDriver, other: SessionDriver
    ) -> None:
        """An id begins with the time; equal times are told apart by the rest, so that paging is exact."""
        times = (START_US + 2, START_US + 1, START_US + 1, START_US + 3)
        saved = [each.save(time_us=time_us).id for each in (run, other) for time_us in times]
        assert ids(backend) == sorted(saved, reverse=True)
        assert ids(backend, newest_first=False) == sorted(saved)

    def test_each_condition_selects(self, run: SessionDriver) -> None:
        """Every field of a query is a condition of its own. The number of ids in it has no small limit."""
        run.save(id="cp_x1", time_us=START_US + 1, step=1, tags=("t", "u"))
        run.save(id="cp_x2", time_us=START_US + 2, branch="b", external_id="e", step=2)
        run.save(id="cp_y3", time_us=START_US + 3, status=Status.FAILED, tags=("tt",))
        expected: list[tuple[dict[str, Any], list[str]]] = [
            ({"branch": "b"}, ["cp_x2"]),
            ({"ids": ("cp_x1", "cp_y3", "cp_z")}, ["cp_y3", "cp_x1"]),
            ({"ids": ()}, []),
            ({"ids": (*map(str, range(5000)), "cp_x1")}, ["cp_x1"]),
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
            assert run.ids(**conditions) == found, conditions
            assert ids(run.backend, **conditions) == found, conditions

    def test_conditions_unite_with_and(self, run: SessionDriver) -> None:
        """Only what meets all of them is found."""
        for number in range(8):
            run.save(branch="ab"[number & 1], step=number >> 1 & 1, tags=("xy"[number >> 2],))
        (found,) = run.headers(branch="b", step=1, tag="y", min_seq=2, since_us=START_US)
        assert found.seq == 8

    def test_a_session_hides_others(self, run: SessionDriver, other: SessionDriver) -> None:
        """A query within a session never shows another one's checkpoints, not even by id."""
        mine, theirs = run.save(), other.save()
        assert run.ids(ids=(mine.id, theirs.id)) == [mine.id]
        assert other.ids(id_prefix="cp_") == [theirs.id]

    def test_an_id_prefix_is_literal(self, run: SessionDriver) -> None:
        """Case counts, and `%` and `_` in a prefix match themselves only."""
        for id_ in ("cp_a", "cpXa", "CP_A", "cp%a", "cp\\a"):
            run.save(id=id_)
        expected = {"cp_": ["cp_a"], "cp%": ["cp%a"], "cp\\": ["cp\\a"], "%": [], "_": []}
        for prefix, found in expected.items():
            assert run.ids(id_prefix=prefix) == found
            assert ids(run.backend, id_prefix=prefix) == found
        assert len(run.ids(id_prefix="cp")) == 4

    @pytest.mark.parametrize("newest_first", [True, False])
    @pytest.mark.parametrize("size", [1, 7, 1000])
    def test_pages_are_complete(self, backend: Backend, newest_first: bool, size: int) -> None:
        """`limit` and `after` walk over all headers exactly once, in either order.

        Within a session, and across sessions, where many times are equal.
        """
        uids = [backend.create_session(new_session(project=project)).uid for project in (None, *"ppp")]
        batch = (draft(uids[n % 4], branch="ab"[n // 4 % 2], time_us=START_US + n // 9) for n in range(160))
        append(backend, *map(item, batch))
        queries: list[dict[str, Any]] = [
            {},
            {"project": "p"},
            {"since_us": START_US + 2, "until_us": START_US + 4},
            {"session": uids[0]},
            {"session": uids[0], "branch": "a"},
            {"session": uids[0], "min_seq": 10, "max_seq": 35},
        ]
        found = []
        for conditions in queries:
            query = {"newest_first": newest_first, **conditions}
            assert walk(backend, size=size, **query) == headers(backend, **query)
            found.append(len(headers(backend, **query)))
        assert found == [160, 120, 27, 40, 20, 26]

    def test_many_headers_are_listed(self, run: SessionDriver) -> None:
        """A list longer than any page is complete and in order, within a session and across."""
        run.save_many(700)
        assert [header.seq for header in run.headers()] == list(range(700, 0, -1))
        assert len(set(ids(run.backend))) == 700
        assert len(ids(run.backend, limit=600)) == 600

    @pytest.mark.parametrize("newest_first", [True, False])
    def test_headers_can_be_written_while_they_are_listed(
        self, run: SessionDriver, newest_first: bool
    ) -> None:
        """Nothing is held between pages: what stays is seen once, whatever else is saved and removed."""
        run.save_many(400)
        stays = {header.id for header in run.headers() if header.seq % 5}
        seen = []
        for row in run.backend.headers(HeaderQuery(session=run.uid, newest_first=newest_first)):
            seen.append(row.id)
            if row.seq <= 400 and row.seq % 5 == 0:
                run.remove(row.id)
            elif row.seq <= 10:
                run.save()
        assert len(seen) == len(set(seen))
        assert stays <= set(seen)

    def test_two_lists_can_be_read_at_once(self, run: SessionDriver) -> None:
        """An iterator left half read disturbs nobody."""
        run.save_many(300)
        one, two = (run.backend.headers(HeaderQuery(session=run.uid)) for _ in range(2))
        assert [next(one).seq, next(two).seq, next(one).seq] == [300, 300, 299]
        run.save()
        assert next(two).seq == 299


class BodyContract(Fixtures):
    def test_a_body_comes_back_equal(self, run: SessionDriver) -> None:
        """Every field and every byte of a body record is kept; its blobs are a set, whatever their order."""
        blobs = tuple(new_blob(data) for data in (b"one", b"two"))
        base, new = run.save(), run.draft()
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
        run.append(new, bodies=[state, empty], blobs=blobs)
        found = run.chain(new.id)[0]
        assert replace(found, blobs=tuple(sorted(found.blobs))) == state
        assert run.chain(new.id, "details") == [empty]

    def test_a_chain_is_target_first(self, run: SessionDriver) -> None:
        """Every body needed to rebuild the target follows it, up to the keyframe."""
        chain = run.save_chain(30)
        assert run.chain_ids(chain[-1]) == chain[::-1]
        assert run.chain_ids(chain[0]) == [chain[0]]

    def test_a_chain_follows_one_name(self, run: SessionDriver) -> None:
        """Bodies of other names of the same checkpoints are not part of it."""
        first, second = run.draft(), run.draft()
        delta = delta_on(first.id, second.id, "files")
        run.append(first, bodies=[keyframe(first.id), keyframe(first.id, "files")])
        run.append(second, bodies=[keyframe(second.id), delta])
        assert run.chain_ids(second.id) == [second.id]
        assert run.chain(second.id, "files") == [delta, keyframe(first.id, "files")]

    def test_a_head_comes_with_all_it_takes(self, backend: Backend, run: SessionDriver) -> None:
        """Session, header and chains are what single reads give; a backend that cannot bring them says None."""
        assert backend.load_head(run.uid) is None
        _, second = run.save_chain(1)
        for branch, checkpoint in (("main", second), ("b", run.save(branch="b").id)):
            head = backend.load_head(run.uid, branch)
            if isinstance(head, StoredHead):
                assert head.session == run.info
                assert [head.row] == list(backend.headers(HeaderQuery(session=run.uid, ids=(checkpoint,))))
                assert head.chains == {"state": run.chain(checkpoint)}
        known = backend.load_head(run.uid, known=(second, "state"))
        if isinstance(known, StoredHead):
            assert known.row.id == second
            assert [body.checkpoint for body in known.chains["state"]] in ([second], [])
        assert backend.load_head(run.uid, "nowhere") is None

    def test_a_head_is_unchanged_only_while_nobody_wrote(
        self, backend: Backend, raw: RawAccess, run: SessionDriver
    ) -> None:
        """A backend that answers from memory never does so after another write, its own or a stranger's."""

        def is_unchanged(checkpoint: str) -> bool:
            return backend.load_head(run.uid, known=(checkpoint, "state")) is UNCHANGED

        first = run.save().id
        later = run.save().id
        assert not is_unchanged(first)
        answers_from_memory = is_unchanged(later)
        backend.update_session(run.uid, {"metadata": {"n": 1}})
        assert not is_unchanged(later)
        newest = run.save().id
        assert is_unchanged(newest) is answers_from_memory
        raw.damage_header(newest)
        assert not is_unchanged(newest)

    def test_there_is_no_chain_without_a_body(self, run: SessionDriver, other: SessionDriver) -> None:
        """An unknown checkpoint, name or another session's checkpoint gives an empty list."""
        foreign, header = other.save(), run.save()
        assert run.chain("cp_nothing") == []
        assert run.chain(header.id, "files") == []
        assert run.chain(foreign.id) == []

    def test_body_records_of_some_checkpoints(self, backend: Backend, run: SessionDriver) -> None:
        """Only theirs are read; of none, none; of very many, all of theirs."""
        saved = [run.save().id for _ in range(3)]
        assert [body.checkpoint for body in backend.bodies(run.uid, [saved[1]])] == [saved[1]]
        assert backend.bodies(run.uid, []) == []
        many = [f"cp_{number}" for number in range(1000)]
        assert backend.bodies(run.uid, [*many, saved[0]]) == backend.bodies(run.uid, [saved[0]])
        assert len(run.stored()) == 3

    def test_bodies_lists_every_record_without_bytes(self, run: SessionDriver, other: SessionDriver) -> None:
        """Hidden bodies and redundant deltas are listed, other sessions' are not."""
        other.save()
        first, second = run.save(), run.draft()
        records = [delta_on(first.id, second.id, blobs=()), keyframe(second.id, "files")]
        records.append(redundant_on(first.id, second.id, "files"))
        run.append(second, bodies=records)
        run.remove(first.id)
        assert set(run.backend.bodies(run.uid)) == {info(body) for body in (keyframe(first.id), *records)}

    def test_a_redundant_delta_stands_beside_its_keyframe(self, run: SessionDriver) -> None:
        """It has its own reading, and is never part of a chain."""
        first = run.save()
        new = run.save_redundantly(first.id)
        assert run.redundant(new.id) == redundant_on(first.id, new.id)
        assert run.chain(new.id) == [keyframe(new.id)]
        assert run.redundant(first.id) is None
        assert run.redundant("cp_nothing") is None

    # --- replace_body ---

    def test_a_body_can_be_stored_otherwise(self, run: SessionDriver) -> None:
        """A delta becomes a keyframe; headers do not change (V4), and its old base is free to go (V5)."""
        first, second, third = run.save_chain(2)
        before = run.headers()
        new = keyframe(second, data=b"whole", position=0)
        run.backend.replace_body(run.uid, new, expect_digest=delta_on(first, second).digest)
        assert run.chain(third) == [delta_on(second, third), new]
        assert run.headers() == before
        assert run.backend.bodies(run.uid).count(info(new)) == 1
        run.remove(first)
        assert run.usage.hidden_bodies == 0

    def test_a_keyframe_can_become_a_delta(self, run: SessionDriver) -> None:
        """The new record's base is what keeps a body alive from then on."""
        first, second = run.save(), run.save()
        delta = delta_on(first.id, second.id)
        run.backend.replace_body(run.uid, delta, expect_digest=keyframe(second.id).digest)
        run.remove(first.id)
        run.backend.sweep()
        assert run.chain(second.id) == [delta, keyframe(first.id)]

    def test_replacing_compares_the_digest(self, run: SessionDriver) -> None:
        """Of two who re-encode the same body, the second is refused; a base that is not stored is `base_gone`."""
        header = run.save()
        old, new = keyframe(header.id), keyframe(header.id, data=b"new")
        with refused("base_gone"):
            run.backend.replace_body(run.uid, delta_on("cp_nothing", header.id), expect_digest=old.digest)
        assert run.chain(header.id) == [old]
        run.backend.replace_body(run.uid, new, expect_digest=old.digest)
        with pytest.raises(Conflict):
            run.backend.replace_body(run.uid, keyframe(header.id, data=b"late"), expect_digest=old.digest)
        assert run.chain(header.id) == [new]

    def test_replacing_drops_the_redundant_delta(self, run: SessionDriver) -> None:
        """It is of the encoding before; redundant deltas based on the body keep their base."""
        second = run.save_redundantly(run.save().id).id
        third = run.save_redundantly(second).id
        new = keyframe(second, data=b"new")
        run.backend.replace_body(run.uid, new, expect_digest=keyframe(second).digest)
        assert run.redundant(second) is None
        assert run.redundant(third) == redundant_on(second, third)

    def test_replacing_changes_which_blobs_are_kept(self, run: SessionDriver) -> None:
        """The blobs of the new record are kept alive, and those only of the old one are not."""
        one, two = new_blob(b"one"), new_blob(b"two")
        (body,) = run.chain(run.save_naming(one, two).id)
        run.backend.replace_body(run.uid, replace(body, blobs=(two.digest,)), expect_digest=body.digest)
        run.backend.sweep()
        assert run.backend.has_blobs([one.digest, two.digest]) == {two.digest}

    def test_a_hidden_body_can_be_replaced(self, run: SessionDriver) -> None:
        """What others are based on can be re-encoded too."""
        first, second = run.save_chain(1)
        run.remove(first)
        new = keyframe(first, data=b"new")
        run.backend.replace_body(run.uid, new, expect_digest=keyframe(first).digest)
        assert run.chain(second)[-1] == new

    def test_only_a_stored_body_can_be_replaced(self, run: SessionDriver) -> None:
        """There is nothing to exchange where there is no body."""
        for body in (keyframe("cp_nothing"), keyframe(run.save().id, "files")):
            with pytest.raises(NotFound):
                run.backend.replace_body(run.uid, body, expect_digest=body.digest)

    # --- blobs ---

    def test_a_blob_comes_back_equal(self, run: SessionDriver) -> None:
        """Every field and byte is kept, also of an empty one; an unknown digest is None."""
        full = replace(new_blob(bytes(range(256))), codec="zstd", size=999, stored_digest="s")
        blobs = [full, new_blob(b"")]
        run.append(run.draft(), blobs=blobs)
        assert [run.backend.blob(blob.digest) for blob in blobs] == blobs
        assert run.backend.blob("0" * 64) is None

    def test_a_blob_is_stored_once(self, backend: Backend, run: SessionDriver, other: SessionDriver) -> None:
        """Sent again, by any session, it is the same blob, and the first bytes stay."""
        blob = new_blob(b"shared")
        run.append(run.draft(), blobs=[blob])
        other.append(other.draft(), blobs=[replace(blob, codec="other", data=b"recoded")])
        assert backend.blob(blob.digest) == blob
        assert backend.usage().blobs == 1

    def test_blobs_of_a_session_are_weighed(
        self, backend: Backend, run: SessionDriver, other: SessionDriver
    ) -> None:
        """What each one takes, and whether another session names it too; those of others are not told."""
        own, shared, foreign = new_blob(b"own"), new_blob(b"of both"), new_blob(b"of the other")
        run.save_naming(own, shared)
        other.save_naming(shared, foreign)
        assert backend.blob_sizes(run.uid) == {
            own.digest: BlobSize(len(own.data), is_shared=False),
            shared.digest: BlobSize(len(shared.data), is_shared=True),
        }
        assert backend.blob_sizes(backend.create_session(new_session()).uid) == {}

    def test_has_blobs_answers_for_many(self, run: SessionDriver) -> None:
        """Those that are stored, of any number asked for."""
        blob = new_blob(b"there")
        run.append(run.draft(), blobs=[blob])
        asked = [*(new_blob(str(number).encode()).digest for number in range(3000)), blob.digest, blob.digest]
        assert run.backend.has_blobs(asked) == {blob.digest}
        assert run.backend.has_blobs([]) == set()
