"""Configuration: every key, which source wins, both spellings, and errors that name the place."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepkeep import config
from stepkeep.config.schema import (
    ANY,
    DURATION,
    MAX_PROBLEMS,
    SCHEMA,
    SECONDS,
    SIZE,
    Key,
    camel,
    lookup,
    node_of,
    text_of,
    values_of,
)
from stepkeep.config.settings import VARIABLES, Settings, anchored
from stepkeep.errors import InvalidInput
from stepkeep.policy.cleanup import CleanupPolicies, CleanupRule
from stepkeep.policy.profiles import retention_for
from stepkeep.policy.retention import Retention
from stepkeep.yaml_lines import MAX_FILE_BYTES, Items, Node, Scalar, Section, Unreadable, parse

ROOT = Path(__file__).parents[2]

EXAMPLES: dict[str, tuple[str, Any]] = {
    "store": ('"memory:"', "memory:"),
    "profile": ("agent", "agent"),
    "project": ("2024", "2024"),
    "checkpoint.history.enabled": ("false", False),
    "checkpoint.history.max_count": ("25", 25),
    "checkpoint.compression": ("zstd-9", "zstd-9"),
    "checkpoint.compress_after_hours": ("48", 48),
    "checkpoint.cleanup.enabled": ("no", False),
    "checkpoint.cleanup.completed_retention_days": ("3", 3),
    "checkpoint.cleanup.failed_retention_days": ("60", 60),
    "checkpoint.cleanup.test_retention_days": ("1", 1),
    "checkpoint.cleanup.stale_days": ("45", 45),
    "checkpoint.cleanup.workflows.*.retention_days": ("90", 90),
    "checkpoint.cleanup.workflows.*.enabled": ("false", False),
    "agent.command": ("ask {prompt}", "ask {prompt}"),
    "agent.checkpoints.enabled": ("off", False),
    "agent.checkpoints.auto_checkpoint": ("false", False),
    "agent.checkpoints.max_checkpoints_per_session": ("all", None),
    "agent.checkpoints.prune_after_days": ("12", 12),
    "agent.checkpoints.compress_state": ("false", False),
    "retention.keep_last": ("5", 5),
    "retention.keep_within": ("2h", timedelta(hours=2)),
    "retention.keep_hourly": ("1d", timedelta(days=1)),
    "retention.keep_daily": ("2w", timedelta(weeks=2)),
    "retention.keep_weekly": ("off", None),
    "retention.keep_manual": ("true", True),
    "retention.keep_tags": ("[a, b, a]", ("a", "b")),
    "retention.keep_terminal": ("false", False),
    "retention.max_count": ("7", 7),
    "retention.max_age": ("14d", timedelta(days=14)),
    "retention.max_bytes": ("500MB", 500_000_000),
    "limits.budget_bytes": ("20GiB", 20 * 1024**3),
    "limits.max_bytes": ("2GiB", 2 * 1024**3),
    "limits.min_free_bytes": ("1GB", 10**9),
    "workflow.warn_stored_bytes": ("1MB", 10**6),
    "workflow.max_stored_bytes": ("2MB", 2 * 10**6),
    "workflow.max_raw_bytes": ("3MB", 3 * 10**6),
    "worker.max_attempts": ("5", 5),
    "worker.retry_seconds": ("1m", 60),
    "keeper.enabled": ("false", False),
    "keeper.interval_seconds": ("10m", 600),
    "metrics.enabled": ("false", False),
    "recorder.heartbeat_seconds": ("5m", 300),
    "recorder.coalesce_seconds": ("1", 1),
    "recorder.significant_seconds": ("10m", 600),
    "workspace.max_file_bytes": ("10MB", 10_000_000),
    "workspace.max_total_bytes": ("2GB", 2_000_000_000),
    "workspace.ignore": ('["*.bin"]', ("*.bin",)),
    "hooks.workspace": ("false", False),
    "hooks.transcript": ("true", True),
    "time.zone": ("Europe/Berlin", "Europe/Berlin"),
}

Load = Callable[..., Settings]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "project" / "inner"
    path.mkdir(parents=True)
    return path


@pytest.fixture
def load(folder: Path) -> Load:
    """Loads the given texts as project file (in the folder above) and user file."""

    def run(
        project: str | bytes | None = None,
        user: str | None = None,
        environ: Mapping[str, str] | None = None,
        flags: Mapping[str, object] | None = None,
    ) -> Settings:
        user_path = folder.parent.parent / "user" / "config.yaml"
        if project is not None:
            content = project.encode() if isinstance(project, str) else project
            (folder.parent / "stepkeep.yaml").write_bytes(content)
        if user is not None:
            user_path.parent.mkdir()
            user_path.write_text(user, encoding="utf-8")
        return config.load(cwd=folder, environ=environ or {}, flags=flags, user_path=user_path)

    return run


def _problems(load: Load, text: str | bytes) -> str:
    """The message about a project file, with the folder taken out."""
    with pytest.raises(InvalidInput) as caught:
        load(text)
    assert caught.value.code == "invalid_config"
    return re.sub(r"/\S*/stepkeep\.yaml", "stepkeep.yaml", caught.value.message)


def _yaml(name: str, value: str) -> str:
    """A document that sets one key."""
    *sections, last = name.split(".")
    lines = [f"{'  ' * depth}{section}:" for depth, section in enumerate(sections)]
    return "\n".join([*lines, f"{'  ' * len(sections)}{last}: {value}"])


# --- keys ------------------------------------------------------------------------------------------------------


def test_every_key_has_an_example() -> None:
    """The examples below drive the whole schema."""
    assert list(EXAMPLES) == [key.name for key in SCHEMA]


@pytest.mark.parametrize("spell", [str, camel], ids=["snake", "camel"])
@pytest.mark.parametrize("name", EXAMPLES)
def test_every_key_is_read(load: Load, name: str, spell: Callable[[str], str]) -> None:
    """A key in a file sets its value, in either spelling, and remembers its line."""
    text, value = EXAMPLES[name]
    concrete = name.replace(ANY, "nightly.build_2")
    written = concrete if spell is str else ".".join(map(camel, name.split("."))).replace(ANY, "nightly")
    if ANY in name:
        *_, last = written.split(".")
        workflow = "nightly.build_2" if spell is str else "nightly"
        document = f"checkpoint:\n  cleanup:\n    workflows:\n      {workflow}:\n        {last}: {text}"
        concrete = name.replace(ANY, workflow)
    else:
        document = _yaml(written, text)
    settings = load(document)
    assert settings[concrete] == value
    assert settings.origin(concrete).line == document.count("\n") + 1
    assert settings.origin(concrete).layer == "project"


@pytest.mark.parametrize("name", EXAMPLES)
def test_every_key_can_be_a_flag(load: Load, name: str) -> None:
    """A flag sets any key, as text or as a value, in either spelling."""
    text, value = EXAMPLES[name]
    concrete = name.replace(ANY, "a.b")
    lists = {"retention.keep_tags": ("a", "b", "a"), "workspace.ignore": ("*.bin",)}
    given = lists.get(name, text.strip('"'))
    assert load(flags={concrete: given})[concrete] == value
    assert load(flags={camel(concrete): given}).origin(concrete).layer == "flag"


@pytest.mark.parametrize("key", [key for key in SCHEMA if ANY not in key.name], ids=lambda key: key.name)
def test_defaults(load: Load, key: Key) -> None:
    """Without any source every key has its default, and says so."""
    settings = load()
    assert settings[key.name] == key.default
    assert str(settings.origin(key.name)) == "default"


@pytest.mark.parametrize("key", SCHEMA, ids=lambda key: key.name)
def test_a_default_is_a_valid_value(key: Key) -> None:
    """What applies by default may also be written."""
    assert key.default is None or key.kind.parse(node_of(key.default)) == key.default


def test_the_example_of_seed_000(load: Load) -> None:
    """The configuration of the history specification is understood as it is written there."""
    settings = load("""\
