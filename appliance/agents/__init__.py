"""One task per agent run, slots and restarts per model, and the chain of slash-command plugins.

Refuses to know HTTP: it asks models through an `Asker`, and ``core.runs.toolloop`` makes the decisions of a run.
"""
