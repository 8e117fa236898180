"""Installing hooks: once, beside what is there, shown before it is done, and taken out again without a trace."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from stepkeep.errors import InvalidInput
from stepkeep.recording.coding_agents.installing import events_of, installed, uninstalled
from tests.hooks.conftest import Agent, Answer

FILES = {
    "claude-code": ".claude/settings.json",
    "gemini": ".gemini/settings.json",
    "codex": ".codex/hooks.json",
}
OTHER = {
    "model": "a-model",
    "permissions": {"allow": ["Bash(ls:*)"]},
    "hooks": {
        "PostToolUse": [{"matcher": "Edit|Write", "hooks": [{"type": "command", "command": "fmt ü"}]}],
        "Notification": [{"hooks": [{"type": "command", "command": "say hi"}]}],
    },
    "zeta": [1, 2],
}
COMMAND = ".claude/commands/checkpoint.md"
MESSY = """{
\t// mine, and "quoted"
\t"model": "x", /* why */ "limit": 1.00000000000000000001,
\t"hooks": {
\t\t"PostToolUse": [ // format
\t\t\t{"matcher": "Edit|Write", "hooks": [{"type": "command", "command": "fmt ü"}]},
\t\t],
\t\t"Notification": [{"hooks": [{"type": "command", "command": "say hi"}]}]   // loud
\t},
\t"url": "http://a//b", "url": "twice",
}
"""


def hooks(agent: Agent, verb: str, client: str, *options: str) -> Answer:
    return agent.stepkeep("hooks", verb, "--client", client, *options)


def settings(agent: Agent, client: str) -> Path:
    return agent.folder / FILES[client]


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def commands(document: dict[str, Any], event: str) -> list[str]:
    return [hook["command"] for group in document["hooks"][event] for hook in group["hooks"]]


@pytest.mark.full
@pytest.mark.parametrize("client", FILES)
def test_hooks_go_in_once_and_out_again(agent: Agent, client: str) -> None:
    """Other hooks and settings stay; repeating changes nothing; taking out gives the file back."""
    path = settings(agent, client)
    before = json.dumps(OTHER, indent=4, ensure_ascii=False) + "\n"
    write(path, before)

    shown = hooks(agent, "install", client, "--dry-run")
    assert shown.code == 0
    assert "+" in shown.out
    assert path.read_text(encoding="utf-8") == before, "a dry run changes nothing"

    assert hooks(agent, "install", client).code == 0
    document = json.loads(path.read_text(encoding="utf-8"))
    assert list(document) == list(OTHER)
    for event in events_of(client):
        ours = [
            line for line in commands(document, event) if f"stepkeep hook {event} --client {client}" in line
        ]
        assert len(ours) == 1
    assert "fmt ü" in commands(document, "PostToolUse")
    assert commands(document, "Notification") == ["say hi"]
    assert '    "model"' in path.read_text(encoding="utf-8"), "indented as it was"
    backup = path.with_name(path.name + ".before-stepkeep")
    assert backup.read_text(encoding="utf-8") == before

    after = path.read_text(encoding="utf-8")
    again = hooks(agent, "install", client, "--json")
    assert json.loads(again.out)["is_changed"] is False
    assert path.read_text(encoding="utf-8") == after

    status = json.loads(hooks(agent, "status", client, "--json").out)
    assert [file["missing"] for file in status["files"]] == [[], []]
    assert set(status["files"][0]["events"]) == set(events_of(client))

    assert hooks(agent, "uninstall", client).code == 0
    assert path.read_text(encoding="utf-8") == before


@pytest.mark.full
@pytest.mark.parametrize("client", FILES)
def test_hooks_go_into_no_file_and_into_the_users(agent: Agent, client: str) -> None:
    """The file is made where it is missing: in the project, or in the user's folder."""
    assert hooks(agent, "install", client, "--project").code == 0
    assert hooks(agent, "install", client, "--user").code == 0
    mine = agent.home / FILES[client]
    assert json.loads(mine.read_text(encoding="utf-8")) == json.loads(
        settings(agent, client).read_text(encoding="utf-8")
    )
    assert mine.stat().st_mode & 0o777 == 0o600


