"""`stepkeep save` and `stepkeep create`."""

from __future__ import annotations

import json
import math
import re
import sys
from pathlib import Path
from typing import Any, NoReturn

import click

from stepkeep import api
from stepkeep.api import Chosen, SaveOptions, Session, Store
from stepkeep.cli.app import CommonOptions, command
from stepkeep.cli.naming import (
    Words,
    chosen_session,
    is_session_named,
    on_session,
    session_option,
    workspace_option,
)
from stepkeep.cli.printing import json_document, lines
from stepkeep.errors import InvalidInput, NotFound
from stepkeep.model import Header, Status
from stepkeep.text import clean, shortened, size

EXAMPLE = """\
stepkeep save research-42 --state '{"query": "tides"}' --step 1
stepkeep save research-42 --state @state.json --tags plan,verified
make-state | stepkeep save research-42 --state -"""


@command("save", EXAMPLE)
@on_session()
@click.option("--state", "document", required=True, metavar="@FILE|-|JSON", help="The state, as JSON.")
@click.option("--step", type=int, help="Where the work stands.")
@click.option("--message", default="", help="What was done.")
@click.option("--tags", "tag_lists", multiple=True, metavar="A,B", help="Tags, separated by commas.")
@click.option(
    "--status",
    type=click.Choice([status.value for status in Status]),
    help="Also becomes the session's status.",
)
@click.option("--auto/--manual", "is_auto", default=True, help="Why it is saved.  [default: auto]")
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
    tag_lists: tuple[str, ...],
    status: str | None,
    is_auto: bool,
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
    options = SaveOptions(
        tags=_tags(tag_lists),
        trigger="auto" if is_auto else "manual",
        metadata=None if metadata_document is None else _metadata(metadata_document),
        status=Status(status or Status.IN_PROGRESS),
    )
    if expect_head is not None:
        options["expect_head"] = None if expect_head == "none" else _head(expect_head)
    state = _read_document("the state", document)
    with api.open(settings.store) as store:
        header = store.save(key, state, **options, **given)
        _show(settings, store, key, header, "Saved")


def _tags(lists: tuple[str, ...]) -> list[str]:
    return [tag.strip() for tags in lists for tag in tags.split(",")]


def _show(settings: CommonOptions, store: Store, key: str, header: Header, verb: str) -> None:
    """What was saved: as JSON all of it, also what it takes in the store."""
    if settings.json:
        json_document(store.describe([header])[0])
        return
    step = "" if header.step is None else f", step {header.step}"
    what = f"#{header.seq} of {clean(key)}, {size(header.size_bytes)}{step}"
    lines([f"{verb} {header.id} ({what})"])


def _metadata(document: str) -> dict[str, Any]:
    metadata = _read_document("the metadata", document)
    if not isinstance(metadata, dict):
        raise InvalidInput("the metadata must be a JSON object", code="metadata_not_plain")
    return metadata


def _head(text: str) -> str:
    if not text.startswith("cp_"):
        raise InvalidInput(f"--expect-head takes an id or none, not {text!r}", code="invalid_ref")
    return text


# --- create ------------------------------------------------------------------------------------------------------

CREATE_EXAMPLE = """\
stepkeep create "After verifying Q4_0 dequant" --tags q4_0,verified
stepkeep create "plan made" --session research-42 --state @state.json"""


@command("create", CREATE_EXAMPLE)
@click.argument("message")
@session_option("The session.  [default: $STEPKEEP_SESSION]")
@click.option("--tags", "tag_lists", multiple=True, metavar="A,B", help="Tags, separated by commas.")
@click.option("--step", type=int, help="Where the work stands.  [default: where it stood]")
@click.option(
    "--state", "document", metavar="@FILE|-|JSON", help="The state, as JSON.  [default: the latest one]"
)
@workspace_option("Capture the project files in this directory too.")
def create(
    settings: CommonOptions,
    /,
    message: str,
    session_option: str | None,
    tag_lists: tuple[str, ...],
    document: str | None,
    **given: Any,
) -> None:
    """Create a checkpoint by hand, with a MESSAGE.

    Without --state the latest state of the session is saved once more; a state that is given may begin a session.

    Without --session it is the most recent session of this folder, or of the nearest one above it; else of the store.
    """
    given["tags"] = _tags(tag_lists)
    state = None if document is None else _read_document("the state", document)
    begins = document is not None and is_session_named(session_option)
    with api.open(settings.store, create=begins) as store:
        key = chosen_session(store, None, session_option, current=_session_here)
        if document is None:
            header = _existing(store, key).save_again(message, **given)
        else:
            header = store.save(key, state, message=message, trigger="manual", **given)
        _show(settings, store, key, header, "Created")


def _existing(store: Store, key: str) -> Session:
    try:
        return store.get(key)
    except NotFound:
        raise InvalidInput(
            f"session {key!r} has no state to save again: give one by --state", code="no_state", session=key
        ) from None


def _session_here(store: Store) -> Chosen:
    try:
        folder = Path.cwd()
    except OSError:  # it was removed under us
        return api.current_session(store)
    return api.session_here(store, folder)


# --- JSON given on the command line, read exactly or refused -----------------------------------------------------


def _read_document(what: str, argument: str) -> Any:
    """The value in `@FILE`, `-` (stdin) or the argument itself.

    Raises:
        InvalidInput: it cannot be read, is not JSON, or would change by being read.
    """
    if argument != "-" and not argument.startswith("@"):
        return read_json(what, argument)
    source = "stdin" if argument == "-" else argument[1:]
    try:
        data = sys.stdin.buffer.read() if argument == "-" else Path(source).read_bytes()
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


def read_json(what: str, text: str) -> Any:
    """The value of a JSON text. What JSON leaves open is refused: repeated keys, NaN, numbers beyond a float."""

    def refuse(reason: str) -> NoReturn:
        raise InvalidInput(f"{what}: {reason}", code="invalid_json")

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        values = dict(pairs)
        if len(values) < len(pairs):
            seen: set[str] = set()
            repeated = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
            refuse(f"the key {_short(repeated)} occurs twice in one object")
        return values

    def finite(literal: str) -> float:
        value = float(literal)
        if math.isinf(value):
            refuse(f"the number {_short(literal)} is too large for a float")
        return value

    def constant(name: str) -> NoReturn:
        refuse(f"{name} is not JSON; save it from Python, or as text")

    try:
        return json.loads(text, object_pairs_hook=unique, parse_float=finite, parse_constant=constant)
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
