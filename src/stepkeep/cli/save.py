"""`stepkeep save` and `stepkeep create`."""

from __future__ import annotations

import json
import math
import re
import sys
from collections.abc import Callable
from typing import Any, NoReturn

import click

from stepkeep import api
from stepkeep.cli.app import CommonOptions, command
from stepkeep.cli.naming import (
    Words,
    chosen_session,
    is_session_named,
    known,
    message_option,
    on_session,
    opened,
    session_option,
    tag_option,
    workspace_option,
)
from stepkeep.cli.printing import json_document, lines, note, ratio
from stepkeep.errors import InvalidInput, NotFound
from stepkeep.model import FILES, Header, Status, TriggerKind
from stepkeep.text import clean, count, occurs_twice, repeated_key, shortened, size

EXAMPLE = """\
stepkeep save research-42 --state '{"query": "tides"}' --step 1
stepkeep save research-42 --state @state.json -m "plan made" --tag plan
make-state | stepkeep save research-42 --state -"""


def _encoding_option() -> Callable[[Any], Any]:
    return click.option(
        "--encoding",
        type=click.Choice(["json", "json+tags"]),
        default="json",
        help="How --state is written; json+tags where `show` says so.  [default: json]",
    )


@command("save", EXAMPLE)
@on_session()
@click.option("--state", "document", required=True, metavar="@FILE|-|JSON", help="The state, as JSON.")
@_encoding_option()
@click.option("--step", type=click.IntRange(min=0), metavar="N", help="Where the work stands.")
@message_option()
@tag_option
@click.option(
    "--status",
    type=click.Choice([status.value for status in Status]),
    help="Also becomes the session's status.",
)
@click.option("--auto", is_flag=True, help="It is saved by a program.  [default]")
@click.option("--manual", is_flag=True, help="It is saved by hand.")
@click.option("--profile", help="The session's profile, such as agent or archive.")
@click.option("--project", help="The project the session belongs to.")
@click.option("--workflow", metavar="NAME", help="The workflow the session runs, for cleanup policies.")
@click.option("--test", is_flag=True, default=None, help="A test session: cleaned as soon as it ends.")
@click.option("--metadata", "metadata_document", metavar="@FILE|-|JSON", help="A JSON object, up to 64 KiB.")
@click.option("--idempotency-key", metavar="KEY", help="A repeat with this key saves nothing new.")
@click.option(
    "--expect-head",
    metavar="ID|none",
    help="Save only if this is still the newest checkpoint; none: the first.",
)
@click.option("--external-id", metavar="ID", help="Your own name for the checkpoint.")
@workspace_option("Capture the project files in this directory too.")
def save(
    settings: CommonOptions,
    /,
    words: Words,
    document: str,
    encoding: str,
    tags: tuple[str, ...],
    status: str | None,
    auto: bool,
    manual: bool,
    metadata_document: str | None,
    expect_head: str | None,
    **given: Any,
) -> None:
    """Save a state as the next checkpoint of SESSION, which is created if need be.

    When this returns, the checkpoint survives a crash and a loss of power.
    """
    key = words.named()
    if document == "-" and metadata_document == "-":
        raise click.UsageError("Only one of --state and --metadata can be read from stdin.")
    if auto and manual:
        raise click.UsageError("--auto and --manual exclude each other.")
    options: api.SaveOptions = {
        "tags": tags,
        "trigger": TriggerKind.MANUAL if manual else TriggerKind.AUTO,
        "metadata": None if metadata_document is None else _metadata(metadata_document),
        "status": Status(status or Status.IN_PROGRESS),
    }
    if expect_head is not None:
        options["expect_head"] = None if expect_head == "none" else _head(expect_head)
    state = _read_state(document, encoding)
    with opened(settings, create=True) as store:
        header = store.save(key, state, **options, **given)
        _show(settings, store, key, header, "Saved")


def _show(settings: CommonOptions, store: api.Store, key: str, header: Header, verb: str) -> None:
    """What was saved: as JSON all of it, also what it takes in the store."""
    if settings.json:
        json_document(store.describe([header])[0])
        return
    step = "" if header.step is None else f", step {header.step}"
    files = header.contents.get(FILES)
    captured = "" if files is None else f", {count(files.count or 0, 'file')} of {size(files.total_bytes)}"
    what = f"checkpoint {header.seq} of {clean(key)}, {size(header.size_bytes)}{step}{captured}"
    lines([f"{verb} {header.id} ({what})"])
    if settings.verbose:
        note(_stored(store, header))


def _stored(store: api.Store, header: Header) -> str:
    """What a save did beside that: where it lies, behind what, and what it takes there."""
    (info,) = store.describe([header])
    after = f"after {', '.join(info.parents)}" if info.parents else "the first one"
    takes = f"{size(info.stored_bytes)} stored for {size(info.size_bytes)} ({ratio(info.ratio)})"
    return f"info: branch {info.branch}, {after}; {takes}; profile {store.get(info.session).info.profile}; {store.url}"


def _metadata(document: str) -> dict[str, Any]:
    metadata = read_document("the metadata", document)
    if not isinstance(metadata, dict):
        raise InvalidInput("the metadata must be a JSON object", code="metadata_not_plain")
    return metadata


