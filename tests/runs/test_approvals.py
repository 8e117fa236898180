"""Waiting for a person, interrupted steps, crashes that show, and resuming a plan from the shell."""

from __future__ import annotations

import asyncio
import gc
import json
import re
import shlex
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import stepkeep
from stepkeep import Conflict, InvalidInput, NotFound, PlanStep, Status, StepContext, aio
from stepkeep.storage.memory import MemoryBackend
from tests import interpreter
from tests.surfaces import mcp_clients
from tests.surfaces.test_cli import Cli


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:{tmp_path / 'store.db'}"


@pytest.fixture
def cli(tmp_path: Path) -> Cli:
    return Cli(tmp_path)


def asks(context: StepContext) -> Any:
    if context.step.id == "send":
        return {"sent to": context.ask("Send it?"), "draft": context.outputs["write"]}
    return "draft"


MAIL = [
    PlanStep("write"),
    PlanStep("send", dependencies=("write",)),
    PlanStep("file", dependencies=("send",)),
]


def test_a_step_waits_until_a_person_answers(url: str) -> None:
    """The run pauses; resumed without an answer it still waits, and with one the step gets it."""
    with stepkeep.open(url) as store:
        result = store.execute("mail", MAIL, asks)
        assert result.status is Status.PAUSED
        assert [(each.step_id, each.text) for each in result.waiting] == [("send", "Send it?")]
    with stepkeep.open(url) as store:
        again = store.execute("mail", MAIL, asks, resume=True)
        assert again.waiting[0].asked_at == result.waiting[0].asked_at
        answered = store.approve("mail", {"to": ["a@b.c"]})
        assert shlex.split(answered.next)[:3] == ["stepkeep", "resume", "mail"]
        assert answered.next.endswith("store.db --handler MODULE:FUNCTION")
        assert (answered.step, answered.question, answered.is_approved) == ("send", "Send it?", True)
        with pytest.raises(NotFound) as refused:
            store.approve("mail")
        assert refused.value.code == "nothing_to_approve"
    with stepkeep.open(url) as store:
        assert store.get("mail").info.status is Status.PAUSED
        result = store.execute("mail", MAIL, asks, resume=True)
        assert result.output("send") == {"sent to": {"to": ["a@b.c"]}, "draft": "draft"}
        assert result.success
        question = result.state.questions[0]
        assert (question.is_approved, question.answer) == (True, {"to": ["a@b.c"]})


def test_a_refusal_fails_the_step_and_may_be_taken_back(url: str) -> None:
    """Nobody tries again what a person refused; the reason is in the error."""
    with stepkeep.open(url) as store:
        store.execute("mail", MAIL, asks)
        store.refuse("mail", "not today")
        result = store.execute("mail", MAIL, asks, resume=True, retry=5)
        assert result.status is Status.FAILED
        assert result.error == "refused (not today): Send it?"
        assert isinstance(result.exception, Conflict)
        assert result.progress.steps[1].attempts == 1
        store.approve("mail", "all")
        assert store.execute("mail", MAIL, asks, resume=True).output("send")["sent to"] == "all"


def test_a_question_can_be_part_of_the_plan() -> None:
    """The step begins when it is approved; others that do not depend on it are done meanwhile."""
    plan = [PlanStep("deploy", ask="Deploy to production?"), PlanStep("other")]
    calls: list[str] = []

    def handle(context: StepContext) -> None:
        calls.append(context.step.id)

    with stepkeep.open("memory:") as store:
        assert store.execute("s", plan, handle).status is Status.PAUSED
        assert calls == ["other"]
        store.approve("s")
        assert store.execute("s", plan, handle, resume=True).success
        assert calls == ["other", "deploy"]


def test_several_questions_are_told_apart() -> None:
    """The step has to be named then."""
    plan = [PlanStep("a", ask="A?"), PlanStep("b", ask="B?")]
    with stepkeep.open("memory:") as store:
        assert len(store.execute("s", plan, asks).waiting) == 2
        with pytest.raises(InvalidInput) as refused:
            store.approve("s")
        assert refused.value.code == "ambiguous_question"
        store.approve("s", step="a")
        store.refuse("s")
        result = store.execute("s", plan, asks, resume=True, on_failure="continue")
        assert [entry.status for entry in result.progress.steps] == ["completed", "failed"]


