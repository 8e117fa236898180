"""Care for one store by several machines at once, and its cost when there are many sessions."""

from __future__ import annotations

import json
from typing import Any

import pytest

import stepkeep
from stepkeep import config
from stepkeep.api import Store
from stepkeep.model import Status
from stepkeep.processes import this_process
from stepkeep.storage.postgres import PostgresBackend
from stepkeep.storage.postgres.connections import PostgresConnection
from stepkeep.testing.builders import new_session
from tests.workers.crew import Crew

COUNT = 60


def together(crew: Crew, number: int, *args: str) -> list[dict[str, Any]]:
    """What so many processes print that do the same at once; all end well."""
    processes = [crew.start(*args) for _ in range(number)]
    outputs = [process.communicate(timeout=120) for process in processes]
    assert [process.returncode for process in processes] == [0] * number, outputs
    return [json.loads(out) for out, _ in outputs]


@pytest.mark.full
def test_two_machines_clean_at_once(server_crew: Crew) -> None:
    """Nothing is removed twice, nothing fails, and what is run stays."""
    crew = server_crew
    settings = config.load(cwd=None, environ={}, flags={"keeper.enabled": False})
    with stepkeep.open(crew.url, config=settings) as store:
        for number in range(COUNT):
            session = store.session(f"test-{number}", test=True)
            session.save({"number": number})
            store.engine.finish(session.uid, Status.COMPLETED)
        held = store.get("test-0")
        store.engine.backend.acquire_lease(held.uid, this_process("test"), seconds=300)
        store.session("kept").save({"kept": True})
    reports = together(crew, 3, "clean", "--json")
    assert sum(report["cleaned"] for report in reports) == COUNT - 1
    assert [report["error"] for report in reports] == [0, 0, 0]
    assert crew.sessions().keys() == {"test-0", "kept"}


@pytest.mark.full
def test_two_machines_prune_at_once(server_crew: Crew) -> None:
    """Together they remove each checkpoint once, and the store is whole."""
    crew = server_crew
    settings = config.load(cwd=None, environ={}, flags={"keeper.enabled": False})
    with stepkeep.open(crew.url, config=settings) as store:
        for key in ("a", "b"):
            session = store.session(key, profile="archive")
            for number in range(40):
                session.save({"number": number, "text": "word " * 200})
    reports = together(crew, 2, "prune", "--all", "--keep-last", "5", "--json")
    with stepkeep.open(crew.url) as store:
        left = store.usage().checkpoints
        assert store.verify().findings == ()
    assert left + sum(report["deleted"] for report in reports) == 80
    assert left < 80


@pytest.mark.full
def test_status_of_a_large_store_asks_little(server_crew: Crew, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a thousand sessions it takes as many statements as with few, but for pages, and reads no body."""
    settings = config.load(cwd=None, environ={}, flags={"keeper.enabled": False, "metrics.enabled": False})
    asked: list[str] = []
    send = PostgresConnection.send

    def counted(self: PostgresConnection, sql: str, values: object = ()) -> object:
        asked.append(sql)
        return send(self, sql, values)  # type: ignore[arg-type]

    with Store(PostgresBackend(server_crew.url), settings=settings) as store:
        numbers = []
        for last in (20, 1000):
            for number in range(store.usage().sessions, last):
                session = new_session(key=f"s{number}", status=Status.COMPLETED, finished_us=1)
                store.engine.backend.create_session(session)
                if number < 20:
                    store.get(session.key).save({"number": number}, status=Status.COMPLETED)
            with monkeypatch.context() as patch:
                patch.setattr(PostgresConnection, "send", counted)
                asked.clear()
                status = store.status()
            numbers.append(len(asked))
            assert status.usage.sessions == last
            assert not any("b.data" in sql or " data" in sql for sql in asked)
    assert numbers[1] - numbers[0] < 100, numbers
