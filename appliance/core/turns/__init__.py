"""The machine of a model's turns with tools: events in, commands out. Runs and chats with tools share it.

Refuses to call a tool or a model.
"""
