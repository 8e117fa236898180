"""What commands that serve have in common, where they listen and who gets in, and the page that `stats` serves."""

from __future__ import annotations

import os
import re
import secrets
import socket
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final

from stepkeep.access import RESPONSE_HEADERS, Guard, cannot_listen, is_loopback, read_address
from stepkeep.cli.printing import note
from stepkeep.errors import InvalidInput, StepkeepError
from stepkeep.logs import Log

log = Log("stepkeep")

METRICS_PATH: Final = "/metrics"
HEALTH_PATH: Final = "/healthz"
MAX_CLIENTS: Final = 32
CLIENT_SECONDS: Final = 10
_TEXT: Final = "text/plain; version=0.0.4; charset=utf-8"
_TOKEN: Final = re.compile(r"[!-~]+")


def address_given(option: str, text: str, *, default_port: int, remote: str | None) -> tuple[str, int]:
    """Host and port that an option names.

    `remote` says why an address is refused that is not loopback, with the host for `{}`; None allows it.

    Raises:
        InvalidInput: there is no such address, or it is refused (`invalid_address`).
    """
    try:
        host, port = read_address(text, default_port=default_port)
    except ValueError as exc:
        raise InvalidInput(f"{option}: {exc}", code="invalid_address") from None
    if remote is not None and not is_loopback(host):
        raise InvalidInput(f"{option} {remote.format(host)}", code="invalid_address")
    return host, port


class Access:
    """The token of a server: that of a variable of the environment, else a new one.

    Raises:
        InvalidInput: the variable holds something that no header can carry (`invalid_token`).
    """

    def __init__(self, variable: str) -> None:
        self._variable = variable
        self._given = os.environ.get(variable) or None
        if self._given is not None and _TOKEN.fullmatch(self._given) is None:
            raise InvalidInput(
                f"{variable} must be ASCII text without blanks: a header carries it", code="invalid_token"
            )
        self.token = self._given or secrets.token_urlsafe(32)

    def announce(self, what: str, url: str) -> None:
        """Say on stderr where the server is, and a new token; one that was given is not repeated."""
        note(f"{what} at {url}")
        note(f"token: that of {self._variable}" if self._given else f"token: {self.token}")


def serve_metrics(page: Callable[[], str], host: str, port: int, access: Access) -> None:
    """Serve one page for Prometheus until interrupted, to whoever has the token.

    Whether the store answers is told to everyone on this machine, in one word: who restarts programs has no token.

    Raises:
        BackendUnavailable: the address cannot be listened on (`address_in_use`).
    """
    try:
        server = _BoundedServer((host, port), _handler(page, access.token))
    except OSError as exc:
        raise cannot_listen(host, port, exc) from exc
    with server:
        access.announce("metrics", f"http://{host}:{server.server_port}{METRICS_PATH}")
        server.serve_forever()


class _BoundedServer(ThreadingHTTPServer):
    """Answers a few at a time, and gives none of them longer than a scrape takes."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._room = threading.BoundedSemaphore(MAX_CLIENTS)

    def process_request(self, request: Any, client_address: Any) -> None:
        if self._room.acquire(blocking=False):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        timer = threading.Timer(CLIENT_SECONDS, _hang_up, (request,))
        timer.daemon = True
        timer.start()
        try:
            super().process_request_thread(request, client_address)
        finally:
            timer.cancel()
            self._room.release()

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ARG002
        log.debug("a client of the metrics went away: %r", sys.exception())


def _hang_up(connection: socket.socket) -> None:
    with suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)


def _handler(page: Callable[[], str], token: str) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        server_version = "stepkeep"
        sys_version = ""
        timeout = CLIENT_SECONDS

        def do_GET(self) -> None:
            status, text = self._answer()
            body = text.encode()
            self.send_response(status)
            self.send_header("Content-Type", _TEXT)
            self.send_header("Content-Length", str(len(body)))
            for name, value in RESPONSE_HEADERS.items():
                self.send_header(name, value)
            if status == 401:
                self.send_header("WWW-Authenticate", "Bearer")
            self.end_headers()
            self.wfile.write(body)

        def _answer(self) -> tuple[int, str]:
            _, port, *_ = self.connection.getsockname()
            guard = Guard(token=token, port=port)
            path = self.path.partition("?")[0]
            is_health = path == HEALTH_PATH
            refused = guard.foreign_host(self.headers.get) if is_health else guard.refusal(self.headers.get)
            if refused:
                return refused.status, f"{refused.code}\n"
            if path not in (METRICS_PATH, HEALTH_PATH):
                return 404, f"not_found: {METRICS_PATH}, {HEALTH_PATH}\n"
            try:
                text = page()
            except StepkeepError as exc:
                return 503, f"{exc.code}\n"
            return 200, "ok\n" if is_health else text

        def log_message(self, format: str, *args: Any) -> None:
            log.debug(format, *args)

    return Handler
