"""Agent runs and slash commands: events in, commands out.

Refuses to call a tool or a model: `agents` does.
"""
