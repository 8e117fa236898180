"""`stepkeep run`: steps, values, outputs, failures, and what is stored of them."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

import stepkeep
from tests.workflow.flows import Flows

GOLDEN = Path(__file__).parents[1] / "data" / "golden"

THREE = """\
name: three
vars: {who: world}
steps:
  - id: fetch
    name: Fetch the words
    shell: echo "hello ${vars.who}"; echo fetch >>log
    capture: greeting
  - id: check
    when: "${vars.who} == 'nobody'"
    shell: echo check >>log
  - id: tell
    shell: printf '%s!' ${vars.greeting}; echo tell >>log
"""

FAILING = """\
name: failing
steps:
  - {id: good, shell: echo good >>log}
  - {id: bad, shell: "echo before; echo 'it broke' >&2; exit 3"}
  - {id: never, shell: echo never >>log}
  - {id: nor, shell: echo nor >>log}
"""


def golden(name: str, text: str) -> None:
    """Compare what was printed with a golden file; durations and the end of a new key vary."""
    text = re.sub(r"\d+\.\d s", "N s", text)
    text = re.sub(r"-\d{8}-\d{6}-[0-9a-f]{4}", "-TIME", text)
    assert text == (GOLDEN / name).read_text(encoding="utf-8")


def test_a_run_as_plain_lines(flows: Flows) -> None:
    """Piped, a run is one line for each thing that happens; a new session has the name of the workflow."""
    flows.write(THREE)
    done = flows("run", "flow.yaml")
    assert (done.code, done.err) == (0, "")
    golden("run_lines.txt", done.out)
    assert flows.log == ["fetch", "tell"]


def test_a_run_as_json(flows: Flows) -> None:
    """With --json stdout is one document at the end."""
    flows.write(THREE)
    done = flows.here("run", "flow.yaml", "--json", "--session", "s", "--var", "who=you")
    assert (done.code, done.err) == (0, "Session s: three, 3 steps\n")
    run = done.json
    golden("run_document.txt", re.sub(r'(duration_ms": )\d+|(checkpoint": )".*"', r"\1\2N", done.out))
    assert [step["status"] for step in run["steps"]] == ["completed", "skipped", "completed"]
    assert flows.step("s", "tell")["output"]["stdout"] == "hello you!"


def test_a_failed_step_fails_the_run(flows: Flows) -> None:
    """The exit code is 1, what depends on the step is skipped, and the way to go on is told."""
    flows.write(FAILING)
    done = flows.here("run", "flow.yaml", "--session", "f f")
    assert done.code == 1
    golden("run_failed.txt", done.out)
    state = flows.state("f f")
    assert state["error"]["message"] == "ended with exit code 3: it broke"
    (failed,) = state["failed_steps"]
    assert (failed["id"], failed["output"]["stdout"]) == ("bad", "before\n")
    assert flows.here("list", "--json").json[0]["status"] == "failed"


def test_what_is_stored_reads_well(flows: Flows) -> None:
    """`diff` shows variables and steps with their kind and command."""
    flows.write(THREE)
    flows.here("run", "flow.yaml", "--session", "s")
    assert flows.here("diff", "s", "--from", "step-0", "--to", "latest").out.splitlines()[2:] == [
        "Variables changed:",
        '  + greeting: "hello world"',
        "Steps added:",
        '  + Step 1: shell: "echo \\"hello ${vars.who}\\"; echo fetch >>log"',
        "  + Step 3: shell: \"printf '%s!' ${vars.greeting}; echo tell >>log\"",
        "Also changed:",
        "  ~ current_step: 0 → 3",
        '  + skipped_steps[id="check"]: {"id": "check", "index": 1, …1 more}',
    ]


# --- values ----------------------------------------------------------------------------------------------------


def test_quotes_newlines_and_substitutions_in_a_variable(flows: Flows) -> None:
    """A value arrives in the command as it is, and starts nothing."""
    flows.write("name: n\nvars: {x: a}\nsteps:\n- {id: s, shell: 'printf %s ${vars.x} \"${vars.x}\"'}\n")
    value = 'it\'s "a"\n$(touch pwned) `touch pwned`; touch pwned #'
    assert flows("run", "flow.yaml", "--session", "s", "--var", f"x={value}").code == 0
    assert flows.step("s", "s")["output"]["stdout"] == value * 2
    assert not (flows.folder / "pwned").exists()


def test_outputs_are_used_by_later_steps(flows: Flows) -> None:
    """stdout, fields of JSON, exit codes and statuses of steps are values."""
    flows.write(
        """\
        name: outputs
        steps:
          - {id: json, shell: 'echo ''{"items": [{"name": "a  b"}], "n": 2}'''}
          - {id: off, shell: echo no, when: "${steps.json.output.n} == 3"}
          - {id: soft, shell: exit 4, allow_failure: true}
          - id: all
            shell: >-
              printf '%s|' ${steps.json.output.items.0.name} ${steps.off.status} ${steps.off.stdout}
              ${steps.soft.exit_code} ${steps.json.stdout}
            capture: {first: stdout, code: exit_code}
          - {id: last, shell: 'printf %s ${vars.code}', when: "${vars.code} == 0 and 'skipped' in ${vars.first}"}
        """
    )
    assert flows.here("run", "flow.yaml", "--session", "s").code == 0
    text = 'a  b|skipped||4|{"items": [{"name": "a  b"}], "n": 2}|'
    assert flows.step("s", "all")["output"]["stdout"] == text
    assert flows.state("s")["variables"] == {"first": text, "code": 0}
    assert flows.step("s", "last")["output"]["stdout"] == "0"


def test_a_value_that_is_not_there_fails_the_step(flows: Flows) -> None:
    """A field that the output lacks is told with what there is."""
    flows.write(
        """\
        name: lacking
        steps:
          - id: json
            shell: echo '{"a":1}'
          - {id: use, shell: "echo ${steps.json.output.b}"}
        """
    )
    done = flows.here("run", "flow.yaml")
    assert done.code == 1
    assert "[2/2] use: failed: steps.json.output has no field 'b'; it has a" in done.out


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (["whoo=x"], "there is no variable 'whoo': did you mean 'who'?"),
        (["n=many", "on=2"], "variable 'n' must be a whole number, not 'many'"),
        (["on=yes"], "variable 'on' must be true or false, not 'yes'"),
        (["list=1"], "variable 'list' must be a list in JSON"),
        ([], "variable 'must' has no value: give it with --var must=… or in $MUST"),
    ],
)
def test_variables_that_are_refused(flows: Flows, given: list[str], message: str) -> None:
    """Unknown names and values of another kind than the file's are found before anything runs."""
    flows.write(
        "name: n\nvars: {who: x, n: 1, on: true, list: [], must: {env: MUST}}\nsteps: [{shell: echo >>log}]\n"
    )
    done = flows.here("run", "flow.yaml", *(word for pair in given for word in ("--var", pair)))
    assert done.code == 2
    assert message in done.err
    assert not flows.file.exists()


