"""A transaction pooler: clients share connections to the server, and get any of them for each transaction."""

from __future__ import annotations

import selectors
import socket
import struct
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_SOCKET = ".s.PGSQL.5432"
_SSL_REQUEST, _GSS_REQUEST = 80877103, 80877104


class Pooler:
    """Listens in a directory of its own. Connections go round, so that hardly anyone gets the same one twice."""

    def __init__(self, server: Path, folder: Path, size: int) -> None:
        self.folder = folder
        self._server = server
        self.size = size
        self._greeting = b""
        self._made: list[socket.socket] = []
        self._idle: deque[socket.socket] = deque()
        self._changed = threading.Condition()
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(folder / _SOCKET))
        self._listener.listen()

    @classmethod
    @contextmanager
    def started(cls, server: Path, folder: Path, *, size: int = 2) -> Iterator[Pooler]:
        pooler = cls(server, folder, size)
        threading.Thread(target=pooler._accept, daemon=True).start()
        try:
            yield pooler
        finally:
            for each in (pooler._listener, *pooler._made):
                with suppress(OSError):
                    each.shutdown(socket.SHUT_RDWR)
                each.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with client, suppress(OSError):
            startup = _startup(client)
            if startup is None:
                return
            while len(self._made) < self.size:
                self._connect(startup)
            client.sendall(self._greeting)
            while self._transaction(client):
                pass

    def _connect(self, startup: bytes) -> None:
        """Make one more connection to the server, and keep what it said, for all clients, with another process id."""
        server = socket.socket(socket.AF_UNIX)
        server.connect(str(self._server / _SOCKET))
        server.sendall(startup)
        said = b""
        while True:
            kind, body = _message(server)
            if kind == b"K":
                body = struct.pack("!II", 1, 1)
            said += kind + struct.pack("!I", len(body) + 4) + body
            if kind == b"Z":
                self._made.append(server)
                self._give_back(server)
                self._greeting = said
                return

    def _transaction(self, client: socket.socket) -> bool:
        """Wait for a client, and lend it a connection until its transaction ends; False when it leaves."""
        kind, body = _message(client)
        if kind in (b"", b"X"):
            return False
        with self._changed:
            self._changed.wait_for(lambda: bool(self._idle))
            server = self._idle.popleft()
        waiting = _forward(server, kind, body)
        status = b""
        with selectors.DefaultSelector() as ready:
            ready.register(client, selectors.EVENT_READ)
            ready.register(server, selectors.EVENT_READ)
            while waiting or status != b"I":
                for key, _ in ready.select():
                    kind, body = _message(key.fileobj)  # type: ignore[arg-type]
                    if kind == b"":
                        return False
                    if key.fileobj is client:
                        waiting += _forward(server, kind, body)
                        continue
                    _forward(client, kind, body)
                    if kind == b"Z":
                        waiting -= 1
                        status = body
        self._give_back(server)
        return True

    def _give_back(self, server: socket.socket) -> None:
        with self._changed:
            self._idle.append(server)
            self._changed.notify()


def _startup(client: socket.socket) -> bytes | None:
    """What a client begins with; it is refused encryption."""
    while True:
        head = _exactly(client, 8)
        if not head:
            return None
        length, code = struct.unpack("!II", head)
        if code not in (_SSL_REQUEST, _GSS_REQUEST):
            return head + _exactly(client, length - 8)
        client.sendall(b"N")


def _forward(to: socket.socket, kind: bytes, body: bytes) -> int:
    """Send a message on; 1 if the server answers it by being ready."""
    to.sendall(kind + struct.pack("!I", len(body) + 4) + body)
    return int(kind in (b"S", b"Q"))


def _message(source: socket.socket) -> tuple[bytes, bytes]:
    """One message; an empty kind when the other side left."""
    head = _exactly(source, 5)
    if not head:
        return b"", b""
    (length,) = struct.unpack("!I", head[1:])
    return head[:1], _exactly(source, length - 4)


def _exactly(source: socket.socket, size: int) -> bytes:
    data = bytearray()
    while len(data) < size:
        part = source.recv(size - len(data))
        if not part:
            return b""
        data += part
    return bytes(data)
