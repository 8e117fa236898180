"""Connected parts: what has a snapshot and a restore call is captured and put back with its session."""
