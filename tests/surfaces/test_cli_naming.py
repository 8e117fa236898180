"""Naming sessions, checkpoints, times and values on the command line: create, list, at, show, log."""

from __future__ import annotations

import re
import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import pytest

import stepkeep
from stepkeep import api, config
from stepkeep.model import to_us
from tests.surfaces.test_cli import Cli, Done

NOW = datetime(2025, 7, 3, 12, 0, tzinfo=UTC)
HOUR = timedelta(hours=1)
NO_KEEPER = config.load(cwd=None, environ={}, flags={"keeper.enabled": False})
CURRENT = "session run (the most recently updated one of the store)\n"

_open = api.open


class Named(Cli):
    """A command line at a fixed time, in a folder of its own, with one session of four checkpoints."""

    time = NOW

    def open(self) -> stepkeep.Store:
        return _open(self.url, config=NO_KEEPER, clock=lambda: to_us(self.time))

    def save(
        self, key: str, states: list[Any], *, ages: list[timedelta], **fields: Any
    ) -> list[stepkeep.Header]:
        with self.open() as store:
            self.time = NOW - ages[0]
            session = store.session(key, profile="archive", **fields)
            saved = []
            for step, (state, age) in enumerate(zip(states, ages, strict=True), start=1):
                self.time = NOW - age
                saved.append(session.save(state, step=step, message=f"message {step}"))
            self.time = NOW
            return saved

    def settings(self, text: str) -> None:
        (self.folder / "stepkeep.yaml").write_text(text, encoding="utf-8")


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Named:
    """Commands run at `NOW`, and see no configuration of the person who runs the tests."""
    (tmp_path / "work").mkdir()
    cli = Named(tmp_path / "work")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.delenv("STEPKEEP_TIME_ZONE", raising=False)
    monkeypatch.setattr(api, "open", partial(_open, clock=lambda: to_us(cli.time)))
    return cli


STATES: list[Any] = [
    {"context": {"messages": ["a"]}, "belief": "mask"},
    {"context": {"messages": ["a", "b"]}, "belief": "mask"},
    {"context": {"messages": ["a", "b", "c"]}, "belief": "scale"},
    {"context": {"messages": []}},
]
AGES = [3 * HOUR, 2 * HOUR, HOUR, timedelta()]


@pytest.fixture
def filled(cli: Named) -> Named:
    cli.save("run", STATES, ages=AGES)
    return cli


def lines(text: str) -> str:
    """Text in which ids are all alike."""
    return re.sub(r"cp_\d{8}T\d{12}_\w{10}", "cp_ID", text)


def refused(done: Done, code: int, words: str) -> None:
    """The command failed with that exit code, said why, and printed nothing."""
    assert (done.code, done.out) == (code, ""), done.err
    assert words in done.err


# --- at ----------------------------------------------------------------------------------------------------------


AT_TWO_HOURS_AGO = """\
asked:      at or before 2025-07-03 10:00:00 UTC
checkpoint: cp_ID
session:    run (checkpoint 2, branch main)
time:       2025-07-03 10:00:00 UTC
step:       2
status:     in_progress
trigger:    auto
message:    message 2
parents:    cp_ID
size:       50B, stored 50B (1.0x)
state:
{
  "context": {
    "messages": [
      "a",
      "b"
    ]
  },
  "belief": "mask"
}
"""


def test_at_two_hours_ago(filled: Named) -> None:
    """The line of the specification: what the state was, and of which checkpoint."""
    done = filled.here("at", "2 hours ago")
    assert (done.code, lines(done.out), done.err) == (0, AT_TWO_HOURS_AGO, CURRENT)


def test_at_a_date_and_time(filled: Named) -> None:
    """The other line of the specification; with SESSION or --session nothing is guessed."""
    done = filled.here("at", "2025-07-03 10:59:59")
    assert done.out.startswith("asked:      at or before 2025-07-03 10:59:59 UTC\n")
    assert "session:    run (checkpoint 2, branch main)" in done.out
    for words in (("run", "2 hours ago"), ("2 hours ago", "--session", "run")):
        done = filled.here("at", *words)
        assert (lines(done.out), done.err) == (AT_TWO_HOURS_AGO, "")


