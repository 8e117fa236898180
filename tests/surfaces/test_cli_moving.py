"""`backup`, `restore-backup`, `copy`, `recover` and `doctor` as commands."""

from __future__ import annotations

import json
import os
import random
import re
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from stepkeep.api import Store
from stepkeep.processes import Owner
from stepkeep.storage.sqlite import SqliteBackend
from tests import interpreter
from tests.api.programs import environment, raw

GOLDEN = Path(__file__).parents[1] / "data" / "golden"


def stepkeep(*arguments: str, folder: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """The command in a process of its own, in a folder, without a configuration of this user."""
    env = {**environment(), "HOME": str(folder), "XDG_CONFIG_HOME": str(folder / "none"), **variables}
    return interpreter.stepkeep(*arguments, cwd=folder, env=env)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a small store in a directory of its own."""
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    with Store(SqliteBackend(home / "store.db")) as store:
        run = store.session("research")
        for step in range(3):
            run.save({"n": step}, step=step)
    return home


def test_backup_and_back(folder: Path) -> None:
    """A backup is made, the store goes on, and the backup is put back."""
    made = stepkeep("--store", "sqlite:store.db", "backup", "b.db", folder=folder)
    assert made.returncode == 0, made.stderr
    assert re.fullmatch(r"Backed up 3 checkpoints in 1 session to b\.db \(\d+KB\)\n", made.stdout)
    stepkeep("--store", "sqlite:store.db", "save", "research", "--state", "{}", folder=folder)
    refused = stepkeep("--store", "sqlite:store.db", "restore-backup", "b.db", folder=folder)
    assert (refused.returncode, "--force" in refused.stderr) == (2, True)
    done = stepkeep(
        "--store", "sqlite:store.db", "restore-backup", "b.db", "--force", "--json", folder=folder
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["checkpoints"] == 3
    with Store(SqliteBackend(folder / "store.db")) as store:
        assert store.usage().checkpoints == 3


def test_backup_keeps_so_many(folder: Path) -> None:
    """`--keep-last` in a directory; on a file it is a mistake in usage."""
    (folder / "backups").mkdir()
    for _ in range(3):
        done = stepkeep("--store", "sqlite:store.db", "backup", "backups", "--keep-last", "2", folder=folder)
        assert done.returncode == 0, done.stderr
    assert len(list((folder / "backups").iterdir())) == 2
    assert "Removed" in done.stdout
    assert (
        stepkeep("--store", "sqlite:store.db", "backup", "x.db", "--keep-last", "2", folder=folder).returncode
        == 2
    )


def test_copy(folder: Path) -> None:
    """The second time nothing is left to copy; a session that went on is refused with 5."""
    first = stepkeep("copy", "sqlite:store.db", "sqlite:copy.db", folder=folder)
    assert (first.returncode, first.stdout) == (0, "Copied 3 checkpoints in 1 session\n")
    again = stepkeep("copy", "sqlite:store.db", "sqlite:copy.db", folder=folder)
    assert again.stdout == "Copied 0 checkpoints in 1 session, 3 were there\n"
    stepkeep("--store", "sqlite:copy.db", "save", "research", "--state", "{}", folder=folder)
    ahead = stepkeep("copy", "sqlite:store.db", "sqlite:copy.db", folder=folder)
    assert ahead.returncode == 5
    assert "destination_ahead" in ahead.stdout
    assert stepkeep("copy", "sqlite:store.db", "sqlite:store.db", folder=folder).returncode == 2
    assert stepkeep("copy", "sqlite:none.db", "sqlite:copy.db", folder=folder).returncode == 3


def test_recover(folder: Path) -> None:
    """A store without its header is salvaged; with a damaged row the rest is, and the exit code says so."""
    data = bytearray((folder / "store.db").read_bytes())
    data[:100] = bytes(100)
    (folder / "broken.db").write_bytes(data)
    done = stepkeep("recover", "sqlite:broken.db", "sqlite:mended.db", folder=folder)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "Recovered 3 checkpoints in 1 session, lost 0"
    with raw(folder / "store.db") as connection:
        connection.execute("UPDATE checkpoints SET header = x'00' WHERE seq = 2")
    lossy = stepkeep("recover", "sqlite:store.db", "sqlite:lossy.db", "--json", folder=folder)
    assert lossy.returncode == 4
    assert [each["seq"] for each in json.loads(lossy.stdout)["copied"]["lost"]] == [2]


# --- doctor ----------------------------------------------------------------------------------------------------


def wide_open(folder: Path) -> None:
    (folder / "store.db").chmod(0o644)


def leftovers(folder: Path) -> None:
    left = folder / ".stepkeep-0123456789abcdef.partial"
    left.touch()
    os.utime(left, (time.time() - 7200, time.time() - 7200))


def another_program(folder: Path) -> None:
    (folder / "store.db").write_text("my notes, not a database")


def newer_schema(folder: Path) -> None:
    with raw(folder / "store.db") as connection:
        connection.execute("PRAGMA user_version = 99")


def damaged_file(folder: Path) -> None:
    data = bytearray((folder / "store.db").read_bytes())
    data[4096:] = bytes(len(data) - 4096)
    (folder / "store.db").write_bytes(data)


def damaged_checkpoint(folder: Path) -> None:
    with raw(folder / "store.db") as connection:
        connection.execute("UPDATE bodies SET data = x'00' WHERE rowid = (SELECT max(rowid) FROM bodies)")


def dead_runner(folder: Path) -> None:
    owner = Owner(host="elsewhere", boot_id="b", pid_namespace="n", pid=1, started=1)
    with Store(SqliteBackend(folder / "store.db")) as store:
        store.engine.backend.acquire_lease(store.get("research").uid, owner, seconds=-5)


def wrong_configuration(folder: Path) -> None:
    (folder / "stepkeep.yaml").write_text("keeper:\n  enable: true\n")


def no_keeper(folder: Path) -> None:
    (folder / "stepkeep.yaml").write_text("keeper:\n  enabled: false\n")


def used_up_budget(folder: Path) -> None:
    (folder / "none" / "stepkeep").mkdir(parents=True)
    (folder / "none" / "stepkeep" / "config.yaml").write_text("limits:\n  max_bytes: 1MB\n")
    with Store(SqliteBackend(folder / "store.db")) as store:
        store.session("large").save({"noise": os.urandom(1_200_000)})


def failed_pruning(folder: Path) -> None:
    with Store(SqliteBackend(folder / "store.db")) as store:
        uid = store.get("research").uid
        failure = {"code": "checkpoint_retention_prune_failed"}
        store.engine.backend.record_event(uid, "prune_failed", failure, time_us=1)


def missing(folder: Path) -> None:
    (folder / "store.db").unlink()


def half_installed_hooks(folder: Path) -> None:
    stepkeep("hooks", "install", "--client", "claude-code", "--project", folder=folder)
    settings = folder / ".claude" / "settings.json"
    found = json.loads(settings.read_text())
    del found["hooks"]["PreCompact"]
    settings.write_text(json.dumps(found))


def broken_agent_settings(folder: Path) -> None:
    (folder / ".claude").mkdir()
    (folder / ".claude" / "settings.json").write_text("{not json")


SICK = [
    wide_open,
    leftovers,
    another_program,
    newer_schema,
    damaged_file,
    damaged_checkpoint,
    dead_runner,
    wrong_configuration,
    no_keeper,
    used_up_budget,
    failed_pruning,
    missing,
    half_installed_hooks,
    broken_agent_settings,
]
HEALTHY_WITH_WARNINGS = {
    wide_open,
    leftovers,
    dead_runner,
    no_keeper,
    used_up_budget,
    failed_pruning,
    missing,
    half_installed_hooks,
    broken_agent_settings,
}


def told(folder: Path, *options: str) -> tuple[int, str]:
    """The exit code of `doctor` and what it says of what is not in order, without what differs by machine."""
    done = stepkeep("--store", f"sqlite:{folder}/store.db", "doctor", *options, folder=folder)
    kept = [line for line in done.stdout.splitlines() if not line.startswith("ok ")]
    text = "\n".join(kept).replace(str(folder), "HOME").replace(str(folder.resolve()), "HOME")
    text = re.sub(r"cp_\w+", "ID", text)
    return done.returncode, re.sub(r"\d+(\.\d+)?[KMG]?B\b", "SIZE", text) + "\n"


def test_doctor_finds_a_healthy_store_healthy(folder: Path) -> None:
    """Every line is ok, with a sample and with all bytes."""
    for options in ([], ["--full"]):
        assert told(folder, *options) == (0, "store sqlite:HOME/store.db\nHealthy.\n")


@pytest.mark.full
@pytest.mark.parametrize("make_sick", SICK, ids=lambda make: make.__name__)
def test_doctor_says_the_right_thing(folder: Path, make_sick: Callable[[Path], None]) -> None:
    """Each sickness is named with what to do about it (golden output), and only problems change the exit code."""
    make_sick(folder)
    code, text = told(folder)
    expected = GOLDEN / "doctor" / f"{make_sick.__name__}.txt"
    assert text == expected.read_text()
    assert code == (0 if make_sick in HEALTHY_WITH_WARNINGS else 1)


def test_doctor_leaves_no_trace_of_its_trial(folder: Path) -> None:
    """The save that it tries is gone when it returns, in readable files too."""
    for url in (f"sqlite:{folder}/store.db", f"files:{folder}/readable?layout=run"):
        assert stepkeep("--store", url, "save", "kept", "--state", "{}", folder=folder).returncode == 0
        before = stepkeep("--store", url, "list", "--json", folder=folder).stdout
        done = stepkeep("--store", url, "doctor", folder=folder)
        assert "a trial save was stored, read back and removed" in done.stdout
        assert stepkeep("--store", url, "list", "--json", folder=folder).stdout == before
    assert [path.name for path in (folder / "readable/checkpoints").iterdir()] == ["kept"]


@pytest.mark.full
@pytest.mark.parametrize("limit_kib", [8, 40, 60])
def test_doctor_is_not_healthy_where_saves_fail(folder: Path, limit_kib: int) -> None:
    """Bytes that the disk does not take are a problem, and what the trial left behind goes with the next clean."""

    def limited() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit_kib * 1024, limit_kib * 1024))

    store = f"sqlite:{folder}/store.db"
    command = [sys.executable, "-m", "stepkeep", "--store", store, "doctor"]
    env = {**environment(), "HOME": str(folder), "XDG_CONFIG_HOME": str(folder / "none")}
    done = subprocess.run(
        command, cwd=folder, env=env, preexec_fn=limited, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (1, "")
    assert "its disk has space" in done.stdout
    assert stepkeep("--store", store, "clean", folder=folder).returncode == 0
    assert "doctor-" not in stepkeep("--store", store, "list", folder=folder).stdout
    assert "Healthy." in stepkeep("--store", store, "doctor", folder=folder).stdout


def test_doctor_creates_nothing(tmp_path: Path) -> None:
    """Neither a store nor a directory for it."""
    assert stepkeep("--store", "sqlite:sub/store.db", "doctor", folder=tmp_path).returncode == 0
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "words",
    [
        ["backup", "out/b.db"],
        ["backup", "out"],
        ["recover", "sqlite:store.db", "sqlite:out/m.db"],
        ["--store", "sqlite:out/r.db", "restore-backup", "store.db"],
    ],
)
def test_a_place_without_room_keeps_nothing_half(folder: Path, words: list[str]) -> None:
    """From cron, without a terminal: exit code 1, one line that names the place, and nothing is left there."""
    (folder / "out").mkdir()
    with Store(SqliteBackend(folder / "store.db")) as store:
        store.session("large").save({"noise": random.Random(1).randbytes(300_000).hex()})
    given = words if words[0] == "--store" else ["--store", "sqlite:store.db", *words]
    with disk_of(folder / "out", 96):
        done = stepkeep(*given, folder=folder)
        left = list((folder / "out").iterdir())
    assert (done.returncode, left) == (1, []), done.stderr
    assert done.stderr.count("\n") == 1
    assert "out" in done.stderr
    assert "partial" not in done.stderr
    assert "full" in done.stderr or "No space left" in done.stderr
    shown = stepkeep("--store", "sqlite:store.db", "verify", folder=folder)
    assert shown.returncode == 0


@contextmanager
def disk_of(folder: Path, size_kib: int) -> Iterator[None]:
    """A disk of that size at a folder; only the owner of a machine can have one."""
    mounted = ["mount", "-t", "tmpfs", "-o", f"size={size_kib}k,mode=700", "tmpfs", str(folder)]
    if subprocess.run(mounted, capture_output=True, check=False).returncode != 0:
        pytest.skip("a small disk cannot be mounted here")
    try:
        yield
    finally:
        subprocess.run(["umount", str(folder)], check=True)
