"""The commands that look after history: diff, prune, clean, config and status."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import click
import pytest

import stepkeep
from stepkeep import api, config
from stepkeep.cli.app import COMMANDS
from stepkeep.cli.app import stepkeep as group
from stepkeep.config.schema import ANY, SCHEMA, camel
from stepkeep.model import to_us
from tests.surfaces.test_cli import Cli

ROOT = Path(__file__).parents[2]
GOLDEN = ROOT / "tests" / "data" / "golden"
NOW = datetime(2026, 3, 2, 12, 0, tzinfo=UTC)
NO_KEEPER = config.load(cwd=None, environ={}, flags={"keeper.enabled": False})
DAY = timedelta(days=1)
HOUR = timedelta(hours=1)


class Filled(Cli):
    """A command line at a fixed time, in a folder of its own."""

    time = NOW

    def open(self) -> stepkeep.Store:
        return _open(self.url, config=NO_KEEPER, clock=lambda: to_us(self.time))

    def save(self, key: str, ages: list[timedelta], *, profile: str = "phase", **fields: Any) -> None:
        """Save one checkpoint of each age, the oldest first."""
        with self.open() as store:
            for step, age in enumerate(ages, start=1):
                self.time = NOW - age
                store.session(key, profile=profile, **fields).save({"n": step}, step=step)
            self.time = NOW

    def ended(self, key: str, age: timedelta, status: str = "completed", **fields: Any) -> None:
        """A session with one checkpoint that ended so long ago."""
        fields = {"profile": "standard"} | fields
        with self.open() as store:
            self.time = NOW - age
            store.session(key, **fields).save({"n": 1}, status=status)
            self.time = NOW

    def settings(self, text: str) -> None:
        (self.folder / "stepkeep.yaml").write_text(text, encoding="utf-8")

    def users_settings(self, text: str) -> None:
        """What holds for every session of the store."""
        file = self.folder.parent / "config" / "stepkeep" / "config.yaml"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")

    def oldest_first(self, key: str) -> list[dict[str, Any]]:
        return list(reversed(self.here("list", key, "--json").json))

    def seqs(self, key: str) -> list[int]:
        return [each["seq"] for each in self.oldest_first(key)]

    def keys(self) -> set[str]:
        return {each["key"] for each in self.here("list", "--json").json}


_open = api.open


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Filled:
    """Commands run at `NOW`, and see no configuration of the person who runs the tests."""
    (tmp_path / "work").mkdir()
    cli = Filled(tmp_path / "work")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setattr(api, "open", partial(_open, clock=lambda: to_us(cli.time)))
    return cli


def _is_refused(cli: Cli, *args: str) -> str:
    """The message of a command that was refused as wrong usage, on one line."""
    done = cli.here(*args)
    assert (done.code, done.out) == (2, ""), done.out + done.err
    assert done.err.startswith("error: ")
    assert done.err.count("\n") == 1
    return done.err


# --- acceptance criteria ---------------------------------------------------------------------------------------


def _workflow(step: int) -> dict[str, Any]:
    commands = [("shell", f"make {number}") for number in range(1, 6)] + [
        ("shell", "make test"),
        ("claude", "/review"),
        ("shell", "make install"),
    ]
    variables = {"iteration": step} | ({"analysis_result": "success"} if step >= 6 else {})
    steps = [{"kind": kind, "command": command} for kind, command in commands[:step]]
    return {"variables": variables, "completed_steps": steps}


def test_ac13_list_checkpoint_history(cli: Filled) -> None:
    """History shows the latest checkpoint, then older ones newest first, with time, size and step."""
    cli.save("session-abc123", [HOUR * hours for hours in range(11, 0, -1)])
    lines = cli.here("history", "session-abc123").out.splitlines()
    entry = r"cp_\S+ \(2026-03-02 {}:00:00, \d+B, step {}, stored \d+B, [\d.]+x\)"
    assert re.fullmatch("Latest: " + entry.format("11", 11), lines[0])
    assert lines[1] == "History:"
    for line, (hour, step) in zip(lines[2:5], [("10", 10), ("09", 9), ("08", 8)], strict=True):
        assert re.fullmatch("  - " + entry.format(hour, step), line)
    assert lines[5] == "  ... (7 more)"


def test_ac14_checkpoint_diff(cli: Filled) -> None:
    """Diff shows variables that were added and changed, and the steps that were added with kind and command."""
    with cli.open() as store:
        for step in range(1, 9):
            store.session("session-abc123").save(_workflow(step), step=step)
    done = cli.here("diff", "session-abc123", "--from", "step-5", "--to", "step-7")
    assert done.out == (GOLDEN / "diff_workflow.txt").read_text(encoding="utf-8")
    assert sorted(done.out.splitlines()[3:5]) == [
        '  + analysis_result: "success"',
        "  ~ iteration: 5 → 7",
    ]
    assert done.out.splitlines()[5:] == [
        "Steps added:",
        '  + Step 6: shell: "make test"',
        '  + Step 7: claude: "/review"',
    ]


def test_ac15_checkpoint_export(cli: Filled) -> None:
    """Export writes the latest checkpoint to a file: decompressed, as indented JSON."""
    state = {"notes": ["compress me"] * 2000}
    with cli.open() as store:
        store.session("session-abc123").save(state)
    assert cli.here("show", "session-abc123", "--json").json["checkpoint"]["ratio"] > 10
    assert cli.here("export", "session-abc123", "--output", "debug.json").code == 0
    text = (cli.folder / "debug.json").read_text(encoding="utf-8")
    assert '\n  "state": {\n    "notes": [\n      "compress me",\n' in text
    assert text.count("compress me") == 2000


# --- diff ------------------------------------------------------------------------------------------------------


def test_diff_compares_with_the_one_before(cli: Filled) -> None:
    """Without refs the latest is compared with the one before it; with one ref, that one with the latest."""
    cli.save("run", [HOUR * 3, HOUR * 2, HOUR])
    assert cli.here("diff", "run").out.splitlines() == [
        "from checkpoint 2 (2026-03-02 10:00:00, step 2)",
        "to   checkpoint 3 (2026-03-02 11:00:00, step 3)",
        "~ n: 2 → 3",
    ]
    assert cli.here("diff", "run", "--to", "step-2").out.endswith("~ n: 1 → 2\n")
    assert cli.here("diff", "run", "--from", "step-1").out.endswith("~ n: 1 → 3\n")
    assert cli.here("diff", "run", "step-1").out.endswith("~ n: 1 → 3\n")
    assert cli.here("diff", "run", "step-1", "step-2").out.endswith("~ n: 1 → 2\n")
    assert cli.here("diff", "--session", "run", "step-3", "step-1").out.endswith("~ n: 3 → 1\n")
    assert cli.here("diff", "run", "latest", "latest").out.endswith("No differences.\n")


LONG = "I will look into the whales first, then into the dolphins, and report what I find"
TALK: list[dict[str, Any]] = [
    {
        "plan": {"goal": "write a report about whales and dolphins", "n": 1},
        "messages": [{"role": "user", "content": "hi"}],
    },
    {
        "plan": {"goal": "write a short report about whales and seals", "n": 2},
        "messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": LONG}],
        "found": {"pages": list(range(40)), "title": "x" * 70},
    },
]


def _talk(cli: Filled) -> None:
    with cli.open() as store:
        for state in TALK:
            store.session("talk").save(state)


GOAL = '"write a {+short +}report about whales and [-dolphins-]{+seals+}"'


def test_diff_shows_what_changed(cli: Filled) -> None:
    """A message by who says what, texts word by word, the first values of what is large; with --full all of it."""
    _talk(cli)
    assert cli.here("diff", "talk").out.splitlines()[2:] == [
        f"~ plan.goal: {GOAL}",
        "~ plan.n: 1 → 2",
        f'+ messages[1]: assistant: "{LONG[:60]}…" ({len(LONG)} characters)',
        '+ found: {"pages": [0, 1, 2, 3, 4, 5, 6, …33 more], …1 more}',
    ]
    whole = cli.here("diff", "talk", "--full").out.splitlines()[2:]
    assert whole[2] == f'+ messages[1]: {{"role": "assistant", "content": "{LONG}"}}'
    assert whole[3] == f"+ found: {json.dumps(TALK[1]['found'])}"


def test_log_shows_each_change_inside_of_a_value(cli: Filled) -> None:
    """With its path and its sign; ten of a checkpoint, with --full all."""
    _talk(cli)
    plan = [line[2:4] + line[26:] for line in cli.here("log", "talk", "--path", "plan").out.splitlines()]
    assert plan[1:] == [f"2 plan.goal: {GOAL}", "2 plan.n: 1 → 2"]
    messages = cli.here("log", "talk", "--path", "messages").out.splitlines()
    assert re.fullmatch(
        r'\+ 2  2026-\S+ \S+  messages\[1\]: assistant: "I will look .*…" \(\d+ characters\)', messages[1]
    )
    assert f'"{LONG}"' in cli.here("log", "talk", "--path", "messages", "--full").out
    with cli.open() as store:
        for start in (0, 100):
            store.session("many").save({"n": {f"k{at}": start + at for at in range(15)}})
    short = cli.here("log", "many", "--path", "n").out.splitlines()
    assert (len(short), short[-1][26:]) == (12, "5 more changes")
    assert len(cli.here("log", "many", "--path", "n", "--full").out.splitlines()) == 16
    _is_refused(cli, "log", "many", "--full")


def test_diff_finds_ids_in_any_session(cli: Filled) -> None:
    """Two ids, or beginnings of ids, need no session, and may be of two sessions."""
    cli.save("one", [HOUR * 2])
    cli.save("two", [HOUR, HOUR / 2])
    first, second, third = (each["id"] for key in ("one", "two") for each in cli.oldest_first(key))
    assert cli.here("diff", second, third).out.endswith("~ n: 1 → 2\n")
    assert cli.here("diff", second[:-4], third).out.endswith("~ n: 1 → 2\n")
    assert cli.here("diff", first, third).out.startswith("from checkpoint 1 of one ")
    assert cli.here("diff", second[:10], third, "--json").error["code"] == "ambiguous_ref"
    assert cli.here("diff", first[:-1] + "!", third).code == 3


def test_diff_as_json_is_typed(cli: Filled) -> None:
    """Each change has a kind, a path, and its values in the form of a state; the counts are over all of them."""
    with cli.open() as store:
        session = store.session("run")
        session.save({"a": 1, "b": [{"id": "x"}, {"id": "y"}], "gone": None, "raw": b"x"})
        session.save({"a": True, "b": [{"id": "y"}, {"id": "x"}], "new": {"k": [1]}, "raw": b"y"})
    found = cli.here("diff", "run", "--json").json
    assert set(found) == {
        *("from", "to", "elapsed_seconds", "total", "added", "removed", "changed", "moved", "summary"),
        *("is_workflow", "changes"),
    }
    assert (found["from"]["seq"], found["to"]["seq"]) == (1, 2)
    changes = {change["path"]: change for change in found["changes"]}
    json_, tags = "json", "json+tags"
    assert changes["a"] == {
        "kind": "changed",
        "path": "a",
        "old": 1,
        "old_encoding": json_,
        "new": True,
        "new_encoding": json_,
    }
    assert changes["gone"] == {"kind": "removed", "path": "gone", "old": None, "old_encoding": json_}
    assert changes["new"] == {"kind": "added", "path": "new", "new": {"k": [1]}, "new_encoding": json_}
    assert (changes["raw"]["new"], changes["raw"]["new_encoding"]) == ({"$bytes": "eQ=="}, tags)
    (moved,) = (change for change in found["changes"] if change["kind"] == "moved")
    assert {moved["old_index"], moved["new_index"]} == {0, 1}
    limited = cli.here("diff", "run", "--json", "--limit", "1").json
    assert (len(limited["changes"]), limited["total"]) == (1, found["total"])
    assert "more changes" in cli.here("diff", "run", "--limit", "1").out


def test_diff_shows_nothing_that_a_terminal_would_act_upon(cli: Filled) -> None:
    """Control characters in keys and values are written as escapes."""
    with cli.open() as store:
        store.session("run").save({})
        store.session("run").save({"\x1b[31m": "\x1b]0;x\x07"})
    assert "\x1b" not in cli.here("diff", "run").out


def test_diff_refuses_what_contradicts_itself(cli: Filled) -> None:
    """Refs given twice, too many refs and limits that make no sense are wrong usage; what is missing is not found."""
    cli.save("run", [HOUR])
    _is_refused(cli, "diff", "run", "step-1", "--to", "latest")
    _is_refused(cli, "diff", "run", "a", "b", "c")
    _is_refused(cli, "diff", "run", "--limit", "0")
    _is_refused(cli, "diff", "run", "--limit", "-3")
    _is_refused(cli, "diff", "run", "--from", "no such ref")
    assert "no checkpoint before 1" in cli.here("diff").err
    assert cli.here("diff", "run").code == 3
    assert cli.here("diff", "other").code == 3


# --- prune -----------------------------------------------------------------------------------------------------


def _mixed(cli: Filled) -> None:
    """Fifteen checkpoints over ten weeks, some of them special."""
    special: dict[int, dict[str, Any]] = {
        2: {"tags": ["release"]},
        3: {"trigger": "manual"},
        4: {"tags": ["safety"]},
        5: {"status": "failed"},
    }
    days = [70, 25, 24, 12, 11, 10, 6, 3.1, 3.0, 2, 1, 0.3, 0.2, 0.1, 0]
    with cli.open() as store:
        session = store.session("research-42", profile="archive")
        for step, age in enumerate(days, start=1):
            cli.time = NOW - age * DAY
            session.save({"n": f"{step:02}"}, step=step, **special.get(step, {}))
        cli.time = NOW


MIXED_RULES = (
    *("--keep-last", "3", "--keep-daily", "7d", "--keep-tag", "release", "--keep-manual"),
    *("--max-age", "60d"),
)


def test_prune_dry_run_explains_each_checkpoint(cli: Filled) -> None:
    """A dry run on a mixed history says for each checkpoint whether it stays and why, and removes nothing."""
    _mixed(cli)
    done = cli.here("prune", "research-42", "--dry-run", *MIXED_RULES)
    assert (done.code, done.err) == (0, "")
    assert done.out == (GOLDEN / "prune_dry_run.txt").read_text(encoding="utf-8")
    assert len(cli.seqs("research-42")) == 15


def test_prune_does_what_the_dry_run_said(cli: Filled) -> None:
    """The same line without --dry-run leaves exactly what was to stay, and reports the numbers."""
    _mixed(cli)
    plan = cli.here("prune", "research-42", "--dry-run", *MIXED_RULES, "--json").json
    stays = [each["seq"] for each in plan["sessions"][0]["decisions"] if each["stays"]]
    done = cli.here("prune", "research-42", *MIXED_RULES, "--json").json
    assert cli.seqs("research-42") == sorted(stays)
    counts = {name: done[name] for name in ("total", "kept", "deleted", "refused", "missing")}
    assert counts == {
        "total": 15,
        "kept": len(stays),
        "deleted": 15 - len(stays),
        "refused": 0,
        "missing": 0,
    }
    assert done["stored_bytes"] == plan["stored_bytes"] > 0
    again = cli.here("prune", "research-42", *MIXED_RULES).out
    assert again == f"{len(stays)} checkpoints: {len(stays)} kept, 0 deleted, 0B reclaimed\n"


def test_prune_as_json_has_these_fields(cli: Filled) -> None:
    """The shapes that programs may rely upon."""
    cli.save("run", [HOUR, HOUR / 2])
    found = cli.here("prune", "run", "--dry-run", "--keep-last", "1", "--json").json
    totals = {"total", "kept", "deleted", "refused", "missing", "stored_bytes"}
    assert set(found) == totals | {
        *("is_dry_run", "reclaimed_bytes", "sessions", "errors", "compressed", "result", "fixes")
    }
    (session,) = found["sessions"]
    assert set(session) == totals | {"session", "rules", "warnings", "decisions"}
    assert session["rules"] == ["keep the last 1 (given here)"]
    assert session["decisions"][1] == {
        "checkpoint": session["decisions"][1]["checkpoint"],
        "seq": 1,
        "branch": "main",
        "step": 1,
        "time": "2026-03-02T11:00:00Z",
        "stored_bytes": 7,
        "stays": False,
        "reasons": ["beyond the last 1"],
        "warning": None,
    }


def test_prune_without_flags_follows_the_rules_of_the_session(cli: Filled) -> None:
    """The profile decides, the configuration before it, and the session's own policy before that."""
    cli.save("run", [HOUR] * 14, profile="workflow")
    with cli.open() as store:
        store.session("own", profile="workflow", retention={"keep_last": 2})
    cli.save("own", [HOUR] * 14, profile="workflow")
    plan = cli.here("prune", "run", "--dry-run", "--json").json
    assert (plan["kept"], plan["sessions"][0]["rules"]) == (10, ["keep the last 10 (profile workflow)"])
    cli.users_settings("retention: {keep_last: 4}")
    assert cli.here("prune", "run", "--json").json["kept"] == 4
    assert cli.here("prune", "own", "--json").json["kept"] == 2


