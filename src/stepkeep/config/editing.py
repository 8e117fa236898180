"""Writing configuration files: a new one that explains every key, and one value in a file that somebody wrote.

A file is changed as text, so that its comments and its order stay. What comes out is read again before it is written:
the key has its new value, every other has its old one, and nothing is wrong with the file.
"""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterator
from itertools import takewhile
from pathlib import Path
from typing import Any, Final

import msgspec

from stepkeep.config import inspect_config
from stepkeep.config.schema import SCHEMA, Found, Key, Problem, lookup, nearest_key, values_of
from stepkeep.config.settings import PROJECT_FILE, user_file
from stepkeep.errors import InvalidInput
from stepkeep.storage.disk import write_file
from stepkeep.yaml_lines import Items, Node, Scalar, Unreadable, parse, read_text

HEAD: Final = """\
# Configuration of Stepkeep. Every key is here with its default, as a comment: take the # away to change one.
# `stepkeep config check` says what is wrong, `stepkeep config show` what holds and why.
"""
_WIDTH: Final = 118


class ConfigWritten(msgspec.Struct, frozen=True, kw_only=True):
    """A configuration file that was written. `key` and `value` are what was set, None in a new file with defaults."""

    file: str
    is_new: bool
    key: str | None = None
    value: str | None = None


# --- a new file --------------------------------------------------------------------------------------------------


def init_config(*, user: bool = False, force: bool = False) -> ConfigWritten:
    """Write the project's file into the working folder, or the user's, with every key as a comment.

    Raises:
        InvalidInput: there is one, and not `force` (`file_exists`).
        BackendUnavailable: it cannot be written.
    """
    path = Path(user_file()) if user else Path.cwd() / PROJECT_FILE
    is_new = not path.exists()
    _write(path, "\n".join([HEAD, *_commented(), ""]), force=force)
    return ConfigWritten(file=str(path), is_new=is_new)


def _commented() -> Iterator[str]:
    above: list[str] = []
    for key in SCHEMA:
        *sections, name = key.name.split(".")
        common = sum(
            1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(above, sections, strict=False))
        )
        if not sections or not common:
            yield ""
        for depth in range(common, len(sections)):
            yield f"# {'  ' * depth}{sections[depth].replace('*', 'NAME')}:"
        above, indent = sections, "  " * len(sections)
        yield from textwrap.wrap(
            key.meaning, _WIDTH, initial_indent=f"# {indent}# ", subsequent_indent=f"# {indent}# "
        )
        yield f"# {indent}{name}: {_default(key)}"


def _default(key: Key) -> str:
    if key.default is None:
        return f"{key.kind.none_word or '…'}  # default: {key.unset.replace('`', '')}"
    return _spelt(str(key.default).lower() if isinstance(key.default, bool) else key.default)


# --- one value ---------------------------------------------------------------------------------------------------


def set_config(name: str, text: str, *, user: bool = False) -> ConfigWritten:
    """Set one key in the project's file that is in use, else a new one in the working folder; or in the user's.

    The text is a value as a file has it: a list is written `[a, b]`.

    Raises:
        InvalidInput: there is no such key, the value does not fit it (`invalid_setting`), something is wrong with the
            file already (`invalid_config`), or it is written so that only a person can change it (`config_by_hand`).
        BackendUnavailable: it cannot be written.
    """
    known = lookup(name)
    if known is None:
        near = nearest_key(name)
        raise InvalidInput(
            f"unknown key {name!r}" + ("" if near is None else f": did you mean {near}?"),
            code="invalid_setting",
        )
    name, key = known
    value = _value(key, name, text)
    files = inspect_config().files
    used = next((file.path for file in files if file.scope == "project" and file.is_used), None)
    path = Path(user_file()) if user else Path(used or Path.cwd() / PROJECT_FILE)
    before = _text_of(path)
    after = _changed(before or "", _parts(name, key), value, source=str(path), name=name)
    _write(path, after, force=True)
    return ConfigWritten(file=str(path), is_new=before is None, key=name, value=value)


def _text_of(path: Path) -> str | None:
    try:
        return read_text(path) if path.exists() else None
    except Unreadable as exc:
        raise InvalidInput(f"bad configuration: {path} {exc.message}", code="invalid_config") from exc


def _value(key: Key, name: str, text: str) -> str:
    """The value as a file has it, if the key takes it."""
    try:
        node = parse(text) if text.lstrip().startswith("[") else Scalar(text, False, 1)
        key.kind.parse(Scalar("", True, 1) if node is None else node)
    except (ValueError, Unreadable) as exc:
        raise InvalidInput(f"{name} {exc}", code="invalid_setting") from exc
    return _spelt(
        [each.text for each in node.nodes if isinstance(each, Scalar)] if isinstance(node, Items) else text
    )


