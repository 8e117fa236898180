"""States that grow from save to save are encoded in part; what is loaded is what was saved, all the same."""

from __future__ import annotations

import copy
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import stepkeep
from stepkeep.codec import exact, incremental
from stepkeep.engine import state_encoder
from tests.unit.test_incremental import CHANGES, VALUES, containers


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Remember small states too."""
    monkeypatch.setattr(state_encoder, "MIN_REMEMBERED_BYTES", 1)
    monkeypatch.setattr(incremental, "_WHOLE_BYTES", 0)
    monkeypatch.setattr(incremental, "MIN_ORDERED_BYTES", 40)
    monkeypatch.setattr(state_encoder, "MIN_ORDERED_BYTES", 40)


def saved_states(session: stepkeep.Session) -> Iterator[Any]:
    for header in reversed(list(session.history())):
        yield session.load(header.id).state


@given(state=st.dictionaries(st.text(max_size=3), VALUES, max_size=5), seed=st.integers(0, 2**32))
def test_what_is_loaded_is_what_was_saved(state: dict[str, Any], seed: int) -> None:
    """Whatever is done to a state in place between saves, each checkpoint holds it as it was then."""
    choose = random.Random(seed)
    then: list[str] = []
    with stepkeep.open("memory:") as store:
        session = store.session("run", profile="archive")
        for _ in range(10):
            session.save(state)
            then.append(repr(state))
            for _ in range(choose.randint(0, 2)):
                choose.choice(CHANGES)(choose.choice(containers(state)))
        assert [repr(each) for each in saved_states(session)] == then
        assert store.verify().is_intact


def test_only_what_is_new_is_encoded(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The second and later saves of a list that grows encode its new elements, and another process loads all of it."""
    state: dict[str, Any] = {"step": 0, "messages": [{"n": n, "text": "word " * 100} for n in range(50)]}
    sizes: list[int] = []
    plain = exact.plain

    def counted(value: object, *limits: int) -> Any:
        found = plain(value, *limits)
        sizes.append(len(found[0]) if found else 0)
        return found

    monkeypatch.setattr(incremental.Growing.__init__, "__defaults__", (counted, None))
    monkeypatch.setattr(exact, "plain", counted)
    url = f"sqlite:{tmp_path}/store.db"
    with stepkeep.open(url) as store:
        session = store.session("run", profile="archive")
        for step in range(6):
            state = copy.deepcopy(state)  # a program may read its state anew each time
            state["messages"].append({"n": 50 + step, "text": "more " * 100})
            state["step"] = step
            sizes.clear()
            session.save(state)
            assert step == 0 or sum(sizes) < 2_000
    with stepkeep.open(url) as store:
        loaded = store.get("run").latest().state  # type: ignore[union-attr]
        assert loaded == state
        assert list(loaded) == ["step", "messages"]
        assert store.verify().is_intact


def test_what_cannot_be_saved_is_refused_with_its_path_and_forgotten() -> None:
    """A value that JSON has none for, in a state that was remembered, is refused as ever, and the next save works."""
    with stepkeep.open("memory:") as store:
        session = store.session("run", profile="archive")
        state: dict[str, Any] = {"messages": [{"n": 1}], "plan": {}}
        for n in range(3):
            state["messages"].append({"n": n})
            session.save(state)
        state["plan"]["odd"] = object()
        with pytest.raises(stepkeep.InvalidInput) as refusal:
            session.save(state)
        assert refusal.value.path == "plan.odd"
        state["plan"]["odd"] = (1, 2)  # saved with tags
        session.save(state)
        state["plan"] = {}
        session.save(state)
        *_, tagged, plain = saved_states(session)
        assert tagged["plan"] == {"odd": (1, 2)}
        assert plain == state
        state["plan"] = state
        with pytest.raises(stepkeep.InvalidInput):
            session.save(state)


def test_a_state_of_many_large_values_is_refused_before_it_is_written_out() -> None:
    """Values that each fit, and together do not, are refused also where the state was remembered."""
    with stepkeep.open("memory:", max_state_bytes=10_000) as store:
        session = store.session("run")
        large = ["x" * 100] * 40
        state: dict[str, Any] = {"a": large}
        for _ in range(3):
            session.save(state)
        state |= {str(n): large for n in range(100)}
        with pytest.raises(stepkeep.InvalidInput) as refusal:
            session.save(state)
        assert refusal.value.code == "state_too_large"


def test_a_body_that_not_every_checkpoint_has_is_a_delta_all_the_same(tmp_path: Path) -> None:
    """Another process finds the last checkpoint that had details, and stores only what changed in them."""
    url = f"sqlite:{tmp_path}/store.db"
    noise = random.Random(7).randbytes(5_000).hex()
    for n in range(3):
        with stepkeep.open(url) as store:
            session = store.session("run", profile="archive")
            session.save({"n": n}, details={"noise": noise, "n": n})
            session.save({"n": n})
    with stepkeep.open(url) as store:
        sizes = [
            info.stored_size for info in store.engine.backend.bodies(session.uid) if info.name == "details"
        ]
        assert sizes[0] > 5_000 > 500 > max(sizes[1:])
        details = [store.get("run").load(f"seq:{seq}").details for seq in (1, 3, 5)]
        assert details == [{"noise": noise, "n": n} for n in range(3)]
