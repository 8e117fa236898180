"""SIGTERM as an exception, so that what is under way can save where it stands.

Not `interrupts.Signals`: a plan is run by us, so a signal is a message to its runner, whatever the program does with
signals elsewhere. A script is the program itself: only an exception reaches the code that runs, Ctrl-C already is
one, and a program that handles SIGTERM in its own way must keep that.
"""

from __future__ import annotations

import signal
import threading
from types import FrameType
from typing import NoReturn


class Stops:
    """Turns SIGTERM into `SystemExit` for a while, where nobody else looks after it.

    Only the main thread can do so, and a program that has its own way of ending keeps it.
    """

    def __init__(self) -> None:
        self._is_watching = False

    def watch(self) -> None:
        if threading.current_thread() is not threading.main_thread():
            return
        if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
            signal.signal(signal.SIGTERM, _stop)
            self._is_watching = True

    def unwatch(self) -> None:
        if self._is_watching:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            self._is_watching = False


def _stop(number: int, _: FrameType | None) -> NoReturn:
    raise SystemExit(128 + number)