checkpoint:
  history:
    enabled: true
    max_count: 10  # Keep 10 most recent checkpoints

  cleanup:
    enabled: true
    completed_retention_days: 7
    failed_retention_days: 30
    test_retention_days: 0
    workflows:
      critical-production-workflow:
        retention_days: 90
      dev-test-workflow:
        retention_days: 1
      never-delete-workflow:
        enabled: false  # Keep indefinitely
""")
    assert settings["checkpoint.history.max_count"] == 10
    assert settings.workflows() == {
        "critical-production-workflow": {"retention_days": 90},
        "dev-test-workflow": {"retention_days": 1},
        "never-delete-workflow": {"enabled": False},
    }


def test_the_example_of_seed_004(load: Load) -> None:
    """The configuration of the agent specification is understood as it is written there."""
    settings = load("""\
agent:
  checkpoints:
    enabled: true
    autoCheckpoint: true
    maxCheckpointsPerSession: 10
    pruneAfterDays: 30
    compressState: true        # Compress large states
""")
    assert settings.section("agent.checkpoints") == {
        "enabled": True,
        "auto_checkpoint": True,
        "max_checkpoints_per_session": 10,
        "prune_after_days": 30,
        "compress_state": True,
    }


@pytest.mark.parametrize("text", ["", "# nothing\n", "---\n", "{}", "null", "checkpoint:\n", "keeper: {}"])
def test_an_empty_file_or_section_sets_nothing(load: Load, text: str) -> None:
    """A file of comments, and a section whose keys are all commented out, are fine."""
    assert not [setting for setting in load(text) if setting.is_given]


@pytest.mark.parametrize(
    ("text", "size"),
    [("0.5kB", 500), ("1 KiB", 1024), ("1MB", 10**6), ("1.5GB", 15 * 10**8), ("1tib", 1024**4), ("7", 7)],
)
def test_sizes(text: str, size: int) -> None:
    """Decimal and binary units, in any case; a bare number is bytes."""
    assert SIZE.parse(node_of(text)) == size


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("30s", 30), ("10m", 600), ("2h", 7200), ("7d", 604800), ("1w", 604800)],
)
def test_durations(text: str, seconds: int) -> None:
    """Seconds, minutes, hours, days and weeks."""
    assert DURATION.parse(node_of(text)) == timedelta(seconds=seconds)
    assert DURATION.parse(node_of(timedelta(seconds=seconds))) == timedelta(seconds=seconds)
    assert SECONDS.parse(node_of(text)) == seconds


def test_only_a_key_named_in_seconds_takes_a_bare_number() -> None:
    """Where the unit is open it must be written."""
    assert SECONDS.parse(node_of(90)) == 90
    with pytest.raises(ValueError, match=r"must be a duration such as .*, not '90'"):
        DURATION.parse(node_of(90))


# --- which source wins -----------------------------------------------------------------------------------------


def test_precedence(load: Load) -> None:
    """Flag over environment over the project's file over the user's file, key by key."""
    user = "profile: run\nproject: of-user\nstore: sqlite:/user.db\nkeeper: {enabled: false}"
    project = "profile: debug\nproject: of-project\nstore: sqlite:/project.db"
    environ = {"STEPKEEP_PROFILE": "phase", "STEPKEEP_STORE": "sqlite:/environment.db"}
    settings = load(project, user, environ, {"store": "sqlite:/flag.db", "project": None})
    assert [settings[name] for name in ("store", "profile", "project", "keeper.enabled")] == [
        "sqlite:/flag.db",
        "phase",
        "of-project",
        False,
    ]
    origins = [settings.origin(name) for name in ("store", "profile", "project", "keeper.enabled")]
    assert [origin.layer for origin in origins] == ["flag", "environment", "project", "user"]
    assert [Path(str(origin)).name for origin in origins] == [
        "flag",
        "$STEPKEEP_PROFILE",
        "stepkeep.yaml:2",
        "config.yaml:4",
    ]


def test_workflows_of_both_files_are_united(load: Load) -> None:
    """Policies merge key by key; the project's wins where both set one."""
    user = (
        "checkpoint: {cleanup: {workflows: {a: {retention_days: 1, enabled: false}, b: {retention_days: 2}}}}"
    )
    project = "checkpoint: {cleanup: {workflows: {a: {retention_days: 5}}}}"
    assert load(project, user).workflows() == {
        "a": {"retention_days": 5, "enabled": False},
        "b": {"retention_days": 2},
    }


