"""`stepkeep mcp`."""

from __future__ import annotations

from functools import partial

import click

from stepkeep.cli.app import CommonOptions, command
from stepkeep.cli.serving import Access, address_given
from stepkeep.errors import driver_missing

DEFAULT_PORT = 8765
REMOTE = "{} would be open to other machines, without encryption: if that is meant, add --allow-remote"
EXAMPLE = """\
stepkeep mcp
stepkeep mcp --store sqlite:agents.db --project site
stepkeep mcp --http 127.0.0.1:8765"""


@command("mcp", EXAMPLE)
@click.option(
    "--http",
    "address",
    is_flag=False,
    flag_value="",
    metavar="[HOST:PORT]",
    help=f"Serve streamable HTTP instead of stdio.  [default: 127.0.0.1:{DEFAULT_PORT}]",
)
@click.option("--allow-remote", is_flag=True, help="Allow an address that is not loopback.")
@click.option("--allow-host", "names", multiple=True, metavar="NAME", help="A further name of this server.")
@click.option("--session", metavar="KEY", help="The session of calls that name none.")
@click.option("--project", metavar="NAME", help="The project of the sessions that are saved into.")
def mcp(
    settings: CommonOptions,
    address: str | None,
    allow_remote: bool,
    names: tuple[str, ...],
    session: str | None,
    project: str | None,
) -> None:
    """Serve checkpoints to agents by the Model Context Protocol, on stdin and stdout or over HTTP.

    Over HTTP every request needs a token: that of STEPKEEP_MCP_TOKEN, else a new one, printed on stderr.
    """
    try:  # it takes a second to load
        if address is None:
            if allow_remote or names:
                raise click.UsageError("--allow-remote and --allow-host go with --http.")
            from stepkeep.mcp.server import serve_stdio

            serve = partial(serve_stdio, settings.store)
        else:
            remote = None if allow_remote else REMOTE
            host, port = address_given("--http", address, default_port=DEFAULT_PORT, remote=remote)
            access = Access("STEPKEEP_MCP_TOKEN")
            from stepkeep.mcp.http import serve_http

            ready = partial(access.announce, "MCP server")
            serve = partial(
                serve_http, settings.store, host=host, port=port, token=access.token, names=names, ready=ready
            )
    except ModuleNotFoundError as exc:
        if (exc.name or "").startswith("stepkeep"):
            raise
        raise driver_missing("the MCP server", "mcp", exc) from exc
    serve(session=session, project=project)
