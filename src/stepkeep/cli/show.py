"""`stepkeep show` and `stepkeep at`."""

from __future__ import annotations

import click
import msgspec

from stepkeep import api
from stepkeep.cli.app import CommonOptions, command
from stepkeep.cli.naming import Words, on_session, opened
from stepkeep.cli.printing import data, facts, moment, note, ratio, write
from stepkeep.text import clean, clean_json, count, indented, shortened, size

EXAMPLE = """\
stepkeep show research-42
stepkeep show research-42 latest~2
stepkeep show research-42 step-5 --json
stepkeep show research-42 latest context.messages[-1]
stepkeep show tides --output fetch --raw"""


@command("show", EXAMPLE)
@on_session("ref", "path")
@click.option(
    "--output", "step", metavar="STEP", help="Print all that a step of a workflow, plan or script gave."
)
@click.option("--stderr", is_flag=True, help="With --output: what a step of a workflow printed there.")
@click.option(
    "--raw", is_flag=True, help="Print only the state, value or output, byte for byte, nothing escaped."
)
def show(settings: CommonOptions, words: Words, step: str | None, stderr: bool, raw: bool) -> None:
    """Show a checkpoint of SESSION and its state; the latest one without REF. With PATH only that value.

    A PATH reads like context.messages[-1]; $ is the whole state.

    When the latest is damaged, the newest intact one is shown, with a warning.
    """
    if raw and settings.json:
        raise click.UsageError("--raw and --json exclude each other.")
    if stderr and step is None:
        raise click.UsageError("--stderr goes with --output STEP.")
    with opened(settings) as store:
        key, given = words.chosen_and_refs(store)
        if len(given) > 2:
            raise click.UsageError("One checkpoint at a time, and the path of one value.")
        if step is not None and len(given) == 2:
            raise click.UsageError("The output of a step, or the PATH of a value: not both.")
        run, ref = store.get(key), given[0] if given else "latest"
        if step is not None:
            _show_output(settings, run, ref, step, stderr=stderr, raw=raw)
            return
        found = run.show_value(ref, given[1]) if len(given) == 2 else run.show(ref)
    if raw:
        write(_content(found) + b"\n")
    else:
        settings.show(found, lambda found: data("\n".join(_texts(found))))


def _show_output(
    settings: CommonOptions, run: api.Session, ref: str, step: str, *, stderr: bool, raw: bool
) -> None:
    output = run.output(step, ref=ref, stream="stderr" if stderr else "stdout")
    if raw:
        write(output.content)
    else:
        settings.show(
            output.document(), lambda shown: data("\n".join(map(clean, shown["text"].splitlines())))
        )
    if output.is_cut and not settings.json:
        note(f"this is what is stored; step {step!r} gave more")


def _content(found: api.Shown | api.ValueShown) -> bytes:
    return bytes(found.value if isinstance(found, api.ValueShown) else found.state)


def _texts(found: api.Shown | api.ValueShown) -> list[str]:
    """One value, or a checkpoint and its state, line by line."""
    if isinstance(found, api.ValueShown):
        return [clean_json(indented(_content(found)))]
    texts = _facts(found.checkpoint)
    texts["merged"] = ", ".join(
        f"{each.event or each.kind} at {moment(each.time)}" for each in found.merged_triggers
    )
    if found.fallback is not None:
        failed = ", ".join(failure.checkpoint for failure in found.fallback.failures)
        texts["instead of"] = f"{failed} (damaged)"
    shown = [*facts(texts, 12), *_body("state", found.encoding, found.state)]
    if found.details is not None and found.details_encoding is not None:
        shown += _body("details", found.details_encoding, found.details)
    return shown if found.transcript is None else [*shown, *_transcript(found.transcript)]


def _transcript(found: api.TranscriptView) -> list[str]:
    """The last messages of a transcript."""
    total = f"{count(found.entries, 'entry', 'entries')}, {size(found.size_bytes)}"
    said = [f"  {each.role}: {shortened(clean(each.text), 500)}" for each in found.messages]
    return [f"transcript: {total}; last:", *said]


def _facts(each: api.CheckpointInfo) -> dict[str, str]:
    trigger = each.trigger
    return {
        "checkpoint": each.id,
        "session": f"{each.session} (checkpoint {each.seq}, branch {each.branch})",
        "time": f"{moment(each.time)} UTC",
        "step": "" if each.step is None else str(each.step),
        "status": each.status,
        "trigger": trigger.kind if trigger.event is None else f"{trigger.kind}, {trigger.event}",
        "message": each.message,
        "tags": ", ".join(each.tags),
        "metadata": msgspec.json.encode(each.metadata).decode() if each.metadata else "",
        "external id": each.external_id or "",
        "parents": ", ".join(each.parents),
        "files": "" if each.files is None else f"{count(each.files, 'file')}, {size(each.files_bytes)}",
        "size": f"{size(each.size_bytes)}, stored {size(each.stored_bytes)} ({ratio(each.ratio)})",
    }


def _body(name: str, encoding: str, document: msgspec.Raw) -> list[str]:
    kind = "" if encoding == "json" else f" ({encoding}: $ keys stand for values JSON lacks)"
    return [f"{name}:{kind}", clean_json(indented(bytes(document)))]


# --- at ----------------------------------------------------------------------------------------------------------

AT_EXAMPLE = """\
stepkeep at "2 hours ago"
stepkeep at "2025-01-20 14:30:00"
stepkeep at research-42 "yesterday 14:30" context.messages[-1]"""


@command("at", AT_EXAMPLE)
@on_session("time", "path")
def at(settings: CommonOptions, words: Words) -> None:
    """Show the state of SESSION as it was at TIME, or only the value at PATH.

    It is that of the newest checkpoint at or before TIME: now, '2 hours ago', 14:30, 'yesterday 14:30', 2025-01-20,
    '2025-01-20 14:30:00'. A time that names no zone is read in the configured one, UTC unless set.
    """
    if not words.given:
        raise click.UsageError("At what time? Say it like '2 hours ago' or '2025-01-20 14:30:00'.")
    with opened(settings) as store:
        if len(words.given) == 1:  # it can only be the time
            key, given = Words((), words.option).chosen(store), list(words.given)
        else:
            key, given = words.chosen_and_refs(store)
        if not 1 <= len(given) <= 2:
            raise click.UsageError("Say a time, and if need be the path of one value.")
        found = store.get(key).show_at(given[0], given[1] if len(given) > 1 else None)
    settings.show(found, _print_at)


def _print_at(found: api.ShownAt | api.ValueAt) -> None:
    asked = f"at or before {found.asked_text}"
    if isinstance(found, api.ValueShown):
        note(f"checkpoint {found.checkpoint.seq}, the newest {asked}")
        data("\n".join(_texts(found)))
    else:
        data("\n".join([f"{'asked:':<12}{asked}", *_texts(found)]))
