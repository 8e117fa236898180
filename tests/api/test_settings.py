"""What a store takes from the configuration, and the rules a session has of its own."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import stepkeep
from stepkeep import aio, config
from stepkeep.config import Settings
from tests.api import programs


def settings(**flags: object) -> Settings:
    """Settings of no file; `a__b` stands for the key `a.b`."""
    given = {name.replace("__", "."): value for name, value in flags.items()}
    return config.load(cwd=None, environ={}, flags=given)


def fill(session: stepkeep.Session, count: int) -> None:
    for number in range(count):
        session.save({"number": number})


def count(session: stepkeep.Session) -> int:
    return session.usage().checkpoints


# --- the configuration


PROGRAM = """
import json, stepkeep
with stepkeep.open() as store:
    session = store.session("run")
    for number in range(8):
        session.save({"number": number})
    told = [store.url, session.info.profile, session.info.project, str(store.settings.origin("profile"))]
with stepkeep.open() as store:
    print(json.dumps([*told, store.get("run").usage().checkpoints]))
"""


def run_in(folder: Path, **environment: str) -> Any:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        cwd=folder,
        env={**programs.environment(), "XDG_CONFIG_HOME": str(folder / "none"), **environment},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    return json.loads(done.stdout) if done.returncode == 0 else done.stderr


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A folder in a project whose file names a store, a profile, a project and a limit."""
    text = "store: sqlite:state/h.db\nprofile: agent\nproject: tides\nretention: {keep_last: 5}\n"
    (tmp_path / "stepkeep.yaml").write_text(text)
    folder = tmp_path / "deep" / "inside"
    folder.mkdir(parents=True)
    return folder


def test_the_nearest_file_upward_counts(project: Path, tmp_path: Path) -> None:
    """Store, profile and project of new sessions and their limits come from the project's file."""
    file = tmp_path / "stepkeep.yaml"
    assert run_in(project) == [f"sqlite:{tmp_path}/state/h.db", "agent", "tides", f"{file}:2", 5]


def test_the_environment_wins_over_the_file(project: Path, tmp_path: Path) -> None:
    """Variables come first; what they do not set stays as in the file."""
    url = f"sqlite:{tmp_path}/other.db"
    found = run_in(project, STEPKEEP_STORE=url, STEPKEEP_PROFILE="run")
    assert found == [url, "run", "tides", "$STEPKEEP_PROFILE", 5]


def test_the_users_file_counts_too(tmp_path: Path) -> None:
    """Without a project the user's own configuration holds, found as `config.user_file` finds it."""
    (tmp_path / "home" / "stepkeep").mkdir(parents=True)
    (tmp_path / "home" / "stepkeep" / "config.yaml").write_text("profile: phase\nstore: sqlite:mine.db\n")
    url, profile, *_ = run_in(tmp_path, XDG_CONFIG_HOME=str(tmp_path / "home"))
    assert (url, profile) == (f"sqlite:{tmp_path}/home/stepkeep/mine.db", "phase")


def test_a_wrong_file_is_an_error_that_names_the_line(project: Path, tmp_path: Path) -> None:
    """Nothing is opened with a configuration that makes no sense."""
    (tmp_path / "stepkeep.yaml").write_text("profil: agent\n")
    message = run_in(project)
    assert "stepkeep.yaml:1" in message
    assert "profile" in message
    assert not (tmp_path / "state").exists()


def test_given_settings_replace_all_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With `config` neither environment nor files are read; an argument wins over it."""
    monkeypatch.setenv("STEPKEEP_STORE", f"sqlite:{tmp_path}/environment.db")
    monkeypatch.setenv("STEPKEEP_PROFILE", "nonsense")
    ours = settings(store=f"sqlite:{tmp_path}/ours.db", profile="run", project="p")
    with stepkeep.open(config=ours) as store:
        assert store.settings is ours
        assert store.url == f"sqlite:{tmp_path}/ours.db"
        info = store.session("run").info
        assert (info.profile, info.project) == ("run", "p")
        assert store.session("other", profile="debug").info.profile == "debug"
    with stepkeep.open(f"sqlite:{tmp_path}/given.db", config=ours) as store:
        assert store.url == f"sqlite:{tmp_path}/given.db"


def test_defaults_are_for_new_sessions(url: str) -> None:
    """A session that exists keeps its profile and project whatever the configuration says."""
    with stepkeep.open(url, config=settings(profile="run", project="a")) as store:
        store.session("run")
    with stepkeep.open(url, config=settings(profile="agent", project="b")) as store:
        info = store.session("run").info
        assert (info.profile, info.project) == ("run", "a")


# --- rules of a session


def test_a_session_has_rules_of_its_own(store: stepkeep.Store) -> None:
    """They are stored as plain values, each part replaces only itself, and `{}` takes it back."""
    rules: Any = {"keep_last": 3, "keep_within": timedelta(minutes=90), "keep_tags": ("a", "b")}
    stored = {"keep_last": 3, "keep_within": "5400s", "keep_tags": ["a", "b"]}
    assert store.session("run", retention=rules).info.policy == stored
    assert store.session("run").info.policy == stored
    both = stored | {"cleanup": {"retention_days": 2}}
    assert store.session("run", cleanup={"retention_days": 2}).info.policy == both
    assert store.session("run", retention={}).info.policy == {"cleanup": {"retention_days": 2}}
    assert store.session("run", cleanup={}).info.policy is None


@pytest.mark.parametrize(
    "options",
    [
        {"retention": {"keep_lst": 3}},
        {"retention": {"keep_last": 0}},
        {"retention": {"keep_within": "soon"}},
        {"retention": {"cleanup": {}}},
        {"cleanup": {"days": 3}},
        {"cleanup": {"retention_days": -1}},
        {"cleanup": 7},
    ],
)
def test_rules_that_make_no_sense_are_refused(store: stepkeep.Store, options: Any) -> None:
    """Nothing is stored, not even an empty session."""
    with pytest.raises(stepkeep.InvalidInput):
        store.session("run", **options)
    assert list(store.sessions()) == []


# --- by hand


def test_prune_by_the_sessions_rules_or_others(url: str) -> None:
    """Rules that are given replace all of the session's; a dry run shows the plan and changes nothing."""
    with stepkeep.open(url, config=settings(keeper__enabled=False, retention__keep_last=5)) as store:
        session = store.session("run", profile="workflow")
        fill(session, 9)
        plan = session.prune(dry_run=True)
        assert (plan.deleted, plan.kept, count(session)) == (4, 5, 9)
        assert all(decision.reasons for decision in plan.decisions)
        stays = [
            decision.seq for decision in session.prune(dry_run=True, keep_last=2).decisions if decision.stays
        ]
        assert stays == [9, 8]
        report = session.prune()
        assert (report.total, report.kept, report.deleted) == (9, 5, 4)
        assert session.prune(keep_last=2).deleted == 3
        with pytest.raises(stepkeep.InvalidInput, match="keep_last"):
            session.prune(keep_last=0)
        assert count(session) == 2


