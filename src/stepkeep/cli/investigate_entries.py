"""`stepkeep investigate hypothesis`, `evidence`, `belief`, `gap` and `note`, and how a change is shown."""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from typing import Any, Final

import click

from stepkeep import api
from stepkeep.api import Investigation, InvestigationChange
from stepkeep.cli.app import Command, Settings, settings_of
from stepkeep.cli.naming import chosen_session, session_option
from stepkeep.cli.printing import lines
from stepkeep.errors import InvalidInput
from stepkeep.investigation.beliefs import BeliefKind, ContradictionStatus, Relationship
from stepkeep.investigation.hypotheses import PRIOR, Criticality, EvidenceKind, GapStatus, GapType
from stepkeep.text import clean


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
    message: str,
    work: Callable[[Investigation], object],
    show: Callable[[InvestigationChange], None] | None = None,
) -> InvestigationChange:
    """Do one thing in the investigation that is meant, begin it if need be, save it, and show what became of it.

    `message` is that of the checkpoint, where the change makes no automatic one.
    """
    with api.open(settings.store) as store:
        changed = api.change_investigation(store, chosen_session(store, None, session), message, work)
    settings.show(changed, show or show_change)
    return changed


def listed(text: str | None) -> tuple[str, ...]:
    """A list given as `a,b`."""
    if text is None:
        return ()
    words = tuple(word.strip() for word in text.split(","))
    if not all(words):
        raise InvalidInput(f"{text!r} is not a list such as a,b", code="invalid_name")
    return words


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


SHARE = click.FLOAT

# --- hypotheses and evidence


@click.group("hypothesis", cls=Group, example='stepkeep investigate hypothesis add "The cache is stale"')
def hypothesis() -> None:
    """Put up hypotheses, test them, confirm or reject them.

    A change of the status is saved as an automatic checkpoint. An ID may be given by its beginning.
    """


@hypothesis.command("add", cls=Command, example='stepkeep investigate hypothesis add "The cache is stale"')
@click.argument("description")
@click.option("--confidence", type=SHARE, default=PRIOR, show_default=True, help="How likely, from 0 to 1.")
@click.option("--tags", metavar="A,B", help="Tags, separated by commas.")
@click.option("--parent", metavar="ID", help="The hypothesis that this one refines.")
@session_option()
@settings_of
def add_hypothesis(
    settings: Settings,
    description: str,
    confidence: float,
    tags: str | None,
    parent: str | None,
    session_option: str | None,
) -> None:
    """Put up a hypothesis."""
    change(
        settings,
        session_option,
        "Hypothesis added",
        lambda found: found.hypotheses.add(
            description, confidence=confidence, tags=listed(tags), parent=parent
        ),
    )


def _status_command(verb: str, status: str, text: str) -> None:
    @hypothesis.command(verb, cls=Command, help=text, example=f"stepkeep investigate hypothesis {verb} h_3f")
    @click.argument("id")
    @click.option("--confidence", type=SHARE, help="How likely it is now, from 0 to 1.")
    @session_option()
    @settings_of
    def set_status(settings: Settings, id: str, confidence: float | None, session_option: str | None) -> None:
        change(
            settings,
            session_option,
            "Hypothesis changed",
            lambda found: found.hypotheses.set_status(id, status, confidence=confidence),
        )


_status_command("test", "under_test", "Say that hypothesis ID is under test.")
_status_command("confirm", "confirmed", "Say that hypothesis ID is confirmed.")
_status_command("reject", "rejected", "Say that hypothesis ID is rejected.")
_status_command("archive", "archived", "Put hypothesis ID aside.")


@hypothesis.command("rate", cls=Command, example="stepkeep investigate hypothesis rate h_3f 0.8")
@click.argument("id")
@click.argument("confidence", type=SHARE)
@session_option()
@settings_of
def rate(settings: Settings, id: str, confidence: float, session_option: str | None) -> None:
    """Say how likely hypothesis ID is, from 0 to 1."""
    change(
        settings,
        session_option,
        "Hypothesis changed",
        lambda found: found.hypotheses.update(id, confidence=confidence),
    )


@click.command(
    "evidence", cls=Command, example='stepkeep investigate evidence h_3f "Old value" --strength 0.7'
)
@click.argument("hypothesis")
@click.argument("description")
@click.option("--kind", type=words(EvidenceKind), default="observation", show_default=True)
@click.option("--strength", type=SHARE, default=0.0, show_default=True, help="From -1 (against) to 1 (for).")
@click.option("--source", default="", help="Where it comes from.")
@session_option()
@settings_of
def evidence(
    settings: Settings,
    hypothesis: str,
    description: str,
    kind: str,
    strength: float,
    source: str,
    session_option: str | None,
) -> None:
    """Note what speaks for or against a HYPOTHESIS."""
    change(
        settings,
        session_option,
        "Evidence added",
        lambda found: found.hypotheses.add_evidence(
            hypothesis, description, kind=kind, strength=strength, source=source
        ),
    )


# --- beliefs


@click.group("belief", cls=Group, example='stepkeep investigate belief add "The cache expires"')
def belief() -> None:
    """Hold beliefs, say what they rest on, and what contradicts what.

    A belief that says the opposite of another one is a contradiction, and saved as an automatic checkpoint.
    """


