"""Our hooks in the settings files of coding agents, and the `/checkpoint` command file.

All three clients have the same form: `hooks.EVENT` is a list of groups, each with a list of commands. The rest of
the file stays as it is. A file with comments is not written: what to paste is shown instead. Nor is one that would come
back changed, because a key stands in it twice or a number would be written back as another one.
"""

from __future__ import annotations

import difflib
import json
import math
import os
import re
import shlex
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from decimal import Decimal, InvalidOperation
from importlib import resources
from pathlib import Path
from typing import Any, Final, Literal

import msgspec

from stepkeep.errors import BackendUnavailable, InvalidInput, StepkeepError
from stepkeep.recording.coding_agents.hook_events import CLAUDE_CODE, CLIENTS, CODEX, EVENTS, GEMINI, NOTIFY
from stepkeep.recording.coding_agents.hook_process import HookProblem, log_file, recent_problems, timestamp
from stepkeep.storage.disk import make_private_directory, put_in_place, temporary_beside, write_new

Scope = Literal["project", "user"]

_FILES: Final = {
    CLAUDE_CODE: (".claude", "settings.json", "CLAUDE_CONFIG_DIR"),
    GEMINI: (".gemini", "settings.json", None),
    CODEX: (".codex", "hooks.json", "CODEX_HOME"),
}
_TIMEOUTS: Final = {CLAUDE_CODE: 10, GEMINI: 10_000, CODEX: 10}
"""Gemini CLI counts milliseconds, the others seconds."""

_ALL_EVENTS: Final = frozenset(event for events in EVENTS.values() for event in events)
_OURS: Final = re.compile(r"""\bstepkeep(?:\.exe)?["']?\s+hook\s+[\w-]+.*--client\b""")
_COMMENT: Final = re.compile(r'"(?:[^"\\]|\\.)*"|//[^\n]*|/\*.*?\*/', re.DOTALL)


# --- the text of a settings file -------------------------------------------------------------------------------


def events_of(client: str) -> tuple[str, ...]:
    """The events that are installed for a client."""
    return tuple(event for event in EVENTS[client] if event != NOTIFY)


def _store_option(store: str | None) -> str:
    return "" if store is None else f" --store {shlex.quote(store)}"


def installed(before: str | None, client: str, program: str, store: str | None) -> str | None:
    """The text with our hooks, once each, in place of those that may be there already.

    Raises:
        InvalidInput: (`invalid_settings`) the file holds no settings, or (`settings_have_comments`) it has comments.
    """
    groups = {}
    for event in events_of(client):
        command = f"{program} hook {event} --client {client}{_store_option(store)}"
        hook = {"type": "command", "command": command, "timeout": _TIMEOUTS[client]}
        groups[event] = {"hooks": [hook]}
    paste = {"hooks": {event: [group] for event, group in groups.items()}}
    settings = _parsed(before, json.dumps(paste, indent=2))
    hooks = dict(settings.get("hooks") or {})
    if all(_is_installed(hooks.get(event), group) for event, group in groups.items()):
        return before
    for event, group in groups.items():
        hooks[event] = [*_without_ours(hooks.get(event, [])), group]
    return _written(before, {**settings, "hooks": hooks})


def _is_installed(groups: Any, wanted: dict[str, Any]) -> bool:
    """Whether exactly our command is there, wherever it stands."""
    ours = [each for each in groups or () if _without_ours([each]) != [each]]
    return ours == [wanted]


def uninstalled(before: str | None) -> str | None:
    """The text without our hooks; lists and objects that are empty then go too.

    Raises:
        InvalidInput: as `installed`.
    """
    settings = _parsed(before)
    hooks = settings.get("hooks") or {}
    rest = {event: _without_ours(groups) for event, groups in hooks.items()}
    kept = {event: groups for event, groups in rest.items() if groups or not hooks[event]}
    if kept == hooks:
        return before
    settings["hooks"] = kept
    if not kept:
        del settings["hooks"]
    return _written(before, settings)


def _found_events(text: str | None) -> tuple[str, ...]:
    """The events at which our hooks stand in a file; raises as `installed`, also for comments."""
    hooks = _parsed(text).get("hooks") or {}
    return tuple(event for event, groups in hooks.items() if _without_ours(groups) != groups)


def _without_ours(groups: Any) -> Any:
    if not isinstance(groups, list):
        return groups
    kept = []
    for group in groups:
        commands = group.get("hooks") if isinstance(group, dict) else None
        if not isinstance(commands, list):
            kept.append(group)
            continue
        rest = [each for each in commands if not _is_our_hook(each)]
        if rest or not commands:
            kept.append({**group, "hooks": rest} if rest != commands else group)
    return kept


def _is_our_hook(hook: Any) -> bool:
    command = hook.get("command") if isinstance(hook, dict) else None
    return isinstance(command, str) and _OURS.search(command) is not None


def _parsed(text: str | None, paste: str = "") -> dict[str, Any]:
    if text is None or not text.strip():
        return {}
    try:
        found = json.loads(
            text.removeprefix("\ufeff"),
            object_pairs_hook=_object,
            parse_float=_number,
            parse_constant=_number,
        )
    except InvalidInput:
        raise
    except (ValueError, RecursionError) as exc:
        if _is_json(_COMMENT.sub(lambda match: match[0] if match[0][0] == '"' else "", text)):
            raise InvalidInput(
                "the settings file has comments, which would be lost: put this into it by hand\n" + paste,
                code="settings_have_comments",
            ) from exc
        raise _invalid(f"is not valid JSON: {exc}") from exc
    hooks = found.get("hooks", {}) if isinstance(found, dict) else None
    if not isinstance(hooks, dict) or not all(_has_known_shape(*each) for each in hooks.items()):
        raise _invalid("has no `hooks` of the known shape")
    return dict(found)