@pytest.mark.full
def test_the_installed_command_works(agent: Agent) -> None:
    """What was written into the file is what an agent can run: it saves, into the store that was asked for."""
    store = f"sqlite:{agent.folder / 'own store.db'}"
    assert hooks(agent, "install", "claude-code", "--store", store).code == 0
    document = json.loads(settings(agent, "claude-code").read_text(encoding="utf-8"))
    (line,) = commands(document, "Stop")
    answer = agent.raw(["/bin/sh", "-c", line], agent.input("Stop"), STEPKEEP_STORE="")
    assert (answer.code, answer.out, answer.err) == (0, "", "")
    assert (agent.folder / "own store.db").exists()
    assert re.search(r"--store 'sqlite:[^']*own store.db'$", line)


@pytest.mark.full
@pytest.mark.parametrize("remark", ["   // loud", ", // loud"], ids=["last", "comma"])
@pytest.mark.parametrize("end", ["\n", "\r\n"], ids=["LF", "CRLF"])
@pytest.mark.parametrize("client", FILES)
def test_comments_line_ends_and_order_stay(agent: Agent, client: str, end: str, remark: str) -> None:
    """Every line of the file is there afterwards, as it was; taking our hooks out gives its bytes back."""
    path = settings(agent, client)
    path.parent.mkdir(parents=True)
    before = MESSY.replace("   // loud", remark).replace("\n", end).encode()
    path.write_bytes(before)
    assert hooks(agent, "install", client).code == 0
    after = path.read_bytes()
    lines = before.replace(b",", b"").split(end.encode())
    assert [line for line in lines if line not in after.replace(b",", b"")] == []
    assert after.count(b"\r\n") == (after.count(b"\n") if end == "\r\n" else 0)
    assert after.count(f"hook {events_of(client)[-1]} --client {client}".encode()) == 1
    assert hooks(agent, "uninstall", client).code == 0
    assert path.read_bytes() == before


def without_comments(text: str) -> Any:
    """A settings file as a client reads it, with comments and commas at the end of lists."""
    text = re.sub(
        r'("(?:\\.|[^"\\])*")|//[^\n]*|/\*.*?\*/', lambda found: found[1] or "", text, flags=re.DOTALL
    )
    return json.loads(re.sub(r",(\s*[}\]])", r"\1", text))


@pytest.mark.full
def test_a_session_runs_through_a_settings_file_of_others(agent: Agent) -> None:
    """A client that runs all commands of each event gets its session saved, and the hooks of others their input."""
    path, theirs = settings(agent, "claude-code"), agent.folder / "theirs"
    path.parent.mkdir(parents=True)
    line = json.dumps(f"cat >>{shlex.quote(str(theirs))}")
    path.write_bytes(MESSY.replace('"fmt ü"', line).replace("\n", "\r\n").encode())
    assert hooks(agent, "install", "claude-code", "--store", agent.url).code == 0
    document = without_comments(path.read_bytes().decode())
    bare = {"PATH": "/usr/bin:/bin", "HOME": str(agent.home)}
    for event in events_of("claude-code"):
        for command in commands(document, event):
            done = subprocess.run(
                ["/bin/sh", "-c", command],
                input=agent.input(event),
                capture_output=True,
                env=bare,
                cwd="/",
                check=False,
            )
            assert (done.returncode, done.stderr) == (0, b"")
    assert json.loads(theirs.read_text(encoding="utf-8"))["hook_event_name"] == "PostToolUse"
    agent.settled()
    with agent.store() as store:
        (session,) = store.sessions()
        told = {header.trigger.event for header in store.get(session.key).history()}
        assert {"context_compaction_warning", "turn_end"} <= told


