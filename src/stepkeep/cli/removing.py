"""What stays and what nobody needs any more: `stepkeep keep`, `prune` and `clean`, also `cleanup`."""

from __future__ import annotations

import re
from functools import partial
from typing import Any

import click

from stepkeep import api
from stepkeep.cli.app import CommonOptions, command
from stepkeep.cli.finish import is_confirmed
from stepkeep.cli.naming import Words, known, on_session, opened, opened_without_key
from stepkeep.cli.printing import cleanup_text, lines, moment, note, note_errors, or_dash, table
from stepkeep.errors import InvalidInput
from stepkeep.text import clean, count, size

# --- keep --------------------------------------------------------------------------------------------------------

KEEP_EXAMPLE = """\
stepkeep keep research-42
stepkeep keep research-42 --forever
stepkeep keep research-42 --policy keep_last=20 --policy retention_days=90"""


@command("keep", KEEP_EXAMPLE)
@on_session()
@click.option("--forever", is_flag=True, help="Nothing of it is pruned or cleaned any more.")
@click.option(
    "--policy",
    "pairs",
    multiple=True,
    metavar="RULE=VALUE",
    help="A rule of its own: one of `retention` in the configuration, or retention_days, or enabled. Repeatable.",
)
@click.option("--default", "is_default", is_flag=True, help="Take its own rules back.")
def keep(
    settings: CommonOptions, words: Words, forever: bool, pairs: tuple[str, ...], is_default: bool
) -> None:
    """Say what is kept of SESSION, before what configuration and profile say; without options, show it.

    The rules given here are all that it has of its own: what was given before is replaced.
    """
    if forever + is_default + bool(pairs) > 1:
        raise click.UsageError("Choose one of --forever, --policy and --default.")
    key = words.named()
    with opened(settings) as store:
        run = store.get(known(store, key))
        if forever:
            status = run.keep(forever=True)
        elif pairs or is_default:
            retention, cleanup = api.parse_policy(_pairs(pairs))
            status = run.keep(retention=retention, cleanup=cleanup)
        else:
            status = run.status()
    settings.show(status, _print_kept)


def _pairs(texts: tuple[str, ...]) -> dict[str, str]:
    found: dict[str, str] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or name in found:
            raise click.UsageError("--policy takes RULE=VALUE, each rule once.")
        found[name] = value
    return found


def _print_kept(status: api.SessionStatus) -> None:
    named = [f"{'prune:' if not at else '':<7}{clean(rule)}" for at, rule in enumerate(status.rules)]
    lines([clean(status.session.key), *named, f"clean: {clean(cleanup_text(status.cleanup))}"])


# --- prune -------------------------------------------------------------------------------------------------------

PRUNE_EXAMPLE = """\
stepkeep prune research-42 --dry-run
stepkeep prune research-42 --keep-last 10 --keep-tag release
stepkeep prune --all --max-age 14d"""

SPAN = "SPAN"
SAME = {"keep_days": "keep_within", "max_per_run": "keep_last", "max_age_days": "max_age"}
"""Hidden flags that are other words for a rule."""