def test_at_with_a_path_prints_only_the_value(filled: Named) -> None:
    """Nothing but the value is on stdout; which checkpoint it is of is told on stderr."""
    done = filled.here("at", "2 hours ago", "context.messages[-1]")
    assert (done.code, done.out) == (0, '"b"\n')
    assert done.err == CURRENT + "checkpoint 2, the newest at or before 2025-07-03 10:00:00 UTC\n"
    assert filled.here("at", "run", "2 hours ago", "belief").out == '"mask"\n'


def test_at_as_json(filled: Named) -> None:
    """As `show`, with the time that was asked for, the zone it was read in, and whether it has come."""
    shown = filled.here("at", "run", "yesterday 14:30", "--json")
    assert (shown.code, shown.error["code"]) == (3, "checkpoint_not_found")
    found = filled.here("at", "run", "10:30", "--json").json
    assert found["asked"] == "2025-07-03T10:30:00Z"
    assert (found["asked_text"], found["zone"], found["is_future"]) == (
        "2025-07-03 10:30:00 UTC",
        "UTC",
        False,
    )
    assert (found["checkpoint"]["seq"], found["state"]) == (2, STATES[1])
    value = filled.here("at", "run", "10:30", "belief", "--json").json
    assert (value["path"], value["encoding"], value["value"]) == ("belief", "json", "mask")


def test_at_in_another_zone(filled: Named) -> None:
    """The configured zone is used and stated."""
    filled.settings("time: {zone: Europe/Berlin}")
    done = filled.here("at", "run", "12:30")
    assert done.out.startswith("asked:      at or before 2025-07-03 12:30:00 +02:00 (Europe/Berlin)\n")
    assert "checkpoint 2, branch main" in done.out
    assert (
        "checkpoint 3, branch main"
        in filled.here("at", "run", "12:30", STEPKEEP_TIME_ZONE="Europe/London").out
    )
    refused(filled.here("at", "run", "2025-03-30 02:30"), 2, "was skipped in Europe/Berlin")
    refused(filled.here("at", "run", "2025-10-26 02:30"), 2, "came twice in Europe/Berlin")
    refused(filled.here("at", "run", "now", STEPKEEP_TIME_ZONE="Mars/Olympus"), 2, "time.zone must be UTC")


def test_a_time_in_the_future_is_told(filled: Named) -> None:
    """It shows the newest, with a warning."""
    done = filled.here("at", "run", "2030-01-01")
    assert (done.code, "checkpoint 4, branch main" in done.out) == (0, True)
    assert "2030-01-01 00:00:00 UTC is in the future" in done.err
    assert filled.here("at", "run", "2030-01-01", "--json").json["is_future"] is True
    assert "is in the future" in filled.here("show", "run", "2030-01-01").err


BAD_TIMES = [
    (["at"], 2, "At what time?"),
    (["at", "tomorrow"], 2, "'tomorrow' is not a time: write it like"),
    (["at", "run"], 2, "'run' is not a time"),
    (["at", "run", "latest"], 2, "'latest' is not a time"),
    (["at", "run", "half past lunch"], 2, "is not a time"),
    (["at", "gone", "now"], 3, "no session 'gone'"),
    (["at", "--session", "gone", "now"], 3, "no session 'gone'"),
    (["at", "2025-02-30"], 2, "there is no such day"),
    (["at", "10000-01-01"], 2, "out of range"),
    (["at", f"1{'0' * 30} hours ago"], 2, "out of range"),
    (["at", "3 months ago"], 2, "give weeks, days or a date"),
    (["at", "1999-01-01"], 3, "the first is checkpoint 1 at 2025-07-03 09:00:00 UTC"),
    (["at", "now", "belief"], 3, "the state has no belief: $ has the keys context"),
    (["at", "now", "context.mesages"], 3, "context has the keys messages"),
    (["at", "now", "context.messages[7]"], 3, "context.messages is a list with 0 items"),
    (["at", "now", "a..b"], 2, "is not a path"),
    (["at", "--session", "run", "now", "a", "b"], 2, "Say a time"),
]


@pytest.mark.parametrize(("words", "code", "message"), BAD_TIMES)
def test_bad_times_and_paths(filled: Named, words: list[str], code: int, message: str) -> None:
    """Nonsense is wrong usage, what is not there is not found; the message says what is near."""
    refused(filled.here(*words), code, message)


# --- show --------------------------------------------------------------------------------------------------------


