"""An ASGI application on a socket, behind the guard: what every HTTP server of ours is. Needs uvicorn and anyio."""

from __future__ import annotations

import json
import signal
import socket
import threading
from collections.abc import Awaitable, Callable, Iterator, MutableMapping
from contextlib import contextmanager
from typing import Any, Final, TypeAlias

from stepkeep.access import RESPONSE_HEADERS, Guard, Refusal, cannot_listen

Message: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Message]]
Send: TypeAlias = Callable[[Message], Awaitable[None]]
Application: TypeAlias = Callable[[Message, Receive, Send], Awaitable[None]]

_HEADERS: Final = [(name.lower().encode(), value.encode()) for name, value in RESPONSE_HEADERS.items()]


class GuardedApp:
    """Lets a request through if the guard does; nothing of its body is read before. There are no websockets."""

    def __init__(self, app: Application, guard: Guard) -> None:
        self._app = app
        self._guard = guard

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            header = header_of(scope)
            refused = self._guard.refusal(header)
            if refused is not None:
                await refuse(refused, send, as_text="text/html" in (header("Accept") or ""))
                return
            await self._app(scope, receive, with_headers(send))
        elif scope["type"] == "lifespan":
            await self._app(scope, receive, send)


def header_of(scope: Message) -> Callable[[str], str | None]:
    """How to ask for a header of a request; the first one of its name."""
    found: dict[str, str] = {}
    for name, value in scope["headers"]:
        found.setdefault(name.decode("latin-1").lower(), value.decode("latin-1"))
    return lambda name: found.get(name.lower())


def with_headers(send: Send) -> Send:
    """The same with the headers that every answer has; those that it has itself come first."""

    async def send_with_headers(message: Message) -> None:
        if message["type"] == "http.response.start":
            own = list(message.get("headers", ()))
            names = {name.lower() for name, _ in own}
            message["headers"] = [*own, *(each for each in _HEADERS if each[0] not in names)]
        await send(message)

    return send_with_headers


async def refuse(refusal: Refusal, send: Send, *, as_text: bool = False) -> None:
    """Answer with a refusal: as JSON, or as text for a person."""
    error = {"code": refusal.code, "message": refusal.message}
    body = f"{refusal.message}\n" if as_text else json.dumps({"error": error})
    kind = "text/plain; charset=utf-8" if as_text else "application/json"
    headers = [(b"content-type", kind.encode()), (b"content-length", str(len(body)).encode()), *_HEADERS]
    if refusal.status == 401:
        headers.append((b"www-authenticate", b"Bearer"))
    await send({"type": "http.response.start", "status": refusal.status, "headers": headers})
    await send({"type": "http.response.body", "body": body.encode()})


# --- listening -------------------------------------------------------------------------------------------------


def listen(host: str, port: int) -> socket.socket:
    """A socket that listens; port 0 is a free one.

    Raises:
        BackendUnavailable: the address cannot be listened on (`address_in_use`).
    """
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        return socket.create_server((host, port), family=family)
    except OSError as exc:
        raise cannot_listen(host, port, exc) from exc


def address_of(host: str, listening: socket.socket) -> tuple[str, int]:
    """The URL of a socket, without a path, and its port."""
    port = int(listening.getsockname()[1])
    return f"http://{f'[{host}]' if ':' in host else host}:{port}", port


def serve(app: Application, listening: socket.socket, *, grace_seconds: int | None = None) -> None:
    """Serve until interrupted. Answers under way are finished first, or are given so much time."""
    import anyio
    import uvicorn

    config = uvicorn.Config(
        app,
        log_level="warning",
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=grace_seconds,
    )
    with _ended_by_sigterm():
        anyio.run(uvicorn.Server(config).serve, [listening])


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
