"""The MCP server. It needs the extra `mcp` and takes a second to import, so only the command `mcp` does."""
