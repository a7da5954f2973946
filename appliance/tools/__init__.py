"""The tools that a model, a run or a client may use on this machine: the built-in ones and those of MCP servers.

Refuses to decide who may ask; off until the user switches it on.
"""
