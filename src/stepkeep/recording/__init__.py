"""When a checkpoint is taken without being asked for, and what goes into it.

`triggers` decides for everyone here whether a trigger becomes a checkpoint. On it stand the `recorder` that an agent
loop drives, with `details` and `resumption`; the parts connected to a session; the checkpoints of phases, with the
files beside them; and the hook events of coding agents. `recovery` says how a person gets back to a checkpoint. Steps
that are run and repeated are in `runs`, debugging sessions in `investigation`.
"""
