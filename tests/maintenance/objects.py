"""A real S3 server for tests, in a directory of its own, on this machine only."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path

KEY, SECRET = "tests", "not-a-secret"


def program() -> str | None:
    return shutil.which("weed", path=os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]))


class ObjectServer:
    """SeaweedFS. `environment` is what a client needs to reach it."""

    def __init__(self, folder: Path) -> None:
        words = program()
        assert words is not None
        identity = {"name": "tests", "credentials": [{"accessKey": KEY, "secretKey": SECRET}]}
        actions = ["Admin", "Read", "Write", "List"]
        config = folder / "s3.json"
        config.write_text(json.dumps({"identities": [{**identity, "actions": actions}]}))
        names = ("s3.port", "master.port", "volume.port", "filer.port")
        ports = dict(zip([*names, *(f"{name}.grpc" for name in names)], _free_ports(8), strict=True))
        self.port = ports["s3.port"]
        options = [f"-{name}={port}" for name, port in ports.items()]
        fixed = ["-ip=127.0.0.1", "-ip.bind=127.0.0.1", "-s3", f"-s3.config={config}", f"-dir={folder}"]
        quiet = ["-master.telemetry=false", "-s3.port.iceberg=0", "-s3.port.lance=0"]
        small = ["-volume.max=20", "-master.volumeSizeLimitMB=64"]
        with (folder / "log").open("wb") as log:
            self._process = subprocess.Popen(
                [words, "server", *fixed, *options, *quiet, *small],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=folder,
            )
        self.environment = {
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{self.port}",
            "AWS_ALLOW_HTTP": "true",
            "AWS_ACCESS_KEY_ID": KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET,
            "AWS_REGION": "us-east-1",
        }

    def wait(self) -> None:
        """Return when it stores something; a busy machine may take its time."""
        import obstore
        from obstore.store import S3Store

        store = S3Store(
            "bucket",
            endpoint=self.environment["AWS_ENDPOINT_URL"],
            access_key_id=KEY,
            secret_access_key=SECRET,
            region="us-east-1",
            client_options={"allow_http": True},
        )
        for _ in range(600):
            assert self._process.poll() is None, "the S3 server ended"
            try:
                obstore.put(store, "ready", b"")
            except obstore.exceptions.BaseError:
                time.sleep(0.2)
            else:
                return
        raise AssertionError("the S3 server does not answer")

    def stop(self) -> None:
        self._process.kill()  # nothing of it is kept
        self._process.wait()


def _free_ports(count: int) -> list[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    try:
        return [each.getsockname()[1] for each in sockets]
    finally:
        for each in sockets:
            each.close()
