"""A real PgBouncer in front of a server: clients share connections, and get any of them for each transaction."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

import psycopg

from tests.memory import memory_folder
from tests.postgres.server import Server

PROGRAM = shutil.which("pgbouncer", path=f"{os.environ.get('PATH', '')}{os.pathsep}/usr/sbin")
_SETTINGS = """\
[databases]
* = host={server}
[pgbouncer]
pool_mode = transaction
default_pool_size = {size}
max_client_conn = 1000
listen_addr =
listen_port = 5432
unix_socket_dir = {folder}
auth_type = trust
auth_file = {folder}/users
logfile = {folder}/log
pidfile = {folder}/pid
"""


class PgBouncer:
    """Started when it is made, as its package comes: no prepared statements, no startup options. `stop` ends it."""

    def __init__(self, server: Server, *, size: int = 3) -> None:
        assert PROGRAM is not None, "there is no pgbouncer"
        self._server = server
        self.folder = Path(tempfile.mkdtemp(prefix="stepkeep-pool-", dir=memory_folder()))
        (self.folder / "users").write_text('"postgres" ""\n')
        settings = self.folder / "settings"
        settings.write_text(_SETTINGS.format(server=server.data, folder=self.folder, size=size))
        owner = server.data.stat()
        for path in (self.folder, *self.folder.iterdir()):
            os.chown(path, owner.st_uid, owner.st_gid)
        user: Mapping[str, int] = {"user": owner.st_uid, "group": owner.st_gid} if os.geteuid() == 0 else {}
        self._process = subprocess.Popen(
            [PROGRAM, "--quiet", settings],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            extra_groups=[] if user else None,
            **user,  # type: ignore[arg-type]
        )
        try:
            self._wait()
        except BaseException:
            self.stop()
            raise

    def _wait(self) -> None:
        while self._process.poll() is None:
            try:
                psycopg.connect(host=str(self.folder), user="postgres", dbname="postgres").close()
            except psycopg.OperationalError:
                time.sleep(0.01)
            else:
                return
        raise AssertionError((self.folder / "log").read_text())

    def url(self, url: str) -> str:
        """The URL of the same store through the pooler."""
        return url.replace(str(self._server.data), str(self.folder))

    def stop(self) -> None:
        self._process.kill()
        self._process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)
