"""Streamable HTTP: on loopback unless told otherwise, for whoever has the token and comes from no foreign page."""

from __future__ import annotations

import signal
import socket
import threading
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from typing import Final

import anyio
import uvicorn
from mcp.server.transport_security import TransportSecuritySettings
from starlette.datastructures import Headers
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from stepkeep.access import LOOPBACK, cannot_listen, refusal
from stepkeep.mcp.server import build_server
from stepkeep.mcp.tools import OpenedStore

PATH: Final = "/mcp"
MAX_BODY_BYTES: Final = 16 * 1024 * 1024


class AccessGuard:
    """Lets a request through if Host, Origin and token are right; nothing of its body is read before."""

    def __init__(self, app: ASGIApp, *, token: str, names: Collection[str], port: int | None) -> None:
        self._app = app
        self._token = token
        self._names = frozenset(names)
        self._port = port

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            header = Headers(scope=scope).get
            refused = refusal(header, token=self._token, names=self._names, port=self._port)
            if refused is not None:
                await _answer(*refused)(scope, receive, send)
                return
        elif scope["type"] != "lifespan":
            return  # no websockets here
        await self._app(scope, receive, send)


def _answer(status: int, code: str, message: str) -> JSONResponse:
    headers = {"WWW-Authenticate": "Bearer"} if status == 401 else None
    return JSONResponse({"error": {"code": code, "message": message}}, status_code=status, headers=headers)


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
    listening = _listen(host, port)
    try:
        bound = int(listening.getsockname()[1])
        app = build_server(opened, session=session, project=project).streamable_http_app(
            streamable_http_path=PATH,
            max_request_body_size=MAX_BODY_BYTES,
            # The guard looks at Host and Origin already, and knows the further names.
            transport_security=TransportSecuritySettings(enable_dns_rebinding_protection=False),
        )
        # Whoever comes through a proxy by a further name comes by its port.
        guard = AccessGuard(app, token=token, names={*LOOPBACK, host, *names}, port=None if names else bound)
        config = uvicorn.Config(guard, log_level="warning", access_log=False, server_header=False)
        ready(f"http://{f'[{host}]' if ':' in host else host}:{bound}{PATH}")
        with _ended_by_sigterm():
            anyio.run(uvicorn.Server(config).serve, [listening])
    finally:
        listening.close()
        opened.close()


@contextmanager
def _ended_by_sigterm() -> Iterator[None]:
    """Let a polite stop come through as an exception: the server repeats it once it has shut down, and without this
    the process would end there, with the store still open."""

    def end(_number: int, _frame: object) -> None:
        raise SystemExit(0)

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _listen(host: str, port: int) -> socket.socket:
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        return socket.create_server((host, port), family=family)
    except OSError as exc:
        raise cannot_listen(host, port, exc) from exc
