"""Adapters: a framework's own storage interface on a Stepkeep store, one package per framework.

They use the api and its extension points (`api.extension`). What a coding agent or an MCP client needs is not here but
in `hooks` and `mcp`.
"""