def test_prune_every_session(url: str) -> None:
    """The store prunes each session by its own rules, and one that fails does not stop the others."""
    with stepkeep.open(url, config=settings(keeper__enabled=False)) as store:
        for key in ("a", "b", "c"):
            fill(store.session(key, retention={"keep_last": 2}), 4)
        assert [plan.deleted for plan in store.prune(dry_run=True).sessions] == [2, 2, 2]
        store.engine.describe_session(store.get("b").uid, {"policy": {"keep_last": "many"}})
        pruned = store.prune()
        assert (pruned.result, [error.session for error in pruned.errors]) == ("FAIL", ["b"])
        assert "keep_last" in pruned.errors[0].message
        assert [count(store.get(key)) for key in ("a", "b", "c")] == [2, 4, 2]
        store.session("b", retention={})
        assert [report.deleted for report in store.prune().sessions] == [0, 0, 0]


def test_clean_by_hand(url: str) -> None:
    """Finished sessions go when their days are over, by the policies of their profile."""
    day_us = 86_400_000_000
    ours = settings(keeper__enabled=False, agent__checkpoints__prune_after_days=2)
    with stepkeep.open(url, config=ours, clock=lambda: day_us) as store:
        store.session("agent", profile="agent").save({}, status="completed")
        store.session("flow", profile="workflow").save({}, status="completed")
        store.session("kept", profile="agent", cleanup={"enabled": False}).save({}, status="completed")
        store.session("active", profile="agent").save({})
    with stepkeep.open(url, config=ours, clock=lambda: 4 * day_us) as store:
        going = {each.session: each.goes for each in store.clean(dry_run=True).sessions}
        assert going == {"agent": True, "flow": False, "kept": False, "active": False}
        report = store.clean()
        assert (report.cleaned, report.retained, report.errors) == (1, 3, ())
        assert {info.key for info in store.sessions()} == {"flow", "kept", "active"}


def test_a_store_without_settings_has_no_keeper(tmp_path: Path) -> None:
    """A store made from a backend has the defaults as settings, and nobody prunes it."""
    from stepkeep.storage.sqlite import SqliteBackend

    with stepkeep.Store(SqliteBackend(tmp_path / "h.db")) as store:
        session = store.session("run", profile="agent")
        fill(session, 15)
        assert store.settings["profile"] == "standard"
        assert session.prune().deleted == 5


def test_the_same_with_asyncio(url: str) -> None:
    """Settings, pruning and cleaning are there for asyncio programs."""

    async def main() -> None:
        async with aio.open(url, config=settings(keeper__enabled=False, retention__keep_last=2)) as store:
            session = await store.session("run", cleanup={"retention_days": 1})
            for number in range(4):
                await session.save({"number": number})
            assert store.settings["retention.keep_last"] == 2
            assert (await session.prune()).deleted == 2
            assert len((await store.prune()).sessions) == 1
            assert (await store.clean()).retained == 1

    asyncio.run(main())


def test_states_of_agents_are_stored_as_they_are_if_that_is_wanted(tmp_path: Path) -> None:
    """`agent.checkpoints.compressState: false` holds for the profile `agent` alone."""
    plain = config.load(cwd=None, environ={}, flags={"agent.checkpoints.compress_state": False})
    state = {"text": "the same words again " * 100}
    with stepkeep.open(tmp_path / "h.db", config=plain) as store:
        codecs = {}
        for profile in ("agent", "archive"):
            session = store.session(profile, profile=profile)
            session.save(state)
            codecs[profile] = session._engine.backend.bodies(session.uid)[0].codec
            assert session.load().state == state
    assert codecs == {"agent": "raw", "archive": "zstd"}