def _head(text: str) -> str:
    if not text.startswith("cp_"):
        raise InvalidInput(f"--expect-head takes an id or none, not {text!r}", code="invalid_ref")
    return text


# --- create ------------------------------------------------------------------------------------------------------

CREATE_EXAMPLE = """\
stepkeep create "After verifying Q4_0 dequant" --tag q4_0 --tag verified
stepkeep create "plan made" --session research-42 --state @state.json"""


@command("create", CREATE_EXAMPLE)
@click.argument("message")
@session_option("The session.  [default: $STEPKEEP_SESSION]")
@tag_option
@click.option(
    "--step",
    type=click.IntRange(min=0),
    metavar="N",
    help="Where the work stands.  [default: where it stood]",
)
@click.option(
    "--state", "document", metavar="@FILE|-|JSON", help="The state, as JSON.  [default: the latest one]"
)
@_encoding_option()
@workspace_option("Capture the project files in this directory too.")
def create(
    settings: CommonOptions,
    /,
    message: str,
    session_option: str | None,
    document: str | None,
    encoding: str,
    **given: Any,
) -> None:
    """Create a checkpoint by hand, with a MESSAGE.

    Without --state the latest state of the session is saved once more; a state that is given may begin a session.

    Without --session it is the most recent session of this folder, or of the nearest one above it; else one of the
    store that belongs to no other.
    Where nothing was saved yet, and no session is named, it begins a debugging session, named like the folder; see
    `investigate`.
    """
    state = None if document is None else _read_state(document, encoding)
    is_named = is_session_named(session_option)
    with opened(settings, create=is_named != (document is None)) as store:
        if document is None and not is_named and next(store.sessions(limit=1), None) is None:
            key = _folder_name()
            bug = store.investigation(store.session(key, profile="debug", workspace=given.get("workspace")))
            _show(settings, store, key, bug.checkpoint(message, given["tags"]), "Created")
            return
        key = chosen_session(store, None, session_option, changes=True, creates=True)
        if document is None:
            run = _existing(store, key)
            key, header = run.key, run.save_again(message, **given)
        else:
            header = store.save(key, state, message=message, trigger="manual", **given)
        _show(settings, store, key, header, "Created")


def _folder_name() -> str:
    from pathlib import Path

    try:
        return Path.cwd().name or "debugging"
    except OSError:  # it was removed under us
        return "debugging"


def _existing(store: api.Store, key: str) -> api.Session:
    try:
        return store.get(known(store, key))
    except NotFound:
        raise InvalidInput(
            f"session {key!r} has no state to save again: give one by --state", code="no_state", session=key
        ) from None


# --- JSON given on the command line, read exactly or refused -----------------------------------------------------


def _read_state(argument: str, encoding: str) -> Any:
    document = read_document("the state", argument)
    return document if encoding == "json" else api.decoded(encoding, document)


def read_document(what: str, argument: str) -> Any:
    """The value in `@FILE`, `-` (stdin) or the argument itself.

    Raises:
        InvalidInput: it cannot be read, is not JSON, or would change by being read.
    """
    if argument != "-" and not argument.startswith("@"):
        return read_json(what, argument)
    source = "stdin" if argument == "-" else argument[1:]
    try:
        data = sys.stdin.buffer.read() if argument == "-" else _content_of(source)
    except (OSError, ValueError) as exc:
        reason = getattr(exc, "strerror", None) or exc
        raise InvalidInput(f"{what}: cannot read {source!r}: {reason}", code="unreadable_file") from exc
    try:
        return read_json(what, data.decode("utf-8-sig"))
    except UnicodeDecodeError as exc:
        raise InvalidInput(
            f"{what}: {source} is not UTF-8 text: byte {exc.start} is 0x{data[exc.start]:02x}",
            code="invalid_json",
        ) from exc


def _content_of(name: str) -> bytes:
    with open(name, "rb") as file:  # noqa: PTH123  (without `pathlib`, whose import takes longer)
        return file.read()


def read_json(what: str, text: str) -> Any:
    """The value of a JSON text. What JSON leaves open is refused: repeated keys, NaN, numbers beyond a float."""

    def refuse(reason: str) -> NoReturn:
        raise InvalidInput(f"{what}: {reason}", code="invalid_json")

    def finite(literal: str) -> float:
        value = float(literal)
        if math.isinf(value):
            refuse(f"the number {_short(literal)} is too large for a float")
        return value

    def constant(name: str) -> NoReturn:
        refuse(f"{name} is not JSON; save it from Python, or as text")

    if (key := repeated_key(text)) is not None:
        refuse(occurs_twice(key))
    try:
        return json.loads(text, parse_float=finite, parse_constant=constant)
    except json.JSONDecodeError as exc:
        refuse(f"not JSON: {exc.msg} at line {exc.lineno}, column {exc.colno}")
    except InvalidInput:
        raise
    except ValueError:  # Python reads no number of so many digits
        literal = max(re.findall(r"-?\d+", text), key=len)
        refuse(f"the number {_short(literal)} has {len(literal)} digits, more than can be read")
    except RecursionError:
        raise InvalidInput(f"{what}: it is nested too deeply", code="state_too_deep") from None


def _short(text: str) -> str:
    return repr(shortened(text, 40))
