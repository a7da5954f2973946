"""Pure decisions: no I/O, no clock, no randomness; time and identity are arguments.

Refuses every import that could make a decision unrepeatable."""