def test_the_nearest_file_upward_wins(folder: Path) -> None:
    """Only the nearest project file counts; those above it are not even read."""
    (folder / "stepkeep.yaml").write_text("profile: run")
    (folder.parent / "stepkeep.yaml").write_text("not: [valid")
    settings = config.load(cwd=folder, environ={})
    assert settings["profile"] == "run"
    assert [(Path(file.path).parent, file.is_used) for file in settings.files] == [(folder, True)]


def test_the_files_looked_for_are_listed(load: Load, folder: Path) -> None:
    """Every place that was looked at is known, with what was there."""
    settings = load("profile: run")
    looked = [(Path(file.path), file.scope, file.exists, file.is_used) for file in settings.files]
    user_path = folder.parent.parent / "user" / "config.yaml"
    assert looked == [
        (folder / "stepkeep.yaml", "project", False, False),
        (folder.parent / "stepkeep.yaml", "project", True, True),
        (user_path, "user", False, False),
    ]


def test_an_empty_variable_is_not_set(load: Load) -> None:
    """An empty variable leaves the file's value."""
    assert load("profile: run", environ=dict.fromkeys(VARIABLES, ""))["profile"] == "run"


def test_a_bad_variable_is_named(load: Load) -> None:
    """An error from the environment names the variable."""
    with pytest.raises(
        InvalidInput, match=r"\$STEPKEEP_PROFILE: profile must be one of standard, .* not 'x'"
    ):
        load(environ={"STEPKEEP_PROFILE": "x"})


def test_a_bad_flag_is_named(load: Load) -> None:
    """A flag for no key gets a suggestion, and an ill-typed one says what it must be."""
    with pytest.raises(
        InvalidInput, match=r"flag: unknown key 'retention.keep_lost': did you mean retention.keep_last"
    ):
        load(flags={"retention.keep_lost": 3})
    with pytest.raises(InvalidInput, match=r"flag: retention.keep_last must be from 1 to [0-9]+, not -1"):
        load(flags={"retention.keep_last": -1})