def test_an_answer_may_come_too_late() -> None:
    """It is refused then, and the step fails."""
    now = [1_800_000_000_000_000]
    store = stepkeep.Store(MemoryBackend(), clock=lambda: now[0])

    def handle(context: StepContext) -> Any:
        return context.ask("Now?", timeout=60)

    asked = store.execute("s", [PlanStep("1")], handle).waiting[0]
    assert asked.expires_at is not None
    assert asked.asked_at is not None
    assert asked.expires_at - asked.asked_at == timedelta(seconds=60)
    now[0] += 61_000_000
    with pytest.raises(Conflict) as refused:
        store.approve("s")
    assert refused.value.code == "question_expired"
    result = store.execute("s", [PlanStep("1")], handle, resume=True)
    assert result.error == "nobody answered in time: Now?"


def test_the_question_of_a_plan_has_an_end() -> None:
    """After it the step fails, and those that depend on it are skipped; resumed by its stored plan too."""
    now = [1_800_000_000_000_000]
    store = stepkeep.Store(MemoryBackend(), clock=lambda: now[0])
    plan = [PlanStep("1", ask="Now?", ask_timeout=60), PlanStep("2", dependencies=("1",))]
    asked = store.execute("s", plan, asks).waiting[0]
    assert asked.expires_at is not None
    now[0] += 61_000_000
    result = store.execute("s", None, asks, resume=True)
    assert result.error == "nobody answered in time: Now?"
    assert [entry.status for entry in result.progress.steps] == ["failed", "skipped"]
    for wrong in (0, -1, float("inf"), "60"):
        with pytest.raises(InvalidInput):
            store.execute("t", [{"id": "1", "ask": "Now?", "ask_timeout": wrong}], asks)


def test_answers_by_command_and_asyncio(url: str, cli: Cli) -> None:
    """The command prints what was answered; a list of what waits says how."""

    async def run() -> None:
        async with await aio.open(url) as store:
            await store.execute("mail", MAIL, asks)
            await store.refuse("mail")

    asyncio.run(run())
    listed = cli.here("resume")
    assert "Send it?" not in listed.out  # it was answered
    done = cli.here("approve", "mail", "--with", '["me"]')
    assert done.code == 0
    assert "Approved, step send: Send it?" in done.out
    assert cli.here("approve", "mail").code == 3
    assert cli.here("approve", "mail", "--with", "{").code == 2
    assert "occurs twice" in cli.here("approve", "mail", "--with", '{"to": "me", "to": "you"}').err
    with stepkeep.open(url) as store:
        assert store.execute("mail", MAIL, asks, resume=True).output("send")["sent to"] == ["me"]


def test_what_waits_is_listed_with_the_command(url: str, cli: Cli) -> None:
    """`resume` says what is asked, and how to answer."""
    with stepkeep.open(url) as store:
        store.execute("mail", MAIL, asks)
    listed = cli.here("resume")
    assert "send: Send it?" in listed.out
    assert "stepkeep approve mail" in listed.out + listed.err
    refused = cli.here("approve", "mail", "--refuse", "--json")
    assert json.loads(refused.out)["is_approved"] is False


def test_approve_alone_lists_what_is_asked(url: str, cli: Cli) -> None:
    """Whoever does not know what to answer sees every question; an answer needs the session that gets it."""
    with stepkeep.open(url) as store:
        store.execute("mail", MAIL, asks)
        store.execute("s", [PlanStep("a", ask="A?"), PlanStep("b", ask="B?")], asks)
        store.session("other").save({}, status="paused")
    listed = cli.here("approve")
    assert listed.code == 0
    assert [line.split(maxsplit=2) for line in listed.out.splitlines()[1:]] == [
        ["s", "a", "A?"],
        ["s", "b", "B?"],
        ["mail", "send", "Send it?"],
    ]
    found = json.loads(cli.here("approve", "--json").out)
    assert [(each["key"], [question["text"] for question in each["waiting"]]) for each in found] == [
        ("s", ["A?", "B?"]),
        ("mail", ["Send it?"]),
    ]
    assert cli.here("approve", "--refuse").code == 2
    for key, step in (("s", "a"), ("s", "b"), ("mail", "send")):
        assert cli.here("approve", key, "--step", step).code == 0
    nothing = cli.here("approve")
    assert nothing.code == 3
    assert "no session waits for an answer" in nothing.err