def test_variables_have_the_kind_of_the_file(flows: Flows) -> None:
    """Numbers, booleans and lists given as text become what the file has; the environment may give them too."""
    flows.write("name: n\nvars: {n: 1, on: true, list: [], must: {env: MUST}}\nsteps: [{shell: 'true'}]\n")
    pairs = ["--var", "n=12", "--var", "on=false", "--var", 'list=["a"]']
    assert flows.here("run", "flow.yaml", "--session", "s", *pairs, MUST="m=1").code == 0
    assert flows.state("s")["variables"] == {"n": 12, "on": False, "list": ["a"], "must": "m=1"}


def test_a_value_that_is_no_text(flows: Flows) -> None:
    """Bytes that are no UTF-8 are refused before anything runs."""
    flows.write(THREE)
    done = flows("run", "flow.yaml", "--var", b"who=\xff")
    assert (done.code, "variable 'who' is not valid UTF-8 text" in done.err) == (2, True)


# --- secrets and the environment -------------------------------------------------------------------------------


def test_secrets_are_stored_nowhere(flows: Flows) -> None:
    """A secret reaches the steps that use it, and no byte of it the store or the terminal."""
    flows.write(
        """\
        name: secrets
        vars:
          api_key: {env: MY_KEY}
          harmless: {value: open-sesame, secret: true}
        env: [DB_PASSWORD]
        steps:
          - id: use
            env: {PART: mine}
            shell: |
              test ${vars.api_key} = k3y-of-$PART || exit 9
              echo ${vars.api_key} $${DB_PASSWORD}
              echo ${vars.harmless} >&2
          - {id: long, shell: 'i=0; while [ $i -lt 2000 ]; do echo $DB_PASSWORD; i=$((i+1)); done'}
          - {id: give, python: 'os:getenv', with: {key: DB_PASSWORD}}
          - {id: fail, shell: 'echo ${vars.api_key} >&2; exit 1'}
        """
    )
    done = flows("run", "flow.yaml", "--session", "s", MY_KEY="k3y-of-mine", DB_PASSWORD="pass-phrase-1")
    assert done.code == 1
    assert "ended with exit code 1: (hidden)" in done.out
    state = flows.state("s")
    assert state["variables"] == {"api_key": "(hidden)", "harmless": "(hidden)"}
    assert flows.step("s", "use")["output"]["stdout"] == "(hidden) (hidden)\n"
    assert flows.step("s", "give")["output"]["value"] == "(hidden)"
    with stepkeep.open(flows.url) as store:
        blob = store.engine.load_blob(flows.step("s", "long")["output"]["stdout_blob"])
        contents = [store.get("s").load(header.id).content() for header in store.get("s").history()]
    for secret in (b"k3y-of-mine", b"pass-phrase-1", b"open-sesame"):
        assert not any(secret in content for content in [blob, *contents, done.bytes])


