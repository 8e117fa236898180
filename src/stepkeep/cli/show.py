"""`stepkeep show` and `stepkeep at`."""

from __future__ import annotations

import click
import msgspec

from stepkeep import api
from stepkeep.api import CheckpointInfo, Shown, ShownAt, Store, ValueAt, ValueShown
from stepkeep.cli.app import Command, Settings, settings_of
from stepkeep.cli.naming import (
    chosen_session,
    chosen_session_and_refs,
    complete_ref,
    ref_argument,
    session_argument,
    session_option,
)
from stepkeep.cli.printing import lines, moment, note, ratio, write
from stepkeep.text import clean, clean_json, size

EXAMPLE = """\
stepkeep show research-42
stepkeep show research-42 latest~2
stepkeep show research-42 step-5 --json
stepkeep show research-42 latest context.messages[-1]
stepkeep show tides --output fetch --raw"""


@click.command("show", cls=Command, example=EXAMPLE)
@session_argument()
@ref_argument()
@click.argument("path", required=False, metavar="[PATH]")
@session_option()
@click.option(
    "--output", "step", metavar="STEP", help="Print all that a step of a workflow, plan or script gave."
)
@click.option("--stderr", is_flag=True, help="With --output: what a step of a workflow printed there.")
@click.option(
    "--raw", is_flag=True, help="Print only the state, value or output, byte for byte, nothing escaped."
)
@settings_of
def show(
    settings: Settings,
    session: str | None,
    ref: str | None,
    path: str | None,
    session_option: str | None,
    step: str | None,
    stderr: bool,
    raw: bool,
) -> None:
    """Show a checkpoint of SESSION and its state; the latest one without REF. With PATH only that value.

    A PATH reads like context.messages[-1]; $ is the whole state.

    When the latest is damaged, the newest intact one is shown, with a warning.
    """
    if raw and settings.json:
        raise click.UsageError("--raw and --json exclude each other.")
    if stderr and step is None:
        raise click.UsageError("--stderr goes with --output STEP.")
    with api.open(settings.store, create=False) as store:
        key, given = chosen_session_and_refs(store, [session, ref, path], session_option)
        if len(given) > 2:
            raise click.UsageError("One checkpoint at a time, and the path of one value.")
        if step is not None:
            if len(given) == 2:
                raise click.UsageError("The output of a step, or the PATH of a value: not both.")
            _show_output(settings, store, key, given[0] if given else "latest", step, stderr=stderr, raw=raw)
            return
        if len(given) == 2:
            value = store.get(key).show_value(given[0], given[1])
            _show_value(settings, value, raw=raw)
            return
        shown = store.get(key).show(given[0] if given else "latest")
    if raw:
        write(bytes(shown.state) + b"\n")
    else:
        settings.show(shown, lambda shown: lines(_shown_texts(shown)))


def _show_value(settings: Settings, value: ValueShown, *, raw: bool) -> None:
    if raw:
        write(bytes(value.value) + b"\n")
    else:
        settings.show(value, lambda value: lines([_value_text(value)]))


def _show_output(
    settings: Settings, store: Store, key: str, ref: str, step: str, *, stderr: bool, raw: bool
) -> None:
    output = store.get(key).output(step, ref=ref, stream="stderr" if stderr else "stdout")
    if raw:
        write(output.content)
    else:
        settings.show(output.document(), lambda shown: lines(clean(text) for text in shown.text.splitlines()))
    if output.is_cut and not settings.json:
        note(f"this is what is stored; step {step!r} gave more")


def _value_text(shown: ValueShown) -> str:
    """One value as indented JSON."""
    return clean_json(msgspec.json.format(bytes(shown.value), indent=2))


def _shown_texts(shown: Shown) -> list[str]:
    """A checkpoint and its state, line by line."""
    facts = _facts(shown.checkpoint)
    facts["merged"] = ", ".join(
        f"{each.event or each.kind} at {moment(each.time)}" for each in shown.merged_triggers
    )
    if shown.fallback is not None:
        failed = ", ".join(failure.checkpoint for failure in shown.fallback.failures)
        facts["instead of"] = f"{failed} (damaged)"
    texts = [f"{name + ':':<11} {clean(text)}" for name, text in facts.items() if text]
    texts += _body("state", shown.encoding, shown.state)
    if shown.details is not None and shown.details_encoding is not None:
        texts += _body("details", shown.details_encoding, shown.details)
    return texts


def _facts(each: CheckpointInfo) -> dict[str, str]:
    trigger = (
        each.trigger.kind if each.trigger.event is None else f"{each.trigger.kind}, {each.trigger.event}"
    )
    return {
        "checkpoint": each.id,
        "session": f"{each.session} (#{each.seq}, branch {each.branch})",
        "time": f"{moment(each.time)} UTC",
        "step": "" if each.step is None else str(each.step),
        "status": each.status,
        "trigger": trigger,
        "message": each.message,
        "tags": ", ".join(each.tags),
        "metadata": msgspec.json.encode(each.metadata).decode() if each.metadata else "",
        "external id": each.external_id or "",
        "parents": ", ".join(each.parents),
        "size": f"{size(each.size_bytes)}, stored {size(each.stored_bytes)} ({ratio(each.ratio)})",
    }


def _body(name: str, encoding: str, document: msgspec.Raw) -> list[str]:
    kind = "" if encoding == "json" else f" ({encoding}: $ keys stand for values JSON lacks)"
    return [f"{name}:{kind}", clean_json(msgspec.json.format(bytes(document), indent=2))]


# --- at ----------------------------------------------------------------------------------------------------------

AT_EXAMPLE = """\
stepkeep at "2 hours ago"
stepkeep at "2025-01-20 14:30:00"
stepkeep at research-42 "yesterday 14:30" context.messages[-1]"""


@click.command("at", cls=Command, example=AT_EXAMPLE)
@session_argument()
@click.argument("time", required=False, metavar="TIME", shell_complete=complete_ref)
@click.argument("path", required=False, metavar="[PATH]")
@session_option()
@settings_of
def at(
    settings: Settings,
    session: str | None,
    time: str | None,
    path: str | None,
    session_option: str | None,
) -> None:
    """Show the state of SESSION as it was at TIME, or only the value at PATH.

    It is that of the newest checkpoint at or before TIME: now, '2 hours ago', 14:30, 'yesterday 14:30', 2025-01-20,
    '2025-01-20 14:30:00'. A time that names no zone is read in the configured one, UTC unless set.
    """
    if session is None:
        raise click.UsageError("At what time? Say it like '2 hours ago' or '2025-01-20 14:30:00'.")
    with api.open(settings.store, create=False) as store:
        if time is None:  # one argument can only be the time
            key, given = chosen_session(store, None, session_option), [session]
        else:
            key, given = chosen_session_and_refs(store, [session, time, path], session_option)
        if not 1 <= len(given) <= 2:
            raise click.UsageError("Say a time, and if need be the path of one value.")
        found = store.get(key).show_at(given[0], given[1] if len(given) > 1 else None)
    settings.show(found, _print_at)


def _print_at(found: ShownAt | ValueAt) -> None:
    asked = f"at or before {found.asked_text}"
    if isinstance(found, ValueAt):
        note(f"#{found.checkpoint.seq}, the newest {asked}")
        lines([_value_text(found)])
    else:
        lines([f"{'asked:':<12}{asked}", *_shown_texts(found)])


COMMANDS = {"at": at, "show": show}