def test_show_with_a_path(filled: Named) -> None:
    """Only the value, as JSON that a program can read."""
    assert filled.here("show", "run", "step-3", "context.messages[-1]").out == '"c"\n'
    assert filled.here("show", "run", "step-1", "context").json == {"messages": ["a"]}
    assert (
        filled.here("show", "run", "step-1", "$", "--raw").out.strip()
        == filled.here("show", "run", "step-1", "--raw").out.strip()
    )
    found = filled.here("show", "run", "step-1", "belief", "--json").json
    assert set(found) == {"checkpoint", "path", "encoding", "value", "fallback"}
    assert (found["checkpoint"]["seq"], found["value"]) == (1, "mask")


def test_a_value_that_json_lacks_is_tagged(cli: Named) -> None:
    """The encoding says so."""
    cli.save("run", [{"when": NOW}], ages=[HOUR])
    found = cli.here("show", "run", "latest", "when", "--json").json
    assert (found["encoding"], found["value"]) == ("json+tags", {"$datetime": "2025-07-03T12:00:00+00:00"})


BAD_REFS = [
    (["show", "run", "step-9"], 3, "the nearest are step-1, step-2, step-3 and step-4"),
    (["show", "run", "tag:x"], 3, "none has a tag"),
    (["show", "run", "#9"], 3, "the nearest is 4"),
    (["show", "run", "cp_"], 2, "is the beginning of several ids: cp_"),
    (["show", "run", "latest~4"], 3, "the oldest is latest~3"),
    (["show", "run", "latest@before"], 3, "never restored or switched"),
    (["show", "run", "branch:x"], 3, "there is branch:main"),
    (["show", "run", "1999-01-01"], 3, "the first is checkpoint 1"),
    (["show", "run", "nonsense"], 2, "does not name a checkpoint"),
    (["show", "run", "2025-13-01"], 2, "there is no such day"),
    (["show", "run", "latest", "nothing"], 3, "$ has the keys context"),
    (["show", "rnu"], 3, "no session 'rnu'"),
    (["diff", "run", "step-1", "step-9"], 3, "the nearest are"),
    (["log", "run", "--path", "nothing"], 3, "the state has no nothing"),
    (["log", "run", "--path", "a["], 2, "is not a path"),
    (["log", "gone"], 3, "no session 'gone'"),
    (["log", "run", "--limit", "0"], 2, "--limit"),
]


@pytest.mark.parametrize(("words", "code", "message"), BAD_REFS)
def test_bad_refs(filled: Named, words: list[str], code: int, message: str) -> None:
    """What is not there is exit code 3, what makes no sense 2, and both say what is near."""
    refused(filled.here(*words), code, message)


def test_a_pruned_number_says_so(filled: Named) -> None:
    """A gap that was made on purpose is told apart from a number that never was."""
    filled.here("delete", "run", "#2", "--yes")
    refused(filled.here("show", "run", "#2"), 3, "it was pruned or deleted, the nearest are 1 and 3")


# --- the session that nobody named ---------------------------------------------------------------------------------


def test_the_current_session_is_the_one_last_updated(filled: Named) -> None:
    """Of the store, or of the configured project; and it is told."""
    filled.save("older", [{}], ages=[5 * HOUR], project="web")
    filled.save("newer", [{}], ages=[4 * HOUR], project="web")
    assert "session:    run (checkpoint 4" in filled.here("show").out
    filled.settings("project: web")
    done = filled.here("history")
    assert (done.code, done.err) == (0, "session newer (the most recently updated one of project web)\n")
    filled.settings("project: empty")
    refused(filled.here("history"), 3, "project 'empty' has no session yet")
    assert filled.here("history", "--json").error["code"] == "session_not_found"


COMMANDS = ["show", "history", "log", "diff"]


@pytest.mark.parametrize("command", COMMANDS)
def test_commands_find_the_session(filled: Named, command: str) -> None:
    """The argument, --session and STEPKEEP_SESSION are silent; the current session is told on stderr."""
    expected = filled.here(command, "run")
    filled.save("other", [{}, {}], ages=[7 * HOUR, 6 * HOUR])
    for done in (filled.here(command, "--session", "run"), filled.here(command, STEPKEEP_SESSION="run")):
        assert (done.code, done.out, done.err) == (0, expected.out, "")
    guessed = filled.here(command)
    assert (guessed.code, guessed.out, guessed.err) == (0, expected.out, CURRENT)
    assert filled.here(command, STEPKEEP_SESSION="other").out != expected.out


