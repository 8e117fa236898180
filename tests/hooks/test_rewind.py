"""`stepkeep rewind`: back to before a prompt, files and conversation together, and only what this agent changed."""

from __future__ import annotations

import hashlib
import json
import os
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.hooks.conftest import Agent, Answer
from tests.hooks.test_events import KEYS
from tests.hooks.test_files import make_repository

pytestmark = pytest.mark.full

EVENTS = {
    "claude-code": ("UserPromptSubmit", "PreToolUse", "Stop"),
    "gemini": ("BeforeAgent", "BeforeTool", "AfterAgent"),
    "codex": ("UserPromptSubmit", "PreToolUse", "Stop"),
    "copilot": ("UserPromptSubmit", "PreToolUse", "Stop"),
    "cursor": ("beforeSubmitPrompt", "preToolUse", "stop"),
    "opencode": ("chat.message", "tool.execute.before", "session.idle"),
}


def git(folder: Path, *words: str) -> None:
    subprocess.run(
        ["git", "-C", str(folder), "-c", "user.name=t", "-c", "user.email=t@example.org", *words],
        check=True,
        capture_output=True,
    )


def put(path: Path, content: bytes | str, mode: int = 0o644) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    path.chmod(mode)


def tree_of(folder: Path) -> dict[str, tuple[int, bytes]]:
    """Every file and link of a project but git's own, with permissions and content."""
    found: dict[str, tuple[int, bytes]] = {}
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if name.split("/")[0] == ".git":
            continue
        mode = path.lstat().st_mode
        if stat.S_ISLNK(mode):
            found[name] = (mode, os.fsencode(path.readlink()))
        elif stat.S_ISREG(mode):
            found[name] = (mode, path.read_bytes())
    return found


def hash_of_git(folder: Path) -> str:
    """A digest of everything in `.git`: names, permissions, contents."""
    digest = hashlib.sha256()
    for path in sorted((folder / ".git").rglob("*")):
        status = path.lstat()
        digest.update(f"{path.relative_to(folder)} {status.st_mode} {status.st_mtime_ns}".encode())
        if path.is_file():
            digest.update(path.read_bytes())
    return digest.hexdigest()


def shell(agent: Agent, command: str) -> None:
    """What the agent does between its hooks."""
    subprocess.run(["bash", "-c", command], cwd=agent.folder, check=True, capture_output=True)


def prompt(agent: Agent, text: str, **fields: Any) -> None:
    agent.hook("UserPromptSubmit", prompt=text, **fields)
    agent.settled()


def stop(agent: Agent, **fields: Any) -> None:
    agent.hook("Stop", last_assistant_message="Done.", **fields)
    agent.settled()


def rewind(agent: Agent, *words: str) -> Answer:
    return agent.stepkeep("rewind", *words)


def turns(agent: Agent, *words: str) -> list[dict[str, Any]]:
    answer = rewind(agent, *words, "--json")
    assert (answer.code, answer.err.count("error")) == (0, 0), answer.err
    found: list[dict[str, Any]] = json.loads(answer.out)
    return found


# --- the story ---------------------------------------------------------------------------------------------------


def dirty_repository(folder: Path) -> None:
    """Committed, edited, staged, untracked and ignored files, programs, links, folders, and names of all kinds."""
    make_repository(folder)
    put(folder / "edited.txt", "committed\n")
    put(folder / "staged.txt", "committed\n")
    put(folder / "kept.txt", "committed\n")
    put(folder / "removed.txt", "committed\n")
    put(folder / "run.sh", "#!/bin/sh\n", 0o755)
    put(folder / ".gitignore", "*.log\nbuild/\n")
    git(folder, "add", ".")
    git(folder, "commit", "-qm", "first")
    put(folder / "edited.txt", "committed\nmine\n")
    put(folder / "staged.txt", "committed\nstaged\n")
    git(folder, "add", "staged.txt")
    put(folder / "staged.txt", "committed\nstaged\nand more\n")
    (folder / "removed.txt").unlink()
    (folder / "run.sh").chmod(0o700)
    put(folder / "untracked.txt", b"\x00\xff mine")
    put(folder / "secret-tool", "x", 0o750)
    put(folder / "deep/er/é \n name.txt", "odd name")
    (folder / "link").symlink_to("edited.txt")
    (folder / "dangling").symlink_to("nowhere")
    put(folder / "debug.log", "ignored, and mine")
    put(folder / "build/out.bin", b"\x01ignored")


