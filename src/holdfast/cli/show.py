"""`holdfast show`."""

from __future__ import annotations

import click
import msgspec

from holdfast import operations
from holdfast.cli.app import Command, Settings, settings_of
from holdfast.cli.naming import ref_argument, session_and_refs, session_argument, session_option
from holdfast.cli.printing import clean, clean_json, lines, moment, ratio, size, write
from holdfast.operations import CheckpointView, Shown

EXAMPLE = """\
holdfast show research-42
holdfast show research-42 latest~2
holdfast show research-42 step-5 --json"""


@click.command("show", cls=Command, example=EXAMPLE)
@session_argument()
@ref_argument()
@session_option()
@click.option("--raw", is_flag=True, help="Print only the state, byte for byte, nothing escaped.")
@settings_of
def show(
    settings: Settings, session: str | None, ref: str | None, session_option: str | None, raw: bool
) -> None:
    """Show a checkpoint of SESSION and its state; the latest one without REF.

    When the latest is damaged, the newest intact one is shown, with a warning.
    """
    if raw and settings.json:
        raise click.UsageError("--raw and --json exclude each other.")
    key, refs = session_and_refs([session, ref], session_option)
    if len(refs) > 1:
        raise click.UsageError("One checkpoint at a time.")
    with operations.open_store(settings.store) as store:
        shown = operations.show(store, key, refs[0] if refs else "latest")
    if raw:
        write(bytes(shown.state) + b"\n")
    else:
        settings.show(shown, _print)


def _print(shown: Shown) -> None:
    facts = _facts(shown.checkpoint)
    if shown.fallback is not None:
        failed = ", ".join(failure.checkpoint for failure in shown.fallback.failures)
        facts["instead of"] = f"{failed} (damaged)"
    texts = [f"{name + ':':<12}{clean(text)}" for name, text in facts.items() if text]
    texts += _body("state", shown.encoding, shown.state)
    if shown.details is not None and shown.details_encoding is not None:
        texts += _body("details", shown.details_encoding, shown.details)
    lines(texts)


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