@pytest.mark.full
def test_commands_of_others_are_never_touched(agent: Agent) -> None:
    """One that calls us among other things is theirs: it stays, nothing is added beside it, and that is told."""
    theirs = "/usr/bin/stepkeep hook Stop --client claude-code; notify-send done"
    path = settings(agent, "claude-code")
    group = {"hooks": [{"type": "command", "command": theirs, "timeout": 30}]}
    write(path, json.dumps({"hooks": {"Stop": [group]}}, indent=2))
    done = hooks(agent, "install", "claude-code")
    assert "Stop: another command there calls us already" in done.err
    document = json.loads(path.read_text(encoding="utf-8"))
    assert document["hooks"]["Stop"] == [group]
    assert len(commands(document, "PreCompact")) == 1
    assert hooks(agent, "uninstall", "claude-code").code == 0
    assert json.loads(path.read_text(encoding="utf-8")) == {"hooks": {"Stop": [group]}}


@pytest.mark.full
def test_the_first_backup_stays(agent: Agent) -> None:
    """However often the file is changed, it can be had as it was before us."""
    path = settings(agent, "claude-code")
    before = json.dumps(OTHER, indent=2)
    write(path, before)
    for line in (["install"], ["install", "--store", "sqlite:x.db"], ["uninstall"], ["install"]):
        assert hooks(agent, line[0], "claude-code", *line[1:]).code == 0
    backup = path.with_name(path.name + ".before-stepkeep")
    assert backup.read_text(encoding="utf-8") == before


WRONG_STORES = {
    "memory:": "ends with each hook",
    "bogus://x": "no store",
    "postgresql://me:hunter2@db/x": "password",
    "postgresql://db/x?password=hunter2": "password",
}


@pytest.mark.full
@pytest.mark.parametrize("store", WRONG_STORES)
def test_a_store_that_hooks_cannot_use_is_refused(agent: Agent, store: str) -> None:
    """Nothing is written, and no password is repeated."""
    refused = hooks(agent, "install", "claude-code", "--store", store)
    assert refused.code == 2
    assert WRONG_STORES[store] in refused.err
    assert "hunter2" not in refused.err
    assert not settings(agent, "claude-code").exists()


@pytest.mark.full
def test_a_relative_store_means_the_same_everywhere(agent: Agent) -> None:
    """The agent may run its hooks in any folder."""
    for given, written in {
        "sqlite:x.db": f"sqlite:{agent.folder}/x.db",
        "files:runs?layout=phase": f"files:{agent.folder}/runs?layout=phase",
        "sqlite:~/x.db": f"sqlite:{agent.home}/x.db",
    }.items():
        assert hooks(agent, "install", "claude-code", "--store", given).code == 0
        document = json.loads(settings(agent, "claude-code").read_text(encoding="utf-8"))
        assert shlex.split(commands(document, "Stop")[0])[-2:] == ["--store", written]


@pytest.mark.full
def test_project_and_user_are_two_files(agent: Agent) -> None:
    """Both at once are a mistake."""
    refused = hooks(agent, "install", "claude-code", "--user", "--project")
    assert refused.code == 2
    assert "give one of them" in refused.err
    assert not settings(agent, "claude-code").exists()


@pytest.mark.full
def test_installed_hooks_run_from_any_environment(agent: Agent) -> None:
    """Installed where an environment is active, the command is found without it; the status runs it."""
    bin_folder = str(Path(sys.executable).parent)
    line = [sys.executable, "-m", "stepkeep", "hooks", "install", "--client", "claude-code"]
    assert agent.raw(line, b"", PATH=f"{bin_folder}:/usr/bin:/bin").code == 0
    document = json.loads(settings(agent, "claude-code").read_text(encoding="utf-8"))
    (command,) = commands(document, "UserPromptSubmit")
    assert Path(shlex.split(command)[0]).is_absolute()
    bare = {"PATH": "/usr/bin:/bin", "HOME": str(agent.home), "STEPKEEP_STORE": agent.url}
    done = subprocess.run(
        ["/bin/sh", "-c", command],
        input=agent.input("UserPromptSubmit"),
        capture_output=True,
        env=bare,
        cwd="/",
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, b"")
    with agent.store() as store:
        assert len(list(store.sessions())) == 1
    status = json.loads(agent.stepkeep("hooks", "status", "--client", "claude-code", "--json").out)
    assert status["files"][0]["problem"] is None


