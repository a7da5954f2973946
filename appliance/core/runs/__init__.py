"""The program as its own client, and slash commands.

Refuses to call a tool or a model: `agents` does.
"""
