"""`stepkeep create`."""

from __future__ import annotations

from pathlib import Path

import click

from stepkeep import operations
from stepkeep.api import Store
from stepkeep.cli.app import Command, Settings, settings_of
from stepkeep.cli.documents import read_document
from stepkeep.cli.files import workspace_option
from stepkeep.cli.naming import chosen_session, is_session_named, session_option
from stepkeep.cli.printing import clean, lines, size
from stepkeep.operations import CheckpointView, Chosen

EXAMPLE = """\
stepkeep create "After verifying Q4_0 dequant" --tags q4_0,verified
stepkeep create "plan made" --session research-42 --state @state.json"""


@click.command("create", cls=Command, example=EXAMPLE)
@click.argument("message")
@session_option("The session.  [default: $STEPKEEP_SESSION]")
@click.option("--tags", "tag_lists", multiple=True, metavar="A,B", help="Tags, separated by commas.")
@click.option("--step", type=int, help="Where the work stands.  [default: where it stood]")
@click.option(
    "--state", "document", metavar="@FILE|-|JSON", help="The state, as JSON.  [default: the latest one]"
)
@workspace_option("Capture the project files in this directory too.")
@settings_of
def create(
    settings: Settings,
    message: str,
    session_option: str | None,
    tag_lists: tuple[str, ...],
    step: int | None,
    document: str | None,
    workspace: str | None,
) -> None:
    """Create a checkpoint by hand, with a MESSAGE.

    Without --state the latest state of the session is saved once more; a state that is given may begin a session.

    Without --session it is the most recent session of this folder, or of the nearest one above it; else of the store.
    """
    tags = [tag.strip() for tags in tag_lists for tag in tags.split(",")]
    state = operations.NO_STATE if document is None else read_document("the state", document)
    begins = document is not None and is_session_named(session_option)
    with operations.open_store(settings.store, create=begins) as store:
        key = chosen_session(store, None, session_option, current=_session_here)
        created = operations.create(
            store, key, message, tags=tags, step=step, state=state, workspace=workspace
        )
    settings.show(created, _print)


def _session_here(store: Store) -> Chosen:
    try:
        folder = Path.cwd()
    except OSError:  # it was removed under us
        return operations.current_session(store)
    return operations.session_here(store, folder)


def _print(created: CheckpointView) -> None:
    step = "" if created.step is None else f", step {created.step}"
    place = f"#{created.seq} of {clean(created.session)}, {size(created.size_bytes)}{step}"
    lines([f"Created {created.id} ({place})"])


COMMANDS = {"create": create}
