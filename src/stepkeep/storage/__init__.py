"""The port and its backends: SQLite and PostgreSQL on shared statements (`sql`), readable files, memory.

A backend stores sealed headers and encoded bodies and gives them back as found. What they mean, how they are compressed
and what may be removed is decided above. `conflicts` has what all backends answer when they refuse, `urls` opens a
store by its URL, `disk` writes files durably, `salvage` reads a damaged SQLite file without SQLite.
"""