def test_a_ref_alone_is_of_the_current_session(filled: Named) -> None:
    """What is no session and is a ref names a checkpoint; a session with such a name comes first."""
    assert "checkpoint 2, branch main" in filled.here("show", "step-2").out
    assert "to   checkpoint 3" in filled.here("diff", "step-1", "step-3").out
    assert filled.here("show", "step-1", "belief", STEPKEEP_SESSION="run").out == '"mask"\n'
    exported = filled.here("export", "latest~1", "--output", "-")
    assert (exported.code, exported.json["checkpoint"]["seq"]) == (0, 3)
    filled.save("step-2", [{"other": 1}], ages=[9 * HOUR])
    assert "session:    step-2 (checkpoint 1" in filled.here("show", "step-2").out


def test_an_id_alone_is_of_its_own_session(filled: Named) -> None:
    """An id is unique in the store, so it needs no session; the variable still comes first."""
    (header,) = filled.save("other", [{"x": 1}], ages=[9 * HOUR])
    done = filled.here("show", header.id)
    assert "session:    other (checkpoint 1" in done.out
    assert done.err == f"session other (the one with {header.id})\n"
    refused(filled.here("show", header.id, STEPKEEP_SESSION="run"), 3, "it belongs to session 'other'")


def test_without_any_session_there_is_nothing_to_guess(cli: Named) -> None:
    """A store without sessions, or no store: not found."""
    refused(cli.here("history"), 3, "no store at")
    cli.open().close()
    refused(cli.here("history"), 3, "this store has no session yet")
    refused(cli.here("at", "now"), 3, "this store has no session yet")


def test_delete_never_guesses(filled: Named) -> None:
    """What removes for good wants to be told what."""
    refused(filled.here("delete", "--yes"), 2, "Which session?")
    refused(filled.here("delete", "step-1", "--yes"), 2, "--whole-session")
    refused(filled.here("delete", "step-1", "--whole-session", "--yes"), 3, "no session 'step-1'")
    assert len(filled.here("list", "run", "--json").json) == 4


# --- create and list -----------------------------------------------------------------------------------------------


def test_create_saves_the_latest_state_once_more(filled: Named) -> None:
    """The line of the specification: a manual checkpoint with message and tags; step and details stay."""
    with filled.open() as store:
        store.get("run").save({"n": 5}, step=5, details={"d": 1}, status="completed")
    done = filled.here("create", "After verifying Q4_0 dequant", "--tags", "q4_0,verified")
    assert lines(done.out) == "Created cp_ID (checkpoint 6 of run, 14B, step 5)\n"
    assert (done.code, done.err) == (0, CURRENT)
    with filled.open() as store:
        session = store.get("run")
        latest = session.load()
        assert (latest.state, latest.details, latest.step) == ({"n": 5}, {"d": 1}, 5)
        assert (latest.header.trigger.kind, latest.header.message) == (
            "manual",
            "After verifying Q4_0 dequant",
        )
        assert (latest.header.tags, latest.header.parents) == (
            ("q4_0", "verified"),
            (session.header("#5").id,),
        )
        assert session.info.status == "completed"


def test_create_prefers_a_session_of_this_folder(filled: Named) -> None:
    """Of the folder itself or the nearest above it, which hooks take as project; else the current one."""
    here, below = filled.folder, filled.folder / "sub" / "deep"
    below.mkdir(parents=True)
    for key, project, age in (("above", here.parent, 5), ("mine", here, 7), ("older", here, 8)):
        filled.save(key, [{}], ages=[age * HOUR], project=str(project))
    filled.save("elsewhere", [{}], ages=[timedelta()], project=str(here.parent / "pb"))
    done = filled.here("create", "x")
    assert (done.code, done.err) == (0, f"session mine (the most recently updated one of {here})\n")
    filled.folder = below
    assert "of mine," in filled.here("create", "x").out
    assert "of run," in filled.here("create", "x", STEPKEEP_SESSION="run").out
    assert "of elsewhere," in filled.here("create", "x", "--session", "elsewhere").out


# --- the beginning of a key ---------------------------------------------------------------------------------------

