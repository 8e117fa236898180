"""A store of readable JSON documents in a directory, beside an SQLite index that is rebuilt from them.

`directory` is the backend and `document_transactions` what makes its writes all or nothing; `document_writer` and
`document_reader` handle documents, `durable_files` bytes and names on the disk, `layouts` every name. What a document
says, line by line, is in `codec`.
"""

from __future__ import annotations

from stepkeep.codec.readable import Layout
from stepkeep.storage.files.directory import FilesBackend

__all__ = ["FilesBackend", "Layout"]
