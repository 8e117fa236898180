"""Which session and which checkpoint a command line means, and how they complete in a shell."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from typing import Any, Final

import click
from click.shell_completion import get_completion_class

from stepkeep import api
from stepkeep.api import Chosen, Session, Store
from stepkeep.cli.app import Command, Settings, settings_of, stepkeep
from stepkeep.cli.printing import lines, note
from stepkeep.errors import StepkeepError
from stepkeep.text import clean

_SESSION: Final = "stepkeep.session"
MAX_COMPLETIONS: Final = 50


def session_named(argument: str | None, option: str | None, *, use_environment: bool = True) -> str:
    """The session of a command: the argument, else `--session`, else the environment."""
    if argument is not None and option is not None:
        raise click.UsageError("The session is given twice: as argument and by --session.")
    for key in (argument, option, _environment() if use_environment else None):
        if key is not None:
            return key
    hint = (
        "as argument, by --session, or in STEPKEEP_SESSION"
        if use_environment
        else "as argument or by --session"
    )
    raise click.UsageError(f"Which session? Name it {hint}.")


def optional_session(
    argument: str | None, option: str | None, *, use_environment: bool = False
) -> str | None:
    """The session of a command that also works without one; the environment does not count unless asked for."""
    if argument is None and option is None and not (use_environment and _environment()):
        return None
    return session_named(argument, option)


def session_and_refs(
    arguments: Iterable[str | None], option: str | None, *, use_environment: bool = True
) -> tuple[str, list[str]]:
    """SESSION and REFs; where `--session` names the session, all arguments are refs."""
    given = [argument for argument in arguments if argument is not None]
    if option is not None:
        return option, given
    key = session_named(given[0] if given else None, None, use_environment=use_environment)
    return key, given[1:]


def chosen_session(
    store: Store,
    argument: str | None,
    option: str | None,
    *,
    current: Callable[[Store], Chosen] | None = None,
) -> str:
    """The session of a command that need not name one: the argument, `--session`, the environment, the current one.

    A session that nobody named is told on stderr.
    """
    if argument is not None or option is not None or _environment() is not None:
        return session_named(argument, option)
    return _told((current or api.current_session)(store)).session


def is_session_named(option: str | None) -> bool:
    """Whether `--session` or the environment names one."""
    return option is not None or _environment() is not None


def chosen_session_and_refs(
    store: Store, arguments: Iterable[str | None], option: str | None
) -> tuple[str, list[str]]:
    """SESSION and REFs, where SESSION may be left out: it is then `--session`, the environment's or the current one.

    The first argument is the session if there is one with that key; where `--session` is given, all are refs.
    """
    given = [argument for argument in arguments if argument is not None]
    if option is not None:
        return option, given
    chosen = _told(api.choose(store, given, fallback=_environment()))
    return chosen.session, list(chosen.refs)


def _told(chosen: Chosen) -> Chosen:
    if chosen.why is not None:
        note(f"session {chosen.session} ({chosen.why})")
    return chosen


def _environment() -> str | None:
    return os.environ.get("STEPKEEP_SESSION") or None


def session_argument() -> Callable[[Any], Any]:
    return click.argument("session", required=False, metavar="[SESSION]", shell_complete=_complete_session)


def session_option(
    help: str = "The session, instead of the argument.  [default: $STEPKEEP_SESSION]",
) -> Callable[[Any], Any]:
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


def ref_argument(*, many: bool = False) -> Callable[[Any], Any]:
    metavar = "[REF]..." if many else "[REF]"
    name = "refs" if many else "ref"
    return click.argument(
        name, nargs=-1 if many else 1, required=False, metavar=metavar, shell_complete=complete_ref
    )


def _complete_session(ctx: click.Context, _param: click.Parameter, prefix: str) -> list[str]:
    def find(store: Store) -> Iterable[str]:
        return (info.key for info in store.sessions(prefix=prefix or None, limit=MAX_COMPLETIONS))

    return _completions(ctx, find)


def complete_branch(ctx: click.Context, _param: click.Parameter, prefix: str) -> list[str]:
    def find(store: Store) -> Iterable[str]:
        names = (branch.name for branch in _session_so_far(ctx, store).branches)
        return (name for name in names if name.startswith(prefix))

    return _completions(ctx, find)


def complete_ref(ctx: click.Context, _param: click.Parameter, prefix: str) -> list[str]:
    return _completions(ctx, lambda store: _session_so_far(ctx, store).refs(prefix))


def _session_so_far(ctx: click.Context, store: Store) -> Session:
    """The session that the words so far name, else the current one."""
    key = ctx.params.get("session_option") or ctx.params.get("session") or _environment()
    return store.get(key or api.current_session(store).session)


def _completions(ctx: click.Context, find: Callable[[Store], Iterable[str]]) -> list[str]:
    """Completion never complains and never makes a store; what a shell could not take is left out."""
    try:
        with api.open(ctx.ensure_object(Settings).store, create=False) as store:
            return [name for name in find(store) if name == clean(name)]
    except StepkeepError:
        return []


# --- the script for a shell --------------------------------------------------------------------------------------

EXAMPLE = """\
eval "$(stepkeep completion bash)"       # in ~/.bashrc
eval "$(stepkeep completion zsh)"        # in ~/.zshrc
stepkeep completion fish > ~/.config/fish/completions/stepkeep.fish"""


@click.command("completion", cls=Command, example=EXAMPLE)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@settings_of
def completion(settings: Settings, shell: str) -> None:
    """Print the script that completes commands, options, sessions and refs in a shell."""
    kind = get_completion_class(shell)
    if kind is None:
        raise click.ClickException(f"This click cannot complete in {shell}.")
    script = kind(stepkeep, {}, "stepkeep", "_STEPKEEP_COMPLETE").source()
    settings.show({"shell": shell, "script": script}, lambda _: lines([script]))


COMMANDS = {"completion": completion}
