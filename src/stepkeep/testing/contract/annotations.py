"""Annotations: bytes about a checkpoint that is there or may come."""

from __future__ import annotations

import pytest

from stepkeep.codec import integrity
from stepkeep.storage.port import Annotation, Backend, Target
from stepkeep.testing.contract.fixtures import Fixtures
from stepkeep.testing.contract.names import HOSTILE_NAMES
from stepkeep.testing.records import START_US, new_session, save


def names(annotations: list[Annotation]) -> list[str]:
    return [annotation.name for annotation in annotations]


class AnnotationContract(Fixtures):
    def test_an_annotation_comes_back_equal(self, backend: Backend, uid: str) -> None:
        """Every field is kept, with a digest over the bytes."""
        header = save(backend, uid)
        data = bytes(range(256))
        assert backend.annotate(uid, header.id, "writes", "task 1", data, time_us=START_US)
        assert backend.annotations(uid) == [
            Annotation(
                target=header.id,
                kind="writes",
                name="task 1",
                data=data,
                time_us=START_US,
                digest=integrity.digest(data),
            )
        ]

    def test_the_first_one_stays(self, backend: Backend, uid: str) -> None:
        """Without `replace` a second of the same target, kind and name is not stored, and says so."""
        assert backend.annotate(uid, "cp", "k", "n", b"first", time_us=1)
        assert not backend.annotate(uid, "cp", "k", "n", b"second", time_us=2)
        (annotation,) = backend.annotations(uid)
        assert (annotation.data, annotation.time_us) == (b"first", 1)

    def test_replacing_is_asked_for(self, backend: Backend, uid: str) -> None:
        """With `replace` the last one stays, with its time and digest."""
        backend.annotate(uid, "cp", "k", "n", b"first", time_us=1)
        assert backend.annotate(uid, "cp", "k", "n", b"second", time_us=2, replace=True)
        assert backend.annotate(uid, "cp", "k", "fresh", b"", time_us=3, replace=True)
        second, _ = backend.annotations(uid)
        assert (second.data, second.time_us, second.digest) == (b"second", 2, integrity.digest(b"second"))

    def test_target_kind_and_name_tell_them_apart(self, backend: Backend, uid: str) -> None:
        """Changing any of the three makes another annotation; so does another session."""
        other = backend.create_session(new_session()).uid
        keys: list[tuple[Target, str, str]] = [
            ("cp", "k", "n"),
            ("cq", "k", "n"),
            ("cp", "l", "n"),
            ("cp", "k", "o"),
            (("cp", "k"), "k", "n"),
            (("cp", "l"), "k", "n"),
        ]
        for target, kind, name in keys:
            assert backend.annotate(uid, target, kind, name, b"", time_us=1)
        assert backend.annotate(other, "cp", "k", "n", b"", time_us=1)
        assert {(a.target, a.kind, a.name) for a in backend.annotations(uid)} == set(keys)
        assert len(backend.annotations(other)) == 1

    def test_annotations_come_oldest_first(self, backend: Backend, uid: str) -> None:
        """By time; at equal times in the order they came."""
        for name, time_us in (("c", 3), ("z", 2), ("a", 2), ("b", 1)):
            backend.annotate(uid, "cp", "k", name, b"", time_us=time_us)
        assert names(backend.annotations(uid)) == ["b", "z", "a", "c"]
        assert names(backend.annotations(uid, ["cp"])) == ["b", "z", "a", "c"]

    def test_targets_and_kind_select(self, backend: Backend, uid: str) -> None:
        """Many targets are read in one call; None means all of the session, an empty list none."""
        for number in range(2000):
            backend.annotate(uid, f"cp_{number}", "ab"[number % 2], f"{number}", b"", time_us=number)
        targets = [f"cp_{number}" for number in range(1500)]
        assert len(backend.annotations(uid)) == 2000
        assert len(backend.annotations(uid, targets)) == 1500
        assert len(backend.annotations(uid, targets, "a")) == 750
        assert len(backend.annotations(uid, kind="b")) == 1000
        assert backend.annotations(uid, []) == []
        assert names(backend.annotations(uid, ["cp_3", "cp_1", "cp_3", "cp_none"])) == ["1", "3"]

    def test_they_may_come_before_the_checkpoint(self, backend: Backend, uid: str) -> None:
        """Attached to a (branch, external id) that is not there yet, they are found by id once it came."""
        backend.annotate(uid, ("b", "e"), "k", "early", b"", time_us=1)
        header = save(backend, uid, branch="b", external_id="e")
        backend.annotate(uid, header.id, "k", "late", b"", time_us=2)
        assert names(backend.annotations(uid, [header.id])) == ["early", "late"]
        assert names(backend.annotations(uid, [("b", "e")])) == ["early", "late"]
        assert names(backend.annotations(uid, [header.id, ("b", "e")])) == ["early", "late"]

    def test_an_external_id_belongs_to_its_branch(self, backend: Backend, uid: str) -> None:
        """The same external id on another branch, or in another session, is another checkpoint."""
        other = backend.create_session(new_session()).uid
        one = save(backend, uid, branch="a", external_id="e")
        two = save(backend, uid, branch="b", external_id="e")
        save(backend, other, branch="a", external_id="e")
        backend.annotate(uid, one.id, "k", "one", b"", time_us=1)
        backend.annotate(uid, ("b", "e"), "k", "two", b"", time_us=2)
        backend.annotate(other, ("a", "e"), "k", "other", b"", time_us=3)
        assert names(backend.annotations(uid, [("a", "e")])) == ["one"]
        assert names(backend.annotations(uid, [two.id])) == ["two"]

    def test_they_go_with_their_checkpoint(self, backend: Backend, uid: str) -> None:
        """Those by id and those by (branch, external id); the others stay."""
        first, second = save(backend, uid, external_id="e"), save(backend, uid, external_id="f")
        backend.annotate(uid, first.id, "k", "by id", b"", time_us=1)
        backend.annotate(uid, ("main", "e"), "k", "by external id", b"", time_us=2)
        backend.annotate(uid, second.id, "k", "kept", b"", time_us=3)
        backend.annotate(uid, ("main", "f"), "k", "kept too", b"", time_us=4)
        backend.annotate(uid, ("other", "e"), "k", "of another branch", b"", time_us=5)
        backend.remove(uid, [first.id])
        assert names(backend.annotations(uid)) == ["kept", "kept too", "of another branch"]

    @pytest.mark.parametrize("name", HOSTILE_NAMES)
    def test_targets_kinds_and_names_are_any_text(self, backend: Backend, uid: str, name: str) -> None:
        """Quotes, wildcards and newlines are data."""
        backend.annotate(uid, "plain", "plain", "plain", b"", time_us=1)
        backend.annotate(uid, name, name, name, b"by id", time_us=2)
        backend.annotate(uid, (name, name), name, name, b"by external id", time_us=3)
        assert [a.data for a in backend.annotations(uid, [name])] == [b"by id"]
        assert [a.data for a in backend.annotations(uid, [(name, name)])] == [b"by external id"]
        assert [a.data for a in backend.annotations(uid, kind=name)] == [b"by id", b"by external id"]

    def test_an_empty_annotation_is_one(self, backend: Backend, uid: str) -> None:
        """No bytes are bytes too."""
        backend.annotate(uid, "cp", "k", "n", b"", time_us=1)
        assert [a.data for a in backend.annotations(uid)] == [b""]