BEGINNINGS = [
    *(
        "show res",
        "history res",
        "log res",
        "timeline res",
        "diff res",
        "status res",
        "verify res",
        "list res",
    ),
    *("branch list res", "keep res", "export res -o -", "find message --session res", "restore res 1"),
    *("create x --session res", "pause res", "delete res 1 --yes", "prune res --keep-last 1 --yes"),
]


@pytest.mark.parametrize("command", BEGINNINGS)
def test_the_beginning_of_a_key_will_do(filled: Named, command: str) -> None:
    """Where only one begins so, which is told; several are named, and where none does it is not found."""
    filled.save("research:42", [{}, {}], ages=[HOUR, HOUR])
    done = filled.here(*command.split())
    assert (done.code, done.err) == (0, "session research:42 (the only one that begins with res)\n")
    filled.save("results", [{}, {}], ages=[HOUR, HOUR])
    several = filled.here(*command.split())
    assert (several.code, "several sessions begin with 'res': " in several.err) == (2, True)
    none = filled.here(
        *command.replace("res", "x", 1).split() if "restore" not in command else ["restore", "x", "1"]
    )
    assert (none.code, "session 'x'" in none.err) == (2 if command.startswith("create") else 3, True)


def test_a_whole_key_wins_over_longer_ones_and_is_wanted_where_one_is_made(filled: Named) -> None:
    """What saves may begin a session, so that the beginning of another's key is a new key there."""
    filled.save("run-2", [{}], ages=[HOUR])
    assert "session:    run (" in filled.here("show", "run").out
    assert "of ru," in filled.here("save", "ru", "--state", "{}").out
    assert "of r," in filled.here("create", "x", "--session", "r", "--state", "{}").out
    with filled.open() as store, pytest.raises(stepkeep.NotFound):
        store.get("run-")


def test_prune_asks_where_only_the_beginning_is_given(filled: Named) -> None:
    """It is not the name of the session."""
    done = filled.here("prune", "ru", "--keep-last", "1")
    assert (done.code, "say --yes" in done.err) == (2, True)
    assert filled.here("prune", "run", "--keep-last", "1").code == 0


AGENT = "claude-code:0b2f6c1e-1111-4222-8333-444455556666"


@pytest.mark.parametrize("columns", [40, 60, 80, 200])
def test_the_key_comes_first_and_whole(cli: Named, columns: int) -> None:
    """On a terminal of any width; what a coding agent works on stands beside it where there is room."""
    cli.save("short", [{}], ages=[HOUR])
    with cli.open() as store:
        session = store.session(AGENT, metadata={"client": "claude-code"}, project=str(cli.folder))
        session.save({}, metadata={"task_summary": "Fix the login"})
    code, shown = cli.terminal("list", columns=columns)
    assert code == 0
    rows = re.sub(r"\x1b\[[0-9;]*m", "", shown).splitlines()
    assert [row.split()[0] for row in rows if row[0] != " "] == ["SESSION", AGENT, "short"]
    agent = "".join(rows[1:-1])  # on a narrow one the row goes on below its key
    assert len(rows) == (3 if columns == 200 else 4)
    assert "Fix the" in agent
    assert ("in_progress" in agent) == (columns >= 60)
    assert all(len(row.rstrip()) <= max(columns, len(AGENT)) for row in rows)


def test_the_task_of_a_coding_agent_is_told_wherever_its_session_is_shown(cli: Named) -> None:
    """Its key is a number that says nothing to a person."""
    with cli.open() as store:
        session = store.session(AGENT, metadata={"client": "claude-code"})
        session.save({}, metadata={"task_summary": "Fix the login"}, message="Fix the login")
    assert "\nFix the login\n" in cli.here("timeline", AGENT).out
    assert "\ntask:        Fix the login\n" in cli.here("status", "claude").out
    assert cli.here("list").out.splitlines()[1].endswith("  Fix the login")
    assert "Fix the login" in cli.here("log", AGENT).out


SHOWING = ["show", "history", "log", "timeline", "diff", "branch", "find message", "export -o -"]


