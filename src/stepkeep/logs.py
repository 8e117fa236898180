"""Loggers that import `logging` when there is something to say: agents wait for hooks, and that import takes long."""

from __future__ import annotations

import sys

TYPE_CHECKING = False  # known to type checkers; `typing` has one too, at the price of its import

if TYPE_CHECKING:
    import logging
    from collections.abc import Callable

_attach: Callable[[], None] | None = None


def attach_on_first_line(attach: Callable[[], None] | None) -> None:
    """Call `attach` before the first line from now on: who shows lines need not import `logging` before either."""
    global _attach
    _attach = attach


class Log:
    """The logger of that name in `logging`."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._found: logging.Logger | None = None

    def _logger(self) -> logging.Logger:
        if _attach is not None:
            _attach()
            attach_on_first_line(None)
        if self._found is None:
            import logging

            self._found = logging.getLogger(self._name)
        return self._found

    def error(self, message: str, *values: object, exc_info: BaseException | None = None) -> None:
        self._logger().error(message, *values, exc_info=exc_info, stacklevel=2)

    def exception(self, message: str, *values: object) -> None:
        self._logger().exception(message, *values, stacklevel=2)

    def warning(self, message: str, *values: object) -> None:
        self._logger().warning(message, *values, stacklevel=2)

    def info(self, message: str, *values: object) -> None:
        if _is_in_use():
            self._logger().info(message, *values, stacklevel=2)

    def debug(self, message: str, *values: object) -> None:
        if _is_in_use():
            self._logger().debug(message, *values, stacklevel=2)


def _is_in_use() -> bool:
    """Whether anybody can have asked for lines below a warning."""
    return "logging" in sys.modules
