"""`stepkeep mcp`."""

from __future__ import annotations

from functools import partial
from importlib import import_module
from typing import Any

import click

from stepkeep.access import is_loopback, read_address
from stepkeep.cli.app import Command, Settings, settings_of
from stepkeep.cli.serving import Access
from stepkeep.errors import InvalidInput, Unsupported

DEFAULT_PORT = 8765
TOKEN = "STEPKEEP_MCP_TOKEN"
EXAMPLE = """\
stepkeep mcp
stepkeep mcp --store sqlite:agents.db --project site
stepkeep mcp --http 127.0.0.1:8765"""


@click.command("mcp", cls=Command, example=EXAMPLE)
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
@settings_of
def mcp(
    settings: Settings,
    address: str | None,
    allow_remote: bool,
    names: tuple[str, ...],
    session: str | None,
    project: str | None,
) -> None:
    """Serve checkpoints to agents by the Model Context Protocol, on stdin and stdout or over HTTP.

    Over HTTP every request needs a token: that of STEPKEEP_MCP_TOKEN, else a new one, printed on stderr.
    """
    if address is None:
        if allow_remote or names:
            raise click.UsageError("--allow-remote and --allow-host go with --http.")
        _surface("server").serve_stdio(settings.store, session=session, project=project)
        return
    host, port = _address(address, allow_remote)
    access = Access(TOKEN)
    _surface("http").serve_http(
        settings.store,
        host=host,
        port=port,
        token=access.token,
        names=names,
        session=session,
        project=project,
        ready=partial(access.announce, "MCP server"),
    )


def _address(text: str, allow_remote: bool) -> tuple[str, int]:
    try:
        host, port = read_address(text, default_port=DEFAULT_PORT)
    except ValueError as exc:
        raise InvalidInput(f"--http: {exc}", code="invalid_address") from None
    if not is_loopback(host) and not allow_remote:
        raise InvalidInput(
            f"--http {host} would be open to other machines, without encryption: if that is meant, add --allow-remote",
            code="invalid_address",
        )
    return host, port


def _surface(module: str) -> Any:
    """A module of the MCP surface, by name: surfaces do not import each other, and it takes a second to load."""
    try:
        return import_module(f"stepkeep.mcp.{module}")
    except ModuleNotFoundError as exc:
        if (exc.name or "").startswith("stepkeep"):
            raise
        raise Unsupported(
            f"the MCP server needs a package that is not installed ({exc.name}): pip install stepkeep[mcp]",
            code="extra_missing",
        ) from exc


COMMANDS = {"mcp": mcp}
