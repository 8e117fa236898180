"""Our hooks in the settings files of coding agents, and the `/checkpoint` command file.

`hooks.EVENT` is a list of groups, each with a list of commands, or for some clients a list of commands; opencode gets
a plugin instead. The text of a settings file is edited: only our entries come, change and go, and everything else stays
as it is, comments and line ends included. A command is ours if it does nothing but call us; one in which somebody calls
us among other things is theirs.
"""

from __future__ import annotations

import difflib
import json
import os
import re
import shlex
import subprocess
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from importlib import resources
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple

import msgspec

from stepkeep.codec import json_text
from stepkeep.codec.json_text import Node
from stepkeep.errors import BackendUnavailable, InvalidInput, StepkeepError
from stepkeep.recording.coding_agents.hook_events import (
    BEFORE_TOOL,
    CLAUDE_CODE,
    CLIENTS,
    CODEX,
    COPILOT,
    CURSOR,
    EVENTS,
    GEMINI,
    NOTIFY,
    OPENCODE,
)
from stepkeep.recording.coding_agents.hook_process import (
    HookProblem,
    log_file,
    program_by_path,
    recent_problems,
)
from stepkeep.secrets import without_secrets
from stepkeep.storage.disk import make_private_directory, put_in_place, temporary_beside, write_new
from stepkeep.storage.urls import database_file, directory_of

Scope = Literal["project", "user"]

_FILES: Final = {
    CLAUDE_CODE: (".claude/settings.json", ".claude/settings.json", "CLAUDE_CONFIG_DIR"),
    GEMINI: (".gemini/settings.json", ".gemini/settings.json", None),
    CODEX: (".codex/hooks.json", ".codex/hooks.json", "CODEX_HOME"),
    COPILOT: (".github/hooks/stepkeep.json", ".copilot/hooks/stepkeep.json", None),
    CURSOR: (".cursor/hooks.json", ".cursor/hooks.json", None),
    OPENCODE: (".opencode/plugins/stepkeep.js", ".config/opencode/plugins/stepkeep.js", None),
}
"""The file of a project, that of the user below the home directory, and what names the folder of that elsewhere."""

_MATCHERS: Final = {
    CLAUDE_CODE: "Bash|PowerShell|Edit|MultiEdit|NotebookEdit|Write|mcp__.*",
    GEMINI: "run_shell_command|replace|write_file|mcp_.*",
    CODEX: "Bash|apply_patch|mcp__.*",
}
"""Before which tools we are asked: those that may change files."""


def _entry(client: str, event: str, command: str) -> dict[str, Any]:
    """What stands in the list of an event."""
    if client == COPILOT:
        return {"type": "command", "bash": command, "timeoutSec": 10}
    if client == CURSOR:
        return {"command": command, "timeout": 10}
    # Gemini CLI counts milliseconds, the others seconds.
    hook = {"type": "command", "command": command, "timeout": 10_000 if client == GEMINI else 10}
    is_before = EVENTS[client][event] == BEFORE_TOOL
    return {**({"matcher": _MATCHERS[client]} if is_before else {}), "hooks": [hook]}


_ALL_EVENTS: Final = frozenset(event for events in EVENTS.values() for event in events)
_CALLS_US: Final = re.compile(r"""\bstepkeep(?:\.exe)?["']?\s+hook\s+([\w-]+).*--client\b""")
_TRY_SECONDS: Final = 20


# --- the text of a settings file -------------------------------------------------------------------------------


def events_of(client: str) -> tuple[str, ...]:
    """The events that are installed for a client."""
    return tuple(event for event in EVENTS[client] if event != NOTIFY)


def _store_option(store: str | None) -> str:
    return "" if store is None else f" --store {shlex.quote(store)}"


class _Entry(NamedTuple):
    """A command of ours in the text: the list of groups, the number of its group, and where it stands in that; None
    where the group is the command itself."""

    event: str
    groups: Node
    group: int
    hook: int | None
    command: Node
    text: str

    @property
    def program(self) -> str:
        return self.text.partition(" hook ")[0]


