"""A small HTTP server for Prometheus: one page, on loopback, for whoever has the token."""

from __future__ import annotations

import logging
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from stepkeep.access import LOOPBACK, has_token, is_known_host, is_known_origin
from stepkeep.errors import BackendUnavailable, StepkeepError

log = logging.getLogger("stepkeep")

PATH = "/metrics"
TEXT = "text/plain; version=0.0.4; charset=utf-8"


def serve(
    page: Callable[[], str], host: str, port: int, token: str, ready: Callable[[str], None] = lambda _: None
) -> None:
    """Serve the page until interrupted; `ready` gets its address.

    Raises:
        BackendUnavailable: the address cannot be listened on (`address_in_use`).
    """
    try:
        server = ThreadingHTTPServer((host, port), _handler(page, token))
    except OSError as exc:
        raise BackendUnavailable(
            f"cannot listen on {host} port {port}: {exc.strerror or exc}",
            code="address_in_use",
            retryable=False,
        ) from exc
    server.daemon_threads = True
    with server:
        ready(f"http://{host}:{server.server_port}{PATH}")
        server.serve_forever()


def _handler(page: Callable[[], str], token: str) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        server_version = "stepkeep"
        sys_version = ""
        timeout = 10

        def do_GET(self) -> None:
            status, text = self._answer()
            body = text.encode()
            self.send_response(status)
            self.send_header("Content-Type", TEXT)
            self.send_header("Content-Length", str(len(body)))
            if status == 401:
                self.send_header("WWW-Authenticate", "Bearer")
            self.end_headers()
            self.wfile.write(body)

        def _answer(self) -> tuple[int, str]:
            _, port, *_ = self.connection.getsockname()
            if not is_known_host(self.headers.get("Host"), names=LOOPBACK, port=port):
                return 421, "foreign_host\n"
            if not is_known_origin(self.headers.get("Origin"), names=LOOPBACK):
                return 403, "foreign_origin\n"
            if not has_token(self.headers.get("Authorization"), token):
                return 401, "token_needed\n"
            if self.path.partition("?")[0] != PATH:
                return 404, f"not_found: {PATH}\n"
            try:
                return 200, page()
            except StepkeepError as exc:
                return 503, f"{exc.code}\n"

        def log_message(self, format: str, *args: Any) -> None:
            log.debug(format, *args)

    return Handler
