"""One task per agent run, slots and restarts per model, and the chain of slash-command plugins.

Refuses to know HTTP: it asks models through an `Asker`, and what a run decides is decided in ``core.toolloop``."""
