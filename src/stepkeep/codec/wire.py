"""JSON as it is written and read, and the integers on which its readers agree."""

from __future__ import annotations

from typing import Final

import msgspec

# JSON readers agree on integers of 64 bits; beyond, some return floats and Python limits the digits.
INT_MIN: Final = -(2**63)
INT_MAX: Final = 2**64 - 1

to_json = msgspec.json.Encoder().encode
from_json = msgspec.json.Decoder().decode
