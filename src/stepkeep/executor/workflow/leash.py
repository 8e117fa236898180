"""No process outlives its runner: not even when the runner is killed in a way it cannot notice.

A small shell waits at the end of a pipe and is told of every process group that starts and ends. When the runner
goes, for whatever reason, the pipe ends, and the shell kills the groups that are left. So a resumed workflow never
works beside a forgotten half of itself.
"""

from __future__ import annotations

import os
import subprocess
import threading
from contextlib import suppress
from types import TracebackType
from typing import Final

_WAIT: Final = """
groups=' '
while read -r verb group; do
  case $verb in
    add) groups="$groups$group " ;;
    end) groups="${groups%% "$group" *} ${groups#* "$group" }" ;;
  esac
done
for group in $groups; do kill -KILL "-$group"; done
"""


class Leash:
    """Holds process groups from `with` to its end. Safe for threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._shell: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Leash:
        # A session of its own, so that Ctrl-C on the terminal does not reach it before us.
        self._shell = subprocess.Popen(
            ["/bin/sh", "-c", _WAIT],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            cwd="/",
            env={"PATH": os.defpath},
        )
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        shell = self._shell
        if shell is not None and shell.stdin is not None:
            with suppress(OSError):
                shell.stdin.close()
            shell.wait()

    def add(self, group: int) -> None:
        self._tell(f"add {group}\n")

    def end(self, group: int) -> None:
        self._tell(f"end {group}\n")

    def _tell(self, line: str) -> None:
        shell = self._shell
        if shell is None or shell.stdin is None:
            return
        with self._lock, suppress(OSError):  # a shell that was killed guards nothing more, and stops nothing
            shell.stdin.write(line.encode())
            shell.stdin.flush()