@pytest.mark.full
def test_a_model_brings_the_answer(tmp_path: Path, url: str) -> None:
    """The tool saves what the user said."""
    with stepkeep.open(url) as store:
        store.execute("mail", MAIL, asks)

    async def answer() -> dict[str, Any]:
        async with mcp_clients.Client(mcp_clients.stdio_server(tmp_path / "store.db")) as client:
            result = await client.call_tool(
                "checkpoint_approve", {"sessionId": "mail", "approve": True, "answer": {"to": 1}}
            )
            assert result.structured_content is not None
            return dict(result.structured_content)

    answered = asyncio.run(answer())
    assert (answered["stepId"], answered["question"]) == ("send", "Send it?")
    with stepkeep.open(url) as store:
        assert store.execute("mail", MAIL, asks, resume=True).output("send")["sent to"] == {"to": 1}


# --- scripts


def mails(run: stepkeep.Run, calls: list[str]) -> Any:
    """Writes, asks, sends."""
    draft = run.step("write", lambda: calls.append("write") or "draft")
    to = run.ask("approve", "Send it?", timeout=60)
    return run.step("send", lambda text, to: calls.append("send") or f"{text} to {to}", draft, to)


def test_a_script_waits_for_a_person(url: str, cli: Cli) -> None:
    """It pauses, durably, as often as it is run; the answer is a finished step, and nothing is done twice."""
    calls: list[str] = []
    for _ in range(2):
        with stepkeep.open(url) as store:
            with pytest.raises(stepkeep.AwaitingAnswer) as waiting, store.run("mail") as run:
                mails(run, calls)
            assert store.get("mail").info.status is Status.PAUSED
        assert (waiting.value.session, waiting.value.question.text) == ("mail", "Send it?")
    listed = cli.here("resume")
    assert "approve: Send it?" in listed.out
    assert "stepkeep approve mail" in listed.out + listed.err
    refused = cli.here("resume", "mail")
    assert refused.code == 2
    assert "waits for a person: approve: Send it?: stepkeep approve mail" in refused.err
    answered = cli.here("approve", "mail", "--with", '["me"]')
    assert answered.out == "Approved, step approve: Send it?\n"
    assert answered.err == "Next: run the script again\n"
    assert cli.here("approve", "mail").code == 3  # nothing is asked any more
    with stepkeep.open(url) as store:
        with store.run("mail") as run:
            assert mails(run, calls) == "draft to ['me']"
            assert run.outputs["approve"] == ["me"]
        assert store.get("mail").info.status is Status.COMPLETED
    assert calls == ["write", "send"]


def test_a_script_that_waits_ends_with_a_message(tmp_path: Path) -> None:
    """Without a traceback; the command it names answers, from any folder."""
    program = """\
import stepkeep
with stepkeep.open("sqlite:store.db") as store, store.run("mail") as run:
    print("answered", run.ask("approve", "Send it?"))
"""
    (tmp_path / "script.py").write_text(program)

    def run() -> tuple[int, str, str]:
        done = subprocess.run(
            [sys.executable, "script.py"], cwd=tmp_path, capture_output=True, text=True, timeout=60
        )
        return done.returncode, done.stdout, done.stderr

    code, out, message = run()
    assert (code, out) == (1, "")
    command = re.fullmatch(
        "mail waits for a person: Send it[?] Answer with `stepkeep (approve mail .*)`, then run it again.\n",
        message,
    )
    assert command is not None
    assert interpreter.stepkeep(*shlex.split(command[1]), "--with", "7", cwd=Path("/")).returncode == 0
    assert run() == (0, "answered 7\n", "")


def test_a_refused_script_fails_and_may_be_taken_up(url: str) -> None:
    """`ask` raises the refusal as often as the script is run, until somebody says yes."""
    calls: list[str] = []
    with stepkeep.open(url) as store:
        with pytest.raises(stepkeep.AwaitingAnswer), store.run("mail") as run:
            mails(run, calls)
        store.refuse("mail", "not today")
        for _ in range(2):
            with pytest.raises(Conflict) as refused, store.run("mail") as run:
                mails(run, calls)
            assert refused.value.code == "refused"
            assert store.get("mail").info.error == "Conflict: refused (not today): Send it?"
        store.approve("mail", "all")
        with store.run("mail") as run:
            assert mails(run, calls) == "draft to all"