def test_prune_all_goes_on_after_an_error(cli: Filled) -> None:
    """A session whose policy makes no sense stays, is named, and makes the exit code 1; the others are pruned."""
    cli.save("good", [HOUR] * 3)
    cli.save("odd", [HOUR] * 3)
    with cli.open() as store:
        store.engine.backend.update_session(store.get("odd").uid, {"policy": {"keep_lost": 1}})
    cli.users_settings("retention: {keep_last: 1}")
    done = cli.here("prune", "--all")
    assert done.code == 1
    assert done.out == "3 checkpoints: 1 kept, 2 deleted, 14B reclaimed\n"
    assert "error: odd: unknown retention key 'keep_lost': did you mean 'keep_last'?" in done.err
    assert (cli.seqs("good"), cli.seqs("odd")) == ([3], [1, 2, 3])
    assert cli.here("prune", "odd", "--json").error["code"] == "unknown_key"


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ((), "Which session?"),
        (("run", "--all"), "exclude"),
        (("--session", "run", "--all"), "exclude"),
        (("run", "--session", "run"), "given twice"),
        (("run", "--keep-last", "0"), "--keep-last must be from 1"),
        (("run", "--keep-last", "-1"), "--keep-last must be from 1"),
        (("run", "--keep-last", str(2**70)), "--keep-last must be from 1"),
        (("run", "--keep-last", "ten"), "--keep-last"),
        (("run", "--keep-days", "0"), "--keep-days must be longer than 0"),
        (("run", "--keep-days", "99999999"), "--keep-days must be longer than 0"),
        (("run", "--keep-days", "3", "--keep-within", "3d"), "say the same"),
        (("run", "--keep-within", "7"), "--keep-within must be a duration"),
        (("run", "--keep-within", "-7d"), "--keep-within must be a duration"),
        (("run", "--keep-daily", "0d"), "--keep-daily must be longer than 0"),
        (("run", "--keep-weekly", "9999999w"), "--keep-weekly must be longer than 0 and at most"),
        (("run", "--max-age", "soon"), "--max-age must be a duration"),
        (("run", "--max-bytes", "0"), "--max-bytes must be from 1"),
        (("run", "--max-bytes", "-5GB"), "--max-bytes must be"),
        (("run", "--max-bytes", "many"), "--max-bytes must be"),
        (("run", "--keep-tag", "x"), "--keep-tag only adds"),
        (("run", "--keep-manual"), "--keep-manual only adds"),
        (("run", "--keep-last", "1", "--keep-tag", ""), "--keep-tag"),
        (("run", "--keep-lost", "1"), "--keep-lost"),
    ],
)
def test_prune_refuses_what_makes_no_sense(cli: Filled, args: tuple[str, ...], message: str) -> None:
    """Absurd limits and contradicting flags are refused with one line that names the flag; nothing is removed."""
    cli.save("run", [HOUR, HOUR])
    assert message in _is_refused(cli, "prune", *args)
    assert cli.seqs("run") == [1, 2]


