"""The roles that the guide describes can do their work, and nothing else."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import empty_checkpoint

import stepkeep
from stepkeep.adapters.langgraph import StepkeepSaver
from stepkeep.api import Store
from stepkeep.errors import BackendUnavailable, Conflict, NotFound
from stepkeep.storage.port import HeaderQuery
from stepkeep.storage.postgres import PostgresBackend
from stepkeep.testing.builders import append_one, draft, item, keyframe, new_blob, new_session
from tests.postgres.server import Server
from tests.workflow.flows import Flows

pytestmark = pytest.mark.full

GUIDE = Path(__file__).parents[2] / "docs" / "how-to" / "use-postgresql.md"
ROLES, GRANTS, POLICIES = re.findall(r"^```sql\n(.*?)^```$", GUIDE.read_text(), re.MULTILINE | re.DOTALL)


@pytest.fixture
def database(postgres: Server) -> Iterator[str]:
    """A database set up as the guide says, up to the grants."""
    name = postgres.fresh_database()
    postgres.execute(ROLES.replace("agents", name))
    try:
        with stepkeep.open(postgres.url(user="stepkeep_owner", database=name)):
            postgres.execute(f"SET ROLE stepkeep_owner; {GRANTS}", database=name)
        yield name
    finally:
        postgres.execute(f"DROP DATABASE {name} WITH (FORCE)")
        postgres.execute("DROP ROLE stepkeep_owner; DROP ROLE stepkeep_app")


def test_the_application_role_can_do_everything_a_program_does(postgres: Server, database: str) -> None:
    """Saving, reading, branching, pruning, sweeping, deleting need no more than the guide grants."""
    with Store(PostgresBackend(postgres.url(user="stepkeep_app", database=database))) as store:
        session = store.session("run", profile="archive")
        headers = [session.save({"n": number}, tags=["t"]) for number in range(5)]
        backend = store.engine.backend
        backend.annotate(session.uid, headers[0].id, "k", "n", b"note", time_us=1)
        backend.remove(session.uid, [headers[1].id])
        backend.sweep()
        session.complete()
        assert session.verify().findings == ()
        assert backend.usage().checkpoints == 4
        backend.delete_session(session.uid)
        assert backend.usage().sessions == 0


@pytest.mark.parametrize(
    "sql",
    [
        "DROP TABLE stepkeep.bodies",
        "ALTER TABLE stepkeep.bodies DISABLE ROW LEVEL SECURITY",
        "UPDATE stepkeep.meta SET value = '9'",
        "CREATE TABLE stepkeep.mine (a int)",
        "TRUNCATE stepkeep.sessions",
    ],
)
def test_the_application_role_can_change_no_table(postgres: Server, database: str, sql: str) -> None:
    """It neither makes, drops nor empties tables, and does not say which version they are."""
    url = postgres.url(user="stepkeep_app", database=database)
    with psycopg.connect(url) as connection, pytest.raises(psycopg.errors.InsufficientPrivilege):
        connection.execute(sql)  # type: ignore[call-overload]


def test_who_may_only_look_is_refused_a_save(postgres: Server, database: str) -> None:
    """Reading works; a save is refused for good."""
    url = postgres.url(user="stepkeep_app", database=database)
    with stepkeep.open(url) as store:
        store.session("run").save({"n": 1})
        postgres.execute(
            "REVOKE INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA stepkeep FROM stepkeep_app",
            database=database,
        )
        latest = store.get("run").latest()
        assert latest is not None
        with pytest.raises(BackendUnavailable) as refusal:
            store.get("run").save({"n": 2})
    assert (refusal.value.code, refusal.value.retryable) == ("access_denied", False)


# --- projects kept apart ---


@pytest.fixture
def apart(postgres: Server, database: str) -> str:
    """The same database with the policies of the guide."""
    postgres.execute(f"SET ROLE stepkeep_owner; {POLICIES}", database=database)
    return database


def client(postgres: Server, database: str, project: str, user: str = "stepkeep_app") -> PostgresBackend:
    return PostgresBackend(postgres.url(user=user, database=database, project=project))


def test_a_project_sees_only_its_own(postgres: Server, apart: str) -> None:
    """Sessions, headers, bodies, blobs and usage of another project do not exist for it, also for the owner."""
    mine, yours = client(postgres, apart, "mine"), client(postgres, apart, "yours")
    uid = mine.create_session(new_session("mine", project="mine")).uid
    blob = new_blob(b"content")
    first = draft(uid)
    header = append_one(mine, item(first, bodies=[keyframe(first.id, blobs=(blob.digest,))], blobs=[blob]))
    owner = client(postgres, apart, "yours", user="stepkeep_owner")
    for other in (yours, owner):
        assert other.session_by_key("mine") is None
        assert list(other.headers(HeaderQuery())) == []
        assert other.blob(blob.digest) is None
        assert other.has_blobs([blob.digest]) == set()
        assert other.usage().sessions == other.usage().bodies == other.usage().blobs == 0
        with pytest.raises(NotFound):
            other.body_chain(uid, header.id, "state")
        with pytest.raises(NotFound):
            other.delete_session(uid)
        assert other.sweep().blobs == 0
    assert [row.id for row in mine.headers(HeaderQuery(session=uid))] == [header.id]
    assert mine.blob(blob.digest) == blob
    for backend in (mine, yours, owner):
        backend.close()


def test_an_optimistic_append_stays_in_its_project(postgres: Server, apart: str) -> None:
    """The function has the rights of its caller: a cached head of another project's session does not help."""
    mine, yours = client(postgres, apart, "mine"), client(postgres, apart, "yours")
    uid = mine.create_session(new_session("mine", project="mine")).uid
    for _ in range(3):
        append_one(mine, item(draft(uid)))
    head = mine._heads.get(uid)
    assert head is not None
    yours._heads.put(head)
    with pytest.raises(NotFound):
        append_one(yours, item(draft(uid)))
    assert append_one(mine, item(draft(uid))).seq == 4
    for backend in (mine, yours):
        backend.close()