@pytest.mark.parametrize("client", list(EVENTS))
def test_the_first_turn_loses_nothing(agent: Agent, client: str) -> None:
    """An agent destroys all uncommitted work in its first turn; rewound, everything is there again, byte for byte."""
    asked, before_tool, ended = EVENTS[client]
    dirty_repository(agent.folder)
    before, untouched = tree_of(agent.folder), hash_of_git(agent.folder)
    agent.hook(asked, client)
    command = (
        "git checkout -- . && git reset -q --hard && git clean -fdxq && rm -rf untracked.txt deep debug.log build link"
        " dangling; echo gone > kept.txt; mkdir link; echo made > link/inside.txt"
    )
    shell_tool = {"tool_input": {"command": command}}
    answer = agent.hook(before_tool, client, **shell_tool)
    assert answer.message == ""
    assert hash_of_git(agent.folder) == untouched, "hooks only read"
    shell(agent, command)
    assert tree_of(agent.folder) != before
    agent.hook(ended, client)
    agent.settled()
    after, by_agent = tree_of(agent.folder), hash_of_git(agent.folder)

    (turn,) = turns(agent)
    assert {each["path"] for each in turn["files"]} >= {"edited.txt", "untracked.txt", "link/inside.txt"}
    plan = json.loads(rewind(agent, "1", "--dry-run", "--json").out)
    assert plan["is_dry_run"]
    assert tree_of(agent.folder) == after
    done = rewind(agent, "1")
    assert (done.code, done.err.count("error")) == (0, 0), done.err
    assert tree_of(agent.folder) == before
    assert hash_of_git(agent.folder) == by_agent, "the repository is git's"

    assert rewind(agent, "--undo").code == 0
    assert tree_of(agent.folder) == after
    assert rewind(agent, "1").code == 0
    assert tree_of(agent.folder) == before
    assert hash_of_git(agent.folder) == by_agent


# --- turns -------------------------------------------------------------------------------------------------------


def transcript(agent: Agent, *entries: dict[str, Any]) -> None:
    with agent.transcript.open("a", encoding="utf-8") as file:
        for entry in entries:
            file.write(json.dumps(entry) + "\n")


def said(kind: str, uuid: str, text: str) -> dict[str, Any]:
    return {
        "type": kind,
        "uuid": uuid,
        "message": {"role": kind, "content": [{"type": "text", "text": text}]},
    }


def three_turns(agent: Agent) -> None:
    """Three prompts with a transcript; each changes something."""
    make_repository(agent.folder)
    put(agent.folder / "a.txt", "zero\n")
    for number in (1, 2, 3):
        prompt(agent, f"Do thing {number} of the plan")
        put(agent.folder / "a.txt", "".join(f"{each}\n" for each in range(number)))
        put(agent.folder / f"new{number}.txt", "new\n")
        transcript(agent, said("user", f"user-{number}", f"Do thing {number} of the plan"))
        transcript(
            agent,
            {"type": "user", "uuid": f"tool-{number}", "message": {"content": [{"type": "tool_result"}]}},
        )
        transcript(
            agent, said("assistant", f"answer-{number}", "Done."), {"type": "summary", "summary": "no id"}
        )
        stop(agent)


def test_the_prompts_of_a_session_are_listed(agent: Agent) -> None:
    """Newest first, with files and lines, the state of the task, and where the transcript ends."""
    three_turns(agent)
    third, second, first = turns(agent)
    assert [each["number"] for each in (third, second, first)] == [3, 2, 1]
    assert [each["prompt"] for each in (second, first)] == [
        "Do thing 2 of the plan",
        "Do thing 1 of the plan",
    ]
    shown = {
        each["path"]: (each["kind"], each["added_lines"], each["removed_lines"]) for each in second["files"]
    }
    assert shown == {"a.txt": ("changed", 1, 0), "new2.txt": ("added", 1, 0)}
    assert (first["entry"], first["prompt_entry"]) == (None, "user-1")
    assert (third["entry"], third["prompt_entry"]) == ("answer-2", "user-3")
    assert third["status"] == "ended"
    text = rewind(agent).out
    assert text.index("Do thing 3") < text.index("Do thing 1")
    assert "M a.txt (+1 -0)" in text
    with agent.store() as store:
        found = store.get(KEYS["claude-code"]).history()
        kept = [(each.metadata["turn"], each.metadata["prompt"], each.metadata["entry"]) for each in found]
    assert kept[0] == (3, "Do thing 3 of the plan", "answer-3")


