"""Debugging sessions: hypotheses, beliefs, gaps, commands, notes and experiments, saved as they change.

Each of them is a part of a session (`recording.connected_parts`), made of entries with ids; the workbench ties them
together and saves when something happens. The typed state, the comparison of two and the report are here too. The
object that users open is in `api`.
"""