def test_equal_blobs_of_two_projects_are_two(postgres: Server, apart: str) -> None:
    """Each project keeps and sweeps its own copy."""
    blob = new_blob(b"the same")
    clients = {name: client(postgres, apart, name) for name in ("mine", "yours")}
    for name, backend in clients.items():
        uid = backend.create_session(new_session(name, project=name)).uid
        first = draft(uid)
        append_one(backend, item(first, bodies=[keyframe(first.id, blobs=(blob.digest,))], blobs=[blob]))
    mine = clients["mine"]
    session = mine.session_by_key("mine")
    assert session is not None
    mine.delete_session(session.uid)
    assert mine.sweep().blobs == 1
    assert mine.blob(blob.digest) is None
    assert clients["yours"].blob(blob.digest) == blob
    for backend in clients.values():
        backend.close()


def test_nobody_writes_into_another_project(postgres: Server, apart: str) -> None:
    """A session of another project, or of none, is refused, and so is a key that another project has."""
    mine, yours = client(postgres, apart, "mine"), client(postgres, apart, "yours")
    mine.create_session(new_session("taken", project="mine"))
    for write in (yours.create_session, yours.adopt_session):
        with pytest.raises(BackendUnavailable) as refusal:
            write(new_session("new", project="mine"))
        assert (refusal.value.code, refusal.value.retryable) == ("access_denied", False)
    with pytest.raises(BackendUnavailable) as refusal:
        yours.adopt_session(new_session("new"))
    assert (refusal.value.code, refusal.value.retryable) == ("access_denied", False)
    nobody = PostgresBackend(postgres.url(user="stepkeep_app", database=apart))
    with pytest.raises(
        BackendUnavailable, match=r"the URL must name that of the session, \?project=NAME"
    ) as refusal:
        nobody.create_session(new_session("new"))
    assert (refusal.value.code, refusal.value.retryable) == ("access_denied", False)
    nobody.close()
    with pytest.raises(Conflict):
        yours.create_session(new_session("taken", project="yours"))
    mine.close()
    yours.close()


def test_new_sessions_have_the_project_of_the_url(postgres: Server, apart: str, tmp_path: Path) -> None:
    """Whatever makes them: the library, a command, a queue, phases, a saver. An explicit project still wins."""
    url = postgres.url(user="stepkeep_app", database=apart, project="billing")
    cli = Flows(tmp_path)
    cli.url = url
    cli.write("name: flow\nsteps: [{id: a, shell: 'true'}]\n")
    for args in (
        ["save", "command", "--state", "{}"],
        ["run", "flow.yaml", "--detach", "--session", "queued"],
    ):
        done = cli.here(*args)
        assert done.code == 0, done.err
    with stepkeep.open(url) as store:
        store.session("library").save({"n": 1})
        store.agents.save("agent", None, {"n": 1})
        assert store.phases.create_checkpoint(
            "plan", session_id="phases", task_summary="t", phase_number=1
        ).ok
        saver = StepkeepSaver(store)
        config: RunnableConfig = {"configurable": {"thread_id": "thread", "checkpoint_ns": ""}}
        saver.put(config, empty_checkpoint(), {}, {})
        assert {info.project for info in store.sessions()} == {"billing"}
        assert len(list(store.sessions())) == 6
        with pytest.raises(BackendUnavailable):
            store.session("other", project="other")


def test_the_project_of_the_url_gives_way_to_an_explicit_one(url: str) -> None:
    """Where rows are not kept apart, a session may belong to another project."""
    with stepkeep.open(url + "&project=billing") as store:
        assert store.session("given", project="other").info.project == "other"
        assert store.session("new").info.project == "billing"
        assert store.session("given").info.project == "other"


# --- an encrypted store ---


def test_the_application_role_works_on_while_the_owner_changes_the_data_key(
    postgres: Server, database: str
) -> None:
    """It needs no right to change the keys for it, and has none."""
    url = {user: postgres.url(user=user, database=database) for user in ("stepkeep_owner", "stepkeep_app")}
    with stepkeep.open(url["stepkeep_owner"], key=b"k" * 32, encrypt=True) as owner:
        app = stepkeep.open(url["stepkeep_app"], key=b"k" * 32)
        run = app.session("run", metadata={"of": "run"})
        for number in range(3):
            header = run.save({"n": number})
        app.engine.annotate(run.uid, header.id, "k", "n", b"note")
        with pytest.raises(BackendUnavailable) as refusal:
            app.keys.rekey()
        assert refusal.value.code == "access_denied"
        assert owner.keys.rekey().is_done
        app.engine.annotate(run.uid, header.id, "k", "m", b"note")
        run.save({"n": 3})
        app.session("new", metadata={"of": "new"}).save({"n": 0})
        app.close()
    with stepkeep.open(url["stepkeep_app"], key=b"k" * 32) as store:
        assert store.get("run").latest().state == {"n": 3}
        assert store.verify().is_intact


def test_who_does_not_see_all_sessions_cannot_change_the_data_key(postgres: Server, apart: str) -> None:
    """The sessions of other projects would be unreadable without the key that goes."""
    url = postgres.url(user="stepkeep_owner", database=apart, project="mine")
    with stepkeep.open(url, key=b"k" * 32, encrypt=True) as store:
        store.session("run").save({"n": 1})
        with pytest.raises(stepkeep.Unsupported) as refusal:
            store.keys.rekey()
        assert refusal.value.code == "sessions_hidden"
        assert store.keys.rekey(dry_run=True).key == 1
