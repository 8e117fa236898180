"""The group of commands: options common to all, lazy loading, errors and exit codes."""

from __future__ import annotations

import gc
import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from importlib import import_module
from typing import Any, Final, TypeVar

import click

from stepkeep.cli import COLLECT_NORMALLY, print_version
from stepkeep.cli.printing import json_document, note
from stepkeep.cli.standard_streams import output_failure
from stepkeep.errors import BackendUnavailable, Conflict, Corrupt, InvalidInput, NotFound, StepkeepError
from stepkeep.logs import attach_on_first_line
from stepkeep.text import clean, clean_json, clean_lines

T = TypeVar("T")

COMMANDS: Final = {
    "approve": ("run", "Answer what a step asks a person."),
    "at": ("show", "Show the state as it was at a time."),
    "backup": ("moving", "Write the whole store to a file, while it is in use."),
    "bisect": ("bisect", "Find the first checkpoint at whose files a command fails."),
    "branch": ("branch", "List, fork, switch, merge and close branches."),
    "cancel": ("finish", "Mark a session as cancelled."),
    "clean": ("removing", "Remove whole sessions that are old enough."),
    "cleanup": ("removing", "The same as clean."),
    "complete": ("finish", "Mark a session as completed."),
    "completion": ("naming", "Print the completion script for a shell."),
    "config": ("inspecting", "Show and change the configuration, and say what is wrong with it."),
    "copy": ("moving", "Copy sessions into another store."),
    "create": ("save", "Create a checkpoint by hand."),
    "delete": ("finish", "Remove checkpoints or a session for good."),
    "demo": ("demo", "Show a crash and damage, and how both are survived."),
    "diff": ("diff", "Show what changed between two checkpoints."),
    "doctor": ("inspecting", "Look a store over, and say what to do about what is wrong."),
    "events": ("log", "Show what happened to a session."),
    "export": ("moving", "Write a checkpoint as readable JSON."),
    "fail": ("finish", "Mark a session as failed."),
    "find": ("log", "Find a text in the states and messages of a session."),
    "history": ("log", "Show what led to where a session stands."),
    "files": ("files", "List, read and trace the project files of checkpoints."),
    "hook": ("hooks", "Answer an event of a coding agent."),
    "hooks": ("hooks", "Install the hooks of coding agents, and see after them."),
    "investigate": ("investigate", "Keep a debugging session: hypotheses, beliefs, gaps."),
    "import": ("moving", "Bring in what another system saved."),
    "keep": ("removing", "Say what is kept of a session, or show it."),
    "key": ("keys", "Make an encrypted store, and say what opens it."),
    "list": ("log", "List sessions."),
    "log": ("log", "List the checkpoints of a session, or how one value changed."),
    "mcp": ("mcp", "Serve checkpoints to agents by the Model Context Protocol."),
    "pause": ("finish", "Mark a session as paused."),
    "phases": ("phases", "Keep checkpoints at the phases of a task."),
    "prune": ("removing", "Remove old checkpoints that no rule keeps."),
    "recover": ("moving", "Salvage a damaged store into a new one."),
    "restore": ("restore", "Go on from an old checkpoint, on a branch."),
    "restore-backup": ("moving", "Make a backup the store."),
    "rewind": ("rewind", "Go back to before a prompt of a coding agent."),
    "resume": ("run", "Go on with unfinished work where it stopped."),
    "run": ("run", "Run a workflow file, saving after every step."),
    "save": ("save", "Save a state as the next checkpoint."),
    "show": ("show", "Show a checkpoint and its state."),
    "stats": ("inspecting", "Show what was counted: saves, sizes, latencies, resumes."),
    "status": ("inspecting", "Show how much is stored and where it stands."),
    "timeline": ("log", "Draw the branches of a session as a graph."),
    "trust": ("inspecting", "Let the project's file name a store elsewhere."),
    "ui": ("ui", "Show the sessions of a store in the browser."),
    "verify": ("inspecting", "Check every stored byte."),
    "worker": ("run", "Run the workflows that wait in a queue."),
}
"""Command -> the module that has it, and its line in the overview, which is printed without importing it."""

HEADINGS: Final = {
    "Everyday": "save show log diff timeline restore branch find files bisect events",
    "Work": "run resume approve list status complete fail cancel pause",
    "Store": (
        "ui keep prune clean delete verify doctor stats backup restore-backup copy recover key "
        "import export config trust"
    ),
    "Agents": "hooks rewind mcp phases investigate worker",
    "Help": "demo completion",
}
"""The commands by what they are for, in the order of the overview. Those that are not named here are other spellings
and what only programs call."""

