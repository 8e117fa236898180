"""Servers that are away, refuse, or break in the middle: each error says what to do, and nothing is lost."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import psycopg
import pytest

import stepkeep
from stepkeep.api import Store
from stepkeep.errors import BackendUnavailable, Conflict, Corrupt, StepkeepError, Unsupported
from stepkeep.storage.postgres import PostgresBackend, connections
from stepkeep.storage.postgres.connections import COMMIT, PostgresConnection, translate
from stepkeep.storage.sql.connection import Value
from stepkeep.testing.builders import headers, new_owner, new_session, save
from tests.postgres.access import PostgresAccess
from tests.postgres.server import Server

pytestmark = pytest.mark.full


def refusal_of(url: str) -> StepkeepError:
    """What opening the store, or saving into it, raises."""
    with pytest.raises(StepkeepError) as refusal, stepkeep.open(url) as store:
        store.session("run").save({"n": 1})
    return refusal.value


@pytest.fixture
def backend(url: str) -> Iterator[PostgresBackend]:
    backend = PostgresBackend(url)
    yield backend
    backend.close()


def test_a_server_that_is_down(own_server: Server) -> None:
    """It can be tried again later, and then it works."""
    url = own_server.fresh_url()
    own_server.kill()
    error = refusal_of(url)
    assert (type(error), error.code, error.retryable) == (BackendUnavailable, "server_unreachable", True)
    own_server.start()
    with stepkeep.open(url) as store:
        assert store.session("run").save({"n": 1}).seq == 1


def test_a_host_that_does_not_exist() -> None:
    """A name that leads nowhere is a server that cannot be reached."""
    error = refusal_of("postgresql://nowhere.invalid/db?connect_timeout=2")
    assert (error.code, error.retryable) == ("server_unreachable", True)


def test_a_wrong_password(own_server: Server) -> None:
    """It is refused for good; the error does not show the password."""
    own_server.execute("CREATE ROLE app LOGIN PASSWORD 'right'")
    rules = own_server.data / "pg_hba.conf"
    rules.write_text("local all app scram-sha-256\n" + rules.read_text())
    own_server.reload()
    error = refusal_of(own_server.url(user="app", password="wr0ng"))
    assert (type(error), error.code, error.retryable) == (BackendUnavailable, "access_denied", False)
    assert "wr0ng" not in str(error)
    own_server.execute("GRANT CREATE ON DATABASE postgres TO app")
    with stepkeep.open(own_server.url(user="app", password="right")) as store:
        assert "right" not in store.engine.backend.url


def test_a_database_that_does_not_exist(postgres: Server) -> None:
    """Nobody makes one silently."""
    error = refusal_of(postgres.url(database="missing"))
    assert (error.code, error.retryable) == ("access_denied", False)


def test_missing_rights(postgres: Server) -> None:
    """A role that may not make the schema, or not use it, is told so."""
    postgres.execute("DROP ROLE IF EXISTS poor")
    postgres.execute("CREATE ROLE poor LOGIN")
    error = refusal_of(postgres.fresh_url(user="poor"))
    assert (error.code, error.retryable) == ("access_denied", False)
    url = postgres.fresh_url()
    PostgresBackend(url).close()
    error = refusal_of(url.replace("postgres@", "poor@"))
    assert (error.code, error.retryable) == ("access_denied", False)


def test_a_newer_schema(postgres: Server, url: str) -> None:
    """A database of a newer release is refused before anything is changed."""
    PostgresBackend(url).close()
    PostgresAccess(postgres, url).run("UPDATE {}.meta SET value = '2' WHERE name = 'schema_version'")
    error = refusal_of(url)
    assert (type(error), error.code) == (Unsupported, "schema_newer")


def test_another_encoding(postgres: Server) -> None:
    """A database that cannot hold every text is refused."""
    postgres.execute("DROP DATABASE IF EXISTS latin")
    postgres.execute("CREATE DATABASE latin ENCODING 'LATIN1' LOCALE 'C' TEMPLATE template0")
    error = refusal_of(postgres.url(database="latin"))
    assert (type(error), error.code) == (Unsupported, "server_encoding")


def test_a_read_only_server(postgres: Server, url: str) -> None:
    """What is there can be read; a save is refused, and no repeat helps."""
    with stepkeep.open(url) as store:
        store.session("run").save({"n": 1})
    with stepkeep.open(url + "&options=-c%20default_transaction_read_only%3Don") as store:
        latest = store.session("run").latest()
        assert latest is not None
        assert latest.state == {"n": 1}
        with pytest.raises(BackendUnavailable) as refusal:
            store.session("run").save({"n": 2})
    assert (refusal.value.code, refusal.value.retryable) == ("store_not_writable", False)
    error = refusal_of(postgres.fresh_url(options="-c default_transaction_read_only=on"))
    assert error.code == "store_not_writable"


def test_a_table_that_is_gone(postgres: Server, url: str) -> None:
    """Missing tables are damage, not an empty store."""
    with stepkeep.open(url) as store:
        store.session("run").save({"n": 1})
        PostgresAccess(postgres, url).run("DROP TABLE {}.bodies")
        with pytest.raises(Corrupt) as refusal:
            store.session("run").save({"n": 2})
    assert refusal.value.code == "schema_damaged"


def test_a_full_disk(postgres: Server, url: str) -> None:
    """The server says so in the middle of a save: nothing of it is stored, and a repeat does not help by itself."""
    with Store(PostgresBackend(url)) as store:
        session = store.session("run", profile="archive")
        session.save({"n": 1})
        access = PostgresAccess(postgres, url)
        access.run(
            "CREATE FUNCTION {}.full_disk() RETURNS trigger LANGUAGE plpgsql AS"
            " $$ BEGIN RAISE EXCEPTION 'could not extend file' USING ERRCODE = '53100'; END $$"
        )
        access.run("CREATE TRIGGER full_disk BEFORE INSERT ON {}.checkpoints EXECUTE FUNCTION {}.full_disk()")
        with pytest.raises(BackendUnavailable) as refusal:
            session.save({"n": 2})
        assert (refusal.value.code, refusal.value.retryable) == ("checkpoint_atomic_write_failed", False)
        access.run("DROP TRIGGER full_disk ON {}.checkpoints")
        assert session.save({"n": 3}).seq == 2
        assert store.engine.backend.usage().bodies == 2


def test_a_statement_that_takes_too_long(postgres: Server, url: str) -> None:
    """Who waits for a row that another holds gives up after the time of the URL, and may try again."""
    with stepkeep.open(url) as store:
        store.session("run").save({"n": 1})
    access = PostgresAccess(postgres, url)
    with stepkeep.open(url + "&statement_timeout=0.3") as store, postgres.connect() as other:
        session = store.session("run")
        other.execute("BEGIN")
        other.execute(f"SELECT * FROM {access.schema}.sessions FOR UPDATE")
        with pytest.raises(BackendUnavailable) as refusal:
            session.save({"n": 2})
        assert (refusal.value.code, refusal.value.retryable) == ("statement_timeout", True)
        other.execute("ROLLBACK")
        assert session.save({"n": 2}).seq == 2


# --- connections that break ---


def test_connections_that_were_cut_while_they_waited(own_server: Server) -> None:
    """The next call makes a new one: nobody notices."""
    backend = PostgresBackend(own_server.fresh_url())
    uid = backend.create_session(new_session()).uid
    save(backend, uid)
    own_server.cut_connections()
    assert save(backend, uid).seq == 2
    own_server.cut_connections()
    assert len(headers(backend, session=uid)) == 2
    own_server.kill()
    own_server.start()
    assert save(backend, uid).seq == 3
    backend.close()


@pytest.mark.parametrize(
    "text",
    [
        "consuming input failed: SSL error: unexpected eof while reading",
        "consuming input failed: SSL connection has been closed unexpectedly",
        "consuming input failed: SSL SYSCALL error: EOF detected",
        "consuming input failed: SSL error: sslv3 alert bad certificate",
        "consuming input failed: server closed the connection unexpectedly",
        "sending query failed: SSL error: bad length",
        "the connection is lost",
        "the connection is closed",
    ],
)
def test_a_connection_that_breaks_is_no_refusal(text: str) -> None:
    """It was allowed once, so it may be made again, whatever is said of its end."""
    error = translate(psycopg.OperationalError(text), "postgresql://host/db")
    assert (error.code, error.retryable) == ("server_unreachable", True)


def failed_attempt(text: str) -> psycopg.OperationalError:
    """What psycopg raises when a connection cannot be made, with another text."""
    with pytest.raises(psycopg.OperationalError) as failure:
        psycopg.connect(host="/nonexistent")
    return psycopg.OperationalError(text, pgconn=failure.value.pgconn)


SERVER = 'connection failed: connection to server at "127.0.0.1", port 5432 failed: '
SEVERAL = (
    "\nMultiple connection attempts failed. All failures were:"
    "\n- host: 'password.example', port: '1', hostaddr: '::1': "
)


@pytest.mark.parametrize(
    ("text", "code"),
    [
        (SERVER + "server does not support SSL, but SSL was required", "access_denied"),
        (SERVER + "SSL error: certificate verify failed", "access_denied"),
        (SERVER + 'root certificate file "/ca" does not exist', "access_denied"),
        (SERVER + 'FATAL:  password authentication failed for user "app"', "access_denied"),
        (SERVER + "fe_sendauth: no password supplied", "access_denied"),
        (
            SERVER + 'FATAL:  no pg_hba.conf entry for host "1.2.3.4", user "a", no encryption',
            "access_denied",
        ),
        ('connection is bad: invalid sslmode value: "bogus"', "access_denied"),
        (SERVER + "SSL error: unexpected eof while reading", "server_unreachable"),
        (SERVER + "SSL SYSCALL error: Connection reset by peer", "server_unreachable"),
        (SERVER + "FATAL:  the database system is starting up", "server_unreachable"),
        (SERVER.replace("127.0.0.1", "SSL.example") + "Connection refused", "server_unreachable"),
        (SERVER + "Connection refused" + SEVERAL + "Connection refused", "server_unreachable"),
        (SERVER + "Connection refused" + SEVERAL + 'FATAL:  role "a" does not exist', "access_denied"),
    ],
)
def test_a_connection_that_cannot_be_made_is_judged_by_what_is_said(text: str, code: str) -> None:
    """A refusal is for good, a server that is away is not; names of hosts, files and users say nothing."""
    error = translate(failed_attempt(text), "postgresql://host/db")
    assert (error.code, error.retryable) == (code, code == "server_unreachable")


@pytest.mark.parametrize("name", ["authentication-db", "SSL certificate", "password"])
def test_a_server_that_is_away_may_have_any_name(tmp_path: Path, name: str) -> None:
    """The words of a refusal in the path of its socket do not make it one."""
    folder = tmp_path / name
    folder.mkdir()
    error = refusal_of(f"postgresql://app@/agents?host={folder}")
    assert (error.code, error.retryable) == ("server_unreachable", True)


def test_a_server_without_tls_is_refused_where_tls_is_required() -> None:
    """libpq says it of an attempt to connect, and a repeat would not help."""
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def answer() -> None:
            with listening.accept()[0] as client:
                client.recv(8)
                client.sendall(b"N")
                client.recv(1)

        answering = threading.Thread(target=answer)
        answering.start()
        port = listening.getsockname()[1]
        error = refusal_of(f"postgresql://app@127.0.0.1:{port}/agents?sslmode=require&gssencmode=disable")
        answering.join()
    assert (error.code, error.retryable) == ("access_denied", False)


class Breaking:
    """Breaks the connection at a chosen moment of a commit, once."""

    def __init__(self, server: Server, monkeypatch: pytest.MonkeyPatch, *, is_after: bool) -> None:
        self.times = 0
        send, call = PostgresConnection.send, PostgresConnection.call

        def cut(work: Callable[[], Any], wait: Callable[[], object]) -> Any:
            if self.times:
                return work()
            self.times += 1
            if not is_after:
                server.cut_connections()
                return work()
            work()
            wait()
            server.cut_connections()
            raise psycopg.OperationalError("the connection was cut")

        def sending(tx: PostgresConnection, sql: str, values: Sequence[Value] = ()) -> Any:
            if sql != COMMIT:
                return send(tx, sql, values)
            return cut(lambda: send(tx, sql, values), tx._wait)

        def calling(tx: PostgresConnection, sql: str, values: Sequence[Value]) -> Any:
            return cut(lambda: call(tx, sql, values), lambda: None)

        monkeypatch.setattr(PostgresConnection, "send", sending)
        monkeypatch.setattr(PostgresConnection, "call", calling)


@pytest.mark.parametrize("is_after", [False, True], ids=["not committed", "committed"])
@pytest.mark.parametrize("is_optimistic", [False, True], ids=["asked", "optimistic"])
def test_a_save_whose_commit_is_unknown_is_repeated(
    own_server: Server, monkeypatch: pytest.MonkeyPatch, is_after: bool, is_optimistic: bool
) -> None:
    """A checkpoint's own id is its key: whether the commit happened or not, it is there once."""
    backend = PostgresBackend(own_server.fresh_url())
    with Store(backend) as store:
        session = store.session("run", profile="archive")
        session.save({"n": 1})
        if not is_optimistic:
            backend._heads.forget(session.uid)
        breaking = Breaking(own_server, monkeypatch, is_after=is_after)
        header = session.save({"n": 2})
        assert breaking.times == 1
        assert header.seq == 2
        assert next((found.seq, found.id) for found in session.history()) == (2, header.id)
        assert session.save({"n": 3}).seq == 3
        assert session.verify().findings == ()


