"""Where the tests keep their files: in memory, where there is enough of it."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

MEMORY = Path("/dev/shm")


def memory_folder() -> Path | None:
    """A file system in memory, on which a sync costs nothing: no test takes the power from the machine."""
    is_large = MEMORY.is_dir() and os.access(MEMORY, os.W_OK) and shutil.disk_usage(MEMORY).free > 2**30
    return MEMORY if is_large else None