def test_prune_wants_a_session_or_rules(cli: Filled) -> None:
    """Without both nothing is pruned; with rules it is the current session, which is told; a missing one is refused."""
    cli.save("run", [HOUR, HOUR])
    assert cli.here("prune", STEPKEEP_SESSION="run").code == 2
    assert cli.here("prune", "other", "--keep-last", "1").code == 3
    assert cli.here("prune", "--keep-last", "1", STEPKEEP_SESSION="other").code == 3
    assert cli.seqs("run") == [1, 2]
    done = cli.here("prune", "--keep-last", "1", "--yes")
    assert (done.code, "session run" in done.err) == (0, True)
    assert cli.seqs("run") == [2]


def test_prune_asks_about_a_session_that_was_not_named(cli: Filled) -> None:
    """On a terminal it tells how much would go; without one it is refused. Named, also by the variable, it is quiet."""
    cli.save("run", [HOUR] * 4)
    words = ("prune", "--keep-last", "2")
    refused = cli.here(*words)
    assert (refused.code, refused.out, "say --yes" in refused.err) == (2, "", True)
    assert cli.here(*words, "--dry-run").code == 0
    code, shown = cli.terminal(*words, answer=b"n\n")
    assert (code, "Remove 2 of 4 checkpoints of session run for good? [y/N]" in shown) == (1, True)
    assert cli.seqs("run") == [1, 2, 3, 4]
    assert cli.terminal(*words, answer=b"y\n")[0] == 0
    assert cli.seqs("run") == [3, 4]
    assert cli.here("prune", "--keep-last", "1", STEPKEEP_SESSION="run").code == 0
    assert cli.seqs("run") == [4]


