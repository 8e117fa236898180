"""An ASGI application on a socket, behind the guard: what every HTTP server of ours is. Needs uvicorn and anyio."""

from __future__ import annotations

import asyncio
import json
import resource
import signal
import socket
import threading
from collections.abc import Awaitable, Callable, Iterator, MutableMapping
from contextlib import contextmanager
from typing import Any, Final, NamedTuple, TypeAlias

from stepkeep.access import RESPONSE_HEADERS, Guard, Refusal, cannot_listen

Message: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Message]]
Send: TypeAlias = Callable[[Message], Awaitable[None]]
Application: TypeAlias = Callable[[Message, Receive, Send], Awaitable[None]]

_HEADERS: Final = [(name.lower().encode(), value.encode()) for name, value in RESPONSE_HEADERS.items()]


class Limits(NamedTuple):
    """What a server bears. A client gets so much time for the head and for the body of a request; of more connections
    than are allowed, the one that has been idle for longest is closed."""

    connections: int = 512
    head_seconds: float = 10
    body_seconds: float = 60


LIMITS: Final = Limits()

_AT_ONCE: Final = 16
"""So many connections are accepted before it is looked at how many there are."""


class GuardedApp:
    """Lets a request through if the guard does; nothing of its body is read before. There are no websockets."""

    def __init__(self, app: Application, guard: Guard, limits: Limits = LIMITS) -> None:
        self._app = app
        self._guard = guard
        self._limits = limits

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            header = header_of(scope)
            refused = self._guard.refusal(header)
            if refused is not None:
                await refuse(refused, send, as_text="text/html" in (header("Accept") or ""))
                return
            await self._app(scope, within(self._limits.body_seconds, receive), with_headers(send))
        elif scope["type"] == "lifespan":
            await self._app(scope, receive, send)


def header_of(scope: Message) -> Callable[[str], str | None]:
    """How to ask for a header of a request; the first one of its name."""
    found: dict[str, str] = {}
    for name, value in scope["headers"]:
        found.setdefault(name.decode("latin-1").lower(), value.decode("latin-1"))
    return lambda name: found.get(name.lower())


def within(seconds: float, receive: Receive) -> Receive:
    """The same with a limit on the time for the body; one that takes longer ends as if the client had gone."""
    import anyio

    deadline = anyio.current_time() + seconds
    is_whole = False

    async def receive_in_time() -> Message:
        nonlocal is_whole
        if is_whole:  # it waits for the client to go
            return await receive()
        message: Message = {"type": "http.disconnect"}
        with anyio.move_on_after(max(0, deadline - anyio.current_time())):
            message = await receive()
        is_whole = not message.get("more_body")
        return message

    return receive_in_time


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
        listening = socket.create_server((host, port), family=family)
        # The connections inherit it. Without it the body of an answer waits for the other side to acknowledge the
        # headers, 40 ms each; asyncio sets it only on sockets that were made with their protocol named.
        listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return listening
    except OSError as exc:
        raise cannot_listen(host, port, exc) from exc


def address_of(host: str, listening: socket.socket) -> tuple[str, int]:
    """The URL of a socket, without a path, and its port."""
    port = int(listening.getsockname()[1])
    return f"http://{f'[{host}]' if ':' in host else host}:{port}", port


def serve(
    app: Application,
    listening: socket.socket,
    *,
    grace_seconds: int | None = None,
    limits: Limits = LIMITS,
) -> None:
    """Serve until interrupted. Answers under way are finished first, or are given so much time."""
    import anyio
    import uvicorn

    config = uvicorn.Config(
        app,
        http=_protocol(limits),
        backlog=_AT_ONCE,
        ws="none",
        log_level="warning",
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=grace_seconds,
    )
    with _ended_by_sigterm():
        anyio.run(uvicorn.Server(config).serve, [listening])


def _protocol(limits: Limits) -> type[asyncio.Protocol]:
    """HTTP/1.1 for a bounded number of connections, none of which may wait for ever in the middle of a head."""
    import h11
    from uvicorn.protocols.http.h11_impl import H11Protocol

    # Half of what the process may open is for the store and its own files.
    most = min(limits.connections, max(16, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 2))

    class BoundedProtocol(H11Protocol):
        _timer: asyncio.TimerHandle | None = None

        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            self._await_head()
            if len(self.connections) > most:
                # Who waits for longest has the earliest timer; the new one has one in any case.
                waiting = [
                    each for each in self.connections if isinstance(each, BoundedProtocol) and each._timer
                ]
                min(waiting, key=BoundedProtocol.waits_until).give_up()

        def waits_until(self) -> float:
            return 0 if self._timer is None else self._timer.when()

        def give_up(self) -> None:
            self._stop_timer()  # it is still among the connections for a moment
            self.transport.abort()

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            if self.conn.their_state is h11.IDLE:
                self._await_head()
            else:
                self._stop_timer()

        def on_response_complete(self) -> None:
            super().on_response_complete()
            if self.conn.their_state is h11.IDLE:
                self._await_head()

        def connection_lost(self, exc: Exception | None) -> None:
            self._stop_timer()
            super().connection_lost(exc)

        def _await_head(self) -> None:
            """Begin to wait, if that has not begun: further bytes of the same head give no more time."""
            if self._timer is None:
                self._timer = self.loop.call_later(limits.head_seconds, self.transport.abort)

        def _stop_timer(self) -> None:
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None

    return BoundedProtocol


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
