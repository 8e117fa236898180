"""`stepkeep config init` and `stepkeep config set`: files that people wrote are changed, and stay as they were else."""

from __future__ import annotations

import re
import stat
from pathlib import Path

import pytest

from stepkeep.config.schema import SCHEMA
from tests.surfaces.test_cli import Cli

WRITTEN = """\
# Ours.
store: sqlite:.stepkeep/state.db    # relative to this file's folder

checkpoint:
  history: { maxCount: 25 }   # camel case, and in one line
  cleanup:
    # two weeks
    completed_retention_days: 14   # since spring
    workflows:
      "nightly.build": { retention_days: 1 }

retention:
    keep_tags:
    - release   # and
    - demo

    # The rest is for later.
limits:
"""


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cli:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    (tmp_path / "work").mkdir()
    return Cli(tmp_path / "work")


@pytest.fixture
def file(cli: Cli) -> Path:
    return cli.folder / "stepkeep.yaml"


def shown(cli: Cli) -> dict[str, object]:
    return {each["key"]: each["value"] for each in cli.here("config", "show", "--json").json["settings"]}


def test_a_new_file_explains_every_key_and_changes_nothing(cli: Cli, file: Path) -> None:
    """All keys are in it as comments; those with a default are accepted as they stand there, and mean the default."""
    before = shown(cli)
    done = cli.here("config", "init")
    assert (done.code, done.out) == (0, f"Wrote {file} (every key is in it, as a comment)\n")
    assert shown(cli) == before
    assert cli.here("config", "check").code == 0
    text = file.read_text(encoding="utf-8")
    for key in SCHEMA:
        assert re.search(rf"^# +{key.name.rpartition('.')[2]}: ", text, re.MULTILINE), key.name
    assert max(map(len, text.splitlines())) <= 120
    uncommented = "\n".join(line[2:] for line in text.splitlines()[2:] if "…" not in line).replace(
        "NAME:", "NAME: {}"
    )
    file.write_text(uncommented, encoding="utf-8")
    assert cli.here("config", "check").out == "No problems in 1 file and the environment.\n"
    changed = {name for name, value in shown(cli).items() if value != before[name]}
    assert all(before[name] is None for name in changed), changed


def test_a_file_is_replaced_only_if_that_is_asked_for(cli: Cli, file: Path) -> None:
    file.write_text("profile: agent\n", encoding="utf-8")
    done = cli.here("config", "init", "--json")
    assert (done.code, done.error["code"]) == (2, "file_exists")
    assert file.read_text(encoding="utf-8") == "profile: agent\n"
    assert cli.here("config", "init", "--force").code == 0
    assert "# profile: standard" in file.read_text(encoding="utf-8")


CHANGES = {
    "checkpoint.history.max_count": ("30", "{ maxCount: 25 }   # camel", "{ maxCount: 30 }   # camel"),
    "checkpoint.history.enabled": ("false", "{ maxCount: 25 }", "{ maxCount: 25, enabled: false }"),
    "checkpoint.cleanup.completed_retention_days": ("7", "14   # since", "7   # since"),
    "checkpoint.cleanup.failed_retention_days": (
        "9",
        '      "nightly.build": { retention_days: 1 }\n',
        '      "nightly.build": { retention_days: 1 }\n    failed_retention_days: 9\n',
    ),
    "checkpoint.cleanup.workflows.nightly.build.retention_days": (
        "5",
        '"nightly.build": { retention_days: 1 }',
        '"nightly.build": { retention_days: 5 }',
    ),
    "checkpoint.cleanup.workflows.new.one.enabled": (
        "false",
        '"nightly.build": { retention_days: 1 }\n',
        '"nightly.build": { retention_days: 1 }\n      new.one:\n        enabled: false\n',
    ),
    "retention.keep_tags": ("[a, 'b: c']", "\n    - release   # and\n    - demo", ' [a, "b: c"]'),
    "retention.keepLast": ("5", "    - demo\n", "    - demo\n    keep_last: 5\n"),
    "limits.max_bytes": ("2GB", "limits:\n", "limits:\n  max_bytes: 2GB\n"),
    "time.zone": ("Europe/Paris", "limits:\n", "limits:\ntime:\n  zone: Europe/Paris\n"),
    "project": ("a: b", "limits:\n", 'limits:\nproject: "a: b"\n'),
}


@pytest.mark.parametrize("key", CHANGES)
def test_one_value_changes_and_the_rest_of_the_file_stays(cli: Cli, file: Path, key: str) -> None:
    """Comments, order, spelling and the other values are as their writer left them."""
    value, old, new = CHANGES[key]
    file.write_text(WRITTEN, encoding="utf-8")
    file.chmod(0o640)
    before = shown(cli)
    done = cli.here("config", "set", key, value)
    assert done.code == 0, done.err
    expected = WRITTEN.replace(old, new, 1)
    assert file.read_text(encoding="utf-8") == expected
    assert stat.S_IMODE(file.stat().st_mode) == 0o640
    after = shown(cli)
    assert len({name for name in after if after[name] != before.get(name)}) == 1


def test_a_value_is_set_in_the_file_that_is_used_or_a_new_one(cli: Cli, file: Path) -> None:
    """The nearest project file above, else one here; with --user that of the user."""
    assert cli.here("config", "set", "profile", "agent").out == f"Wrote {file} (profile: agent)\n"
    (cli.folder / "below").mkdir()
    below = Cli(cli.folder / "below")
    assert below.here("config", "set", "profile", "debug").out == f"Changed {file} (profile: debug)\n"
    done = cli.here("config", "set", "--user", "limits.budget_bytes", "5GB", "--json").json
    assert done == {
        "file": str(cli.folder.parent / "config" / "stepkeep" / "config.yaml"),
        "is_new": True,
        "key": "limits.budget_bytes",
        "value": "5GB",
    }
    assert (shown(cli)["profile"], shown(cli)["limits.budget_bytes"]) == ("debug", 5_000_000_000)


@pytest.mark.parametrize(
    ("text", "words", "code", "told"),
    [
        ("", ["retention.keep_lst", "3"], "invalid_setting", "did you mean retention.keep_last?"),
        ("", ["retention.keep_last", "0"], "invalid_setting", "retention.keep_last must be"),
        ("", ["retention.keep_last", "[1"], "invalid_setting", "retention.keep_last"),
        ("profil: agent\n", ["profile", "agent"], "invalid_config", "unknown key 'profil'"),
        ("a: [\n", ["profile", "agent"], "invalid_config", "not valid YAML"),
        ("{profile: agent,\n}\n", ["retention.keep_last", "3"], "config_by_hand", "changed by hand"),
    ],
)
def test_what_does_not_fit_is_refused_and_the_file_stays(
    cli: Cli, file: Path, text: str, words: list[str], code: str, told: str
) -> None:
    """An unknown key, a value that makes no sense, a file that is wrong already, and one that is hard to change."""
    if text:
        file.write_text(text, encoding="utf-8")
    done = cli.here("config", "set", *words, "--json")
    assert (done.code, done.error["code"]) == (2, code)
    assert told in done.error["message"]
    assert (file.read_text(encoding="utf-8") if file.exists() else "") == text


@pytest.mark.parametrize("words", [["set", "profile"], ["set"], ["show", "profile", "x"], ["show", "--user"]])
def test_words_that_do_not_go_together_are_refused(cli: Cli, words: list[str]) -> None:
    assert cli.here("config", *words).code == 2
