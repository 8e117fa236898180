"""New stores for the plugins of this folder, which put our adapter in the place of a framework's own store.

`./dev interop` names one with `-p`. What a test helper of the framework's store offers beside its interface is offered
here too, on top of the public interface; private fields are not.
"""

from __future__ import annotations

import atexit
import itertools
import shutil
import tempfile
from functools import cache
from pathlib import Path

_numbers = itertools.count(1)


@cache
def _folder() -> Path:
    folder = Path(tempfile.mkdtemp(prefix="stepkeep-interop-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def fresh_url() -> str:
    """A store that nobody used yet."""
    return f"sqlite:{_folder()}/{next(_numbers)}.db"