def test_the_conversation_is_forked_before_the_prompt(agent: Agent) -> None:
    """The dropped turn is named only where it is the only one: the client refuses otherwise."""
    three_turns(agent)
    session = KEYS["claude-code"].partition(":")[2]

    def commands(number: int) -> list[str]:
        found: list[str] = json.loads(rewind(agent, str(number), "--conversation", "--json").out)[
            "conversation"
        ]["commands"]
        return found

    flags = f"--resume={session} --fork-session --resume-session-at="
    assert commands(3) == [
        f"claude -p 'Do thing 3 of the plan' {flags}answer-2 --resume-drops-turn=user-3",
        "claude --continue",
    ]
    assert commands(2)[0] == f"claude -p 'Do thing 2 of the plan' {flags}answer-1"
    assert commands(1) == ["claude"]
    assert (agent.folder / "a.txt").read_text() == "0\n1\n2\n", "files stay"


@pytest.mark.parametrize(
    ("client", "command"), [("codex", "codex fork 019a-codex"), ("gemini", "gemini --resume gemini-7")]
)
def test_other_clients_have_commands_of_their_own(agent: Agent, client: str, command: str) -> None:
    make_repository(agent.folder)
    agent.hook(EVENTS[client][0], client)
    agent.settled()
    out = rewind(agent, "1", "--conversation").out
    assert command in out
    assert "choose the prompt" in out


def test_one_turn_in_the_middle_and_back(agent: Agent) -> None:
    """Everything since its prompt goes, in all turns; undo brings it back; doing both again leads to the same."""
    three_turns(agent)
    end = tree_of(agent.folder)
    for _ in range(2):
        assert rewind(agent, "2", "--code").code == 0
        assert sorted(tree_of(agent.folder)) == ["a.txt", "new1.txt"]
        assert (agent.folder / "a.txt").read_text() == "0\n"
        assert rewind(agent, "--undo").code == 0
        assert tree_of(agent.folder) == end
    assert rewind(agent, "3").code == 0
    assert rewind(agent, "2").code == 0, "what a rewind did counts as its own doing"
    assert sorted(tree_of(agent.folder)) == ["a.txt", "new1.txt"]
    prompt(agent, "Now do something else")
    put(agent.folder / "a.txt", "after\n")
    stop(agent)
    assert rewind(agent, "1").code == 0
    assert {name: content for name, (_, content) in tree_of(agent.folder).items()} == {"a.txt": b"zero\n"}
    assert rewind(agent, "7").code == 3


def test_a_turn_that_still_runs_or_was_interrupted(agent: Agent) -> None:
    """Its changes are those up to now, or up to the next prompt."""
    make_repository(agent.folder)
    put(agent.folder / "a.txt", "zero\n")
    prompt(agent, "Begin with the first thing")
    put(agent.folder / "a.txt", "one\n")
    (running,) = turns(agent)
    assert (running["status"], [each["path"] for each in running["files"]]) == ("running", ["a.txt"])
    prompt(agent, "No, do it the other way")
    second, first = turns(agent)
    assert (first["status"], [each["path"] for each in first["files"]]) == ("interrupted", ["a.txt"])
    assert second["files"] == []
    assert rewind(agent, "1").code == 0
    assert (agent.folder / "a.txt").read_text() == "zero\n"


def test_a_turn_without_files_can_fork_its_conversation(agent: Agent) -> None:
    """Outside of a repository there are no files; the conversation alone can go back."""
    agent.hook("UserPromptSubmit")
    answer = rewind(agent, "1")
    assert answer.code == 3
    assert "not captured" in answer.err
    assert rewind(agent, "1", "--conversation").code == 0
    assert "not captured" in rewind(agent).out


def test_what_became_visible_is_not_removed(agent: Agent) -> None:
    """A file that git ignored before the turn was not made by the agent because it stopped ignoring it."""
    make_repository(agent.folder)
    put(agent.folder / ".gitignore", "*.db\n")
    put(agent.folder / "data.db", "mine")
    prompt(agent, "Keep the database under version control")
    put(agent.folder / ".gitignore", "")
    put(agent.folder / "made.txt", "by the agent")
    stop(agent)
    assert rewind(agent, "1").code == 0
    assert (agent.folder / "data.db").read_text() == "mine"
    assert not (agent.folder / "made.txt").exists()


# --- others ------------------------------------------------------------------------------------------------------

A = {"session_id": "agent-a"}
B = {"session_id": "agent-b"}


