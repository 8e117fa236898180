"""How a store lies in a database, and what its URL can say."""

from __future__ import annotations

import logging
import os
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import psycopg
import pytest

import stepkeep
from stepkeep import config
from stepkeep.api import Store
from stepkeep.errors import BackendUnavailable, InvalidInput, NotFound, Unsupported
from stepkeep.storage.postgres import PostgresBackend, address
from stepkeep.storage.sql.backend import SqlBackend
from stepkeep.storage.urls import open_backend
from stepkeep.testing.builders import append_one, draft, item, new_owner, new_session, save
from tests.postgres.access import PostgresAccess
from tests.postgres.pgbouncer import PgBouncer
from tests.postgres.pooler import Pooler
from tests.postgres.server import Server


def test_a_store_is_opened_by_its_url(url: str) -> None:
    """What was saved is there for whoever opens the same URL again."""
    with stepkeep.open(url) as store:
        store.session("run").save({"n": 1}, message="first")
        shown = store.engine.backend.url
    with stepkeep.open(shown) as store:
        latest = store.session("run").latest()
        assert latest is not None
        assert (latest.state, latest.seq) == ({"n": 1}, 1)


def test_tables_live_in_the_schema_of_the_url(postgres: Server) -> None:
    """Two schemas of one database are two stores; the default is `stepkeep`, and nothing goes elsewhere."""
    database = postgres.fresh_database()
    for name in ("stepkeep", 'odd "name"; --'):
        options = {} if name == "stepkeep" else {"schema": name}
        with stepkeep.open(postgres.url(database=database, **options)) as store:
            store.session("run").save({"in": name})
            assert [session.key for session in store.sessions()] == ["run"]
    found = postgres.execute(
        "SELECT DISTINCT table_schema FROM information_schema.tables"
        " WHERE table_schema NOT IN ('pg_catalog', 'information_schema') ORDER BY 1",
        database=database,
    )
    assert [row[0] for row in found] == ['odd "name"; --', "stepkeep"]


def test_bodies_are_not_compressed_twice(postgres: Server, url: str) -> None:
    """Bodies and blobs are kept as they come, headers are bytes, and text is compared byte by byte."""
    PostgresBackend(url).close()
    access = PostgresAccess(postgres, url)
    storage = access.run(
        "SELECT relname, attstorage FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid"
        " JOIN pg_namespace n ON n.oid = c.relnamespace WHERE n.nspname = '{}' AND attname = 'data'"
        " AND relname IN ('bodies', 'blobs')"
    )
    assert dict(storage) == {"bodies": "e", "blobs": "e"}
    collations = access.run(
        "SELECT DISTINCT collation_name FROM information_schema.columns"
        " WHERE table_schema = '{}' AND data_type = 'text'"
    )
    assert collations == [("C",)]


def test_usage_does_not_read_bodies(postgres: Server, url: str) -> None:
    """The sizes of bodies are summed up from an index alone."""
    with stepkeep.open(url) as store:
        session = store.session("run", profile="archive")
        for number in range(50):
            session.save({"n": number})
    access = PostgresAccess(postgres, url)
    with postgres.connect() as connection:
        connection.execute(f"SET search_path = {access.schema}")
        connection.execute("VACUUM ANALYZE bodies")
        connection.execute("SET enable_seqscan = off")
        plan = connection.execute(
            "EXPLAIN SELECT count(*), sum(stored_size), sum(stored_size * is_hidden) FROM bodies"
        ).fetchall()
    assert "Index Only Scan using bodies_place" in "\n".join(row[0] for row in plan)


def test_the_servers_are_those_that_are_meant(postgres: Server, postgres15: Server) -> None:
    """The contract is kept on the newest version and on the one that Debian 12 has."""
    versions = [server.execute("SHOW server_version")[0][0] for server in (postgres, postgres15)]
    assert [version.split(".")[0] for version in versions] == ["18", "15"]


@pytest.mark.full
def test_many_writers_share_the_few_connections_of_a_pooler(postgres: Server, pgbouncer: PgBouncer) -> None:
    """Eight open stores and sixteen threads on three connections: each save is there once, in its place."""
    url = pgbouncer.url(postgres.fresh_url())
    with ExitStack() as stack:
        stores = [stack.enter_context(stepkeep.open(url)) for _ in range(8)]
        with ThreadPoolExecutor(16) as pool:
            saves = [
                pool.submit(
                    stores[number % 8].session(f"s{number % 5}", profile="archive").save, {"n": number}
                )
                for number in range(160)
            ]
            headers = [save.result() for save in saves]
        assert len({header.id for header in headers}) == 160
        for key in range(5):
            run = stores[0].get(f"s{key}")
            assert sorted(run.load(each.id).state["n"] for each in run.history()) == list(range(key, 160, 5))
            assert [each.seq for each in run.history()] == list(range(32, 0, -1))


