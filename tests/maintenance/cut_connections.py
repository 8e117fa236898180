"""A TCP proxy on loopback that cuts connections, as a bad network does."""

from __future__ import annotations

import socket
import struct
import threading
from contextlib import suppress
from typing import Final

_METHODS: Final = (b"GET ", b"PUT ", b"POST", b"DELE", b"HEAD")
_AT_ONCE: Final = struct.pack("ii", 1, 0)


class CuttingProxy:
    """Passes everything on to a port, but for what it cuts.

    With `every_bytes` the connection that reaches each multiple of it is cut in the middle, whichever way the bytes go.
    With `every_request` each so-manieth request reaches the server, and its answer is lost. After `last_request` none
    reaches it any more.
    """

    def __init__(
        self, port: int, *, every_bytes: int = 0, every_request: int = 0, last_request: int = 0
    ) -> None:
        self._upstream, self._last_request = port, last_request
        self._every_bytes, self._every_request = every_bytes, every_request
        self._bytes = self._requests = 0
        self.cuts = 0
        self._lock = threading.Lock()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def __enter__(self) -> CuttingProxy:
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                server = socket.create_connection(("127.0.0.1", self._upstream))
                answered = threading.Event()  # set when its answers are to be lost
                for source, target, is_request in ((client, server, True), (server, client, False)):
                    threading.Thread(
                        target=self._pass, args=(source, target, is_request, answered), daemon=True
                    ).start()

    def _pass(
        self, source: socket.socket, target: socket.socket, is_request: bool, is_lost: threading.Event
    ) -> None:
        with suppress(OSError):
            while chunk := source.recv(65536):
                if is_request and self._is_chosen(chunk):
                    is_lost.set()
                if self._last_request and self._requests > self._last_request:
                    break
                passed = 0 if is_lost.is_set() and not is_request else self._allowed(len(chunk))
                target.sendall(chunk[:passed])
                if passed < len(chunk):
                    break
        for each in (source, target):
            with suppress(OSError):
                each.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _AT_ONCE)
                each.shutdown(socket.SHUT_RDWR)
            each.close()

    def _is_chosen(self, chunk: bytes) -> bool:
        if chunk[:4] not in _METHODS:
            return False
        with self._lock:
            self._requests += 1
            is_chosen = bool(self._every_request) and self._requests % self._every_request == 0
            self.cuts += is_chosen
            return is_chosen

    def _allowed(self, size: int) -> int:
        """How many of the next bytes pass."""
        if not self._every_bytes:
            return size
        with self._lock:
            left = self._every_bytes - self._bytes % self._every_bytes
            self._bytes += min(size, left)
            self.cuts += left <= size
            return min(size, left) - (left == size)