def test_two_agents_take_turns_in_one_tree(agent: Agent) -> None:
    """Rewinding one keeps what the other did; where both worked on a file it refuses, with the names, and changes
    nothing."""
    make_repository(agent.folder)
    for name in ("a.txt", "b.txt", "both.txt"):
        put(agent.folder / name, "zero\n")
    prompt(agent, "Work on a and both", **A)
    put(agent.folder / "a.txt", "by a\n")
    put(agent.folder / "made-by-a.txt", "by a\n")
    stop(agent, **A)
    prompt(agent, "Work on b", **B)
    put(agent.folder / "b.txt", "by b\n")
    stop(agent, **B)
    assert rewind(agent, "claude-code:agent-a", "1").code == 0
    assert {name: content for name, (_, content) in tree_of(agent.folder).items()} == {
        "a.txt": b"zero\n",
        "b.txt": b"by b\n",
        "both.txt": b"zero\n",
    }
    prompt(agent, "Work on both now", **A)
    put(agent.folder / "both.txt", "by a\n")
    stop(agent, **A)
    prompt(agent, "Work on both too", **B)
    put(agent.folder / "both.txt", "by a\nby b\n")
    stop(agent, **B)
    before = tree_of(agent.folder)
    plan = rewind(agent, "claude-code:agent-a", "2", "--dry-run")
    assert "both.txt: last changed by claude-code:agent-b" in plan.out
    answer = rewind(agent, "claude-code:agent-a", "1")
    assert answer.code == 5
    assert "'both.txt' (claude-code:agent-b)" in answer.err
    assert tree_of(agent.folder) == before
    assert rewind(agent, "claude-code:agent-a", "2", "--force").code == 0
    assert (agent.folder / "both.txt").read_text() == "zero\n"
    assert rewind(agent, "claude-code:agent-a", "--undo").code == 0
    assert tree_of(agent.folder) == before
    assert rewind(agent, "claude-code:agent-b", "2").code == 0, "the last one may always go back"
    assert (agent.folder / "both.txt").read_text() == "by a\n"


def test_the_person_works_in_between(agent: Agent) -> None:
    """What a person changed after the agent, or removed, is a conflict; what the agent did not touch stays."""
    make_repository(agent.folder)
    for name in ("one.txt", "two.txt", "other.txt"):
        put(agent.folder / name, "zero\n")
    prompt(agent, "Change one and two please")
    put(agent.folder / "one.txt", "agent\n")
    put(agent.folder / "two.txt", "agent\n")
    stop(agent)
    put(agent.folder / "one.txt", "agent\nperson\n")
    put(agent.folder / "other.txt", "person\n")
    (agent.folder / "two.txt").unlink()
    answer = rewind(agent, "1")
    assert answer.code == 5
    assert "'one.txt'" in answer.err
    assert "'two.txt'" in answer.err
    assert "other.txt" not in answer.err
    prompt(agent, "Change one and two again")
    put(agent.folder / "one.txt", "agent\nperson\nagent\n")
    stop(agent)
    assert "'one.txt'" in rewind(agent, "1").err, "a turn found something else than the one before it left"
    assert rewind(agent, "2").code == 0
    assert (agent.folder / "one.txt").read_text() == "agent\nperson\n"


def test_two_agents_at_the_same_time(agent: Agent) -> None:
    """A file that a tool was told to write belongs to that agent; where nobody can tell, it is a conflict."""
    make_repository(agent.folder)
    for name in ("a.txt", "b.txt", "shell.txt"):
        put(agent.folder / name, "zero\n")
    prompt(agent, "Work on the first one", **A)
    prompt(agent, "Work on the second one", **B)
    for letter, fields in (("a", A), ("b", B)):
        path = agent.folder / f"{letter}.txt"
        put(path, f"by {letter}\n")
        agent.hook("PostToolUse", tool_name="Edit", tool_input={"file_path": str(path)}, **fields)
    put(agent.folder / "shell.txt", "by one of them\n")
    stop(agent, **A)
    stop(agent, **B)
    answer = rewind(agent, "claude-code:agent-a", "1")
    assert answer.code == 5
    assert "'shell.txt'" in answer.err
    assert "b.txt" not in answer.err
    put(agent.folder / "shell.txt", "zero\n")
    assert rewind(agent, "claude-code:agent-a", "1").code == 0
    assert (agent.folder / "a.txt").read_text() == "zero\n"
    assert (agent.folder / "b.txt").read_text() == "by b\n"