@pytest.mark.parametrize(
    "name", ["", ".", "checkpoint", "checkpoint.cleanup.workflows", "store.x", "*", "a.b.c"]
)
def test_names_that_are_no_keys(name: str) -> None:
    """A section is no key, and nothing lies below a key."""
    assert lookup(name) is None


# --- the store -------------------------------------------------------------------------------------------------


def test_no_store_is_named(load: Load) -> None:
    """Without any source the caller's own default applies."""
    assert load("profile: run").store_url() is None


@pytest.mark.parametrize("url", ["sqlite:data/x.db", "data/x.db"])
def test_a_relative_store_begins_at_the_file(load: Load, folder: Path, url: str) -> None:
    """A relative path in a file means the same store from every working directory below."""
    assert load(f"store: {url}").store_url() == f"sqlite:{folder.parent}/data/x.db"


def test_a_relative_store_of_the_environment_stays(load: Load) -> None:
    """What a shell names begins at the shell's working directory."""
    assert load(environ={"STEPKEEP_STORE": "sqlite:x.db"}).store_url() == "sqlite:x.db"


@pytest.mark.parametrize(
    "url",
    ["memory:", "sqlite:/x.db", "sqlite:///x.db", "sqlite:~/x.db", "~/x.db", "/x.db", "postgresql://h/db"],
)
def test_other_urls_stay(url: str) -> None:
    """Absolute paths, the home folder and servers do not depend on a folder."""
    assert anchored(url, Path("/folder")) == url


def test_a_folder_of_files_begins_at_the_file() -> None:
    """The query of the URL stays behind the path."""
    assert anchored("files:runs?layout=run", Path("/folder")) == "files:/folder/runs?layout=run"


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://me:se:cr@et@host/db",
        "postgresql://host/db?user=me&password=se:cr@et&x=1",
        "postgresql://me:se/cr@host/db",
        "postgresql://me:se?cr=et@host/db",
        "postgresql://me:12/se@host/db",
    ],
)
def test_a_password_is_not_shown(load: Load, url: str) -> None:
    """The text of a setting hides the password; its value has it."""
    setting = load(flags={"store": url}).given["store"]
    assert setting.value == url
    assert "se" not in text_of(setting).replace("user", "")
    assert "***" in text_of(setting)


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("keeper.enabled", False, "false"),
        ("retention.keep_last", "all", "all"),
        ("retention.keep_within", "off", "off"),
        ("retention.keep_within", "36h", "36 hours"),
        ("retention.keep_tags", ["a", "b"], "[a, b]"),
        ("retention.max_bytes", "1KiB", "1024"),
        ("retention.max_age", None, "the profile's"),
        ("store", None, "stepkeep.db in the user's data folder"),
    ],
)
def test_settings_have_a_text(load: Load, name: str, value: object, text: str) -> None:
    """Every value, and every missing one, can be shown."""
    assert text_of(next(each for each in load(flags={name: value}) if each.name == name)) == text


def test_a_refused_store_is_not_repeated(load: Load) -> None:
    """A URL of no known kind may still hold a password."""
    assert "secret" not in _problems(load, "store: mysql://me:secret@host/db")


# --- retention -------------------------------------------------------------------------------------------------


def test_no_overrides(load: Load) -> None:
    """Defaults replace nothing: the profile decides."""
    assert load().retention_overrides("agent") == {}


def test_the_number_to_keep_has_three_names(load: Load) -> None:
    """The key for the profile comes before the general one, and that before the older name."""
    text = "checkpoint: {history: {max_count: 1}}\n"
    assert load(text).retention_overrides("run") == {"keep_last": 1, "max_count": 1}
    text += "retention: {keep_last: 2, keep_daily: 9d}\n"
    found = load(text).retention_overrides("run")
    assert found == {"keep_last": 2, "keep_daily": timedelta(days=9), "max_count": 1}
    text += "agent: {checkpoints: {maxCheckpointsPerSession: 3}}\n"
    assert load(text).retention_overrides("run")["keep_last"] == 2
    assert load(text).retention_overrides("agent")["keep_last"] == 3


def test_a_winning_source_wins_for_every_name(load: Load) -> None:
    """The project's older name beats the user's newer one, and a flag beats both."""
    user, project = "retention: {keep_last: 2}", "checkpoint: {history: {max_count: all}}"
    assert load(project, user).retention_overrides("agent") == {"keep_last": None}
    flags = {"retention.keep_last": 4}
    assert config.load(cwd=None, environ={}, flags=flags).retention_overrides("agent") == {"keep_last": 4}


RULES = [name for name in Retention.__struct_fields__ if name != "is_off"]
"""All but that for which there is another key."""


def test_the_keys_of_retention_are_those_of_the_policy() -> None:
    """Each rule has one key, and every value the configuration accepts is one the policy accepts."""
    names = [key.name for key in SCHEMA if key.name.startswith("retention.")]
    assert names == [f"retention.{name}" for name in RULES]


