"""What the file of a project that was just cloned can do: decide about the sessions of that project, and no more."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from mcp import StdioServerParameters

import stepkeep
from stepkeep import config
from stepkeep.config.settings import DEFAULTS
from stepkeep.model import utc_now_us
from stepkeep.testing import FakeClock
from tests.surfaces.mcp_clients import with_client

REMOVES_ALL = """
checkpoint: {cleanup: {completed_retention_days: 0, failed_retention_days: 0, stale_days: 0}}
retention: {keep_last: 1}
limits: {max_bytes: 1KB}
keeper: {interval_seconds: 1}
"""


class Machine:
    """A user's machine: a home with one store, and folders of projects."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.home = self.folder("home")
        kept = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("STEPKEEP", "XDG", "PG"))
        }
        self.environment = {**kept, "HOME": str(self.home)}

    def folder(self, name: str, file: str | None = None) -> Path:
        folder = self.root / name
        folder.mkdir(exist_ok=True)
        if file is not None:
            (folder / "stepkeep.yaml").write_text(file)
        return folder

    def run(
        self, folder: Path, *args: str, stdin: str = "", **variables: str
    ) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "stepkeep", *args],
            cwd=folder,
            env={**self.environment, **variables},
            input=stdin,
            capture_output=True,
            text=True,
            check=False,
        )

    def did(self, folder: Path, *args: str, **variables: str) -> str:
        done = self.run(folder, *args, **variables)
        assert done.returncode == 0, done.stderr
        return done.stdout


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def save(machine: Machine, folder: Path, session: str, count: int = 1) -> None:
    for number in range(count):
        machine.did(folder, "save", session, "--state", f'{{"number": {number}}}')


def save_by_mcp(machine: Machine, folder: Path, **variables: str) -> bool:
    """Save as an agent in a folder does; whether the server said that it did."""
    server = StdioServerParameters(
        command=sys.executable,
        args=["-m", "stepkeep", "mcp"],
        env={**machine.environment, **variables},
        cwd=str(folder),
    )
    arguments = {"sessionId": "theirs", "state": {"n": 1}}
    return not with_client(server, lambda client: client.call_tool("checkpoint_save", arguments)).is_error


@pytest.mark.parametrize(
    "command",
    [("clean",), ("prune", "--all"), ("save", "theirs", "--state", "{}"), ("run", "flow.yaml"), ("mcp",)],
    ids=" ".join,
)
def test_a_clones_file_removes_nothing_of_others(machine: Machine, command: tuple[str, ...]) -> None:
    """Cleanup, retention and limits of a project's file do not reach sessions that were made elsewhere."""
    work, clone = machine.folder("work"), machine.folder("clone", REMOVES_ALL)
    (clone / "flow.yaml").write_text("name: flow\nsteps:\n  - {id: a, shell: 'true'}\n")
    save(machine, work, "open", 3)
    save(machine, work, "done", 3)
    machine.did(work, "complete", "done")
    worked = save_by_mcp(machine, clone) if command == ("mcp",) else machine.run(clone, *command)
    assert len(machine.did(work, "log", "open").splitlines()) == 3
    assert len(machine.did(work, "log", "done").splitlines()) == 3
    assert worked


def test_a_limit_of_a_clone_cuts_no_session_of_others(machine: Machine) -> None:
    """A project's `limits.max_bytes` is none of the store's."""
    work, clone = machine.folder("work"), machine.folder("clone", "limits: {max_bytes: 1KB}")
    save(machine, work, "open", 3)
    for _ in range(2):
        machine.run(clone, "save", "theirs", "--state", "{}")
    assert len(machine.did(work, "log", "open").splitlines()) == 3


def test_cleaning_from_another_project_goes_by_the_days_of_the_sessions_own(machine: Machine) -> None:
    """A session whose project keeps it for 90 days is there after 60, whoever cleans, and gone after 91."""
    ours = machine.folder("ours", "checkpoint: {cleanup: {completed_retention_days: 90}}")
    other = machine.folder("other", "checkpoint: {cleanup: {completed_retention_days: 1}}")
    url, clock = f"sqlite:{machine.root}/a.db", FakeClock(utc_now_us())
    with stepkeep.open(url, config=config.load(cwd=ours, environ={}), clock=clock) as store:
        store.session("ours").save({"n": 1}, status="completed")
    for days, left in ((60, ["ours"]), (31, [])):
        clock.advance(days * 86_400)
        with stepkeep.open(url, config=config.load(cwd=other, environ={}), clock=clock) as store:
            store.clean()
            assert [each.key for each in store.sessions()] == left


