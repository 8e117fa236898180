"""The tables, by schema version. A released version never changes; a new one adds a migration."""

from __future__ import annotations

from typing import Final

import msgspec


class Dialect(msgspec.Struct, frozen=True):
    """What the servers spell differently. `clustered` is said of tables whose rows live in their primary key."""

    integer: str
    blob: str
    serial: str
    clustered: str


SCHEMA_VERSION: Final = 1

_VERSION_1: Final = (
    """CREATE TABLE meta (
  name TEXT PRIMARY KEY,
  value TEXT NOT NULL
) {clustered}""",
    """CREATE TABLE sessions (
  sid {serial},
  uid TEXT NOT NULL UNIQUE,
  key TEXT NOT NULL UNIQUE,
  key_digest TEXT NOT NULL UNIQUE,
  created_us {integer} NOT NULL,
  updated_us {integer} NOT NULL,
  project TEXT,
  workflow TEXT,
  profile TEXT NOT NULL,
  is_test {integer} NOT NULL,
  status TEXT NOT NULL,
  branch TEXT NOT NULL,
  finished_us {integer},
  error TEXT,
  policy TEXT,
  fingerprint TEXT,
  metadata TEXT NOT NULL,
  version {integer} NOT NULL,
  last_seq {integer} NOT NULL,
  gaps TEXT NOT NULL,
  description TEXT NOT NULL,
  digest TEXT NOT NULL
)""",
    "CREATE INDEX sessions_updated ON sessions (updated_us)",
    "CREATE INDEX sessions_project ON sessions (project, updated_us) WHERE project IS NOT NULL",
    """CREATE TABLE branches (
  sid {integer} NOT NULL,
  name TEXT NOT NULL,
  created_us {integer} NOT NULL,
  head TEXT,
  head_seq {integer} NOT NULL,
  fork TEXT,
  fork_branch TEXT,
  fork_seq {integer} NOT NULL,
  state TEXT NOT NULL,
  is_pinned {integer} NOT NULL,
  metadata TEXT NOT NULL,
  digest TEXT NOT NULL,
  PRIMARY KEY (sid, name)
) {clustered}""",
    """CREATE TABLE checkpoints (
  sid {integer} NOT NULL,
  seq {integer} NOT NULL,
  id TEXT NOT NULL UNIQUE,
  branch TEXT NOT NULL,
  time_us {integer} NOT NULL,
  step {integer},
  status TEXT NOT NULL,
  external_id TEXT,
  idempotency_key TEXT,
  header {blob} NOT NULL,
  PRIMARY KEY (sid, seq)
) {clustered}""",
    "CREATE INDEX checkpoints_step ON checkpoints (sid, step) WHERE step IS NOT NULL",
    """CREATE UNIQUE INDEX checkpoints_external ON checkpoints (sid, branch, external_id)
  WHERE external_id IS NOT NULL""",
    """CREATE UNIQUE INDEX checkpoints_key ON checkpoints (sid, idempotency_key)
  WHERE idempotency_key IS NOT NULL""",
    """CREATE TABLE tags (
  sid {integer} NOT NULL,
  seq {integer} NOT NULL,
  tag TEXT NOT NULL,
  PRIMARY KEY (sid, seq, tag)
) {clustered}""",
    "CREATE INDEX tags_tag ON tags (tag)",
    """CREATE TABLE requirements (
  sid {integer} NOT NULL,
  seq {integer} NOT NULL,
  required TEXT NOT NULL,
  PRIMARY KEY (sid, seq, required)
) {clustered}""",
    "CREATE INDEX requirements_required ON requirements (sid, required)",
    """CREATE TABLE bodies (
  sid {integer} NOT NULL,
  checkpoint TEXT NOT NULL,
  name TEXT NOT NULL,
  is_spare {integer} NOT NULL,
  is_hidden {integer} NOT NULL,
  codec TEXT NOT NULL,
  size {integer} NOT NULL,
  stored_size {integer} NOT NULL,
  digest TEXT NOT NULL,
  base TEXT,
  member {integer} NOT NULL,
  group_bytes {integer} NOT NULL,
  data {blob} NOT NULL
)""",
    "CREATE UNIQUE INDEX bodies_place ON bodies (sid, checkpoint, name, is_spare)",
    "CREATE INDEX bodies_base ON bodies (sid, base) WHERE base IS NOT NULL",
    "CREATE INDEX bodies_hidden ON bodies (sid) WHERE is_hidden = 1",
    """CREATE TABLE blobs (
  digest TEXT PRIMARY KEY,
  size {integer} NOT NULL,
  codec TEXT NOT NULL,
  stored_digest TEXT NOT NULL,
  stored_size {integer} NOT NULL,
  data {blob} NOT NULL
)""",
    """CREATE TABLE blob_refs (
  sid {integer} NOT NULL,
  checkpoint TEXT NOT NULL,
  name TEXT NOT NULL,
  is_spare {integer} NOT NULL,
  digest TEXT NOT NULL,
  PRIMARY KEY (sid, checkpoint, name, is_spare, digest)
) {clustered}""",
    "CREATE INDEX blob_refs_digest ON blob_refs (digest)",
    """CREATE TABLE annotations (
  number {serial},
  sid {integer} NOT NULL,
  target TEXT NOT NULL,
  kind TEXT NOT NULL,
  name TEXT NOT NULL,
  time_us {integer} NOT NULL,
  digest TEXT NOT NULL,
  data {blob} NOT NULL
)""",
    "CREATE UNIQUE INDEX annotations_place ON annotations (sid, target, kind, name)",
    """CREATE TABLE events (
  sid {integer} NOT NULL,
  number {integer} NOT NULL,
  time_us {integer} NOT NULL,
  type TEXT NOT NULL,
  data TEXT NOT NULL,
  PRIMARY KEY (sid, number)
) {clustered}""",
    """CREATE TABLE leases (
  sid {integer} PRIMARY KEY,
  token {integer} NOT NULL,
  owner TEXT NOT NULL,
  expires_us {integer} NOT NULL,
  is_held {integer} NOT NULL
)""",
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
    return tuple(
        sql.format(
            integer=dialect.integer,
            blob=dialect.blob,
            serial=dialect.serial,
            clustered=dialect.clustered,
        ).rstrip()
        for sql in MIGRATIONS[version]
    )
