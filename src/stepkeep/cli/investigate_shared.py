"""What the commands of an investigation have in common: which one is meant, and how a change is shown."""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from typing import Any, Final

import click

from stepkeep import operations
from stepkeep.api import Store
from stepkeep.cli.app import Command, Settings
from stepkeep.cli.naming import chosen_session
from stepkeep.cli.printing import clean, lines
from stepkeep.operations.investigating import InvestigationChange


class Group(Command, click.Group):
    """A group of commands that also takes the common options."""


def words(kind: type[StrEnum]) -> click.Choice[str]:
    """The words of an enumeration, as an option takes them."""
    return click.Choice([member.value for member in kind])


_FIELDS: Final = ("status", "severity", "confidence", "strength", "criticality", "kind", "relationship")
_TEXTS: Final = ("description", "statement", "question", "content", "plan", "command", "reason", "name")


def change(
    settings: Settings,
    session: str | None,
    work: Callable[[Store, str], InvestigationChange],
    show: Callable[[InvestigationChange], None] | None = None,
) -> InvestigationChange:
    """Do one thing in the investigation that is meant, begin it if need be, and show what became of it."""
    with operations.open_store(settings.store, create=True) as store:
        changed = work(store, chosen_session(store, None, session))
    settings.show(changed, show or show_change)
    return changed


def show_change(changed: InvestigationChange) -> None:
    lines([entry_line(changed.entry), *after_lines(changed)])


def after_lines(changed: InvestigationChange) -> list[str]:
    """What else came of a change: contradictions, and the checkpoints."""
    found = [f"Contradiction {clean(each.id)} ({each.severity})" for each in changed.contradictions]
    saved = [f"Saved {each.id} (#{each.seq}, {clean(each.message)})" for each in changed.checkpoints]
    return [*found, *(saved or ["Nothing changed."])]


def entry_line(entry: Any) -> str:
    """An entry on one line: its id, where it stands, and its text."""
    words = [str(getattr(entry, "id", ""))]
    for field in _FIELDS:
        value = getattr(entry, field, None)
        if isinstance(value, float):
            words.append(f"{value:+.1f}" if field == "strength" else f"{value:.0%}")
        elif value is not None:
            words.append(str(value))
    words += [str(text) for field in _TEXTS if (text := getattr(entry, field, ""))][:1]
    return clean("  ".join(word for word in words if word))
