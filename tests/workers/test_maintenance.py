"""Care for one store by several machines at once, and its cost when there are many sessions."""

from __future__ import annotations

import subprocess

import pytest

import holdfast
from holdfast import config, operations
from holdfast.api import Store
from holdfast.executor.owner import this_process
from holdfast.model import Status
from holdfast.storage.postgres import PostgresBackend
from holdfast.storage.postgres.connection import PostgresConnection
from holdfast.testing.records import new_session
from tests.workers.crew import Crew, events

COUNT = 60


def finish_all(process: subprocess.Popen[bytes]) -> bytes:
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0, err.decode()
    return out


@pytest.mark.full
def test_two_machines_clean_at_once(server_crew: Crew) -> None:
    """Nothing is removed twice, nothing fails, and what is run stays."""
    crew = server_crew
    settings = config.load(cwd=None, environ={}, flags={"keeper.enabled": False})
    with holdfast.open(crew.url, config=settings) as store:
        for number in range(COUNT):
            session = store.session(f"test-{number}", test=True)
            session.save({"number": number})
            store.engine.finish(session.uid, Status.COMPLETED)
        held = store.get("test-0")
        store.engine.backend.acquire_lease(held.uid, this_process("test"), seconds=300)
        store.session("kept").save({"kept": True})
    (crew.folder / "config").mkdir(exist_ok=True)
    done = [crew.start("clean", "--json") for _ in range(3)]
    reports = [Cleaned.of(finish_all(process)) for process in done]
    assert sum(report.cleaned for report in reports) == COUNT - 1
    assert all(report.errors == 0 for report in reports)
    assert crew.sessions().keys() == {"test-0", "kept"}


class Cleaned:
    """What one of them says it did."""

    def __init__(self, cleaned: int, errors: int) -> None:
        self.cleaned = cleaned
        self.errors = errors

    @classmethod
    def of(cls, out: bytes) -> Cleaned:
        (report,) = events(b" ".join(out.splitlines()).decode())
        return cls(report["cleaned"], report["error"])


@pytest.mark.full
def test_two_machines_prune_at_once(server_crew: Crew) -> None:
    """Together they remove each checkpoint once, and the store is whole."""
    crew = server_crew
    settings = config.load(cwd=None, environ={}, flags={"keeper.enabled": False})
    with holdfast.open(crew.url, config=settings) as store:
        for key in ("a", "b"):
            session = store.session(key, profile="archive")
            for number in range(40):
                session.save({"number": number, "text": "word " * 200})
    done = [crew.start("prune", "--all", "--keep-last", "5", "--json") for _ in range(2)]
    reports = [events(b" ".join(finish_all(process).splitlines()).decode())[0] for process in done]
    with holdfast.open(crew.url) as store:
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
                if number % 50 == 0:
                    store.get(session.key).save({"number": number}, status=Status.COMPLETED)
            with monkeypatch.context() as patch:
                patch.setattr(PostgresConnection, "send", counted)
                asked.clear()
                status = operations.store_status(store)
            numbers.append(len(asked))
            assert status.usage.sessions == last
            assert not any("b.data" in sql or " data" in sql for sql in asked)
    assert numbers[1] - numbers[0] < 200, numbers
