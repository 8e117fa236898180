"""`stepkeep rewind`."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
import time
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing
from typing import Final, NamedTuple

import click

from stepkeep import api
from stepkeep.cli.app import CommonOptions, command
from stepkeep.cli.naming import Words, chosen_session, limit_option, on_session, opened
from stepkeep.cli.printing import file_line, is_terminal, lines, note, says_yes, styled, width, write
from stepkeep.cli.restore import restored_lines
from stepkeep.errors import InvalidInput
from stepkeep.text import age, clean, count, shortened

EXAMPLE = """\
stepkeep rewind
stepkeep rewind 3 --dry-run
stepkeep rewind 3 --code
stepkeep rewind claude-code:7f3a 3
stepkeep rewind --undo"""

SHOWN: Final = 20
"""How many turns are listed unless told."""

MAX_FILES: Final = 6
"""How many files of a turn are listed."""


@command("rewind", EXAMPLE)
@on_session("turn")
@click.option("--code", "what", flag_value="code", help="Only the files.")
@click.option("--conversation", "what", flag_value="conversation", help="Only the conversation.")
@click.option("--both", "what", flag_value="both", default="both", help="Files and conversation.  [default]")
@click.option("--dry-run", is_flag=True, help="Only show what would change.")
@click.option("--force", is_flag=True, help="Also go back over what somebody else changed since.")
@click.option("--undo", is_flag=True, help="Take the last rewind of files back.")
@limit_option(f"How many prompts to list.  [default: {SHOWN}]")
def rewind(
    settings: CommonOptions,
    words: Words,
    what: str,
    dry_run: bool,
    force: bool,
    undo: bool,
    limit: int | None,
) -> int:
    """Go back to before a prompt of a coding agent: its files, its conversation, or both.

    Without TURN the prompts of SESSION are listed, newest first, with the files that the agent changed for each. On a
    terminal one is picked with the arrow keys, or by its number. SESSION is that of the folder you are in.

    Only files that this agent changed since are touched, and none that somebody else changed after it. A safety
    checkpoint is taken first, and --undo brings everything back. The conversation is not changed: you get the command
    that forks it before the prompt.
    """
    given = list(words.given)
    number = int(given.pop()) if given and given[-1].isdecimal() else None
    if len(given) > 1 or (given and words.option is not None):
        raise click.UsageError("Which prompt? Name it by its number, such as `stepkeep rewind 3`.")
    if undo and number is not None:
        raise click.UsageError("--undo takes no TURN.")
    with opened(settings) as store:
        named = given[0] if given else None
        session = store.get(chosen_session(store, named, words.option, changes=True))
        view = _View(session, settings, code=what != "conversation", conversation=what != "code")
        if undo:
            return view.undo(dry_run=dry_run, force=force)
        if number is None:
            return view.choose(limit or SHOWN, dry_run=dry_run, force=force)
        return view.go(number, dry_run=dry_run, force=force)


class _View(NamedTuple):
    """A session whose turns are shown, and what of a turn is meant."""

    session: api.Session
    settings: CommonOptions
    code: bool
    conversation: bool

    def choose(self, limit: int, *, dry_run: bool, force: bool) -> int:
        """List the turns; on a terminal let one be picked, show what would change, and do it on a yes."""
        if self.session.rewind.is_interrupted:
            note(
                "the last rewind was stopped in the middle: do it again to finish it, or take it back with --undo"
            )
        turns = self.session.rewind.turns(limit=limit)
        if self.settings.json or not (turns and is_terminal() and sys.stdin.isatty()):
            self.settings.show(turns, lambda found: lines(_listed(found)))
            return 0
        with closing(_keys()) as keys:
            turn = _pick(turns, keys)
        if turn is None:
            return 0
        plan = self.session.rewind.plan(turn.number, code=self.code, conversation=self.conversation)
        lines(_text(plan, self.settings.store))
        changes = sum(each.total for each in plan.files or ())
        if dry_run or not changes:
            return 0
        if plan.conflicts and not force:
            return self.go(turn.number, dry_run=False, force=False)  # which says why not
        if not says_yes(f"Restore {count(changes, 'file')}?"):
            return 0
        return self.go(turn.number, dry_run=False, force=force)

    def go(self, number: int, *, dry_run: bool, force: bool) -> int:
        rewinding = self.session.rewind
        if dry_run:
            done = rewinding.plan(number, code=self.code, conversation=self.conversation)
        else:
            done = rewinding.to(number, code=self.code, conversation=self.conversation, force=force)
        self.settings.show(done, lambda shown: lines(_text(shown, self.settings.store)))
        return 0 if dry_run or done.is_complete else 1

    def undo(self, *, dry_run: bool, force: bool) -> int:
        if not self.code:
            raise InvalidInput(
                "a conversation is not changed by a rewind: go on with the one you left", code="usage"
            )
        done = self.session.rewind.undo(dry_run=dry_run, force=force)
        self.settings.show(done, lambda shown: lines(_undone(shown)))
        return 0 if dry_run or all(each.is_complete for each in done) else 1


# --- as text -----------------------------------------------------------------------------------------------------


def _listed(turns: Sequence[api.Turn]) -> list[str]:
    if not turns:
        return [
            "No prompts: hooks of a coding agent save them, see `stepkeep hooks install`. "
            "Other sessions go back by `stepkeep restore`."
        ]
    return [text for turn in turns for text in (_line(turn, width() - 2), *_files(turn))]


def _line(turn: api.Turn, columns: int) -> str:
    """A turn in one line: number, age, what changed, how far the tasks are, and the prompt."""
    parts = [f"{turn.number:>3}", f"{age(time.time() - turn.time.timestamp()):>6}", f"{_changed(turn):<17}"]
    if turn.tasks:
        parts.append(f"{turn.tasks - turn.open_tasks}/{turn.tasks} tasks")
    if turn.status != "ended":
        parts.append(turn.status)
    start = "  ".join(parts)
    prompt = clean(turn.prompt).replace("\n", " ") or "(before the first prompt)"
    return f"{start}  {shortened(prompt, max(20, columns - len(start) - 2))}"


def _changed(turn: api.Turn) -> str:
    if turn.files is None:
        return "not captured"
    if not turn.files:
        return "no files"
    return f"{count(len(turn.files), 'file')} +{turn.added_lines:,} -{turn.removed_lines:,}"


def _files(turn: api.Turn) -> list[str]:
    files = turn.files or ()
    more = [f"       and {count(len(files) - MAX_FILES, 'more file')}"] if len(files) > MAX_FILES else []
    return [f"       {file_line(each)}" for each in files[:MAX_FILES]] + more


def _text(done: api.Rewound, store: str | None) -> list[str]:
    """What a rewind did or would do, how the conversation goes on, and how it is taken back."""
    turn = done.turn
    ago = age(time.time() - turn.time.timestamp())
    verb = "Would rewind" if done.is_dry_run else "Rewound"
    start = f"{verb} to before turn {turn.number}, {ago} ago: "
    texts = [start + shortened(clean(turn.prompt).replace("\n", " "), max(20, width() - len(start)))]
    for each in done.files or ():
        texts += restored_lines(each, is_rewind=True)
    if done.files is not None and not any(each.total for each in done.files):
        texts.append("Files: as they were then")
    texts += [f"  {path}: last changed by {clean(who)}" for path, who in done.changed_by.items()]
    if (fork := done.conversation) is not None:
        texts += ["Conversation:", *(f"  {clean(each)}" for each in fork.commands)]
        texts += [f"  ({clean(fork.note)})"] if fork.note else []
    if any(each.safety for each in done.files or ()):
        where = "" if store is None else f" --store {clean(shlex.quote(store))}"
        name = clean(shlex.quote(done.session))
        texts.append(f"Undo:   stepkeep rewind{where} --session {name} --undo")
    return texts


def _undone(done: Sequence[api.RestoredFiles]) -> list[str]:
    return [text for each in done for text in restored_lines(each, is_rewind=True)]


# --- picking one -------------------------------------------------------------------------------------------------

_UP: Final = ("\x1b[A", "\x1bOA", "k")
_DOWN: Final = ("\x1b[B", "\x1bOB", "j")
_LEAVE: Final = ("", "q", "\x1b", "\x04")
_HELP: Final = "arrows or a number, Enter to choose, q to leave"


def _pick(turns: Sequence[api.Turn], keys: Iterator[str | None]) -> api.Turn | None:
    """The turn that a person picks with the arrow keys or by its number; None for none."""
    at, typed, drawn = 0, "", 0
    numbers = [turn.number for turn in turns]
    for key in keys:
        if key is None:
            drawn = _draw(turns, at, typed, drawn)
        elif key in _UP or key in _DOWN:
            at, typed = max(0, min(len(turns) - 1, at + (1 if key in _DOWN else -1))), ""
        elif key.isdecimal() or key in ("\x7f", "\b"):
            typed = typed + key if key.isdecimal() else typed[:-1]
            if typed and int(typed) in numbers:
                at = numbers.index(int(typed))
        elif key in ("\r", "\n"):
            return turns[at] if not typed or int(typed) in numbers else None
        elif key in _LEAVE:
            return None
    return None


def _keys() -> Generator[str | None]:
    """What is typed, key by key, and None whenever it is time to draw. Nothing that is typed fast is lost."""
    import termios
    import tty

    terminal = sys.stdin.fileno()
    before = termios.tcgetattr(terminal)
    try:
        tty.setcbreak(terminal)
        while True:
            yield None
            typed = os.read(terminal, 64).decode("utf-8", "replace")
            yield from [typed] if typed.startswith("\x1b") or not typed else typed
    finally:
        termios.tcsetattr(terminal, termios.TCSADRAIN, before)


def _draw(turns: Sequence[api.Turn], at: int, typed: str, drawn: int) -> int:
    """Draw the list over what was drawn before; how many lines it has."""
    columns, rows = shutil.get_terminal_size()
    room = max(3, rows - MAX_FILES - 4)
    first = max(0, min(at - room // 2, len(turns) - room))
    texts = []
    for number, turn in enumerate(turns[first : first + room], first):
        line = shortened(_line(turn, columns - 3), columns - 3)
        is_chosen = number == at
        texts.append(styled(f"> {line}", "cyan") if is_chosen else f"  {line}")
        texts += _files(turn) if is_chosen else []
    texts.append(styled(f"{_HELP}{f': {typed}' if typed else ''}", "bright_black"))
    up = f"\x1b[{drawn}F\x1b[J" if drawn else ""
    write((up + "".join(f"{text}\n" for text in texts)).encode("utf-8", "backslashreplace"))
    return len(texts)
