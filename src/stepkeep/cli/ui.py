"""`stepkeep ui`."""

from __future__ import annotations

from collections.abc import Callable

import click

from stepkeep.cli.app import CommonOptions, command
from stepkeep.cli.naming import opened
from stepkeep.cli.printing import lines
from stepkeep.errors import driver_missing

EXAMPLE = """\
stepkeep ui
stepkeep ui --store sqlite:agents.db --allow-changes
stepkeep ui --port 8080 --no-open"""


@command("ui", EXAMPLE)
@click.option(
    "--port", type=click.IntRange(0, 65535), default=0, metavar="N", help="Port.  [default: a free one]"
)
@click.option("--allow-changes", is_flag=True, help="Let the pages change something, not only show it.")
@click.option("--no-open", is_flag=True, help="Only print the address, open no browser.")
def ui(settings: CommonOptions, port: int, allow_changes: bool, no_open: bool) -> None:
    """Show the sessions of a store in the browser: timelines, states, differences, runs, live.

    Listens on this machine only. The address that is printed opens the pages once, in one browser. Every action of the
    pages shows the command that does the same; without --allow-changes that is all it does.
    """
    try:  # takes a while to load
        from stepkeep.web.server import serve_ui
    except ModuleNotFoundError as exc:
        if (exc.name or "").startswith("stepkeep"):
            raise
        raise driver_missing("the server of the pages", "web", exc) from exc

    def ready(new_address: Callable[[], str]) -> None:
        lines([new_address()])
        if not no_open:
            import webbrowser

            webbrowser.open(new_address())

    with opened(settings) as store:
        serve_ui(store, port=port, allows_changes=allow_changes, ready=ready)
