"""Recovery points: instructions as data, as text and as a script that does what it says and nothing else."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import stepkeep
from stepkeep.recording.recovery import (
    CodeState,
    RecoveryPoint,
    ReplayCommand,
    captured,
    recovery_point,
)
from stepkeep.secrets import HIDDEN
from tests.sampling import examples

NASTY = "a'b\"c $(touch pwned) `touch pwned`\n# x ; rm"


@pytest.fixture
def session() -> Iterator[stepkeep.Session]:
    with stepkeep.open("memory:") as store:
        yield store.session("bug 7")


def test_a_recovery_point_has_all_instructions_in_order(session: stepkeep.Session) -> None:
    """Code, environment, commands, the seed's sentence, and the command that restores."""
    header = session.save({"n": 1})
    point = session.recovery_point(
        commit="4f2a91c",
        patches=["diff"],
        environment={"PATH": "/bin", "HOME": "/root", "LANG": "C"},
        commands=["make up"],
    )
    kinds = [type(step).__name__ for step in point.recovery_instructions]
    assert kinds == [
        "RestoreCodeState",
        "RestoreEnvironment",
        "ReplayCommand",
        "ManualInstruction",
        "ReplayCommand",
    ]
    assert point.checkpoint_id == header.id
    assert f"Restore debugging session bug 7 from checkpoint {header.id}" in point.as_text()
    assert msgspec.json.decode(msgspec.json.encode(point), type=RecoveryPoint) == point
    assert "HOME" not in point.as_text()


def test_a_recovery_point_without_code_has_only_the_session(session: stepkeep.Session) -> None:
    """What is not known is left out."""
    session.save({})
    assert len(session.recovery_point().recovery_instructions) == 2
    with pytest.raises(stepkeep.NotFound):
        session.recovery_point("tag:none")


def test_the_environment_is_an_allow_list_without_secrets() -> None:
    """Names that are not allowed are left out, and what looks like a secret is hidden."""
    environ = {
        "PATH": "/bin",
        "HOME": "/h",
        "API_TOKEN": "t",
        "DATABASE_URL": "postgresql://me:pass@db/x",
        "PLAIN_URL": "https://example.org/x",
        "JWT": "eyJhbGciOiJIUzI1NiJ9.x",
        "KEYBOARD": "de",
        "BIG": "x" * 100_000,
    }
    assert captured(environ) == {"PATH": "/bin"}
    allowed = [*environ, "ABSENT", "no name"]
    found = captured(environ, allowed)
    assert {name for name, value in found.items() if value == HIDDEN} == {
        "API_TOKEN",
        "DATABASE_URL",
        "JWT",
        "BIG",
    }
    assert found["KEYBOARD"] == "de"


def test_a_commit_that_is_none_is_refused(session: stepkeep.Session) -> None:
    """Nothing but hexadecimal digits gets into a script as a commit."""
    session.save({})
    for commit in ("--upload-pack=x", "main; rm -rf /", "", "abc"):
        with pytest.raises(stepkeep.InvalidInput) as error:
            session.recovery_point(commit=commit, patches=["x"])
        assert error.value.code == "invalid_commit"


def run_script(script: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run a script where `git` and `stepkeep` only write down what they were given."""
    tools = folder / "tools"
    tools.mkdir(exist_ok=True)
    for name in ("git", "stepkeep"):
        tool = tools / name
        tool.write_text(
            '#!/bin/sh\nprintf "%s|" "${0##*/}" "$@"\n[ "$1" = apply ] && cat\nprintf "\\n"\n',
            encoding="utf-8",
        )
        tool.chmod(0o755)
    return subprocess.run(
        ["/bin/sh", "-c", script],
        cwd=folder,
        env={"PATH": f"{tools}:/bin:/usr/bin"},
        capture_output=True,
        text=True,
        check=False,
    )


def test_the_script_does_what_it_says(tmp_path: Path) -> None:
    """Values reach the programs to the letter, hidden ones are left to the person, and nothing else is run."""
    point = recovery_point(
        NASTY,
        "cp_1",
        code=CodeState(commit="4f2a91c", patches=(NASTY,), env_vars={"TZ": NASTY, "API_KEY": HIDDEN}),
        commands=[ReplayCommand(command='printf "%s\\n" "$TZ"', working_dir=str(tmp_path))],
    )
    done = run_script(point.as_script(), tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout == (
        f"git|checkout|--detach|4f2a91c|\ngit|apply|{NASTY}\n{NASTY}\nstepkeep|restore|--session|{NASTY}|cp_1|\n"
    )
    assert not (tmp_path / "pwned").exists()
    assert "# set API_KEY yourself" in point.as_script()


@settings(max_examples=examples(30))
@given(st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), min_size=1))
def test_no_session_key_breaks_out_of_the_script(key: str) -> None:
    """Whatever a session is called, the script has one command for it."""
    script = recovery_point(key, "cp_1").as_script()
    done = subprocess.run(
        ["/bin/sh", "-c", 'stepkeep() { printf "%s" "$3"; }\n' + script],
        capture_output=True,
        check=False,
        env={"PATH": "/nowhere"},
    )
    assert (done.returncode, done.stdout.decode(), done.stderr) == (0, key, b"")
