"""`stepkeep investigate`: a debugging session kept from the shell."""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import Any, Final, TypeVar, get_args

import click

from stepkeep import api
from stepkeep.api import (
    Investigation,
    InvestigationChange,
    InvestigationStatus,
    RecoveryView,
    RepairedEntry,
)
from stepkeep.cli.app import Command, CommonOptions, settings_of
from stepkeep.cli.naming import chosen_session, complete_ref, opened, session_option, tag_option
from stepkeep.cli.printing import is_terminal, json_document, lines, write
from stepkeep.errors import InvalidInput
from stepkeep.text import clean, count

T = TypeVar("T")
Work = Callable[..., object]

WORDS: Final = {"ignore_unknown_options": True, "allow_interspersed_args": False}
"""What follows the options is another program's."""

FAILED: Final = 1
_FIELDS: Final = ("status", "severity", "confidence", "strength", "criticality", "kind", "relationship")
_TEXTS: Final = ("description", "statement", "question", "content", "plan", "command", "reason")

EXAMPLE = """\
stepkeep investigate hypothesis add "The cache is stale" --session bug-7
stepkeep investigate verify --session bug-7 -- pytest -q
stepkeep investigate status --session bug-7"""


class InvestigateGroup(Command, click.Group):
    """A group of commands that also takes the common options."""


@click.group("investigate", cls=InvestigateGroup, example=EXAMPLE)
@session_option()
def investigate(session_option: str | None) -> None:
    """Keep a debugging session: hypotheses, evidence, beliefs, gaps, verifications.

    Every command takes the session up from its checkpoints and saves what it changes. What matters becomes an
    automatic checkpoint, tagged auto; everything else is saved as a plain one.
    """


COMMANDS = {"investigate": investigate}


# --- commands that change an investigation


def change(
    settings: CommonOptions,
    session: str | None,
    message: str,
    work: Callable[[Investigation], object],
    show: Callable[[InvestigationChange], None],
) -> InvestigationChange:
    """Do one thing in the investigation that is meant, begin it if need be, save it, and show what became of it.

    `message` is that of the checkpoint, where the change makes no automatic one.
    """
    with opened(settings, create=True) as store:
        key = chosen_session(store, None, session, changes=True, creates=True)
        changed = api.change_investigation(store, key, message, work)
    present(settings, changed, show)
    return changed


def present(settings: CommonOptions, value: T, show: Callable[[T], None]) -> None:
    """Print a result; in JSON its times read as everywhere."""
    if settings.json:
        json_document(api.with_times(value))
    else:
        show(value)


def show_change(changed: InvestigationChange) -> None:
    lines([entry_line(changed.entry), *after_lines(changed)])


def changing(
    group: click.Group,
    name: str,
    message: str,
    *,
    example: str,
    show: Callable[[InvestigationChange], None] = show_change,
    **more: Any,
) -> Callable[[Work], click.Command]:
    """Make a command of a function that takes the investigation and its options, and returns the entry it changed."""

    def made(work: Work) -> click.Command:
        @session_option()
        @settings_of
        def command(settings: CommonOptions, /, session_option: str | None, **given: Any) -> None:
            change(settings, session_option, message, lambda found: work(found, **given), show)

        vars(command)["__click_params__"] += vars(work).get("__click_params__", [])
        text = {"help": work.__doc__, "example": f"stepkeep investigate {example}"}
        return group.command(name, cls=Command, **{**text, **more})(command)

    return made


def words(kind: type[StrEnum]) -> click.Choice[str]:
    """The words of an enumeration, as an option takes them."""
    return click.Choice([member.value for member in kind])


def listed(text: str | None) -> tuple[str, ...]:
    """A list given as `a,b`."""
    if text is None:
        return ()
    words = tuple(word.strip() for word in text.split(","))
    if not all(words):
        raise InvalidInput(f"{text!r} is not a list such as a,b", code="invalid_name")
    return words