@command("prune", PRUNE_EXAMPLE)
@on_session()
@click.option("--all", "every", is_flag=True, help="Prune every session.")
@click.option("--keep-last", type=int, metavar="N", help="Keep the newest N.")
@click.option("--keep-within", metavar=SPAN, help="Keep everything younger, such as 90m, 12h, 7d or 2w.")
@click.option("--keep-days", type=int, hidden=True)
@click.option("--keep-hourly", metavar=SPAN, help="Keep one per hour, for that long.")
@click.option("--keep-daily", metavar=SPAN, help="Keep one per day, for that long.")
@click.option("--keep-weekly", metavar=SPAN, help="Keep one per week, for that long.")
@click.option("--keep-tag", "keep_tags", multiple=True, metavar="TAG", help="Also keep those with this tag.")
@click.option("--keep-manual", is_flag=True, help="Also keep what was saved by hand.")
@click.option(
    "--max-count", type=int, metavar="N", help="Remove the oldest beyond N, whatever else keeps them."
)
@click.option("--max-age", metavar=SPAN, help="Remove what is older, whatever else keeps it.")
@click.option("--max-bytes", metavar="SIZE", help="Remove the oldest until the rest fits, such as 500MB.")
@click.option("--max-per-run", type=int, hidden=True)
@click.option("--max-age-days", type=int, hidden=True)
@click.option(
    "--compress-after-hours", type=int, metavar="N", help="Gzip the history in files that is so old."
)
@click.option("--dry-run", is_flag=True, help="Only show what would stay and go, and why.")
@click.option("-y", "--yes", is_flag=True, help="Do not ask, where the session is not named.")
def prune(
    settings: CommonOptions, /, words: Words, every: bool, dry_run: bool, yes: bool, **rules: Any
) -> int:
    """Remove old checkpoints of SESSION, or of all sessions, that no rule keeps.

    Without rules here those of the session hold: of its profile, the configuration and its own policy. Keep counts
    given here replace its own; what it always keeps, such as what was saved by hand in a debugging session, stays.
    With rules SESSION may be left out: it is then the current one, and you are asked before anything goes. What stays
    of a history in readable files is gzipped when it is old enough.

    The newest checkpoint, heads and fork points of open pinned branches, the newest failed and completed one,
    and what others require always stay.
    """
    is_named = words.named_if_any() is not None
    if every and is_named:
        raise click.UsageError("--all and a session exclude each other.")
    if not every and not is_named and not any(rules.values()):
        raise click.UsageError("Which session? Name it, or the rules for the current one, or say --all.")
    hours = rules.pop("compress_after_hours")
    chosen = _rules(rules)
    with opened_without_key(settings) as store:
        key = None if every else words.chosen(store, changes=not dry_run)
        is_agreed = every or yes or key == words.named_if_any(use_environment=True)
        try:
            work = partial(store.prune, key, compress_after_hours=hours, **chosen)
            if not dry_run and not is_agreed and not _is_wanted(work(dry_run=True)):
                note("Nothing removed.")
                return 1
            pruned = work(dry_run=dry_run)
        except InvalidInput as exc:
            raise _about_flags(exc, rules) from exc
    settings.show(pruned, _print_pruned)
    return 1 if pruned.errors else 0


def _is_wanted(plan: api.Pruned) -> bool:
    """Whether what a prune would do to the session that nobody named is what its user wants."""
    what = f"{plan.deleted:,} of {count(plan.total, 'checkpoint')}"
    return not plan.deleted or is_confirmed(f"Remove {what} of session {plan.sessions[0].session} for good?")


def _rules(flags: dict[str, Any]) -> api.RetentionRules:
    """The rules that flags stand for."""
    given = {
        name: value
        for name, value in flags.items()
        if value is not None and value is not False and value != ()
    }
    for other, rule in SAME.items():
        if other in given:
            if rule in given:
                raise InvalidInput(
                    f"{_flag(rule)} and {_flag(other)} say the same: give one of them", code="usage"
                )
            given[rule] = f"{given.pop(other)}d" if other.endswith("days") else given.pop(other)
    added = [name for name in ("keep_tags", "keep_manual") if name in given]
    if added and not any(name.startswith("keep_") for name in given if name not in added):
        raise InvalidInput(
            f"{_flag(added[0])} only adds to what another rule keeps: give one too, such as --keep-last 10",
            code="usage",
        )
    rules: api.RetentionRules = {}
    rules.update(given)  # type: ignore[typeddict-item]
    return rules


def _about_flags(error: InvalidInput, flags: dict[str, Any]) -> InvalidInput:
    """The same error, told of the flags that were given instead of the rules they stand for."""
    others = {rule: other for other, rule in SAME.items() if flags[other] is not None}
    names = {name: _flag(others.get(name, name)) for name in (*flags, "compress_after_hours")}
    text = re.sub(r"\b[a-z]+(_[a-z]+)+\b", lambda match: names.get(match[0], match[0]), error.message)
    return InvalidInput(text, code=error.code)


def _flag(rule: str) -> str:
    return "--keep-tag" if rule == "keep_tags" else f"--{rule.replace('_', '-')}"


def _print_pruned(pruned: api.Pruned) -> None:
    for session in pruned.sessions:
        for warning in session.warnings:
            note(f"warning: {session.session}: {warning}")
        if pruned.is_dry_run:
            _print_plan(session)
    note_errors(pruned.errors)
    lines([_total(pruned), *_afterwards(pruned)])


