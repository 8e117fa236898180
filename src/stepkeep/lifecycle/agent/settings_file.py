"""The settings files of coding agents: where they are, and our hooks put into or taken out of their text; pure.

All three clients have the same shape: `hooks.EVENT` is a list of groups, each with a list of commands. Everything
else in the file stays as it is. A file with comments is not written: what to paste is shown instead. Nor is one that
would come back changed: a key that stands twice, a number that a program cannot hold.
"""

from __future__ import annotations

import difflib
import json
import math
import re
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Any, Final, Literal

import msgspec

from stepkeep.errors import InvalidInput
from stepkeep.lifecycle.agent.clients import CLAUDE_CODE, CODEX, EVENTS, GEMINI, NOTIFY

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


class Edited(msgspec.Struct, frozen=True):
    """The text of a settings file before and after; None where there is no file."""

    before: str | None
    after: str | None

    @property
    def is_changed(self) -> bool:
        return self.before != self.after

    def diff(self, name: str) -> str:
        old, new = (self.before or "").splitlines(), (self.after or "").splitlines()
        return "\n".join(difflib.unified_diff(old, new, name, name, lineterm=""))


def settings_path(client: str, scope: Scope, *, folder: Path, home: Path, environ: dict[str, str]) -> Path:
    """The file of a client: that of the project in `folder`, or that of the user."""
    place, name, variable = _FILES[client]
    if scope == "project":
        return folder / place / name
    configured = environ.get(variable) if variable else None
    return (Path(configured) if configured else home / place) / name


def events_of(client: str) -> tuple[str, ...]:
    """The events that are installed for a client."""
    return tuple(event for event in EVENTS[client] if event != NOTIFY)


def command_line(program: str, client: str, event: str, store: str | None) -> str:
    import shlex

    option = "" if store is None else f" --store {shlex.quote(store)}"
    return f"{program} hook {event} --client {client}{option}"


def our_groups(client: str, program: str, store: str | None) -> dict[str, Any]:
    """What belongs into the file, event by event."""
    return {
        event: {
            "hooks": [
                {
                    "type": "command",
                    "command": command_line(program, client, event, store),
                    "timeout": _TIMEOUTS[client],
                }
            ]
        }
        for event in events_of(client)
    }


def installed(before: str | None, client: str, program: str, store: str | None) -> Edited:
    """The text with our hooks, once each, in place of those that may be there already.

    Raises:
        InvalidInput: (`invalid_settings`) the file is no settings file, or (`settings_have_comments`) it has comments.
    """
    groups = our_groups(client, program, store)
    settings = _parsed(
        before, json.dumps({"hooks": {event: [group] for event, group in groups.items()}}, indent=2)
    )
    hooks = dict(settings.get("hooks") or {})
    if all(_is_installed(hooks.get(event), group) for event, group in groups.items()):
        return Edited(before, before)
    for event, group in groups.items():
        hooks[event] = [*_without_ours(hooks.get(event, [])), group]
    return Edited(before, _written(before, {**settings, "hooks": hooks}))


def _is_installed(groups: Any, wanted: dict[str, Any]) -> bool:
    """Whether exactly our command is there, wherever it stands."""
    ours = [each for each in groups or () if _without_ours([each]) != [each]]
    return ours == [wanted]


def uninstalled(before: str | None) -> Edited:
    """The text without our hooks; lists and objects that are empty then go too.

    Raises:
        InvalidInput: as `installed`.
    """
    if before is None:
        return Edited(None, None)
    settings = _parsed(before, "")
    hooks = settings.get("hooks") or {}
    rest = {event: _without_ours(groups) for event, groups in hooks.items()}
    kept = {event: groups for event, groups in rest.items() if groups or not hooks[event]}
    if kept == hooks:
        return Edited(before, before)
    changed = {**settings, "hooks": kept}
    if not kept:
        del changed["hooks"]
    return Edited(before, _written(before, changed))


def found_events(text: str | None) -> tuple[str, ...]:
    """The events at which our hooks stand in a file; raises as `installed`, also for comments."""
    hooks = _parsed(text, "").get("hooks") or {}
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
        rest = [each for each in commands if not _is_ours(each)]
        if rest or not commands:
            kept.append({**group, "hooks": rest} if rest != commands else group)
    return kept


def _is_ours(hook: Any) -> bool:
    command = hook.get("command") if isinstance(hook, dict) else None
    return isinstance(command, str) and _OURS.search(command) is not None


def _parsed(text: str | None, paste: str) -> dict[str, Any]:
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
        raise InvalidInput(f"the settings file is not valid JSON: {exc}", code="invalid_settings") from exc
    hooks = found.get("hooks", {}) if isinstance(found, dict) else None
    if not isinstance(hooks, dict) or not all(_has_known_shape(*each) for each in hooks.items()):
        raise InvalidInput("the settings file has no `hooks` of the known shape", code="invalid_settings")
    return dict(found)


def _has_known_shape(event: str, groups: Any) -> bool:
    """Events of ours have lists; what else may stand beside them is left alone, if it is no object."""
    return isinstance(groups, list) if event in _ALL_EVENTS else not isinstance(groups, dict)


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        double = next(name for name in names if names.count(name) > 1)
        raise InvalidInput(
            f"the settings file has the key {double!r} twice in one place, and one of them would be lost:"
            " remove it first",
            code="invalid_settings",
        )
    return found


def _number(text: str) -> float:
    number = float(text)
    if not _is_exact(number, text):
        raise InvalidInput(
            f"the settings file has the number {text[:100]}, which would be written back as another one:"
            " change it first",
            code="invalid_settings",
        )
    return number


def _is_exact(number: float, text: str) -> bool:
    try:
        return math.isfinite(number) and Decimal(repr(number)) == Decimal(text)
    except InvalidOperation:  # an exponent beyond all measure
        return False


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
