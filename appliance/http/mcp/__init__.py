"""The MCP server that offers the models here to other programs.

Refuses to know how tools of others are called; that is `tools`."""