@pytest.mark.parametrize("name", RULES)
def test_an_override_reaches_the_policy(load: Load, name: str) -> None:
    """What a file says about retention replaces that rule of a profile."""
    text, value = EXAMPLES[f"retention.{name}"]
    overrides = load(_yaml(f"retention.{name}", text)).retention_overrides("debug")
    assert getattr(retention_for("debug", overrides), name) == value


# --- cleanup ---------------------------------------------------------------------------------------------------


def test_cleanup_leaves_open_what_is_not_set(load: Load) -> None:
    """Without configuration the profiles decide."""
    assert load().cleanup_policies("agent") == CleanupPolicies(test=CleanupRule(retention_days=0))


def test_cleanup_policies(load: Load) -> None:
    """Every key of the section becomes its rule."""
    settings = load("""\
checkpoint:
  cleanup:
    enabled: false
    completedRetentionDays: 1
    failedRetentionDays: 2
    testRetentionDays: 3
    staleDays: 4
    workflows: {a: {retentionDays: 5}, b: {enabled: false}}
""")
    assert settings.cleanup_policies("run") == CleanupPolicies(
        enabled=False,
        completed=CleanupRule(retention_days=1),
        failed=CleanupRule(retention_days=2),
        test=CleanupRule(retention_days=3),
        workflows={"a": CleanupRule(retention_days=5), "b": CleanupRule(enabled=False)},
        stale_days=4,
    )


def test_the_agents_days_are_for_agents(load: Load) -> None:
    """`pruneAfterDays` speaks of sessions with profile `agent`, and beats the general key of the same file."""
    settings = load(
        "agent: {checkpoints: {pruneAfterDays: 3}}\ncheckpoint: {cleanup: {completedRetentionDays: 9}}"
    )
    agent, run = settings.cleanup_policies("agent"), settings.cleanup_policies("run")
    assert (agent.completed.retention_days, agent.failed.retention_days) == (3, 3)
    assert (run.completed.retention_days, run.failed.retention_days) == (9, None)