def test_another_change_whose_commit_is_unknown_is_told(
    own_server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What has no key is not repeated: the error says that it may have happened."""
    backend = PostgresBackend(own_server.fresh_url())
    uid = backend.create_session(new_session()).uid
    Breaking(own_server, monkeypatch, is_after=True)
    with pytest.raises(BackendUnavailable, match="may or may not") as refusal:
        backend.acquire_lease(uid, new_owner(), seconds=15)
    assert (refusal.value.code, refusal.value.retryable) == ("connection_lost", True)
    assert backend.lease(uid) is not None
    backend.close()


def test_clients_whose_clocks_differ(url: str) -> None:
    """A lease is measured by the server's clock: a client that lives in the future cannot take it early."""
    backend = PostgresBackend(url)
    with (
        Store(backend) as here,
        Store(PostgresBackend(url), clock=lambda: here.engine.clock() + 3600 * 10**6) as ahead,
    ):
        session = here.session("run")
        lease = backend.acquire_lease(session.uid, new_owner(), seconds=15)
        assert abs(lease.expires_us - here.engine.clock() - 15 * 10**6) < 10 * 10**6
        with pytest.raises(Conflict) as refusal:
            ahead.engine.backend.acquire_lease(session.uid, new_owner("other", pid=2), seconds=15)
        assert refusal.value.code == "lease_held"
        ahead.session("run").save({"by": "ahead"})
        assert session.save({"by": "here"}).seq == 2
        latest = session.latest()
        assert latest is not None
        assert latest.state == {"by": "here"}


def test_savers_of_other_sessions_do_not_wait(postgres: Server, url: str) -> None:
    """Whoever holds one session holds up nobody else."""
    with Store(PostgresBackend(url + "&statement_timeout=5")) as store, postgres.connect() as other:
        held, free = store.session("held"), store.session("free")
        held.save({"n": 1})
        other.execute("BEGIN")
        other.execute(
            f"SELECT * FROM {PostgresAccess(postgres, url).schema}.sessions WHERE uid = %s FOR UPDATE",
            (held.uid,),
        )
        saved: list[int] = []

        def wait() -> None:
            with Store(PostgresBackend(url)) as waiting:
                saved.append(waiting.get("held").save({"n": 2}).seq)

        waiting = threading.Thread(target=wait)
        waiting.start()
        assert free.save({"n": 1}).seq == 1
        assert saved == []
        other.execute("ROLLBACK")
        waiting.join()
        assert saved == [2]


def test_what_a_server_lacks_is_named(postgres: Server) -> None:
    """Without a function that the tables need a store is refused, and nothing is made."""
    database = postgres.fresh_database()
    postgres.execute(
        "ALTER FUNCTION pg_catalog.hashtextextended(text, bigint) RENAME TO gone", database=database
    )
    error = refusal_of(postgres.url(database=database))
    assert (type(error), error.code) == (Unsupported, "server_lacks")
    assert "hashtextextended" in str(error)
    assert postgres.execute("SELECT to_regnamespace('stepkeep')", database=database) == [(None,)]


@pytest.mark.parametrize(
    "lacking",
    [
        "DROP EXTENSION plpgsql",
        "ALTER DEFAULT PRIVILEGES REVOKE EXECUTE ON FUNCTIONS FROM PUBLIC; CREATE ROLE {role} LOGIN",
    ],
    ids=["no language", "no right to call"],
)
def test_what_only_makes_it_faster_may_be_lacking(
    postgres: Server, lacking: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the function that stores a save in one call, and without settings of the planner, all works."""
    monkeypatch.setitem(connections.PLANNING, "no_such_setting", "off")
    database = postgres.fresh_database()
    role = f"caller_{database}"
    postgres.execute(lacking.format(role=role), database=database)
    url = postgres.url(database=database)
    with stepkeep.open(url) as store:
        store.session("run").save({"n": 0})
    if "ROLE" in lacking:
        rights = (
            f"GRANT USAGE ON SCHEMA stepkeep TO {role}; GRANT ALL ON ALL TABLES IN SCHEMA stepkeep TO {role}"
        )
        postgres.execute(rights, database=database)
        url = postgres.url(user=role, database=database)
    with stepkeep.open(url) as store:
        session = store.session("run")
        assert [session.save({"n": number}).seq for number in range(1, 4)] == [2, 3, 4]
    with stepkeep.open(url) as store:
        assert store.session("run").load().state == {"n": 3}
        assert store.session("run").verify().findings == ()
    postgres.execute(f"DROP DATABASE {database} WITH (FORCE)")
    postgres.execute(f"DROP ROLE IF EXISTS {role}")
