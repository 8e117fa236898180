"""The one door: every save and every load of the product passes here.

`Engine.save` does all that a save needs: incremental encoding, the order of saves, deltas, group commit, fencing, and
telling those who count and keep. `Engine.load` and `latest_of` bring back what was saved, verified, with the
fallback. What a checkpoint means to a user, and which ones to keep, is decided in the packages above.
"""

from stepkeep.engine.engine import Engine, Made, MakesBody, Pending, Save, Saved
from stepkeep.engine.reader import Fallback, Loaded
from stepkeep.engine.state_encoder import Frozen, NewBody, Verbatim

__all__ = [
    "Engine",
    "Fallback",
    "Frozen",
    "Loaded",
    "Made",
    "MakesBody",
    "NewBody",
    "Pending",
    "Save",
    "Saved",
    "Verbatim",
]