def test_prune_rules_unite(cli: Filled) -> None:
    """What any of several rules keeps stays; a cap removes it all the same."""
    cli.save("run", [DAY * 20, DAY * 9, DAY * 8, DAY, HOUR])
    kept = partial(cli.here, "prune", "run", "--dry-run", "--json")

    def seqs(*rules: str) -> list[int]:
        decisions = kept(*rules).json["sessions"][0]["decisions"]
        return sorted(each["seq"] for each in decisions if each["stays"])

    assert seqs("--keep-last", "1") == [5]
    assert seqs("--keep-days", "2") == [4, 5]
    assert seqs("--keep-last", "1", "--keep-weekly", "30d") == [1, 3, 4, 5]
    assert seqs("--keep-last", "1", "--keep-hourly", "2d", "--keep-weekly", "10d") == [3, 4, 5]
    assert seqs("--keep-last", "4", "--max-age", "5d") == [4, 5]
    assert seqs("--max-bytes", "15") == [4, 5]


# --- clean -----------------------------------------------------------------------------------------------------


def _ended_sessions(cli: Filled) -> None:
    cli.ended("old-build", DAY * 45)
    cli.ended("broken", DAY * 10, "failed", workflow="nightly")
    cli.ended("audit-log", DAY * 400, profile="archive")
    cli.ended("trial", HOUR, test=True)
    cli.ended("running", DAY, "in_progress")


