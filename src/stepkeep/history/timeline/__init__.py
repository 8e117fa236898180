"""The timeline of a session: a graph of its checkpoints, as values, as text and as a picture.

`assembly` reads it from a store, `layout` decides what is shown where, `terminal` and `svg` draw it; they are imported
when they are used.
"""

from __future__ import annotations

from stepkeep.history.timeline.rows import (
    CheckpointNode,
    DamagedNode,
    FoldNode,
    GapNode,
    NodeLink,
    RestNode,
    Row,
    Timeline,
)

__all__ = ["CheckpointNode", "DamagedNode", "FoldNode", "GapNode", "NodeLink", "RestNode", "Row", "Timeline"]
