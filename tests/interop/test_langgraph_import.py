"""Threads of LangGraph's own savers move over with `stepkeep import langgraph`."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from langchain_core.messages import AIMessage
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.postgres import PostgresSaver
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.types import Command

import stepkeep
from stepkeep.adapters.langgraph import StepkeepSaver
from tests.interop.graphs import counter, deltas, seen, workflow
from tests.interop.threads import config, put
from tests.surfaces.test_cli import Cli

pytestmark = pytest.mark.filterwarnings("ignore")

THREAD: Any = {"configurable": {"thread_id": "t"}}


@dataclass
class Own:
    """A class that LangGraph does not know."""

    x: int


@pytest.fixture
def cli(tmp_path: Path) -> Cli:
    return Cli(tmp_path)


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.full)])
def source(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Where the official saver keeps its threads."""
    if request.param == "sqlite":
        return f"sqlite:{tmp_path}/official.sqlite"
    server = request.getfixturevalue("postgres")
    return str(server.url(database=server.fresh_database()))


@contextmanager
def official(source: str) -> Iterator[BaseCheckpointSaver[Any]]:
    if source.startswith("sqlite:"):
        with closing(sqlite3.connect(source.removeprefix("sqlite:"), check_same_thread=False)) as connection:
            saver = SqliteSaver(connection)
            saver.setup()
            yield saver
    else:
        with PostgresSaver.from_conn_string(source) as postgres:
            postgres.setup()
            yield postgres


def everything(saver: BaseCheckpointSaver[Any]) -> list[Any]:
    """All checkpoints of all threads, in an order that does not depend on the saver."""
    found = [tuple(each) for each in saver.list(None)]
    return sorted(found, key=lambda each: str(each[0]))


@pytest.mark.full
def test_threads_come_over_as_they_are(source: str, cli: Cli) -> None:
    """Checkpoints, parents, metadata, writes, messages and interrupts; again is no change."""
    with official(source) as saver:
        workflow(saver).invoke({"log": ["start"]}, THREAD)
        counter(saver).invoke({"log": []}, {"configurable": {"thread_id": "loop"}})
        deltas(saver).invoke({"items": ["a"]}, {"configurable": {"thread_id": "delta"}})
        expected = everything(saver)

    done = cli.here("import", "langgraph", "--from", source, "--json")
    assert done.code == 0, done.err
    assert (done.json["threads"], done.json["imported"]) == (3, len(expected))
    assert (done.json["verified"], done.json["refused"]) == (len(expected), [])
    again = cli.here("import", "langgraph", "--from", source)
    assert again.code == 0
    assert f"{len(expected)} were there" in again.out

    with StepkeepSaver(cli.url) as moved:
        assert everything(moved) == expected
        assert workflow(moved).invoke(Command(resume="yes"), THREAD)["answer"] == "yes"
        state = deltas(moved).invoke({"items": ["b"]}, {"configurable": {"thread_id": "delta"}})
        assert state["items"][:2] == ["a", "a0"]
        assert moved.store.verify().findings == ()


def test_a_thread_goes_on_as_if_it_had_not_moved(source: str, cli: Cli) -> None:
    """The versions that the official saver gave are continued."""
    with official(source) as saver:
        counter(saver).invoke({"log": []}, THREAD)
    assert cli.here("import", "langgraph", "--from", source).code == 0
    with official(source) as saver, StepkeepSaver(cli.url) as moved:
        results = []
        for each in (saver, moved):
            graph, names = counter(each), {}
            graph.invoke({"log": ["second"]}, THREAD)
            results.append([seen(snapshot, names) for snapshot in graph.get_state_history(THREAD)])
        assert results[0] == results[1]


def test_one_thread_can_be_named(source: str, cli: Cli) -> None:
    with official(source) as saver:
        for thread in ("a", "b"):
            put(saver, {"x": [1]}, config(thread))
    assert "in 1 thread" in cli.here("import", "langgraph", "--from", source, "--thread", "a").out
    with stepkeep.open(cli.url) as store:
        assert [each.key for each in store.sessions()] == ["a"]
    missing = cli.here("import", "langgraph", "--from", source, "--thread", "c")
    assert (missing.code, "no thread" in missing.err) == (3, True)


def test_classes_are_carried_over_without_being_imported(source: str, cli: Cli) -> None:
    """The report names those that a saver must be told to allow."""
    with official(source) as saver:
        put(saver, {"own": [Own(1)], "message": AIMessage("hi", id="1")})
    report = cli.here("import", "langgraph", "--from", source, "--json").json
    assert report["classes"] == [f"{Own.__module__}:Own"]
    with StepkeepSaver(cli.url, allow=[Own]) as moved:
        found = moved.get_tuple(config())
        assert found is not None
        assert found.checkpoint["channel_values"] == {"own": [Own(1)], "message": AIMessage("hi", id="1")}


def test_what_cannot_be_read_is_reported(tmp_path: Path, cli: Cli) -> None:
    """One damaged checkpoint does not stop the others; the command says so and exits with 4."""
    source = f"sqlite:{tmp_path}/official.sqlite"
    with official(source) as saver:
        at = put(saver, {"x": 1})
        put(saver, {"x": 2}, at)
    with closing(sqlite3.connect(tmp_path / "official.sqlite")) as connection, connection:
        connection.execute("UPDATE checkpoints SET checkpoint = x'c1' WHERE parent_checkpoint_id IS NULL")
    done = cli.here("import", "langgraph", "--from", source)
    assert done.code == 4
    assert "REFUSED t" in done.out
    assert "Imported 1 checkpoint" in done.out


@pytest.mark.parametrize(
    ("url", "code"),
    [
        ("mysql://x", 2),
        ("nothing", 2),
        ("sqlite:missing.db", 3),
        ("sqlite:empty.db", 3),
        ("sqlite:text.db", 1),
    ],
)
def test_sources_that_are_none(url: str, code: int, cli: Cli) -> None:
    """Each with its reason, and no store is made."""
    sqlite3.connect(cli.folder / "empty.db").close()
    (cli.folder / "text.db").write_text("no database " * 100)
    done = cli.here("import", "langgraph", "--from", url)
    assert done.code == code, done.err
    assert not cli.file.exists()


def test_a_server_that_is_down_may_be_asked_again(cli: Cli) -> None:
    """And the password is not printed, wherever the URL has it."""
    for url in (
        "postgresql://me:hunter2@127.0.0.1:1/agents",
        "postgresql://me@127.0.0.1:1/agents?password=hunter2",
    ):
        done = cli.here("import", "langgraph", "--from", url, "--json")
        assert done.code != 0
        assert (done.error["code"], done.error["retryable"]) == ("source_unreadable", True)
        assert "hunter2" not in done.out + done.err


@pytest.mark.full
def test_a_report_has_no_password(cli: Cli, request: pytest.FixtureRequest) -> None:
    server = request.getfixturevalue("postgres")
    source = str(server.url(database=server.fresh_database()))
    with official(source) as saver:
        put(saver, {"x": 1})
    joint = "&" if "?" in source else "?"
    done = cli.here("import", "langgraph", "--from", f"{source}{joint}password=hunter2", "--json")
    assert (done.code, done.json["imported"]) == (0, 1)
    assert done.json["source"].startswith("postgresql://")
    assert "hunter2" not in done.out + done.err