def installed(before: str | None, client: str, program: str, store: str | None) -> str | None:
    """The text with our hooks, once each, in place of those that may be there already.

    Raises:
        InvalidInput: (`invalid_settings`) the file holds no settings.
    """
    if client == OPENCODE:
        return plugin_text(program, store)
    text = before if before and before.strip() else _EMPTY.get(client, "{}\n")
    for event in events_of(client):
        command = f"{program} hook {event} --client {client}{_store_option(store)}"
        text = _with_hook(text, event, command, _entry(client, event, command))
    return before if before is not None and text == before else text


_VERSIONED: Final = '{\n  "version": 1\n}\n'
_EMPTY: Final = {COPILOT: _VERSIONED, CURSOR: _VERSIONED}


def _with_hook(text: str, event: str, command: str, group: dict[str, Any]) -> str:
    """The text with one command at an event, in the place of another of ours."""
    while len(ours := [each for each in _ours(text) if each.event == event]) > 1:
        text = _without(text, ours[-1])
    if ours:
        return text if ours[0].text == command else json_text.replaced(text, ours[0].command, command)
    if event in _called_by_others(text):
        return text
    root = json_text.parse(text)
    hooks = root.child("hooks")
    if hooks is None:
        return json_text.added(text, root, {event: [group]}, key="hooks")
    groups = hooks.value.child(event)
    if groups is None:
        return json_text.added(text, hooks.value, [group], key=event)
    return json_text.added(text, groups.value, group)


def uninstalled(before: str | None) -> str | None:
    """The text without our hooks; lists and objects that are empty then go too.

    Raises:
        InvalidInput: as `installed`.
    """
    if before is None or not before.strip():
        return before
    text = before
    while ours := _ours(text):
        text = _without(text, ours[-1])
    return text


def _without(text: str, entry: _Entry) -> str:
    """The text without one of our commands, and without what is empty then."""
    root = json_text.parse(text)
    hooks = root.child("hooks")
    assert hooks is not None
    groups = entry.groups.children or ()
    commands = groups[entry.group].value.child("hooks")
    if commands is not None and entry.hook is not None and len(commands.value.children or ()) > 1:
        return json_text.removed(text, commands.value, entry.hook)
    if len(groups) > 1:
        return json_text.removed(text, entry.groups, entry.group)
    if len(hooks.value.children or ()) > 1:
        return json_text.removed(text, hooks.value, _number_of(hooks.value, entry.event))
    return json_text.removed(text, root, _number_of(root, "hooks"))


def _number_of(container: Node, key: str) -> int:
    return [each.key for each in container.children or ()].index(key)


def _ours(text: str) -> list[_Entry]:
    """Our commands, in the order of the file.

    Raises:
        InvalidInput: (`invalid_settings`) the file holds no settings.
    """
    return [each for each in _commands(text) if _is_ours(each.text)]


def _called_by_others(text: str) -> set[str]:
    """The events at which a command of somebody else calls us."""
    found = (_CALLS_US.search(each.text) for each in _commands(text) if not _is_ours(each.text))
    return {match[1] for match in found if match is not None}


def _commands(text: str) -> Iterator[_Entry]:
    settings = _checked(text)
    root = json_text.parse(text)
    hooks = root.child("hooks")
    for event in (hooks.value.children or ()) if hooks is not None else ():
        for at, group in enumerate(event.value.children or ()):
            settled = (
                settings["hooks"][event.key][at] if isinstance(settings["hooks"][event.key], list) else {}
            )
            commands = group.value.child("hooks") if group.value.children is not None else None
            if commands is None:
                hooks_there: Iterable[tuple[int | None, Node, Any]] = [(None, group.value, settled)]
            else:
                nodes = enumerate(commands.value.children or ())
                hooks_there = [(number, each.value, settled["hooks"][number]) for number, each in nodes]
            for number, hook, found in hooks_there:
                for name in ("command", "bash"):
                    command = hook.child(name) if hook.children is not None else None
                    if command is not None and isinstance(found[name], str):
                        yield _Entry(str(event.key), event.value, at, number, command.value, found[name])


def _is_ours(command: str) -> bool:
    """Whether a command does nothing but call us, as we write it."""
    try:
        words = shlex.split(command)
    except ValueError:
        return False
    if "hook" not in words or " ".join(map(shlex.quote, words)) != command:
        return False
    at = words.index("hook")
    program, options = words[:at], words[at + 1 :]
    is_called = program[-2:] == ["-m", "stepkeep"] or (
        len(program) == 1 and Path(program[0]).name in ("stepkeep", "stepkeep.exe")
    )
    names, values = options[1::2], options[2::2]
    return (
        is_called
        and bool(options)
        and options[0] in _ALL_EVENTS
        and names in (["--client"], ["--client", "--store"])
        and len(values) == len(names)
        and values[0] in CLIENTS
    )


