"""The program as its own client, the list of runs, and slash commands.

Refuses to call a tool or a model: `agents` does.
"""
