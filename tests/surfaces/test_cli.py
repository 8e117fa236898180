"""The command line, through real processes."""

from __future__ import annotations

import contextlib
import io
import json
import os
import pty
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import apsw
import pytest

import stepkeep
from stepkeep.cli import main
from stepkeep.cli.save import read_json
from tests import interpreter

RED = "\x1b[31m"
BIDI = "\u202e"


class Done:
    """What a finished command left behind."""

    def __init__(self, code: int, out: bytes, err: bytes) -> None:
        self.code = code
        self.bytes = out
        self.out = out.decode()
        self.err = err.decode()

    @property
    def json(self) -> Any:
        return json.loads(self.out)

    @property
    def error(self) -> dict[str, Any]:
        error: dict[str, Any] = json.loads(self.err.splitlines()[-1])["error"]
        return error


class Cli:
    """Runs `stepkeep` in a folder of its own, against one store."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.file = folder / "store.db"
        self.url = f"sqlite:{self.file}"

    @property
    def environment(self) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith("STEPKEEP_")}
        return {**kept, "STEPKEEP_STORE": self.url, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}

    def __call__(self, *args: str | bytes, stdin: bytes = b"", **environment: str) -> Done:
        """Run a command as a process."""
        env = {**self.environment, **environment}
        done = interpreter.python("-m", "stepkeep", *args, input=stdin, cwd=self.folder, env=env)
        assert b"Traceback" not in done.stderr, done.stderr.decode()
        return Done(done.returncode, done.stdout, done.stderr)

    def here(self, *args: str | bytes, stdin: bytes = b"", **environment: str) -> Done:
        """Run a command in this process, which takes a tenth of the time."""
        out, err = io.BytesIO(), io.BytesIO()
        with pytest.MonkeyPatch.context() as patch, contextlib.chdir(self.folder):
            patch.delenv("STEPKEEP_SESSION", raising=False)
            for name, value in {"STEPKEEP_STORE": self.url, **environment}.items():
                patch.setenv(name, value)
            patch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
            patch.setattr(sys, "stdout", io.TextIOWrapper(out, encoding="utf-8", write_through=True))
            patch.setattr(sys, "stderr", io.TextIOWrapper(err, encoding="utf-8", write_through=True))
            code = main([os.fsdecode(arg) for arg in args])
            return Done(code, out.getvalue(), err.getvalue())

    def fill(self, key: str = "run", count: int = 3, **options: Any) -> list[stepkeep.Header]:
        with stepkeep.open(self.url) as store:
            session = store.session(key, profile="archive")
            return [
                session.save({"n": n, "notes": "word " * 50 * n}, step=n, **options)
                for n in range(1, count + 1)
            ]

    def damage(self, checkpoint: str) -> None:
        """Flip a bit in every stored copy of a state."""
        connection = apsw.Connection(str(self.file))
        rows: list[Any] = connection.execute(
            "SELECT rowid, data FROM bodies WHERE checkpoint = ?", (checkpoint,)
        ).fetchall()
        for row, data in rows:
            connection.execute(
                "UPDATE bodies SET data = ? WHERE rowid = ?", (data[:-1] + bytes([data[-1] ^ 1]), row)
            )
        connection.close()

    def terminal(self, *args: str, answer: bytes = b"", columns: int = 80) -> tuple[int, str]:
        """Run a command on a terminal of its own; exit code and everything it showed."""
        pid, descriptor = pty.fork()
        if pid == 0:
            os.chdir(self.folder)
            environment = {**self.environment, "COLUMNS": str(columns), "TERM": "xterm"}
            os.execve(sys.executable, [sys.executable, "-m", "stepkeep", *args], environment)
        if answer:
            os.write(descriptor, answer)
        shown = b""
        while True:
            try:
                part = os.read(descriptor, 65536)
            except OSError:
                break
            if not part:
                break
            shown += part
        os.close(descriptor)
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), shown.decode()


@pytest.fixture
def cli(tmp_path: Path) -> Cli:
    return Cli(tmp_path)


# --- starting --------------------------------------------------------------------------------------------------


ALL_CAN_DO_WITHOUT = {
    "asyncio",
    "dataclasses",
    "importlib.metadata",
    "logging",
    "pathlib",
    "platformdirs",
    "rich",
}
ALL_CAN_DO_WITHOUT |= {"msgspec.inspect", "subprocess", "typing_extensions", "urllib.parse", "yaml"}


@pytest.mark.parametrize(
    ("args", "unneeded"),
    [
        ("--version", {"click", "msgspec", "re", "typing"}),
        ("--help", {"apsw", "stepkeep.api.store"}),
        ("save s --state {}", {"shutil", "stepkeep.maintenance.keeper"}),
        ("list", {"shutil", "json"}),
        ("status", {"shutil", "json"}),
        ("timeline s", {"shutil", "json"}),
    ],
)
def test_a_command_imports_only_what_it_needs(cli: Cli, args: str, unneeded: set[str]) -> None:
    """Starting takes longer than anything an everyday command does then."""
    cli("save", "s", "--state", "{}")
    program = (
        "import sys; before = set(sys.modules); from stepkeep.cli import main; code = main(sys.argv[1:]);"
        "print(*sorted(set(sys.modules) - before), code, file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, *args.split()], capture_output=True, env=cli.environment, check=True
    )
    *modules, code = done.stderr.decode().split()
    assert code == "0"
    assert set(modules) & (ALL_CAN_DO_WITHOUT | unneeded) == set()


def test_without_arguments_the_overview_is_shown(cli: Cli) -> None:
    """A newcomer who types only the name sees what there is."""
    assert cli.here().out.startswith("Usage: stepkeep [OPTIONS] COMMAND")


def test_main_module_does_not_import_click() -> None:
    """A command that must start fast can be dispatched before click is loaded."""
    program = "import sys, stepkeep.cli; print('click' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


def test_every_command_has_help_with_an_example(cli: Cli) -> None:
    """`--help` of each command names it and shows how it is used."""
    from click.testing import CliRunner

    from stepkeep.cli.app import COMMANDS
    from stepkeep.cli.app import stepkeep as group

    for name in COMMANDS:
        shown = CliRunner().invoke(group, [name, "--help"])
        assert shown.exit_code == 0
        assert f"Usage: stepkeep {name}" in shown.output
        assert "Example:" in shown.output
        assert "--json" in shown.output
        assert max(map(len, shown.output.splitlines())) <= 80, name


def test_the_overview_groups_the_commands(cli: Cli) -> None:
    """Every command stands under one heading, but for other spellings and what only programs call."""
    from stepkeep.cli.app import COMMANDS, HEADINGS

    named = " ".join(HEADINGS.values()).split()
    assert len(named) == len(set(named))
    assert COMMANDS.keys() - named == {"at", "cleanup", "create", "history", "hook"}
    shown = cli("--help").out
    assert [heading for heading in HEADINGS if f"{heading}:\n" in shown] == list(HEADINGS)
    assert all(f"\n  {name} " in shown for name in named)


def test_a_misspelt_command_gets_a_suggestion(cli: Cli) -> None:
    """The ones that are spelt alike are named; nothing is guessed."""
    assert "No such command 'timelnie'. Did you mean 'timeline'? See" in cli("timelnie").err
    assert cli("timelnie").code == 2
    assert "Did you mean" not in cli("qqq").err


def test_a_command_works_in_another_folder(cli: Cli, tmp_path: Path) -> None:
    """`-C` comes before everything that looks at the folder, and one that is not there is told."""
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    (folder / "stepkeep.yaml").write_text("store: sqlite:inside.db\n")
    env = {name: value for name, value in os.environ.items() if name != "STEPKEEP_STORE"}
    command = [sys.executable, "-m", "stepkeep", "-C", str(folder), "save", "s", "--state", "{}"]
    subprocess.run(command, env=env, cwd=tmp_path, check=True, capture_output=True)
    assert (folder / "inside.db").is_file()
    assert "No such file or directory" in cli("-C", str(tmp_path / "none"), "list").err


@pytest.mark.parametrize("group", ["files", "investigate", "investigate experiment", "hooks", "phases"])
def test_a_group_without_its_command_shows_its_help(cli: Cli, group: str) -> None:
    """As it is read, line by line; a program that asked for JSON is told what is missing."""
    done = cli.here(*group.split())
    assert (done.code, done.out) == (2, "")
    assert done.err == cli.here(*group.split(), "--help").out
    refused = cli.here(*group.split(), "--json")
    assert (refused.code, refused.error["message"]) == (2, "Missing command.")


def test_wrong_usage_is_two_and_one_line(cli: Cli) -> None:
    """What cannot be understood exits with 2 and says where help is."""
    for args in (
        ["bogus"],
        ["list", "--bogus"],
        ["save", "a"],
        ["list", "--status", "odd"],
        ["--store", "", "list"],
        ["hooks", "install"],
    ):
        done = cli.here(*args)
        assert done.code == 2
        assert "\\" not in done.err
        assert done.out == ""
        assert done.err.startswith("error: ")
        assert done.err.count("\n") == 1
    assert cli.here("bogus", "--json").error["code"] == "usage"
    assert not cli.file.exists()


# --- saving ----------------------------------------------------------------------------------------------------


def test_save_takes_the_state_from_argument_file_and_stdin(cli: Cli) -> None:
    """The three ways to give a state save the same state."""
    (cli.folder / "state.json").write_text('{"a": [1, "ä"]}', encoding="utf-8")
    for number, (source, stdin) in enumerate(
        [('{"a": [1, "ä"]}', b""), ("@state.json", b""), ("-", '{"a": [1, "ä"]}'.encode())], start=1
    ):
        done = cli("save", "run", "--state", source, stdin=stdin)
        assert done.code == 0, done.err
        assert done.out.startswith("Saved cp_")
        assert f"checkpoint {number} of run" in done.out
    with stepkeep.open(cli.url) as store:
        states = [store.get("run").load(number).state for number in (1, 2, 3)]
    assert states == [{"a": [1, "ä"]}] * 3


def test_save_keeps_every_option(cli: Cli) -> None:
    """What is given on the command line is in the header and in the session."""
    done = cli(
        *(
            "save",
            "run",
            "--state",
            "1",
            "--step",
            "4",
            "--message",
            "hello",
            "--tags",
            "a, b",
            "--tags",
            "c",
        ),
        *(
            "--status",
            "paused",
            "--manual",
            "--profile",
            "agent",
            "--project",
            "web",
            "--metadata",
            '{"k": [1]}',
        ),
        *("--idempotency-key", "key", "--expect-head", "none", "--external-id", "ext", "--json"),
    )
    saved = done.json
    assert set(saved) == {
        *(
            "id",
            "session",
            "seq",
            "branch",
            "time",
            "step",
            "status",
            "trigger",
            "message",
            "tags",
            "metadata",
        ),
        *("parents", "requires", "external_id", "idempotency_key", "size_bytes", "stored_bytes", "ratio"),
        *("contents", "chain", "files", "files_bytes", "file"),
    }
    assert (saved["session"], saved["seq"], saved["branch"], saved["step"]) == ("run", 1, "main", 4)
    assert (saved["status"], saved["trigger"], saved["message"]) == (
        "paused",
        {"kind": "manual", "event": None},
        "hello",
    )
    assert (saved["tags"], saved["metadata"]) == (["a", "b", "c"], {"k": [1]})
    assert (saved["external_id"], saved["idempotency_key"], saved["size_bytes"]) == ("ext", "key", 1)
    with stepkeep.open(cli.url) as store:
        info = store.get("run").info
    assert (info.profile, info.project, info.status) == ("agent", "web", "paused")


def test_a_repeated_idempotency_key_saves_once(cli: Cli) -> None:
    """The same key and state give the first checkpoint again; another state is a conflict."""
    first = cli.here("save", "run", "--state", "1", "--idempotency-key", "k", "--json").json
    again = cli.here("save", "run", "--state", "1", "--idempotency-key", "k", "--json").json
    assert again["id"] == first["id"]
    assert cli.here("save", "run", "--state", "2", "--idempotency-key", "k").code == 5


def test_expect_head_decides_between_writers(cli: Cli) -> None:
    """A save that expects another head than there is exits with 5 and stores nothing."""
    first, second = cli.fill(count=2)
    assert cli.here("save", "run", "--state", "3", "--expect-head", second.id).code == 0
    for head in (first.id, second.id, "none"):
        done = cli.here("save", "run", "--state", "4", "--expect-head", head, "--json")
        assert done.code == 5
        assert done.error["retryable"] is True
    assert cli.here("save", "other", "--state", "4", "--expect-head", first.id).code == 3
    assert cli.here("save", "run", "--state", "4", "--expect-head", "latest").code == 2
    assert [each["key"] for each in cli.here("list", "--json").json] == ["run"]
    assert cli.here("history", "run", "--json").json["total"] == 3


@pytest.mark.parametrize(
    ("state", "part"),
    [
        ("{", "line 1, column 2"),
        ('{"a": 1,\n "b" 2}', "line 2, column 6"),
        ("", "line 1, column 1"),
        ('{"a": 1, "a": 2}', "'a' occurs twice"),
        ("[NaN]", "NaN is not JSON"),
        ("[-Infinity]", "-Infinity is not JSON"),
        ("1e400", "'1e400' is too large"),
        ("9" * 5000, "5000 digits"),
        ("[" * 100_000, "nested too deeply"),
        ("[" * 300 + "]" * 300, "deep"),
        ('"\\ud800"', "surrogate"),
        ("@missing.json", "No such file"),
        ("@.", "directory"),
        ("@a\\0b", "No such file"),
    ],
)
def test_a_bad_state_is_refused_and_nothing_is_written(cli: Cli, state: str, part: str) -> None:
    """The error says what is wrong and where, on one line, exits with 2, and leaves no session."""
    done = cli.here("save", "run", "--state", "-", stdin=state.encode()) if state[:1] != "@" else None
    done = done or cli.here("save", "run", "--state", state)
    assert done.code == 2
    assert done.err.startswith("error: ")
    assert part in done.err
    assert done.err.count("\n") == 1
    assert len(done.err) < 1000
    assert not cli.file.exists() or cli.here("list", "--json").json == []


def test_a_state_that_is_not_text_is_refused(cli: Cli) -> None:
    """Bytes that are no UTF-8 are named with their place."""
    done = cli.here("save", "run", "--state", "-", stdin=b'"\xff"')
    assert done.code == 2
    assert "byte 1 is 0xff" in done.err


def test_numbers_are_read_exactly() -> None:
    """Integers of any size and the sign of zero survive."""
    assert read_json("x", "123456789012345678901234567890") == 123456789012345678901234567890
    assert str(read_json("x", "-0.0")) == "-0.0"
    assert read_json("x", "\ufeff1".encode().decode("utf-8-sig")) == 1


@pytest.mark.parametrize(
    "args",
    [
        ["", "--state", "1"],
        ["k" * 1025, "--state", "1"],
        ["run", "--state", "1", "--tags", "a,,b"],
        ["run", "--state", "1", "--tags", ""],
        ["run", "--state", "1", "--metadata", "[1]"],
        ["run", "--state", "1", "--metadata", "{"],
        ["run", "--state", "1", "--metadata", json.dumps({"big": "x" * 70_000})],
        ["run", "--state", "1", "--message", "m" * 70_000],
        ["run", "--state", "1", "--profile", "odd"],
        ["run", "--state", "1", "--project", ""],
        ["run", "--state", "1", "--external-id", ""],
        ["run", "--state", "1", "--step", str(2**63)],
        ["run", "--state", "-", "--metadata", "-"],
        ["run", "--session", "other", "--state", "1"],
        [b"\xff", "--state", "1"],
    ],
)
def test_bad_options_leave_no_session(cli: Cli, args: list[str | bytes]) -> None:
    """Input that is refused exits with 2 and creates nothing that could be listed."""
    done = cli.here("save", *args)
    assert done.code == 2, done.out
    assert done.err.startswith("error: ")
    assert done.err.count("\n") == 1
    assert not cli.file.exists() or cli.here("list", "--json").json == []


def test_odd_keys_are_data(cli: Cli) -> None:
    """A key may look like a path, an option or a control sequence; it only ever names the session."""
    for key in ("../../etc/passwd", "a\nb", RED, "日本", "*", "%s", "'; drop table sessions"):
        assert cli.here("save", "--state", "1", "--", key).code == 0
        assert cli.here("show", "--json", "--", key).json["checkpoint"]["session"] == key
    assert cli.here("save", "--state", "1", "--session", "--odd").code == 0
    assert [path.name for path in cli.folder.iterdir() if not path.name.startswith("store.db")] == []


# --- looking ---------------------------------------------------------------------------------------------------


def test_list_shows_sessions_and_checkpoints(cli: Cli) -> None:
    """Without arguments sessions, with one its checkpoints, with a tag those of all sessions."""
    assert cli.here("list").code == 3  # nothing was saved yet, and looking creates nothing
    assert not cli.file.exists()
    cli.here("save", "one", "--state", "1", "--project", "web", "--tags", "x", "--message", "first")
    cli.here("save", "two", "--state", "2", "--status", "failed", "--tags", "x,y")
    cli.here("save", "two", "--state", "3")
    assert [each["key"] for each in cli.here("list", "--json").json] == ["two", "one"]
    assert [each["key"] for each in cli.here("list", "--json", "--limit", "1").json] == ["two"]
    assert [each["key"] for each in cli.here("list", "--json", "--project", "web").json] == ["one"]
    assert [each["key"] for each in cli.here("list", "--json", "--status", "completed").json] == []
    assert [each["seq"] for each in cli.here("list", "two", "--json").json] == [2, 1]
    assert [each["seq"] for each in cli.here("list", "two", "--json", "--status", "failed").json] == [1]
    assert {each["session"] for each in cli.here("list", "--tag", "x", "--json").json} == {"one", "two"}
    assert [each["seq"] for each in cli.here("list", "--session", "two", "--tag", "y", "--json").json] == [1]
    plain = cli.here("list", "--tag", "x").out.splitlines()
    assert plain[0].split() == [
        *("SESSION", "SEQ", "CHECKPOINT", "TIME", "STEP", "SIZE", "STORED", "RATIO", "TAGS", "MESSAGE")
    ]
    assert plain[2].endswith("first")
    assert cli.here("list", "three").code == 3
    assert set(cli.here("list", "--json").json[0]) == {
        *(
            "key",
            "uid",
            "status",
            "project",
            "workflow",
            "profile",
            "is_test",
            "crash",
            "branch",
            "checkpoints",
            "created",
        ),
        *("updated", "finished", "error", "metadata"),
    }


def test_history_shows_the_latest_and_what_came_before(cli: Cli) -> None:
    """The short view has four entries with time, size, step, stored size and ratio, then how many more."""
    headers = cli.fill(count=11)
    lines = cli.here("history", "run").out.splitlines()
    latest = headers[-1]
    assert lines[0].startswith(
        f"Latest: {latest.id} ({latest.created_at:%Y-%m-%d %H:%M:%S}, 2.8KB, step 11, stored "
    )
    assert lines[0].endswith("x)")
    assert lines[1] == "History:"
    assert [line[:4] for line in lines[2:5]] == ["  - "] * 3
    assert [header.id in line for header, line in zip(headers[-2::-1], lines[2:5], strict=False)] == [
        True
    ] * 3
    assert lines[5:] == ["  ... (7 more)"]
    assert len(cli.here("history", "run", "--all").out.splitlines()) == 12
    assert cli.here("history", "run", "--limit", "1").out.splitlines()[1:] == ["History:", "  ... (10 more)"]
    found = cli.here("history", "run", "--json").json
    assert (found["session"], found["branch"], found["total"], found["damaged"]) == ("run", "main", 11, [])
    assert [each["seq"] for each in found["checkpoints"]] == list(range(11, 0, -1))
    newest = found["checkpoints"][0]
    assert newest["ratio"] == round(newest["size_bytes"] / newest["stored_bytes"], 2)
    assert cli.here("history", "run", "--limit", "1", "--all").code == 2
    assert cli.here("history", "run", "--limit", "0").code == 2


def test_history_of_one_and_of_none(cli: Cli) -> None:
    """A single checkpoint has no history; a session without any says so."""
    cli.fill(count=1)
    assert len(cli.here("history", "run").out.splitlines()) == 1
    with stepkeep.open(cli.url) as store:
        store.session("empty")
    assert cli.here("history", "empty").out == "Session empty has no checkpoint.\n"
    assert cli.here("show", "empty").code == 3


def test_show_prints_header_and_state(cli: Cli) -> None:
    """A ref names the checkpoint; JSON has the state as it was given."""
    cli.fill()
    text = cli.here("show", "run", "step-2", "--store", cli.url).out
    assert "session:    run (checkpoint 2, branch main)" in text
    assert "step:       2" in text
    assert '  "n": 2,' in text
    shown = cli.here("show", "run", "latest~2", "--json").json
    assert set(shown) == {
        *(
            "checkpoint",
            "encoding",
            "state",
            "details_encoding",
            "details",
            "fallback",
            "merged_triggers",
            "transcript",
        )
    }
    assert (shown["state"]["n"], shown["encoding"], shown["fallback"]) == (1, "json", None)
    assert cli.here("show", "run", "step-99").code == 3
    assert cli.here("show", "run", "nonsense ref").code == 2
    assert cli.here("show", "--session", "run", "latest", "n", "more").code == 2
    assert cli.here("--json", "show", "gone").error["session"] == "gone"


def test_show_keeps_names_and_values_apart(cli: Cli) -> None:
    """Also where the name is as long as its column."""
    cli.fill(count=1, external_id="p1")
    assert "\nexternal id: p1\n" in cli.here("show", "run").out


def test_the_session_may_come_from_option_or_environment(cli: Cli) -> None:
    """The argument, then --session, then STEPKEEP_SESSION, then the current one; with --session all are refs."""
    cli.fill()
    assert cli.here("show", "--session", "run", "step-2", "--json").json["checkpoint"]["step"] == 2
    assert cli.here("show", "--json", STEPKEEP_SESSION="run").json["checkpoint"]["step"] == 3
    assert cli.here("history", STEPKEEP_SESSION="gone").code == 3
    assert cli.here("history", "run", STEPKEEP_SESSION="gone").code == 0
    assert cli.here("history").err == "session run (the most recently updated one of the store)\n"
    assert cli.here("history", "run", "--session", "run").code == 2
    assert cli.here("delete", "--yes", STEPKEEP_SESSION="run").code == 2


def test_status_shows_store_and_session(cli: Cli) -> None:
    """Counts and sizes of the store, and where one session stands."""
    cli.fill()
    whole = cli.here("status", "--json").json
    fields = {"store", "statuses", "usage", "oldest", "newest", "sessions", "next_clean", "max_bytes"}
    assert set(whole) == fields | {"budget_bytes", "is_over_budget", "last_backup"}
    assert (whole["statuses"]["in_progress"], whole["usage"]["checkpoints"]) == (1, 3)
    one = cli.here("status", "run", "--json").json
    fields = {"store", "session", "usage", "latest", "takes", "rules", "cleanup"}
    assert set(one) == fields | {"budget_bytes", "is_over_budget", "stopped_restore"}
    assert one["latest"]["step"] == 3
    assert "checkpoints: 3" in cli.here("status").out
    assert "session:     run" in cli.here("status", "run").out


@pytest.mark.parametrize(
    "state",
    [
        '{"n":18446744073709551616}',
        '{"n":[-9223372036854775809,{"$int":"0x1"}]}',
        "1" + "0" * 4000,
        '{"$set":[1]}',
    ],
)
def test_a_state_that_is_shown_is_read_back_as_the_same(cli: Cli, state: str) -> None:
    """All that JSON has is shown as plain JSON: integers of any size, and objects that look like a tag."""
    assert cli.here("save", "run", "--state", state).code == 0
    shown = cli.here("show", "run", "--raw")
    assert shown.out == f"{state}\n"
    assert cli.here("save", "run", "--state", "-", stdin=shown.bytes).code == 0
    document = cli.here("show", "run", "--json").json
    assert (document["encoding"], document["state"]) == ("json", json.loads(state))
    with stepkeep.open(cli.url) as store:
        first, second = (store.get("run").at(seq).state for seq in (1, 2))
    assert first == second == json.loads(state)


def test_a_state_with_tags_is_read_back_with_its_encoding(cli: Cli) -> None:
    """What `show` prints with the encoding json+tags, `save` takes with the same encoding; `create` too."""
    state = {"pair": (1, 2**70), "bytes": b"x", "plain": {"$set": [1]}}
    with stepkeep.open(cli.url) as store:
        store.session("run").save(state)
    shown = cli.here("show", "run", "--raw").bytes
    assert cli.here("save", "run", "--state", "-", "--encoding", "json+tags", stdin=shown).code == 0
    again = ("--session", "run", "--state", "-", "--encoding", "json+tags")
    assert cli.here("create", "again", *again, stdin=shown).code == 0
    refused = cli.here("save", "run", "--state", '{"$tuple": 1}', "--encoding", "json+tags", "--json")
    assert (refused.code, refused.error["code"]) == (2, "invalid_tags")
    with stepkeep.open(cli.url) as store:
        assert [checkpoint.state for checkpoint in map(store.get("run").at, (1, 2, 3))] == [state] * 3


def test_values_json_lacks_are_shown_in_tagged_form(cli: Cli) -> None:
    """Export and show say so when an object stands for another value."""
    with stepkeep.open(cli.url) as store:
        store.session("run").save({"when": (1, b"x")}, details={"more": {1, 2}})
    shown = cli.here("show", "run", "--json").json
    assert (shown["encoding"], shown["state"]) == ("json+tags", {"when": {"$tuple": [1, {"$bytes": "eA=="}]}})
    assert shown["details_encoding"] == "json+tags"
    assert "json+tags" in cli.here("show", "run").out
    assert "json+tags" in cli.here("export", "run", "-o", "-").err


# --- exporting -------------------------------------------------------------------------------------------------


def test_export_writes_a_readable_file(cli: Cli) -> None:
    """Header and state, indented, for the owner alone; an existing file stays unless forced."""
    cli.fill()
    output = cli.folder / "debug.json"
    done = cli("export", "run", "--output", "debug.json")
    assert done.code == 0, done.err
    document = json.loads(output.read_text(encoding="utf-8"))
    assert set(document) == {
        *("stepkeep_export", "checkpoint", "encoding", "state", "details_encoding", "details")
    }
    assert (document["state"]["n"], document["checkpoint"]["step"]) == (3, 3)
    assert output.read_text(encoding="utf-8").startswith('{\n  "stepkeep_export": 1,\n')
    assert output.stat().st_mode & 0o777 == 0o600
    output.write_text("mine", encoding="utf-8")
    refused = cli("export", "run", "step-1", "--output", "debug.json", "--json")
    assert (refused.code, refused.error["code"]) == (2, "file_exists")
    assert output.read_text(encoding="utf-8") == "mine"
    forced = cli("export", "run", "step-1", "--output", "debug.json", "--force", "--json").json
    assert set(forced) == {"checkpoint", "encoding", "output", "size_bytes", "fallback", "format"}
    assert json.loads(output.read_bytes())["state"]["n"] == 1
    assert forced["size_bytes"] == output.stat().st_size
    assert json.loads(cli("export", "run", "--output", "-").out)["state"]["n"] == 3
    assert sorted(path.name for path in cli.folder.iterdir() if "store.db" not in path.name) == ["debug.json"]


@pytest.mark.parametrize("force", [[], ["--force"]])
def test_export_to_an_impossible_place_fails(cli: Cli, force: list[str]) -> None:
    """A missing folder is an error with exit code 1; nothing is left behind."""
    cli.fill()
    done = cli.here("export", "run", "--output", "gone/debug.json", *force)
    assert done.code == 1
    assert "No such file or directory" in done.err
    assert cli.here("export", "run", "--output", ".", *force).code == 2
    assert cli.here("export", "run", "--output", "", *force).code == 2
    assert [path.name for path in cli.folder.iterdir() if "store.db" not in path.name] == []


# --- damage ----------------------------------------------------------------------------------------------------


def test_damage_is_reported_and_survived(cli: Cli) -> None:
    """`verify` names the checkpoint and exits with 4; `show` falls back with a warning on stderr."""
    headers = cli.fill()
    assert cli.here("verify").out == "Verified 3 checkpoints in 1 session: intact\n"
    cli.damage(headers[-1].id)
    done = cli.here("verify")
    assert done.code == 4
    assert f"DAMAGED run checkpoint 3: stored bytes of body 'state' of {headers[-1].id}" in done.out
    report = cli.here("verify", "run", "--json")
    assert report.code == 4
    assert set(report.json) == {
        *("is_intact", "sessions", "checkpoints", "bodies", "pruned", "parent_unknown", "findings"),
        *("result", "fixes", "lost", "unknown", "repaired"),
    }
    assert [set(each) for each in report.json["findings"]] == [
        {"session", "code", "message", "checkpoint", "seq"}
    ]
    shown = cli.here("show", "run", "--json")
    assert shown.code == 0
    assert shown.json["state"]["n"] == 2
    failures = [{"checkpoint": headers[-1].id, "code": "checkpoint_integrity_mismatch"}]
    assert shown.json["fallback"] == {"tried": 2, "failures": failures}
    (told,) = shown.err.splitlines()
    assert told.startswith("warning: Latest checkpoint corrupted, using history checkpoint from ")
    assert "Latest checkpoint failed to load" in cli.here("show", "run", "-v").err
    assert f"instead of: {headers[-1].id} (damaged)" in cli.here("show", "run").out
    assert cli.here("show", "run", headers[-1].id).code == 4
    assert cli.here("show", "run", "step-3", "--json").error["code"] == "checkpoint_integrity_mismatch"
    assert cli.here("verify", "gone").code == 3


def test_a_damaged_checkpoint_can_be_deleted(cli: Cli) -> None:
    """Its id is enough; afterwards the session verifies again."""
    headers = cli.fill()
    cli.damage(headers[-1].id)
    assert cli.here("delete", "run", headers[-1].id, "--yes").code == 0
    assert "1 removed on purpose: intact" in cli.here("verify").out


def test_verify_tells_of_a_parent_that_was_never_here(cli: Cli) -> None:
    """Nothing is wrong with such a checkpoint, but where it comes from cannot be proven."""
    with stepkeep.open(cli.url) as store:
        store.session("run").save({"n": 1})
        header = store.session("run").save({"n": 2}, parents=["cp_elsewhere"])
    done = cli.here("verify")
    assert (done.code, done.out) == (
        0,
        "Verified 2 checkpoints in 1 session, the parent of 1 was never here: intact\n",
    )
    assert cli.here("verify", "run", "--json").json["parent_unknown"] == [header.id]


@pytest.mark.parametrize("ref", ["seq:3", "#3", "3", "prefix"])
def test_a_checkpoint_with_a_damaged_header_can_be_deleted(cli: Cli, ref: str) -> None:
    """By its number or the beginning of its id too: what is unreadable still has a place."""
    url = f"files:{cli.folder / 'c'}?layout=workflow"
    with stepkeep.open(url) as store:
        saved = [store.session("a").save({"n": n}) for n in (1, 2, 3)]
    newest = cli.folder / "c/sessions/a/checkpoint.json"
    newest.write_bytes(newest.read_bytes()[:50])
    wanted = saved[-1].id[:-2] if ref == "prefix" else ref
    done = cli.here("delete", "a", wanted, "--yes", "--json", "--store", url)
    assert (done.code, done.json["checkpoints"]) == (0, [saved[-1].id])
    assert cli.here("verify", "--store", url).code == 0
    assert cli.here("show", "a", "--raw", "--store", url).out == '{"n":2}\n'
    assert cli.here("delete", "a", "seq:9", "--yes", "--store", url).code == 3
    assert cli.here("delete", "a", "cp_", "--yes", "--store", url).code == 2


def test_when_nothing_is_intact_the_error_says_so(cli: Cli) -> None:
    """With all checkpoints damaged `show` exits with 4 and the advice."""
    for header in cli.fill(count=2):
        cli.damage(header.id)
    done = cli.here("show", "run")
    assert done.code == 4
    assert "error: No valid checkpoint found (tried 2 checkpoints)" in done.err


def test_verbose_logs_on_stderr(cli: Cli) -> None:
    """Before or after the command; stdout stays the same."""
    cli.fill()
    quiet, before, after = cli("show", "run"), cli("-v", "show", "run"), cli("show", "run", "--verbose")
    assert quiet.err == ""
    assert "debug: Loaded latest checkpoint" in before.err
    assert before.err == after.err
    assert quiet.out == before.out == after.out


# --- finishing and deleting ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("verb", "status"),
    [("complete", "completed"), ("fail", "failed"), ("cancel", "cancelled"), ("pause", "paused")],
)
def test_finishing_sets_the_status(cli: Cli, verb: str, status: str) -> None:
    """Each verb sets its status; unknown sessions are not created."""
    cli.fill()
    assert cli.here(verb, "run").out == f"Session run is {status}\n"
    assert cli.here(verb, "--json", "--session", "run").json["status"] == status
    assert cli.here(verb, "gone").code == 3


def test_fail_keeps_the_error_text(cli: Cli) -> None:
    """The text is stored and shown."""
    cli.fill()
    assert cli.here("fail", "run", "--error", "quota", "--json").json["error"] == "quota"
    assert "failed: quota" in cli.here("status", "run").out


def test_delete_needs_a_yes(cli: Cli) -> None:
    """Without a terminal --yes is required; with it checkpoints or the session are gone."""
    headers = cli.fill()
    assert cli.here("delete", "run").code == 2
    assert cli.here("delete", "run", "step-99", "--yes").code == 3
    deleted = cli.here("delete", "run", "step-2", "seq:1", headers[0].id, "--yes", "--json").json
    assert deleted == {
        "session": "run",
        "is_whole_session": False,
        "checkpoints": [headers[1].id, headers[0].id],
        "count": 2,
    }
    assert [each["seq"] for each in cli.here("list", "run", "--json").json] == [3]
    assert "--whole-session" in cli.here("delete", "run", "--yes").err
    assert cli.here("delete", "run", "1", "--whole-session", "--yes").code == 2
    done = cli.here("delete", "run", "--whole-session", "--yes")
    assert done.out == "Removed 1 checkpoint of run (the whole session)\n"
    assert cli.here("delete", "run", "--whole-session", "--yes").code == 3


def test_delete_asks_on_a_terminal(cli: Cli) -> None:
    """The question names what goes; no means no, yes means yes."""
    cli.fill()
    code, shown = cli.terminal("delete", "run", "--whole-session", answer=b"n\n")
    assert code == 1
    assert "Remove all 3 checkpoints of session run for good? [y/N]" in shown
    assert cli("list", "--json").json[0]["checkpoints"] == 3
    code, _ = cli.terminal("delete", "run", "step-1", answer=b"y\n")
    assert code == 0
    assert cli("list", "--json").json[0]["checkpoints"] == 2


# --- stores that cannot be used --------------------------------------------------------------------------------


def test_unknown_and_foreign_stores_are_refused(cli: Cli) -> None:
    """A wrong URL, a folder and a text file each get a clear error; none changes."""
    (cli.folder / "text.db").write_text("no database\n" * 100, encoding="utf-8")
    before = {file.name: file.read_bytes() for file in cli.folder.iterdir()}
    for url in ("bogus:x", "memory:x", "sqlite:", "foo", ".//", "sqlite:text.db"):
        for args in (["list"], ["save", "run", "--state", "1"]):
            done = cli.here("--store", url, *args)
            assert done.code == 2, (url, done.err)
            assert done.err.startswith("error: ")
            assert done.err.count("\n") == 1
    assert {file.name: file.read_bytes() for file in cli.folder.iterdir()} == before


def test_a_foreign_database_is_left_unchanged(cli: Cli) -> None:
    """A database of another program is refused before anything is written into it."""
    connection = apsw.Connection(str(cli.file))
    connection.execute("CREATE TABLE t (a); INSERT INTO t VALUES (1)")
    connection.close()
    before = cli.file.read_bytes()
    for args in (["list"], ["save", "run", "--state", "1"]):
        done = cli.here(*args, "--json")
        assert (done.code, done.error["code"]) == (2, "not_a_store")
    assert cli.file.read_bytes() == before


def test_a_newer_schema_is_refused(cli: Cli) -> None:
    """A store of a later version is left alone, with exit code 1."""
    cli.fill()
    connection = apsw.Connection(str(cli.file))
    connection.execute("PRAGMA user_version = 99")
    connection.close()
    done = cli.here("save", "run", "--state", "1", "--json")
    assert (done.code, done.error["code"], done.error["retryable"]) == (1, "schema_newer", False)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_read_only_folder_is_an_error(cli: Cli) -> None:
    """A store that cannot be created exits with 1."""
    cli.folder.chmod(0o500)
    try:
        assert cli("save", "run", "--state", "1").code == 1
    finally:
        cli.folder.chmod(0o700)


def test_a_store_below_a_file_is_an_error(cli: Cli) -> None:
    """A path that cannot exist exits with 1 and one line."""
    (cli.folder / "file").write_text("", encoding="utf-8")
    done = cli.here("--store", "file/store.db", "save", "run", "--state", "1")
    assert done.code == 1
    assert done.err.count("\n") == 1


def test_errors_as_json_have_one_shape(cli: Cli) -> None:
    """The last line on stderr; stdout stays empty."""
    done = cli("--json", "show", "gone", "--store", "memory:")
    assert done.code == 3
    assert done.out == ""
    assert done.error == {
        "code": "session_not_found",
        "message": "no session 'gone'",
        "retryable": False,
        "session": "gone",
        "branch": None,
        "checkpoint": None,
        "path": None,
        "result": "FAIL",
        "fixes": ["stepkeep list"],
    }


# --- text that could harm a terminal ---------------------------------------------------------------------------


def test_stored_text_cannot_control_the_terminal(cli: Cli) -> None:
    """Control and bidirectional characters in stored text are written as escapes, by every command."""
    evil = f"x{RED}\x07\x9b{BIDI}\n\u2028end"
    with stepkeep.open(cli.url) as store:
        session = store.session(evil, project=evil)
        session.save({evil: evil}, step=1, message=evil, tags=[evil, "t"], metadata={evil: evil})
        session.save({evil: evil}, step=2, message=evil)
        session.fail(evil)
    for args in (
        ["list"],
        ["list", evil],
        ["list", "--tag", "t"],
        ["history", evil],
        ["show", evil],
        ["export", evil, "-o", "out.json"],
        ["status"],
        ["status", evil],
        ["verify"],
        ["fail", evil, "--error", evil],
        ["show", f"{evil}gone"],
        ["show", evil, "tag:none"],
        ["delete", evil, "step-1", "--yes"],
    ):
        for option in ([], ["--json"]):
            done = cli.here(*args, *(["--force"] if "export" in args else []), *option)
            seen = done.out + done.err
            assert seen
            assert not set(seen) & {"\x1b", "\x07", "\x9b", BIDI, "\u2028", "\r"}, args
    shown = cli.here("show", evil, "--json").json
    assert shown["state"] == {evil: evil}
    assert shown["checkpoint"]["message"] == evil
    assert BIDI in cli.here("show", evil, "--raw").out


def test_raw_prints_the_stored_bytes(cli: Cli) -> None:
    """`--raw` is the state and nothing else."""
    cli.here("save", "run", "--state", '{"b": 1.50, "a": "\u202e"}')
    assert cli.here("show", "run", "--raw").bytes == '{"b":1.5,"a":"\u202e"}\n'.encode()
    assert cli.here("show", "run", "--raw", "--json").code == 2


# --- terminals and pipes ---------------------------------------------------------------------------------------


LONG_KEY = "claude-code:00893aaf-19fa-41d2-8238-13269b9b3ca0"
SHOWING = (
    *("list", "list run", "list --tag t", "log run", "log run --graph", f"timeline {LONG_KEY}", "status"),
    *("status run", "branch run", "branch log run main", "find word --session run -n 3", "verify", "resume"),
    *("prune run --keep-last 3 --dry-run", "clean --dry-run", "keep run", "doctor", "stats", "diff run"),
    *("events run", "phases list", "history run --all"),
)


@pytest.mark.full
@pytest.mark.parametrize("columns", [60, 80, 200])
def test_output_fits_a_terminal(cli: Cli, columns: int) -> None:
    """No line runs over the edge of a terminal, whatever is stored; keys, times and numbers are never cut off."""
    cli.fill(LONG_KEY, 12)
    cli.fill(count=12, message="a message that goes on and on and on and on and on and on", tags=["t"] * 9)
    cli.here("restore", "run", "step-6", "--branch", "another-way")
    cli.here("save", "waits", "--state", "{}", "--status", "paused")
    cli.url = "sqlite:store.db"  # a path would be a word that is longer than a line
    for line in SHOWING:
        code, shown = cli.terminal(*line.split(), columns=columns)
        assert code in (0, 3), (line, shown)  # there may be nothing to resume
        plain = [re.sub(r"\x1b\[[0-9;]*[mK]", "", each).split("\r")[-1] for each in shown.split("\r\n")]
        too_long = [each for each in plain if len(each) > columns and str(cli.folder) not in each]
        assert too_long == [], line
        assert not re.search(r"\d:\d*…", shown), line
        if line in ("list", "status", "clean --dry-run") or LONG_KEY in line:
            assert LONG_KEY in shown, line


def test_a_long_key_has_a_line_of_its_own_and_less_important_columns_go(cli: Cli) -> None:
    """What a row tells stays in its columns below the key; where there is no room, status and task stay."""
    cli.fill(LONG_KEY, 1)
    cli.fill("run", 12)
    with stepkeep.open(cli.url) as store:
        store.session(LONG_KEY, metadata={"client": "claude-code"}).save(
            {}, metadata={"client": "claude-code", "task_summary": "Fix the login bug"}
        )
    _, shown = cli.terminal("list", columns=60)
    plain = re.sub(r"\x1b\[[0-9;]*m", "", shown).split("\r\n")
    assert plain[:4] == [
        "SESSION               STATUS       TASK",
        LONG_KEY,
        "                      in_progress  Fix the login bug",
        "run                   in_progress  -",
    ]
    _, wide = cli.terminal("list", columns=200)
    assert re.search(
        rf"{LONG_KEY}  in_progress +2  20\d\d-\d\d-\d\d \d\d:\d\d:\d\d  -        Fix the login bug", wide
    )
    assert "stored" in cli.terminal("history", "run", columns=120)[1]


def test_the_short_id_on_a_terminal_names_the_checkpoint(cli: Cli) -> None:
    """What the narrow history shows can be given back as a ref."""
    cli.fill()
    _, shown = cli.terminal("history", "run")
    short = shown.split()[1]
    assert cli("show", "run", short, "--json").json["checkpoint"]["step"] == 3


def test_a_closed_pipe_is_quiet(cli: Cli) -> None:
    """A reader that stops early causes no traceback."""
    cli.fill(count=40)
    command = f"{sys.executable} -m stepkeep show run --json | head -c 1; {sys.executable} -m stepkeep --help | true"
    done = subprocess.run(
        ["bash", "-c", command], capture_output=True, text=True, env=cli.environment, check=False
    )
    assert done.stdout == "{"
    assert done.stderr == ""


def test_an_interrupt_is_130(cli: Cli) -> None:
    """Ctrl-C while waiting for a state ends the command without a traceback."""
    # A shell starts background work with the signal ignored, and children inherit that.
    program = (
        "import signal; signal.signal(signal.SIGINT, signal.default_int_handler);"
        "from stepkeep.cli import main; raise SystemExit(main(['save', 'run', '--state', '-']))"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stderr=subprocess.PIPE, env=cli.environment
    )
    wchan = Path(f"/proc/{process.pid}/wchan")
    for _ in range(100):  # until it waits for the pipe
        if wchan.exists() and "pipe" in wchan.read_text(encoding="utf-8"):
            break
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=20)
    assert process.returncode == 130
    assert b"Traceback" not in err


def test_output_does_not_depend_on_the_locale(cli: Cli) -> None:
    """Text is UTF-8 even where Python would write ASCII."""
    done = cli("save", "日本", "--state", "1", PYTHONIOENCODING="ascii", PYTHONUTF8="1")
    assert done.code == 0
    assert "日本" in done.out
    assert cli("show", "nö", PYTHONIOENCODING="ascii", PYTHONUTF8="1").code == 3


@pytest.mark.full
@pytest.mark.parametrize(
    "line", [["save", "s", "--state", "{}"], ["complete", "s"], ["prune", "s", "--keep-last", "1"], ["clean"]]
)
def test_waiting_for_others_is_told(tmp_path: Path, line: list[str]) -> None:
    """A command that finds the store locked says so, and goes on when the other is done."""
    with waiting(tmp_path, line) as (process, other):
        other.execute("ROLLBACK")
        assert process.communicate()[1] == ""
    assert process.returncode == 0


@pytest.mark.full
def test_a_command_that_waits_can_be_stopped(tmp_path: Path) -> None:
    """Ctrl-C ends it while the other still writes, and nothing is saved."""
    with waiting(tmp_path, ["save", "s", "--state", '{"a": 2}']) as (process, _):
        process.send_signal(signal.SIGINT)
        process.communicate()
    assert process.returncode == 130
    with stepkeep.open(f"sqlite:{tmp_path / 'store.db'}") as store:
        assert store.get("s").latest().state == {"a": 0}


@contextlib.contextmanager
def waiting(folder: Path, line: list[str]) -> Iterator[tuple[subprocess.Popen[str], apsw.Connection]]:
    """A command that says it waits for another connection, which holds the store meanwhile."""
    file = folder / "store.db"
    with stepkeep.open(f"sqlite:{file}") as store:
        for number in (1, 2, 0):
            store.session("s", test=True).save({"a": number})
        done = store.session("done", test=True)
        done.save({})
        done.complete()
    with contextlib.closing(apsw.Connection(str(file))) as other:
        other.execute("BEGIN IMMEDIATE")
        process = subprocess.Popen(
            [sys.executable, "-m", "stepkeep", *line, "--store", f"sqlite:{file}"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert process.stderr is not None
        assert (
            f"waiting for another process that writes to {file}, for up to 20 s" in process.stderr.readline()
        )
        yield process, other