def _spelt(value: object) -> str:
    """A value as YAML: plain where that reads back as the same text, else in quotes."""
    if isinstance(value, list | tuple):
        return f"[{', '.join(_spelt(each) for each in value)}]"
    text = str(value)
    try:
        node = parse(f"[{text}]")
    except Unreadable:
        node = None
    plain = Scalar(text, False, 1)
    is_plain = isinstance(node, Items) and node.nodes == (plain,) and not plain.is_null
    return text if is_plain else json.dumps(text, ensure_ascii=False)


def _parts(name: str, key: Key) -> list[str]:
    """The names of the sections and of the key; what its writer named may itself contain dots."""
    before, any_, after = key.name.partition("*")
    if not any_:
        return name.split(".")
    middle = name.removeprefix(before).removesuffix(after)
    return [*before.strip(".").split("."), middle, *after.strip(".").split(".")]


def _changed(text: str, parts: list[str], value: str, *, source: str, name: str) -> str:
    old = _values(text, source)
    if text and not text.endswith("\n"):
        text += "\n"
    try:
        changed = _edited(text, parts, value)
        new = _values(changed, source)
    except (InvalidInput, ValueError) as exc:
        raise _by_hand(source, name) from exc
    others = [{each.name: each.value for each in found if each.name != name} for found in (old, new)]
    if others[0] != others[1] or name not in {each.name for each in new}:
        raise _by_hand(source, name)
    return changed


def _by_hand(source: str, name: str) -> InvalidInput:
    return InvalidInput(f"{source} is written so that {name} is to be changed by hand", code="config_by_hand")


def _values(text: str, source: str) -> list[Found]:
    try:
        root: Node | None = parse(text)
    except Unreadable as exc:
        raise InvalidInput(Problem.at(source, exc.line, "", exc.message).text, code="invalid_config") from exc
    found, problems = values_of(root, source)
    if problems:
        raise InvalidInput(f"bad configuration: {problems[0].text}", code="invalid_config")
    return found


# --- the text of a file ------------------------------------------------------------------------------------------


def _edited(text: str, parts: list[str], value: str) -> str:
    """The text with the value under these names. Where it stands only in comments it is added."""
    import yaml

    node, depth = yaml.compose(text, Loader=yaml.SafeLoader), 0
    key = None
    while node is not None and isinstance(node, yaml.MappingNode) and depth < len(parts):
        entry = next((each for each in node.value if _same(each[0].value, parts[depth])), None)
        if entry is None:
            return _added(text, node, parts[depth:], value)
        key, node = entry
        depth += 1
    if key is None:
        return text + _block(parts, value, "")
    if depth == len(parts):
        is_block = not isinstance(node.value, str) and not node.flow_style
        start = text.index(":", key.end_mark.index) + 1 if is_block else node.start_mark.index
        return f"{text[:start]}{'' if text[start - 1].isspace() else ' '}{value}{text[_end(node) :]}"
    return _below(text, key.end_mark.index, _block(parts[depth:], value, " " * (key.start_mark.column + 2)))


def _same(written: str, name: str) -> bool:
    return written in (
        name,
        "".join(word if not at else word.title() for at, word in enumerate(name.split("_"))),
    )


def _end(node: Any) -> int:
    """Where the last value in a node ends: in the block style the node itself ends before whatever comes next."""
    if node.value and not isinstance(node.value, str) and not node.flow_style:
        last = node.value[-1]
        return _end(last[-1] if isinstance(last, tuple) else last)
    return int(node.end_mark.index)


def _added(text: str, section: Any, parts: list[str], value: str) -> str:
    if section.flow_style:
        *outer, name = parts
        inner = f"{''.join(f'{each}: {{ ' for each in outer)}{name}: {value}{' }' * len(outer)}"
        end = section.end_mark.index - 1
        return f"{text[:end].rstrip()}{', ' if section.value else ' '}{inner} {text[end:]}"
    return _below(text, _end(section), _block(parts, value, " " * section.start_mark.column))


def _below(text: str, at: int, lines: str) -> str:
    """The text with lines below the one at that place."""
    end = text.find("\n", at) + 1 or len(text)
    return text[:end] + lines + text[end:]


def _block(parts: list[str], value: str, indent: str) -> str:
    names = [f"{indent}{'  ' * at}{_spelt(name)}:" for at, name in enumerate(parts)]
    return "\n".join(names) + f" {value}\n"


def _write(path: Path, text: str, *, force: bool) -> None:
    """Replace the file in one step; it keeps its mode, and a new one of a project is as readable as others."""
    path.parent.mkdir(parents=True, exist_ok=True)
    mode = path.stat().st_mode & 0o777 if path.exists() else 0o644
    write_file(path, text.encode(), force=force)
    path.chmod(mode)
