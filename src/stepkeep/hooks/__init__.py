"""Hooks of coding agents: save at the right moments, bring the context back, offer to resume.

`stepkeep hook EVENT` is run by the agent at its events, many times in a session, so it starts fast: it is dispatched
before the command line is set up, and each module here imports only what it needs. A hook never fails the agent.
"""
