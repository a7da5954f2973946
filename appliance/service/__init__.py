"""The operating system's service managers: installs the program there, and tells them how it fares.

Refuses to hold program logic: a service runs the same composition root as serve."""