def test_a_script_is_answered_too_late() -> None:
    """The answer is refused, and so is the step."""
    now = [1_800_000_000_000_000]
    store = stepkeep.Store(MemoryBackend(), clock=lambda: now[0])
    with pytest.raises(stepkeep.AwaitingAnswer), store.run("mail") as run:
        mails(run, [])
    now[0] += 61_000_000
    with pytest.raises(Conflict) as late:
        store.approve("mail")
    assert late.value.code == "question_expired"
    with pytest.raises(Conflict) as late, store.run("mail") as run:
        mails(run, [])
    assert late.value.code == "question_expired"


def test_the_questions_of_a_loop_are_steps_in_order() -> None:
    """A name that comes again with other words is the next one; each is answered alone."""
    with stepkeep.open("memory:") as store:
        for answer in ("A", "B"):
            with pytest.raises(stepkeep.AwaitingAnswer), store.run("s") as run:
                any(run.ask("ok", f"{item}?") is None for item in "ab")
            store.approve("s", answer)
        with store.run("s") as run:
            assert [run.ask("ok", f"{item}?") for item in "ab"] == ["A", "B"]
            assert run.outputs == {"ok": "A", "ok #2": "B"}
        with pytest.raises(Conflict, match="argument text changed"), store.run("s") as run:
            run.ask("ok", "something else?")


def test_a_question_put_in_other_words_takes_the_place_of_the_first() -> None:
    """So that there is one answer to give."""
    with stepkeep.open("memory:") as store:
        for text in ("Sned it?", "Send it?"):
            with pytest.raises(stepkeep.AwaitingAnswer), store.run("s") as run:
                run.ask("ok", text)
        assert store.approve("s", {"exact": (b"bytes", 1 << 70)}).question == "Send it?"
        with store.run("s") as run:
            run.step("before", str)  # saved with an answer that plain JSON does not have
            assert run.ask("ok", "Send it?") == {"exact": (b"bytes", 1 << 70)}


def test_other_threads_may_go_on_while_one_waits() -> None:
    """What they finish is kept; a script that goes on after a question is not completed by that."""
    with stepkeep.open("memory:") as store:
        with store.run("s") as run, ThreadPoolExecutor(2) as pool:
            asked = pool.submit(run.ask, "ok", "Go on?")
            assert isinstance(asked.exception(), stepkeep.AwaitingAnswer)
            run.step("other", str)
        assert store.get("s").info.status is Status.PAUSED
        store.approve("s", "yes")
        with store.run("s") as run:
            assert run.outputs == {"other": ""}
            assert run.ask("ok", "Go on?") == "yes"
        assert store.get("s").info.status is Status.COMPLETED


@pytest.mark.parametrize("how", ["alone", "gathered", "grouped"])
def test_an_awaited_script_waits_too(url: str, how: str, caplog: pytest.LogCaptureFixture) -> None:
    """Also when the question is one of several tasks: these end in good order, and nothing else is told."""

    async def script() -> Any:
        async with await aio.open(url) as store, store.run("mail") as run:
            if how == "alone":
                return await run.ask("approve", "Send it?")
            if how == "gathered":
                return (await asyncio.gather(run.step("write", str), run.ask("approve", "Send it?")))[1]
            async with asyncio.TaskGroup() as group:
                group.create_task(run.step("write", str))
                asking = group.create_task(run.ask("approve", "Send it?"))
            return asking.result()

    with pytest.raises(stepkeep.AwaitingAnswer):
        asyncio.run(script())
    gc.collect()
    assert "never retrieved" not in caplog.text
    with stepkeep.open(url) as store:
        assert store.get("mail").info.status is Status.PAUSED
        store.approve("mail", 5)
    assert asyncio.run(script()) == 5


# --- interrupted steps


