"""A store driven at random, beside a model of plain dicts that says what it must hold.

Subclass `StoreMachine`, supply `open_backend` and `raw_access`, and give the class to `run_machine`. Two stores
with caches of their own work on the one backend, as two processes would. In about half of the runs stored bytes
are damaged: then the exact state, an older one that says so, or `Corrupt` may come back, and never anything else.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from stepkeep.api import Checkpoint, Session, Store
from stepkeep.engine import Pending
from stepkeep.errors import Corrupt, NotFound, StepkeepError
from stepkeep.model import MAIN_BRANCH, STATE, Branch, Header, Status
from stepkeep.storage.port import ANY_HEAD, Backend, Target
from stepkeep.testing.builders import FakeClock
from stepkeep.testing.contract import RawAccess
from stepkeep.testing.oracle import SavedModel, SessionModel, Wish
from stepkeep.testing.strategies import StateEdit, edits, same, states

SESSIONS: Final = ("first", "second")
BRANCHES: Final = (MAIN_BRANCH, "b", "c")
KEYFRAME_EVERY: Final = 5
"""Small, so that a short run has several groups and redundant deltas."""

START: Final = {"text": " ".join(f"{number * number:x}" for number in range(400))}
"""What every session begins with: long enough for deltas to be worth while."""

ABSENT: Final = "cp_20200101T000000000000_0000000000"

_keys = st.sampled_from([SESSIONS[0], *SESSIONS])
_picks = st.integers(0, 999)
_later_ids = st.integers(0, 7).map("e{}".format)
_options = st.fixed_dictionaries(
    {"branch": st.sampled_from([None, None, *BRANCHES])},
    optional={
        "step": st.integers(0, 5),
        "tags": st.lists(st.sampled_from(["t", "u"]), max_size=2).map(tuple),
        "status": st.sampled_from([Status.IN_PROGRESS, Status.IN_PROGRESS, Status.PAUSED, Status.COMPLETED]),
        "details": states(max_leaves=3),
        "external_id": _later_ids,
        "idempotency_key": st.integers(0, 20).map("k{}".format),
    },
)
_expectations = st.sampled_from(["any", "any", "right", "wrong", "none"])


def run_machine(
    machine: type[StoreMachine], *, examples: int = 20, steps: int = 30, is_fixed: bool = False
) -> None:
    """Run a machine; what Hypothesis finds is raised, with the fewest steps that lead to it.

    With `is_fixed` the examples are the same every time, and the first failure is raised as it is.
    """
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=examples,
            stateful_step_count=steps,
            deadline=None,
            derandomize=is_fixed,
            phases=[Phase.generate] if is_fixed else list(Phase),
            report_multiple_bugs=False,
            suppress_health_check=list(HealthCheck),
        ),
    )


_OVERRIDE = "a machine for a backend overrides `open_backend` and `raw_access`"


class StoreMachine(RuleBasedStateMachine):
    """Every public action and its effect. A subclass says which backend is under test."""

    def open_backend(self) -> Backend:
        """Open the store: an empty one at first, and the same one again whenever it was closed."""
        return pytest.fail(_OVERRIDE)

    def raw_access(self) -> RawAccess:
        """Raw access to the store that is open now."""
        return pytest.fail(_OVERRIDE)

    def __init__(self) -> None:
        super().__init__()
        self.clock = FakeClock()
        self.may_damage = False
        self.pending: list[tuple[SessionModel, Wish, Pending]] = []
        self._open()
        self.models = {key: SessionModel(self.stores[0].session(key).uid) for key in SESSIONS}

    def _open(self) -> None:
        self.backend = self.open_backend()
        self.stores = [Store(self.backend, keyframe_every=KEYFRAME_EVERY, clock=self.clock) for _ in range(2)]

    def _close(self) -> None:
        for store in self.stores:
            store.close()

    def teardown(self) -> None:
        try:
            self.settle()
        finally:
            self._close()

    def _session(self, key: str, store: int = 0) -> Session:
        return self.stores[store].get(key)

    @initialize(may_damage=st.booleans(), some=st.lists(edits(), max_size=8))
    def begin(self, may_damage: bool, some: list[StateEdit]) -> None:
        self.may_damage = may_damage
        self.work(SESSIONS[0], some)

    @rule(seconds=st.integers(-3600, 3600))
    def clock_moves(self, seconds: int) -> None:
        """Order is by seq: a clock that goes back changes nothing."""
        self.clock.advance(seconds)

    # --- saving

    @rule(key=_keys, edit=edits(), options=_options, expect=_expectations, store=st.sampled_from([0, 1]))
    def save(self, key: str, edit: StateEdit, options: dict[str, Any], expect: str, store: int) -> None:
        self._save(key, _wish(self._model(key), edit, options, expect), store)

    def _save(self, key: str, wish: Wish, store: int = 0) -> None:
        session = self._session(key, store)
        _check_save(self.models[key], wish, lambda: session.save(wish.state, **wish.options()))

    @rule(key=_keys, some=st.lists(edits(), min_size=1, max_size=10))
    def work(self, key: str, some: list[StateEdit]) -> None:
        """A run of saves as an agent makes them: each state is an edit of the one before."""
        model = self._model(key)
        for edit in some:
            self._save(key, Wish(edit.apply(_head_state(model, model.branch))))

    @rule(key=_keys, edit=edits(), pick=_picks)
    def save_requiring(self, key: str, edit: StateEdit, pick: int) -> None:
        """One that keeps another from being removed."""
        model = self._model(key)
        requires = (_picked(model, pick).id,) if model.kept else ()
        self._save(key, Wish(edit.apply(_head_state(model, model.branch)), requires=requires))

    @rule(
        key=_keys, some=st.lists(st.tuples(edits(), _options), min_size=1, max_size=4), is_chain=st.booleans()
    )
    def save_without_waiting(
        self, key: str, some: list[tuple[StateEdit, dict[str, Any]]], is_chain: bool
    ) -> None:
        """They are stored in the order of the calls; each may expect the one before it as the head."""
        session, model = self._session(key), self.models[key]
        for edit, options in some:
            last = self.pending[-1] if self.pending else None
            wish = _wish(model, edit, options, "any")
            if is_chain and last is not None and last[0] is model and last[1].branch == wish.branch:
                wish = Wish(wish.state, branch=wish.branch, expect_head=last[2].id)
            self.pending.append((model, wish, session.save(wish.state, wait=False, **wish.options())))

    @rule(key=_keys, pick=_picks, store=st.sampled_from([0, 1]))
    def save_again(self, key: str, pick: int, store: int) -> None:
        """A repeat with the same key is the first one, whatever the head is by now."""
        model = self._model(key)
        keyed = [saved for saved in model.kept.values() if saved.wish.idempotency_key]
        if keyed:
            first = keyed[pick % len(keyed)].wish
            options = first.options() | {"expect_head": ABSENT, "external_id": None}
            self._save(key, Wish(first.state, **options), store)

    def _model(self, key: str) -> SessionModel:
        """What a session must hold, once nothing is on its way to it."""
        self.settle()
        return self.models[key]

    @rule()
    def settle(self) -> None:
        """Wait for the saves that nobody waited for; the model takes them in the order they were asked for."""
        waiting, self.pending = self.pending, []
        for model, wish, pending in waiting:
            _check_save(model, wish, pending.result)

    # --- loading

    @rule(key=_keys, seq=st.integers(1, 40))
    def load_by_seq(self, key: str, seq: int) -> None:
        """A number names its checkpoint for ever, or nothing."""
        model = self._model(key)
        saved = next((saved for saved in model.kept.values() if saved.seq == seq), None)
        found = _loaded(self._session(key), seq)
        if saved is None:
            assert isinstance(found, NotFound)
        else:
            self._check_loaded(model, saved, found)

    @rule(key=_keys, pick=_picks)
    def load_by_id(self, key: str, pick: int) -> None:
        model = self._model(key)
        assert isinstance(_loaded(self._session(key), ABSENT), NotFound)
        if model.kept:
            saved = _picked(model, pick)
            self._check_loaded(model, saved, _loaded(self._session(key), saved.id))

    # --- forking, annotating

    @rule(key=_keys, pick=_picks, branch=st.sampled_from(BRANCHES))
    def fork(self, key: str, pick: int, branch: str) -> None:
        """Go back to a checkpoint, on a branch of that name."""
        model = self._model(key)
        if model.kept:
            saved = _picked(model, pick)
            record = Branch(name=branch, created_us=self.clock(), head=saved.id, fork=saved.id)
            self.backend.set_branch(model.uid, record)
            self.backend.update_session(model.uid, {"branch": branch})
            model.fork(saved, branch)

    @rule(key=_keys, pick=_picks, external_id=_later_ids, data=st.binary(max_size=9), replace=st.booleans())
    def annotate(self, key: str, pick: int, external_id: str, data: bytes, replace: bool) -> None:
        """On a checkpoint that is there, or one that may come."""
        model = self._model(key)
        target: Target = (MAIN_BRANCH, external_id)
        if model.kept and pick % 2:
            target = _picked(model, pick).id
        place = (target, "note", f"n{pick % 3}")
        is_stored = self.backend.annotate(model.uid, *place, data, time_us=self.clock(), replace=replace)
        assert is_stored == (replace or place not in model.notes)
        if is_stored:
            model.notes[place] = data

    @rule(key=_keys, edit=edits(), pick=_picks)
    def save_an_annotated_one(self, key: str, edit: StateEdit, pick: int) -> None:
        """What was attached before its checkpoint came is there when it comes."""
        model = self._model(key)
        awaited = [target for target, _, _ in model.notes if isinstance(target, tuple)]
        if awaited:
            branch, external_id = awaited[pick % len(awaited)]
            state = edit.apply(_head_state(model, branch))
            self._save(key, Wish(state, branch=branch, external_id=external_id))

    # --- removing

    @rule(key=_keys, picks=st.lists(_picks, min_size=1, max_size=4))
    def prune(self, key: str, picks: list[int]) -> None:
        """Remove checkpoints behind the back of the writers; bodies that others need stay hidden."""
        model = self._model(key)
        ids = list(dict.fromkeys(_picked(model, pick).id for pick in picks if model.kept))
        refused = model.refused(ids)
        removed = self.backend.remove(model.uid, [*ids, ABSENT])
        assert set(removed.removed) == set(ids) - refused
        assert set(removed.refused) == refused
        assert removed.missing == (ABSENT,)
        model.remove(ids)

    @rule(limit=st.sampled_from([1, 2, 1000]))
    def sweep(self, limit: int) -> None:
        self.settle()
        while self.backend.sweep(limit=limit).has_more:
            pass

    @rule(key=_keys, picks=st.lists(_picks, min_size=1, max_size=3))
    def delete(self, key: str, picks: list[int]) -> None:
        """No byte of a deleted checkpoint stays, not even as the base of another."""
        model = self._model(key)
        if not model.kept:
            return
        ids = list(dict.fromkeys(_picked(model, pick).id for pick in picks))
        refused = model.refused(ids)
        answer = _found(lambda: self._session(key).delete(*ids))
        if isinstance(answer, Corrupt):
            assert model.damaged_bodies | model.damaged_headers, "only damage keeps a dependent from moving"
            return
        assert getattr(answer, "code", None) == ("still_required" if refused else None)
        model.remove(ids)
        stored = {body.checkpoint for body in self.backend.bodies(model.uid)}
        assert not stored & (set(ids) - refused)

    @rule(key=_keys, is_meant=st.sampled_from([False, False, False, True]))
    def clear(self, key: str, is_meant: bool) -> None:
        """A new session under the old key starts afresh; a handle of the old one saves nothing."""
        if not is_meant:
            return  # seldom, so that histories grow
        self.settle()
        session = self._session(key)
        session.clear()
        assert isinstance(_found(lambda: session.save({})), NotFound)
        self.models[key] = SessionModel(self.stores[0].session(key).uid)

    # --- the session's end and the store's

    @rule(key=_keys, verb=st.sampled_from(["complete", "fail", "cancel", "pause"]))
    def finish(self, key: str, verb: str) -> None:
        """The newest checkpoint of a session that ended stands alone."""
        model = self._model(key)
        model.status = getattr(self._session(key), verb)().status
        head = model.heads[model.branch]
        if not model.damaged_bodies | model.damaged_headers:
            bodies = [body for body in self.backend.bodies(model.uid) if body.checkpoint == head]
            assert all(body.base is None for body in bodies if not body.is_redundant)

    @rule()
    def reopen(self) -> None:
        self.settle()
        self._close()
        self._open()

    # --- damage

    @precondition(lambda self: self.may_damage)
    @rule(key=_keys, pick=_picks, is_header=st.booleans())
    def damage(self, key: str, pick: int, is_header: bool) -> None:
        """A byte of a header or of a body."""
        model = self._model(key)
        damaged = model.damaged_headers if is_header else model.damaged_bodies
        intact = [id_ for id_ in model.kept if id_ not in damaged]
        if intact:
            going = intact[pick % len(intact)]
            raw = self.raw_access()
            if is_header:
                raw.damage_header(going)
            else:
                raw.damage_body(going, STATE)
            damaged.add(going)

    def _doubtful(self, model: SessionModel) -> set[str]:
        """Checkpoints that need a damaged body to be rebuilt. A redundant delta may still serve them."""
        if not model.damaged_bodies:
            return set()
        bodies = self.backend.bodies(model.uid)
        infos = [body for body in bodies if body.name == STATE and not body.is_redundant]
        doubtful = {info.checkpoint for info in infos} & model.damaged_bodies
        while more := {info.checkpoint for info in infos if info.base in doubtful} - doubtful:
            doubtful |= more
        return doubtful

    # --- what must hold after every step

    @invariant()
    def sessions_are_as_modelled(self) -> None:
        """Counter, branch, status, heads, list and annotations are those of the model."""
        for key, model in self._settled():
            session = self._session(key, 1)
            info = session.info
            assert (info.last_seq, info.branch, info.status) == (model.last_seq, model.branch, model.status)
            assert {branch.name: branch.head for branch in session.branches} == model.heads
            listed = sorted(model.kept.keys() - model.damaged_headers, key=lambda id_: -model.kept[id_].seq)
            assert [header.id for header in session.history()] == listed
            notes = {(n.target, n.kind, n.name): n.data for n in self.backend.annotations(model.uid)}
            assert notes == model.notes

    @invariant()
    def every_checkpoint_loads(self) -> None:
        """Each is exactly what was saved; the latest is the newest of its line that loads; verify agrees."""
        for key, model in self._settled():
            session = self._session(key)
            doubtful = self._doubtful(model)
            found = {id_: _loaded(session, id_) for id_ in model.kept}
            for id_, saved in model.kept.items():
                self._check_loaded(model, saved, found[id_], doubtful)
            loading = {id_ for id_, one in found.items() if isinstance(one, Checkpoint)}
            _check_latest(model, loading, _found(session.latest))
            _check_verify(model, loading, doubtful, session)

    def _settled(self) -> list[tuple[str, SessionModel]]:
        """The sessions that no save is on its way to."""
        busy = [model for model, _, _ in self.pending]
        return [(key, model) for key, model in self.models.items() if not any(model is one for one in busy)]

    def _check_loaded(
        self, model: SessionModel, saved: SavedModel, found: object, doubtful: set[str] | None = None
    ) -> None:
        if isinstance(found, Checkpoint):
            assert saved.id not in model.damaged_headers
            wish, header = saved.wish, found.header
            assert same(found.state, wish.state)
            assert same(found.details, wish.details)
            assert (header.id, header.seq, header.branch) == (saved.id, saved.seq, saved.branch)
            assert (header.step, header.status) == (wish.step, wish.status)
            assert header.tags == tuple(dict.fromkeys(wish.tags))
            return
        assert isinstance(found, Corrupt), found
        doubtful = self._doubtful(model) if doubtful is None else doubtful
        assert saved.id in model.damaged_headers | doubtful, f"{saved.id} was not damaged: {found}"


def _head_state(model: SessionModel, branch: str) -> dict[str, Any]:
    head = model.heads.get(branch)
    state: dict[str, Any] = START if head is None else model.kept[head].wish.state
    return state


def _picked(model: SessionModel, pick: int) -> SavedModel:
    return list(model.kept.values())[pick % len(model.kept)]


def _wish(model: SessionModel, edit: StateEdit, options: dict[str, Any], expect: str) -> Wish:
    branch = options["branch"] or model.branch
    head = model.heads.get(branch)
    other = next((id_ for id_ in model.kept if id_ != head), ABSENT)
    heads = {"any": ANY_HEAD, "right": head, "wrong": other, "none": None}
    return Wish(edit.apply(_head_state(model, branch)), expect_head=heads[expect], **options)


def _found(ask: Callable[[], Any]) -> Any:
    """What a call returns, or the error it raises."""
    try:
        return ask()
    except StepkeepError as exc:
        return exc


def _loaded(session: Session, ref: str | int) -> Any:
    return _found(lambda: session.load(ref))


def _check_save(model: SessionModel, wish: Wish, ask: Callable[[], Header]) -> None:
    """The save succeeds or is refused as the model says, and has the next number and the head as its parent."""
    codes, original = model.refusals(wish), model.original(wish)
    head = model.heads.get(model.branch_of(wish))
    answer = _found(ask)
    if isinstance(answer, StepkeepError):
        is_unreadable = original is not None and original.id in model.damaged_headers
        assert answer.code in codes or (is_unreadable and isinstance(answer, Corrupt)), repr(answer)
        return
    assert not codes, f"it should have been refused with {codes}"
    if original is not None:
        assert (answer.id, answer.seq) == (original.id, original.seq)
        return
    assert answer.seq == model.last_seq + 1
    assert answer.parents == (() if head is None else (head,))
    model.add(wish, answer)


def _check_latest(model: SessionModel, loading: set[str], found: object) -> None:
    line = model.line(model.branch)
    usable = [id_ for id_ in line if id_ in loading]
    if not line:
        assert found is None
    elif not usable:
        assert isinstance(found, Corrupt)
        assert found.code == "no_valid_checkpoint"
    else:
        assert isinstance(found, Checkpoint)
        assert found.id == usable[0]
        assert (found.fallback is not None) == (usable[0] != line[0])
        assert same(found.state, model.kept[found.id].wish.state)


def _check_verify(model: SessionModel, loading: set[str], doubtful: set[str], session: Session) -> None:
    """What does not load is reported, what was not damaged is not, and every number is accounted for."""
    report = session.verify()
    assert report.checkpoints == len(model.kept)
    assert report.pruned == model.last_seq - len(model.kept)
    reported = {finding.checkpoint for finding in report.findings}
    assert model.kept.keys() - loading <= reported, report.findings
    assert reported <= model.damaged_headers | doubtful, report.findings