def _print_plan(session: api.PruneReport) -> None:
    lines([f"{clean(session.session)}: {count(session.total, 'checkpoint')}"])
    lines([f"{'rules:' if not at else '':<7}{clean(rule)}" for at, rule in enumerate(session.rules)])
    lines([""])
    if session.decisions:
        _print_decisions(session.decisions)
        lines([""])


def _print_decisions(decisions: tuple[api.CheckpointDecision, ...]) -> None:
    rows = [
        {
            "seq": str(each.seq),
            "time": moment(each.time),
            "branch": each.branch,
            "step": or_dash(each.step),
            "stored": size(each.stored_bytes),
            "plan": "stays" if each.stays else "goes",
            "because": _because(each),
        }
        for each in decisions
    ]
    colours = [None if each.stays else "red" for each in decisions]
    hidden = {"branch"} if len({each.branch for each in decisions}) == 1 else set()
    if all(each.step is None for each in decisions):
        hidden.add("step")
    out = ("stored", "branch", "step", "time")
    table(rows, right=["seq", "step", "stored"], colours=colours, leave_out=hidden, first_out=out, wrap=True)


def _because(decision: api.CheckpointDecision) -> str:
    reasons = ", ".join(decision.reasons)
    return reasons if decision.warning is None else f"{reasons} ({decision.warning})"


def _total(pruned: api.Pruned) -> str:
    sessions = "" if len(pruned.sessions) == 1 else f" in {count(len(pruned.sessions), 'session')}"
    total = f"{count(pruned.total, 'checkpoint')}{sessions}"
    if pruned.is_dry_run:
        return (
            f"{total}: {pruned.kept:,} would stay, {pruned.deleted:,} would go ({size(pruned.stored_bytes)})"
        )
    refused = f", {pruned.refused:,} refused" if pruned.refused else ""
    freed = f"{size(pruned.stored_bytes)} reclaimed"
    return f"{total}: {pruned.kept:,} kept, {pruned.deleted:,} deleted{refused}, {freed}"


def _afterwards(pruned: api.Pruned) -> list[str]:
    would = " would be" if pruned.is_dry_run else ""
    texts = [f"{count(pruned.compressed, 'checkpoint')}{would} compressed"] if pruned.compressed else []
    if pruned.is_dry_run:
        return [*texts, "This was a dry run: nothing was removed."]
    if pruned.reclaimed_bytes:
        texts.append(f"The store is {size(pruned.reclaimed_bytes)} smaller.")
    return texts


# --- clean -------------------------------------------------------------------------------------------------------

CLEAN_EXAMPLE = """\
stepkeep clean --dry-run
stepkeep clean"""


@click.option("--dry-run", is_flag=True, help="Only show what would go and stay, and why.")
def _clean(settings: CommonOptions, dry_run: bool) -> int:
    """Remove whole sessions that ended long enough ago, with all their checkpoints.

    How long they stay depends on how they ended, and on their own policy, workflow, profile and the configuration.
    Sessions that are active or that someone holds stay.
    """
    with opened(settings) as store:
        cleaned = store.clean(dry_run=dry_run)
    settings.show(cleaned, _print_cleaned)
    return 1 if cleaned.errors else 0


def _print_cleaned(cleaned: api.CleanReport) -> None:
    for warning in cleaned.warnings:
        note(f"warning: {warning}")
    if cleaned.sessions:
        title, goes = ("plan", "goes") if cleaned.is_dry_run else ("done", "gone")
        table(
            [
                {"session": each.session, title: goes if each.goes else "stays", "because": each.reason}
                for each in cleaned.sessions
            ],
            colours=["red" if each.goes else None for each in cleaned.sessions],
            wrap=True,
        )
        lines([""])
    failed = count(cleaned.error, "error")
    if cleaned.is_dry_run:
        would = f"{count(cleaned.cleaned, 'session')} would go, {cleaned.retained:,} would stay, {failed}"
        lines([would, "This was a dry run: nothing was removed."])
        return
    freed = f", {size(cleaned.reclaimed_bytes)} reclaimed" if cleaned.reclaimed_bytes else ""
    lines([f"{count(cleaned.cleaned, 'session')} cleaned, {cleaned.retained:,} retained, {failed}{freed}"])


clean_ = command("clean", CLEAN_EXAMPLE)(_clean)
cleanup = command("cleanup", CLEAN_EXAMPLE)(_clean)
