"""The extension points: what an adapter of a framework needs from below the api, and the only door to it.

An adapter that keeps a framework's own records (its ids, its serializer, its pending writes) works with the engine of
an open store (`store.engine`) directly. Everything it may use for that stands here; what is not here may change at any
time. Applications need none of it.

- saving and loading: `Engine`, `Save`, `PlainMetadata`, `NewBody`, `Frozen`, `Verbatim`, `Loaded`, `verified`,
  `load_body`
- asking a backend: `HeaderQuery`, `SessionQuery`, `Annotation`, `Target`
- bytes: the exact encoding of a value (`encode`, `decode`, `plain`, `JSON`, `MAX_DEPTH`), its growth (`Growing`),
  why a value cannot be saved (`ValidationError`, `name_of`, `step_of`, `ATOMS`), stored bytes (`encode_keyframe`,
  `decode_stored`, `digest`, `check_stored`)
- branches and retention: `change_branch`, `close_branch_at`, `policy_of`, `Retention`, `retention_for`, `plan_prune`,
  `apply_prune`
- other databases: `distrust_schema`, `bound_steps`, `postgres_url`, `is_connection_lost`
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from stepkeep.api.options import policy_of as policy_of
from stepkeep.codec import delta
from stepkeep.codec.delta import encode_keyframe as encode_keyframe
from stepkeep.codec.exact import ATOMS as ATOMS
from stepkeep.codec.exact import JSON as JSON
from stepkeep.codec.exact import MAX_DEPTH as MAX_DEPTH
from stepkeep.codec.exact import ValidationError as ValidationError
from stepkeep.codec.exact import decode as decode
from stepkeep.codec.exact import encode as encode
from stepkeep.codec.exact import name_of as name_of
from stepkeep.codec.exact import plain as plain
from stepkeep.codec.exact import step_of as step_of
from stepkeep.codec.incremental import Growing as Growing
from stepkeep.codec.integrity import check_stored as check_stored
from stepkeep.codec.integrity import digest as digest
from stepkeep.engine import Engine as Engine
from stepkeep.engine import Frozen as Frozen
from stepkeep.engine import Loaded as Loaded
from stepkeep.engine import NewBody as NewBody
from stepkeep.engine import Save as Save
from stepkeep.engine import Verbatim as Verbatim
from stepkeep.engine.engine import PlainMetadata as PlainMetadata
from stepkeep.engine.reader import load_body as load_body
from stepkeep.engine.reader import verified as verified
from stepkeep.history import branches
from stepkeep.maintenance.prune import apply_prune as apply_prune
from stepkeep.maintenance.prune import plan_prune as plan_prune
from stepkeep.policy.profiles import retention_for as retention_for
from stepkeep.policy.retention import Retention as Retention
from stepkeep.storage.port import Annotation as Annotation
from stepkeep.storage.port import HeaderQuery as HeaderQuery
from stepkeep.storage.port import SessionQuery as SessionQuery
from stepkeep.storage.port import Target as Target
from stepkeep.storage.sqlite import bound_steps as bound_steps
from stepkeep.storage.sqlite import distrust_schema as distrust_schema

if TYPE_CHECKING:
    import psycopg

decode_stored = delta.decode
change_branch = branches.change
close_branch_at = branches.close_at


def postgres_url(url: str) -> str:
    """A `postgresql://` URL as it may be shown: without any password."""
    from stepkeep.storage.postgres.address import parse  # psycopg is an extra

    return parse(url).url


def is_connection_lost(error: psycopg.Error) -> bool:
    """Whether an error of psycopg means that the connection broke, so that a retry can help."""
    from stepkeep.storage.postgres.connections import is_lost  # psycopg is an extra

    return is_lost(error)