@pytest.mark.parametrize("command", SHOWING)
def test_showing_takes_the_session_of_this_folder(cli: Named, command: str) -> None:
    """Another project's that is newer is only shown where the folder has none, and that is told."""
    other = cli.folder.parent / "other"
    cli.save("theirs", [{}, {}], ages=[HOUR, timedelta()], project=str(other))
    done = cli.here(*command.split())
    assert (done.code, done.err) == (0, "session theirs (the most recently updated one of the store)\n")
    cli.save("mine", [{}, {}], ages=[3 * HOUR, 2 * HOUR], project=str(cli.folder))
    done = cli.here(*command.split())
    assert (done.code, done.err) == (0, f"session mine (the most recently updated one of {cli.folder})\n")


CHANGING = [
    "create x",
    "restore 1",
    "branch fork 1",
    "branch abandon main",
    "prune --keep-last 1 --yes",
    "rewind 1",
]


@pytest.mark.parametrize("command", CHANGING)
def test_nothing_changes_in_a_session_of_another_folder(cli: Named, command: str) -> None:
    """Unless it is named: one without a project is taken, one of another folder or project is not."""
    for key, project, age in (
        ("folder", str(cli.folder.parent / "other"), 2 * HOUR),
        ("project", "web", HOUR),
    ):
        cli.save(key, [{}, {}], ages=[3 * HOUR, age], project=project)
    refused(
        cli.here(*command.split()),
        3,
        "no session belongs to this folder; the most recent one, 'project', is of web",
    )
    with cli.open() as store:
        assert [store.get(key).info.last_seq for key in ("folder", "project")] == [2, 2]
        assert [store.get(key).info.stored_count for key in ("folder", "project")] == [2, 2]
    cli.save("nobodys", [{}, {}], ages=[9 * HOUR, 8 * HOUR])
    assert "session nobodys (" in cli.here(*command.split()).err


def test_create_steps_over_a_damaged_checkpoint(cli: Named) -> None:
    """As `show` does: the newest state that verifies is saved once more, with a warning."""
    url = f"files:{cli.folder / 'c'}?layout=workflow"
    with _open(url, config=NO_KEEPER) as store:
        for n in (1, 2):
            store.session("a").save({"n": n}, step=n)
    newest = cli.folder / "c/sessions/a/checkpoint.json"
    newest.write_bytes(newest.read_bytes()[:50])
    done = cli.here("create", "by hand", "--session", "a", "--store", url)
    assert (done.code, "Latest checkpoint corrupted" in done.err) == (0, True)
    assert cli.here("show", "a", "--raw", "--store", url).out == '{"n":1}\n'
    assert cli.here("show", "a", "--json", "--store", url).json["checkpoint"]["message"] == "by hand"


def test_create_with_a_state(cli: Named) -> None:
    """A session that is named is begun; JSON describes the checkpoint."""
    created = cli.here(
        "create", "first", "--session", "new", "--state", '{"a": 1}', "--step", "7", "--json"
    ).json
    assert (created["seq"], created["step"], created["trigger"]["kind"]) == (1, 7, "manual")
    assert cli.here("create", "second", "--state", "-", stdin=b"[2]", STEPKEEP_SESSION="new").code == 0
    assert cli.here("show", "new", "latest", "$").json == [2]


def test_create_without_anything_to_save(cli: Named) -> None:
    """A session without a state, or a state without a session, leaves nothing behind."""
    refused(cli.here("create", "x", "--session", "new"), 3, "no store at")
    refused(cli.here("create", "x", "--state", "{}"), 3, "no store at")
    assert not cli.file.exists()
    cli.open().close()
    refused(cli.here("create", "x", "--state", "{}"), 3, "no session yet")
    refused(cli.here("create", "x", "--session", "new"), 2, "has no state to save again: give one by --state")
    with cli.open() as store:
        store.session("empty")
    refused(cli.here("create", "x", "--session", "empty"), 2, "has no state")
    refused(cli.here("create"), 2, "MESSAGE")
    refused(cli.here("create", "x", "--session", "new", "--state", "{"), 2, "not JSON")
    assert [each["key"] for each in cli.here("list", "--json").json] == ["empty"]


