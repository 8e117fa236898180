"""The extension points: what an adapter of a framework needs from below the api, and the only door to it.

An adapter that keeps a framework's own records (its ids, its serializer, its pending writes) works with the engine of
an open store (`store.engine`) directly. Everything it may use for that stands here; what is not here may change at any
time. Applications need none of it.

- saving and loading: `Engine`, `Save`, `NewBody`, `Shares`, `verified`, `load_body`
- asking a backend: `HeaderQuery`, `SessionQuery`, `Annotation`, `Target`
- bytes: the exact encoding of a value (`encode`, `decode`, `JSON`, `MAX_DEPTH`), its growth (`Growing`, `LARGE_BYTES`),
  why a value cannot be saved (`ValidationError`, `name_of`, `step_of`, `ATOMS`), stored bytes (`encode_keyframe`,
  `decode_stored`, `digest`, `check_stored`)
- branches and retention: `change_branch`, `close_branch_at`, `policy_of`, `Retention`, `retention_for`, `plan_prune`,
  `apply_prune`
- PostgreSQL: `postgres_url`, `is_connection_lost`
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from stepkeep.api.options import policy_of
from stepkeep.codec.delta import decode as decode_stored
from stepkeep.codec.delta import encode_keyframe
from stepkeep.codec.exact import ATOMS, JSON, MAX_DEPTH, ValidationError, decode, encode, name_of, step_of
from stepkeep.codec.incremental import LARGE_BYTES, Growing
from stepkeep.codec.integrity import check_stored, digest
from stepkeep.engine import Engine, NewBody, Save
from stepkeep.engine.chains import Shared
from stepkeep.engine.reader import load_body, verified
from stepkeep.history.branches import change as change_branch
from stepkeep.history.branches import close_at as close_branch_at
from stepkeep.maintenance.prune import apply_prune, plan_prune
from stepkeep.policy.profiles import retention_for
from stepkeep.policy.retention import Retention
from stepkeep.storage.port import Annotation, HeaderQuery, SessionQuery, Target

if TYPE_CHECKING:
    import psycopg

__all__ = [
    "ATOMS",
    "JSON",
    "LARGE_BYTES",
    "MAX_DEPTH",
    "Annotation",
    "Engine",
    "Growing",
    "HeaderQuery",
    "NewBody",
    "Retention",
    "Save",
    "SessionQuery",
    "Shared",
    "Target",
    "ValidationError",
    "apply_prune",
    "change_branch",
    "check_stored",
    "close_branch_at",
    "decode",
    "decode_stored",
    "digest",
    "encode",
    "encode_keyframe",
    "is_connection_lost",
    "load_body",
    "name_of",
    "plan_prune",
    "policy_of",
    "postgres_url",
    "retention_for",
    "step_of",
    "verified",
]


def postgres_url(url: str) -> str:
    """A `postgresql://` URL as it may be shown: without any password."""
    from stepkeep.storage.postgres.address import parse  # psycopg is an extra

    return parse(url).url


def is_connection_lost(error: psycopg.Error) -> bool:
    """Whether an error of psycopg means that the connection broke, so that a retry can help."""
    from stepkeep.storage.postgres.connections import is_lost  # psycopg is an extra

    return is_lost(error)
