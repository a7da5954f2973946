"""The surroundings of a model's turns: the use of tools. Refuses to know HTTP."""