def after_lines(changed: InvestigationChange) -> list[str]:
    """What else came of a change: contradictions, and the checkpoints."""
    found = [f"Contradiction {clean(each.id)} ({each.severity})" for each in changed.contradictions]
    saved = [
        f"Saved {each.id} (checkpoint {each.seq}, {clean(each.message)})" for each in changed.checkpoints
    ]
    return [*found, *(saved or ["Nothing changed."])]


def entry_line(entry: Any) -> str:
    """An entry on one line: its id, where it stands, and its text."""
    words = [str(getattr(entry, "id", "") or getattr(entry, "name", ""))]
    for field in _FIELDS:
        value = getattr(entry, field, None)
        if isinstance(value, float):
            words.append(f"{value:+.1f}" if field == "strength" else f"{value:.0%}")
        elif value is not None:
            words.append(str(value))
    words += [str(text) for field in _TEXTS if (text := getattr(entry, field, ""))][:1]
    return clean("  ".join(word for word in words if word))


# --- hypotheses and evidence

_HYPOTHESIS: Final = 'hypothesis add "The cache is stale"'


@investigate.group("hypothesis", cls=InvestigateGroup, example=f"stepkeep investigate {_HYPOTHESIS}")
def hypothesis() -> None:
    """Put up hypotheses, test them, confirm or reject them.

    A change of the status is saved as an automatic checkpoint. An ID may be given by its beginning.
    """


@changing(hypothesis, "add", "Hypothesis added", example=_HYPOTHESIS)
@click.argument("description")
@click.option(
    "--confidence",
    type=float,
    default=api.PRIOR_CONFIDENCE,
    show_default=True,
    help="How likely, from 0 to 1.",
)
@tag_option
@click.option("--parent", metavar="ID", help="The hypothesis that this one refines.")
def add_hypothesis(found: Investigation, description: str, **given: Any) -> object:
    """Put up a hypothesis."""
    return found.hypotheses.add(description, **given)


def _status_command(verb: str, status: str, text: str) -> None:
    @changing(hypothesis, verb, "Hypothesis changed", help=text, example=f"hypothesis {verb} h_3f")
    @click.argument("id")
    @click.option("--confidence", type=float, help="How likely it is now, from 0 to 1.")
    def set_status(found: Investigation, id: str, confidence: float | None) -> object:
        return found.hypotheses.set_status(id, status, confidence=confidence)


_status_command("test", "under_test", "Say that hypothesis ID is under test.")
_status_command("confirm", "confirmed", "Say that hypothesis ID is confirmed.")
_status_command("reject", "rejected", "Say that hypothesis ID is rejected.")
_status_command("archive", "archived", "Put hypothesis ID aside.")


@changing(hypothesis, "rate", "Hypothesis changed", example="hypothesis rate h_3f 0.8")
@click.argument("id")
@click.argument("confidence", type=float)
def rate_hypothesis(found: Investigation, id: str, confidence: float) -> object:
    """Say how likely hypothesis ID is, from 0 to 1."""
    return found.hypotheses.update(id, confidence=confidence)


@changing(investigate, "evidence", "Evidence added", example='evidence h_3f "Old value" --strength 0.7')
@click.argument("hypothesis")
@click.argument("description")
@click.option("--kind", type=words(api.EvidenceKind), default="observation", show_default=True)
@click.option("--strength", type=float, default=0.0, show_default=True, help="From -1 (against) to 1 (for).")
@click.option("--source", default="", help="Where it comes from.")
def evidence(found: Investigation, **given: Any) -> object:
    """Note what speaks for or against a HYPOTHESIS."""
    return found.hypotheses.add_evidence(**given)


# --- beliefs

_BELIEF: Final = 'belief add "The cache expires"'


@investigate.group("belief", cls=InvestigateGroup, example=f"stepkeep investigate {_BELIEF}")
def belief() -> None:
    """Hold beliefs, say what they rest on, and what contradicts what.

    A belief that says the opposite of another one is a contradiction, and saved as an automatic checkpoint.
    """


