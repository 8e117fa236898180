"""What was saved and what happened: `stepkeep list`, `history`, `log`, `events`, `find` and `timeline`."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Final

import click
import msgspec

from stepkeep import api
from stepkeep.cli.app import CommonOptions, command
from stepkeep.cli.naming import (
    Words,
    chosen_session,
    complete_branch,
    known,
    limit_option,
    on_session,
    opened,
    session_option,
)
from stepkeep.cli.printing import (
    SIGN_COLOURS,
    checkpoint_row,
    hanging,
    is_ascii,
    is_narrow,
    is_terminal,
    lines,
    moment,
    note,
    note_damaged,
    note_errors,
    or_dash,
    ratio,
    styled,
    table,
    width,
    write,
)
from stepkeep.model import Status, from_us
from stepkeep.text import clean, count, size

EXAMPLE = """\
stepkeep list
stepkeep list --status in_progress -n 10"""


@command("list", EXAMPLE)
@on_session()
@click.option("--tag", help="List checkpoints with this tag.")
@click.option(
    "--status", type=click.Choice([status.value for status in Status]), help="Only those with this status."
)
@click.option("--project", help="Only those of this project.")
@limit_option("At most so many.")
def list_(
    settings: CommonOptions,
    words: Words,
    tag: str | None,
    status: str | None,
    project: str | None,
    limit: int | None,
) -> None:
    """List sessions, most recently used first.

    With SESSION or --tag it lists checkpoints, as `log` does: those of SESSION, else of the one in STEPKEEP_SESSION,
    else of all sessions.
    """
    key = words.named_if_any(use_environment=tag is not None)
    with opened(settings) as store:
        if key is None and tag is None:
            sessions = store.summaries(project=project, status=status, limit=limit)
            settings.show(sessions, lambda found: _print_sessions(found, partial(_task, store)))
            return
        key = None if key is None else known(store, key)
        found = store.describe(
            store.checkpoints(session=key, tag=tag, status=status, project=project, limit=limit)
        )
    settings.show(found, lambda found: _print_checkpoints(found, across=key is None))


def _task(store: api.Store, session: api.SessionSummary) -> str:
    """What a coding agent works on: the key of its session says nothing to a person."""
    if "client" not in session.metadata:
        return ""
    newest = store.describe(store.checkpoints(session=session.key, limit=1))
    return newest[0].task if newest else ""


def _print_sessions(
    sessions: tuple[api.SessionSummary, ...], task: Callable[[api.SessionSummary], str]
) -> None:
    if not sessions:
        lines(["No sessions."])
        return
    rows = [
        {
            "session": each.key,
            "status": "crashed" if each.crash else each.status,
            "checkpoints": str(each.checkpoints),
            "updated": moment(each.updated),
            "project": or_dash(each.project),
            "task": or_dash(task(each)),
        }
        for each in sessions
    ]
    hidden = {"task"} if all(row["task"] == "-" for row in rows) else set()
    table(rows, right=["checkpoints"], leave_out=hidden, first_out=("project", "checkpoints", "updated"))
    for each in sessions:
        if each.crash:
            note(f"{clean(each.key)} {clean(each.crash)}")


def _print_checkpoints(found: tuple[api.CheckpointInfo, ...], *, across: bool) -> None:
    if not found:
        lines(["No checkpoints."])
        return
    hidden = set() if across else {"session"}
    if len({each.branch for each in found}) == 1:
        hidden.add("branch")
    if all(each.files is None for each in found):
        hidden.add("files")
    right = ["seq", "step", "size", "stored", "ratio", "files"]
    # Session and seq name a checkpoint as well as its id, which would leave no room for the rest.
    out = ("checkpoint", "ratio", "stored", "files", "tags", "branch", "size")
    table([checkpoint_row(each) for each in found], right=right, leave_out=hidden, first_out=out)


# --- history -----------------------------------------------------------------------------------------------------

SHORT_VIEW = 4
HISTORY_EXAMPLE = "stepkeep history research-42 --limit 20"


@command("history", HISTORY_EXAMPLE)
@on_session()
@limit_option("Show so many.  [default: 4; JSON: all]")
@click.option("--all", "show_all", is_flag=True, help="Show all of them.")
def history(settings: CommonOptions, words: Words, limit: int | None, show_all: bool) -> None:
    """Show the checkpoints that led to where SESSION stands, newest first.

    Each with its time, size, step, stored size, how many times smaller it is stored, and its file in a store of files.
    """
    if limit is not None and show_all:
        raise click.UsageError("--limit and --all exclude each other.")
    if limit is None and not show_all and not settings.json:
        limit = SHORT_VIEW
    with words.session(settings) as run:
        found = run.branches.log(limit=limit)
    settings.show(found, _print_history)


def _print_history(found: api.History) -> None:
    note_damaged(found.damaged)
    if not found.checkpoints:
        lines([f"Session {clean(found.session)} has no checkpoint."])
        return
    latest, *older = found.checkpoints
    more = found.total - len(found.checkpoints) - len(found.damaged)
    texts = [hanging("Latest: ", _history_entry(latest))]
    if older or more:
        texts.append("History:")
    texts += [hanging("  - ", _history_entry(each)) for each in older]
    if more:
        texts.append(f"  ... ({more} more)")
    lines(texts)


def _history_entry(each: api.CheckpointInfo) -> str:
    facts = [moment(each.time), size(each.size_bytes)]
    if each.step is not None:
        facts.append(f"step {each.step}")
    name = clean((each.file or "").rpartition("/")[2])
    if is_narrow():
        # The part of the id before its random end is enough to name the checkpoint.
        named = name or each.id.rpartition("_")[0]
        return f"{named} ({', '.join([*facts, ratio(each.ratio)])})"
    named = name if each.id in name else f"{name} {each.id}".strip()
    return f"{named} ({', '.join([*facts, f'stored {size(each.stored_bytes)}', ratio(each.ratio)])})"


# --- log ---------------------------------------------------------------------------------------------------------

LOG_EXAMPLE = """\
stepkeep log research-42 -n 20
stepkeep log research-42 --graph
stepkeep log research-42 --tag verified
stepkeep log research-42 --path context.messages[-1]"""


@command("log", LOG_EXAMPLE)
@on_session()
@click.option("--graph", is_flag=True, help="Draw all branches, as `timeline` does.")
@click.option("--tag", metavar="TAG", help="Only what has this tag, on whichever branch.")
@click.option("--path", metavar="PATH", help="Show how this value of the state changed, oldest first.")
@click.option("--full", is_flag=True, help="With --path: values whole, and every change inside of one.")
@limit_option("Show the last N.")
def log(
    settings: CommonOptions,
    words: Words,
    graph: bool,
    tag: str | None,
    path: str | None,
    full: bool,
    limit: int | None,
) -> None:
    """Show what was done in SESSION, one checkpoint a line, newest first.

    With --path only the checkpoints at which that value changed: + added, ~ changed, - removed, > moved. Of a dict or a
    list each change inside of it is told with its path.
    """
    if full and path is None:
        raise click.UsageError("--full goes with --path.")
    if path is not None and (graph or tag is not None):
        raise click.UsageError("--path goes without --graph and --tag.")
    if tag is not None and not graph:
        with opened(settings) as store:
            tagged = store.checkpoints(session=words.chosen(store), tag=tag, limit=limit)
            settings.show(store.describe(tagged), lambda found: _print_entries(found))
        return
    with words.session(settings) as run:
        if graph:
            drawn = run.timeline(tag=tag, limit=limit, fold=not settings.json)
            settings.show(api.Timelines(timelines=(drawn,)), _print_timelines)
            return
        if path is None:
            settings.show(run.branches.log(limit=limit), _print_log)
            return
        changes = run.log(path, limit=limit)
        if not changes:
            run.show_value("latest", path)  # says what is near a path that never had a value
    settings.show(changes, lambda changes: _print_changes(changes, full=full))


def _print_log(found: api.History) -> None:
    note_damaged(found.damaged)
    _print_entries(found.checkpoints)


def _print_entries(found: tuple[api.CheckpointInfo, ...]) -> None:
    wide = max((len(str(each.seq)) for each in found), default=0)
    lines([_log_entry(each, wide) for each in found] or ["No checkpoints."])


def _log_entry(each: api.CheckpointInfo, wide: int) -> str:
    facts = [] if each.step is None else [f"step {each.step}"]
    facts += [] if each.status == "in_progress" else [each.status]
    facts += each.tags
    message = each.message or f"({each.trigger.kind})"
    about = f" [{', '.join(facts)}]" if facts else ""
    return hanging(f"{each.seq:>{wide}}  {moment(each.time)}  ", clean(message + about))


def _print_changes(found: api.ValueLog, *, full: bool) -> None:
    wide = max((len(str(each.checkpoint.seq)) for each in found), default=0)
    shown: Any = {"width": api.FULL, "limit": None} if full else {}
    for each in found:
        place = f"{each.checkpoint.seq:>{wide}}  {moment(each.checkpoint.time)}"
        for line in each.lines(found.path, **shown):
            lines([styled(f"{line[0]} {place}  {clean(line[2:])}", SIGN_COLOURS[line[0]])])


# --- events ------------------------------------------------------------------------------------------------------


@command("events", "stepkeep events research-42 --limit 20")
@on_session()
@limit_option("Show the last N.")
def events(settings: CommonOptions, words: Words, limit: int | None) -> None:
    """Show what happened to SESSION beside its saves, oldest first: pruning, switches of branches, ends, failures."""
    with words.session(settings) as run:
        found = run.events()[-limit if limit else 0 :]
    told = [
        {"number": each.number, "time": from_us(each.time_us), "type": each.type, "data": each.data}
        for each in found
    ]
    settings.show(told, lambda _: _print_events(found))


def _print_events(found: list[api.Event]) -> None:
    if not found:
        lines(["No events."])
    for each in found:
        data = " ".join(f"{name}={_event_value(value)}" for name, value in each.data.items())
        said = clean(f"{moment(from_us(each.time_us))}  {each.type}  {data}".rstrip())
        lines([hanging(said[:4], said[4:])])


def _event_value(value: object) -> str:
    return value if isinstance(value, str) and " " not in value else msgspec.json.encode(value).decode()


# --- find --------------------------------------------------------------------------------------------------------

FIND_EXAMPLE = """\
stepkeep find "connection refused" --session research-42
stepkeep find README.md --all --limit 20"""

FOUND: Final = 50


@command("find", FIND_EXAMPLE)
@click.argument("text")
@session_option("The session to look through.  [default: $STEPKEEP_SESSION, then the current one]")
@click.option("--all", "every", is_flag=True, help="Look through every session, most recently used first.")
@limit_option(f"Stop after so many places in a session.  [default: {FOUND}]")
def find(
    settings: CommonOptions, text: str, session_option: str | None, every: bool, limit: int | None
) -> None:
    """Find TEXT in the messages, tags and metadata of a session's checkpoints, and in the values of its states.

    Each place is told once, at the checkpoint where it appeared, oldest first: its number, its time, where the text is
    and what stands around it. The case of ASCII letters does not matter.
    """
    if every and session_option is not None:
        raise click.UsageError("--all and --session exclude each other.")
    with opened(settings) as store:
        keys = (
            [info.key for info in store.sessions()]
            if every
            else [chosen_session(store, None, session_option)]
        )
        found = tuple(store.get(key).find(text, limit=limit or FOUND) for key in keys)
    settings.show(found if every else found[0], lambda _: _print_found(found))


def _print_found(found: tuple[api.FoundText, ...]) -> None:
    shown = [each for each in found if each.matches]
    if not shown:
        lines(["Not found."])
    for each in shown:
        if len(found) > 1:
            lines([styled(clean(each.session), "cyan")])
        wide = max(len(str(match.checkpoint.seq)) for match in each.matches)
        lines(_match(match, wide) for match in each.matches)
        if each.has_more:
            lines(["… and more: --limit shows them"])


def _match(match: api.Match, wide: int) -> str:
    place = clean(match.path or match.where)
    number = f"{match.checkpoint.seq:>{wide}}  {moment(match.checkpoint.time)}  "
    hit = clean(match.text)
    said = hanging(number, f"{place}: {clean(match.before)}{hit}{clean(match.after)}")
    return number + said[len(number) :].replace(hit, styled(hit, "yellow"))


# --- timeline ----------------------------------------------------------------------------------------------------

TIMELINE_EXAMPLE = """\
stepkeep timeline research-42
stepkeep timeline research-42 --since '2 hours ago' --full
stepkeep timeline --all --tag verified
stepkeep timeline research-42 --svg timeline.svg
stepkeep timeline research-42 --html timeline.html"""

PIPED_WIDTH: Final = 200
"""How wide lines are where nobody says how wide they may be."""

_LANES: Final = ("cyan", "yellow", "magenta", "blue", "green", "bright_red")
_COLOURS: Final = {
    "faint": "bright_black",
    "branch": "green",
    "current": "bright_green",
    "tag": "yellow",
    "bad": "red",
    "good": "green",
}


@command("timeline", TIMELINE_EXAMPLE)
@on_session()
@click.option("--all", "every", is_flag=True, help="Draw every session.")
@click.option("--since", metavar="TIME", help="Only what was saved since, such as '2 hours ago' or a date.")
@click.option(
    "--branch", metavar="NAME", shell_complete=complete_branch, help="Only what was saved on this branch."
)
@click.option("--tag", help="Only what has this tag.")
@click.option("--full", "is_full", is_flag=True, help="Fold nothing.  [default in JSON]")
@limit_option("At most so many rows of each session.")
@click.option("--svg", metavar="FILE|-", help="Write a picture instead; - is stdout.")
@click.option("--html", metavar="FILE", help="Write a page that opens without a server, as in `ui`.")
@click.option("--force", is_flag=True, help="Replace the file of --svg or --html if it exists.")
def timeline(
    settings: CommonOptions,
    /,
    words: Words,
    every: bool,
    is_full: bool,
    svg: str | None,
    html: str | None,
    force: bool,
    **wanted: Any,
) -> int:
    """Draw the branches of SESSION as a graph, newest first.

    Each checkpoint with number, time, step, size, stored size, why it was saved, the branches that stand there, tags
    and message. Long runs of plain automatic ones are folded into one line, and so is what a filter leaves out.
    """
    if every and (words.given or words.option is not None):
        raise click.UsageError("--all and a session exclude each other.")
    if force and svg is None and html is None:
        raise click.UsageError("--force is about the file of --svg or --html.")
    if html is not None:
        if svg is not None or every or is_full or any(wanted.values()):
            raise click.UsageError("--html writes the whole timeline of one session.")
        _write_page(settings, words, html, force=force)
        return 0
    if svg == "":
        raise click.UsageError("--svg needs the name of a file.")
    if svg == "-" and settings.json:
        raise click.UsageError("--json describes the file that was written; with --svg - there is none.")
    wanted["fold"] = not is_full and (svg is not None or not settings.json)
    with opened(settings) as store:
        if every:
            found = store.timelines(**wanted)
        else:
            found = api.Timelines(timelines=(store.get(words.chosen(store)).timeline(**wanted),))
    if svg == "-":
        write(found.picture())
    elif svg is not None:
        settings.show(found.write_picture(svg, force=force), _print_pictured)
    else:
        settings.show(found, _print_timelines)
    note_errors(found.errors)
    return 1 if found.errors else 0


def _write_page(settings: CommonOptions, words: Words, html: str, *, force: bool) -> None:
    from pathlib import Path  # few ask for it

    from stepkeep.cli.moving import print_html
    from stepkeep.web.one_file import export_html

    with opened(settings) as store:
        found = export_html(store, words.chosen(store), Path(html), force=force, with_states=False)
    settings.show(found, print_html)


def _print_pictured(pictured: api.Pictured) -> None:
    what = f"{count(len(pictured.sessions), 'session')}, {count(pictured.rows, 'row')}"
    lines([f"Wrote {clean(pictured.output or 'stdout')} ({what}, {size(pictured.size_bytes)})"])


def _print_timelines(found: api.Timelines) -> None:
    if not found.timelines:
        lines(["No sessions."])
    for at, each in enumerate(found.timelines):
        if each.damaged:
            note(
                f"warning: {count(len(each.damaged), 'damaged header')} in {each.session}: run stepkeep verify"
            )
        wide = width() if is_terminal() else width(PIPED_WIDTH)
        texts = each.draw(width=wide, is_ascii=is_ascii(), paint=_painted if is_terminal() else None)
        lines(["", *texts] if at else texts)


def _painted(text: str, role: str) -> str:
    if role.startswith("lane"):
        return styled(text, _LANES[int(role[4:]) % len(_LANES)])
    return styled(text, _COLOURS.get(role))