@pytest.mark.full
def test_the_status_tells_what_cannot_run(agent: Agent) -> None:
    """A program that is gone, hooks that are switched off, and one that lies in the project and is not tried."""
    path = settings(agent, "claude-code")

    def problem(text: str) -> str:
        write(path, text)
        found = json.loads(agent.stepkeep("hooks", "status", "--client", "claude-code", "--json").out)
        return str(found["files"][0]["problem"])

    gone = installed(None, "claude-code", "/nowhere/bin/stepkeep", None) or ""
    assert "cannot be run" in problem(gone)
    assert "disableAllHooks" in problem(gone.replace("{", '{"disableAllHooks": true,', 1))
    mark, trap = agent.folder / "mark", agent.folder / "stepkeep"
    trap.write_text(f"#!/bin/sh\ntouch {mark}\n", encoding="utf-8")
    trap.chmod(0o755)
    assert "was not tried" in problem(installed(None, "claude-code", str(trap), None) or "")
    assert not mark.exists()


@pytest.mark.full
def test_uninstalling_takes_our_command_file_too(agent: Agent) -> None:
    """One that somebody wrote stays."""
    assert hooks(agent, "install", "claude-code", "--command").code == 0
    assert "has lost the command /checkpoint" in hooks(agent, "uninstall", "claude-code").out
    assert not (agent.folder / COMMAND).exists()
    write(agent.folder / COMMAND, "mine\n")
    assert hooks(agent, "uninstall", "claude-code").code == 0
    assert (agent.folder / COMMAND).exists()


BROKEN = ["{", "[]", '{"hooks": []}', '{"hooks": {"Stop": {}}}', "\xff\xfe", '"text"']


@pytest.mark.full
@pytest.mark.parametrize("text", BROKEN)
def test_a_broken_file_is_not_touched(agent: Agent, text: str) -> None:
    """Whatever is wrong with it, it is named and stays."""
    path = settings(agent, "claude-code")
    path.parent.mkdir()
    path.write_bytes(text.encode("latin-1"))
    refused = hooks(agent, "install", "claude-code")
    assert refused.code == 2
    assert "settings file" in refused.err or "UTF-8" in refused.err
    assert path.read_bytes() == text.encode("latin-1")
    assert hooks(agent, "uninstall", "claude-code").code == 2
    assert hooks(agent, "status", "claude-code").code == 0


ODD = [
    '{"hooks": {"Stop": "xyz"}}',
    '{"hooks": {"Stop": null}}',
    '{"hooks": {}, "hooks": {"Stop": []}}',
    '{"hooks": {"Stop": [], "Stop": []}}',
]


@pytest.mark.parametrize("text", ODD)
def test_a_file_that_is_not_understood_is_refused(text: str) -> None:
    """Values of another shape, and keys of hooks that stand twice."""
    for change in (lambda: installed(text, "claude-code", "stepkeep", None), lambda: uninstalled(text)):
        with pytest.raises(InvalidInput) as refused:
            change()
        assert refused.value.code == "invalid_settings"


KEPT = [
    '{"limit": 1e400}',
    '{"limit": Infinity}',
    '{"limit": 1.00000000000000000001}',
    '{"limit": 1e-99999999999999999999}',
    '{"model": "a", "model": "b"}',
    '{"permissions": {"allow": [], "allow": ["x"]}}',
    '\ufeff{"a":1,"b":[1,2]}',
    '{"a": 1, "b": {"c": []}}\n\n',
]