@changing(belief, "add", "Belief added", example=_BELIEF)
@click.argument("statement")
@click.option("--kind", type=words(api.BeliefKind), default="observation", show_default=True)
@click.option("--confidence", type=float, default=0.8, show_default=True, help="How sure, from 0 to 1.")
@click.option("--source", default="", help="Where it comes from.")
def add_belief(found: Investigation, **given: Any) -> object:
    """Hold something to be true."""
    return found.beliefs.add(**given)


@changing(belief, "rate", "Belief changed", example="belief rate b_7k 0.3")
@click.argument("id")
@click.argument("confidence", type=float)
def rate_belief(found: Investigation, id: str, confidence: float) -> object:
    """Say how sure belief ID is, from 0 to 1. Below 0.5 it contradicts nothing."""
    return found.beliefs.update(id, confidence=confidence)


@changing(belief, "depend", "Dependency added", example="belief depend b_7k b_2m")
@click.argument("from_id", metavar="FROM")
@click.argument("to_id", metavar="TO")
@click.option("--relationship", type=words(api.Relationship), default="evidential", show_default=True)
@click.option("--strength", type=float, default=1.0, show_default=True, help="From 0 to 1.")
@click.option("--reason", default="")
def depend(found: Investigation, **given: Any) -> object:
    """Let belief FROM support belief TO. A circle is refused."""
    return found.beliefs.depend(**given)


@changing(belief, "contradict", "Contradiction noted", example="belief contradict b_7k b_2m")
@click.argument("first")
@click.argument("second")
@click.option("--reason", default="")
def contradict(found: Investigation, **given: Any) -> object:
    """Say that two beliefs cannot both be true."""
    return found.beliefs.contradict(**given)


@changing(belief, "settle", "Contradiction changed", example="belief settle b_2m resolved")
@click.argument("id")
@click.argument("status", type=words(api.ContradictionStatus))
def settle(found: Investigation, id: str, status: str) -> object:
    """Say how far contradiction ID is dealt with."""
    return found.beliefs.set_contradiction(id, status)


# --- gaps and notes

_GAP: Final = 'gap add "Which TTL is set?"'


@investigate.group("gap", cls=InvestigateGroup, example=f"stepkeep investigate {_GAP}")
def gap() -> None:
    """Note what is not known, and what answered it.

    Filling a gap is saved as an automatic checkpoint.
    """


@changing(gap, "add", "Gap added", example=_GAP)
@click.argument("question")
@click.option("--type", type=words(api.GapType), default="factual", show_default=True)
@click.option("--criticality", type=words(api.Criticality), default="medium", show_default=True)
@click.option("--blocks", metavar="A,B", help="Ids of what waits for it.")
@click.option("--how", default="", help="What would answer it.")
def add_gap(found: Investigation, question: str, blocks: str | None, **given: Any) -> object:
    """Note that something is not known."""
    return found.gaps.add(question, blocks=listed(blocks), **given)


@changing(gap, "fill", "Gap filled", example='gap fill g_9p "60 seconds"')
@click.argument("id")
@click.argument("answer", default="")
def fill_gap(found: Investigation, id: str, answer: str) -> object:
    """Note the ANSWER to gap ID."""
    return found.gaps.fill(id, answer)


@changing(gap, "set", "Gap changed", example="gap set g_9p obsolete")
@click.argument("id")
@click.argument("status", type=words(api.GapStatus))
def set_gap(found: Investigation, id: str, status: str) -> object:
    """Say where gap ID stands."""
    return found.gaps.set_status(id, status)


@changing(investigate, "note", "Note added", example='note "Only on Mondays"')
@click.argument("content")
@tag_option
@click.option("--about", metavar="A,B", help="Ids of the hypotheses it is about.")
def note(found: Investigation, content: str, tags: tuple[str, ...], about: str | None) -> object:
    """Write something down."""
    hypotheses = [found.hypotheses.get(id).id for id in listed(about)]
    return found.notes.add(content, tags=tags, hypotheses=hypotheses)


# --- commands and code


