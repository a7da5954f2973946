"""What a model, a run or a client may have done on this machine: the built-in tools and the tools of MCP servers.

Refuses to decide who may ask; off until the user switches it on."""
