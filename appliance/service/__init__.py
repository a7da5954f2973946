"""The operating system's service managers as an edge of the program.

Refuses to hold program logic: a service runs the same composition root as serve."""