def _invalid(problem: str) -> InvalidInput:
    return InvalidInput(f"the settings file {problem}", code="invalid_settings")


def _has_known_shape(event: str, groups: Any) -> bool:
    """Events of ours have lists; what else may stand beside them is left alone, unless it is an object."""
    return isinstance(groups, list) if event in _ALL_EVENTS else not isinstance(groups, dict)


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        double = next(name for name in names if names.count(name) > 1)
        raise _invalid(
            f"has the key {double!r} twice in one place, and one of them would be lost: remove it first"
        )
    return found


def _number(text: str) -> float:
    number = float(text)
    try:
        is_exact = math.isfinite(number) and Decimal(repr(number)) == Decimal(text)
    except InvalidOperation:  # an exponent beyond all measure
        is_exact = False
    if not is_exact:
        raise _invalid(
            f"has the number {text[:100]}, which would be written back as another one: change it first"
        )
    return number


def _is_json(text: str) -> bool:
    try:
        json.loads(re.sub(r",(\s*[}\]])", r"\1", text))
    except (ValueError, RecursionError):
        return False
    return True


def _written(before: str | None, settings: dict[str, Any]) -> str:
    """The settings as text, indented as the file was."""
    match = re.search(r"\n([ \t]+)\"", before or "")
    text = json.dumps(settings, indent=match[1] if match else 2, ensure_ascii=False)
    return text if before and not before.endswith("\n") else text + "\n"


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


# --- installing ------------------------------------------------------------------------------------------------

BACKUP: Final = ".before-stepkeep"


class SettingsFile(msgspec.Struct, frozen=True, kw_only=True):
    """A settings file of a client: that of a project, or that of the user."""

    client: str
    scope: Scope
    path: str


class HooksChange(SettingsFile, frozen=True, kw_only=True):
    """What was done to a settings file, or would be.

    `backup` holds the file as it was before; `command` is the command file, None when none was asked for.
    """

    is_changed: bool
    is_dry_run: bool
    diff: str
    backup: str | None = None
    command: str | None = None
    note: str | None = None


class HooksInstalled(SettingsFile, frozen=True, kw_only=True):
    """A settings file, and which of our events it has."""

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
        InvalidInput: the file is not valid (`invalid_settings`), or has comments (`settings_have_comments`); the
            client has no commands (`invalid_option`), or another file is in the place of the command (`file_exists`).
        BackendUnavailable: (`settings_not_writable`, `export_failed`) it cannot be written.
    """
    path = _path(client, scope, folder)
    # By its name where that is found, so that a file can be shared.
    program = "stepkeep" if shutil.which("stepkeep") else f"{shlex.quote(sys.executable)} -m stepkeep"
    command = _command_path(client, path) if with_command else None
    if command is not None and not overwrite_command:
        _check_command(command)
    before = _text(path)
    after = installed(before, client, program, store)
    change = _apply(client, scope, path, before, after, dry_run=dry_run)
    if command is not None and not dry_run:
        _write_command(command, command_text(program, store))
    return msgspec.structs.replace(change, command=None if command is None else str(command))


def _command_path(client: str, settings: Path) -> Path:
    if client != CLAUDE_CODE:
        raise InvalidInput(
            f"{client} has no command files of this kind: leave out --command", code="invalid_option"
        )
    return settings.parent / "commands" / COMMAND_FILE


def uninstall_hooks(
    client: str, scope: Scope, *, dry_run: bool = False, folder: Path | None = None
) -> HooksChange:
    """Take our hooks out of the settings of a client; everything else stays. Raises as `install_hooks`."""
    path = _path(client, scope, folder)
    before = _text(path)
    return _apply(client, scope, path, before, uninstalled(before), dry_run=dry_run)


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


def hook_trouble(now_us: int) -> str | None:
    """One line about what hooks could not save within the last day, None when they could save everything."""
    since = timestamp(now_us / 1_000_000 - 86_400)
    found = [each for each in hook_problems(100) if each.time >= since]
    if not found:
        return None
    return (
        f"hooks could not save {len(found)} times within a day, last at {found[0].time} ({found[0].message}):"
        " see `stepkeep hooks status`"
    )


def _path(client: str, scope: Scope, folder: Path | None) -> Path:
    if client not in CLIENTS:
        raise InvalidInput(f"no client {client!r}: use one of {', '.join(CLIENTS)}", code="unknown_client")
    directory, name, variable = _FILES[client]
    if scope == "project":
        return (Path.cwd() if folder is None else folder) / directory / name
    configured = os.environ.get(variable) if variable else None
    return (Path(configured) if configured else Path.home() / directory) / name


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
        note=_NOTES.get(client),
    )


def _replace(path: Path, before: str | None, after: str) -> str | None:
    """Write the file whole or not at all, with the old one kept beside it; its path."""
    real = path.resolve()
    make_private_directory(real.parent)
    backup = None
    mode = 0o600
    if before is not None:
        mode = real.stat().st_mode & 0o7777
        if not mode & 0o222:
            raise PermissionError(f"{real} is read-only")
        backup = real.with_name(real.name + BACKUP)
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
        found = _found_events(_text(path))
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