def test_a_secret_that_is_a_word_of_the_file(flows: Flows) -> None:
    """A secret that would tear holes into the stored file is refused."""
    flows.write("name: n\nvars: {token: {}}\nsteps: [{id: a, shell: echo}]\n")
    done = flows.here("run", "flow.yaml", "--var", "token=steps")
    assert done.code == 2
    assert "is also a word of this file" in done.err


def test_only_what_is_allowed_of_the_environment(flows: Flows) -> None:
    """Steps see the usual variables, those that are named, and what Stepkeep tells them."""
    flows.write(
        """\
        name: env
        vars: {x: "a b"}
        env: {NAMED: , SET: "${vars.x} ${env.NAMED}"}
        steps:
          - {id: one, shell: env, env: [ALSO]}
          - {id: two, shell: 'printf "%s" "$${ALSO}$OWN"', env: {OWN: "${steps.one.exit_code}"}}
        """
    )
    environment = {"NAMED": "n", "ALSO": "also", "OTHER": "other", "MY_TOKEN": "t"}
    assert flows.here("run", "flow.yaml", "--session", "s", **environment).code == 0
    lines = flows.step("s", "one")["output"]["stdout"].splitlines()
    seen = dict(line.partition("=")[::2] for line in lines)
    told = {
        "STEPKEEP_WORKFLOW": "env",
        "STEPKEEP_RUN": "s",
        "STEPKEEP_STEP": "one",
        "STEPKEEP_ATTEMPT": "1",
    }
    assert seen.items() >= {**told, "NAMED": "n", "ALSO": "also", "SET": "a b n"}.items()
    assert not seen.keys() & {"OTHER", "MY_TOKEN", "OWN", "STEPKEEP_STORE", "PYTHONPATH"}
    assert flows.step("s", "two")["output"]["stdout"] == "0"


# --- python and agent steps ------------------------------------------------------------------------------------

MODULE = """\
import asyncio, os, signal, time
from datetime import date

def join(parts, *, end="."):
    print("joining")
    return {"text": "".join(parts) + end, "day": date(2026, 1, 2)}

async def later(x):
    await asyncio.sleep(0)
    return x

def broken():
    raise ValueError("no good")

def leave():
    os._exit(7)

def die():
    os.kill(os.getpid(), signal.SIGKILL)

def odd():
    return object()

def hang():
    time.sleep(600)
"""