@investigate.command(
    "verify",
    cls=Command,
    context_settings=WORDS,
    example='stepkeep investigate verify --plan "the cache is off" -- pytest -q',
)
@click.argument("words", nargs=-1, required=True, metavar="COMMAND...", type=click.UNPROCESSED)
@click.option("--plan", default="", help="What the command is to show.  [default: the command]")
@click.option("--hypothesis", metavar="ID", help="The hypothesis it tests.")
@click.option(
    "--timeout",
    type=float,
    default=api.VERIFICATION_SECONDS,
    show_default=True,
    help="Seconds until it is ended.",
)
@session_option()
@settings_of
def verify(
    settings: CommonOptions,
    words: tuple[str, ...],
    plan: str,
    hypothesis: str | None,
    timeout: float,
    session_option: str | None,
) -> int:
    """Run a COMMAND that shows whether something is so, and save what it showed.

    Exits with 0 if the command did, and with 1 if it failed, hung or could not be started. Of its output the
    beginning and the end are kept.
    """

    def work(found: Investigation) -> object:
        tested = None if hypothesis is None else found.hypotheses.get(hypothesis).id
        return found.verifications.run(words, plan=plan, hypothesis=tested, timeout_seconds=timeout)

    changed = change(settings, session_option, "Verification run", work, _show_result)
    return 0 if changed.entry.status == "passed" else FAILED


def _show_result(changed: InvestigationChange) -> None:
    result = changed.entry
    lines([clean(line) for line in result.output.splitlines()])
    lines([f"{clean(result.id)}  {result.status}  {result.duration_ms} ms", *after_lines(changed)])


@changing(
    investigate,
    "command",
    "Command noted",
    context_settings=WORDS,
    example="command --replay -- docker compose up -d",
)
@click.argument("words", nargs=-1, required=True, metavar="COMMAND...", type=click.UNPROCESSED)
@click.option("--exit-code", type=int, help="How it ended.")
@click.option("--replay", is_flag=True, help="It has to be run again to be where this is.")
def command(found: Investigation, words: tuple[str, ...], **given: Any) -> object:
    """Note a COMMAND that was run by hand; it is not run. See `run` for one that is."""
    return found.commands.record(shlex.join(words), working_dir=str(Path.cwd()), **given)


@investigate.command(
    "run", cls=Command, context_settings=WORDS, example="stepkeep investigate run -- make test"
)
@click.argument("words", nargs=-1, required=True, metavar="COMMAND...", type=click.UNPROCESSED)
@click.option("--replay", is_flag=True, help="It has to be run again to be where this is.")
@session_option()
@settings_of
def run(settings: CommonOptions, words: tuple[str, ...], replay: bool, session_option: str | None) -> int:
    """Run a COMMAND, and note how it ended and what it printed.

    Exits as the command did. Of its output the beginning and the end are kept.
    """
    changed = change(
        settings,
        session_option,
        "Command run",
        lambda found: found.commands.run(words, folder=Path.cwd(), replay=replay),
        _show_run,
    )
    code: int | None = changed.entry.exit_code
    return FAILED if code is None else code if code >= 0 else 128 - code


def _show_run(changed: InvestigationChange) -> None:
    entry = changed.entry
    lines(
        [clean(line) for text in (entry.stdout_preview, entry.stderr_preview) for line in text.splitlines()]
    )
    lines([f"{clean(entry.id)}  exit code {entry.exit_code}", *after_lines(changed)])


def _show_code(changed: InvestigationChange) -> None:
    lines([clean(f"code  {', '.join(changed.entry.paths)}"), *after_lines(changed)])


@changing(investigate, "code", "Code changed", show=_show_code, example="code src/cache.py --commit 4f2a91c")
@click.argument("paths", nargs=-1, required=True, metavar="PATH...")
@click.option("--commit", metavar="ID", help="The commit it is based on.")
@click.option("--patch", "patches", multiple=True, metavar="FILE", help="What differs from the commit.")
def code(
    found: Investigation, paths: tuple[str, ...], commit: str | None, patches: tuple[str, ...]
) -> object:
    """Say that the code at PATH was modified.

    Of the environment a few harmless variables are kept, and none that looks like a secret.
    """
    texts = [_read(name) for name in patches]
    return found.code_changed(paths, commit, patches=texts, environment=os.environ)


