"""What the file of a project that was just cloned can do: decide about the sessions of that project, and no more."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

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

    def folder(self, name: str, file: str | None = None) -> Path:
        folder = self.root / name
        folder.mkdir(exist_ok=True)
        if file is not None:
            (folder / "stepkeep.yaml").write_text(file)
        return folder

    def run(self, folder: Path, *args: str, **variables: str) -> subprocess.CompletedProcess[str]:
        kept = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("STEPKEEP", "XDG", "PG"))
        }
        return subprocess.run(
            [sys.executable, "-m", "stepkeep", *args],
            cwd=folder,
            env={**kept, "HOME": str(self.home), **variables},
            input="",
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


@pytest.mark.parametrize("command", [("clean",), ("prune", "--all"), ("save", "theirs", "--state", "{}")])
def test_a_clones_file_removes_nothing_of_others(machine: Machine, command: tuple[str, ...]) -> None:
    """Cleanup, retention and limits of a project's file do not reach sessions that were made elsewhere."""
    work, clone = machine.folder("work"), machine.folder("clone", REMOVES_ALL)
    save(machine, work, "open", 3)
    save(machine, work, "done", 3)
    machine.did(work, "complete", "done")
    machine.run(clone, *command)
    assert len(machine.did(work, "log", "open").splitlines()) == 3
    assert len(machine.did(work, "log", "done").splitlines()) == 3


def test_a_project_decides_about_its_own_sessions(machine: Machine) -> None:
    """The same file holds for sessions that were made under it."""
    project = machine.folder("project", "retention: {keep_last: 1}")
    save(machine, project, "ours", 3)
    machine.did(project, "prune", "--all")
    assert len(machine.did(project, "log", "ours").splitlines()) == 1


def test_a_session_carries_the_rules_it_was_made_under(machine: Machine) -> None:
    """Pruning from another folder goes by the rules of the session's project, and by the user's own."""
    project, other = machine.folder("project", "retention: {keep_last: 2}"), machine.folder("other")
    save(machine, project, "ours", 4)
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


@pytest.mark.parametrize(
    "command", [("list",), ("save", "s", "--state", "{}"), ("hook", "claude", "Stop"), ("mcp",)]
)
def test_a_clones_file_sends_nothing_to_a_strangers_server(
    machine: Machine, command: tuple[str, ...]
) -> None:
    """A store outside the project is refused before anyone connects to it; hooks and MCP do not follow it either."""
    with listener() as server:
        url = f"postgresql://bob@127.0.0.1:{server.getsockname()[1]}/x?sslmode=disable&connect_timeout=2"
        clone = machine.folder("clone", f"store: {url}\n")
        done = machine.run(clone, *command, PGPASSWORD="hunter2")
        with pytest.raises(BlockingIOError):
            server.accept()
    assert command[0] in ("hook", "mcp") or (done.returncode == 2 and "stepkeep trust" in done.stderr)


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
