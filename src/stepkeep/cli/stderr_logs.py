"""Log lines on stderr while a command runs. Imported with the first line: most commands log none."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from stepkeep.cli.printing import note

REPEAT_SECONDS: Final = 5.0
"""How long a log line is not repeated."""


class _LogHandler(logging.Handler):
    """Writes to what stderr is at the moment: a live view takes it over, so that lines go above it.

    A command may come across the same damage twice: what was told a moment ago is not told again.
    """

    def __init__(self) -> None:
        super().__init__()
        self._told: dict[str, float] = {}

    def emit(self, record: logging.LogRecord) -> None:
        try:
            text = f"{record.levelname.lower()}: {record.getMessage()}"
            oldest = record.created - REPEAT_SECONDS
            self._told = {told: when for told, when in self._told.items() if when > oldest}
            if text not in self._told:
                self._told[text] = record.created
                note(text)
        except Exception:  # as every handler does: a log line never ends what it tells of
            self.handleError(record)


def _is_for_everybody(record: logging.LogRecord) -> bool:
    """Whether a line is shown to who did not ask for all: one for each damage, not one for each step around it."""
    return record.levelno >= logging.WARNING and record.name != "stepkeep.fallback"


@contextmanager
def lines_on_stderr(is_verbose: Callable[[], bool]) -> Iterator[None]:
    """Show warnings, and everything when that is asked for."""
    logger = logging.getLogger("stepkeep")
    handler = _LogHandler()
    handler.addFilter(lambda record: is_verbose() or _is_for_everybody(record))
    before = logger.level, logger.propagate
    logger.addHandler(handler)
    logger.setLevel(logging.DEBUG)
    logger.propagate = False
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(before[0])
        logger.propagate = before[1]