def _checked(text: str) -> dict[str, Any]:
    """The settings, if they have the shape that is known.

    Raises:
        InvalidInput: (`invalid_settings`) they have not.
    """
    try:
        found = json_text.read(text)
        root = json_text.parse(text)
    except (ValueError, RecursionError) as exc:
        raise _invalid(f"is not valid JSON: {exc}") from exc
    hooks = found.get("hooks", {}) if isinstance(found, dict) else None
    if not isinstance(hooks, dict) or not all(_has_known_shape(*each) for each in hooks.items()):
        raise _invalid("has no `hooks` of the known shape")
    member = root.child("hooks")
    for container in (root, *(() if member is None else (member.value,))):
        keys = [each.key for each in container.children or ()]
        double = next(
            (key for key in (keys if container is not root else ["hooks"]) if keys.count(key) > 1), None
        )
        if double is not None:
            raise _invalid(f"has the key {double!r} twice in one place: remove one first")
    return dict(found)


def _invalid(problem: str) -> InvalidInput:
    return InvalidInput(f"the settings file {problem}", code="invalid_settings")


def _has_known_shape(event: str, groups: Any) -> bool:
    """Events of ours have lists; what else may stand beside them is left alone, unless it is an object."""
    return isinstance(groups, list) if event in _ALL_EVENTS else not isinstance(groups, dict)


# --- the file of the /checkpoint command -----------------------------------------------------------------------

COMMAND_FILE: Final = "checkpoint.md"


def command_text(program: str = "stepkeep", store: str | None = None) -> str:
    """The `/checkpoint` command as a Markdown command file: how it calls us, and with which store if it names one."""
    return _template().replace("{program}", program).replace("{store}", _store_option(store))


def install_command(project: str | os.PathLike[str], *, overwrite: bool = False) -> Path:
    """Write the `/checkpoint` command into a project, and return its path. Repeating it is harmless.

    Raises:
        InvalidInput: another file is there (code `file_exists`), and `overwrite` was not given.
        BackendUnavailable: it could not be written.
    """
    path = Path(project, ".claude", "commands", COMMAND_FILE)
    _check_inside(path.parent, Path(project))
    if not overwrite:
        _check_command(path)
    _write_command(path, command_text())
    return path


def _check_command(path: Path) -> None:
    """Refuse to replace a link, or another file than one that we wrote before, for whichever store."""
    with _export_errors(path):
        is_free = not path.is_symlink() and (not path.exists() or _is_our_command(path))
    if not is_free:
        raise InvalidInput(
            f"{path} exists and is another file: keep it, or use --force to replace it", code="file_exists"
        )


def _write_command(path: Path, text: str) -> None:
    with _export_errors(path):
        if path.is_symlink():
            path.unlink()
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


def _template() -> str:
    return resources.files(__package__).joinpath(COMMAND_FILE).read_text(encoding="utf-8")


def _is_our_command(path: Path) -> bool:
    """Whether a file says what ours says, whichever program and store it names."""
    pattern = re.escape(_template())
    for differing in ("{program}", "{store}"):
        pattern = pattern.replace(re.escape(differing), ".*")
    return re.fullmatch(pattern, path.read_text(encoding="utf-8", errors="replace")) is not None


@contextmanager
def _export_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as exc:
        raise BackendUnavailable(
            f"{path} could not be written: {exc}", code="export_failed", retryable=False
        ) from exc


# --- the plugin for opencode -----------------------------------------------------------------------------------

PLUGIN_FILE: Final = "opencode.js"


def plugin_text(program: str, store: str | None) -> str:
    """The plugin of opencode that calls us, with which store if it names one."""
    words = [*shlex.split(program), "hook"]
    options = ["--client", OPENCODE, *([] if store is None else ["--store", store])]
    template = resources.files(__package__).joinpath(PLUGIN_FILE).read_text(encoding="utf-8")
    return template.replace("{program}", json.dumps(words)).replace("{options}", json.dumps(options))


