"""The commands branch and restore."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import stepkeep
from stepkeep import api
from stepkeep.model import to_us
from tests.surfaces.test_cli import BIDI, RED, Cli

ROOT = Path(__file__).parents[2]
GOLDEN = ROOT / "tests" / "data" / "golden"
KEY = "research-42"
STATES: list[tuple[str, dict[str, Any]]] = [
    ("begun", {"query": "why", "results": []}),
    ("plan made", {"query": "why", "results": ["a"]}),
    ("second try", {"query": "how", "results": ["a", "b"]}),
]


class AtNoon(Cli):
    """Commands run on 2 March 2026; every save is a minute after the one before."""

    time = datetime(2026, 3, 2, 12, 0, tzinfo=UTC)

    def open(self) -> stepkeep.Store:
        return _open(self.url, clock=lambda: to_us(self.time))

    def save(self, message: str, state: object, key: str = KEY, **options: Any) -> stepkeep.Header:
        with self.open() as store:
            session = store.session(key, profile="archive")
            step = session.info.last_seq + 1
            header: stepkeep.Header = session.save(state, message=message, step=step, **options)
        self.time += timedelta(minutes=1)
        return header


_open = api.open


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AtNoon:
    """A command line with one session of three checkpoints."""
    (tmp_path / "work").mkdir()
    cli = AtNoon(tmp_path / "work")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setattr(api, "open", partial(_open, clock=lambda: to_us(cli.time)))
    for message, state in STATES:
        cli.save(message, state)
    return cli


def golden(name: str) -> str:
    return (GOLDEN / name).read_text(encoding="utf-8")


def branches(cli: AtNoon, key: str = KEY) -> dict[str, dict[str, Any]]:
    done = cli.here("branch", key, "--json")
    assert done.code == 0
    return {each["name"]: each for each in done.json["branches"]}


def current(cli: AtNoon, key: str = KEY) -> str:
    found: str = cli.here("branch", key, "--json").json["current"]
    return found


# --- restoring


def test_restore_shows_what_it_did(cli: AtNoon) -> None:
    """It says where one is now, what changed, what was left and how to undo; the reference shows the same."""
    done = cli.here("restore", KEY, "step-2")
    assert (done.code, done.err) == (0, "")
    assert done.out == golden("restore.txt")
    assert golden("restore.txt") in (ROOT / "docs/reference/cli.md").read_text(encoding="utf-8")
    assert cli.here("show", KEY, "--raw").out == '{"query":"why","results":["a"]}\n'


def test_restore_takes_an_id_alone(cli: AtNoon) -> None:
    """An id, or its beginning, names its session; the state is restored and nothing deleted."""
    target = cli.save("elsewhere", {"n": 1}, key="other")
    cli.save("newer", {"n": 2}, key="other")
    cli.save("last", {"n": 3})
    done = cli.here("restore", target.id)
    assert (done.code, done.out.splitlines()[0]) == (0, "Restored to: elsewhere (2026-03-02 12:03:00)")
    assert current(cli, "other") == "from-1"
    assert len(cli.here("list", "other", "--json").json) == 2
    assert cli.here("restore", target.id[:24]).code == 0


def test_restore_is_undone_and_done_again(cli: AtNoon) -> None:
    """`--undo` returns to the branch that was left, and `latest@before` is the same."""
    cli.here("restore", KEY, "step-1")
    for args in (["--session", KEY, "--undo"], ["--undo"], [KEY, "--undo"], [KEY, "latest@before"]):
        before = current(cli)
        done = cli.here("restore", *args)
        assert done.code == 0
        assert {before, current(cli)} == {"main", "from-1"}
    assert cli.here("restore", KEY, "latest").out.splitlines()[1:] == [
        "Changes: none",
        "Branch: from-1 (checkpoint 1)",
    ]


def test_restore_as_json(cli: AtNoon) -> None:
    """The document has the checkpoint, both branches, the counts of changes and the ref that leads back."""
    done = cli.here("restore", KEY, "#2", "--branch", "again", "--json")
    found = done.json
    assert (found["checkpoint"]["seq"], found["branch"], found["is_new_branch"]) == (2, "again", True)
    assert (found["previous_branch"], found["previous_seq"], found["undo"]) == ("main", 3, "latest@before")
    assert found["changes"] == {
        "total": 2,
        "added": 0,
        "removed": 1,
        "changed": 1,
        "moved": 0,
        "summary": "1 changed at the top; 1 result removed",
    }
    assert set(found) == {
        "session",
        "checkpoint",
        "branch",
        "is_new_branch",
        "previous_branch",
        "previous_head",
        "previous_seq",
        "changes",
        "files",
        "files_left",
        "recovery_complete",
        "undo",
    }


@pytest.mark.parametrize(
    ("args", "code", "text"),
    [
        ([KEY, "step-99"], 3, "step-99"),
        ([KEY, "#99"], 3, "no checkpoint 99"),
        ([KEY, "branch:none"], 3, "none"),
        (["cp_20200101T000000000000_0000000000"], 3, "cp_2020"),
        ([KEY, "no ref at all"], 2, "does not name a checkpoint"),
        (["no session"], 3, "no session"),
        ([KEY], 2, "Which checkpoint?"),
        ([KEY, "--undo"], 3, "never restored"),
        ([KEY, "step-1", "--undo"], 2, "--undo takes no REF"),
        ([KEY, "step-1", "--branch", "latest"], 2, "reads like"),
        ([KEY, "step-1", "--branch", "x" * 2000], 2, "1024 bytes"),
        ([KEY, "step-1", "--branch", "main"], 5, "'main'"),
        ([KEY, "step-1", "--expect-head", "cp_old"], 5, "someone saved meanwhile"),
    ],
)
def test_a_refused_restore_changes_nothing(cli: AtNoon, args: list[str], code: int, text: str) -> None:
    """Each mistake has its exit code and one line that says what is wrong."""
    done = cli.here("restore", *args)
    assert (done.code, done.out) == (code, "")
    assert text in done.err
    assert list(branches(cli)) == ["main"]


def test_a_damaged_target_is_refused(cli: AtNoon) -> None:
    """Exit code 4, and the session stays; a damaged state before only hides what changed."""
    ids = {each["step"]: each["id"] for each in cli.here("list", KEY, "--json").json}
    cli.damage(ids[1])
    assert cli.here("restore", KEY, "step-1").code == 4
    assert list(branches(cli)) == ["main"]
    cli.damage(ids[3])
    done = cli.here("restore", KEY, "step-2")
    assert done.code == 0
    assert "Changes: unknown" in done.out


# --- branches


def test_the_list_of_branches(cli: AtNoon) -> None:
    """One line for each, as the reference shows; with and without the word list, and without a session."""
    cli.here("restore", KEY, "step-2")
    cli.save("third try", {"query": "what"})
    done = cli.here("branch", KEY)
    assert (done.code, done.out, done.err) == (0, golden("branch_list.txt"), "")
    assert golden("branch_list.txt") in (ROOT / "docs/reference/cli.md").read_text(encoding="utf-8")
    for args in (["branch"], ["branch", "list", KEY], ["branch", "--session", KEY], ["branch", "list"]):
        assert cli.here(*args).out == done.out
    assert cli.here("branch", "nobody").code == 3


def test_fork_switch_and_log(cli: AtNoon) -> None:
    """A branch begins at a checkpoint, is entered and left, and its log goes through its fork point."""
    done = cli.here("branch", "fork", KEY, "step-1", "--name", "try")
    assert done.out == "Branch try begins at checkpoint 1, the current branch\n"
    cli.save("on try", {"n": 1})
    assert (
        cli.here("branch", "fork", KEY, "#3", "--no-switch").out == "Branch from-3 begins at checkpoint 3\n"
    )
    assert [line.split()[0] for line in cli.here("branch", "log", KEY, "try").out.splitlines()] == [
        "SEQ",
        "4",
        "1",
    ]
    assert cli.here("branch", "log", KEY, "main", "--limit", "1").out.splitlines()[-1] == "... (2 more)"
    assert [each["seq"] for each in cli.here("branch", "log", "main", "--json").json["checkpoints"]] == [
        3,
        2,
        1,
    ]
    assert (
        cli.here("branch", "switch", KEY, "main").out
        == "Branch main is at checkpoint 3, the current branch\n"
    )
    switched = cli.here("branch", "switch", KEY, "try", "--json").json
    assert (switched["session"], switched["branch"]["name"], switched["branch"]["is_current"]) == (
        KEY,
        "try",
        True,
    )


def test_closing_and_reopening(cli: AtNoon) -> None:
    """A closed branch is not entered until it is reopened; the current one is not closed."""
    cli.here("branch", "fork", KEY, "step-1", "--name", "try", "--no-switch")
    for verb, state in (("abandon", "abandoned"), ("archive", "archived")):
        assert cli.here("branch", verb, KEY, "try").out == f"Branch try is {state}\n"
        refused = cli.here("branch", "switch", KEY, "try")
        assert (refused.code, f"is {state}: reopen it first" in refused.err) == (5, True)
        assert cli.here("branch", "reopen", KEY, "try").out == "Branch try is open\n"
        assert cli.here("branch", verb, KEY, "main").code == 5
    unknown = cli.here("branch", "abandon", KEY, "tyr")
    assert (unknown.code, "there are main, try" in unknown.err) == (3, True)


def test_merging(cli: AtNoon) -> None:
    """What does not clash is merged, and the branch is closed."""
    cli.here("branch", "fork", KEY, "--name", "try")
    cli.save("found c", {"query": "how", "results": ["a", "b", "c"]})
    cli.here("branch", "switch", KEY, "main")
    cli.save("found d", {"query": "how", "results": ["a", "b", "d"]})
    done = cli.here("branch", "merge", KEY, "try", "--message", "both")
    assert (done.code, done.out) == (0, "Merged try into main as checkpoint 6\n")
    assert cli.here("show", KEY, "--raw").out == '{"query":"how","results":["a","b","d","c"]}\n'
    assert branches(cli)["try"]["state"] == "merged"


def test_merge_conflicts_are_listed_with_exit_code_5(cli: AtNoon) -> None:
    """Nothing is written; a side decides; as JSON each clash has its path and values."""
    cli.here("branch", "fork", KEY, "--name", "try")
    cli.save("theirs", {"query": "where", "results": ["a", "b"], "new": 1})
    cli.here("branch", "switch", KEY, "main")
    cli.save("ours", {"results": ["a", "b"]})
    done = cli.here("branch", "merge", KEY, "try")
    assert (done.code, done.out) == (
        5,
        'try and main changed the same places:\n  query: was "how", ours absent, theirs "where"\n',
    )
    assert "--on-conflict" in done.err
    as_json = cli.here("branch", "merge", KEY, "try", "--json")
    assert (as_json.code, as_json.json["is_merged"], as_json.json["checkpoint"]) == (5, False, None)
    assert as_json.json["clashes"] == [
        {
            "path": "query",
            "base_encoding": "json",
            "base": "how",
            "theirs_encoding": "json",
            "theirs": "where",
        }
    ]
    assert (current(cli), branches(cli)["try"]["state"]) == ("main", "open")
    done = cli.here("branch", "merge", KEY, "try", "--on-conflict", "theirs")
    assert (done.code, done.out.splitlines()[:2]) == (
        0,
        ["Merged try into main as checkpoint 6", "1 conflict decided:"],
    )
    assert cli.here("show", KEY, "--raw").out == '{"results":["a","b"],"query":"where","new":1}\n'


@pytest.mark.parametrize("strategy", ["ours", "theirs"])
def test_a_strategy_takes_one_side(cli: AtNoon, strategy: str) -> None:
    """`--strategy` needs no agreement."""
    cli.here("branch", "fork", KEY, "--name", "try")
    cli.save("theirs", "theirs")
    cli.here("branch", "switch", KEY, "main")
    cli.save("ours", "ours")
    assert cli.here("branch", "merge", KEY, "try", "--strategy", strategy).code == 0
    assert cli.here("show", KEY, "--raw").out == f'"{strategy}"\n'


@pytest.mark.parametrize(
    ("args", "code"),
    [
        (["fork", KEY, "--name", "newest"], 2),
        (["fork", KEY, "--name", "2 hours ago"], 2),
        (["fork", KEY, "--name", "x" * 2000], 2),
        (["fork", KEY, "--name", ""], 2),
        (["fork", KEY, "--name", "main"], 5),
        (["fork", KEY, "step-99"], 3),
        (["switch", KEY, "none"], 3),
        (["switch"], 2),
        (["merge", KEY, "main"], 5),
        (["merge", KEY, "none"], 3),
        (["merge", KEY, "main", "--strategy", "both"], 2),
        (["log", KEY, "none"], 3),
        (["reopen", "nobody", "main"], 3),
    ],
)
def test_refused_commands_change_nothing(cli: AtNoon, args: list[str], code: int) -> None:
    """Wrong names, unknown branches and conflicts have their exit codes and one line."""
    done = cli.here("branch", *args)
    assert (done.code, done.out) == (code, ""), done.err
    assert done.err.startswith("error: ")
    assert list(branches(cli)) == ["main"]


def test_names_cannot_harm_a_terminal(cli: AtNoon) -> None:
    """Control and bidirectional characters of names and messages are shown as escapes, also in JSON."""
    name = f"{RED}evil{BIDI}"
    assert cli.here("branch", "fork", KEY, "--name", name).code == 0
    cli.save(f"{RED}message", {"n": 1})
    outputs = [
        cli.here("branch", KEY),
        cli.here("branch", "log", KEY, name),
        cli.here("branch", KEY, "--json"),
        cli.here("branch", "switch", KEY, "main"),
        cli.here("restore", KEY, f"branch:{name}"),
        cli.here("branch", "abandon", KEY, name),
    ]
    for done in outputs:
        assert "\x1b" not in done.out + done.err
        assert BIDI not in done.out + done.err
    assert outputs[2].json["branches"][1]["name"] == name


def test_a_session_called_like_a_command(cli: AtNoon) -> None:
    """It is named by --session, or after the word list."""
    cli.save("one", {"n": 1}, key="fork")
    for args in (
        ["--session", "fork"],
        ["list", "fork"],
        ["list", "--session", "fork"],
        ["--session", "fork", "list"],
    ):
        assert cli.here("branch", *args, "--json").json["session"] == "fork"


@pytest.mark.full
def test_through_real_processes_and_a_terminal(cli: AtNoon) -> None:
    """Branches and restoring work as commands of a shell, and the table fits a terminal of 80 columns."""
    assert cli("restore", KEY, "step-2").code == 0
    assert cli("branch", "fork", KEY, "--name", "try").out.startswith("Branch try begins")
    code, shown = cli.terminal("branch", KEY, columns=80)
    assert code == 0
    assert "from-2" in shown
    assert "…" not in shown
