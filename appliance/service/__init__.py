"""The program's parent: installs the program with the operating system's service manager, and reports its state to
that, or to the application that it is a part of.

Refuses to hold program logic: a service runs the same composition root as serve."""
