"""What is kept of a session, and who says so: `keep`, `events`, and the answers to what makes no sense."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest

from tests.surfaces.test_cli_history import Filled, _is_refused, cli

__all__ = ["cli"]

DAY = timedelta(days=1)


# --- keep --------------------------------------------------------------------------------------------------------


def test_a_session_is_kept_forever_and_not_any_more(cli: Filled) -> None:
    """Whatever configuration and profile say; in another process, by pruning, cleaning, and with history off."""
    cli.users_settings("retention: {max_count: 2}\ncheckpoint: {cleanup: {completed_retention_days: 1}}")
    cli.save("kept", [40 * DAY] * 5, profile="workflow")
    cli.ended("kept", 30 * DAY, profile="workflow")
    assert cli.here("keep", "kept", "--forever").out.splitlines() == [
        "kept",
        "prune: keep everything (the session's own policy)",
        "clean: leaves it: cleanup is off (the session's policy)",
    ]
    assert cli("clean").out.startswith("0 sessions cleaned, 1 retained")
    assert cli("prune", "kept").out.startswith("6 checkpoints: 6 kept")
    cli.users_settings("checkpoint: {history: {enabled: false}}")
    for state in ("1", "2"):
        cli.here("save", "kept", "--state", state, "--status", "completed")
    assert cli.seqs("kept") == [1, 2, 3, 4, 5, 6, 7, 8]
    cli.users_settings("")
    assert "(profile workflow)" in cli.here("keep", "kept", "--default").out
    cli.time += 60 * DAY
    assert cli.here("clean").out.splitlines()[-1].startswith("1 session cleaned")


def test_a_session_gets_rules_of_its_own(cli: Filled) -> None:
    """As text, as the configuration has them; they replace those given before, and are shown without options."""
    cli.save("a", [DAY] * 6)
    shown = cli.here("keep", "a", "--policy", "keep_last=2", "--policy", "retention_days=3", "--json").json
    assert shown["rules"] == ["keep the last 2 (the session's own policy)"]
    assert cli("prune", "a").out.startswith("6 checkpoints: 2 kept")
    cli.here("keep", "a", "--policy", "max_age=12h", "--policy", "keep_tags=x,y")
    assert cli.here("keep", "a").out.splitlines()[1:3] == [
        "prune: keep everything (profile phase)",
        "       remove what is older than 12 hours (the session's own policy)",
    ]
    assert "1 kept" in cli("prune", "a").out


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--policy", "keep_lst=2"], "did you mean 'keep_last'?"),
        (["--policy", "keep_last"], "RULE=VALUE"),
        (["--policy", "keep_last=0"], "keep_last must be from 1"),
        (["--policy", "max_age=soon"], "max_age must be a duration"),
        (["--policy", "keep_last=2", "--policy", "keep_last=3"], "each rule once"),
        (["--policy", "keep_last=2", "--forever"], "Choose one"),
    ],
)
def test_rules_that_make_no_sense_are_refused(cli: Filled, args: list[str], message: str) -> None:
    """And nothing is changed."""
    cli.save("a", [DAY])
    before = cli.here("keep", "a").out
    assert message in _is_refused(cli, "keep", "a", *args)
    assert cli.here("keep", "a").out == before


# --- where rules come from ---------------------------------------------------------------------------------------


def test_status_dry_run_and_keeper_have_the_same_rules(cli: Filled) -> None:
    """Each with the place it comes from: the profile, a line of a file, the session itself, the command."""
    cli.save("a", [DAY] * 4, profile="run")
    file = cli.folder.parent / "config" / "stepkeep" / "config.yaml"
    cli.users_settings("retention:\n  max_bytes: 1MB\ncheckpoint:\n  history:\n    max_count: 3\n")
    wanted = [
        f"keep the last 3 (checkpoint.history.max_count, {file}:5)",
        f"remove the oldest beyond 3 (checkpoint.history.max_count, {file}:5)",
        "remove what is older than 14 days (profile run)",
        f"remove the oldest beyond 1.0MB (retention.max_bytes, {file}:2)",
    ]
    assert cli.here("status", "a", "--json").json["rules"] == wanted
    assert cli.here("prune", "a", "--dry-run", "--json").json["sessions"][0]["rules"] == wanted
    given = cli.here("prune", "a", "--dry-run", "--keep-last", "1", "--json").json["sessions"][0]["rules"]
    assert given[0] == "keep the last 1 (given here)"
    assert given[1:] == wanted[1:]


def test_history_that_is_off_is_seen_before_it_acts(cli: Filled) -> None:
    """Status and dry run tell what the keeper does, and `archive` is not touched."""
    cli("save", "a", "--state", "1")
    cli("save", "a", "--state", "2")
    cli("save", "all", "--state", "1", "--profile", "archive")
    cli.users_settings("checkpoint:\n  history:\n    enabled: false\n")
    file = cli.folder.parent / "config" / "stepkeep" / "config.yaml"
    rule = f"keep only the newest of what is saved from now on (checkpoint.history.enabled, {file}:3)"
    assert rule in cli("status", "a").out
    assert "keep everything (profile archive)" in cli("status", "all").out
    cli("save", "all", "--state", "2")
    assert cli.seqs("all") == [1, 2]
    for state in ("3", "4"):
        cli("save", "a", "--state", state)
    assert cli.seqs("a") == [1, 2, 4]
    planned = cli("prune", "a", "--dry-run", "--json").json["sessions"][0]
    assert rule in planned["rules"]
    assert [each["reasons"] for each in planned["decisions"][1:]] == [
        ["saved before history was switched off"],
        ["saved before history was switched off"],
    ]
    assert "2 kept" in cli("prune", "a", "--keep-last", "2").out


# --- events ------------------------------------------------------------------------------------------------------


def test_events_tell_what_happened(cli: Filled) -> None:
    """Oldest first, each with its time; the last ones with a limit; data by name."""
    cli("save", "a", "--state", "1")
    assert cli("events", "a").out == "No events.\n"
    cli("save", "a", "--state", "2")
    cli("prune", "a", "--keep-last", "1")
    cli("complete", "a")
    types = [each["type"] for each in cli("events", "a", "--json").json]
    assert types == ["pruned", "session_completed"]
    pruned, completed = cli("events", "a").out.splitlines()
    assert "  pruned  total=2 kept=1 deleted=1 " in pruned
    assert "beyond the last 1" in pruned
    assert completed.endswith("  session_completed")
    assert cli("events", "a", "--limit", "1").out.splitlines() == [completed]


# --- clear answers -----------------------------------------------------------------------------------------------


def test_a_step_is_a_number_from_0(cli: Filled) -> None:
    assert "-1 is not in the range" in _is_refused(cli, "save", "a", "--state", "1", "--step", "-1")
    assert "-1 is not in the range" in _is_refused(cli, "create", "m", "--session", "a", "--step", "-1")
    assert not cli.file.exists()


def test_a_save_is_automatic_or_manual(cli: Filled) -> None:
    """Said both, it is refused; said neither, a program saves."""
    assert "exclude each other" in _is_refused(cli, "save", "a", "--state", "1", "--auto", "--manual")
    for option, kind in ((["--manual"], "manual"), (["--auto"], "auto"), ([], "auto")):
        assert cli("save", "a", "--state", "1", *option, "--json").json["trigger"]["kind"] == kind
    assert cli("save", "a", "--state", "1", "-m", "as in git", "--json").json["message"] == "as in git"


@pytest.mark.parametrize("url", ["sqlite", "workflow"])
def test_only_a_store_of_runs_compresses(cli: Filled, tmp_path: Path, url: str) -> None:
    """Elsewhere it is not silently left undone."""
    if url == "workflow":
        cli.url = f"files:{tmp_path}/files?layout=workflow"
    cli("save", "a", "--state", "1")
    assert "--compress-after-hours" in _is_refused(cli, "prune", "a", "--compress-after-hours", "1")
    cli.url = f"files:{tmp_path}/runs?layout=run"
    cli("save", "a", "--state", "1")
    assert cli("prune", "a", "--compress-after-hours", "0").out.splitlines()[1] == "1 checkpoint compressed"


def test_an_unknown_section_is_told_where_it_stands(cli: Filled) -> None:
    """Also one that holds nothing."""
    cli.settings("profile: run\nfoo:\n")
    done = cli("list")
    assert done.code == 2
    assert "stepkeep.yaml:2: unknown key 'foo': it takes store, profile" in done.err


def test_cleaning_warns_of_a_policy_only_when_asked(cli: Filled) -> None:
    """A policy for a workflow that has no session now is no news in every run of cron; a dry run tells it."""
    cli.settings("checkpoint: {cleanup: {workflows: {nightly: {retention_days: 3}}}}")
    cli("save", "a", "--state", "1")
    assert cli("clean").err == ""
    assert "'nightly', which no session belongs to" in cli("clean", "--dry-run").err


def test_every_command_answers_to_the_word_checkpoint(cli: Filled) -> None:
    """As the specification spells them, with the same exit codes."""
    cli("save", "a", "--state", "1")
    for words in (["history", "a"], ["verify"], ["cleanup", "--dry-run"], ["list", "--json"]):
        plain = cli(*words)
        assert plain.code == 0
        assert cli("checkpoint", *words).out == plain.out
    assert cli("checkpoint", "history", "nobody").code == 3
    assert "Usage: stepkeep checkpoint" in cli("checkpoint", "--help").out
