"""Joins codec and storage: owns the order of writes, integrity on reading, and the fallback."""

from stepkeep.engine.engine import Engine, NewBody, Pending, Save
from stepkeep.engine.reader import Fallback, Loaded

__all__ = ["Engine", "Fallback", "Loaded", "NewBody", "Pending", "Save"]