def test_clean_dry_run_names_each_session(cli: Filled) -> None:
    """A dry run says for each session whether it goes and why, and removes nothing."""
    _ended_sessions(cli)
    cli.users_settings(
        "checkpoint: {cleanup: {workflows: {nightly: {retention_days: 7}, weekly: {enabled: false}}}}"
    )
    done = cli.here("clean", "--dry-run")
    assert done.code == 0
    assert done.out == (GOLDEN / "clean_dry_run.txt").read_text(encoding="utf-8")
    assert (
        done.err
        == "warning: the configuration has a policy for workflow 'weekly', which no session belongs to\n"
    )
    assert len(cli.keys()) == 5


@pytest.mark.parametrize("name", ["clean", "cleanup"])
def test_clean_counts_cleaned_retained_and_errors(cli: Filled, name: str) -> None:
    """What may go is gone, what is odd stays and is an error, and the others are not touched."""
    _ended_sessions(cli)
    with cli.open() as store:
        store.session("odd").complete()
        store.engine.backend.update_session(store.get("odd").uid, {"policy": {"cleanup": 3}})
    done = cli.here(name)
    assert done.code == 1
    assert done.out.splitlines()[-1].startswith("2 sessions cleaned, 3 retained, 1 error")
    assert "odd" in done.err
    assert cli.keys() == {"broken", "audit-log", "running", "odd"}
    found = cli.here(name, "--json").json
    assert set(found) == {
        *("is_dry_run", "cleaned", "retained", "missing", "error", "stored_bytes", "reclaimed_bytes"),
        *("sessions", "errors", "warnings"),
    }
    assert (found["cleaned"], found["retained"], found["error"]) == (0, 3, 1)
    assert found["errors"][0]["session"] == "odd"


# --- config ----------------------------------------------------------------------------------------------------

SAMPLES: dict[str, tuple[str, object]] = {
    "store": ("sqlite:/srv/other.db", "sqlite:/srv/other.db"),
    "profile": ("agent", "agent"),
    "project": ("web", "web"),
    "agent.command": ("my-agent --ask {prompt}", "my-agent --ask {prompt}"),
    "checkpoint.compression": ("none", "none"),
    "hooks.workspace": ("always", "always"),
    "time.zone": ("Europe/Berlin", "Europe/Berlin"),
    "retention.keep_tags": ("[release, plan]", ["release", "plan"]),
    "workspace.ignore": ("[data, '*.bin']", ["data", "*.bin"]),
}
BY_KIND: dict[str, tuple[str, object]] = {
    "`true` or `false`": ("no", False),
    "whole number": ("7", 7),
    "whole days": ("3", 3),
    "whole hours": ("48", 48),
    "duration": ("12h", 12 * 3600),
    "size": ("20MB", 20_000_000),
    "number of seconds": ("10m", 600),
}
"""What is written for a kind, and what `config show --json` makes of it."""


def _sample(name: str) -> tuple[str, object]:
    kind = next(key.kind.label for key in SCHEMA if key.name == name)
    if name in SAMPLES:
        return SAMPLES[name]
    return next(sample for start, sample in BY_KIND.items() if kind.startswith(start))


def _yaml(name: str, value: str) -> str:
    *sections, last = name.split(".")
    lines = [f"{'  ' * depth}{section}:" for depth, section in enumerate(sections)]
    return "\n".join([*lines, f"{'  ' * len(sections)}{last}: {value}"])


