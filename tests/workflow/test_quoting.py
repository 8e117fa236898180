"""Values in shell commands come out as they are, and never become part of the command."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from stepkeep.runs.workflow.expressions import BadExpression, parse_template
from stepkeep.runs.workflow.quoting import PREFIX, shell_command
from tests.sampling import examples

NASTY = "a  b\n'\"`$(touch pwned)${HOME}\\\t*; touch pwned #é"

PLACES = {
    "bare": "printf %s ${vars.x}",
    "double": 'printf %s "${vars.x}"',
    "single": "printf %s '${vars.x}'",
    "joined": "printf %s ''${vars.x}\"\"",
    "after an apostrophe in a comment": "# it's a comment\nprintf %s ${vars.x}",
    "after an escaped quote": "printf %s \\'${vars.x} | cut -c2- | head -c -0 >/dev/null; printf %s ${vars.x}",
    "in a command substitution": 'out=$(printf %s. ${vars.x}); printf %s "${vars.x}"',
    "in a subshell": "(printf %s ${vars.x})",
    "in a function": "f() { printf %s ${vars.x}; }; f",
    "in a here-document": "cat <<END | head -c -1\n${vars.x}\nEND",
    "after a here-document": "cat >/dev/null <<'END'\nit's\nEND\nprintf %s ${vars.x}",
    "in a command substitution in a here-document": "cat <<END | head -c -1\n$(printf %s ${vars.x})\nEND",
    "after a shift": 'x=$((1 << 3)); printf %s "${vars.x}"',
    "in a case": "case x in x) printf %s ${vars.x};; esac",
    "in a here-document in a substitution": 'printf %s "$(cat <<END\n${vars.x}\nEND\n)"',
    "after backticks": "x=`echo it\\'s`; printf %s ${vars.x}",
    "after backticks in a here-document": 'cat <<END | tail -n +2 | head -c -1\n`echo "a"`\n${vars.x}\nEND',
    "in an indented here-document": "cat <<-END | head -c -1\n${vars.x}\n\tEND",
}


def run(text: str, value: str, folder: Path) -> str:
    command, refs = shell_command(parse_template(text))
    assert value not in command
    done = subprocess.run(
        ["/bin/sh", "-c", command],
        env={f"{PREFIX}{number}": value for number in range(1, len(refs) + 1)} | {"PATH": "/usr/bin:/bin"},
        cwd=folder,
        capture_output=True,
        check=True,
    )
    return done.stdout.decode()


@pytest.mark.parametrize("place", PLACES)
def test_a_nasty_value_comes_out_as_it_is(place: str, tmp_path: Path) -> None:
    """Quotes, newlines, substitutions and globs in a value mean nothing, wherever it stands."""
    assert run(PLACES[place], NASTY, tmp_path) == NASTY
    assert not (tmp_path / "pwned").exists()


@pytest.mark.full
@settings(max_examples=examples(60))
@given(value=st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=30))
@example("")
@example("-n")
def test_any_value_comes_out_as_it_is(value: str) -> None:
    """Whatever text a process can be given arrives unchanged."""
    text = "printf '%s|%s|%s' ${vars.x} \"${vars.x}\" '${vars.x}'"
    if not value:
        value = "x"  # an empty text is in every command
    command, _ = shell_command(parse_template(text))
    done = subprocess.run(
        ["/bin/sh", "-c", command],
        env={f"{PREFIX}1": value, "PATH": "/usr/bin:/bin"},
        capture_output=True,
        check=True,
    )
    assert done.stdout.decode() == "|".join([value] * 3)


@pytest.mark.parametrize(
    "text",
    [
        "echo $((${vars.x} + 1))",
        'echo "$(( 1 + ${vars.x} ))"',
        "cat <<'END'\n${vars.x}\nEND",
        "cat <<\\END\n${vars.x}\nEND",
        "cat <<END\n$((${vars.x}))\nEND",
        'printf %s "`printf %s "${vars.x}"`"',
        "echo `echo ${vars.x}`",
        "echo `echo \\`echo a\\` '${vars.x}'`",
        "cat <<END\n`echo ${vars.x}`\nEND",
        'printf %s "$(case x in x) printf %s ${vars.x};; esac)"',
        'printf %s "$(if true; then case x in (x) printf %s ${vars.x};; esac; fi)"',
        "cat <<END-1\n${vars.x}\nEND-1",
        "cat <<'E N D'\n${vars.x}\nE N D",
        "cat <<E'N'D\n${vars.x}\nEND",
        "cat <<1\n${vars.x}\n1",
        "cat <<END\n$(cat <<IN\n${vars.x}\nIN\n)\nEND",
        "x=$(cat <<END)\n${vars.x}\nEND\n",
        "printf %s $'it\\'s ${vars.x}'",
    ],
)
def test_places_where_no_value_can_stand(text: str) -> None:
    """Arithmetic would evaluate a value, backticks may split it, a quoted here-document shows none, and elsewhere the
    quotes cannot be told for sure: all are refused, with the line."""
    with pytest.raises(BadExpression) as refused:
        shell_command(parse_template(text))
    line = text[: text.index("${vars")].count("\n") + 1
    assert (f"line {line} of the command" in str(refused.value)) == (line > 1)


def test_arithmetic_is_not_advised_to_evaluate_a_variable() -> None:
    """A shell evaluates the text of a variable in arithmetic, and runs what is in it."""
    with pytest.raises(BadExpression) as refused:
        shell_command(parse_template("echo $((${vars.x} + 1))"))
    assert "env" not in str(refused.value)
    assert "expr" in str(refused.value)


def test_one_value_has_one_name() -> None:
    """A reference that occurs twice is passed once."""
    command, refs = shell_command(parse_template("echo ${vars.x} ${vars.y} ${vars.x}"))
    assert [str(ref) for ref in refs] == ["vars.x", "vars.y"]
    assert command.count(f"{PREFIX}1") == 2
