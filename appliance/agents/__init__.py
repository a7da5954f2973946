"""The surroundings of a model's turns: the use of tools, and the chain of slash-command plugins.

Refuses to know HTTP: it asks models through an `Asker`.
"""
