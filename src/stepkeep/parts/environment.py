"""Which variables of the environment may be stored, and without which values; pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Final

HIDDEN: Final = "(hidden)"

ALLOWED: Final = (
    "CI",
    "CONDA_DEFAULT_ENV",
    "GOPATH",
    "JAVA_HOME",
    "LANG",
    "LC_ALL",
    "LD_LIBRARY_PATH",
    "NODE_ENV",
    "PATH",
    "PYTHONPATH",
    "RUST_BACKTRACE",
    "RUST_LOG",
    "SHELL",
    "TZ",
    "VIRTUAL_ENV",
)
"""What is captured unless other names are given. Never the whole environment."""

MAX_VALUE: Final = 32 * 1024

_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_SECRET_NAME: Final = re.compile(
    r"secret|passw|passphrase|token|credential|api_?key|access_?key|private_?key|(^|_)(auth|pwd|key)(_|$)",
    re.IGNORECASE,
)
_SECRET_VALUE: Final = re.compile(
    r"-----BEGIN|\b(sk|pk|rk|ghp|gho|ghs|github_pat|glpat|xox[abprs])[-_]\w{8,}|\bAKIA[0-9A-Z]{12,}|\beyJ[\w-]{10,}\."
    r"|://[^/\s:@]*:[^/\s@]+@",
)


def captured(environ: Mapping[str, str], allowed: Iterable[str] = ALLOWED) -> dict[str, str]:
    """The variables with an allowed name, sorted; a value that looks like a secret, or is huge, is hidden."""
    names = sorted({name for name in allowed if is_variable(name) and name in environ})
    return {name: HIDDEN if looks_secret(name, environ[name]) else environ[name] for name in names}


def looks_secret(name: str, value: str) -> bool:
    return bool(_SECRET_NAME.search(name) or _SECRET_VALUE.search(value)) or len(value) > MAX_VALUE


def is_variable(name: str) -> bool:
    """Whether a shell takes it as the name of a variable."""
    return _NAME.fullmatch(name) is not None