ONLY_SHOW: Final = frozenset(
    {
        *("at", "bisect", "branch list", "branch log", "completion", "config", "diff", "doctor", "events"),
        *("export", "files cat", "files diff", "files log", "files ls", "find", "history", "hooks status"),
        *("investigate at", "investigate compare", "investigate recovery", "investigate report"),
        *("investigate status", "key list", "list", "log", "show", "stats", "status", "timeline", "verify"),
    }
)
"""Commands whose output is all they do: where that cannot be written, they failed. Others have done their work."""

ALIAS: Final = "checkpoint"
"""A word that may stand in front of every command: `stepkeep checkpoint history`."""

STAYING: Final = frozenset({"mcp", "resume", "run", "stats", "worker"})
"""Commands that may run for days: the cycles they leave behind are collected as in any other program."""

EXIT_CODES: Final = ((InvalidInput, 2), (NotFound, 3), (Corrupt, 4), (Conflict, 5))
DAMAGE: Final = 4
INTERRUPTED: Final = 130
READER_GONE: Final = 141


class CommonOptions:
    """The options common to all commands, and the command that has them."""

    store: str | None = None
    json = False
    verbose = False
    command = ""

    def show(self, value: T, as_text: Callable[[T], None]) -> None:
        """Print a result: as JSON if that was asked for, else as `as_text` does."""
        if self.json:
            json_document(value)
        else:
            as_text(value)


settings_of = click.make_pass_decorator(CommonOptions, ensure=True)


def _common_options() -> list[click.Parameter]:
    return [
        click.Option(
            ["--store"],
            metavar="URL",
            help="Store to use, such as sqlite:PATH. Default: $STEPKEEP_STORE, then the configuration.",
        ),
        click.Option(["--json"], is_flag=True, help="Print the result as JSON."),
        click.Option(["-v", "--verbose"], is_flag=True, help="Log what is done, on stderr."),
    ]


