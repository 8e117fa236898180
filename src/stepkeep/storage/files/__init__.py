"""Readable files: one JSON document per checkpoint, with a database beside them that finds them."""

from __future__ import annotations

from stepkeep.codec.readable import Layout
from stepkeep.storage.files.backend import FilesBackend

__all__ = ["FilesBackend", "Layout"]