def _plugin_program(text: str) -> str | None:
    """How the text of a plugin calls us; None where it is another file."""
    found = re.search(r"^const program = (\[.*\])$", text, re.MULTILINE)
    try:
        words = json.loads(found[1]) if found is not None else []
        store = json.loads(re.search(r"^const options = (\[.*\])$", text, re.MULTILINE)[1])[3:]  # type: ignore[index]
    except (ValueError, TypeError):
        return None
    program = shlex.join(map(str, words[:-1]))
    return program if words and text == plugin_text(program, *store or [None]) else None


# --- installing ------------------------------------------------------------------------------------------------

BACKUP: Final = ".before-stepkeep"


class SettingsFile(msgspec.Struct, frozen=True, kw_only=True):
    """A settings file of a client: that of a project, or that of the user."""

    client: str
    scope: Scope
    path: str


class HooksChange(SettingsFile, frozen=True, kw_only=True):
    """What was done to a settings file, or would be.

    `backup` holds the file as it was before our first change; `command` is the command file that was written or
    removed, None when there was none.
    """

    is_changed: bool
    is_dry_run: bool
    diff: str
    backup: str | None = None
    command: str | None = None
    note: str | None = None


class HooksInstalled(SettingsFile, frozen=True, kw_only=True):
    """A settings file, and which of our events it has. `problem` is also that what is installed cannot be run."""

    exists: bool
    events: tuple[str, ...]
    missing: tuple[str, ...]
    problem: str | None = None


class HooksStatus(msgspec.Struct, frozen=True, kw_only=True):
    """Where hooks are installed, and what went wrong lately, newest first."""

    files: tuple[HooksInstalled, ...]
    log: str
    problems: tuple[HookProblem, ...]


_NOTES = {
    "codex": "Codex asks once whether these hooks are to be trusted. Older ones run hooks only with"
    " `codex_hooks = true` under `[features]` in config.toml."
}


def install_hooks(
    client: str,
    scope: Scope,
    *,
    store: str | None = None,
    dry_run: bool = False,
    with_command: bool = False,
    overwrite_command: bool = False,
    folder: Path | None = None,
) -> HooksChange:
    """Put our hooks into the settings of a client; once, however often it is repeated.

    `with_command` also writes the `/checkpoint` command, which saves where the hooks save. What is refused is refused
    before anything is written, by a dry run too.

    Raises:
        InvalidInput: the file is not valid (`invalid_settings`); the client has no commands (`invalid_option`),
            another file is in the place of the command (`file_exists`), or the store cannot be one of hooks.
        BackendUnavailable: (`settings_not_writable`, `export_failed`) it cannot be written.
    """
    path, store = _path(client, scope, folder), _store_of_hooks(store)
    program = program_by_path()
    command = _command_path(client, path) if with_command else None
    if command is not None and scope == "project":
        _check_inside(command.parent, _project_of(client, path))
    if command is not None and not overwrite_command:
        _check_command(command)
    before = _text(path)
    if client == OPENCODE and before and _plugin_program(before) is None:
        raise InvalidInput(
            f"{path} exists and is another file: keep it, or remove it first", code="file_exists"
        )
    after = installed(before, client, program, store)
    change = _apply(client, scope, path, before, after, dry_run=dry_run)
    if command is not None and not dry_run:
        _write_command(command, command_text(program, store))
    found = None if client == OPENCODE else _note_on(after)
    note = " ".join(filter(None, (_NOTES.get(client), found))) or None
    return msgspec.structs.replace(change, command=None if command is None else str(command), note=note)


def program_of(client: str) -> tuple[str, bool]:
    """How the installed hooks of a client call us, and True; where none are, how we are called from anywhere.

    The settings of a project may come from anybody: a program inside it does not count.
    """
    scopes: tuple[Scope, ...] = ("project", "user")
    for scope in scopes:
        path = _path(client, scope, None)
        text = _text(path) or ""
        for program in _programs(client, text):
            if scope == "user" or not _is_inside(program, path):
                return program, True
    return program_by_path(), False


def _programs(client: str, text: str) -> list[str]:
    """How what is installed calls us."""
    if client == OPENCODE:
        return [] if (program := _plugin_program(text)) is None else [program]
    return [entry.program for entry in _ours(text)] if text.strip() else []


