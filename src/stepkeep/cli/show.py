"""`stepkeep show`."""

from __future__ import annotations

import click
import msgspec

from stepkeep import operations
from stepkeep.api import Store
from stepkeep.cli.app import Command, Settings, settings_of
from stepkeep.cli.naming import chosen_session_and_refs, ref_argument, session_argument, session_option
from stepkeep.cli.printing import clean, clean_json, lines, moment, note, ratio, size, write
from stepkeep.operations import CheckpointView, Shown, ValueShown

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
    with operations.open_store(settings.store) as store:
        key, given = chosen_session_and_refs(store, [session, ref, path], session_option)
        if len(given) > 2:
            raise click.UsageError("One checkpoint at a time, and the path of one value.")
        if step is not None:
            if len(given) == 2:
                raise click.UsageError("The output of a step, or the PATH of a value: not both.")
            _show_output(settings, store, key, given[0] if given else "latest", step, stderr=stderr, raw=raw)
            return
        if len(given) == 2:
            value = operations.show_value(store, key, given[0], given[1])
            _show_value(settings, value, raw=raw)
            return
        shown = operations.show(store, key, given[0] if given else "latest")
    if raw:
        write(bytes(shown.state) + b"\n")
    else:
        settings.show(shown, lambda shown: lines(shown_texts(shown)))


def _show_value(settings: Settings, value: ValueShown, *, raw: bool) -> None:
    if raw:
        write(bytes(value.value) + b"\n")
    else:
        settings.show(value, lambda value: lines([value_text(value)]))


def _show_output(
    settings: Settings, store: Store, key: str, ref: str, step: str, *, stderr: bool, raw: bool
) -> None:
    shown, content = operations.show_output(store, key, ref, step, stream="stderr" if stderr else "stdout")
    if raw:
        write(content)
    else:
        settings.show(shown, lambda shown: lines(clean(text) for text in shown.text.splitlines()))
    if shown.is_cut and not settings.json:
        note(f"this is what is stored; step {step!r} gave more")


def value_text(shown: ValueShown) -> str:
    """One value as indented JSON."""
    return clean_json(msgspec.json.format(bytes(shown.value), indent=2))


def shown_texts(shown: Shown) -> list[str]:
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


def _facts(each: CheckpointView) -> dict[str, str]:
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


COMMANDS = {"show": show}
