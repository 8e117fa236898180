"""Connected parts: captured together, restored together or not at all."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest

import stepkeep
from stepkeep.storage.memory import MemoryBackend
from stepkeep.storage.urls import open_backend
from stepkeep.testing import FakeClock


class Box:
    """A part that holds one value; it can be told to fail."""

    def __init__(self, value: Any = None) -> None:
        self.value = value
        self.failing: Callable[[str, Any], None] | None = None

    def snapshot(self) -> Any:
        self._fail("snapshot", None)
        return self.value

    def restore(self, data: Any) -> None:
        self._fail("restore", data)
        self.value = deepcopy(data)

    def _fail(self, what: str, data: Any) -> None:
        if self.failing is not None:
            self.failing(what, data)


class Checked(Box):
    """A box that takes only numbers, and says so beforehand."""

    def validate(self, data: Any) -> None:
        if not isinstance(data, int):
            raise TypeError(f"{data!r} is no number")


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture(params=["memory", "sqlite"])
def reopened(
    request: pytest.FixtureRequest, tmp_path: Path, clock: FakeClock
) -> Iterator[Callable[[], stepkeep.Session]]:
    """Opens the session anew each time: what a test reads then was stored."""
    shared = MemoryBackend() if request.param == "memory" else None
    opened: list[stepkeep.Store] = []

    def session() -> stepkeep.Session:
        backend = shared or open_backend(f"sqlite:{tmp_path / 'store.db'}")
        opened.append(stepkeep.Store(backend, clock=clock))
        return opened[-1].session("run", profile="archive")

    yield session
    for store in opened:
        store.close()


@pytest.fixture
def session(reopened: Callable[[], stepkeep.Session]) -> stepkeep.Session:
    return reopened()


def boxes(session: stepkeep.Session, count: int = 5) -> list[Box]:
    """Connected parts p0, p1, …, each with its number."""
    found = [Box({"n": number}) for number in range(count)]
    for number, box in enumerate(found):
        session.parts.connect(f"p{number}", box)
    return found


def failing_once(what: str) -> Callable[[str, Any], None]:
    calls = []

    def fail(call: str, data: Any) -> None:
        if call == what and not calls:
            calls.append(data)
            raise RuntimeError("broken")

    return fail


def head(session: stepkeep.Session) -> tuple[str, str | None]:
    info = session.info
    return info.branch, next(each.head for each in session.branches if each.name == info.branch)


# --- capturing and restoring


def test_a_checkpoint_holds_all_parts_and_another_process_restores_them(
    reopened: Callable[[], stepkeep.Session],
) -> None:
    """The state has each part under its name; the trigger is manual; new objects take it back."""
    first = reopened()
    one, two = Box([1, 2]), Box({"a": b"bytes"})
    first.parts.connect("one", one)
    first.parts.connect("two", two)
    header = first.parts.checkpoint("before the risk", tags=["experiment"])
    assert (header.trigger.kind, header.message, header.tags) == (
        "manual",
        "before the risk",
        ("experiment",),
    )
    one.value.append(3)
    first.parts.checkpoint("after")

    second = reopened()
    other_one, other_two = Box(), Box()
    second.parts.connect("one", other_one)
    second.parts.connect("two", other_two)
    report = second.restore(header.id)
    assert (other_one.value, other_two.value) == ([1, 2], {"a": b"bytes"})
    assert (report.restored_to, report.timestamp, report.message, report.recovery_complete) == (
        header.id,
        header.created_at,
        "before the risk",
        True,
    )
    assert report.parts == ("one", "two")
    assert reopened().latest().state == {"one": [1, 2], "two": {"a": b"bytes"}}  # type: ignore[union-attr]


def test_restore_without_parts_is_as_before(session: stepkeep.Session) -> None:
    """A session with no part connected restores any state, and reports nothing about parts."""
    session.save({"n": 1})
    session.save({"n": 2})
    report = session.restore(1)
    assert (report.state, report.parts, report.missing, report.extra) == ({"n": 1}, (), (), ())
    assert report.recovery_complete


def test_undoing_a_restore_brings_the_parts_back(session: stepkeep.Session) -> None:
    """`latest@before` gives the parts what the branch that was left holds."""
    box = Box(1)
    session.parts.connect("box", box)
    first = session.parts.checkpoint("one")
    box.value = 2
    session.parts.checkpoint("two")
    session.restore(first.id)
    assert (box.value, session.info.branch) == (1, "from-1")
    session.restore("latest@before")
    assert (box.value, session.info.branch) == (2, "main")


def test_undoing_with_a_failing_part_leaves_all_as_it_was(session: stepkeep.Session) -> None:
    """Neither the parts nor the branch change."""
    one, two = boxes(session, 2)
    first = session.parts.checkpoint("one")
    one.value = two.value = {"n": 9}
    session.parts.checkpoint("two")
    session.restore(first.id)
    before = head(session)
    two.failing = failing_once("restore")
    with pytest.raises(stepkeep.PartFailed):
        session.restore("latest@before")
    assert (one.value, two.value) == ({"n": 0}, {"n": 1})
    assert head(session) == before


@pytest.mark.parametrize("broken", range(5))
def test_a_restore_that_fails_in_one_of_five_parts_changes_none(
    session: stepkeep.Session, broken: int
) -> None:
    """All five hold what they held, the session is where it was, and the error names part and reason."""
    parts = boxes(session)
    first = session.parts.checkpoint("all")
    for part in parts:
        part.value = {"n": part.value["n"] + 100}
    session.parts.checkpoint("moved on")
    for part in parts:
        part.value["n"] += 1000
    before = head(session)
    parts[broken].failing = failing_once("restore")
    with pytest.raises(stepkeep.PartFailed, match="broken") as error:
        session.restore(first.id)
    assert error.value.code == "part_restore_failed"
    assert (error.value.part, error.value.not_rolled_back) == (f"p{broken}", ())
    assert [part.value["n"] for part in parts] == [1100, 1101, 1102, 1103, 1104]
    assert head(session) == before
    assert session.restore(first.id).recovery_complete
    assert [part.value["n"] for part in parts] == [0, 1, 2, 3, 4]


def test_a_roll_back_that_fails_too_is_told_with_both_errors(session: stepkeep.Session) -> None:
    """The error has what came first, and names the part that is in an unknown state; the others are back."""
    parts = boxes(session, 3)
    first = session.parts.checkpoint("all")
    for part in parts:
        part.value = {"n": 7}

    def never_again(what: str, data: Any) -> None:
        if what == "restore":
            raise OSError(f"cannot take {data}")

    parts[2].failing = never_again
    with pytest.raises(stepkeep.PartFailed) as error:
        session.restore(first.id)
    assert "cannot take {'n': 2}" in str(error.value)
    assert "going back failed too" in str(error.value)
    (stuck,) = error.value.not_rolled_back
    assert (stuck.part, str(stuck.error)) == ("p2", "cannot take {'n': 7}")
    assert [part.value["n"] for part in parts[:2]] == [7, 7]


def test_every_part_is_asked_before_any_is_changed(session: stepkeep.Session) -> None:
    """A part that validates refuses beforehand: no part is called to restore."""
    touched: list[str] = []
    plain, checked = Box(1), Checked(1)
    plain.failing = lambda what, data: touched.append(what)
    session.parts.connect("plain", plain)
    session.parts.connect("checked", checked)
    header = session.save({"plain": 2, "checked": "no number"})
    touched.clear()
    with pytest.raises(stepkeep.PartFailed, match="no number") as error:
        session.restore(header.id)
    assert (error.value.code, error.value.part, touched) == ("part_refused", "checked", [])


def test_a_save_meanwhile_is_a_conflict_and_the_parts_go_back(session: stepkeep.Session) -> None:
    """The restore is compare-and-set: a head that moves while the parts are restored undoes it."""
    box = Box(1)
    session.parts.connect("box", box)
    first = session.parts.checkpoint("one")
    box.value = 2
    session.parts.checkpoint("two")

    def save_meanwhile(what: str, data: Any) -> None:
        if what == "restore" and data == 1:
            box.failing = None
            session.save({"box": 3})

    box.failing = save_meanwhile
    with pytest.raises(stepkeep.Conflict) as error:
        session.restore(first.id)
    assert error.value.code == "head_moved"
    assert (box.value, session.info.branch) == (2, "main")


def test_missing_and_extra_parts_are_reported_and_decided(session: stepkeep.Session) -> None:
    """A connected part without data is an error or kept; data without a part is ignored or an error."""
    old = Box(1)
    session.parts.connect("old", old)
    first = session.parts.checkpoint("one")
    session.parts.disconnect("old")
    new = Box("new")
    session.parts.connect("new", new)
    with pytest.raises(stepkeep.NotFound, match="'new'") as error:
        session.restore(first.id)
    assert error.value.code == "part_not_saved"
    with pytest.raises(stepkeep.NotFound, match="'old'") as error:
        session.restore(first.id, missing="keep", extra="error")
    assert error.value.code == "part_not_connected"
    report = session.restore(first.id, missing="keep")
    assert (report.parts, report.missing, report.extra) == ((), ("new",), ("old",))
    assert not report.recovery_complete
    assert (new.value, old.value) == ("new", 1)
    with pytest.raises(stepkeep.InvalidInput, match="missing is one of"):
        session.restore(first.id, missing="perhaps")  # type: ignore[arg-type]


# --- bad parts


def test_what_is_no_part_is_refused(session: stepkeep.Session) -> None:
    """Both methods are needed, and a class is not its instance."""
    for thing in (object(), Box, {"snapshot": 1}, None):
        with pytest.raises(stepkeep.InvalidInput) as error:
            session.parts.connect("thing", thing)  # type: ignore[arg-type]
        assert error.value.code == "not_a_part"
    with pytest.raises(stepkeep.InvalidInput) as error:
        session.parts.connect("", Box())
    assert error.value.code == "invalid_name"


def test_a_part_is_connected_once(session: stepkeep.Session) -> None:
    """Neither its name nor the part itself may come twice."""
    box = Box(1)
    session.parts.connect("box", box)
    for name, part in (("box", Box(2)), ("other", box)):
        with pytest.raises(stepkeep.InvalidInput) as error:
            session.parts.connect(name, part)
        assert error.value.code == "part_connected"
    session.parts.disconnect("box")
    session.parts.connect("other", box)
    with pytest.raises(stepkeep.NotFound):
        session.parts.disconnect("box")


def test_a_part_that_fails_to_snapshot_saves_nothing(session: stepkeep.Session) -> None:
    """The error names the part, and the history is as before."""
    boxes(session, 2)[1].failing = failing_once("snapshot")
    with pytest.raises(stepkeep.PartFailed, match="p1") as error:
        session.parts.checkpoint("never")
    assert error.value.code == "part_snapshot_failed"
    assert isinstance(error.value.__cause__, RuntimeError)
    assert list(session.history()) == []
    assert session.parts.checkpoint("now").seq == 1


def test_what_cannot_be_saved_is_refused_with_its_path(session: stepkeep.Session) -> None:
    """The path begins with the name of the part."""
    session.parts.connect("good", Box(1))
    session.parts.connect("bad", Box({"deep": [object()]}))
    with pytest.raises(stepkeep.InvalidInput) as error:
        session.parts.checkpoint("never")
    assert error.value.path is not None
    assert error.value.path.startswith("bad.deep")
    assert list(session.history()) == []


def test_a_checkpoint_needs_parts(session: stepkeep.Session) -> None:
    """Without one there is nothing to capture."""
    for call in (session.parts.checkpoint, lambda: session.parts.auto_checkpoint("gap_filled")):
        with pytest.raises(stepkeep.InvalidInput) as error:
            call()
        assert error.value.code == "no_parts"


def test_a_part_that_hands_out_what_it_changes_is_rolled_back_all_the_same(session: stepkeep.Session) -> None:
    """What it held before is a copy of that moment, not the object that the restore changes."""

    class Alias(Box):
        def restore(self, data: Any) -> None:
            self._fail("restore", data)
            self.value.clear()
            self.value.update(data)

    alias, last = Alias({"n": 1}), Box(1)
    session.parts.connect("alias", alias)
    session.parts.connect("last", last)
    first = session.parts.checkpoint("one")
    alias.value["n"] = 2
    last.failing = failing_once("restore")
    with pytest.raises(stepkeep.PartFailed):
        session.restore(first.id)
    assert alias.value == {"n": 2}


# --- automatic checkpoints


@pytest.mark.parametrize("trigger", list(stepkeep.AutoTrigger))
def test_each_trigger_has_its_message_and_tags(
    session: stepkeep.Session, clock: FakeClock, trigger: stepkeep.AutoTrigger
) -> None:
    """`Auto: <Trigger>`, tags `auto` and its name, an automatic trigger with the event."""
    session.parts.connect("box", Box(1))
    clock.advance(301)
    header = session.parts.auto_checkpoint(trigger, tags=["mine"])
    assert header is not None
    word = "".join(part.title() for part in trigger.split("_"))
    assert header.message == f"Auto: {word}"
    assert header.tags == ("auto", word, "mine")
    assert (header.trigger.kind, header.trigger.event) == ("auto", trigger.value)
    assert [found.id for found in session.history(tag=word)] == [header.id]


def test_both_spellings_of_a_trigger_are_understood(session: stepkeep.Session) -> None:
    """`GapFilled` is `gap_filled`; anything else is refused."""
    session.parts.connect("box", Box(1))
    header = session.parts.auto_checkpoint("GapFilled")
    assert header is not None
    assert header.trigger.event == "gap_filled"
    with pytest.raises(stepkeep.InvalidInput) as error:
        session.parts.auto_checkpoint("gap")
    assert error.value.code == "invalid_trigger"


def test_time_alone_is_worth_a_checkpoint_after_five_minutes(
    session: stepkeep.Session, clock: FakeClock
) -> None:
    """Held back until 300 s after the last checkpoint, whoever made it; a compaction warning never is."""
    box = Box(0)
    session.parts.connect("box", box)
    time_passed = stepkeep.AutoTrigger.SIGNIFICANT_TIME_PASSED
    assert session.parts.auto_checkpoint(time_passed) is None  # the session has just begun
    clock.advance(300)
    assert session.parts.auto_checkpoint(time_passed) is not None
    clock.advance(299)
    assert session.parts.auto_checkpoint(time_passed) is None
    session.save({"box": 1})  # E12: every save counts
    clock.advance(299)
    assert session.parts.auto_checkpoint(time_passed) is None
    assert session.parts.auto_checkpoint("context_compaction_warning") is not None
    assert session.parts.auto_checkpoint("context_compaction_warning") is not None
    clock.advance(299)
    assert session.parts.auto_checkpoint(time_passed) is None
    clock.advance(1)
    assert session.parts.auto_checkpoint(time_passed) is not None


def test_the_same_trigger_that_finds_nothing_changed_is_merged(
    session: stepkeep.Session, clock: FakeClock
) -> None:
    """Within 3 s it is noted on the checkpoint before; another trigger, or a change, is saved."""
    box = Box(0)
    session.parts.connect("box", box)
    first = session.parts.auto_checkpoint("gap_filled")
    clock.advance(2)
    assert session.parts.auto_checkpoint("gap_filled") == first
    assert session.run_document()["source_details"] == ["gap_filled", "gap_filled"]
    other = session.parts.auto_checkpoint("code_modified")
    assert other is not None
    assert other != first
    box.value = 1
    changed = session.parts.auto_checkpoint("code_modified")
    assert changed is not None
    assert changed.seq == 3
    clock.advance(4)
    assert session.parts.auto_checkpoint("code_modified") != changed


def test_a_compaction_warning_during_a_save_of_another_thread_is_saved_after_it(
    session: stepkeep.Session,
) -> None:
    """It waits for its turn; both checkpoints are whole."""
    box = Box(1)
    session.parts.connect("box", box)
    warned: list[stepkeep.Header | None] = []
    warning = threading.Thread(
        target=lambda: warned.append(session.parts.auto_checkpoint("context_compaction_warning"))
    )

    def begin_warning(what: str, data: Any) -> None:
        if not warning.is_alive() and not warned:
            box.failing = None
            warning.start()

    box.failing = begin_warning
    first = session.parts.checkpoint("slow")
    warning.join()
    (second,) = warned
    assert second is not None
    assert (first.seq, second.seq) == (1, 2)
    assert [each.message for each in session.history()] == ["Auto: ContextCompactionWarning", "slow"]


def test_a_compaction_warning_out_of_a_part_being_saved_follows_that_save(session: stepkeep.Session) -> None:
    """It cannot wait for itself: it returns None and is taken right after, once, whatever fires again."""
    box = Box(1)
    session.parts.connect("box", box)
    answers: list[object] = []
    box.failing = lambda what, data: answers.append(
        session.parts.auto_checkpoint("context_compaction_warning")
    )
    session.parts.checkpoint("outer")
    assert [each.message for each in session.history()] == ["Auto: ContextCompactionWarning", "outer"]
    assert answers == [None, None]
    box.failing = lambda what, data: session.parts.checkpoint("inner") and None
    with pytest.raises(stepkeep.PartFailed) as error:
        session.parts.checkpoint("outer")
    assert isinstance(error.value.__cause__, stepkeep.Conflict)
    assert error.value.__cause__.code == "checkpoint_nested"


def test_a_warning_during_a_save_that_fails_is_not_lost(session: stepkeep.Session) -> None:
    """The outer save fails and says so; the warning that came in its middle is saved."""
    one, two = boxes(session, 2)
    one.failing = lambda what, data: session.parts.auto_checkpoint("context_compaction_warning") and None
    two.failing = failing_once("snapshot")
    with pytest.raises(stepkeep.PartFailed):
        session.parts.checkpoint("never")
    assert [each.message for each in session.history()] == ["Auto: ContextCompactionWarning"]


async def _async_parts(url: str) -> tuple[object, bool]:
    from stepkeep import aio

    async with aio.open(url) as store:
        session = await store.session("run")
        box = Box(1)
        await session.parts.connect("box", box)
        header = await session.parts.checkpoint("one")
        box.value = 2
        await session.parts.auto_checkpoint("gap_filled")
        restored = await session.restore(header.id)
        point = await session.recovery_point(commands=["make"])
        await session.parts.disconnect("box")
        return box.value, restored.recovery_complete and "make" in point.as_text()


def test_asyncio_programs_have_parts_too(tmp_path: Path) -> None:
    """The async session mirrors the calls."""
    import asyncio

    assert asyncio.run(_async_parts(f"sqlite:{tmp_path / 'a.db'}")) == (1, True)


def test_the_time_that_counts_is_a_setting(tmp_path: Path, clock: FakeClock) -> None:
    """`recorder.significant_seconds` says after how long time alone is worth a checkpoint."""
    from stepkeep import config

    settings = config.load(cwd=None, environ={}, flags={"recorder.significant_seconds": 60})
    with stepkeep.open(f"sqlite:{tmp_path / 'a.db'}", config=settings, clock=clock) as store:
        session = store.session("run")
        session.parts.connect("box", Box(1))
        clock.advance(59)
        assert session.parts.auto_checkpoint("significant_time_passed") is None
        clock.advance(1)
        assert session.parts.auto_checkpoint("significant_time_passed") is not None


def test_a_checkpoint_of_parts_has_the_project_files_too(tmp_path: Path) -> None:
    """Where the session has a workspace, it is captured with the parts."""
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / "a.txt").write_text("one", encoding="utf-8")
    with stepkeep.open(f"sqlite:{tmp_path / 'a.db'}") as store:
        session = store.session("run", workspace=tmp_path / "work")
        session.parts.connect("box", Box(1))
        header = session.parts.checkpoint("with files")
        assert session.load(header.id).state == {"box": 1}
        (tmp_path / "work" / "a.txt").write_text("two", encoding="utf-8")
        assert session.files.diff(header.id).total == 1
