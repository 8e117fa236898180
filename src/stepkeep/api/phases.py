"""Opening the store of phases by its folder."""

from __future__ import annotations

import os
from collections.abc import Callable

from stepkeep.engine import Engine
from stepkeep.lifecycle.phases import Phases, resolve_checkpoints_dir
from stepkeep.model import utc_now_us

VARIABLE = "STEPKEEP_PHASES"
"""The environment variable that names the folder to use instead of `~/.pai`."""


def open_phases(
    directory: str | os.PathLike[str] | None = None,
    *,
    expects_seed: bool = False,
    clock: Callable[[], int] = utc_now_us,
) -> Phases:
    """Open the phase checkpoints in a folder, creating them if need be. Use it as a context manager.

    The documents lie in `checkpoints` inside the folder, `seed.json` and `events` beside that. Without a folder it
    is that of `STEPKEEP_PHASES` in the environment, then `~/.pai`. With `expects_seed` a `seed.json` that never was
    there is reported as missing too.
    """
    from stepkeep.storage.files import FilesBackend

    override = os.environ.get(VARIABLE) or None if directory is None else directory
    home = resolve_checkpoints_dir(override).absolute().parent
    engine = Engine(FilesBackend(home, layout="phase", clock=clock), clock=clock)
    return Phases(engine, home=home, expects_seed=expects_seed, owns_engine=True)
