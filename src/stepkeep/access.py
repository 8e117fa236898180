"""Who may talk to a server of ours: where it listens, and decisions about Host, Origin and token. Pure.

A page in a browser can send requests to a server on this machine. It cannot forge Host and Origin, and does not know
the token, so all three are looked at. A cookie is sent by the browser on its own, and to every port of a host: whoever
comes with one must come from a page of this very server.
"""

from __future__ import annotations

import hmac
import re
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Final, NamedTuple

from stepkeep.errors import BackendUnavailable

LOOPBACK: Final = ("127.0.0.1", "localhost", "::1")

_HOST: Final = re.compile(r"(?:\[([0-9a-fA-F:.]+)\]|([^\[\]:/@\s]+))(?::(\d{1,5}))?")
_ORIGIN: Final = re.compile(r"https?://([^/@\s]+)")


def is_loopback(host: str) -> bool:
    return host.casefold() in LOOPBACK


def is_known_host(header: str | None, *, names: Collection[str], port: int | None = None) -> bool:
    """Whether a Host header means this server: one of its names, and its port where one is given."""
    found = _HOST.fullmatch(header or "")
    if found is None:
        return False
    name, given = (found[1] or found[2]).casefold(), found[3]
    is_port = port is None or given is None or int(given) == port
    return is_port and name in {known.casefold() for known in names}


def is_known_origin(header: str | None, *, names: Collection[str]) -> bool:
    """Whether a request comes from no page at all, or from one on these hosts, on whichever port."""
    if header is None:
        return True
    found = _ORIGIN.fullmatch(header)
    return found is not None and is_known_host(found[1], names=names)


def has_token(header: str | None, token: str) -> bool:
    """Whether an Authorization header carries this bearer token; takes as long for a near miss as for any."""
    scheme, _, given = (header or "").partition(" ")
    return scheme.casefold() == "bearer" and hmac.compare_digest(given.strip().encode(), token.encode())


def has_cookie(header: str | None, name: str, token: str) -> bool:
    """Whether a Cookie header carries this token under a name."""
    pairs = (each.strip().partition("=") for each in (header or "").split(";"))
    return any(
        found == name and hmac.compare_digest(value.encode(), token.encode()) for found, _, value in pairs
    )


class Refusal(NamedTuple):
    """Why a request is turned away."""

    status: int
    code: str
    message: str


RESPONSE_HEADERS: Final = {
    "Cache-Control": "no-store",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}
"""What every answer tells a browser: keep nothing, show it to no other page, guess no types."""


@dataclass(frozen=True, kw_only=True)
class Guard:
    """The one judge of requests, for every server of ours.

    `names` and `port` are those under which the server may be called. With `cookie`, the name of one, the token may
    also come in it.
    """

    token: str
    names: Collection[str] = LOOPBACK
    port: int | None = None
    cookie: str | None = None

    def refusal(self, header: Callable[[str], str | None]) -> Refusal | None:
        """Why a request with these headers is turned away; None when it is let through."""
        if (foreign := self.foreign_host(header)) is not None:
            return foreign
        if not is_known_origin(header("Origin"), names=self.names):
            return Refusal(403, "foreign_origin", "the Origin header names another site")
        if has_token(header("Authorization"), self.token):
            return None
        if self.cookie is None:
            return Refusal(401, "token_needed", "send the header Authorization: Bearer TOKEN")
        if not has_cookie(header("Cookie"), self.cookie, self.token):
            return Refusal(401, "token_needed", "open the address that the command printed: it works once")
        if not _is_same_origin(header):
            return Refusal(403, "foreign_origin", "the request comes from a page of another server")
        return None

    def foreign_host(self, header: Callable[[str], str | None]) -> Refusal | None:
        """The refusal of a request that means another server; for what is decided before a token is there."""
        if is_known_host(header("Host"), names=self.names, port=self.port):
            return None
        return Refusal(421, "foreign_host", "the Host header names another server")


def _is_same_origin(header: Callable[[str], str | None]) -> bool:
    """Whether a request was sent by a page of this server, or by the person at the browser."""
    origin = header("Origin")
    return header("Sec-Fetch-Site") in (None, "none", "same-origin") and (
        origin is None or origin.partition("://")[2] == header("Host")
    )


def cannot_listen(host: str, port: int, error: OSError) -> BackendUnavailable:
    """The error of a server whose address is taken or is not one of this machine."""
    return BackendUnavailable(
        f"cannot listen on {host} port {port}: {error.strerror or error}",
        code="address_in_use",
        retryable=False,
    )


def read_address(text: str, *, default_host: str = "127.0.0.1", default_port: int) -> tuple[str, int]:
    """Host and port of `HOST:PORT`, `HOST`, `:PORT`, `PORT` or nothing.

    Raises:
        ValueError: the text has none of these forms.
    """
    if text.isascii() and text.isdigit():
        text = f":{text}"
    if text.startswith(":") and not text.startswith("::"):
        text = default_host + text
    found = _HOST.fullmatch(text or default_host)
    if found is None or int(found[3] or 0) > 65535:
        raise ValueError(f"{text!r} is not an address: write HOST:PORT, such as 127.0.0.1:{default_port}")
    return found[1] or found[2], default_port if found[3] is None else int(found[3])
