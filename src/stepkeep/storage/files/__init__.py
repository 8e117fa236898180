"""A store of readable JSON documents in a directory, beside an SQLite index that is rebuilt from them.

`directory` is the backend with its transactions; `document_writer`, `document_reader` and `rebuild` handle documents,
`sidecar` the index, `durable_files` bytes and names on the disk, `layouts` every name. What a document says, line by
line, is in `codec`; tables and their statements are those of `storage.sql`.
"""

from __future__ import annotations

from stepkeep.codec.readable import Layout
from stepkeep.storage.files.directory import FilesBackend

__all__ = ["FilesBackend", "Layout"]
