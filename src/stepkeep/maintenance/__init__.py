"""Looking after a store as a whole: first a plan or a report, then the change.

In here: pruning history and cleaning up sessions, the keeper that does both in the background, limits of space,
verifying, backup, copy and recovery, adopting checkpoint files of other systems, metrics, status and doctor.
Not in here: which rules keep what (`policy`), where the rules come from (`config`), single saves and loads (`engine`).
"""