@belief.command("add", cls=Command, example='stepkeep investigate belief add "The cache expires"')
@click.argument("statement")
@click.option("--kind", type=words(BeliefKind), default="observation", show_default=True)
@click.option("--confidence", type=SHARE, default=0.8, show_default=True, help="How sure, from 0 to 1.")
@click.option("--source", default="", help="Where it comes from.")
@session_option()
@settings_of
def add_belief(
    settings: Settings,
    statement: str,
    kind: str,
    confidence: float,
    source: str,
    session_option: str | None,
) -> None:
    """Hold something to be true."""
    change(
        settings,
        session_option,
        "Belief added",
        lambda found: found.beliefs.add(statement, kind=kind, confidence=confidence, source=source),
    )


@belief.command("rate", cls=Command, example="stepkeep investigate belief rate b_7k 0.3")
@click.argument("id")
@click.argument("confidence", type=SHARE)
@session_option()
@settings_of
def rate_belief(settings: Settings, id: str, confidence: float, session_option: str | None) -> None:
    """Say how sure belief ID is, from 0 to 1. Below 0.5 it contradicts nothing."""
    change(
        settings,
        session_option,
        "Belief changed",
        lambda found: found.beliefs.update(id, confidence=confidence),
    )


@belief.command("depend", cls=Command, example="stepkeep investigate belief depend b_7k b_2m")
@click.argument("from_id", metavar="FROM")
@click.argument("to_id", metavar="TO")
@click.option("--relationship", type=words(Relationship), default="evidential", show_default=True)
@click.option("--strength", type=SHARE, default=1.0, show_default=True, help="From 0 to 1.")
@click.option("--reason", default="")
@session_option()
@settings_of
def depend(
    settings: Settings,
    from_id: str,
    to_id: str,
    relationship: str,
    strength: float,
    reason: str,
    session_option: str | None,
) -> None:
    """Let belief FROM support belief TO. A circle is refused."""
    change(
        settings,
        session_option,
        "Dependency added",
        lambda found: found.beliefs.depend(
            from_id, to_id, relationship=relationship, strength=strength, reason=reason
        ),
    )


@belief.command("contradict", cls=Command, example="stepkeep investigate belief contradict b_7k b_2m")
@click.argument("first")
@click.argument("second")
@click.option("--reason", default="")
@session_option()
@settings_of
def contradict(settings: Settings, first: str, second: str, reason: str, session_option: str | None) -> None:
    """Say that two beliefs cannot both be true."""
    change(
        settings,
        session_option,
        "Contradiction noted",
        lambda found: found.beliefs.contradict(first, second, reason=reason),
    )


@belief.command("settle", cls=Command, example="stepkeep investigate belief settle b_2m resolved")
@click.argument("id")
@click.argument("status", type=words(ContradictionStatus))
@session_option()
@settings_of
def settle(settings: Settings, id: str, status: str, session_option: str | None) -> None:
    """Say how far contradiction ID is dealt with."""
    change(
        settings,
        session_option,
        "Contradiction changed",
        lambda found: found.beliefs.set_contradiction(id, status),
    )


# --- gaps and notes


@click.group("gap", cls=Group, example='stepkeep investigate gap add "Which TTL is set?"')
def gap() -> None:
    """Note what is not known, and what answered it.

    Filling a gap is saved as an automatic checkpoint.
    """


@gap.command("add", cls=Command, example='stepkeep investigate gap add "Which TTL is set?"')
@click.argument("question")
@click.option("--type", type=words(GapType), default="factual", show_default=True)
@click.option("--criticality", type=words(Criticality), default="medium", show_default=True)
@click.option("--blocks", metavar="A,B", help="Ids of what waits for it.")
@click.option("--how", default="", help="What would answer it.")
@session_option()
@settings_of
def add_gap(
    settings: Settings,
    question: str,
    type: str,
    criticality: str,
    blocks: str | None,
    how: str,
    session_option: str | None,
) -> None:
    """Note that something is not known."""
    change(
        settings,
        session_option,
        "Gap added",
        lambda found: found.gaps.add(
            question,
            type=type,
            criticality=criticality,
            blocks=listed(blocks),
            how=how,
        ),
    )


@gap.command("fill", cls=Command, example='stepkeep investigate gap fill g_9p "60 seconds"')
@click.argument("id")
@click.argument("answer", default="")
@session_option()
@settings_of
def fill_gap(settings: Settings, id: str, answer: str, session_option: str | None) -> None:
    """Note the ANSWER to gap ID."""
    change(settings, session_option, "Gap filled", lambda found: found.gaps.fill(id, answer))


@gap.command("set", cls=Command, example="stepkeep investigate gap set g_9p obsolete")
@click.argument("id")
@click.argument("status", type=words(GapStatus))
@session_option()
@settings_of
def set_gap(settings: Settings, id: str, status: str, session_option: str | None) -> None:
    """Say where gap ID stands."""
    change(settings, session_option, "Gap changed", lambda found: found.gaps.set_status(id, status))


@click.command("note", cls=Command, example='stepkeep investigate note "Only on Mondays"')
@click.argument("content")
@click.option("--tags", metavar="A,B", help="Tags, separated by commas.")
@click.option("--about", metavar="A,B", help="Ids of the hypotheses it is about.")
@session_option()
@settings_of
def note(
    settings: Settings, content: str, tags: str | None, about: str | None, session_option: str | None
) -> None:
    """Write something down."""
    change(
        settings,
        session_option,
        "Note added",
        lambda found: found.notes.add(
            content,
            tags=listed(tags),
            hypotheses=[found.hypotheses.get(id).id for id in listed(about)],
        ),
    )
