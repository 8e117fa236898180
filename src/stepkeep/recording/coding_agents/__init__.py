"""The work of coding agents as their hook events tell of it: what is saved at which event, and what is offered again.

Installing hooks in the settings of a client is here too. `stepkeep hook` calls `responses` for every event of an agent,
who waits for it: modules import no more than they need. Reading the command line and answering is in `hooks`.
"""
