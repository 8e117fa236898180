"""Which session and which checkpoint a command line means, and how they complete in a shell."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial, wraps
from typing import Any, Final, NamedTuple

import click

from stepkeep import api
from stepkeep.cli.app import CommonOptions, command, stepkeep
from stepkeep.cli.printing import lines, note
from stepkeep.errors import StepkeepError
from stepkeep.text import clean

_SESSION: Final = "stepkeep.session"
SESSION_HELP: Final = "The session, instead of the argument.  [default: $STEPKEEP_SESSION]"
MAX_COMPLETIONS: Final = 50
BUSY_SECONDS: Final = 20.0
"""How long a command waits for others that write to its store."""


def session_named(argument: str | None, option: str | None, *, use_environment: bool = True) -> str:
    """The session of a command: the argument, else `--session`, else the environment."""
    if argument is not None and option is not None:
        raise click.UsageError("The session is given twice: as argument and by --session.")
    key = option if argument is None else argument
    if key is None and use_environment:
        key = _environment()
    if key is not None:
        return key
    places = "as argument, by --session, or in STEPKEEP_SESSION"
    raise click.UsageError(
        f"Which session? Name it {places if use_environment else 'as argument or by --session'}."
    )


def chosen_session(
    store: api.Store,
    argument: str | None,
    option: str | None,
    *,
    changes: bool = False,
    creates: bool = False,
) -> str:
    """The session of a command that need not name one: the argument, `--session`, the environment, the current one.

    A session that nobody named is told on stderr. A command that `changes` it takes none of another folder; where
    it `creates` one, a key is the whole key, elsewhere its beginning will do.
    """
    if argument is not None or is_session_named(option):
        key = session_named(argument, option)
        return key if creates else known(store, key)
    return _told(_current(store, changes=changes)).session


def _current(store: api.Store, *, changes: bool = False) -> api.Chosen:
    return api.current_session(store, api.working_folder(), to_change=changes)


def is_session_named(option: str | None) -> bool:
    """Whether `--session` or the environment names one."""
    return option is not None or _environment() is not None


class Words(NamedTuple):
    """The arguments of a command line that name a session and what of it is meant, and its `--session`."""

    given: tuple[str, ...]
    option: str | None

    def named(self) -> str:
        """The session, which has to be named, if only by the environment."""
        return session_named(self.given[0] if self.given else None, self.option)

    def named_if_any(self, *, use_environment: bool = False) -> str | None:
        """The session of a command that also works without; the environment does not count unless asked for."""
        if not self.given and self.option is None and not (use_environment and _environment()):
            return None
        return self.named()

    def named_and_refs(self) -> tuple[str, tuple[str, ...]]:
        """The session, which has to be named on this line, and refs; with `--session` all arguments are refs."""
        if self.option is not None:
            return self.option, self.given
        first = self.given[0] if self.given else None
        return session_named(first, None, use_environment=False), self.given[1:]

    def chosen(self, store: api.Store, *, changes: bool = False) -> str:
        """The session, where it may be left out."""
        return chosen_session(store, self.given[0] if self.given else None, self.option, changes=changes)

    def chosen_and_refs(self, store: api.Store, *, changes: bool = False) -> tuple[str, list[str]]:
        """The session, where it may be left out, and refs.

        The first argument is the session if there is one with that key; where `--session` is given, all are refs.
        """
        if self.option is not None:
            return chosen_session(store, None, self.option), list(self.given)
        current = partial(_current, changes=changes)
        chosen = _told(api.choose(store, self.given, fallback=_environment(), current=current))
        return chosen.session, list(chosen.refs)

    def chosen_and_ref(self, store: api.Store, *, changes: bool = False) -> tuple[str, str]:
        """The same with one ref, `latest` where none is given."""
        key, refs = self.chosen_and_refs(store, changes=changes)
        if len(refs) > 1:
            raise click.UsageError("One checkpoint at a time.")
        return key, refs[0] if refs else "latest"

    @contextmanager
    def session(self, settings: CommonOptions) -> Iterator[api.Session]:
        """The session that is meant, in its store, where it may be left out."""
        with opened(settings) as store:
            yield store.get(self.chosen(store))


def known(store: api.Store, key: str) -> str:
    """The key of an existing session that was named by it or by its beginning, which is then told on stderr."""
    found = store.get(key, prefix=True).key
    if found != key:
        note(f"session {found} (the only one that begins with {key})")
    return found


def opened(settings: CommonOptions, *, create: bool = False) -> api.Store:
    """The store of a command, which waits less long for others than a program does: somebody looks on."""
    return api.open(settings.store, create=create, busy_seconds=BUSY_SECONDS)


@contextmanager
def told_to_end(exit_code: int = 128 + 15) -> Iterator[None]:
    """Let SIGTERM end a command in good order: no child goes on, nothing unfinished is left behind."""
    import signal  # few commands need it
    import sys

    before = signal.signal(signal.SIGTERM, lambda *_: sys.exit(exit_code))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def opened_without_key(settings: CommonOptions) -> api.Store:
    """The store for what needs no key: opened by it where there is one."""
    try:
        return opened(settings)
    except api.StepkeepError as exc:
        if exc.code != "key_missing":
            raise
        return api.open(settings.store, create=False, busy_seconds=BUSY_SECONDS, locked=True)


def _told(chosen: api.Chosen) -> api.Chosen:
    if chosen.why is not None:
        note(f"session {chosen.session} ({chosen.why})")
    return chosen


def _environment() -> str | None:
    return os.environ.get("STEPKEEP_SESSION") or None


def on_session(*arguments: str, help: str = SESSION_HELP) -> Callable[[Any], Any]:
    """Let a command take SESSION, further arguments of `_ARGUMENTS`, and `--session`; it gets them as `words`."""

    def decorate(command: Callable[..., Any]) -> Any:
        @wraps(command)
        def call(*args: Any, session: str | None, session_option: str | None, **params: Any) -> Any:
            given = [] if session is None else [session]
            for name in arguments:
                words = params.pop(name)
                given += words if isinstance(words, tuple) else [] if words is None else [words]
            return command(*args, words=Words(tuple(given), session_option), **params)

        taken = [_session_argument(), *(click.argument(name, **_ARGUMENTS[name]) for name in arguments)]
        decorated: Any = call
        for each in reversed([*taken, session_option(help)]):
            decorated = each(decorated)
        return decorated

    return decorate


def limit_option(help: str, *, least: int = 1) -> Callable[[Any], Any]:
    return click.option("-n", "--limit", type=click.IntRange(min=least), metavar="N", help=help)


def message_option(help: str = "What was done.") -> Callable[[Any], Any]:
    return click.option("-m", "--message", default="", metavar="TEXT", help=help)


def tag_option(command: Callable[..., Any]) -> Any:
    """Let a command take `--tag`, and `--tags A,B` as another spelling of it; it gets them as `tags`."""

    @wraps(command)
    def call(*args: Any, tags: tuple[str, ...], tag_lists: tuple[str, ...], **params: Any) -> Any:
        listed = [tag.strip() for tag in ",".join(tag_lists).split(",")] if tag_lists else []
        return command(*args, tags=(*tags, *listed), **params)

    spelt = click.option("--tag", "tags", multiple=True, metavar="TAG", help="A tag; may be repeated.")
    return spelt(click.option("--tags", "tag_lists", multiple=True, hidden=True)(call))


def workspace_option(help: str) -> Callable[[Any], Any]:
    folder = click.Path(exists=True, file_okay=False)
    return click.option("--workspace", metavar="DIR", type=folder, help=help)


def _session_argument() -> Callable[[Any], Any]:
    return click.argument("session", required=False, metavar="[SESSION]", shell_complete=_complete_session)


def session_option(help: str = SESSION_HELP) -> Callable[[Any], Any]:
    return click.option(
        "--session",
        "session_option",
        metavar="KEY",
        callback=_or_the_groups,
        shell_complete=_complete_session,
        help=help,
    )


def _or_the_groups(ctx: click.Context, _param: click.Parameter, value: str | None) -> str | None:
    """A group that takes the option too passes it on to its commands."""
    if value is not None:
        ctx.meta[_SESSION] = value
    return ctx.meta.get(_SESSION)


def _complete_session(ctx: click.Context, _param: click.Parameter, prefix: str) -> list[str]:
    def find(store: api.Store) -> Iterable[str]:
        return (info.key for info in store.sessions(prefix=prefix or None, limit=MAX_COMPLETIONS))

    return _completions(ctx, find)


def complete_branch(ctx: click.Context, _param: click.Parameter, prefix: str) -> list[str]:
    def find(store: api.Store) -> Iterable[str]:
        names = (branch.name for branch in _session_so_far(ctx, store).branches)
        return (name for name in names if name.startswith(prefix))

    return _completions(ctx, find)


def complete_ref(ctx: click.Context, _param: click.Parameter, prefix: str) -> list[str]:
    return _completions(ctx, lambda store: _session_so_far(ctx, store).refs(prefix))


def _session_so_far(ctx: click.Context, store: api.Store) -> api.Session:
    """The session that the words so far name, else the current one."""
    key = ctx.params.get("session_option") or ctx.params.get("session") or _environment()
    return store.get(key or _current(store).session)


def _completions(ctx: click.Context, find: Callable[[api.Store], Iterable[str]]) -> list[str]:
    """Completion never complains and never makes a store; what a shell could not take is left out."""
    try:
        with opened(ctx.ensure_object(CommonOptions)) as store:
            return [name for name in find(store) if name == clean(name)]
    except StepkeepError:
        return []


_ARGUMENTS: Final[dict[str, dict[str, Any]]] = {
    "name": {"required": False, "metavar": "NAME", "shell_complete": complete_branch},
    "path": {"required": False, "metavar": "[PATH]"},
    "paths": {"nargs": -1, "metavar": "[PATH]..."},
    "ref": {"required": False, "metavar": "[REF]", "shell_complete": complete_ref},
    "refs": {"nargs": -1, "metavar": "[REF]...", "shell_complete": complete_ref},
    "turn": {"required": False, "metavar": "[TURN]"},
    "time": {"required": False, "metavar": "TIME", "shell_complete": complete_ref},
}
"""The arguments that commands take behind SESSION."""


# --- the script for a shell --------------------------------------------------------------------------------------

EXAMPLE = """\
eval "$(stepkeep completion bash)"       # in ~/.bashrc
eval "$(stepkeep completion zsh)"        # in ~/.zshrc
stepkeep completion fish > ~/.config/fish/completions/stepkeep.fish"""


BASH: Final = """\
%(complete_func)s() {
    local IFS=$'\\n' word completion type value before= after_colon=
    local -a words=()
    # Bash takes a colon for the end of a word: put keys together again, and reply with what is behind the last one.
    for word in "${COMP_WORDS[@]:0:COMP_CWORD+1}"; do
        if [[ ${#words[@]} -gt 1 && ( -n $after_colon || $word =~ ^:+$ ) ]]; then
            words[-1]+=$word
        else
            words+=("$word")
        fi
        after_colon=
        if [[ $word =~ ^:+$ ]]; then after_colon=yes; fi
    done
    word=${words[-1]}
    if [[ $word == *:* && $COMP_WORDBREAKS == *:* ]]; then before=${word%%"${word##*:}"}; fi
    local count=$((${#words[@]} - 1))
    for completion in $(env COMP_WORDS="${words[*]}" COMP_CWORD=$count %(complete_var)s=bash_complete $1); do
        IFS=',' read -r type value <<< "$completion"
        case $type in
            dir) COMPREPLY=(); compopt -o dirnames ;;
            file) COMPREPLY=(); compopt -o default ;;
            plain) COMPREPLY+=("${value#"$before"}") ;;
        esac
    done
}

complete -o nosort -F %(complete_func)s %(prog_name)s
"""
"""Click's script for bash, which also completes keys with a colon in them."""


@command("completion", EXAMPLE)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(settings: CommonOptions, shell: str) -> None:
    """Print the script that completes commands, options, sessions and refs in a shell."""
    from click.shell_completion import get_completion_class

    kind = get_completion_class(shell)
    if kind is None:
        raise click.ClickException(f"This click cannot complete in {shell}.")
    if shell == "bash":
        kind = type("Bash", (kind,), {"source_template": BASH})
    script = kind(stepkeep, {}, "stepkeep", "_STEPKEEP_COMPLETE").source()
    settings.show({"shell": shell, "script": script}, lambda _: lines([script]))
