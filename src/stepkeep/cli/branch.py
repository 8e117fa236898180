"""`stepkeep branch`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, get_args

import click
from msgspec import Raw, UnsetType

from stepkeep import api
from stepkeep.api import (
    BranchChanged,
    BranchInfo,
    BranchList,
    ClashInfo,
    History,
    MergeConflict,
    Merged,
    Side,
    Store,
    Strategy,
)
from stepkeep.cli.app import Command, Settings, settings_of
from stepkeep.cli.naming import (
    chosen_session,
    chosen_session_and_refs,
    complete_branch,
    ref_argument,
    session_argument,
    session_option,
)
from stepkeep.cli.printing import is_narrow, lines, moment, note, table
from stepkeep.text import clean, clean_json, count, shortened

CONFLICT: Final = 5
SHORT_VIEW: Final = 20
EXAMPLE: Final = """\
stepkeep branch research-42
stepkeep branch fork research-42 step-5 --name try-batching
stepkeep branch merge research-42 try-batching"""


class BranchGroup(Command, click.Group):
    """Commands about branches. Where none is named, the branches are listed."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        known = args[0] in self.commands
        return super().resolve_command(ctx, args if known else ["list", *args])


@click.group("branch", cls=BranchGroup, example=EXAMPLE, invoke_without_command=True)
@session_option()
@click.pass_context
def branch(ctx: click.Context, session_option: str | None) -> None:
    """List the branches of SESSION, or fork, switch, merge and close them.

    Without a command they are listed. A session that is called like a command is named by --session.
    """
    if ctx.invoked_subcommand is None:
        ctx.invoke(list_branches, session_option=session_option)


def _name_argument() -> Callable[[Any], Any]:
    return click.argument("name", required=False, metavar="NAME", shell_complete=complete_branch)


def _session_and_name(
    store: Store, session: str | None, name: str | None, option: str | None
) -> tuple[str, str]:
    """SESSION and NAME; one word alone is the name."""
    given = [word for word in (session, name) if word is not None]
    if not given:
        raise click.UsageError("Which branch? Name it.")
    return chosen_session(store, given[0] if len(given) == 2 else None, option), given[-1]


# --- looking ---------------------------------------------------------------------------------------------------


@branch.command("list", cls=Command, example="stepkeep branch list research-42")
@session_argument()
@session_option()
@settings_of
def list_branches(settings: Settings, session: str | None = None, session_option: str | None = None) -> None:
    """List the branches of SESSION, oldest first; * is the current one."""
    with api.open(settings.store, create=False) as store:
        key = chosen_session(store, session, session_option)
        found = store.get(key).branches.list()
    settings.show(found, _print_branches)


def _print_branches(found: BranchList) -> None:
    rows = [_row(each) for each in found.branches]
    if is_narrow():
        # What is left tells the branches apart; the log of each has the rest.
        rows = [{title: row[title] for title in row if title not in _WIDE} for row in rows]
    table(list(rows[0]), [list(row.values()) for row in rows], right=["checkpoints", "head"])


_WIDE: Final = ("checkpoints", "message")


def _row(each: BranchInfo) -> dict[str, str]:
    is_loose = each.state == "open" and not each.is_pinned and not each.is_current
    return {
        "": "*" if each.is_current else "",
        "branch": each.name,
        "state": "unpinned" if is_loose else each.state,
        "checkpoints": f"{each.checkpoints:,}",
        "head": f"#{each.head_seq}" if each.head is not None else "-",
        "time": "-" if each.time is None else moment(each.time),
        "forked at": "-" if each.fork_branch is None else f"#{each.fork_seq} of {each.fork_branch}",
        "message": each.message or "-",
    }


@branch.command("log", cls=Command, example="stepkeep branch log research-42 try-batching")
@session_argument()
@_name_argument()
@session_option()
@click.option(
    "--limit", type=click.IntRange(min=1), metavar="N", help="Show so many.  [default: 20; JSON: all]"
)
@settings_of
def log(
    settings: Settings,
    session: str | None,
    name: str | None,
    session_option: str | None,
    limit: int | None,
) -> None:
    """Show the checkpoints that led to the head of branch NAME, newest first."""
    limit = SHORT_VIEW if limit is None and not settings.json else limit
    with api.open(settings.store, create=False) as store:
        key, name = _session_and_name(store, session, name, session_option)
        found = store.get(key).branches.log(name, limit=limit)
    settings.show(found, _print_log)


def _print_log(found: History) -> None:
    if found.damaged:
        note(f"warning: {count(len(found.damaged), 'damaged header')} left out: run stepkeep verify")
    if not found.checkpoints:
        lines([f"Branch {clean(found.branch)} has no checkpoint."])
        return
    rows = [
        [
            f"#{each.seq}",
            moment(each.time),
            each.branch,
            "-" if each.step is None else str(each.step),
            ",".join(each.tags) or "-",
            each.message or "-",
        ]
        for each in found.checkpoints
    ]
    table(["seq", "time", "branch", "step", "tags", "message"], rows, right=["seq", "step"])
    more = found.total - len(found.checkpoints) - len(found.damaged)
    if more > 0:
        lines([f"... ({more:,} more)"])


# --- changing --------------------------------------------------------------------------------------------------


