"""The tables, by schema version. A released version never changes; a new one adds a migration."""

from __future__ import annotations

from typing import Final

import msgspec


class Dialect(msgspec.Struct, frozen=True):
    """What the servers spell differently. `clustered` is said of tables whose rows live in their primary key.

    `kind` is the column of sessions that is made of those by which rules tell sessions apart, the `{parts}`.
    A statement in `instead` replaces the one that begins with its key.
    """

    integer: str
    blob: str
    serial: str
    clustered: str
    kind: str
    text: str = "TEXT"
    instead: dict[str, str] = {}


SCHEMA_VERSION: Final = 1

ENDED: Final = "status IN ('completed', 'failed', 'cancelled')"
"""The condition of the index of ended sessions, as every statement must say it that is to use it."""

ENDED_US: Final = (
    "CASE WHEN created_us > coalesce(finished_us, 0) THEN created_us ELSE coalesce(finished_us, 0) END"
)
"""When a session ended here: one that was adopted ended earlier elsewhere."""

# Policies are JSON objects, which say themselves where they end.
_KIND: Final = (
    "profile || ' ' || CAST(is_test AS TEXT) || ' ' || coalesce(policy, '') || coalesce(' ' || workflow, '')"
)

_VERSION_1: Final = (
    """CREATE TABLE meta (
  name {text} PRIMARY KEY,
  value {text} NOT NULL
) {clustered}""",
    """CREATE TABLE sessions (
  sid {serial},
  uid {text} NOT NULL UNIQUE,
  key {text} NOT NULL UNIQUE,
  key_digest {text} NOT NULL UNIQUE,
  created_us {integer} NOT NULL,
  updated_us {integer} NOT NULL,
  project {text},
  workflow {text},
  profile {text} NOT NULL,
  is_test {integer} NOT NULL,
  status {text} NOT NULL,
  branch {text} NOT NULL,
  finished_us {integer},
  error {text},
  policy {text},
  fingerprint {text},
  metadata {text} NOT NULL,
  version {integer} NOT NULL,
  last_seq {integer} NOT NULL,
  gaps {text} NOT NULL,
  description {text} NOT NULL,
  digest {text} NOT NULL,
  kind {kind}
)""",
    "CREATE INDEX sessions_updated ON sessions (updated_us)",
    "CREATE INDEX sessions_kind ON sessions (kind)",
    f"CREATE INDEX sessions_ended ON sessions (kind, status, ({ENDED_US}), sid) WHERE {ENDED}",
    "CREATE INDEX sessions_project ON sessions (project, updated_us) WHERE project IS NOT NULL",
    """CREATE TABLE branches (
  sid {integer} NOT NULL,
  name {text} NOT NULL,
  created_us {integer} NOT NULL,
  head {text},
  head_seq {integer} NOT NULL,
  fork {text},
  fork_branch {text},
  fork_seq {integer} NOT NULL,
  state {text} NOT NULL,
  is_pinned {integer} NOT NULL,
  metadata {text} NOT NULL,
  digest {text} NOT NULL,
  PRIMARY KEY (sid, name)
) {clustered}""",
    """CREATE TABLE checkpoints (
  sid {integer} NOT NULL,
  seq {integer} NOT NULL,
  id {text} NOT NULL UNIQUE,
  branch {text} NOT NULL,
  time_us {integer} NOT NULL,
  step {integer},
  status {text} NOT NULL,
  external_id {text},
  idempotency_key {text},
  header {blob} NOT NULL,
  PRIMARY KEY (sid, seq)
) {clustered}""",
    """CREATE UNIQUE INDEX checkpoints_external ON checkpoints (sid, branch, external_id)
  WHERE external_id IS NOT NULL""",
    """CREATE UNIQUE INDEX checkpoints_key ON checkpoints (sid, idempotency_key)
  WHERE idempotency_key IS NOT NULL""",
    """CREATE TABLE tags (
  sid {integer} NOT NULL,
  seq {integer} NOT NULL,
  tag {text} NOT NULL,
  PRIMARY KEY (sid, seq, tag)
) {clustered}""",
    "CREATE INDEX tags_tag ON tags (tag)",
    """CREATE TABLE requirements (
  sid {integer} NOT NULL,
  seq {integer} NOT NULL,
  required {text} NOT NULL,
  PRIMARY KEY (sid, seq, required)
) {clustered}""",
    "CREATE INDEX requirements_required ON requirements (sid, required)",
    """CREATE TABLE bodies (
  sid {integer} NOT NULL,
  checkpoint {text} NOT NULL,
  name {text} NOT NULL,
  is_redundant {integer} NOT NULL,
  is_hidden {integer} NOT NULL,
  codec {text} NOT NULL,
  size {integer} NOT NULL,
  stored_size {integer} NOT NULL,
  digest {text} NOT NULL,
  base {text},
  position {integer} NOT NULL,
  group_bytes {integer} NOT NULL,
  data {blob} NOT NULL
)""",
    "CREATE UNIQUE INDEX bodies_place ON bodies (sid, checkpoint, name, is_redundant)",
    "CREATE INDEX bodies_base ON bodies (sid, base) WHERE base IS NOT NULL",
    "CREATE INDEX bodies_hidden ON bodies (sid) WHERE is_hidden = 1",
    """CREATE TABLE blobs (
  digest {text} PRIMARY KEY,
  size {integer} NOT NULL,
  codec {text} NOT NULL,
  stored_digest {text} NOT NULL,
  stored_size {integer} NOT NULL,
  data {blob} NOT NULL
)""",
    """CREATE TABLE blob_refs (
  sid {integer} NOT NULL,
  checkpoint {text} NOT NULL,
  name {text} NOT NULL,
  is_redundant {integer} NOT NULL,
  digest {text} NOT NULL,
  PRIMARY KEY (sid, checkpoint, name, is_redundant, digest)
) {clustered}""",
    "CREATE INDEX blob_refs_digest ON blob_refs (digest)",
    """CREATE TABLE annotations (
  number {serial},
  sid {integer} NOT NULL,
  target {text} NOT NULL,
  kind {text} NOT NULL,
  name {text} NOT NULL,
  time_us {integer} NOT NULL,
  digest {text} NOT NULL,
  data {blob} NOT NULL
)""",
    "CREATE UNIQUE INDEX annotations_place ON annotations (sid, target, kind, name)",
    """CREATE TABLE events (
  sid {integer} NOT NULL,
  number {integer} NOT NULL,
  time_us {integer} NOT NULL,
  type {text} NOT NULL,
  data {text} NOT NULL,
  PRIMARY KEY (sid, number)
) {clustered}""",
    """CREATE TABLE leases (
  sid {integer} PRIMARY KEY,
  token {integer} NOT NULL,
  owner {text} NOT NULL,
  expires_us {integer} NOT NULL,
  is_held {integer} NOT NULL
)""",
    "CREATE INDEX leases_held ON leases (sid) WHERE is_held = 1",
)

MIGRATIONS: Final[dict[int, tuple[str, ...]]] = {1: _VERSION_1}
"""The statements that lead to each version from the one before."""

SESSION_TABLES: Final = (
    "branches",
    "checkpoints",
    "tags",
    "requirements",
    "bodies",
    "blob_refs",
    "annotations",
    "events",
    "leases",
)
"""Every table whose rows belong to a session."""


def statements(version: int, dialect: Dialect) -> tuple[str, ...]:
    words = {name: getattr(dialect, name) for name in ("integer", "blob", "serial", "clustered", "text")}
    words["kind"] = dialect.kind.format(parts=_KIND)
    spelled = [
        next((own for start, own in dialect.instead.items() if sql.startswith(start)), sql)
        for sql in MIGRATIONS[version]
    ]
    return tuple(sql.format(**words).rstrip() for sql in spelled)
