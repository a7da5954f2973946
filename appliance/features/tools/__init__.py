"""Gives models and clients tools of this machine and of MCP servers, and is an MCP server itself.

Refuses to be on until the user switches it on.
"""
