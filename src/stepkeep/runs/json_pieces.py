"""Plain JSON that is put together from pieces.

Each piece is encoded and proven alone, once. Put together, they are the bytes of the whole and need no further proof:
JSON of a container is that of its values, and the brackets, commas and names around them.
"""

from __future__ import annotations

from stepkeep.codec import exact


class NotPlain(Exception):
    """A value needs tags, which are those of a whole state."""


def plain_json(value: object, *, levels: int) -> bytes:
    """The JSON of a value that lies so many containers deep in its state.

    Raises:
        NotPlain: the value has no plain JSON, but can be saved.
        InvalidInput: it cannot be saved.
    """
    encoding, content = exact.encode(value, max_depth=exact.MAX_DEPTH - levels)
    if encoding != exact.JSON:
        raise NotPlain
    return content
