"""One task per agent run, slots and restarts per model, and the chain of slash-command plugins.

Refuses to know HTTP: it asks models through an `Asker`, and ``core.turns.toolloop`` makes the decisions of a run.
"""
