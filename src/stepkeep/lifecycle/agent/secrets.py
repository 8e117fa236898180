"""Texts of an agent without what looks like a secret, and no longer than they need to be."""

from __future__ import annotations

import re

HIDDEN = "(hidden)"

_NAMED = r"""((?:[\w-]*(?:secret|passw(?:or)?d|passphrase|token|credential|api[_-]?key|access[_-]?key|private[_-]?key
        |authorization)[\w-]*)["']?\s*[=:]\s*["']?(?:bearer\s+|basic\s+)?
        | --?[\w-]*(?:secret|password|passphrase|token|api-?key)[\w-]*\s+["']?     # an option and its value
      )[^\s"',;&|]{4,}"""
_SHAPED = r"""\b(?:sk|pk|rk)[-_][A-Za-z0-9_-]{16,}            # keys of model and payment services
      | \bgh[pousr]_[A-Za-z0-9]{20,} | \bgithub_pat_\w{20,}
      | \bglpat-[\w-]{16,}
      | \bxox[abprs]-[A-Za-z0-9-]{10,}
      | \b(?:AKIA|ASIA)[A-Z0-9]{16}\b
      | \bAIza[\w-]{30,}
      | \beyJ[\w-]{10,}\.[\w-]{10,}\.[\w-]*             # tokens with three parts
      | -----BEGIN[^-]*PRIVATE\ KEY-----[\s\S]*?(?:-----END[^-]*-----|\Z)
      | (?<=://)[^\s/:@]+:[^\s/@]+(?=@)                 # user and password in an address
    """


_SIGNS = (
    *("secret", "passw", "passphrase", "token", "credential", "key", "authorization", "://"),
    *(
        "sk-",
        "sk_",
        "pk-",
        "pk_",
        "rk-",
        "rk_",
        "ghp_",
        "gho_",
        "ghu_",
        "ghs_",
        "ghr_",
        "github_pat_",
        "glpat-",
    ),
    *("xox", "akia", "asia", "aiza", "eyj"),
)
"""One of these is in every text with a secret. Compiling the patterns takes longer than the rest of a hook."""


def without_secrets(text: str) -> str:
    """The text with values that look like secrets hidden."""
    small = text.lower()
    if not any(sign in small for sign in _SIGNS):
        return text
    text = re.sub(_SHAPED, HIDDEN, text, flags=re.VERBOSE)
    return re.sub(_NAMED, lambda match: match[1] + HIDDEN, text, flags=re.VERBOSE | re.IGNORECASE)


def safe(value: object, limit: int) -> str:
    """A text of any origin: valid, without secrets, cut to a length. What is no text becomes an empty one."""
    if not isinstance(value, str):
        return ""
    text = value[: limit * 4 + 4096].replace("\0", "").encode("utf-8", "replace").decode()
    text = without_secrets(text).strip()
    return text if len(text) <= limit else text[: limit - 1] + "…"


def first_line(value: object, limit: int) -> str:
    text = safe(value, limit * 4)
    line = text.partition("\n")[0].strip()
    return line if len(line) <= limit else line[: limit - 1] + "…"
