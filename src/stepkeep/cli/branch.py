"""`stepkeep branch`."""

from __future__ import annotations

from typing import Any, Final, get_args

import click
from msgspec import Raw, UnsetType

from stepkeep import api
from stepkeep.api import BranchChanged, MergeConflict, Side, Strategy
from stepkeep.cli.app import CommandGroup, CommonOptions, command
from stepkeep.cli.naming import Words, limit_option, message_option, on_session, opened, session_option
from stepkeep.cli.printing import checkpoint_row, lines, moment, note, note_damaged, or_dash, table
from stepkeep.text import clean, clean_json, count, shortened

CONFLICT: Final = 5
SHORT_VIEW: Final = 20
EXAMPLE: Final = """\
stepkeep branch research-42
stepkeep branch fork research-42 step-5 --name try-batching
stepkeep branch merge research-42 try-batching"""


class BranchGroup(CommandGroup):
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
        assert list_branches.callback is not None
        ctx.invoke(list_branches.callback, session=None, session_option=session_option)


def _session_and_name(store: api.Store, words: Words, *, changes: bool = True) -> tuple[str, str]:
    """SESSION and NAME; one word alone is the name."""
    if not words.given:
        raise click.UsageError("Which branch? Name it.")
    *session, name = words.given
    return Words(tuple(session), words.option).chosen(store, changes=changes), name


# --- looking ---------------------------------------------------------------------------------------------------


@command("list", "stepkeep branch list research-42", group=branch)
@on_session()
def list_branches(settings: CommonOptions, words: Words) -> None:
    """List the branches of SESSION, oldest first; * is the current one."""
    with words.session(settings) as run:
        found = run.branches.list()
    settings.show(found, _print_branches)


def _print_branches(found: api.BranchList) -> None:
    # What is left on a narrow terminal tells the branches apart; the log of each has the rest.
    out = ("message", "checkpoints")
    table([_row(each) for each in found.branches], right=["checkpoints", "head"], first_out=out)


def _row(each: api.BranchInfo) -> dict[str, str]:
    is_loose = each.state == "open" and not each.is_pinned and not each.is_current
    return {
        "": "*" if each.is_current else "",
        "branch": each.name,
        "state": "unpinned" if is_loose else each.state,
        "checkpoints": f"{each.checkpoints:,}",
        "head": str(each.head_seq) if each.head is not None else "-",
        "time": "-" if each.time is None else moment(each.time),
        "forked at": "-" if each.fork_branch is None else f"{each.fork_seq} of {each.fork_branch}",
        "message": or_dash(each.message),
    }


@command("log", "stepkeep branch log research-42 try-batching", group=branch)
@on_session("name")
@limit_option("Show so many.  [default: 20; JSON: all]")
def log(settings: CommonOptions, words: Words, limit: int | None) -> None:
    """Show the checkpoints that led to the head of branch NAME, newest first."""
    limit = SHORT_VIEW if limit is None and not settings.json else limit
    with opened(settings) as store:
        key, name = _session_and_name(store, words, changes=False)
        found = store.get(key).branches.log(name, limit=limit)
    settings.show(found, _print_log)


def _print_log(found: api.History) -> None:
    note_damaged(found.damaged)
    if not found.checkpoints:
        lines([f"Branch {clean(found.branch)} has no checkpoint."])
        return
    rows = [checkpoint_row(each) for each in found.checkpoints]
    hidden = ("session", "checkpoint", "size", "stored", "ratio", "files")
    table(rows, right=["seq", "step"], leave_out=hidden, first_out=("tags", "branch"))
    more = found.total - len(found.checkpoints) - len(found.damaged)
    if more > 0:
        lines([f"... ({more:,} more)"])


# --- changing --------------------------------------------------------------------------------------------------