@pytest.mark.parametrize("spelling", [str, camel], ids=["snake_case", "camelCase"])
@pytest.mark.parametrize("name", [key.name for key in SCHEMA])
def test_every_key_is_read_and_shown(cli: Filled, name: str, spelling: Callable[[str], str]) -> None:
    """A key set in stepkeep.yaml, in either spelling, is in `config show` with its file and line."""
    written, value = _sample(name)
    name = name.replace(ANY, "nightly")
    cli.settings(_yaml(spelling(name), written))
    shown = cli.here("config", "show", "--json", STEPKEEP_STORE="")
    assert shown.code == 0, shown.out
    setting = next(each for each in shown.json["settings"] if each["key"] == name)
    assert set(setting) == {"key", "value", "text", "origin", "source", "line"}
    assert (setting["value"], setting["origin"]) == (value, "project")
    assert setting["source"] == str(cli.folder / "stepkeep.yaml")
    assert setting["line"] == name.count(".") + 1
    others = [each["origin"] for each in shown.json["settings"] if each["key"] != name]
    assert set(others) == {"default"}


PRUNED_BY: dict[str, tuple[str, str, list[int]]] = {
    # key -> what is written, the profile, and which of the checkpoints below stay
    "checkpoint.history.max_count": ("2", "workflow", [6, 7]),
    "agent.checkpoints.max_checkpoints_per_session": ("2", "agent", [6, 7]),
    "retention.keep_last": ("3", "phase", [4, 5, 6, 7]),
    "retention.keep_within": ("2d", "phase", [4, 6, 7]),
    "retention.keep_hourly": ("3h", "phase", [4, 6, 7]),
    "retention.keep_daily": ("5d", "phase", [4, 5, 7]),
    "retention.keep_weekly": ("52w", "phase", [1, 3, 4, 5, 7]),
    "retention.keep_manual": ("true\n  keep_last: 1", "phase", [2, 4, 7]),
    "retention.keep_tags": ("[release]\n  keep_last: 1", "phase", [3, 4, 7]),
    "retention.keep_terminal": ("false\n  keep_last: 1", "phase", [7]),
    "retention.max_count": ("2", "phase", [6, 7]),
    "retention.max_age": ("10d", "phase", [4, 5, 6, 7]),
    "retention.max_bytes": ("14B", "phase", [6, 7]),
}


def test_the_configuration_does_not_prune_an_archive(cli: Cli) -> None:
    """A profile that keeps everything is changed by a session's own rules only."""
    cli.save("run", [DAY * 3, DAY * 2, DAY], profile="archive")
    cli.users_settings("retention:\n  keep_last: 1\n")
    assert "3 kept, 0 deleted" in cli.here("prune", "run").out


@pytest.mark.parametrize("name", list(PRUNED_BY))
def test_every_retention_key_changes_what_prune_keeps(cli: Filled, name: str) -> None:
    """Each rule of the configuration is seen by the real command."""
    written, profile, stays = PRUNED_BY[name]
    ages = [DAY * 40, DAY * 31, DAY * 30, DAY * 9, DAY * 3, HOUR * 2, HOUR]
    special: dict[int, dict[str, Any]] = {
        2: {"trigger": "manual"},
        3: {"tags": ["release"]},
        4: {"status": "cancelled"},
    }
    with cli.open() as store:
        session = store.session("run", profile=profile)
        for step, age in enumerate(ages, start=1):
            cli.time = NOW - age
            session.save({"n": step}, step=step, **special.get(step, {}))
        cli.time = NOW
    cli.users_settings(_yaml(name, written))
    assert cli.here("prune", "run").code == 0
    assert cli.seqs("run") == stays


CLEANED_BY: dict[str, tuple[str, set[str]]] = {
    # key -> what is written, and which of the sessions below are left
    "checkpoint.cleanup.enabled": ("false", {"done", "failed", "test", "idle", "agent", "nightly"}),
    "checkpoint.cleanup.completed_retention_days": ("9", {"failed", "idle"}),
    "checkpoint.cleanup.failed_retention_days": ("9", {"done", "agent", "nightly", "idle"}),
    "checkpoint.cleanup.test_retention_days": ("11", {"done", "failed", "idle", "agent", "nightly", "test"}),
    "checkpoint.cleanup.stale_days": ("9", {"done", "failed", "idle", "agent", "nightly"}),
    "checkpoint.cleanup.workflows.*.retention_days": ("9", {"done", "failed", "idle", "agent"}),
    "checkpoint.cleanup.workflows.*.enabled": (
        "false\n      ? done\n      : {retention_days: 9}",
        {"done", "failed", "idle", "agent", "nightly"},
    ),
    "agent.checkpoints.prune_after_days": ("9", {"done", "failed", "idle", "nightly"}),
}


@pytest.mark.parametrize("name", list(CLEANED_BY))
def test_every_cleanup_key_changes_what_clean_removes(cli: Filled, name: str) -> None:
    """Each cleanup setting of the configuration is seen by the real command."""
    written, left = CLEANED_BY[name]
    ten = DAY * 10
    cli.ended("done", ten)
    cli.ended("failed", ten, "failed")
    cli.ended("test", ten, test=True)
    cli.ended("idle", ten, "in_progress")
    cli.ended("agent", ten, profile="agent")
    cli.ended("nightly", ten, workflow="nightly")
    cli.users_settings(_yaml(name.replace(ANY, "nightly"), written))
    assert cli.here("clean").code == 0
    assert cli.keys() == left