@pytest.mark.parametrize("text", KEPT)
def test_what_nobody_could_write_back_stays_as_it_is(text: str) -> None:
    """Numbers nobody can hold and keys that stand twice: our hooks come and go, the text does not change."""
    once = installed(text, "claude-code", "stepkeep", None)
    assert once is not None
    assert once != text
    assert installed(once, "claude-code", "stepkeep", None) == once
    assert uninstalled(once) == text


def test_usual_numbers_and_other_keys_of_hooks_stay() -> None:
    """A fraction is written back as it was read; what stands beside the events is left alone."""
    before = '{"limit": 0.25, "many": 1e2, "hooks": {"enabled": true, "Later": "x"}}'
    after = json.loads(installed(before, "gemini", "stepkeep", None) or "")
    assert (after["limit"], after["many"]) == (0.25, 100)
    assert (after["hooks"]["enabled"], after["hooks"]["Later"]) == (True, "x")


@pytest.mark.full
def test_a_read_only_file_is_not_touched(agent: Agent) -> None:
    """Someone made it so on purpose."""
    path = settings(agent, "claude-code")
    write(path, "{}\n")
    path.chmod(0o444)
    refused = hooks(agent, "install", "claude-code")
    assert refused.code == 1
    assert "read-only" in refused.err
    assert path.read_text(encoding="utf-8") == "{}\n"


@pytest.mark.full
@pytest.mark.parametrize("link", [".claude", ".claude/settings.json", ".claude/commands"])
def test_no_link_leads_out_of_a_project(agent: Agent, tmp_path: Path, link: str) -> None:
    """A clone may bring links along: the settings of the user, or of anyone else, are not changed through them."""
    outside = tmp_path / "outside"
    outside.mkdir()
    target = outside / "settings.json" if link.endswith(".json") else outside
    place = agent.folder / link
    place.parent.mkdir(exist_ok=True)
    place.symlink_to(target)
    refused = hooks(agent, "install", "claude-code", "--project", "--command")
    assert (refused.code, "leads out of the project" in refused.err) == (2, True)
    assert not list(outside.iterdir())


@pytest.mark.full
def test_a_linked_file_stays_a_link(agent: Agent) -> None:
    """Settings that are kept elsewhere in the project are changed there."""
    kept = agent.folder / "dotfiles.json"
    kept.write_text("{}", encoding="utf-8")
    path = settings(agent, "claude-code")
    path.parent.mkdir()
    path.symlink_to(kept)
    assert hooks(agent, "install", "claude-code").code == 0
    assert path.is_symlink()
    assert "PreCompact" in json.loads(kept.read_text(encoding="utf-8"))["hooks"]


@pytest.mark.full
def test_the_command_file_comes_on_request(agent: Agent) -> None:
    """`--command` also writes `/checkpoint`, for the client that has such files."""
    shown = hooks(agent, "install", "claude-code", "--command", "--dry-run")
    assert "checkpoint.md would have the command /checkpoint" in shown.out
    assert not (agent.folder / ".claude").exists()
    assert hooks(agent, "install", "claude-code", "--command").code == 0
    assert "stepkeep create" in (agent.folder / COMMAND).read_text(encoding="utf-8")
    for client in ("gemini", "codex"):
        assert hooks(agent, "install", client, "--command").code == 2
        assert not settings(agent, client).exists(), "nothing is written when something is refused"


@pytest.mark.full
def test_the_command_file_names_the_program_and_the_store_of_the_hooks(agent: Agent) -> None:
    """What `/checkpoint` saves goes where the hooks save; installing again with another store replaces it."""
    for name in ("old.db", "own store.db"):
        assert hooks(agent, "install", "claude-code", "--command", "--store", f"sqlite:{name}").code == 0
    document = json.loads(settings(agent, "claude-code").read_text(encoding="utf-8"))
    program, _, options = commands(document, "Stop")[0].partition(" hook Stop --client claude-code")
    text = (agent.folder / COMMAND).read_text(encoding="utf-8")
    assert f'Run `{program} create "<the message>" --tags command{options}`' in text
    assert options == f" --store 'sqlite:{agent.folder}/own store.db'"
    assert f"Bash({program} create:*)" in text