PROGRAM = """\
import os, sys, signal, stepkeep
from stepkeep import PlanStep

def handle(context):
    with open("keys", "a") as file:
        file.write(f"{context.step.id} {context.idempotency_key}\\n")
    if context.step.id == "2" and not os.path.exists("go"):
        os.kill(os.getpid(), signal.SIGKILL)
    return context.step.id

if __name__ == "__main__":
    plan = [PlanStep("1"), PlanStep("2", on_interrupted=sys.argv[1]), PlanStep("3", dependencies=("2",))]
    with stepkeep.open("sqlite:store.db") as store:
        store.execute("job", plan, handle, **eval(sys.argv[2]))
"""


def killed(folder: Path, what: str) -> None:
    """A run whose process is killed in the middle of its second step."""
    (folder / "work.py").write_text(PROGRAM)
    done = interpreter.start(["work.py", what, "{}"], cwd=folder, stderr=subprocess.PIPE)
    done.communicate(timeout=60)
    assert done.returncode == -signal.SIGKILL
    (folder / "go").touch()


def keys(folder: Path) -> list[str]:
    return (folder / "keys").read_text().splitlines()


@pytest.mark.full
@pytest.mark.parametrize(("what", "statuses"), [("retry", "completed"), ("skip", "skipped")])
def test_an_interrupted_step_is_done_again_or_skipped(
    tmp_path: Path, cli: Cli, what: str, statuses: str
) -> None:
    """As it says of itself; done again, it has the same idempotency key, and other steps and runs have others."""
    killed(tmp_path, what)
    done = cli("resume", "job", "--handler", "work:handle")
    assert done.code == 0, done.err
    with stepkeep.open(cli.url) as store:
        assert store.get("job").load().state["plan"][1]["status"] == statuses
    found = keys(tmp_path)
    assert len(found) == (4 if what == "retry" else 3)
    assert len(set(found)) == 3
    with stepkeep.open(cli.url) as store:
        plan = [PlanStep("1")]
        other: list[str] = []
        store.execute("job", plan, lambda context: other.append(context.idempotency_key))
        assert other[0] not in {line.split()[1] for line in found}


@pytest.mark.full
@pytest.mark.parametrize(("option", "status"), [([], "completed"), (["--refuse"], "skipped")])
def test_a_person_decides_about_an_interrupted_step(
    tmp_path: Path, cli: Cli, option: list[str], status: str
) -> None:
    """Resuming waits for the answer, as often as it is tried; then the step is done again, or skipped."""
    killed(tmp_path, "ask")
    for _ in range(2):
        waiting = cli("resume", "job", "--handler", "work:handle")
        assert waiting.code == 1
        assert "It was interrupted: do it again?" in waiting.out
    assert len(keys(tmp_path)) == 2
    assert cli.here("approve", "job", *option).code == 0
    assert cli("resume", "job", "--handler", "work:handle").code == 0
    with stepkeep.open(cli.url) as store:
        assert [step["status"] for step in store.get("job").load().state["plan"]] == [
            "completed",
            status,
            "completed",
        ]


@pytest.mark.full
def test_a_crash_shows(tmp_path: Path, cli: Cli) -> None:
    """`list` and `resume` name the step and what to do; JSON has it too."""
    killed(tmp_path, "retry")
    listed = cli.here("list")
    assert "crashed" in listed.out
    assert "stepkeep resume job --handler MODULE:FUNCTION" in listed.out + listed.err
    found = json.loads(cli.here("list", "--json").out)[0]
    assert found["status"] == "in_progress"
    assert found["crash"].startswith("crashed in step 2 (pid ")
    resumable = cli.here("resume")
    assert "crashed in step 2" in resumable.out
    assert json.loads(cli.here("resume", "--json").out)[0]["is_crashed"] is True
    assert cli("resume", "job", "--handler", "work:handle").code == 0
    assert "crashed" not in cli.here("list").out


@pytest.mark.full
def test_a_plan_needs_a_handler_to_be_resumed(tmp_path: Path, cli: Cli) -> None:
    """Whatever is missing is said, with the command."""
    killed(tmp_path, "retry")
    without = cli.here("resume", "job")
    assert without.code == 2
    assert "--handler MODULE:FUNCTION" in without.err
    for name in ("work", "work:nothing", "nowhere:handle"):
        assert cli("resume", "job", "--handler", name).code == 2