@command("fork", "stepkeep branch fork research-42 step-5 --name try-batching", group=branch)
@on_session("ref")
@click.option("--name", metavar="NAME", help="What the branch is called.  [default: like from-12]")
@click.option("--no-switch", is_flag=True, help="Stay on the current branch.")
def fork(settings: CommonOptions, words: Words, name: str | None, no_switch: bool) -> None:
    """Begin a branch at a checkpoint of SESSION, the latest without REF, and go on there."""
    with opened(settings) as store:
        key, ref = words.chosen_and_ref(store, changes=True)
        forked = store.get(key).branches.fork(ref, name, switch=not no_switch)
    settings.show(BranchChanged(session=key, branch=forked), lambda done: _print_branch(done, "begins"))


def _add_change(name: str, help: str, *, example: str = "try-batching") -> None:
    """Add the command for a method of a session's branches that takes the name of one."""

    @command(name, f"stepkeep branch {name} research-42 {example}", group=branch, help=help)
    @on_session("name")
    def change(settings: CommonOptions, words: Words) -> None:
        with opened(settings) as store:
            key, chosen = _session_and_name(store, words)
            changed: api.BranchInfo = getattr(store.get(key).branches, name)(chosen)
        verb = "is" if name == "switch" else ""
        settings.show(BranchChanged(session=key, branch=changed), lambda done: _print_branch(done, verb))


_add_change("switch", "Make branch NAME the current one of SESSION.", example="main")
_add_change("abandon", "Close branch NAME, which led nowhere. Pruning does not protect it any more.")
_add_change("archive", "Close branch NAME, which is done. Pruning does not protect it any more.")
_add_change("reopen", "Open branch NAME again after it was merged, abandoned or archived.")


def _print_branch(done: BranchChanged, verb: str) -> None:
    """Where the branch begins or is; without a verb, in which state it is."""
    each = done.branch
    at = "without a checkpoint" if each.head is None else f"at checkpoint {each.head_seq}"
    current = ", the current branch" if each.is_current else ""
    lines([f"Branch {clean(each.name)} {f'{verb} {at}{current}' if verb else f'is {each.state}'}"])


# --- merging ---------------------------------------------------------------------------------------------------


@command("merge", "stepkeep branch merge research-42 try-batching", group=branch)
@on_session("name")
@click.option(
    "--strategy",
    type=click.Choice(get_args(Strategy)),
    default="union",
    show_default=True,
    help="Merge both states, or take that of one side.",
)
@click.option("--on-conflict", type=click.Choice(get_args(Side)), help="Which side decides conflicts.")
@message_option("What the merge is about.")
def merge(settings: CommonOptions, /, words: Words, **options: Any) -> int:
    """Merge branch NAME into the current branch of SESSION, and close it.

    What both changed differently is a conflict: all are listed, nothing is written, and the exit code is 5.
    """
    with opened(settings) as store:
        key, name = _session_and_name(store, words)
        try:
            done = store.get(key).branches.merge(name, **options)
        except MergeConflict as exc:
            done = exc.result
    settings.show(done, _print_merge)
    return 0 if done.is_merged else CONFLICT


def _print_merge(done: api.Merged) -> None:
    name, into, clashes = clean(done.branch), clean(done.into), count(len(done.clashes), "conflict")
    if done.checkpoint is not None:
        decided = [f"{clashes} decided:"] if done.clashes else []
        lines(
            [
                f"Merged {name} into {into} as checkpoint {done.checkpoint.seq}",
                *decided,
                *map(_clash, done.clashes),
            ]
        )
        if not done.is_closed:
            note(f"warning: someone saved to {done.branch} meanwhile: it stays open, merge it again")
        return
    lines([f"{name} and {into} changed the same places:", *map(_clash, done.clashes)])
    note(f"error: {clashes}, nothing was merged: decide with --on-conflict ours or theirs")


def _clash(clash: api.ClashInfo) -> str:
    was, ours, theirs = map(_text, (clash.base, clash.ours, clash.theirs))
    return f"  {clean(clash.path)}: was {was}, ours {ours}, theirs {theirs}"


def _text(value: Raw | UnsetType) -> str:
    return "absent" if isinstance(value, UnsetType) else shortened(clean_json(bytes(value)), 80)
