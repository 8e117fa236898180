"""`stepkeep investigate hypothesis`, `evidence`, `belief`, `gap` and `note`."""

from __future__ import annotations

import click

from stepkeep.cli.app import Command, Settings, settings_of
from stepkeep.cli.investigate_shared import Group, change, words
from stepkeep.cli.naming import session_option
from stepkeep.investigation.beliefs import BeliefKind, ContradictionStatus, Relationship
from stepkeep.investigation.gaps import Criticality, GapStatus, GapType
from stepkeep.investigation.hypotheses import PRIOR, EvidenceKind
from stepkeep.operations import investigating

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
        lambda store, key: investigating.add_hypothesis(
            store,
            key,
            description,
            confidence=confidence,
            tags=investigating.words_of(tags),
            parent=parent,
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
            lambda store, key: investigating.set_hypothesis(store, key, id, status, confidence=confidence),
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
        lambda store, key: investigating.set_hypothesis(store, key, id, None, confidence=confidence),
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
        lambda store, key: investigating.add_evidence(
            store, key, hypothesis, description, kind=kind, strength=strength, source=source
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
        lambda store, key: investigating.add_belief(
            store, key, statement, kind=kind, confidence=confidence, source=source
        ),
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
        lambda store, key: investigating.update_belief(store, key, id, confidence=confidence),
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
        lambda store, key: investigating.depend(
            store, key, from_id, to_id, relationship=relationship, strength=strength, reason=reason
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
        lambda store, key: investigating.contradict(store, key, first, second, reason=reason),
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
        lambda store, key: investigating.set_contradiction(store, key, id, status),
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
        lambda store, key: investigating.add_gap(
            store,
            key,
            question,
            type=type,
            criticality=criticality,
            blocks=investigating.words_of(blocks),
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
    change(settings, session_option, lambda store, key: investigating.fill_gap(store, key, id, answer))


@gap.command("set", cls=Command, example="stepkeep investigate gap set g_9p obsolete")
@click.argument("id")
@click.argument("status", type=words(GapStatus))
@session_option()
@settings_of
def set_gap(settings: Settings, id: str, status: str, session_option: str | None) -> None:
    """Say where gap ID stands."""
    change(settings, session_option, lambda store, key: investigating.set_gap(store, key, id, status))


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
        lambda store, key: investigating.add_note(
            store,
            key,
            content,
            tags=investigating.words_of(tags),
            hypotheses=investigating.words_of(about),
        ),
    )