def test_a_project_decides_about_its_own_sessions(machine: Machine) -> None:
    """The same file holds for sessions that were made under it."""
    project = machine.folder("project", "retention: {keep_last: 1}")
    save(machine, project, "ours", 3)
    machine.did(project, "prune", "--all")
    assert len(machine.did(project, "log", "ours").splitlines()) == 1


def test_a_session_carries_the_rules_it_was_made_under(machine: Machine) -> None:
    """Pruning from another folder goes by the rules of the session's project, and by the user's own."""
    file = "retention: {keep_last: 2}\nkeeper: {enabled: false}"
    project, other = machine.folder("project", file), machine.folder("other")
    save(machine, project, "ours", 4)
    assert len(machine.did(project, "log", "ours").splitlines()) == 4
    machine.did(other, "prune", "--all")
    assert len(machine.did(other, "log", "ours").splitlines()) == 2


def test_the_users_own_file_decides_about_the_store(machine: Machine) -> None:
    """What the user wrote holds for every session, whichever folder it is used from."""
    work, clone = machine.folder("work"), machine.folder("clone", "retention: {keep_last: 50}")
    save(machine, work, "open", 3)
    users = machine.home / ".config" / "stepkeep"
    users.mkdir(parents=True)
    (users / "config.yaml").write_text("retention: {keep_last: 1}")
    machine.did(clone, "prune", "--all")
    assert len(machine.did(work, "log", "open").splitlines()) == 1


# --- the store that a project's file names -------------------------------------------------------------------------


def listener() -> socket.socket:
    """A stranger's server; whoever connects is seen."""
    server = socket.create_server(("127.0.0.1", 0))
    server.setblocking(False)
    return server


@pytest.mark.parametrize("how", ["list", "save s --state {}", "hook", "mcp"])
def test_a_clones_file_sends_nothing_to_a_strangers_server(machine: Machine, how: str) -> None:
    """A store outside the project is refused before anyone connects to it; hooks and MCP do not follow it either."""
    with listener() as server:
        url = f"postgresql://bob@127.0.0.1:{server.getsockname()[1]}/x?sslmode=disable&connect_timeout=2"
        clone = machine.folder("clone", f"store: {url}\n")
        if how == "mcp":
            assert not save_by_mcp(machine, clone, PGPASSWORD="hunter2")
        elif how == "hook":
            event = {"session_id": "s", "cwd": str(clone), "prompt": "go on"}
            machine.run(clone, "hook", "UserPromptSubmit", stdin=json.dumps(event), PGPASSWORD="hunter2")
        else:
            done = machine.run(clone, *how.split(), PGPASSWORD="hunter2")
            assert (done.returncode, "stepkeep trust" in done.stderr) == (2, True)
        with pytest.raises(BlockingIOError):
            server.accept()


@pytest.mark.parametrize(
    "store", ["sqlite:../elsewhere.db", "files:../elsewhere", "sqlite:link/elsewhere.db"]
)
def test_a_store_outside_the_project_needs_trust(machine: Machine, store: str) -> None:
    """Neither `..` nor a link leads out of the project, until the user trusts the file, and again once it changes."""
    project = machine.folder("project", f"store: {store}\n")
    (project / "link").symlink_to(machine.root)
    assert machine.run(project, "save", "s", "--state", "{}").returncode == 2
    assert not list(machine.root.glob("elsewhere*"))
    machine.did(project, "trust")
    machine.did(project, "save", "s", "--state", "{}")
    assert list(machine.root.glob("elsewhere*"))
    (project / "stepkeep.yaml").write_text(f"store: {store}\nlimits: {{max_bytes: 1KB}}\n")
    assert machine.run(project, "list").returncode == 2


def test_a_store_inside_the_project_needs_no_trust(machine: Machine) -> None:
    """A project may keep its checkpoints in its own folder."""
    project = machine.folder("project", "store: sqlite:.stepkeep/state.db\n")
    machine.did(project, "save", "s", "--state", "{}")
    assert (project / ".stepkeep" / "state.db").exists()


# --- every key ---------------------------------------------------------------------------------------------------

