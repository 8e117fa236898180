"""What is secret in a workflow, and that nothing of it is stored in any form."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stepkeep.errors import InvalidInput
from stepkeep.processes.child import Captured
from stepkeep.runs.workflow.definition import InvalidWorkflow, Workflow
from stepkeep.runs.workflow.expressions import BadExpression
from stepkeep.runs.workflow.handlers import Kept
from stepkeep.runs.workflow.inputs import redactor_of, start_values, value_of_step
from stepkeep.runs.workflow.parse import parse_workflow
from stepkeep.secrets import HIDDEN, Redactor
from stepkeep.storage.port import Blob
from tests.sampling import examples
from tests.workflow.flows import Flows


def parsed(text: str) -> Workflow:
    return parse_workflow(text, source="flow.yaml")


# --- what is a secret ------------------------------------------------------------------------------------------


def test_a_name_that_looks_secret_is_not_captured() -> None:
    """What a step sets is stored, so the file is refused, unless it says that this is no secret."""
    text = "name: n\nsteps: [{id: login, shell: echo t, capture: access_token}]\n"
    with pytest.raises(InvalidWorkflow, match=r"flow\.yaml:2: .*access_token looks like a secret"):
        parsed(text)
    declared = "name: n\nvars: {access_token: {value: '', secret: false}}\n"
    assert parsed(declared + text.partition("\n")[2]).steps[0].capture[0].name == "access_token"


def test_the_name_of_the_environment_variable_counts() -> None:
    """A variable is secret by its own name or by that of its `env`; `secret: false` comes before both."""
    flow = parsed(
        "name: n\nvars: {a: {env: MY_TOKEN}, b: {env: MY_TOKEN, secret: false}, c: {env: PLAIN}, password: x}\n"
        "steps: [{shell: 'true'}]\n"
    )
    assert flow.secret_names == {"a", "password"}


@pytest.mark.parametrize(
    "env",
    [
        "{GH_TOKEN: '${env.GH_TOKEN}'}",
        "{GH_TOKEN: , AUTH: 'Bearer ${env.GH_TOKEN}'}",
        "{GH_TOKEN: , PLAIN: 'x-${env.GH_TOKEN}'}",
        "{GH_TOKEN: }",
        "[GH_TOKEN]",
    ],
)
@pytest.mark.parametrize("where", ["file", "step"])
def test_secrets_from_the_environment(env: str, where: str) -> None:
    """However a step gets one: passed on, or as part of another variable."""
    file, step = (f"env: {env}\n", "") if where == "file" else ("", f", env: {env}")
    flow = parsed(f"name: n\n{file}steps: [{{id: a, shell: env{step}}}]\n")
    redactor = redactor_of(flow, {}, {"GH_TOKEN": "gh-12345", "HOME": "/home/me"})
    assert redactor.text("Bearer gh-12345 in /home/me") == f"Bearer {HIDDEN} in /home/me"


def test_a_plain_name_passed_on_under_a_secret_one() -> None:
    """The name that a step sees counts too; what every step gets anyway is no secret."""
    flow = parsed(
        "name: n\nenv: [PLAIN]\nsteps: [{id: a, shell: env, env: {TOKEN: '${env.PLAIN}${env.HOME}'}}]\n"
    )
    redactor = redactor_of(flow, {}, {"PLAIN": "gh-12345", "HOME": "/home/me"})
    assert redactor.text("gh-12345 /home/me") == f"{HIDDEN} /home/me"


def test_what_is_in_a_secret_list_or_mapping() -> None:
    """Each value is a secret; keys, true, false and null are not."""
    flow = parsed(
        "name: n\nvars: {api_keys: {value: []}, login: {value: {}, secret: true}}\nsteps: [{shell: 'true'}]\n"
    )
    secrets = {
        "api_keys": ["LSECRET9999", ["deep-er"]],
        "login": {"user": "somebody", "pin": 123456, "is_on": True, "no": None},
    }
    redactor = redactor_of(flow, secrets, {})
    assert redactor.text("LSECRET9999 deep-er somebody 123456") == " ".join([HIDDEN] * 4)
    assert redactor.text("user pin is_on true null") == "user pin is_on true null"


def test_a_variable_that_holds_a_secret_is_refused() -> None:
    """It could not be stored whole, so that after a resume it would be another; all of them are named."""
    flow = parsed(
        "name: n\nvars: {password: {env: PW}, url: x, list: [], n: 1, ok: s3}\nsteps: [{shell: 'true'}]\n"
    )
    given = {"url": "https://u:5312345@h", "list": '["a5312345"]', "n": "5312345"}
    with pytest.raises(InvalidInput) as caught:
        start_values(flow, given, {"PW": "5312345"})
    assert caught.value.code == "invalid_variable"
    for name in ("url", "list", "n"):
        assert f"variable '{name}' holds the value of a secret" in caught.value.message
    assert "'ok'" not in caught.value.message
    assert "5312345" not in caught.value.message
    values = start_values(flow, {"url": "https://h"}, {"PW": "5312345"})
    assert (values.variables["url"], values.variables["password"]) == ("https://h", HIDDEN)


def test_a_stored_variable_that_holds_a_secret_given_later(flows: Flows) -> None:
    """A run that would lose a variable is not resumed with such a secret, and is with another."""
    flows.write(
        """\
        name: n
        vars: {password: {env: PW}, url: x}
        steps:
          - {id: a, shell: 'test -e go'}
          - {id: b, shell: 'echo ${vars.url} >>log'}
        """
    )
    run = ["run", "flow.yaml", "--session", "s", "--var", "url=https://s3cr3t@h"]
    refused = flows.here(*run, PW="s3cr3t")
    assert (refused.code, flows.file.exists()) == (2, False)
    assert flows.here(*run, PW="other-one").code == 1
    (flows.folder / "go").touch()
    refused = flows.here("resume", "s", PW="s3cr3t")
    assert refused.code == 2
    assert "variable 'url' holds the value of a secret" in refused.err
    assert flows.here("resume", "s", PW="another").code == 0
    assert flows.log == ["https://s3cr3t@h"]


# --- what is hidden --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "hidden"),
    [
        (b"a 123456 b", b"a (hidden) b"),
        (bytearray(b"123456"), bytearray(b"(hidden)")),
        ({"123456", "b"}, {HIDDEN, "b"}),
        (frozenset({b"123456"}), frozenset({b"(hidden)"})),
        (123456, HIDDEN),
        (123456.5, HIDDEN),
        (Decimal("9.123456"), HIDDEN),
        (UUID(int=0x123456), HIDDEN),
        (datetime(2026, 1, 2, 3, 4, 5, 123456, UTC), HIDDEN),
        pytest.param(10**5000, HIDDEN, id="huge"),
        ({"k123456": [("123456", 1)]}, {f"k{HIDDEN}": [(HIDDEN, 1)]}),
        ([1, 2.5, True, None, "12345"], [1, 2.5, True, None, "12345"]),
    ],
)
def test_values_of_every_kind(value: Any, hidden: Any) -> None:
    """Texts and bytes lose the secret; what else shows it is hidden whole."""
    found = Redactor(["123456"]).value(value)
    assert found == hidden
    assert type(found) is type(hidden)


def test_a_time_as_it_is_stored() -> None:
    """Whichever way it is written."""
    redactor = Redactor(["2026-01-02T03:04"])
    assert redactor.value(datetime(2026, 1, 2, 3, 4, 5)) == HIDDEN


@pytest.mark.parametrize(
    "secret", ['p"q\\r/s', "zwölf\tund", "a<b>&'c", "grin😀ning", "\\\\\\\\a", "one\ntwo"]
)
def test_a_secret_as_json_writes_it(secret: str) -> None:
    """Also with characters escaped that need not be, in JSON within JSON, and what is left is JSON."""
    redactor = Redactor([secret])
    needless = "".join(
        f"\\u{ord(char):04X}" if ord(char) < 0x10000 else json.dumps(char)[1:-1] for char in secret
    )
    for text in (
        json.dumps({"k": secret}),
        json.dumps({"k": secret}, ensure_ascii=False),
        json.dumps({"k": f"before {secret} after"}).replace("<", "\\u003c").replace("/", "\\/"),
        *([] if secret.startswith("\\") else [f'{{"k": "{needless}"}}']),
    ):
        for found in (redactor.text(text), redactor.data(text.encode()).decode()):
            assert secret not in json.loads(found)["k"]
            assert HIDDEN in found
    if not secret.startswith("\\"):
        twice = json.dumps(json.dumps({"k": secret}))
        assert redactor.text(twice).count(HIDDEN) == 1


def test_backslashes_do_not_make_it_slow() -> None:
    """A flood of them is read once."""
    redactor = Redactor(["\\se\\cr\\et", "aaaa\\"])
    flood = b"a\\" * 200_000 + b"\\" * 1_000_000
    assert redactor.data(flood + b"secret").endswith(HIDDEN.encode())


@pytest.mark.full
@settings(max_examples=examples(100))
@given(secret=st.text(min_size=4, max_size=12), around=st.text(max_size=5))
def test_no_json_text_keeps_a_secret(secret: str, around: str) -> None:
    """Whatever the secret is, what is read from the JSON afterwards does not have it."""
    if len(secret.strip()) < 4 or secret in HIDDEN or HIDDEN in secret:
        return
    redactor = Redactor([secret])
    for is_ascii in (True, False):
        document = json.dumps(f"{around}{secret}{around}", ensure_ascii=is_ascii)
        assert secret not in redactor.text(document)
        assert secret not in redactor.value(json.loads(document))


def test_a_captured_field_is_redacted(flows: Flows) -> None:
    """What is read out of escaped JSON is a secret as before; a step that needs it fails, and says what to do."""
    flows.write(
        """\
        name: n
        vars: {password: {env: PW}}
        steps:
          - id: a
            shell: cat answer
            capture: {got: output.field}
          - {id: b, shell: 'printf %s ${vars.got}'}
        """
    )
    (flows.folder / "answer").write_text('{"field": "p\\u00e4ss\\u0077ort \\u003c1"}', encoding="utf-8")
    done = flows.here("run", "flow.yaml", "--session", "s", PW="pässwort <1")
    assert done.code == 1
    assert "${vars.got} has (hidden) in the place of a secret" in done.err + done.out
    assert flows.step("s", "a")["captured"] == {"got": HIDDEN}
    assert flows.step("s", "a")["output"]["stdout"] == f'{{"field": "{HIDDEN}"}}'


def test_the_names_of_steps_are_redacted(flows: Flows) -> None:
    """A secret that someone wrote into the name of a step is not stored with it."""
    flows.write(
        "name: n\nvars: {pin: {env: PIN, secret: true}}\nsteps: [{name: with 48151623, shell: 'true'}]\n"
    )
    assert flows.here("run", "flow.yaml", "--session", "s", PIN="48151623").code == 0
    assert "48151623" not in json.dumps(flows.state("s"))


# --- output that is not whole ----------------------------------------------------------------------------------


@pytest.mark.parametrize("field", ["stdout", "output"])
def test_output_that_was_cut_is_not_used(field: str) -> None:
    """A reference gets all of it or fails; the other stream is there."""
    kept = Kept(
        lambda data: Blob(digest="d", size=len(data), codec="none", stored_digest="d", data=data),
        Redactor([]),
    )
    kept.add("stdout", Captured(head=b"{}" * 10, tail=b"{}", size=500))
    kept.add("stderr", Captured(head=b"whole\n", size=6))
    flow = parsed("name: n\nsteps: [{id: a, shell: x}]\n")
    kind, load = flow.steps[0].kind, kept.contents.__getitem__
    with pytest.raises(BadExpression, match="its stdout has 500 bytes"):
        value_of_step(kind, kept.fields, field, load)
    assert value_of_step(kind, kept.fields, "stderr", load) == "whole"


def test_a_capture_of_a_flood_fails(flows: Flows) -> None:
    """The step that has it fails, and no variable is set."""
    flows.write("name: n\nsteps: [{id: a, shell: 'head -c 17000000 /dev/zero', capture: x}]\n")
    done = flows.here("run", "flow.yaml", "--session", "s")
    assert done.code == 1
    assert "capture x: its stdout has 17,000,000 bytes" in done.out
    assert flows.state("s")["variables"] == {}
