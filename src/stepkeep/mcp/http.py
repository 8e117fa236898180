"""Streamable HTTP: on loopback unless told otherwise, for whoever has the token and comes from no foreign page."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Final

from mcp.server.transport_security import TransportSecuritySettings

from stepkeep.access import LOOPBACK, Guard
from stepkeep.guarded_server import Application, GuardedApp, Message, Receive, Send, address_of, listen, serve
from stepkeep.mcp.server import build_server, noted_request
from stepkeep.mcp.tools import OpenedStore

PATH: Final = "/mcp"
MAX_BODY_BYTES: Final = 16 * 1024 * 1024

MAX_SESSIONS: Final = 1000
SESSION_SECONDS: Final = 15 * 60
"""Clients at a time, each of which takes some 40 KB, and how long one is remembered that says nothing."""


class NotedRequests:
    """Hands on requests with what is noted about their bodies."""

    def __init__(self, app: Application) -> None:
        self._app = app

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        is_post = scope["type"] == "http" and scope["method"] == "POST"
        await self._app(scope, await _noted(receive) if is_post else receive, send)


async def _noted(receive: Receive) -> Receive:
    """Gives the same body, without half characters in it, and with notes."""
    message, body, size = await receive(), list[bytes](), 0
    while message["type"] == "http.request":
        body.append(message.get("body", b""))
        size += len(body[-1])
        if not message.get("more_body") or size > MAX_BODY_BYTES:
            whole = b"".join(body)
            message = {**message, "body": noted_request(whole) or whole}
            break
        message = await receive()
    first = [message]

    async def replay() -> Message:
        return first.pop() if first else await receive()

    return replay


def serve_http(
    url: str | None,
    *,
    host: str,
    port: int,
    token: str,
    names: Collection[str] = (),
    session: str | None = None,
    project: str | None = None,
    ready: Callable[[str], None] = lambda _: None,
) -> None:
    """Serve until interrupted. `names` are further names under which this server may be called.

    `ready` gets the address once connections are accepted; with port 0 it is a free one.

    Raises:
        BackendUnavailable: the address cannot be listened on (`address_in_use`).
    """
    opened = OpenedStore(url)
    listening = listen(host, port)
    try:
        address, bound = address_of(host, listening)
        app = build_server(opened, session=session, project=project).streamable_http_app(
            streamable_http_path=PATH,
            max_request_body_size=MAX_BODY_BYTES,
            max_sessions=MAX_SESSIONS,
            session_idle_timeout=SESSION_SECONDS,
            # The guard looks at Host and Origin already, and knows the further names.
            transport_security=TransportSecuritySettings(enable_dns_rebinding_protection=False),
        )
        # Whoever comes through a proxy by a further name comes by its port.
        guard = Guard(token=token, names={*LOOPBACK, host, *names}, port=None if names else bound)
        ready(f"{address}{PATH}")
        serve(GuardedApp(NotedRequests(app), guard), listening)
    finally:
        listening.close()
        opened.close()
