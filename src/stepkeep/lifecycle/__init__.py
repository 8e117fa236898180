"""The life of a run as an agent loop lives it: boundaries, heartbeat, coalescing, and whether it may be resumed."""
