"""What commands that serve have in common: the token that every request needs."""

from __future__ import annotations

import os
import re
import secrets

from stepkeep.cli.printing import note
from stepkeep.errors import InvalidInput

_TOKEN = re.compile(r"[!-~]+")


class Access:
    """The token of a server: that of a variable of the environment, else a new one.

    Raises:
        InvalidInput: the variable holds something that no header can carry (`invalid_token`).
    """

    def __init__(self, variable: str) -> None:
        self._variable = variable
        self._given = os.environ.get(variable) or None
        if self._given is not None and _TOKEN.fullmatch(self._given) is None:
            raise InvalidInput(
                f"{variable} must be ASCII text without blanks: a header carries it", code="invalid_token"
            )
        self.token = self._given or secrets.token_urlsafe(32)

    def announce(self, what: str, url: str) -> None:
        """Say on stderr where the server is, and a new token; one that was given is not repeated."""
        note(f"{what} at {url}")
        note(f"token: that of {self._variable}" if self._given else f"token: {self.token}")
