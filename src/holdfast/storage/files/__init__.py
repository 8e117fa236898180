"""Readable files: one JSON document per checkpoint, with a database beside them that finds them."""

from __future__ import annotations

from holdfast.codec.readable import Layout
from holdfast.storage.files.backend import FilesBackend

__all__ = ["FilesBackend", "Layout"]