def test_a_transaction_needs_nothing_of_the_one_before(postgres: Server, tmp_path: Path) -> None:
    """No prepared statement, setting or lock outlives its transaction behind a transaction pooler."""
    with Pooler.started(postgres.data, tmp_path) as pooler:
        url = postgres.fresh_url(project="mine").replace(str(postgres.data), str(tmp_path))
        with stepkeep.open(url) as store:
            session = store.session("run", profile="archive")
            for number in range(20):
                session.save({"n": number})
                assert session.load().state == {"n": number}
            assert [header.seq for header in session.history()] == list(range(20, 0, -1))
        for _ in range(pooler.size):
            with psycopg.connect(host=str(tmp_path), user="postgres", dbname="postgres") as left:
                assert left.execute("SELECT name FROM pg_prepared_statements").fetchall() == []
                assert left.execute("SELECT 1 FROM pg_locks WHERE locktype = 'advisory'").fetchall() == []
                settings = "SELECT current_setting('stepkeep.project', true), current_setting('search_path')"
                assert left.execute(settings).fetchone() in [("", _PATH), (None, _PATH)]


_PATH = '"$user", public'


def test_a_connection_of_its_own_keeps_statements(url: str) -> None:
    """Where no pooler is between, what is sent often is prepared, and settings are sent once."""
    backend = PostgresBackend(url)
    with Store(backend) as store:
        session = store.session("run", profile="archive")
        for number in range(5):
            session.save({"n": number})
            session.load()
        with backend._pool.borrow() as raw:
            prepared = raw.execute("SELECT statement FROM pg_prepared_statements").fetchall()
    statements = " ".join(statement for (statement,) in prepared)
    assert "append_checkpoint" in statements
    assert "WITH RECURSIVE chain" in statements
    assert "set_config" not in statements


def test_annotations_are_stored_by_one_call(url: str) -> None:
    """Of two that are put at once one is stored, and the other one hears that there is one."""
    with Store(PostgresBackend(url)) as one, Store(PostgresBackend(url)) as other:
        uid = one.session("run").info.uid
        for number in range(20):
            with ThreadPoolExecutor(2) as threads:
                stored = threads.map(
                    lambda store, number=number: store.engine.annotate(uid, "cp", "note", str(number), b"x"),  # type: ignore[misc]
                    (one, other),
                )
                assert sorted(stored) == [False, True]
        assert len(one.engine.backend.annotations(uid, ["cp"])) == 20