# --- errors ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("profil: run", "stepkeep.yaml:1: unknown key 'profil': did you mean profile?"),
        (
            "\ncheckpoint:\n  history:\n    max_cuont: 3",
            "stepkeep.yaml:4: unknown key 'max_cuont' in checkpoint.history: did you mean max_count?",
        ),
        (
            "checkpoint:\n  history:\n    maxCuont: 3",
            "stepkeep.yaml:3: unknown key 'maxCuont' in checkpoint.history: did you mean maxCount?",
        ),
        (
            "agent: {checkpoints: {Max-Checkpoints-Per-Session: 3}}",
            "stepkeep.yaml:1: unknown key 'Max-Checkpoints-Per-Session' in agent.checkpoints: "
            "did you mean maxCheckpointsPerSession?",
        ),
        (
            "max_count: 3",
            "stepkeep.yaml:1: unknown key 'max_count': did you mean checkpoint.history.max_count?",
        ),
        (
            "keeper: {zzz: 1}",
            "stepkeep.yaml:1: unknown key 'zzz' in keeper: it takes enabled, interval_seconds",
        ),
        (
            "checkpoint.history.enabled: true",
            "stepkeep.yaml:1: unknown key 'checkpoint.history.enabled': write its parts as nested sections",
        ),
        ("<<: {a: 1}", "unknown key '<<': it takes store, profile, project, checkpoint"),
        ('"a\\nb\\e[31m": 1', r"unknown key 'a\nb\x1b[31m': it takes"),
        ("profile: [run]", "stepkeep.yaml:1: profile must be text, not a list"),
        ("profile: {}", "profile must be text, not a section"),
        ("profile:", "profile must be text, not nothing"),
        ("profile: fast", "profile must be one of standard, workflow"),
        ('project: ""', "project must have 1 to 1024 bytes of UTF-8, not 0"),
        ("store: 5", "store must be the URL of a store, such as sqlite:PATH, or a path"),
        ("keeper: {enabled: maybe}", "keeper.enabled must be true or false, not 'maybe'"),
        ('keeper: {enabled: "true"}', "keeper.enabled must be true or false, not 'true'"),
        ("keeper: {interval_seconds: 0}", "keeper.interval_seconds must be longer than 0 and"),
        ("keeper: {interval_seconds: 5 parsecs}", "keeper.interval_seconds must be a duration such as"),
        ("keeper: 5", "keeper must be a section with enabled, interval_seconds, not '5'"),
        ("retention: {keep_last: 0}", "retention.keep_last must be from 1 to 4611686018427387904, not 0"),
        ("retention: {keep_last: 2.5}", "retention.keep_last must be a whole number, not '2.5'"),
        ('retention: {keep_last: "3"}', "retention.keep_last must be a whole number, not '3'"),
        ("retention: {keep_last: yes}", "retention.keep_last must be a whole number, not 'yes'"),
        ("retention: {keep_tags: a}", "retention.keep_tags must be a list of texts, not 'a'"),
        ("retention: {keep_tags: [[a]]}", "retention.keep_tags must be text, not a list"),
        ("retention: {max_age: 99999d}", "retention.max_age must be longer than 0 and at most 36500 days"),
        ("retention: {keep_within: 5}", "retention.keep_within must be a duration such as"),
        ("retention: {keep_within: [1d]}", "retention.keep_within must be a duration (`30s`"),
        (
            "checkpoint: {cleanup: {failedRetentionDays: 99999}}",
            "checkpoint.cleanup.failed_retention_days must be from 0 to 36500, not 99999",
        ),
        ("limits: {max_bytes: -5MB}", "limits.max_bytes must be a number of bytes, or text such as 500MB"),
        ("limits: {max_bytes: 9e99}", "limits.max_bytes must be a number of bytes"),
        ("limits: {max_bytes: 9999999TB}", "limits.max_bytes must be from 1 to"),
        ("limits: {max_bytes: 0}", "limits.max_bytes must be from 1 to"),
        (
            "checkpoint: {cleanup: {workflows: [a]}}",
            "checkpoint.cleanup.workflows must be a section, not a list",
        ),
        (
            "checkpoint: {cleanup: {workflows: {a: 5}}}",
            "checkpoint.cleanup.workflows.a must be a section with retention_days, enabled, not '5'",
        ),
        (
            "checkpoint: {cleanup: {workflows: {a: {days: 5}}}}",
            "unknown key 'days' in checkpoint.cleanup.workflows.a: ",
        ),
        (
            "checkpoint: {cleanup: {workflows: {? : {enabled: true}}}}",
            "a name in checkpoint.cleanup.workflows must be text, not nothing",
        ),
        ("5", "stepkeep.yaml:1: must be sections and keys, not '5'"),
        ("- a", "stepkeep.yaml:1: must be sections and keys, not a list"),
    ],
)
def test_errors_name_the_place_and_the_remedy(load: Load, text: str, message: str) -> None:
    """Each error has file and line, says what is wrong, and what to write."""
    assert message in _problems(load, text)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("profile: run\nprofile: agent", "stepkeep.yaml:2: profile of line 1 is given again"),
        (
            "checkpoint:\n  history:\n    max_count: 1\n    maxCount: 1",
            "stepkeep.yaml:4: checkpoint.history.max_count of line 3 is given again as 'maxCount'",
        ),
        ("keeper: {}\nkeeper: {}", "stepkeep.yaml:2: keeper of line 1 is given again"),
        (
            "checkpoint: {cleanup: {workflows: {a: {}, a: {}}}}",
            "checkpoint.cleanup.workflows.a of line 1 is given again",
        ),
    ],
)
def test_a_key_given_twice_is_an_error(load: Load, text: str, message: str) -> None:
    """Neither the last nor the first wins silently, whichever the spelling."""
    assert message in _problems(load, text)


def test_workflow_names_have_one_spelling(load: Load) -> None:
    """Names of workflows are the writer's own: these are two."""
    text = "checkpoint: {cleanup: {workflows: {my_flow: {enabled: false}, myFlow: {enabled: true}}}}"
    assert set(load(text).workflows()) == {"my_flow", "myFlow"}


def test_all_problems_of_all_sources_are_reported_at_once(load: Load) -> None:
    """One run shows everything that is wrong."""
    with pytest.raises(InvalidInput) as caught:
        load("a1: 1\nprofile: x\nkeeper: {enabled: 3}", "b1: 1", {"STEPKEEP_STORE": "x"}, {"c1": 1})
    assert caught.value.message.startswith("bad configuration: 6 problems: ")
    places = re.findall(r"(?:config|stepkeep)\.yaml:\d|\$STEPKEEP_STORE: |flag: ", caught.value.message)
    assert places == [
        "config.yaml:1",
        "stepkeep.yaml:1",
        "stepkeep.yaml:2",
        "stepkeep.yaml:3",
        "$STEPKEEP_STORE: ",
        "flag: ",
    ]


def test_inspect_keeps_what_is_right(folder: Path) -> None:
    """Problems come as values, beside the settings that could be read."""
    (folder / "stepkeep.yaml").write_text("profile: run\nkeeper: {enabled: 3}")
    settings, problems = config.inspect(cwd=folder, environ={})
    assert settings["profile"] == "run"
    assert settings["keeper.enabled"] is True
    assert [(problem.line, problem.key) for problem in problems] == [(2, "keeper.enabled")]


def test_settings_cannot_be_changed(load: Load) -> None:
    """Settings are shared, so nobody may write to them."""
    settings = load()
    with pytest.raises(TypeError):
        settings.given["profile"] = next(iter(settings))  # type: ignore[index]
    with pytest.raises(AttributeError):
        settings.files = ()  # type: ignore[misc]