@pytest.mark.full
def test_python_steps(flows: Flows) -> None:
    """A function of a module beside the file gets typed values and returns one; what it prints is kept."""
    (flows.folder / "tools.py").write_text(MODULE, encoding="utf-8")
    flows.write(
        """\
        name: py
        vars: {parts: [a, b]}
        steps:
          - {id: join, python: 'tools:join', with: {parts: '${vars.parts}', end: '${vars.parts.0}!'}}
          - {id: later, python: 'tools:later', with: {x: '${steps.join.output}'}, capture: {day: output.day}}
          - {id: text, shell: 'printf %s ${steps.later.output.text} ${vars.day}'}
        """
    )
    assert flows("run", "flow.yaml", "--session", "s").code == 0
    join = flows.step("s", "join")
    assert join["output"]["stdout"] == "joining\n"
    assert join["output"]["value"]["text"] == "aba!"
    assert flows.step("s", "later")["output"]["value"] == join["output"]["value"]
    assert flows.step("s", "text")["output"]["stdout"] == "aba!2026-01-02"


@pytest.mark.full
@pytest.mark.parametrize(
    ("function", "message"),
    [
        ("broken", "ValueError: no good"),
        ("leave", "ended with exit code 7"),
        ("die", "was killed by SIGKILL"),
        ("odd", "tools:odd returned what cannot be saved"),
        ("hang", "took longer than 1 s and was killed"),
        ("missing", "AttributeError: module 'tools' has no attribute 'missing'"),
    ],
)
def test_python_functions_that_fail(flows: Flows, function: str, message: str) -> None:
    """Whatever a function does, its step fails with a reason, and the run goes on to its end."""
    (flows.folder / "tools.py").write_text(MODULE, encoding="utf-8")
    flows.write(f"name: py\nsteps: [{{id: f, python: 'tools:{function}', timeout: 1s}}]\n")
    if function != "hang":
        flows.write(f"name: py\nsteps: [{{id: f, python: 'tools:{function}'}}]\n")
    done = flows.here("run", "flow.yaml", "--session", "s")
    assert done.code == 1
    assert message in done.out
    assert flows.state("s")["error"]["message"].startswith(message)


AGENT = """\
import sys
print("|".join(sys.argv[1:]), sys.stdin.read(), sep="#", end="")
"""


def test_agent_steps(flows: Flows) -> None:
    """The prompt is one argument of the command, or its input where the command has no place for it."""
    (flows.folder / "agent.py").write_text(AGENT, encoding="utf-8")
    (flows.folder / "stepkeep.yaml").write_text(
        f"agent: {{command: '{sys.executable} agent.py --as {{prompt}}'}}\n", encoding="utf-8"
    )
    text = "name: a\nvars: {x: 'it''s $(x)'}\n{}steps: [{id: a, agent: 'Say ${vars.x}\\n', stdin: more}]\n"
    flows.write(text.replace("{}", ""))
    assert flows.here("run", "flow.yaml", "--session", "one").code == 0
    assert flows.step("one", "a")["output"]["stdout"] == "--as|Say it's $(x)\\n#more"
    flows.write(text.replace("{}", f"agent: {{command: ['{sys.executable}', agent.py, -p]}}\n"))
    assert flows.here("run", "flow.yaml", "--session", "two").code == 0
    assert flows.step("two", "a")["output"]["stdout"] == "-p#Say it's $(x)\\n\nmore"


def test_a_prompt_is_no_option(flows: Flows) -> None:
    """A prompt that an agent would take for an option is refused, and goes through where it comes on stdin."""
    text = "name: a\nvars: {x: --all}\nagent: {command: [cat, WORD]}\nsteps: [{id: a, agent: '${vars.x}'}]\n"
    flows.write(text.replace("WORD", "'{prompt}'"))
    done = flows.here("run", "flow.yaml")
    assert (done.code, "the prompt begins with '-'" in done.out) == (1, True)
    flows.write(text.replace("WORD", "-"))
    assert flows.here("run", "flow.yaml", "--session", "s").code == 0
    assert flows.step("s", "a")["output"]["stdout"] == "--all"