WORST: dict[str, object] = {
    "store": None,  # see above
    "profile": "agent",
    "project": "victim",
    "checkpoint.history.enabled": False,
    "checkpoint.history.max_count": 1,
    "checkpoint.compression": "none",
    "checkpoint.compress_after_hours": 0,
    "checkpoint.cleanup.enabled": True,
    "checkpoint.cleanup.completed_retention_days": 0,
    "checkpoint.cleanup.failed_retention_days": 0,
    "checkpoint.cleanup.test_retention_days": 0,
    "checkpoint.cleanup.stale_days": 0,
    "checkpoint.cleanup.workflows": {"victim": {"retention_days": 0}},
    "agent.command": "touch taken",
    "agent.checkpoints.enabled": False,
    "agent.checkpoints.auto_checkpoint": False,
    "agent.checkpoints.max_checkpoints_per_session": 1,
    "agent.checkpoints.prune_after_days": 0,
    "agent.checkpoints.compress_state": False,
    "retention.keep_last": 1,
    "retention.keep_within": "off",
    "retention.keep_hourly": "off",
    "retention.keep_daily": "off",
    "retention.keep_weekly": "off",
    "retention.keep_manual": False,
    "retention.keep_tags": [],
    "retention.keep_terminal": False,
    "retention.max_count": 1,
    "retention.max_age": "1s",
    "retention.max_bytes": 1,
    "limits.budget_bytes": 1,
    "limits.max_bytes": 1,
    "limits.min_free_bytes": "900TB",
    "workflow.warn_stored_bytes": 1,
    "workflow.max_stored_bytes": 1,
    "workflow.max_raw_bytes": 1,
    "worker.max_attempts": 1,
    "worker.retry_seconds": 1,
    "keeper.enabled": True,
    "keeper.interval_seconds": 1,
    "metrics.enabled": False,
    "recorder.heartbeat_seconds": 1,
    "recorder.coalesce_seconds": 1,
    "recorder.significant_seconds": 1,
    "workspace.max_file_bytes": 1,
    "workspace.max_total_bytes": 1,
    "workspace.ignore": ["*"],
    "hooks.workspace": False,
    "hooks.transcript": True,
    "time.zone": "Asia/Tokyo",
}


def worst_file() -> str:
    """A project's file with the worst value of every key, but for the store."""
    tree: dict[str, object] = {}
    for name, value in WORST.items():
        *sections, last = name.split(".")
        here: dict[str, object] = tree
        for section in sections:
            here = here.setdefault(section, {})  # type: ignore[assignment]
        if value is not None:
            here[last] = value
    return json.dumps(tree)


def test_the_worst_file_has_every_key() -> None:
    """A new key is looked at here, before it can be used by a stranger."""
    assert set(WORST) - {"checkpoint.cleanup.workflows"} == set(DEFAULTS)


@pytest.mark.usefixtures("of_an_ended_process")
@pytest.mark.parametrize("url", ["sqlite:{}/a.db", "files:{}/st?layout=run", "files:{}/st?layout=workflow"])
def test_no_key_of_a_clone_reaches_the_sessions_of_others(machine: Machine, url: str) -> None:
    """Neither by commands nor by the keeper, after years, whatever they are and however they ended."""
    clone, clock, url = (
        machine.folder("clone", worst_file()),
        FakeClock(utc_now_us()),
        url.format(machine.root),
    )
    with stepkeep.open(url, config=config.load(cwd=None, environ={}), clock=clock) as store:
        for profile in ("standard", "workflow", "run", "debug", "archive"):
            for status in ("in_progress", "paused", "completed", "failed", "cancelled"):
                session = store.session(f"{profile}-{status}", profile=profile, project="victim")
                for number in range(5):
                    session.save(
                        {"number": number}, tags=["kept"], status="in_progress" if number < 4 else status
                    )
        before = {
            each.key: [header.id for header in store.get(each.key).history()] for each in store.sessions()
        }
        kept = {
            key: ids
            for key, ids in before.items()
            if key.endswith(("progress", "paused")) or "archive" in key
        }
    hostile = config.load(cwd=clone, environ={})
    for _ in range(2):
        with stepkeep.open(url, config=hostile, clock=clock) as store:
            store.session("theirs").save({"n": 1})
            store.session("theirs").save({"n": 2}, status="completed")
            assert store._upkeep.keeper is not None
            store._upkeep.keeper.make_pass()
            store._upkeep.keeper.clean_now_and_then()
            store.prune()
            store.clean()
            now = {
                each.key: [header.id for header in store.get(each.key).history()] for each in store.sessions()
            }
            assert {key: now.get(key) for key in before} == before
            for key in kept:
                assert store.get(key).latest().state == {"number": 4}
        clock.advance(3600)
    clock.advance(400 * 86_400)
    with stepkeep.open(url, config=hostile, clock=clock) as store:
        store.prune()
        store.clean()
        assert kept.keys() <= {each.key for each in store.sessions()}
        assert all(store.get(key).latest().state == {"number": 4} for key in kept)


