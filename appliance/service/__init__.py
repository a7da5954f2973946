"""Installs the program with the operating system's service manager, and steers it there.

Refuses to hold program logic: a service runs the same composition root as serve."""