@pytest.mark.full
def test_the_command_file_of_the_user_is_beside_their_settings(agent: Agent, tmp_path: Path) -> None:
    """Also where the client was told to keep them elsewhere."""
    line = ["hooks", "install", "--client", "claude-code", "--command", "--user"]
    kept = tmp_path / "kept"
    done = agent.raw([sys.executable, "-m", "stepkeep", *line], b"", CLAUDE_CONFIG_DIR=str(kept))
    assert done.code == 0
    assert sorted(path.name for path in kept.iterdir()) == ["commands", "settings.json"]


@pytest.mark.full
def test_another_command_file_is_told_before_anything_is_written(agent: Agent) -> None:
    """It stays, and so do the settings, unless `--force` replaces it."""
    write(agent.folder / COMMAND, "mine\n")
    for options in ([], ["--dry-run"]):
        refused = hooks(agent, "install", "claude-code", "--command", *options)
        assert refused.code == 2
        assert "--force" in refused.err
        assert not settings(agent, "claude-code").exists()
    assert (agent.folder / COMMAND).read_text(encoding="utf-8") == "mine\n"
    assert hooks(agent, "install", "claude-code", "--force").code == 2, "there is nothing to replace"
    assert hooks(agent, "install", "claude-code", "--command", "--force").code == 0
    assert "stepkeep create" in (agent.folder / COMMAND).read_text(encoding="utf-8")
    assert settings(agent, "claude-code").exists()


def test_hooks_of_an_older_install_are_replaced() -> None:
    """Another program path or store changes our entries in place of adding more."""
    once = installed(None, "claude-code", "stepkeep", None)
    twice = installed(once, "claude-code", "/opt/venv/bin/python -m stepkeep", "sqlite:x.db")
    assert twice is not None
    document = json.loads(twice)
    assert [len(groups) for groups in document["hooks"].values()] == [1] * len(events_of("claude-code"))
    assert uninstalled(twice) == "{}\n"
    assert uninstalled(None) is None
    assert uninstalled('{"a": 1}') == '{"a": 1}'


def test_a_group_shared_with_others_keeps_theirs() -> None:
    """Our command goes out of a group, the other commands in it stay."""
    group = {"matcher": "", "hooks": [{"type": "command", "command": "other"}]}
    text = json.dumps({"hooks": {"Stop": [group]}})
    ours = {"type": "command", "command": "stepkeep hook Stop --client claude-code"}
    mixed = json.dumps({"hooks": {"Stop": [{**group, "hooks": [*group["hooks"], ours]}]}})
    assert json.loads(uninstalled(mixed) or "") == json.loads(text)


@pytest.mark.full
@pytest.mark.parametrize("client", FILES)
def test_hooks_can_be_tried(agent: Agent, client: str) -> None:
    """Sample events of every kind, by what is installed: saved and answered; nothing is left in the real store."""
    before = json.loads(agent.stepkeep("hooks", "test", "--client", client, "--json").out)
    assert before["is_installed"] is False
    assert hooks(agent, "install", client).code == 0
    done = agent.stepkeep("hooks", "test", "--client", client, "--json")
    found = json.loads(done.out)
    assert (done.code, found["is_installed"], found["store"]) == (0, True, agent.url)
    assert [each["event"] for each in found["events"]] == list(events_of(client))
    assert [each["problem"] for each in found["events"]] == [None] * len(events_of(client))
    assert found["events"][-1]["checkpoints"] >= 3
    assert not agent.file.exists()
    shown = agent.stepkeep("hooks", "test", "--client", client)
    assert f"store:   {agent.url}" in shown.out


@pytest.mark.full
def test_a_trial_tells_what_does_not_work(agent: Agent) -> None:
    """What is installed for the user is gone."""
    path = agent.home / FILES["claude-code"]
    write(path, installed(None, "claude-code", "/nowhere/bin/stepkeep", None) or "")
    done = agent.stepkeep("hooks", "test", "--client", "claude-code")
    assert done.code == 1
    assert "not found" in done.out


