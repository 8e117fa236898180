"""The MCP server: tools, resources and a prompt with which a model saves and loads the checkpoints of its work.

It parses, calls `stepkeep.api` and shapes the answers; what a save or a restore does is decided below.
"""