def test_an_agent_that_is_not_installed(flows: Flows) -> None:
    """The message names the program."""
    flows.write("name: a\nagent: {command: [no-such-agent, '{prompt}']}\nsteps: [{id: a, agent: hi}]\n")
    done = flows.here("run", "flow.yaml")
    assert done.code == 1
    assert "there is no program 'no-such-agent'" in done.out


# --- hanging, flooding, retrying -------------------------------------------------------------------------------


def test_long_output_is_kept_as_a_blob(flows: Flows) -> None:
    """The state has both ends of it, the blob all, and later steps can use all of it."""
    flows.write(
        """\
        name: long
        steps:
          - {id: many, shell: 'i=0; while [ $i -lt 5000 ]; do echo line $i; i=$((i+1)); done'}
          - {id: count, shell: wc -l, stdin: "${steps.many.stdout}"}
          - {id: word, shell: 'echo ${steps.many.stdout} | wc -l', allow_failure: true}
        """
    )
    assert flows.here("run", "flow.yaml", "--session", "s").code == 0
    output = flows.step("s", "many")["output"]
    assert output["stdout"].startswith("line 0\n")
    assert output["stdout"].endswith("line 4999\n")
    assert "bytes left out" in output["stdout"]
    assert len(output["stdout"]) < 9000
    with stepkeep.open(flows.url) as store:
        whole = store.engine.load_blob(output["stdout_blob"])
        assert store.verify().is_intact
    assert len(whole) == output["stdout_bytes"] == sum(len(f"line {i}\n") for i in range(5000))
    assert flows.step("s", "count")["output"]["stdout"].strip() == "4999"  # without the newline at the end
    assert flows.step("s", "word")["output"]["stdout"].strip() == "5000"


@pytest.mark.full
def test_a_flood(flows: Flows) -> None:
    """Of 100 MB the first part is stored, and no step gets that as if it were all."""
    flows.write(
        """\
        name: flood
        steps:
          - {id: flood, shell: head -c 100000000 /dev/zero | tr '\\0' x}
          - {id: use, shell: 'echo ${steps.flood.stdout}'}
        """
    )
    done = flows.here("run", "flow.yaml", "--session", "s")
    assert done.code == 1
    assert "use: failed: ${steps.flood.stdout}: its stdout has 100,000,000 bytes, and the first" in done.out
    output = flows.step("s", "flood")["output"]
    assert (output["stdout_bytes"], output["stdout_is_cut"]) == (100_000_000, True)
    assert len(output["stdout"]) < 9000
    with stepkeep.open(flows.url) as store:
        assert len(store.engine.load_blob(output["stdout_blob"])) == 16 * 1024 * 1024


def test_a_step_that_hangs(flows: Flows) -> None:
    """At its time-out it is killed with all it started, and the step failed."""
    flows.write("name: h\nsteps: [{id: h, shell: 'echo wait; sleep 600 | cat', timeout: 300ms}]\n")
    done = flows.here("run", "flow.yaml")
    assert done.code == 1
    assert "h: failed: took longer than 0.3 s and was killed: wait" in done.out


def test_a_step_that_is_killed(flows: Flows) -> None:
    """The signal is named, of the shell and of what it ran."""
    flows.write("name: k\nsteps: [{id: a, shell: kill -9 $$}]\n")
    assert "a: failed: was killed by SIGKILL" in flows.here("run", "flow.yaml").out
    flows.write("name: k\nsteps: [{id: a, shell: \"sh -c 'kill -9 $$'; exit $?\"}]\n")
    assert "ended with exit code 137 (SIGKILL)" in flows.here("run", "flow.yaml").out


