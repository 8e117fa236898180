"""The rules: which checkpoints and sessions may go, and the profiles that set them; pure.

In here: retention of one history, cleanup of whole sessions, profiles with their defaults. Not in here: removing
anything (`maintenance`), and where rules are written down (`config`).
"""
