"""Tokens and cost, as callers tell them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import stepkeep
from stepkeep import Outcome, PlanStep
from tests.surfaces.test_cli import Cli


def test_tokens_and_cost_are_summed_by_session_and_store(tmp_path: Path) -> None:
    """Whoever saves tells; pruned checkpoints count too."""
    cli = Cli(tmp_path)
    with stepkeep.open(cli.url) as store:
        session = store.session("chat")
        for _ in range(3):
            session.save({}, usage={"tokens": 100, "cost": 0.25})
        store.save("chat", {}, usage={"tokens": 1})
        store.save("new", {}, usage={"cost": 1})
        for step in range(12):
            store.agents.save("agent", None, {"currentStepIndex": step}, usage={"tokens": 10})
        store.execute("plan", [PlanStep("1")], lambda _: Outcome(output=1, token_usage=7))
    with stepkeep.open(cli.url) as store:
        assert store.get("chat").info.metadata["usage"] == {"tokens": 301, "cost": 0.75}
        assert store.get("agent").info.metadata["usage"]["tokens"] == 120
        assert store.get("plan").info.metadata["usage"]["tokens"] == 7
    told = json.loads(cli.here("stats", "--json").out)
    assert (told["tokens"], told["cost"]) == (428, 1.75)
    assert "stepkeep_tokens 428" in cli.here("stats", "--prometheus").out


@pytest.mark.parametrize(
    "usage", [5, {"tokens": "many"}, {"tokens": -1}, {"token": 1}, {"cost": float("nan")}]
)
def test_usage_that_makes_no_sense_is_refused(usage: Any) -> None:
    """Before anything is saved."""
    with stepkeep.open("memory:") as store:
        for save in (
            store.session("s").save,
            lambda state, **options: store.agents.save("t", None, state, **options),
        ):
            with pytest.raises(stepkeep.InvalidInput):
                save({}, usage=usage)
        assert not list(store.checkpoints())
