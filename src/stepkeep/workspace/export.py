"""The files of a checkpoint as a tar archive."""

from __future__ import annotations

import io
import os
from typing import IO

from stepkeep.engine import Engine
from stepkeep.model import Header
from stepkeep.workspace.known import load_manifest
from stepkeep.workspace.names import PathFilter
from stepkeep.workspace.recorded import content_of


def write_tar(engine: Engine, header: Header, output: IO[bytes], wanted: PathFilter) -> tuple[int, int]:
    """Write the captured files, sorted, with permissions and links; how many, and their bytes.

    The same checkpoint gives the same bytes: no owners, and the time of the checkpoint for every file.

    Raises:
        Corrupt: a file is damaged; what was written so far is no whole archive.
    """
    import tarfile  # only who exports pays for it

    files = size = 0
    with tarfile.open(fileobj=output, mode="w|", format=tarfile.PAX_FORMAT) as archive:
        for entry in load_manifest(engine, header).entries:
            if entry.path not in wanted:
                continue
            # tarfile writes names as UTF-8 with the bytes that are none escaped: exactly what `fsdecode` gives.
            info = tarfile.TarInfo(entry.path)
            info.mtime = header.time_us // 1_000_000
            info.mode = 0o777 if entry.is_link else entry.mode & 0o777
            content = content_of(engine, entry)
            if entry.is_link:
                info.type, info.linkname = tarfile.SYMTYPE, os.fsdecode(content)
                archive.addfile(info)
            else:
                info.size = len(content)
                archive.addfile(info, io.BytesIO(content))
            files, size = files + 1, size + len(content)
    return files, size
