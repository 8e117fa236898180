"""When a checkpoint is taken without being asked for, and what goes into it.

`triggers` decides for everyone here whether a trigger becomes a checkpoint. On it stand the recorder that an agent loop
drives, the parts connected to a session, the phases of an algorithm, and the hook events of coding agents. What takes
work up again is here too. Steps that are run and repeated are in `runs`, debugging sessions in `investigation`.
"""
