"""Entries that cannot be read: mistakes are refused on the way in, and what is stored shuts nothing else out."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import stepkeep
from stepkeep.api.investigating import Investigation
from tests.investigation.conftest import Shell

Reopened = Callable[[], Investigation]


@pytest.mark.parametrize(
    "mistake",
    [
        lambda bug: bug.commands.record("make", exit_code="0"),
        lambda bug: bug.commands.record("make", working_dir=None),
        lambda bug: bug.commands.record("make", replay="yes"),
        lambda bug: bug.commands.record("make", stdout=5),
        lambda bug: bug.verifications.run("true", hypothesis=7),
        lambda bug: bug.verifications.run("true", timeout_seconds="5"),
        lambda bug: bug.verifications.run("true", max_output="5"),
        lambda bug: bug.verifications.run("true", folder=None),
        lambda bug: bug.verifications.run(5),
        lambda bug: bug.verifications.run("true", environment={"A": 5}),
        lambda bug: bug.commands.run("touch it-was-run", replay="yes"),
        lambda bug: bug.verifications.skip("p", hypothesis=7),
        lambda bug: bug.notes.add("n", hypotheses=[7]),
        lambda bug: bug.gaps.add("q", blocks=[7]),
        lambda bug: bug.hypotheses.confirm(7),
        lambda bug: bug.code_changed(["a"], environment={"PATH": 5}),
    ],
)
def test_a_mistake_is_refused_and_the_investigation_opens(
    bug: Investigation, reopened: Reopened, mistake: Callable[[Investigation], Any]
) -> None:
    """Values of a wrong kind are `InvalidInput`; nothing of them is stored."""
    before = bug.state()
    with pytest.raises(stepkeep.InvalidInput):
        mistake(bug)
    bug.checkpoint("after the mistake")
    found = reopened()
    assert found.state().command_history == before.command_history == ()
    assert found.verifications.all() == ()
    assert found.broken == ()
    assert not Path("it-was-run").exists()


def test_an_entry_stands_for_its_id(bug: Investigation, reopened: Reopened) -> None:
    """Wherever an id is asked for, the entry itself will do; output may be bytes and a folder a path."""
    h, b, c = bug.hypotheses.add("x"), bug.beliefs.add("y"), bug.beliefs.add("z")
    bug.beliefs.depend(b, c)
    bug.hypotheses.add_evidence(h, "seen")
    bug.notes.add("n", hypotheses=[h])
    bug.gaps.add("q", blocks=[h])
    bug.commands.record("make", working_dir=Path("src"), stdout=b"\xff", exit_code=0)
    bug.verifications.run("true", hypothesis=h)
    bug.hypotheses.confirm(h)
    bug.save()
    found = reopened()
    assert found.state().verification_results[0].hypothesis == h.id
    assert found.state().notes[0].hypotheses == found.state().gaps[0].blocks == (h.id,)
    assert found.commands.all()[0].working_dir == "src"


def broken_by(bug: Investigation) -> dict[str, str]:
    """Store entries as releases before would have: ids of one that can be mended, one that cannot, and others."""
    h = bug.hypotheses.add("kept")
    e = bug.hypotheses.add_evidence(h, "about it")
    mended = bug.commands.record("make", exit_code=2)
    lost = bug.notes.add("no time")
    bug.checkpoint("good")
    state = bug.session.load().state
    state["commands"][mended.id] |= {"exit_code": "0", "replay": "yes"}
    state["notes"][lost.id]["time_us"] = None
    state["hypotheses"]["evidence"][e.id]["hypothesis"] = "h_none"
    bug.session.save(state)
    return {"kept": h.id, "mended": mended.id, "lost": lost.id, "evidence": e.id}


def test_a_bad_entry_leaves_the_others_readable_and_stays_until_it_is_repaired(
    bug: Investigation, reopened: Reopened
) -> None:
    """Opening, asking the past and saving work; repairing mends what it can, and says what it dropped."""
    ids = broken_by(bug)
    found = reopened()
    assert found.hypotheses.get(ids["kept"]).description == "kept"
    assert {each.id for each in found.broken} == {ids["mended"], ids["lost"], ids["evidence"]}
    found.notes.add("one more")
    found.save()
    again = reopened()
    assert again.broken == again.state().broken
    assert len(again.broken) == 3
    asked = again.query_at(seq=again.session.info.last_seq)
    assert asked is not None
    assert [note.content for note in asked.notes] == ["one more"]
    repaired = {each.id: each.is_mended for each in again.repair()}
    assert repaired == {ids["mended"]: True, ids["lost"]: False, ids["evidence"]: False}
    last = reopened()
    assert last.broken == ()
    command = last.commands.get(ids["mended"])
    assert (command.exit_code, command.replay) == (0, False)


def test_the_command_line_repairs(bug: Investigation, shell: Shell) -> None:
    """`status` counts what cannot be read, `repair` deals with it."""
    ids = broken_by(bug)
    assert "Cannot be read: 3 entries" in shell("investigate", "status").stdout
    repaired = json.loads(shell("investigate", "repair", "--json").stdout)
    assert {each["id"] for each in repaired} == {ids["mended"], ids["lost"], ids["evidence"]}
    assert "Every entry can be read." in shell("investigate", "repair").stdout
    assert json.loads(shell("investigate", "status", "--json").stdout)["state"]["broken"] == []