# --- hostile and broken files ----------------------------------------------------------------------------------

HOSTILE = [
    ("a: &a [x]\nb: *a", "stepkeep.yaml:1: uses a YAML anchor or alias; write the value out"),
    ("a: *missing", "uses a YAML anchor or alias"),
    (
        "store: !!python/object/apply:os.system [id]",
        "stepkeep.yaml:1: uses a YAML tag; write the plain value",
    ),
    ("profile: !mine run", "uses a YAML tag"),
    ("[" * 100_000, "stepkeep.yaml:1: is nested deeper than 16 levels"),
    ("{a: " * 100_000, "is nested deeper than 16 levels"),
    ("\n".join(" " * depth + "a:" for depth in range(100)), "is nested deeper than 16 levels"),
    (
        "\n".join(f"k{number}: 1" for number in range(20_000)),
        "stepkeep.yaml:10000: has more than 20,000 values",
    ),
    ("#" * (MAX_FILE_BYTES + 1), "stepkeep.yaml: is larger than 1,048,576 bytes"),
    ("profile: run\n---\nprofile: run", "stepkeep.yaml:2: has more than one YAML document"),
    ("[a]: 1", "stepkeep.yaml:1: has a key that is not text"),
    ("profile: run\nkeeper: [", "stepkeep.yaml:2: is not valid YAML: "),
    ("keeper:\n\tenabled: true", "stepkeep.yaml:2: is not valid YAML: "),
    ("%YAML 9.9\n---\na: 1", "is not valid YAML: "),
    ("profile: run\nproject: \x07", "stepkeep.yaml:2: contains a character that YAML does not allow"),
    (b"profile: run\nproject: \xff\xfe", "stepkeep.yaml:2: is not UTF-8 text"),
    ("profile: run".encode("utf-16"), "is not UTF-8 text"),
    (b"\x00" * 10, "contains a character that YAML does not allow"),
]


