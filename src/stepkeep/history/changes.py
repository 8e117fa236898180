"""One change of a state, and how values and changes read: general lines with paths, or the view of a workflow."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Any, Final, Literal
from uuid import UUID

import msgspec

from stepkeep.history.paths import ItemById, Path, PathStep, format_path
from stepkeep.text import count, shortened

WIDTH: Final = 60
"""How long the text of a value may be before it is shortened."""

FULL: Final = 1 << 30
"""The width at which no value is shortened."""

VARIABLES: Final = "variables"
STEPS: Final = ("completed_steps", "steps")
"""Where the states of a workflow have its variables and its steps."""


class StateChange(msgspec.Struct, frozen=True):
    """A value that is only in the new state (`added`) or in the old one (`removed`), that is another or of another type
    (`changed`), or an item with an id that changed places with others of its list (`moved`; `old` and `new` are its
    indexes). Indexes in the path are those of the new lists, in the last step of a removed item that of the old one.
    """

    kind: Literal["added", "removed", "changed", "moved"]
    path: Path
    old: Any = None
    new: Any = None

    def line(self, name: str | None = None, width: int = WIDTH) -> str:
        """The change in one line: `+` added, `-` removed, `~` changed, `>` moved."""
        head = f"{SIGNS[self.kind]} {short_path(self.path) if name is None else name}: "
        if self.kind == "changed":
            return head + change_text(self.old, self.new, width)
        if self.kind == "moved":
            return f"{head}moved from [{self.old}] to [{self.new}]"
        alone = max(width, min(2 * width, WIDTH))  # a value without another beside it
        return head + beginning_text(self.new if self.kind == "added" else self.old, alone)


SIGNS: Final = {"added": "+", "removed": "-", "changed": "~", "moved": ">"}


def short_path(path: Path) -> str:
    return shortened(format_path(path), 200)


def value_text(value: object, width: int = WIDTH) -> str:
    """A value in about `width` characters: whole, or its beginning and how much there is of it."""
    inline = _inline(value, max(width, 0))
    if inline is not None:
        return inline
    if isinstance(value, str):
        return f'{_quoted(value[:width])[:-1]}…" ({len(value):,} characters)'
    if isinstance(value, bytes | bytearray):
        return f"{value[: width // 4]!r}… ({len(value):,} bytes)"
    if isinstance(value, dict | list | tuple | set | frozenset):
        return _outline(value)
    return shortened(_atom(value), max(width, 1))


def beginning_text(value: object, width: int = WIDTH) -> str:
    """As `value_text`, but what is too large is told by what it begins with: a message by who says what, a dict or a
    list by its first values."""
    inline = _inline(value, max(width, 0))
    if inline is not None or not isinstance(value, dict | list | tuple):
        return value_text(value, width) if inline is None else inline
    from stepkeep.history.conversation import message_line  # which is told with `value_text`

    message = message_line(value, width) if isinstance(value, dict) else None
    return _first_ones(value, width) if message is None else message


def _first_ones(value: Any, width: int) -> str:
    opening, closing = _brackets(value)
    parts: list[str] = []
    for item in value.items() if isinstance(value, dict) else ((each,) for each in value):
        text = ": ".join(beginning_text(each, width // 3) for each in item)
        if len(", ".join([*parts, text])) > width:
            break
        parts.append(text)
    if not parts:
        return _outline(value)
    more = len(value) - len(parts)
    return f"{opening}{', '.join(parts)}{f', …{more:,} more' if more else ''}{closing}"


def change_text(old: object, new: object, width: int = WIDTH) -> str:
    """`old → new`, shortened so that the difference is in what is shown; of two texts that share most words, one text
    with `[-what went-]{+what came+}`."""
    if isinstance(old, str) and isinstance(new, str) and (text := _word_diff(old, new, width)) is not None:
        return text
    if isinstance(old, str) and isinstance(new, str) and max(len(old), len(new)) > width:
        start = max(0, _common_length(old, new) - width // 3)
        return f"{_excerpt(old, start, width)} → {_excerpt(new, start, width)}"
    old_text, new_text = beginning_text(old, width), beginning_text(new, width)
    if old_text == new_text:
        if type(old) is type(new):
            return f"{old_text} → {new_text} (differs in what is not shown)"
        return f"{old_text} ({type(old).__name__}) → {new_text} ({type(new).__name__})"
    return f"{old_text} → {new_text}"


def _word_diff(old: str, new: str, width: int) -> str | None:
    """Two texts as one; None where they are no sentences, or too little of them is the same or fits."""
    if min(len(old.split(None, _FEW_WORDS)), len(new.split(None, _FEW_WORDS))) < _FEW_WORDS:
        return None
    marks = list(text_marks(old, new, around=max(len(old), len(new))))
    gone = sum(len(mark.text) for mark in marks if mark.kind == "removed")
    if not marks or 2 * (len(old) - gone) < max(len(old), len(new)):
        return None
    text = "".join(_mark_text(mark, at, len(marks) - 1, width) for at, mark in enumerate(marks))
    return f'"{text}"' if len(text) <= 2 * width + 20 else None


def _mark_text(mark: TextMark, at: int, last: int, width: int) -> str:
    """What is the same is told where it meets what is not."""
    text, around = mark.text, max(width // 3, 1)
    if mark.kind == "same":
        head, tail = text[: around if at else 0], text[-around if at < last else len(text) :]
        if len(text) > len(head) + len(tail):  # whole words
            text = f"{head[: head.rfind(' ') + 1]}…{tail[max(tail.find(' '), 0) :]}"
    quoted = _quoted(text)[1:-1]
    return {"removed": f"[-{quoted}-]", "added": f"{{+{quoted}+}}"}.get(mark.kind, quoted)


def _common_length(old: str, new: str) -> int:
    """How many characters two texts share at the beginning, by halving: a loop in C, not in Python."""
    low, high = 0, min(len(old), len(new))
    while low < high:
        middle = (low + high + 1) // 2
        if old[low:middle] == new[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def _excerpt(text: str, start: int, width: int) -> str:
    end = start + width
    lead, tail = "…" if start else "", "…" if end < len(text) else ""
    note = f" ({len(text):,} characters)" if lead or tail else ""
    return f'"{lead}{_quoted(text[start:end])[1:-1]}{tail}"{note}'


def _inline(value: object, room: int) -> str | None:
    """The whole value if its text fits. Looks at no more of it than that takes."""
    if isinstance(value, str):
        text = _quoted(value) if len(value) <= room else None
    elif isinstance(value, bytes | bytearray):
        text = repr(value) if len(value) <= room else None
    elif isinstance(value, dict | list | tuple | set | frozenset):
        text = _inline_container(value, room) if len(value) * 2 <= room else None
    else:
        text = _atom(value)
    return text if text is not None and len(text) <= room else None


def _inline_container(value: Any, room: int) -> str | None:
    opening, closing = _brackets(value)
    room -= len(opening) + len(closing)
    parts: list[str] = []
    for item in value.items() if isinstance(value, dict) else ((each,) for each in value):
        texts = [text for each in item if (text := _inline(each, room)) is not None]
        parts.append(": ".join(texts))
        room -= len(parts[-1]) + 2
        if len(texts) < len(item) or room < -2:
            return None
    if isinstance(value, set | frozenset):
        parts.sort()
    return f"{opening}{', '.join(parts)}{closing}"


def _outline(value: Any) -> str:
    noun = "key" if isinstance(value, dict) else "member" if isinstance(value, set | frozenset) else "item"
    opening, closing = _brackets(value)
    return f"{opening}…{count(len(value), noun)}{closing}"


def _brackets(value: Any) -> tuple[str, str]:
    return _BRACKETS[next(kind for kind in _BRACKETS if isinstance(value, kind))]


_BRACKETS: Final[dict[type, tuple[str, str]]] = {
    dict: ("{", "}"),
    list: ("[", "]"),
    tuple: ("(", ")"),
    set: ("set{", "}"),
    frozenset: ("frozenset{", "}"),
}


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _atom(value: object) -> str:
    if value is None or isinstance(value, bool):
        return json.dumps(value)
    if isinstance(value, int) and value.bit_length() > 1024:
        return f"an integer of {value.bit_length():,} bits"  # its digits may be more than Python writes
    if isinstance(value, datetime | date | time):
        return value.isoformat()
    return str(value) if isinstance(value, float | int | Decimal | UUID | timedelta) else repr(value)


# --- for a page: both values beside each other, and what differs in texts word by word

MAX_MARKED: Final = 4000
"""In so many characters on both sides together words are compared; beyond, texts are shown side by side."""

_AROUND: Final = 200
_FEW_WORDS: Final = 3
"""Texts of fewer words are told one after the other."""
_WORDS: Final = re.compile(r"\w+|\s+|[^\w\s]")
_WORD_END: Final = re.compile(r"\w*\Z")
_LONG_WORD: Final = 40


class TextMark(msgspec.Struct, frozen=True):
    """A piece of a text: in both, only in the old or only in the new one; `left_out` is how much both share there."""

    kind: Literal["same", "removed", "added", "left_out"]
    text: str


class ChangeView(msgspec.Struct, frozen=True, kw_only=True):
    """A change as a page shows it: both values in short, and for two texts what differs, word by word.

    `old` is None where there was nothing, `new` where nothing is left; a type is told where the two differ in it.
    """

    kind: str
    path: str
    old: str | None
    new: str | None
    old_type: str | None
    new_type: str | None
    marks: tuple[TextMark, ...]


def change_view(change: StateChange, width: int) -> ChangeView:
    """One change with values of about `width` characters."""
    old, new = change.old, change.new
    is_typed = change.kind == "changed" and type(old) is not type(new)
    marks = tuple(text_marks(old, new)) if isinstance(old, str) and isinstance(new, str) else ()
    return ChangeView(
        kind=change.kind,
        path=short_path(change.path),
        old=None if change.kind == "added" else value_text(old, width),
        new=None if change.kind == "removed" else value_text(new, width),
        old_type=type(old).__name__ if is_typed else None,
        new_type=type(new).__name__ if is_typed else None,
        marks=marks,
    )


def text_marks(old: str, new: str, *, around: int = _AROUND) -> Iterator[TextMark]:
    """What differs between two texts, word by word; nothing where too much does. At both ends `around` characters that
    are the same are told."""
    start = _common_length(old, new)
    start -= len(_WORD_END.findall(old[max(0, start - _LONG_WORD) : start])[0])
    most = min(len(old), len(new)) - start
    end = min(most, _common_length(old[start:][::-1], new[start:][::-1]))
    end -= len(_WORD_END.findall(old[len(old) - end :][:_LONG_WORD][::-1])[0])
    olds, news = old[start : len(old) - end], new[start : len(new) - end]
    if len(olds) + len(news) > MAX_MARKED:
        return
    before, after = old[:start], old[len(old) - end :] if end else ""
    if len(before) > around:
        yield TextMark("left_out", f"{len(before) - around:,} characters")
    if before:
        yield TextMark("same", before[-around:])
    yield from _word_marks(_WORDS.findall(olds), _WORDS.findall(news))
    if after:
        yield TextMark("same", after[:around])
    if len(after) > around:
        yield TextMark("left_out", f"{len(after) - around:,} characters")


def _word_marks(olds: Sequence[str], news: Sequence[str]) -> Iterator[TextMark]:
    from difflib import SequenceMatcher  # takes long, and most changes are not of texts

    for kind, i1, i2, j1, j2 in SequenceMatcher(None, olds, news, autojunk=False).get_opcodes():
        if kind == "equal":
            yield TextMark("same", "".join(olds[i1:i2]))
            continue
        if i1 < i2:
            yield TextMark("removed", "".join(olds[i1:i2]))
        if j1 < j2:
            yield TextMark("added", "".join(news[j1:j2]))


# --- workflows


def workflow_lines(changes: Sequence[StateChange], width: int) -> list[str]:
    """The changes under headings for the variables and steps of a workflow."""
    sections: dict[str, list[str]] = {
        "Variables changed:": [],
        "Steps added:": [],
        "Steps removed:": [],
        "Steps changed:": [],
        "Also changed:": [],
    }
    for change in changes:
        heading, text = _workflow_line(change, width)
        sections[heading].append(f"  {text}")
    return [text for heading, texts in sections.items() if texts for text in (heading, *texts)]


def _workflow_line(change: StateChange, width: int) -> tuple[str, str]:
    """The heading that a change belongs to, and its line."""
    path = change.path
    if len(path) > 1 and path[0] == VARIABLES:
        name = path[1] if type(path[1]) is str and len(path) == 2 else format_path(path[1:])
        return "Variables changed:", change.line(shortened(name, 200), width)
    at = _index(path[1]) if len(path) > 1 and path[0] in STEPS else None
    if at is None:
        return "Also changed:", change.line(width=width)
    if len(path) == 2 and change.kind in ("added", "removed"):
        step = change.new if change.kind == "added" else change.old
        return f"Steps {change.kind}:", f"{SIGNS[change.kind]} {_step_text(step, at, width)}"
    inside = f", {format_path(path[2:])}" if len(path) > 2 else ""
    return "Steps changed:", change.line(f"Step {at + 1}{inside}", width)


def _index(step: PathStep) -> int | None:
    """The index of a list that a step names; None for a key."""
    if isinstance(step, ItemById):
        return step.index
    return step if type(step) is int else None


def _step_text(step: Any, at: int, width: int) -> str:
    """`Step 6: shell: "make test"`; the number is the step's own, else the one after its index."""
    index = step["index"] if type(step.get("index")) is int else at
    number = next((step[name] for name in ("step", "number") if type(step.get(name)) is int), index + 1)
    kind = next((step[name] for name in ("kind", "type") if isinstance(step.get(name), str)), None)
    command = value_text(step["command"], width)
    return f"Step {number}: {command}" if kind is None else f"Step {number}: {shortened(kind, 80)}: {command}"
