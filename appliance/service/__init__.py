"""Whatever started the program: installs it at the operating system's service manager, and tells that, or the
application that it is a part of, how it fares.

Refuses to hold program logic: a service runs the same composition root as serve."""