@pytest.mark.parametrize("parser", ["c", "python"])
@pytest.mark.parametrize(("text", "message"), HOSTILE, ids=range(len(HOSTILE)))
def test_hostile_files_are_refused(
    load: Load, text: str | bytes, message: str, parser: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bombs, objects, depth, size and wrong bytes end in a clear error, with either parser of PyYAML."""
    if parser == "python":
        monkeypatch.delattr("yaml.CSafeLoader", raising=False)
    assert message in _problems(load, text)


def test_the_number_of_problems_is_bounded(load: Load) -> None:
    """A file of nothing but errors costs little, and the message stays readable."""
    message = _problems(load, "\n".join(f"profil{number}: 1" for number in range(5_000)))
    assert message.count("did you mean profile?") == MAX_PROBLEMS
    assert f"stepkeep.yaml:{MAX_PROBLEMS + 1}: there are more problems from here on" in message


def test_a_long_value_is_shortened(load: Load) -> None:
    """An error does not repeat a megabyte."""
    assert len(_problems(load, f"profile: {'x' * 1000}\n{'y' * 1000}: 1")) < 500


def test_a_byte_order_mark_is_skipped(load: Load) -> None:
    """Some editors put one before the text."""
    assert load("\ufeffprofile: run")["profile"] == "run"


@pytest.mark.parametrize("make", [Path.mkdir, os.mkfifo], ids=["folder", "pipe"])
def test_only_a_regular_file_is_read(folder: Path, make: Callable[[Path], None]) -> None:
    """A folder or a pipe of that name is an error, and reading never waits."""
    make(folder / "stepkeep.yaml")
    with pytest.raises(InvalidInput, match=r"stepkeep\.yaml: is not a regular file"):
        config.load(cwd=folder, environ={})


def test_a_dangling_link_is_an_error(folder: Path) -> None:
    """A link to nothing is a mistake, not an absent file."""
    (folder / "stepkeep.yaml").symlink_to("missing")
    with pytest.raises(InvalidInput, match=r"stepkeep\.yaml: cannot be read: No such file"):
        config.load(cwd=folder, environ={})


@pytest.mark.skipif(os.geteuid() == 0, reason="nothing is unreadable to root")
def test_an_unreadable_file_is_an_error(folder: Path) -> None:
    """A file without permission does not count as absent."""
    (folder / "stepkeep.yaml").touch(mode=0)
    with pytest.raises(InvalidInput, match=r"stepkeep\.yaml: cannot be read: Permission denied"):
        config.load(cwd=folder, environ={})


def test_a_file_planted_by_another_user_is_ignored(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a folder everyone can write to, a file of someone else does not choose where states go."""
    (folder / "stepkeep.yaml").write_text("store: sqlite:/stolen.db")
    (folder.parent / "stepkeep.yaml").write_text("profile: run")
    if os.geteuid() == 0:
        os.chown(folder / "stepkeep.yaml", 12345, -1)
    else:
        monkeypatch.setattr(os, "geteuid", lambda: 12345)
    assert config.load(cwd=folder, environ={})["store"] == "sqlite:/stolen.db"
    folder.chmod(0o777)
    settings = config.load(cwd=folder, environ={})
    assert settings.store_url() is None
    assert settings["profile"] == "run"
    assert settings.files[0].note.startswith("ignored: it belongs to another user")


def _plain(node: Node | None) -> object:
    if isinstance(node, Section):
        return {key.text: _plain(value) for key, value in node.entries}
    if isinstance(node, Items):
        return [_plain(item) for item in node.nodes]
    return node.text if isinstance(node, Scalar) else None


_TEXTS = st.text(max_size=8)
_TREES = st.recursive(
    _TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_TEXTS, inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(_TEXTS, _TREES, min_size=1))
def test_a_document_is_read_as_it_was_written(tree: dict[str, object]) -> None:
    """Reading is the inverse of writing: no text changes its meaning."""
    import yaml

    style = {"default_style": '"', "allow_unicode": False}
    assert _plain(parse(yaml.safe_dump(tree, **style))) == tree


@given(st.text() | st.text("[]{}:,-?&*!|>'\"%@`# \n\tab1~"))
def test_any_text_is_read_or_refused(text: str) -> None:
    """No text of any kind raises anything else."""
    try:
        node = parse(text)
    except Unreadable:
        return
    values_of(node, "file")  # problems are a result


# --- the process -----------------------------------------------------------------------------------------------


def test_here_reads_the_process(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The working directory, the environment and the user's folder of this process count."""
    (folder.parent / "stepkeep.yaml").write_text("project: mine")
    user_path = folder / "user.yaml"
    user_path.write_text("keeper: {enabled: false}")
    monkeypatch.setattr(config, "user_file", lambda: user_path)
    monkeypatch.setenv("STEPKEEP_PROFILE", "run")
    monkeypatch.delenv("STEPKEEP_STORE", raising=False)
    monkeypatch.chdir(folder)
    settings = config.here({"limits.max_bytes": "1GB"})
    names = ("project", "keeper.enabled", "profile", "limits.max_bytes")
    assert [settings[name] for name in names] == ["mine", False, "run", 10**9]
    (folder.parent / "stepkeep.yaml").write_text("projekt: mine")
    _, problems = config.inspect_here()
    assert [problem.line for problem in problems] == [1]


def test_here_works_in_a_removed_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A working directory that is gone has no project file."""
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    monkeypatch.setattr(config, "user_file", lambda: tmp_path / "none.yaml")
    assert [file.scope for file in config.here().files] == ["user"]


def test_the_user_file_is_in_the_users_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    """The user's own configuration is `config.yaml` in the folder of the platform."""
    assert Path(config.user_file()).name == "config.yaml"
    assert "stepkeep" in Path(config.user_file()).parent.parts


def test_yaml_is_imported_only_for_a_file(tmp_path: Path) -> None:
    """Without a configuration file nothing pays for YAML."""
    program = (
        "import sys, pathlib; from stepkeep import config;"
        "config.load(cwd=pathlib.Path(sys.argv[1]), environ={}); sys.exit('yaml' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", program, str(tmp_path)], check=False).returncode == 0
    (tmp_path / "stepkeep.yaml").touch()
    assert subprocess.run([sys.executable, "-c", program, str(tmp_path)], check=False).returncode == 1


# --- the reference ---------------------------------------------------------------------------------------------


def _row(key: Key) -> str:
    value = str(key.default).lower() if isinstance(key.default, bool) else key.default
    default = key.unset if value is None else f"`{value}`"
    name = key.name.replace(ANY, "NAME")
    return f"| `{name}` | {key.kind.label} | {default} | {key.meaning} |"


def _page() -> str:
    return (ROOT / "docs" / "reference" / "config.md").read_text(encoding="utf-8")


def test_the_reference_has_every_key() -> None:
    """The page lists exactly the keys of the schema, with kind, default and meaning."""
    rows = [line for line in _page().splitlines() if re.match(r"\| `[a-z_A-Z.]+` \|", line)]
    assert [row for row in rows if "STEPKEEP_" not in row] == [_row(key) for key in SCHEMA]


def test_the_reference_has_every_variable() -> None:
    """The page lists exactly the variables that set a key."""
    listed = dict(re.findall(r"^\| `(STEPKEEP_\w+)` \| `([\w.]+)` \|", _page(), re.MULTILINE))
    assert listed == VARIABLES


def test_the_example_of_the_reference_is_valid(load: Load) -> None:
    """The file shown on the page loads."""
    (example,) = re.findall(r"^```yaml\n(.*?)^```$", _page(), re.MULTILINE | re.DOTALL)
    assert load(example).workflows()["audit"] == {"enabled": False}
