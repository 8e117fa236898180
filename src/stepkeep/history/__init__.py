"""Looking back and going back: what names a checkpoint, what differs between two, and branches.

`refs` and `times` find checkpoints, `paths` finds values inside states, `state_diff` and `merge` work on whole states
(`equality` is what both call equal, `changes` how a change reads), `branches` moves a session, `timeline`
draws one. Project files are in `workspace`; removing checkpoints is in `maintenance`.
"""