def test_retries(flows: Flows) -> None:
    """A step is tried as often as the file says, and knows which attempt it is."""
    flows.write(
        """\
        name: r
        steps:
          - id: flaky
            shell: echo $STEPKEEP_ATTEMPT >>log; test $STEPKEEP_ATTEMPT = 3
            retry: {attempts: 3, delay: 1ms}
        """
    )
    done = flows.here("run", "flow.yaml")
    assert done.code == 0
    assert flows.log == ["1", "2", "3"]
    assert done.out.count("failed, will try again: ended with exit code 1") == 2
    assert "flaky: running, attempt 3" in done.out


def test_steps_side_by_side(flows: Flows) -> None:
    """With --parallel, steps that do not need each other run at the same time."""
    flows.write(
        """\
        name: p
        steps:
          - {id: a, shell: 'mkfifo pipe 2>/dev/null; echo x >pipe', needs: []}
          - {id: b, shell: 'mkfifo pipe 2>/dev/null; cat pipe', needs: []}
          - {id: c, shell: 'echo ${steps.b.stdout}', needs: [a, b]}
        """
    )
    assert flows.here("run", "flow.yaml", "--session", "s", "--parallel", "2").code == 0
    assert flows.step("s", "c")["output"]["stdout"] == "x\n"


# --- the session -----------------------------------------------------------------------------------------------


def test_the_session_of_a_run(flows: Flows) -> None:
    """Name, profile, rules and policy come from the file."""
    flows.write(
        """\
        name: nightly
        cleanup: {retention_days: 1}
        checkpoint: {keep_last: 3, keep_within: 1h}
        steps: [{shell: 'true'}]
        """
    )
    assert flows.here("run", "flow.yaml", "--session", "s").code == 0
    with stepkeep.open(flows.url) as store:
        info = store.get("s").info
    assert (info.workflow, info.profile, info.is_test) == ("nightly", "workflow", False)
    assert info.policy == {"keep_last": 3, "keep_within": "1h", "cleanup": {"retention_days": 1}}
    assert info.fingerprint


@pytest.mark.parametrize("how", ["file", "flag"])
def test_a_test_run_is_gone_when_it_ends(flows: Flows, how: str) -> None:
    """AC12: with `test: true` or --test nothing is left."""
    flows.write(f"name: t\n{'test: true' if how == 'file' else ''}\nsteps: [{{shell: 'true'}}]\n")
    args = ["--test"] if how == "flag" else []
    assert flows.here("run", "flow.yaml", "--session", "t", *args).code == 0
    assert flows.here("list", "--json").json == []


def test_cleanup_that_is_off(flows: Flows) -> None:
    """AC11: `cleanup: {enabled: false}` keeps even a test run."""
    flows.write("name: t\ntest: true\ncleanup: {enabled: false}\nsteps: [{shell: 'true'}]\n")
    assert flows.here("run", "flow.yaml", "--session", "t").code == 0
    assert [each["key"] for each in flows.here("list", "--json").json] == ["t"]


def test_unfinished_work_is_not_run_over(flows: Flows) -> None:
    """A session whose run failed is resumed, or started over with --force."""
    flows.write(FAILING)
    flows.here("run", "flow.yaml", "--session", "s")
    done = flows.here("run", "flow.yaml", "--session", "s", "--json")
    assert (done.code, done.error["code"]) == (5, "unfinished_work")
    assert "stepkeep resume s" in done.error["message"]
    assert flows.log == ["good"]
    assert flows.here("run", "flow.yaml", "--session", "s", "--force").code == 1
    assert flows.log == ["good", "good"]


def test_a_finished_session_can_be_run_again(flows: Flows) -> None:
    """A second run in one session starts from the beginning, and its checkpoints are the newest."""
    flows.write(THREE)
    flows.here("run", "flow.yaml", "--session", "s")
    done = flows.here("run", "flow.yaml", "--session", "s", "--var", "who=again")
    assert done.code == 0
    assert flows.log == ["fetch", "tell", "fetch", "tell"]
    assert flows.state("s")["variables"]["greeting"] == "hello again"