@branch.command("fork", cls=Command, example="stepkeep branch fork research-42 step-5 --name try-batching")
@session_argument()
@ref_argument()
@session_option()
@click.option("--name", metavar="NAME", help="What the branch is called.  [default: like from-12]")
@click.option("--no-switch", is_flag=True, help="Stay on the current branch.")
@settings_of
def fork(
    settings: Settings,
    session: str | None,
    ref: str | None,
    session_option: str | None,
    name: str | None,
    no_switch: bool,
) -> None:
    """Begin a branch at a checkpoint of SESSION, the latest without REF, and go on there."""
    with api.open(settings.store, create=False) as store:
        key, refs = chosen_session_and_refs(store, [session, ref], session_option)
        if len(refs) > 1:
            raise click.UsageError("One checkpoint at a time.")
        ref = refs[0] if refs else "latest"
        done = BranchChanged(
            session=key, branch=store.get(key).branches.fork(ref, name, switch=not no_switch)
        )
    settings.show(done, lambda done: _print_branch(done, "begins"))


@branch.command("switch", cls=Command, example="stepkeep branch switch research-42 main")
@session_argument()
@_name_argument()
@session_option()
@settings_of
def switch(settings: Settings, session: str | None, name: str | None, session_option: str | None) -> None:
    """Make branch NAME the current one of SESSION."""
    with api.open(settings.store, create=False) as store:
        key, name = _session_and_name(store, session, name, session_option)
        done = BranchChanged(session=key, branch=store.get(key).branches.switch(name))
    settings.show(done, lambda done: _print_branch(done, "is"))


@branch.command("abandon", cls=Command, example="stepkeep branch abandon research-42 try-batching")
@session_argument()
@_name_argument()
@session_option()
@settings_of
def abandon(settings: Settings, session: str | None, name: str | None, session_option: str | None) -> None:
    """Close branch NAME, which led nowhere. Pruning does not protect it any more."""
    with api.open(settings.store, create=False) as store:
        key, name = _session_and_name(store, session, name, session_option)
        done = BranchChanged(session=key, branch=store.get(key).branches.abandon(name))
    settings.show(done, _print_state)


@branch.command("archive", cls=Command, example="stepkeep branch archive research-42 try-batching")
@session_argument()
@_name_argument()
@session_option()
@settings_of
def archive(settings: Settings, session: str | None, name: str | None, session_option: str | None) -> None:
    """Close branch NAME, which is done. Pruning does not protect it any more."""
    with api.open(settings.store, create=False) as store:
        key, name = _session_and_name(store, session, name, session_option)
        done = BranchChanged(session=key, branch=store.get(key).branches.archive(name))
    settings.show(done, _print_state)


@branch.command("reopen", cls=Command, example="stepkeep branch reopen research-42 try-batching")
@session_argument()
@_name_argument()
@session_option()
@settings_of
def reopen(settings: Settings, session: str | None, name: str | None, session_option: str | None) -> None:
    """Open branch NAME again after it was merged, abandoned or archived."""
    with api.open(settings.store, create=False) as store:
        key, name = _session_and_name(store, session, name, session_option)
        done = BranchChanged(session=key, branch=store.get(key).branches.reopen(name))
    settings.show(done, _print_state)


def _print_branch(done: BranchChanged, verb: str) -> None:
    each = done.branch
    at = "without a checkpoint" if each.head is None else f"at #{each.head_seq}"
    current = ", the current branch" if each.is_current else ""
    lines([f"Branch {clean(each.name)} {verb} {at}{current}"])


def _print_state(done: BranchChanged) -> None:
    lines([f"Branch {clean(done.branch.name)} is {done.branch.state}"])


# --- merging ---------------------------------------------------------------------------------------------------


@branch.command("merge", cls=Command, example="stepkeep branch merge research-42 try-batching")
@session_argument()
@_name_argument()
@session_option()
@click.option(
    "--strategy",
    type=click.Choice(get_args(Strategy)),
    default="union",
    show_default=True,
    help="Merge both states, or take that of one side.",
)
@click.option("--on-conflict", type=click.Choice(get_args(Side)), help="Which side decides conflicts.")
@click.option("--message", default="", metavar="TEXT", help="What the merge is about.")
@settings_of
def merge(
    settings: Settings,
    session: str | None,
    name: str | None,
    session_option: str | None,
    strategy: Strategy,
    on_conflict: Side | None,
    message: str,
) -> int:
    """Merge branch NAME into the current branch of SESSION, and close it.

    What both changed differently is a conflict: all are listed, nothing is written, and the exit code is 5.
    """
    with api.open(settings.store, create=False) as store:
        key, name = _session_and_name(store, session, name, session_option)
        try:
            done = store.get(key).branches.merge(
                name, strategy=strategy, message=message, on_conflict=on_conflict
            )
        except MergeConflict as exc:
            done = exc.result
    settings.show(done, _print_merge)
    return 0 if done.is_merged else CONFLICT


def _print_merge(done: Merged) -> None:
    name, into, clashes = clean(done.branch), clean(done.into), count(len(done.clashes), "conflict")
    if done.checkpoint is not None:
        decided = [f"{clashes} decided:"] if done.clashes else []
        lines([f"Merged {name} into {into} as #{done.checkpoint.seq}", *decided, *map(_clash, done.clashes)])
        if not done.is_closed:
            note(f"warning: someone saved to {done.branch} meanwhile: it stays open, merge it again")
        return
    lines([f"{name} and {into} changed the same places:", *map(_clash, done.clashes)])
    note(f"error: {clashes}, nothing was merged: decide with --on-conflict ours or theirs")


def _clash(clash: ClashInfo) -> str:
    was, ours, theirs = map(_text, (clash.base, clash.ours, clash.theirs))
    return f"  {clean(clash.path)}: was {was}, ours {ours}, theirs {theirs}"


def _text(value: Raw | UnsetType) -> str:
    return "absent" if isinstance(value, UnsetType) else shortened(clean_json(bytes(value)), 80)


COMMANDS = {"branch": branch}
