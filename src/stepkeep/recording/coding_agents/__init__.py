"""The work of coding agents as their hook events tell of it: what is saved at which event, and what is offered again.

`stepkeep hook` calls this for every event of an agent, who waits for it: modules import no more than they need.
"""