def _is_inside(program: str, settings: Path) -> bool:
    """Whether a program lies in the project whose settings name it."""
    file = Path(shlex.split(program)[0])
    return file.is_absolute() and file.resolve().is_relative_to(settings.parent.parent.resolve())


def _note_on(text: str | None) -> str | None:
    """What the person should know about the settings."""
    if text is None:
        return None
    if _checked(text).get("disableAllHooks") is True:
        return "`disableAllHooks` is set in this file: no hook runs until it is taken out."
    others = sorted(_called_by_others(text))
    return (
        f"{', '.join(others)}: another command there calls us already, and stays as it is."
        if others
        else None
    )


def _store_of_hooks(store: str | None) -> str | None:
    """The URL as it is written into settings: it means the same in every folder, and holds no secret.

    Raises:
        InvalidInput: no such kind of store (`unknown_store_url`), one that ends with its process, or a password.
    """
    if store is None:
        return None
    if store == "memory:":
        raise InvalidInput("memory: ends with each hook: name a store that stays", code="invalid_option")
    if store.startswith(("postgresql:", "postgres:")):
        if without_secrets(store) != store:
            raise InvalidInput(
                "the URL has a password, which would stand in the settings for all to read: leave it out, and put it"
                " into ~/.pgpass",
                code="password_in_settings",
            )
        return store
    if (file := database_file(store)) is not None:
        return f"sqlite:{file.absolute()}"
    if (directory := directory_of(store)) is not None:
        query = store.partition("?")[2]
        return f"files:{directory.absolute()}" + (f"?{query}" if query else "")
    raise InvalidInput(
        f"no store {store!r}: use sqlite:PATH, files:DIR or postgresql://", code="unknown_store_url"
    )


def _command_path(client: str, settings: Path) -> Path:
    if client != CLAUDE_CODE:
        raise InvalidInput(
            f"{client} has no command files of this kind: leave out --command", code="invalid_option"
        )
    return settings.parent / "commands" / COMMAND_FILE


def uninstall_hooks(
    client: str, scope: Scope, *, dry_run: bool = False, folder: Path | None = None
) -> HooksChange:
    """Take our hooks out of the settings of a client, and our command file; everything else stays.

    Raises as `install_hooks`.
    """
    path = _path(client, scope, folder)
    before = _text(path)
    if client == OPENCODE:
        return _without_plugin(scope, path, before, dry_run=dry_run)
    change = _apply(client, scope, path, before, uninstalled(before), dry_run=dry_run)
    command = path.parent / "commands" / COMMAND_FILE
    with _export_errors(command):
        if client != CLAUDE_CODE or not command.is_file() or not _is_our_command(command):
            return change
        if not dry_run:
            command.unlink()
    return msgspec.structs.replace(change, command=str(command))


def _without_plugin(scope: Scope, path: Path, before: str | None, *, dry_run: bool) -> HooksChange:
    """Remove our plugin; another file of its name stays."""
    is_ours = before is not None and _plugin_program(before) is not None
    if is_ours and not dry_run:
        with _export_errors(path):
            path.unlink()
    return HooksChange(
        client=OPENCODE, scope=scope, path=str(path), is_changed=is_ours, is_dry_run=dry_run, diff=""
    )


def hooks_status(client: str | None = None, *, folder: Path | None = None) -> HooksStatus:
    """Which settings files have our hooks, and what went wrong lately."""
    clients = CLIENTS if client is None else (client,)
    scopes: tuple[Scope, ...] = ("project", "user")
    return HooksStatus(
        files=tuple(_looked_at(each, scope, folder) for each in clients for scope in scopes),
        log=log_file(os.environ),
        problems=hook_problems(),
    )


def hook_problems(limit: int = 10) -> tuple[HookProblem, ...]:
    """What hooks could not do lately, newest first."""
    return tuple(recent_problems(os.environ, limit))


def _path(client: str, scope: Scope, folder: Path | None) -> Path:
    if client not in CLIENTS:
        raise InvalidInput(f"no client {client!r}: use one of {', '.join(CLIENTS)}", code="unknown_client")
    project, user, variable = _FILES[client]
    if scope == "project":
        return (Path.cwd() if folder is None else folder) / project
    configured = os.environ.get(variable) if variable else None
    return Path(configured, Path(user).name) if configured else Path.home() / user