def _read(name: str) -> str:
    try:
        return Path(name).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as exc:
        raise InvalidInput(f"{name} cannot be read: {exc}", code="unreadable_file") from exc


def _show_compaction(changed: InvestigationChange) -> None:
    lines([f"Created checkpoint {changed.entry} before compaction"])


@changing(investigate, "compaction", "Compaction", show=_show_compaction, example="compaction")
def compaction(found: Investigation) -> object:
    """Save everything, because the context is about to be compacted."""
    return found.compaction_warning().id


# --- experiments


_EXPERIMENT: Final = "experiment begin no-cache"


@investigate.group("experiment", cls=InvestigateGroup, example=f"stepkeep investigate {_EXPERIMENT}")
def experiment() -> None:
    """Try ideas on branches of their own.

    Beginning one and switching are saved as automatic checkpoints.
    """


@changing(experiment, "begin", "Experiment begun", example=_EXPERIMENT)
@click.argument("name")
@click.option("--description", default="", help="What is tried.")
@click.option("--hypothesis", metavar="ID", help="The hypothesis it tests.")
@click.option("--criteria", default="", help="What would be a success.")
def begin(found: Investigation, name: str, **given: Any) -> object:
    """Fork branch NAME where the investigation stands, and go on there."""
    return found.begin_experiment(name, **given)


@changing(experiment, "switch", "Branch switched", example="experiment switch main")
@click.argument("name")
@click.option("--files", is_flag=True, help="Bring the project files of that branch back too.")
@click.option("--force", is_flag=True, help="With --files: also over changes that no capture has.")
def switch(found: Investigation, name: str, **given: Any) -> object:
    """Go on with branch NAME, with what was known there."""
    return found.switch(name, **given)


@changing(experiment, "merge", "Experiment merged", example="experiment merge no-cache")
@click.argument("name")
@click.option(
    "--strategy",
    type=click.Choice(get_args(api.Strategy)),
    default="union",
    show_default=True,
    help="What to take.",
)
@click.option("--on-conflict", type=click.Choice(get_args(api.Side)), help="Whose value counts.")
@click.option("--results", default="", help="What came out of it.")
def merge(found: Investigation, name: str, results: str, **given: Any) -> object:
    """Merge branch NAME into the current one."""
    found.merge(name, **given)
    return found.experiments.note_results(name, results) if results else found.experiments.get(name)


def _show_closed(changed: InvestigationChange) -> None:
    if changed.checkpoints:
        show_change(changed)
    else:
        lines([entry_line(changed.entry)])


@changing(experiment, "close", "Experiment closed", show=_show_closed, example="experiment close no-cache")
@click.argument("name")
@click.option("--results", default="", help="What came out of it.")
@click.option("--archive", is_flag=True, help="It is done, not given up.")
def close(found: Investigation, name: str, **given: Any) -> object:
    """Give up branch NAME, or with --archive put it aside."""
    return found.close_experiment(name, **given)


# --- looking


def look(
    settings: CommonOptions,
    session: str | None,
    read: Callable[[Investigation], T],
    show: Callable[[T], None],
) -> None:
    """Read something about the investigation that is meant, and show it."""
    with opened(settings) as store:
        found = read(store.investigation(store.get(chosen_session(store, None, session))))
    present(settings, found, show)


@investigate.command("status", cls=Command, example="stepkeep investigate status")
@session_option()
@settings_of
def status(settings: CommonOptions, session_option: str | None) -> None:
    """Show where the investigation stands, and what to find out next."""
    look(settings, session_option, api.investigation_status, _print_status)


@investigate.command("at", cls=Command, example='stepkeep investigate at "2 hours ago"')
@click.argument("time", shell_complete=complete_ref)
@session_option()
@settings_of
def at(settings: CommonOptions, time: str, session_option: str | None) -> None:
    """Show what was known at a TIME, on the branch that was current then."""
    look(settings, session_option, lambda found: api.investigation_at(found, time), _print_status)