def test_a_session_of_something_else(flows: Flows) -> None:
    """A workflow does not write into a session with other states."""
    flows.fill("s")
    flows.write(THREE)
    done = flows.here("run", "flow.yaml", "--session", "s")
    assert done.code == 5
    assert "session 's' holds no workflow" in done.err


@pytest.mark.parametrize("pair", ["who", "=x"])
def test_a_bad_pair_is_not_repeated(flows: Flows, pair: str) -> None:
    """What follows --var may be a secret, so a wrong one is not printed."""
    flows.write(THREE)
    done = flows.here("run", "flow.yaml", "--var", pair)
    assert done.code == 2
    assert "--var takes NAME=VALUE" in done.err


def test_a_store_that_fails_in_the_middle(flows: Flows, tmp_path: Path) -> None:
    """A save that fails stops the run, is not the step's failure, and how to go on is told."""
    flows.write(
        """\
        name: full
        steps:
          - {id: a, shell: echo a >>log}
          - {id: b, shell: 'echo b >>log; head -c 400000 /dev/urandom | od -An -tx1'}
          - {id: c, shell: echo c >>log}
        """
    )
    settings = tmp_path / "config" / "stepkeep" / "config.yaml"
    settings.parent.mkdir(parents=True)
    settings.write_text("limits: {max_bytes: 300KB}\n", encoding="utf-8")
    done = flows("run", "flow.yaml", "--session", "s")
    assert done.code == 1
    assert "Go on with: stepkeep resume s" in done.err
    assert done.err.splitlines()[-1].startswith("error: ")
    assert "b: failed" not in done.out
    settings.unlink()
    assert [step["id"] for step in flows.state("s")["completed_steps"]] == ["a"]
    assert flows.here("resume", "s").code == 0
    assert flows.log == ["a", "b", "b", "c"]


# --- size ------------------------------------------------------------------------------------------------------

LARGE = """\
name: large
steps:
  - {id: a, shell: head -c 3000 /dev/urandom | od -An -tx1, capture: small}
  - {id: b, shell: head -c 30000 /dev/urandom | od -An -tx1, capture: big}
"""


def test_a_large_state_is_warned_of(flows: Flows) -> None:
    """Above the first limit the largest values are named, once."""
    flows.write(LARGE)
    (flows.folder / "stepkeep.yaml").write_text("workflow: {warn_stored_bytes: 10KB}\n", encoding="utf-8")
    done = flows.here("run", "flow.yaml")
    assert done.code == 0
    assert done.err.count("warning: the state of this workflow takes") == 1
    assert "largest: vars.big 9" in done.err


@pytest.mark.full
def test_a_warning_does_not_disturb_the_live_view(flows: Flows) -> None:
    """The picture is taken away for it, and drawn again below."""
    flows.write(LARGE.replace("steps:\n", "steps:\n  - {id: z, shell: sleep 1}\n"))  # until it is drawn
    (flows.folder / "stepkeep.yaml").write_text("workflow: {warn_stored_bytes: 10KB}\n", encoding="utf-8")
    code, shown = flows.terminal("run", "flow.yaml")
    assert code == 0
    before, found, after = shown.partition("warning: the state of this workflow takes")
    assert found
    assert before.endswith("\x1b[2K")
    assert "✓" in after
    assert "last saved checkpoint " in after


@pytest.mark.parametrize("key", ["max_stored_bytes", "max_raw_bytes"])
def test_a_state_that_is_too_large_is_refused(flows: Flows, key: str) -> None:
    """Above the last limit the step fails with the key to change, and what was saved before stays."""
    flows.write(LARGE)
    (flows.folder / "stepkeep.yaml").write_text(
        f"workflow: {{warn_stored_bytes: 1KB, {key}: 40KB}}\n", encoding="utf-8"
    )
    done = flows.here("run", "flow.yaml", "--session", "s")
    assert done.code == 1
    assert f"raise workflow.{key}" in done.out
    assert set(flows.state("s")["variables"]) == {"small"}