def _text(path: Path) -> str | None:
    try:
        return path.read_bytes().decode()
    except FileNotFoundError:
        return None
    except UnicodeDecodeError as exc:
        raise InvalidInput(f"{path} is not UTF-8 text", code="invalid_settings") from exc
    except OSError as exc:
        raise _unwritable(path, exc) from exc


def _apply(
    client: str, scope: Scope, path: Path, before: str | None, after: str | None, *, dry_run: bool
) -> HooksChange:
    backup = None
    if scope == "project":
        _check_inside(path, _project_of(client, path))
    if before != after and after is not None and not dry_run:
        try:
            backup = _replace(path, before, after)
        except OSError as exc:
            raise _unwritable(path, exc) from exc
    old, new = (before or "").splitlines(), (after or "").splitlines()
    return HooksChange(
        client=client,
        scope=scope,
        path=str(path),
        is_changed=before != after,
        is_dry_run=dry_run,
        diff="\n".join(difflib.unified_diff(old, new, path.name, path.name, lineterm="")),
        backup=backup,
    )


def _project_of(client: str, settings: Path) -> Path:
    return settings.parents[len(Path(_FILES[client][0]).parts) - 1]


def _check_inside(path: Path, project: Path) -> None:
    """A project that was just cloned may have links in it: nothing is written where they lead out of it."""
    if not path.resolve().is_relative_to(project.resolve()):
        raise InvalidInput(
            f"{path} leads out of the project, to {path.resolve()}: replace the link", code="invalid_settings"
        )


def _replace(path: Path, before: str | None, after: str) -> str | None:
    """Write the file whole or not at all. What it was before our first change stays beside it; its path."""
    real = path.resolve()
    make_private_directory(real.parent)
    backup = None
    mode = 0o600
    if before is not None:
        mode = real.stat().st_mode & 0o7777
        if not mode & 0o222:
            raise PermissionError(f"{real} is read-only")
        backup = real.with_name(real.name + BACKUP)
        if not backup.exists():
            _write(backup, before, mode)
    _write(real, after, mode)
    return None if backup is None else str(backup)


def _write(path: Path, text: str, mode: int) -> None:
    temporary = temporary_beside(path)
    write_new(temporary, text.encode())
    try:
        temporary.chmod(mode)
        put_in_place(temporary, path, replace=True)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def _unwritable(path: Path, exc: OSError) -> BackendUnavailable:
    return BackendUnavailable(
        f"{path} cannot be read or written: {exc}", code="settings_not_writable", retryable=False
    )


def _looked_at(client: str, scope: Scope, folder: Path | None) -> HooksInstalled:
    path = _path(client, scope, folder)
    found, problem = tuple[str, ...](), None
    try:
        text = _text(path) or ""
        if client == OPENCODE and (programs := _programs(client, text)):
            found, problem = events_of(client), _tried(set(programs), path if scope == "project" else None)
        elif text.strip() and client != OPENCODE:
            ours = _ours(text)
            found = tuple(dict.fromkeys([*(each.event for each in ours), *sorted(_called_by_others(text))]))
            problem = _note_on(text) if _checked(text).get("disableAllHooks") is True else None
            problem = problem or _tried({each.program for each in ours}, path if scope == "project" else None)
    except StepkeepError as exc:
        problem = exc.message.partition("\n")[0]
    return HooksInstalled(
        client=client,
        scope=scope,
        path=str(path),
        exists=path.exists(),
        events=found,
        missing=tuple(event for event in events_of(client) if event not in found) if found else (),
        problem=problem,
    )


def _tried(programs: set[str], project: Path | None) -> str | None:
    """Run what is installed, as an agent would; what is wrong with it, None when it answers.

    The settings of a project may come from anybody: a program inside it is not run.
    """
    for program in sorted(programs):
        if project is not None and _is_inside(program, project):
            return f"{program} lies in the project and was not tried"
        try:
            done = subprocess.run(
                ["/bin/sh", "-c", f"{program} hook --help"],
                capture_output=True,
                text=True,
                stdin=subprocess.DEVNULL,
                cwd="/",
                timeout=_TRY_SECONDS,
                check=False,
            )
        except (OSError, subprocess.SubprocessError) as exc:
            return f"{program} cannot be run: {exc}"
        if done.returncode or not done.stdout.startswith("Usage: stepkeep hook"):
            why = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
            return f"what is installed cannot be run: {why[:200]}; install it again"
    return None