def _print_status(found: InvestigationStatus) -> None:
    state, metrics = found.state, found.state.metrics
    gaps = {gap.id: gap for gap in state.gaps}
    open_contradictions = [
        each for each in state.contradictions if each.status in ("active", "investigating")
    ]
    shown = [f"Investigation {clean(found.session)}, on branch {clean(state.current_branch)}"]
    for title, entries in (
        ("Hypotheses", list(state.hypotheses)),
        ("Beliefs", list(state.beliefs)),
        ("Contradictions", open_contradictions),
        ("To find out", [gaps[id] for id in found.next_gaps]),
        ("Experiments", list(state.branches) if len(state.branches) > 1 else []),
    ):
        if entries:
            shown += [f"{title}:", *(f"  {entry_line(entry)}" for entry in entries)]
    counts = (
        count(metrics.checkpoints_created, "checkpoint"),
        count(metrics.verifications_run, "verification"),
        count(len(state.evidence), "piece") + " of evidence",
        count(len(state.notes), "note"),
    )
    latest = "" if found.latest is None else f" Latest: {found.latest.id} ({clean(found.latest.message)})."
    shown.append(f"{', '.join(counts)}.{latest}")
    if state.broken:
        shown.append(f"Cannot be read: {count(len(state.broken), 'entry', 'entries')}. See 'repair'.")
    lines(shown)


@investigate.command("repair", cls=Command, example="stepkeep investigate repair")
@session_option()
@settings_of
def repair(settings: CommonOptions, session_option: str | None) -> None:
    """Mend stored entries that cannot be read, and drop those of which too little is left."""
    look(settings, session_option, lambda found: found.repair(), _print_repaired)


def _print_repaired(repaired: tuple[RepairedEntry, ...]) -> None:
    lines(
        [
            clean(f"{'Mended' if each.is_mended else 'Dropped'} {each.id} of {each.entries}: {each.reason}")
            for each in repaired
        ]
        or ["Every entry can be read."]
    )


@investigate.command("report", cls=Command, example="stepkeep investigate report --output report.md")
@click.option("-o", "--output", metavar="FILE", help="Write it to a file.  [default: stdout]")
@click.option("--force", is_flag=True, help="Replace the file if it exists.")
@session_option()
@settings_of
def report(settings: CommonOptions, output: str | None, force: bool, session_option: str | None) -> None:
    """Write the investigation as Markdown."""
    path = None if output is None else Path(output)
    look(
        settings,
        session_option,
        lambda found: api.investigation_report(found, output=path, force=force),
        lambda found: lines(
            [clean(line.expandtabs()) for line in found.markdown.splitlines()]
            if found.output is None
            else [f"Wrote {clean(found.output)}"]
        ),
    )


@investigate.command("compare", cls=Command, example="stepkeep investigate compare latest~3")
@click.argument("older", shell_complete=complete_ref)
@click.argument("newer", default="latest", shell_complete=complete_ref)
@session_option()
@settings_of
def compare(settings: CommonOptions, older: str, newer: str, session_option: str | None) -> None:
    """Show what changed from checkpoint OLDER to NEWER (latest)."""
    look(
        settings,
        session_option,
        lambda found: found.compare(older, newer),
        lambda found: lines([clean(line) for line in found.as_text().splitlines()]),
    )


@investigate.command("recovery", cls=Command, example="stepkeep investigate recovery --script")
@click.argument("ref", default="latest", shell_complete=complete_ref)
@click.option("--script", is_flag=True, help="Show it as a shell script.")
@session_option()
@settings_of
def recovery(settings: CommonOptions, ref: str, script: bool, session_option: str | None) -> None:
    """Show how to get back to where checkpoint REF was. Nothing is run."""
    look(
        settings,
        session_option,
        lambda found: api.investigation_recovery(found, ref),
        lambda found: _print_recovery(found, script),
    )


def _print_recovery(found: RecoveryView, script: bool) -> None:
    if script and not is_terminal():
        write(found.script.encode("utf-8", "backslashreplace"))  # to the letter: a file may run it
        return
    lines([clean(line) for line in (found.script if script else found.text).split("\n")[:-1]])