def test_list_and_list_by_tag(filled: Named) -> None:
    """The lines of the specification: sessions, and checkpoints with a tag: of the named session, else of all."""
    filled.here("create", "After verifying Q4_0 dequant", "--tags", "q4_0,verified")
    filled.save("other", [{}], ages=[9 * HOUR])
    filled.here("create", "elsewhere", "--tags", "q4_0", "--session", "other")
    assert filled.here("list").out.splitlines()[0].split() == [
        "SESSION",
        "STATUS",
        "CHECKPOINTS",
        "UPDATED",
        "PROJECT",
    ]
    tagged = filled.here("list", "--tag", "q4_0")
    assert {line.split()[0] for line in tagged.out.splitlines()[1:]} == {"run", "other"}
    within = filled.here("list", "--tag", "q4_0", STEPKEEP_SESSION="run").out
    assert "After verifying Q4_0 dequant" in within
    assert "elsewhere" not in within
    assert filled.here("list", "--tag", "none").out == "No checkpoints.\n"


# --- log -----------------------------------------------------------------------------------------------------------


LOG = """\
5  2025-07-03 12:00:00  checked [step 4, good]
4  2025-07-03 12:00:00  message 4 [step 4]
3  2025-07-03 11:00:00  message 3 [step 3]
2  2025-07-03 10:00:00  message 2 [step 2]
1  2025-07-03 09:00:00  message 1 [step 1]
"""


def test_the_log_has_a_line_for_each_checkpoint(filled: Named) -> None:
    """Newest first, with message, step and tags; JSON is that of `history`."""
    filled.here("create", "checked", "--tags", "good")
    assert filled.here("log", "run").out == LOG
    assert filled.here("log", "run", "--limit", "2").out == "".join(LOG.splitlines(keepends=True)[:2])
    assert filled.here("log", "run", "--json").json == filled.here("history", "run", "--json").json


LOG_OF_BELIEF = """\
+ 1  2025-07-03 09:00:00  "mask"
~ 3  2025-07-03 11:00:00  "mask" → "scale"
- 4  2025-07-03 12:00:00  "scale"
"""


def test_the_log_of_one_value(filled: Named) -> None:
    """Oldest first, only where it changed."""
    assert filled.here("log", "run", "--path", "belief").out == LOG_OF_BELIEF
    last = LOG_OF_BELIEF.splitlines(keepends=True)[2:]
    assert filled.here("log", "run", "--path", "belief", "--limit", "1").out == "".join(last)
    found = filled.here("log", "run", "--path", "belief", "--json").json
    assert (found["session"], found["path"]) == ("run", "belief")
    assert [each["kind"] for each in found["changes"]] == ["added", "changed", "removed"]
    assert (found["changes"][1]["old"], found["changes"][1]["new"]) == ("mask", "scale")
    assert "new" not in found["changes"][2]


def test_what_is_printed_cannot_harm_a_terminal(cli: Named) -> None:
    """Messages, tags, values and keys of others are escaped."""
    with cli.open() as store:
        store.session("a\x1b[31m").save({"v": "\x1b[2J"}, message="\x1b[31m", tags=["\u202e"])
    for words in (["log"], ["log", "--path", "v"], ["at", "now"], ["at", "now", "v"], ["create", "x"]):
        done = cli.here(*words)
        assert done.code == 0
        assert not {"\x1b", "\u202e"} & {*done.out, *done.err}


def test_the_real_entry_point(filled: Named) -> None:
    """As processes of their own, with the clock of the machine."""
    assert filled("at", "now", "context").json == {"messages": []}
    assert filled("at", "run", "nonsense").code == 2
    assert filled("create", "x", "--tags", "a").code == 0
    assert filled("show", "run", "tag:a", "context.messages[-1]").code == 3
    assert filled("log", "run", "--path", "belief").out == LOG_OF_BELIEF
    assert b"Traceback" not in filled("at", "run", b"\xff").bytes


@pytest.mark.full
def test_create_while_others_save(filled: Named) -> None:
    """Whoever saves in between is not covered up: what was created has the state of the one before it."""
    stop = threading.Event()

    def save_on() -> None:
        with filled.open() as store:
            numbers = count()
            while not stop.is_set():
                store.get("run").save({"n": next(numbers)})
                stop.wait(0.002)

    with ThreadPoolExecutor(1) as pool:
        saving = pool.submit(save_on)
        try:
            with filled.open() as store:
                created = [store.get("run").save_again(f"note {at}") for at in range(10)]
        finally:
            stop.set()
        saving.result()
    with filled.open() as store:
        session = store.get("run")
        for each in created:
            assert session.load(each.id).state == session.load(each.parents[0]).state