@pytest.mark.parametrize(
    "external_id", ["plain", 'quote " and \\', "tab\tnewline\nbell\a", "ümläut 🙂 \x7f / é"]
)
def test_what_is_attached_to_a_checkpoint_is_read_by_one_statement(
    url: str, external_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both of its names are looked for, however they are written; one that has nothing attached is no mistake."""
    backend = PostgresBackend(url)
    uid = backend.create_session(new_session()).uid
    first, second = save(backend, uid), append_one(backend, item(draft(uid, external_id=external_id)))
    backend.annotate(uid, ("main", external_id), "note", "by name", b"1", time_us=1)
    backend.annotate(uid, second.id, "note", "by id", b"2", time_us=2)
    backend.annotate(uid, second.id, "other", "by id", b"3", time_us=3)
    backend.annotate(uid, "elsewhere", "note", "by id", b"4", time_us=4)
    monkeypatch.setattr(SqlBackend, "annotations", None)
    assert [each.data for each in backend.annotations(uid, [second.id], "note")] == [b"1", b"2"]
    assert backend.annotations(uid, [first.id], "note") == []
    monkeypatch.undo()
    with pytest.raises(NotFound):
        backend.annotations("nobody", [first.id], "note")
    backend.close()


def test_without_its_functions_a_store_works_as_well(postgres: Server, url: str) -> None:
    """Who may not call them takes the long way."""
    PostgresBackend(url).close()
    access = PostgresAccess(postgres, url)
    for name in ("append_checkpoint", "add_annotation"):
        access.run(f"DROP FUNCTION {{}}.{name}")
    with Store(PostgresBackend(url)) as store:
        run = store.session("run")
        run.save({"n": 1})
        assert run.load().state == {"n": 1}
        uid = run.info.uid
        assert [store.engine.annotate(uid, "cp", "note", "a", b"x") for _ in range(2)] == [True, False]


@pytest.mark.full
def test_a_save_is_believed_only_when_a_synchronous_standby_has_it(own_server: Server) -> None:
    """A server whose wait for its standby is cancelled commits all the same: that is no acknowledgement. A repeat waits
    again, and the save is there once."""
    with stepkeep.open(own_server.fresh_url()) as store, ThreadPoolExecutor(1) as thread:
        session = store.session("run", profile="archive")
        session.save({"n": 1})
        _wait_for_standby(own_server, "nobody")
        for _ in range(2):
            saving = thread.submit(session.save, {"n": 2}, idempotency_key="second")
            cancel = "SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE wait_event = 'SyncRep'"
            while not own_server.execute(cancel):
                time.sleep(0.01)
            error = saving.exception()
            assert isinstance(error, BackendUnavailable)
            assert (error.code, error.retryable) == ("not_replicated", True)
        _wait_for_standby(own_server, "")
        assert session.save({"n": 2}, idempotency_key="second").seq == 2
        assert [session.load(each.id).state["n"] for each in session.history()] == [2, 1]


def _wait_for_standby(server: Server, name: str) -> None:
    server.execute(f"ALTER SYSTEM SET synchronous_standby_names = '{name}'")
    server.reload()
    while server.execute("SHOW synchronous_standby_names") != [(name,)]:
        time.sleep(0.01)


@pytest.mark.full
def test_a_save_is_believed_only_when_it_is_on_disk(
    own_server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    """A role that commits without waiting is made to wait, and a server without fsync is warned about."""
    own_server.execute("ALTER ROLE postgres SET synchronous_commit = off")
    with caplog.at_level(logging.WARNING):
        backend = PostgresBackend(own_server.fresh_url())
    assert "fsync off" in caplog.text
    assert backend._write(lambda tx: tx.one("SHOW synchronous_commit")) == ("on",)
    own_server.execute("ALTER ROLE postgres SET synchronous_commit = remote_apply")
    backend._pool.drop_idle()
    assert backend._write(lambda tx: tx.one("SHOW synchronous_commit")) == ("remote_apply",)
    backend.close()


def test_who_finds_no_free_connection_waits_and_is_told(url: str) -> None:
    """A pool has a size; waiting ends with an error that may be repeated."""
    backend = PostgresBackend(url + "&pool_size=1&statement_timeout=0.2")
    with backend._pool.borrow(), pytest.raises(BackendUnavailable, match="pool_size") as refusal:
        backend.usage()
    assert (refusal.value.code, refusal.value.retryable) == ("store_busy", True)
    backend.usage()
    backend.close()


# --- URLs ---


def test_a_password_is_not_shown() -> None:
    """What is printed and logged opens the store with a password from elsewhere."""
    found = address.parse("postgres://me:s3cret@host:1/db?sslmode=require&password=more&schema=s")
    assert found.url == "postgres://me@host:1/db?sslmode=require&schema=s"
    assert found.parameters["password"] in ("s3cret", "more")


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://me:s3%zz@host/db",
        "postgresql://me:s3%zz@[::1/db",
        "postgresql://me:s3%zz@[::1]x/db?password=s3%zz",
    ],
)
def test_a_password_is_not_shown_with_what_is_wrong_in_a_url(url: str) -> None:
    """libpq quotes what it does not understand; the password is left out of it."""
    with pytest.raises(InvalidInput) as refusal:
        address.parse(url)
    assert refusal.value.code == "unknown_store_url"
    assert "s3%" not in str(refusal.value)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize(
    ("url", "given"),
    [
        ("postgresql://", {}),
        ("postgresql:///agents", {"dbname": "agents"}),
        ("postgres:///agents?host=/tmp/x&user=me", {"dbname": "agents", "host": "/tmp/x", "user": "me"}),
        ("postgresql://?dbname=agents", {"dbname": "agents"}),
        ("postgresql:///?service=agents", {"service": "agents"}),
        ("postgresql://a:1,b:2/agents", {"dbname": "agents", "host": "a,b", "port": "1,2"}),
    ],
)
def test_a_url_without_a_host_is_left_to_libpq(url: str, given: dict[str, str]) -> None:
    """What it does not say comes from libpq's own variables; the URL that is shown opens the same store."""
    found = address.parse(url + ("&" if "?" in url else "?") + "schema=s")
    assert {name: found.parameters[name] for name in given} == given
    assert {"host", "user", "dbname", "port"} & found.parameters.keys() <= given.keys()
    assert found.url.startswith(url)
    assert address.parse(found.url) == found


def test_the_server_of_the_environment(postgres: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """`postgresql:///DATABASE` opens a store on the server that `PGHOST` names."""
    monkeypatch.setenv("PGHOST", str(postgres.data))
    monkeypatch.setenv("PGUSER", "postgres")
    (_, _, options) = postgres.fresh_url().partition("&")
    with stepkeep.open(f"postgresql:///postgres?{options}") as store:
        assert store.session("run").save({"n": 1}).seq == 1
        assert store.url == f"postgresql:///postgres?{options}"


def test_options_of_libpq_are_left_to_it() -> None:
    """TLS and time-outs are libpq's; ours are taken out."""
    found = address.parse(
        "postgresql://host/db?sslmode=verify-full&sslrootcert=%2Fca%20file&connect_timeout=3&pool_size=2"
        "&statement_timeout=1.5&project=a%20b"
    )
    assert found.parameters["sslmode"] == "verify-full"
    assert found.parameters["sslrootcert"] == "/ca file"
    assert found.parameters["connect_timeout"] == "3"
    assert (found.pool_size, found.timeout_seconds, found.project) == (2, 1.5, "a b")
    assert "pool_size" not in found.parameters


@pytest.mark.parametrize(
    "options",
    [
        "pool_size=0",
        "pool_size=many",
        "statement_timeout=-1",
        "statement_timeout=nan",
        "schema=",
        "schema=pg_mine",
        f"schema={'x' * 64}",
        "project=",
        "unknown_option=1",
    ],
)
def test_an_option_that_makes_no_sense_is_refused(options: str) -> None:
    """It is the caller's mistake, found before any connection."""
    with pytest.raises(InvalidInput) as refusal:
        open_backend(f"postgresql://nowhere.invalid/db?{options}")
    assert refusal.value.code == "unknown_store_url"


def test_a_missing_driver_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without psycopg the error says what to install."""
    for name in [name for name in sys.modules if name.startswith(("psycopg", "stepkeep.storage.postgres"))]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(Unsupported, match=r"pip install stepkeep\[postgres\]") as refusal:
        open_backend("postgresql://host/db")
    assert refusal.value.code == "driver_missing"


def test_the_driver_is_imported_only_for_such_a_store() -> None:
    """Opening another store needs no psycopg."""
    import subprocess

    code = "import sys, stepkeep; stepkeep.open('memory:').close(); sys.exit('psycopg' in sys.modules)"
    source = str(Path(stepkeep.__file__).parents[1])
    assert subprocess.run([sys.executable, "-c", code], env={"PYTHONPATH": source}).returncode == 0


def test_a_full_budget_takes_no_more_than_it_must(url: str) -> None:
    """The tables of a server do not shrink when something goes: what is stored counts, or all history would go."""
    settings = config.load(cwd=None, environ={}, flags={"limits.budget_bytes": "1MB", "keeper.enabled": True})
    quiet = config.load(cwd=None, environ={}, flags={"keeper.enabled": False})
    with stepkeep.open(url, config=quiet) as store:
        for key in ("old", "new", "active"):
            for _ in range(10):
                store.session(key).save({"noise": os.urandom(40_000)})
            if key != "active":
                store.get(key).complete()
        assert store.status().is_over_budget is False
    with stepkeep.open(url, config=settings) as store:
        assert store.status().is_over_budget
        keeper = store._upkeep.keeper
        assert keeper is not None
        keeper.budget.squeeze()
        assert [store.get(key).usage().checkpoints for key in ("old", "new", "active")] == [1, 10, 10]
        assert store.status().is_over_budget is False


def test_list_and_clean_read_no_more_in_a_large_store(postgres: Server, url: str) -> None:
    """The newest sessions and those that are due are found by an index, whatever else there is."""
    settings = config.load(cwd=None, environ={}, flags={"keeper.enabled": False})
    access = PostgresAccess(postgres, url)

    def rows_read() -> int:
        access.run("SELECT pg_stat_force_next_flush()")
        ((count,),) = access.run(
            "SELECT sum(coalesce(seq_tup_read, 0) + coalesce(idx_tup_fetch, 0))::bigint FROM pg_stat_user_tables"
            " WHERE schemaname = '{}' AND relname IN ('sessions', 'leases')"
        )
        return int(count)

    with stepkeep.open(url, config=settings) as store:
        backend = store.engine.backend
        for number in range(300):
            profile = ("standard", "workflow", "archive")[number % 3]
            session = store.session(f"stays-{number}", profile=profile)
            lease = backend.acquire_lease(session.uid, new_owner(), seconds=60)
            session.save({"n": 1}, status="completed" if number % 2 else "in_progress")
            backend.release_lease(session.uid, lease.token)
        store.session("goes", profile="workflow", test=True).complete()
    access.run("VACUUM ANALYZE {}.sessions")
    access.run("VACUUM ANALYZE {}.leases")
    before = rows_read()
    with stepkeep.open(url, config=settings) as store:
        assert len(store.summaries(limit=10)) == 10
    listed = rows_read()
    with stepkeep.open(url, config=settings) as store:
        report = store.clean()
    cleaned = rows_read()
    assert (report.cleaned, report.retained) == (1, 300)
    assert listed - before < 30
    assert cleaned - listed < 100