OTHERWISE_TESTED = {
    "store",
    "profile",
    "project",
    "checkpoint.history.enabled",
    "checkpoint.compression",
    "checkpoint.compress_after_hours",
    "agent.command",
    "agent.checkpoints.enabled",
    "agent.checkpoints.auto_checkpoint",
    "agent.checkpoints.compress_state",
    "hooks.transcript",
    "hooks.workspace",
    "limits.budget_bytes",
    "limits.max_bytes",
    "limits.min_free_bytes",
    "workflow.warn_stored_bytes",
    "workflow.max_stored_bytes",
    "workflow.max_raw_bytes",
    "keeper.enabled",
    "keeper.interval_seconds",
    "metrics.enabled",
    "recorder.coalesce_seconds",
    "recorder.heartbeat_seconds",
    "recorder.significant_seconds",
    "time.zone",
    "worker.max_attempts",
    "worker.retry_seconds",
    "workspace.ignore",
    "workspace.max_file_bytes",
    "workspace.max_total_bytes",
}
"""Keys that neither `prune` nor `clean` looks at."""


def test_no_key_is_forgotten() -> None:
    """Every key of the schema is in exactly one of the three tables here."""
    names = [*PRUNED_BY, *CLEANED_BY, *OTHERWISE_TESTED]
    assert sorted(names) == sorted(key.name for key in SCHEMA)


def test_the_store_comes_from_flag_environment_and_file(cli: Filled) -> None:
    """--store wins over STEPKEEP_STORE, that over stepkeep.yaml; a relative path in the file begins at its folder."""
    cli.settings("store: sqlite:file.db\nprofile: run\nproject: web")
    (cli.folder / "inside").mkdir()
    cli.here("save", "a", "--state", "1", STEPKEEP_STORE="")
    cli.here("save", "b", "--state", "1", STEPKEEP_STORE="sqlite:environment.db")
    cli.here("save", "c", "--state", "1", "--store", "sqlite:flag.db")
    assert {path.name for path in cli.folder.glob("*.db")} == {"file.db", "environment.db", "flag.db"}
    (listed,) = cli.here("list", "--json", STEPKEEP_STORE="").json
    assert (listed["key"], listed["profile"], listed["project"]) == ("a", "run", "web")
    shown = cli.here("config", "show", "--json", "--store", "sqlite:flag.db").json
    store = next(each for each in shown["settings"] if each["key"] == "store")
    assert (store["value"], store["origin"]) == ("sqlite:flag.db", "flag")


def test_config_check_lists_every_problem(cli: Filled) -> None:
    """One line per problem with file, line and the nearest key, and exit code 2, also for every other command."""
    cli.settings("retention:\n  keep_lost: 3\n  max_age: -5\nprofil: agent")
    done = cli.here("config", "check")
    assert done.code == 2
    first, second, third = done.out.splitlines()
    file = cli.folder / "stepkeep.yaml"
    assert first.startswith(f"{file}:2: unknown key 'keep_lost' in retention: did you mean ")
    assert second.startswith(f"{file}:3: retention.max_age must be a duration")
    assert third.startswith(f"{file}:4: unknown key 'profil': did you mean profile?")
    found = cli.here("config", "check", "--json")
    assert (found.code, [set(each) for each in found.json]) == (
        2,
        [{"source", "line", "key", "message", "text"}] * 3,
    )
    assert cli.here("config", "show").code == 2
    for args in (("list",), ("prune", "--all"), ("clean",), ("save", "run", "--state", "1")):
        assert "bad configuration: 3 problems" in _is_refused(cli, *args)
    assert cli.here("list", "--json").error["code"] == "invalid_config"
    cli.settings("profile: agent")
    assert cli.here("config", "check").out == "No problems in 1 file and the environment.\n"
    assert cli.here("config", "check", "--json").json == []


def test_config_path_lists_the_files(cli: Filled) -> None:
    """Each file that is looked for, those that win first, and whether it is there."""
    cli.settings("profile: agent")
    first, *_, last = cli.here("config", "path", "--json").json
    assert set(first) == {"path", "scope", "exists", "is_used", "note"}
    assert (first["path"], first["is_used"]) == (str(cli.folder / "stepkeep.yaml"), True)
    assert (last["scope"], last["exists"]) == ("user", False)
    assert cli.here("config", "path").out.splitlines()[1].split() == ["used", "project", first["path"]]
    _is_refused(cli, "config")
    _is_refused(cli, "config", "edit")


def test_config_show_names_every_key_and_hides_passwords(cli: Filled) -> None:
    """Every key of the schema is a line with value and origin; the password of a store is not shown."""
    url = "postgresql://me:secret@host/db"
    done = cli.here("config", "show", STEPKEEP_STORE=url)
    assert "secret" not in done.out + cli.here("config", "show", "--json", STEPKEEP_STORE=url).out
    names = {line.split()[0] for line in done.out.splitlines()[1:]}
    assert names == {key.name for key in SCHEMA if ANY not in key.name}
    assert done.out.splitlines()[1].endswith("$STEPKEEP_STORE")