class Command(click.Command):
    """A command that also takes the common options, and shows its example as it was written."""

    def __init__(self, *args: Any, example: str = "", **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.params += _common_options()
        self._example = example

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Take the common options out of the parameters, wherever on the line they were given."""
        rest = super().parse_args(ctx, args)
        settings, given = ctx.ensure_object(CommonOptions), ctx.params
        if (folder := given.pop("work_folder", None)) is not None:
            _enter(folder)
        if (store := given.pop("store")) == "":
            raise click.UsageError("A store cannot be empty.", ctx)
        settings.store = store or settings.store
        settings.json |= given.pop("json")
        if given.pop("verbose"):
            settings.verbose = True
            import logging  # noqa: F401  (from now on there are lines below a warning)
        if not isinstance(self, click.Group):
            settings.command = ctx.command_path.removeprefix("stepkeep ").removeprefix(f"{ALIAS} ")
        return rest

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        super().format_epilog(ctx, formatter)
        if self._example:
            with formatter.section("Example"):
                for line in self._example.splitlines():
                    formatter.write(f"  {line}\n")


class CommandGroup(Command, click.Group):
    """A group of commands that also takes the common options."""


def command(
    name: str,
    example: str = "",
    *,
    group: click.Group | None = None,
    kind: type[Command] = Command,
    **attributes: Any,
) -> Callable[[Callable[..., Any]], click.Command]:
    """Make a function a command, of a group where one is given; its first argument is the common options."""

    def decorate(function: Callable[..., Any]) -> click.Command:
        made = click.command(name, cls=kind, example=example, **attributes)(settings_of(function))
        if group is not None:
            group.add_command(made)
        return made

    return decorate


class LazyGroup(CommandGroup):
    """Imports the module of a command only when that command is used."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        if cmd_name == ALIAS:
            return self
        if cmd_name not in COMMANDS:
            return None
        if cmd_name in STAYING:
            gc.set_threshold(*COLLECT_NORMALLY)
        module = import_module(f"stepkeep.cli.{COMMANDS[cmd_name][0]}")
        for each in vars(module).values():
            if isinstance(each, click.Command) and each.name == cmd_name:
                return each
        return None

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """The command that is meant; the error for a misspelt one names those that are spelt alike."""
        if args[0] not in (*COMMANDS, ALIAS) and not args[0].startswith("-"):
            from difflib import get_close_matches

            alike = " or ".join(f"'{name}'" for name in get_close_matches(args[0], COMMANDS, n=2))
            meant = f" Did you mean {alike}?" if alike else ""
            raise click.UsageError(f"No such command '{args[0]}'.{meant}", ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        width = max(map(len, COMMANDS))
        for heading, names in HEADINGS.items():
            with formatter.section(heading):
                formatter.write_dl([(name.ljust(width), COMMANDS[name][1]) for name in names.split()])


def _enter(folder: str) -> None:
    import os

    try:
        os.chdir(folder)
    except OSError as exc:
        raise click.UsageError(f"-C {folder}: {exc.strerror}.") from exc


def _print_version(ctx: click.Context, _param: click.Parameter, value: bool) -> None:
    if not value or ctx.resilient_parsing:
        return
    print_version()
    ctx.exit()


stepkeep = LazyGroup(
    name="stepkeep",
    help=(
        "Durable checkpoints for AI agents and workflows.\n\n"
        "Times are shown in UTC. A REF names a checkpoint: latest, latest~2, latest@before, newest, seq:12, step-5, "
        "tag:NAME, branch:NAME, an id or its beginning, or a time such as '2 hours ago' or '2025-01-20 14:30:00'."
    ),
    epilog="Exit codes: 0 done, 1 failed, 2 usage, 3 not found, 4 damage, 5 conflict.",
    params=[
        click.Option(
            ["--version"],
            is_flag=True,
            is_eager=True,
            expose_value=False,
            callback=_print_version,
            help="Print the version.",
        ),
        click.Option(
            ["-C", "work_folder"],
            metavar="DIR",
            help="Work as if it were called in that folder.",
        ),
    ],
    context_settings={"help_option_names": ["-h", "--help"]},
)


def run(args: list[str]) -> int:
    """Run one command line; every outcome becomes an exit code."""
    settings = CommonOptions()
    try:
        with _logs_on_stderr(settings):
            result = stepkeep.main(
                args or ["--help"], prog_name="stepkeep", standalone_mode=False, obj=settings
            )
            code, failure = result if isinstance(result, int) else 0, output_failure()
            return code if failure is None else _output_failed(failure, code, settings)
    except click.Abort:
        return INTERRUPTED
    except click.ClickException as exc:
        return _report_usage(exc, as_json=settings.json or "--json" in args)
    except StepkeepError as exc:
        return _failed(exc, settings)
    except MemoryError:
        return _failed(BackendUnavailable("there is not enough memory for this", code="no_memory"), settings)


def _failed(error: StepkeepError, settings: CommonOptions) -> int:
    _report(error, as_json=settings.json)
    return exit_code(error)


def _output_failed(failure: OSError, code: int, settings: CommonOptions) -> int:
    """The exit code of a command, which tells of its work, or of its output where that is all it does."""
    has_worked = settings.command not in ONLY_SHOW and settings.command != ""
    if isinstance(failure, BrokenPipeError):  # who reads has seen enough
        return code if has_worked else code or READER_GONE
    message = f"standard output cannot be written: {failure.strerror}"
    if has_worked:
        note(f"warning: {message}")
        return code
    _report(BackendUnavailable(message, code="output_failed"), as_json=settings.json)
    return code or 1


def exit_code(error: StepkeepError) -> int:
    return next((code for kind, code in EXIT_CODES if isinstance(error, kind)), 1)


def _report_usage(error: click.ClickException, *, as_json: bool) -> int:
    message = re.sub(r"\s*\n\s*", " ", error.format_message())  # choices are listed line by line
    context = error.ctx if isinstance(error, click.UsageError) else None
    if context is not None and error.message == context.get_help():  # a group without its command
        message = "Missing command."
        if not as_json:
            click.echo(error.message, err=True)
            return error.exit_code
    if context is not None and not as_json:
        ended = message if message.endswith((".", "?")) else f"{message}."
        message = f"{ended} See '{context.command_path} --help'."
    _report(InvalidInput(message, code="usage"), as_json=as_json)
    return error.exit_code


def _report(error: StepkeepError, *, as_json: bool) -> None:
    if not as_json:
        click.echo(f"error: {clean_lines(error.message)}", err=True)
        return
    names = ("code", "message", "retryable", "session", "branch", "checkpoint", "path")
    fields = {name: getattr(error, name) for name in names}
    fields["message"] = clean(error.message)
    import msgspec

    from stepkeep.fixes import FAIL, fixes_for

    fields |= {"result": FAIL, "fixes": fixes_for(error)}
    click.echo(clean_json(msgspec.json.encode({"error": fields}, enc_hook=str)), err=True)


@contextmanager
def _logs_on_stderr(settings: CommonOptions) -> Iterator[None]:
    """Show warnings, and with `--verbose` everything."""
    shown = ExitStack()

    def attach() -> None:
        from stepkeep.cli.stderr_logs import lines_on_stderr

        shown.enter_context(lines_on_stderr(lambda: settings.verbose))

    attach_on_first_line(attach)
    try:
        with shown:
            yield
    finally:
        attach_on_first_line(None)