def test_worktrees_are_told_apart(agent: Agent, tmp_path: Path) -> None:
    """What a subagent does in a worktree is captured there before its first tool, and rewound there."""
    make_repository(agent.folder)
    put(agent.folder / "a.txt", "zero\n")
    git(agent.folder, "add", ".")
    git(agent.folder, "commit", "-qm", "first")
    worktree = tmp_path / "worktree"
    git(agent.folder, "worktree", "add", "-q", str(worktree))
    put(worktree / "mine.txt", "mine\n")
    prompt(agent, "Let a subagent work elsewhere")
    put(agent.folder / "a.txt", "changed\n")
    agent.hook("PreToolUse", tool_name="Edit", tool_input={"file_path": "a.txt"}, cwd=str(worktree))
    put(worktree / "a.txt", "changed there\n")
    (worktree / "mine.txt").unlink()
    stop(agent)
    (turn,) = turns(agent)
    assert sorted(each["path"] for each in turn["files"]) == ["a.txt", "a.txt", "mine.txt"]
    assert rewind(agent, "1").code == 0
    assert (agent.folder / "a.txt").read_text() == "zero\n"
    assert (worktree / "a.txt").read_text() == "zero\n"
    assert (worktree / "mine.txt").read_text() == "mine\n"
    assert rewind(agent, "--undo").code == 0
    assert (agent.folder / "a.txt").read_text() == "changed\n"
    assert (worktree / "a.txt").read_text() == "changed there\n"
    assert not (worktree / "mine.txt").exists()


def test_undo_is_done_again_by_another_undo(agent: Agent) -> None:
    """Taking back what was taken back rewinds again; where nothing is left to do, nothing happens."""
    three_turns(agent)
    end = tree_of(agent.folder)
    assert rewind(agent, "--undo").code == 3
    assert rewind(agent, "3").code == 0
    back = tree_of(agent.folder)
    assert rewind(agent, "3").code == 0, "it is there already"
    assert tree_of(agent.folder) == back
    for wanted in (end, back, end):
        assert rewind(agent, "--undo").code == 0
        assert tree_of(agent.folder) == wanted


def test_the_same_prompt_twice_is_two_turns(agent: Agent) -> None:
    """A person may say `go on` again and again; hooks that are installed twice tell of one prompt twice at once."""
    make_repository(agent.folder)
    for text in ("one\n", "two\n"):
        prompt(agent, "Go on with it please")
        put(agent.folder / "a.txt", text)
        stop(agent)
    assert [each["number"] for each in turns(agent)] == [2, 1]
    for _ in range(2):
        agent.hook("UserPromptSubmit", prompt="Now the third thing")
    agent.settled()
    assert [each["number"] for each in turns(agent)] == [3, 2, 1]


_STOPPED = """
import os, sys, stepkeep
from stepkeep.workspace.staging import Staging
place = Staging.place
def stopping(self, path, expected):
    place(self, path, expected)
    os.kill(os.getpid(), 9)
Staging.place = stopping
rewind = stepkeep.open(sys.argv[1]).get(sys.argv[2]).rewind
rewind.to(1) if sys.argv[3] == "to" else rewind.undo()
"""


@pytest.mark.parametrize("then", ["1", "--undo"])
def test_a_rewind_that_is_killed_is_told_finished_or_taken_back(agent: Agent, then: str) -> None:
    """The next command and `status` say so; doing it again leads to the new tree, taking it back to the old one."""
    make_repository(agent.folder)
    for name in ("a.txt", "b.txt"):
        put(agent.folder / name, "zero\n")
    before = tree_of(agent.folder)
    prompt(agent, "Change both of the files")
    for name in ("a.txt", "b.txt"):
        put(agent.folder / name, "one\n")
    stop(agent)
    after = tree_of(agent.folder)
    key = KEYS["claude-code"]
    subprocess.run(
        [sys.executable, "-c", _STOPPED, agent.url, key, "to"],
        cwd=agent.folder,
        env=agent.environment,
        check=False,
    )
    assert tree_of(agent.folder) not in (before, after)
    assert "stopped in the middle" in rewind(agent).err
    assert "stopped in the middle" in agent.stepkeep("status", key).out
    assert rewind(agent, then).code == 0
    assert tree_of(agent.folder) == (before if then == "1" else after)
    assert "stopped in the middle" not in rewind(agent).err
    assert "stopped in the middle" not in agent.stepkeep("status", key).out


def test_an_undo_that_is_killed_is_finished_by_another(agent: Agent) -> None:
    """It took nothing back yet, so the next one does not do the rewind again."""
    make_repository(agent.folder)
    for name in ("a.txt", "b.txt"):
        put(agent.folder / name, "zero\n")
    prompt(agent, "Change both of the files")
    for name in ("a.txt", "b.txt"):
        put(agent.folder / name, "one\n")
    stop(agent)
    after = tree_of(agent.folder)
    assert rewind(agent, "1").code == 0
    subprocess.run(
        [sys.executable, "-c", _STOPPED, agent.url, KEYS["claude-code"], "undo"],
        cwd=agent.folder,
        env=agent.environment,
        check=False,
    )
    assert tree_of(agent.folder) != after
    assert rewind(agent, "--undo").code == 0
    assert tree_of(agent.folder) == after