@pytest.mark.full
def test_the_demo_is_nobodys_configuration(cli: Filled) -> None:
    """What the demo promises is not pruned away by rules that were made for other stores."""
    cli.users_settings("retention: {keep_last: 1}\nlimits: {max_bytes: 1KB}")
    assert cli("demo", "--json").json["kept"] > 1


# --- status ----------------------------------------------------------------------------------------------------


def test_status_tells_what_is_stored_and_what_will_go(cli: Filled) -> None:
    """Bytes by session with ratio and oldest, the largest first, and the sessions that the next clean removes."""
    cli.ended("old-build", DAY * 45)
    with cli.open() as store:
        for number in range(3):
            store.session("big", profile="workflow").save({"notes": ["word"] * 1000, "n": number})
    found = cli.here("status", "--json").json
    assert set(found) == {
        *("store", "statuses", "usage", "oldest", "newest", "sessions", "next_clean", "max_bytes"),
        *("budget_bytes", "is_over_budget", "last_backup"),
    }
    assert found["next_clean"] == {"count": 1, "sessions": ["old-build"]}
    big, old = found["sessions"]
    assert set(big) == {
        *("session", "status", "checkpoints", "stored_bytes", "hidden_bytes", "size_bytes", "ratio"),
        *("oldest", "newest"),
    }
    assert (big["session"], big["checkpoints"], old["session"]) == ("big", 3, "old-build")
    assert big["ratio"] == round(big["size_bytes"] / big["stored_bytes"], 2) > 5
    assert found["oldest"] == old["oldest"] == "2026-01-16T12:00:00Z"
    text = cli.here("status").out
    assert "budget:      10GiB\n" in text
    assert "next clean:  would remove 1 session: old-build\n" in text
    assert [line.split()[0] for line in text.splitlines()[-2:]] == ["big", "old-build"]
    assert cli.here("status", "--limit", "1").out.endswith("in_progress\n... (1 more)\n")
    _is_refused(cli, "status", "--limit", "-1")
    _is_refused(cli, "status", "big", "--limit", "1")


def test_status_of_a_session_tells_its_rules(cli: Filled) -> None:
    """What prune keeps and whether clean would remove it, beside what the session takes."""
    cli.ended("old", DAY * 9, profile="workflow")
    found = cli.here("status", "old", "--json").json
    assert set(found) == {
        *(
            "store",
            "session",
            "usage",
            "latest",
            "takes",
            "rules",
            "cleanup",
            "budget_bytes",
            "is_over_budget",
            "stopped_restore",
        )
    }
    assert found["rules"] == ["keep the last 10 (profile workflow)"]
    assert found["cleanup"] == {
        "session": "old",
        "goes": True,
        "age_days": 9,
        "limit_days": 7,
        "reason": "completed 9 days ago, limit 7 days (profile workflow)",
    }
    text = cli.here("status", "old").out
    assert "prune:       keep the last 10 (profile workflow)\n" in text
    assert "clean:       would remove it: completed 9 days ago" in text


# --- how it looks ----------------------------------------------------------------------------------------------


def test_colours_are_for_terminals(cli: Filled) -> None:
    """On a terminal what goes is red and no line is too long; in a pipe there is nothing but text."""
    cli.save("run", [HOUR, HOUR / 2])
    args = ("prune", "run", "--dry-run", "--keep-last", "1")
    code, shown = cli.terminal(*args)
    assert code == 0
    assert "\x1b[31m" in shown
    plain = re.sub(r"\x1b\[[0-9;]*m", "", shown)
    assert max(map(len, plain.splitlines())) <= 80
    assert "beyond the last 1" in plain
    assert "\x1b" not in cli.here(*args).out
    _, diff = cli.terminal("diff", "run")
    assert "\x1b[33m~ n: 1 → 2\x1b[0m" in diff


# --- the reference ---------------------------------------------------------------------------------------------


def _commands() -> dict[str, click.Command]:
    context = click.Context(group)
    commands = {name: group.get_command(context, name) for name in COMMANDS}
    return {name: command for name, command in commands.items() if command is not None}


@pytest.mark.parametrize("name", list(COMMANDS))
def test_the_reference_has_every_command_and_option(name: str) -> None:
    """The section of a command names all its options but the common ones, and no others."""
    text = (ROOT / "docs/reference/cli.md").read_text(encoding="utf-8")
    sections = {
        word: section
        for section in text.split("\n## ")[1:]
        for word in re.findall(r"`([a-z-]+)`", section.splitlines()[0])
    }
    common = {"--session", *(name for param in group.params for name in param.opts)}
    command = _commands()[name]
    within = command.commands.values() if isinstance(command, click.Group) else ()
    params = [param for each in (command, *within) for param in each.params]
    shown = [
        param for param in params if not getattr(param, "hidden", False)
    ]  # others are spellings of these
    options = {opt for param in shown for opt in (*param.opts, *param.secondary_opts)}
    wanted = {option for option in options if option.startswith("--")} - common
    named = set(re.findall(r"(--[a-z][a-z-]*)", "\n".join(sections[name].splitlines()[1:])))
    assert wanted <= named
    assert named <= wanted | common


def test_the_reference_names_the_common_options() -> None:
    """What all commands take is said once, at the top."""
    top = (ROOT / "docs/reference/cli.md").read_text(encoding="utf-8").split("\n## ")[0]
    names = [name for param in group.params for name in param.opts]
    assert all(f"`{name}" in top or f" {name}`" in top for name in ["--session", *names])
