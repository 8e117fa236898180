"""The timeline of a session: a graph of its checkpoints, as values, as text and as a picture.

`reading` makes it, `text` and `svg` draw it; they are imported when they are used.
"""

from __future__ import annotations

from stepkeep.history.timeline.model import Damaged, Entry, Fold, Gap, Link, Rest, Row, Timeline

__all__ = ["Damaged", "Entry", "Fold", "Gap", "Link", "Rest", "Row", "Timeline"]
