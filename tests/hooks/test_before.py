"""Nothing is lost before the first turn: the files are captured before an agent can change them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from stepkeep.recording.coding_agents.destruction import destroyed_by
from tests.hooks.conftest import Agent
from tests.hooks.test_files import KEY, captures, make_repository

COMMAND = "git checkout -- . && rm untracked.txt"


def git(agent: Agent, *words: str) -> None:
    subprocess.run(
        ["git", "-C", str(agent.folder), "-c", "user.name=t", "-c", "user.email=t@example.org", *words],
        check=True,
        capture_output=True,
    )


def write(agent: Agent, **texts: str) -> None:
    for name, text in texts.items():
        (agent.folder / name.replace("_", ".")).write_text(text, encoding="utf-8")


def before(agent: Agent, command: str, **fields: Any) -> str:
    """What the person is told before a command runs."""
    answer = agent.hook("PreToolUse", tool_input={"command": command}, **fields)
    assert (answer.code, answer.err) == (0, "")
    assert "hookSpecificOutput" not in answer.json, "the agent is never held up"
    return answer.message


def read(agent: Agent, checkpoint: str, path: str) -> bytes:
    with agent.store() as store:
        return store.get(KEY).files.at(checkpoint).read(path)


# --- which commands ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "command",
    [
        "git checkout -- .",
        "git -C sub reset --hard",
        "git restore file.txt",
        "git clean -fd",
        "git stash",
        "git switch --discard-changes main",
        "rm file.txt",
        "cd sub && rm -f ../file.txt",
        "mv file.txt other.txt",
        "find . -name '*.txt' -delete",
        "make; rm file.txt",
        "true || rm file.txt",
        "ls\nrm file.txt",
        "ls | xargs rm",
        "(cd sub; rm x)",
        "bash -c 'rm file.txt'",
        "sudo rm file.txt",
        "A=1 rm file.txt",
        "echo $(rm file.txt)",
        'echo "`rm file.txt`"',
        "for f in *; do rm $f; done",
        "echo gone > file.txt",
        "echo gone >file.txt",
        "echo gone >| file.txt",
        "echo gone &> file.txt",
        "cat <<'END' > file.txt\ntext\nEND",
        "sed -i s/a/b/ file.txt",
        "echo gone | tee file.txt",
        "python -c \"import shutil; shutil.rmtree('.')\"",
        "echo 'no end > file.txt",
        "x" * 30_000,
    ],
)
def test_commands_that_destroy_are_known(tmp_path: Path, command: str) -> None:
    """In any part of a compound command, behind prefixes, and where it cannot be taken apart."""
    (tmp_path / "file.txt").write_text("text", encoding="utf-8")
    assert destroyed_by(command, str(tmp_path)) is not None


@pytest.mark.parametrize(
    "command",
    [
        "",
        "ls -la",
        "git status",
        "git diff HEAD~2",
        "git log --oneline | head",
        "git commit -m 'one more'",
        "pytest -q > /dev/null 2>&1",
        "pytest -q 2>&1 | tail -5",
        "echo new > new.txt",
        "echo more >> file.txt",
        "find . -name '*.py'",
        "grep -rn 'a > b' .",
        "cat file.txt",
        "npm test",
    ],
)
def test_harmless_commands_are_known(tmp_path: Path, command: str) -> None:
    """They cost no capture. A redirection to a file that is not there yet destroys nothing."""
    (tmp_path / "file.txt").write_text("text", encoding="utf-8")
    assert destroyed_by(command, str(tmp_path)) is None


def test_what_a_command_names_is_known(tmp_path: Path) -> None:
    """By its absolute path, after changes of the directory, with stars; `git clean -x` takes what is ignored."""
    (tmp_path / "sub").mkdir()
    for name in ("a.txt", "b.txt", "sub/c.txt"):
        (tmp_path / name).write_text("text", encoding="utf-8")

    def named(command: str) -> list[str]:
        found = destroyed_by(command, str(tmp_path))
        assert found is not None
        return sorted(os.path.relpath(path, tmp_path) for path in found.paths)

    assert named("cd sub && rm c.txt missing.txt") == ["sub/c.txt"]
    assert named("rm *.txt") == ["a.txt", "b.txt"]
    assert named("rm -rf sub && echo > a.txt") == ["a.txt", "sub"]
    assert named("bash -c 'cd sub; rm c.txt'") == ["sub/c.txt"]
    taken = destroyed_by("git clean -fdx", str(tmp_path))
    assert taken is not None
    assert taken.takes_ignored


# --- captured before anything can happen -------------------------------------------------------------------------


@pytest.mark.full
def test_the_prompt_captures_before_the_agent_works(agent: Agent) -> None:
    """What was there when the person asked is in the store before the first tool runs."""
    make_repository(agent.folder)
    write(agent, edited_txt="mine", untracked_txt="mine too")
    agent.hook("UserPromptSubmit")
    assert before(agent, "ls") == "", "it waits for the capture, and has nothing to say"
    assert agent.spooled == []
    (found,) = captures(agent)
    assert found.trigger.event == "prompt"
    assert read(agent, found.id, "edited.txt") == b"mine"
    assert read(agent, found.id, "untracked.txt") == b"mine too"
    assert (found.metadata["turn"], found.metadata["tree"]) == (1, str(agent.folder.resolve()))


@pytest.mark.full
def test_a_command_that_destroys_is_waited_for(agent: Agent) -> None:
    """What changed since the prompt is captured before it; what did not change makes no checkpoint."""
    make_repository(agent.folder)
    write(agent, edited_txt="mine")
    agent.hook("UserPromptSubmit")
    assert before(agent, COMMAND) == ""
    assert len(captures(agent)) == 1, "nothing changed since the prompt"
    write(agent, edited_txt="mine, and the agent's", untracked_txt="new")
    assert before(agent, COMMAND) == ""
    found = captures(agent)[0]
    assert (found.trigger.event, found.message) == ("before_command", f"before {COMMAND}")
    assert read(agent, found.id, "edited.txt") == b"mine, and the agent's"
    assert read(agent, found.id, "untracked.txt") == b"new"
    agent.hook("Stop", last_assistant_message="Done.")
    agent.settled()
    with agent.store() as store:
        assert store.get(KEY).load().state["turn_number"] == 1


@pytest.mark.full
def test_an_agent_that_gave_no_prompt_is_captured_before_its_first_tool(agent: Agent) -> None:
    """Hooks may be installed while it works; also an edit is not made before there is a capture."""
    make_repository(agent.folder)
    write(agent, edited_txt="mine")
    answer = agent.hook("PreToolUse", tool_name="Edit", tool_input={"file_path": "edited.txt"})
    assert answer.message == ""
    (found,) = captures(agent)
    assert read(agent, found.id, "edited.txt") == b"mine"
    agent.hook("PreToolUse", tool_name="Read", tool_input={"file_path": "edited.txt"})
    assert len(captures(agent)) == 1


@pytest.mark.full
def test_what_a_command_names_is_captured_whatever_git_ignores(agent: Agent) -> None:
    """Files and folders that it names, and with `git clean -x` all that is ignored; never a secret, which is told."""
    make_repository(agent.folder)
    write(agent, a_log="one", b_log="two", _gitignore="*.log\nbuild/\n.env\n")
    (agent.folder / "build").mkdir()
    (agent.folder / "build" / "out.bin").write_bytes(b"\0made")
    (agent.folder / ".env").write_text("TOKEN=1", encoding="utf-8")
    agent.hook("UserPromptSubmit")
    assert before(agent, "rm a.log && rm -rf build") == ""
    found = captures(agent)[0]
    assert read(agent, found.id, "a.log") == b"one"
    assert read(agent, found.id, "build/out.bin") == b"\0made"
    with agent.store() as store:
        assert "b.log" not in store.get(KEY).files.at(found.id)
    told = before(agent, "git clean -fdx")
    assert ".env, which looks like a secret: what a command does to it cannot be undone" in told
    found = captures(agent)[0]
    assert read(agent, found.id, "b.log") == b"two"
    with agent.store() as store:
        assert ".env" not in store.get(KEY).files.at(found.id)


@pytest.mark.full
def test_a_capture_that_takes_too_long_holds_nobody_up(agent: Agent) -> None:
    """After two seconds the agent goes on, and the person is told what may not come back."""
    make_repository(agent.folder)
    write(agent, edited_txt="mine")
    program = (
        "import sys, time; from stepkeep.recording.coding_agents import file_capture, responses;"
        " responses.CAPTURE_SECONDS = 0.05; file_capture._save_now = lambda *_: time.sleep(60);"
        " from stepkeep.cli import main; sys.argv[0] = 'stepkeep'; sys.exit(main())"
    )
    command = [sys.executable, "-c", program, "hook", "PreToolUse", "--client", "claude-code"]
    answer = agent.raw(command, agent.input("PreToolUse"))
    assert answer.code == 0
    assert "not captured the files within 0.05 s" in answer.message
    assert f"what `{COMMAND}` changes may not come back" in answer.message


@pytest.mark.full
def test_a_capture_that_fails_is_told_in_the_client(agent: Agent) -> None:
    """By the next hook that answers, once; and it is in the log."""
    make_repository(agent.folder)
    (agent.folder / "stepkeep.yaml").write_text("workspace:\n  max_file_bytes: 10\n", encoding="utf-8")
    write(agent, large_txt="more than ten bytes", small_txt="few")
    agent.hook("UserPromptSubmit")
    told = before(agent, "ls")
    assert "Stepkeep cannot capture large.txt" in told
    assert "larger than 10 bytes" in told
    agent.hook("UserPromptSubmit", prompt="Something else to do now")
    assert before(agent, "ls") == ""


@pytest.mark.full
def test_names_that_look_like_secrets_are_left_out_and_told_once(agent: Agent) -> None:
    """Unless git tracks them, or a rule takes them in."""
    make_repository(agent.folder)
    for name in (".env", "server.pem", "id_rsa", "credentials.json", ".env.example", "tracked.key"):
        (agent.folder / name).write_text("x", encoding="utf-8")
    git(agent, "add", "tracked.key")
    agent.hook("UserPromptSubmit")
    told = before(agent, "ls")
    assert "looks like a secret: .env, credentials.json, id_rsa and 1 more file" in told
    assert "`!.env` in .stepkeepignore" in told
    with agent.store() as store:
        found = {entry.path for entry in store.get(KEY).files.at()}
    assert found == {".env.example", "tracked.key"}
    (agent.folder / ".stepkeepignore").write_text("!.env\n", encoding="utf-8")
    agent.hook("UserPromptSubmit", prompt="Something else to do now")
    assert before(agent, "ls") == "", "it was told"
    with agent.store() as store:
        assert ".env" in store.get(KEY).files.at()


@pytest.mark.full
def test_events_during_a_long_capture_wait_behind_it(agent: Agent) -> None:
    """They are answered at once and saved after it, in their order; the capture keeps its files."""
    make_repository(agent.folder)
    write(agent, edited_txt="mine")
    program = (
        "import sys, time; from stepkeep.workspace import capture; real = capture.capture;"
        " capture.capture = lambda *a, **k: (time.sleep(3), real(*a, **k))[1];"
        " from stepkeep.cli import main; sys.argv[0] = 'stepkeep'; sys.exit(main())"
    )
    command = [sys.executable, "-c", program, "hook", "UserPromptSubmit", "--client", "claude-code"]
    assert agent.raw(command, agent.input("UserPromptSubmit")).code == 0
    for number in range(2):
        agent.hook("PostToolUse", tool_input={"command": f"echo {number}"})
    agent.hook("PostToolUseFailure")
    agent.hook("Stop", last_assistant_message="Done.")
    agent.settled()
    with agent.store() as store:
        headers = list(reversed(list(store.get(KEY).history())))
        assert [each.trigger.event for each in headers] == ["prompt", "recoverable_error", "turn_end"]
        assert "files" in headers[0].contents
        names = [each["name"] for each in store.get(KEY).load(headers[1].id).details["command_outcomes"]]
    assert names[:2] == ["echo 0", "echo 1"]
    assert agent.problems() == []


@pytest.mark.full
def test_outside_of_git_files_are_captured_on_request(agent: Agent) -> None:
    """`hooks.workspace: always`; never a home."""
    (agent.folder / "stepkeep.yaml").write_text("hooks:\n  workspace: always\n", encoding="utf-8")
    write(agent, notes_txt="mine")
    agent.hook("UserPromptSubmit")
    assert before(agent, "rm notes.txt") == ""
    found = captures(agent)[-1]
    assert read(agent, found.id, "notes.txt") == b"mine"
    agent.home = agent.folder
    agent.hook("UserPromptSubmit", session_id="other")
    agent.settled()
    with agent.store() as store:
        assert all("files" not in each.contents for each in store.get("claude-code:other").history())


@pytest.mark.full
def test_a_client_that_names_no_folder_works_where_the_hook_runs(agent: Agent) -> None:
    """The tree is that of the hook's own directory; it is captured before the first tool there too."""
    make_repository(agent.folder)
    write(agent, edited_txt="mine")
    assert before(agent, "ls", cwd="") == ""
    (found,) = captures(agent)
    assert read(agent, found.id, "edited.txt") == b"mine"