# --- clients whose lists hold commands, not groups ---------------------------------------------------------------

FLAT = {"copilot": (".github/hooks/stepkeep.json", "bash"), "cursor": (".cursor/hooks.json", "command")}


@pytest.mark.full
@pytest.mark.parametrize("client", FLAT)
def test_hooks_go_into_flat_lists_too(agent: Agent, client: str) -> None:
    """Beside commands of others, which stay; repeating changes nothing; taking out gives the file back."""
    name, key = FLAT[client]
    path, event = agent.folder / name, events_of(client)[1]
    other = {key: "say hi", "type": "command"}
    before = json.dumps({"version": 1, "hooks": {event: [other], "notification": [other]}}, indent=2) + "\n"
    write(path, before)
    assert hooks(agent, "install", client).code == 0
    document = json.loads(path.read_text(encoding="utf-8"))
    assert document["version"] == 1
    for each in events_of(client):
        ours = [
            entry[key] for entry in document["hooks"][each] if f"hook {each} --client {client}" in entry[key]
        ]
        assert len(ours) == 1
    assert document["hooks"][event][0] == other
    assert json.loads(hooks(agent, "install", client, "--json").out)["is_changed"] is False
    status = json.loads(hooks(agent, "status", client, "--json").out)
    assert set(status["files"][0]["events"]) == set(events_of(client))
    assert status["files"][0]["problem"] is None
    assert hooks(agent, "uninstall", client).code == 0
    assert path.read_text(encoding="utf-8") == before
    path.unlink()
    assert hooks(agent, "install", client).code == 0
    assert json.loads(path.read_text(encoding="utf-8"))["version"] == 1
    assert hooks(agent, "install", client, "--user").code == 0


_OPENCODE = """
import { Stepkeep } from "./.opencode/plugins/stepkeep.js"
const plugin = await Stepkeep({ directory: process.cwd() })
await plugin["chat.message"]({ sessionID: "ses_1" }, { parts: [{ text: "Repair the login form" }] })
await plugin["tool.execute.before"]({ sessionID: "ses_1", tool: "bash" }, { args: { command: "rm kept.txt" } })
await plugin["tool.execute.after"]({ sessionID: "ses_1", tool: "bash", args: { command: "rm kept.txt" } }, {})
await plugin.event({ event: { type: "session.idle", properties: { sessionID: "ses_1" } } })
"""


@pytest.mark.full
def test_the_plugin_of_opencode_calls_us(agent: Agent) -> None:
    """Run by a real engine: the prompt, the tool and the end of the turn are saved, with the files."""
    subprocess.run(["git", "init", "--quiet", str(agent.folder)], check=True)
    write(agent.folder / "kept.txt", "mine")
    path = agent.folder / ".opencode/plugins/stepkeep.js"
    write(path, "export const Other = 1\n")
    assert hooks(agent, "install", "opencode").code == 2, "another file stays"
    path.unlink()
    assert hooks(agent, "install", "opencode").code == 0
    status = json.loads(hooks(agent, "status", "opencode", "--json").out)
    assert set(status["files"][0]["events"]) == set(events_of("opencode"))
    if (node := shutil.which("node")) is not None:
        write(agent.folder / "try.mjs", _OPENCODE)
        write(agent.folder / ".opencode/package.json", '{"type": "module"}')
        subprocess.run([node, "try.mjs"], cwd=agent.folder, env=agent.environment, check=True, timeout=120)
        agent.settled()
        with agent.store() as store:
            events = [each.trigger.event for each in store.get("opencode:ses_1").history()]
            assert events == ["turn_end", "prompt"]
            assert store.get("opencode:ses_1").rewind.turns()[0].prompt == "Repair the login form"
    assert json.loads(hooks(agent, "install", "opencode", "--json").out)["is_changed"] is False
    assert hooks(agent, "uninstall", "opencode").code == 0
    assert not path.exists()
