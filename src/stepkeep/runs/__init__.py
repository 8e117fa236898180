"""Running work and resuming it: scripts (`store.run`), plans (`store.execute`) and workflow files (`store.workflows`).

All three save through one saver, hold one kind of lease and handle signals in one way. Queues with their workers, and
the states of agents (`store.agents`), are here too. How a workflow file is written and read is in `runs.workflow`. What
a checkpoint is and how it gets to disk is the engine's business.
"""