@pytest.mark.parametrize("how", ["run", "worker"])
def test_a_clone_chooses_no_command_for_workflows_of_others(machine: Machine, how: str) -> None:
    """Who stands in a clone and runs a workflow of his own runs his own agent; a workflow of the clone is its own."""
    clone, work = machine.folder("clone", "agent: {command: sh -c 'touch taken'}"), machine.folder("work")
    users = machine.home / ".config" / "stepkeep"
    users.mkdir(parents=True)
    (users / "config.yaml").write_text("agent: {command: sh -c 'touch own'}")
    for folder in (clone, work):
        (folder / "flow.yaml").write_text("name: flow\nsteps:\n  - {id: a, agent: look at this}\n")
    if how == "run":
        machine.did(clone, "run", str(work / "flow.yaml"))
    else:
        machine.did(work, "run", "flow.yaml", "--detach")
        machine.did(clone, "worker", "--once")
    assert ((work / "own").exists(), (work / "taken").exists(), (clone / "taken").exists()) == (
        True,
        False,
        False,
    )
    machine.did(clone, "run", "flow.yaml")
    assert (clone / "taken").exists()


# --- where a store is --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "store",
    [
        *(
            "sqlite:~/t.db",
            "~/t.db",
            "files:~/t",
            "SQLITE:{0}/t.db",
            "sqlite:///{0}/t.db",
            "' sqlite:{0}/t.db'",
        ),
        *(
            "sqlite:a/../../t.db",
            "files:a/../../t",
            "file:{0}/t.db",
            "sqlite:file:{0}/t.db?mode=rwc",
            "{0}/t.db",
        ),
        *("files:{0}/t?layout=run", "postgres://a@127.0.0.1:1/t", "service=t", "'memory:'"),
    ],
)
def test_no_spelling_leads_out_of_the_project(machine: Machine, store: str) -> None:
    """Nor into nothing: a store in memory would acknowledge saves and forget them."""
    clone = machine.folder("clone", f"store: {store.format(machine.root)}\n")
    assert machine.run(clone, "save", "s", "--state", "{}").returncode == 2
    assert [path.name for path in machine.root.rglob("*") if path.name.startswith("t")] == []


SIDE_FILES = ("-wal", "-shm", "-journal", "-ballast", ".metrics", ".metrics-wal", ".metrics-journal")


@pytest.mark.parametrize("has_database", [False, True])
@pytest.mark.parametrize("ending", SIDE_FILES)
def test_no_link_beside_a_store_in_the_project_is_followed(
    machine: Machine, ending: str, has_database: bool
) -> None:
    """A clone may bring a database, and links in the places of the files that belong to it."""
    clone, precious = machine.folder("clone", "store: sqlite:s.db\n"), machine.home / "precious"
    precious.write_text("keep me\n" * 2000)
    if has_database:
        machine.did(clone, "save", "s", "--state", "{}")
        for file in clone.glob("s.db?*"):
            file.unlink()
    (clone / f"s.db{ending}").symlink_to(precious)
    for number in range(3):
        machine.run(clone, "save", "s", "--state", f"[{number}]")
    assert precious.read_text() == "keep me\n" * 2000


@pytest.mark.parametrize("target", ["/dev/zero", "/dev/stdin", "/proc/self/environ", "pipe", "folder"])
def test_a_file_that_is_none_is_not_waited_for(machine: Machine, target: str) -> None:
    """A link to a device, a pipe, a folder: a clear answer, and nothing of what is in it."""
    clone = machine.folder("clone")
    if target == "pipe":
        os.mkfifo(clone / "stepkeep.yaml")
    elif target == "folder":
        (clone / "stepkeep.yaml").mkdir()
    else:
        (clone / "stepkeep.yaml").symlink_to(target)
    done = machine.run(clone, "list", SECRET="hunter2")
    assert (done.returncode, "bad configuration" in done.stderr, "hunter2" in done.stderr) == (2, True, False)


def test_other_files_of_a_folder_name_no_store(machine: Machine) -> None:
    """`.env`, the files of shells and of other tools, a second name, a folder above: none of them is read."""
    clone = machine.folder("clone", "store: sqlite:own.db\n")
    other = f"sqlite:{machine.root}/t.db"
    for name in (".env", ".envrc", ".stepkeep.env", "stepkeep.env"):
        (clone / name).write_text(
            f"STEPKEEP_STORE={other}\nexport STEPKEEP_STORE={other}\nPGHOST=127.0.0.1\n"
        )
    for name in ("stepkeep.yml", ".stepkeep.yaml", "config.yaml", "stepkeep.json"):
        (clone / name).write_text(f"store: {other}\n")
    (clone / "pyproject.toml").write_text(f'[tool.stepkeep]\nstore = "{other}"\n')
    for text in (
        f"include: {machine.root}/x.yaml",
        f"extends: {other}",
        f"<<: {{store: {other}}}",
        f"stores: [{other}]",
    ):
        (clone / "stepkeep.yaml").write_text(f"{text}\n")
        assert machine.run(clone, "save", "s", "--state", "{}").returncode == 2
    (clone / "stepkeep.yaml").write_text("store: sqlite:own.db\n")
    machine.did(clone, "save", "s", "--state", "{}")
    assert not (machine.root / "t.db").exists()
    assert (clone / "own.db").exists()
